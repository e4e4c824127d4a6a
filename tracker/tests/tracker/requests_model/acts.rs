//! What is done to `Requests`, by whom, and what comes of it.

use crate::support::expiries::{self, Call, Common, common, planned};
use crate::support::hashing::Hashing;
use crate::support::spans::{Span, span};
use crate::support::{Mint, Token, lock};
use proptest::prelude::*;
use request_purgatory::WaitError;
use request_purgatory_tracker::{
    RejectReason, Rejected, Requests, Responded, ResponseFuture, WeakRef,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

pub(crate) const IDS: u8 = 6;
/// Above all numbers of responses: what one that fails has for its response, beside its id.
pub(crate) const FAILED: usize = 1 << 20;

/// Names a request, whatever became of it: that of this number, counted round and round.
pub(crate) type Pick = u16;

/// What is done to requests, from outside, by a waker, or by the closure that fails others.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Whether it is polled at once, and what its waker does.
    Request(u8, Span, bool, Plan),
    /// With what the destructor of a response does that no task gets.
    Respond(u8, Plan),
    Reschedule(u8, Span),
    /// Every request with an id below fails; and what is done when the response of each is made.
    Fail(u8, Plan),
    /// Perhaps by another task than before.
    Poll(Pick, bool),
    Drop(Pick),
    Advance,
    Shutdown,
    /// Of a waker or a closure.
    Panic,
}

pub(crate) type Plan = Vec<Action>;

/// A response, known by its number.
pub(crate) struct Response {
    pub(crate) number: usize,
    /// What its destructor does, unless the test gets it.
    pub(crate) plan: Plan,
    pub(crate) shared: Weak<Shared>,
    _alive: Token,
}

impl Response {
    fn got(mut self) -> usize {
        self.plan.clear();
        self.number
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        let shared = self.shared.upgrade().filter(|_| !self.plan.is_empty());
        let real = shared
            .as_ref()
            .and_then(|shared| shared.real.get()?.upgrade());
        if let (Some(shared), Some(real)) = (shared, real) {
            let _inside = Inside::of(&shared);
            shared.log(Event::Dropped(shared.look(&real)));
            shared.follow(&real, &self.plan, false);
        }
    }
}

pub(crate) type Answer = Result<usize, WaitError>;

/// An action, and what came of it.
#[derive(Debug)]
pub(crate) enum Did {
    Request(u8, usize, Duration, Result<bool, (RejectReason, u8)>),
    Respond(u8, usize, Responded<usize>),
    Reschedule(u8, Duration, bool),
    /// `None` if a closure panicked.
    Fail(Option<usize>),
    /// With the number of the task.
    Poll(usize, usize, Poll<Answer>),
    Drop(usize),
    Advance(usize),
    Shutdown,
}

/// All that can be asked without changing anything.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) common: Common,
    /// The ids of those that are pending.
    pub(crate) pending: Vec<u8>,
    pub(crate) late: u64,
    pub(crate) unknown: u64,
}

/// What user code did and saw, in the order in which it did. (It sees nothing of requests that are dropped.)
#[derive(Debug)]
pub(crate) enum Event {
    /// With the number of the task.
    Woken(usize, usize, Option<Seen>),
    /// A call that lets every request with an id below fail begins.
    Failing(u8),
    /// It asks for the response of this id.
    Asked(u8, Seen),
    /// What was seen after it comes with it, or in a later event: where nothing waits for the end of a call, user code
    /// that this causes comes in between.
    Did(Did, Option<Seen>),
    Saw(Seen),
    /// The destructor of a response begins.
    Dropped(Seen),
    /// The waker, closure or destructor that began last, and has not ended, ends.
    Returned,
    Panicked,
}

pub(crate) type Real = Requests<u8, Response, Hashing>;

/// A task of a request, and which one.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) number: usize,
    pub(crate) turn: usize,
    pub(crate) plan: Plan,
    pub(crate) shared: Weak<Shared>,
}

/// Inside a call that makes others wait for its end, until this is dropped.
struct Inside<'a>(&'a Shared, bool);

