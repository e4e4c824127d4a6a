//! The calls that the model of waits makes, and what it knows of a wait.

use crate::support::bell::Bell;
use crate::support::spans::{Span, jump, span};
use proptest::prelude::*;
use request_purgatory::future::{Listener, WaitError, WaitFuture, WaitOperation};
use request_purgatory::purgatory::Stats;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

pub(crate) const KEYS: u8 = 6;

/// Names a wait, whatever became of it: that of this number, counted round and round.
pub(crate) type Pick = u16;

#[derive(Debug, Clone)]
pub(crate) enum Call {
    /// What the predicate answers at first, and from then on.
    Wait(Vec<u8>, Span, [Answer; 2]),
    Listen(Vec<u8>, Span),
    /// The listener listens to this key as well.
    Also(Pick, u8),
    /// What the listener has waited for is there.
    Satisfied(Pick),
    /// From now on the predicate answers so.
    Answer(Pick, Answer),
    Check(u8),
    CheckLater(u8),
    Force(u8),
    CancelKey(u8),
    CancelHandle(Pick),
    Reschedule(Pick, Span),
    Poll(Pick),
    Drop(Pick),
    /// The clock moves, and no thread drives the timer.
    Pass(Span),
    /// The clock moves, and the timer is driven.
    Advance(Span),
    Shutdown,
}

/// What a predicate does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    Found,
    Panic,
}

/// What a predicate does from now on.
pub(crate) type Says = Arc<Mutex<Answer>>;

impl Answer {
    /// How it ends the wait of this number, if it does.
    pub(crate) fn end(self, number: usize) -> Option<End> {
        match self {
            Self::Nothing => None,
            Self::Found => Some(Ok(number)),
            Self::Panic => Some(Err(WaitError::Panicked)),
        }
    }
}

pub(crate) enum Waiting {
    Wait(WaitFuture<WaitOperation<u8>, usize>),
    Listener(Listener<u8>),
}

impl Waiting {
    pub(crate) fn handle(&self) -> Option<&Handle> {
        match self {
            Self::Wait(wait) => wait.handle(),
            Self::Listener(listener) => listener.handle(),
        }
    }
}

pub(crate) type Handle = request_purgatory::Handle<WaitOperation<u8>>;

/// How often what happened, as far as the model knows.
pub(crate) fn counts(stats: &Stats) -> [u64; 7] {
    [
        stats.completed,
        stats.expired,
        stats.cancelled,
        stats.shut_down,
        stats.aborted,
        stats.checks,
        stats.missed_checks,
    ]
}

/// What it finds is the number of its wait.
pub(crate) type End = Result<usize, WaitError>;

/// A wait, and what is known of it.
pub(crate) struct Task {
    pub(crate) waiting: Waiting,
    /// The operation that its handle means, if it was parked.
    pub(crate) parked: Option<usize>,
    /// A key of the listener was checked.
    pub(crate) checked: bool,
    /// What [`Listener::also`] was told.
    pub(crate) also: BTreeSet<u8>,
    pub(crate) bell: Arc<Bell>,
    /// It was polled and told to wait, and the wait has not ended since.
    pub(crate) awaited: bool,
    /// Wake-ups that were due so far.
    pub(crate) wakes: usize,
    pub(crate) end: Option<End>,
}

/// What the model knows of an operation that is parked.
pub(crate) struct Parked {
    pub(crate) task: usize,
    pub(crate) keys: BTreeSet<u8>,
    /// `None` never expires.
    pub(crate) deadline: Option<u64>,
    /// `None` is a listener's.
    pub(crate) says: Option<Says>,
}

pub(crate) fn call() -> impl Strategy<Value = Call> {
    let key = || 0..KEYS;
    let pick = any::<Pick>;
    let answer = |nothing, found| {
        prop_oneof![
            nothing => Just(Answer::Nothing),
            found => Just(Answer::Found),
            1 => Just(Answer::Panic),
        ]
    };
    let keys = |most| prop::collection::vec(key(), 0..most);
    let wait = (keys(4), span(), [answer(18, 1), answer(18, 1)]);
    prop_oneof![
        10 => wait.prop_map(|(keys, timeout, answers)| Call::Wait(keys, timeout, answers)),
        4 => (pick(), answer(2, 7)).prop_map(|(pick, answer)| Call::Answer(pick, answer)),
        3 => (keys(3), span()).prop_map(|(keys, timeout)| Call::Listen(keys, timeout)),
        3 => (pick(), key()).prop_map(|(pick, key)| Call::Also(pick, key)),
        1 => pick().prop_map(Call::Satisfied),
        8 => key().prop_map(Call::Check),
        2 => key().prop_map(Call::CheckLater),
        1 => key().prop_map(Call::Force),
        1 => key().prop_map(Call::CancelKey),
        1 => pick().prop_map(Call::CancelHandle),
        2 => (pick(), span()).prop_map(|(pick, timeout)| Call::Reschedule(pick, timeout)),
        6 => pick().prop_map(Call::Poll),
        2 => pick().prop_map(Call::Drop),
        2 => jump().prop_map(Call::Pass),
        5 => jump().prop_map(Call::Advance),
    ]
}
