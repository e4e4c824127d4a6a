//! Engines of several servers, of which one is lost.

use crate::load::Load;
use crate::support::engine::{Key, NatsRig, RedisTracking, Rig};
use crate::support::eventually;
use crate::support::nats_server::NatsServer;
use crate::support::redis_server::RedisServer;
use crate::{check, config, keys, rules};
use async_nats::{ConnectOptions, jetstream};
use request_purgatory_cluster::BoxError;
use request_purgatory_cluster::model::Rule;
use request_purgatory_cluster::nats::{NatsConfig, NatsEngine};
use request_purgatory_cluster::redis::{RedisConfig, RedisEngine};
use std::time::Duration;

/// Nodes with one engine, and a writer with another. Faults are the test's.
struct Pair<E> {
    engine: E,
    writer: E,
}

macro_rules! pair {
    ($engine:ty, $name:literal) => {
        impl Rig for Pair<$engine> {
            type Engine = $engine;

            const NAME: &'static str = $name;

            async fn start(_: usize) -> Self {
                unreachable!("the test makes it")
            }

            fn engine(&self) -> $engine {
                self.engine.clone()
            }

            fn another(&self) -> $engine {
                unreachable!("no test of replicas asks for it")
            }

            async fn commit(&self, key: &Key) -> Result<u64, BoxError> {
                Ok(self.writer.commit(key, b"body").await?.version)
            }

            fn cut(&self) {}

            fn freeze(&self, _: bool) -> bool {
                false
            }

            async fn flush(&self) {}

            async fn restart(&mut self, _: Duration) -> bool {
                false
            }
        }
    };
}

pair!(NatsEngine, "NATS, three servers");
pair!(RedisEngine, "Redis, with a replica");

/// The name of the stream's leader, once there is one and the others follow.
async fn leader(servers: &[NatsServer]) -> String {
    let urls = servers.iter().map(NatsServer::url).collect::<Vec<_>>();
    eventually("the stream has a leader", async || {
        let client = async_nats::connect(urls.clone()).await.ok()?;
        let stream = jetstream::new(client).get_stream("PURGATORY").await.ok()?;
        let cluster = stream.cached_info().cluster.clone()?;
        let is_whole = cluster.replicas.len() == 2 && cluster.replicas.iter().all(|it| it.current);
        is_whole.then_some(cluster.leader?)
    })
    .await
}

async fn the_leader_is_killed(left_out: Option<Rule>) {
    let mut servers = NatsServer::start_three().await;
    let all = servers.iter().map(NatsServer::url).collect::<Vec<_>>();
    let nats = |servers: Vec<String>| NatsConfig {
        replicas: 3,
        timeout: Duration::from_secs(2),
        options: ConnectOptions::new().retain_servers_order(),
        ..NatsRig::config(servers, 10_000)
    };
    let writer = eventually("the servers have found each other", async || {
        NatsEngine::connect(nats(all.clone())).await.ok()
    })
    .await;
    let leader = leader(&servers).await;
    let number = servers.iter().position(|it| it.name() == leader);
    let number = number.expect("it is one of the three");
    // The sessions are with the server that is going to die.
    let mut order = all.clone();
    order.swap(0, number);
    let engine = NatsEngine::connect(nats(order)).await.expect("it is there");
    let pair = Pair { engine, writer };
    let mut config = config(rules(left_out));
    let mut bound = Duration::from_secs(10);
    if left_out.is_some() {
        // The commits come before the next sessions, however long the others take to elect a leader.
        config.backoff = (Duration::from_secs(24), Duration::from_secs(24));
        bound = Duration::from_secs(30);
    }
    let load = Load::start(&pair, keys(4), &config).await;
    load.wait_until_live().await;
    load.commit_all(async |key| pair.commit(key).await.map(drop))
        .await;
    assert_eq!(load.lost(&pair, Duration::from_secs(10)).await, 0);
    servers[number].server.kill();
    load.commit_all(async |key| pair.commit(key).await.map(drop))
        .await;
    let lost = load.lost(&pair, bound).await;
    check("leader of three killed", lost, left_out.is_none(), &load);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: .ci/cluster-faults"]
async fn nats_the_leader_is_killed() {
    the_leader_is_killed(None).await;
    the_leader_is_killed(Some(Rule::ReadAtNewSession)).await;
}

/// The replica has stopped to follow before the last commits were acknowledged. The primary dies, and the older copy
/// takes over, in the same epoch.
async fn an_older_copy_takes_over(left_out: Option<Rule>) {
    let mut primary = RedisServer::start_on_port(&[]).await;
    let port = primary.port.expect("it has one").to_string();
    let replica = RedisServer::start_on_port(&["--replicaof", "127.0.0.1", &port]).await;
    let redis = RedisConfig {
        addresses: vec![primary.url(), replica.url()],
        ..RedisTracking::config(String::new(), 10_000)
    };
    let engine = || RedisEngine::new(redis.clone()).expect("the addresses are sound");
    let pair = Pair {
        engine: engine(),
        writer: engine(),
    };
    let load = Load::start(&pair, keys(4), &config(rules(left_out))).await;
    load.wait_until_live().await;
    for _ in 0..2 {
        load.commit_all(async |key| pair.commit(key).await.map(drop))
            .await;
    }
    assert_eq!(load.lost(&pair, Duration::from_secs(10)).await, 0);
    eventually("the replica has it all", async || {
        let copied = replica.query("GET purgatory:v:0059").await;
        (copied == redis::Value::BulkString(b"2".to_vec())).then_some(())
    })
    .await;
    replica.query("REPLICAOF NO ONE").await;
    load.commit_all(async |key| pair.commit(key).await.map(drop))
        .await;
    assert_eq!(
        load.lost(&pair, Duration::from_secs(10)).await,
        0,
        "all have seen 3"
    );
    primary.server.kill();
    // The store holds 2 now, and clients that have seen 3 must be told.
    let lost = load.lost(&pair, Duration::from_secs(5)).await;
    check("older copy takes over", lost, left_out.is_none(), &load);
    let resets = load.stats().iter().map(|stats| stats.resets).sum::<u64>();
    assert_eq!(resets > 0, left_out.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: .ci/cluster-faults"]
async fn redis_an_older_copy_takes_over() {
    an_older_copy_takes_over(None).await;
    an_older_copy_takes_over(Some(Rule::ResetWhenBack)).await;
}
