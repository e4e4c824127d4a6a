//! Where the completions of expired operations run, and those of checks that were put off.

use crate::sync::Arc;
use crate::worker::{GRACE, Worker};
use crossbeam::channel::{Sender, unbounded};
use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The completion of one operation that expired, or was completed by a check put off; ready to run once. Never panics:
/// panics of `on_complete` are caught and counted inside. Dropping it runs it, so an executor that throws a job away
/// still ends the operation.
pub type Job = Box<dyn FnOnce() + Send + 'static>;

/// Runs [the completions that go elsewhere](Dispatch), for instance on a thread pool.
///
/// `execute` is called on the thread that drives the timer, or on one that had the operation in hand when its time
/// came. It should hand the job on rather than run it: a slow executor delays the timer. Closures `Fn(Job)` are
/// executors.
pub trait Executor: Send + Sync + 'static {
    /// Runs `job`, now or later, here or elsewhere.
    fn execute(&self, job: Job);
}

impl<F: Fn(Job) + Send + Sync + 'static> Executor for F {
    fn execute(&self, job: Job) {
        self(job);
    }
}

/// Where [`on_complete`](crate::DelayedOperation::on_complete) of an expired operation runs, and of one that was
/// completed by a check put off ([`check_later`](crate::Purgatory::check_later), or the seventeenth look in a row).
#[derive(Clone)]
#[non_exhaustive]
pub enum Dispatch {
    /// On a thread of the purgatory's own (with a shared reaper: of that reaper's own), one after the other. A slow
    /// one delays those behind it, but never the timer. The default where there is a reaper.
    OwnThread,
    /// On the thread that drives the timer: the reaper, or the caller of
    /// [`advance`](crate::Purgatory::advance). A slow one delays the timer. The default with
    /// [`Reaper::Manual`](crate::Reaper::Manual).
    ///
    /// An operation whose time comes while a call of yours parks or examines it ends in that call, and on its thread,
    /// as if it had been satisfied there. (What a [`Timer`](crate::Timer) or a [`Tracker`](crate::Tracker) keeps is
    /// never examined, and no call that starts, stops or touches it expires anything.)
    Inline,
    /// Wherever this executor runs them, one job for each operation.
    Executor(Arc<dyn Executor>),
}

impl fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnThread => "OwnThread",
            Self::Inline => "Inline",
            Self::Executor(_) => "Executor(..)",
        })
    }
}

/// A thread that runs jobs in order, and runs all that it was given before it ends.
#[derive(Debug)]
pub(crate) struct CompletionThread {
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Worker,
}

impl CompletionThread {
    pub(crate) fn spawn(name: &str) -> io::Result<Self> {
        let (jobs, received) = unbounded::<Job>();
        let thread = Worker::spawn(name, "completions", move || {
            for job in received {
                // Jobs catch the panics of user code themselves. Should one get through nevertheless, it has been
                // reported by the panic hook, and the jobs behind it must not suffer.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        })?;
        Ok(Self {
            jobs: Mutex::new(Some(jobs)),
            thread,
        })
    }

    /// Queues `job`; gives it back if the thread takes no more.
    pub(crate) fn submit(&self, job: Job) -> Result<(), Job> {
        match &*self.jobs.lock() {
            Some(jobs) => jobs.send(job).map_err(|refused| refused.0),
            None => Err(job),
        }
    }

    /// Takes no more jobs. The thread ends when it has run those that it has.
    pub(crate) fn close(&self) {
        drop(self.jobs.lock().take());
    }

    pub(crate) fn thread(&self) -> &Worker {
        &self.thread
    }
}

impl Drop for CompletionThread {
    fn drop(&mut self) {
        self.close();
        self.thread.join_within(GRACE);
    }
}
