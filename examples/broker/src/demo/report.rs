//! The table at the end of the demonstration.

use crate::broker::Broker;
use crate::console::warn;
use crate::demo::load::Finished;
use crate::figures::cpu::CpuTime;
use crate::figures::histogram::Histogram;
use request_purgatory::stats::Stats;
use std::io::{self, Write};
use std::time::Duration;

/// Prints what happened. False if a request got no answer or a record got lost.
pub(crate) fn print(
    out: &mut impl Write,
    broker: &Broker,
    finished: &Finished,
    cpu: Option<CpuTime>,
    elapsed: Duration,
) -> io::Result<bool> {
    let (metrics, tally) = (&broker.metrics, &finished.tally);
    let fetch = broker.purgatories.fetch.stats();
    let produce = broker.purgatories.produce.stats();
    let unanswered = tally.sent.value() - tally.answered.value();
    let dropped = metrics.received.value() - metrics.answered.value();

    writeln!(out)?;
    writeln!(
        out,
        "requests                 {:>10}",
        metrics.received.value()
    )?;
    writeln!(
        out,
        "  answered               {:>10}",
        metrics.answered.value()
    )?;
    writeln!(
        out,
        "  unanswered             {:>10}",
        unanswered.max(dropped)
    )?;
    writeln!(
        out,
        "records produced         {:>10}",
        tally.produced.value()
    )?;
    writeln!(
        out,
        "  consumed               {:>10}  of {} expected",
        tally.consumed.value(),
        tally.expected.value()
    )?;
    writeln!(out)?;
    writeln!(out, "purgatory                     fetch    produce")?;
    row(out, "completed at once", &fetch, &produce, |stats| {
        stats.completed_at_once
    })?;
    row(out, "parked", &fetch, &produce, parked)?;
    row(out, "  completed by a key", &fetch, &produce, |stats| {
        stats.completed
    })?;
    row(out, "  expired", &fetch, &produce, |stats| stats.expired)?;
    row(out, "  cancelled", &fetch, &produce, |stats| {
        stats.cancelled
    })?;
    row(out, "  ended by shutdown", &fetch, &produce, |stats| {
        stats.shut_down
    })?;
    row(out, "missed checks", &fetch, &produce, |stats| {
        stats.missed_checks
    })?;
    writeln!(out)?;
    writeln!(
        out,
        "                                p50        p99        max"
    )?;
    quantiles(out, "readable to wake-up", &metrics.wake_up)?;
    quantiles(out, "produce to consumer", &tally.end_to_end)?;
    quantiles(out, "produce to its answer", &tally.produce)?;
    quantiles(out, "expiry after deadline", &metrics.lateness)?;
    writeln!(out)?;
    match cpu {
        Some(cpu) => {
            writeln!(out, "CPU of the broker   {}", share(cpu.others, elapsed))?;
            writeln!(out, "CPU of the clients  {}", share(cpu.named, elapsed))?;
        }
        None => writeln!(out, "CPU                 not known on this system")?,
    }

    for failure in &finished.failures {
        warn(&format!("a client failed: {failure}"));
    }
    let lost = tally.consumed.value() != tally.expected.value();
    Ok(unanswered == 0 && dropped == 0 && !lost && finished.failures.is_empty())
}

/// All that ever went in: those that came out, and those that are still there.
fn parked(stats: &Stats) -> u64 {
    stats.completed + stats.expired + stats.cancelled + stats.shut_down + stats.parked as u64
}

fn row(
    out: &mut impl Write,
    name: &str,
    fetch: &Stats,
    produce: &Stats,
    figure: impl Fn(&Stats) -> u64,
) -> io::Result<()> {
    let (fetch, produce) = (figure(fetch), figure(produce));
    writeln!(out, "{name:24} {fetch:>10} {produce:>10}")
}

fn quantiles(out: &mut impl Write, name: &str, histogram: &Histogram) -> io::Result<()> {
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| milliseconds(histogram.quantile(share)));
    writeln!(out, "{name:24} {p50:>10} {p99:>10} {max:>10}")
}

fn milliseconds(duration: Option<Duration>) -> String {
    match duration {
        Some(duration) => format!("{:.2} ms", duration.as_secs_f64() * 1e3),
        None => "-".to_owned(),
    }
}

fn share(cpu: Duration, elapsed: Duration) -> String {
    let percent = 100.0 * cpu.as_secs_f64() / elapsed.as_secs_f64();
    format!(
        "{:6.2} s in {:.1} s: {percent:.1} % of one core",
        cpu.as_secs_f64(),
        elapsed.as_secs_f64()
    )
}
