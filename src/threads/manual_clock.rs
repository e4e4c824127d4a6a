//! A clock that is moved by hand, for tests. The thread that moves the clock also does the work of the reaper: it
//! expires what is due.

use super::reaper::{Reaper, ReaperThread};
use crate::callbacks::panics::Panics;
use crate::callbacks::promise::run_future;
use crate::callbacks::trampoline::Trampoline;
use crate::sync::{Arc, Parker};
use crate::time::{Clock, Timestamp, WakeFn};
use parking_lot::{Mutex, MutexGuard};
use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Thread, ThreadId};
use std::time::Duration;

/// A clock that stands still until it is moved, for tests. All clones show the same time.
///
/// A test with deadlines needs neither sleeps nor threads if the purgatories under test use the
/// [`reaper`](Self::reaper) of this clock:
///
/// * [`block_on`](Self::block_on) runs a future, and moves the clock to the next deadline whenever the future can only
///   wait.
/// * [`advance`](Self::advance) moves the clock, and returns when everything that is due at the new time has expired
///   and been completed.
/// * [`advance_until_idle`](Self::advance_until_idle) moves the clock until no deadline is left.
///
/// ```
/// use request_purgatory::Waits;
/// use request_purgatory::future::WaitError;
/// use request_purgatory::time::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let builder = Waits::<u32>::builder("rooms").clock(clock.clone());
/// let rooms = builder.reaper(clock.reaper()).build()?;
///
/// // An hour passes on the clock, and no time for the test.
/// let hour = Duration::from_secs(3_600);
/// let answer = clock.block_on(rooms.wait([7], hour, || None::<()>));
/// assert_eq!(answer, Err(WaitError::Expired));
/// assert_eq!(clock.now().since_origin(), hour);
/// # Ok::<(), request_purgatory::purgatory::BuildError>(())
/// ```
///
/// **What the clock knows:** the deadlines and deferred checks of all purgatories, timers, trackers and requests that
/// use its reaper, any number of them. Operations expire in the order of their deadlines. When an operation expires,
/// the clock shows its deadline, rounded up to the tick.
///
/// **What takes no time on the clock:** everything that is due at once, such as a timer that is started with
/// [`Duration::ZERO`]. If a callback starts such a timer again each time, or a deferred check defers itself again each
/// time, something is always due, and the clock never moves on. Then neither `advance` nor `advance_until_idle`
/// returns, whatever its limit, and `block_on` returns only when its future has ended. Start such a timer with a
/// timeout that is not zero.
///
/// **What the clock cannot know:** what other threads do, and other sources of time, such as a timer of tokio (a
/// purgatory can use [tokio's clock](crate::guide::tokio) instead). So `block_on` may move the clock while another
/// thread is still at work. If several threads of a test work at the same time, wait until they are done, and then move
/// the clock by `advance`.
///
/// A purgatory may have this clock but another reaper. Then the clock does not drive the purgatory. With a reaper
/// thread, a move of the clock wakes that thread, which expires operations a moment later. With [`Reaper::Manual`], no
/// operation expires before the purgatory's `advance` is called.
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<ManualTime>);

#[derive(Debug, Default)]
struct ManualTime {
    now: Mutex<Duration>,
    wakers: Mutex<Vec<WakeFn>>,
    /// The reaper of this clock: it knows the purgatories that were built with [`ManualClock::reaper`], and has no
    /// thread of its own. A thread that calls a method of the clock does the reaper's work, in *rounds*: in each round
    /// it expires due operations, and makes the deferred checks, in one purgatory after another. Meanwhile this thread
    /// holds the lock of the reaper's parker (on which a reaper sleeps until there is work), and is called the *driving
    /// thread*.
    reaper: OnceLock<ReaperThread>,
    /// Set while the driving thread runs a round of the reaper: the id of that thread, and the earliest deadline for
    /// which the round has called `time_until` so far.
    round: Mutex<Option<(ThreadId, Option<Duration>)>>,
    /// Threads that sleep until the driving thread stops driving.
    waiting: Mutex<Vec<Thread>>,
    /// The number of threads that wait in `advance` or `advance_until_idle` to become the driving thread. Threads in
    /// `block_on` let them drive first.
    urgent: AtomicUsize,
}

