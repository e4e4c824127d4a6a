//! G12: keys whose `Hash`, `Eq` or `Clone` panics. The value comes back, stays, or expires; nothing is lost.

use crate::support::{FragileClock, Job, Mint, Token, lock, quietly, refusal};
use request_purgatory::{
    Requests, Tracker, purgatory::KeyHasher, purgatory::RejectReason, purgatory::Rejected,
    threads::Reaper, time::ManualClock,
};
use std::cell::Cell;
use std::hash::{BuildHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    Hash,
    Eq,
    Clone,
}

thread_local! {
    /// The hook that panics, after this number of calls.
    static TRAP: Cell<Option<(Hook, u32)>> = const { Cell::new(None) };
}

fn set(trap: Option<(Hook, u32)>) {
    TRAP.set(trap);
}

fn step_on(hook: Hook) {
    match TRAP.get() {
        Some((trap, 0)) if trap == hook => {
            TRAP.set(None);
            std::panic::panic_any("intended");
        }
        Some((trap, left)) if trap == hook => TRAP.set(Some((trap, left - 1))),
        _ => {}
    }
}

#[derive(Debug)]
struct Key(u32);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        step_on(Hook::Hash);
        self.0.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        step_on(Hook::Eq);
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Clone for Key {
    fn clone(&self) -> Self {
        step_on(Hook::Clone);
        Self(self.0)
    }
}

/// All keys in one shard, so that its table grows and compares.
#[derive(Clone)]
pub(crate) struct OneShard;

pub(crate) struct Few(u64);

impl Hasher for Few {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8 | u64::from(*byte)) & 0xFFFF;
        }
    }
}

impl BuildHasher for OneShard {
    type Hasher = Few;

    fn build_hasher(&self) -> Few {
        Few(0)
    }
}

/// Has something done when it is asked for the second time.
#[derive(Clone, Default)]
struct Meanwhile(Arc<AtomicUsize>, Arc<Mutex<Option<Job>>>);

impl BuildHasher for Meanwhile {
    type Hasher = Few;

    fn build_hasher(&self) -> Few {
        if self.0.fetch_add(1, Ordering::SeqCst) == 1 {
            let job = lock(&self.1).take();
            job.into_iter().for_each(|job| job());
        }
        Few(0)
    }
}

type Log = Arc<Mutex<Vec<(u32, u64)>>>;

fn tracker<S: KeyHasher>(hasher: S) -> (Tracker<Key, Token, S>, ManualClock, Log) {
    let (clock, expired) = (ManualClock::new(), Log::default());
    let log = expired.clone();
    let tracker = Tracker::<Key, Token>::builder("keys")
        .hasher(hasher)
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .max_parked(1_000)
        .build(move |key, value, _| lock(&log).push((key.0, value.number)));
    (tracker.expect("no threads to refuse"), clock, expired)
}

/// Another thread may replace the value between any two steps, such as two looks for the key.
#[test]
fn g18_a_token_takes_out_no_later_value() {
    let (meanwhile, mint) = (Meanwhile::default(), Mint::default());
    let (tracker, _clock, _log) = tracker(meanwhile.clone());
    let tracked = tracker.track(Key(1), mint.token(1), Duration::MAX);
    let (token, _) = tracked.expect("room");
    let (other, later) = (tracker.clone(), mint.token(2));
    *lock(&meanwhile.1) = Some(Box::new(move || {
        drop(other.track(Key(1), later, Duration::MAX));
    }));
    meanwhile.0.store(0, Ordering::SeqCst);
    let completed = tracker.complete_if(&Key(1), token);
    assert_eq!(completed.map(|value| value.number), Some(1));
    lock(&meanwhile.1).take();
}

