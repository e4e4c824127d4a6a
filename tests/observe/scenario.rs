//! One operation for each way to end.

use crate::support::bell::Bell;
use crate::support::{Op, Probe, lock, quietly, refusal};
use request_purgatory::{
    Completion, Purgatory, Waits, purgatory::RejectReason, purgatory::Stats, threads::Reaper,
    time::ManualClock,
};
use std::cell::Cell;
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);
pub(crate) const STAY: Duration = Duration::from_micros(20_250);
const UP_TO_THE_TICK: Duration = Duration::from_micros(750);
/// How long after the deadline the timer is driven.
pub(crate) const LATE: Duration = Duration::from_millis(7);

/// What became of the operations, in the order of their endings.
pub(crate) type Endings = Arc<Mutex<Vec<Completion>>>;

pub(crate) struct Scenario {
    pub(crate) purgatory: Purgatory<Op>,
    pub(crate) clock: ManualClock,
    pub(crate) endings: Endings,
}

impl Scenario {
    /// A purgatory of this name, which takes three at a time.
    pub(crate) fn new(name: &str) -> Self {
        quietly();
        let clock = ManualClock::new();
        let purgatory = Purgatory::builder(name)
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .max_parked(3)
            .build()
            .expect("no threads to refuse");
        Self {
            purgatory,
            clock,
            endings: Endings::default(),
        }
    }

    fn op(&self, probe: &Arc<Probe>) -> Op {
        let (probe, endings) = (probe.clone(), self.endings.clone());
        Op::new(TIMEOUT)
            .when(move || probe.is_ready())
            .then(move |completion| lock(&endings).push(completion))
    }

    /// Parks one on these keys.
    pub(crate) fn park(&self, probe: &Arc<Probe>, keys: &[u64]) {
        let op = self.op(probe);
        let parked = self.purgatory.try_complete_else_watch(op, keys.to_vec());
        assert!(parked.is_ok_and(|watch| watch.is_parked()));
    }

    /// One that could complete when it came.
    pub(crate) fn complete_at_once(&self) {
        let probe = Probe::new();
        probe.satisfy();
        let done = self
            .purgatory
            .try_complete_else_watch(self.op(&probe), [1, 2]);
        assert!(done.is_ok_and(|admission| !admission.is_parked()));
    }

    /// One that is satisfied after [`STAY`].
    pub(crate) fn satisfy(&self) {
        let probe = Probe::new();
        self.park(&probe, &[1, 2]);
        assert_eq!(self.purgatory.check_and_complete(&1), 0);
        self.clock.advance(STAY);
        probe.satisfy();
        assert_eq!(self.purgatory.check_and_complete(&2), 1);
    }

    /// One that comes between two ticks, and is forced at once.
    pub(crate) fn force(&self) {
        self.park(&Probe::new(), &[1]);
        assert_eq!(self.purgatory.force_complete_for_key(&1), 1);
        self.clock.advance(UP_TO_THE_TICK);
    }

    /// One that expires, late.
    pub(crate) fn expire(&self) {
        self.park(&Probe::new(), &[1]);
        self.clock.advance(TIMEOUT + LATE);
        assert_eq!(self.purgatory.advance(), 1);
    }

    /// One that expires in time, and would not have needed to.
    pub(crate) fn miss_a_check(&self) {
        let probe = Probe::new();
        self.park(&probe, &[1]);
        probe.satisfy();
        self.clock.advance(TIMEOUT);
        assert_eq!(self.purgatory.advance(), 1);
    }

    /// One that gets more time at its deadline, and is taken back then.
    pub(crate) fn extend(&self) {
        let op = Op::new(TIMEOUT).put_off_by(STAY);
        let more = self.purgatory.try_complete_else_watch(op, [4]);
        assert!(more.is_ok_and(|admission| admission.is_parked()));
        self.clock.advance(TIMEOUT);
        assert_eq!(self.purgatory.advance(), 0);
        assert_eq!(self.purgatory.cancel_for_key(&4).len(), 1);
    }

    /// One that is taken back.
    pub(crate) fn cancel(&self) {
        self.park(&Probe::new(), &[1, 2, 3]);
        assert_eq!(self.purgatory.cancel_for_key(&3).len(), 1);
    }

