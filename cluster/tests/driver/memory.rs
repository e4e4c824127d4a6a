//! The engine in memory, by chance, beside a model of it: what is committed, read, watched and told, with sessions that
//! are cut, silenced, too slow, or let go in either half.

use fastrand::Rng;
use request_purgatory_cluster::memory::{MemoryChanges, MemoryEngine, MemoryInterests};
use request_purgatory_cluster::{
    Change, Changes, Config, Epoch, Feed, FeedError, Interests, Position, Source,
};
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const CASES: u64 = 400;
const STEPS: usize = 80;
const KEYS: u64 = 4;

/// What a session is, and what it must be.
#[derive(Default)]
struct Session {
    interests: Option<MemoryInterests<u64>>,
    changes: Option<MemoryChanges<u64>>,
    is_cut: bool,
    has_lagged: bool,
    capacity: usize,
    watched: BTreeSet<u64>,
    news: Vec<Change<u64>>,
}

fn poll<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Nothing of it waits but for news.
fn done<T>(future: impl Future<Output = T>) -> T {
    poll(future).expect("it is done at once")
}

impl Session {
    fn open(engine: &MemoryEngine<u64>, capacity: usize) -> Self {
        let opened = done(engine.open(&Config::default()));
        let (interests, changes) = opened.expect("it opens");
        Self {
            interests: Some(interests),
            changes: Some(changes),
            capacity: capacity.max(1),
            ..Self::default()
        }
    }

    fn tell(&mut self, change: &Change<u64>) {
        if self.watched.contains(&change.key) && !self.is_cut {
            match self.news.len() < self.capacity {
                true => self.news.push(change.clone()),
                false => self.has_lagged = true,
            }
        }
    }

    fn watch(&mut self, keys: &[u64], is_watched: bool) {
        let Some(interests) = &mut self.interests else {
            return;
        };
        let told = match is_watched {
            true => done(interests.watch(keys)),
            false => done(interests.unwatch(keys)),
        };
        assert_eq!(told.is_err(), self.is_cut, "{told:?}");
        match is_watched {
            true => self.watched.extend(keys),
            false => self.watched.retain(|key| !keys.contains(key)),
        }
    }

    fn listen(&mut self) {
        let Some(changes) = &mut self.changes else {
            return;
        };
        match poll(changes.next()) {
            Some(Err(FeedError::Cut(_))) => assert!(self.is_cut),
            Some(Err(FeedError::Lagged)) => assert!(self.has_lagged && !self.is_cut),
            Some(Err(error)) => panic!("{error}"),
            Some(Ok(told)) => {
                assert!(!self.is_cut && !self.has_lagged && !told.is_empty());
                assert_eq!(told, std::mem::take(&mut self.news));
            }
            None => assert!(!self.is_cut && !self.has_lagged && self.news.is_empty()),
        }
    }
}

fn case(random: &mut Rng) {
    let engine = MemoryEngine::<u64>::new();
    let mut epoch = done(engine.versions(&[])).expect("it reads").epoch.0;
    let mut versions = HashMap::<u64, u64>::new();
    let mut copy = None;
    let (mut is_mute, mut refuses, mut capacity) = (false, false, 4_096);
    let mut sessions = Vec::<Session>::new();
    for _ in 0..STEPS {
        let several = random.usize(0..=3);
        let keys = (0..several).map(|_| random.u64(..KEYS));
        let keys = keys.collect::<Vec<_>>();
        let at = random.usize(..3);
        match random.u8(..32) {
            0..=9 => {
                let key = random.u64(..KEYS);
                let version = versions.entry(key).or_default();
                *version += 1;
                let (version, of) = (*version, Epoch(epoch));
                let committed = engine.clone().commit(key);
                assert_eq!(committed, Position { epoch: of, version });
                let epoch = Some(of);
                let change = Change {
                    key,
                    version,
                    epoch,
                };
                for session in sessions.iter_mut().filter(|_| !is_mute) {
                    session.tell(&change);
                }
            }
            10..=13 => {
                let read = done(engine.versions(&keys));
                assert_eq!(read.is_err(), refuses);
                if let Ok(read) = read {
                    let version = |key| Some(versions.get(key).copied().unwrap_or(0));
                    let expected = keys.iter().map(version).collect::<Vec<_>>();
                    assert_eq!((read.epoch, read.versions), (Epoch(epoch), expected));
                    assert_eq!((read.head, read.floor), (None, None));
                }
            }
            14 | 15 => {
                sessions.truncate(2);
                sessions.insert(0, Session::open(&engine, capacity));
            }
            16..=18 => sessions
                .iter_mut()
                .skip(at)
                .for_each(|it| it.watch(&keys, true)),
            19 => sessions
                .iter_mut()
                .skip(at)
                .for_each(|it| it.watch(&keys, false)),
            20..=23 => sessions.iter_mut().skip(at).for_each(Session::listen),
            24 if random.bool() => {
                engine.cut();
                sessions.iter_mut().for_each(|it| it.is_cut = true);
            }
            24 => {
                is_mute = !is_mute;
                engine.mute(is_mute);
            }
            25 => {
                refuses = !refuses;
                engine.refuse_reads(refuses);
            }
            26 => {
                engine.flush();
                versions.clear();
                epoch = epoch.wrapping_add(1);
            }
            27 => {
                capacity = random.usize(..4);
                engine.set_capacity(capacity);
            }
            28 => {
                copy = Some(engine.backup());
                assert_eq!(copy.as_ref(), Some(&versions));
            }
            29 => {
                if let Some(copy) = copy.clone() {
                    versions.clone_from(&copy);
                    engine.restore(copy);
                }
            }
            // A session is let go with the half that hears.
            30 => {
                if let Some(session) = sessions.get_mut(at) {
                    (session.changes, session.is_cut) = (None, true);
                }
            }
            _ => {
                if let Some(session) = sessions.get_mut(at) {
                    session.interests = None;
                }
            }
        }
        let alive = sessions.iter().filter(|it| !it.is_cut).count();
        let shown = format!("{engine:?}");
        let expected = format!("keys: {}, sessions: {alive},", versions.len());
        assert!(shown.contains(&expected), "{shown} has not {expected}");
    }
}

#[test]
fn g24_the_engine_in_memory_does_what_a_model_of_it_says() {
    for seed in 0..CASES {
        println!("with seed {seed}");
        case(&mut Rng::with_seed(seed));
    }
}
