//! Very many nodes on one engine, on virtual time: what the engine and each node are asked and told. Keys, commits and
//! clients come by chance, and now and then a connection ends; every node restarts once, in any order; then the engine
//! is gone for 30 s.

mod engine;

use crate::engines::Host;
use engine::{Second, Server, Store};
use request_purgatory_cluster::request_purgatory::{
    Waits, threads::Dispatch, threads::Reaper, time::ManualClock,
};
use request_purgatory_cluster::{ClusterWaits, Config, WaitError};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

const KEYS: u64 = 10_000;
/// From then on until nodes restart each node makes one audit, on average.
const STEADY: u64 = 15;
/// Waits on each node.
const CLIENTS: usize = 20;
/// In each second, on all nodes together.
const COMMITS: u64 = 200;
/// From then on nodes restart, one after the other, and a connection ends now and then.
const RESTARTS: u64 = 30;
/// How long a node keeps all of its connections, on average.
const CUT_AFTER: Duration = Duration::from_secs(60);
/// The engine is gone.
const GONE: u64 = 70;
const BACK: u64 = 100;
/// Nothing is committed any more.
const QUIET: u64 = 115;
const END: u64 = 140;

const ENGINES: [&str; 3] = ["Redis, tracking", "Redis, published", "NATS"];

type Waiting = Arc<Mutex<Option<(u64, u64)>>>;
type Place = Arc<Mutex<ClusterWaits<u64>>>;

fn node(server: &Server) -> ClusterWaits<u64> {
    let waits = Waits::builder("scale")
        .clock(ManualClock::new())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::Inline)
        .build()
        .expect("the settings are sound");
    ClusterWaits::parked_in(&server.start(Config::default()), waits)
}

