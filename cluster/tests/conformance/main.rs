//! What every feed promises, and every source: the same tests for all engines, with real servers.

#[path = "../support/mod.rs"]
mod support;

mod events;

use async_nats::HeaderMap;
use async_nats::header::NATS_SEQUENCE;
use async_nats::jetstream::stream::StorageType;
use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::nats::NatsEngine;
use request_purgatory_cluster::redis::client::Value;
use request_purgatory_cluster::{
    Changes, Cluster, ClusterWaits, Config, Feed, FeedError, Interests, Source, WaitError,
};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use support::engine::{Key, NatsRig, RedisPublished, RedisTracking, Rig};
use support::nats_server::NatsServer;
use support::{LONG, eventually, hear, hear_all};
use tokio::time::timeout;

const CAPACITY: usize = 10_000;

fn config() -> Config {
    Config {
        ping: Duration::from_millis(300),
        audit: Duration::from_millis(500),
        linger: Duration::from_millis(200),
        backoff: (Duration::from_millis(10), Duration::from_millis(200)),
        ..Config::default()
    }
}

fn key(number: usize) -> Key {
    format!("key {number}").into_bytes()
}

/// The commit comes right after `watch` has returned.
async fn watch_is_exact<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let (mut interests, mut changes) = rig.engine().open(&config()).await.expect("it opens");
    for number in 0..300 {
        let key = key(number);
        interests
            .watch(std::slice::from_ref(&key))
            .await
            .expect("it watches");
        let version = rig.commit(&key).await.expect("it commits");
        is_heard(&mut changes, &key, version).await;
    }
}

/// More keys than have subscriptions of their own, and commits all the time: also of a key that is watched, right before
/// others are.
async fn watch_is_exact_beyond_max_subscriptions<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let config = Config {
        max_subscriptions: 20,
        ..config()
    };
    let (mut interests, mut changes) = rig.engine().open(&config).await.expect("it opens");
    interests.watch(&[key(0)]).await.expect("it watches");
    for number in 0..60 {
        // One that was watched long ago.
        let old = key(number / 2);
        let of_old = rig.commit(&old).await.expect("it commits");
        let keys = [key(number), key(number + 1_000)];
        interests.watch(&keys).await.expect("it watches");
        is_heard(&mut changes, &old, of_old).await;
        for key in &keys {
            let version = rig.commit(key).await.expect("it commits");
            is_heard(&mut changes, key, version).await;
        }
    }
}

/// A session with many keys may come to hear them in another way. More events wait at that moment than the runtime lets
/// a task receive at once.
async fn what_waits_is_heard_though_more_keys_come<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let config = Config {
        max_subscriptions: 10,
        ..config()
    };
    let (mut interests, mut changes) = rig.engine().open(&config).await.expect("it opens");
    let keys = (0..10).map(key).collect::<Vec<_>>();
    interests.watch(&keys).await.expect("it watches");
    let mut unheard = HashMap::new();
    for key in (0..30).flat_map(|_| &keys) {
        let version = rig.commit(key).await.expect("it commits");
        unheard.insert(key.clone(), version);
    }
    interests.watch(&[key(10)]).await.expect("it watches");
    hear_all(&mut changes, unheard, LONG).await;
}

async fn watches_can_be_repeated_and_ended<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let (mut interests, mut changes) = rig.engine().open(&config()).await.expect("it opens");
    let keys = [key(1), key(2)];
    interests.watch(&keys).await.expect("it watches");
    interests
        .watch(&keys)
        .await
        .expect("it watches what it watches");
    interests
        .unwatch(&[key(1), key(3)])
        .await
        .expect("it ends one, and one that is none");
    interests.watch(&[key(1)]).await.expect("it watches again");
    for key in &keys {
        for _ in 0..3 {
            let version = rig.commit(key).await.expect("it commits");
            is_heard(&mut changes, key, version).await;
        }
    }
}

async fn is_heard(changes: &mut impl Changes<Key>, key: &[u8], version: u64) {
    let heard = hear(changes, key, version, LONG).await;
    heard.expect("it is heard");
}

/// `count` keys of `length` bytes each.
fn long_names(count: usize, length: usize) -> Vec<Key> {
    let names = (0..count).map(|number| format!("{number:0length$}").into_bytes());
    names.collect()
}

