//! The `demo` command: a broker under the load of a real client library, and what its purgatories did.

mod load;

use crate::broker::Broker;
use crate::cli::{DemoOptions, Settings};
use crate::{serve, server};
use load::{Load, Tally};
use request_purgatory::purgatory::Stats;
use std::io;
use std::sync::{Arc, atomic::Ordering::Relaxed};
use std::time::Duration;

/// How long the last requests may take once no new ones are made.
const DRAIN: Duration = Duration::from_secs(20);

/// Runs the demonstration. False if a request got no answer or a record got lost.
pub(crate) async fn run(options: &DemoOptions) -> anyhow::Result<bool> {
    let settings = Settings {
        data: None,
        partitions: 1,
        replica_lag_ms: options.replica_lag_ms,
        group_delay_ms: Duration::ZERO,
    };
    let (metrics, load) = (options.metrics.as_deref(), load::DESCRIPTION);
    let (broker, listeners) = serve::start(&settings, "127.0.0.1:0", metrics, load).await?;
    let address = listeners.address()?;
    let mut loaded = Ok(false);
    let load = async {
        let load = Load::start(address).await?;
        let tally = Arc::clone(&load.tally);
        let watched = watch(&broker, &tally, options.seconds).await;
        let failures = load.finish(DRAIN).await;
        watched?;
        report(&broker, &tally)?;
        failures.iter().for_each(|it| log!("a client failed: {it}"));
        Ok(failures.is_empty() && tally.consumed.load(Relaxed) == tally.expected.load(Relaxed))
    };
    let stop = async { loaded = load.await };
    server::run(listeners, Arc::clone(&broker), stop).await;
    loaded
}

/// Prints a line per second, as long as its reader takes them.
async fn watch(broker: &Broker, tally: &Tally, seconds: u64) -> io::Result<()> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.tick().await;
    let mut before = 0;
    for second in 1..=seconds {
        ticks.tick().await;
        let answered = tally.answered.load(Relaxed);
        say!(
            "{second:3} s: {:6} requests/s, parked: {:3} fetch + {} produce, records: {} produced, {} consumed",
            answered - before,
            broker.purgatories.fetch.stats().parked,
            broker.purgatories.produce.stats().parked,
            tally.produced.load(Relaxed),
            tally.consumed.load(Relaxed),
        )?;
        before = answered;
    }
    Ok(())
}

fn report(broker: &Broker, tally: &Tally) -> io::Result<()> {
    let (fetch, produce) = (&broker.purgatories.fetch, &broker.purgatories.produce);
    say!("\n{:24} {:>10} {:>10}", "purgatory", "fetch", "produce")?;
    let stats = [fetch.stats(), produce.stats()];
    type Count = fn(&Stats) -> u64;
    let counts: [(&str, Count); 6] = [
        ("completed at once", |it| it.completed_at_once),
        ("completed by a key", |it| it.completed),
        ("expired", |it| it.expired),
        ("cancelled", |it| it.cancelled),
        ("ended by shutdown", |it| it.shut_down),
        ("missed checks", |it| it.missed_checks),
    ];
    for (name, count) in counts {
        let [fetch, produce] = stats.each_ref().map(count);
        say!("{name:24} {fetch:>10} {produce:>10}")?;
    }
    say!("\n{:24} {:>10} {:>10} {:>10}", "", "p50", "p99", "max")?;
    for (name, histogram) in [
        ("produce to consumer", &tally.end_to_end),
        ("produce to its answer", &tally.produce),
    ] {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| histogram.quantile(share));
        say!("{name:24} {p50:>10} {p99:>10} {max:>10}")?;
    }
    let counts = [&tally.answered, &tally.consumed, &tally.expected];
    let [answered, consumed, expected] = counts.map(|count| count.load(Relaxed));
    say!("\nanswered {answered}, consumed {consumed} of {expected}")
}
