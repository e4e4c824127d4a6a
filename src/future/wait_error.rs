//! Why a wait ended without a value.

use super::reply::CompletionError;
use crate::error::{RejectReason, Rejected};
use crate::operation::Completion;
use std::error::Error;
use std::fmt;

/// Why a wait ended without a value, or why a listener is told of no more checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitError {
    /// The timeout passed first.
    Expired,
    /// The purgatory was shut down, or dropped.
    ShutDown,
    /// [`Builder::max_parked`](crate::Builder::max_parked) operations are parked already. It never waited.
    Full,
    /// As many operations as [`Builder::max_watchers_per_key`](crate::Builder::max_watchers_per_key) allows watch one of
    /// the keys. It never waited.
    KeyFull,
    /// The purgatory is being [drained](crate::Purgatory::drain). It never waited.
    Draining,
    /// There was no key to watch. The predicate of a wait was not asked.
    NoKeys,
    /// The predicate panicked, or the waker of a listener's task (or `Hash` or `Clone` of a key, or the clock, while it was being parked).
    Panicked,
    /// It was forced to end, by key or handle, without a value: the leader is lost, the topic deleted.
    Forced,
    /// It was cancelled, by key or handle.
    Cancelled,
    /// It was begun inside a predicate, inside another, and so on: more than eight deep. It never waited.
    Nested,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "nothing was found within the timeout",
            Self::ShutDown => "shut down before anything was found",
            Self::Full => "the limit of parked operations (`max_parked`) is reached",
            Self::KeyFull => {
                "the limit of operations that watch one key (`max_watchers_per_key`) is reached"
            }
            Self::Draining => "it is being drained, and takes nothing new",
            Self::Nested => "more than eight waits are nested in one another's predicates",
            Self::NoKeys => "a wait needs at least one key to watch",
            Self::Panicked => "the predicate panicked",
            Self::Forced => "forced to end before anything was found",
            Self::Cancelled => "cancelled before anything was found",
        })
    }
}

impl Error for WaitError {}

impl From<CompletionError> for WaitError {
    fn from(lost: CompletionError) -> Self {
        match lost {
            CompletionError::Cancelled => Self::Cancelled,
            CompletionError::Panicked => Self::Panicked,
        }
    }
}

/// For an operation that nothing was found for.
impl From<Completion> for WaitError {
    fn from(completion: Completion) -> Self {
        match completion {
            Completion::Satisfied => Self::Forced,
            Completion::Expired => Self::Expired,
            Completion::Cancelled => Self::Cancelled,
            Completion::ShutDown => Self::ShutDown,
        }
    }
}

impl WaitError {
    pub(super) fn of<Op>(rejected: &Rejected<Op>) -> Self {
        match rejected.reason() {
            RejectReason::NoKeys => Self::NoKeys,
            // (The wheel of a purgatory takes every timeout, and every key any number of times.)
            RejectReason::Full
            | RejectReason::TooLong
            | RejectReason::Duplicate
            | RejectReason::StaleToken => Self::Full,
            RejectReason::KeyFull => Self::KeyFull,
            RejectReason::Draining => Self::Draining,
            RejectReason::ShutDown => Self::ShutDown,
            RejectReason::Panicked => Self::Panicked,
            RejectReason::Nested => Self::Nested,
        }
    }
}
