//! One operation for each way to end.

use crate::support::bell::Bell;
use crate::support::{Op, Probe, Tally, eventually, lock, quietly, refusal};
use request_purgatory::purgatory::{RejectReason, Stats, WeakRef};
use request_purgatory::threads::Reaper;
use request_purgatory::time::ManualClock;
use request_purgatory::{Completion, Purgatory, Waits};
use std::cell::Cell;
use std::future::ready;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);
pub(crate) const STAY: Duration = Duration::from_micros(20_250);
const UP_TO_THE_TICK: Duration = Duration::from_micros(750);
/// How long after the deadline the timer is driven.
pub(crate) const LATE: Duration = Duration::from_millis(7);

pub(crate) struct Scenario {
    pub(crate) purgatory: Purgatory<Op>,
    pub(crate) clock: ManualClock,
    /// What became of the operations, in the order of their endings.
    endings: Arc<Mutex<Vec<Completion>>>,
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
            endings: Arc::default(),
        }
    }

    fn op(&self, probe: &Arc<Probe>) -> Op {
        let (probe, endings) = (probe.clone(), self.endings.clone());
        Op::new(TIMEOUT)
            .when(move || probe.is_ready())
            .then(move |completion| lock(&endings).push(completion))
    }

    fn park_op(&self, op: Op, keys: &[u64]) {
        let parked = self.purgatory.try_complete_else_watch(op, keys.to_vec());
        assert!(parked.is_ok_and(|admission| admission.is_parked()));
    }

    /// Parks one on these keys, which completes when its probe is satisfied.
    pub(crate) fn park(&self, keys: &[u64]) -> Arc<Probe> {
        let probe = Probe::new();
        self.park_op(self.op(&probe), keys);
        probe
    }

    pub(crate) fn advance(&self, by: Duration, expires: usize) {
        self.clock.advance(by);
        assert_eq!(self.purgatory.advance(), expires);
    }

    pub(crate) fn cancel(&self, key: u64) {
        assert_eq!(self.purgatory.cancel_for_key(&key).len(), 1);
    }

    /// One that gets more time at its deadline, and is taken back then.
    pub(crate) fn extend(&self) {
        self.park_op(Op::new(TIMEOUT).put_off_by(STAY), &[4]);
        self.advance(TIMEOUT, 0);
        self.cancel(4);
    }

    /// One that panics when it is checked.
    fn panic(&self) {
        let mut examinations = 0;
        let op = Op::new(TIMEOUT).when(move || {
            examinations += 1;
            if examinations > 2 {
                panics();
            }
            false
        });
        self.park_op(op, &[1]);
        assert_eq!(self.purgatory.check_and_complete(&1), 0);
    }

    fn refuse(&self, keys: &[u64], reason: RejectReason) {
        let op = self.op(&Probe::new());
        let refused = self.purgatory.try_complete_else_watch(op, keys.to_vec());
        assert_eq!(refusal(&refused), Some(reason));
    }

    /// All of it, and a shutdown that finds one parked.
    pub(crate) fn run(&self) {
        let purgatory = &self.purgatory;
        // One that could complete when it came.
        let ready = Probe::new();
        ready.satisfy();
        let done = purgatory.try_complete_else_watch(self.op(&ready), [1, 2]);
        assert!(done.is_ok_and(|admission| !admission.is_parked()));
        // One that is satisfied after a while.
        let probe = self.park(&[1, 2]);
        assert_eq!(purgatory.check_and_complete(&1), 0);
        self.clock.advance(STAY);
        probe.satisfy();
        assert_eq!(purgatory.check_and_complete(&2), 1);
        // One that comes between two ticks, and is forced at once.
        self.park(&[1]);
        assert_eq!(purgatory.force_complete_for_key(&1), 1);
        self.clock.advance(UP_TO_THE_TICK);
        // One that expires late, and one that expires in time and would not have needed to.
        self.park(&[1]);
        self.advance(TIMEOUT + LATE, 1);
        self.park(&[1]).satisfy();
        self.advance(TIMEOUT, 1);
        // One that is taken back by one of its keys.
        self.park(&[1, 2, 3]);
        self.cancel(3);
        self.panic();
        // Two that are refused: one without keys, one too many.
        self.refuse(&[], RejectReason::NoKeys);
        (0..3).for_each(|key| _ = self.park(&[key]));
        self.refuse(&[9], RejectReason::Full);
        (0..3).for_each(|key| self.cancel(key));
        self.park(&[1, 2]);
        purgatory.shutdown();
    }

    /// Checks that [`run`](Self::run) went as it does without a listener. Returns the panics that were counted.
    pub(crate) fn assert_complete(&self) -> u64 {
        use Completion::{Expired, Satisfied, ShutDown};
        let endings = [Satisfied, Satisfied, Satisfied, Expired, Expired, ShutDown];
        assert_eq!(*lock(&self.endings), endings);
        let stats = self.purgatory.stats();
        let mut expected = Stats::default();
        (expected.completed_at_once, expected.completed) = (1, 2);
        (expected.expired, expected.cancelled, expected.shut_down) = (2, 4, 1);
        (expected.aborted, expected.rejected) = (1, 2);
        (expected.checks, expected.missed_checks) = (2, 1);
        (expected.lateness_total, expected.lateness_max) = (LATE, LATE);
        expected.panicked = stats.panicked;
        assert_eq!(stats, expected);
        assert_eq!(self.purgatory.watched_keys(), 0);
        stats.panicked
    }
}

