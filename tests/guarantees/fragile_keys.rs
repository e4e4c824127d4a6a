//! G12 for keys: what a panic of `Hash`, `Eq`, `Clone` or `Drop` of a key may cost. It goes to the caller, or is
//! counted where an operation has ended. Afterwards no lock is held, no operation that has ended lacks its callback,
//! and each that is still parked ends at its timeout. (A dead entry may stay in a list.)

use crate::support::keys::{Fragile, Hook, with_fuse_after};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, manual, refusal, within};
use request_purgatory::{
    Completion, Handle, Purgatory, RejectReason, ResolvedKey, time::ManualClock,
};
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

type Watch<'a> = request_purgatory::Watch<'a, Op<Fragile>>;

const SOON: Duration = Duration::from_secs(1);

/// The key that panics; every operation watches it, and `OTHER`.
const FRAGILE: u32 = 1;
const OTHER: u32 = 2;

struct Scene {
    purgatory: Purgatory<Op<Fragile>>,
    clock: ManualClock,
    key: ResolvedKey<Op<Fragile>>,
    probes: Vec<Arc<Probe>>,
    handle: Handle<Op<Fragile>>,
}

impl Scene {
    /// Watchers of all kinds: more than one slice, so that their expiry is a storm.
    fn new() -> Self {
        let (purgatory, clock) = manual::<Fragile>(|builder| builder);
        let key = purgatory.resolve(Fragile(FRAGILE));
        let mut handle = None;
        let probes = (0..72).map(|number| {
            let probe = Probe::new();
            let watch = match number % 3 {
                0 => Watch::key(Fragile(FRAGILE)),
                1 => Watch::key(Fragile(FRAGILE)).at_rank(number),
                _ => Watch::from(&key),
            };
            let watches = [watch, Watch::key(Fragile(OTHER))];
            let parked = purgatory.try_complete_else_watch_on(probe.op(SOON), watches);
            handle = parked.expect("there is room").into_handle();
            probe
        });
        Self {
            probes: probes.collect(),
            handle: handle.expect("it cannot complete yet"),
            purgatory,
            clock,
            key,
        }
    }

    fn satisfy(&self) -> &Purgatory<Op<Fragile>> {
        self.probes.iter().for_each(|probe| probe.satisfy());
        &self.purgatory
    }

    fn park(&self, keys: impl IntoIterator<Item = u32>) {
        let keys = keys.into_iter().map(Fragile);
        drop(self.purgatory.try_complete_else_watch(Op::new(SOON), keys));
    }
}

/// A call. Returns how many operations it took back.
type Call = fn(&Scene) -> usize;

const CALLS: [(&str, Call); 15] = [
    ("resolve", |scene| {
        drop(scene.key.clone());
        drop(scene.purgatory.resolve(Fragile(FRAGILE)));
        0
    }),
    ("park", |scene| {
        scene.park([OTHER, 3, FRAGILE]);
        0
    }),
    ("park on many keys", |scene| {
        scene.park(0..40);
        0
    }),
    ("park on a resolved key", |scene| {
        let watches = [Watch::from(&scene.key), Watch::key(Fragile(FRAGILE))];
        drop(
            scene
                .purgatory
                .try_complete_else_watch_on(Op::new(SOON), watches),
        );
        0
    }),
    ("check", |scene| {
        scene.satisfy().check_and_complete(&Fragile(FRAGILE));
        0
    }),
    ("check of the other key", |scene| {
        scene.satisfy().check_and_complete(&Fragile(OTHER));
        0
    }),
    ("check later", |scene| {
        scene.satisfy().check_later(Fragile(FRAGILE));
        scene.purgatory.advance();
        0
    }),
    ("force", |scene| {
        scene.purgatory.force_complete_for_key(&Fragile(OTHER));
        0
    }),
    ("force by handle", |scene| {
        scene.handle.force_complete();
        0
    }),
    ("cancel", |scene| {
        scene.purgatory.cancel_for_key(&Fragile(OTHER)).len()
    }),
    ("cancel by handle", |scene| {
        scene.handle.cancel().into_iter().count()
    }),
    ("reschedule", |scene| {
        scene
            .purgatory
            .reschedule_for_key(&Fragile(FRAGILE), SOON / 2);
        0
    }),
    ("snapshot", |scene| {
        drop(scene.purgatory.snapshot());
        0
    }),
    ("expiry", |scene| {
        scene.clock.advance(2 * SOON);
        scene.purgatory.advance();
        0
    }),
    ("shutdown", |scene| {
        scene.purgatory.check_later(Fragile(FRAGILE));
        scene.purgatory.shutdown();
        assert!(scene.purgatory.is_empty());
        0
    }),
];

