//! A feed and a store that do what a test says.

use request_purgatory_cluster::{
    Change, Changes, Cluster, Config, EngineError, Epoch, Feed, FeedError, Interests, KeyError,
    Reading, Source,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

pub const AUDIT: Duration = Duration::from_millis(500);
pub const FIRST: Duration = Duration::from_millis(10);
pub const LONGEST: Duration = Duration::from_secs(1);
/// A key that the store cannot hold, and why.
pub const TOO_LONG: (u64, KeyError) = (
    u64::MAX,
    KeyError::TooLong {
        length: 2,
        limit: 1,
    },
);

pub fn admit(key: &u64) -> Result<(), KeyError> {
    match TOO_LONG {
        (too_long, why) if *key == too_long => Err(why),
        _ => Ok(()),
    }
}

/// What the feed and the store do now.
#[derive(Debug, Default)]
pub struct Script {
    /// No session can be opened; and of these attempts every other one for another cause.
    pub refuses: bool,
    pub takes_turns: bool,
    attempts: u64,
    /// How long an attempt takes.
    pub opens_in: Duration,
    /// What the feed advises.
    pub advice: Option<Arc<str>>,
    /// A session ends after this time.
    pub lasts: Option<Duration>,
    /// What a session hears instead of its end; and why it ends, unless because it was slow.
    pub news: Vec<Change<u64>>,
    pub fault: Option<FeedError>,
    /// This number of sessions panic when they begin to listen.
    pub panics: u64,
    /// The feed says that its watches are not exact.
    pub is_late: bool,
    /// The feed can neither watch a key nor end that.
    pub is_unable: bool,
    /// What the session watches.
    pub watched: BTreeSet<u64>,
    /// Reads of keys fail: all of them, or this number.
    pub failing: u64,
    /// Reads fail, of the history alone as well.
    pub is_down: bool,
    /// Reads of keys return this number of versions.
    pub returns: Option<usize>,
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
    /// A stream that has discarded all up to the first of these sequences, and ends with the second one. It holds an
    /// event of one key, of key 7 unless it is another one.
    pub stream: Option<(u64, u64)>,
    pub holds: Option<u64>,
    /// How many reads of keys are on their way.
    pub under_way: u64,
    /// When keys were read, and how many.
    pub reads: Vec<Instant>,
    pub keys_read: usize,
}

impl Script {
    /// What a read that begins now shows.
    fn read(&self, keys: &[u64]) -> Reading {
        let is_held = |key| self.stream.is_none() || key == self.holds.unwrap_or(7);
        let version = |key| is_held(key).then_some(self.version);
        let (floor, head) = self.stream.unzip();
        Reading {
            epoch: Epoch(1 + self.lost),
            versions: keys.iter().map(|key| version(*key)).collect(),
            head,
            floor,
        }
    }
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

    /// What the feed is told, it does if it can.
    fn told(&self, change: impl FnOnce(&mut Script)) -> Result<(), FeedError> {
        let mut script = self.0.lock().unwrap();
        if script.is_unable {
            return Err(FeedError::Refused("the node may not watch".into()));
        }
        change(&mut script);
        Ok(())
    }
}

impl Source<u64> for Engine {
    async fn versions(&self, keys: &[u64]) -> Result<Reading, EngineError> {
        let is_of_keys = u64::from(!keys.is_empty());
        let (mut reading, slow, gated) = {
            let mut script = self.0.lock().unwrap();
            script.openings += 1 - is_of_keys;
            script.under_way += is_of_keys;
            script.version += is_of_keys * u64::from(script.rises);
            (script.read(keys), script.slow, script.gated)
        };
        if keys.is_empty() {
            sleep(slow).await;
        } else if gated {
            self.2.notified().await;
        }
        let mut script = self.0.lock().unwrap();
        script.under_way -= is_of_keys;
        if script.is_down {
            return Err("the disk is gone".into());
        }
        if !keys.is_empty() {
            script.reads.push(Instant::now());
            script.keys_read += keys.len();
            if script.failing > 0 {
                script.failing -= 1;
                return Err("the disk is on fire".into());
            }
            if let Some(number) = script.returns {
                reading.versions.resize(number, Some(script.version));
            }
        }
        Ok(reading)
    }

    fn admit(&self, key: &u64) -> Result<(), KeyError> {
        admit(key)
    }
}

impl Feed<u64> for Engine {
    type Interests = Self;
    type Changes = Self;

    async fn open(&self, _: &Config) -> Result<(Self, Self), FeedError> {
        let opens_in = self.0.lock().unwrap().opens_in;
        sleep(opens_in).await;
        let mut script = self.0.lock().unwrap();
        script.attempts += 1;
        script.watched.clear();
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
    async fn watch(&mut self, keys: &[u64]) -> Result<(), FeedError> {
        self.told(|it| it.watched.extend(keys))
    }

    async fn unwatch(&mut self, keys: &[u64]) -> Result<(), FeedError> {
        self.told(|it| it.watched.retain(|key| !keys.contains(key)))
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
        !self.0.lock().unwrap().is_late
    }
}

impl Changes<u64> for Engine {
    async fn next(&mut self) -> Result<Vec<Change<u64>>, FeedError> {
        let (lasts, panics) = {
            let mut script = self.0.lock().unwrap();
            let left = script.panics.checked_sub(1);
            script.panics = left.unwrap_or(0);
            (script.lasts, left.is_some())
        };
        assert!(!panics, "the session panics");
        match lasts {
            Some(lasts) => sleep(lasts).await,
            None => self.1.notified().await,
        }
        let mut script = self.0.lock().unwrap();
        let news = std::mem::take(&mut script.news);
        match news.is_empty() {
            true => Err(script.fault.take().unwrap_or(FeedError::Lagged)),
            false => Ok(news),
        }
    }
}
