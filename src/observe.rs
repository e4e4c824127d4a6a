//! Reports to the user's metrics recorder and tracing subscriber. Without the features `metrics` and `tracing`
//! everything in here is empty, and costs nothing.
//!
//! Recorder and subscriber are the user's code. They are called by way of `Engine::observe`, which catches their
//! panics, and with no lock of the library held; so they may call the library again, as every callback may.

#[cfg(feature = "metrics")]
mod meters;
#[cfg(feature = "tracing")]
mod trace;

use crate::error::RejectReason;
use crate::stats::Ending;
use crate::sync::Arc;
use crate::time::Timestamp;
use std::time::Duration;

/// Whether a recorder or a subscriber may exist.
pub(crate) const OBSERVED: bool = cfg!(any(feature = "metrics", feature = "tracing"));

/// Reports on one purgatory.
pub(crate) struct Observer {
    #[cfg(feature = "metrics")]
    meters: meters::Meters,
    #[cfg(feature = "tracing")]
    purgatory: Arc<str>,
}

/// The data of one operation that the report of its end needs.
#[derive(Debug, Clone, Default)]
pub(crate) struct OperationSpan {
    /// Its arrival by the clock.
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    since: Option<Timestamp>,
    #[cfg(feature = "tracing")]
    tracing: trace::TracingSpan,
}

#[allow(unused_variables, reason = "without a listener, no report uses it")]
impl OperationSpan {
    /// A copy of the span that knows since when the operation is here.
    pub(crate) fn since(&self, since: Timestamp) -> Self {
        Self {
            #[cfg(any(feature = "metrics", feature = "tracing"))]
            since: Some(since),
            #[cfg(feature = "tracing")]
            tracing: self.tracing.clone(),
        }
    }
}

#[allow(unused_variables, reason = "each listener asks for its part")]
impl Observer {
    /// For the purgatory of this name. Asks the recorder that is installed now for its instruments.
    pub(crate) fn new(purgatory: &Arc<str>) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            meters: meters::Meters::new(purgatory),
            #[cfg(feature = "tracing")]
            purgatory: purgatory.clone(),
        }
    }

    /// An operation arrived.
    pub(crate) fn arrived(&self) -> OperationSpan {
        OperationSpan {
            #[cfg(any(feature = "metrics", feature = "tracing"))]
            since: None,
            #[cfg(feature = "tracing")]
            tracing: trace::span(&self.purgatory),
        }
    }

    /// It could complete at once.
    pub(crate) fn completed_at_once(&self, span: &OperationSpan) {
        #[cfg(feature = "metrics")]
        self.meters.completed_at_once.increment(1);
        #[cfg(feature = "tracing")]
        span.tracing.completed_at_once();
    }

    /// It was rejected.
    pub(crate) fn rejected(&self, span: &OperationSpan, reason: RejectReason) {
        #[cfg(feature = "metrics")]
        self.meters.rejected.increment(1);
        #[cfg(feature = "tracing")]
        span.tracing.rejected(reason);
    }

    /// It has a slot, and this thread still holds it.
    pub(crate) fn parked(&self, span: &OperationSpan, watches: usize) {
        #[cfg(feature = "metrics")]
        self.meters.parked(watches);
        #[cfg(feature = "tracing")]
        span.tracing.parked(watches);
    }

    /// Whether the report of this end needs the deadline.
    pub(crate) fn wants_deadline(&self, ending: Ending) -> bool {
        #[cfg(feature = "tracing")]
        return ending == Ending::Expired && trace::is_on();
        #[cfg(not(feature = "tracing"))]
        false
    }

    /// It has ended. `missed_check` says that it expired, and could have completed; `watches` is the number of its watch
    /// entries; `deadline` is there if the report [wants](Self::wants_deadline) it; `now` reads the clock.
    pub(crate) fn ended(
        &self,
        span: &OperationSpan,
        ending: Ending,
        missed_check: bool,
        watches: usize,
        deadline: Option<Timestamp>,
        now: impl FnOnce() -> Timestamp,
    ) {
        #[cfg(feature = "metrics")]
        self.meters.ended(ending, missed_check, watches);
        #[cfg(any(feature = "metrics", feature = "tracing"))]
        if let Some(since) = span.since {
            let now = now();
            let parked_for = now.saturating_since(since);
            #[cfg(feature = "metrics")]
            self.meters.park_time.record(parked_for);
            #[cfg(feature = "tracing")]
            span.tracing.ended(
                ending,
                parked_for,
                deadline.map(|deadline| now.saturating_since(deadline)),
                missed_check,
            );
        }
    }

    /// An operation expired this long after its deadline.
    pub(crate) fn late(&self, by: Duration) {
        #[cfg(feature = "metrics")]
        self.meters.lateness.record(by);
    }

    /// An operation has put its deadline off when that had come.
    pub(crate) fn extended(&self) {
        #[cfg(feature = "metrics")]
        self.meters.extended.increment(1);
    }

    /// A listener's condition was true, and no check had said so: it found out by a recheck, or at the deadline.
    pub(crate) fn missed_check(&self) {
        #[cfg(feature = "metrics")]
        self.meters.missed_checks.increment(1);
        #[cfg(feature = "tracing")]
        trace::missed_check(&self.purgatory);
    }

    /// The user's code panicked.
    pub(crate) fn panicked(&self) {
        #[cfg(feature = "metrics")]
        self.meters.panicked.increment(1);
    }
}
