//! G12: hooks of keys and of values that panic, and clocks. The panic of a clock, or of `Hash`, `Eq` or `Clone`, goes to
//! the caller, and nothing has changed. After the panic of one destructor no lock is locked, what has ended has its
//! callback or its answer, and the tracker or the requests go on.

use crate::delivered;
use crate::support::keys::{Fragile, Hook, fragile, fragile_keys, with_fuse, with_one_panic_after};
use crate::support::{FragileClock, Job, PATIENCE, Tally, lock, quietly, within};
use futures::FutureExt;
use request_purgatory::{threads::Reaper, time::Timestamp};
use request_purgatory_tracker::{FencingToken, Rejected, Requests, ResponseFuture, Tracker};
use std::hash::{BuildHasher, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(60);

/// All keys in one shard, so that its table grows and compares.
#[derive(Clone)]
struct OneShard;

struct Few(u64);

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

/// A key that is there, its value or its response, and a key that is not there.
const KEY: u32 = 1;
const VALUE: u32 = 101;
const NEW: u32 = 7;

/// What a call runs of the user's: the clock, or a hook of the keys or values with this number.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Clock,
    Hook(Hook, u32),
}

const CLOCK: Stage = Stage::Clock;
const HASH: Stage = Stage::Hook(Hook::Hash, KEY);
const EQ: Stage = Stage::Hook(Hook::Eq, KEY);
const CLONE: Stage = Stage::Hook(Hook::Clone, KEY);
const CLONE_OF_VALUE: Stage = Stage::Hook(Hook::Clone, VALUE);
const HASH_NEW: Stage = Stage::Hook(Hook::Hash, NEW);
const EQ_NEW: Stage = Stage::Hook(Hook::Eq, NEW);
const CLONE_NEW: Stage = Stage::Hook(Hook::Clone, NEW);

impl Stage {
    /// Makes a call in which this panics.
    fn panics_in(self, what: &str, clock: &FragileClock, call: impl FnOnce()) {
        let called = match self {
            Self::Clock => {
                clock.set_broken(true);
                let called = catch_unwind(AssertUnwindSafe(call));
                clock.set_broken(false);
                Some(called)
            }
            Self::Hook(hook, number) => with_one_panic_after(0, number, hook, call),
        };
        let is_passed_on = called.map(|called| called.is_err());
        assert_eq!(is_passed_on, Some(true), "{what}: it goes to the caller");
    }
}

/// A tracker that has 3 values of at most 4, all of them in one shard, and how many callbacks have run.
struct World {
    tracker: Tracker<Fragile, Fragile, OneShard>,
    clock: FragileClock,
    tokens: Vec<FencingToken>,
    told: Arc<Tally>,
}

impl World {
    fn new() -> Self {
        let (clock, told) = (FragileClock::default(), Tally::new());
        let tells = told.clone();
        let tracker = Tracker::<Fragile, Fragile>::builder("keys")
            .hasher(OneShard)
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .max_parked(4)
            .build(move |_, _, _| tells.add())
            .expect("no threads to refuse");
        let mut world = Self {
            tracker,
            clock,
            tokens: Vec::new(),
            told,
        };
        for number in 0..3 {
            let tracked = world.track(number).expect("room");
            world.tokens.push(tracked.0);
        }
        world
    }

    fn track(&self, number: u32) -> Result<(FencingToken, Option<Fragile>), Rejected<Fragile>> {
        let (key, value) = (fragile(number), fragile(100 + number));
        // The higher the number, the earlier it expires.
        self.tracker.track(key, value, TICK * (100 - number))
    }

    /// All that can be counted: keys and values, timers, the earliest deadline.
    fn counts(&self) -> (usize, usize, Option<Timestamp>, Vec<u32>) {
        let tracker = &self.tracker;
        let mut keys = tracker.keys().iter().map(|key| key.0).collect::<Vec<_>>();
        keys.sort_unstable();
        let next = tracker.next_deadline();
        (fragile_keys(), tracker.len(), next, keys)
    }

    /// Each value that is kept expires, and each that has expired has had its callback.
    fn assert_goes_on(self, what: &str) {
        let kept = self.tracker.len();
        self.clock.time.advance(LONG);
        assert_eq!(self.tracker.advance(), kept, "{what}");
        assert_eq!(self.told.count(), self.tracker.stats().expired, "{what}");
        let is_refused = self.track(9).is_err();
        assert_eq!(is_refused, self.tracker.is_shut_down(), "{what}");
    }
}

