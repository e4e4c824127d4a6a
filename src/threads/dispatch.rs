//! The choice of the thread for completions of expired operations and of deferred checks.

use crate::callbacks::panics::Panics;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, SLICE};
use crate::threads::worker::{GRACE, Worker};
use std::collections::VecDeque;
use std::fmt;
use std::io;

/// Completions that do not run on the spot: of operations that have expired or that a deferred check has completed, and
/// those that wait for the end of an outermost call. Runs once and never panics:
/// panics of `on_complete` are caught and counted inside. Dropping a job runs it. (Made by `job` in
/// `src/engine/deliver.rs`.)
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The thread on which [`on_complete`](crate::DelayedOperation::on_complete) of an expired operation runs, and that of
/// one that a deferred check has completed: [`check_later`](crate::Purgatory::check_later), or what a
/// [check](crate::Purgatory::check_and_complete) leaves.
#[derive(Clone)]
#[non_exhaustive]
pub enum Dispatch {
    /// On a thread of the purgatory (with a shared reaper: of that reaper), one after the other. A slow completion
    /// delays those behind it, but never the timer. The thread starts with the first completion for it; while the system
    /// refuses it, completions run as with [`Inline`](Self::Inline). The default with a reaper thread.
    OwnThread,
    /// On the thread that drives the timer: the reaper, or the caller of [`advance`](crate::Purgatory::advance). A slow
    /// completion delays the timer. The default with [`Reaper::Manual`](crate::threads::Reaper::Manual) and
    /// [`Reaper::Reactor`](crate::threads::Reaper::Reactor).
    ///
    /// An operation whose deadline passes while a call of yours parks or examines it ends in that call, on that thread.
    /// (Payloads of a [`Timer`](crate::Timer) are never examined, and no call that
    /// starts, stops or reschedules one expires any.)
    Inline,
    /// Where this function runs the job that it is given, one for each operation: for instance on a thread pool. It may
    /// run the job now or later, on any thread, and each job ends its operation, also if it is dropped. A job never
    /// panics.
    ///
    /// The function is called on the thread that drives the timer, or on a thread that was examining the operation at its
    /// deadline. It should pass the job to another thread rather than run it: a slow function delays the timer. A job
    /// that is run at once, inside the call that hands it over, takes effect when the outermost call of the library on
    /// that thread returns: completions do not nest.
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

/// A thread that runs jobs in order, and runs all jobs of its queue before it ends. It starts with the first job: many
/// purgatories never have one, and a thread takes longer to start than everything else that a first park does.
#[derive(Default)]
pub(crate) struct CompletionThread {
    queue: Arc<Queue>,
    pub(crate) thread: Worker,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    /// The thread waits here as soon as it finds no job: jobs come in batches, too seldom to spin for the next.
    more: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
}

impl Queue {
    /// The thread's whole life.
    fn run(&self) {
        let mut jobs = self.jobs.lock();
        loop {
            match jobs.waiting.pop_front() {
                // The lock is released while the job runs: a reaper that brings the next one never waits for a completion.
                // A job never panics. If one did all the same, the jobs behind it would still run.
                Some(job) => _ = MutexGuard::unlocked(&mut jobs, || Panics::contain(job)),
                None if jobs.closed => return,
                None => {
                    // A storm's memory is not kept.
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

    /// One caller at a time: the one with the lock of the queue.
    fn start_under(&self, _alone: &Jobs, name: &str) -> io::Result<()> {
        let queue = self.queue.clone();
        self.thread.start(name, "completions", move || queue.run())
    }

    /// Queues `job`, and starts the thread if this is the first one. Returns the job if the thread takes no more, or the
    /// system refuses it: the caller runs the job then, and the next job asks the system again.
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
