//! What the broker shows of its purgatories: figures for Prometheus, and a page that draws them.
//!
//! | path | |
//! |---|---|
//! | `/` | the page, which reads the other three |
//! | `/metrics` | what the purgatories told the recorder, as Prometheus reads it |
//! | `/oldest` | the requests that have waited longest, as JSON |
//! | `/load` | what the demonstration does to the broker; empty for `serve` |

use crate::broker::partition::TopicPartition;
use crate::broker::purgatories::Purgatories;
use crate::console::warn;
use crate::listen::Listeners;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use request_purgatory::{DelayedOperation, Purgatory};
use serde_json::{Value, json};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Upper bounds of the histograms, in seconds. Waits are often 100 or 500 ms, or as many seconds, and a little more:
/// so there is a bound close behind these, or a quantile would be taken for the next round number.
#[rustfmt::skip]
const PARK_TIME: [f64; 36] = [
    0.001, 0.001_5, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.11, 0.15, 0.2, 0.3, 0.5,
    0.55, 0.7, 1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 5.5, 7.0, 10.0, 11.0, 15.0, 20.0, 30.0, 33.0, 60.0, 300.0,
];
#[rustfmt::skip]
const LATENESS: [f64; 11] = [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 10.0];

/// The page needs nothing from elsewhere, and may get nothing. (Its icon is in itself.)
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; img-src data:";

/// How often what was recorded is moved to the histograms, which do not grow.
const UPKEEP: Duration = Duration::from_secs(5);

/// How many of the oldest requests are shown of each purgatory, and how many keys of each request.
const SHOWN: usize = 8;
const NAMED: usize = 20;

/// A page that listens.
pub(crate) struct Page {
    listeners: Listeners,
    /// The name that was given on the command line, beside which addresses and `localhost` are good.
    name: String,
    figures: PrometheusHandle,
}

/// What the paths have in common.
struct Shown {
    name: String,
    figures: PrometheusHandle,
    purgatories: Purgatories,
    load: &'static str,
}

impl Page {
    /// Listens, if there is to be a page, and becomes the recorder of this process: the purgatories that are built after
    /// this tell it.
    pub(crate) async fn bind(endpoint: Option<&str>) -> anyhow::Result<Option<Self>> {
        let Some(endpoint) = endpoint else {
            return Ok(None);
        };
        let listeners = Listeners::bind(endpoint).await?;
        let park_time = Matcher::Full("purgatory_park_time_seconds".to_owned());
        let lateness = Matcher::Full("purgatory_lateness_seconds".to_owned());
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(park_time, &PARK_TIME)?
            .set_buckets_for_metric(lateness, &LATENESS)?
            .build_recorder();
        let figures = recorder.handle();
        metrics::set_global_recorder(recorder)?;
        Ok(Some(Self {
            listeners,
            name: name_of(endpoint).to_owned(),
            figures,
        }))
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listeners.address()
    }

    /// Serves on the current tokio runtime, for as long as that runs. `load` says what the broker has to do.
    pub(crate) fn show(self, purgatories: Purgatories, load: &'static str) {
        let shown = Arc::new(Shown {
            name: self.name,
            figures: self.figures,
            purgatories,
            load,
        });
        let figures = shown.figures.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(UPKEEP);
            loop {
                ticks.tick().await;
                figures.run_upkeep();
            }
        });
        let router = Router::new()
            .route("/", get(page))
            .route("/metrics", get(current))
            .route("/oldest", get(oldest))
            .route(
                "/load",
                get(async |State(shown): State<Arc<Shown>>| shown.load),
            )
            .layer(middleware::from_fn_with_state(
                Arc::clone(&shown),
                check_host,
            ))
            .with_state(shown);
        for listener in self.listeners.0 {
            let serving = axum::serve(listener, router.clone());
            tokio::spawn(async {
                if let Err(error) = serving.await {
                    warn(&format!("the page is gone: {error}"));
                }
            });
        }
    }
}

async fn page() -> impl IntoResponse {
    let policy = [(CONTENT_SECURITY_POLICY, POLICY)];
    (policy, Html(include_str!("page/page.html")))
}

async fn current(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, FORMAT)], shown.figures.render())
}

async fn oldest(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    let (fetch, produce) = (&shown.purgatories.fetch, &shown.purgatories.produce);
    // A snapshot goes over all that is parked: other tasks of this thread go on elsewhere meanwhile.
    let found = tokio::task::block_in_place(
        || json!({ "fetch": oldest_of(fetch), "produce": oldest_of(produce) }),
    );
    ([(CONTENT_TYPE, "application/json")], found.to_string())
}

fn oldest_of<Op: DelayedOperation<Key = TopicPartition>>(purgatory: &Purgatory<Op>) -> Value {
    let parked = purgatory.snapshot().into_iter().take(SHOWN);
    let describe = parked.map(|operation| {
        let mut keys = operation.keys;
        keys.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        let named = keys.iter().take(NAMED);
        let named = named.map(|key| format!("{}-{}", key.topic, key.partition));
        json!({
            "keys": named.collect::<Vec<_>>(),
            "more": keys.len().saturating_sub(NAMED),
            "age": operation.age.as_secs_f64(),
            "remaining": operation.remaining.map(|time| time.as_secs_f64()),
        })
    });
    describe.collect()
}

/// Refuses requests that are meant for another host. A page of another site can have a name of its own resolve to this
/// machine and then read what is served here (DNS rebinding); but it cannot hide that name.
async fn check_host(State(shown): State<Arc<Shown>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST);
    let name = host.and_then(|host| host.to_str().ok()).map(name_of);
    let admitted = name.is_some_and(|name| {
        let known = ["localhost", &shown.name];
        name.parse::<IpAddr>().is_ok() || known.iter().any(|it| name.eq_ignore_ascii_case(it))
    });
    if admitted {
        return next.run(request).await;
    }
    let reason = "use an address, localhost, or the name given to --metrics\n";
    (StatusCode::MISDIRECTED_REQUEST, reason).into_response()
}

/// A host without its port, and an IPv6 address without its brackets.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    }
}