impl ManualClock {
    /// A clock that reads zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock that reads `since_origin`.
    pub fn starting_at(since_origin: Duration) -> Self {
        let clock = Self::new();
        *clock.0.now.lock() = since_origin;
        clock
    }

    /// A reaper without a thread, which this clock drives. For builders that have this clock, or a clone, as their
    /// [`clock`](crate::purgatory::Builder::clock). Operations expire, and deferred checks are made, inside calls of
    /// [`advance`](Self::advance), [`advance_until_idle`](Self::advance_until_idle) and [`block_on`](Self::block_on),
    /// on the calling thread. Completions run there too, unless the builder has an
    /// [executor](crate::threads::Dispatch::Executor). Other threads of the program only park and check.
    ///
    /// If a purgatory has this reaper, its `drain` and `shutdown_timeout` take their limits as real time, and expire
    /// nothing while they wait.
    pub fn reaper(&self) -> Reaper {
        Reaper::Shared(self.0.reaper().clone())
    }

    /// Moves the clock forward by `by`, at most to the last possible reading.
    ///
    /// Operations and timers that this clock's [`reaper`](Self::reaper) drives expire inside this call if the clock
    /// reaches their deadlines, in the order of the deadlines. This includes operations that callbacks park during the
    /// call. If another thread is driving, that thread first expires all that are due. If this call is made in a
    /// callback, it moves the clock, and expires nothing. Operations that are due by then expire in the call that runs
    /// the callback, if that call drives, or in a later call outside every callback.
    ///
    /// A purgatory with this clock may have another reaper. At its end, every call of `advance` wakes the threads that
    /// drive such purgatories, and these threads expire the operations. The wake functions run on this thread,
    /// including those of [reactors](crate::threads::Reaper::Reactor). If a wake function panics, the others are still
    /// called, and then the panic is passed on. A wake function may move this clock, by any call.
    pub fn advance(&self, by: Duration) {
        let mut left = by;
        if let Some(driving) = self.0.drive_unless_in_a_callback() {
            while let Some(next) = driving.settle().next {
                if !self.0.step(next, &mut left) {
                    break;
                }
            }
            self.0.step(Duration::MAX, &mut left);
            driving.settle();
        }
        self.0.step(Duration::MAX, &mut left);
        self.wake().resume();
    }

    /// Moves the clock from deadline to deadline, by at most `limit`, until nothing that it [drives](Self::reaper) has
    /// a deadline. Returns `true` if no deadline is left. Returns `false` if a deadline is left after the clock has
    /// moved by `limit`: a timer that its own callback restarts, for example, always has a deadline. Also returns
    /// `false` if a purgatory may have a deadline of which this clock was not told. This can happen in two cases: the
    /// purgatory reads the time from another clock, for example from one that you have built on this clock; or the
    /// purgatory panics whenever it is driven, for example because its clock panics, and so tells no deadline.
    ///
    /// Calls each wake function of the purgatories that use this clock once, as [`advance`](Self::advance) does, and
    /// passes on a panic. If another thread is driving, that thread first expires all that are due.
    ///
    /// # Panics
    /// If it is called from a callback of the library.
    pub fn advance_until_idle(&self, limit: Duration) -> bool {
        self.0.not_in_a_callback();
        let mut left = limit;
        let driving = self.0.drive();
        let mut settled = driving.settle();
        while let Some(next) = settled.next {
            let has_reached = self.0.step(next, &mut left);
            settled = driving.settle();
            if !has_reached {
                break;
            }
        }
        drop(driving);
        self.wake().resume();
        settled.next.is_none() && !settled.is_uncertain()
    }

