//! What is done to a tracker, by whom, and what comes of it.

use crate::support::expiries::{self, Call, Common, common, planned};
use crate::support::hashing::Hashing;
use crate::support::spans::{Span, span};
use crate::support::{Mint, Token, lock};
use proptest::prelude::*;
use request_purgatory_tracker::{FencingToken, RejectReason, Rejected, Tracker, WeakRef};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

pub(crate) const KEYS: u8 = 6;

/// Which token.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which {
    /// The last one of the key, or one this number of tokens before it.
    Own(usize),
    /// Any one, perhaps of another key.
    Any(usize),
    /// The next that will be given out.
    Next,
}

/// What is done to a tracker, from outside or by a callback.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Whether it may replace a value; and what the callback of the value does.
    Track(bool, u8, Span, Plan),
    ReplaceIf(u8, Which, Span, Plan),
    /// With this token, or with any.
    Complete(u8, Option<Which>),
    Reschedule(u8, Option<Which>, Span),
    /// Every value of a key below goes, if it is of this parity. Perhaps the first question about one of them panics.
    Withdraw(u8, usize, bool),
    Advance,
    Shutdown,
    /// Of a callback.
    Panic,
}

pub(crate) type Plan = Vec<Action>;

#[derive(Clone)]
pub(crate) struct Value {
    pub(crate) number: usize,
    pub(crate) plan: Plan,
    _alive: Arc<Token>,
}

/// A refusal gives the number of a value back.
pub(crate) type Refused = (RejectReason, usize);

/// An action on a key, with the token that it had, and what came of it. Values are known by their numbers.
#[derive(Debug)]
pub(crate) enum Did {
    Track(
        bool,
        u8,
        usize,
        Duration,
        Result<(FencingToken, Option<usize>), Refused>,
    ),
    ReplaceIf(
        u8,
        FencingToken,
        usize,
        Duration,
        Result<(FencingToken, usize), Refused>,
    ),
    Complete(u8, Option<FencingToken>, Option<usize>),
    Reschedule(u8, Option<FencingToken>, Duration, bool),
    /// `None` if it panicked.
    Withdraw(u8, usize, Option<Vec<(u8, usize)>>),
    Advance(usize),
    Shutdown(Vec<(u8, usize)>),
}

/// All that can be asked without changing anything.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) common: Common,
    pub(crate) keys: Vec<u8>,
    /// By key: whether it is there, its value, its token, and the time that it has.
    pub(crate) by_key: Vec<(bool, Option<usize>, Option<FencingToken>, Option<Duration>)>,
}

/// What callbacks did and saw, in the order in which they did. (They see nothing of a tracker that is dropped.)
#[derive(Debug)]
pub(crate) enum Event {
    Told((u8, usize, FencingToken), Option<Seen>),
    Did(Did, Seen),
    Panicked,
}

pub(crate) type Real = Tracker<u8, Value, Hashing>;

/// What callbacks need.
pub(crate) struct Shared {
    pub(crate) tracker: OnceLock<WeakRef<Real>>,
    pub(crate) next: Mutex<usize>,
    /// All that were given out, and the number of the first.
    pub(crate) tokens: Mutex<Vec<(u8, FencingToken)>>,
    pub(crate) first: u64,
    pub(crate) log: Mutex<Vec<Event>>,
    pub(crate) tick: Duration,
    pub(crate) alive: Mint,
}

impl Shared {
    pub(crate) fn log(&self, event: Event) {
        lock(&self.log).push(event);
    }

    pub(crate) fn expire(&self, key: u8, value: Value, token: FencingToken) {
        let tracker = self.tracker.get().and_then(WeakRef::upgrade);
        let seen = tracker.as_ref().map(Self::look);
        self.log(Event::Told((key, value.number, token), seen));
        let Some(tracker) = tracker else { return };
        for action in &value.plan {
            if matches!(action, Action::Panic) {
                self.log(Event::Panicked);
                panic_any("intended");
            }
            if let Some(did) = self.perform(&tracker, action) {
                self.log(Event::Did(did, Self::look(&tracker)));
            }
        }
    }

    pub(crate) fn value(&self, plan: &Plan) -> (usize, Value) {
        let number = *lock(&self.next);
        *lock(&self.next) += 1;
        let value = Value {
            number,
            plan: plan.clone(),
            _alive: Arc::new(self.alive.token(number as u64)),
        };
        (number, value)
    }

    pub(crate) fn token(&self, key: u8, which: Which) -> FencingToken {
        let tokens = lock(&self.tokens);
        let mut own = tokens.iter().rev().filter(|(other, _)| *other == key);
        let found = match which {
            Which::Own(back) => own.nth(back),
            Which::Any(at) => at.checked_rem(tokens.len()).map(|at| &tokens[at]),
            Which::Next => None,
        };
        let next = FencingToken::from(self.first + tokens.len() as u64);
        found.map_or(next, |(_, token)| *token)
    }

    pub(crate) fn given(&self, key: u8, token: FencingToken) {
        lock(&self.tokens).push((key, token));
    }

