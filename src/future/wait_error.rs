//! Why a future ended without a value.

use crate::error::{RejectReason, Rejected, reasons};
use crate::operation::Completion;

reasons! {
    /// Why a future of this crate ended without a value, or why a listener gets no more checks.
    ///
    /// The future of a [completion](crate::Purgatory::completion) ends only with `Cancelled` or `Panicked`: for every
    /// other ending of the operation it resolves to the operation and its [`Completion`](crate::Completion).
    pub enum WaitError {
        /// The timeout passed first.
        Expired = "the timeout passed before a value was found",
        /// The purgatory was shut down or dropped. If this happened before the call, the predicate was not called.
        ShutDown = "the purgatory was shut down before a value was found",
        /// The number of operations that are parked, or whose `on_complete` has not returned yet, has reached
        /// [`max_parked`](crate::purgatory::Builder::max_parked). Or the operation would raise the total weight above
        /// [`max_weight`](crate::purgatory::Builder::max_weight). The predicate was called once, and found nothing.
        Full = "full: the limit of parked operations (`max_parked`, `max_weight`) is reached",
        /// One of the keys has as many watchers as
        /// [`max_watchers_per_key`](crate::purgatory::Builder::max_watchers_per_key) allows. The predicate was called
        /// once, and found nothing.
        KeyFull = "a key is full: the limit of operations that watch it (`max_watchers_per_key`) is reached",
        /// The purgatory is being [drained](crate::Purgatory::drain). If the drain began before the call, the
        /// predicate was not called.
        Draining = "the purgatory is being drained, and rejects every new wait",
        /// The list of keys was empty. The predicate of the wait was not called.
        NoKeys = "no key was given, and a wait needs at least one to watch",
        /// The predicate or `try_complete` panicked in a check or at the deadline, or the waker of a listener's task
        /// panicked. A panic during the park unwinds to the caller instead. Only a `wait_then` reports such a panic
        /// twice: it unwinds to the caller, and the callback gets this error.
        Panicked = "the predicate (`try_complete`) or a waker panicked",
        /// The operation was forced to end, by key or handle, without a value: for example because the leader is lost
        /// or the topic is deleted.
        Forced = "the wait was forced to end before a value was found",
        /// The operation was cancelled, by key or handle.
        Cancelled = "the wait was cancelled before a value was found",
        /// More than eight waits are nested, each begun inside the predicate of another. The innermost wait never
        /// began.
        Nested = "too many nested waits: more than eight, each inside the predicate of another",
        /// The wait is the first with a finite timeout, so it has to start the reaper (the thread that expires
        /// operations), and the system refused the thread. The wait never began. The next wait with a finite timeout
        /// tries again.
        Thread = "the system refused a thread, without which the timeout cannot fire",
    }
}

/// The error for an operation that has ended with this completion, and whose predicate had found no value. An operation
/// ends as `Satisfied` if its predicate finds a value, or if it is forced to end. As no value was found, it was forced.
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
            RejectReason::TooLong => unreachable!("the wheel of a purgatory takes every timeout"),
            RejectReason::KeyFull => Self::KeyFull,
            RejectReason::Draining => Self::Draining,
            RejectReason::ShutDown => Self::ShutDown,
            RejectReason::Nested => Self::Nested,
            RejectReason::Thread => Self::Thread,
        }
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;

    #[test]
    fn g28_a_wait_ends_with_the_reason_of_its_rejection() {
        for reason in [
            RejectReason::NoKeys,
            RejectReason::Full,
            RejectReason::KeyFull,
            RejectReason::Draining,
            RejectReason::ShutDown,
            RejectReason::Nested,
            RejectReason::Thread,
        ] {
            let error = WaitError::of(&Rejected::new(reason, ()));
            assert_eq!(format!("{error:?}"), format!("{reason:?}"));
        }
    }
}