    /// Runs `future` to its end on this thread. Whenever the future is pending and not woken, expires everything that
    /// is due in the purgatories and timers that use this clock's [reaper](Self::reaper). If that does not wake the
    /// future, moves the clock to the next deadline. If there is no deadline, the thread sleeps, and only another
    /// thread can wake the future.
    ///
    /// To run several futures, join them into one. If several threads are in this call, one of them at a time moves the
    /// clock and expires operations. Calls of `advance` and `advance_until_idle` on other threads come first.
    ///
    /// # Panics
    /// If it is called from a callback of the library, like [`future::block_on`](crate::future::block_on). Panics of
    /// `future` and of [wake functions](Self::advance) are passed on.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.not_in_a_callback();
        // Several threads may be in this call. One thread at a time drives: it expires timers that are due, and moves
        // the clock. The other threads wait for their turn. A wake-up reaches this thread in both states: if it drives,
        // it may sleep on the parker of the reaper; if it waits, it is parked.
        let reaper = self.0.reaper().handle.waker();
        let wake_reaper = move || _ = reaper.wake();
        run_future(future, wake_reaper, |waking| {
            match self.0.try_drive_or_wait(true) {
                Some(driving) => self.drive_until(driving, || waking.is_woken()),
                None => thread::park(),
            }
        })
    }

    /// Expires timers that are due. If that does not wake the future of the caller (`is_woken` says whether), moves the
    /// clock to the next deadline. If there is no deadline, sleeps until another thread wakes this one.
    fn drive_until(&self, driving: Driving<'_>, is_woken: impl Fn() -> bool) {
        let settled = driving.settle_for(&is_woken);
        if is_woken() {
            return;
        }
        match settled.next {
            Some(next) => {
                let mut left = Duration::MAX;
                self.0.step(next, &mut left);
                // Stop driving before the wake functions run. A wake function may move this clock, and would otherwise
                // wait for ever for its own thread to stop. If the future is woken meanwhile, its waker keeps the
                // wake-up, whichever thread drives next.
                drop(driving);
                self.wake().resume();
            }
            // No deadline is left. Sleep until another thread wakes the future, parks an operation or defers a check.
            None => driving.parker.park_timeout(settled.rest),
        }
    }

    /// Calls all wake functions. Removes those that return `false`, because their purgatory is gone. Returns the first
    /// panic of a wake function or of its destructor. Called by a thread that does not drive.
    fn wake(&self) -> Panics {
        // Call the functions without the lock: a wake function may move this clock, or subscribe another function.
        let wakers = self.0.wakers.lock().clone();
        // If a wake function panics, the others are still called, and the function stays for the next time.
        let mut panics = Panics::default();
        let mut stale = Vec::new();
        for waker in wakers {
            if panics.catch(|| waker.wake()) == Some(false) {
                stale.push(waker);
            } else {
                // If another thread has removed the function, this is its last clone. Its destructor then runs here. It
                // may be user code, and may panic.
                panics.catch(|| drop(waker));
            }
        }
        let mut wakers = self.0.wakers.lock();
        wakers.retain(|waker| !stale.iter().any(|stale| stale.is_same(waker)));
        // Reserve room for as many more wake functions as there are now. When the room is filled, `subscribe` calls all
        // functions, to find those whose purgatory is gone. So that happens only after the number of functions has
        // doubled.
        let left = wakers.len();
        wakers.reserve(left);
        drop(wakers);
        for waker in stale {
            panics.catch(|| drop(waker));
        }
        panics
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_origin(*self.0.now.lock())
    }

    fn time_until(&self, deadline: Timestamp) -> Option<Duration> {
        if deadline <= self.now() {
            return Some(Duration::ZERO);
        }
        // Note the deadline only for the thread that runs a round of this clock's reaper. A reaper with a thread of its
        // own calls this method as well.
        match &mut *self.0.round.lock() {
            Some((thread, next)) if *thread == thread::current().id() => {
                let deadline = deadline.since_origin();
                *next = Some(next.map_or(deadline, |next| next.min(deadline)));
            }
            _ => {}
        }
        None
    }

    fn subscribe(&self, waker: WakeFn) {
        let mut wakers = self.0.wakers.lock();
        wakers.push(waker);
        let full = wakers.len() == wakers.capacity();
        drop(wakers);
        // Each wake function of a purgatory that is gone keeps some memory of that purgatory. Call all wake functions,
        // to find those of purgatories that are gone, and remove them. Only a call tells whether the purgatory is gone,
        // and a spurious wake-up does no harm. Discard the panics of the calls: the caller is building a purgatory, and
        // a panic in the reactor of another purgatory must not make the building fail.
        if full {
            // The list of this clock's reaper keeps memory of purgatories that are gone, too. A round goes through this
            // list by index, so no round may run meanwhile.
            let reaper = self.0.reaper.get();
            if let Some((reaper, _driving)) = reaper.zip(reaper.and_then(|_| self.0.try_drive())) {
                let mut driven = reaper.handle.shared.driven.lock();
                driven.retain(|driven| driven.strong_count() > 0);
            }
            self.wake().discard();
        }
    }
}

