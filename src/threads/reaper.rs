//! The reaper: a thread that drives purgatories and timers, and sleeps until the next of their deadlines.
//!
//! This file has only the loop of the thread. Each purgatory says how long the reaper may sleep. There is no polling
//! interval: if no deadline exists, the reaper sleeps until another thread wakes it.
//!
//! In tests without threads, the thread that moves a `ManualClock` runs the rounds of the loop.

use crate::callbacks::panics::Panics;
use crate::sync::{Arc, AtomicBool, Ordering, Parker, Unparker, Weak};
use crate::threads::dispatch::CompletionThread;
use crate::threads::worker::{GRACE, Worker};
use crate::time::WakeFn;
use parking_lot::Mutex;
use std::io;
use std::time::{Duration, Instant};

/// How long the reaper sleeps after a call of [`Driven::drive`] has panicked. The user's clock, for example, may panic.
const AFTER_PANIC: Option<Duration> = Some(Duration::from_millis(100));

/// A purgatory or a timer, as the reaper sees it. Implemented for every handler, in `src/engine/drive.rs`.
pub(crate) trait Driven: Send + Sync {
    /// Expires timers whose deadline has passed, makes deferred checks, and reclaims slots and watches. Returns how
    /// long the reaper may sleep; [`Duration::MAX`] means until it is woken. Returns `None` after the shutdown: the
    /// reaper then forgets this purgatory or timer.
    fn drive(self: Arc<Self>) -> Option<Duration>;
}

/// The choice of the thread that drives the timer of a purgatory: the thread expires operations and makes deferred
/// checks.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum Reaper {
    /// A thread that only this purgatory uses, started when it is first needed.
    #[default]
    Own,
    /// A thread that drives many purgatories.
    Shared(ReaperThread),
    /// A thread of yours, such as an event loop. It calls [`advance`](crate::Purgatory::advance) when
    /// [`next_deadline`](crate::Purgatory::next_deadline) has come, and calls both again when the library calls this
    /// function.
    ///
    /// The library calls this function when a call has added an earlier deadline, has deferred a check, has moved a
    /// manual clock, or has shut the purgatory down. The function runs on the thread of that call (for example a check
    /// of a key), with no lock held. A panic of the function is caught and counted. The thread is then not woken, and
    /// the library does not call the function again for a later deadline until the thread has called `next_deadline`.
    Reactor(WakeFn),
    /// No thread: you call [`advance`](crate::Purgatory::advance), for instance in a test.
    Manual,
}

/// A thread that drives any number of purgatories, and a second thread that runs their completions. The thread drives
/// one purgatory after another: long work for one, such as a deferred check of a key that a million operations watch,
/// delays the timers of the others.
///
/// All clones are the same reaper. The two threads end when all clones, all purgatories that use the threads, and all
/// [resolved keys](crate::ResolvedKey) of those purgatories have been dropped, and all jobs that an executor was given
/// have run. The last of these drops waits for each
/// of the two threads, for at most about 10 ms. A thread that needs longer runs the completions in its queue, and then
/// ends.
#[derive(Clone)]
pub struct ReaperThread {
    pub(crate) handle: Arc<ReaperHandle>,
    pub(crate) completions: Arc<CompletionThread>,
}

debug_fields!([] ReaperThread, "ReaperThread", |it| driven: it.handle.shared.driven.lock().len());

impl ReaperThread {
    /// Starts the two threads, whose names begin with `name`: one drives the purgatories, the other runs their
    /// completions.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn spawn(name: &str) -> io::Result<Self> {
        let threads = Self::without_threads();
        threads.handle.start(name)?;
        threads.completions.start(name)?;
        Ok(threads)
    }

    /// A reaper whose threads were not started yet.
    pub(crate) fn without_threads() -> Self {
        Self {
            handle: Arc::new(ReaperHandle::new()),
            completions: Arc::default(),
        }
    }

    /// A reaper that never has threads. Its owner runs the [rounds](ReaperLoop::round) of the loop, and completions run
    /// inside the rounds.
    pub(crate) fn by_hand() -> Self {
        let threads = Self::without_threads();
        threads.completions.close();
        threads
    }
}

/// The handle by which an owner controls the reaper thread. The thread runs [`ReaperLoop::run`].
pub(crate) struct ReaperHandle {
    pub(crate) shared: Arc<ReaperLoop>,
    unparker: Unparker,
    pub(crate) thread: Worker,
}

/// The state that the reaper thread and its owner share.
pub(crate) struct ReaperLoop {
    pub(crate) driven: Mutex<Vec<Weak<dyn Driven>>>,
    stopping: AtomicBool,
    /// The reaper thread sleeps in this parker, and holds the lock until it ends. If there is no such thread, the
    /// caller that runs the rounds of the loop holds the lock meanwhile.
    pub(crate) parker: Mutex<Parker>,
}

impl ReaperHandle {
    /// Makes a handle, but does not start its thread. A wake-up before the start is not lost.
    pub(crate) fn new() -> Self {
        let parker = Parker::new();
        Self {
            unparker: parker.unparker().clone(),
            shared: Arc::new(ReaperLoop {
                driven: Mutex::new(Vec::new()),
                stopping: AtomicBool::new(false),
                parker: Mutex::new(parker),
            }),
            thread: Worker::default(),
        }
    }

    /// Starts the reaper thread, unless it was started before. Called by one thread at a time. `Err` if the system
    /// refuses the thread.
    pub(crate) fn start(&self, name: &str) -> io::Result<()> {
        let shared = self.shared.clone();
        self.thread.start(name, "reaper", move || shared.run())
    }

