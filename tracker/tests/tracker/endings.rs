//! G5, G12, G17: how a value ends, one at a time, and what the callback may do.

use crate::refusal;
use crate::support::{Job, Mint, PATIENCE, Token, eventually, lock, quietly, within};
use request_purgatory::threads::Dispatch;
use request_purgatory::{
    purgatory::RandomState, threads::Reaper, time::ManualClock, time::Timestamp, time::WakeFn,
};
use request_purgatory_tracker::{
    BuildError, FencingToken, RejectReason, Rejected, Tracker, WeakRef,
};
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
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
            .1
            .is_none()
    );
    let tracked = tracker.track(1, mint.token(11), TICK * 2).expect("room");
    assert_eq!(tracked.1.expect("the first one").number, 10);
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
    assert!(tracker.complete(&1).is_none() && !tracker.reschedule(&1, TICK));

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
    assert!(tracker.contains("ann") && tracker.reschedule("ann", TICK));
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

/// The bound counts what waits for its callback, and so it bounds memory.
#[test]
fn g17_a_value_that_has_expired_keeps_its_place_until_its_callback_has_run() {
    let (clock, jobs) = (ManualClock::new(), Arc::<Mutex<Vec<Job>>>::default());
    let queue = jobs.clone();
    let executor = Arc::new(move |job| lock(&queue).push(job));
    let place = Arc::new(OnceLock::<WeakRef<Tracker<u32, u32>>>::new());
    let (found, inside) = (place.clone(), Arc::new(Mutex::new(None)));
    let refused = inside.clone();
    let tracker = Tracker::<u32, u32>::builder("g17")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::Executor(executor))
        .max_parked(1)
        .hasher(RandomState::default())
        .build(move |_, _, _| {
            let tracker = found.get().and_then(WeakRef::upgrade);
            let tracker = tracker.expect("it lives in this test");
            *lock(&refused) = refusal(&tracker.track(2, 2, TICK));
        })
        .expect("no threads to refuse");
    place.set(tracker.downgrade()).expect("set once");
    let track = || refusal(&tracker.track(1, 1, TICK));
    assert_eq!(track(), None);
    clock.advance(TICK);
    assert_eq!((tracker.advance(), tracker.stats().parked), (1, 0));
    assert_eq!(track(), Some(RejectReason::Full));
    let job = lock(&jobs).pop();
    job.expect("the callback")();
    assert_eq!(*lock(&inside), Some(RejectReason::Full));
    assert_eq!(track(), None);
}

/// A value was picked, and another takes its place while the rest is still being picked. Its owner is not to lose it.
#[test]
fn g05_a_value_that_replaces_a_picked_one_stays() {
    const KEYS: u32 = 100;
    within(PATIENCE, || {
        let builder = Tracker::builder("g05").reaper(Reaper::Manual);
        let tracker = builder.build(|_: u32, _: u32, _| ());
        let tracker = tracker.expect("no threads to refuse");
        for key in 0..KEYS {
            tracker.track(key, 1, Duration::MAX).expect("room");
        }
        let ((picks, picked), (replaces, replaced)) = (channel(), channel());
        let other = tracker.clone();
        let replacing = thread::spawn(move || {
            let key = picked.recv().expect("the first one");
            let token = other.token(&key).expect("it is kept");
            let old = other.replace_if(&key, token, 2, Duration::MAX);
            replaces.send(old.is_ok()).expect("the last one waits");
        });
        let mut asked = 0;
        let withdrawn = tracker.withdraw_where(|key, _| {
            asked += 1;
            match asked {
                1 => picks.send(*key).expect("the other thread waits"),
                // All in one shard of the map, these keys would stand in each other's way.
                KEYS => assert_eq!(replaced.recv(), Ok(true)),
                _ => {}
            }
            true
        });
        replacing.join().expect("no panic");
        let kept = tracker.shutdown().into_iter().map(|(_, value)| value);
        assert_eq!(
            (withdrawn.len(), kept.collect()),
            (KEYS as usize - 1, vec![2])
        );
    });
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
        assert_eq!(tracker.stats().parked, 100);
    }
    assert_eq!(tracker.stats().panicked, 0);
}

