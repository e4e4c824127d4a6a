//! The store answers, and refuses: what it has written by then, and what becomes of the connection.

use crate::load::print_row;
use crate::lost::{key, live, node, wait_without_audits};
use crate::ms;
use crate::support::engine::{Key, NatsRig, RedisRig, Rig};
use crate::support::nats_server::NatsServer;
use crate::support::{LONG, eventually};
use request_purgatory_cluster::nats::NatsEngine;
use request_purgatory_cluster::redis::client;
use request_purgatory_cluster::{Cluster, Config, EngineError, Feed, Source, WaitError};
use std::time::Instant;

/// A user who may not do a part of what a commit does commits nothing, however often it tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_who_may_not_do_all_of_a_commit_writes_nothing() {
    let rig = RedisRig::<true>::start(10_000).await;
    for (right, rules) in [
        // While there is no epoch.
        ("epoch", "~* -set (+set ~purgatory:v:*)"),
        ("get", "~* -get"),
        ("xadd", "~* -xadd"),
        ("set", "~* -set"),
        ("publish", "~* -publish"),
    ] {
        let user = format!("ACL SETUSER {right} on >secret &* +@all {rules}");
        rig.server.query(&user).await;
        let engine = rig.direct(&format!("user={right}&pass=secret"));
        let begun = Instant::now();
        for _ in 0..3 {
            let refused = engine.commit(&key(right), b"x").await;
            refused.expect_err("it may not");
        }
        let worst = begun.elapsed();
        for kind in ["v", "l"] {
            let exists = format!("EXISTS purgatory:{kind}:{right}");
            let found = rig.server.query(&exists).await;
            assert_eq!(found, client::Value::Int(0), "{kind}, without {right}");
        }
        // It stands in no one's way.
        let first = rig.engine().commit(&key(right), b"x").await;
        assert_eq!(first.expect("it commits").version, 1);
        let row = format!("F4 may not {}", right.to_uppercase());
        let then = "nothing was written";
        print_row(&row, "Redis, published", 0, 0, worst, then);
    }
}

/// The commit that restores a counter is no event, and yet all nodes hear of it: no audit helps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_a_counter_that_is_restored_is_published() {
    let rig = RedisRig::<true>::start(10_000).await;
    let engine = rig.engine();
    let (_waits, wait) = wait_without_audits(&engine).await;
    rig.server.query("DEL purgatory:v:a").await;
    let lost_at = Instant::now();
    let restored = engine.commit(&key("a"), b"x").await;
    let is_restored = matches!(restored, Err(EngineError::Reset(_)));
    assert!(is_restored, "{restored:?}");
    let told = wait.await;
    assert!(matches!(told, Err(WaitError::Reset(_))), "{told:?}");
    let worst = lost_at.elapsed();
    let row = "F4 counter restored, no audit";
    print_row(row, "Redis, published", 1, 0, worst, "it is published");
}

/// Somebody has written to a log by another way: that is said, and nothing is left out in silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_a_log_that_is_not_of_commits_is_an_error() {
    let rig = RedisRig::<false>::start(10_000).await;
    let engine = rig.engine();
    engine.commit(&key("a"), b"x").await.expect("it commits");
    for entry in [
        "XADD purgatory:l:a 1-7 body x",
        "XADD purgatory:l:b 1-1 body x",
    ] {
        rig.server.query(entry).await;
    }
    for name in ["a", "b"] {
        let told = engine.events(&key(name), 0, 10).await;
        assert!(matches!(told, Err(EngineError::Store(_))), "{told:?}");
    }
}

async fn connections(rig: &RedisRig<false>) -> u64 {
    let client::Value::BulkString(info) = rig.server.query("INFO stats").await else {
        panic!("no text");
    };
    let info = String::from_utf8(info).expect("it is text");
    let mut lines = info.lines();
    let count = lines.find_map(|it| it.strip_prefix("total_connections_received:"));
    count.expect("the figure").parse().expect("a number")
}

/// Under `noeviction` a server whose memory is full refuses commits, and can be read. Writers that try again and again
/// do not use up the ports of the node, whose reads need them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_a_full_memory_costs_no_connections_and_loses_nothing() {
    const COMMITS: usize = 50;
    let rig = RedisRig::<false>::start(10_000).await;
    let engine = rig.engine();
    let waits = node(&engine);
    let seen = engine.commit(&key("a"), b"x").await.expect("it commits");
    let wait = waits.wait_past_position(key("a"), seen, LONG);
    live(&waits).await;
    rig.server.query("CONFIG SET maxmemory 1").await;
    let before = connections(&rig).await;
    for _ in 0..COMMITS {
        let refused = engine.commit(&key("a"), b"y").await;
        let refused = refused.expect_err("there is no room").to_string();
        assert!(refused.contains("maxmemory"), "{refused}");
    }
    // (One asks for the figure.)
    let made = connections(&rig).await - before - 1;
    assert!(made < 5, "{made} connections");
    let reading = engine.versions(&[key("a")]).await.expect("it reads");
    assert_eq!(reading.versions, [Some(seen.version)]);
    rig.server.query("CONFIG SET maxmemory 0").await;
    let freed = Instant::now();
    let next = engine.commit(&key("a"), b"y").await;
    let next = next.expect("there is room");
    assert_eq!(next.version, seen.version + 1, "nothing was written before");
    assert_eq!(wait.await, Ok(next));
    let then = format!("{made} connections for {COMMITS} refusals");
    let row = "F4 memory is full";
    print_row(row, "Redis, tracking", 1, 0, freed.elapsed(), then);
}

