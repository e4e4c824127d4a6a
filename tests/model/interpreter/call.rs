//! The calls.

use crate::support::spans::{Choices, Span};
use std::time::Duration;

/// A purgatory, and what is done with it.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) choices: Choices,
    /// Completions of expired operations go through an executor.
    pub(crate) executor: bool,
    pub(crate) calls: Vec<Call>,
}

/// Names an operation, whatever became of it: that of this number, counted round and round.
pub(crate) type Pick = u16;

#[derive(Debug, Clone)]
pub(crate) enum Call {
    /// By plain keys.
    Park(Vec<u8>, Arriving),
    /// By watches of all kinds.
    ParkOn(Vec<On>, Arriving),
    /// One more resolution of the key.
    Resolve(u8),
    /// One less.
    Release(u8),
    /// From now on the operation answers so.
    Answer(Pick, Answer),
    Check(u8, By, Option<u64>),
    CheckLater(u8),
    CheckHandle(Pick),
    CancelKey(u8),
    CancelHandle(Pick),
    ForceKey(u8),
    ForceHandle(Pick),
    RescheduleKey(u8, Span),
    RescheduleHandle(Pick, Span),
    /// The handle, and the future of an awaited operation, which cancels that.
    DropHandle(Pick),
    /// The clock moves, and no thread drives the timer.
    Pass(Span),
    /// The clock moves, and the timer is driven.
    Advance(Span),
    Shutdown,
}

/// An operation that is to park.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arriving {
    pub(crate) timeout: Span,
    /// What it answers when it is asked on arrival.
    pub(crate) first: Answer,
    /// What it answers from then on.
    pub(crate) then: Answer,
    pub(crate) reading: Reading,
    /// Its end is awaited: by a future, not by `on_complete`. (That takes no reading.)
    pub(crate) awaited: bool,
    /// Its `on_complete` panics.
    pub(crate) fragile: bool,
}

/// What `try_complete` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    No,
    Yes,
    Panic,
}

/// One key to watch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct On {
    pub(crate) key: u8,
    pub(crate) rank: Option<u64>,
    pub(crate) way: Way,
}

/// How a key is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    Resolved,
    /// Resolved by another purgatory.
    Foreign,
}

/// How a key is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Key,
    Resolved,
    /// (Only without a rank.)
    ResolvedAfterLock,
}

/// What is said about the time of an arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reading {
    Unsaid,
    Ago(Span),
    Ahead(Span),
}

impl Arriving {
    /// One that cannot complete.
    pub(crate) fn plain(timeout: Duration) -> Self {
        Self {
            timeout: Span::Exactly(timeout),
            first: Answer::No,
            then: Answer::No,
            reading: Reading::Unsaid,
            awaited: false,
            fragile: false,
        }
    }
}