/// Nor are many with long names whose watches end at once. News that were on their way may still come, and then no more.
async fn a_key_is_not_heard_of_after_its_watch<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let (mut interests, mut changes) = rig.engine().open(&config()).await.expect("it opens");
    let keys = long_names(100, 300);
    let (ended, other) = (&keys[..99], &keys[99]);
    // However often they are watched.
    for _ in 0..2 {
        interests.watch(&keys).await.expect("it watches");
    }
    interests.unwatch(ended).await.expect("it ends them");
    eventually("they are heard of no more", async || {
        let mut is_quiet = true;
        // What is heard last comes later than all that was committed before the one before it.
        for _ in 0..3 {
            for key in [&ended[0], &ended[98]] {
                rig.commit(key).await.expect("it commits");
            }
            let version = rig.commit(other).await.expect("it commits");
            let mut is_heard = false;
            while !is_heard {
                let heard = timeout(LONG, changes.next()).await;
                let heard = heard.expect("it is heard").expect("the session stays");
                is_heard = heard
                    .iter()
                    .any(|it| it.version >= version && it.key == *other);
                is_quiet &= heard.iter().all(|it| !ended.contains(&it.key));
            }
        }
        is_quiet.then_some(())
    })
    .await;
}

async fn keys_of_any_bytes_round_trip<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let engine = rig.engine();
    let (mut interests, mut changes) = engine.open(&config()).await.expect("it opens");
    let mut keys = vec![
        vec![],
        vec![0],
        b"a.b.>*?[x]".to_vec(),
        b" \r\n\t".to_vec(),
        b"=".to_vec(),
        "\u{1f980} \u{e4}".as_bytes().to_vec(),
        (0..=255).collect(),
    ];
    let random = |_| {
        (0..fastrand::usize(8..40))
            .map(|_| fastrand::u8(..))
            .collect()
    };
    keys.extend((0..50).map(random));
    keys.iter()
        .for_each(|key| engine.admit(key).expect("it takes the key"));
    interests.watch(&keys).await.expect("it watches");
    let mut versions = Vec::new();
    for key in &keys {
        let version = rig.commit(key).await.expect("it commits");
        hear(&mut changes, key, version, LONG)
            .await
            .unwrap_or_else(|why| panic!("{key:?}: {why}"));
        versions.push(Some(version));
    }
    let reading = engine.versions(&keys).await.expect("it reads");
    assert_eq!(reading.versions, versions);
    let endless = vec![b'x'; 1 << 20];
    let is_memory = std::any::type_name::<R>().contains("Memory");
    assert_eq!(Source::<Key>::admit(&engine, &endless).is_err(), !is_memory);
}

async fn a_read_shows_what_was_committed_before<R: Rig>() {
    reads_show_what_was_committed_before(&R::start(CAPACITY).await).await;
}

async fn reads_show_what_was_committed_before(rig: &impl Rig) {
    let engine = rig.engine();
    let absent = engine.versions(&[key(0)]).await.expect("it reads");
    assert_eq!(absent.versions, [Some(0)]);
    for _ in 0..100 {
        let version = rig.commit(&key(1)).await.expect("it commits");
        let reading = engine.versions(&[key(0), key(1)]).await.expect("it reads");
        assert_eq!(reading.versions, [Some(0), Some(version)]);
        assert_eq!(reading.epoch, absent.epoch);
    }
}

/// How a session ends, listening to all that it heard before.
async fn end(changes: &mut impl Changes<Key>) -> FeedError {
    let listen = async {
        loop {
            if let Err(error) = changes.next().await {
                return error;
            }
        }
    };
    timeout(LONG, listen).await.expect("the session ends")
}

async fn a_cut_ends_the_session<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let (mut interests, mut changes) = rig.engine().open(&config()).await.expect("it opens");
    interests.watch(&[key(0)]).await.expect("it watches");
    rig.cut();
    let error = end(&mut changes).await;
    assert!(matches!(error, FeedError::Cut(_)), "{error}");
}

async fn a_slow_consumer_ends_the_session<R: Rig>() {
    let rig = R::start(16).await;
    let (mut interests, mut changes) = rig.engine().open(&config()).await.expect("it opens");
    // One key hears all of them, or each hears one: whatever the engine counts.
    let keys = (0..200).map(key).collect::<Vec<_>>();
    interests.watch(&keys).await.expect("it watches");
    let pause = Duration::from_millis(300);
    let error = eventually("the session ends", async || {
        for number in 0..200 {
            rig.commit(&key(number)).await.expect("it commits");
            rig.commit(&key(0)).await.expect("it commits");
        }
        // The messages are on their way to this process, which does not listen. (On a busy machine too few of them may
        // arrive meanwhile: then more are sent.)
        tokio::time::sleep(pause).await;
        timeout(pause, end(&mut changes)).await.ok()
    })
    .await;
    assert!(matches!(error, FeedError::Lagged), "{error}");
}

