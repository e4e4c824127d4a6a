//! The engine loses a part of what it held, is silent, or runs out of room: what the writer and the waiting are told.

use crate::load::print_row;
use crate::ms;
use crate::support::engine::{Key, NatsRig, RedisRig, Rig};
use crate::support::nats_server::NatsServer;
use crate::support::{LONG, eventually};
use async_nats::jetstream::stream;
use request_purgatory_cluster::nats::{NatsConfig, NatsEngine};
use request_purgatory_cluster::redis::{RedisEngine, client};
use request_purgatory_cluster::{
    Cluster, ClusterWaits, Config, EngineError, Feed, Position, Source, WaitError, WaitPast,
};
use std::time::{Duration, Instant};

pub fn node<E: Source<Key> + Feed<Key> + Clone>(engine: &E) -> ClusterWaits<Key> {
    node_that_lingers(engine, Config::default().linger)
}

pub fn node_that_lingers<E: Source<Key> + Feed<Key> + Clone>(
    engine: &E,
    linger: Duration,
) -> ClusterWaits<Key> {
    let config = Config {
        linger,
        audit: ms(1_000),
        ping: ms(500),
        backoff: (ms(50), ms(500)),
        ..Config::default()
    };
    let node = Cluster::start(engine.clone(), engine.clone(), config).expect("in a runtime");
    ClusterWaits::new(&node).expect("there is a thread")
}

/// A node whose next audit comes too late to help.
fn node_without_audits<E: Source<Key> + Feed<Key> + Clone>(engine: &E) -> ClusterWaits<Key> {
    let config = Config {
        audit: LONG * 100,
        ..Config::default()
    };
    let node = Cluster::start(engine.clone(), engine.clone(), config).expect("in a runtime");
    ClusterWaits::new(&node).expect("there is a thread")
}

/// Such a node, in step, which waits past the first event of key "a".
pub async fn wait_without_audits(engine: &RedisEngine) -> (ClusterWaits<Key>, WaitPast<Key, u64>) {
    let waits = node_without_audits(engine);
    engine.commit(&key("a"), b"x").await.expect("it commits");
    assert_eq!(waits.wait_past(key("a"), 0, LONG).await, Ok(1));
    let wait = waits.wait_past(key("a"), 1, LONG);
    live(&waits).await;
    (waits, wait)
}

pub async fn live(waits: &ClusterWaits<Key>) {
    eventually("the node is in step", async || {
        waits.cluster().stats().lag.is_zero().then_some(())
    })
    .await;
}

pub fn since(start: Instant) -> String {
    format!("{:.1?}", start.elapsed())
}

pub fn key(name: &str) -> Key {
    name.as_bytes().to_vec()
}

fn reset<T: std::fmt::Debug>(answer: Result<T, EngineError>) -> Position {
    match answer {
        Err(EngineError::Reset(position)) => position,
        other => panic!("{other:?}"),
    }
}

/// A node waits past an event of the stream, which is then deleted. Returns the node, the event and the wait.
async fn wait_past_a_lost_stream(
    rig: &NatsRig,
) -> (ClusterWaits<Key>, Position, WaitPast<Key, Position>) {
    let waits = node(&rig.engine());
    let seen = rig
        .engine()
        .commit(&key("a"), b"old")
        .await
        .expect("it commits");
    let wait = waits.wait_past_position(key("a"), seen, LONG);
    live(&waits).await;
    let deleted = rig.context().await.delete_stream("PURGATORY").await;
    assert!(deleted.expect("it is there").success);
    (waits, seen, wait)
}

/// The stream is deleted while a node waits: the next commit makes it again, and the wait ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_nats_a_deleted_stream_is_made_again() {
    let rig = NatsRig::start(10_000).await;
    let (waits, seen, wait) = wait_past_a_lost_stream(&rig).await;
    let gone = Instant::now();
    let again = rig
        .engine()
        .commit(&key("a"), b"new")
        .await
        .expect("it recovers");
    assert_ne!(again.epoch, seen.epoch);
    let told = wait.await;
    let Err(WaitError::Reset(position)) = told else {
        panic!("{told:?}");
    };
    let worst = gone.elapsed();
    assert!(worst < LONG / 2, "{worst:?}");
    let found = waits.wait_past_position(key("a"), position, LONG).await;
    assert_eq!(found, Ok(again));
    live(&waits).await;
    print_row("F2 stream deleted", "NATS", 1, 0, worst, since(gone));
    let next = rig.engine().commit(&key("a"), b"next").await;
    let next = next.expect("it commits");
    assert_eq!((next.epoch, next.version), (again.epoch, again.version + 1));
}

