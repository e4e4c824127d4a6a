//! A store and a feed whose code panics.

use crate::engine::Engine;
use crate::{assert_paused, until};
use request_purgatory_cluster::memory::{MemoryChanges, MemoryEngine, MemoryInterests};
use request_purgatory_cluster::{
    Cluster, ClusterWaits, Config, EngineError, Feed, FeedError, Reading, Source, Stats,
};
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
    let said = (&*trouble.cause, trouble.word);
    assert_eq!(said, ("the code of the source panicked", "unread"));
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

/// No session can be opened.
struct Shut;

impl Feed<u64> for Shut {
    type Interests = MemoryInterests<u64>;
    type Changes = MemoryChanges<u64>;

    async fn open(&self, _: &Config) -> Result<(Self::Interests, Self::Changes), FeedError> {
        panic!("the feed panics")
    }
}

/// So has an attempt that panics before there is a session.
#[tokio::test(start_paused = true)]
async fn g24_attempts_that_panic_are_counted() {
    let node = Cluster::start(MemoryEngine::new(), Shut, Config::default()).unwrap();
    let times = |stats: &Stats| stats.feed_trouble.as_ref().map_or(0, |it| it.times);
    let stats = until(&node, |it| times(it) > 3).await;
    let counted = (stats.failed, stats.sessions, stats.gaps);
    assert_eq!(counted, (times(&stats), 0, 0));
}