#[test]
fn g12_a_key_that_panics_in_any_call_costs_no_operation_its_ending() {
    within(PATIENCE, || {
        for hook in [Hook::Clone, Hook::Hash, Hook::Eq, Hook::Drop] {
            for (name, call) in CALLS {
                for calls in [0, 1, 2, 5, 70] {
                    assert_all_end(hook, calls, name, call);
                }
            }
        }
    });
}

fn assert_all_end(hook: Hook, calls: u32, name: &str, call: Call) {
    let scene = Scene::new();
    let returned = with_fuse_after(calls, FRAGILE, hook, || call(&scene)).unwrap_or(0);
    let Scene {
        purgatory,
        clock,
        probes,
        key,
        ..
    } = scene;
    if !purgatory.is_shut_down() {
        // No lock is held: operations are parked on both keys and found there.
        for number in [FRAGILE, OTHER] {
            let probe = Probe::new();
            let parked =
                purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [Fragile(number)]);
            assert!(parked.is_ok_and(|parked| parked.is_parked()));
            probe.satisfy();
            purgatory.check_and_complete(&Fragile(number));
            assert_eq!(probe.ending(), Some(Completion::Satisfied), "{name}");
        }
        clock.advance(4 * SOON);
        purgatory.advance();
    }
    assert_eq!(
        (purgatory.len(), purgatory.watched()),
        (0, 0),
        "{hook:?} {name}"
    );
    let ended = probes.iter().filter(|probe| probe.ending().is_some());
    let ended = ended.count();
    assert_eq!(
        ended + returned,
        probes.len(),
        "{hook:?}, {calls} calls of it before, {name}"
    );
    drop(key);
    purgatory.shutdown();
}

/// Whichever hook of a key panics, and in whichever call of it: a park never drops its operation.
#[test]
fn g12_a_park_whose_key_panics_returns_the_operation() {
    let several: [&[u32]; 3] = [&[OTHER, 3, FRAGILE], &[FRAGILE, FRAGILE], &[3, FRAGILE]];
    let many = (0..40).collect::<Vec<_>>();
    let mut refused = 0;
    for hook in [Hook::Clone, Hook::Hash, Hook::Eq] {
        for (keys, calls) in several
            .into_iter()
            .chain([&*many])
            .flat_map(|keys| (0..6).map(move |calls| (keys, calls)))
        {
            let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
            let probe = Probe::new();
            let op = probe.op(SOON);
            let keys = keys.iter().copied().map(Fragile);
            let parked = with_fuse_after(calls, FRAGILE, hook, || {
                purgatory.try_complete_else_watch(op, keys)
            });
            let parked = parked.expect("no panic goes to the caller");
            assert_eq!(probe.ending(), None);
            if let Err(rejected) = parked {
                refused += 1;
                assert_eq!(rejected.reason(), RejectReason::Panicked);
                let op = rejected.into_inner();
                let again = purgatory.try_complete_else_watch(op, [Fragile(OTHER)]);
                assert!(again.is_ok_and(|parked| parked.is_parked()));
            }
            purgatory.shutdown();
            assert_eq!(
                probe.ending(),
                Some(Completion::ShutDown),
                "{hook:?}, {calls} calls before"
            );
        }
    }
    assert!(refused >= 12, "{refused} parks met the panic");
}

