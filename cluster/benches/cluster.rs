//! Latency, CPU time and memory beside the raw engine, in one process and run: `cargo bench -p request-purgatory-cluster
//! --all-features`. A simple harness: each figure is printed with what it was measured on.

#![allow(unreachable_pub, reason = "a benchmark has no users")]

#[path = "../tests/support/mod.rs"]
mod support;

use request_purgatory_cluster::nats::NatsEngine;
use request_purgatory_cluster::redis::RedisEngine;
use request_purgatory_cluster::{BoxError, Cluster, ClusterWaits, Config, Feed, Source};
use std::future::Future;
use std::time::{Duration, Instant};
use support::engine::{Key, NatsRig, RedisPublished, RedisRig, RedisTracking, Rig};
use support::nats_server::NatsServer;
use support::redis_server::RedisServer;

const HOUR: Duration = Duration::from_secs(3_600);
const ROUNDS: usize = 3_000;

fn key(number: usize) -> Key {
    format!("key {number}").into_bytes()
}

/// The CPU time of this process: nodes, clients of the engine, and the writer.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this is Linux");
    let (_, fields) = stat.rsplit_once(')').expect("it has a name");
    let ticks = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|it| it.parse::<u64>());
    Duration::from_millis(ticks.map(|it| it.expect("a number")).sum::<u64>() * 10)
}

/// Resident memory, in MB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("it is resident");
    line.split_whitespace()
        .nth(1)
        .expect("a number")
        .parse::<u64>()
        .expect("a number")
        / 1_024
}

fn quantiles(mut samples: Vec<Duration>) -> String {
    samples.sort_unstable();
    let at = |part: usize| samples[(samples.len() - 1) * part / 1_000].as_secs_f64() * 1e6;
    format!("p50 {:.0} us, p99 {:.0} us", at(500), at(990))
}

fn node<E: Source<Key> + Feed<Key> + Clone>(engine: &E, config: Config) -> ClusterWaits<Key> {
    let node = Cluster::start(engine.clone(), engine.clone(), config).expect("in a runtime");
    ClusterWaits::new(&node).expect("there is a thread")
}

async fn live(node: &ClusterWaits<Key>, keys: usize) {
    support::eventually("the node is live", async || {
        let stats = node.cluster().stats();
        let reads = keys.div_ceil(1_000) as u64;
        (stats.lag.is_zero() && stats.watched_keys >= keys && stats.reads >= reads).then_some(())
    })
    .await;
}

/// From the commit on B to the wake-up on A, and from its acknowledgement.
async fn latency<E, C>(name: &str, engine: &E, config: Config, commit: impl Fn() -> C)
where
    E: Source<Key> + Feed<Key> + Clone,
    C: Future<Output = Result<u64, BoxError>> + Send + 'static,
{
    let node = node(engine, config);
    let mut seen = 0;
    let (mut whole, mut after, mut acknowledged) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS + 100 {
        let wait = node.wait_past(key(0), seen, HOUR);
        let start = Instant::now();
        let commit = tokio::spawn({
            let commit = commit();
            async move { (commit.await.expect("it commits"), Instant::now()) }
        });
        seen = wait.await.expect("it is a version");
        let woken = Instant::now();
        let (_, acknowledgement) = commit.await.expect("it does not panic");
        if round >= 100 {
            whole.push(woken - start);
            acknowledged.push(acknowledgement - start);
            after.push(woken.saturating_duration_since(acknowledgement));
        }
    }
    println!(
        "{name}: commit to acknowledgement {}; commit to wake-up {}; acknowledgement to wake-up {}",
        quantiles(acknowledged),
        quantiles(whole),
        quantiles(after)
    );
}

