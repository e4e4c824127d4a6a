//! G12: a panic of the caller's own code in a park, at whatever stage, unwinds to that caller, and the park leaves no
//! watch, timer, permit or operation behind.

use crate::support::keys::{Fragile, Hook, fragile, with_one_panic_after};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Tally, quietly, refusal, within};
use request_purgatory::purgatory::{Cause, RejectReason};
use request_purgatory::threads::Reaper;
use request_purgatory::time::{Clock, ManualClock, Timestamp};
use request_purgatory::{Completion, DelayedOperation, Purgatory, Waits};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(1);
const FRAGILE: u32 = 1;

/// Where the code of the caller panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Iterator,
    FirstExamination,
    Arrival,
    Timeout,
    Clock,
    SecondExamination,
    /// The one that another thread has asked for during the park.
    MarkedExamination,
    Nowhere,
}

const STAGES: [Stage; 7] = [
    Stage::Iterator,
    Stage::FirstExamination,
    Stage::Arrival,
    Stage::Timeout,
    Stage::Clock,
    Stage::SecondExamination,
    Stage::MarkedExamination,
];

/// The payload of the panics.
const INTENDED: &str = "intended";

/// An operation of which one hook panics. It counts those that exist.
struct Staged {
    stage: Stage,
    examinations: u32,
    purgatory: Option<Purgatory<Self>>,
    _alive: Arc<()>,
}

impl Staged {
    fn at(&self, stage: Stage) {
        if self.stage == stage {
            panic_any(INTENDED);
        }
    }
}

impl DelayedOperation for Staged {
    type Key = u32;

    fn timeout(&self) -> Duration {
        self.at(Stage::Timeout);
        SOON
    }

    fn arrival(&self) -> Option<Timestamp> {
        self.at(Stage::Arrival);
        None
    }

    fn try_complete(&mut self) -> bool {
        self.examinations += 1;
        match self.examinations {
            1 => self.at(Stage::FirstExamination),
            2 => {
                self.at(Stage::SecondExamination);
                if self.stage == Stage::MarkedExamination {
                    let purgatory = self.purgatory.take().expect("it is examined once so");
                    let checker = thread::spawn(move || purgatory.check_and_complete(&1));
                    assert_eq!(checker.join().expect("it only checks"), 0);
                }
            }
            _ => self.at(Stage::MarkedExamination),
        }
        false
    }

    fn on_complete(self, _: Completion) {}
}

/// Stands still, and panics when told to.
#[derive(Clone)]
struct Alarming(ManualClock, Arc<AtomicBool>);

impl Clock for Alarming {
    fn now(&self) -> Timestamp {
        if self.1.load(Ordering::SeqCst) {
            panic_any(INTENDED);
        }
        self.0.now()
    }
}

#[test]
fn g12_a_park_that_panics_at_any_stage_unwinds_and_leaves_nothing() {
    within(PATIENCE, || {
        quietly();
        for stage in STAGES {
            let clock = Alarming(ManualClock::new(), Arc::default());
            let alarm = clock.1.clone();
            let purgatory = Purgatory::<Staged>::builder("g12-stages")
                .clock(clock)
                .reaper(Reaper::Manual)
                .max_parked(1)
                .build()
                .expect("no threads to refuse");
            let alive = Arc::new(());
            let op = |stage| Staged {
                stage,
                examinations: 0,
                purgatory: Some(purgatory.clone()),
                _alive: alive.clone(),
            };
            for round in 1..4 {
                let keys = (1..4).inspect(|key| {
                    if (*key, stage) == (3, Stage::Iterator) {
                        panic_any(INTENDED);
                    }
                });
                alarm.store(stage == Stage::Clock, Ordering::SeqCst);
                let park = || purgatory.try_complete_else_watch(op(stage), keys);
                let unwound = catch_unwind(AssertUnwindSafe(park));
                alarm.store(false, Ordering::SeqCst);
                let payload = unwound.expect_err("it goes to the caller");
                assert_eq!(payload.downcast_ref(), Some(&INTENDED), "{stage:?}");
                assert_eq!(Arc::strong_count(&alive), 1, "{stage:?}: the operation");
                let stats = purgatory.stats();
                assert_eq!((stats.parked, stats.watched), (0, 0), "{stage:?}");
                // It is the caller's own, so it is not counted among those that the library has contained.
                assert_eq!((stats.panicked, stats.rejected), (0, 0), "{stage:?}");
                let has_parked =
                    matches!(stage, Stage::SecondExamination | Stage::MarkedExamination);
                assert_eq!(stats.aborted, round * u64::from(has_parked), "{stage:?}");
                assert_eq!(purgatory.watched_keys(), 0, "{stage:?}: a watch");
                assert_eq!(purgatory.next_deadline(), None, "{stage:?}: a timer");
            }
            // The permit is there, and there is one.
            let parked = purgatory.try_complete_else_watch(op(Stage::Nowhere), [1]);
            assert!(parked.is_ok_and(|parked| parked.is_parked()), "{stage:?}");
            let refused = purgatory.try_complete_else_watch(op(Stage::Nowhere), [1]);
            assert_eq!(refusal(&refused), Some(RejectReason::Full), "{stage:?}");
            purgatory.shutdown();
        }
    });
}