impl ManualTime {
    fn reaper(&self) -> &ReaperThread {
        self.reaper.get_or_init(ReaperThread::by_hand)
    }

    /// Moves the clock forward to `next`, but by at most `left`, and subtracts the moved time from `left`. Returns
    /// whether the clock has reached `next`.
    fn step(&self, next: Duration, left: &mut Duration) -> bool {
        let mut now = self.now.lock();
        // Another thread may have moved the clock beyond `next`.
        let wanted = next.saturating_sub(*now);
        let step = wanted.min(*left);
        *now = now.saturating_add(step);
        *left -= step;
        step == wanted
    }

    fn driving<'a>(&'a self, parker: MutexGuard<'a, Parker>) -> Driving<'a> {
        Driving {
            time: self,
            parker,
            _handover: Handover(self),
        }
    }

    /// Makes this thread the driving thread: the only one that may run rounds of the reaper. `None` if another thread
    /// is driving.
    fn try_drive(&self) -> Option<Driving<'_>> {
        let parker = &self.reaper().handle.shared.parker;
        parker.try_lock().map(|parker| self.driving(parker))
    }

    /// Tries to make this thread the driving thread. On failure, registers this thread to be unparked when the driving
    /// thread stops. If `is_patient`, does not even try while another thread in [`drive`](Self::drive) is waiting for
    /// its turn.
    fn try_drive_or_wait(&self, is_patient: bool) -> Option<Driving<'_>> {
        let attempt = || {
            // ORDERING: Relaxed, because a stale value of `urgent` is harmless:
            //
            // * The value is too low: an urgent thread is missed. Then the two threads compete for the lock of the
            //   parker, as they would without `urgent`.
            // * The value is too high: it still counts a thread B that has subtracted itself, and drives. Then this
            //   thread A may go to sleep because of B, but only if B will unpark A. The reason: A adds itself to
            //   `waiting`, and then loads the value a second time. When B stops driving, B empties `waiting`. If A is
            //   in `waiting` by then, B unparks A. If A adds itself later, the lock of `waiting` makes B's subtraction
            //   happen before A's second load. Then this load does not count B any more, and A does not sleep because
            //   of B.
            let may = !is_patient || self.urgent.load(Ordering::Relaxed) == 0;
            may.then(|| self.try_drive()).flatten()
        };
        attempt().or_else(|| {
            self.waiting.lock().push(thread::current());
            // Try again. If the driving thread stopped driving before this thread was in `waiting`, the driving thread
            // has not unparked this thread, and this thread would wait in vain.
            attempt()
        })
    }

    /// Makes this thread the driving thread: the only one that may run rounds of the reaper. First waits until no other
    /// thread is the driving thread. If the other thread sleeps for lack of work, wakes it, so that it stops driving.
    fn drive(&self) -> Driving<'_> {
        // ORDERING: Relaxed: `urgent` is only a hint. Until a thread in `block_on` sees this addition, it competes with
        // this thread for the lock of the parker (see `try_drive_or_wait`).
        self.urgent.fetch_add(1, Ordering::Relaxed);
        let driving = loop {
            if let Some(driving) = self.try_drive_or_wait(false) {
                break driving;
            }
            self.reaper().handle.waker().wake();
            thread::park();
        };
        // ORDERING: Relaxed: `urgent` is only a hint. A thread in `block_on` that does not see this subtraction sleeps,
        // and is unparked when this thread stops driving (see `try_drive_or_wait`).
        self.urgent.fetch_sub(1, Ordering::Relaxed);
        driving
    }

    /// Makes this thread the driving thread. `None` in a callback, or if no purgatory uses the reaper of this clock.
    fn drive_unless_in_a_callback(&self) -> Option<Driving<'_>> {
        let may = self.reaper.get().is_some() && !self.is_in_a_callback();
        may.then(|| self.drive())
    }

    /// Whether this thread is inside a callback of the library, or inside other user code that a round of the reaper
    /// calls. Such user code is, for example, a clock on top of this clock.
    fn is_in_a_callback(&self) -> bool {
        let round = *self.round.lock();
        let is_inside = round.is_some_and(|(thread, _)| thread == thread::current().id());
        is_inside || Trampoline::in_progress()
    }

    fn not_in_a_callback(&self) {
        assert!(
            !self.is_in_a_callback(),
            "a callback of the library must not drive a clock"
        );
    }
}

