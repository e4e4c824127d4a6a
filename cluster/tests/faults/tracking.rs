//! What Redis tracks for a node: how much of it is announced in vain, and a table that is too small.

use crate::load::print_row;
use crate::lost::{key, live, node, node_that_lingers, wait_without_audits};
use crate::ms;
use crate::support::engine::{Key, RedisRig, Rig};
use crate::support::{LONG, eventually};
use request_purgatory_cluster::redis::client;
use request_purgatory_cluster::{Cluster, ClusterWaits, Config, WaitError};
use std::time::Instant;
use tokio::time::sleep;

/// How often the server was asked for this.
async fn calls(rig: &RedisRig<false>, command: &str) -> u64 {
    let client::Value::BulkString(info) = rig.server.query("INFO commandstats").await else {
        return 0;
    };
    let info = String::from_utf8(info).expect("it is text");
    let begin = format!("cmdstat_{command}:calls=");
    let line = info.lines().find_map(|it| it.strip_prefix(&*begin));
    let calls = line.and_then(|it| it.split(',').next());
    calls.map_or(0, |it| it.parse().expect("a number"))
}

/// Counters that are written again and do not change, fewer in each period of signs of life than show that the table is
/// too small.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_redis_what_is_announced_now_and_then_does_not_add_up() {
    let rig = RedisRig::<false>::start(10_000).await;
    let waits = node(&rig.engine());
    let keys = (0..200).map(|number| key(&number.to_string()));
    let keys = keys.collect::<Vec<_>>();
    let interest = waits
        .cluster()
        .interest(keys.clone())
        .expect("there is room");
    eventually("all are read", async || {
        let mut read = keys.iter().map(|key| interest.position(key));
        read.all(|it| it.is_some()).then_some(())
    })
    .await;
    live(&waits).await;
    let zeros = (0..keys.len()).map(|number| format!(" purgatory:v:{number} 0"));
    let write = format!("MSET{}", zeros.collect::<String>());
    for _ in 0..3 {
        rig.server.query(&write).await;
        let before = calls(&rig, "ping").await;
        eventually("the period is over", async || {
            (calls(&rig, "ping").await > before + 1).then_some(())
        })
        .await;
    }
    let stats = waits.cluster().stats();
    assert_eq!((stats.advice, stats.gaps), (None, 0));
}

/// Counters that are written again and do not change, beside enough others that do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_redis_what_is_announced_beside_many_changes_shows_no_small_table() {
    let rig = RedisRig::<false>::start(10_000).await;
    let config = Config {
        // All within one period of signs of life.
        ping: 100 * LONG,
        audit: 100 * LONG,
        ..Config::default()
    };
    let node = Cluster::start(rig.engine(), rig.engine(), config).expect("in a runtime");
    let keys = (0..500).map(|number| key(&number.to_string()));
    let keys = keys.collect::<Vec<_>>();
    let interest = node.interest(keys.clone()).expect("there is room");
    let reach = async |keys: &[Key], version: u64| {
        eventually("they are there", async || {
            let mut known = keys.iter().map(|key| interest.position(key));
            let are_there = known.all(|it| it.is_some_and(|it| it.version == version));
            (are_there && node.stats().lag.is_zero()).then_some(())
        })
        .await;
    };
    let write = async |numbers: std::ops::Range<usize>, version: u64| {
        let words = numbers.map(|number| format!(" purgatory:v:{number} {version}"));
        let command = format!("MSET{}", words.collect::<String>());
        rig.server.query(&command).await;
    };
    reach(&keys, 0).await;
    write(0..200, 1).await;
    reach(&keys[..200], 1).await;
    // More than show a small table where nothing else changes.
    write(200..500, 0).await;
    // What comes later is heard later.
    write(0..1, 2).await;
    reach(&keys[..1], 2).await;
    let stats = node.stats();
    assert_eq!((stats.advice, stats.gaps), (None, 0));
}

/// Whether the operator is told of the table, and of the policy.
fn is_told(waits: &ClusterWaits<Key>) -> [bool; 2] {
    let advice = waits.cluster().stats().advice.unwrap_or_default();
    ["tracking-table-max-keys", "noeviction"].map(|it| advice.contains(it))
}

/// More keys than the server's table of tracked keys holds. And a policy that evicts, of which is to be told as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_redis_a_tracking_table_that_is_too_small_is_left() {
    const KEYS: usize = 2_000;
    // (Nothing is evicted: the memory has no limit.)
    let policy = ["--maxmemory-policy", "allkeys-lru"];
    let settings = [&["--tracking-table-max-keys", "1000"], &policy[..]].concat();
    let rig = RedisRig::<false>::start_with(100_000, &settings).await;
    let waits = node_that_lingers(&rig.engine(), ms(200));
    let keys = (0..KEYS)
        .map(|number| key(&number.to_string()))
        .collect::<Vec<_>>();
    let parked = keys.iter().map(|key| waits.wait_past(key.clone(), 0, LONG));
    let parked = parked.map(tokio::spawn).collect::<Vec<_>>();
    eventually("the node has noticed", async || {
        (is_told(&waits) == [true; 2] && waits.cluster().stats().lag.is_zero()).then_some(())
    })
    .await;
    sleep(ms(300)).await;
    let reads = async || calls(&rig, "mget").await;
    let before = reads().await;
    let start = Instant::now();
    for key in &keys[..15] {
        rig.commit(key).await.expect("it commits");
    }
    let mut parked = parked.into_iter();
    for wait in parked.by_ref().take(15) {
        assert_eq!(wait.await.expect("no panic"), Ok(1));
    }
    let worst = start.elapsed();
    let reads_made = format!("{} reads for 15 commits", reads().await - before);
    let row = "F7 tracking table of 1,000 keys";
    print_row(row, "Redis, tracking", 15, 0, worst, reads_made);
    assert!(reads().await - before < 100, "no circle");
    assert!(waits.cluster().stats().lag.is_zero());
    eventually("what was told of is forgotten", async || {
        (waits.cluster().stats().watched_keys == KEYS - 15).then_some(())
    })
    .await;
    let before = reads().await;
    for key in &keys[..15] {
        rig.commit(key).await.expect("it commits");
        sleep(ms(20)).await;
    }
    // (Audits read what is watched.)
    let reads_made = reads().await - before;
    assert!(reads_made < 8, "{reads_made} of what is forgotten");
    parked.for_each(|wait| wait.abort());
    let mend = "CONFIG SET maxmemory-policy noeviction";
    rig.server.query(mend).await;
    rig.cut();
    eventually("what was mended is told no more", async || {
        (is_told(&waits) == [true, false]).then_some(())
    })
    .await;
    // Another node of this engine hears the broadcast from its first session on. No audit helps it.
    let (other, of_a) = wait_without_audits(&rig.engine()).await;
    let [a, b] = ["a", "b"].map(key);
    rig.commit(&b).await.expect("it commits");
    assert_eq!(other.wait_past(b.clone(), 0, LONG).await, Ok(1));
    let of_b = other.wait_past(b, 1, LONG);
    // What changes in one step is announced in one piece, with what it does not watch.
    let both = "MSET purgatory:v:0 7 purgatory:v:a 7 purgatory:v:b 7";
    rig.server.query(both).await;
    assert_eq!((of_a.await, of_b.await), (Ok(7), Ok(7)));
    // The loss of the epoch alone is announced as well.
    let of_a = other.wait_past(a, 7, LONG);
    rig.server.query("DEL purgatory:epoch").await;
    let told = of_a.await;
    assert!(matches!(told, Err(WaitError::Reset(_))), "{told:?}");
}