/// With what each call runs of the user's before it changes anything. A new key is compared with others in its shard.
const CALLS: [(&str, &[Stage], fn(&World)); 17] = [
    ("track", &[CLOCK, HASH, EQ], |world| drop(world.track(KEY))),
    ("track a new key", &[CLOCK, HASH_NEW, EQ_NEW], |world| {
        drop(world.track(NEW));
    }),
    ("try_track", &[CLOCK, HASH, EQ], |world| {
        drop(world.tracker.try_track(fragile(KEY), fragile(VALUE), TICK));
    }),
    ("replace_if", &[CLOCK, HASH, EQ], |world| {
        let (key, token) = (fragile(KEY), world.tokens[1]);
        drop(world.tracker.replace_if(&key, token, fragile(VALUE), TICK));
    }),
    ("complete", &[CLOCK, HASH, EQ], |world| {
        drop(world.tracker.complete(&fragile(KEY)));
    }),
    ("complete_if", &[CLOCK, HASH, EQ], |world| {
        drop(world.tracker.complete_if(&fragile(KEY), world.tokens[1]));
    }),
    ("reschedule", &[CLOCK, HASH, EQ], |world| {
        _ = world.tracker.reschedule(&fragile(KEY), TICK);
    }),
    ("reschedule_if", &[CLOCK, HASH, EQ], |world| {
        let (key, token) = (fragile(KEY), world.tokens[1]);
        _ = world.tracker.reschedule_if(&key, token, TICK);
    }),
    ("token", &[CLOCK, HASH, EQ], |world| {
        _ = world.tracker.token(&fragile(KEY));
    }),
    ("contains", &[CLOCK, HASH, EQ], |world| {
        _ = world.tracker.contains(&fragile(KEY));
    }),
    ("remaining", &[CLOCK, HASH, EQ], |world| {
        _ = world.tracker.remaining(&fragile(KEY));
    }),
    ("get", &[CLOCK, HASH, EQ, CLONE_OF_VALUE], |world| {
        drop(world.tracker.get(&fragile(KEY)));
    }),
    ("keys", &[CLOCK, CLONE], |world| drop(world.tracker.keys())),
    ("withdraw_where", &[CLOCK, CLONE, CLONE_OF_VALUE], |world| {
        drop(world.tracker.withdraw_where(|_, _| true));
    }),
    ("withdraw_where, which picks none", &[], |world| {
        drop(world.tracker.withdraw_where(|_, _| false));
    }),
    ("advance", &[], |world| {
        world.clock.time.advance(LONG);
        world.tracker.advance();
    }),
    ("shutdown", &[], |world| drop(world.tracker.shutdown())),
];

#[test]
fn g12_a_panic_in_your_own_call_is_yours_and_changes_nothing() {
    quietly();
    for (name, stages, call) in CALLS {
        for stage in stages {
            let (world, what) = (World::new(), format!("{stage:?} in {name}"));
            let before = world.counts();
            stage.panics_in(&what, &world.clock, || call(&world));
            assert_eq!(world.counts(), before, "{what}");
            let stats = world.tracker.stats();
            assert_eq!((stats.rejected, stats.panicked), (0, 0), "{what}");
            // There is room for just one more, and no lock is left locked.
            assert!(world.track(9).is_ok(), "{what}");
            assert!(world.track(8).is_err(), "{what}");
            assert!(world.tracker.complete(&fragile(9)).is_some(), "{what}");
            for (number, token) in (0..).zip(&world.tokens) {
                let kept = world.tracker.token(&fragile(number));
                assert_eq!(kept, Some(*token), "{what}");
            }
        }
    }
}

/// Of the destructors of each number that an attempt runs, the first panics, in the next attempt the second, and so on.
/// An attempt gets how many come before, and says whether one has panicked. It leaks nothing.
fn for_each_destructor(name: &str, attempt: impl Fn(u32, u32, &str) -> bool) {
    let mut panics = 0;
    for number in [KEY, NEW, VALUE] {
        for calls in 0.. {
            let (before, what) = (fragile_keys(), format!("{name}, {number}, {calls}"));
            let has_panicked = attempt(calls, number, &what);
            assert_eq!(fragile_keys(), before, "{what}");
            if !has_panicked {
                break;
            }
            panics += 1;
        }
    }
    let keeps_all = name == "track a new key";
    assert_eq!(panics == 0, keeps_all, "{name}: {panics} destructors");
}

#[test]
fn g12_a_tracker_goes_on_though_a_destructor_panics_in_a_call() {
    within(PATIENCE, || {
        for (name, _, call) in CALLS {
            for_each_destructor(name, |calls, number, what| {
                let world = World::new();
                let called = with_one_panic_after(calls, number, Hook::Drop, || call(&world));
                world.assert_goes_on(what);
                called.is_some()
            });
        }
    });
}

/// The table of a shard grows as the hashes say that are kept: it calls no `Hash`, which might panic half-way.
#[test]
fn g12_a_map_that_grows_hashes_no_key_again() {
    let builder = Tracker::<Fragile, ()>::builder("grows").hasher(OneShard);
    let tracker = builder.reaper(Reaper::Manual).build(|_, (), _| ());
    let tracker = tracker.expect("no threads to refuse");
    assert!(tracker.track(fragile(KEY), (), LONG).is_ok());
    let grown = with_fuse(KEY, Hook::Hash, || {
        (2..1_000).all(|number| tracker.track(fragile(number), (), LONG).is_ok())
    });
    assert!(matches!(grown, Ok(true)));
}