/// 10,000 keys parked on A; of the events, which are made by another process's worth of clients here, one in `part`
/// concerns them. CPU time of the process with A per event, less what making the events costs without A.
async fn cpu_per_event<R: Rig>(name: &str, rig: &R, config: Config, part: usize) {
    const EVENTS: usize = 20_000;
    const KEYS: usize = 10_000;
    let make = async || {
        let start = cpu();
        for round in 0..EVENTS / 100 {
            let commits = (0..100).map(|number| {
                let event = round * 100 + number;
                let number = if event % part == 0 {
                    event / part % KEYS
                } else {
                    KEYS + event % KEYS
                };
                let key = key(number);
                async move { rig.commit(&key).await.map(drop) }
            });
            // One after the other: the writer is the same with and without the node.
            for commit in commits {
                commit.await.expect("it commits");
            }
        }
        cpu() - start
    };
    let without = make().await;
    let node = node(&rig.engine(), config);
    let clients = (0..KEYS).map(|number| {
        let node = node.clone();
        tokio::spawn(async move {
            let mut seen = u64::MAX;
            loop {
                // (The first wait learns where the key is.)
                match node.wait_past(key(number), seen, HOUR).await {
                    Ok(version) => seen = version,
                    Err(_) => seen = 0,
                }
            }
        })
    });
    let clients = clients.collect::<Vec<_>>();
    live(&node, KEYS).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = cpu();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = cpu() - idle;
    let start = Instant::now();
    let with = make().await;
    let idle = idle.mul_f64(start.elapsed().as_secs_f64());
    let own = with.saturating_sub(without).saturating_sub(idle);
    println!(
        "{name}: 10,000 keys parked, 1 in {part} events of interest: {:.2} us of CPU per event",
        own.as_secs_f64() * 1e6 / EVENTS as f64
    );
    clients.iter().for_each(tokio::task::JoinHandle::abort);
}

/// 100,000 waits for as many keys.
async fn park<E: Source<Key> + Feed<Key> + Clone>(name: &str, engine: &E) {
    const KEYS: usize = 100_000;
    let before = memory();
    let node = node(engine, Config::default());
    support::eventually("the session is open", async || {
        (node.cluster().stats().sessions > 0).then_some(())
    })
    .await;
    let start = Instant::now();
    let waits = (0..KEYS)
        .map(|number| node.wait_past(key(number), 0, HOUR))
        .collect::<Vec<_>>();
    let called = start.elapsed();
    live(&node, KEYS).await;
    println!(
        "{name}: 100,000 keys parked in {called:.2?}, all watched and read in {:.2?}; {} MB more",
        start.elapsed(),
        memory().saturating_sub(before)
    );
    drop(waits);
}

async fn redis<const PUBLISHED: bool>(name: &str) {
    // Straight to the server: no proxy in the way.
    let server = RedisServer::start(&[]).await;
    let config = RedisRig::<PUBLISHED>::config(server.url(), 1_000_000);
    let (engine, writer) = (
        RedisEngine::new(config.clone()).expect("the address is sound"),
        RedisEngine::new(config).expect("the address is sound"),
    );
    latency(name, &engine, Config::default(), || {
        let writer = writer.clone();
        async move { Ok(writer.commit(&key(0), b"body").await?.version) }
    })
    .await;
    park(name, &engine).await;
}

async fn nats(name: &str, max_subscriptions: usize) {
    let server = NatsServer::start().await;
    let connect =
        async || NatsEngine::connect(NatsRig::config(vec![server.url()], 1_000_000)).await;
    let engine = connect().await.expect("it is there");
    let writer = connect().await.expect("it is there");
    let config = Config {
        max_subscriptions,
        ..Config::default()
    };
    latency(name, &engine, config, || {
        let writer = writer.clone();
        async move { writer.commit(&key(0), b"body").await }
    })
    .await;
    if max_subscriptions == 0 {
        park(name, &engine).await;
    }
}

async fn cpu_rows<R: Rig>(name: &str, config: &Config) {
    let rig = R::start(1_000_000).await;
    for part in [10, 100] {
        cpu_per_event(name, &rig, config.clone(), part).await;
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the system has threads");
    runtime.block_on(async {
        redis::<false>("Redis tracking").await;
        redis::<true>("Redis published").await;
        nats("NATS per key", 4_096).await;
        nats("NATS wildcard", 0).await;
        // Each key has a subscription, where the engine knows such.
        let per_key = Config {
            max_subscriptions: 1_000_000,
            ..Config::default()
        };
        cpu_rows::<RedisTracking>("Redis tracking", &per_key).await;
        cpu_rows::<RedisPublished>("Redis published", &per_key).await;
        cpu_rows::<NatsRig>("NATS per key", &per_key).await;
    });
}
