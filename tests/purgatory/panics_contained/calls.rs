//! G12: the calls of a purgatory in one table, and a panic of a key, an examination or a completion in any of them. It
//! goes to the caller, or is counted where an operation has ended. Afterwards no lock is held, no operation that has
//! ended lacks its callback, and each that is still parked ends at its timeout. (A dead entry may stay in a list.)

use crate::chains::scene::Breaks;
use crate::lost_completion::steps::watches;
use crate::support::keys::{Acting, Hook, fragile, fragile_keys};
use crate::support::keys::{with_fuse_after, with_one_panic_after};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, manual, refusal, within};
use request_purgatory::{CheckBound, Completion, Handle, Purgatory, ResolvedKey};
use request_purgatory::{purgatory::RejectReason, time::ManualClock};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

type Watch<'a> = request_purgatory::Watch<'a, Key>;

pub(super) const SOON: Duration = Duration::from_secs(1);

/// The key that panics. Every operation watches it, and `OTHER`.
pub(super) const FRAGILE: u32 = 1;
pub(super) const OTHER: u32 = 2;
/// A key that no operation watches before the call.
const NEW: u32 = 3;
/// Each operation clones this when it is examined, and that when it is completed.
const EXAMINED: u32 = 101;
const COMPLETED: u32 = 102;
/// How many operations there may be.
const ROOM: usize = 100;

/// What panics: the hook of the key with this number.
const SOURCES: [(Hook, u32); 7] = [
    (Hook::Clone, FRAGILE),
    (Hook::Clone, NEW),
    (Hook::Hash, FRAGILE),
    (Hook::Eq, FRAGILE),
    (Hook::Drop, FRAGILE),
    (Hook::Clone, EXAMINED),
    (Hook::Clone, COMPLETED),
];

/// A key whose hooks panic when told to, and that may do something when it is dropped.
pub(super) type Key = Breaks<Acting>;

pub(super) fn key(number: u32) -> Key {
    Breaks(fragile(number), Acting(0, None))
}

fn bad() -> Key {
    key(FRAGILE)
}

fn other() -> Key {
    key(OTHER)
}

/// A purgatory with operations on both keys.
pub(super) struct Scene {
    pub(super) all: Purgatory<Op<Key>>,
    clock: ManualClock,
    key: Option<ResolvedKey<Op<Key>>>,
    pub(super) probes: Vec<Arc<Probe>>,
    /// Of the last operation.
    handle: Option<Handle<Op<Key>>>,
    /// How many operations the call took back.
    pub(super) taken: usize,
    /// Of what the call parks.
    own: Arc<Probe>,
}

impl Scene {
    /// So many operations. `other` makes a key of theirs.
    pub(super) fn new(operations: usize, other: impl Fn(&Purgatory<Op<Key>>) -> Key) -> Self {
        let (all, clock) = manual::<Key>(|builder| builder.max_parked(ROOM));
        let resolved = all.resolve(bad());
        let (mut probes, mut handle) = (Vec::new(), None);
        for number in 0..operations {
            let probe = Probe::new();
            let (examining, ending) = (probe.clone(), probe.clone());
            let (examined, completed) = (fragile(EXAMINED), fragile(COMPLETED));
            let op = Op::new(SOON)
                .when(move || {
                    drop(examined.clone());
                    examining.is_ready()
                })
                .then(move |completion| {
                    ending.end(completion);
                    drop(completed.clone());
                });
            let watch = match number % 3 {
                0 => Watch::from(bad()),
                1 => Watch::from(bad()).at_rank(number as u64),
                _ => resolved.watch(),
            };
            let watches = [watch, Watch::from(other(&all))];
            let parked = all.try_complete_else_watch(op, watches);
            handle = parked.expect("there is room").into_handle();
            probes.push(probe);
        }
        // Checks that wait to be made.
        for number in [FRAGILE, OTHER, 4] {
            all.check_later(key(number));
        }
        Self {
            all,
            clock,
            key: Some(resolved),
            probes,
            handle,
            taken: 0,
            own: Probe::new(),
        }
    }

    fn satisfy(&self) -> &Purgatory<Op<Key>> {
        self.probes.iter().for_each(|probe| probe.satisfy());
        &self.all
    }

    fn resolved(&self) -> &ResolvedKey<Op<Key>> {
        self.key.as_ref().expect("it is not released")
    }

    fn handle(&self) -> &Handle<Op<Key>> {
        self.handle.as_ref().expect("the last one is parked")
    }

