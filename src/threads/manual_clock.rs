//! A clock that is moved by hand. The thread that moves the clock also does the work of the reaper: it expires what is
//! due.

use super::reaper::{Reaper, ReaperThread};
use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::Trampoline;
use crate::sync::{Arc, Parker};
use crate::time::{Clock, Timestamp, WakeFn};
use parking_lot::{Mutex, MutexGuard};
use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread, ThreadId};
use std::time::Duration;

/// A clock that stands still until it is moved, for tests. All clones show the same time.
///
/// A test with deadlines needs neither sleeps nor threads if the tested purgatories use this clock's own
/// [`reaper`](Self::reaper):
///
/// * [`block_on`](Self::block_on) runs a future, and jumps to the next deadline whenever the future can only wait.
/// * [`advance`](Self::advance) moves the clock, and returns when everything that is then due has expired and been
///   completed.
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
/// **What the clock knows:** the deadlines and deferred checks of all purgatories, timers, trackers and requests with
/// its reaper, any number of them. Operations expire in the order of their deadlines. At each expiry the clock shows
/// that deadline, rounded up to the tick.
///
/// **What the clock cannot know:** what other threads do, and other sources of time, such as a timer of tokio (a
/// purgatory can use [tokio's clock](crate::guide::tokio) instead). So `block_on` may jump while another thread is
/// still at work. If several threads of a test work at the same time, move the clock by `advance`, when they are done.
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
    /// The reaper of everything that the clock drives. The thread that runs the reaper's rounds holds the lock of the
    /// reaper's parker.
    reaper: OnceLock<ReaperThread>,
    /// The thread that runs a round of the reaper, and the earliest deadline that the round has asked the clock about.
    round: Mutex<Option<(ThreadId, Option<Duration>)>>,
    /// Threads that sleep until the driving thread stops.
    waiting: Mutex<Vec<Thread>>,
    /// The number of threads that want to drive now. Threads in `block_on` that only wait for work let these go first.
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

    /// A reaper without a thread, driven by this clock. For builders that have this clock, or a clone, as their
    /// [`clock`](crate::purgatory::Builder::clock). Operations expire, and deferred checks are made, inside calls of
    /// [`advance`](Self::advance), [`advance_until_idle`](Self::advance_until_idle) and [`block_on`](Self::block_on),
    /// on the calling thread. Completions run there too, unless the builder has an
    /// [executor](crate::threads::Dispatch::Executor). Other threads of the program only park and check.
    ///
    /// `drain` and `shutdown_timeout` of a purgatory with this reaper take their limits as real time, and drive nothing
    /// while they wait.
    pub fn reaper(&self) -> Reaper {
        Reaper::Shared(self.0.reaper().clone())
    }

    /// Moves the clock forward by `by`, at most to the last possible reading.
    ///
    /// Operations and timers that this clock's [`reaper`](Self::reaper) drives expire inside this call if the clock
    /// reaches their deadlines, in the order of the deadlines. This includes operations that callbacks park during the
    /// call. If another thread is driving, that thread first finishes what is due. A call from a callback expires
    /// nothing: what is due is left to the next call that drives, or to the call that runs the callback.
    ///
    /// After that, in all calls, wakes the threads that sleep until a deadline of this clock; these threads then expire
    /// operations themselves. The wake functions run on this thread, including those of
    /// [reactors](crate::threads::Reaper::Reactor). If a wake function panics, the others are still called, and then
    /// the panic is passed on.
    pub fn advance(&self, by: Duration) {
        let mut left = by;
        if let Some(driving) = self.0.drive_unless_in_a_callback() {
            while let Some(next) = driving.settle().0 {
                if !self.0.step(next, &mut left) {
                    break;
                }
            }
            self.0.step(Duration::MAX, &mut left);
            driving.settle();
        }
        self.0.step(Duration::MAX, &mut left);
        self.wake();
    }

    /// Moves the clock from deadline to deadline, by at most `limit`, until nothing that it [drives](Self::reaper) has
    /// a deadline. Returns whether no deadline is left. If one is left, the clock has moved by `limit`: a timer that
    /// its own callback restarts, for example, always has a deadline.
    ///
    /// Calls each wake function of the purgatories that use this clock once, as [`advance`](Self::advance) does, and
    /// passes on a panic. If another thread is driving, that thread first finishes what is due.
    ///
    /// # Panics
    /// If it is called from a callback of the library.
    pub fn advance_until_idle(&self, limit: Duration) -> bool {
        not_in_a_callback();
        let mut left = limit;
        let driving = self.0.drive();
        let is_idle = loop {
            let Some(next) = driving.settle().0 else {
                break true;
            };
            if !self.0.step(next, &mut left) {
                break driving.settle().0.is_none();
            }
        };
        drop(driving);
        self.wake();
        is_idle
    }

    /// Runs `future` to its end on this thread. Whenever the future is pending and not woken, expires everything due
    /// that this clock [drives](Self::reaper). If that does not wake the future, moves the clock to the next deadline.
    /// If there is no deadline, the thread sleeps, and only another thread can wake the future.
    ///
    /// To run several futures, join them into one. If several threads are in this call, one of them drives at a time.
    /// If another thread moves the clock by `advance` or `advance_until_idle`, that thread drives first.
    ///
    /// # Panics
    /// If it is called from a callback of the library, like [`future::block_on`](crate::future::block_on). Panics of
    /// `future` and of [wake functions](Self::advance) are passed on.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        not_in_a_callback();
        let waking = Arc::new(Waking {
            woken: AtomicBool::new(false),
            thread: thread::current(),
            reaper: self.0.reaper().handle.waker(),
        });
        let waker = waking.clone().into();
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            while !waking.take() {
                match self.0.try_drive_or_wait(true) {
                    Some(driving) => self.drive_until(&driving, &waking),
                    None => thread::park(),
                }
            }
        }
    }

    /// Expires what is due. If that does not wake the future of `waking`, moves the clock to the next deadline, or
    /// sleeps if there is none.
    fn drive_until(&self, driving: &Driving<'_>, waking: &Waking) {
        let (next, rest) = driving.settle();
        if waking.is_woken() {
            return;
        }
        match next {
            Some(next) => {
                let mut left = Duration::MAX;
                self.0.step(next, &mut left);
                self.wake();
            }
            // Sleep until another thread wakes the future, or parks or defers something.
            None => driving.parker.park_timeout(rest),
        }
    }

    /// Calls all wake functions, and removes those whose purgatory is gone.
    fn wake(&self) {
        // Call without the lock: a wake function may move this clock, or subscribe.
        let wakers = self.0.wakers.lock().clone();
        // A wake function that panics does not keep the others from being called, and is called again the next time.
        let mut panics = Panics::default();
        let is_stale = |waker: &WakeFn| panics.catch(|| waker.wake()) == Some(false);
        let stale = wakers.into_iter().filter(is_stale).collect::<Vec<_>>();
        let mut wakers = self.0.wakers.lock();
        wakers.retain(|waker| !stale.iter().any(|stale| stale.is_same(waker)));
        // Reserve room for as many wake functions again: a subscription that fills the room calls all of them, which
        // should be rare.
        let left = wakers.len();
        wakers.reserve(left);
        drop(wakers);
        panics.resume();
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
        // A reaper with a thread of its own calls this as well: note the deadline only for the thread that runs a
        // round.
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
        // Call all wake functions in order to remove those whose purgatory is gone: each of them keeps some memory of
        // its purgatory. Only a call tells whether the purgatory is gone, and a spurious wake-up does no harm.
        if full {
            self.wake();
        }
    }
}

