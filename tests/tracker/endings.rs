//! G5, G12, G17: how a value ends, one at a time, and what the callback may do.

use crate::support::{Mint, PATIENCE, Token, eventually, lock, quietly, within};
use request_purgatory::{
    RejectReason, Rejected, Tracker, WeakRef, purgatory::BuildError, threads::Reaper,
    time::ManualClock,
};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

/// Keys and values that have expired.
type Log = Arc<Mutex<Vec<(u32, u64)>>>;

/// A tracker without threads, and what has expired.
fn manual() -> (Tracker<u32, Token>, ManualClock, Log) {
    let clock = ManualClock::new();
    let expired = Log::default();
    let log = expired.clone();
    let tracker = Tracker::builder("manual")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .build(move |key, value: Token, _| lock(&log).push((key, value.number)));
    (tracker.expect("no threads to refuse"), clock, expired)
}

#[test]
fn g05_each_value_ends_in_one_way() {
    let (tracker, clock, expired) = manual();
    let mint = Mint::default();
    assert!(
        tracker
            .track(1, mint.token(10), TICK)
            .expect("room")
            .replaced
            .is_none()
    );
    let tracked = tracker.track(1, mint.token(11), TICK * 2).expect("room");
    assert_eq!(tracked.replaced.expect("the first one").number, 10);
    let refused = tracker.try_track(1, mint.token(12), TICK * 9);
    assert!(
        matches!(refused.map_err(Rejected::into_parts), Err((RejectReason::Duplicate, back)) if back.number == 12)
    );
    // The deadline of the first one passes, and nothing happens to the second.
    clock.advance(TICK);
    assert_eq!((tracker.advance(), tracker.contains(&1)), (0, true));
    clock.advance(TICK);
    assert_eq!((tracker.advance(), tracker.contains(&1)), (1, false));
    assert_eq!(*lock(&expired), [(1, 11)]);
    assert!(tracker.complete(&1).is_none() && !tracker.touch(&1, TICK));

    tracker.try_track(1, mint.token(13), TICK).expect("room");
    assert_eq!(tracker.complete(&1).expect("it is kept").number, 13);
    tracker
        .try_track(1, mint.token(14), TICK)
        .expect("the key is free");
    assert_eq!(tracker.shutdown().len(), 1);
    assert_eq!(mint.living(), 0);
    let stats = tracker.stats();
    assert_eq!((stats.completed, stats.expired, stats.cancelled), (1, 1, 1));
    assert_eq!((stats.shut_down, stats.rejected, stats.parked), (1, 1, 0));
}

#[test]
fn keys_are_asked_for_in_a_borrowed_form() {
    let tracker = Tracker::<String, u32>::builder("borrowed")
        .reaper(Reaper::Manual)
        .build(|_, _, _| ())
        .expect("no threads to refuse");
    tracker.track("ann".into(), 1, Duration::MAX).expect("room");
    assert!(tracker.contains("ann") && tracker.touch("ann", TICK));
    assert!(
        tracker
            .remaining("ann")
            .is_some_and(|left| left <= TICK * 2)
    );
    assert_eq!(tracker.complete("ann"), Some(1));
    assert_eq!(tracker.remaining("ann"), None);
}

#[test]
fn g17_the_bound_is_exact() {
    let clock = ManualClock::new();
    let tracker = Tracker::<u32, u32>::builder("g17")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .max_parked(2)
        .build(|_, _, _| ())
        .expect("no threads to refuse");
    for round in 0..20 {
        assert!(tracker.track(1, 1, TICK).is_ok() && tracker.track(2, 2, TICK).is_ok());
        assert!(matches!(
            tracker.track(3, 3, TICK).map_err(Rejected::into_parts),
            Err((RejectReason::Full, 3))
        ));
        // A duplicate takes no place, and leaves none taken.
        assert!(matches!(
            tracker.try_track(1, 4, TICK).map_err(Rejected::into_parts),
            Err((RejectReason::Duplicate, 4))
        ));
        match round % 2 {
            0 => assert!(tracker.complete(&1).is_some() && tracker.complete(&2).is_some()),
            _ => {
                clock.advance(TICK);
                assert_eq!(tracker.advance(), 2);
            }
        }
        assert!(tracker.is_empty());
    }
}