/// An iterator of the caller's that panics is no reason to drop the operation either.
#[test]
fn g12_a_park_whose_iterator_panics_returns_the_operation() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
        let keys = (0..3).map(|number| match number {
            2 => std::panic::panic_any("intended"),
            number => Fragile(number),
        });
        let refused = purgatory.try_complete_else_watch(Op::new(SOON), keys);
        assert_eq!(refusal(&refused), Some(RejectReason::Panicked));
        assert_eq!(purgatory.stats().panicked, 1);
    });
}

thread_local!(static LIT: Cell<bool> = const { Cell::new(false) });

/// A key whose destructor panics also while the thread unwinds: of two such panics at once, the process dies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Bomb(u64);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!LIT.get(), "a key");
    }
}

/// Calls this while every key that is dropped on this thread panics.
fn lit<R>(call: impl FnOnce() -> R) -> thread::Result<R> {
    LIT.set(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    LIT.set(false);
    result
}

#[test]
fn g12_keys_whose_destructors_panic_are_dropped_one_by_one_after_a_storm() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<Bomb>(|builder| builder);
        let probes = [(); 300].map(|()| Probe::new());
        for (number, probe) in (0..).zip(&probes) {
            drop(purgatory.try_complete_else_watch(probe.op(SOON), [Bomb(number)]));
        }
        clock.advance(2 * SOON);
        let expired = lit(|| purgatory.advance());
        assert_eq!(expired.ok(), Some(probes.len()));
        let all = Some(Completion::Expired);
        assert!(probes.iter().all(|probe| probe.ending() == all));
        assert!(purgatory.stats().panicked > 0);
    });
}

type BombWatch<'a> = request_purgatory::Watch<'a, Op<Bomb>>;

/// All keys of an operation panic when they are dropped at its end, whichever end that is.
#[test]
fn g12_the_keys_of_one_operation_are_dropped_one_by_one_at_every_end() {
    type End = fn(&Purgatory<Op<Bomb>>, &Bomb);
    const ENDS: [(&str, End); 5] = [
        ("force", |all, key| _ = all.force_complete_for_key(key)),
        ("cancel", |all, key| drop(all.cancel_for_key(key))),
        ("check", |all, key| _ = all.check_and_complete(key)),
        ("expiry", |all, _| _ = all.advance()),
        ("shutdown", |all, _| all.shutdown()),
    ];
    for (name, end) in ENDS {
        for keys in 1..6 {
            for mixed in [false, true] {
                within(PATIENCE, move || {
                    let (purgatory, clock) = manual::<Bomb>(|builder| builder);
                    let probe = Probe::new();
                    let watches = (0..keys).map(|number| match mixed {
                        true => BombWatch::key(Bomb(number)).at_rank(number),
                        false => BombWatch::key(Bomb(number)),
                    });
                    let op = probe.op(SOON);
                    match mixed {
                        true => drop(purgatory.try_complete_else_watch_on(op, watches)),
                        false => {
                            drop(purgatory.try_complete_else_watch(op, (0..keys).map(Bomb)));
                        }
                    }
                    clock.advance(2 * SOON);
                    probe.satisfy();
                    let key = Bomb(0);
                    assert!(lit(|| end(&purgatory, &key)).is_ok(), "{name}, {keys} keys");
                    assert_eq!(probe.ending().is_some(), name != "cancel", "{name}");
                    assert_eq!((purgatory.len(), purgatory.watched()), (0, 0));
                    assert_eq!(purgatory.watched_keys(), 0);
                });
            }
        }
    }
}

