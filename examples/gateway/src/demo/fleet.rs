//! The three nodes: processes of this program, or (for the engine in memory) threads of this process.

mod process;
mod thread;

use super::client::Connection;
use super::servers::Engine;
use crate::cli::{DemoArgs, ServeArgs};
use crate::stats::Stats;
use anyhow::{Context, Result};
use process::NodeProcess;
use std::net::SocketAddr;
use std::time::Duration;
use thread::NodeThread;

pub(super) const NODES: usize = 3;
/// What a node may take to send its figures, before it is shown with its last ones.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
enum Runner {
    Process(NodeProcess),
    Thread(NodeThread),
}

#[derive(Debug)]
pub(super) struct Node {
    runner: Runner,
    address: SocketAddr,
    pub(super) is_alive: bool,
    /// What it said last.
    pub(super) stats: Stats,
    connection: Option<Connection>,
}

impl Node {
    async fn start(number: usize, engine: &Engine, args: &DemoArgs) -> Result<Self> {
        let args = ServeArgs {
            engine: args.engine,
            url: engine.url().into_iter().collect(),
            listen: "127.0.0.1:0".into(),
            name: format!("node-{}", number + 1),
            peer: Vec::new(),
            max_wait: Duration::from_secs(300),
            max_polls: 100_000,
            audit: args.audit,
            ping: Duration::from_secs(1),
        };
        let (runner, address) = match engine.store() {
            Some(store) => {
                let (thread, address) = NodeThread::start(&args, store).await?;
                (Runner::Thread(thread), address)
            }
            None => {
                let (process, address) = NodeProcess::start(&args).await?;
                (Runner::Process(process), address)
            }
        };
        Ok(Self {
            runner,
            address,
            is_alive: true,
            stats: Stats::default(),
            connection: None,
        })
    }

    async fn ask(&mut self) -> Result<Stats> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.address).await?,
        };
        let (_, body) = connection.get("/stats").await?;
        self.connection = Some(connection);
        serde_json::from_slice(&body).context("a node sent no figures")
    }

    /// Asks for its figures; without an answer, they stay.
    async fn refresh(&mut self) {
        if self.is_alive
            && let Ok(Ok(stats)) = tokio::time::timeout(PATIENCE, self.ask()).await
        {
            self.stats = stats;
        }
    }

    /// SIGKILL.
    pub(super) async fn kill(&mut self) -> Result<()> {
        self.refresh().await;
        self.is_alive = false;
        match &mut self.runner {
            Runner::Process(process) => process.kill().await,
            Runner::Thread(thread) => thread.kill().await,
        }
    }

    /// From now on its subscription is frozen, or no longer is.
    pub(super) async fn deafen(&mut self, is_deaf: bool) -> Result<()> {
        match &mut self.runner {
            Runner::Process(process) => process.say(if is_deaf { "deaf" } else { "hear" }).await,
            Runner::Thread(thread) => {
                thread.deafen(is_deaf);
                Ok(())
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) nodes: Vec<Node>,
}

impl Fleet {
    pub(super) async fn start(engine: &Engine, args: &DemoArgs) -> Result<Self> {
        let mut nodes = Vec::new();
        for number in 0..NODES {
            nodes.push(Node::start(number, engine, args).await?);
        }
        let url = |node: &Node| format!("http://{}", node.address);
        let urls = nodes.iter().map(url).collect::<Vec<_>>();
        for (number, node) in nodes.iter_mut().enumerate() {
            let others = urls.iter().enumerate().filter(|(it, _)| *it != number);
            let others = others.map(|(_, url)| url.clone()).collect::<Vec<_>>();
            match &mut node.runner {
                Runner::Process(process) => {
                    process.say(&format!("peers {}", others.join(" "))).await?;
                }
                Runner::Thread(thread) => thread.set_peers(others),
            }
        }
        Ok(Self { nodes })
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    pub(super) async fn refresh(&mut self) {
        for node in &mut self.nodes {
            node.refresh().await;
        }
    }

    /// How many polls are parked on each node that is alive.
    pub(super) fn parked(&self) -> Vec<usize> {
        let alive = self.nodes.iter().filter(|node| node.is_alive);
        alive.map(|node| node.stats.parked).collect()
    }

    /// SIGTERM to all; then waits for their ends.
    ///
    /// # Errors
    /// A node did not end in order.
    pub(super) async fn shut_down(&mut self) -> Result<()> {
        for node in self.nodes.iter_mut().filter(|node| node.is_alive) {
            node.connection = None;
            match &mut node.runner {
                Runner::Process(process) => process.terminate()?,
                Runner::Thread(thread) => thread.terminate(),
            }
        }
        for node in self.nodes.iter_mut().filter(|node| node.is_alive) {
            match &mut node.runner {
                Runner::Process(process) => process.ended().await?,
                Runner::Thread(thread) => thread.ended().await?,
            }
            node.is_alive = false;
        }
        Ok(())
    }
}
