//! Three nodes, an engine, many polls; and what breaks.

mod client;
mod fleet;
mod ledger;
mod poller;
mod poster;
mod progress;
mod report;
mod servers;

use crate::cli::DemoArgs;
use anyhow::{Context, Result, ensure};
use fleet::Fleet;
use ledger::Ledger;
use poller::Crowd;
use progress::Progress;
use report::{Farewell, Report};
use servers::Engine;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How long the engine is down.
const DOWN: Duration = Duration::from_millis(500);
/// Longer than it takes to park the polls on a busy machine.
const PARKING: Duration = Duration::from_secs(120);

/// Runs it, and says whether nothing was lost.
///
/// # Errors
/// A server or a node cannot be started, or does not do as it is told.
#[tokio::main]
pub async fn run(args: &DemoArgs) -> Result<bool> {
    // With the engine in memory, both ends of each connection are in this process.
    let files = u64::from(args.polls) * if args.engine.is_local() { 2 } else { 1 } + 200;
    let limit = rlimit::increase_nofile_limit(u64::MAX)?;
    ensure!(
        files <= limit,
        "{} polls need {files} open files in one process, and the system allows {limit}: \
         raise `ulimit -n`, or lower `--polls`",
        args.polls
    );
    tokio::select! {
        done = Demo::start_and_run(args) => done,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            anyhow::bail!("interrupted")
        }
    }
}

struct Demo<'a> {
    args: &'a DemoArgs,
    engine: Engine,
    fleet: Fleet,
    crowd: Arc<Crowd>,
    pollers: JoinSet<()>,
    progress: Progress,
}

impl<'a> Demo<'a> {
    async fn start_and_run(args: &'a DemoArgs) -> Result<bool> {
        let engine = Engine::start(args.engine).await?;
        let fleet = Fleet::start(&engine, args).await?;
        let ledger = Ledger::new(args.polls as usize, args.topics(), args.bound());
        let crowd = Arc::new(Crowd {
            ledger: Arc::new(ledger),
            addresses: fleet.addresses(),
            is_leaving: false.into(),
            answered: 0.into(),
            cut: 0.into(),
        });
        let pollers = poller::spawn(&crowd);
        let progress = Progress::new(crowd.ledger.clone());
        let addresses = crowd.addresses.iter();
        let pages = addresses.map(|it| format!("http://{it}/"));
        println!(
            "engine: {}; pages of the nodes: {}",
            args.engine,
            pages.collect::<Vec<_>>().join("  ")
        );
        let mut demo = Self {
            args,
            engine,
            fleet,
            crowd,
            pollers,
            progress,
        };
        demo.park().await?;
        demo.faults().await?;
        let farewell = demo.shut_down().await?;
        let ledger = &demo.crowd.ledger;
        let report = Report {
            phases: ledger.phases(),
            nodes: &demo.fleet.nodes,
            farewell,
            failures: ledger.failures(),
            resets: ledger.resets.load(Ordering::SeqCst),
            reconnects: ledger.reconnects.load(Ordering::SeqCst),
        };
        println!("{report}");
        Ok(report.is_good())
    }

    /// Until all polls are parked.
    async fn park(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            self.fleet.refresh().await;
            if self.fleet.parked().iter().sum::<usize>() == self.args.polls as usize {
                return Ok(());
            }
            self.progress.show("parking", &self.fleet);
            if start.elapsed() > PARKING {
                let failures = self.crowd.ledger.failures();
                anyhow::bail!("the polls are not parked within {PARKING:?}: {failures:?}");
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn faults(&mut self) -> Result<()> {
        self.phase("calm", async |_, _| Ok(())).await?;
        self.phase("a node is killed", async |fleet, _| {
            fleet.nodes[2].kill().await
        })
        .await?;
        self.phase("the engine is killed", async |_, engine| {
            engine.restart(DOWN).await
        })
        .await?;
        self.fleet.nodes[0].deafen(true).await?;
        self.phase("a subscription freezes", async |_, _| Ok(()))
            .await?;
        self.fleet.nodes[0].deafen(false).await
    }

    /// Posts events, and a third of the way does `fault`; then waits until all polls were told of all events.
    async fn phase(
        &mut self,
        name: &'static str,
        fault: impl AsyncFnOnce(&mut Fleet, &mut Engine) -> Result<()>,
    ) -> Result<()> {
        let DemoArgs { events, rate, .. } = *self.args;
        let ledger = self.crowd.ledger.clone();
        ledger.begin(name);
        let addresses = self.crowd.addresses.clone();
        let posted = ledger.clone();
        let posts =
            tokio::spawn(async move { poster::post(&posted, &addresses, events, rate).await });
        let third = Duration::from_secs(1) * events / rate / 3;
        self.watch_for(name, third).await;
        fault(&mut self.fleet, &mut self.engine)
            .await
            .with_context(|| format!("while {name}"))?;
        while !posts.is_finished() {
            self.watch_for(name, Duration::from_millis(100)).await;
        }
        posts.await?;
        let quiet = Instant::now();
        while ledger.behind() > 0 && quiet.elapsed() < self.args.bound() {
            self.watch_for(name, Duration::from_millis(100)).await;
        }
        ledger.lose(ledger.behind());
        self.fleet.refresh().await;
        self.progress.end(name, &self.fleet);
        Ok(())
    }

    async fn watch_for(&mut self, phase: &'static str, time: Duration) {
        let start = Instant::now();
        while let Some(left) = time.checked_sub(start.elapsed()) {
            if self.progress.is_due() {
                self.fleet.refresh().await;
                self.progress.show(phase, &self.fleet);
            }
            sleep(left.min(Duration::from_millis(100))).await;
        }
    }

    /// SIGTERM to the nodes that are left.
    async fn shut_down(&mut self) -> Result<Farewell> {
        self.fleet.refresh().await;
        let parked = self.fleet.parked().iter().sum();
        let start = Instant::now();
        self.crowd.is_leaving.store(true, Ordering::SeqCst);
        let ended = self.fleet.shut_down().await;
        if let Err(error) = ended {
            self.crowd.ledger.fail(format!("{error:#}"));
        }
        while let Some(ended) = self.pollers.join_next().await {
            ended?;
        }
        Ok(Farewell {
            parked,
            answered: self.crowd.answered.load(Ordering::SeqCst),
            cut: self.crowd.cut.load(Ordering::SeqCst),
            took: start.elapsed(),
        })
    }
}
