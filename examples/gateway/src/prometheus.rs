//! Figures for Prometheus: what the purgatory and the cluster of a node tell the recorder, and the node's own counters.

use crate::stats::Stats;
use anyhow::{Context, Result};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the histograms, in seconds: of waits, and of how late they expire.
const SECONDS: [f64; 14] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0,
];

/// How often what was recorded is moved to the histograms, which do not grow.
const UPKEEP: Duration = Duration::from_secs(5);

/// The recorder of this process. The first node makes it, before its purgatory and its cluster, which tell it.
///
/// # Errors
/// The process has another recorder, or the system refused a thread.
pub(crate) fn recorder() -> Result<PrometheusHandle> {
    static MADE: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(made) = &*made {
        return Ok(made.clone());
    }
    let builder = PrometheusBuilder::new().set_buckets(&SECONDS)?;
    let recorder = builder.build_recorder();
    let figures = recorder.handle();
    metrics::set_global_recorder(recorder).context("there is a recorder of metrics already")?;
    let upkeep = figures.clone();
    let thread = std::thread::Builder::new().name("metrics".into());
    thread.spawn(move || {
        loop {
            std::thread::sleep(UPKEEP);
            upkeep.run_upkeep();
        }
    })?;
    Ok(made.insert(figures).clone())
}

/// Tells the recorder what a node counts itself.
pub(crate) fn tell(stats: &Stats) {
    for (name, count) in [
        ("gateway_posts_total", stats.posts),
        ("gateway_failed_posts_total", stats.posts_failed),
        ("gateway_woken_polls_total", stats.woken),
        ("gateway_expired_polls_total", stats.expired),
        ("gateway_gone_polls_total", stats.gone),
        ("gateway_refused_polls_total", stats.refused),
        ("gateway_body_reads_total", stats.fetches),
    ] {
        metrics::counter!(name, "node" => stats.name.clone()).absolute(count);
    }
}