/// Nothing but reads asks for the stream: they make it again as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_nats_reads_make_a_lost_stream_again() {
    let rig = NatsRig::start(10_000).await;
    let (waits, _, wait) = wait_past_a_lost_stream(&rig).await;
    let gone = Instant::now();
    assert!(matches!(wait.await, Err(WaitError::Reset(_))));
    let worst = gone.elapsed();
    live(&waits).await;
    let row = "F2 stream deleted, reads only";
    print_row(row, "NATS", 1, 0, worst, since(gone));
}

/// The server is killed, and comes back with nothing of what it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_nats_comes_back_without_its_data() {
    let mut rig = NatsRig::start(10_000).await;
    let engine = rig.engine();
    let waits = node(&engine);
    let seen = engine.commit(&key("a"), b"old").await;
    let seen = seen.expect("it commits");
    let wait = waits.wait_past_position(key("a"), seen, LONG);
    live(&waits).await;
    rig.server.server.kill();
    rig.server.remove_data();
    rig.server.restart().await;
    let back = Instant::now();
    let again = eventually("it commits again", async || {
        engine.commit(&key("a"), b"new").await.ok()
    })
    .await;
    assert_ne!(again.epoch, seen.epoch);
    let told = wait.await;
    let Err(WaitError::Reset(position)) = told else {
        panic!("{told:?}");
    };
    let worst = back.elapsed();
    let found = waits.wait_past_position(key("a"), position, LONG).await;
    assert_eq!(found, Ok(again));
    live(&waits).await;
    print_row("F2 back without its data", "NATS", 1, 0, worst, since(back));
}

const MAY_NOT_MAKE_STREAMS: &str = r#"
authorization { users = [
    { user: admin, password: secret }
    { user: node, password: secret, permissions: {
        publish: { deny: ["$JS.API.STREAM.CREATE.>"] }, subscribe: ">" } }
] }
"#;

/// The node's user may not make the stream: reads and commits say what to run, and go on when someone has run it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_nats_who_may_not_make_the_stream_is_told_what_to_run() {
    let server = NatsServer::start_with(MAY_NOT_MAKE_STREAMS).await;
    let config = |user: &str| {
        let mut config = NatsRig::config(vec![server.url()], 10_000);
        let options = config.options.clone();
        config.options = options.user_and_password(user.into(), "secret".into());
        config
    };
    let engine = NatsEngine::new(config("node"));
    let waits = node(&engine);
    let wait = waits.wait_past(key("a"), 0, LONG);
    let begun = Instant::now();
    let refused = engine.commit(&key("a"), b"x").await.expect_err("no stream");
    assert!(refused.to_string().contains("nats stream add"), "{refused}");
    let words = "nats stream add PURGATORY --subjects 'purgatory.in.>' --republish-source 'purgatory.in.>' \
                 --republish-destination 'purgatory.out.>' --republish-headers --max-msgs-per-subject 1000 --replicas 1 \
                 --allow-direct --defaults";
    assert!(refused.to_string().ends_with(words), "{refused}");
    let told = begun.elapsed();
    let trouble = eventually("the node says so", async || {
        let trouble = waits.cluster().stats().store_trouble?;
        (trouble.cause.contains("nats stream add") && trouble.times > 1).then_some(trouble)
    })
    .await;
    let admin = NatsEngine::connect(config("admin")).await;
    admin.expect("it makes the stream");
    let position = engine.commit(&key("a"), b"x").await.expect("it commits");
    assert_eq!(wait.await, Ok(position.version));
    let row = "F2 may not make the stream";
    print_row(row, "NATS", 1, 0, told, trouble.cause);
}

/// Somebody has made the stream, and forgot that it is to republish, or wrote other subjects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_nats_a_stream_that_does_not_republish_is_refused() {
    for republish in [
        None,
        Some(("purgatory.in.>", "elsewhere.>")),
        Some(("purgatory.in.a.>", "purgatory.out.>")),
    ] {
        let server = NatsServer::start().await;
        let client = async_nats::connect(server.url()).await;
        let context = async_nats::jetstream::new(client.expect("it accepts"));
        let made = context.create_stream(stream::Config {
            name: "PURGATORY".into(),
            subjects: vec!["purgatory.in.>".into()],
            republish: republish.map(|(source, destination)| stream::Republish {
                source: source.into(),
                destination: destination.into(),
                headers_only: true,
            }),
            ..stream::Config::default()
        });
        made.await.expect("it makes the stream");
        let refused = NatsEngine::connect(NatsRig::config(vec![server.url()], 10_000)).await;
        let refused = refused.expect_err("no news would come").to_string();
        assert!(refused.contains("does not republish"), "{refused}");
    }
}

