//! The end of a node and of its waits: by a shutdown, a panic, the end of its runtime, an event.

use crate::engine::Engine;
use crate::{LONG, until};
use request_purgatory::Waits;
use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::{
    Cluster, ClusterWaits, Config, InterestError, StartError, WaitError,
};
use std::pin::Pin;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Nor in a key that is watched still: no version of it would come. And none is parked in a purgatory that comes late.
#[tokio::test(start_paused = true)]
async fn g24_a_node_that_was_shut_down_takes_no_interest() {
    let node = Engine::default().node();
    let _interest = node.interest([7]).unwrap();
    node.shutdown();
    for key in [7, 8] {
        let refused = node.interest([key]).err();
        assert_eq!(refused, Some(InterestError::ShutDown), "in {key}");
    }
    let late = ClusterWaits::new(&node).unwrap();
    assert!(late.purgatory().is_shut_down());
}

/// By a shutdown, with handles that stay, or with the last of them: the waits have ended then, and the engine gets its
/// session back.
#[tokio::test(start_paused = true)]
async fn g24_a_node_that_has_ended_leaves_no_wait_and_no_session() {
    for is_dropped in [false, true] {
        let engine = MemoryEngine::<u64>::new();
        let has_sessions = |number: u32| {
            let shown = format!("{engine:?}");
            assert!(shown.contains(&format!("sessions: {number},")), "{shown}");
        };
        let node = Cluster::start(engine.clone(), engine.clone(), Config::default()).unwrap();
        // (The purgatory stays as well: it ends no wait by going.)
        let purgatory = Waits::builder("stays").build().unwrap();
        let waits = ClusterWaits::parked_in(&node, purgatory.clone());
        let mut wait = waits.wait_past(7, 0, Duration::MAX);
        until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
        has_sessions(1);
        let stays = if is_dropped {
            drop((node, waits));
            None
        } else {
            node.shutdown();
            Some((node, waits))
        };
        let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(
            polled,
            Poll::Ready(Err(WaitError::ShutDown)),
            "{is_dropped}"
        );
        sleep(LONG).await;
        has_sessions(0);
        drop(stays);
    }
}

/// Nor a read that no answer comes to: nothing of the node has the store any more.
#[tokio::test(start_paused = true)]
async fn g24_a_node_that_has_ended_leaves_no_read() {
    let engine = Engine::default();
    engine.set(|it| it.gated = true);
    let node = engine.node();
    let interest = node.interest([7]).unwrap();
    until(&node, |_| engine.0.lock().unwrap().under_way > 0).await;
    drop((node, interest));
    sleep(LONG).await;
    assert_eq!(Arc::strong_count(&engine.0), 1);
}

/// A key whose copy panics as often as this says.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Fragile(u64);

static PANICS: AtomicU32 = AtomicU32::new(0);

impl Clone for Fragile {
    fn clone(&self) -> Self {
        let left = PANICS.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "the copy panics");
        Self(self.0)
    }
}

/// The driver's own copy of a key panics: each wait ends with an error, and so does each later one.
#[tokio::test(start_paused = true)]
async fn g24_a_driver_that_panics_ends_its_waits() {
    let engine = MemoryEngine::<Fragile>::new();
    let node = Cluster::start(engine.clone(), engine, Config::default()).unwrap();
    let waits = ClusterWaits::new(&node).unwrap();
    let wait = waits.wait_past(Fragile(7), 0, Duration::MAX);
    // (Nothing of the driver has run yet.)
    PANICS.store(1, SeqCst);
    assert_eq!(timeout(LONG, wait).await, Ok(Err(WaitError::ShutDown)));
    assert!(node.is_shut_down());
    let later = waits.wait_past(Fragile(7), 0, Duration::MAX);
    assert_eq!(later.await, Err(WaitError::ShutDown));
}

