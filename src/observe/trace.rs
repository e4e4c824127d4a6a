//! One span for each operation, with its events inside, all at debug level; and a warning for a missed check of a
//! listener.
//!
//! The functions are not inlined: otherwise the macros would enlarge the stack frames of the library's functions that
//! call the user's code.

use crate::callbacks::panics::Panics;
use crate::error::RejectReason;
use crate::stats::Ending;
use std::mem;
use std::time::Duration;
use tracing::{Span, field};

/// The span of an operation that has just arrived, inside the current span of the parking thread.
#[inline(never)]
pub(super) fn span(purgatory: &str) -> TracingSpan {
    TracingSpan(tracing::debug_span!(
        target: "request_purgatory",
        "delayed_operation",
        purgatory
    ))
}

/// Warns of a missed check: some code changes what a listener's condition reads, and does not check the key.
#[inline(never)]
pub(super) fn missed_check(purgatory: &str) {
    tracing::warn!(
        target: "request_purgatory",
        purgatory,
        "missed check: an event was found that no check of its key announced"
    );
}

/// The span of one operation.
#[derive(Debug, Clone)]
pub(super) struct TracingSpan(Span);

/// Writes an event into a span, if a subscriber has enabled it.
macro_rules! event {
    ($span:expr, $($fields:tt)+) => {
        if !$span.is_disabled() {
            tracing::debug!(target: "request_purgatory", parent: &$span, $($fields)+);
        }
    };
}

impl TracingSpan {
    #[inline(never)]
    pub(super) fn completed_at_once(&self) {
        event!(self.0, "completed at once");
    }

    #[inline(never)]
    pub(super) fn rejected(&self, reason: RejectReason) {
        event!(self.0, reason = field::debug(reason), "rejected");
    }

    #[inline(never)]
    pub(super) fn parked(&self, keys: usize) {
        event!(self.0, keys, "parked");
    }

    #[inline(never)]
    pub(super) fn ended(&self, ending: Ending, parked_for: Duration, missed_check: bool) {
        event!(
            self.0,
            cause = cause(ending),
            parked_for = field::debug(parked_for),
            missed_check,
            "ended"
        );
    }
}

impl Default for TracingSpan {
    fn default() -> Self {
        Self(Span::none())
    }
}

impl Drop for TracingSpan {
    /// Closes the span, which calls the subscriber. Catches a panic of the subscriber, because an operation may be
    /// dropped anywhere, also during an unwinding. The panic is not counted, because no counter can be reached from
    /// here.
    fn drop(&mut self) {
        if !self.0.is_disabled() {
            let span = mem::replace(&mut self.0, Span::none());
            Panics::contain(|| drop(span));
        }
    }
}

fn cause(ending: Ending) -> &'static str {
    match ending {
        Ending::Satisfied => "satisfied",
        Ending::Forced => "forced",
        Ending::Expired => "expired",
        Ending::Cancelled => "cancelled",
        Ending::ShutDown => "shut_down",
        Ending::Aborted => "panicked",
    }
}