/// What a call on a key costs, in comparisons of keys, does not grow with the expired values of that key whose callback
/// has not run yet.
#[test]
fn g20_values_that_wait_for_their_callback_do_not_slow_down_their_key() {
    thread_local!(static COMPARED: Cell<usize> = const { Cell::new(0) });

    #[derive(Clone, Copy)]
    struct Counted;
    impl PartialEq for Counted {
        fn eq(&self, _: &Self) -> bool {
            COMPARED.set(COMPARED.get() + 1);
            true
        }
    }
    impl Eq for Counted {}
    impl Hash for Counted {
        fn hash<H: Hasher>(&self, state: &mut H) {
            state.write_u8(0);
        }
    }

    let (clock, jobs) = (ManualClock::new(), Arc::new(Mutex::new(Vec::<Job>::new())));
    let (queue, expired) = (jobs.clone(), Arc::new(Mutex::new(Vec::new())));
    let log = expired.clone();
    let tracker = Tracker::builder("g20")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::Executor(Arc::new(move |job| {
            lock(&queue).push(job)
        })))
        .build(move |_: Counted, value: u32, token| lock(&log).push((value, token.get())))
        .expect("no threads to refuse");
    let cost = || {
        COMPARED.set(0);
        assert!(tracker.reschedule(&Counted, TICK) && tracker.contains(&Counted));
        assert!(tracker.track(Counted, 0, TICK).is_ok());
        assert_eq!(tracker.complete(&Counted), Some(0));
        COMPARED.get()
    };
    assert!(tracker.track(Counted, 0, TICK).is_ok());
    let alone = cost();
    for value in 1..=500 {
        assert!(tracker.try_track(Counted, value, TICK).is_ok());
        clock.advance(TICK);
        assert_eq!(tracker.advance(), 1);
    }
    assert!(tracker.track(Counted, 0, TICK).is_ok());
    assert_eq!((cost(), lock(&expired).len()), (alone, 0));
    // Each callback gets its own value, with the token of that.
    let jobs = std::mem::take(&mut *lock(&jobs));
    jobs.into_iter().for_each(|job| job());
    let expected = (1..=500).map(|value| (value, u64::from(value) + 2));
    assert!(lock(&expired).iter().copied().eq(expected));
}

/// A callback that has waited can tell the value that has expired from the one that its key has now.
#[test]
fn g18_a_late_callback_knows_that_its_key_has_another_value() {
    let (clock, jobs) = (ManualClock::new(), Arc::new(Mutex::new(Vec::<Job>::new())));
    let (queue, ended) = (jobs.clone(), Arc::new(Mutex::new(None)));
    let log = ended.clone();
    let leases = Tracker::builder("g18")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::Executor(Arc::new(move |job| {
            lock(&queue).push(job)
        })))
        .build(move |_: u32, _: u32, token| *lock(&log) = Some(token))
        .expect("no threads to refuse");
    let first = leases.try_track(1, 1, TICK).expect("room");
    let second = leases.replace_if(&1, first, 2, TICK).expect("it is mine");
    clock.advance(TICK);
    assert_eq!(leases.advance(), 1);
    let third = leases.try_track(1, 3, TICK).expect("the key is free");
    let jobs = std::mem::take(&mut *lock(&jobs));
    jobs.into_iter().for_each(|job| job());
    assert_eq!(*lock(&ended), Some(second.0));
    assert!(leases.token(&1) == Some(third) && third > second.0);
}

/// A closure that picks values by key and value; one that panics has ended none.
#[test]
fn g05_values_are_withdrawn_without_the_callback() {
    quietly();
    let (clock, expired) = (ManualClock::new(), Log::default());
    let log = expired.clone();
    let tracker = Tracker::builder("g05").clock(clock.clone());
    let tracker = tracker
        .reaper(Reaper::Manual)
        .build(move |key, value: Arc<Token>, _| lock(&log).push((key, value.number)));
    let tracker = tracker.expect("no threads to refuse");
    let mint = Mint::default();
    for key in 0..100 {
        let value = Arc::new(mint.token(u64::from(key / 10)));
        assert!(tracker.track(key, value, TICK).is_ok());
    }
    let panics = || tracker.withdraw_where(|key, _| *key != 50 || panic!("intended"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(tracker.stats().parked, 100);
    let withdrawn = tracker.withdraw_where(|key, value| key % 2 == 0 && value.number == 7);
    let mut keys = withdrawn.iter().map(|(key, _)| *key).collect::<Vec<_>>();
    keys.sort_unstable();
    assert_eq!(keys, [70, 72, 74, 76, 78]);
    drop(withdrawn);
    assert_eq!((tracker.stats().parked, mint.living()), (95, 95));
    let mut keys = tracker.keys();
    keys.sort_unstable();
    assert!(
        keys.into_iter()
            .eq((0..100).filter(|key| key / 10 != 7 || key % 2 == 1))
    );
    clock.advance(TICK);
    assert_eq!((tracker.advance(), lock(&expired).len()), (95, 95));
    assert_eq!((tracker.stats().cancelled, tracker.keys().len()), (5, 0));
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
        assert_eq!((tracker.stats().expired, tracker.stats().parked), (210, 0));
        // Their keys are free.
        for key in 0..210 {
            tracker.try_track(key, (), Duration::MAX).expect("room");
        }
    });
}

