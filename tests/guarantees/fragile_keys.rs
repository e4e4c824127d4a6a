//! G12 for keys: what a panic of `Hash`, `Eq`, `Clone` or `Drop` of a key may cost. It goes to the caller, or is counted
//! where an operation has ended. Afterwards no lock is held, no operation that has ended lacks its callback, and each
//! that is still parked ends at its timeout. (A dead entry may stay in a list.)

use crate::support::keys::{Fragile, Hook, with_fuse_after};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, manual, within};
use request_purgatory::{Completion, Handle, Purgatory, ResolvedKey, time::ManualClock};
use std::sync::Arc;
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

/// Of two panics at once, the process would die.
#[test]
fn g12_keys_whose_destructors_panic_are_dropped_one_by_one_after_a_storm() {
    use std::cell::Cell;

    thread_local!(static LIT: Cell<bool> = const { Cell::new(false) });

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Bomb(u64);

    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(!LIT.get(), "a key");
        }
    }

    within(PATIENCE, || {
        let (purgatory, clock) = manual::<Bomb>(|builder| builder);
        let probes = [(); 300].map(|()| Probe::new());
        for (number, probe) in (0..).zip(&probes) {
            drop(purgatory.try_complete_else_watch(probe.op(SOON), [Bomb(number)]));
        }
        clock.advance(2 * SOON);
        LIT.set(true);
        let expired = purgatory.advance();
        LIT.set(false);
        assert_eq!(expired, probes.len());
        let all = Some(Completion::Expired);
        assert!(probes.iter().all(|probe| probe.ending() == all));
        assert!(purgatory.stats().panicked > 0);
    });
}