async fn a_capacity_that_no_channel_has_is_taken<R: Rig>() {
    let rig = R::start(usize::MAX).await;
    let (mut interests, mut changes) = rig.engine().open(&config()).await.expect("it opens");
    interests.watch(&[key(1)]).await.expect("it watches");
    let version = rig.commit(&key(1)).await.expect("it commits");
    is_heard(&mut changes, &key(1), version).await;
}

async fn silence_ends_the_session<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let (mut interests, mut changes) = rig.engine().open(&config()).await.expect("it opens");
    interests.watch(&[key(0)]).await.expect("it watches");
    // The first watch of a store causes news (it gets its epoch). While there are any, a read would notice the silence.
    while timeout(config().ping / 2, changes.next()).await.is_ok() {}
    if !rig.freeze(true) {
        return;
    }
    let start = Instant::now();
    let keys = [key(1)];
    let (ended, watched) = tokio::join!(end(&mut changes), interests.watch(&keys));
    for error in [ended, watched.expect_err("nothing answers")] {
        assert!(matches!(error, FeedError::Silent(_)), "{error}");
    }
    // (A busy machine is late.)
    assert!(start.elapsed() < LONG / 2, "after {:?}", start.elapsed());
}

/// For as long as the settings say, however short the timeout of reads and commits.
async fn a_short_silence_is_waited_for<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let config = Config {
        ping: LONG,
        ..config()
    };
    let (mut interests, mut changes) = rig.engine().open(&config).await.expect("it opens");
    if !rig.freeze(true) {
        return;
    }
    let thaw = async {
        // Twice the timeout of the engines here.
        tokio::time::sleep(Duration::from_millis(1_600)).await;
        rig.freeze(false);
    };
    let keys = [key(0)];
    let (watched, ()) = tokio::join!(interests.watch(&keys), thaw);
    watched.expect("the session stays");
    let version = rig.commit(&key(0)).await.expect("it commits");
    is_heard(&mut changes, &key(0), version).await;
}

async fn a_quiet_session_stays<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let (mut interests, mut changes) = rig.engine().open(&config()).await.expect("it opens");
    interests.watch(&[key(0)]).await.expect("it watches");
    let quiet = timeout(5 * config().ping, changes.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    let version = rig.commit(&key(0)).await.expect("it commits");
    is_heard(&mut changes, &key(0), version).await;
}

fn node<R: Rig>(rig: &R, config: Config) -> ClusterWaits<Key> {
    let cluster = Cluster::start(rig.engine(), rig.engine(), config).expect("there is a runtime");
    ClusterWaits::new(&cluster).expect("there is a thread")
}

async fn an_event_ends_waits_on_every_node<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let nodes = [node(&rig, config()), node(&rig, config())];
    let mut seen = 0;
    for _ in 0..20 {
        let waits = nodes.iter().map(|node| node.wait_past(key(0), seen, LONG));
        let waits = waits.collect::<Vec<_>>();
        seen = rig.commit(&key(0)).await.expect("it commits");
        for wait in waits {
            assert_eq!(wait.await, Ok(seen));
        }
    }
    assert!(nodes.iter().all(|node| node.cluster().stats().gaps == 0));
    let never = nodes[0]
        .wait_past(key(0), seen, Duration::from_millis(50))
        .await;
    assert_eq!(never, Err(WaitError::Expired));
}

async fn a_flushed_store_ends_waits_with_reset<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    let node = node(&rig, config());
    let seen = rig.commit(&key(0)).await.expect("it commits");
    assert_eq!(node.wait_past(key(0), seen - 1, LONG).await, Ok(seen));
    let waits = [0, 1].map(|more| node.wait_past(key(0), seen + more, LONG));
    let [sound, ahead] = waits;
    let ahead = ahead.await;
    assert!(
        matches!(ahead, Err(WaitError::Reset(_))),
        "it has seen more than was committed: {ahead:?}"
    );
    rig.flush().await;
    let sound = sound.await;
    let Err(WaitError::Reset(position)) = sound else {
        panic!("{sound:?}");
    };
    assert_eq!(position.version, 0, "nothing of the new history was seen");
    // The new history serves.
    let version = rig.commit(&key(0)).await.expect("it commits");
    let mut found = node.wait_past(key(0), 0, LONG).await;
    while matches!(found, Err(WaitError::Reset(_))) {
        // The wait had begun before the node knew of the flush.
        found = node.wait_past(key(0), 0, LONG).await;
    }
    assert_eq!(found, Ok(version));
}