type Key<'a> = request_purgatory::Watch<'a, Fragile>;

/// A purgatory in which others watch all keys already, so that every hook of a key is called.
fn watched() -> (Purgatory<Op<Fragile>>, ManualClock) {
    let clock = ManualClock::new();
    let purgatory = Purgatory::<Op<Fragile>>::builder("g12-keys")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .max_parked(41)
        .build()
        .expect("no threads to refuse");
    for number in 0..40 {
        let resident = Op::new(Duration::MAX);
        let parked = purgatory.try_complete_else_watch(resident, [fragile(number)]);
        assert!(parked.is_ok());
    }
    (purgatory, clock)
}

fn assert_untouched(purgatory: &Purgatory<Op<Fragile>>, what: &str) {
    let stats = purgatory.stats();
    assert_eq!((stats.parked, stats.watched), (40, 40), "{what}");
    for number in 0..40 {
        assert_eq!(purgatory.watchers(&fragile(number)), 1, "{what}: {number}");
    }
    assert_eq!(purgatory.watched_keys(), 40, "{what}");
    assert_eq!(purgatory.next_deadline(), None, "{what}: a timer");
    // One permit is left.
    let again = purgatory.try_complete_else_watch(Op::new(SOON), [fragile(0)]);
    let handle = again.ok().and_then(|parked| parked.into_handle());
    assert!(
        handle.is_some_and(|handle| handle.cancel().is_some()),
        "{what}"
    );
}

/// Each call of each hook of a key panics once.
#[test]
fn g12_a_key_that_panics_in_a_park_unwinds_and_leaves_nothing() {
    let many = (0..60).collect::<Vec<_>>();
    let (purgatory, clock) = watched();
    let resolved = purgatory.resolve(fragile(2));
    // A key is cloned when it is watched for the first time.
    for (hook, bad) in [
        (Hook::Clone, 50),
        (Hook::Hash, FRAGILE),
        (Hook::Eq, FRAGILE),
    ] {
        let several: [&[u32]; 5] = [
            &[bad],
            &[2, bad],
            &[2, 3, bad],
            &[bad, bad],
            &[3, 51, 52, bad],
        ];
        let mut panics = 0;
        for numbers in several.into_iter().chain([&*many]) {
            for ranked in [false, true] {
                for calls in 0.. {
                    let made = Tally::new();
                    let drops = made.clone();
                    let counted = OnDrop(move || drops.add());
                    let op = Op::new(SOON).when(move || {
                        _ = &counted;
                        false
                    });
                    let watches = numbers.iter().map(|number| match (number, ranked) {
                        (2, true) => resolved.watch(),
                        (_, true) => Key::from(fragile(*number)).at_rank(5),
                        (_, false) => Key::from(fragile(*number)),
                    });
                    let park = || purgatory.try_complete_else_watch(op, watches);
                    let Some(unwound) = with_one_panic_after(calls, bad, hook, park) else {
                        break;
                    };
                    panics += 1;
                    let what = format!("{hook:?}, {calls} before, {numbers:?}, {ranked}");
                    assert!(unwound.is_err(), "{what}: it does not go to the caller");
                    assert_eq!(made.count(), 1, "{what}: the operation");
                    assert_untouched(&purgatory, &what);
                }
                // The last one has parked.
                clock.advance(SOON);
                assert_eq!(purgatory.advance(), 1);
            }
        }
        assert!(panics > 0, "{hook:?} panicked in no call");
    }
}

/// Runs this when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// What a call of `Waits` does with a key and a closure that may panic.
type Wait = fn(&Waits<Fragile>, &dyn Fn() -> Fragile, Arc<Tally>, u64);

