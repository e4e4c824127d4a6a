//! The `serve` command: a broker until SIGINT or SIGTERM.

use crate::broker::{Broker, delayed::Purgatories};
use crate::cli::{ServeOptions, Settings};
use crate::listen::Listeners;
use crate::{log, page, server};
use anyhow::Context;
use std::sync::{Arc, atomic::Ordering::Relaxed};
use std::time::Duration;

pub(crate) async fn run(options: &ServeOptions) -> anyhow::Result<()> {
    // Before the address is printed, so that no interrupt comes too early.
    let interrupted = interrupted()?;
    log::LINES.store(options.log_lines, Relaxed);
    let (settings, metrics) = (&options.settings, options.metrics.as_deref());
    let (broker, listeners) = start(settings, &options.listen, metrics, "").await?;
    if let Some(interval) = options.report_ms {
        tokio::spawn(report(Arc::clone(&broker), interval));
    }
    server::run(listeners, Arc::clone(&broker), interrupted).await;
    let synced = broker.sync();
    synced.context("cannot write the last records to disk")?;
    // (A program may have read what is printed here, and stopped: no reason to fail.)
    let _ = say!("stopped; {}", parked(&broker));
    Ok(())
}

/// A broker and where it listens, and its page if it is to have one. `load` says what it will have to do.
pub(crate) async fn start(
    settings: &Settings,
    endpoint: &str,
    metrics: Option<&str>,
    load: &'static str,
) -> anyhow::Result<(Arc<Broker>, Listeners)> {
    // Before the purgatories are built, which tell it.
    let recorded = metrics.map(|_| page::record()).transpose()?;
    let broker = Broker::open(settings).with_context(|| format!("cannot begin with {settings:?}"));
    let broker = Arc::new(broker?);
    let listeners = Listeners::bind(endpoint).await?;
    let separator = if load.is_empty() { "" } else { "; " };
    let _ = say!("listening on {}{separator}{load}", listeners.address()?);
    if let Some((endpoint, recorded)) = metrics.zip(recorded) {
        let page = page::show(endpoint, recorded, Arc::clone(&broker), load).await?;
        let _ = say!("metrics on http://{page}");
    }
    Ok((broker, listeners))
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
    // Read first: a client that has left leaves nothing parked.
    let connections = Arc::strong_count(&broker.connection) - 1;
    let Purgatories { fetch, produce } = &broker.purgatories;
    let (fetch, produce) = (fetch.stats(), produce.stats());
    let [rebalances, sessions] = broker.groups.stats();
    format!(
        "parked: fetch={} produce={} watched={} connections={connections} missed_checks={} \
         groups: rebalances={} members={}",
        fetch.parked,
        produce.parked,
        fetch.watched + produce.watched,
        fetch.missed_checks + produce.missed_checks,
        rebalances.parked,
        sessions.parked,
    )
}