/// On as many servers and with as many events of each key as the settings say, and no bodies in the news.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_nats_makes_the_stream_as_the_settings_say() {
    let rig = NatsRig::start(10_000).await;
    let config = NatsConfig {
        stream: "OTHER".into(),
        prefix: "other".into(),
        kept: 2,
        ..NatsRig::config(vec![rig.server.url()], 10_000)
    };
    // On more servers than there are.
    let spread = NatsEngine::connect(NatsConfig {
        replicas: 3,
        ..config.clone()
    });
    let refused = spread.await.expect_err("there is one").to_string();
    assert!(refused.contains("--replicas 3"), "{refused}");
    let engine = NatsEngine::connect(config).await.expect("it makes one");
    for _ in 0..3 {
        engine.commit(&key("a"), b"x").await.expect("it commits");
    }
    let events = engine.events(&key("a"), 0, 10).await.expect("it reads");
    let versions = events.iter().map(|it| it.version);
    assert_eq!(versions.collect::<Vec<_>>(), [2, 3]);
    let stream = rig.context().await.get_stream("OTHER").await;
    let stream = stream.expect("it is there");
    let config = &stream.cached_info().config;
    assert_eq!(config.subjects, ["other.in.>"]);
    assert!(config.republish.as_ref().is_some_and(|it| it.headers_only));
}

/// The counter is gone, and the log is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_a_lost_counter_is_one_answer() {
    let rig = RedisRig::<false>::start(10_000).await;
    let engine = rig.engine();
    let waits = node(&engine);
    let mut seen = None;
    for _ in 0..9 {
        seen = Some(engine.commit(&key("a"), b"x").await.expect("it commits"));
    }
    let seen = seen.expect("it was committed to");
    let wait = waits.wait_past_position(key("a"), seen, LONG);
    live(&waits).await;
    rig.server.query("DEL purgatory:v:a").await;
    let lost_at = Instant::now();
    // Also where a page of the log is full.
    for limit in [10, 9, 1] {
        let counter = reset(engine.events(&key("a"), 0, limit).await);
        assert_eq!((counter.epoch, counter.version), (seen.epoch, 0));
    }
    let restored = reset(engine.commit(&key("a"), b"x").await);
    assert_eq!(restored.version, 9);
    assert_ne!(restored.epoch, seen.epoch);
    assert_eq!(
        engine.events(&key("a"), 0, 100).await.expect("whole").len(),
        9
    );
    let again = engine.commit(&key("a"), b"y").await.expect("it recovers");
    assert_eq!((again.epoch, again.version), (restored.epoch, 10));
    let told = wait.await;
    assert!(matches!(told, Err(WaitError::Reset(_))), "{told:?}");
    let worst = lost_at.elapsed();
    let found = waits.wait_past_position(key("a"), restored, LONG).await;
    assert_eq!(found, Ok(again));
    live(&waits).await;
    print_row("F4 counter deleted", "Redis", 1, 0, worst, since(lost_at));
}

/// Nothing is published of a counter that is lost, nor of an audit for an hour; and it is not committed to either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_a_client_that_obeys_a_reset_is_not_told_it_again_and_again() {
    let rig = RedisRig::<true>::start(10_000).await;
    let engine = rig.engine();
    let waits = node_without_audits(&engine);
    let mut seen = None;
    for _ in 0..9 {
        seen = Some(engine.commit(&key("a"), b"x").await.expect("it commits"));
    }
    let last = seen.expect("it was committed to");
    let mut seen = Position { version: 8, ..last };
    let found = waits.wait_past_position(key("a"), seen, LONG).await;
    assert_eq!(found, Ok(last));
    live(&waits).await;
    // The read that follows the watch may come before this or after it. The client is answered in either case: with
    // version 9, or with the reset.
    rig.server.query("DEL purgatory:v:a").await;
    let mut answers = 0;
    let start = Instant::now();
    while start.elapsed() < ms(2_000) {
        match waits.wait_past_position(key("a"), seen, ms(500)).await {
            Err(WaitError::Expired) => continue,
            Ok(_) => {
                seen = reset(engine.events(&key("a"), seen.version, 10).await);
                waits.cluster().read_again(&key("a"));
            }
            Err(WaitError::Reset(position)) => seen = position,
            Err(error) => panic!("{error}"),
        }
        answers += 1;
    }
    let told = format!("{answers} answers in 2 s");
    print_row(
        "F4 obedient client",
        "Redis, published",
        1,
        0,
        start.elapsed(),
        told,
    );
    assert!((1..200).contains(&answers), "{answers}");
    let again = waits.wait_past_position(key("a"), seen, ms(200)).await;
    assert_eq!(again, Err(WaitError::Expired), "it is quiet now");
    // Somebody counts on, within what the log has.
    rig.server.query("SET purgatory:v:a 3").await;
    let told = reset(engine.events(&key("a"), 0, 100).await);
    assert_eq!(told.version, 3);
}

