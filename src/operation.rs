//! Delayed operations, and their endings.

use crate::hash::Key;
use std::time::Duration;

/// A request that cannot be answered yet.
///
/// The purgatory owns the operation while it waits, and promises:
///
/// * `try_complete` and `on_complete` of one operation never overlap. The library guards each operation by an atomic
///   word of its own, never by a lock of yours.
/// * No lock of the library is held while one of the three methods runs, so each may call the purgatory again.
/// * Exactly one ending: either `on_complete` is called once, or the caller that cancelled the operation gets it back.
///   (A `try_complete` that panics ends its operation too: the operation is dropped, and the panic is counted in
///   [`Stats::panicked`](crate::stats::Stats::panicked).)
pub trait DelayedOperation: Send + 'static {
    /// The name of something that operations wait for: a partition, a group member, a request id.
    ///
    /// `Hash`, `Eq` and `Clone` run under locks of the library: that of a map shard, of the checks that
    /// [`check_later`](crate::Purgatory::check_later) defers, or of the list of a resolved key. They must not call the
    /// library.
    type Key: Key;

    /// The longest time the operation may stay parked, read once when it parks. [`Duration::MAX`] never expires.
    ///
    /// Runs on the parking thread.
    fn timeout(&self) -> Duration;

    /// Whether the operation can complete now.
    ///
    /// Runs on the parking thread (once before parking and once after, so that no event is missed in between), on every
    /// thread that checks one of the keys, and on the thread that drives the timer: for deferred checks, and once when
    /// the deadline has passed (unless another thread is examining the operation). The answer at the deadline decides
    /// nothing; a yes is counted in [`Stats::missed_checks`](crate::stats::Stats::missed_checks).
    ///
    /// Keep it short: it delays the caller of the check. A check that it makes returns 0, and runs later: before the
    /// outermost call of the library on this thread returns. Within one outermost call each operation can cause one
    /// check of each key. Once that check has run, the same one is ignored; but if another thread has asked for the
    /// examination that makes it, it is deferred to the thread that drives the timer. See
    /// [`Purgatory`](crate::Purgatory).
    fn try_complete(&mut self) -> bool;

    /// As `try_complete`, when the deadline has passed. A listener does not take this for a check.
    #[doc(hidden)]
    fn try_complete_at_deadline(&mut self) -> bool {
        self.try_complete()
    }

    /// Ends the operation.
    ///
    /// The thread depends on the reason:
    ///
    /// * [`Satisfied`](Completion::Satisfied): the thread whose call found it so, before that call returns.
    /// * [`Expired`](Completion::Expired), and what a deferred check ([`check_later`](crate::Purgatory::check_later))
    ///   completes: the one that [`Builder::dispatch`](crate::Builder::dispatch) chooses.
    /// * [`ShutDown`](Completion::ShutDown): the thread that shuts the purgatory down, or one that is examining the
    ///   operation.
    ///
    /// Completions never nest: one that is caused inside a callback runs after that callback, before the outermost call
    /// of the library on that thread returns.
    fn on_complete(self, completion: Completion);
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Completion {
    /// `try_complete` said yes, or the operation was forced to complete.
    Satisfied,
    /// The timeout passed first.
    Expired,
    /// The operation was cancelled while another thread was examining it. A cancel does not wait, so its caller got
    /// `None`, and the examining thread ended the operation. A cancel that returns the operation causes no completion.
    Cancelled,
    /// The purgatory was shut down.
    ShutDown,
}