    fn park<'a>(&self, watches: impl IntoIterator<Item = Watch<'a>>) {
        let op = self.own.op(SOON / 2);
        drop(self.all.try_complete_else_watch(op, watches));
    }

    fn expire(&self) {
        self.clock.advance(2 * SOON);
        self.all.advance();
    }

    pub(super) fn endings(&self) -> impl Iterator<Item = Option<Completion>> {
        self.probes.iter().map(|probe| probe.ending())
    }
}

pub(super) type Call = fn(&mut Scene);

pub(super) const CALLS: [(&str, Call); 27] = [
    ("resolve", |it| {
        let resolved = (it.resolved().clone(), it.all.resolve(bad()));
        drop((resolved, it.all.resolve(key(NEW))));
    }),
    ("release", |it| {
        it.satisfy();
        it.key = None;
    }),
    // The last watcher finds the key resolved no more, and retires its list.
    ("retire", |it| {
        it.key = None;
        it.taken = it.all.cancel_for_key(&other()).len();
    }),
    ("retire by expiry", |it| {
        it.key = None;
        it.expire();
    }),
    ("park", |it| it.park([OTHER, NEW, FRAGILE].map(watch))),
    ("park on many keys", |it| it.park((0..40).map(watch))),
    ("park at a rank", |it| {
        let numbers = [NEW, OTHER, 4, FRAGILE, FRAGILE];
        it.park(numbers.map(|number| watch(number).at_rank(5)));
    }),
    ("park on a resolved key", |it| {
        it.park([it.resolved().watch(), Watch::from(bad())]);
    }),
    ("check", |it| _ = it.satisfy().check_and_complete(&bad())),
    ("check of the other key", |it| {
        it.satisfy().check_and_complete(&other());
    }),
    ("check of the resolved key", |it| {
        it.satisfy();
        it.resolved().check_and_complete();
    }),
    ("bounded check", |it| {
        let bound = CheckBound::at_most(2).up_to(3);
        it.satisfy().check_and_complete_with(&bad(), bound);
    }),
    ("check of several keys", |it| {
        it.satisfy().check_and_complete_all(&[other(), bad()]);
    }),
    ("check of the keys that", |it| {
        it.satisfy().check_where(|key| key.0.0 == FRAGILE);
    }),
    ("check later", |it| {
        it.satisfy().check_later(bad());
        it.all.check_later(key(NEW));
    }),
    ("check by handle", |it| {
        it.satisfy();
        it.handle().check();
    }),
    ("force", |it| _ = it.all.force_complete_for_key(&other())),
    ("force with a cause", |it| {
        it.all.force_complete_for_key_with(&bad(), |_| ());
    }),
    ("force by handle", |it| _ = it.handle().force_complete()),
    ("cancel", |it| {
        it.taken = it.all.cancel_for_key(&other()).len();
    }),
    ("cancel by handle", |it| {
        it.taken = it.handle().cancel().into_iter().count();
    }),
    ("snapshot", |it| drop(it.all.snapshot())),
    ("count", |it| {
        _ = it.all.watched_keys() + it.all.watchers(&bad());
    }),
    ("advance", |it| _ = it.satisfy().advance()),
    ("expiry", |it| it.expire()),
    ("drain", |it| {
        it.clock.advance(2 * SOON);
        it.all.drain(Duration::ZERO);
    }),
    ("shutdown", |it| {
        it.all.shutdown();
        assert!(it.all.is_empty());
    }),
];

fn watch(number: u32) -> Watch<'static> {
    Watch::from(key(number))
}

/// These calls have no key of the caller's.
const DRIVING: [&str; 4] = ["advance", "expiry", "drain", "shutdown"];

/// From a call of the hook on, every one panics. There is more than one slice of watchers: their expiry is a storm.
#[test]
fn g12_a_hook_that_panics_in_any_call_costs_no_operation_its_ending() {
    within(PATIENCE, || {
        for (hook, number) in SOURCES {
            for (name, call) in CALLS {
                for calls in [0, 1, 2, 5, 70] {
                    let what = format!("{name}, {hook:?} of {number}, {calls} before");
                    let mut scene = Scene::new(72, |_| other());
                    let returned = with_fuse_after(calls, number, hook, || call(&mut scene));
                    assert!(returned.is_ok() || !DRIVING.contains(&name), "{what}");
                    assert_all_end(scene, &returned, &what);
                }
            }
        }
    });
}

