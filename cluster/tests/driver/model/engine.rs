//! A store that several nodes share, and what each of them has of it: a connection that writes down all that the node is
//! told, so that the model of the node knows it too.

use crate::engine::admit;
use request_purgatory_cluster::{
    Change, Changes, Cluster, Config, EngineError, Epoch, Feed, FeedError, Interests, KeyError,
    Reading, Source,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

#[derive(Debug, Default, Clone)]
pub struct Store {
    pub epoch: u64,
    /// Whether it gives all versions from one sequence, and discards events.
    pub is_stream: bool,
    pub versions: BTreeMap<u64, u64>,
    pub head: u64,
    pub floor: u64,
}

impl Store {
    pub fn version(&self, key: u64) -> u64 {
        self.versions.get(&key).copied().unwrap_or(0)
    }

    pub fn commit(&mut self, key: u64) -> u64 {
        self.head += 1;
        let version = match self.is_stream {
            true => self.head,
            false => self.version(key) + 1,
        };
        self.versions.insert(key, version);
        version
    }

    pub fn flush(&mut self) {
        *self = Self {
            epoch: self.epoch + 1,
            is_stream: self.is_stream,
            ..Self::default()
        };
    }

    fn read(&self, keys: &[u64]) -> Reading {
        let version = |key: &u64| match self.is_stream {
            true => self
                .versions
                .get(key)
                .copied()
                .filter(|it| *it > self.floor),
            false => Some(self.version(*key)),
        };
        Reading {
            epoch: Epoch(self.epoch),
            versions: keys.iter().map(version).collect(),
            head: self.is_stream.then_some(self.head),
            floor: self.is_stream.then_some(self.floor),
        }
    }
}

/// What a node was told, or asked for.
#[derive(Debug)]
pub enum Event {
    /// A session opens. (The read of the history follows at once.)
    Opened,
    /// It was refused.
    Refused(&'static str),
    /// It is asked for what it advises.
    Advises(Option<Arc<str>>),
    /// A read begins, which will show this if it succeeds.
    Began(u64, Vec<u64>, Reading),
    Returned(u64, bool),
    Told(Vec<Change<u64>>),
    Watched(Vec<u64>),
    Unwatches(Vec<u64>),
    /// The session has an error.
    Failed(&'static str),
    /// The session was let go.
    Closed,
}

/// What goes wrong with a connection, and what it has done.
#[derive(Debug, Default)]
pub struct Link {
    /// Beside each event how many keys the node watches, while it is there.
    pub log: Vec<(Instant, Option<usize>, Event)>,
    pub watched: BTreeSet<u64>,
    pub news: Vec<Change<u64>>,
    pub has_session: bool,
    pub fault: Option<FeedError>,
    pub refuses: bool,
    /// Reads fail, or answer for a key too few, or for one too many.
    pub is_down: bool,
    pub is_short: bool,
    pub is_long: bool,
    /// The feed can neither watch a key nor end that.
    pub is_unable: bool,
    /// What the feed advises.
    pub advice: Option<Arc<str>>,
    /// Reads return later; watches begin and end later.
    pub holds_reads: bool,
    pub holds_watches: bool,
    pub is_late: bool,
    reads: u64,
    settles: u32,
}

#[derive(Clone)]
pub struct Engine {
    pub store: Arc<Mutex<Store>>,
    link: Arc<Mutex<Link>>,
    told: Arc<Notify>,
    released: Arc<Notify>,
    turn: Arc<tokio::sync::Mutex<()>>,
    pub node: Arc<Mutex<Option<Cluster<u64>>>>,
}

/// Which of them it is.
impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&Arc::as_ptr(&self.link), f)
    }
}

impl Engine {
    pub fn new(store: &Arc<Mutex<Store>>) -> Self {
        Self {
            store: store.clone(),
            link: Arc::default(),
            told: Arc::default(),
            released: Arc::default(),
            turn: Arc::default(),
            node: Arc::default(),
        }
    }

    pub fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap()
    }

    fn note(&self, link: &mut Link, event: Event) {
        let node = self.node.lock().unwrap();
        let watched = node.as_ref().map(|it| it.stats().watched_keys);
        link.log.push((Instant::now(), watched, event));
    }

    /// The session hears of these together, if it watches them.
    pub fn tell(&self, changes: impl IntoIterator<Item = Change<u64>>) {
        let mut link = self.link();
        if link.has_session {
            let Link { news, watched, .. } = &mut *link;
            news.extend(changes.into_iter().filter(|it| watched.contains(&it.key)));
            self.told.notify_one();
        }
    }

    pub fn fail(&self, fault: FeedError) {
        let mut link = self.link();
        if link.has_session {
            link.fault = Some(fault);
            self.told.notify_one();
        }
    }

    pub fn release(&self) {
        let mut link = self.link();
        (link.holds_reads, link.holds_watches) = (false, false);
        self.released.notify_waiters();
    }

    /// Whatever was begun or has returned before is dealt with first, so that what happens at one moment happens in the
    /// order in which it is written down.
    async fn step_aside(&self) {
        loop {
            for _ in 0..2 {
                yield_now().await;
            }
            // A read has returned a moment ago.
            let mut link = self.link();
            match link.settles.checked_sub(1) {
                Some(left) => link.settles = left,
                None => return,
            }
        }
    }

    async fn held(&self, is_held: impl Fn(&Link) -> bool) {
        while is_held(&self.link()) {
            self.released.notified().await;
        }
    }
}

