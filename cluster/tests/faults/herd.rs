//! 100,000 watched keys, and their engine restarts.

use crate::load::print_row;
use crate::support::engine::{Key, NatsRig, RedisPublished, RedisTracking, Rig};
use request_purgatory_cluster::{Cluster, ClusterWaits, Config};
use std::time::{Duration, Instant};

const KEYS: usize = 100_000;

async fn herd<R: Rig>(engine: &str) {
    let mut rig = R::start(100_000).await;
    let config = Config::default();
    let batches = KEYS.div_ceil(config.read_batch) as u64;
    let node = Cluster::start(rig.engine(), rig.engine(), config).expect("in a runtime");
    let waits = ClusterWaits::new(&node).expect("there is a thread");
    let key = |number: usize| -> Key { format!("key {number}").into_bytes() };
    let start = Instant::now();
    let hour = Duration::from_secs(3_600);
    let mut parked = (0..KEYS)
        .map(|number| waits.wait_past(key(number), 0, hour))
        .collect::<Vec<_>>();
    let called = start.elapsed();
    live(&node, batches).await;
    let before = node.stats();
    let sample = [0, KEYS / 2, KEYS - 1];
    rig.restart(Duration::from_millis(500)).await;
    let up = Instant::now();
    for number in sample {
        while rig.commit(&key(number)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for number in sample.into_iter().rev() {
        let wait = parked.swap_remove(number);
        let told = tokio::time::timeout(Duration::from_secs(60), wait).await;
        told.expect("it is told").expect("it is a version");
    }
    let told_after = up.elapsed();
    live(&node, before.reads + batches).await;
    let stats = node.stats();
    let then = format!(
        "{:.1?}, by {} reads of up to 1,000 keys, 4 at a time; {KEYS} calls took {called:.1?}",
        up.elapsed(),
        stats.reads - before.reads,
    );
    print_row("herd: kill -9", engine, KEYS, 0, told_after, then);
    assert!(
        stats.reads - before.reads <= 2 * batches + 100,
        "reads are batched: {stats:?}"
    );
}

/// (The three keys that were told of are forgotten after their linger.)
async fn live(node: &Cluster<Key>, reads: u64) {
    let start = Instant::now();
    loop {
        let stats = node.stats();
        if stats.lag.is_zero() && stats.reads >= reads && stats.watched_keys + 3 >= KEYS {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "{stats:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: .ci/cluster-faults"]
async fn herd_redis_tracking() {
    herd::<RedisTracking>("Redis, tracking").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: .ci/cluster-faults"]
async fn herd_redis_published() {
    herd::<RedisPublished>("Redis, published").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: .ci/cluster-faults"]
async fn herd_nats() {
    herd::<NatsRig>("NATS wildcard").await;
}