#[test]
fn absurd_settings_are_refused() {
    use request_purgatory::purgatory::BuildError as timer;

    let build = |tick, slots| {
        let builder = Tracker::<u32, u32>::builder("absurd");
        builder.tick(tick).wheel_size(slots).build(|_, _, _| ())
    };
    for tick in [Duration::ZERO, Duration::MAX] {
        assert!(matches!(
            build(tick, 64),
            Err(BuildError::Timer(timer::Tick))
        ));
    }
    for slots in [0, 1, usize::MAX] {
        assert!(matches!(
            build(TICK, slots),
            Err(BuildError::Timer(timer::WheelSize))
        ));
    }
}

/// Whatever else is chosen after it. And a hasher changes no other choice.
#[test]
fn g18_the_first_token_has_the_number_that_was_chosen() {
    let build = |number| {
        let builder = Tracker::<u32, u32>::builder("first").first_token(number);
        let builder = builder.clock(ManualClock::new()).reaper(Reaper::Manual);
        let builder = builder.tick(TICK * 2).max_timeout(TICK);
        builder.hasher(RandomState::default()).build(|_, _, _| ())
    };
    for number in [0, 1, 7, 1 << 63] {
        let tracker = build(number).expect("no threads to refuse");
        let token = tracker.try_track(1, 1, TICK * 9).expect("room");
        let left = tracker.remaining(&1);
        assert_eq!((token.get(), left), (number, Some(TICK)));
    }
    for number in [(1 << 63) + 1, u64::MAX] {
        assert!(matches!(build(number), Err(BuildError::FirstToken)));
    }
    assert!(BuildError::FirstToken.to_string().contains("`first_token`"));
    assert_eq!(FencingToken::from(7).to_string(), "7");
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
        assert!(tracker.reschedule(&1, TICK));
        eventually("the expiry of the first", || *lock(&expired) == [1]);
        let tracked = tracker.track(1, 2, Duration::MAX).expect("there is room");
        asleep();
        assert!(tracker.replace_if(&1, tracked.0, 3, TICK).is_ok());
        eventually("the expiry of the second", || *lock(&expired) == [1, 3]);
    });
}

/// The waker of a reactor may look at once at what it is woken for, on the thread that tracks or renews the value.
#[test]
fn g03_a_reactor_may_call_the_tracker_while_it_is_woken() {
    within(PATIENCE, || {
        let place = Arc::new(OnceLock::<WeakRef<Tracker<u32, u64>>>::new());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (found, log) = (place.clone(), seen.clone());
        let waker = WakeFn::new(move || {
            if let Some(tracker) = found.get().and_then(WeakRef::upgrade) {
                let next = tracker.next_deadline().map(Timestamp::since_origin);
                lock(&log).push((tracker.get(&1), next));
                assert!(tracker.try_track(1, 0, TICK).is_err(), "it is kept");
            }
            true
        });
        let tracker = Tracker::builder("g03")
            .clock(ManualClock::new())
            .reaper(Reaper::Reactor(waker))
            .build(|_, _, _| unreachable!("no time passes"))
            .expect("no threads to refuse");
        place.set(tracker.downgrade()).expect("set once");
        let (token, _) = tracker.track(1, 10, 9 * TICK).expect("there is room");
        assert!(tracker.reschedule(&1, 7 * TICK));
        assert!(tracker.replace_if(&1, token, 11, 5 * TICK).is_ok());
        assert!(tracker.track(1, 12, 3 * TICK).is_ok());
        let expected = [(10, 9), (10, 7), (11, 5), (12, 3)];
        let expected = expected.map(|(value, ticks)| (Some(value), Some(ticks * TICK)));
        assert_eq!(*lock(&seen), expected);
    });
}
