//! The `serve` command: a broker until SIGINT or SIGTERM.

use crate::broker::{Broker, Settings};
use crate::cli::ServeOptions;
use crate::console::say;
use crate::page::Page;
use crate::server::Server;
use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn run(options: &ServeOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("broker")
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Before the address is printed, so that no interrupt comes too early.
        let interrupted = interrupted()?;
        let page = Page::bind(options.metrics.as_deref()).await?;
        let broker = Arc::new(Broker::open(&Settings {
            partitions: options.partitions,
            replica_lag: options.replica_lag_ms,
            group_delay: options.group_delay_ms,
            data: options.data.clone(),
        })?);
        let server = Server::bind(&options.listen, Arc::clone(&broker)).await?;
        print(&format!("listening on {}", server.address()?));
        if let Some(page) = page {
            print(&format!("metrics on http://{}", page.address()?));
            page.show(broker.purgatories.clone(), "");
        }
        if let Some(interval) = options.report_ms {
            tokio::spawn(report(Arc::clone(&broker), interval));
        }
        server.run(interrupted).await;
        let synced = broker.sync();
        synced.context("cannot write the last records to disk")?;
        print(&format!("stopped; {}", parked(&broker)));
        Ok(())
    })
}

/// Resolves at the first SIGINT or SIGTERM.
#[cfg(unix)]
fn interrupted() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Without a handler there is nothing to wait for: the process is ended.
#[cfg(not(unix))]
fn interrupted() -> std::io::Result<impl Future<Output = ()>> {
    Ok(std::future::pending())
}

async fn report(broker: Arc<Broker>, interval: Duration) {
    // A ticker cannot tick without a pause.
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(1)));
    loop {
        ticks.tick().await;
        print(&parked(&broker));
    }
}

fn parked(broker: &Broker) -> String {
    let (fetch, produce) = (&broker.purgatories.fetch, &broker.purgatories.produce);
    let groups = &broker.groups;
    format!(
        "parked: fetch={} produce={} watched={} connections={} missed_checks={} \
         groups: joins={} syncs={} members={} rebalances={}",
        fetch.len(),
        produce.len(),
        fetch.stats().watched + produce.stats().watched,
        Arc::strong_count(&broker.connection) - 1,
        fetch.stats().missed_checks + produce.stats().missed_checks,
        groups.joins.len(),
        groups.syncs.len(),
        groups.members(),
        groups.rebalances(),
    )
}

/// Prints a line that a program may be reading. If it stopped reading, that is no reason to stop serving.
fn print(line: &str) {
    let _ = say(line);
}
