//! The tables, in markdown.

use crate::innocent::Found;
use crate::samples::Samples;
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
        brief(samples.quantile(0.5)),
        brief(samples.quantile(0.99)),
        brief(samples.quantile(0.999)),
        brief(samples.max())
    );
}

pub(crate) fn brief(duration: Duration) -> String {
    match duration.as_nanos() {
        0..1_000 => format!("{} ns", duration.as_nanos()),
        1_000..1_000_000 => format!("{:.1} µs", duration.as_nanos() as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", duration.as_nanos() as f64 / 1e6),
        _ => format!("{:.2} s", duration.as_secs_f64()),
    }
}