impl<'a> Inside<'a> {
    fn of(shared: &'a Shared) -> Self {
        Self(shared, shared.at_once.swap(false, Ordering::SeqCst))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.at_once.store(self.1, Ordering::SeqCst);
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        let _inside = Inside::of(&shared);
        let real = shared.real.get().and_then(WeakRef::upgrade);
        let seen = real.as_ref().map(|real| shared.look(real));
        shared.log(Event::Woken(self.number, self.turn, seen));
        match real {
            Some(real) => shared.follow(&real, &self.plan, true),
            None => shared.log(Event::Returned),
        }
    }
}

pub(crate) struct Asked {
    pub(crate) request: ResponseFuture<u8, Response, Hashing>,
    pub(crate) task: Arc<Task>,
}

/// What user code needs.
pub(crate) struct Shared {
    pub(crate) real: OnceLock<WeakRef<Real>>,
    /// By number. `None` for those that were refused, dropped, or have resolved.
    pub(crate) asked: Mutex<Vec<Option<Asked>>>,
    /// The last request with each id.
    pub(crate) last: Mutex<BTreeMap<u8, usize>>,
    /// A pass runs user code at once: that does not shut down.
    pub(crate) passing: AtomicBool,
    pub(crate) inline: bool,
    /// User code is not inside a call that makes others wait for its end: it is asked about requests that are to fail.
    pub(crate) at_once: AtomicBool,
    pub(crate) responses: Mutex<usize>,
    pub(crate) log: Mutex<Vec<Event>>,
    pub(crate) tick: Duration,
    pub(crate) alive: Mint,
}

impl Shared {
    pub(crate) fn log(&self, event: Event) {
        lock(&self.log).push(event);
    }

    fn response(self: &Arc<Self>, number: usize, plan: &Plan) -> Response {
        Response {
            number,
            plan: plan.clone(),
            shared: Arc::downgrade(self),
            _alive: self.alive.token(number as u64),
        }
    }

    /// Does what is planned, inside a call.
    pub(crate) fn follow(self: &Arc<Self>, real: &Real, plan: &Plan, may_panic: bool) {
        for action in plan {
            if matches!(action, Action::Panic) && may_panic {
                self.log(Event::Panicked);
                panic_any("intended");
            }
            let before = lock(&self.log).len();
            let Some(did) = self.perform(real, action) else {
                continue;
            };
            let seen = self.look(real);
            // (What a call does that fails others, it does after it has asked.)
            if self.at_once.load(Ordering::SeqCst) && !matches!(did, Did::Fail(_)) {
                lock(&self.log).insert(before, Event::Did(did, None));
                self.log(Event::Saw(seen));
            } else {
                self.log(Event::Did(did, Some(seen)));
            }
        }
        self.log(Event::Returned);
    }

