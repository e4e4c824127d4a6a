//! What a metrics recorder and a tracing subscriber hear of a node: all that `Stats` counts, and a span for each
//! session.
//!
//! One test for both: a subscriber of one test would otherwise decide what another one hears.

#![allow(unreachable_pub, reason = "a test has no users")]

mod notes;

use metrics::with_local_recorder;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use notes::{Fields, Notes, Told};
use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::{Cluster, ClusterWaits, Config, Feed, FeedError, Stats, WaitError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_secs(20);

/// Waits until `stats` are as wanted.
async fn until(node: &Cluster<u64>, what: &str, is_so: impl Fn(&Stats) -> bool) {
    let wait = async {
        while !is_so(&node.stats()) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = timeout(LONG, wait).await;
    assert!(waited.is_ok(), "{what}: {:?}", node.stats());
}

/// Every kind of thing that is counted happens.
async fn live_through(
    engine: &MemoryEngine<u64>,
    waits: ClusterWaits<u64>,
    told: impl Fn() -> Metrics,
) {
    let node = waits.cluster();
    until(node, "the node is live", |it| {
        it.sessions == 1 && it.lag.is_zero()
    })
    .await;
    let wait = waits.wait_past(7, 0, LONG);
    until(node, "the key is read", |it| it.reads >= 2).await;
    engine.commit(7);
    assert_eq!(wait.await, Ok(1));
    // The feed loses a message, and an audit finds the version.
    let wait = waits.wait_past(7, 1, LONG);
    engine.mute(true);
    engine.commit(7);
    assert_eq!(wait.await, Ok(2));
    engine.mute(false);
    // The session is cut, and the store cannot be read.
    engine.refuse_reads(true);
    engine.cut();
    until(node, "no session opens", |it| {
        let unread = it.store_trouble.as_ref().map_or(0, |it| it.times);
        it.failed >= 2 && unread >= 2 && !it.lag.is_zero()
    })
    .await;
    // The last cause does not hide the one before it.
    let both = async {
        loop {
            let all = told();
            let times = |cause| match all[&format!("purgatory_cluster_trouble/{cause}")] {
                DebugValue::Gauge(times) => times.0,
                ref other => panic!("{other:?}"),
            };
            if times("cut") == 1.0 && times("unread") > 1.0 {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(LONG, both).await.is_ok(), "{:?}", node.stats());
    // Reads return another history.
    let wait = waits.wait_past(7, 2, LONG);
    engine.flush();
    engine.refuse_reads(false);
    assert!(matches!(wait.await, Err(WaitError::Reset(_))));
    until(node, "the node is live again", |it| it.lag.is_zero()).await;
    until(node, "all troubles are over", |it| {
        it.feed_trouble.is_none()
    })
    .await;
}

type Metrics = BTreeMap<String, DebugValue>;

/// What the recorder was told, by metric.
fn told(snapshotter: &Snapshotter) -> Metrics {
    let all = snapshotter.snapshot().into_vec().into_iter();
    let ours = all.filter(|(key, ..)| key.key().name().starts_with("purgatory_cluster_"));
    ours.map(|(key, unit, description, value)| {
        let name = key.key().name().to_owned();
        let labels = key.key().labels();
        let labels = labels.map(|it| (it.key(), it.value())).collect::<Vec<_>>();
        assert_eq!(labels[0], ("cluster", "polls"), "{name}");
        assert!(unit.is_some() && description.is_some(), "{name}");
        match &labels[1..] {
            [] => (name, value),
            [("cause", cause)] => (format!("{name}/{cause}"), value),
            others => panic!("{name}: {others:?}"),
        }
    })
    .collect()
}

const CAUSES: [&str; 10] = [
    "connect", "cut", "refused", "lagged", "silent", "protocol", "unread", "unheard", "reset",
    "panicked",
];

fn expected(stats: &Stats) -> Metrics {
    let gauges = [("watched_keys", stats.watched_keys as f64)];
    let counters = [
        ("sessions_total", stats.sessions),
        ("gaps_total", stats.gaps),
        ("failed_sessions_total", stats.failed),
        ("heard_total", stats.heard),
        ("healed_total", stats.healed),
        ("resets_total", stats.resets),
        ("reads_total", stats.reads),
    ];
    let gauges = gauges.map(|(name, value)| (name, DebugValue::Gauge(value.into())));
    let counters = counters.map(|(name, value)| (name, DebugValue::Counter(value)));
    let all = gauges.into_iter().chain(counters);
    let troubles = [&stats.feed_trouble, &stats.store_trouble];
    let trouble = |cause: &&str| {
        let of_this = troubles
            .into_iter()
            .flatten()
            .filter(|it| it.word == *cause);
        let times = of_this.map(|it| it.times).max().unwrap_or(0) as f64;
        let name = format!("purgatory_cluster_trouble/{cause}");
        (name, DebugValue::Gauge(times.into()))
    };
    let all = all.map(|(name, value)| (format!("purgatory_cluster_{name}"), value));
    all.chain(CAUSES.iter().map(trouble)).collect()
}

fn assert_spans(spans: &[Told], stats: &Stats) {
    let count = |message: &str| {
        let all = spans.iter().flat_map(|span| &span.events);
        all.filter(|event| event["message"] == message).count() as u64
    };
    assert_eq!(spans.len() as u64, stats.sessions + stats.failed);
    for span in spans {
        assert_eq!(span.name, "cluster_session");
        assert_eq!(span.fields["cluster"], "polls");
        assert!(span.is_closed, "{span:?}");
        let first = &span.events[0]["message"];
        assert!(first == "opened" || first == "ended", "{span:?}");
    }
    assert_eq!(count("opened"), stats.sessions);
    assert!(count("live") >= 2 && count("live") <= stats.sessions);
    assert_eq!(count("ended"), stats.gaps + stats.failed);
    let causes = spans.iter().flat_map(|span| &span.events);
    let causes = causes.filter_map(|event| event.get("cause"));
    let causes = causes.map(String::as_str).collect::<Vec<_>>();
    for cause in ["the session was cut", "the store refuses reads"] {
        let is_told = causes.iter().any(|it| it.contains(cause));
        assert!(is_told, "{cause}: {causes:?}");
    }
    let keys = spans.iter().filter_map(|span| span.events[0].get("keys"));
    let keys = keys.collect::<Vec<_>>();
    assert_eq!([keys[0], keys[keys.len() - 1]], ["0", "1"]);
}

/// A feed whose operator is to change something.
struct Advising(MemoryEngine<u64>);

impl Feed<u64> for Advising {
    type Interests = <MemoryEngine<u64> as Feed<u64>>::Interests;
    type Changes = <MemoryEngine<u64> as Feed<u64>>::Changes;

    async fn open(&self, config: &Config) -> Result<(Self::Interests, Self::Changes), FeedError> {
        self.0.open(config).await
    }

    fn advice(&self) -> Option<Arc<str>> {
        Some("add memory".into())
    }
}

#[test]
fn all_that_is_counted_is_told_and_each_session_has_a_span() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let (notes, heard, lines) = Notes::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the system has a reactor");
    let engine = MemoryEngine::new();
    let config = Config {
        name: "polls".into(),
        audit: Duration::from_millis(100),
        backoff: (Duration::from_millis(10), Duration::from_millis(50)),
        ..Config::default()
    };
    let run = async {
        let node = with_local_recorder(&recorder, || {
            Cluster::start(engine.clone(), Advising(engine.clone()), config)
        });
        let node = node.expect("in a runtime");
        notes::NODE.set(node.clone()).expect("it is the only one");
        // Its waits are told by its name as well.
        let waits = with_local_recorder(&recorder, || ClusterWaits::new(&node));
        let all = snapshotter.snapshot().into_vec();
        let labels = all.iter().flat_map(|(key, ..)| key.key().labels());
        let names = labels.filter(|it| it.key() == "purgatory");
        let names = names.map(|it| it.value()).collect::<BTreeSet<_>>();
        assert_eq!(names, BTreeSet::from(["polls"]));
        let waits = waits.expect("there is a thread");
        live_through(&engine, waits, || told(&snapshotter)).await;
        // Within a second without anything else to tell. (The recorder forgets what it was asked for.)
        drop(told(&snapshotter));
        let mut all = BTreeMap::new();
        let wait = async {
            while !all.contains_key("purgatory_cluster_lag_seconds")
                || all["purgatory_cluster_watched_keys"] != DebugValue::Gauge(1.0.into())
            {
                sleep(Duration::from_millis(20)).await;
                all.extend(told(&snapshotter));
            }
        };
        assert!(timeout(LONG, wait).await.is_ok(), "{all:?}");
        assert_eq!(
            all["purgatory_cluster_lag_seconds"],
            DebugValue::Gauge(0.0.into())
        );
        node.shutdown();
        // The last report comes when the session has ended.
        let wait = async {
            loop {
                all.extend(told(&snapshotter));
                // How far it is behind is told, too, and passes.
                all.remove("purgatory_cluster_lag_seconds");
                let stats = node.stats();
                if all == expected(&stats) {
                    return stats;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let stats = timeout(LONG, wait).await;
        stats.unwrap_or_else(|_| panic!("{all:?} are not {:?}", node.stats()))
    };
    let stats = tracing::subscriber::with_default(notes, || runtime.block_on(run));
    assert!(
        stats.sessions >= 2 && stats.gaps >= 1 && stats.failed >= 2,
        "{stats:?}"
    );
    assert!(
        stats.heard >= 1 && stats.healed >= 1 && stats.resets >= 1,
        "{stats:?}"
    );
    drop(runtime);
    let spans = heard.lock().expect("no test panics with it");
    assert_spans(&spans, &stats);
    // What fails again and again is said once.
    let lines = lines.lock().expect("no test panics with it");
    // So is what the feed advises after each attempt.
    let is_advice = |line: &&Fields| line.contains_key("advice");
    let (advice, lines): (Vec<_>, Vec<_>) = lines.iter().partition(is_advice);
    assert_eq!(advice.len(), 1, "{advice:?}");
    assert_eq!(advice[0]["advice"], "add memory");
    // The subscriber may ask for the statistics.
    assert_eq!(advice[0]["is_answered"], "true");
    let about = |what: &str| {
        lines
            .iter()
            .filter(|line| line["cause"].contains(what))
            .count()
    };
    assert_eq!(about("the store could not be read"), 1, "{lines:?}");
    // And what has failed once is not said at all.
    assert_eq!(about("the session was cut"), 0, "{lines:?}");
    // And what follows of it.
    for line in lines.iter() {
        let is_of_reads = line["cause"] == "the store refuses reads";
        let follows = match is_of_reads {
            true => "by news of the feed, or by their timeouts",
            false => "by reads alone",
        };
        assert!(line["message"].ends_with(follows), "{line:?}");
    }
    assert_eq!(about("the store refuses reads"), 2, "{lines:?}");
}