    /// One whose `try_complete` panics when it is checked.
    pub(crate) fn panic(&self) {
        let mut examinations = 0;
        let op = Op::new(TIMEOUT).when(move || {
            examinations += 1;
            if examinations > 2 {
                std::panic::panic_any("intended");
            }
            false
        });
        let parked = self.purgatory.try_complete_else_watch(op, [1]);
        assert!(parked.is_ok_and(|watch| watch.is_parked()));
        assert_eq!(self.purgatory.check_and_complete(&1), 0);
    }

    /// Two that are refused: one without keys, one too many.
    pub(crate) fn reject(&self) {
        let probe = Probe::new();
        let none = self
            .purgatory
            .try_complete_else_watch(self.op(&probe), [0; 0]);
        assert_eq!(refusal(&none), Some(RejectReason::NoKeys));
        (0..3).for_each(|key| self.park(&probe, &[key]));
        let full = self.purgatory.try_complete_else_watch(self.op(&probe), [9]);
        assert_eq!(refusal(&full), Some(RejectReason::Full));
        (0..3).for_each(|key| assert_eq!(self.purgatory.cancel_for_key(&key).len(), 1));
    }

    /// All of it, and a shutdown that finds one parked.
    pub(crate) fn run(&self) {
        self.complete_at_once();
        self.satisfy();
        self.force();
        self.expire();
        self.miss_a_check();
        self.cancel();
        self.panic();
        self.reject();
        self.park(&Probe::new(), &[1, 2]);
        self.purgatory.shutdown();
    }

    /// Checks that [`run`](Self::run) went as it does without a listener. Returns the panics that were counted.
    pub(crate) fn assert_complete(&self) -> u64 {
        use Completion::{Expired, Satisfied, ShutDown};
        let endings = [Satisfied, Satisfied, Satisfied, Expired, Expired, ShutDown];
        assert_eq!(*lock(&self.endings), endings);
        let stats = self.purgatory.stats();
        let mut expected = Stats::default();
        expected.completed_at_once = 1;
        expected.completed = 2;
        expected.expired = 2;
        expected.cancelled = 4;
        expected.shut_down = 1;
        expected.aborted = 1;
        expected.rejected = 2;
        expected.missed_checks = 1;
        expected.checks = 2;
        expected.lateness_total = LATE;
        expected.lateness_max = LATE;
        expected.panicked = stats.panicked;
        assert_eq!(stats, expected);
        assert_eq!(self.purgatory.watched_keys(), 0);
        stats.panicked
    }
}

/// How a listener finds an event that no check has announced.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Found {
    ByARecheck,
    AtTheDeadline,
}

/// Three listeners of one purgatory: one is checked, one is checked late, one finds its event without a check.
pub(crate) fn listen_for_what_is_not_checked(name: &str, found: Found) -> Waits<u64> {
    let clock = ManualClock::new();
    let builder = Waits::<u64>::builder(name).clock(clock.clone());
    let waits = builder.reaper(Reaper::Manual).build();
    let waits = waits.expect("no threads to refuse");
    let pass = |time| {
        clock.advance(time);
        waits.advance();
    };
    for (early, late) in [(true, false), (false, true), (false, false)] {
        let event = Cell::new(false);
        let listener = waits.listen([1], TIMEOUT);
        let listener = match found {
            Found::ByARecheck => listener.recheck_every(TIMEOUT / 2),
            Found::AtTheDeadline => listener,
        };
        let mut until = Box::pin(listener.until(|| ready(event.get().then_some("found"))));
        let bell = Bell::new();
        assert!(bell.poll(&mut until).is_pending());
        event.set(true);
        if early {
            waits.check_and_complete(&1);
        }
        match found {
            Found::ByARecheck => pass(TIMEOUT / 2),
            // (Where there is no recheck, a check is in time or it is missed.)
            Found::AtTheDeadline if late => _ = waits.check_and_complete(&1),
            Found::AtTheDeadline => pass(TIMEOUT),
        }
        assert_eq!(bell.poll(&mut until), Poll::Ready(Ok("found")));
        drop(until);
        if late {
            waits.check_and_complete(&1);
        }
        pass(TIMEOUT / 4); // longer than a check may be late
        assert!(waits.is_empty());
    }
    waits
}
