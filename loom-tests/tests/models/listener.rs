//! Listeners on the whole purgatory: the check against the call, the drop, the deadline, and a second call of
//! `checked`. A lost check shows as a task that sleeps for ever.

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use loom_tests::{DriverWaker, Sleeper, assert_empty, bounded, long};
use request_purgatory::{
    Purgatory, Waits, future::Listener, future::WaitError, future::WaitOperation,
    threads::Dispatch, threads::Reaper, time::ManualClock,
};
use std::future::{Future, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_millis(100);

struct World {
    waits: Waits<u64>,
    clock: ManualClock,
    event: Arc<AtomicBool>,
}

impl World {
    fn new() -> Self {
        Self::with_max_timeout(Duration::MAX)
    }

    fn with_max_timeout(max_timeout: Duration) -> Self {
        let clock = ManualClock::new();
        let waits = Purgatory::<WaitOperation<u64>>::builder("model")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .dispatch(Dispatch::Inline)
            .max_timeout(max_timeout)
            .build()
            .expect("the settings are sound");
        let event = Arc::new(AtomicBool::new(false));
        Self {
            waits,
            clock,
            event,
        }
    }

    /// Relaxed: only the library's own ordering makes it visible.
    fn has_happened(&self) -> bool {
        self.event.load(Ordering::Relaxed)
    }

    /// The event, and the check that makes it known; and the examinations that were left to the reaper.
    fn happens(&self) -> thread::JoinHandle<()> {
        let (waits, event) = (self.waits.clone(), self.event.clone());
        thread::spawn(move || {
            event.store(true, Ordering::Relaxed);
            waits.check_and_complete(&1);
            waits.advance();
        })
    }

    fn time_passes(&self) -> thread::JoinHandle<usize> {
        self.clock.advance(TIMEOUT);
        let waits = self.waits.clone();
        thread::spawn(move || waits.advance())
    }

    fn assert_empty(&self) {
        assert_empty(&self.waits);
        assert_eq!(self.waits.stats().missed_checks, 0);
    }
}

/// A call of `checked` that is polled once, and dropped.
fn call(listener: &mut Listener<u64>, sleeper: &Sleeper) -> Poll<Result<(), WaitError>> {
    let waker = Waker::from(Arc::new(DriverWaker(sleeper.waker())));
    pin!(listener.checked()).poll(&mut Context::from_waker(&waker))
}

/// A call that is awaited.
fn wait(listener: &mut Listener<u64>, sleeper: &Sleeper) -> Result<(), WaitError> {
    loop {
        match call(listener, sleeper) {
            Poll::Ready(told) => return told,
            Poll::Pending => sleeper.sleep(),
        }
    }
}

/// Catches: a listener that does not listen when the call returns, or that forgets a check which the look after the
/// call does not see.
#[test]
fn g01_check_races_the_call_to_listen() {
    bounded(|| {
        let world = World::new();
        let checker = world.happens();
        let mut listener = world.waits.listen([1], TIMEOUT);
        let sleeper = Sleeper::default();
        while !world.has_happened() {
            assert_eq!(wait(&mut listener, &sleeper), Ok(()));
        }
        listener.satisfied();
        checker.join().unwrap();
        assert_eq!(world.waits.stats().completed, 1);
        world.assert_empty();
    });
}

/// Catches: a mark that goes with the call that did not report it; a waker of the first call that is kept for the
/// second.
#[test]
fn g01_check_races_a_second_call() {
    bounded(|| {
        let world = World::new();
        let mut listener = world.waits.listen([1], TIMEOUT);
        let checker = world.happens();
        let (first, second) = (Sleeper::default(), Sleeper::default());
        if call(&mut listener, &first).is_pending() {
            assert_eq!(wait(&mut listener, &second), Ok(()));
        }
        assert!(world.has_happened());
        checker.join().unwrap();
        assert!(call(&mut listener, &second).is_pending(), "one check");
        drop(listener);
        world.assert_empty();
    });
}

/// Catches: two checks of which the second is lost between the report of the first and the next call.
#[test]
fn g01_two_checks_race_the_calls() {
    bounded(|| {
        let world = World::new();
        let mut listener = world.waits.listen([1], TIMEOUT);
        let checker = {
            let (waits, event) = (world.waits.clone(), world.event.clone());
            thread::spawn(move || {
                waits.check_and_complete(&1);
                event.store(true, Ordering::Relaxed);
                waits.check_and_complete(&1);
            })
        };
        let sleeper = Sleeper::default();
        while !world.has_happened() {
            assert_eq!(wait(&mut listener, &sleeper), Ok(()));
        }
        checker.join().unwrap();
        drop(listener);
        world.assert_empty();
    });
}

/// Catches: a dropped listener that stays parked, or whose waker is left.
#[test]
fn g06_check_races_drop() {
    bounded(|| {
        let world = World::new();
        let mut listener = world.waits.listen([1], TIMEOUT);
        let rouse = Arc::new(DriverWaker(Sleeper::default().waker()));
        let waker = Waker::from(rouse.clone());
        let polled = pin!(listener.checked()).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        drop(waker);
        let checker = world.happens();
        drop(listener);
        checker.join().unwrap();
        assert_eq!(Arc::strong_count(&rouse), 1, "a waker is left");
        assert_eq!(world.waits.stats().cancelled, 1);
        world.assert_empty();
    });
}

/// Catches: a listener that is satisfied while it is examined, and counts as something else, or stays.
#[test]
fn g05_check_races_satisfied() {
    bounded(|| {
        let world = World::new();
        let listener = world.waits.listen([1], TIMEOUT);
        let checker = world.happens();
        listener.satisfied();
        checker.join().unwrap();
        assert_eq!(world.waits.stats().completed, 1);
        world.assert_empty();
    });
}

/// Catches: a check before the deadline that the expiry hides; an expiry that is told once, or to a task that sleeps;
/// the timer's examination taken for a check.
#[test]
fn g05_check_races_the_deadline() {
    bounded(|| {
        let world = World::new();
        let mut listener = world.waits.listen([1], TIMEOUT);
        let reaper = world.time_passes();
        let checker = world.happens();
        let sleeper = Sleeper::default();
        let mut checks = 0;
        while wait(&mut listener, &sleeper).is_ok() {
            checks += 1;
            assert!(world.has_happened(), "there is one check, after the event");
        }
        reaper.join().unwrap();
        checker.join().unwrap();
        assert!(checks <= 1);
        let expired = Poll::Ready(Err(WaitError::Expired));
        assert_eq!(call(&mut listener, &sleeper), expired, "it repeats");
        assert_eq!(world.waits.stats().expired, 1);
        world.assert_empty();
    });
}

/// Catches: an expiry in the middle of the drop that leaves something.
#[test]
fn g06_the_deadline_races_drop() {
    bounded(|| {
        let world = World::new();
        let listener = world.waits.listen([1], TIMEOUT);
        let reaper = world.time_passes();
        drop(listener);
        reaper.join().unwrap();
        let stats = world.waits.stats();
        assert_eq!(stats.cancelled + stats.expired, 1, "{stats:?}");
        world.assert_empty();
    });
}

/// A key that is learnt while reading: it is added, then what it means is read. Catches: a check of the key between the
/// two that wakes no task.
#[test]
fn g01_check_races_a_key_that_is_learnt() {
    bounded(|| {
        let world = World::new();
        let mut listener = world.waits.listen([2], TIMEOUT);
        let checker = world.happens();
        listener.also(1);
        let sleeper = Sleeper::default();
        while !world.has_happened() {
            assert_eq!(wait(&mut listener, &sleeper), Ok(()));
        }
        listener.satisfied();
        checker.join().unwrap();
        world.assert_empty();
    });
}

/// Catches: a recheck whose tick meets a check, and of which neither wakes the task; a timer of a recheck that is
/// started while the purgatory is driven, and announced to no thread.
#[test]
fn g01_check_races_a_recheck() {
    long(|| {
        let world = World::new();
        let listener = world.waits.listen([1], Duration::MAX);
        let mut listener = listener.recheck_every(TIMEOUT);
        let (checker, reaper) = (world.happens(), world.time_passes());
        let sleeper = Sleeper::default();
        while !world.has_happened() {
            assert_eq!(wait(&mut listener, &sleeper), Ok(()));
        }
        checker.join().unwrap();
        reaper.join().unwrap();
        drop(listener);
        world.assert_empty();
    });
}

/// A handle moves the deadline while the listener asks for its first recheck, so that the operation has an early timer
/// from then on. Catches: a deadline that the call has moved, and that the early timer does not know; a timer that is
/// left at the deadline, behind the recheck.
#[test]
fn g10_a_moved_deadline_races_the_first_recheck() {
    for timeout in [Duration::MAX, TIMEOUT * 2, TIMEOUT * 9] {
        bounded(move || {
            let world = World::new();
            let listener = world.waits.listen([1], timeout);
            let handle = listener.handle().unwrap().clone();
            let mover = thread::spawn(move || handle.reschedule(TIMEOUT * 4));
            let listener = listener.recheck_every(TIMEOUT * 3);
            assert!(mover.join().unwrap());
            let deadline = listener.handle().unwrap().remaining();
            assert_eq!(deadline, Some(TIMEOUT * 4));
            world.clock.advance(TIMEOUT * 3);
            assert_eq!(world.waits.advance(), 0, "a recheck");
            world.clock.advance(TIMEOUT);
            assert_eq!(world.waits.advance(), 1);
            drop(listener);
            world.assert_empty();
        });
    }
}

/// The waiter receives a recheck, and asks for the next one, while the thread that has told it files the timer for what
/// comes after. Catches: a next recheck that is lost between the two.
#[test]
fn g19_the_next_recheck_races_the_filing_after_the_last() {
    bounded(|| {
        let world = World::new();
        let listener = world.waits.listen([1], Duration::MAX);
        let mut listener = listener.recheck_every(TIMEOUT);
        let reaper = world.time_passes();
        let sleeper = Sleeper::default();
        assert_eq!(wait(&mut listener, &sleeper), Ok(()), "a recheck");
        reaper.join().unwrap();
        assert!(call(&mut listener, &sleeper).is_pending());
        world.time_passes().join().unwrap();
        assert_eq!(call(&mut listener, &sleeper), Poll::Ready(Ok(())));
        drop(listener);
        world.assert_empty();
    });
}

/// A recheck has found the event, so the grace for a late check begins. A handle moves the deadline to a time within the
/// grace. Catches: a grace that ends as an expiry, or that never ends.
#[test]
fn g06_a_moved_deadline_races_the_grace() {
    bounded(|| {
        let world = World::new();
        let listener = world.waits.listen([1], Duration::MAX);
        let mut listener = listener.recheck_every(TIMEOUT);
        world.time_passes().join().unwrap();
        let sleeper = Sleeper::default();
        assert_eq!(call(&mut listener, &sleeper), Poll::Ready(Ok(())));
        let handle = listener.handle().unwrap().clone();
        let mover = thread::spawn(move || handle.reschedule(TIMEOUT / 2));
        listener.satisfied();
        mover.join().unwrap();
        world.time_passes().join().unwrap();
        let stats = world.waits.stats();
        assert_eq!((stats.completed, stats.expired), (1, 0));
        assert_eq!(stats.missed_checks, 1);
        assert_empty(&world.waits);
    });
}

/// An added key has expired before the listener's own deadline, so the condition is evaluated for the last time. Another
/// thread examines the listener's operation, for a check or for a recheck. Catches: a mark by which the listener ends
/// its operation, and which this thread takes for a timer that has fired.
#[test]
fn g06_the_end_by_an_added_key_races_a_check_or_a_recheck() {
    for is_checked in [true, false] {
        bounded(move || {
            let world = World::with_max_timeout(TIMEOUT);
            let listener = world.waits.listen([1], TIMEOUT);
            let mut listener = listener.recheck_every(TIMEOUT * 6 / 5);
            listener.also(2);
            world.clock.advance(TIMEOUT / 2);
            assert!(listener.handle().unwrap().reschedule(TIMEOUT));
            world.clock.advance(TIMEOUT / 2);
            assert_eq!(world.waits.advance(), 1, "the added key");
            world.clock.advance(TIMEOUT / 5);
            let waits = world.waits.clone();
            let other = thread::spawn(move || match is_checked {
                true => waits.check_and_complete(&1),
                false => waits.advance(),
            });
            let mut until = Box::pin(listener.until(|| ready(None::<()>)));
            let ended = until.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(ended, Poll::Ready(Err(WaitError::Expired)));
            drop(until);
            other.join().unwrap();
            assert_eq!(world.waits.stats().expired, 2);
            world.assert_empty();
        });
    }
}
