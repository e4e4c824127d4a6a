//! G12: keys whose `Hash`, `Eq` or `Clone` panics, values whose `Clone` does, and clocks. The panic goes to the caller,
//! and nothing has changed.

use crate::support::{FragileClock, Job, Mint, Token, lock, quietly};
use request_purgatory::{threads::Reaper, time::Timestamp};
use request_purgatory_tracker::{FencingToken, Rejected, Requests, Responded, Tracker};
use std::cell::Cell;
use std::hash::{BuildHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    Hash,
    Eq,
    Clone,
    CloneOfValue,
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
struct Key(u32, Option<Arc<()>>);

fn key(number: u32) -> Key {
    Key(number, None)
}

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
        Self(self.0, self.1.clone())
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

/// Another thread may replace the value between any two steps, such as two looks for the key.
#[test]
fn g18_a_token_takes_out_no_later_value() {
    let meanwhile = Meanwhile::default();
    let tracker = Tracker::builder("keys").hasher(meanwhile.clone());
    let tracker = tracker.reaper(Reaper::Manual).build(|_: u32, _: u32, _| ());
    let tracker = tracker.expect("no threads to refuse");
    let (token, _) = tracker.track(1, 1, Duration::MAX).expect("room");
    let other = tracker.clone();
    *lock(&meanwhile.1) = Some(Box::new(move || {
        drop(other.track(1, 2, Duration::MAX));
    }));
    meanwhile.0.store(0, Ordering::SeqCst);
    let completed = tracker.complete_if(&1, token);
    assert_eq!(completed, Some(1));
    lock(&meanwhile.1).take();
}

/// What one stage of a call runs of the user's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Clock,
    Hash,
    Eq,
    CloneOfKey,
    CloneOfValue,
}