/// What refused the connection is mended by the operator. No caller is told of it from then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f6_redis_a_connection_that_was_refused_is_made_again() {
    let rig = RedisRig::<false>::start(10_000).await;
    for (fault, refuses, allows) in [
        ("password", ">other", ">secret"),
        ("permission", ">secret -select", "+select"),
    ] {
        let user = |rules: &str| format!("ACL SETUSER {fault} on ~* &* {rules}");
        rig.server.query(&user(&format!("+@all {refuses}"))).await;
        let engine = rig.direct(&format!("db=1&user={fault}&pass=secret"));
        for _ in 0..2 {
            let refused = engine.commit(&key("a"), b"x").await;
            refused.expect_err("it is not connected");
        }
        rig.server.query(&user(allows)).await;
        let allowed = Instant::now();
        let commit = engine.commit(&key("a"), b"x").await;
        commit.expect("it may connect now");
        let again = allowed.elapsed();
        let row = format!("F6 {fault} refused at first");
        print_row(&row, "Redis", 0, 0, again, format!("{again:.1?}"));
    }
}

/// A node has its session, watches a key, and its sessions give signs of life.
async fn has_what_it_needs<E: Source<Key> + Feed<Key> + Clone>(engine: E, name: &str) {
    let config = Config {
        audit: 100 * LONG,
        ping: ms(700),
        ..Config::default()
    };
    let node = Cluster::start(engine.clone(), engine, config).expect("in a runtime");
    let _interest = node.interest([key("a")]).expect("there is room");
    let begun = Instant::now();
    eventually("it is in step, and has been asked", async || {
        let is_asked = begun.elapsed() > ms(3 * 700);
        (is_asked && node.stats().lag.is_zero()).then_some(())
    })
    .await;
    // (A busy machine may have ended a session for its silence.)
    let trouble = node.stats().feed_trouble;
    let is_refused = trouble.as_ref().is_some_and(|it| it.word == "refused");
    assert!(!is_refused, "{trouble:?}");
    let row = "F4 permissions as documented";
    print_row(row, name, 0, 0, begun.elapsed(), "nothing was refused");
}

const OF_NATS: &str = r#"
authorization { users = [ { user: node, password: secret, permissions: {
    publish: { allow: ["purgatory.in.>", "$JS.API.>", "_INBOX.>"] }
    subscribe: { allow: ["purgatory.out.>", "_INBOX.>", "$JS.EVENT.ADVISORY.STREAM.*.PURGATORY"] }
} } ] }
"#;

/// The commands and the subjects that the documentation of the engines names are enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_the_permissions_that_are_documented_are_enough() {
    async fn redis<const PUBLISHED: bool>(news: &str) {
        let rig = RedisRig::<PUBLISHED>::start(10_000).await;
        let commands = "+mget +get +set +xadd +xrange +xinfo +eval +evalsha +select +role +info";
        let user = "ACL SETUSER node on >secret ~purgatory:* &purgatory:*";
        rig.server.query(&format!("{user} {commands} {news}")).await;
        // (And whatever protocol the address names.)
        let engine = rig.direct("db=1&user=node&pass=secret&protocol=resp2");
        engine.commit(&key("b"), b"x").await.expect("it commits");
        engine.events(&key("b"), 0, 1).await.expect("it reads");
        has_what_it_needs(engine, RedisRig::<PUBLISHED>::NAME).await;
    }
    redis::<false>("+client +ping").await;
    // One server, and no warnings.
    redis::<false>("+client +ping -role -info").await;
    redis::<true>("+subscribe +unsubscribe +publish").await;
    let server = NatsServer::start_with(OF_NATS).await;
    let mut config = NatsRig::config(vec![server.url()], 10_000);
    let options = config.options.clone();
    config.options = options.user_and_password("node".into(), "secret".into());
    let engine = NatsEngine::connect(config).await;
    let engine = engine.expect("it makes the stream");
    engine.commit(&key("b"), b"x").await.expect("it commits");
    engine.events(&key("b"), 0, 1).await.expect("it reads");
    has_what_it_needs(engine, NatsRig::NAME).await;
}
