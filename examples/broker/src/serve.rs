//! The `serve` command: a broker until SIGINT or SIGTERM.

use crate::broker::Broker;
use crate::cli::ServeOptions;
use crate::console::say;
use crate::exporter;
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
        let exporter = exporter::start(options.metrics.as_ref()).await?;
        let data = options.data.as_deref();
        let broker = Broker::open(options.replica_lag, options.group_delay, data).with_context(
            || match data {
                Some(data) => format!("cannot use {}", data.display()),
                None => "cannot begin".to_owned(),
            },
        )?;
        let broker = Arc::new(broker);
        let server = Server::bind(
            &options.listen,
            options.max_connections,
            Arc::clone(&broker),
        );
        let server = server.await?;
        print(&format!("listening on {}", server.address()?));
        if let Some(exporter) = exporter {
            print(&format!("metrics on http://{}", exporter.address()?));
            exporter.show(broker.purgatories.clone());
        }
        if let Some(interval) = options.report {
            tokio::spawn(report(Arc::clone(&broker), interval));
        }
        server.run(interrupted).await;
        broker
            .sync()
            .context("cannot write the last records to disk")?;
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

#[cfg(not(unix))]
fn interrupted() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        // Without a handler there is nothing to wait for: serve until the process is ended.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    })
}

async fn report(broker: Arc<Broker>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    loop {
        ticks.tick().await;
        print(&parked(&broker));
    }
}

fn parked(broker: &Broker) -> String {
    let (fetch, produce) = (&broker.purgatories.fetch, &broker.purgatories.produce);
    let (metrics, groups) = (&broker.metrics, &broker.groups);
    format!(
        "parked: fetch={} produce={} watched: fetch={} produce={} connections={} received={} answered={} \
         abandoned={} unacknowledged={} missed_checks={} groups: joins={} syncs={} members={} rebalances={}",
        fetch.len(),
        produce.len(),
        fetch.watched(),
        produce.watched(),
        metrics.connections.value(),
        metrics.received.value(),
        metrics.answered.value(),
        metrics.abandoned.value(),
        metrics.unacknowledged.value(),
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