/// The last of a resolved key are dropped together: the one in the map, and the one of its list.
#[test]
fn g12_a_resolved_key_whose_destructor_panics_costs_no_process() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Bomb>(|builder| builder);
        let key = purgatory.resolve(Bomb(1));
        let probe = Probe::new();
        let parked = purgatory.try_complete_else_watch_on(probe.op(SOON), [BombWatch::from(&key)]);
        let handle = parked.ok().and_then(|parked| parked.into_handle());
        drop(key);
        let handle = handle.expect("it cannot complete yet");
        assert!(lit(|| handle.force_complete()).is_ok());
        assert_eq!(probe.ending(), Some(Completion::Satisfied));
        assert_eq!((purgatory.len(), purgatory.watched_keys()), (0, 0));
    });
}

/// An operation that never parks leaves its keys: it has its completion or its error all the same.
#[test]
fn g12_an_operation_that_does_not_park_outlives_its_keys() {
    within(PATIENCE, || {
        for keys in 1..6 {
            let keys = || (0..keys).map(Bomb).collect::<Vec<_>>();
            let (purgatory, _clock) = manual::<Bomb>(|builder| builder.max_parked(0));
            let probe = Probe::new();
            probe.satisfy();
            let (op, watched) = (probe.op(SOON), keys());
            let at_once = lit(|| purgatory.try_complete_else_watch(op, watched));
            assert!(at_once.is_ok_and(|admitted| admitted.is_ok()));
            assert_eq!(probe.ending(), Some(Completion::Satisfied));
            let (op, watched) = (Op::new(SOON), keys());
            let refused = lit(|| purgatory.try_complete_else_watch(op, watched));
            let reason = refused.ok().and_then(|refused| refusal(&refused));
            assert_eq!(reason, Some(RejectReason::Full));
            purgatory.shutdown();
            let (op, watched) = (Op::new(SOON), keys());
            let refused = lit(|| purgatory.try_complete_else_watch(op, watched));
            let reason = refused.ok().and_then(|refused| refusal(&refused));
            assert_eq!(reason, Some(RejectReason::ShutDown));
        }
        // The second key is full: the first one's list is left, and the others were never watched.
        let (purgatory, _clock) = manual::<Bomb>(|builder| builder.max_watchers_per_key(1));
        drop(purgatory.try_complete_else_watch(Op::new(SOON), [Bomb(2)]));
        let (op, watched) = (Op::new(SOON), (1..6).map(Bomb).collect::<Vec<_>>());
        let refused = lit(|| purgatory.try_complete_else_watch(op, watched));
        let reason = refused.ok().and_then(|refused| refusal(&refused));
        assert_eq!(reason, Some(RejectReason::KeyFull));
        assert_eq!((purgatory.len(), purgatory.watched()), (1, 1));
        assert_eq!(purgatory.watched_keys(), 1);
    });
}

/// A panic of `Hash` or `Eq` costs the deferred check in which it happens, and none that comes later.
#[test]
fn g01_a_deferred_check_that_panicked_leaves_the_key_to_later_ones() {
    within(PATIENCE, || {
        for hook in [Hook::Hash, Hook::Eq] {
            for calls in 0..6 {
                let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
                let probe = Probe::new();
                let parked = purgatory
                    .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [Fragile(FRAGILE)]);
                assert!(parked.is_ok());
                purgatory.check_later(Fragile(FRAGILE));
                let advanced = with_fuse_after(calls, FRAGILE, hook, || purgatory.advance());
                assert!(advanced.is_ok(), "it is counted");
                probe.satisfy();
                purgatory.check_later(Fragile(FRAGILE));
                purgatory.advance();
                let satisfied = Some(Completion::Satisfied);
                assert_eq!(probe.ending(), satisfied, "{hook:?}, {calls} calls before");
                assert_eq!(purgatory.next_deadline(), None);
            }
        }
    });
}

/// The destructor of a key that panics does not cost the check that it was deferred for.
#[test]
fn g01_a_deferred_check_is_made_though_a_copy_of_its_key_panics_when_dropped() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Bomb>(|builder| builder);
        let probe = Probe::new();
        drop(purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [Bomb(1)]));
        purgatory.check_later(Bomb(1));
        probe.satisfy();
        assert!(lit(|| purgatory.advance()).is_ok(), "it is counted");
        assert_eq!(probe.ending(), Some(Completion::Satisfied));
    });
}

