//! G9, G10, G12, G16, G17, G18 against a model: any sequence of calls, from outside and from callbacks, must do what it
//! does to a sorted map of deadlines, on whatever thread the callbacks run.

use crate::support::expiries::{self, Call, Common, Jobs, Runs, Waiting};
use crate::support::expiries::{calls, common, for_any, planned, runs};
use crate::support::spans::{Choices, Span, choices, chosen, span};
use crate::support::{Mint, Token, lock};
use crate::tested::{Tested, builder};
use proptest::prelude::*;
use proptest::sample::Index;
use request_purgatory::{
    Timer, purgatory::RejectReason, purgatory::Rejected, purgatory::WeakRef, time::Timestamp,
    timer::TimerId,
};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// What is done to a timer, from outside or by a callback.
#[derive(Debug, Clone)]
enum Action {
    /// With what its callback does.
    Start(Span, Vec<Action>),
    /// This number of them, without a plan.
    StartMany(Span, usize),
    Stop(Index),
    Reschedule(Index, Span),
    Advance,
    Shutdown,
    /// Of a callback.
    Panic,
}

struct Payload {
    number: usize,
    plan: Vec<Action>,
    _alive: Token,
}

/// An action, and what came of it.
#[derive(Debug)]
enum Did {
    /// A refusal gives a payload back.
    Start(usize, Duration, Result<(), (RejectReason, usize)>),
    Stop(usize, Option<usize>),
    Reschedule(usize, Duration, bool),
    Advance(usize),
    Shutdown(Vec<usize>),
    Many(Vec<Did>),
}

/// All that can be asked without changing anything.
#[derive(Debug)]
struct Seen {
    common: Common,
    /// Of each timer, the deadline and the time until then.
    times: Vec<(Option<Timestamp>, Option<Duration>)>,
}

/// What callbacks did and saw, in the order in which they did. (They see nothing of a timer that is dropped.)
#[derive(Debug)]
enum Event {
    Told(usize, Option<Seen>),
    Did(Did, Seen),
    Panicked,
}

/// What callbacks need.
struct Shared<W: Tested> {
    timer: OnceLock<WeakRef<Timer<Payload, W>>>,
    /// By number. That of number 0 is an id of another timer; there is none of those that were refused.
    ids: Mutex<Vec<Option<TimerId>>>,
    log: Mutex<Vec<Event>>,
    tick: Duration,
    alive: Mint,
}

impl<W: Tested> Shared<W> {
    fn log(&self, event: Event) {
        lock(&self.log).push(event);
    }

    fn expire(&self, payload: Payload) {
        let timer = self.timer.get().and_then(WeakRef::upgrade);
        let seen = timer.as_ref().map(|timer| self.look(timer));
        self.log(Event::Told(payload.number, seen));
        let Some(timer) = timer else { return };
        for action in &payload.plan {
            if matches!(action, Action::Panic) {
                self.log(Event::Panicked);
                std::panic::panic_any("intended");
            }
            if let Some(did) = self.perform(&timer, action) {
                let seen = self.look(&timer);
                self.log(Event::Did(did, seen));
            }
        }
    }

    fn perform(&self, timer: &Timer<Payload, W>, action: &Action) -> Option<Did> {
        Some(match action {
            Action::Start(span, plan) => {
                let (timeout, number) = (span.of(self.tick), lock(&self.ids).len());
                let payload = Payload {
                    number,
                    plan: plan.clone(),
                    _alive: self.alive.token(number as u64),
                };
                let started = timer.start(timeout, payload).map_err(Rejected::into_parts);
                let started = started.map_err(|(reason, back)| (reason, back.number));
                lock(&self.ids).push(started.ok());
                Did::Start(number, timeout, started.map(|_| ()))
            }
            Action::StartMany(span, count) => {
                let start = Action::Start(*span, Vec::new());
                let all = (0..*count).filter_map(|_| self.perform(timer, &start));
                Did::Many(all.collect())
            }
            Action::Stop(index) => {
                let (number, id) = self.pick(*index)?;
                Did::Stop(number, timer.stop(id).map(|payload| payload.number))
            }
            Action::Reschedule(index, span) => {
                let ((number, id), timeout) = (self.pick(*index)?, span.of(self.tick));
                Did::Reschedule(number, timeout, timer.reschedule(id, timeout))
            }
            Action::Advance => Did::Advance(timer.advance()),
            Action::Shutdown => {
                let remains = timer.shutdown().into_iter();
                Did::Shutdown(remains.map(|payload| payload.number).collect())
            }
            Action::Panic => return None,
        })
    }

