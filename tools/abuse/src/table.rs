//! The tables, in markdown.

use crate::innocent::{Found, Samples};
use std::time::Duration;

pub(crate) fn head() {
    println!("| scenario | thread | samples | p50 | p99 | p99.9 | worst |");
    println!("|---|---|---:|---:|---:|---:|---:|");
}

/// Four rows: the innocent's calls and the reader's, alone and abused.
pub(crate) fn rows(scenario: &str, alone: &Found, abused: &Found) {
    row(scenario, "innocent, abused", &abused.calls);
    row("", "innocent, alone", &alone.calls);
    row("", "clock only, abused", &abused.clock);
    row("", "clock only, alone", &alone.clock);
}

fn row(scenario: &str, thread: &str, samples: &Samples) {
    println!(
        "| {scenario} | {thread} | {} | {} | {} | {} | {} |",
        samples.len(),
        quantile(samples, 0.5),
        quantile(samples, 0.99),
        quantile(samples, 0.999),
        quantile(samples, 1.0)
    );
}

/// What this share of the samples does not exceed.
pub(crate) fn quantile(samples: &Samples, share: f64) -> String {
    brief(Duration::from_nanos(samples.value_at_quantile(share)))
}

pub(crate) fn brief(duration: Duration) -> String {
    match duration.as_nanos() {
        0..1_000 => format!("{} ns", duration.as_nanos()),
        1_000..1_000_000 => format!("{:.1} µs", duration.as_nanos() as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", duration.as_nanos() as f64 / 1e6),
        _ => format!("{:.2} s", duration.as_secs_f64()),
    }
}
