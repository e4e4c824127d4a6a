//! G9, G10, G16, G17, G18 against a model: any sequence of calls, from outside and from callbacks, must do what it does
//! to a sorted map of deadlines.

use crate::support::lock;
use crate::support::spans::{Choices, Span, choices, chosen, jump, span};
use crate::{Tested, builder};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use request_purgatory::{
    Timer, purgatory::RejectReason, purgatory::Rejected, time::Clock, time::ManualClock,
    timer::TimerId,
};
use request_purgatory::{purgatory::WeakRef, time::Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// What a callback does.
#[derive(Debug, Clone, Copy)]
enum Plan {
    Start(Span),
    Stop(Index),
    Reset(Index, Span),
}

#[derive(Debug, Clone)]
enum Call {
    Start(Span, Option<Plan>),
    Stop(Index),
    Reset(Index, Span),
    /// The clock moves, and no thread drives the timer.
    Pass(Span),
    /// The clock moves, and the timer is driven.
    Advance(Span),
    Shutdown,
}

struct Payload {
    number: usize,
    plan: Option<Plan>,
}

/// What callbacks saw, in the order in which they did.
#[derive(Debug)]
enum Event {
    Expired(usize),
    Started(usize, Duration, Result<TimerId, Refusal>),
    Stopped(usize, Option<usize>),
    Reset(usize, Duration, bool),
}

/// Why a start was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Full,
    ShutDown,
    TooLong,
}

fn refusal(rejected: Rejected<Payload>) -> Refusal {
    match rejected.reason() {
        RejectReason::Full => Refusal::Full,
        RejectReason::ShutDown => Refusal::ShutDown,
        RejectReason::TooLong => Refusal::TooLong,
        other => panic!("{other:?}"),
    }
}

/// What callbacks need.
struct Shared<W: Tested> {
    timer: OnceLock<WeakRef<Timer<Payload, W>>>,
    ids: Mutex<Vec<Option<TimerId>>>,
    log: Mutex<Vec<Event>>,
    tick: Duration,
}

impl<W: Tested> Shared<W> {
    fn expire(&self, payload: Payload) {
        lock(&self.log).push(Event::Expired(payload.number));
        let timer = self.timer.get().and_then(WeakRef::upgrade);
        let timer = timer.expect("it lives while it is driven");
        let event = match payload.plan {
            None => return,
            Some(Plan::Start(span)) => {
                let number = lock(&self.ids).len();
                let timeout = span.of(self.tick);
                let started = timer.start(timeout, Payload { number, plan: None });
                let started = started.map_err(refusal);
                lock(&self.ids).push(started.ok());
                Event::Started(number, timeout, started)
            }
            Some(Plan::Stop(index)) => match self.pick(index) {
                Some((number, id)) => {
                    let got = timer.stop(id).map(|payload| payload.number);
                    Event::Stopped(number, got)
                }
                None => return,
            },
            Some(Plan::Reset(index, span)) => match self.pick(index) {
                Some((number, id)) => {
                    let timeout = span.of(self.tick);
                    Event::Reset(number, timeout, timer.reschedule(id, timeout))
                }
                None => return,
            },
        };
        lock(&self.log).push(event);
    }

    /// The timer meant by `index`, whatever became of it.
    fn pick(&self, index: Index) -> Option<(usize, TimerId)> {
        let ids = lock(&self.ids);
        if ids.is_empty() {
            return None;
        }
        let number = index.index(ids.len());
        ids[number].map(|id| (number, id))
    }
}

/// Both, side by side.
struct Pair<W: Tested> {
    choices: Choices,
    clock: ManualClock,
    real: Timer<Payload, W>,
    shared: Arc<Shared<W>>,
    /// The deadline of each that runs; `None` never fires.
    running: BTreeMap<usize, Option<u64>>,
    closed: bool,
}

