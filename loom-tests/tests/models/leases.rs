//! Leases in a `Tracker`: a holder that has lost its lease, and does not know yet, against the next one.

use loom::thread;
use loom_tests::bounded;
use request_purgatory::{threads::Dispatch, threads::Reaper, time::ManualClock};
use request_purgatory_tracker::{RejectReason, Tracker};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NEAR: Duration = Duration::from_millis(2);

/// (Without a seed: every execution of a model visits the keys in one order.)
type Leases = Tracker<u8, u32, BuildHasherDefault<DefaultHasher>>;

/// Leases that the model drives, and what has expired.
fn leases() -> (Leases, ManualClock, Arc<Mutex<Vec<u32>>>) {
    let (clock, expired) = (ManualClock::new(), Arc::<Mutex<Vec<u32>>>::default());
    let log = expired.clone();
    let leases = Tracker::builder("leases")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::Inline)
        .hasher(BuildHasherDefault::default())
        .build(move |_, value, _| log.lock().unwrap().push(value));
    (leases.expect("the settings are sound"), clock, expired)
}

fn spawn<R: 'static>(
    leases: &Leases,
    act: impl FnOnce(&Leases) -> R + 'static,
) -> thread::JoinHandle<R> {
    let leases = leases.clone();
    thread::spawn(move || act(&leases))
}

/// Catches: a renewal that finds its value, and sets the deadline when another value has its place.
#[test]
fn g18_a_stale_touch_races_a_new_lease() {
    bounded(|| {
        let (leases, _, _) = leases();
        let old = leases.track(1, 1, NEAR).expect("room").0;
        let renewal = spawn(&leases, move |leases| leases.reschedule_if(&1, old, NEAR));
        let new = leases.track(1, 2, Duration::MAX).expect("room");
        renewal.join().unwrap();
        assert!(new.0 > old);
        assert_eq!((leases.get(&1), leases.remaining(&1)), (Some(2), None));
    });
}

/// The same against a replacement by the token of the old value.
#[test]
fn g18_a_stale_touch_races_a_replacement_in_place() {
    bounded(|| {
        let (leases, _, _) = leases();
        let old = leases.track(1, 1, NEAR).expect("room").0;
        let renewal = spawn(&leases, move |leases| leases.reschedule_if(&1, old, NEAR));
        let new = leases.replace_if(&1, old, 2, Duration::MAX).expect("mine");
        renewal.join().unwrap();
        assert_eq!(new.1, 1);
        assert_eq!((leases.get(&1), leases.remaining(&1)), (Some(2), None));
        assert!(!leases.reschedule_if(&1, old, NEAR));
    });
}

/// Catches: a stale completion that ends the next value, or two that replace by one token.
#[test]
fn g18_two_replace_by_one_token_and_a_stale_one_completes() {
    bounded(|| {
        let (leases, _, _) = leases();
        let token = leases.track(1, 1, Duration::MAX).expect("room").0;
        let other = spawn(&leases, move |leases| {
            leases.replace_if(&1, token, 2, Duration::MAX).is_ok()
        });
        let mine = leases.replace_if(&1, token, 3, Duration::MAX).is_ok();
        let others = other.join().unwrap();
        assert!(mine != others);
        assert_eq!(leases.complete_if(&1, token), None);
        assert_eq!(leases.complete(&1), Some(if mine { 3 } else { 2 }));
        assert_eq!(leases.stats().parked, 0);
    });
}

/// Catches: a value that is replaced and expires, or that does neither; an entry of an expired value that is lost.
#[test]
fn g05_a_replacement_in_place_races_the_expiry() {
    bounded(|| {
        let (leases, clock, expired) = leases();
        let token = leases.track(1, 1, NEAR).expect("room").0;
        let reaper = spawn(&leases, move |leases| {
            clock.advance(NEAR);
            leases.advance()
        });
        let replaced = leases.replace_if(&1, token, 2, Duration::MAX);
        let driven = reaper.join().unwrap();
        let expired = expired.lock().unwrap().clone();
        match replaced {
            Ok(tracked) => {
                assert_eq!((tracked.1, driven), (1, 0));
                assert_eq!((leases.get(&1), expired.len()), (Some(2), 0));
            }
            Err(rejected) => {
                assert_eq!(rejected.into_parts(), (RejectReason::StaleToken, 2));
                assert_eq!((driven, expired), (1, vec![1]));
                assert_eq!((leases.get(&1), leases.stats().parked), (None, 0));
            }
        }
    });
}

/// Catches: an expiry that takes the entry of the value after it, which has the same key.
#[test]
fn g18_an_expiry_races_a_new_lease() {
    bounded(|| {
        let (leases, clock, expired) = leases();
        leases.track(1, 1, NEAR).expect("room");
        let reaper = spawn(&leases, move |leases| {
            clock.advance(NEAR);
            leases.advance()
        });
        let new = leases.track(1, 2, Duration::MAX).expect("room");
        assert_eq!(leases.get(&1), Some(2));
        let driven = reaper.join().unwrap();
        assert_eq!(new.1.is_some(), driven == 0);
        assert_eq!(expired.lock().unwrap().len(), driven);
        assert_eq!(leases.complete_if(&1, new.0), Some(2));
        assert_eq!(leases.stats().parked, 0);
    });
}

/// Catches: two values that are taken in under one key, of which each was asked for before; a token that is given twice.
#[test]
fn g18_two_threads_take_leases_at_once() {
    for key in [1, 2] {
        bounded(move || {
            let (leases, _, _) = leases();
            let take = move |leases: &Leases| leases.try_track(key, 2, Duration::MAX).ok();
            let other = spawn(&leases, take);
            let mine = leases.try_track(1, 1, Duration::MAX).ok();
            let tokens = [mine, other.join().unwrap()];
            assert_ne!(tokens[0], tokens[1]);
            assert_eq!(tokens.iter().flatten().count(), usize::from(key));
        });
    }
}

/// Catches: a renewal that read the clock before the end, and brings a lease back that another call has found expired;
/// two holders of one lease.
#[test]
fn g29_a_renewal_races_the_end_of_the_lease() {
    bounded(|| {
        let (leases, clock, expired) = leases();
        let old = leases.track(1, 1, NEAR).expect("room").0;
        let renewal = spawn(&leases, move |leases| {
            leases.reschedule_if(&1, old, Duration::MAX)
        });
        let reaper = spawn(&leases, Leases::advance);
        thread::yield_now();
        clock.advance(NEAR);
        let next = leases.try_track(1, 2, Duration::MAX).ok();
        let renewed = renewal.join().unwrap();
        reaper.join().unwrap();
        leases.advance();
        assert_eq!(next.is_some(), !renewed);
        let kept = if renewed { 1 } else { 2 };
        assert_eq!((leases.get(&1), leases.stats().parked), (Some(kept), 1));
        assert_eq!(expired.lock().unwrap().len(), usize::from(!renewed));
        assert_eq!(leases.stats().panicked, 0);
    });
}

/// Catches: a shard that forgets the latest reading of the clock, so that a renewal with an earlier one brings back what
/// another call has found expired.
#[test]
fn g29_what_one_call_finds_expired_no_other_renews() {
    bounded(|| {
        let (leases, clock, _) = leases();
        let token = leases.track(1, 1, NEAR).expect("room").0;
        let renewal = spawn(&leases, move |leases| {
            leases.reschedule_if(&1, token, Duration::MAX)
        });
        // The clock is none of the model's: here the other thread may read it.
        thread::yield_now();
        clock.advance(NEAR);
        let found = leases.contains(&1);
        assert_eq!(renewal.join().unwrap(), found);
    });
}
