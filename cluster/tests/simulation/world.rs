//! Virtual time: what happens to the store and the feed, and how long everything takes. The node under test is the
//! shipped one, on tokio's paused clock.

use crate::clients::{self, Waiting};
use crate::engines::Host;
use crate::store::{KEYS, Store};
use fastrand::Rng;
use request_purgatory_cluster::model::Rules;
use request_purgatory_cluster::request_purgatory::{
    Waits, threads::Dispatch, threads::Reaper, time::ManualClock,
};
use request_purgatory_cluster::{Cluster, ClusterWaits, Config};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

const CLIENTS: usize = 6;
/// Nothing is committed from then on, or from a rollback on.
const QUIET: Duration = Duration::from_millis(4_000);
/// What is pending then, is lost.
const END: Duration = Duration::from_millis(8_000);
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

    /// So many milliseconds, by chance.
    pub fn pause(&self, millis: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.random(|random| random.u64(millis)))
    }

    pub async fn sleep(&self, millis: RangeInclusive<u64>) {
        sleep(self.pause(millis)).await;
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

/// One run.
pub fn run<B: Backend>(seed: u64, scenario: Scenario, rules: Rules) -> Outcome {
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("it needs nothing of the system");
    runtime.block_on(async {
        let world = Arc::new(World {
            scenario,
            started: Instant::now(),
            random: Mutex::new(Rng::with_seed(seed)),
            store: Mutex::new(Store::new()),
            quiet: Mutex::new(QUIET),
            outcome: Mutex::default(),
        });
        live::<B>(&world, rules).await;
        let mut outcome = world.outcome();
        std::mem::take(&mut *outcome)
    })
}

async fn live<B: Backend>(world: &Arc<World>, rules: Rules) {
    let config = Config {
        audit: world.scenario.audit,
        ping: world.scenario.ping,
        linger: Duration::from_millis(15),
        settle: Duration::from_millis(50),
        read_batch: 2,
        backoff: (Duration::from_millis(50), Duration::from_millis(800)),
        rules,
        ..Config::default()
    };
    let waits = Waits::builder("simulation")
        .clock(ManualClock::new())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::Inline)
        .build()
        .expect("the settings are sound");
    let engine = B::new(world);
    let cluster = engine.start(config);
    let waits = ClusterWaits::parked_in(&cluster, waits);
    let mut tasks = JoinSet::new();
    let waiting = (0..CLIENTS).map(|_| Waiting::default()).collect::<Vec<_>>();
    for waiting in &waiting {
        tasks.spawn(clients::run(world.clone(), waits.clone(), waiting.clone()));
    }
    tasks.spawn(commit(world.clone(), engine.clone()));
    tasks.spawn(trouble(world.clone(), engine));
    sleep_until(world.started + END).await;
    tasks.shutdown().await;
    let store = world.store();
    let is_lost = |waiting: &Waiting| {
        let waiting = waiting.lock().expect("no test panics with it");
        waiting.is_some_and(|(key, seen, _)| seen != store.position(key))
    };
    let mut outcome = world.outcome();
    outcome.lost += waiting.iter().filter(|it| is_lost(it)).count() as u64;
    outcome.sessions = cluster.stats().sessions;
    cluster.shutdown();
}

async fn commit(world: Arc<World>, engine: impl Backend) {
    world.sleep(0..=40).await;
    while world.now() < *world.quiet.lock().expect("no test panics with it") {
        let key = world.random(|random| random.u64(..KEYS));
        let version = world.store().commit(key, world.now());
        engine.committed(key, version);
        world.sleep(0..=world.scenario.pause).await;
    }
}

async fn trouble(world: Arc<World>, engine: impl Backend) {
    let scenario = &world.scenario;
    let mut due = Vec::new();
    if scenario.cuts {
        due.extend((0..4).map(|_| (world.pause(200..=3_900), Trouble::Cut)));
    }
    if let Some((from, to)) = scenario.flushes {
        due.push((world.pause(from..=to), Trouble::Flush));
    }
    if scenario.rolls_back {
        due.push((world.pause(1_000..=3_000), Trouble::RollBack));
    }
    due.sort_by_key(|(at, _)| *at);
    for (at, trouble) in due {
        sleep_until(world.started + at).await;
        match trouble {
            Trouble::Cut => engine.cut(),
            Trouble::Flush => {
                world.store().flush(at);
                engine.flushed();
            }
            Trouble::RollBack => {
                // The engine that had the newer copy is gone, and its connections with it.
                let lag = world.pause(20..=200);
                world.store().roll_back(at.saturating_sub(lag), at);
                // So that no new commit hides what was lost.
                *world.quiet.lock().expect("no test panics with it") =
                    at + Duration::from_millis(50);
                engine.cut();
            }
        }
    }
}

enum Trouble {
    Cut,
    Flush,
    RollBack,
}