const WAITS: [(&str, Wait); 3] = [
    ("wait", |waits, key, calls, bad| {
        let predicate = move || {
            calls.add();
            assert_ne!(calls.count(), bad, "intended");
            None::<()>
        };
        drop(waits.wait([key()], SOON, predicate));
    }),
    ("listen", |waits, key, _, _| {
        drop(waits.listen([key()], SOON))
    }),
    ("take", |waits, key, calls, bad| {
        let take = move |_: Cause<'_, Fragile>| {
            calls.add();
            assert_ne!(calls.count(), bad, "intended");
            None::<()>
        };
        drop(waits.take([key()], SOON, take, |()| ()));
    }),
];

/// Of the calls that return a future, too.
#[test]
fn g12_a_wait_that_panics_unwinds_and_leaves_nothing() {
    quietly();
    for (name, wait) in WAITS {
        let waits = Waits::<Fragile>::builder("g12-waits")
            .reaper(Reaper::Manual)
            .max_parked(2)
            .build()
            .expect("no threads to refuse");
        let resident = waits.listen([fragile(FRAGILE)], NEVER_IN_A_TEST);
        let before = waits.next_deadline();
        let assert_untouched = |what: &str, panicked: u64| {
            let stats = waits.stats();
            let found = (stats.parked, stats.watched, stats.panicked);
            assert_eq!(found, (1, 1, panicked), "{name}: {what}");
            assert_eq!(waits.next_deadline(), before, "{name}: {what}");
            let place = waits.listen([fragile(3)], SOON);
            assert!(place.handle().is_some(), "{name}: {what}: no permit");
        };
        for hook in [Hook::Clone, Hook::Hash, Hook::Eq] {
            for calls in 0.. {
                let key = || fragile(FRAGILE);
                let panicked = waits.stats().panicked;
                let call = || wait(&waits, &key, Tally::new(), u64::MAX);
                let Some(unwound) = with_one_panic_after(calls, FRAGILE, hook, call) else {
                    break;
                };
                let what = format!("{hook:?}, {calls} before");
                // When it is dropped, the future unwatches its key: that panic is contained.
                if unwound.is_err() {
                    assert_untouched(&what, panicked);
                } else {
                    let stats = waits.stats();
                    assert_eq!(stats.parked, 1, "{name}: {what}");
                }
            }
        }
        if name == "listen" {
            continue;
        }
        let waits = Waits::<Fragile>::builder("g12-waits")
            .reaper(Reaper::Manual)
            .max_parked(1)
            .build()
            .expect("no threads to refuse");
        for bad in [1, 2] {
            let call = || wait(&waits, &|| fragile(2), Tally::new(), bad);
            assert!(catch_unwind(AssertUnwindSafe(call)).is_err(), "{name}");
            let stats = waits.stats();
            assert_eq!((stats.parked, stats.watched, stats.panicked), (0, 0, 0));
            assert_eq!((waits.watched_keys(), waits.next_deadline()), (0, None));
            assert!(
                waits.listen([fragile(3)], SOON).handle().is_some(),
                "{name}"
            );
        }
        drop(resident);
    }
}

/// A park that a destructor makes while the thread unwinds, and that catches its panic there.
#[test]
fn g12_a_park_that_panics_while_the_thread_unwinds_can_be_caught() {
    within(PATIENCE, || {
        quietly();
        for stage in [Stage::SecondExamination, Stage::MarkedExamination] {
            let purgatory = Purgatory::<Staged>::builder("g12-unwinding")
                .reaper(Reaper::Manual)
                .build()
                .expect("no threads to refuse");
            let caught = Tally::new();
            let (parks, catches) = (purgatory.clone(), caught.clone());
            let parks_in_drop = OnDrop(move || {
                let op = Staged {
                    stage,
                    examinations: 0,
                    purgatory: Some(parks.clone()),
                    _alive: Arc::default(),
                };
                let park = || parks.try_complete_else_watch(op, [1]);
                if catch_unwind(AssertUnwindSafe(park)).is_err() {
                    catches.add();
                }
            });
            let unwind = move || {
                let _parks_in_drop = parks_in_drop;
                panic_any(INTENDED);
            };
            assert!(catch_unwind(AssertUnwindSafe(unwind)).is_err());
            assert_eq!(
                (caught.count(), purgatory.stats().parked),
                (1, 0),
                "{stage:?}"
            );
        }
    });
}
