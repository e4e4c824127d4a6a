//! Which keys are watched, and for how long.

use crate::engine::{Engine, FIRST, TOO_LONG};
use crate::{ANEW, LONG, until};
use request_purgatory_cluster::{Cluster, ClusterWaits, Config, InterestError, WaitError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const LINGER: Duration = Duration::from_millis(800);

fn node(engine: &Engine) -> Cluster<u64> {
    let config = Config {
        audit: LONG * 100,
        linger: LINGER,
        max_keys: 3,
        ..Config::default()
    };
    Cluster::start(engine.clone(), engine.clone(), config).unwrap()
}

/// Neither the key that is refused takes a place, nor do the keys that were asked for with it.
#[tokio::test(start_paused = true)]
async fn g24_an_interest_that_is_refused_leaves_nothing_behind() {
    let node = node(&Engine::default());
    let _interest = node.interest([1]).unwrap();
    for _ in 0..3 {
        let refused = node.interest([2, 3, 4]).err();
        assert_eq!(refused, Some(InterestError::TooManyKeys));
    }
    until(&node, |it| it.watched_keys == 1).await;
    let _more = node.interest([2, 3]).unwrap();
    assert_eq!(node.stats().watched_keys, 3);
}

/// And no longer than for a quarter of the linger beyond it, at whatever moment the interest ends.
#[tokio::test(start_paused = true)]
async fn g24_a_key_stays_watched_for_the_linger_after_the_last_interest() {
    let node = node(&Engine::default());
    for moment in 0..16 {
        let first = node.interest([7]).unwrap();
        sleep(LINGER / 16 * moment).await;
        drop(first);
        sleep(LINGER / 2).await;
        drop(node.interest([7]).unwrap());
        let begun = Instant::now();
        until(&node, |it| it.watched_keys == 0).await;
        let lingered = begun.elapsed();
        // (Clocks and sleeps count milliseconds.)
        let bound = LINGER..=LINGER * 5 / 4 + FIRST;
        assert!(bound.contains(&lingered), "{lingered:?}");
    }
}

/// At once: not when the driver looks next, nor when the linger is over.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_leaves_does_not_keep_its_keys() {
    let config = Config {
        audit: LONG * 100,
        linger: LONG * 100,
        max_lingering: 64,
        ..Config::default()
    };
    let engine = Engine::default();
    let node = Cluster::start(engine.clone(), engine.clone(), config).unwrap();
    let stays = node.interest(10_000..10_010).unwrap();
    for _ in 0..3 {
        drop(node.interest(0..5_000).unwrap());
        let left = Instant::now();
        until(&node, |it| it.watched_keys <= 10 + 64 + 16).await;
        assert!(left.elapsed() < Duration::from_secs(1));
        until(&node, |it| {
            engine.0.lock().unwrap().watched.len() == it.watched_keys
        })
        .await;
    }
    // A few that leave linger.
    drop(stays);
    sleep(LONG).await;
    assert!(node.stats().watched_keys >= 64);
}

/// Keys that come and go together, in a session and before one.
#[tokio::test(start_paused = true)]
async fn g24_the_watches_of_all_keys_that_are_forgotten_end() {
    let engine = Engine::default();
    let node = node(&engine);
    for _ in 0..2 {
        // (One of them is named twice.)
        let interest = node.interest([1, 2, 3, 2]).unwrap();
        until(&node, |_| engine.0.lock().unwrap().watched.len() == 3).await;
        drop(interest);
        until(&node, |_| engine.0.lock().unwrap().watched.is_empty()).await;
    }
}

/// Whichever of the keys it is: one that is watched would end each session.
#[tokio::test(start_paused = true)]
async fn g24_a_key_that_the_store_cannot_hold_is_refused() {
    let node = node(&Engine::default());
    let (too_long, why) = TOO_LONG;
    let refused = InterestError::Key(why);
    for keys in [[1, too_long], [too_long, 1]] {
        assert_eq!(node.interest(keys).err(), Some(refused.clone()));
    }
    assert_eq!(node.stats().watched_keys, 0);
    let waits = ClusterWaits::new(&node).unwrap();
    let by_position = timeout(LONG, waits.wait_past_position(too_long, ANEW, LONG));
    assert_eq!(
        by_position.await,
        Ok(Err(WaitError::Interest(refused.clone())))
    );
    let mut wait = waits.wait_past(too_long, 0, LONG);
    assert_eq!((&mut wait).await, Err(WaitError::Interest(refused)));
    // Once: from then on it is pending.
    assert!(timeout(LONG, wait).await.is_err());
}
