//! The `demo` command: a broker under the load of a real client library, and what its purgatories did.

mod load;
mod report;

use crate::broker::Broker;
use crate::cli::{DemoOptions, MAX_CONNECTIONS};
use crate::console::say;
use crate::endpoint::Endpoint;
use crate::exporter;
use crate::figures::cpu::CpuTime;
use crate::groups::settings::INITIAL_DELAY;
use crate::server::Server;
use load::Load;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// Name of the clients' threads, so that their CPU time is not taken for the broker's.
const CLIENTS: &str = "clients";

/// How long the last requests may take once no new ones are made.
const DRAIN: Duration = Duration::from_secs(20);

/// Runs the demonstration. False if a request got no answer or a record got lost.
pub(crate) fn run(options: &DemoOptions) -> anyhow::Result<bool> {
    let broker_threads = runtime("broker")?;
    let client_threads = runtime(CLIENTS)?;

    let (broker, server, exporter) = broker_threads.block_on(async {
        let exporter = exporter::start(options.metrics.as_ref()).await?;
        let loopback = Endpoint::free_loopback();
        let broker = Arc::new(Broker::open(options.replica_lag, INITIAL_DELAY, None)?);
        let server = Server::bind(&loopback, MAX_CONNECTIONS, Arc::clone(&broker)).await?;
        anyhow::Ok((broker, server, exporter))
    })?;
    let address = server.address()?;
    let (stop, stopped) = oneshot::channel();
    let serving = broker_threads.spawn(server.run(async {
        // Resolves when it is sent, or dropped by an early return.
        let _ = stopped.await;
    }));

    say(&format!("broker on {address}; {}", load::DESCRIPTION))?;
    if let Some(exporter) = exporter {
        say(&format!("metrics on http://{}", exporter.address()?))?;
        let _broker_threads = broker_threads.enter();
        exporter.show(broker.purgatories.clone());
    }
    let started = Instant::now();
    let cpu = CpuTime::now(CLIENTS);
    let load = client_threads.block_on(Load::start(address))?;
    let watched = client_threads.block_on(watch(&broker, &load, options.duration));
    let finished = client_threads.block_on(load.finish(DRAIN));
    let elapsed = started.elapsed();
    let cpu = CpuTime::now(CLIENTS)
        .zip(cpu)
        .map(|(now, then)| now.since(then));

    // An answer is counted after it was sent, so the client may have it first: count when all has ended.
    let _ = stop.send(());
    broker_threads.block_on(serving)?;
    watched?;
    let out = &mut io::stdout().lock();
    Ok(report::print(out, &broker, &finished, cpu, elapsed)?)
}

fn runtime(name: &str) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .thread_name(name)
        .enable_all()
        .build()
}

/// Prints a line per second, as long as its reader takes them.
async fn watch(broker: &Broker, load: &Load, duration: Duration) -> io::Result<()> {
    let started = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.tick().await;
    let mut before = 0;
    while started.elapsed() < duration {
        ticks.tick().await;
        let answered = broker.metrics.answered.value();
        say(&format!(
            "{:3} s: {:6} requests/s, parked: {:3} fetch + {} produce, records: {} produced, {} consumed",
            started.elapsed().as_secs(),
            answered - before,
            broker.purgatories.fetch.len(),
            broker.purgatories.produce.len(),
            load.tally().produced.value(),
            load.tally().consumed.value(),
        ))?;
        before = answered;
    }
    Ok(())
}
