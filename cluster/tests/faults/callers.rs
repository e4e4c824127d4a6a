//! The engine is silent, or the connection is cut: how long callers wait, and who makes the connection again.

use crate::load::print_row;
use crate::lost::{key, since};
use crate::ms;
use crate::support::engine::{Key, NatsRig, RedisRig, Rig};
use crate::support::proxy::{Proxy, Upstream};
use crate::support::redis_server::RedisServer;
use crate::support::{LONG, eventually, eventually_within};
use request_purgatory_cluster::nats::{NatsConfig, NatsEngine};
use request_purgatory_cluster::redis::{RedisConfig, RedisEngine, client};
use request_purgatory_cluster::{
    Cluster, ClusterWaits, Config, EngineError, Feed, Position, Source,
};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;
use tokio::time::{sleep, timeout};

/// As many as `callers` fail at once, and each is told within the bound. Returns when the last one was.
async fn all_fail<F>(callers: usize, commit: impl Fn() -> F, bound: Duration) -> Duration
where
    F: Future<Output = Result<Position, EngineError>> + Send + 'static,
{
    let start = Instant::now();
    let calls = (0..callers).map(|_| tokio::spawn(commit()));
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic").expect_err("nothing answers");
    }
    let worst = start.elapsed();
    assert!(worst < bound, "{worst:?}");
    worst
}

const CALLERS: [usize; 3] = [1, 4, 32];

/// A row for each of [`CALLERS`]: after `again` the engine answered as before.
fn print_rows(engine: &str, worst: &[Duration], again: Duration) {
    for (callers, worst) in CALLERS.into_iter().zip(worst) {
        let again = format!("{again:.1?}");
        print_row("F5 silent server", engine, callers, 0, *worst, again);
    }
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
    let mut worst = Vec::new();
    for callers in CALLERS {
        let commit = || {
            let engine = engine.clone();
            async move { engine.commit(&key("a"), b"x").await }
        };
        worst.push(all_fail(callers, commit, ms(1_400)).await);
    }
    // What was begun meanwhile is in vain, and no later caller waits for it.
    proxy.cut();
    proxy.freeze(false);
    let thawed = Instant::now();
    engine
        .commit(&key("a"), b"x")
        .await
        .expect("it answers again");
    print_rows("Redis", &worst, thawed.elapsed());
}

/// As above, while the server of `rig` is silent.
async fn nats_callers(rig: &NatsRig, engine: NatsEngine, row: &str) {
    rig.freeze(true);
    let mut worst = Vec::new();
    for callers in CALLERS {
        let commit = || {
            let engine = engine.clone();
            async move { engine.commit(&key("a"), b"x").await }
        };
        worst.push(all_fail(callers, commit, ms(1_600)).await);
    }
    // The one request that a read begins with.
    let read = timeout(ms(1_600), engine.versions(&[key("a")])).await;
    read.expect("in time").expect_err("nothing answers");
    rig.freeze(false);
    let thawed = Instant::now();
    eventually("it answers", async || {
        engine.commit(&key("a"), b"x").await.ok()
    })
    .await;
    print_rows(row, &worst, thawed.elapsed());
}

/// The connection was there before the server fell silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_nats_callers_do_not_wait_for_each_other() {
    let rig = NatsRig::start(10_000).await;
    nats_callers(&rig, rig.engine(), "NATS").await;
}

/// The server was silent from the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_nats_callers_do_not_wait_for_each_other_to_connect() {
    let rig = NatsRig::start(10_000).await;
    nats_callers(&rig, rig.another(), "NATS, first connection").await;
}

/// The first of two servers accepts, and is silent for good; or closes the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_redis_a_first_server_that_does_not_answer_holds_up_nothing() {
    let server = RedisServer::start(&[]).await;
    let silent = Proxy::start(Upstream::Unix(server.socket())).await;
    silent.freeze(true);
    // (There is nothing behind it.)
    let closing = Proxy::start(Upstream::Unix(server.socket().with_extension("none"))).await;
    let second = Proxy::start(Upstream::Unix(server.socket())).await;
    // It answers when the first one has had the time to close.
    let late = async || {
        sleep(ms(200)).await;
        second.freeze(false);
    };
    for (first, name) in [(silent.port, "silent"), (closing.port, "closing")] {
        let config = RedisConfig {
            addresses: [first, second.port]
                .map(|port| format!("redis://127.0.0.1:{port}"))
                .into(),
            // None may need as long.
            timeout: LONG,
            ..RedisConfig::default()
        };
        let start = Instant::now();
        second.freeze(true);
        let (engine, ()) = tokio::join!(RedisEngine::connect(config), late());
        let engine = engine.expect("the second one answers");
        second.freeze(true);
        let node = Cluster::start(engine.clone(), engine.clone(), Config::default());
        let waits = ClusterWaits::new(&node.expect("in a runtime")).expect("there is a thread");
        late().await;
        let seen = engine.commit(&key("a"), b"x").await.expect("it commits");
        let wait = waits.wait_past(key("a"), seen.version, LONG);
        let position = engine.commit(&key("a"), b"x").await.expect("it commits");
        let reading = engine.versions(&[key("a")]).await.expect("it reads");
        assert_eq!(reading.versions, [Some(position.version)]);
        assert_eq!(wait.await, Ok(position.version));
        let worst = start.elapsed();
        assert!(worst < LONG / 2, "{worst:?}");
        eventually("the node is in step", async || {
            waits.cluster().stats().lag.is_zero().then_some(())
        })
        .await;
        let then = format!("{:.1?}", start.elapsed());
        // What becomes of the first one is no news to the session.
        sleep(ms(300)).await;
        let stats = waits.cluster().stats();
        assert_eq!((stats.failed, stats.gaps), (0, 0), "{stats:?}");
        let row = format!("F5 first server {name}");
        print_row(&row, "Redis", 1, 0, worst, then);
    }
}

