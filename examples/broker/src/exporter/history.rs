//! What the figures were, for as long as the page draws.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the figures are noted. (Asking for them also moves what was recorded to the histograms.)
const EVERY: Duration = Duration::from_secs(2);

/// As long as the page's charts.
const KEPT: usize = 60;

/// The last readings, oldest first.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<VecDeque<(Instant, String)>>);

impl History {
    /// Notes the figures for as long as the runtime runs.
    pub(super) async fn record(self: Arc<Self>, figures: PrometheusHandle) {
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            ticks.tick().await;
            let rendered = figures.render();
            let samples = rendered
                .lines()
                .filter(|line| line.starts_with("purgatory_"));
            let samples = samples.collect::<Vec<_>>().join("\n");
            let mut readings = self.0.lock();
            if readings.len() == KEPT {
                readings.pop_front();
            }
            readings.push_back((Instant::now(), samples));
        }
    }
}

/// Each reading, and how many seconds ago it was.
pub(super) async fn answer(State(history): State<Arc<History>>) -> impl IntoResponse {
    let readings = history.0.lock();
    let readings: Value = readings
        .iter()
        .map(|(at, samples)| json!({ "age": at.elapsed().as_secs_f64(), "samples": samples }))
        .collect();
    ([(CONTENT_TYPE, "application/json")], readings.to_string())
}