    /// Makes the reaper drive `driven` from now on, until `drive` returns `None` or the referent of `driven` is
    /// dropped.
    pub(crate) fn adopt(&self, driven: Weak<dyn Driven>) {
        self.shared.driven.lock().push(driven);
        self.unparker.unpark();
    }

    pub(crate) fn waker(&self) -> WakeFn {
        let unparker = self.unparker.clone();
        WakeFn::new(move || {
            unparker.unpark();
            true
        })
    }

    /// Makes the reaper thread end.
    pub(crate) fn close(&self) {
        // ORDERING: Release pairs with the Acquire in `run`: what this thread did before happens before the end of the
        // loop there. The wake-up that follows makes the reaper thread load the flag again.
        self.shared.stopping.store(true, Ordering::Release);
        self.unparker.unpark();
    }
}

impl Drop for ReaperHandle {
    fn drop(&mut self) {
        self.close();
        self.thread.join(Some(GRACE));
    }
}

impl ReaperLoop {
    /// The main function of the reaper thread.
    pub(crate) fn run(&self) {
        let parker = self.parker.lock();
        // ORDERING: Acquire pairs with the Release in `ReaperHandle::close`: what the closing thread did before happens
        // before the end of this loop.
        while !self.stopping.load(Ordering::Acquire) {
            parker.park_timeout(self.round());
        }
    }

    /// Drives each purgatory once. Returns how long the reaper thread may sleep.
    pub(crate) fn round(&self) -> Duration {
        let mut rest = Duration::MAX;
        let mut index = 0;
        // Lock the list only to read one element at a time, because driving runs user code, which may lock the list.
        let at = |index: usize| self.driven.lock().get(index).cloned();
        while let Some(driven) = at(index) {
            let (driven, begun) = (driven.upgrade(), Instant::now());
            let time = driven.and_then(|it| Panics::contain(|| it.drive()).unwrap_or(AFTER_PANIC));
            // `rest` must count from now. It was computed before this purgatory was driven, so subtract the time that
            // driving took.
            rest = rest.saturating_sub(begun.elapsed());
            match time {
                Some(time) => {
                    rest = rest.min(time);
                    index += 1;
                }
                // This purgatory is gone or shut down. `swap_remove` puts the last purgatory of the list in its place,
                // at `index`, so the loop drives that purgatory next.
                None => drop(self.driven.lock().swap_remove(index)),
            }
        }
        rest
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use crate::error::BuildError;
    use crate::threads::dispatch::Dispatch;
    use crate::threads::worker::refusal::grant;
    use crate::timer::Timer;
    use std::thread;

    /// A stand-in for a purgatory. Driving it takes the first duration. Then the reaper may rest for the second
    /// duration; with `None`, the stand-in is done.
    struct Busy(Duration, Option<Duration>);

    impl Driven for Busy {
        fn drive(self: Arc<Self>) -> Option<Duration> {
            thread::sleep(self.0);
            self.1
        }
    }

    /// While the reaper drives one purgatory, the next deadline of another purgatory comes nearer. So `round` subtracts
    /// the time that driving took from the time that the reaper may sleep, even if the driven purgatory is shut down
    /// and gets no further rounds.
    #[test]
    fn g10_what_one_purgatory_takes_is_no_rest_of_another() {
        let (work, rest) = (Duration::from_millis(30), Duration::from_secs(60));
        for after in [Some(Duration::MAX), None] {
            let handle = ReaperHandle::new();
            let all = [(Duration::ZERO, Some(rest)), (work, after)].map(|(work, after)| {
                let driven: Arc<dyn Driven> = Arc::new(Busy(work, after));
                handle.adopt(Arc::downgrade(&driven));
                driven
            });
            assert!(handle.shared.round() <= rest - work, "{after:?}");
            drop(all);
            assert!(handle.shared.round() > rest, "it drives none");
        }
    }

    struct Bad;

    impl Driven for Bad {
        fn drive(self: Arc<Self>) -> Option<Duration> {
            std::panic::resume_unwind(Box::new(()))
        }
    }

    /// A purgatory that panics when it is driven is driven again soon, and the other purgatories are driven in time.
    #[test]
    fn g12_one_that_panics_delays_no_other() {
        for rest in [20, 1_000].map(Duration::from_millis) {
            let good: Arc<dyn Driven> = Arc::new(Busy(Duration::ZERO, Some(rest)));
            let bad: Arc<dyn Driven> = Arc::new(Bad);
            for order in [[&good, &bad], [&bad, &good]] {
                let handle = ReaperHandle::new();
                for driven in order {
                    handle.adopt(Arc::downgrade(driven));
                }
                assert!(Some(handle.shared.round()) <= Some(rest).min(AFTER_PANIC));
            }
        }
    }

    /// The system refuses one of two threads, or both: the call that starts them returns an error.
    #[test]
    fn g28_a_thread_that_is_refused_at_once_is_told() {
        let at_once = || Timer::<u64>::builder("g28").threads_at_once();
        for granted in [0, 1] {
            grant(granted);
            assert!(ReaperThread::spawn("g28").is_err(), "{granted}");
            grant(granted);
            let refused = at_once().build(drop);
            assert!(matches!(refused, Err(BuildError::Thread(_))), "{granted}");
        }
        // If only one thread is to be started, its refusal is returned as well.
        grant(0);
        let one = at_once().reaper(Reaper::Manual);
        let refused = one.dispatch(Dispatch::OwnThread).build(drop);
        assert!(matches!(refused, Err(BuildError::Thread(_))));
        grant(usize::MAX);
    }
}