/// So does each wait when the runtime of the node ends.
#[test]
fn g24_a_runtime_that_ends_ends_its_waits() {
    // Also when it has not run the node once.
    for has_run in [true, false] {
        let engine = Engine::default();
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().unwrap();
        let waits = runtime.block_on(async {
            let waits = ClusterWaits::new(&engine.node()).unwrap();
            if has_run {
                until(waits.cluster(), |it| it.lag.is_zero()).await;
            }
            waits
        });
        let wait = waits.wait_past(7, 0, Duration::MAX);
        drop(runtime);
        let other = tokio::runtime::Builder::new_current_thread();
        let other = { other }.enable_time().build().unwrap();
        let told = other.block_on(async { timeout(LONG, wait).await });
        assert_eq!(told, Ok(Err(WaitError::ShutDown)), "{has_run}");
    }
}

#[tokio::test(start_paused = true)]
async fn g24_an_event_ends_the_waits_of_every_purgatory_of_the_node() {
    let engine = MemoryEngine::new();
    let node = Cluster::start(engine.clone(), engine.clone(), Config::default()).unwrap();
    let places = [(); 3].map(|()| ClusterWaits::new(&node).unwrap());
    let waits = places.each_ref();
    let waits = waits.map(|it| it.wait_past(7, 0, Duration::MAX));
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    engine.commit(7);
    for wait in waits {
        assert_eq!(timeout(LONG, wait).await, Ok(Ok(1)));
    }
}

/// It has no room for the wait, is told to end it, or is being drained.
#[tokio::test(start_paused = true)]
async fn g24_a_wait_says_what_its_purgatory_did() {
    let node = Engine::default().node();
    let few = Waits::builder("few").max_parked(1).build().unwrap();
    let waits = ClusterWaits::parked_in(&node, few);
    let [first, second] = [7, 8].map(|key| waits.wait_past(key, 0, Duration::MAX));
    assert_eq!(second.await, Err(WaitError::Full));
    assert_eq!(waits.purgatory().cancel_for_key(&7_u64).len(), 1);
    assert_eq!(first.await, Err(WaitError::Cancelled));
    // What never began was not cancelled.
    let few = Waits::builder("few").max_watchers_per_key(1).build();
    let waits = ClusterWaits::parked_in(&node, few.unwrap());
    let _first = waits.wait_past(7, 0, Duration::MAX);
    let second = waits.wait_past(7, 0, Duration::MAX);
    assert_eq!(second.await, Err(WaitError::Full));
    waits.purgatory().drain(Duration::ZERO);
    let late = waits.wait_past(8, 0, Duration::MAX);
    assert_eq!(late.await, Err(WaitError::ShutDown));
}

/// Makes a purgatory when the wait ends: while the check is under way that ends it.
struct Comes(Cluster<u64>, Mutex<Option<ClusterWaits<u64>>>);

impl Wake for Comes {
    fn wake(self: Arc<Self>) {
        let comes = ClusterWaits::new(&self.0).unwrap();
        *self.1.lock().unwrap() = Some(comes);
    }
}

/// The same check finds that another purgatory has gone.
#[tokio::test(start_paused = true)]
async fn g24_a_purgatory_that_comes_as_another_goes_is_checked_and_shut_down() {
    let engine = MemoryEngine::new();
    let node = Cluster::start(engine.clone(), engine.clone(), Config::default()).unwrap();
    let [stays, goes] = [(); 2].map(|()| ClusterWaits::new(&node).unwrap());
    let mut first = stays.wait_past(7, 0, Duration::MAX);
    let comes = Arc::new(Comes(node.clone(), Mutex::default()));
    let waker = Waker::from(comes.clone());
    let polled = Pin::new(&mut first).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    drop(goes);
    engine.commit(7);
    until(&node, |_| comes.1.lock().unwrap().is_some()).await;
    let late = comes.1.lock().unwrap().take().expect("as seen");
    let wait = late.wait_past(7, 1, Duration::MAX);
    engine.commit(7);
    assert_eq!(timeout(LONG, wait).await, Ok(Ok(2)));
    let wait = late.wait_past(7, 2, Duration::MAX);
    node.shutdown();
    assert_eq!(timeout(LONG, wait).await, Ok(Err(WaitError::ShutDown)));
}

#[test]
fn g24_a_node_that_is_started_in_no_runtime_is_refused() {
    let engine = Engine::default();
    let refused = Cluster::<u64>::start(engine.clone(), engine, Config::default());
    assert_eq!(refused.err(), Some(StartError::NoRuntime));
}
