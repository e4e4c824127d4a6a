//! A store that is a stream with limits: it discards events that a node has not seen.

use crate::engine::{Engine, FIRST};
use crate::{ANEW, LONG, until};
use request_purgatory_cluster::{Cluster, ClusterWaits, Epoch, Position, WaitError};
use tokio::time::{sleep, timeout};

/// In the history that the engine begins with.
fn at(version: u64) -> Position {
    let epoch = Epoch(1);
    Position { epoch, version }
}

/// A stream that has discarded all up to the first of these sequences and ends with the second one, where its last event
/// of key 7 has this version; and a node of it without audits.
fn stream(ends: (u64, u64), version: u64) -> (Engine, Cluster<u64>, ClusterWaits<u64>) {
    let engine = Engine::default();
    engine.set(|it| (it.stream, it.version) = (Some(ends), version));
    let node = engine.node_with(LONG * 100);
    let waits = ClusterWaits::new(&node).unwrap();
    (engine, node, waits)
}

/// The stream is made anew, and has fewer events then than it had when a key began to be watched. What was known of the
/// old one says nothing of the new one: neither of a key that was watched before, nor of one that comes later.
#[tokio::test(start_paused = true)]
async fn g24_a_stream_that_was_made_anew_is_measured_from_its_beginning() {
    let (engine, node, waits) = stream((10, 100), 0);
    // By the first key the node learns how long the stream is.
    let mut read = 0;
    let mut watched = Vec::new();
    for key in [1, 2] {
        watched.push(node.interest([key]).unwrap());
        read = until(&node, |it| it.reads > read && it.lag.is_zero())
            .await
            .reads;
    }
    engine.set(|it| (it.lost, it.stream) = (1, Some((5, 20))));
    node.read_again(&1);
    until(&node, |it| it.sessions == 2 && it.lag.is_zero()).await;
    let mut head = 20;
    for key in [2, 3] {
        let wait = |version| waits.wait_past_position(key, Position { version, ..ANEW }, LONG);
        let is_reset = |version| Err(WaitError::Reset(Position { version, ..ANEW }));
        // More than the new stream has.
        assert_eq!(wait(50).await, is_reset(head), "of key {key}");
        // The next events are discarded before the node has seen them.
        let unseen = [head, 0].map(wait);
        head += 20;
        engine.set(|it| it.stream = Some((head - 15, head)));
        node.read_again(&key);
        for wait in unseen {
            assert_eq!(wait.await, is_reset(head), "of key {key}");
        }
    }
}

/// The operation waits for several keys, of which another than the first is concerned.
#[tokio::test(start_paused = true)]
async fn g24_an_interest_is_told_of_discarded_events_of_any_of_its_keys() {
    let engine = Engine::default();
    engine.set(|it| (it.stream, it.version) = (Some((0, 10)), 5));
    let node = engine.node_with(LONG * 100);
    // (Of key 7 the stream has an event.)
    let (sound, both) = (node.interest([7]).unwrap(), node.interest([7, 8]).unwrap());
    until(&node, |it| it.lag.is_zero() && both.version(&7) == 5).await;
    assert!(!both.is_reset());
    engine.set(|it| (it.stream, it.version) = (Some((20, 30)), 25));
    node.read_again(&7);
    node.read_again(&8);
    until(&node, |_| both.is_reset() && both.version(&7) == 25).await;
    assert!(!sound.is_reset());
    // Nor is one that begins after they were discarded.
    assert!(!node.interest([8]).unwrap().is_reset());
}

/// Events of a key were discarded in a history that is over. A client of the next one comes before the node has heard of
/// that.
#[tokio::test(start_paused = true)]
async fn g24_what_was_discarded_in_one_history_is_nothing_to_the_next() {
    let engine = Engine::default();
    engine.set(|it| it.stream = Some((0, 10)));
    let node = engine.node_with(LONG * 100);
    let (waits, interest) = (
        ClusterWaits::new(&node).unwrap(),
        node.interest([8]).unwrap(),
    );
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    engine.set(|it| it.stream = Some((20, 30)));
    node.read_again(&8);
    until(&node, |_| interest.is_reset()).await;
    // What the next history has discarded, it had before this node knew it.
    engine.set(|it| (it.lost, it.stream) = (1, Some((2, 5))));
    let seen = |version| Position { version, ..ANEW };
    let nothing_seen = waits.wait_past_position(8, seen(0), LONG);
    let some_seen = waits.wait_past_position(8, seen(3), LONG);
    until(&node, |it| it.resets == 1 && it.lag.is_zero()).await;
    engine.set(|it| (it.stream, it.holds, it.version) = (Some((2, 8)), Some(8), 7));
    node.read_again(&8);
    assert_eq!(nothing_seen.await, Ok(seen(7)));
    assert_eq!(some_seen.await, Ok(seen(7)));
}

