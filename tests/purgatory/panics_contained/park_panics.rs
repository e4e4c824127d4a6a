//! G12: a panic of the caller's own code in a park or a wait, at whatever stage, unwinds to that caller, and leaves no
//! watch, timer, permit or operation behind. `calls.rs` has a key that panics in a park.

use super::calls::{FRAGILE, SOON};
use crate::chains::scene::park;
use crate::lost_completion::steps::{elsewhere, hooked_op, watches};
use crate::support::keys::{Fragile, Hook, fragile, with_fuse, with_one_panic_after};
use crate::support::{
    FragileClock, NEVER_IN_A_TEST, Op, PATIENCE, manual, quietly, refusal, within,
};
use request_purgatory::purgatory::{Cause, RejectReason};
use request_purgatory::{
    Completion, DelayedOperation, Purgatory, Waits, threads::Reaper, time::Timestamp,
};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

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
}

/// Each stage, and whether the operation counts as parked by then.
const STAGES: [(Stage, bool); 7] = [
    (Stage::Iterator, false),
    (Stage::FirstExamination, false),
    (Stage::Arrival, false),
    (Stage::Timeout, false),
    (Stage::Clock, false),
    (Stage::SecondExamination, true),
    (Stage::MarkedExamination, true),
];

/// The payload of the panics.
const INTENDED: &str = "intended";

/// An operation of which one hook panics, or none. It counts those that exist.
struct Staged {
    stage: Option<Stage>,
    examinations: u32,
    purgatory: Option<Purgatory<Self>>,
    _alive: Arc<()>,
}

impl Staged {
    fn at(&self, stage: Stage) {
        if self.stage == Some(stage) {
            panic_any(INTENDED);
        }
    }
}

impl DelayedOperation for Staged {
    type Key = u32;

    fn timeout(&self) -> Duration {
        self.at(Stage::Timeout);
        self.stage.map_or(Duration::MAX, |_| SOON)
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
                if self.stage == Some(Stage::MarkedExamination) {
                    let purgatory = self.purgatory.take().expect("it is examined once so");
                    assert_eq!(elsewhere(|| purgatory.check_and_complete(&1)), 0);
                }
            }
            _ => self.at(Stage::MarkedExamination),
        }
        false
    }

    fn on_complete(self, _: Completion) {}
}

/// Calls this in a destructor while the thread unwinds, and catches its panic there.
fn caught_while_unwinding<R>(call: impl FnOnce() -> R) -> thread::Result<R> {
    let mut caught = None;
    let unwind = || {
        let _calls = scopeguard::guard((), |()| {
            caught = Some(catch_unwind(AssertUnwindSafe(call)));
        });
        panic_any(INTENDED);
    };
    let unwound: thread::Result<()> = catch_unwind(AssertUnwindSafe(unwind));
    assert!(unwound.is_err());
    caught.expect("it is called")
}

#[test]
fn g12_a_park_that_panics_at_any_stage_unwinds_and_leaves_nothing() {
    within(PATIENCE, || {
        quietly();
        for (stage, has_parked) in STAGES {
            let clock = FragileClock::default();
            let purgatory = Purgatory::<Staged>::builder("g12-stages")
                .clock(clock.clone())
                .reaper(Reaper::Manual)
                .max_parked(2)
                .build()
                .expect("no threads to refuse");
            let alive = Arc::new(());
            let op = |stage| Staged {
                stage,
                examinations: 0,
                purgatory: Some(purgatory.clone()),
                _alive: alive.clone(),
            };
            park(&purgatory, op(None), [1, 2, 3]);
            for (aborted, unwinding) in [(1, false), (2, false), (3, true), (4, true)] {
                let what = format!("{stage:?}, unwinding already: {unwinding}");
                let keys = (1..4).inspect(|key| {
                    if (*key, stage) == (3, Stage::Iterator) {
                        panic_any(INTENDED);
                    }
                });
                clock.set_broken(stage == Stage::Clock);
                let call = || purgatory.try_complete_else_watch(op(Some(stage)), keys);
                let unwound = match unwinding {
                    false => catch_unwind(AssertUnwindSafe(call)),
                    true => caught_while_unwinding(call),
                };
                clock.set_broken(false);
                let payload = unwound.expect_err("it goes to the caller");
                assert_eq!(payload.downcast_ref(), Some(&INTENDED), "{what}");
                // The resident's, and that of the test.
                assert_eq!(Arc::strong_count(&alive), 2, "{what}: the operation");
                let stats = purgatory.stats();
                assert_eq!((stats.parked, watches(&purgatory)), (1, (3, 3)), "{what}");
                // It is the caller's own, so it is not counted among those that the library has contained.
                assert_eq!((stats.panicked, stats.rejected), (0, 0), "{what}");
                assert_eq!(stats.aborted, aborted * u64::from(has_parked), "{what}");
                assert_eq!(purgatory.next_deadline(), None, "{what}: a timer");
            }
            // The permit is there, and there is one.
            let parked = purgatory.try_complete_else_watch(op(None), [1]);
            assert!(parked.is_ok_and(|parked| parked.is_parked()), "{stage:?}");
            let refused = purgatory.try_complete_else_watch(op(None), [1]);
            assert_eq!(refusal(&refused), Some(RejectReason::Full), "{stage:?}");
            assert_eq!(purgatory.force_complete_for_key(&1), 2, "{stage:?}");
        }
    });
}