/// While this value exists, the thread that made it is the driving thread: the only one that may run rounds of the
/// reaper.
struct Driving<'a> {
    time: &'a ManualTime,
    // Dropped before `_handover`. The drop of `_handover` unparks the waiting threads, which then try the lock of the
    // parker: it must be free by then.
    parker: MutexGuard<'a, Parker>,
    _handover: Handover<'a>,
}

impl Driving<'_> {
    /// If a purgatory panics in a round, the round does not learn the purgatory's deadline. Then at most this many more
    /// rounds are made to learn it. Few suffice, because a panic has usually ended what caused it. The limit keeps a
    /// purgatory that panics in every round from holding up this thread for ever.
    const ROUNDS_AFTER_PANIC: u32 = 10;

    /// When the future in `block_on` was woken but something is still due, at most this many more rounds are made
    /// before the future is polled. So timers that callbacks start with a timeout of zero have usually fired before the
    /// poll. The limit keeps a callback that starts such timers without end from delaying the poll for ever.
    const ROUNDS_AFTER_WAKE: u32 = 1_000;

    /// Expires everything that is due now.
    ///
    /// Does not return while, in every round, user code starts something that is due at once. There is no limit of
    /// rounds, because a correct program may need any number of them. With a limit, `advance` could return before
    /// everything due has expired, and its caller would not learn of it.
    fn settle(&self) -> Settled {
        self.settle_for(|| false)
    }

    /// Expires everything that is due now, like [`settle`](Self::settle), but makes at most
    /// [`ROUNDS_AFTER_WAKE`](Self::ROUNDS_AFTER_WAKE) more rounds once `is_woken` returns `true`. What is still due
    /// then is left to the next call.
    fn settle_for(&self, is_woken: impl Fn() -> bool) -> Settled {
        let (mut after_panic, mut after_wake) = (0, 0);
        loop {
            let settled = self.round();
            let may_go_on = if settled.rest.is_zero() {
                after_wake += u32::from(is_woken());
                after_wake <= Self::ROUNDS_AFTER_WAKE
            } else {
                after_panic += 1;
                settled.is_uncertain() && after_panic <= Self::ROUNDS_AFTER_PANIC
            };
            if !may_go_on {
                return settled;
            }
        }
    }

    fn round(&self) -> Settled {
        *self.time.round.lock() = Some((thread::current().id(), None));
        let rest = self.time.reaper().handle.shared.round();
        let round = self.time.round.lock().take();
        let next = round.and_then(|(_, next)| next);
        Settled { next, rest }
    }
}

/// What one round of driving all purgatories of this clock's reaper has found out.
struct Settled {
    /// The earliest deadline on this clock that this round has found. `None` if it has found no deadline.
    next: Option<Duration>,
    /// How long the reaper may sleep before there is work. Zero if something is due now. The thread sleeps for this
    /// time only if `next` is `None`.
    rest: Duration,
}

impl Settled {
    /// Whether a purgatory may have a deadline that the round did not learn, and that is earlier than `next`. Called
    /// only if nothing is due.
    ///
    /// A purgatory with this clock then lets the thread sleep for ever: the clock moves only by calls, and these calls
    /// wake the thread. So `rest` is nearly `Duration::MAX` if all purgatories have this clock, and none has panicked.
    /// A shorter `rest` means that a purgatory has panicked before it told its deadline, or has another clock.
    fn is_uncertain(&self) -> bool {
        // Compare with half of `Duration::MAX`, because a round subtracts the time that it takes to drive the
        // purgatories.
        self.rest < Duration::MAX / 2
    }
}

/// Unparks the threads in `waiting` when it is dropped, so that one of them can drive.
struct Handover<'a>(&'a ManualTime);

impl Drop for Handover<'_> {
    fn drop(&mut self) {
        let waiting = std::mem::take(&mut *self.0.waiting.lock());
        waiting.iter().for_each(Thread::unpark);
    }
}
