//! The store begins another history while nodes and clients come with positions of the old one: they are told so, with a
//! position from which they go on. No audit helps.

use crate::load::print_row;
use crate::support::engine::{Key, NatsRig, RedisPublished, RedisTracking, Rig};
use crate::support::{LONG, eventually};
use request_purgatory_cluster::{
    Cluster, ClusterWaits, Config, Epoch, Position, Source, WaitError, WaitPast,
};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const BOUND: Duration = Duration::from_secs(10);

fn key() -> Key {
    b"a".to_vec()
}

fn node<R: Rig>(rig: &R) -> ClusterWaits<Key> {
    let config = Config {
        audit: LONG * 100,
        ping: Duration::from_millis(500),
        backoff: (Duration::from_millis(50), Duration::from_millis(500)),
        ..Config::default()
    };
    let node = Cluster::start(rig.engine(), rig.engine(), config).expect("in a runtime");
    ClusterWaits::new(&node).expect("there is a thread")
}

async fn commit<R: Rig>(rig: &R, times: usize) {
    for _ in 0..times {
        eventually("it commits", async || rig.commit(&key()).await.ok()).await;
    }
}

/// Where a client is that has seen all.
async fn position<R: Rig>(rig: &R) -> Position {
    let keys = [key()];
    let reading = eventually("it reads", async || rig.engine().versions(&keys).await.ok()).await;
    Position {
        epoch: reading.epoch,
        version: reading.versions[0].expect("the stream keeps all"),
    }
}

/// The wait was begun in the history `old`. Its client is told, and told of all that the new history has. Returns how
/// long it took until it was told.
async fn goes_on<R: Rig>(
    rig: &R,
    waits: &ClusterWaits<Key>,
    old: Epoch,
    wait: WaitPast<Key, Position>,
) -> Duration {
    let begun = Instant::now();
    let told = wait.await;
    let told_after = begun.elapsed();
    let Err(WaitError::Reset(onward)) = told else {
        panic!("{told:?}");
    };
    assert_ne!(onward.epoch, old);
    assert_eq!(onward.version, 0, "no event of the new history is left out");
    let found = waits.wait_past_position(key(), onward, BOUND).await;
    let found = found.unwrap_or_else(|error| panic!("{error}: {:?}", waits.cluster().stats()));
    assert_eq!(found.epoch, onward.epoch);
    let wait = waits.wait_past_position(key(), position(rig).await, BOUND);
    commit(rig, 1).await;
    assert_eq!(wait.await, Ok(position(rig).await));
    told_after
}

fn print<R: Rig>(row: &str, waits: usize, worst: Duration) {
    let row = format!("flushed, and {row}");
    print_row(&row, R::NAME, waits, 0, worst, "clients go on");
}

/// A client comes to a node that never knew the old history.
async fn a_node_that_begins_later<R: Rig>() {
    let rig = R::start(10_000).await;
    commit(&rig, 3).await;
    let seen = position(&rig).await;
    rig.flush().await;
    // As many again: by its number alone the client would miss nothing.
    commit(&rig, 3).await;
    let waits = node(&rig);
    let wait = waits.wait_past_position(key(), seen, BOUND);
    let worst = goes_on(&rig, &waits, seen.epoch, wait).await;
    print::<R>("a node that begins later", 1, worst);
}

/// The history ends, and is overtaken, while the node hears and reads nothing.
async fn a_node_that_was_cut_off<R: Rig>() {
    let rig = R::start(10_000).await;
    commit(&rig, 3).await;
    let seen = position(&rig).await;
    let waits = node(&rig);
    let wait = waits.wait_past_position(key(), seen, BOUND);
    eventually("the node is in step", async || {
        waits.cluster().stats().lag.is_zero().then_some(())
    })
    .await;
    rig.freeze(true);
    rig.flush().await;
    commit(&rig, 5).await;
    rig.cut();
    rig.freeze(false);
    let worst = goes_on(&rig, &waits, seen.epoch, wait).await;
    print::<R>("a node that was cut off", 1, worst);
}

/// The history ends at some moment of the opening of a node's first session.
async fn a_session_that_opens<R: Rig>() {
    let rig = R::start(10_000).await;
    let mut worst = Duration::ZERO;
    for moment in 0..12 {
        commit(&rig, 3).await;
        let seen = position(&rig).await;
        let waits = node(&rig);
        let wait = waits.wait_past_position(key(), seen, BOUND);
        sleep(Duration::from_micros(500) * moment).await;
        rig.flush().await;
        commit(&rig, 1).await;
        worst = worst.max(goes_on(&rig, &waits, seen.epoch, wait).await);
        waits.cluster().shutdown();
    }
    print::<R>("a session that opens", 12, worst);
}

macro_rules! histories {
    ($($engine:ident: $rig:ty, $($test:ident)*;)*) => {$(
        mod $engine {
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test::<$rig>().await;
                }
            )*
        }
    )*};
}

histories! {
    redis_tracking: RedisTracking, a_node_that_begins_later a_node_that_was_cut_off a_session_that_opens;
    redis_published: RedisPublished, a_node_that_begins_later a_node_that_was_cut_off a_session_that_opens;
    nats: NatsRig, a_node_that_begins_later a_node_that_was_cut_off a_session_that_opens;
}