/// By tracking, the loss is heard at once, with no audit for an hour; also that of the epoch alone, which an eviction
/// may take, and that of everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_tracking_hears_that_a_counter_is_lost() {
    for (what, command) in [
        ("counter", "DEL purgatory:v:a"),
        ("epoch", "DEL purgatory:epoch"),
        ("store", "FLUSHALL"),
    ] {
        let rig = RedisRig::<false>::start(10_000).await;
        let (waits, wait) = wait_without_audits(&rig.engine()).await;
        rig.server.query(command).await;
        let lost_at = Instant::now();
        let told = wait.await;
        assert!(matches!(told, Err(WaitError::Reset(_))), "{told:?}");
        let worst = lost_at.elapsed();
        live(&waits).await;
        let row = format!("F4 {what} deleted, no audit");
        print_row(&row, "Redis, tracking", 1, 0, worst, since(lost_at));
    }
}

/// The log is gone, and the counter is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_a_lost_log_is_one_answer() {
    let rig = RedisRig::<false>::start(10_000).await;
    let engine = rig.engine();
    for _ in 0..9 {
        engine.commit(&key("a"), b"x").await.expect("it commits");
    }
    rig.server.query("DEL purgatory:l:a").await;
    let lost_at = Instant::now();
    for seen in [0, 5] {
        let position = reset(engine.events(&key("a"), seen, 10).await);
        assert_eq!(position.version, 9);
    }
    assert_eq!(engine.events(&key("a"), 9, 10).await.expect("none"), []);
    let next = engine.commit(&key("a"), b"y").await.expect("it commits");
    assert_eq!(next.version, 10);
    // Who has seen 5 knows from the gap that something was lost.
    for seen in [5, 9] {
        let left = engine.events(&key("a"), seen, 10).await;
        let left = left.expect("what came since");
        assert_eq!(left.iter().map(|it| it.version).collect::<Vec<_>>(), [10]);
    }
    let again = since(lost_at);
    print_row("F4 log deleted", "Redis", 1, 0, lost_at.elapsed(), again);
}

/// Versions that no Lua number holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_counts_beyond_53_bits() {
    let rig = RedisRig::<false>::start(10_000).await;
    for (from, to) in [
        (9_007_199_254_740_993_u64, 9_007_199_254_740_994),
        (999, 1_000),
    ] {
        let set = format!("SET purgatory:v:{from} {from}");
        rig.server.query(&set).await;
        let position = rig.engine().commit(&key(&from.to_string()), b"x").await;
        assert_eq!(position.expect("it commits").version, to);
    }
    rig.server.query("SET purgatory:v:word word").await;
    let refused = rig.engine().commit(&key("word"), b"x").await;
    assert!(matches!(refused, Err(EngineError::Store(_))), "{refused:?}");
    let log = rig.server.query("EXISTS purgatory:l:word").await;
    assert_eq!(log, client::Value::Int(0), "nothing was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_another_policy_than_noeviction_is_told() {
    let policy = ["--maxmemory-policy", "allkeys-lru"];
    let rig = RedisRig::<false>::start_with(10_000, &policy).await;
    let begun = Instant::now();
    let waits = node(&rig.engine());
    live(&waits).await;
    let told = begun.elapsed();
    let advice = waits.cluster().stats().advice.expect("it is told");
    assert!(advice.contains("noeviction"), "{advice}");
    print_row("F4 allkeys-lru", "Redis", 0, 0, told, advice);
    // The operator follows it: the next session finds that so.
    rig.server
        .query("CONFIG SET maxmemory-policy noeviction")
        .await;
    rig.cut();
    eventually("it is told no more", async || {
        let stats = waits.cluster().stats();
        (stats.sessions > 1 && stats.advice.is_none()).then_some(())
    })
    .await;
}
