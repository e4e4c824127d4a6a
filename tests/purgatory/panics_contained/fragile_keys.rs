//! G12 for keys: what a panic of `Hash`, `Eq`, `Clone` or `Drop` of a key may cost. It goes to the caller, or is
//! counted where an operation has ended. Afterwards no lock is held, no operation that has ended lacks its callback,
//! and each that is still parked ends at its timeout. (A dead entry may stay in a list.)

use crate::support::keys::{
    Fragile, Hook, fragile, fragile_keys, with_fuse_after, with_one_panic_after,
};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, manual, refusal, within};
use request_purgatory::{
    CheckBound, Completion, Handle, Purgatory, ResolvedKey, purgatory::RejectReason,
    time::ManualClock,
};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

type Watch<'a> = request_purgatory::Watch<'a, Fragile>;

const SOON: Duration = Duration::from_secs(1);

/// The key that panics; every operation watches it, and `OTHER`.
const FRAGILE: u32 = 1;
const OTHER: u32 = 2;

struct Scene {
    purgatory: Purgatory<Op<Fragile>>,
    clock: ManualClock,
    key: Option<ResolvedKey<Op<Fragile>>>,
    probes: Vec<Arc<Probe>>,
    handle: Handle<Op<Fragile>>,
}

impl Scene {
    /// So many watchers, of all kinds.
    fn new(watchers: u64) -> Self {
        let (purgatory, clock) = manual::<Fragile>(|builder| builder);
        let key = purgatory.resolve(fragile(FRAGILE));
        let mut handle = None;
        let probes = (0..watchers).map(|number| {
            let probe = Probe::new();
            let watch = match number % 3 {
                0 => Watch::from(fragile(FRAGILE)),
                1 => Watch::from(fragile(FRAGILE)).at_rank(number),
                _ => key.watch(),
            };
            let watches = [watch, Watch::from(fragile(OTHER))];
            let parked = purgatory.try_complete_else_watch(probe.op(SOON), watches);
            handle = parked.expect("there is room").into_handle();
            probe
        });
        Self {
            probes: probes.collect(),
            handle: handle.expect("it cannot complete yet"),
            purgatory,
            clock,
            key: Some(key),
        }
    }

    fn satisfy(&self) -> &Purgatory<Op<Fragile>> {
        self.probes.iter().for_each(|probe| probe.satisfy());
        &self.purgatory
    }

    fn park(&self, keys: impl IntoIterator<Item = u32>) {
        let keys = keys.into_iter().map(fragile);
        drop(self.purgatory.try_complete_else_watch(Op::new(SOON), keys));
    }

    fn resolved(&self) -> &ResolvedKey<Op<Fragile>> {
        self.key.as_ref().expect("it is not released")
    }
}

/// A call. Returns how many operations it took back.
type Call = fn(&mut Scene) -> usize;

/// Of a call that takes none back.
macro_rules! call {
    (|$scene:ident| $call:expr) => {
        |$scene: &mut Scene| {
            _ = $call;
            0
        }
    };
}

const CALLS: [(&str, Call); 24] = [
    (
        "resolve",
        call!(|scene| (
            scene.resolved().clone(),
            scene.purgatory.resolve(fragile(FRAGILE)),
            scene.purgatory.resolve(fragile(3)),
        )),
    ),
    (
        "release",
        call!(|scene| (scene.key.take(), scene.satisfy()).0),
    ),
    // The last watcher finds the key resolved no more, and retires its list.
    ("retire", |scene| {
        scene.key = None;
        scene.purgatory.cancel_for_key(&fragile(OTHER)).len()
    }),
    ("park", call!(|scene| scene.park([OTHER, 3, FRAGILE]))),
    ("park on many keys", call!(|scene| scene.park(0..40))),
    (
        "park on a resolved key",
        call!(|scene| {
            let watches = [scene.resolved().watch(), Watch::from(fragile(FRAGILE))];
            scene
                .purgatory
                .try_complete_else_watch(Op::new(SOON), watches)
        }),
    ),
    (
        "check",
        call!(|scene| scene.satisfy().check_and_complete(&fragile(FRAGILE))),
    ),
    (
        "check of the other key",
        call!(|scene| scene.satisfy().check_and_complete(&fragile(OTHER))),
    ),
    (
        "check of the resolved key",
        call!(|scene| {
            scene.satisfy();
            scene.resolved().check_and_complete()
        }),
    ),
    (
        "bounded check",
        call!(|scene| {
            let bound = CheckBound::at_most(2).up_to(3);
            scene
                .satisfy()
                .check_and_complete_with(&fragile(FRAGILE), bound)
        }),
    ),
    (
        "check of several keys",
        call!(|scene| {
            let keys = [fragile(OTHER), fragile(FRAGILE)];
            scene.satisfy().check_and_complete_all(&keys)
        }),
    ),
    (
        "check of the keys that",
        call!(|scene| scene.satisfy().check_where(|key| key.0 == FRAGILE)),
    ),
    (
        "check later",
        call!(|scene| {
            scene.satisfy().check_later(fragile(FRAGILE));
            scene.purgatory.check_later(fragile(FRAGILE));
            scene.purgatory.advance()
        }),
    ),
    (
        "check by handle",
        call!(|scene| {
            scene.satisfy();
            scene.handle.check()
        }),
    ),
    (
        "force",
        call!(|scene| scene.purgatory.force_complete_for_key(&fragile(OTHER))),
    ),
    (
        "force with a cause",
        call!(|scene| {
            let key = fragile(FRAGILE);
            scene.purgatory.force_complete_for_key_with(&key, |_| ())
        }),
    ),
    (
        "force by handle",
        call!(|scene| scene.handle.force_complete()),
    ),
    ("cancel", |scene| {
        scene.purgatory.cancel_for_key(&fragile(OTHER)).len()
    }),
    ("cancel by handle", |scene| {
        scene.handle.cancel().into_iter().count()
    }),
    ("snapshot", call!(|scene| scene.purgatory.snapshot())),
    (
        "count",
        call!(|scene| {
            scene.purgatory.watched_keys() + scene.purgatory.watchers(&fragile(FRAGILE))
        }),
    ),
    (
        "expiry",
        call!(|scene| {
            scene.clock.advance(2 * SOON);
            scene.purgatory.advance()
        }),
    ),
    (
        "drain",
        call!(|scene| {
            scene.purgatory.check_later(fragile(FRAGILE));
            scene.clock.advance(2 * SOON);
            scene.purgatory.drain(Duration::ZERO)
        }),
    ),
    (
        "shutdown",
        call!(|scene| {
            scene.purgatory.check_later(fragile(FRAGILE));
            scene.purgatory.shutdown();
            assert!(scene.purgatory.is_empty());
        }),
    ),
];

