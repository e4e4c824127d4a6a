//! What the user's metrics recorder and tracing subscriber hear of a cluster. Without the features `metrics` and
//! `tracing` everything in here is empty.

#[cfg(feature = "metrics")]
use crate::stats::WORDS;
use crate::stats::{Stats, Troubles};
#[cfg(feature = "metrics")]
use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};

/// Tells of one cluster.
pub(crate) struct Observer {
    #[cfg(feature = "metrics")]
    meters: Meters,
    #[cfg(feature = "tracing")]
    name: String,
}

/// The instruments, asked for once.
#[cfg(feature = "metrics")]
struct Meters {
    watched_keys: Gauge,
    lag: Gauge,
    sessions: Counter,
    gaps: Counter,
    failed: Counter,
    heard: Counter,
    healed: Counter,
    resets: Counter,
    reads: Counter,
    /// One for each of `WORDS`.
    troubles: Vec<Gauge>,
}

#[cfg(feature = "metrics")]
impl Meters {
    fn new(name: &str) -> Self {
        let gauge = |metric: &'static str, unit, says: &'static str| {
            describe_gauge!(metric, unit, says);
            gauge!(metric, "cluster" => name.to_owned())
        };
        let counter = |metric: &'static str, says: &'static str| {
            describe_counter!(metric, Unit::Count, says);
            counter!(metric, "cluster" => name.to_owned())
        };
        let trouble = "purgatory_cluster_trouble";
        let says = "how often sessions have failed, or reads, for this cause, since all went well";
        describe_gauge!(trouble, Unit::Count, says);
        let troubles = WORDS
            .iter()
            .map(|word| gauge!(trouble, "cluster" => name.to_owned(), "cause" => *word));
        Self {
            troubles: troubles.collect(),
            watched_keys: gauge(
                "purgatory_cluster_watched_keys",
                Unit::Count,
                "keys that this node watches",
            ),
            lag: gauge(
                "purgatory_cluster_lag_seconds",
                Unit::Seconds,
                "for how long this node has not been in step with the store",
            ),
            sessions: counter(
                "purgatory_cluster_sessions_total",
                "sessions with the engine that were opened",
            ),
            gaps: counter(
                "purgatory_cluster_gaps_total",
                "sessions with the engine that ended",
            ),
            failed: counter(
                "purgatory_cluster_failed_sessions_total",
                "attempts to open a session that failed",
            ),
            heard: counter(
                "purgatory_cluster_heard_total",
                "changes of watched keys that the engine told",
            ),
            healed: counter(
                "purgatory_cluster_healed_total",
                "versions that a read found before the engine told of them",
            ),
            resets: counter(
                "purgatory_cluster_resets_total",
                "times that the store lost its data",
            ),
            reads: counter(
                "purgatory_cluster_reads_total",
                "reads of the store that succeeded",
            ),
        }
    }
}

impl Observer {
    pub(crate) fn new(name: &str) -> Self {
        let _ = name;
        Self {
            #[cfg(feature = "metrics")]
            meters: Meters::new(name),
            #[cfg(feature = "tracing")]
            name: name.to_owned(),
        }
    }

    /// Something fails, for the `times`th time for such a cause, and `then` follows. Said once.
    pub(crate) fn trouble(&self, cause: &str, times: u64, then: &str) {
        let _ = (cause, times, then);
        #[cfg(feature = "tracing")]
        if times == 2 {
            tracing::warn!(
                target: "request_purgatory_cluster",
                cluster = self.name.as_str(),
                cause,
                "{then}"
            );
        }
    }

    /// What the operator should change. Said once.
    pub(crate) fn advice(&self, advice: &str) {
        let _ = advice;
        #[cfg(feature = "tracing")]
        tracing::warn!(target: "request_purgatory_cluster", cluster = self.name.as_str(), advice);
    }