    pub(crate) fn perform(&self, real: &Real, action: &Action) -> Option<Did> {
        let of = |span: &Span| span.of(self.tick);
        let number_of = |value: Value| value.number;
        let back = |rejected: Rejected<Value>| {
            let (reason, value) = rejected.into_parts();
            (reason, value.number)
        };
        let numbers = |all: Vec<(u8, Value)>| {
            let all = all.into_iter();
            all.map(|(key, value)| (key, value.number)).collect()
        };
        Some(match *action {
            Action::Track(replaces, key, ref span, ref plan) => {
                let ((number, value), timeout) = (self.value(plan), of(span));
                let tracked = match replaces {
                    true => real.track(key, value, timeout),
                    false => {
                        let tracked = real.try_track(key, value, timeout);
                        tracked.map(|token| (token, None))
                    }
                };
                let result = tracked.map_err(back);
                let result = result.map(|(token, replaced)| (token, replaced.map(number_of)));
                result.iter().for_each(|(token, _)| self.given(key, *token));
                Did::Track(replaces, key, number, timeout, result)
            }
            Action::ReplaceIf(key, which, ref span, ref plan) => {
                let ((number, value), timeout) = (self.value(plan), of(span));
                let token = self.token(key, which);
                let result = real.replace_if(&key, token, value, timeout).map_err(back);
                let result = result.map(|(token, replaced)| (token, replaced.number));
                result.iter().for_each(|(token, _)| self.given(key, *token));
                Did::ReplaceIf(key, token, number, timeout, result)
            }
            Action::Complete(key, which) => {
                let token = which.map(|which| self.token(key, which));
                let value = match token {
                    Some(token) => real.complete_if(&key, token),
                    None => real.complete(&key),
                };
                Did::Complete(key, token, value.map(number_of))
            }
            Action::Reschedule(key, which, ref span) => {
                let (token, timeout) = (which.map(|which| self.token(key, which)), of(span));
                let rescheduled = match token {
                    Some(token) => real.reschedule_if(&key, token, timeout),
                    None => real.reschedule(&key, timeout),
                };
                Did::Reschedule(key, token, timeout, rescheduled)
            }
            Action::Withdraw(below, parity, may_panic) => {
                let wanted = |key: &u8, value: &Value| {
                    let is_wanted = *key < below && value.number % 2 == parity;
                    if is_wanted && may_panic {
                        panic_any("intended");
                    }
                    is_wanted
                };
                let withdraw = AssertUnwindSafe(|| real.withdraw_where(wanted));
                let withdrawn = catch_unwind(withdraw).ok().map(numbers);
                assert!(may_panic || withdrawn.is_some());
                Did::Withdraw(below, parity, withdrawn)
            }
            Action::Advance => Did::Advance(real.advance()),
            Action::Shutdown => Did::Shutdown(numbers(real.shutdown())),
            Action::Panic => return None,
        })
    }

    pub(crate) fn look(real: &Real) -> Seen {
        let mut keys = real.keys();
        keys.sort_unstable();
        let of = |key: u8| {
            (
                real.contains(&key),
                real.get(&key).map(|value| value.number),
                real.token(&key),
                real.remaining(&key),
            )
        };
        Seen {
            common: common!(real),
            keys,
            by_key: (0..KEYS).map(of).collect(),
        }
    }
}

pub(crate) fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        6 => Just(Which::Own(0)),
        2 => (1..4_usize).prop_map(Which::Own),
        2 => any::<usize>().prop_map(Which::Any),
        1 => Just(Which::Next),
    ]
}

pub(crate) fn action(depth: u32) -> BoxedStrategy<Action> {
    let (key, below) = (|| 0..KEYS, || 0..=KEYS);
    let (plan, perhaps) = (|| plan(depth), || prop::option::of(which()));
    prop_oneof![
        10 => (any::<bool>(), key(), span(), plan())
            .prop_map(|(replaces, key, timeout, plan)| Action::Track(replaces, key, timeout, plan)),
        3 => (key(), which(), span(), plan())
            .prop_map(|(key, which, timeout, plan)| Action::ReplaceIf(key, which, timeout, plan)),
        5 => (key(), perhaps()).prop_map(|(key, which)| Action::Complete(key, which)),
        6 => (key(), perhaps(), span())
            .prop_map(|(key, which, timeout)| Action::Reschedule(key, which, timeout)),
        2 => (below(), 0..2_usize, any::<bool>())
            .prop_map(|(below, parity, may_panic)| Action::Withdraw(below, parity, may_panic)),
    ]
    .boxed()
}

/// What a callback does, with callbacks within it.
pub(crate) fn plan(depth: u32) -> BoxedStrategy<Plan> {
    let seldom = [Action::Advance, Action::Panic, Action::Shutdown];
    planned(depth, action, seldom)
}

pub(crate) fn call() -> impl Strategy<Value = Call<Action>> {
    expiries::call(action(2), [26, 2, 6, 3])
}