const HOOKS: [Hook; 4] = [Hook::Clone, Hook::Hash, Hook::Eq, Hook::Drop];

/// From a call of the hook on, every one panics. There is more than one slice of watchers: their expiry is a storm.
#[test]
fn g12_a_key_that_panics_in_any_call_costs_no_operation_its_ending() {
    within(PATIENCE, || {
        for hook in HOOKS {
            for (name, call) in CALLS {
                for calls in [0, 1, 2, 5, 70] {
                    let mut scene = Scene::new(72);
                    let returned = with_fuse_after(calls, FRAGILE, hook, || call(&mut scene));
                    assert_all_end(
                        scene,
                        returned,
                        &format!("{hook:?}, {calls} before, {name}"),
                    );
                }
            }
        }
    });
}

/// Each call of each hook panics once, by itself: besides the endings, nothing of the library's stays behind.
#[test]
fn g12_no_call_of_a_key_that_panics_leaks() {
    within(PATIENCE, || {
        for hook in HOOKS {
            let mut panics = 0;
            for (name, call) in CALLS {
                for calls in 0.. {
                    let mut scene = Scene::new(6);
                    let made = with_one_panic_after(calls, FRAGILE, hook, || call(&mut scene));
                    let Some(returned) = made else { break };
                    panics += 1;
                    let what = format!("{hook:?}, {calls} before, {name}");
                    let probes = assert_all_end(scene, returned, &what);
                    assert_eq!(fragile_keys(), 0, "{what}");
                    assert!(
                        probes.iter().all(|probe| Arc::strong_count(probe) == 1),
                        "{what}"
                    );
                }
            }
            assert!(panics >= 8, "{hook:?} panicked in {panics} calls");
        }
    });
}

/// The places of several keys are retired after one pass. A panic on the way costs one key its place, and no other.
#[test]
fn g12_a_key_that_panics_while_it_is_retired_keeps_no_other() {
    for hook in [Hook::Hash, Hook::Eq] {
        for key in 0..5 {
            let (purgatory, clock) = manual::<Fragile>(|builder| builder);
            for key in 0..5 {
                let key = purgatory.resolve(fragile(key));
                let parked = purgatory.try_complete_else_watch(Op::new(SOON), [key.watch()]);
                assert!(parked.is_ok(), "there is room");
            }
            assert_eq!(purgatory.watched_keys(), 5);
            clock.advance(SOON);
            let advanced = with_one_panic_after(0, key, hook, || purgatory.advance());
            let panicked = advanced.is_some_and(|advanced| matches!(advanced, Ok(5)));
            assert_eq!(
                panicked,
                purgatory.stats().panicked == 1,
                "{hook:?} of {key}"
            );
            // One is in the map, one in the place.
            let kept = 2 * usize::from(panicked);
            assert_eq!(fragile_keys(), kept, "{hook:?} of {key}");
        }
    }
}

