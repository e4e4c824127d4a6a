//! The calls that the model of waits makes, and what it knows of a wait.

use crate::support::bell::Bell;
use crate::support::spans::{Span, jump, span};
use proptest::prelude::*;
use request_purgatory::{
    CheckBound, future::Listener, future::WaitError, future::WaitFuture, future::WaitOperation,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

pub(crate) const KEYS: u8 = 6;

/// Names a wait, whatever became of it: that of this number, counted round and round.
pub(crate) type Pick = u16;

#[derive(Debug, Clone)]
pub(crate) enum Call {
    WaitFuture(Vec<u8>, Starting),
    /// At ranks.
    WaitOn(Vec<(u8, Option<u64>)>, Starting),
    Listen(Vec<u8>, Span),
    /// The listener listens to this key as well.
    Also(Pick, u8),
    /// What the listener has waited for is there.
    Satisfied(Pick),
    /// From now on the predicate answers so.
    Answer(Pick, Answer),
    Check(u8, By, Reach),
    CheckLater(u8),
    /// As one event.
    CheckAll(Vec<u8>),
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

#[derive(Debug, Clone, Copy)]
pub(crate) enum By {
    Key,
    Resolved,
    /// Resolved for this call only.
    ResolvedAnew,
}

/// How far a check goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    pub(crate) at_most: Option<usize>,
    pub(crate) up_to: Option<u64>,
    pub(crate) until_refused: bool,
}

pub(crate) const ALL: Reach = Reach {
    at_most: None,
    up_to: None,
    until_refused: false,
};

impl Reach {
    pub(crate) fn bound(self) -> CheckBound {
        let bound = self.at_most.map_or(CheckBound::all(), CheckBound::at_most);
        let bound = self.up_to.into_iter().fold(bound, CheckBound::up_to);
        match self.until_refused {
            true => bound.until_refused(),
            false => bound,
        }
    }
}

/// A wait that begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Starting {
    pub(crate) timeout: Span,
    /// What the predicate answers when it is asked for the first time.
    pub(crate) first: Answer,
    /// What it answers from then on.
    pub(crate) then: Answer,
}

/// What a predicate does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    Found,
    Panic,
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

/// How often what happened.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) completed: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) shut_down: u64,
    pub(crate) aborted: u64,
    pub(crate) checks: u64,
    pub(crate) missed_checks: u64,
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
    pub(crate) keys: BTreeMap<u8, Option<u64>>,
    /// `None` never expires.
    pub(crate) deadline: Option<u64>,
    /// `None` is a listener's.
    pub(crate) says: Option<Arc<Mutex<Answer>>>,
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
    let starting = || {
        let starting = (span(), answer(18, 1), answer(18, 1));
        starting.prop_map(|(timeout, first, then)| Starting {
            timeout,
            first,
            then,
        })
    };
    let rank = || prop::option::of(0..4_u64);
    let keys = prop::collection::vec(key(), 0..4);
    let on = prop::collection::vec((key(), rank()), 0..4);
    let listen = (prop::collection::vec(key(), 0..3), span());
    let by = prop_oneof![
        2 => Just(By::Key),
        1 => Just(By::Resolved),
        1 => Just(By::ResolvedAnew),
    ];
    let reach = (
        prop::option::of(0..4_usize),
        rank(),
        prop::bool::weighted(0.2),
    );
    let reach = reach.prop_map(|(at_most, up_to, until_refused)| Reach {
        at_most,
        up_to,
        until_refused,
    });
    prop_oneof![
        5 => (keys, starting()).prop_map(|(keys, starting)| Call::WaitFuture(keys, starting)),
        5 => (on, starting()).prop_map(|(on, starting)| Call::WaitOn(on, starting)),
        4 => (pick(), answer(2, 7)).prop_map(|(pick, answer)| Call::Answer(pick, answer)),
        3 => listen.prop_map(|(keys, timeout)| Call::Listen(keys, timeout)),
        3 => (pick(), key()).prop_map(|(pick, key)| Call::Also(pick, key)),
        1 => pick().prop_map(Call::Satisfied),
        7 => (key(), by, reach).prop_map(|(key, by, reach)| Call::Check(key, by, reach)),
        2 => key().prop_map(Call::CheckLater),
        1 => prop::collection::vec(key(), 0..4).prop_map(Call::CheckAll),
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
