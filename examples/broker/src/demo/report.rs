//! The table at the end of the demonstration.

use crate::broker::Broker;
use crate::demo::load::Finished;
use crate::figures::cpu::CpuTime;
use crate::figures::histogram::Histogram;
use request_purgatory::Stats;
use std::time::Duration;

/// Prints what happened. False if a request got no answer or a record got lost.
pub(crate) fn print(
    broker: &Broker,
    finished: &Finished,
    cpu: Option<CpuTime>,
    elapsed: Duration,
) -> bool {
    let (metrics, tally) = (&broker.metrics, &finished.tally);
    let fetch = broker.purgatories.fetch.stats();
    let produce = broker.purgatories.produce.stats();
    let unanswered = tally.sent.value() - tally.answered.value();
    let dropped = metrics.received.value() - metrics.answered.value();

    println!();
    println!("requests                 {:>10}", metrics.received.value());
    println!("  answered               {:>10}", metrics.answered.value());
    println!("  unanswered             {:>10}", unanswered.max(dropped));
    println!("records produced         {:>10}", tally.produced.value());
    println!(
        "  consumed               {:>10}  of {} expected",
        tally.consumed.value(),
        tally.expected.value()
    );
    println!();
    println!("purgatory                     fetch    produce");
    row("completed at once", &fetch, &produce, |stats| {
        stats.completed_at_once
    });
    row("parked", &fetch, &produce, parked);
    row("  completed by a key", &fetch, &produce, |stats| {
        stats.completed
    });
    row("  expired", &fetch, &produce, |stats| stats.expired);
    row("  cancelled", &fetch, &produce, |stats| stats.cancelled);
    row("  ended by shutdown", &fetch, &produce, |stats| {
        stats.shut_down
    });
    row("missed checks", &fetch, &produce, |stats| {
        stats.missed_checks
    });
    println!();
    println!("                                p50        p99        max");
    quantiles("append to wake-up", &metrics.wake_up);
    quantiles("produce to consumer", &tally.end_to_end);
    quantiles("produce to its answer", &tally.produce);
    quantiles("expiry after deadline", &metrics.lateness);
    println!();
    match cpu {
        Some(cpu) => {
            println!("CPU of the broker   {}", share(cpu.others, elapsed));
            println!("CPU of the clients  {}", share(cpu.named, elapsed));
        }
        None => println!("CPU                 not known on this system"),
    }

    for failure in &finished.failures {
        eprintln!("broker: a client failed: {failure}");
    }
    let lost = tally.consumed.value() != tally.expected.value();
    unanswered == 0 && dropped == 0 && !lost && finished.failures.is_empty()
}

/// All that ever went in: those that came out, and those that are still there.
fn parked(stats: &Stats) -> u64 {
    stats.completed + stats.expired + stats.cancelled + stats.shut_down + stats.parked as u64
}

fn row(name: &str, fetch: &Stats, produce: &Stats, figure: impl Fn(&Stats) -> u64) {
    println!("{name:24} {:>10} {:>10}", figure(fetch), figure(produce));
}

fn quantiles(name: &str, histogram: &Histogram) {
    let quantile = |share| milliseconds(histogram.quantile(share));
    let max = milliseconds(histogram.quantile(1.0));
    println!(
        "{name:24} {:>10} {:>10} {max:>10}",
        quantile(0.5),
        quantile(0.99)
    );
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
