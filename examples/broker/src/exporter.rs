//! What the broker shows of its purgatories: figures for Prometheus, and a page that draws them.
//!
//! | path | |
//! |---|---|
//! | `/` | the page, which reads the other three |
//! | `/metrics` | what the purgatories told the recorder, as Prometheus reads it |
//! | `/history` | the same at each of the last seconds, so that the page begins with a past |
//! | `/oldest` | the requests that have waited longest, as JSON |

mod history;
mod host;
mod oldest;
mod serve;

use crate::broker::purgatories::Purgatories;
use crate::endpoint::{Endpoint, Listeners};
use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::middleware;
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use history::History;
use host::Host;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use oldest::Oldest;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Upper bounds of the histograms, in seconds. Waits are often 100 or 500 ms, or as many seconds, and a little more:
/// so there is a bound close behind these, or a quantile would be taken for the next round number.
const PARK_TIME: [f64; 36] = [
    0.001, 0.001_5, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.11,
    0.15, 0.2, 0.3, 0.5, 0.55, 0.7, 1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 5.5, 7.0, 10.0, 11.0, 15.0, 20.0,
    30.0, 33.0, 60.0, 300.0,
];
const LATENESS: [f64; 11] = [
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 10.0,
];

/// The page needs nothing from elsewhere, and may get nothing. (Its icon is in itself.)
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; img-src data:";

/// A listening exporter.
pub(crate) struct Exporter {
    listeners: Listeners,
    host: Host,
    figures: PrometheusHandle,
}

/// An exporter at that endpoint, if there is to be one.
pub(crate) async fn start(endpoint: Option<&Endpoint>) -> anyhow::Result<Option<Exporter>> {
    match endpoint {
        Some(endpoint) => Ok(Some(Exporter::start(endpoint).await?)),
        None => Ok(None),
    }
}

impl Exporter {
    /// Listens, and becomes the recorder of this process: the purgatories that are built after this tell it.
    async fn start(endpoint: &Endpoint) -> anyhow::Result<Self> {
        let listeners = endpoint.listen().await;
        let listeners = listeners.with_context(|| format!("cannot show metrics on {endpoint}"))?;
        let park_time = Matcher::Full("purgatory_park_time_seconds".to_owned());
        let lateness = Matcher::Full("purgatory_lateness_seconds".to_owned());
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(park_time, &PARK_TIME)?
            .set_buckets_for_metric(lateness, &LATENESS)?
            .build_recorder();
        let figures = recorder.handle();
        metrics::set_global_recorder(recorder)?;
        Ok(Self {
            listeners,
            host: Host::new(endpoint.host()),
            figures,
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listeners.address()
    }

    /// Serves on the current tokio runtime, for as long as that runs.
    pub(crate) fn show(self, purgatories: Purgatories) {
        let history = Arc::new(History::default());
        tokio::spawn(Arc::clone(&history).record(self.figures.clone()));
        let oldest = Arc::new(Oldest::new(purgatories));
        let router = Router::new()
            .route("/", get(page))
            .route("/metrics", get(render).with_state(self.figures))
            .route("/history", get(history::answer).with_state(history))
            .route("/oldest", get(oldest::answer).with_state(oldest))
            .layer(middleware::from_fn_with_state(self.host, host::check));
        tokio::spawn(serve::run(self.listeners, router));
    }
}

async fn page() -> impl IntoResponse {
    (
        [(CONTENT_SECURITY_POLICY, POLICY)],
        Html(include_str!("exporter/page.html")),
    )
}

async fn render(State(figures): State<PrometheusHandle>) -> impl IntoResponse {
    const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, FORMAT)], figures.render())
}