async fn a_source_that_cannot_be_read_lets_waits_expire<R: Rig>() {
    let rig = R::start(CAPACITY).await;
    if !rig.freeze(true) {
        return;
    }
    let node = node(&rig, config());
    let start = Instant::now();
    let wait = node.wait_past(key(0), 0, Duration::from_millis(700)).await;
    assert_eq!(wait, Err(WaitError::Expired));
    assert!(start.elapsed() < LONG / 2, "on time");
    assert!(
        node.cluster().stats().lag >= Duration::from_millis(600),
        "the lag shows"
    );
    let wait = node.wait_past(key(0), 0, LONG);
    rig.commit(&key(0)).await.expect("it commits");
    rig.freeze(false);
    assert_eq!(wait.await, Ok(1), "nothing was lost");
    eventually("the node is in step", async || {
        node.cluster().stats().lag.is_zero().then_some(())
    })
    .await;
}

macro_rules! conformance {
    ($($engine:ident: $rig:ty;)*) => {$(
        mod $engine {
            use super::*;

            conformance!(@ $rig:
                watch_is_exact
                watch_is_exact_beyond_max_subscriptions
                what_waits_is_heard_though_more_keys_come
                watches_can_be_repeated_and_ended
                a_key_is_not_heard_of_after_its_watch
                keys_of_any_bytes_round_trip
                a_read_shows_what_was_committed_before
                a_cut_ends_the_session
                a_slow_consumer_ends_the_session
                a_capacity_that_no_channel_has_is_taken
                silence_ends_the_session
                a_short_silence_is_waited_for
                a_quiet_session_stays
                an_event_ends_waits_on_every_node
                a_flushed_store_ends_waits_with_reset
                a_source_that_cannot_be_read_lets_waits_expire
            );
        }
    )*};
    (@ $rig:ty: $($test:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            super::$test::<$rig>().await;
        }
    )*};
}

