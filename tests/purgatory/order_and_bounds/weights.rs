//! G17: the bound of the weight.

use crate::chains::scene::{Gate, park};
use crate::support::{PATIENCE, Probe, within};
use request_purgatory::future::{Awaited, block_on};
use request_purgatory::purgatory::Builder;
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::ManualClock;
use request_purgatory::{Completion, DelayedOperation, Purgatory, RejectReason};
use request_purgatory::{Timer, WaitError, Waits};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

/// Weighs more each time it is asked.
pub(super) struct Heavy {
    weight: Cell<usize>,
    probe: Arc<Probe>,
    /// Which of its examinations panics.
    panics: usize,
    /// Called before its completion returns.
    completing: Option<Box<dyn Fn() + Send>>,
}

impl Heavy {
    pub(super) fn new(weight: usize, probe: &Arc<Probe>) -> Self {
        Self {
            weight: Cell::new(weight),
            probe: probe.clone(),
            panics: 0,
            completing: None,
        }
    }

    pub(super) fn then(self, completing: impl Fn() + Send + 'static) -> Self {
        let completing: Box<dyn Fn() + Send> = Box::new(completing);
        Self {
            completing: Some(completing),
            ..self
        }
    }
}

impl DelayedOperation for Heavy {
    type Key = u64;

    fn timeout(&self) -> Duration {
        TICK
    }

    fn weight(&self) -> usize {
        self.weight.replace(self.weight.get().wrapping_add(1))
    }

    fn try_complete(&mut self) -> bool {
        let is_ready = self.probe.examine(|| self.probe.is_ready());
        assert_ne!(self.probe.examinations(), self.panics, "as it was told");
        is_ready
    }

    fn on_complete(self, completion: Completion) {
        self.completing.iter().for_each(|completing| completing());
        self.probe.end(completion);
    }
}

pub(super) type Building = Builder<Purgatory<Heavy>>;

pub(super) fn heavy(
    configure: impl FnOnce(Building) -> Building,
) -> (Purgatory<Heavy>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Purgatory::builder("g17-heavy").clock(clock.clone());
    let built = configure(builder.reaper(Reaper::Manual)).build();
    (built.expect("no threads to refuse"), clock)
}

/// Parks an operation of this weight, and returns why it is refused, if it is.
fn refused(purgatory: &Purgatory<Heavy>, weight: usize) -> Option<RejectReason> {
    let op = Heavy::new(weight, &Probe::new());
    let (reason, op) = purgatory
        .try_complete_else_watch(op, [1])
        .err()?
        .into_parts();
    if reason == RejectReason::Full {
        assert_eq!(op.weight.get(), weight.wrapping_add(1), "it is asked once");
    }
    Some(reason)
}

fn weight_and_number(purgatory: &Purgatory<Heavy>) -> (u64, usize) {
    (purgatory.stats().weight, purgatory.len())
}

#[test]
fn g17_operations_are_parked_up_to_their_weight_exactly() {
    const MAX: usize = usize::MAX;
    let by_weight = [11, MAX, 7, 0, 4, 3, 1, 0];
    // How it is bounded, what is parked, what of that is admitted, and what it weighs together.
    let table: [(fn(Building) -> Building, &[usize], &[usize], u64); 4] = [
        (|it| it.max_weight(10), &by_weight, &[7, 0, 3, 0], 10),
        // The bound of the number counts beside that.
        (
            |it| it.max_weight(10).max_parked(2),
            &[7, 4, 1, 1],
            &[7, 1],
            8,
        ),
        // Without a bound nothing is weighed.
        (|it| it.max_parked(3), &[MAX, 7], &[MAX, 7], 0),
        (|it| it, &[MAX, 7], &[MAX, 7], 0),
    ];
    for (configure, parked, admitted, weight) in table {
        let (purgatory, _clock) = heavy(configure);
        let is_admitted = |weight: &usize| {
            let refused = refused(&purgatory, *weight);
            assert!(matches!(refused, None | Some(RejectReason::Full)));
            refused.is_none()
        };
        let answers = parked.iter().copied().filter(is_admitted);
        assert_eq!(answers.collect::<Vec<_>>(), admitted);
        assert_eq!(weight_and_number(&purgatory), (weight, admitted.len()));
    }
}

