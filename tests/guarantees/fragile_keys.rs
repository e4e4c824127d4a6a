//! G12 for keys: what a panic of `Hash`, `Eq`, `Clone` or `Drop` of a key may cost. It goes to the caller, or is
//! counted where an operation has ended. Afterwards no lock is held, no operation that has ended lacks its callback,
//! and each that is still parked ends at its timeout. (A dead entry may stay in a list.)

use crate::support::keys::{Fragile, Hook, with_fuse_after};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, manual, refusal, within};
use request_purgatory::{
    Completion, Handle, Purgatory, ResolvedKey, purgatory::RejectReason, time::ManualClock,
};
use std::sync::Arc;
use std::time::Duration;

type Watch<'a> = request_purgatory::Watch<'a, Fragile>;

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
                0 => Watch::from(Fragile(FRAGILE)),
                1 => Watch::from(Fragile(FRAGILE)).at_rank(number),
                _ => key.watch(),
            };
            let watches = [watch, Watch::from(Fragile(OTHER))];
            let parked = purgatory.try_complete_else_watch(probe.op(SOON), watches);
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

const CALLS: [(&str, Call); 14] = [
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
        let watches = [scene.key.watch(), Watch::from(Fragile(FRAGILE))];
        drop(
            scene
                .purgatory
                .try_complete_else_watch(Op::new(SOON), watches),
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
        (purgatory.stats().parked, purgatory.stats().watched),
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
