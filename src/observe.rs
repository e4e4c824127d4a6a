//! Reports to the user's metrics recorder and tracing subscriber. Without the features `metrics` and `tracing` every
//! function here is empty and costs nothing.
//!
//! Recorder and subscriber are user code, and may call the library, as every callback may: `Engine::observe` calls them
//! with no lock of the library held, and catches their panics.

#[cfg(feature = "metrics")]
mod meters;
#[cfg(feature = "tracing")]
mod trace;

use crate::error::RejectReason;
use crate::stats::Ending;
use crate::sync::Arc;
use crate::time::Timestamp;
use std::time::Duration;

/// Whether a recorder or a subscriber may exist: whether one of the two features is on.
pub(crate) const OBSERVED: bool = cfg!(any(feature = "metrics", feature = "tracing"));

/// Reports on one purgatory.
pub(crate) struct Observer {
    #[cfg(feature = "metrics")]
    meters: meters::Meters,
    #[cfg(feature = "tracing")]
    purgatory: Arc<str>,
}

/// What the reports on one operation need: its arrival, from which the report of its end counts the time, and its
/// tracing span, to which the reports are written.
#[derive(Debug, Clone, Default)]
pub(crate) struct OperationSpan {
    /// The arrival of the operation, as a reading of the purgatory's clock. `None` before the operation is parked.
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    since: Option<Timestamp>,
    #[cfg(feature = "tracing")]
    tracing: trace::TracingSpan,
}

#[allow(unused_variables, reason = "used only with `metrics` or `tracing`")]
impl OperationSpan {
    /// A copy of the span, with the arrival of the operation.
    pub(crate) fn since(&self, since: Timestamp) -> Self {
        Self {
            #[cfg(any(feature = "metrics", feature = "tracing"))]
            since: Some(since),
            #[cfg(feature = "tracing")]
            tracing: self.tracing.clone(),
        }
    }
}

#[allow(unused_variables, reason = "each feature uses only some")]
impl Observer {
    /// The observer of the purgatory with this name. Gets its instruments (counters, gauges, histograms) from the
    /// recorder that is installed now.
    pub(crate) fn new(purgatory: &Arc<str>) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            meters: meters::Meters::new(purgatory),
            #[cfg(feature = "tracing")]
            purgatory: purgatory.clone(),
        }
    }

    /// Reports that an operation arrived. Returns the operation's span, for the reports that follow.
    pub(crate) fn arrived(&self) -> OperationSpan {
        OperationSpan {
            #[cfg(any(feature = "metrics", feature = "tracing"))]
            since: None,
            #[cfg(feature = "tracing")]
            tracing: trace::span(&self.purgatory),
        }
    }

    /// Reports that an operation could complete at once.
    pub(crate) fn completed_at_once(&self, span: &OperationSpan) {
        #[cfg(feature = "metrics")]
        self.meters.completed_at_once.increment(1);
        #[cfg(feature = "tracing")]
        span.tracing.completed_at_once();
    }

    /// Reports that an operation was rejected.
    pub(crate) fn rejected(&self, span: &OperationSpan, reason: RejectReason) {
        #[cfg(feature = "metrics")]
        self.meters.rejected.increment(1);
        #[cfg(feature = "tracing")]
        span.tracing.rejected(reason);
    }

    /// Reports that an operation is parked. The calling thread still holds the operation, so that no other thread can
    /// report its end before this.
    pub(crate) fn parked(&self, span: &OperationSpan, watches: usize) {
        #[cfg(feature = "metrics")]
        self.meters.parked(watches);
        #[cfg(feature = "tracing")]
        span.tracing.parked(watches);
    }

    /// Reports that an operation has ended. `missed_check` says that the operation expired although it could have
    /// completed. `watches` is the number of keys that the operation watched. `now` reads the clock.
    pub(crate) fn ended(
        &self,
        span: &OperationSpan,
        ending: Ending,
        missed_check: bool,
        watches: usize,
        now: impl FnOnce() -> Timestamp,
    ) {
        #[cfg(feature = "metrics")]
        self.meters.ended(ending, missed_check, watches);
        #[cfg(any(feature = "metrics", feature = "tracing"))]
        if let Some(since) = span.since {
            let parked_for = now().saturating_since(since);
            #[cfg(feature = "metrics")]
            self.meters.park_time.record(parked_for);
            #[cfg(feature = "tracing")]
            span.tracing.ended(ending, parked_for, missed_check);
        }
    }

    /// Reports that an operation expired this long after its deadline.
    pub(crate) fn late(&self, by: Duration) {
        #[cfg(feature = "metrics")]
        self.meters.lateness.record(by);
    }

    /// Reports that an operation has asked for a later deadline when its deadline had passed.
    pub(crate) fn extended(&self) {
        #[cfg(feature = "metrics")]
        self.meters.extended.increment(1);
    }

    /// Reports that a recheck (a wake-up of a listener without a check), or the evaluation at the deadline, has found
    /// the listener's condition true, although no check of its keys had been made.
    pub(crate) fn missed_check(&self) {
        #[cfg(feature = "metrics")]
        self.meters.missed_checks.increment(1);
        #[cfg(feature = "tracing")]
        trace::missed_check(&self.purgatory);
    }

    /// Reports a panic of user code.
    pub(crate) fn panicked(&self) {
        #[cfg(feature = "metrics")]
        self.meters.panicked.increment(1);
    }
}
