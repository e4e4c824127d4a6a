//! What the broker shows of its purgatories: figures for Prometheus, and a page that draws them.
//!
//! | path | |
//! |---|---|
//! | `/` | the page, which reads the other two every second |
//! | `/metrics` | what the purgatories told the recorder, as Prometheus reads it |
//! | `/oldest` | the requests that have waited longest, as JSON |

use crate::broker::partition::TopicPartition;
use crate::broker::purgatories::Purgatories;
use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use request_purgatory::{DelayedOperation, Purgatory};
use serde_json::{Value, json};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;

/// Upper bounds of the histograms, in seconds.
const PARK_TIME: [f64; 15] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
];
const LATENESS: [f64; 8] = [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.1, 1.0, 10.0];

/// The page needs nothing from elsewhere, and may get nothing.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";

/// How many of the oldest are shown of each purgatory.
const SHOWN: usize = 8;

/// How often what is recorded is moved to the histograms, should nobody ask for it.
const UPKEEP: Duration = Duration::from_secs(5);

/// A listening exporter.
pub(crate) struct Exporter {
    listener: TcpListener,
    figures: PrometheusHandle,
}

/// An exporter at that address, if there is to be one.
pub(crate) async fn start(listen: Option<SocketAddr>) -> anyhow::Result<Option<Exporter>> {
    match listen {
        Some(listen) => Ok(Some(Exporter::start(listen).await?)),
        None => Ok(None),
    }
}

impl Exporter {
    /// Listens, and becomes the recorder of this process: the purgatories that are built after this tell it.
    async fn start(listen: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot show metrics on {listen}"))?;
        let park_time = Matcher::Full("purgatory_park_time_seconds".to_owned());
        let lateness = Matcher::Full("purgatory_lateness_seconds".to_owned());
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(park_time, &PARK_TIME)?
            .set_buckets_for_metric(lateness, &LATENESS)?
            .build_recorder();
        let figures = recorder.handle();
        metrics::set_global_recorder(recorder)?;
        Ok(Self { listener, figures })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves on the current tokio runtime, for as long as that runs.
    pub(crate) fn show(self, purgatories: Purgatories) {
        let Self { listener, figures } = self;
        let upkeep = figures.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(UPKEEP);
            loop {
                ticks.tick().await;
                upkeep.run_upkeep();
            }
        });
        let router = Router::new()
            .route("/", get(page))
            .route("/metrics", get(render).with_state(figures))
            .route("/oldest", get(oldest).with_state(purgatories));
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("broker: no more metrics: {error}");
            }
        });
    }
}

async fn page() -> impl IntoResponse {
    (
        [(CONTENT_SECURITY_POLICY, POLICY)],
        Html(include_str!("exporter/page.html")),
    )
}

async fn render(State(figures): State<PrometheusHandle>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, kind)], figures.render())
}

async fn oldest(State(purgatories): State<Purgatories>) -> impl IntoResponse {
    // It looks at all that is parked: not on a thread that serves requests.
    let found = tokio::task::spawn_blocking(move || {
        json!({
            "fetch": oldest_of(&purgatories.fetch),
            "produce": oldest_of(&purgatories.produce),
        })
    });
    let found = found.await.unwrap_or(Value::Null);
    ([(CONTENT_TYPE, "application/json")], found.to_string())
}

fn oldest_of<Op: DelayedOperation<Key = TopicPartition>>(purgatory: &Purgatory<Op>) -> Value {
    let parked = purgatory.snapshot().into_iter().take(SHOWN);
    parked
        .map(|operation| {
            let mut keys = operation.keys;
            keys.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
            let keys = keys
                .iter()
                .map(|key| format!("{}-{}", key.topic, key.partition));
            json!({
                "keys": keys.collect::<Vec<_>>(),
                "age": operation.age.as_secs_f64(),
                "remaining": operation.remaining.map(|time| time.as_secs_f64()),
            })
        })
        .collect()
}
