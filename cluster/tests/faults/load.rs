//! Two nodes with a client for each key on both, and a writer: what was committed, and what the clients were told.

use crate::support::engine::{Key, Rig};
use request_purgatory_cluster::{
    BoxError, Change, Changes, Cluster, ClusterWaits, Config, Feed, FeedError, Source, Stats,
    WaitError,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

pub const NODES: usize = 2;
const TIMEOUT: Duration = Duration::from_secs(600);

/// A feed whose sessions can be made deaf: connected, and told of nothing.
#[derive(Clone)]
pub struct Deafened<F> {
    feed: F,
    is_deaf: Arc<AtomicBool>,
}

impl<F> Deafened<F> {
    /// Deaf from the beginning.
    #[allow(dead_code, reason = "the long faults do not need it")]
    pub fn new(feed: F) -> Self {
        let is_deaf = Arc::new(AtomicBool::new(true));
        Self { feed, is_deaf }
    }
}

pub struct DeafenedChanges<C> {
    changes: C,
    is_deaf: Arc<AtomicBool>,
}

impl<F: Feed<Key>> Feed<Key> for Deafened<F> {
    type Interests = F::Interests;
    type Changes = DeafenedChanges<F::Changes>;

    async fn open(&self, config: &Config) -> Result<(Self::Interests, Self::Changes), FeedError> {
        let (interests, changes) = self.feed.open(config).await?;
        let is_deaf = self.is_deaf.clone();
        Ok((interests, DeafenedChanges { changes, is_deaf }))
    }
}

impl<C: Changes<Key>> Changes<Key> for DeafenedChanges<C> {
    async fn next(&mut self) -> Result<Vec<Change<Key>>, FeedError> {
        loop {
            let changes = self.changes.next().await?;
            if !self.is_deaf.load(Ordering::SeqCst) {
                return Ok(changes);
            }
        }
    }
}

/// A row of the table that `.ci/cluster-faults` prints.
pub fn print_row(
    row: &str,
    engine: &str,
    waits: usize,
    lost: usize,
    worst: Duration,
    then: impl std::fmt::Display,
) {
    let worst = match lost {
        0 => format!("{worst:.1?}"),
        _ => "never".to_owned(),
    };
    // (A server's words may hold what ends a column.)
    let then = then.to_string().replace('|', "\\|");
    println!("| {row} | {engine} | {waits} | {lost} | {worst} | {then} |");
}

/// What one client was told last.
struct Client {
    seen: AtomicU64,
}

pub struct Load {
    keys: Vec<Key>,
    nodes: Vec<ClusterWaits<Key>>,
    is_deaf: Arc<AtomicBool>,
    clients: Vec<Vec<Arc<Client>>>,
    tasks: JoinSet<()>,
    engine: &'static str,
    /// After the last commit: until all clients were told, and until all nodes were in step.
    took: Mutex<(Duration, Duration)>,
}

impl Load {
    pub async fn start<R: Rig>(rig: &R, keys: Vec<Key>, config: &Config) -> Self {
        let mut load = Self {
            keys,
            nodes: Vec::new(),
            is_deaf: Arc::default(),
            clients: Vec::new(),
            tasks: JoinSet::new(),
            engine: R::NAME,
            took: Mutex::default(),
        };
        for _ in 0..NODES {
            let feed = Deafened {
                feed: rig.engine(),
                is_deaf: load.is_deaf.clone(),
            };
            let node = Cluster::start(rig.engine(), feed, config.clone()).expect("in a runtime");
            let waits = ClusterWaits::new(&node).expect("there is a thread");
            let mut clients = Vec::new();
            for key in &load.keys {
                let client = Arc::new(Client {
                    seen: AtomicU64::new(0),
                });
                clients.push(client.clone());
                load.tasks.spawn(poll(waits.clone(), key.clone(), client));
            }
            load.clients.push(clients);
            load.nodes.push(waits);
        }
        load
    }

    /// Until every node watches every key.
    pub async fn wait_until_live(&self) {
        crate::support::eventually("the nodes are live", async || {
            let is_live = |node: &ClusterWaits<Key>| {
                let stats = node.cluster().stats();
                stats.lag.is_zero() && stats.watched_keys == self.keys.len()
            };
            self.nodes.iter().all(is_live).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    #[allow(dead_code, reason = "not every fault needs it")]
    pub fn deafen(&self, is_deaf: bool) {
        self.is_deaf.store(is_deaf, Ordering::SeqCst);
    }

    pub fn stats(&self) -> Vec<Stats> {
        self.nodes
            .iter()
            .map(|node| node.cluster().stats())
            .collect()
    }

    /// Prints a row of the table.
    pub fn print(&self, row: &str, lost: usize) {
        let (told, in_step) = *self.took.lock().expect("no test panics with it");
        let waits = self.keys.len() * NODES;
        let then = match lost {
            0 => format!("{in_step:.1?}"),
            _ => String::new(),
        };
        print_row(row, self.engine, waits, lost, told, then);
    }

    /// Commits once to every key, again and again until the store takes it.
    pub async fn commit_all(&self, commit: impl AsyncFn(&Key) -> Result<(), BoxError>) {
        for key in &self.keys {
            let start = Instant::now();
            while let Err(error) = commit(key).await {
                assert!(start.elapsed() < crate::support::LONG, "no commit: {error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Waits until every client has been told of what the store holds, for at most `bound`. Returns how many have not:
    /// their completions are lost.
    pub async fn lost<R: Rig>(&self, rig: &R, bound: Duration) -> usize {
        let reading = crate::support::eventually("the store is read", async || {
            rig.engine().versions(&self.keys).await.ok()
        })
        .await;
        let start = Instant::now();
        loop {
            let behind = self.clients.iter().flat_map(|clients| {
                clients
                    .iter()
                    .zip(&reading.versions)
                    .filter(|(client, version)| {
                        version.is_some_and(|it| client.seen.load(Ordering::SeqCst) != it)
                    })
            });
            let behind = behind.count();
            if behind > 0 && start.elapsed() > bound {
                return behind;
            }
            if behind == 0 {
                let told = start.elapsed();
                while start.elapsed() < bound && self.stats().iter().any(|it| !it.lag.is_zero()) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                let mut took = self.took.lock().expect("no test panics with it");
                *took = (took.0.max(told), took.1.max(start.elapsed()));
                return 0;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A client that waits, and waits again.
async fn poll(waits: ClusterWaits<Key>, key: Key, client: Arc<Client>) {
    loop {
        let seen = client.seen.load(Ordering::SeqCst);
        match waits.wait_past(key.clone(), seen, TIMEOUT).await {
            Ok(version) => client.seen.store(version, Ordering::SeqCst),
            Err(WaitError::Reset(position)) => {
                client.seen.store(position.version, Ordering::SeqCst);
            }
            Err(error) => panic!("{error}"),
        }
    }
}