impl ManualTime {
    fn reaper(&self) -> &ReaperThread {
        self.reaper.get_or_init(ReaperThread::by_hand)
    }

    /// Moves the clock to `next`, but by at most `left`, and subtracts the step from `left`. Returns whether the clock
    /// has reached `next`.
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

    /// Makes this thread drive. `None` if another thread is driving.
    fn try_drive(&self) -> Option<Driving<'_>> {
        let parker = &self.reaper().handle.shared.parker;
        parker.try_lock().map(|parker| self.driving(parker))
    }

    /// Tries to drive. On failure, registers this thread to be unparked when the driving thread stops. If `is_patient`,
    /// this thread lets urgent threads go first.
    fn try_drive_or_wait(&self, is_patient: bool) -> Option<Driving<'_>> {
        let attempt = || {
            // ORDERING: Relaxed, because a stale value is harmless. If the load misses an urgent thread, the two
            // threads compete for the lock of the parker, as they would without `urgent`. If the load still counts a
            // thread that is not urgent any more, this thread waits, and is woken: in the second attempt, it is in
            // `waiting` already. The other thread empties `waiting` in `drop`, after its subtraction. If it had emptied
            // `waiting` before this thread was added, its subtraction would happen before this load, by the lock of
            // `waiting`. So it empties `waiting` later, and unparks this thread.
            let may = !is_patient || self.urgent.load(Ordering::Relaxed) == 0;
            may.then(|| self.try_drive()).flatten()
        };
        attempt().or_else(|| {
            self.waiting.lock().push(thread::current());
            // Try again: the driving thread may have stopped before it could know of this thread.
            attempt()
        })
    }

    /// Waits until no other thread drives, and makes this thread drive. Wakes a driving thread that sleeps for lack of
    /// work, so that it stops driving.
    fn drive(&self) -> Driving<'_> {
        // ORDERING: Relaxed: a stale value is harmless, see `try_drive_or_wait`.
        self.urgent.fetch_add(1, Ordering::Relaxed);
        let driving = loop {
            if let Some(driving) = self.try_drive_or_wait(false) {
                break driving;
            }
            self.reaper().handle.waker().wake();
            thread::park();
        };
        // ORDERING: Relaxed: a stale value is harmless, see `try_drive_or_wait`.
        self.urgent.fetch_sub(1, Ordering::Relaxed);
        driving
    }

    /// Makes this thread drive. `None` in a callback, or if the clock drives nothing.
    fn drive_unless_in_a_callback(&self) -> Option<Driving<'_>> {
        let round = *self.round.lock();
        let is_inside = round.is_some_and(|(thread, _)| thread == thread::current().id());
        let may = self.reaper.get().is_some() && !is_inside && !Trampoline::in_progress();
        may.then(|| self.drive())
    }
}

