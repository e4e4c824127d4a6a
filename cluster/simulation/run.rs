//! One run: a node, its clients, a writer, and what goes wrong. The node is the shipped one, on tokio's paused clock.

use crate::clients::{self, Waiting};
use crate::store::KEYS;
use crate::world::{Backend, Outcome, Scenario, World};
use request_purgatory_cluster::model::Rules;
use request_purgatory_cluster::request_purgatory::{
    Waits, threads::Dispatch, threads::Reaper, time::ManualClock,
};
use request_purgatory_cluster::{ClusterWaits, Config};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

const CLIENTS: usize = 6;
const LINGER: Duration = Duration::from_millis(15);
/// What is pending then, is lost.
const END: Duration = Duration::from_millis(8_000);

/// One run.
pub fn run<B: Backend>(seed: u64, scenario: Scenario, rules: Rules) -> Outcome {
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("it needs nothing of the system");
    runtime.block_on(async {
        let world = Arc::new(World::new(seed, scenario));
        live::<B>(&world, rules).await;
        let mut outcome = world.outcome();
        std::mem::take(&mut *outcome)
    })
}

async fn live<B: Backend>(world: &Arc<World>, rules: Rules) {
    let config = Config {
        audit: world.scenario.audit,
        ping: world.scenario.ping,
        linger: LINGER,
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
    world.sleep_until(END).await;
    tasks.shutdown().await;
    {
        let (store, mut outcome) = (world.store(), world.outcome());
        let is_lost = |waiting: &Waiting| {
            let waiting = waiting.lock().expect("no test panics with it");
            waiting.is_some_and(|(key, seen, _)| seen != store.position(key))
        };
        outcome.lost += waiting.iter().filter(|it| is_lost(it)).count() as u64;
        let stats = cluster.stats();
        (outcome.sessions, outcome.gaps) = (stats.sessions, stats.gaps);
    }
    // No client waits any more. (Idle keys are looked at every 10 ms.)
    sleep(LINGER * 4).await;
    world.outcome().left = cluster.stats().watched_keys as u64;
    cluster.shutdown();
}

async fn commit(world: Arc<World>, engine: impl Backend) {
    world.sleep(0..=40).await;
    while !world.is_quiet() {
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
        world.sleep_until(at).await;
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
                world.be_quiet_from(at + Duration::from_millis(50));
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