/// Every hook, at its first, second, third ... call, in every method.
#[test]
fn g12_a_panicking_key_loses_no_value() {
    quietly();
    for hook in [Hook::Hash, Hook::Eq, Hook::Clone] {
        for after in 0..4 {
            for method in 0..5 {
                let (tracker, clock, expired) = tracker(OneShard);
                let mint = Mint::default();
                for key in 0..4 {
                    let value = mint.token(u64::from(key));
                    tracker.track(Key(key), value, TICK).expect("room");
                }
                // What comes back, by the number of its value.
                let mut back = Vec::new();
                set(Some((hook, after)));
                let called = catch_unwind(AssertUnwindSafe(|| match method {
                    0 | 1 => {
                        let key = if method == 0 { 2 } else { 9 };
                        match tracker
                            .track(Key(key), mint.token(99), TICK)
                            .map_err(Rejected::into_parts)
                        {
                            Ok(tracked) => back.extend(tracked.1),
                            Err((RejectReason::Panicked, value)) => {
                                let panicked = tracker.stats().panicked;
                                assert_eq!((value.number, panicked), (99, 1));
                                back.push(value);
                            }
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                    2 => back.extend(tracker.complete(&Key(2))),
                    3 => drop(tracker.reschedule(&Key(2), TICK)),
                    _ => {
                        clock.advance(TICK);
                        assert_eq!(tracker.advance(), 4);
                    }
                }));
                set(None);
                let context = format!("{hook:?} {after} {method}");
                // Only questions pass the panic on; tracking and expiry do not.
                assert!(called.is_ok() || matches!(method, 2 | 3), "{context}");
                clock.advance(TICK);
                tracker.advance();
                let mut ends = lock(&expired).iter().map(|end| end.1).collect::<Vec<_>>();
                ends.extend(back.iter().map(|value| value.number));
                ends.sort_unstable();
                let expected = match method {
                    0 | 1 => vec![0, 1, 2, 3, 99],
                    _ => vec![0, 1, 2, 3],
                };
                assert_eq!(ends, expected, "{context}");
                drop(back);
                assert_eq!((mint.living(), tracker.stats().parked), (0, 0), "{context}");
                // Every key can be used again, whatever a panic has left in the map.
                for key in 0..10 {
                    let tracked = tracker.try_track(Key(key), mint.token(1), TICK);
                    assert!(tracked.is_ok(), "{context} {key}");
                    assert!(tracker.contains(&Key(key)));
                }
            }
        }
    }
}

/// A holder is told that its lease is over only if it is.
#[test]
fn g12_a_replacement_whose_key_panics_is_refused_and_the_value_stays() {
    quietly();
    let (tracker, _clock, _expired) = tracker(OneShard);
    let mint = Mint::default();
    let (token, _) = tracker.track(Key(2), mint.token(1), TICK).expect("room");
    let replace = |trap| {
        set(trap);
        let replaced = tracker.replace_if(Key(2), token, mint.token(2), TICK);
        set(None);
        replaced.map(|(_, value)| value.number)
    };
    for (refused, hook) in (1..).zip([Hook::Hash, Hook::Eq]) {
        let reason = refusal(&replace(Some((hook, 0))));
        assert_eq!(reason, Some(RejectReason::Panicked), "{hook:?}");
        assert_eq!(tracker.token(&Key(2)), Some(token));
        let stats = tracker.stats();
        assert_eq!((stats.rejected, stats.panicked), (refused, refused));
    }
    assert_eq!(replace(None).ok(), Some(1));
    assert_eq!(refusal(&replace(None)), Some(RejectReason::StaleToken));
    assert_eq!((tracker.stats().rejected, mint.living()), (3, 1));
}

/// As with a key: only a call that has no value passes the panic on.
#[test]
fn g12_a_clock_that_panics_loses_no_value() {
    quietly();
    let clock = FragileClock::default();
    let builder = Tracker::<u32, u32>::builder("clock").clock(clock.clone());
    let tracker = builder.reaper(Reaper::Manual).build(|_, _, _| ());
    let tracker = tracker.expect("no threads to refuse");
    let (token, _) = tracker.track(1, 1, TICK).expect("room");
    clock.set_broken(true);
    let reschedule = || tracker.reschedule(&1, TICK);
    let rescheduled = catch_unwind(AssertUnwindSafe(reschedule));
    let tracked = tracker.track(2, 2, TICK).map(drop);
    let replaced = tracker.replace_if(1, token, 3, TICK).map(drop);
    clock.set_broken(false);
    let back = [tracked, replaced].map(|refused| refused.map_err(Rejected::into_parts));
    assert_eq!(
        back,
        [2, 3].map(|value| Err((RejectReason::Panicked, value)))
    );
    assert!(rescheduled.is_err());
    assert_eq!((tracker.stats().panicked, tracker.get(&1)), (2, Some(1)));
}

/// The table of a shard grows, which hashes all its keys, and one of them panics.
#[test]
fn g12_a_panic_while_the_map_grows_loses_no_value() {
    quietly();
    for after in 1..40 {
        let (tracker, clock, expired) = tracker(OneShard);
        let mint = Mint::default();
        let mut back = Vec::new();
        for key in 0..100 {
            // A few calls later than the one that searches for the key: only growing gets there.
            set((key >= after).then_some((Hook::Hash, after)));
            let value = mint.token(u64::from(key));
            match tracker
                .track(Key(key), value, TICK)
                .map_err(Rejected::into_parts)
            {
                Ok(tracked) => assert!(tracked.1.is_none()),
                Err((RejectReason::Panicked, value)) => back.push(value.number),
                Err(other) => panic!("{other:?}"),
            }
            set(None);
        }
        // Kept means found.
        let found = (0..100).filter(|key| tracker.contains(&Key(*key)));
        assert_eq!(found.count(), 100 - back.len());
        assert_eq!(tracker.stats().parked, 100 - back.len());
        clock.advance(TICK);
        assert_eq!(tracker.advance(), 100 - back.len());
        back.extend(lock(&expired).iter().map(|end| end.1));
        back.sort_unstable();
        assert!(back.into_iter().eq(0..100), "{after}");
        assert_eq!(mint.living(), 0);
    }
}

/// An id that cannot be cloned, hashed or compared comes back, and is counted.
#[test]
fn g12_a_panicking_id_comes_back() {
    quietly();
    let requests = Requests::<Key, u32>::builder("ids")
        .reaper(Reaper::Manual)
        .build()
        .expect("no threads to refuse");
    let mut refused = 0;
    for hook in [Hook::Hash, Hook::Clone] {
        for after in 0..2 {
            set(Some((hook, after)));
            let request = requests.request(Key(7), Duration::MAX);
            set(None);
            match request.map_err(Rejected::into_parts) {
                Err((RejectReason::Panicked, id)) => {
                    assert_eq!(id.0, 7);
                    refused += 1;
                }
                Ok(request) => drop(request),
                Err(other) => panic!("{other:?}"),
            }
            let stats = requests.stats();
            assert_eq!((stats.parked, stats.rejected), (0, refused));
            assert_eq!(stats.panicked, refused);
        }
    }
    // One clone of an id, and one hash.
    assert_eq!(refused, 2);
    assert!(requests.request(Key(7), Duration::MAX).is_ok());
}