impl Source<u64> for Engine {
    async fn versions(&self, keys: &[u64]) -> Result<Reading, EngineError> {
        let mut reading = self.store.lock().unwrap().read(keys);
        let number = {
            let mut link = self.link();
            link.reads += 1;
            let number = link.reads;
            self.note(
                &mut link,
                Event::Began(number, keys.to_vec(), reading.clone()),
            );
            number
        };
        self.step_aside().await;
        self.held(|it| it.holds_reads).await;
        // One after the other, also where several were held.
        let _turn = self.turn.lock().await;
        self.step_aside().await;
        let mut link = self.link();
        let is_long = link.is_long && !keys.is_empty();
        let is_short = link.is_short && reading.versions.pop().is_some();
        if is_long {
            reading.versions.push(Some(u64::MAX));
        }
        let is_sound = !link.is_down && !is_short && !is_long;
        self.note(&mut link, Event::Returned(number, is_sound));
        link.settles = 4;
        match link.is_down {
            true => Err("the disk is gone".into()),
            false => Ok(reading),
        }
    }

    fn admit(&self, key: &u64) -> Result<(), KeyError> {
        admit(key)
    }
}

impl Feed<u64> for Engine {
    type Interests = Watcher;
    type Changes = Listener;

    async fn open(&self, _: &Config) -> Result<(Watcher, Listener), FeedError> {
        self.step_aside().await;
        let mut link = self.link();
        if link.refuses {
            self.note(&mut link, Event::Refused("connect"));
            return Err(FeedError::Connect("the port is closed".into()));
        }
        assert!(!link.has_session, "the session before is there still");
        self.note(&mut link, Event::Opened);
        link.has_session = true;
        link.watched.clear();
        link.news.clear();
        link.fault = None;
        Ok((Watcher(self.clone()), Listener(self.clone())))
    }

    fn advice(&self) -> Option<Arc<str>> {
        let mut link = self.link();
        let advice = link.advice.clone();
        self.note(&mut link, Event::Advises(advice.clone()));
        advice
    }
}

pub struct Watcher(Engine);

impl Interests<u64> for Watcher {
    async fn watch(&mut self, keys: &[u64]) -> Result<(), FeedError> {
        self.0.step_aside().await;
        self.0.held(|it| it.holds_watches).await;
        self.0.step_aside().await;
        let mut link = self.0.link();
        if link.is_unable {
            self.0.note(&mut link, Event::Failed("refused"));
            return Err(FeedError::Refused("the node may not watch".into()));
        }
        link.watched.extend(keys);
        self.0.note(&mut link, Event::Watched(keys.to_vec()));
        Ok(())
    }

    async fn unwatch(&mut self, keys: &[u64]) -> Result<(), FeedError> {
        self.0.step_aside().await;
        self.0
            .note(&mut self.0.link(), Event::Unwatches(keys.to_vec()));
        self.0.held(|it| it.holds_watches).await;
        self.0.step_aside().await;
        let mut link = self.0.link();
        if link.is_unable {
            self.0.note(&mut link, Event::Failed("refused"));
            return Err(FeedError::Refused("the node may not end that".into()));
        }
        link.watched.retain(|key| !keys.contains(key));
        Ok(())
    }

    fn is_exact(&self) -> bool {
        !self.0.link().is_late
    }
}

pub struct Listener(Engine);

impl Changes<u64> for Listener {
    async fn next(&mut self) -> Result<Vec<Change<u64>>, FeedError> {
        loop {
            self.0.step_aside().await;
            {
                let mut link = self.0.link();
                if let Some(fault) = link.fault.take() {
                    self.0.note(&mut link, Event::Failed(word(&fault)));
                    return Err(fault);
                }
                let news = std::mem::take(&mut link.news);
                if !news.is_empty() {
                    self.0.note(&mut link, Event::Told(news.clone()));
                    return Ok(news);
                }
            }
            self.0.told.notified().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut link = self.0.link();
        link.has_session = false;
        self.0.note(&mut link, Event::Closed);
    }
}

/// As the documents of `Trouble` say.
fn word(fault: &FeedError) -> &'static str {
    match fault {
        FeedError::Cut(_) => "cut",
        FeedError::Lagged => "lagged",
        FeedError::Silent(_) => "silent",
        FeedError::Protocol(_) => "protocol",
        fault => panic!("no session fails so: {fault}"),
    }
}