/// The error, and what a node says of its trouble, name the address, and nothing that is secret.
async fn names_its_address<E: Source<Key> + Feed<Key> + Clone>(
    lazy: E,
    connected: Result<E, EngineError>,
    port: u16,
) {
    let address = format!("127.0.0.1:{port}");
    let is_told = |cause: &str| {
        let is_refused = cause.contains("Connection refused");
        is_refused && cause.contains(&address) && !cause.contains("secret")
    };
    let refused = connected.err().expect("no server is there").to_string();
    assert!(is_told(&refused), "{refused}");
    let node = Cluster::start(lazy.clone(), lazy, Config::default()).expect("in a runtime");
    let trouble = eventually("the node says so", async || node.stats().feed_trouble).await;
    assert!(is_told(&trouble.cause), "{trouble:?}");
    assert_eq!(trouble.word, "connect");
}

/// An address that refuses connections for as long as this is kept: bound, and not listened at.
fn refusing() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().expect("there is a file");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(any).expect("there is a free port");
    let port = socket.local_addr().expect("it is bound").port();
    (socket, port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_a_refused_connection_is_told_with_its_address() {
    let (_socket, port) = refusing();
    let config = RedisConfig {
        addresses: vec![format!("redis://user:secret@127.0.0.1:{port}")],
        ..RedisConfig::default()
    };
    let lazy = RedisEngine::new(config.clone()).expect("the address is sound");
    names_its_address(lazy, RedisEngine::connect(config).await, port).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_a_refused_connection_is_told_with_its_address() {
    let (_socket, port) = refusing();
    let config = NatsConfig {
        servers: vec![format!("nats://user:secret@127.0.0.1:{port}")],
        ..NatsConfig::default()
    };
    let lazy = NatsEngine::new(config.clone());
    names_its_address(lazy, NatsEngine::connect(config).await, port).await;
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
        let again = cut.elapsed();
        let then = format!("{again:.1?}");
        print_row("F6 query after a cut", "Redis", 1, 0, again, then);
    }
}

/// Whatever the options of the client say of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f6_nats_the_connection_is_made_again_after_any_number_of_attempts() {
    let mut rig = NatsRig::start(10_000).await;
    let mut config = NatsRig::config(vec![rig.server.url()], 10_000);
    config.options = config.options.max_reconnects(Some(1));
    let engine = NatsEngine::connect(config).await.expect("it is there");
    assert!(rig.restart(ms(1_000)).await);
    let back = Instant::now();
    eventually("it commits again", async || {
        engine.commit(&key("a"), b"x").await.ok()
    })
    .await;
    let worst = back.elapsed();
    print_row("F6 one attempt allowed", "NATS", 0, 0, worst, since(back));
}

/// A firewall or a host between them restarts, and the server is well: neither end hears of it.
async fn is_given_up(proxy: &Proxy, commit: impl AsyncFn() -> Option<Position>, engine: &str) {
    assert!(commit().await.is_some());
    proxy.lose();
    let lost = Instant::now();
    // (NATS takes it for lost after three pings of 5 s.)
    eventually_within(2 * LONG, "it commits again", commit).await;
    let worst = lost.elapsed();
    print_row("F5 silent for good", engine, 1, 0, worst, since(lost));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_nats_a_connection_that_falls_silent_for_good_is_given_up() {
    let rig = NatsRig::start(10_000).await;
    let engine = rig.engine();
    let commit = async || engine.commit(&key("a"), b"x").await.ok();
    is_given_up(&rig.proxy, commit, "NATS").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_redis_a_connection_that_falls_silent_for_good_is_given_up() {
    let rig = RedisRig::<false>::start(10_000).await;
    let engine = rig.engine();
    let commit = async || engine.commit(&key("a"), b"x").await.ok();
    is_given_up(&rig.proxy, commit, "Redis").await;
}

/// For as long as the setting says, which is longer than the client crate waits by itself: for a connection at first,
/// and then for answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_redis_a_short_silence_is_waited_for() {
    let rig = RedisRig::<false>::start(10_000).await;
    let engine = RedisEngine::new(RedisConfig {
        timeout: LONG,
        ..RedisRig::<false>::config(format!("redis://127.0.0.1:{}", rig.proxy.port), 10_000)
    });
    let engine = engine.expect("the address is sound");
    let keys = [key("a")];
    for version in [1, 2] {
        rig.freeze(true);
        let thaw = async {
            sleep(ms(1_500)).await;
            rig.freeze(false);
        };
        let commit = engine.commit(&keys[0], b"x");
        let (committed, read, ()) = tokio::join!(commit, engine.versions(&keys), thaw);
        assert_eq!(committed.expect("it commits").version, version);
        read.expect("it reads");
    }
}

/// Each of them, and before it is used.
#[test]
fn redis_addresses_that_make_no_sense_are_refused() {
    let sound = "redis://127.0.0.1:6379";
    for (addresses, are_taken) in [
        (&[sound, sound][..], true),
        (&[], false),
        (&["nowhere", sound], false),
        (&[sound, "nowhere"], false),
    ] {
        let config = RedisConfig {
            addresses: addresses.iter().map(|it| it.to_string()).collect(),
            ..RedisConfig::default()
        };
        let taken = RedisEngine::new(config).is_ok();
        assert_eq!(taken, are_taken, "{addresses:?}");
    }
}