    /// The timer meant by `index`, whatever became of it.
    fn pick(&self, index: Index) -> Option<(usize, TimerId)> {
        let ids = lock(&self.ids);
        let number = index.index(ids.len());
        ids[number].map(|id| (number, id))
    }

    fn look(&self, timer: &Timer<Payload, W>) -> Seen {
        let ids = lock(&self.ids);
        let times = ids.iter().map(|id| match *id {
            Some(id) => (timer.deadline(id), timer.remaining(id)),
            None => (None, None),
        });
        Seen {
            common: common!(timer),
            times: times.collect(),
        }
    }
}

/// Both, side by side.
struct Pair<W: Tested> {
    real: Timer<Payload, W>,
    shared: Arc<Shared<W>>,
    model: Waiting,
}

impl<W: Tested> Pair<W> {
    fn new(choices: Choices, runs: Runs) -> Self {
        let jobs = Jobs::new(runs);
        let (other, _) = chosen!(builder::<(), W>("other"), choices);
        let other = other.max_parked(1).wheel_size(2).build(drop);
        let other = other.expect("no threads to refuse");
        let foreign = other.start(Duration::ZERO, ()).ok();
        let shared = Arc::new(Shared {
            timer: OnceLock::new(),
            ids: Mutex::new(vec![foreign]),
            log: Mutex::default(),
            tick: choices.tick,
            alive: Mint::default(),
        });
        let (builder, clock) = chosen!(builder::<Payload, W>("model"), choices);
        let callback = shared.clone();
        let real = builder
            .dispatch(jobs.dispatch())
            .build(move |payload| callback.expire(payload))
            .expect("no threads to refuse");
        assert!(shared.timer.set(real.downgrade()).is_ok());
        Self {
            real,
            shared,
            model: Waiting::new(choices, clock, jobs),
        }
    }

    fn call(&mut self, call: Call<Action>) {
        let before = self.model.stats.expired;
        let mut expired = None;
        match call {
            Call::Do(action) => {
                let did = self.shared.perform(&self.real, &action);
                self.did(did);
            }
            Call::Pass(span) => self.model.pass_time(span),
            Call::Advance(span) => {
                self.model.pass_time(span);
                self.model.begin_pass();
                expired = Some(self.real.advance());
            }
            Call::Run(which, by_drop) => self.model.jobs.run(which, by_drop),
        }
        self.replay();
        self.model.end_call(before, expired);
        let alive = self.model.running.len() + self.model.ended.len();
        assert_eq!(self.shared.alive.living(), alive as u64);
        let seen = self.shared.look(&self.real);
        self.compare(seen);
    }

    /// Goes through what callbacks did meanwhile.
    fn replay(&mut self) {
        let events = std::mem::take(&mut *lock(&self.shared.log));
        for event in events {
            match event {
                Event::Told(number, seen) => {
                    self.model.told(number);
                    self.compare(seen.expect("the timer is there"));
                }
                Event::Did(did, seen) => {
                    self.did(Some(did));
                    self.compare(seen);
                }
                Event::Panicked => self.model.stats.panicked += 1,
            }
        }
        self.model.returned();
    }

