//! The engine is silent, or the connection is cut: how long callers wait, and who makes the connection again.

use crate::load::print_row;
use crate::lost::{key, ms};
use crate::support::engine::{NatsRig, RedisRig, Rig};
use crate::support::eventually;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::redis_server::RedisServer;
use request_purgatory_cluster::redis::{RedisConfig, RedisEngine, client};
use request_purgatory_cluster::{EngineError, Position};
use std::time::{Duration, Instant};

/// As many as `callers` fail at once, and each is told within the bound.
async fn all_fail<F>(engine: &str, callers: usize, commit: impl Fn() -> F, bound: Duration)
where
    F: Future<Output = Result<Position, EngineError>> + Send + 'static,
{
    let start = Instant::now();
    let calls = (0..callers).map(|_| tokio::spawn(commit()));
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic").expect_err("nothing answers");
    }
    print_row("F5 silent server", engine, callers, 0, start.elapsed(), "");
    assert!(start.elapsed() < bound, "{:?}", start.elapsed());
}

/// Servers that accept and are silent: each caller waits for the timeout, however many there are of either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_redis_callers_do_not_wait_for_each_other() {
    let server = RedisServer::start(&[]).await;
    let proxy = Proxy::start(Upstream::Unix(server.socket())).await;
    proxy.freeze(true);
    let config = RedisConfig {
        addresses: vec![format!("redis://127.0.0.1:{}", proxy.port); 2],
        timeout: ms(700),
        ..RedisConfig::default()
    };
    let engine = RedisEngine::new(config).expect("the address is sound");
    for callers in [1, 4, 32] {
        let commit = || {
            let engine = engine.clone();
            async move { engine.commit(&key("a"), b"x").await }
        };
        all_fail("Redis", callers, commit, ms(1_400)).await;
    }
    // What was begun meanwhile is in vain, and no later caller waits for it.
    proxy.cut();
    proxy.freeze(false);
    engine
        .commit(&key("a"), b"x")
        .await
        .expect("it answers again");
}

/// As above; the connection was there before the server fell silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_nats_callers_do_not_wait_for_each_other() {
    let rig = NatsRig::start(10_000).await;
    rig.freeze(true);
    for callers in [1, 4, 32] {
        let commit = || {
            let engine = rig.engine();
            async move { engine.commit(&key("a"), b"x").await }
        };
        all_fail("NATS", callers, commit, ms(1_600)).await;
    }
    rig.freeze(false);
    eventually("it answers again", async || {
        rig.commit(&key("a")).await.ok()
    })
    .await;
}

/// A caller that comes while the connection is made waits for it, and makes none of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_redis_callers_share_a_connection() {
    let server = RedisServer::start(&[]).await;
    let connections = async || {
        let client::Value::BulkString(info) = server.query("INFO stats").await else {
            panic!("no text");
        };
        let info = String::from_utf8(info).expect("it is text");
        let count = info
            .lines()
            .find_map(|it| it.strip_prefix("total_connections_received:"));
        count.expect("the figure").parse::<u64>().expect("a number")
    };
    let engine = RedisEngine::new(RedisRig::<false>::config(server.url(), 10_000));
    let engine = engine.expect("the address is sound");
    let before = connections().await;
    let calls = (0..32).map(|_| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.commit(&key("a"), b"x").await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic").expect("it commits");
    }
    // One asks for the figure.
    assert_eq!(connections().await - before, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f6_redis_any_caller_makes_the_connection_again() {
    let rig = RedisRig::<false>::start(10_000).await;
    let engine = rig.engine();
    let ping = client::cmd("PING");
    engine.query(&ping).await.expect("it answers");
    for _ in 0..3 {
        rig.cut();
        let cut = Instant::now();
        // The first call may find out.
        let first = engine.query(&ping).await;
        let second = engine.query(&ping).await;
        assert!(second.is_ok(), "{first:?}, {second:?}");
        print_row("F6 query after a cut", "Redis", 0, 0, cut.elapsed(), "");
    }
}