    pub(crate) fn perform(self: &Arc<Self>, real: &Real, action: &Action) -> Option<Did> {
        Some(match *action {
            Action::Request(id, span, polled, ref plan) => {
                let (number, timeout) = (lock(&self.asked).len(), span.of(self.tick));
                let result = real.request(id, timeout).map_err(Rejected::into_parts);
                let result = result.map(|request| {
                    assert_eq!(*request.id(), id);
                    lock(&self.last).insert(id, number);
                    let task = Arc::new(Task {
                        number,
                        turn: 0,
                        plan: plan.clone(),
                        shared: Arc::downgrade(self),
                    });
                    Asked { request, task }
                });
                let (asked, result) = match result {
                    Ok(asked) => (Some(asked), Ok(polled)),
                    Err(refused) => (None, Err(refused)),
                };
                lock(&self.asked).push(asked);
                if result == Ok(true) {
                    assert_eq!(self.poll(number, false), Some((0, Poll::Pending)));
                }
                Did::Request(id, number, timeout, result)
            }
            Action::Respond(id, ref plan) => {
                let response = *lock(&self.responses);
                *lock(&self.responses) += 1;
                let responded = match real.respond(&id, self.response(response, plan)) {
                    Responded::Delivered => Responded::Delivered,
                    Responded::Late(back) => Responded::Late(back.got()),
                    Responded::Unknown(back) => Responded::Unknown(back.got()),
                };
                Did::Respond(id, response, responded)
            }
            Action::Reschedule(id, span) => {
                let timeout = span.of(self.tick);
                Did::Reschedule(id, timeout, real.reschedule(&id, timeout))
            }
            Action::Fail(below, ref plan) => {
                self.log(Event::Failing(below));
                let response = |id: &u8| {
                    self.log(Event::Asked(*id, self.look(real)));
                    self.follow(real, plan, true);
                    self.response(FAILED + usize::from(*id), &Vec::new())
                };
                let fail = AssertUnwindSafe(|| match below {
                    IDS => real.fail_all_with(response),
                    _ => real.fail_where(|id| *id < below, response),
                });
                Did::Fail(catch_unwind(fail).ok())
            }
            Action::Poll(pick, anew) => {
                let number = self.pick(pick)?;
                let (turn, poll) = self.poll(number, anew)?;
                Did::Poll(number, turn, poll)
            }
            Action::Drop(pick) => {
                let number = self.pick(pick)?;
                let asked = lock(&self.asked)[number].take();
                drop(asked?);
                Did::Drop(number)
            }
            // (A pass that is no part of another one is made from outside.)
            Action::Advance if self.at_once.load(Ordering::SeqCst) => return None,
            Action::Advance => {
                let passing = self.passing.swap(self.inline, Ordering::SeqCst);
                let expired = real.advance();
                self.passing.store(passing, Ordering::SeqCst);
                Did::Advance(expired)
            }
            Action::Shutdown if self.passing.load(Ordering::SeqCst) => return None,
            Action::Shutdown => {
                real.shutdown();
                Did::Shutdown
            }
            Action::Panic => return None,
        })
    }

    pub(crate) fn pick(&self, pick: Pick) -> Option<usize> {
        usize::from(pick).checked_rem(lock(&self.asked).len())
    }

    pub(crate) fn poll(&self, number: usize, anew: bool) -> Option<(usize, Poll<Answer>)> {
        let mut asked = lock(&self.asked)[number].take()?;
        if anew {
            let turn = asked.task.turn + 1;
            asked.task = Arc::new(Task {
                turn,
                ..(*asked.task).clone()
            });
        }
        let turn = asked.task.turn;
        let waker = Waker::from(asked.task.clone());
        let poll = Pin::new(&mut asked.request).poll(&mut Context::from_waker(&waker));
        if poll.is_pending() {
            lock(&self.asked)[number] = Some(asked);
        }
        Some((turn, poll.map_ok(Response::got)))
    }

    pub(crate) fn look(&self, real: &Real) -> Seen {
        let mut pending = Vec::new();
        let list = |id: &u8| {
            pending.push(*id);
            false
        };
        assert_eq!(real.fail_where(list, |_| unreachable!("none is wanted")), 0);
        pending.sort_unstable();
        Seen {
            common: common!(real),
            pending,
            late: real.late(),
            unknown: real.unknown(),
        }
    }
}

pub(crate) fn action(depth: u32) -> BoxedStrategy<Action> {
    let id = || 0..IDS;
    let pick = any::<Pick>;
    let request = (id(), span(), prop::bool::weighted(0.6), plan(depth));
    prop_oneof![
        8 => request.prop_map(|(id, timeout, polled, plan)| Action::Request(id, timeout, polled, plan)),
        4 => (id(), plan(depth)).prop_map(|(id, plan)| Action::Respond(id, plan)),
        2 => (id(), span()).prop_map(|(id, timeout)| Action::Reschedule(id, timeout)),
        1 => (0..=IDS, plan(depth)).prop_map(|(below, plan)| Action::Fail(below, plan)),
        5 => (pick(), any::<bool>()).prop_map(|(pick, anew)| Action::Poll(pick, anew)),
        3 => pick().prop_map(Action::Drop),
    ]
    .boxed()
}

/// What a waker or a closure does, with wakers and closures within it.
pub(crate) fn plan(depth: u32) -> BoxedStrategy<Plan> {
    let seldom = [Action::Advance, Action::Panic, Action::Shutdown];
    planned(depth, action, seldom)
}

pub(crate) fn call() -> impl Strategy<Value = Call<Action>> {
    expiries::call(action(2), [22, 2, 4, 2])
}