    /// Every second, and whenever the node comes into step or falls out of it.
    pub(crate) fn report(&self, stats: &Stats, troubles: [&Troubles; 2]) {
        let _ = (stats, troubles);
        #[cfg(feature = "metrics")]
        {
            let meters = &self.meters;
            meters.watched_keys.set(stats.watched_keys as f64);
            meters.lag.set(stats.lag.as_secs_f64());
            meters.sessions.absolute(stats.sessions);
            meters.gaps.absolute(stats.gaps);
            meters.failed.absolute(stats.failed);
            meters.heard.absolute(stats.heard);
            meters.healed.absolute(stats.healed);
            meters.resets.absolute(stats.resets);
            meters.reads.absolute(stats.reads);
            for (word, gauge) in WORDS.iter().zip(&meters.troubles) {
                let [feed, store] = troubles.map(|it| it.times(word));
                gauge.set(feed.max(store) as f64);
            }
        }
    }
}

/// The span of one session.
#[derive(Clone)]
pub(crate) struct SessionSpan {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

#[cfg_attr(
    not(feature = "tracing"),
    expect(unused_variables, reason = "there is no subscriber to tell")
)]
impl SessionSpan {
    pub(crate) fn new(observer: &Observer) -> Self {
        Self {
            #[cfg(feature = "tracing")]
            span: tracing::info_span!(
                target: "request_purgatory_cluster",
                "cluster_session",
                cluster = observer.name.as_str()
            ),
        }
    }

    pub(crate) fn opened(&self, keys: usize) {
        #[cfg(feature = "tracing")]
        tracing::info!(target: "request_purgatory_cluster", parent: &self.span, keys, "opened");
    }

    pub(crate) fn live(&self) {
        #[cfg(feature = "tracing")]
        tracing::info!(target: "request_purgatory_cluster", parent: &self.span, "live");
    }

    pub(crate) fn ended(&self, cause: &dyn std::fmt::Display) {
        #[cfg(feature = "tracing")]
        tracing::info!(target: "request_purgatory_cluster", parent: &self.span, cause = %cause, "ended");
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use super::*;
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn stats() -> Stats {
        Stats {
            watched_keys: 1,
            sessions: 2,
            gaps: 3,
            failed: 4,
            heard: 5,
            healed: 6,
            resets: 7,
            reads: 8,
            lag: Duration::from_millis(9_500),
            feed_trouble: None,
            store_trouble: None,
            advice: None,
        }
    }

    /// Sessions fail for it, and so do reads.
    #[test]
    fn g24_a_cause_of_feed_and_store_has_the_larger_count() {
        let recorder = DebuggingRecorder::new();
        let observer = metrics::with_local_recorder(&recorder, || Observer::new("polls"));
        let (often, once) = (Troubles::default(), Troubles::default());
        for troubles in [&often, &often, &once] {
            troubles.note("unread", "the disk is gone");
        }
        for troubles in [[&often, &once], [&once, &often]] {
            observer.report(&stats(), troubles);
            let all = recorder.snapshotter().snapshot().into_vec();
            let unread = all.into_iter().find(|(key, ..)| {
                let mut labels = key.key().labels();
                labels.any(|label| label.value() == "unread")
            });
            let (.., times) = unread.expect("it is told");
            assert_eq!(times, DebugValue::Gauge(2.0.into()));
        }
    }

    #[test]
    fn g24_each_figure_is_told_by_its_own_name() {
        let recorder = DebuggingRecorder::new();
        let observer = metrics::with_local_recorder(&recorder, || Observer::new("polls"));
        let none = Troubles::default();
        observer.report(&stats(), [&none, &none]);
        let all = recorder.snapshotter().snapshot().into_vec();
        let told = all.iter().map(|(key, .., value)| (key.key().name(), value));
        let told = told.collect::<BTreeMap<_, _>>();
        for (figure, value) in [
            ("sessions", 2),
            ("gaps", 3),
            ("failed_sessions", 4),
            ("heard", 5),
            ("healed", 6),
            ("resets", 7),
            ("reads", 8),
        ] {
            let name = format!("purgatory_cluster_{figure}_total");
            assert_eq!(told[&*name], &DebugValue::Counter(value), "{name}");
        }
        for (figure, value) in [("watched_keys", 1.0), ("lag_seconds", 9.5)] {
            let name = format!("purgatory_cluster_{figure}");
            assert_eq!(told[&*name], &DebugValue::Gauge(value.into()), "{name}");
        }
    }
}
