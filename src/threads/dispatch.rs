//! [`Dispatch`], the choice of the thread that runs the completions of expired operations and of deferred checks; and
//! [`CompletionThread`], the library's thread for these completions.

use crate::callbacks::panics::Panics;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, SLICE};
use crate::threads::worker::{GRACE, Worker};
use std::collections::VecDeque;
use std::fmt;
use std::io;

/// Completions that do not run at once on the thread that ended the operations: those of operations that have expired
/// or that a deferred check has completed, and those that wait for the end of an outermost call. Made by `job` in
/// `src/engine/deliver.rs`. A job runs exactly once: when it is called, or when it is dropped without a call. It never
/// panics: panics of `on_complete` are caught and counted inside.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The thread on which [`on_complete`](crate::DelayedOperation::on_complete) runs for operations that have expired, and
/// for operations that a deferred check has completed: a [`check_later`](crate::Purgatory::check_later), or an
/// examination that a [check](crate::Purgatory::check_and_complete) has deferred.
#[derive(Clone)]
#[non_exhaustive]
pub enum Dispatch {
    /// On a thread that belongs to the purgatory or to its shared reaper, one completion after another. A slow
    /// completion delays the completions behind it, but never the timer. The thread starts with its first completion;
    /// while the system refuses the thread, completions run as with [`Inline`](Self::Inline). The default with a reaper
    /// thread.
    OwnThread,
    /// On the thread that drives the timer: the reaper, or the caller of [`advance`](crate::Purgatory::advance). A slow
    /// completion delays the timer. The default with [`Reaper::Manual`](crate::threads::Reaper::Manual) and
    /// [`Reaper::Reactor`](crate::threads::Reaper::Reactor).
    ///
    /// If the deadline of an operation passes while a call of yours parks or examines the operation, the operation ends
    /// in that call, on the thread of that call. Payloads of a [`Timer`](crate::Timer) are never examined, so no call
    /// that starts, stops or reschedules a payload expires one.
    Inline,
    /// On the thread on which this function runs its job, for example a thread of a pool. Each operation has a job of
    /// its own. The function may run the job now or later, on any thread. Each job completes its operation, even if the
    /// job is dropped. A job never panics.
    ///
    /// The function is called on the thread that drives the timer, or on a thread that was examining the operation at
    /// its deadline. It should pass the job to another thread rather than run it: a slow function delays the timer. If
    /// the function runs the job at once, the completion still waits until the outermost call of the library on that
    /// thread returns, because completions do not nest.
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

/// A thread that runs jobs in order, and runs all queued jobs before it ends. It starts with the first job: many
/// purgatories never have a job, and starting a thread takes longer than all the rest of a first park.
#[derive(Default)]
pub(crate) struct CompletionThread {
    queue: Arc<Queue>,
    pub(crate) thread: Worker,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    /// The thread waits here as soon as it finds no job: jobs come in batches, too seldom to spin for the next one.
    more: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
}

impl Queue {
    /// The main function of the thread.
    fn run(&self) {
        let mut jobs = self.jobs.lock();
        loop {
            match jobs.waiting.pop_front() {
                // Release the lock while the job runs, so that a reaper that brings the next job never waits for a
                // completion. A job never panics. If it did, the next jobs would still run.
                Some(job) => _ = MutexGuard::unlocked(&mut jobs, || Panics::contain(job)),
                None if jobs.closed => return,
                None => {
                    // The queue may have been long: release its memory.
                    jobs.waiting.shrink_to(SLICE);
                    self.more.wait(&mut jobs);
                }
            }
        }
    }
}

impl CompletionThread {
    /// Starts the thread, unless it was started before.
    pub(crate) fn start(&self, name: &str) -> io::Result<()> {
        self.start_under(&self.queue.jobs.lock(), name)
    }

    /// Starts the thread. The caller has the lock of the queue, as `_alone` shows, so one caller at a time starts it.
    fn start_under(&self, _alone: &Jobs, name: &str) -> io::Result<()> {
        let queue = self.queue.clone();
        self.thread.start(name, "completions", move || queue.run())
    }

    /// Queues `job`, and starts the thread if this is the first job. Returns the job if the thread takes no more jobs,
    /// or if the system refuses the thread. The caller then runs the job, and the next job asks the system again.
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

    /// Takes no more jobs. The thread ends when it has run the jobs of its queue.
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
