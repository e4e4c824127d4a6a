//! A node beside its model.

use super::engine::Engine;
use super::node::{Counts, Node};
use super::waits::{Ended, Wait, What};
use crate::engine::TOO_LONG;
use fastrand::Rng;
use request_purgatory::{
    Completion, DelayedOperation, Purgatory, Waits, Watch, threads::Dispatch, threads::Reaper,
    time::ManualClock,
};
use request_purgatory_cluster::{
    Cluster, ClusterWaits, Config, Epoch, Interest, InterestError, Position, WaitError, WaitPast,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

/// Longer than anything that is done at once takes.
pub(super) const STEP: Duration = Duration::from_millis(30);
pub(super) const HOUR: Duration = Duration::from_secs(3_600);

thread_local! {
    pub(super) static IS_LOUD: Cell<bool> = const { Cell::new(false) };
}

/// What happens, when a case is run once more because it has failed.
pub(super) fn say(what: impl FnOnce() -> String) {
    if IS_LOUD.get() {
        println!("{}", what());
    }
}

/// A key of an interest, with the generation and the gaps when that began.
type First = (u64, u64, u64);

/// Waits in the second place, at the most.
const ROOM: usize = 2;

/// Key and version that ended an operation; nothing if the history did.
type Reached = Option<(u64, u64)>;

/// Waits for any of several keys to reach a version, and tells how it ended.
struct Fetch {
    interest: Interest<u64>,
    targets: Vec<(u64, u64)>,
    told: Arc<Mutex<Option<Reached>>>,
}

impl Fetch {
    fn reached(&self) -> Option<Reached> {
        let version = |key: u64| self.interest.version(&key);
        let reached = || self.targets.iter().find(|it| version(it.0) >= it.1);
        match self.interest.is_reset() {
            true => Some(None),
            false => reached().map(|it| Some((it.0, version(it.0)))),
        }
    }
}

impl DelayedOperation for Fetch {
    type Key = u64;

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn try_complete(&mut self) -> bool {
        self.reached().is_some()
    }

    fn on_complete(self, _: Completion) {
        *self.told.lock().unwrap() = self.reached();
    }
}

/// Whether a wait was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

enum Kind {
    Version(WaitPast<u64, u64>),
    Position(WaitPast<u64, Position>),
    Operation(Arc<Mutex<Option<Reached>>>),
}

struct Pending {
    future: Kind,
    woken: Arc<Woken>,
    place: usize,
    expires: bool,
}

impl Pending {
    fn poll(&mut self) -> Option<Ended> {
        let woken = Waker::from(self.woken.clone());
        let context = &mut Context::from_waker(&woken);
        let polled = match &mut self.future {
            Kind::Version(wait) => Pin::new(wait).poll(context).map_ok(Ended::Version),
            Kind::Position(wait) => Pin::new(wait).poll(context).map_ok(Ended::With),
            Kind::Operation(told) => {
                return told.lock().unwrap().map(Ended::Operation);
            }
        };
        match polled {
            Poll::Pending => None,
            Poll::Ready(Ok(ended)) => Some(ended),
            Poll::Ready(Err(error)) => Some(match error {
                WaitError::Reset(position) => Ended::Reset(position),
                WaitError::ShutDown => Ended::ShutDown,
                WaitError::Expired => Ended::Expired,
                WaitError::Full => Ended::Full,
                WaitError::Interest(error) => panic!("not refused at once: {error}"),
                error => panic!("{error}"),
            }),
        }
    }
}

pub struct Rig {
    pub engine: Engine,
    pub is_mute: bool,
    pub names_epoch: bool,
    model: Node,
    node: Option<Cluster<u64>>,
    /// Two purgatories of waits, the second of which may go and come.
    places: [Option<ClusterWaits<u64>>; 2],
    clock: ManualClock,
    /// A purgatory of the user's.
    fetches: Purgatory<Fetch>,
    interests: Vec<(Interest<u64>, Vec<First>)>,
    pending: BTreeMap<usize, Pending>,
    begun: usize,
}

impl Rig {
    pub fn start(engine: Engine, config: Config, random: &mut Rng) -> Self {
        engine.link().is_late = random.u8(..3) == 0;
        let node = Cluster::start(engine.clone(), engine.clone(), config.clone()).unwrap();
        let clock = ManualClock::new();
        let fetches = Purgatory::builder("fetches")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .dispatch(Dispatch::Inline)
            .build()
            .unwrap();
        *engine.node.lock().unwrap() = Some(node.clone());
        let mut model = Node::new(config);
        model.is_exact = !engine.link().is_late;
        let places = [Self::place(&node, &clock, usize::MAX), None];
        node.attach(&fetches);
        Self {
            engine,
            is_mute: false,
            names_epoch: random.bool(),
            model,
            node: Some(node),
            places,
            clock,
            fetches,
            interests: Vec::new(),
            pending: BTreeMap::new(),
            begun: 0,
        }
    }

    fn place(node: &Cluster<u64>, clock: &ManualClock, room: usize) -> Option<ClusterWaits<u64>> {
        let waits = Waits::builder("waits")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .dispatch(Dispatch::Inline)
            .max_parked(room)
            .build()
            .unwrap();
        Some(ClusterWaits::parked_in(node, waits))
    }

    pub fn epoch(&self) -> Option<u64> {
        self.model.epoch.map(|it| it.0)
    }

    pub fn mark(&self, key: u64) -> u64 {
        self.model.keys.get(&key).map_or(0, |it| it.known.mark)
    }

    /// What an interest in `keys` is answered with.
    fn enter(&mut self, keys: &[u64]) -> Result<(), InterestError> {
        let (too_long, why) = TOO_LONG;
        if keys.contains(&too_long) {
            return Err(InterestError::Key(why));
        }
        if self.model.is_shut_down {
            return Err(InterestError::ShutDown);
        }
        match self.model.enter(keys, Instant::now()) {
            true => Ok(()),
            false => Err(InterestError::TooManyKeys),
        }
    }

    fn firsts(&self, keys: &[u64]) -> Vec<First> {
        let first = |key: &u64| (*key, self.model.generation, self.model.keys[key].known.gaps);
        keys.iter().map(first).collect()
    }

    pub fn interest(&mut self, keys: Vec<u64>) {
        let expected = self.enter(&keys);
        let Some(node) = &self.node else {
            return;
        };
        let interest = node.interest(keys.iter().copied());
        assert_eq!(interest.as_ref().err(), expected.as_ref().err());
        if let Ok(interest) = interest {
            let firsts = self.firsts(&keys);
            self.interests.push((interest, firsts));
        }
    }

    pub fn lose_interest(&mut self, random: &mut Rng) {
        if !self.interests.is_empty() {
            let (_, keys) = self
                .interests
                .swap_remove(random.usize(..self.interests.len()));
            keys.iter()
                .for_each(|it| self.model.leave(it.0, Instant::now()));
        }
    }

    pub fn wait(&mut self, key: u64, seen: u64, epoch: Option<Epoch>, random: &mut Rng) {
        let at = random.usize(..2);
        let Some(place) = self.places[at].clone() else {
            return;
        };
        let expires = random.bool();
        let timeout = if expires { HOUR } else { Duration::MAX };
        let expected = self.enter(&[key]);
        let future = match epoch {
            None => Kind::Version(place.wait_past(key, seen, timeout)),
            Some(epoch) => {
                let position = Position {
                    epoch,
                    version: seen,
                };
                Kind::Position(place.wait_past_position(key, position, timeout))
            }
        };
        let mut pending = Pending {
            future,
            woken: Arc::default(),
            place: at,
            expires,
        };
        if let Err(refused) = expected {
            let expected = match refused {
                InterestError::ShutDown => WaitError::ShutDown,
                refused => WaitError::Interest(refused),
            };
            let context = &mut Context::from_waker(Waker::noop());
            let polled = match &mut pending.future {
                Kind::Version(wait) => Pin::new(wait).poll(context).map(Result::err),
                Kind::Position(wait) => Pin::new(wait).poll(context).map(Result::err),
                Kind::Operation(_) => unreachable!(),
            };
            assert_eq!(polled, Poll::Ready(Some(expected)));
            return;
        }
        let claim = self.model.claim(key, seen, epoch);
        if !claim.is_true {
            self.model.want(key, false);
        }
        let number = self.add(pending, What::Claim(key, claim));
        let parked = self.pending.iter().filter(|it| it.1.place == at);
        let parked = parked
            .filter(|it| self.model.waits[it.0].ended.is_none())
            .count();
        if at == 1 && parked > ROOM {
            self.model.end(number, Some(Ended::Full), Instant::now());
        }
    }

    fn add(&mut self, pending: Pending, what: What) -> usize {
        self.begun += 1;
        let wait = Wait { what, ended: None };
        self.pending.insert(self.begun, pending);
        self.model.began(self.begun, wait, Instant::now());
        self.begun
    }

    pub fn operation(&mut self, keys: &[u64], further: u64) {
        let Some(node) = self.node.clone() else {
            return;
        };
        let expected = self.enter(keys);
        let interest = node.interest(keys.iter().copied());
        assert_eq!(interest.as_ref().err(), expected.as_ref().err());
        let Ok(interest) = interest else {
            return;
        };
        let firsts = self.firsts(keys).into_iter();
        let waits =
            firsts.map(|(key, generation, gaps)| (key, self.mark(key) + further, generation, gaps));
        let waits = waits.collect::<Vec<_>>();
        let targets = waits.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>();
        let told = Arc::default();
        let watches = targets.iter().map(|it| Watch::from(it.0).at_rank(it.1));
        let watches = watches.collect::<Vec<_>>();
        let fetch = Fetch {
            interest,
            targets,
            told: Arc::clone(&told),
        };
        let _parked = self
            .fetches
            .try_complete_else_watch(fetch, watches)
            .unwrap();
        let pending = Pending {
            future: Kind::Operation(told),
            woken: Arc::default(),
            place: usize::MAX,
            expires: false,
        };
        self.add(pending, What::Operation(waits));
    }

    pub fn drop_wait(&mut self, random: &mut Rng) {
        let dropped = self.pending.keys().nth(random.usize(..8)).copied();
        if let Some(number) = dropped.filter(|it| self.pending[it].place < 2) {
            self.model.end(number, Some(Ended::Expired), Instant::now());
            self.pending.remove(&number);
            self.model.waits.remove(&number);
        }
    }

    pub fn announce(&mut self, key: u64, version: u64, epoch: Option<Epoch>) {
        let Some(node) = &self.node else {
            return;
        };
        match epoch {
            None => node.announce(&key, version),
            Some(epoch) => node.announce_position(&key, Position { epoch, version }),
        }
        if epoch.is_none() || epoch == self.model.epoch {
            self.model.announce(key, version, Instant::now());
        }
    }

    pub fn read_again(&mut self, key: u64) {
        if let Some(node) = &self.node {
            node.read_again(&key);
            self.model.ordered.push(key);
        }
    }

    /// The time of those that have one is over.
    pub fn expire(&mut self) {
        self.clock.advance(HOUR * 2);
        for place in self.places.iter().flatten() {
            place.purgatory().advance();
        }
        for (&number, pending) in &self.pending {
            if pending.expires {
                self.model.end(number, Some(Ended::Expired), Instant::now());
            }
        }
    }

    /// The second purgatory goes, and its waits with it; or it comes.
    pub fn replace_second_place(&mut self) {
        let Some(node) = &self.node else {
            return;
        };
        if self.places[1].take().is_none() {
            self.places[1] = Self::place(node, &self.clock, ROOM);
            return;
        }
        for (&number, _) in self.pending.iter().filter(|it| it.1.place == 1) {
            self.model
                .end(number, Some(Ended::ShutDown), Instant::now());
        }
    }

    pub fn shut_down(&mut self, is_dropped: bool) {
        *self.engine.node.lock().unwrap() = None;
        if is_dropped {
            (self.node, self.places) = (None, [None, None]);
        } else if let Some(node) = &self.node {
            node.shutdown();
        }
        self.model.shut_down();
    }

    /// All goes well from now on, and no wait is left.
    pub fn let_go(&mut self) {
        let mut link = self.engine.link();
        (link.is_down, link.is_short, link.is_long) = (false, false, false);
        (link.refuses, link.is_unable) = (false, false);
        drop(link);
        self.engine.release();
        while !self.interests.is_empty() {
            self.lose_interest(&mut Rng::with_seed(0));
        }
        let numbers = self.pending.keys().copied().collect::<Vec<_>>();
        for number in numbers {
            self.model.end(number, Some(Ended::Expired), Instant::now());
        }
        self.pending.clear();
        self.model.waits.clear();
        self.fetches.shutdown();
    }

    pub fn has_let_go(&self) {
        *self.engine.node.lock().unwrap() = None;
        let Some(node) = self.node.as_ref().filter(|it| !it.is_shut_down()) else {
            assert!(!self.engine.link().has_session, "a session stays");
            return;
        };
        if self.model.config.linger < HOUR {
            assert_eq!(node.stats().watched_keys, 0);
        }
        assert!(node.stats().lag.is_zero(), "{:?}", node.stats());
    }

    /// Lets time pass, and compares each node with its model.
    pub async fn settle(rigs: &mut [Self], pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            sleep(STEP.min(until - Instant::now())).await;
            // What is due at this very moment as well.
            let mut quiet = 0;
            while quiet < 16 {
                yield_now().await;
                let has_heard = rigs.iter_mut().filter_map(|it| it.listen().then_some(()));
                quiet = if has_heard.count() > 0 { 0 } else { quiet + 1 };
            }
        }
        rigs.iter_mut().for_each(|rig| rig.compare(until));
    }

    /// Whether there was something.
    fn listen(&mut self) -> bool {
        let log = std::mem::take(&mut self.engine.link().log);
        let has_heard = !log.is_empty();
        for (at, watched, event) in log {
            say(|| format!("{:?} {at:?} {event:?}", self.engine));
            self.model.happened(at, watched, event);
        }
        has_heard
    }

    fn compare(&mut self, now: Instant) {
        let watched = self.node.as_ref().map(|it| it.stats().watched_keys);
        self.model.forget(now, watched);
        let link = self.engine.link();
        self.model
            .is_served(now, link.holds_reads || link.holds_watches);
        drop(link);
        self.compare_waits();
        let model = &mut self.model;
        for (interest, firsts) in &self.interests {
            let keys = firsts.iter().map(|it| &it.0);
            assert!(interest.keys().eq(keys));
            assert_eq!((interest.version(&77), interest.position(&77)), (0, None));
            let mut is_reset = false;
            for (key, generation, gaps) in firsts {
                let known = &model.keys[key].known;
                is_reset |= *generation != model.generation || *gaps != known.gaps;
                assert_eq!(interest.version(key), known.mark, "of {key}: {model:#?}");
                assert_eq!(interest.position(key), model.position(known.mark));
            }
            assert_eq!(interest.is_reset(), is_reset);
        }
        let Some(node) = &self.node else {
            return;
        };
        assert_eq!(node.epoch(), model.epoch);
        assert_eq!(node.is_shut_down(), model.is_shut_down);
        let stats = node.stats();
        let counts = Counts {
            sessions: stats.sessions,
            gaps: stats.gaps,
            failed: stats.failed,
            heard: stats.heard,
            healed: stats.healed,
            resets: stats.resets,
            reads: stats.reads,
        };
        assert_eq!(counts, model.counts, "{model:#?}");
        if model.is_shut_down {
            assert!(!self.engine.link().has_session, "a session stays");
            return;
        }
        assert_eq!(stats.watched_keys, model.keys.len());
        let lag = model.out_since.map_or(Duration::ZERO, |it| now - it);
        assert_eq!(stats.lag, lag, "{model:#?}");
        assert_eq!(stats.advice, model.advice);
        let unread = stats.store_trouble.map(|it| (it.word, it.times));
        assert_eq!(
            unread,
            (model.unread > 0).then_some(("unread", model.unread))
        );
        model.troubled(stats.feed_trouble.map(|it| (it.word, it.times)), now);
        let link = self.engine.link();
        let is_held = link.holds_reads || link.holds_watches;
        let watched = (link.has_session && !is_held).then(|| link.watched.clone());
        drop(link);
        if let Some(watched) = watched {
            assert!(
                watched.iter().eq(model.keys.keys()),
                "{watched:?}: {model:#?}"
            );
        }
    }

    fn compare_waits(&mut self) {
        let mut ended = Vec::new();
        for (&number, pending) in &mut self.pending {
            let expected = &self.model.waits[&number].ended;
            let is_first = Arc::strong_count(&pending.woken) == 1;
            let was_woken = pending.woken.0.swap(false, SeqCst);
            let polled = pending.poll();
            assert_eq!(&polled, expected, "wait {number}: {:#?}", self.model);
            if polled.is_some() {
                let is_operation = self.model.waits[&number].is_operation();
                assert!(is_first || was_woken || is_operation, "it was not woken");
                ended.push(number);
            }
        }
        for number in ended {
            self.pending.remove(&number);
            self.model.waits.remove(&number);
        }
        let parked = |place: usize| self.pending.values().filter(|it| it.place == place).count();
        for (at, place) in self.places.iter().enumerate() {
            if let Some(place) = place {
                assert_eq!(place.purgatory().stats().parked, parked(at));
            }
        }
        assert_eq!(self.fetches.stats().parked, parked(usize::MAX));
    }
}