/// Requests of which one is pending, of at most two.
struct Calls {
    requests: Requests<Fragile, Fragile, OneShard>,
    clock: FragileClock,
    pending: Vec<ResponseFuture<Fragile, Fragile, OneShard>>,
}

impl Calls {
    fn new() -> Self {
        let clock = FragileClock::default();
        let requests = Requests::<Fragile, Fragile>::builder("ids")
            .hasher(OneShard)
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .max_parked(2)
            .build()
            .expect("no threads to refuse");
        let pending = requests.request(fragile(KEY), LONG).expect("room");
        Self {
            requests,
            clock,
            pending: vec![pending],
        }
    }

    fn counts(&self) -> (usize, usize, Option<Timestamp>) {
        let requests = &self.requests;
        (fragile_keys(), requests.len(), requests.next_deadline())
    }

    /// A request that has ended has its answer, and another gets its own.
    fn assert_go_on(mut self, what: &str) {
        let (requests, pending) = (&self.requests, &mut self.pending);
        match requests.request(fragile(9), LONG) {
            Ok(_request) => assert!(delivered(requests.respond(&fragile(9), fragile(109)))),
            Err(_) => assert!(requests.is_shut_down(), "{what}"),
        }
        pending.retain_mut(|future| future.now_or_never().is_none());
        assert_eq!(pending.len(), requests.len(), "{what}");
        requests.shutdown();
        pending.retain_mut(|future| future.now_or_never().is_none());
        assert!(pending.is_empty(), "{what}");
    }
}

const CALLS_OF_REQUESTS: [(&str, &[Stage], fn(&mut Calls)); 10] = [
    ("request", &[CLOCK, CLONE_NEW, HASH_NEW, EQ_NEW], |calls| {
        drop(calls.requests.request(fragile(NEW), Duration::ZERO));
    }),
    ("respond", &[CLOCK, HASH, EQ], |calls| {
        _ = calls.requests.respond(&fragile(KEY), fragile(VALUE));
    }),
    ("reschedule", &[CLOCK, HASH, EQ], |calls| {
        _ = calls.requests.reschedule(&fragile(KEY), Duration::ZERO);
    }),
    ("request past the deadline", &[], |calls| {
        calls.clock.time.advance(LONG);
        drop(calls.requests.request(fragile(KEY), LONG));
    }),
    ("drop", &[], |calls| calls.pending.clear()),
    ("drop of a response", &[], |calls| {
        _ = calls.requests.respond(&fragile(KEY), fragile(VALUE));
        calls.pending.clear();
    }),
    ("fail_all_with", &[], |calls| {
        calls.requests.fail_all_with(|_| fragile(VALUE));
    }),
    ("fail_all_with, of which none is left", &[], |calls| {
        calls.requests.fail_all_with(|id| {
            _ = calls.requests.respond(id, fragile(0));
            fragile(VALUE)
        });
    }),
    ("advance", &[], |calls| {
        calls.clock.time.advance(LONG);
        calls.requests.advance();
    }),
    ("shutdown", &[], |calls| calls.requests.shutdown()),
];

#[test]
fn g12_a_panic_in_your_own_request_is_yours_and_leaves_nothing() {
    quietly();
    for (name, stages, call) in CALLS_OF_REQUESTS {
        for stage in stages {
            let (mut calls, what) = (Calls::new(), format!("{stage:?} in {name}"));
            let (before, clock) = (calls.counts(), calls.clock.clone());
            stage.panics_in(&what, &clock, || call(&mut calls));
            assert_eq!(calls.counts(), before, "{what}");
            let requests = &calls.requests;
            let stats = requests.stats();
            let counted = (stats.rejected, stats.panicked, stats.completed);
            assert_eq!(counted, (0, 0, 0), "{what}");
            // A place is free, for one more only.
            let second = requests.request(fragile(2), LONG).expect("room");
            assert!(requests.request(fragile(3), LONG).is_err(), "{what}");
            assert!(delivered(requests.respond(&fragile(KEY), fragile(VALUE))));
            drop(second);
        }
    }
}

#[test]
fn g12_requests_go_on_though_a_destructor_panics_in_a_call() {
    within(PATIENCE, || {
        for (name, _, call) in CALLS_OF_REQUESTS {
            for_each_destructor(name, |calls, number, what| {
                let mut all = Calls::new();
                let called = with_one_panic_after(calls, number, Hook::Drop, || call(&mut all));
                all.assert_go_on(what);
                called.is_some()
            });
        }
    });
}