/// A callback that tracks its key again, completes another, and drives the tracker.
#[test]
fn a_callback_may_track_again_and_complete_others() {
    let place = Arc::new(OnceLock::<WeakRef<Tracker<u32, u32>>>::new());
    let found = place.clone();
    let clock = ManualClock::new();
    let log = Arc::new(Mutex::new(Vec::new()));
    let seen = log.clone();
    let tracker = Tracker::builder("again")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .build(move |key: u32, value: u32, _| {
            let tracker = found.get().and_then(WeakRef::upgrade);
            let tracker = tracker.expect("it lives while it is driven");
            // The key is free before its callback runs.
            assert!(!tracker.contains(&key));
            tracker
                .try_track(key, value + 1, Duration::ZERO)
                .expect("room");
            let other = tracker.complete(&(key + 100));
            lock(&seen).push((key, value, other));
        })
        .expect("no threads to refuse");
    place.set(tracker.downgrade()).expect("set once");
    for key in 0..100 {
        tracker.track(key, 0, TICK).expect("room");
        tracker.track(key + 100, 7, Duration::MAX).expect("room");
    }
    for round in 0..5 {
        clock.advance(TICK);
        assert_eq!(
            tracker.advance(),
            100,
            "what is tracked again waits for the next pass"
        );
        let mut log = std::mem::take(&mut *lock(&log));
        log.sort_unstable();
        let other = (round == 0).then_some(7);
        assert!(log.into_iter().eq((0..100).map(|key| (key, round, other))));
        assert_eq!(tracker.len(), 100);
    }
    assert_eq!(tracker.stats().panicked, 0);
}

#[test]
fn g12_a_panic_of_the_callback_ends_that_value_only() {
    within(PATIENCE, || {
        quietly();
        let log = Arc::new(Mutex::new(Vec::new()));
        let seen = log.clone();
        let tracker = Tracker::new("g12", move |key: u64, (): (), _| {
            if key % 7 == 0 {
                std::panic::panic_any("intended");
            }
            lock(&seen).push(key);
        });
        for key in 0..210 {
            let timeout = Duration::from_millis(key % 10);
            tracker.track(key, (), timeout).expect("room");
        }
        eventually("the callbacks", || lock(&log).len() == 180);
        eventually("the count of panics", || tracker.stats().panicked == 30);
        assert_eq!((tracker.stats().expired, tracker.len()), (210, 0));
        // Their keys are free.
        for key in 0..210 {
            tracker.try_track(key, (), Duration::MAX).expect("room");
        }
    });
}

#[test]
fn absurd_settings_are_refused() {
    let build = |tick, slots| {
        let builder = Tracker::<u32, u32>::builder("absurd");
        builder.tick(tick).wheel_size(slots).build(|_, _, _| ())
    };
    for tick in [Duration::ZERO, Duration::MAX] {
        assert!(matches!(build(tick, 64), Err(BuildError::Tick)));
    }
    for slots in [0, 1, usize::MAX] {
        assert!(matches!(build(TICK, slots), Err(BuildError::WheelSize)));
    }
}

/// The reaper sleeps until it is told of an earlier deadline.
#[test]
fn g07_a_renewal_and_a_replacement_wake_the_reaper() {
    within(PATIENCE, || {
        let expired = Arc::<Mutex<Vec<u64>>>::default();
        let log = expired.clone();
        let tracker = Tracker::new("g07", move |_: u32, value: u64, _| lock(&log).push(value));
        let asleep = || std::thread::sleep(Duration::from_millis(20));
        assert!(tracker.track(1, 1, Duration::MAX).is_ok());
        asleep();
        assert!(tracker.touch(&1, TICK));
        eventually("the expiry of the first", || *lock(&expired) == [1]);
        let tracked = tracker.track(1, 2, Duration::MAX).expect("there is room");
        asleep();
        assert!(tracker.replace_if(1, tracked.token, 3, TICK).is_ok());
        eventually("the expiry of the second", || *lock(&expired) == [1, 3]);
    });
}