/// While this value exists, the thread that made it is the driving thread.
struct Driving<'a> {
    time: &'a ManualTime,
    // Dropped before `_handover`, so that the lock is free when the waiting threads try it.
    parker: MutexGuard<'a, Parker>,
    _handover: Handover<'a>,
}

impl Driving<'_> {
    /// Expires what is due now. Returns the next deadline, and how long the thread may sleep if there is none.
    fn settle(&self) -> (Option<Duration>, Duration) {
        loop {
            *self.time.round.lock() = Some((thread::current().id(), None));
            let rest = self.time.reaper().handle.shared.round();
            let round = self.time.round.lock().take();
            if !rest.is_zero() {
                return (round.and_then(|(_, next)| next), rest);
            }
        }
    }
}

/// Wakes the waiting threads when it is dropped, so that one of them can drive.
struct Handover<'a>(&'a ManualTime);

impl Drop for Handover<'_> {
    fn drop(&mut self) {
        let waiting = std::mem::take(&mut *self.0.waiting.lock());
        waiting.iter().for_each(Thread::unpark);
    }
}

/// Wakes a thread in `block_on`, whether it drives or waits for its turn to drive.
struct Waking {
    woken: AtomicBool,
    thread: Thread,
    reaper: WakeFn,
}

impl Waking {
    fn take(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `wake`, so that the poll sees what the waking thread has done.
        self.woken.swap(false, Ordering::Acquire)
    }

    fn is_woken(&self) -> bool {
        // ORDERING: Relaxed: the next poll comes after `take`, which acquires.
        self.woken.load(Ordering::Relaxed)
    }
}

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        // ORDERING: Release pairs with the Acquire in `take`.
        self.woken.store(true, Ordering::Release);
        self.reaper.wake();
        self.thread.unpark();
    }
}

fn not_in_a_callback() {
    assert!(
        !Trampoline::in_progress(),
        "a callback of the library must not drive a clock"
    );
}
