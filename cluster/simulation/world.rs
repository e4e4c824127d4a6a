//! Virtual time: what goes wrong in a run, how long everything takes, and what came of it.

use crate::engines::Host;
use crate::store::Store;
use fastrand::Rng;
use request_purgatory_cluster::{Cluster, Config};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// Nothing is committed from then on, or from a rollback on.
const QUIET: Duration = Duration::from_millis(4_000);
/// From then on, a session that hears nothing must have been replaced.
pub const LATE_PART: Duration = Duration::from_millis(3_200);
/// Later than any message and read takes.
pub const LATE: Duration = Duration::from_millis(100);

/// A feed, and what it is told of the store.
pub trait Backend: Clone + Send + Sync + 'static {
    fn new(world: &Arc<World>) -> Self;

    /// A node.
    fn start(&self, config: Config) -> Cluster<u64>;

    fn committed(&self, key: u64, version: u64);

    /// Ends all connections.
    fn cut(&self);

    /// The store has lost all data.
    fn flushed(&self);
}

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub audit: Duration,
    pub ping: Duration,
    /// The longest pause between two commits, in milliseconds.
    pub pause: u64,
    /// How long the feed takes to watch, or to end that, at the most: milliseconds.
    pub watch: u64,
    /// A wait that ends later than this after its event is lost.
    pub bound: Duration,
    /// Which part of the messages is lost.
    pub loss: f64,
    /// How much later than `watch` returns messages begin to arrive, at the most.
    pub late_interest: Duration,
    pub cuts: bool,
    /// Within these milliseconds.
    pub flushes: Option<(u64, u64)>,
    pub rolls_back: bool,
    /// When the first session falls silent.
    pub mutes_at: Option<Duration>,
    /// Every session is refused.
    pub refuses_sessions: bool,
    /// Between these milliseconds the store answers no read.
    pub is_unread: Option<(u64, u64)>,
}

#[derive(Debug, Default)]
pub struct Outcome {
    pub answered: u64,
    pub lost: u64,
    pub late: u64,
    pub late_at_end: u64,
    pub resets: u64,
    pub wrong: u64,
    pub sessions: u64,
    pub gaps: u64,
    /// Keys that are watched although no wait is left.
    pub left: u64,
}

impl Outcome {
    pub fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.lost += other.lost;
        self.late += other.late;
        self.late_at_end += other.late_at_end;
        self.resets += other.resets;
        self.wrong += other.wrong;
        self.sessions += other.sessions;
        self.gaps += other.gaps;
        self.left += other.left;
    }
}

pub struct World {
    pub scenario: Scenario,
    started: Instant,
    random: Mutex<Rng>,
    store: Mutex<Store>,
    /// Nothing is committed from then on.
    quiet: Mutex<Duration>,
    outcome: Mutex<Outcome>,
}

impl World {
    pub fn new(seed: u64, scenario: Scenario) -> Self {
        Self {
            scenario,
            started: Instant::now(),
            random: Mutex::new(Rng::with_seed(seed)),
            store: Mutex::new(Store::new()),
            quiet: Mutex::new(QUIET),
            outcome: Mutex::default(),
        }
    }

    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("no test panics with it")
    }

    pub fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().expect("no test panics with it")
    }

    pub fn random<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.random.lock().expect("no test panics with it"))
    }

    /// A random number of milliseconds.
    pub fn pause(&self, millis: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.random(|random| random.u64(millis)))
    }

    pub async fn sleep(&self, millis: RangeInclusive<u64>) {
        sleep(self.pause(millis)).await;
    }

    pub async fn sleep_until(&self, time: Duration) {
        sleep_until(self.started + time).await;
    }

    /// Whether nothing is committed any more.
    pub fn is_quiet(&self) -> bool {
        self.now() >= *self.quiet.lock().expect("no test panics with it")
    }

    pub fn be_quiet_from(&self, time: Duration) {
        *self.quiet.lock().expect("no test panics with it") = time;
    }

    /// Whether this happens now, between these milliseconds.
    pub fn is_within(&self, span: Option<(u64, u64)>) -> bool {
        let now = self.now().as_millis();
        span.is_some_and(|(from, to)| (u128::from(from)..u128::from(to)).contains(&now))
    }
}

impl Host for World {
    fn delay(&self) -> Duration {
        self.pause(0..=6)
    }

    fn epoch(&self) -> u64 {
        self.store().epoch.0
    }

    fn version(&self, key: u64) -> u64 {
        self.store().version(key)
    }

    fn is_unread(&self) -> bool {
        self.is_within(self.scenario.is_unread)
    }

    fn refuses_sessions(&self) -> bool {
        self.scenario.refuses_sessions
    }

    fn loses(&self, connection: u64) -> bool {
        let mutes = self.scenario.mutes_at;
        // (A connection for reads is told of nothing, so this is the first session's, whichever is opened first.)
        connection <= 2 && mutes.is_some_and(|at| at <= self.now())
            || self.random(Rng::f64) < self.scenario.loss
    }

    fn spread(&self) -> Option<Duration> {
        let spread = self.scenario.late_interest.as_millis() as u64;
        (spread > 0).then(|| self.pause(0..=spread))
    }
}
