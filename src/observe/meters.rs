//! The instruments of one purgatory, for the recorder of the `metrics` facade.

use crate::stats::Ending;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

/// The one label: which purgatory.
const LABEL: &str = "purgatory";

/// Instruments are asked for once, when the purgatory is built: to use one is an atomic addition then, not a search.
pub(super) struct Meters {
    size: Gauge,
    delayed: Gauge,
    pub(super) completed_at_once: Counter,
    completed: Counter,
    expired: Counter,
    cancelled: Counter,
    shut_down: Counter,
    aborted: Counter,
    pub(super) panicked: Counter,
    pub(super) rejected: Counter,
    pub(super) missed_checks: Counter,
    pub(super) park_time: Histogram,
    pub(super) lateness: Histogram,
}

impl Meters {
    pub(super) fn new(name: &str) -> Self {
        let gauge = |metric: &'static str, says: &'static str| {
            describe_gauge!(metric, Unit::Count, says);
            gauge!(metric, LABEL => name.to_owned())
        };
        let counter = |metric: &'static str, says: &'static str| {
            describe_counter!(metric, Unit::Count, says);
            counter!(metric, LABEL => name.to_owned())
        };
        let histogram = |metric: &'static str, says: &'static str| {
            describe_histogram!(metric, Unit::Seconds, says);
            histogram!(metric, LABEL => name.to_owned())
        };
        Self {
            size: gauge(
                "purgatory_size",
                "watch entries: the sum of the keys of all parked operations",
            ),
            delayed: gauge("purgatory_num_delayed_operations", "operations parked"),
            completed_at_once: counter(
                "purgatory_completed_at_once_total",
                "operations that could complete at once",
            ),
            completed: counter(
                "purgatory_completed_total",
                "parked operations that were satisfied or forced",
            ),
            expired: counter(
                "purgatory_expired_total",
                "parked operations whose timeout fired",
            ),
            cancelled: counter(
                "purgatory_cancelled_total",
                "parked operations that were cancelled",
            ),
            shut_down: counter(
                "purgatory_shut_down_total",
                "parked operations that the shutdown ended",
            ),
            aborted: counter(
                "purgatory_aborted_total",
                "parked operations whose try_complete panicked",
            ),
            panicked: counter("purgatory_panicked_total", "panics caught in user code"),
            rejected: counter("purgatory_rejected_total", "operations that were refused"),
            missed_checks: counter(
                "purgatory_missed_checks_total",
                "events that no check announced, found at a deadline or by a recheck",
            ),
            park_time: histogram(
                "purgatory_park_time_seconds",
                "from the parking of an operation to its end",
            ),
            lateness: histogram(
                "purgatory_lateness_seconds",
                "from the deadline of an expired operation to its expiry",
            ),
        }
    }

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