/// All lie in one map shard. `Hash` of a numbered one panics once when told to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Crowded(u32, Arc<Crowd>);

#[derive(Debug, Default)]
struct Crowd {
    panics: AtomicBool,
    panicked: AtomicBool,
    dropped: AtomicUsize,
}

impl PartialEq for Crowd {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Crowd {}

impl Hash for Crowded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let crowd = &self.1;
        if self.0 < 100 && crowd.panics.swap(false, Ordering::SeqCst) {
            crowd.panicked.store(true, Ordering::SeqCst);
            std::panic::panic_any("intended");
        }
        0_u64.hash(state);
    }
}

impl Drop for Crowded {
    fn drop(&mut self) {
        let dropped = self.0 < 100 && self.1.panicked.load(Ordering::SeqCst);
        self.1
            .dropped
            .fetch_add(usize::from(dropped), Ordering::SeqCst);
    }
}

/// Some places of a map shard are taken by removed entries when it has to make room, and `Hash` panics: no entry of
/// another key is dropped, and every operation is found by its key afterwards.
#[test]
fn g06_a_shard_that_cannot_make_room_keeps_its_entries() {
    within(PATIENCE, || {
        for living in [2, 6, 7, 8, 12, 13, 14, 20, 27, 28] {
            let (purgatory, _clock) = manual::<Crowded>(|builder| builder);
            let crowd = Arc::new(Crowd::default());
            let key = |number| Crowded(number, crowd.clone());
            let park = |number| {
                let op = Op::new(NEVER_IN_A_TEST).when(|| false);
                let parked = purgatory.try_complete_else_watch(op, [key(number)]);
                parked.ok().and_then(|parked| parked.into_handle())
            };
            let handles = (0..28).map(park).collect::<Vec<_>>();
            for handle in handles[living..].iter().flatten() {
                assert!(handle.cancel().is_some());
            }
            // New keys come and go until the shard makes room.
            for number in 100..200 {
                crowd.panics.store(true, Ordering::SeqCst);
                if let Some(handle) = park(number) {
                    crowd.panics.store(false, Ordering::SeqCst);
                    assert!(handle.cancel().is_some());
                }
            }
            crowd.panics.store(false, Ordering::SeqCst);
            assert_eq!(crowd.dropped.load(Ordering::SeqCst), 0, "of {living}");
            let found = (0..living as u32).filter(|number| purgatory.watchers(&key(*number)) == 1);
            assert_eq!(found.count(), living);
            purgatory.shutdown();
        }
    });
}

#[test]
fn g06_a_key_that_cannot_be_resolved_leaves_nothing() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Crowded>(|builder| builder);
        let crowd = Arc::new(Crowd::default());
        let key = |number| Crowded(number, crowd.clone());
        let park = |number| {
            let op = Op::new(NEVER_IN_A_TEST);
            let parked = purgatory.try_complete_else_watch(op, [key(number)]);
            parked.ok().and_then(|parked| parked.into_handle())
        };
        let handles = (0..28).map(park).collect::<Vec<_>>();
        let mut panics = 0;
        for number in 100..200 {
            crowd.panics.store(true, Ordering::SeqCst);
            let resolve = || drop(purgatory.resolve(key(number)));
            panics += usize::from(catch_unwind(AssertUnwindSafe(resolve)).is_err());
        }
        crowd.panics.store(false, Ordering::SeqCst);
        assert!(panics > 50, "{panics} panics");
        for handle in handles.into_iter().flatten() {
            assert!(handle.cancel().is_some());
        }
        assert_eq!(purgatory.watched_keys(), 0);
        // The test's own reference, and none of a key.
        assert_eq!(Arc::strong_count(&crowd), 1);
    });
}