#[test]
fn g17_a_park_that_panics_or_is_refused_keeps_no_weight() {
    let (purgatory, _clock) = heavy(|it| it.max_weight(10).max_watchers_per_key(1));
    for panics in [1, 2] {
        let op = Heavy {
            panics,
            ..Heavy::new(9, &Probe::new())
        };
        let park = || purgatory.try_complete_else_watch(op, [1]);
        assert!(catch_unwind(AssertUnwindSafe(park)).is_err());
        assert_eq!(weight_and_number(&purgatory), (0, 0));
    }
    assert_eq!(refused(&purgatory, 3), None);
    assert_eq!(refused(&purgatory, 4), Some(RejectReason::KeyFull));
    assert_eq!(purgatory.stats().weight, 3);
    // Satisfied at once: it never parks.
    let probe = Probe::new();
    probe.satisfy();
    let satisfied = purgatory.try_complete_else_watch(Heavy::new(usize::MAX, &probe), [1]);
    assert!(satisfied.is_ok_and(|satisfied| !satisfied.is_parked()));
    assert_eq!(purgatory.stats().weight, 3);
    purgatory.shutdown();
    assert_eq!(refused(&purgatory, 1), Some(RejectReason::ShutDown));
    assert_eq!(purgatory.stats().weight, 0);
}

/// As a place of `max_parked` is: the operation keeps its memory so long.
#[test]
fn g17_a_weight_is_free_when_on_complete_has_returned() {
    within(PATIENCE, || {
        let (purgatory, clock) = heavy(|it| it.max_weight(10).dispatch(Dispatch::OwnThread));
        let ((gate, wait), probe) = (Gate::new(), Probe::new());
        park(&purgatory, Heavy::new(6, &probe).then(wait), [1]);
        clock.advance(TICK);
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(weight_and_number(&purgatory), (6, 0));
        assert_eq!(refused(&purgatory, 5), Some(RejectReason::Full));
        gate.open();
        assert_eq!(purgatory.drain(PATIENCE), 0);
        assert_eq!(probe.ending(), Some(Completion::Expired));
        assert_eq!(purgatory.stats().weight, 0);
    });
}

#[test]
fn g17_an_awaited_operation_has_its_own_weight_and_a_wait_weighs_one() {
    let purgatory = Purgatory::<Awaited<Heavy>>::builder("g17-awaited").max_weight(10);
    let purgatory = purgatory.reaper(Reaper::Manual).build();
    let purgatory = purgatory.expect("no threads to refuse");
    let await_one = |weight| purgatory.completion(Heavy::new(weight, &Probe::new()), [1]);
    let first = await_one(6);
    assert!(first.is_ok() && await_one(5).is_err());
    drop(first);
    assert_eq!(purgatory.stats().weight, 0);
    let waits = Waits::<u32>::builder("g17-waits").max_weight(2);
    let waits = waits.reaper(Reaper::Manual).build();
    let waits = waits.expect("no threads to refuse");
    let wait = || waits.wait([1], None, || None::<()>);
    let (first, second) = (wait(), waits.take([1], None, |_| None::<()>, drop));
    assert_eq!(block_on(wait()), Err(WaitError::Full));
    assert_eq!(waits.stats().weight, 2);
    drop((first, second));
    assert_eq!(waits.stats().weight, 0);
}

#[test]
fn g17_a_timer_weighs_what_it_is_told_to() {
    let build = |clock: &ManualClock, max_weight| {
        let builder = Timer::builder("g17-timer").clock(clock.clone());
        let builder = builder.max_weight(max_weight).reaper(Reaper::Manual);
        let built = builder.build(drop::<Vec<u8>>);
        built.expect("no threads to refuse")
    };
    let clock = ManualClock::new();
    let timer = build(&clock, 10);
    let start = |weight: usize| timer.start_weighed(TICK, weight, vec![0; weight]);
    let first = start(6).expect("room");
    assert!(start(4).is_ok());
    let refused = start(1).expect_err("it is full");
    let refused = (refused.reason(), refused.into_inner().len());
    assert_eq!(refused, (RejectReason::Full, 1));
    assert_eq!((timer.stats().weight, timer.len()), (10, 2));
    assert_eq!(timer.stop(first).map(|payload| payload.len()), Some(6));
    assert_eq!(timer.stats().weight, 4);
    clock.advance(TICK);
    assert_eq!((timer.advance(), timer.stats().weight), (1, 0));
    assert!(start(10).is_ok() && start(1).is_err());
    assert_eq!(timer.shutdown().len(), 1);
    assert_eq!(timer.stats().weight, 0);
    // Without a weight, a payload weighs one.
    let timer = build(&clock, 1);
    assert!(timer.start(TICK, vec![0; 7]).is_ok());
    assert!(timer.start(TICK, vec![]).is_err());
}