/// The node has missed nothing: neither when it knows nothing of the stream yet, nor when it knows how long that is.
#[tokio::test(start_paused = true)]
async fn g24_a_client_that_comes_after_its_events_were_discarded_is_told() {
    let (_engine, _node, waits) = stream((10, 20), 0);
    for key in [1, 2] {
        let wait = waits.wait_past_position(key, at(3), LONG);
        let told = timeout(LONG, wait).await;
        assert_eq!(told, Ok(Err(WaitError::Reset(at(20)))), "of key {key}");
    }
}

/// The node has missed events of the key, and has told those that waited. Two more clients come now: one has seen what
/// the node knows, the other more, but less than was discarded. (One that has seen less is answered without a read.)
#[tokio::test(start_paused = true)]
async fn g24_a_client_that_comes_after_its_node_has_missed_events_is_told() {
    let (engine, node, waits) = stream((0, 10), 5);
    let interest = node.interest([7]).unwrap();
    until(&node, |it| it.lag.is_zero() && interest.version(&7) == 5).await;
    // Its last event is discarded, and a read shows that none has followed: who has seen it has missed nothing.
    engine.set(|it| (it.stream, it.holds) = (Some((8, 12)), Some(9)));
    let reads = node.stats().reads;
    node.read_again(&7);
    until(&node, |it| it.reads > reads).await;
    let told = timeout(LONG / 2, waits.wait_past_position(7, at(5), LONG)).await;
    assert!(told.is_err(), "{told:?}");
    // Events that may have been of it follow, and are gone as well.
    engine.set(|it| (it.stream, it.holds) = (Some((20, 30)), Some(9)));
    node.read_again(&7);
    until(&node, |_| interest.is_reset()).await;
    let reads = node.stats().reads;
    let answered = timeout(LONG, waits.wait_past_position(7, at(3), LONG)).await;
    assert_eq!(answered, Ok(Ok(at(5))));
    sleep(FIRST).await;
    assert_eq!(node.stats().reads, reads);
    for seen in [5, 10] {
        let told = timeout(LONG, waits.wait_past_position(7, at(seen), LONG)).await;
        assert_eq!(told, Ok(Err(WaitError::Reset(at(30)))), "past {seen}");
    }
    // From there on it is quiet, and so it is for who has seen nothing.
    for (key, seen) in [(7, 30), (8, 0)] {
        let told = timeout(LONG / 2, waits.wait_past_position(key, at(seen), LONG)).await;
        assert!(told.is_err(), "past {seen} of key {key}: {told:?}");
    }
}

/// The node knows how long the stream is, by another key. Before it reads this one, events come and are discarded.
#[tokio::test(start_paused = true)]
async fn g24_what_is_discarded_before_the_first_read_of_a_key_is_told() {
    let (engine, node, waits) = stream((10, 20), 0);
    let _other = node.interest([1]).unwrap();
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    let wait = waits.wait_past(2, 0, LONG);
    engine.set(|it| it.stream = Some((30, 40)));
    let is_reset = Err(WaitError::Reset(at(40)));
    assert_eq!(timeout(LONG, wait).await, Ok(is_reset));
}

/// The stream discards no more than the one event that the client waits for: of a key that had one before, and of a
/// stream that was empty.
#[tokio::test(start_paused = true)]
async fn g24_one_event_that_is_discarded_unseen_is_told() {
    for head in [10, 0] {
        let (engine, node, waits) = stream((0, head), head);
        let interest = node.interest([7]).unwrap();
        until(&node, |it| {
            it.lag.is_zero() && it.reads > 0 && interest.version(&7) == head
        })
        .await;
        let wait = waits.wait_past(7, head, LONG);
        let next = head + 1;
        engine.set(|it| (it.stream, it.holds) = (Some((next, next)), Some(9)));
        node.read_again(&7);
        let is_reset = Err(WaitError::Reset(at(next)));
        assert_eq!(timeout(LONG, wait).await, Ok(is_reset), "past {head}");
    }
}

/// While the node reads a busy stream, more is discarded than the stream had as the read began. A client that goes on
/// from the `Reset` is behind all of that.
#[tokio::test(start_paused = true)]
async fn g24_who_goes_on_from_a_reset_is_not_told_it_again() {
    let (engine, node, waits) = stream((0, 10), 0);
    let wait = waits.wait_past(8, 0, LONG);
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    engine.set(|it| it.stream = Some((30, 20)));
    node.read_again(&8);
    assert_eq!(timeout(LONG, wait).await, Ok(Err(WaitError::Reset(at(30)))));
    let goes_on = timeout(LONG / 2, waits.wait_past_position(8, at(30), LONG)).await;
    assert!(goes_on.is_err(), "{goes_on:?}");
}

/// A read that began before is told after one that shows how long the stream has become: what lies between is no loss of
/// a client that comes then.
#[tokio::test(start_paused = true)]
async fn g24_a_read_that_was_overtaken_makes_no_stream_shorter() {
    let (engine, node, waits) = stream((10, 100), 0);
    let _interest = node.interest([1, 2]).unwrap();
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    engine.set(|it| it.gated = true);
    node.read_again(&1);
    until(&node, |_| engine.0.lock().unwrap().under_way == 1).await;
    engine.set(|it| (it.gated, it.stream) = (false, Some((900, 1_000))));
    let reads = engine.reads().len();
    node.read_again(&2);
    until(&node, |_| engine.reads().len() > reads).await;
    engine.answer();
    until(&node, |_| engine.0.lock().unwrap().under_way == 0).await;
    sleep(FIRST).await;
    let mut wait = waits.wait_past(3, 0, LONG);
    let told = timeout(LONG / 2, &mut wait).await;
    assert!(told.is_err(), "{told:?}");
}

