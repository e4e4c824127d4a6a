//! Why a future ended without a value.

use crate::error::{RejectReason, Rejected};
use crate::operation::Completion;
use std::error::Error;
use std::fmt;

/// Why a future of this crate ended without a value, or why a listener reports no more checks.
///
/// A [completion](crate::Purgatory::completion) ends with two of them only, `Cancelled` and `Panicked`: its value says
/// how else the operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitError {
    /// The timeout passed first.
    Expired,
    /// The purgatory was shut down, or dropped.
    ShutDown,
    /// [`max_parked`](crate::purgatory::Builder::max_parked) operations are parked already. It never waited.
    Full,
    /// [`max_watchers_per_key`](crate::purgatory::Builder::max_watchers_per_key) operations watch one of the keys
    /// already. It never waited.
    KeyFull,
    /// The purgatory is being [drained](crate::Purgatory::drain). It never waited.
    Draining,
    /// There was no key to watch. The predicate of a wait was not called.
    NoKeys,
    /// The predicate or `try_complete` panicked, or the waker of a listener's task; or, while it was being parked, `Hash`
    /// or `Clone` of a key, or the clock.
    Panicked,
    /// It was forced to end, by key or handle, without a value: for instance the leader is lost, or the topic deleted.
    Forced,
    /// It was cancelled, by key or handle.
    Cancelled,
    /// More than eight waits are nested, each begun inside the predicate of another. It never waited.
    Nested,
    /// It was the first with a finite timeout, so the reaper was to be started, and the system refused the thread. It never
    /// waited; a later call tries again.
    Thread,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the timeout passed before a value was found",
            Self::ShutDown => "the purgatory was shut down before a value was found",
            Self::Full => "full: the limit of parked operations (`max_parked`) is reached",
            Self::KeyFull => {
                "a key is full: the limit of operations that watch it (`max_watchers_per_key`) is reached"
            }
            Self::Draining => "the purgatory is being drained, and refuses every new wait",
            Self::Nested => "too many nested waits: more than eight, each inside the predicate of another",
            Self::NoKeys => "no key was given, and a wait needs at least one to watch",
            Self::Panicked => "the predicate (`try_complete`), a waker, a key or the clock panicked",
            Self::Forced => "the wait was forced to end before a value was found",
            Self::Cancelled => "the wait was cancelled before a value was found",
            Self::Thread => "the system refused a thread, without which the timeout cannot fire",
        })
    }
}

impl Error for WaitError {}

/// For an operation whose predicate found no value.
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
            RejectReason::Full => Self::Full,
            RejectReason::TooLong | RejectReason::Duplicate | RejectReason::StaleToken => {
                unreachable!("the wheel of a purgatory takes every timeout, and it keeps no values")
            }
            RejectReason::KeyFull => Self::KeyFull,
            RejectReason::Draining => Self::Draining,
            RejectReason::ShutDown => Self::ShutDown,
            RejectReason::Panicked => Self::Panicked,
            RejectReason::Nested => Self::Nested,
            RejectReason::Thread => Self::Thread,
        }
    }
}
