//! When keys are read, and what happens when reads fail.

use crate::engine::{AUDIT, Engine, FIRST, LONGEST};
use crate::{LONG, assert_paused, node_that_has_read, until};
use request_purgatory_cluster::{Cluster, ClusterWaits, Config, Epoch, Position, WaitError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn g24_a_store_that_answers_for_too_few_keys_is_not_believed() {
    // Or for too many.
    for returns in [0, 1, 3] {
        let engine = Engine::default();
        engine.set(|it| (it.returns, it.version) = (Some(returns), 1));
        let node = engine.node();
        let waits = ClusterWaits::new(&node).unwrap();
        // (The two are read at once.)
        let parked = [7, 8].map(|key| waits.wait_past(key, 0, Duration::MAX));
        let stats = until(&node, |it| it.store_trouble.is_some()).await;
        let trouble = stats.store_trouble.expect("as seen");
        assert!(trouble.cause.contains("another number of versions"));
        assert_eq!((trouble.word, stats.sessions), ("unread", 1));
        engine.set(|it| it.returns = None);
        for wait in parked {
            assert_eq!(timeout(LONG, wait).await, Ok(Ok(1)));
        }
        assert_eq!(node.stats().store_trouble, None);
    }
}

#[tokio::test(start_paused = true)]
async fn g24_reads_that_fail_pause_and_an_outage_is_forgotten() {
    let engine = Engine::default();
    engine.set(|it| (it.failing, it.version) = (u64::MAX, 1));
    let node = engine.node();
    let waits = ClusterWaits::new(&node).unwrap();
    let wait = waits.wait_past(7, 0, Duration::MAX);
    sleep(Duration::from_secs(10)).await;
    assert_paused(engine.reads().len() as u64);
    let trouble = node.stats().store_trouble.expect("it fails");
    assert_eq!(&*trouble.cause, "the disk is on fire");
    assert_eq!(trouble.times, engine.reads().len() as u64);
    // An alert stands on it: a node that watches keys, and reads nothing.
    assert_eq!(node.stats().reads, 0);
    engine.set(|it| it.failing = 0);
    assert_eq!(wait.await, Ok(1));
    let stats = node.stats();
    assert!(stats.reads > 0 && stats.store_trouble.is_none());
    // The next failure is the first of its kind, and does not wait for the longest pause. (An audit of one key reads twice
    // in its period.)
    engine.set(|it| it.failing = 1);
    let before = engine.reads().len();
    while engine.reads().len() < before + 2 {
        sleep(Duration::from_millis(1)).await;
    }
    let reads = engine.reads();
    let pause = reads[before + 1] - reads[before];
    assert!(pause <= AUDIT / 2 + 2 * FIRST, "{pause:?}");
}

/// While the store cannot be read, keys come and go. What is read afterwards is what is watched then.
#[tokio::test(start_paused = true)]
async fn g24_after_an_outage_no_key_is_read_that_is_watched_no_more() {
    const KEYS: u64 = 100_000;
    let engine = Engine::default();
    engine.set(|it| (it.failing, it.version) = (u64::MAX, 1));
    let config = Config {
        audit: LONG * 100,
        linger: FIRST,
        backoff: (FIRST, LONGEST),
        ..Config::default()
    };
    let node = Cluster::start(engine.clone(), engine.clone(), config).unwrap();
    let waits = ClusterWaits::new(&node).unwrap();
    for first in (0..KEYS).step_by(1_000) {
        drop(node.interest(first..first + 1_000).unwrap());
        until(&node, |it| it.watched_keys == 0).await;
    }
    let wait = waits.wait_past(KEYS, 0, Duration::MAX);
    sleep(FIRST).await;
    engine.set(|it| (it.failing, it.keys_read) = (0, 0));
    assert_eq!(wait.await, Ok(1));
    let read = engine.0.lock().unwrap().keys_read;
    // (Those that were on their way are read again, if they are watched still.)
    assert!(read < 10, "{read} keys were read");
}

/// The key that could not be read is forgotten, and nothing else is to be read for a long time: one more read, of the
/// history alone, shows when the store is there again. Beside other keys, and without.
#[tokio::test(start_paused = true)]
async fn g24_an_outage_is_over_though_what_could_not_be_read_is_forgotten() {
    for (audit, others) in [(LONG * 100, 0), (LONG * 100, 3), (Duration::MAX, 3)] {
        let engine = Engine::default();
        let config = Config {
            audit,
            linger: Duration::ZERO,
            backoff: (FIRST, LONGEST),
            ..Config::default()
        };
        let node = Cluster::start(engine.clone(), engine.clone(), config).unwrap();
        let _others = node.interest(1..=others).unwrap();
        until(&node, |it| it.sessions == 1).await;
        sleep(FIRST).await;
        assert_eq!(node.stats().lag, Duration::ZERO);
        engine.set(|it| it.is_down = true);
        let interest = node.interest([7]).unwrap();
        until(&node, |it| it.store_trouble.is_some()).await;
        drop(interest);
        until(&node, |it| it.watched_keys as u64 == others).await;
        sleep(Duration::from_secs(10)).await;
        let stats = node.stats();
        let trouble = stats.store_trouble.expect("it is down still");
        assert_paused(trouble.times);
        assert!(stats.lag >= Duration::from_secs(10));
        engine.set(|it| it.is_down = false);
        let stats = until(&node, |it| it.store_trouble.is_none()).await;
        assert_eq!((stats.lag, stats.sessions), (Duration::ZERO, 1));
        // And no more is read than that.
        let reads = stats.reads;
        sleep(LONG).await;
        assert_eq!(node.stats().reads, reads);
    }
}

/// In a session, the read of a new key follows its watch at once, whenever the driver would have looked next.
#[tokio::test(start_paused = true)]
async fn g24_a_key_is_read_as_soon_as_it_is_watched() {
    let engine = Engine::default();
    engine.set(|it| it.version = 5);
    let node = engine.node_with(LONG * 100);
    until(&node, |it| it.lag.is_zero()).await;
    for key in 1..=3 {
        let begun = Instant::now();
        let interest = node.interest([key]).unwrap();
        until(&node, |_| interest.version(&key) == 5).await;
        assert!(begun.elapsed() <= FIRST, "{:?}", begun.elapsed());
    }
    assert_eq!(node.stats().healed, 0, "by first reads");
    // What another read finds before the feed tells of it counts, also where no audit has made it.
    engine.set(|it| it.version = 6);
    node.read_again(&3);
    until(&node, |it| it.healed == 1).await;
}

/// While no session can be opened after one has ended, new keys are read at once, and the node is not in step.
#[tokio::test(start_paused = true)]
async fn g24_after_the_end_of_a_session_new_keys_are_read_at_once() {
    let engine = Engine::default();
    engine.set(|it| it.version = 5);
    let node = engine.node_with(LONG * 100);
    let waits = ClusterWaits::new(&node).unwrap();
    until(&node, |it| it.sessions == 1 && it.lag.is_zero()).await;
    // How long it was in step does not count.
    sleep(LONG).await;
    engine.set(|it| it.refuses = true);
    engine.cut();
    until(&node, |it| it.gaps == 1).await;
    sleep(FIRST).await;
    let lag = node.stats().lag;
    assert!((FIRST..LONG).contains(&lag), "{lag:?}");
    // (The timeout of a wait runs on the system's clock.)
    let wait = waits.wait_past(7, 0, LONG);
    assert_eq!(timeout(FIRST, wait).await, Ok(Ok(5)));
}

/// The session is live, and the store cannot be read.
#[tokio::test(start_paused = true)]
async fn g24_a_node_that_cannot_read_is_out_of_step() {
    let engine = Engine::default();
    let node = engine.node();
    let _interest = node.interest([7]).unwrap();
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    engine.set(|it| it.failing = u64::MAX);
    let stats = until(&node, |it| !it.lag.is_zero()).await;
    assert_eq!((stats.sessions, stats.gaps), (1, 0));
    // Until it can: that its history alone can be read does not count.
    sleep(LONG).await;
    assert!(node.stats().lag >= LONG, "{:?}", node.stats());
    engine.set(|it| it.failing = 0);
    until(&node, |it| it.lag.is_zero()).await;
}

/// Without audits, and with at most this number of reads under way.
fn node_that_reads_key_by_key(engine: &Engine, concurrent_reads: usize) -> Cluster<u64> {
    let config = Config {
        audit: LONG * 100,
        read_batch: 1,
        concurrent_reads,
        ..Config::default()
    };
    Cluster::start(engine.clone(), engine.clone(), config).unwrap()
}

#[tokio::test(start_paused = true)]
async fn g24_no_more_reads_are_under_way_than_the_setting_says() {
    let engine = Engine::default();
    let node = node_that_reads_key_by_key(&engine, 2);
    until(&node, |it| it.sessions == 1 && it.lag.is_zero()).await;
    engine.set(|it| (it.gated, it.version) = (true, 5));
    let interest = node.interest(1..=6).unwrap();
    for under_way in [2, 2, 2, 2, 2, 1, 0] {
        sleep(FIRST).await;
        assert_eq!(engine.0.lock().unwrap().under_way, under_way);
        engine.answer();
    }
    let versions = interest.keys().map(|key| interest.version(key));
    assert_eq!(versions.collect::<Vec<_>>(), [5; 6]);
}

/// Where watches are not exact, what was committed while they spread is found by one more read, also of the keys that a
/// session has taken over. No audit comes, or none ever, and the feed tells nothing.
#[tokio::test(start_paused = true)]
async fn g24_keys_that_a_session_takes_over_are_read_once_more() {
    for audit in [LONG * 100, Duration::MAX] {
        let engine = Engine::default();
        engine.set(|it| it.is_late = true);
        let node = engine.node_with(audit);
        let interest = node.interest([7]).unwrap();
        for session in 1..=3 {
            until(&node, |it| it.sessions == session && it.lag.is_zero()).await;
            engine.set(|it| it.version = session);
            let begun = Instant::now();
            until(&node, |_| interest.version(&7) == session).await;
            let found = begun.elapsed();
            assert!(found <= Config::default().settle + FIRST, "{found:?}");
            engine.cut();
        }
    }
}

/// Another node has just told the client of version 6. A read that began before that commit was on its way already: it
/// shows nothing of what the client can have seen.
#[tokio::test(start_paused = true)]
async fn g24_a_read_that_began_before_a_claim_does_not_refuse_it() {
    let engine = Engine::default();
    let (node, interest) = node_that_has_read(&engine, 5).await;
    let waits = ClusterWaits::new(&node).unwrap();
    engine.set(|it| it.gated = true);
    node.read_again(&7);
    sleep(FIRST).await;
    engine.set(|it| it.version = 6);
    let mut wait = waits.wait_past(7, 6, Duration::MAX);
    for known in [5, 6] {
        engine.answer();
        let told = timeout(FIRST, &mut wait).await;
        assert!(told.is_err(), "{told:?}");
        assert_eq!(interest.version(&7), known);
    }
    engine.set(|it| (it.gated, it.version) = (false, 7));
    node.read_again(&7);
    assert_eq!(timeout(LONG, wait).await, Ok(Ok(7)));
}

/// A session reads the keys that it has taken over one after the other. Meanwhile clients name a version that the store
/// has not got: of the one key by a read of its own, of the other by the one that the session owes.
#[tokio::test(start_paused = true)]
async fn g24_a_read_that_a_session_owes_refuses_a_claim_as_well() {
    let engine = Engine::default();
    engine.set(|it| it.version = 5);
    let node = node_that_reads_key_by_key(&engine, 1);
    let waits = ClusterWaits::new(&node).unwrap();
    let interest = node.interest([7, 8]).unwrap();
    until(&node, |it| {
        let is_read = [7, 8].iter().all(|key| interest.version(key) == 5);
        is_read && it.sessions == 1 && it.lag.is_zero()
    })
    .await;
    engine.set(|it| it.gated = true);
    engine.cut();
    until(&node, |it| {
        it.sessions == 2 && engine.0.lock().unwrap().under_way == 1
    })
    .await;
    let claims = [7, 8].map(|key| waits.wait_past(key, 6, Duration::MAX));
    sleep(FIRST).await;
    engine.set(|it| it.gated = false);
    engine.answer();
    let (epoch, version) = (Epoch(1), 5);
    for claim in claims {
        let refused = Err(WaitError::Reset(Position { epoch, version }));
        assert_eq!(timeout(LONG, claim).await, Ok(refused));
    }
}

/// The first read of the key is under way, which began before the claim was made.
#[tokio::test(start_paused = true)]
async fn g24_a_claim_beside_the_first_read_of_its_key_is_verified() {
    let engine = Engine::default();
    let (node, _of_another) = node_that_has_read(&engine, 5).await;
    let waits = ClusterWaits::new(&node).unwrap();
    engine.set(|it| it.gated = true);
    let first = waits.wait_past(8, 0, LONG);
    until(&node, |_| engine.0.lock().unwrap().under_way == 1).await;
    let claim = waits.wait_past(8, 6, LONG);
    engine.set(|it| it.gated = false);
    engine.answer();
    assert_eq!(first.await, Ok(5));
    let (epoch, version) = (Epoch(1), 5);
    let refused = Err(WaitError::Reset(Position { epoch, version }));
    // An audit comes later.
    assert_eq!(timeout(FIRST, claim).await, Ok(refused));
}

/// It has seen all that the node knows, as nearly all clients have, and finds its key watched since it waited before.
/// Also of a store that is a stream.
#[tokio::test(start_paused = true)]
async fn g24_a_client_that_waits_for_the_next_version_has_nothing_read() {
    for stream in [None, Some((0, 5))] {
        let engine = Engine::default();
        engine.set(|it| it.stream = stream);
        let (node, interest) = node_that_has_read(&engine, 5).await;
        let waits = ClusterWaits::new(&node).unwrap();
        drop(interest);
        let reads = node.stats().reads;
        let (epoch, version) = (Epoch(1), 5);
        let _by_version = waits.wait_past(7, version, LONG);
        let _by_position = waits.wait_past_position(7, Position { epoch, version }, LONG);
        sleep(LONG / 2).await;
        assert_eq!(node.stats().reads, reads, "{stream:?}");
    }
}

/// All that a session still owes is the read of a key that is forgotten before it can be made: `concurrent_reads` others
/// are on their way.
#[tokio::test(start_paused = true)]
async fn g24_a_session_that_owes_no_read_any_more_is_in_step() {
    let engine = Engine::default();
    engine.set(|it| it.gated = true);
    let config = Config {
        audit: LONG * 100,
        linger: FIRST,
        concurrent_reads: 1,
        ..Config::default()
    };
    let node = Cluster::start(engine.clone(), engine.clone(), config).unwrap();
    let interest = node.interest([7]).unwrap();
    until(&node, |_| engine.0.lock().unwrap().watched.contains(&7)).await;
    assert_eq!(engine.0.lock().unwrap().under_way, 1);
    drop(interest);
    until(&node, |it| it.watched_keys == 0).await;
    sleep(FIRST).await;
    assert_eq!(node.stats().lag, Duration::ZERO);
}