impl<W: Tested> Pair<W> {
    fn new(choices: Choices) -> Self {
        let shared = Arc::new(Shared {
            timer: OnceLock::new(),
            ids: Mutex::default(),
            log: Mutex::default(),
            tick: choices.tick,
        });
        let (builder, clock) = chosen!(builder::<Payload, W>("model"), choices);
        let callback = shared.clone();
        let real = builder
            .build(move |payload| callback.expire(payload))
            .expect("no threads to refuse");
        assert!(shared.timer.set(real.downgrade()).is_ok());
        Self {
            choices,
            clock,
            real,
            shared,
            running: BTreeMap::new(),
            closed: false,
        }
    }

    fn now(&self) -> Duration {
        self.clock.now().since_origin()
    }

    fn deadline(&self, timeout: Duration) -> Option<u64> {
        self.choices.deadline(self.now(), timeout)
    }

    fn is_due(&self, number: usize) -> bool {
        let now = self.choices.tick_at(self.now());
        let deadline = self.running.get(&number).copied().flatten();
        deadline.is_some_and(|deadline| deadline <= now)
    }

    fn call(&mut self, call: Call) {
        let tick = self.choices.tick;
        match call {
            Call::Start(span, plan) => {
                let number = lock(&self.shared.ids).len();
                let timeout = span.of(tick);
                let started = self.real.start(timeout, Payload { number, plan });
                let started = started.map_err(refusal);
                lock(&self.shared.ids).push(started.ok());
                self.started(number, started, timeout);
            }
            Call::Stop(index) => {
                if let Some((number, id)) = self.shared.pick(index) {
                    let got = self.real.stop(id).map(|payload| payload.number);
                    let expected = self.running.remove(&number).map(|_| number);
                    assert_eq!(got, expected);
                }
            }
            Call::Reset(index, span) => {
                if let Some((number, id)) = self.shared.pick(index) {
                    let timeout = span.of(tick);
                    let result = self.real.reschedule(id, timeout);
                    let running = self.running.contains_key(&number);
                    assert!(if result {
                        running
                    } else {
                        !running || !W::ENDLESS
                    });
                    self.was_reset(number, timeout, result);
                }
            }
            Call::Pass(span) => self.clock.advance(span.of(tick)),
            Call::Advance(span) => {
                self.clock.advance(span.of(tick));
                self.advance();
            }
            Call::Shutdown => {
                let remains = self.real.shutdown().into_iter();
                let remains = remains.map(|payload| payload.number);
                let remains = remains.collect::<BTreeSet<_>>();
                assert!(remains.iter().eq(self.running.keys()));
                self.running.clear();
                self.closed = true;
            }
        }
    }

    fn started(&mut self, number: usize, result: Result<TimerId, Refusal>, timeout: Duration) {
        let max = self.choices.max_parked;
        let full = max.is_some_and(|max| self.running.len() >= max);
        match result {
            Ok(_) if !self.closed && !full => {
                self.running.insert(number, self.deadline(timeout));
            }
            Err(Refusal::ShutDown) if self.closed => {}
            Err(Refusal::Full) if full => {}
            Err(Refusal::TooLong) if !W::ENDLESS && !full && !self.closed => {}
            other => panic!("{other:?}, full: {full}"),
        }
    }

    fn was_reset(&mut self, number: usize, timeout: Duration, done: bool) {
        let deadline = self.deadline(timeout);
        if done {
            let old = self.running.insert(number, deadline);
            assert!(old.is_some(), "it was gone");
        }
    }

