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
use crate::time::Timestamp;
use std::time::Duration;

/// Whether a recorder or a subscriber may exist.
pub(crate) const OBSERVED: bool = cfg!(any(feature = "metrics", feature = "tracing"));

/// Reports on one purgatory. The default reports nothing: timers and trackers have that.
#[derive(Default)]
pub(crate) struct Observer {
    #[cfg(feature = "metrics")]
    meters: Option<meters::Meters>,
    #[cfg(feature = "tracing")]
    tracer: Option<trace::Tracer>,
}

/// A reading of the clock, if a report needs it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Since {
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    reading: Option<Timestamp>,
}

/// The data of one operation that the report of its end needs.
#[derive(Debug, Clone, Default)]
pub(crate) struct OperationSpan {
    #[allow(dead_code, reason = "without a listener, no report uses it")]
    since: Since,
    #[cfg(feature = "tracing")]
    tracing: trace::TracingSpan,
}

impl Since {
    #[inline]
    pub(crate) fn at(reading: Timestamp) -> Self {
        let _ = reading;
        Self {
            #[cfg(any(feature = "metrics", feature = "tracing"))]
            reading: Some(reading),
        }
    }
}

impl OperationSpan {
    /// The span of the operation, which parks now.
    #[inline]
    pub(crate) fn since(&self, since: Since) -> Self {
        Self {
            since,
            #[cfg(feature = "tracing")]
            tracing: self.tracing.clone(),
        }
    }
}

#[allow(unused_variables, reason = "each listener asks for its part")]
impl Observer {
    /// For the purgatory of this name. Asks the recorder that is installed now for its instruments.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            meters: Some(meters::Meters::new(name)),
            #[cfg(feature = "tracing")]
            tracer: Some(trace::Tracer::new(name)),
        }
    }

    /// An operation arrived.
    #[inline]
    pub(crate) fn arrived(&self) -> OperationSpan {
        OperationSpan {
            since: Since::default(),
            #[cfg(feature = "tracing")]
            tracing: self.tracer.as_ref().map(|it| it.span()).unwrap_or_default(),
        }
    }

    /// It could complete at once.
    #[inline]
    pub(crate) fn completed_at_once(&self, span: &OperationSpan) {
        #[cfg(feature = "metrics")]
        self.meter(|it| it.completed_at_once.increment(1));
        #[cfg(feature = "tracing")]
        span.tracing.completed_at_once();
    }

    /// It was refused.
    #[inline]
    pub(crate) fn rejected(&self, span: &OperationSpan, reason: RejectReason) {
        #[cfg(feature = "metrics")]
        self.meter(|it| it.rejected.increment(1));
        #[cfg(feature = "tracing")]
        span.tracing.rejected(reason);
    }

    /// It has a slot, and this thread still holds it.
    #[inline]
    pub(crate) fn parked(&self, span: &OperationSpan, watches: usize) {
        #[cfg(feature = "metrics")]
        self.meter(|it| it.parked(watches));
        #[cfg(feature = "tracing")]
        span.tracing.parked(watches);
    }

    /// Whether the report of this end needs the deadline.
    #[inline]
    pub(crate) fn wants_deadline(&self, ending: Ending) -> bool {
        #[cfg(feature = "tracing")]
        return ending == Ending::Expired && trace::is_on();
        #[cfg(not(feature = "tracing"))]
        false
    }

    /// It has ended. `missed_check` says that it expired, and could have completed; `watches` is the number of its watch
    /// entries; `deadline` is there if the report [wants](Self::wants_deadline) it; `now` reads the clock.
    #[inline]
    pub(crate) fn ended(
        &self,
        span: OperationSpan,
        ending: Ending,
        missed_check: bool,
        watches: usize,
        deadline: Option<Timestamp>,
        now: impl FnOnce() -> Timestamp,
    ) {
        #[cfg(feature = "metrics")]
        self.meter(|it| it.ended(ending, missed_check, watches));
        #[cfg(any(feature = "metrics", feature = "tracing"))]
        if let Some(since) = span.since.reading {
            let now = now();
            let parked_for = now.saturating_since(since);
            #[cfg(feature = "metrics")]
            self.meter(|it| it.park_time.record(parked_for));
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
    #[inline]
    pub(crate) fn late(&self, by: Duration) {
        #[cfg(feature = "metrics")]
        self.meter(|it| it.lateness.record(by));
    }

    /// A listener's condition was true, and no check had said so: it found out by a recheck, or at the deadline.
    #[inline]
    pub(crate) fn missed_check(&self) {
        #[cfg(feature = "metrics")]
        self.meter(|it| it.missed_checks.increment(1));
        #[cfg(feature = "tracing")]
        self.tracer.iter().for_each(trace::Tracer::missed_check);
    }

    /// The user's code panicked.
    #[inline]
    pub(crate) fn panicked(&self) {
        #[cfg(feature = "metrics")]
        self.meter(|it| it.panicked.increment(1));
    }

    #[cfg(feature = "metrics")]
    #[inline]
    fn meter(&self, tell: impl FnOnce(&meters::Meters)) {
        if let Some(meters) = &self.meters {
            tell(meters);
        }
    }
}
