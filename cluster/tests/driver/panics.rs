//! A store whose code panics.

use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::{Cluster, ClusterWaits, Config, EngineError, Reading, Source};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::time::timeout;

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