/// Waits for one key after the other; when its node ends, on the next one that stands in its place.
async fn client(store: Arc<Store>, place: Place, waiting: Waiting) {
    loop {
        let key = store.random(KEYS);
        let seen = store.version(key);
        *waiting.lock().expect("no test panics with it") = Some((key, seen));
        loop {
            let node = place.lock().expect("no test panics with it").clone();
            match node.wait_past(key, seen, Duration::from_secs(3_600)).await {
                Ok(version) => {
                    assert!(version > seen);
                    break;
                }
                Err(WaitError::ShutDown) => sleep(store.delay()).await,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[derive(Debug)]
struct Outcome {
    lost: usize,
    seconds: Vec<Second>,
    /// After the engine was back.
    in_step: Duration,
}

impl Outcome {
    /// In a second, on average.
    fn mean(&self, seconds: std::ops::Range<u64>) -> [f64; 4] {
        let count = (seconds.end - seconds.start) as f64;
        let mut sum = Second::default();
        for second in seconds {
            sum += self
                .seconds
                .get(second as usize)
                .copied()
                .unwrap_or_default();
        }
        [sum.asked, sum.told, sum.keys_read, sum.bytes].map(|it| it as f64 / count)
    }

    /// In the worst second.
    fn worst(&self, seconds: std::ops::Range<u64>, of: impl Fn(&Second) -> u64) -> u64 {
        let found = seconds.filter_map(|it| self.seconds.get(it as usize));
        found.map(of).max().unwrap_or(0)
    }
}

async fn commit(store: Arc<Store>, server: Server, start: Instant) {
    let mut next = start;
    while start.elapsed().as_secs() < QUIET {
        next += store.pause(Duration::from_secs(1) / COMMITS as u32);
        sleep_until(next).await;
        if !store.is_gone() {
            let key = store.random(KEYS);
            server.committed(key, store.commit(key));
        }
    }
}

async fn cut(store: Arc<Store>, server: Server, nodes: usize, start: Instant) {
    let mut next = start + Duration::from_secs(RESTARTS);
    while start.elapsed().as_secs() < GONE {
        next += store.pause(CUT_AFTER / nodes as u32);
        sleep_until(next).await;
        server.cut_one(&store);
    }
}

async fn live(engine: &str, nodes: usize) -> Outcome {
    let start = Instant::now();
    let at = |second: u64| sleep_until(start + Duration::from_secs(second));
    let store = Store::new(nodes as u64);
    let server = Server::all(&store, engine);
    let (mut tasks, mut places, mut waitings) = (JoinSet::new(), Vec::new(), Vec::new());
    for _ in 0..nodes {
        let place = Arc::new(Mutex::new(node(&server)));
        for _ in 0..CLIENTS {
            let waiting = Waiting::default();
            tasks.spawn(client(store.clone(), place.clone(), waiting.clone()));
            waitings.push(waiting);
        }
        places.push(place);
    }
    tasks.spawn(commit(store.clone(), server.clone(), start));
    tasks.spawn(cut(store.clone(), server.clone(), nodes, start));
    at(RESTARTS).await;
    let pause = Duration::from_secs(GONE - RESTARTS - 10) / nodes as u32;
    let mut restarted = places.iter().collect::<Vec<_>>();
    store.shuffle(&mut restarted);
    for place in restarted {
        let fresh = node(&server);
        let old = std::mem::replace(&mut *place.lock().expect("no test panics with it"), fresh);
        old.cluster().shutdown();
        sleep(pause).await;
    }
    at(GONE).await;
    store.set_gone(true);
    server.cut();
    at(BACK).await;
    store.set_gone(false);
    let back = Instant::now();
    let is_behind = |place: &Place| {
        let node = place.lock().expect("no test panics with it").clone();
        !node.cluster().stats().lag.is_zero()
    };
    while places.iter().any(is_behind) {
        sleep(Duration::from_millis(100)).await;
        assert!(
            back.elapsed() < Duration::from_secs(END - BACK),
            "never in step again"
        );
    }
    let in_step = back.elapsed();
    at(END).await;
    let lost = waitings.iter().filter(|waiting| {
        let waiting = waiting.lock().expect("no test panics with it");
        waiting.is_some_and(|(key, seen)| store.version(key) > seen)
    });
    let lost = lost.count();
    tasks.shutdown().await;
    for place in &places {
        place
            .lock()
            .expect("no test panics with it")
            .cluster()
            .shutdown();
    }
    Outcome {
        lost,
        seconds: store.seconds(),
        in_step,
    }
}

fn run(engine: &str, nodes: usize) -> Outcome {
    fastrand::seed(nodes as u64);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = runtime.expect("it needs nothing of the system");
    let outcome = runtime.block_on(live(engine, nodes));
    let [asked, told, keys_read, bytes] = outcome.mean(STEADY..RESTARTS);
    let each = |sum: f64| sum / nodes as f64;
    let messages = |it: &Second| it.asked + it.told;
    println!(
        "| {engine} | {nodes} | {asked:.0} | {told:.0} | {keys_read:.0} | {:.0} | {:.1} | {:.2} | {:.2} | {} | {} | {} \
         | {:.1} | {} |",
        bytes / 1e3,
        each(asked + told),
        each(keys_read),
        each(bytes) / 1e3,
        outcome.worst(RESTARTS..GONE, messages),
        outcome.worst(BACK..END, messages),
        outcome.worst(BACK..END, |it| it.keys_read),
        outcome.in_step.as_secs_f64(),
        outcome.lost,
    );
    assert_eq!(outcome.lost, 0, "{engine}, {nodes} nodes");
    outcome
}

#[test]
fn g24_a_rolling_restart_and_an_engine_that_is_gone_lose_nothing() {
    for engine in ENGINES {
        let outcome = run(engine, 20);
        // The longest pause between two sessions, and what is read then.
        assert!(
            outcome.in_step < Duration::from_secs(7),
            "{:?}",
            outcome.in_step
        );
    }
}

#[test]
#[ignore = "takes minutes: .ci/cluster-faults scale"]
fn scale() {
    println!(
        "| engine | nodes | asked/s | told/s | keys read/s | kB/s | messages/s and node | keys read/s and node \
         | kB/s and node | worst second of the restarts \
         | worst second after 30 s without the engine | keys read in the worst second then | in step after, s | lost |"
    );
    for engine in ENGINES {
        for nodes in [10, 30, 100, 300, 1_000, 3_000] {
            run(engine, nodes);
        }
    }
}
