//! G24 with real processes: each fault on each engine, and once more with the rule switched off that heals it. With the
//! protocol no completion is lost; without the rule some are.

#![allow(unreachable_pub, reason = "a test has no users")]

#[path = "../support/mod.rs"]
mod support;

mod callers;
mod discarded;
mod herd;
mod histories;
mod load;
mod lost;
mod refusals;
mod replicas;
mod rows;
mod tracking;

use load::Load;
use request_purgatory_cluster::Config;
use request_purgatory_cluster::model::{Rule, Rules};
use std::time::Duration;
use support::engine::{Key, NatsRig, RedisPublished, RedisRig, RedisTracking, Rig};

const KEYS: usize = 60;
const CAPACITY: usize = 10_000;
/// Later than a delivery, a new session and its reads take on a busy machine.
const BOUND: Duration = Duration::from_secs(5);
/// Long enough to be lost for good, where a rule is left out and nothing else comes.
const PATIENCE: Duration = Duration::from_secs(2);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn config(rules: Rules) -> Config {
    Config {
        // Nothing but the rule in question is to heal.
        audit: Duration::from_secs(3_600),
        ping: ms(500),
        backoff: (ms(300), ms(600)),
        rules,
        ..Config::default()
    }
}

fn keys(length: usize) -> Vec<Key> {
    (0..KEYS)
        .map(|number| format!("{number:0length$}").into_bytes())
        .collect()
}

/// How long to wait for clients that were not told: with all rules, until they must have been.
fn bound(is_whole: bool) -> Duration {
    if is_whole { BOUND } else { PATIENCE }
}

fn check(fault: &str, lost: usize, is_whole: bool, load: &Load) {
    let without = if is_whole { "" } else { " (without its rule)" };
    load.print(&format!("{fault}{without}"), lost);
    match is_whole {
        true => assert_eq!(lost, 0, "{fault}: {:?}", load.stats()),
        false => assert!(
            lost > 0,
            "{fault}: nothing was lost without the rule, so the row shows nothing"
        ),
    }
}

fn rules(left_out: Option<Rule>) -> Rules {
    left_out.map_or(Rules::default(), |rule| Rules::default().without(rule))
}

/// The engine is killed, and starts again on its data; commits come as soon as it takes them.
async fn the_engine_is_killed<R: Rig>(left_out: Option<Rule>) {
    let mut rig = R::start(CAPACITY).await;
    let load = Load::start(&rig, keys(4), &config(rules(left_out))).await;
    load.wait_until_live().await;
    assert!(rig.restart(ms(300)).await);
    load.commit_all(async |key| rig.commit(key).await.map(drop))
        .await;
    let lost = load.lost(&rig, bound(left_out.is_none())).await;
    check("kill -9 of the engine", lost, left_out.is_none(), &load);
}

/// All connections of the nodes are cut, twice, while commits go on.
async fn connections_are_killed<R: Rig>(left_out: Option<Rule>) {
    let rig = R::start(CAPACITY).await;
    let load = Load::start(&rig, keys(4), &config(rules(left_out))).await;
    let mut lost = 0;
    for _ in 0..2 {
        load.wait_until_live().await;
        rig.cut();
        load.commit_all(async |key| rig.commit(key).await.map(drop))
            .await;
        lost = lost.max(load.lost(&rig, bound(left_out.is_none())).await);
    }
    check("connections killed", lost, left_out.is_none(), &load);
}

/// The nodes are offered more at once than they have room for.
async fn a_consumer_is_slow<R: Rig>(left_out: Option<Rule>) {
    let rig = R::start(8).await;
    let load = Load::start(&rig, keys(4), &config(rules(left_out))).await;
    load.wait_until_live().await;
    // What is held back comes in one piece.
    burst("slow consumer", &rig, &load, left_out).await;
}