/// Parks on a key whose destructor panics, where the park is refused.
fn refused_with_a_panic(purgatory: &Purgatory<Op<Fragile>>, why: RejectReason) {
    let alive = Arc::new(());
    let held = alive.clone();
    let op = Op::new(Duration::MAX).then(move |_| drop(held));
    let park = || purgatory.try_complete_else_watch(op, [fragile(FRAGILE)]);
    let rejected = purgatory.stats().rejected;
    let unwound = with_fuse(FRAGILE, Hook::Drop, park);
    assert!(unwound.is_err(), "{why:?}: it goes to the caller");
    assert_eq!(purgatory.stats().rejected, rejected, "{why:?}");
    assert_eq!(Arc::strong_count(&alive), 1, "{why:?}: the operation leaks");
    let op = Op::new(Duration::MAX);
    let parked = purgatory.try_complete_else_watch(op, [fragile(FRAGILE)]);
    assert_eq!(refusal(&parked), Some(why));
}

/// Inside the examination of a park inside that of another one, and so on, until no more are admitted.
fn refused_when_nested(purgatory: &Purgatory<Op<Fragile>>, depth: u32) {
    let op = hooked_op(purgatory, NEVER_IN_A_TEST, move |all, nth| {
        match (nth, depth) {
            (1, 8) => refused_with_a_panic(all, RejectReason::Nested),
            (1, _) => refused_when_nested(all, depth + 1),
            _ => {}
        }
        false
    });
    park(purgatory, op, [fragile(2)]);
}

#[test]
fn g12_a_refused_park_whose_key_panics_when_dropped_drops_its_operation() {
    quietly();
    let (full, _clock) = manual(|builder| builder.max_parked(0));
    refused_with_a_panic(&full, RejectReason::Full);
    let (nested, _clock) = manual(|builder| builder);
    refused_when_nested(&nested, 0);
    assert_eq!(nested.stats().parked, 9);
    let (over, _clock) = manual(|builder| builder);
    over.drain(Duration::ZERO);
    refused_with_a_panic(&over, RejectReason::Draining);
    over.shutdown();
    refused_with_a_panic(&over, RejectReason::ShutDown);
}

/// A call of `Waits` with a key, and with what its closure does besides when it is called.
type Wait = fn(&Waits<Fragile>, Fragile, Box<dyn FnMut() + Send>);

const WAITS: [(&str, Wait); 3] = [
    ("wait", |waits, key, mut examine| {
        let predicate = move || {
            examine();
            None::<()>
        };
        drop(waits.wait([key], SOON, predicate));
    }),
    ("listen", |waits, key, _| drop(waits.listen([key], SOON))),
    ("take", |waits, key, mut examine| {
        let take = move |_: Cause<'_, Fragile>| {
            examine();
            None::<()>
        };
        drop(waits.take([key], SOON, take, |()| ()));
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
        let _resident = waits.listen([fragile(FRAGILE)], NEVER_IN_A_TEST);
        let before = waits.next_deadline();
        let assert_untouched = |what: &str, panicked: u64| {
            let stats = waits.stats();
            let found = (stats.parked, watches(&waits), stats.panicked);
            assert_eq!(found, (1, (1, 1), panicked), "{what}");
            assert_eq!(waits.next_deadline(), before, "{what}");
            let place = waits.listen([fragile(3)], SOON);
            assert!(place.handle().is_some(), "{what}: no permit");
        };
        for hook in [Hook::Clone, Hook::Hash, Hook::Eq] {
            for calls in 0.. {
                let panicked = waits.stats().panicked;
                let call = || wait(&waits, fragile(FRAGILE), Box::new(|| ()));
                let Some(unwound) = with_one_panic_after(calls, FRAGILE, hook, call) else {
                    break;
                };
                let what = format!("{name}: {hook:?}, {calls} before");
                // When it is dropped, the future unwatches its key: that panic is contained.
                match unwound {
                    Err(_) => assert_untouched(&what, panicked),
                    Ok(()) => assert_eq!(waits.stats().parked, 1, "{what}"),
                }
            }
        }
        // A park calls the closure twice, if there is one.
        for bad in [1, 2] {
            let panicked = waits.stats().panicked;
            let mut calls = 0;
            let examine = move || {
                calls += 1;
                if calls == bad {
                    panic_any(INTENDED);
                }
            };
            let call = || wait(&waits, fragile(2), Box::new(examine));
            let unwound = catch_unwind(AssertUnwindSafe(call));
            assert_eq!(unwound.is_err(), name != "listen", "{name}: call {bad}");
            assert_untouched(&format!("{name}: call {bad}"), panicked);
        }
    }
}
