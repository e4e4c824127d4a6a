//! The instruments of one purgatory, for the recorder of the `metrics` facade.

use crate::stats::Ending;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

/// The only label: the name of the purgatory.
const LABEL: &str = "purgatory";

fn gauge(purgatory: &str, metric: &'static str, says: &'static str) -> Gauge {
    describe_gauge!(metric, Unit::Count, says);
    gauge!(metric, LABEL => purgatory.to_owned())
}

fn counter(purgatory: &str, metric: &'static str, says: &'static str) -> Counter {
    describe_counter!(metric, Unit::Count, says);
    counter!(metric, LABEL => purgatory.to_owned())
}

fn histogram(purgatory: &str, metric: &'static str, says: &'static str) -> Histogram {
    describe_histogram!(metric, Unit::Seconds, says);
    histogram!(metric, LABEL => purgatory.to_owned())
}

macro_rules! instruments {
    ($($field:ident: $type:ident = $ask:ident($metric:literal, $says:literal);)*) => {
        /// The instruments are looked up once, when the purgatory is built. After that, the use of an instrument is an
        /// atomic addition, not a search.
        pub(super) struct Meters {
            $(pub(super) $field: $type,)*
        }

        impl Meters {
            pub(super) fn new(purgatory: &str) -> Self {
                Self {
                    $($field: $ask(purgatory, $metric, $says),)*
                }
            }
        }
    };
}

instruments! {
    size: Gauge = gauge("purgatory_size", "watches: the sum of the keys of all parked operations");
    delayed: Gauge = gauge("purgatory_num_delayed_operations", "operations parked");
    completed_at_once: Counter = counter("purgatory_completed_at_once_total", "operations that could complete at once");
    completed: Counter = counter("purgatory_completed_total", "parked operations that were satisfied or forced");
    expired: Counter = counter("purgatory_expired_total", "parked operations that expired");
    cancelled: Counter = counter("purgatory_cancelled_total", "parked operations that were cancelled");
    shut_down: Counter = counter("purgatory_shut_down_total", "parked operations that the shutdown ended");
    aborted: Counter = counter("purgatory_aborted_total", "parked operations whose try_complete panicked");
    panicked: Counter = counter("purgatory_panicked_total", "panics caught in user code");
    rejected: Counter = counter("purgatory_rejected_total", "operations that were rejected");
    missed_checks: Counter = counter(
        "purgatory_missed_checks_total",
        "events that no check announced, found at a deadline or by a recheck"
    );
    extended: Counter = counter("purgatory_extended_total", "deadlines that operations have put off when they had come");
    park_time: Histogram = histogram("purgatory_park_time_seconds", "from the arrival of a parked operation to its end");
    lateness: Histogram = histogram(
        "purgatory_lateness_seconds",
        "from the deadline of an expired operation to its expiry"
    );
}

impl Meters {
    pub(super) fn parked(&self, watches: usize) {
        self.delayed.increment(1);
        self.size.increment(watches as f64);
    }

    pub(super) fn ended(&self, ending: Ending, missed_check: bool, watches: usize) {
        self.delayed.decrement(1);
        self.size.decrement(watches as f64);
        let counter = match ending {
            Ending::Satisfied | Ending::Forced => &self.completed,
            Ending::Expired => &self.expired,
            Ending::Cancelled => &self.cancelled,
            Ending::ShutDown => &self.shut_down,
            Ending::Aborted => &self.aborted,
        };
        counter.increment(1);
        if missed_check {
            self.missed_checks.increment(1);
        }
    }
}
