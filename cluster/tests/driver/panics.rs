//! A store and a feed whose code panics.

use crate::engine::Engine;
use crate::{assert_paused, until};
use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::{Cluster, ClusterWaits, Config, EngineError, Reading, Source};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Its reads of keys panic as often as this says.
#[derive(Clone)]
struct Fragile(MemoryEngine<u64>, Arc<AtomicU32>);

impl Source<u64> for Fragile {
    async fn versions(&self, keys: &[u64]) -> Result<Reading, EngineError> {
        let panics = |left: u32| left.checked_sub(u32::from(!keys.is_empty()));
        let left = self.1.fetch_update(SeqCst, SeqCst, panics);
        assert!(keys.is_empty() || left.is_err(), "the read panics");
        self.0.versions(keys).await
    }
}

/// A read that panics has failed: the node says so, and goes on to read, however many have panicked.
#[tokio::test(start_paused = true)]
async fn g24_reads_that_panic_are_made_again() {
    let config = Config {
        concurrent_reads: 2,
        ..Config::default()
    };
    let engine = MemoryEngine::new();
    engine.commit(7);
    let source = Fragile(engine.clone(), Arc::new(AtomicU32::new(6)));
    let node = Cluster::start(source.clone(), engine, config).unwrap();
    let waits = ClusterWaits::new(&node).unwrap();
    let mut wait = waits.wait_past(7, 0, Duration::MAX);
    let too_early = timeout(Duration::from_millis(100), &mut wait).await;
    assert!(too_early.is_err());
    let trouble = node.stats().store_trouble.expect("its reads panic");
    assert_eq!(&*trouble.cause, "the code of the source panicked");
    assert_eq!(timeout(Duration::from_secs(30), wait).await, Ok(Ok(1)));
    assert_eq!(
        (source.1.load(SeqCst), node.stats().store_trouble),
        (0, None)
    );
}

/// So has a session that panics: the next one comes after a pause, and meanwhile the node is not in step.
#[tokio::test(start_paused = true)]
async fn g24_sessions_that_panic_pause_and_say_so() {
    let engine = Engine::default();
    engine.set(|it| it.panics = 100);
    let node = engine.node();
    sleep(Duration::from_secs(10)).await;
    let stats = until(&node, |it| !it.lag.is_zero()).await;
    assert_paused(stats.gaps);
    let trouble = stats.feed_trouble.expect("its sessions panic");
    assert_eq!(trouble.word, "panicked");
    // (The last one may not be counted yet.)
    assert!(trouble.times.abs_diff(stats.gaps) <= 1, "{trouble:?}");
    engine.set(|it| it.panics = 0);
    until(&node, |it| it.lag.is_zero() && it.feed_trouble.is_none()).await;
}