/// Nor does one while operations are taken off their lists, one alone or several together, be it once or each time: what
/// an operation watches beside it is left, however many keys these are.
#[test]
fn g12_a_key_that_panics_while_operations_are_reclaimed_keeps_no_other() {
    /// What panics, whether it does for good, the other keys, and how many operations there are.
    type Row = (Hook, bool, &'static [u32], usize);
    const ROWS: [Row; 7] = [
        (Hook::Eq, false, &[OTHER], 3),
        (Hook::Hash, false, &[OTHER], 3),
        (Hook::Hash, true, &[OTHER], 1),
        (Hook::Hash, true, &[OTHER], 3),
        (Hook::Hash, true, &[3, OTHER], 3),
        (Hook::Hash, true, &[3, 4, OTHER], 1),
        (Hook::Hash, true, &[3, 4, OTHER], 3),
    ];
    for (hook, for_good, others, operations) in ROWS {
        for calls in 0..8 {
            let (purgatory, clock) = manual::<Fragile>(|builder| builder);
            for _ in 0..operations {
                let keys = [&[FRAGILE], others].concat().into_iter().map(fragile);
                let parked = purgatory.try_complete_else_watch(Op::new(SOON), keys);
                assert!(parked.is_ok(), "there is room");
            }
            clock.advance(SOON);
            let expire = || purgatory.advance();
            let expired = match for_good {
                true => Some(with_fuse_after(calls, FRAGILE, hook, expire)),
                false => with_one_panic_after(calls, FRAGILE, hook, expire),
            };
            assert!(expired.is_none_or(|expired| expired.is_ok_and(|all| all == operations)));
            let left = others.iter().map(|key| purgatory.watchers(&fragile(*key)));
            let left = left.collect::<Vec<_>>();
            assert!(
                left.iter().all(|left| *left == 0),
                "{left:?}, {hook:?}, {calls} before"
            );
        }
    }
}

/// What was examined before counts, in a check of several keys.
#[test]
fn g16_a_check_that_ends_in_a_panic_counts_what_it_examined() {
    let (purgatory, _clock) = manual::<Fragile>(|builder| builder);
    for _ in 0..3 {
        let parked = purgatory.try_complete_else_watch(Op::new(SOON), [fragile(OTHER)]);
        assert!(parked.is_ok());
    }
    let keys = [fragile(OTHER), fragile(FRAGILE)];
    let check = || purgatory.check_and_complete_all(&keys);
    let checked = with_one_panic_after(0, FRAGILE, Hook::Hash, check);
    assert!(
        checked.is_some_and(|checked| checked.is_err()),
        "it goes to the caller"
    );
    assert_eq!(purgatory.stats().checks, 3);
}

fn assert_all_end(scene: Scene, returned: thread::Result<usize>, what: &str) -> Vec<Arc<Probe>> {
    let Scene {
        purgatory,
        clock,
        probes,
        key,
        handle,
    } = scene;
    // No lock is held: operations are parked on both keys and found there.
    for number in [FRAGILE, OTHER] {
        let probe = Probe::new();
        let parked =
            purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [fragile(number)]);
        if let Some(RejectReason::Draining | RejectReason::ShutDown) = refusal(&parked) {
            continue;
        }
        assert!(parked.is_ok_and(|parked| parked.is_parked()));
        probe.satisfy();
        purgatory.check_and_complete(&fragile(number));
        assert_eq!(probe.ending(), Some(Completion::Satisfied), "{what}");
    }
    clock.advance(4 * SOON);
    purgatory.advance();
    let stats = purgatory.stats();
    assert_eq!((stats.parked, stats.watched), (0, 0), "{what}");
    let ended = probes.iter().filter(|probe| probe.ending().is_some());
    let returned = returned.unwrap_or(0);
    assert_eq!(ended.count() + returned, probes.len(), "{what}");
    drop(key);
    purgatory.shutdown();
    drop((purgatory, handle));
    probes
}

/// An iterator of the caller's that has ended is not asked again, whether it has named a key twice or not.
#[test]
fn g12_a_park_asks_an_iterator_no_more_that_has_ended() {
    let (purgatory, _clock) = manual::<u32>(|builder| builder);
    for (count, keys) in (1..7).flat_map(|count| [(count, 1), (count, 9)]) {
        let mut keys = (0..count).map(|number| Some(number % keys)).chain([None]);
        let keys = std::iter::from_fn(|| keys.next().expect("it has ended"));
        let parked = purgatory.try_complete_else_watch(Op::new(SOON), keys);
        assert_eq!(refusal(&parked), None, "{count} keys");
    }
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
                    .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [fragile(FRAGILE)]);
                assert!(parked.is_ok());
                purgatory.check_later(fragile(FRAGILE));
                let advanced = with_fuse_after(calls, FRAGILE, hook, || purgatory.advance());
                assert!(advanced.is_ok(), "it is counted");
                probe.satisfy();
                purgatory.check_later(fragile(FRAGILE));
                purgatory.advance();
                let satisfied = Some(Completion::Satisfied);
                assert_eq!(probe.ending(), satisfied, "{hook:?}, {calls} calls before");
                assert_eq!(purgatory.next_deadline(), None);
            }
        }
    });
}
