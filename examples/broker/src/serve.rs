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
        let settings = Settings {
            partitions: options.partitions,
            replica_lag: options.replica_lag_ms,
            group_delay: options.group_delay_ms,
            data: options.data.clone(),
        };
        let metrics = options.metrics.as_deref();
        let (broker, server) = start(&settings, &options.listen, metrics, "").await?;
        if let Some(interval) = options.report_ms {
            tokio::spawn(report(Arc::clone(&broker), interval));
        }
        server.run(interrupted).await;
        let synced = broker.sync();
        synced.context("cannot write the last records to disk")?;
        // (A program may have read what is printed here, and stopped: no reason to fail.)
        let _ = say!("stopped; {}", parked(&broker));
        Ok(())
    })
}

/// A broker that listens, and its page if it is to have one. `load` says what it will have to do.
pub(crate) async fn start(
    settings: &Settings,
    endpoint: &str,
    metrics: Option<&str>,
    load: &'static str,
) -> anyhow::Result<(Arc<Broker>, Server)> {
    // Before the purgatories are built, which tell it.
    let page = Page::bind(metrics).await?;
    let broker = Arc::new(Broker::open(settings)?);
    let server = Server::bind(endpoint, Arc::clone(&broker)).await?;
    let separator = if load.is_empty() { "" } else { "; " };
    let _ = say!("listening on {}{separator}{load}", server.address()?);
    if let Some(page) = page {
        let _ = say!("metrics on http://{}", page.address()?);
        page.show(broker.purgatories.clone(), load);
    }
    Ok((broker, server))
}

/// Resolves at the first SIGINT or SIGTERM.
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

async fn report(broker: Arc<Broker>, interval: Duration) {
    // A ticker cannot tick without a pause.
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(1)));
    loop {
        ticks.tick().await;
        let _ = say!("{}", parked(&broker));
    }
}

fn parked(broker: &Broker) -> String {
    let (fetch, produce) = (&broker.purgatories.fetch, &broker.purgatories.produce);
    let groups = &broker.groups;
    format!(
        "parked: fetch={} produce={} watched={} connections={} missed_checks={} \
         groups: joins={} syncs={} members={}",
        fetch.stats().parked,
        produce.stats().parked,
        fetch.stats().watched + produce.stats().watched,
        Arc::strong_count(&broker.connection) - 1,
        fetch.stats().missed_checks + produce.stats().missed_checks,
        groups.joins.stats().parked,
        groups.syncs.stats().parked,
        groups.members(),
    )
}
