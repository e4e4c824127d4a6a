//! [`Dispatch`], the user's choice of the thread that runs completions of expired operations and of deferred checks;
//! and [`CompletionThread`], the library's own thread for these completions.

use crate::callbacks::panics::Panics;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use crate::threads::worker::{GRACE, Worker};
use std::collections::LinkedList;
use std::fmt;
use std::io;

/// A function that runs the completions (the user's `on_complete`) of one or more operations (or timer values) that
/// have ended. It runs where the builder's [`Dispatch`] says, or on the thread that has made it, when the outermost
/// call of the library on that thread returns. Made by `job` in `src/engine/deliver.rs`. A job runs exactly once: when
/// it is called, or when it is dropped without a call. It never panics, because it catches and counts the panics of
/// `on_complete`.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The thread on which [`on_complete`](crate::DelayedOperation::on_complete) runs for these operations:
///
/// * operations that have expired;
/// * operations that a deferred check has completed: a [`check_later`](crate::Purgatory::check_later), or an
///   examination that a [check](crate::Purgatory::check_and_complete) has deferred.
#[derive(Clone)]
#[non_exhaustive]
pub enum Dispatch {
    /// On a thread that belongs to the purgatory or to its shared reaper, one completion after another. A slow
    /// completion delays the completions behind it, but never the timer. The thread starts with its first completion.
    /// While the system refuses the thread, completions run as with [`Inline`](Self::Inline). This is the default with
    /// a reaper thread.
    OwnThread,
    /// On the thread that drives the timer: the reaper, or the caller of [`advance`](crate::Purgatory::advance). A slow
    /// completion delays the timer. This is the default with [`Reaper::Manual`](crate::threads::Reaper::Manual) and
    /// [`Reaper::Reactor`](crate::threads::Reaper::Reactor).
    ///
    /// If the deadline of an operation passes while a call of yours parks or examines the operation, the operation ends
    /// in that call, and its completion runs on the thread of that call. Payloads of a [`Timer`](crate::Timer) are
    /// never examined, so no call that starts, stops or reschedules a payload expires one.
    Inline,
    /// On a thread that this function chooses, for example a thread of a pool. The library calls the function once for
    /// each operation, with a job: a closure that runs the completion. The function may run the job now or later, on
    /// any thread. A job that is dropped without being run completes its operation too. A job never panics.
    ///
    /// The library calls the function on the thread that drives the timer, or on a thread that was examining the
    /// operation at its deadline. The function should pass the job to another thread rather than run it, because a slow
    /// function delays the timer. If the function runs the job at once, the completion still waits until the outermost
    /// call of the library on that thread returns, because completions do not nest.
    Executor(Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>),
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

/// The completion thread: runs jobs in order, and runs all queued jobs before it ends. Starts with the first job,
/// because many purgatories never have a job, and starting a thread takes longer than the rest of a first park.
#[derive(Default)]
pub(crate) struct CompletionThread {
    queue: Arc<Queue>,
    pub(crate) thread: Worker,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    /// The thread sleeps here as soon as it finds no job. It does not spin, because jobs come in batches, with long
    /// gaps.
    more: Condvar,
}

#[derive(Default)]
struct Jobs {
    /// A linked list, so that no job is moved under the lock, however many wait.
    waiting: LinkedList<Job>,
    closed: bool,
}

impl Queue {
    /// The main function of the completion thread.
    fn run(&self) {
        let mut jobs = self.jobs.lock();
        loop {
            match jobs.waiting.pop_front() {
                // Release the lock while the job runs, so that a reaper that brings the next job never waits for a
                // completion. A job never panics, but if one did, the next jobs would still run.
                Some(job) => _ = MutexGuard::unlocked(&mut jobs, || Panics::contain(job)),
                None if jobs.closed => return,
                None => self.more.wait(&mut jobs),
            }
        }
    }
}

impl CompletionThread {
    /// Starts the thread, unless it was started before. `Err` if the system refuses the thread.
    pub(crate) fn start(&self, name: &str) -> io::Result<()> {
        self.start_under(&self.queue.jobs.lock(), name)
    }

    /// Starts the thread, unless it was started before. `_alone` shows that the caller has the lock of the queue, so
    /// that only one caller at a time starts the thread.
    fn start_under(&self, _alone: &Jobs, name: &str) -> io::Result<()> {
        let queue = self.queue.clone();
        self.thread.start(name, "completions", move || queue.run())
    }

    /// Queues `job`. Starts the thread if it was not started before. Returns the job if the thread takes no more jobs,
    /// or if the system refuses the thread. The caller then runs the job itself. After a refusal, the next call of
    /// `submit` asks the system again.
    pub(crate) fn submit(&self, name: &str, job: Job) -> Result<(), Job> {
        let mut jobs = self.queue.jobs.lock();
        if jobs.closed || self.start_under(&jobs, name).is_err() {
            return Err(job);
        }
        jobs.waiting.push_back(job);
        drop(jobs);
        self.queue.more.notify_one();
        Ok(())
    }

    /// Makes the thread take no more jobs. The thread ends when it has run the jobs in its queue.
    pub(crate) fn close(&self) {
        self.queue.jobs.lock().closed = true;
        self.queue.more.notify_one();
    }
}

impl Drop for CompletionThread {
    fn drop(&mut self) {
        self.close();
        self.thread.join(Some(GRACE));
    }
}
