//! What the engines tell of recent events, with their bodies.

use super::{CAPACITY, key};
use crate::support::engine::{Key, NatsRig, RedisTracking, Rig};
use crate::support::eventually;
use request_purgatory_cluster::Source;
use request_purgatory_cluster::nats::{NatsConfig, NatsEngine};
use request_purgatory_cluster::redis::{RedisConfig, RedisEngine, client};
use std::time::Duration;

/// Bodies after what was seen, in order, no more than asked for, and of this key only.
macro_rules! events {
    (fn $test:ident: $rig:ty) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let rig = <$rig>::start(CAPACITY).await;
            let engine = rig.engine();
            let mut positions = Vec::new();
            for number in 0..6_u8 {
                let key = key(usize::from(number % 2));
                let position = engine.commit(&key, &[number]).await.expect("it commits");
                positions.push(position);
            }
            let [first, second, third] = [0, 2, 4].map(|at| positions[at].version);
            for (seen, limit, expected) in [
                (0, 10, &[(first, 0), (second, 2), (third, 4)][..]),
                (0, usize::MAX, &[(first, 0), (second, 2), (third, 4)]),
                (first, 10, &[(second, 2), (third, 4)]),
                (first, 1, &[(second, 2)]),
                (third, 10, &[]),
                (u64::MAX, 10, &[]),
                (0, 0, &[]),
            ] {
                let events = engine.events(&key(0), seen, limit).await.expect("it reads");
                let found = events.iter().map(|it| (it.version, it.body[0]));
                assert_eq!(found.collect::<Vec<_>>(), expected, "after {seen}");
            }
            assert_eq!(engine.events(&key(7), 0, 9).await.expect("it reads"), []);
            let read = Source::<Key>::versions(&engine, &[])
                .await
                .expect("it reads");
            assert_eq!(
                read.epoch, positions[0].epoch,
                "a position names the history"
            );
        }
    };
}

events!(fn redis_tells_recent_events: RedisTracking);
events!(fn nats_tells_recent_events: NatsRig);

/// A log loses its oldest bodies, in blocks of a hundred or so; and there is none where none are kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_keeps_about_as_many_bodies_as_the_setting_says() {
    const COMMITS: u64 = 500;
    let rig = RedisTracking::start(CAPACITY).await;
    for (kept, bound) in [(0, 0..=0), (10, 10..=250), (usize::MAX, 500..=500)] {
        let name = format!("kept {kept}").into_bytes();
        let engine = RedisEngine::new(RedisConfig {
            kept,
            ..RedisTracking::config(rig.server.url(), CAPACITY)
        });
        let engine = engine.expect("the address is sound");
        let commits = (0..COMMITS).map(|_| engine.commit(&name, b"body"));
        let committed = futures_util::future::try_join_all(commits).await;
        committed.expect("it commits");
        let mut length = client::cmd("XLEN");
        length.arg([b"purgatory:l:".as_slice(), &name].concat());
        let client::Value::Int(length) = engine.query(&length).await.expect("it answers") else {
            panic!("no number");
        };
        assert!(bound.contains(&length), "{length} of {kept}");
        let all = engine.events(&name, 0, usize::MAX).await;
        assert_eq!(all.expect("it reads").len() as i64, length);
        let last = engine.events(&name, COMMITS - 1, 10).await;
        let last = last.expect("it reads").len();
        assert_eq!(last, usize::from(kept > 0));
    }
}

/// More events than can be asked for within the timeout come in parts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_tells_as_many_events_as_there_is_time_for() {
    const EVENTS: u64 = 1_000;
    let rig = NatsRig::start(CAPACITY).await;
    let engine = rig.engine();
    for _ in 0..EVENTS / 50 {
        let key = key(0);
        let commits = (0..50).map(|_| engine.commit(&key, b"body"));
        let committed = futures_util::future::try_join_all(commits).await;
        committed.expect("it commits");
    }
    let hurried = NatsEngine::new(NatsConfig {
        timeout: Duration::from_millis(50),
        ..NatsRig::config(vec![rig.server.url()], CAPACITY)
    });
    let mut seen = 0;
    while seen < EVENTS {
        let events = eventually("it reads", async || {
            hurried.events(&key(0), seen, usize::MAX).await.ok()
        })
        .await;
        assert!(!events.is_empty(), "there are more than {seen}");
        for event in events {
            seen += 1;
            assert_eq!(event.version, seen);
        }
    }
}

/// Two programs on one server, each with its own prefix, know nothing of each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_keeps_what_has_another_prefix_apart() {
    let rig = RedisTracking::start(CAPACITY).await;
    let keys = [key(0)];
    let mut epochs = Vec::new();
    for (prefix, body) in [("one:", b"one"), ("other:", b"two")] {
        let engine = RedisEngine::new(RedisConfig {
            prefix: prefix.into(),
            ..RedisTracking::config(rig.server.url(), CAPACITY)
        });
        let engine = engine.expect("the address is sound");
        let position = engine.commit(&keys[0], body).await.expect("it commits");
        let events = engine.events(&keys[0], 0, 10).await.expect("it reads");
        let bodies = events.into_iter().map(|it| it.body).collect::<Vec<_>>();
        assert_eq!((position.version, bodies), (1, vec![body.to_vec()]));
        let read = engine.versions(&keys).await.expect("it reads");
        assert_eq!((read.epoch, read.versions), (position.epoch, vec![Some(1)]));
        epochs.push(position.epoch);
    }
    assert_ne!(epochs[0], epochs[1]);
}
