//! The shipped driver with a feed and a store that do what a test says, on tokio's paused clock: how it goes on when
//! they fail, and what it says of that.

#![allow(unreachable_pub, reason = "a test has no users")]

mod endings;
mod engine;
mod histories;
mod memory;
mod model;
mod panics;
mod reads;
mod sessions;
mod streams;
mod watches;

use engine::Engine;
use request_purgatory_cluster::{Cluster, Epoch, Interest, Position, Stats};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const LONG: Duration = Duration::from_secs(30);

/// The beginning of the history after a loss.
const ANEW: Position = Position {
    epoch: Epoch(2),
    version: 0,
};

/// The stats, when they are as wanted.
async fn until(node: &Cluster<u64>, is_so: impl Fn(&Stats) -> bool) -> Stats {
    let begun = Instant::now();
    loop {
        let stats = node.stats();
        if is_so(&stats) {
            return stats;
        }
        assert!(begun.elapsed() < LONG, "{stats:?}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// A node without audits that watches key 7, and has read `version` of it.
async fn node_that_has_read(engine: &Engine, version: u64) -> (Cluster<u64>, Interest<u64>) {
    engine.set(|it| it.version = version);
    let node = engine.node_with(LONG * 100);
    let interest = node.interest([7]).unwrap();
    until(&node, |it| {
        it.lag.is_zero() && interest.version(&7) == version
    })
    .await;
    (node, interest)
}

/// With a pause that doubles from 10 ms to 1 s there are some 15 attempts in 10 s; without one there is no end of them.
fn assert_paused(attempts: u64) {
    assert!((10..=40).contains(&attempts), "{attempts} attempts in 10 s");
}