/// A value that counts itself, and panics when it is cloned if it is told to.
struct Value(#[expect(dead_code, reason = "it is there to be counted")] Token);

impl Clone for Value {
    fn clone(&self) -> Self {
        step_on(Hook::CloneOfValue);
        unreachable!("it is only cloned to panic")
    }
}

/// A key that counts itself.
fn counted(number: u32, census: &Arc<()>) -> Key {
    Key(number, Some(census.clone()))
}

/// A tracker that has 3 values of at most 4, all of them in one shard, and what is counted.
struct World {
    tracker: Tracker<Key, Value, OneShard>,
    clock: FragileClock,
    mint: Mint,
    census: Arc<()>,
    tokens: Vec<FencingToken>,
}

impl World {
    fn new() -> Self {
        quietly();
        let clock = FragileClock::default();
        let tracker = Tracker::<Key, Value>::builder("keys")
            .hasher(OneShard)
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .max_parked(4)
            .build(|_, _, _| ())
            .expect("no threads to refuse");
        let mut world = Self {
            tracker,
            clock,
            mint: Mint::default(),
            census: Arc::new(()),
            tokens: Vec::new(),
        };
        for number in 0..3 {
            let tracked = world.track(number).expect("room");
            world.tokens.push(tracked.0);
        }
        world
    }

    fn track(&self, number: u32) -> Result<(FencingToken, Option<Value>), Rejected<Value>> {
        let key = counted(number, &self.census);
        let value = Value(self.mint.token(u64::from(number)));
        // The higher the number, the earlier it expires.
        let timeout = TICK * (100 - number);
        self.tracker.track(key, value, timeout)
    }

    /// All that can be counted: values, keys, timers, the earliest deadline, what was rejected.
    fn counts(&self) -> (u64, usize, usize, Option<Timestamp>, Vec<u32>) {
        let tracker = &self.tracker;
        let mut keys = tracker.keys().iter().map(|key| key.0).collect::<Vec<_>>();
        keys.sort_unstable();
        (
            self.mint.living(),
            Arc::strong_count(&self.census),
            tracker.len(),
            tracker.next_deadline(),
            keys,
        )
    }

    /// Makes a call in which this stage panics.
    fn panics_in<R>(&self, stage: Stage, call: impl FnOnce(&Self) -> R) {
        let before = self.counts();
        let hook = match stage {
            Stage::Clock => None,
            Stage::Hash => Some(Hook::Hash),
            Stage::Eq => Some(Hook::Eq),
            Stage::CloneOfKey => Some(Hook::Clone),
            Stage::CloneOfValue => Some(Hook::CloneOfValue),
        };
        set(hook.map(|hook| (hook, 0)));
        self.clock.set_broken(stage == Stage::Clock);
        let called = catch_unwind(AssertUnwindSafe(|| drop(call(self))));
        self.clock.set_broken(false);
        assert!(TRAP.get().is_none(), "{stage:?} was not called");
        assert!(called.is_err(), "{stage:?}: it goes to the caller");
        assert_eq!(self.counts(), before, "{stage:?}");
        let stats = self.tracker.stats();
        assert_eq!((stats.rejected, stats.panicked), (0, 0), "{stage:?}");
        // There is room for just one more, and no lock is left locked.
        assert!(self.track(9).is_ok(), "{stage:?}");
        assert!(self.track(8).is_err(), "{stage:?}");
        assert!(self.tracker.complete(&key(9)).is_some(), "{stage:?}");
        for (number, token) in (0..).zip(&self.tokens) {
            assert_eq!(self.tracker.token(&key(number)), Some(*token));
        }
    }
}

/// Of a key that is tracked for the first time (in a shard where others are compared), and of one that is replaced.
#[test]
fn g12_a_panic_in_your_own_track_is_yours_and_leaves_nothing() {
    for stage in [Stage::Clock, Stage::Hash, Stage::Eq] {
        for number in [1, 7] {
            World::new().panics_in(stage, |world| world.track(number));
            World::new().panics_in(stage, |world| {
                let value = Value(world.mint.token(1));
                let key = counted(number, &world.census);
                world.tracker.try_track(key, value, TICK)
            });
        }
    }
}

#[test]
fn g12_a_panic_in_your_own_call_on_a_value_is_yours_and_changes_nothing() {
    for stage in [Stage::Clock, Stage::Hash, Stage::Eq] {
        World::new().panics_in(stage, |world| {
            let value = Value(world.mint.token(1));
            let token = world.tokens[1];
            world.tracker.replace_if(&key(1), token, value, TICK)
        });
        World::new().panics_in(stage, |world| world.tracker.complete(&key(1)));
        World::new().panics_in(stage, |world| {
            world.tracker.complete_if(&key(1), world.tokens[1])
        });
        World::new().panics_in(stage, |world| world.tracker.reschedule(&key(1), TICK));
        World::new().panics_in(stage, |world| {
            world.tracker.reschedule_if(&key(1), world.tokens[1], TICK)
        });
        World::new().panics_in(stage, |world| world.tracker.token(&key(1)));
        World::new().panics_in(stage, |world| world.tracker.contains(&key(1)));
        World::new().panics_in(stage, |world| world.tracker.remaining(&key(1)));
    }
    for stage in [Stage::Clock, Stage::Hash, Stage::Eq, Stage::CloneOfValue] {
        World::new().panics_in(stage, |world| world.tracker.get(&key(1)));
    }
    for stage in [Stage::Clock, Stage::CloneOfKey] {
        World::new().panics_in(stage, |world| world.tracker.keys());
    }
    for stage in [Stage::Clock, Stage::CloneOfKey, Stage::CloneOfValue] {
        World::new().panics_in(stage, |world| world.tracker.withdraw_where(|_, _| true));
    }
}

/// The table of a shard grows as the hashes say that are kept: it calls no `Hash`, which might panic half-way.
#[test]
fn g12_a_map_that_grows_hashes_no_key_again() {
    thread_local!(static HASHED: Cell<u32> = const { Cell::new(0) });

    #[derive(Clone, PartialEq, Eq)]
    struct Counting(u32);

    impl Hash for Counting {
        fn hash<H: Hasher>(&self, state: &mut H) {
            HASHED.set(HASHED.get() + 1);
            self.0.hash(state);
        }
    }

    let builder = Tracker::builder("grows").hasher(OneShard);
    let tracker = builder.reaper(Reaper::Manual).build(|_, (), _| ());
    let tracker = tracker.expect("no threads to refuse");
    for number in 0..1_000 {
        let tracked = tracker.track(Counting(number), (), Duration::MAX);
        assert!(tracked.is_ok());
    }
    assert_eq!(HASHED.get(), 1_000);
}

/// One test for each stage of a request and of a response: clone, hash, comparison, clock.
#[test]
fn g12_a_panic_in_your_own_request_is_yours_and_leaves_nothing() {
    quietly();
    let census = Arc::new(());
    for stage in [Hook::Clone, Hook::Hash, Hook::Eq] {
        let requests = Requests::<Key, u32>::builder("ids")
            .hasher(OneShard)
            .reaper(Reaper::Manual)
            .max_parked(2)
            .build()
            .expect("no threads to refuse");
        let first = requests.request(counted(1, &census), LONG).expect("room");
        let before = (Arc::strong_count(&census), requests.next_deadline());
        let panics = |call: &dyn Fn()| {
            set(Some((stage, 0)));
            let called = catch_unwind(AssertUnwindSafe(call));
            assert!(TRAP.get().is_none() && called.is_err(), "{stage:?}");
            let after = (Arc::strong_count(&census), requests.next_deadline());
            assert_eq!((after, requests.len()), (before, 1), "{stage:?}");
        };
        panics(&|| drop(requests.request(counted(2, &census), Duration::ZERO)));
        if stage != Hook::Clone {
            panics(&|| assert_ne!(requests.respond(&key(1), 7), Responded::Delivered));
            panics(&|| assert!(!requests.reschedule(&key(1), Duration::ZERO)));
        }
        let stats = requests.stats();
        assert_eq!((stats.rejected, stats.panicked, stats.completed), (0, 0, 0));
        // A place is free, for one more only.
        let second = requests.request(counted(2, &census), LONG).expect("room");
        assert!(requests.request(counted(3, &census), LONG).is_err());
        assert_eq!(requests.respond(&key(1), 7), Responded::Delivered);
        drop((first, second));
    }
    let clock = FragileClock::default();
    let requests = Requests::<u32, u32>::builder("clock").clock(clock.clone());
    let requests = requests.reaper(Reaper::Manual).max_parked(1).build();
    let requests = requests.expect("no threads to refuse");
    clock.set_broken(true);
    let request = || requests.request(1, TICK).is_ok();
    assert!(catch_unwind(AssertUnwindSafe(request)).is_err());
    clock.set_broken(false);
    assert_eq!((requests.len(), requests.next_deadline()), (0, None));
    let pending = requests.request(1, TICK).expect("the place is free");
    clock.set_broken(true);
    let respond = || requests.respond(&1, 7);
    assert!(catch_unwind(AssertUnwindSafe(respond)).is_err());
    clock.set_broken(false);
    assert_eq!(requests.respond(&1, 7), Responded::Delivered);
    drop(pending);
}
