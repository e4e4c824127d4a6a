//! A feed and a store that do what a test says.

use request_purgatory_cluster::{
    Change, Changes, Cluster, Config, EngineError, Epoch, Feed, FeedError, Interests, Reading,
    Source,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

pub const AUDIT: Duration = Duration::from_millis(500);
pub const FIRST: Duration = Duration::from_millis(10);
pub const LONGEST: Duration = Duration::from_secs(1);

/// What the feed and the store do now.
#[derive(Debug, Default)]
pub struct Script {
    /// No session can be opened; and of these attempts every other one for another cause.
    pub refuses: bool,
    pub takes_turns: bool,
    attempts: u64,
    /// What the feed advises.
    pub advice: Option<Arc<str>>,
    /// A session ends after this time.
    pub lasts: Option<Duration>,
    /// Reads of keys fail: all of them, or this number.
    pub failing: u64,
    /// Reads return no versions.
    pub short: bool,
    /// Reads of keys return when the test [says](Engine::answer) so.
    pub gated: bool,
    /// A session that is about to begin waits; and one does.
    pub stalls: bool,
    pub is_stalled: bool,
    /// How often the store has lost its data.
    pub lost: u64,
    /// How long a read of the history alone takes. What it says is as old.
    pub slow: Duration,
    /// How many such reads have begun.
    pub openings: u64,
    pub version: u64,
    /// Each read finds another version.
    pub rises: bool,
    /// When keys were read, and how many.
    pub reads: Vec<Instant>,
    pub keys_read: usize,
}

#[derive(Clone, Default)]
pub struct Engine(pub Arc<Mutex<Script>>, Arc<Notify>, Arc<Notify>);

impl Engine {
    pub fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.0.lock().unwrap());
    }

    pub fn reads(&self) -> Vec<Instant> {
        self.0.lock().unwrap().reads.clone()
    }

    /// Ends the session.
    pub fn cut(&self) {
        self.1.notify_one();
    }

    /// Lets a read of keys return.
    pub fn answer(&self) {
        self.2.notify_one();
    }

    pub fn node(&self) -> Cluster<u64> {
        self.node_with(AUDIT)
    }

    pub fn node_with(&self, audit: Duration) -> Cluster<u64> {
        let config = Config {
            audit,
            backoff: (FIRST, LONGEST),
            ..Config::default()
        };
        Cluster::start(self.clone(), self.clone(), config).unwrap()
    }
}

impl Source<u64> for Engine {
    async fn versions(&self, keys: &[u64]) -> Result<Reading, EngineError> {
        let (epoch, slow, gated) = {
            let mut script = self.0.lock().unwrap();
            script.openings += u64::from(keys.is_empty());
            (Epoch(1 + script.lost), script.slow, script.gated)
        };
        if keys.is_empty() {
            sleep(slow).await;
        } else if gated {
            self.2.notified().await;
        }
        let mut script = self.0.lock().unwrap();
        script.version += u64::from(script.rises && !keys.is_empty());
        let mut versions = vec![Some(script.version); keys.len()];
        if !keys.is_empty() {
            script.reads.push(Instant::now());
            script.keys_read += keys.len();
            if script.failing > 0 {
                script.failing -= 1;
                return Err("the disk is on fire".into());
            }
            if script.short {
                versions.clear();
            }
        }
        Ok(Reading {
            epoch,
            versions,
            head: None,
            floor: None,
        })
    }
}

impl Feed<u64> for Engine {
    type Interests = Self;
    type Changes = Self;

    async fn open(&self, _: &Config) -> Result<(Self, Self), FeedError> {
        let mut script = self.0.lock().unwrap();
        script.attempts += 1;
        match script.refuses {
            true if script.takes_turns && script.attempts.is_multiple_of(2) => {
                Err(FeedError::Connect("the port is closed".into()))
            }
            true => Err(FeedError::Refused("the node may not subscribe".into())),
            false => Ok((self.clone(), self.clone())),
        }
    }

    fn advice(&self) -> Option<Arc<str>> {
        self.0.lock().unwrap().advice.clone()
    }
}

impl Interests<u64> for Engine {
    async fn watch(&mut self, _: &[u64]) -> Result<(), FeedError> {
        Ok(())
    }

    async fn unwatch(&mut self, _: &[u64]) -> Result<(), FeedError> {
        Ok(())
    }

    /// The driver asks when the session has read the history, and is about to begin.
    fn is_exact(&self) -> bool {
        let is_stalled = || {
            let mut script = self.0.lock().unwrap();
            script.is_stalled = script.stalls;
            script.stalls
        };
        if is_stalled() {
            block_in_place(|| {
                while is_stalled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        true
    }
}

impl Changes<u64> for Engine {
    async fn next(&mut self) -> Result<Vec<Change<u64>>, FeedError> {
        let lasts = self.0.lock().unwrap().lasts;
        match lasts {
            Some(lasts) => sleep(lasts).await,
            None => self.1.notified().await,
        }
        Err(FeedError::Lagged)
    }
}