/// Nor does it shorten what is known of its own key: events that the later read has seen are no gap when they are
/// discarded.
#[tokio::test(start_paused = true)]
async fn g24_a_read_that_was_overtaken_opens_no_gap() {
    let (engine, node, _waits) = stream((10, 100), 0);
    let interest = node.interest([1]).unwrap();
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    engine.set(|it| it.gated = true);
    node.read_again(&1);
    until(&node, |_| engine.0.lock().unwrap().under_way == 1).await;
    for floor in [90, 900] {
        engine.set(|it| (it.gated, it.stream) = (false, Some((floor, 1_000))));
        let reads = node.stats().reads;
        node.read_again(&1);
        until(&node, |it| it.reads > reads).await;
        // After the first of these two reads the slow one returns.
        engine.answer();
        until(&node, |_| engine.0.lock().unwrap().under_way == 0).await;
        sleep(FIRST).await;
    }
    assert!(!interest.is_reset());
}

/// An older copy took over, in the same history. It does not say the version of the key; that it is shorter is enough.
#[tokio::test(start_paused = true)]
async fn g24_a_stream_that_is_shorter_than_a_known_version_went_back() {
    let (engine, node, waits) = stream((0, 100), 90);
    let interest = node.interest([7]).unwrap();
    until(&node, |it| it.lag.is_zero() && interest.version(&7) == 90).await;
    let wait = waits.wait_past(7, 90, LONG);
    engine.set(|it| (it.stream, it.holds) = (Some((20, 60)), Some(9)));
    node.read_again(&7);
    let is_reset = Err(WaitError::Reset(at(0)));
    assert_eq!(timeout(LONG, wait).await, Ok(is_reset));
    let stats = until(&node, |it| it.feed_trouble.is_some()).await;
    let trouble = stats.feed_trouble.expect("as seen");
    assert!(trouble.cause.contains("went back"), "{trouble:?}");
}

/// Another node has told the client of an event that this node has not heard of: a read decides, and the client waits
/// on. Of key 7 the node knows an event, of key 8 that there is none.
#[tokio::test(start_paused = true)]
async fn g24_a_client_that_is_ahead_of_its_node_on_a_stream_is_not_refused() {
    for key in [7, 8] {
        let (engine, node, waits) = stream((0, 20), 5);
        let interest = node.interest([7, 8]).unwrap();
        until(&node, |it| it.lag.is_zero() && interest.version(&7) == 5).await;
        engine.set(|it| (it.holds, it.stream, it.version) = (Some(key), Some((0, 25)), 25));
        let mut wait = waits.wait_past(key, 25, LONG);
        let told = timeout(FIRST, &mut wait).await;
        assert!(told.is_err(), "of key {key}: {told:?}");
        assert_eq!(interest.version(&key), 25);
        engine.set(|it| (it.stream, it.version) = (Some((0, 30)), 30));
        node.read_again(&key);
        assert_eq!(timeout(LONG, wait).await, Ok(Ok(30)));
    }
}

/// Nor is one that is ahead of all that was discarded, though this node has missed events.
#[tokio::test(start_paused = true)]
async fn g24_a_client_that_has_seen_all_that_was_discarded_is_not_refused() {
    let (engine, node, waits) = stream((0, 10), 5);
    let _other = node.interest([1]).unwrap();
    until(&node, |it| it.reads > 0 && it.lag.is_zero()).await;
    engine.set(|it| it.stream = Some((20, 30)));
    for (key, seen) in [(2, 20), (3, 25)] {
        let told = timeout(LONG / 2, waits.wait_past(key, seen, LONG)).await;
        assert!(told.is_err(), "past {seen} of key {key}: {told:?}");
    }
    let told = timeout(LONG / 2, waits.wait_past(4, 19, LONG)).await;
    assert_eq!(told, Ok(Err(WaitError::Reset(at(30)))));
}

/// The node has heard a version of a key that it could not read yet. What followed is discarded before the first read.
#[tokio::test(start_paused = true)]
async fn g24_what_is_discarded_between_a_version_and_the_first_read_is_told() {
    let (engine, node, waits) = stream((0, 10), 5);
    engine.set(|it| it.failing = u64::MAX);
    let interest = node.interest([7]).unwrap();
    until(&node, |it| it.sessions == 1).await;
    node.announce(&7, 5);
    let wait = waits.wait_past(7, 5, LONG);
    engine.set(|it| (it.failing, it.stream, it.holds) = (0, Some((20, 30)), Some(9)));
    assert_eq!(
        timeout(LONG / 2, wait).await,
        Ok(Err(WaitError::Reset(at(30))))
    );
    assert!(interest.is_reset());
}