    fn advance(&mut self) {
        let due = |number: &usize| self.is_due(*number);
        let mut must = self
            .running
            .keys()
            .copied()
            .filter(due)
            .collect::<BTreeSet<_>>();
        let returned = self.real.advance();
        let mut expired = 0;
        let events = std::mem::take(&mut *lock(&self.shared.log));
        for event in events {
            match event {
                Event::Expired(number) => {
                    // One that a callback started or reset is for the next pass, however close.
                    assert!(must.remove(&number), "{number} expired early");
                    assert!(self.running.remove(&number).is_some(), "ended twice");
                    expired += 1;
                }
                Event::Started(number, timeout, result) => {
                    self.started_in_callback(number, result, timeout);
                }
                Event::Stopped(number, Some(got)) => {
                    assert_eq!(got, number);
                    assert!(self.running.remove(&number).is_some(), "it was gone");
                    must.remove(&number);
                }
                // It may be expiring, its callback to come.
                Event::Stopped(number, None) => {
                    let expiring = must.contains(&number);
                    assert!(expiring || !self.running.contains_key(&number));
                }
                Event::Reset(number, timeout, result) => {
                    let running = self.running.contains_key(&number);
                    let expiring = must.contains(&number);
                    assert!(if result {
                        running
                    } else {
                        !running || expiring || !W::ENDLESS
                    });
                    self.was_reset(number, timeout, result);
                    if result {
                        must.remove(&number);
                    }
                }
            }
        }
        assert!(must.is_empty(), "{must:?} did not fire");
        assert_eq!(returned, expired);
    }

    /// Payloads that expired in the same slice have freed their places before their callbacks are heard of.
    fn started_in_callback(
        &mut self,
        number: usize,
        result: Result<TimerId, Refusal>,
        timeout: Duration,
    ) {
        match result {
            Ok(_) => {
                self.running.insert(number, self.deadline(timeout));
            }
            Err(Refusal::Full) => assert!(self.choices.max_parked.is_some()),
            Err(Refusal::TooLong) => assert!(!W::ENDLESS),
            Err(Refusal::ShutDown) => panic!("it is not shut down"),
        }
    }

    /// All that can be asked without changing anything.
    fn compare(&self) {
        assert!(
            lock(&self.shared.log).is_empty(),
            "an expiry out of the blue"
        );
        assert_eq!(self.real.is_shut_down(), self.closed);
        assert_eq!(self.real.stats().parked, self.running.len());
        let earliest = self.running.values().flatten().min();
        let next = self.real.next_deadline();
        assert_eq!(next.is_some(), earliest.is_some());
        if let (Some(next), Some(&earliest)) = (next, earliest) {
            assert!(next <= self.choices.timestamp(earliest), "{next:?}");
        }
        let now = Timestamp::from_origin(self.now());
        for (number, id) in lock(&self.shared.ids).iter().enumerate() {
            let Some(id) = *id else { continue };
            let deadline = self.running.get(&number).copied().flatten();
            let deadline = deadline.map(|tick| self.choices.timestamp(tick));
            assert_eq!(self.real.deadline(id), deadline);
            let remaining = deadline.map(|at| at.saturating_since(now));
            assert_eq!(self.real.remaining(id), remaining);
        }
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    prop_oneof![
        span().prop_map(Plan::Start),
        any::<Index>().prop_map(Plan::Stop),
        (any::<Index>(), span()).prop_map(|(index, span)| Plan::Reset(index, span)),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let index = any::<Index>;
    prop_oneof![
        12 => (span(), prop::option::weighted(0.3, plan()))
            .prop_map(|(timeout, plan)| Call::Start(timeout, plan)),
        3 => index().prop_map(Call::Stop),
        4 => (index(), span()).prop_map(|(index, timeout)| Call::Reset(index, timeout)),
        2 => jump().prop_map(Call::Pass),
        6 => jump().prop_map(Call::Advance),
    ]
}

pub(crate) fn g10_any_sequence_of_calls_does_what_a_sorted_map_does<W: Tested>() {
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let calls = prop::collection::vec(call(), 1..120);
    let after = prop::collection::vec(call(), 0..10);
    let result = runner.run(&(choices(), calls, after), |(choices, calls, after)| {
        let mut pair = Pair::<W>::new(choices);
        for call in calls.into_iter().chain([Call::Shutdown]).chain(after) {
            pair.call(call);
            pair.compare();
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
