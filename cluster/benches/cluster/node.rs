//! Node A: a process that waits.

use crate::engine::{Kind, key, nats};
use crate::measure::{cpu, memory, now};
use crate::raw;
use crate::support::{engine::Key, eventually};
use request_purgatory_cluster::nats::NatsEngine;
use request_purgatory_cluster::redis::RedisEngine;
use request_purgatory_cluster::{Cluster, ClusterWaits, Config, Feed, Source};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};

/// The first argument of such a process.
pub const ARGUMENT: &str = "--node";

/// See [`park`].
pub const SAMPLE: u32 = 100;

const HOUR: Duration = Duration::from_secs(3_600);

/// Carries out what is commanded on the standard input, until it ends.
pub async fn run(arguments: &[String]) {
    let [kind, url, max_subscriptions, audits] = arguments else {
        panic!("the arguments are {arguments:?}");
    };
    let kind = Kind::of_number(kind);
    let mut config = Config {
        max_subscriptions: max_subscriptions.parse().expect("a number"),
        ..Config::default()
    };
    if audits == "false" {
        config.audit = HOUR;
    }
    match kind {
        Kind::RedisTracking | Kind::RedisPublished => {
            let engine = RedisEngine::new(kind.redis(url)).expect("the address is sound");
            obey(&engine, kind, url, config).await;
        }
        Kind::Nats => {
            let engine = NatsEngine::connect(nats(url)).await.expect("it is there");
            obey(&engine, kind, url, config).await;
        }
    }
}

async fn obey<E>(engine: &E, kind: Kind, url: &str, config: Config)
where
    E: Source<Key> + Feed<Key> + Clone,
{
    // What the process itself takes does not count.
    let before = memory();
    let cluster = Cluster::start(engine.clone(), engine.clone(), config).expect("in a runtime");
    let node = ClusterWaits::new(&cluster).expect("there is a thread");
    live(&node, 0).await;
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    while let Some(command) = commands.next_line().await.expect("a pipe") {
        let (word, count) = command.split_once(' ').unwrap_or((&command, "0"));
        let count = count.parse::<u32>().expect("a number");
        match word {
            "cpu" => println!("cpu {}", cpu()),
            "raw" => raw::hear(kind, url, count).await,
            "wait" => wait(&node, count).await,
            "watch" => watch(&node, count).await,
            "park" => park(&node, count, before).await,
            _ => panic!("the command is {command}"),
        }
    }
}

/// Waits until `keys` keys are watched and read.
async fn live(node: &ClusterWaits<Key>, keys: u32) {
    eventually("the node is live", async || {
        let stats = node.cluster().stats();
        let reads = u64::from(keys.div_ceil(1_000));
        let keys = keys as usize;
        (stats.lag.is_zero() && stats.watched_keys >= keys && stats.reads >= reads).then_some(())
    })
    .await;
}

/// Waits for `count` versions of the first key, one after the other, and says when each came.
async fn wait(node: &ClusterWaits<Key>, count: u32) {
    // Where the key is already. (Nothing beyond that is there.)
    let seen = node.wait_past(key(0), 0, Duration::from_millis(500)).await;
    let mut wait = node.wait_past(key(0), seen.unwrap_or(0), HOUR);
    println!("ready");
    for _ in 0..count {
        let seen = wait.await.expect("a version");
        let woken = now();
        wait = node.wait_past(key(0), seen, HOUR);
        println!("woken {woken}");
    }
}

/// Clients that wait again and again, one for each key.
async fn watch(node: &ClusterWaits<Key>, keys: u32) {
    for number in 0..keys {
        let node = node.clone();
        tokio::spawn(async move {
            let mut seen = 0;
            loop {
                seen = node
                    .wait_past(key(number), seen, HOUR)
                    .await
                    .expect("a version");
            }
        });
    }
    live(node, keys).await;
    // Until all have learned where their keys are.
    tokio::time::sleep(Duration::from_secs(1)).await;
    println!("live");
}

/// Of the keys, one in [`SAMPLE`] has an event already. When the waits for those have ended, the keys are read.
async fn park(node: &ClusterWaits<Key>, keys: u32, before: u64) {
    let (start, cpu_before) = (now(), cpu());
    let waits = (0..keys)
        .map(|number| node.wait_past(key(number), 0, HOUR))
        .collect::<Vec<_>>();
    let (called, cpu_called) = (now() - start, cpu() - cpu_before);
    let (mut sampled, mut parked) = (Vec::new(), Vec::new());
    for (number, wait) in (0..keys).zip(waits) {
        match number % SAMPLE {
            0 => sampled.push(wait),
            _ => parked.push(wait),
        }
    }
    for wait in sampled {
        wait.await.expect("a version");
    }
    let (read, cpu_read) = (now() - start, cpu() - cpu_before);
    let bytes = memory().saturating_sub(before);
    let sessions = node.cluster().stats().sessions;
    println!("parked {called} {cpu_called} {read} {cpu_read} {bytes} {sessions}");
    drop(parked);
}