    fn did(&mut self, did: Option<Did>) {
        let model = &mut self.model;
        match did {
            Some(Did::Start(number, timeout, result)) => {
                let (open, full) = (!model.closed, model.is_full() == Some(true));
                match result {
                    Ok(()) if open && !full => return model.start(number, timeout),
                    Err((RejectReason::ShutDown, back)) if !open => assert_eq!(back, number),
                    Err((RejectReason::Full, back)) if open && full => assert_eq!(back, number),
                    Err((RejectReason::TooLong, back)) if open && !W::ENDLESS => {
                        assert_eq!(back, number);
                    }
                    other => panic!("{other:?}, open: {open}, full: {full}"),
                }
                model.stats.rejected += 1;
            }
            Some(Did::Stop(number, Some(back))) => {
                assert_eq!(back, number);
                model.end(number);
                model.stats.cancelled += 1;
            }
            Some(Did::Stop(number, None)) => model.is_gone(number),
            Some(Did::Reschedule(number, timeout, true)) => {
                assert!(!model.is_overdue(number));
                model.reschedule(number, timeout);
            }
            // Past its deadline it cannot be, whoever comes first.
            Some(Did::Reschedule(number, ..)) if model.is_overdue(number) => {}
            Some(Did::Reschedule(number, _, false)) if W::ENDLESS => model.is_gone(number),
            Some(Did::Advance(expired)) => model.nested_pass(expired),
            Some(Did::Shutdown(remains)) => {
                model.stats.shut_down += remains.len() as u64;
                remains.into_iter().for_each(|number| model.end(number));
                model.are_gone();
                model.closed = true;
            }
            Some(Did::Many(all)) => all.into_iter().for_each(|did| self.did(Some(did))),
            Some(Did::Reschedule(..)) | None => {}
        }
    }

    fn compare(&mut self, seen: Seen) {
        for (number, times) in seen.times.into_iter().enumerate() {
            if times.0.is_none() && self.model.is_due(number) {
                self.model.is_gone(number);
            }
            assert_eq!(times, self.model.times(number), "{number}");
        }
        self.model.compare(&seen.common);
    }

    /// The last handle is dropped: what runs is dropped with it, and what has expired is told.
    fn drop_timer(self) {
        let Self { shared, model, .. } = self;
        drop(self.real);
        assert_eq!(shared.alive.living(), model.ended.len() as u64);
        model.jobs.run_all();
        let events = std::mem::take(&mut *lock(&shared.log)).into_iter();
        let told = events.map(|event| match event {
            Event::Told(number, None) => number,
            other => panic!("{other:?}"),
        });
        let mut told = told.collect::<Vec<_>>();
        told.sort_unstable();
        assert!(told.iter().eq(model.ended.keys()));
        assert_eq!(shared.alive.living(), 0);
    }
}

fn action(depth: u32) -> BoxedStrategy<Action> {
    let start = (span(), plan(depth));
    let reschedule = (any::<Index>(), span());
    prop_oneof![
        12 => start.prop_map(|(timeout, plan)| Action::Start(timeout, plan)),
        3 => any::<Index>().prop_map(Action::Stop),
        4 => reschedule.prop_map(|(index, timeout)| Action::Reschedule(index, timeout)),
    ]
    .boxed()
}

/// What a callback does, with callbacks within it.
fn plan(depth: u32) -> BoxedStrategy<Vec<Action>> {
    let seldom = [Action::Advance, Action::Panic, Action::Shutdown];
    planned(depth, action, seldom)
}

/// Mostly a few, now and then more than are expired at a time.
fn several() -> impl Strategy<Value = Action> {
    let count = prop_oneof![4 => 1..8_usize, 1 => 70..140_usize];
    (span(), count).prop_map(|(timeout, count)| Action::StartMany(timeout, count))
}

fn call() -> impl Strategy<Value = Call<Action>> {
    let action = prop_oneof![19 => action(2), 1 => several()];
    expiries::call(action.boxed(), [20, 2, 6, 3])
}

pub(crate) fn g10_any_sequence_of_calls_does_what_a_sorted_map_does<W: Tested>() {
    let all = || (choices(), runs(), calls(call, Action::Shutdown));
    for_any(all, |(choices, runs, calls)| {
        let mut pair = Pair::<W>::new(choices, runs);
        calls.into_iter().for_each(|call| pair.call(call));
        pair.drop_timer();
    });
}