/// By user code that is told something.
pub(crate) fn panics() {
    std::panic::panic_any("intended");
}

/// The reaper tells of expiries, and whoever listens panics at each of them.
pub(crate) fn assert_the_reaper_goes_on(purgatory: &Purgatory<Op>) {
    for round in 1..=3 {
        let op = Op::new(Duration::from_millis(1));
        drop(purgatory.try_complete_else_watch(op, [1]));
        eventually("it expires", || purgatory.stats().expired == round);
    }
    assert_eq!(purgatory.stats().parked, 0);
}

/// Runs a scenario of which a listener is told that calls back into the purgatory, whatever it is told: all of these
/// calls would wait for a lock of ours for ever. `listened` builds it, runs it and checks it, with this listener.
///
/// A check from in there may be told again, and must end somewhere: every so many times it is made.
pub(crate) fn listener_that_calls_back(
    check_every: u64,
    listened: impl FnOnce(Box<dyn Fn() + Send + Sync>, &dyn Fn(&Scenario)),
) {
    let place = Arc::new(OnceLock::<WeakRef<Purgatory<Op>>>::new());
    let calls = Tally::new();
    let (found, count) = (place.clone(), calls.clone());
    let listener = move || {
        let Some(purgatory) = found.get().and_then(WeakRef::upgrade) else {
            return;
        };
        count.add();
        if count.count() % check_every == 0 {
            purgatory.check_and_complete(&77);
            purgatory.cancel_for_key(&77);
        }
        purgatory.snapshot();
        purgatory.next_deadline();
        purgatory.check_later(77);
    };
    listened(Box::new(listener), &|scenario| {
        assert!(place.set(scenario.purgatory.downgrade()).is_ok());
        scenario.run();
        scenario.assert_complete();
    });
    assert!(calls.count() > 20);
}

pub(crate) fn waits_by_hand(name: &str) -> (Waits<u64>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Waits::<u64>::builder(name).clock(clock.clone());
    let waits = builder.reaper(Reaper::Manual).build();
    (waits.expect("no threads to refuse"), clock)
}

/// How a listener finds an event that no check has announced.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Found {
    ByARecheck,
    AtTheDeadline,
}

/// Three listeners of one purgatory: one is checked, one is checked late, one finds its event without a check.
pub(crate) fn listen_for_what_is_not_checked(name: &str, found: Found) -> Waits<u64> {
    let (waits, clock) = waits_by_hand(name);
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
