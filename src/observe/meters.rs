//! The instruments of one purgatory, for the recorder of the `metrics` facade.

use super::end::End;
use crate::stats::Ending;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use std::time::Duration;

/// The one label: which purgatory.
const LABEL: &str = "purgatory";

/// Instruments are asked for once, when the purgatory is built: to use one is an atomic addition then, not a search.
pub(super) struct Meters {
    size: Gauge,
    delayed: Gauge,
    completed_at_once: Counter,
    completed: Counter,
    expired: Counter,
    cancelled: Counter,
    shut_down: Counter,
    aborted: Counter,
    panicked: Counter,
    rejected: Counter,
    missed_checks: Counter,
    park_time: Histogram,
    lateness: Histogram,
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

    pub(super) fn completed_at_once(&self) {
        self.completed_at_once.increment(1);
    }

    pub(super) fn rejected(&self) {
        self.rejected.increment(1);
    }

    pub(super) fn panicked(&self) {
        self.panicked.increment(1);
    }

    pub(super) fn parked(&self, watches: usize) {
        self.delayed.increment(1);
        self.size.increment(watches as f64);
    }

    pub(super) fn unwatched(&self, watches: usize) {
        self.size.decrement(watches as f64);
    }

    pub(super) fn ended(&self, end: &End, watches: usize) {
        self.delayed.decrement(1);
        self.size.decrement(watches as f64);
        let counter = match end.ending {
            Ending::Satisfied | Ending::Forced => &self.completed,
            Ending::Expired => &self.expired,
            Ending::Cancelled => &self.cancelled,
            Ending::ShutDown => &self.shut_down,
            Ending::Aborted => &self.aborted,
        };
        counter.increment(1);
        if end.missed_check {
            self.missed_checks.increment(1);
        }
    }

    pub(super) fn missed_check(&self) {
        self.missed_checks.increment(1);
    }

    pub(super) fn parked_for(&self, time: Duration) {
        self.park_time.record(time);
    }

    pub(super) fn late(&self, by: Duration) {
        self.lateness.record(by);
    }
}
