//! G3, G5, G7, G12, G18, G20: what the [model](crate::model) of a tracker does not see.

use crate::support::expiries::{Jobs, Runs};
use crate::support::{PATIENCE, eventually, lock, within};
use crate::{Place, found, manual_tracker, refusal};
use request_purgatory::purgatory::RandomState;
use request_purgatory::threads::Reaper;
use request_purgatory::time::{ManualClock, Timestamp, WakeFn};
use request_purgatory_tracker::{BuildError, Builder, FencingToken, RejectReason, Tracker};
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

#[test]
fn keys_are_asked_for_in_a_borrowed_form() {
    let (tracker, _) = manual_tracker::<String, u32>(|builder| builder, |_, _, _| ());
    tracker.track("ann".into(), 1, Duration::MAX).expect("room");
    assert!(tracker.contains("ann") && tracker.reschedule("ann", TICK));
    assert_eq!(tracker.remaining("ann"), Some(TICK));
    assert_eq!(tracker.complete("ann"), Some(1));
    assert_eq!(tracker.remaining("ann"), None);
}

/// As when a session is renewed. The new value has its own token and its own deadline.
#[test]
fn a_full_tracker_lets_one_value_replace_another() {
    let full = |builder: Builder<_>| builder.max_parked(1);
    let (tracker, clock) = manual_tracker::<u32, u32>(full, |_, _, _| ());
    let first = tracker.try_track(1, 1, TICK).expect("room");
    assert_eq!(
        refusal(&tracker.track(2, 2, TICK)),
        Some(RejectReason::Full)
    );
    let (second, replaced) = tracker.track(1, 3, 3 * TICK).expect("it takes no room");
    assert!(second > first && replaced == Some(1));
    assert_eq!(tracker.complete_if(&1, first), None);
    clock.advance(2 * TICK);
    assert_eq!((tracker.advance(), tracker.get(&1)), (0, Some(3)));
    clock.advance(TICK);
    assert_eq!((tracker.advance(), tracker.len()), (1, 0));
}

/// A value was picked, and another takes its place while the rest is still being picked. Its owner is not to lose it.
#[test]
fn g05_a_value_that_replaces_a_picked_one_stays() {
    const KEYS: u32 = 100;
    let (tracker, _) = manual_tracker::<u32, u32>(|builder| builder, |_, _, _| ());
    for key in 0..KEYS {
        tracker.track(key, 1, Duration::MAX).expect("room");
    }
    let (mut asked, mut first) = (0, 0);
    let withdrawn = tracker.withdraw_where(|key, _| {
        asked += 1;
        match asked {
            1 => first = *key,
            KEYS => {
                let token = tracker.token(&first).expect("it is kept");
                let replaced = tracker.replace_if(&first, token, 2, Duration::MAX);
                assert!(replaced.is_ok());
            }
            _ => {}
        }
        true
    });
    assert_eq!(withdrawn.len(), KEYS as usize - 1);
    assert_eq!(tracker.shutdown(), [(first, 2)]);
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

    let (jobs, expired) = (Jobs::new(Runs::Later), Arc::new(Mutex::new(Vec::new())));
    let log = expired.clone();
    let (tracker, clock) = manual_tracker(
        |builder| builder.dispatch(jobs.dispatch()),
        move |_: Counted, value: u32, token| lock(&log).push((value, token.get())),
    );
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
    jobs.run_all();
    let expected = (1..=500).map(|value| (value, u64::from(value) + 2));
    assert!(lock(&expired).iter().copied().eq(expected));
}

#[test]
fn absurd_settings_are_refused() {
    use request_purgatory::purgatory::BuildError::{Tick, WheelSize};

    let refused = |tick, slots| {
        let builder = Tracker::<u32, u32>::builder("absurd");
        let built = builder.tick(tick).wheel_size(slots).build(|_, _, _| ());
        built.expect_err("it is absurd")
    };
    for tick in [Duration::ZERO, Duration::MAX] {
        assert!(matches!(refused(tick, 64), BuildError::Timer(Tick)));
    }
    for slots in [0, 1, usize::MAX] {
        assert!(matches!(refused(TICK, slots), BuildError::Timer(WheelSize)));
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
        let asleep = || thread::sleep(Duration::from_millis(20));
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
        let place = Place::<u32, u64>::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (own, log) = (place.clone(), seen.clone());
        let waker = WakeFn::new(move || {
            if let Some(tracker) = found(&own) {
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
