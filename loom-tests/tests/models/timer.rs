//! `Timer`: starters, stoppers, the reaper's step and the shutdown against each other.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use loom_tests::{Sleeper, bounded};
use request_purgatory::{
    Timer, purgatory::RejectReason, purgatory::Rejected, threads::Dispatch, threads::Reaper,
    time::ManualClock,
};
use std::sync::Arc;
use std::time::Duration;

const NEAR: Duration = Duration::from_millis(2);
const FAR: Duration = Duration::from_secs(60);

/// A timer that the model drives, and what has expired, by number.
fn driven(clock: &ManualClock, reaper: Reaper) -> (Timer<usize>, Arc<[AtomicUsize; 2]>) {
    let expired = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counts = expired.clone();
    let timer = Timer::builder("model")
        .clock(clock.clone())
        .reaper(reaper)
        .dispatch(Dispatch::Inline)
        .build(move |number: usize| {
            counts[number].fetch_add(1, Ordering::Relaxed);
        });
    (timer.expect("the settings are sound"), expired)
}

fn count(expired: &[AtomicUsize; 2]) -> [usize; 2] {
    [0, 1].map(|number| expired[number].load(Ordering::Relaxed))
}

/// Nothing is left, and no panic was swallowed.
fn assert_empty(timer: &Timer<usize>) {
    assert_eq!((timer.stats().parked, timer.stats().panicked), (0, 0));
}

/// Catches: an expiry that does not ask who may end it, a stop that does not; a stale id that stops the next occupant
/// of its slot.
#[test]
fn g05_stop_races_expiry_and_a_later_start() {
    bounded(|| {
        let clock = ManualClock::new();
        let (timer, expired) = driven(&clock, Reaper::Manual);
        let first = timer.start(NEAR, 0).expect("there is room");
        clock.advance(NEAR);
        let reaper = {
            let timer = timer.clone();
            thread::spawn(move || timer.advance())
        };
        let stopper = {
            let timer = timer.clone();
            thread::spawn(move || timer.stop(first))
        };
        let second = timer.start(FAR, 1).expect("there is room");
        let fired = reaper.join().unwrap();
        let stopped = stopper.join().unwrap();
        assert_eq!(fired + usize::from(stopped.is_some()), 1);
        assert_eq!(count(&expired), [fired, 0]);
        assert_eq!(timer.stop(first), None);
        assert_eq!(timer.stop(second), Some(1));
        assert_empty(&timer);
    });
}

/// Catches: a start that lets others end a payload which it still has, and so has to expire it itself: the callback
/// then runs where no user expects it.
#[test]
fn g05_expiry_races_start() {
    bounded(|| {
        let clock = ManualClock::new();
        let (timer, expired) = driven(&clock, Reaper::Manual);
        let reaper = {
            let (timer, clock) = (timer.clone(), clock.clone());
            thread::spawn(move || {
                clock.advance(NEAR);
                timer.advance()
            })
        };
        let id = timer.start(Duration::ZERO, 0).expect("there is room");
        let fired = reaper.join().unwrap();
        assert_eq!(fired + timer.advance(), 1);
        assert_eq!(count(&expired), [1, 0]);
        assert_eq!(timer.stop(id), None);
        assert_empty(&timer);
    });
}

/// Catches: a reset timer that fires at its old deadline, or both times.
#[test]
fn g05_reset_races_expiry() {
    bounded(|| {
        let clock = ManualClock::new();
        let (timer, expired) = driven(&clock, Reaper::Manual);
        let id = timer.start(NEAR, 0).expect("there is room");
        clock.advance(NEAR);
        let reaper = {
            let timer = timer.clone();
            thread::spawn(move || timer.advance())
        };
        let again = timer.reschedule(id, FAR);
        let fired = reaper.join().unwrap();
        assert_eq!(fired + usize::from(again), 1);
        clock.advance(FAR);
        assert_eq!(timer.advance(), 1 - fired);
        assert_eq!(count(&expired), [1, 0]);
        assert_empty(&timer);
    });
}

/// A reactor's loop, until it would sleep no longer than [`NEAR`].
fn drive(timer: &Timer<usize>, sleeper: &Sleeper) {
    loop {
        timer.advance();
        let next = timer.next_deadline();
        if next.is_some_and(|next| next.since_origin() <= NEAR) {
            return;
        }
        sleeper.sleep();
    }
}

/// Catches: a start that announces no deadline. (A lost wake-up shows as a deadlock.)
#[test]
fn g07_start_races_a_reaper_going_to_sleep() {
    bounded(|| {
        let sleeper = Sleeper::default();
        let (timer, _) = driven(&ManualClock::new(), Reaper::Reactor(sleeper.waker()));
        let starter = {
            let timer = timer.clone();
            thread::spawn(move || timer.start(NEAR, 0).expect("there is room"))
        };
        drive(&timer, &sleeper);
        assert_eq!(timer.stop(starter.join().unwrap()), Some(0));
        assert_empty(&timer);
    });
}

/// Catches: a reset that announces no deadline.
#[test]
fn g07_reset_races_a_reaper_going_to_sleep() {
    bounded(|| {
        let sleeper = Sleeper::default();
        let (timer, _) = driven(&ManualClock::new(), Reaper::Reactor(sleeper.waker()));
        let id = timer.start(FAR, 0).expect("there is room");
        let other = {
            let timer = timer.clone();
            thread::spawn(move || timer.reschedule(id, NEAR))
        };
        drive(&timer, &sleeper);
        assert!(other.join().unwrap());
        assert_eq!(timer.stop(id), Some(0));
        assert_empty(&timer);
    });
}

/// Catches: a payload started after the shutdown; one that the shutdown leaves out, or has in common with the
/// reaper.
#[test]
fn g15_shutdown_races_start_and_expiry() {
    bounded(|| {
        let clock = ManualClock::new();
        let (timer, expired) = driven(&clock, Reaper::Manual);
        timer.start(NEAR, 0).expect("there is room");
        clock.advance(NEAR);
        let starter = {
            let timer = timer.clone();
            thread::spawn(
                move || match timer.start(FAR, 1).map_err(Rejected::into_parts) {
                    Ok(_) => 0,
                    Err((RejectReason::ShutDown, 1)) => 1,
                    Err(other) => panic!("{other:?}"),
                },
            )
        };
        let reaper = {
            let timer = timer.clone();
            thread::spawn(move || timer.advance())
        };
        let remains = timer.shutdown();
        let returned = |number| remains.iter().filter(|left| **left == number).count();
        let refused = starter.join().unwrap();
        assert_eq!(returned(1) + refused, 1);
        assert_eq!(reaper.join().unwrap() + returned(0), 1);
        assert_eq!(count(&expired), [1 - returned(0), 0]);
        assert_empty(&timer);
    });
}