/// Twenty commits of every key while the connections are frozen, then all at once: some session must end of it.
async fn burst(name: &str, rig: &impl Rig, load: &Load, left_out: Option<Rule>) {
    rig.freeze(true);
    for _ in 0..20 {
        load.commit_all(async |key| rig.commit(key).await.map(drop))
            .await;
    }
    rig.freeze(false);
    let lost = load.lost(rig, bound(left_out.is_none())).await;
    let gaps = load.stats().iter().map(|stats| stats.gaps).sum::<u64>();
    assert!(gaps > 0, "the fault came about: {:?}", load.stats());
    check(name, lost, left_out.is_none(), load);
}

/// Connected, and told of nothing. The audit finds out.
async fn a_subscription_falls_silent<R: Rig>(left_out: Option<Rule>) {
    let rig = R::start(CAPACITY).await;
    let audit = ms(800);
    let config = Config {
        audit,
        ..config(rules(left_out))
    };
    let load = Load::start(&rig, keys(4), &config).await;
    load.wait_until_live().await;
    load.deafen(true);
    load.commit_all(async |key| rig.commit(key).await.map(drop))
        .await;
    // Twenty percent of chance, half a period for the slices, and a read.
    let bound = audit.mul_f64(1.7) + ms(1_000);
    let lost = load.lost(&rig, bound).await;
    check("silent subscription", lost, left_out.is_none(), &load);
}

/// A burst larger than the server's buffer for the connection, which it then closes.
async fn the_output_buffer_overflows(left_out: Option<Rule>) {
    let limit = ["--client-output-buffer-limit", "pubsub 3mb 3mb 60"];
    let rig = RedisRig::<true>::start_with(1_000_000, &limit).await;
    let config = Config {
        ping: Duration::from_secs(60),
        ..config(rules(left_out))
    };
    let load = Load::start(&rig, keys(8_000), &config).await;
    load.wait_until_live().await;
    // 60 channels of 8 kB, 20 times: what the sockets hold, and much more.
    burst("output buffer limit", &rig, &load, left_out).await;
}

/// The writer counts, and dies before it publishes (or never meant to).
async fn a_writer_does_not_publish<const PUBLISHED: bool>(left_out: Option<Rule>) -> (usize, Load) {
    let rig = RedisRig::<PUBLISHED>::start(CAPACITY).await;
    let audit = ms(800);
    let config = Config {
        audit,
        ..config(rules(left_out))
    };
    let load = Load::start(&rig, keys(4), &config).await;
    load.wait_until_live().await;
    load.commit_all(async |key| {
        let key = str::from_utf8(key).expect("digits");
        rig.server.query(&format!("INCR purgatory:v:{key}")).await;
        Ok(())
    })
    .await;
    let lost = load.lost(&rig, audit.mul_f64(1.7) + ms(1_000)).await;
    (lost, load)
}

/// How a node goes: in order, or as by a `kill -9`, with all that ran for it and no word to anyone.
#[derive(Clone, Copy)]
enum Going {
    ShutDown,
    Killed,
}