conformance! {
    memory: MemoryEngine<Key>;
    redis_tracking: RedisTracking;
    redis_published: RedisPublished;
    nats: NatsRig;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_a_stream_that_is_made_anew_ends_the_session() {
    let rig = NatsRig::start(CAPACITY).await;
    let (mut interests, mut changes) = rig.engine().open(&config()).await.expect("it opens");
    interests.watch(&[key(0)]).await.expect("it watches");
    rig.flush().await;
    let error = end(&mut changes).await;
    assert!(matches!(error, FeedError::Cut(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_reads_a_stream_that_allows_no_direct_requests() {
    let rig = NatsRig::start(CAPACITY).await;
    let context = rig.context().await;
    let stream = context.get_stream("PURGATORY").await.expect("it is there");
    let config = stream.cached_info().config.clone();
    assert!(config.allow_direct);
    let changed = context.update_stream(async_nats::jetstream::stream::Config {
        allow_direct: false,
        ..config
    });
    assert!(!changed.await.expect("it changes").config.allow_direct);
    reads_show_what_was_committed_before(&rig).await;
}

/// It is deleted, and made again, while the answers to a read are on their way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_a_read_is_of_one_stream() {
    let rig = NatsRig::start(CAPACITY).await;
    let context = rig.context().await;
    let stream = context.get_stream("PURGATORY").await.expect("it is there");
    let config = async_nats::jetstream::stream::Config {
        // (Without files, which the server may remove late.)
        storage: StorageType::Memory,
        ..stream.cached_info().config.clone()
    };
    let (engine, keys) = (rig.engine(), (0..20_000).map(key).collect::<Vec<_>>());
    // (Now and then an answer says that there is no stream.)
    for _ in 0..3 {
        rig.commit(&keys[0]).await.expect("it commits");
        let anew = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            rig.freeze(true);
            let deleted = context.delete_stream("PURGATORY").await;
            assert!(deleted.expect("it is there").success);
            let made = context.create_stream(config.clone()).await;
            rig.freeze(false);
            made.expect("it makes the stream");
        };
        let (read, ()) = tokio::join!(engine.versions(&keys), anew);
        let now = engine.versions(&keys[..1]).await.expect("it reads").epoch;
        // (Late on a busy machine, it is of the second one.)
        assert!(read.is_err() || read.is_ok_and(|it| it.epoch == now));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_uses_a_wildcard_above_max_subscriptions() {
    let rig = NatsRig::start(CAPACITY).await;
    let config = Config {
        max_subscriptions: 3,
        ..config()
    };
    let (mut interests, _changes) = rig.engine().open(&config).await.expect("it opens");
    // Those that have ended do not count.
    for number in 5..=8 {
        let keys = [key(number)];
        interests.watch(&keys).await.expect("it watches");
        interests.unwatch(&keys).await.expect("it ends it");
    }
    for number in 1..=4 {
        interests.watch(&[key(number)]).await.expect("it watches");
        let is_it = format!("{interests:?}").contains("has_wildcard: true");
        assert_eq!(is_it, number > 3, "{interests:?}");
    }
}

/// More than the sockets hold is on its way to a server that reads nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_silence_ends_a_session_that_can_say_nothing() {
    let rig = NatsRig::start(CAPACITY).await;
    let config = Config {
        max_subscriptions: usize::MAX,
        // (Until then all buffers are full, on a busy machine as well.)
        ping: Duration::from_secs(5),
        ..config()
    };
    let (mut interests, mut changes) = rig.engine().open(&config).await.expect("it opens");
    let keys = long_names(20_000, 900);
    rig.freeze(true);
    let error = tokio::select! {
        watched = interests.watch(&keys) => panic!("{watched:?}"),
        error = end(&mut changes) => error,
    };
    assert!(matches!(error, FeedError::Silent(_)), "{error}");
}

/// In a cluster of servers (here of one), the others learn of a watch later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_watches_are_exact_where_the_server_is_alone() {
    let cluster = r#"
        server_name: "first"
        cluster { name: "some", listen: "127.0.0.1:-1", routes: ["nats-route://127.0.0.1:1"] }
    "#;
    for (lines, is_exact) in [("", true), (cluster, false)] {
        let server = NatsServer::start_with(lines).await;
        let engine = NatsEngine::new(NatsRig::config(vec![server.url()], CAPACITY));
        let config = Config {
            ping: LONG,
            ..config()
        };
        let opened = Feed::<Key>::open(&engine, &config).await;
        let (interests, _changes) = opened.expect("it opens");
        assert_eq!(interests.is_exact(), is_exact, "{lines}");
    }
}

/// An event is published with the headers that it had in another stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g24_nats_counts_by_the_sequence_of_its_own_stream() {
    let rig = NatsRig::start(CAPACITY).await;
    let node = node(&rig, config());
    let wait = node.wait_past(b"k".to_vec(), 0, LONG);
    eventually("the node is in step", async || {
        node.cluster().stats().lag.is_zero().then_some(())
    })
    .await;
    let mut headers = HeaderMap::new();
    headers.insert(NATS_SEQUENCE, "5000000");
    let context = rig.context().await;
    let published = context.publish_with_headers("purgatory.in.k", headers, "body".into());
    let stored = published.await.expect("it is sent").await;
    assert_eq!(wait.await, Ok(stored.expect("it is stored").sequence));
}

/// Every client that may publish on a channel may write anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_published_ignores_what_is_no_version() {
    let rig = RedisPublished::start(CAPACITY).await;
    let (mut interests, mut changes) = rig.engine().open(&config()).await.expect("it opens");
    let key = b"k".to_vec();
    let watched = interests.watch(std::slice::from_ref(&key)).await;
    watched.expect("it watches");
    // Nor does it hear the signs of life of another session.
    let _other = Feed::<Key>::open(&rig.engine(), &config()).await;
    let echoes = rig.server.query("PUBSUB CHANNELS purgatory:echo:*").await;
    assert!(
        matches!(&echoes, Value::Array(it) if it.len() == 2),
        "{echoes:?}"
    );
    for text in ["word", "1f-7", "7"] {
        let publish = format!("PUBLISH purgatory:c:k {text}");
        rig.server.query(&publish).await;
    }
    let version = rig.commit(&key).await.expect("it commits");
    is_heard(&mut changes, &key, version).await;
}