/// Each call of each hook panics once, by itself: besides the endings, nothing of the library's stays behind. The panic
/// of a key in the caller's own park unwinds. That of an operation's hook is contained, and so is each where the timer
/// is driven: the other operations end as they do without it.
#[test]
fn g12_no_call_in_which_a_hook_panics_leaks() {
    within(PATIENCE, || {
        for (hook, number) in SOURCES {
            let mut panics = 0;
            for (name, call) in CALLS {
                let mut calm = Scene::new(6, |_| other());
                call(&mut calm);
                let keys = fragile_keys();
                for calls in 0.. {
                    let mut scene = Scene::new(6, |_| other());
                    let made = with_one_panic_after(calls, number, hook, || call(&mut scene));
                    let Some(returned) = made else { break };
                    panics += 1;
                    let what = format!("{name}, {hook:?} of {number}, {calls} before");
                    let of_operation = number >= EXAMINED;
                    let aborted = usize::from(number == EXAMINED);
                    if of_operation || DRIVING.contains(&name) {
                        assert!(returned.is_ok(), "{what}: it is contained");
                    }
                    if of_operation {
                        let stats = scene.all.stats();
                        let counted = (stats.panicked, stats.aborted);
                        assert_eq!(counted, (1, aborted as u64), "{what}");
                    }
                    if returned.is_ok() && !matches!(hook, Hook::Hash | Hook::Eq) {
                        let both = scene.endings().zip(calm.endings());
                        let differ = both.filter(|(ending, calm)| calm.is_some() && ending != calm);
                        assert!(differ.count() <= aborted, "{what}: it costs others");
                    }
                    if name.starts_with("park") && !of_operation && hook != Hook::Drop {
                        assert!(returned.is_err(), "{what}: it does not go to the caller");
                        assert_untouched(&scene, &what);
                    }
                    let probes = assert_all_end(scene, &returned, &what);
                    assert_eq!(fragile_keys(), keys, "{what}");
                    let owners = probes.iter().map(Arc::strong_count);
                    assert_eq!(owners.max(), Some(1), "{what}");
                }
            }
            assert!(panics >= 4, "{hook:?} of {number}: {panics} panics");
        }
    });
}

/// A park has left nothing.
fn assert_untouched(scene: &Scene, what: &str) {
    assert_eq!(Arc::strong_count(&scene.own), 1, "{what}: the operation");
    let before = scene.probes.len();
    let found = (scene.all.stats().parked, watches(&scene.all));
    assert_eq!(found, (before, (2 * before, 2)), "{what}");
    for number in [FRAGILE, OTHER] {
        assert_eq!(scene.all.watchers(&key(number)), before, "{what}: {number}");
    }
    // What is next, once the deferred checks are made.
    let next = |scene: &Scene| (scene.all.advance(), scene.all.next_deadline());
    let calm = next(&Scene::new(before, |_| other()));
    assert_eq!(next(scene), calm, "{what}: a timer");
    let park = || scene.all.try_complete_else_watch(Op::new(SOON), [key(NEW)]);
    let free = std::iter::from_fn(|| park().ok()).count();
    assert_eq!(before + free, ROOM, "{what}: a permit");
    assert_eq!(scene.all.cancel_for_key(&key(NEW)).len(), free, "{what}");
}

/// Returns what has heard of the endings. A call that unwound has taken no operation back, and aborted at most its own.
pub(super) fn assert_all_end(
    mut scene: Scene,
    returned: &thread::Result<()>,
    what: &str,
) -> Vec<Arc<Probe>> {
    // No lock is held: operations are parked on both keys and found there, by either kind of check.
    for (number, later) in [(FRAGILE, false), (FRAGILE, true), (OTHER, true)] {
        let probe = Probe::new();
        let op = probe.op(NEVER_IN_A_TEST);
        let parked = scene.all.try_complete_else_watch(op, [key(number)]);
        if let Some(RejectReason::Draining | RejectReason::ShutDown) = refusal(&parked) {
            continue;
        }
        assert!(parked.is_ok_and(|parked| parked.is_parked()), "{what}");
        probe.satisfy();
        match later {
            true => scene.all.check_later(key(number)),
            false => _ = scene.all.check_and_complete(&key(number)),
        }
        scene.all.advance();
        assert_eq!(probe.ending(), Some(Completion::Satisfied), "{what}");
    }
    scene.expire();
    let stats = scene.all.stats();
    assert_eq!((stats.parked, stats.watched), (0, 0), "{what}");
    assert_eq!(scene.all.next_deadline(), None, "{what}");
    let ended = scene.endings().flatten().count();
    let gone = scene.taken + stats.aborted as usize;
    let gone = returned.as_ref().map_or(0, |()| gone);
    assert_eq!(ended + gone, scene.probes.len(), "{what}");
    scene.key = None;
    scene.all.shutdown();
    scene.probes
}