/// The node that clients wait on is gone; they come again, to the other one, and what was committed meanwhile is there.
async fn a_node_is_gone<R: Rig>(going: Going, left_out: &[Rule]) {
    use request_purgatory_cluster::{Cluster, ClusterWaits, WaitError};
    let rig = R::start(CAPACITY).await;
    let rules = left_out
        .iter()
        .fold(Rules::default(), |rules, rule| rules.without(*rule));
    let config = config(rules);
    let start = |engine: R::Engine| {
        let node = Cluster::start(engine.clone(), engine, config.clone()).expect("in a runtime");
        ClusterWaits::new(&node).expect("there is a thread")
    };
    // All that runs for the first node: its tasks, and those of its connections.
    let process = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("there is a thread");
    let first = {
        let _inside = process.enter();
        start(rig.another())
    };
    let keys = keys(4);
    let waits = keys
        .iter()
        .map(|key| first.wait_past(key.clone(), 0, BOUND))
        .collect::<Vec<_>>();
    match going {
        Going::ShutDown => {
            first.cluster().shutdown();
            for wait in waits {
                assert_eq!(wait.await, Err(WaitError::ShutDown));
            }
        }
        Going::Killed => {
            support::eventually("the node is in step", async || {
                let stats = first.cluster().stats();
                (stats.lag.is_zero() && stats.watched_keys == KEYS).then_some(())
            })
            .await;
        }
    }
    process.shutdown_background();
    for key in &keys {
        rig.commit(key).await.expect("it commits");
    }
    // Its session is not open yet when the clients come.
    let second = start(rig.engine());
    let again = keys
        .iter()
        .map(|key| second.wait_past(key.clone(), 0, PATIENCE));
    let (asked, mut lost) = (std::time::Instant::now(), 0);
    for wait in again.collect::<Vec<_>>() {
        lost += usize::from(wait.await.is_err());
    }
    let worst = asked.elapsed();
    let name = match going {
        Going::ShutDown => "node shut down",
        Going::Killed => "kill -9 of a node",
    };
    let (without, then) = match left_out.is_empty() {
        true => {
            let is_in_step = async || second.cluster().stats().lag.is_zero().then_some(());
            support::eventually("the node is in step", is_in_step).await;
            ("", format!("{:.1?}", asked.elapsed()))
        }
        false => (" (without its rules)", String::new()),
    };
    load::print_row(
        &format!("{name}{without}"),
        R::NAME,
        KEYS,
        lost,
        worst,
        then,
    );
    match left_out.is_empty() {
        true => assert_eq!(lost, 0),
        false => assert!(lost > 0),
    }
}

macro_rules! faults {
    ($($engine:ident: $rig:ty;)*) => {$(
        mod $engine {
            use super::*;

            faults!(@ $rig:
                the_engine_is_killed without ReadAtNewSession,
                connections_are_killed without ReadAtNewSession,
                a_consumer_is_slow without ReadAtNewSession,
                a_subscription_falls_silent without Audit,
            );
        }
    )*};
    (@ $rig:ty: $($fault:ident without $rule:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $fault() {
            super::$fault::<$rig>(None).await;
            super::$fault::<$rig>(Some(Rule::$rule)).await;
        }
    )*};
}

faults! {
    redis_tracking: RedisTracking;
    redis_published: RedisPublished;
    nats: NatsRig;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_published_the_output_buffer_overflows() {
    the_output_buffer_overflows(None).await;
    the_output_buffer_overflows(Some(Rule::ReadAtNewSession)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_published_a_writer_does_not_publish() {
    let (lost, load) = a_writer_does_not_publish::<true>(None).await;
    check("writer that does not publish", lost, true, &load);
    let (lost, load) = a_writer_does_not_publish::<true>(Some(Rule::Audit)).await;
    check("writer that does not publish", lost, false, &load);
}

/// What makes tracking the first choice: no writer can forget to publish, so no audit is needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_tracking_hears_a_writer_that_does_not_publish() {
    let (lost, load) = a_writer_does_not_publish::<false>(Some(Rule::Audit)).await;
    check("writer that does not publish", lost, true, &load);
}

/// In both ways; the second time without the rules by which the other node reads what was committed meanwhile.
async fn nodes_are_gone<R: Rig>() {
    for going in [Going::ShutDown, Going::Killed] {
        a_node_is_gone::<R>(going, &[]).await;
        let rules = [Rule::ReadAtNewSession, Rule::ReadWithoutSession];
        a_node_is_gone::<R>(going, &rules).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_tracking_nodes_are_gone() {
    nodes_are_gone::<RedisTracking>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_published_nodes_are_gone() {
    nodes_are_gone::<RedisPublished>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_nodes_are_gone() {
    nodes_are_gone::<NatsRig>().await;
}
