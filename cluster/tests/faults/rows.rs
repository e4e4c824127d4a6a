//! The rows of the table of faults: what is done, on which engine, how many wait, how many were lost, how late the worst
//! answer was, and when the node was back in step.

use crate::load::{Deafened, print_row};
use crate::support::engine::{Key, NatsRig, RedisRig, Rig};
use crate::support::nats_server::NatsServer;
use crate::support::{LONG, eventually, hear_all};
use request_purgatory_cluster::model::{Rule, Rules};
use request_purgatory_cluster::nats::NatsEngine;
use request_purgatory_cluster::{
    BoxError, Cluster, ClusterWaits, Config, Feed, Interests, Source, Stats,
};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout_at};

const AUDIT: Duration = Duration::from_millis(1_000);
/// An audit that comes 20 % late and spreads its slices over half a period, a read, and a busy machine.
const BOUND: Duration = Duration::from_millis(4_000);

fn config(left_out: &[Rule]) -> Config {
    Config {
        audit: AUDIT,
        ping: Duration::from_millis(500),
        backoff: (Duration::from_millis(50), Duration::from_millis(500)),
        rules: left_out
            .iter()
            .fold(Rules::default(), |rules, rule| rules.without(*rule)),
        ..Config::default()
    }
}

/// For sessions that nothing may end: what is long takes a busy machine its time.
fn patient(left_out: &[Rule]) -> Config {
    Config {
        ping: LONG,
        ..config(left_out)
    }
}

fn keys(count: usize, length: usize) -> Vec<Key> {
    let key = |number| format!("{number:0length$}").into_bytes();
    (0..count).map(key).collect()
}

/// One node with a wait for each key; a commit of each key ends its wait.
pub struct Row {
    pub waits: usize,
    pub lost: usize,
    pub worst: Duration,
    /// After the last commit.
    pub in_step: Duration,
    /// Since the node was started.
    pub took: Duration,
    pub stats: Stats,
}

impl Row {
    fn print(&self, row: &str, engine: &str, left_out: &[Rule]) {
        let without = match left_out {
            [] => String::new(),
            rules => format!(" (without {rules:?})"),
        };
        let trouble = self.stats.feed_trouble.as_ref();
        let then = match trouble {
            Some(it) => format!("{} x {}: {}", it.times, it.word, it.cause),
            None if self.lost == 0 => format!("{:.1?}", self.in_step),
            None => String::new(),
        };
        let row = format!("F1 {row}{without}");
        print_row(&row, engine, self.waits, self.lost, self.worst, then);
    }
}

async fn row<S: Source<Key>, F: Feed<Key>>(
    source: S,
    feed: F,
    config: Config,
    keys: Vec<Key>,
    becomes_trouble: bool,
    commit: impl AsyncFn(&Key) -> Result<(), BoxError>,
) -> Row {
    let begun = Instant::now();
    let node = Cluster::start(source, feed, config).expect("in a runtime");
    let waits = ClusterWaits::new(&node).expect("there is a thread");
    // Each says when its wait ended.
    let parked = keys.iter().map(|key| {
        let wait = waits.wait_past(key.clone(), 0, Duration::from_secs(3_600));
        tokio::spawn(async move { (wait.await, Instant::now()) })
    });
    let parked = parked.collect::<Vec<_>>();
    // Sessions are refused meanwhile, or the feed is live and deaf.
    sleep(Duration::from_millis(1_500)).await;
    let mut committed = Vec::new();
    for key in &keys {
        // A busy machine may be slower than the engine's timeout.
        eventually("it commits", async || commit(key).await.ok()).await;
        committed.push(Instant::now());
    }
    let last = Instant::now();
    let end = tokio::time::Instant::from_std(last + BOUND);
    let (mut lost, mut worst) = (0, Duration::ZERO);
    for (mut wait, at) in parked.into_iter().zip(committed) {
        let Ok(told) = timeout_at(end, &mut wait).await else {
            lost += 1;
            wait.abort();
            continue;
        };
        let (result, ended) = told.expect("no panic");
        result.expect("it is a version");
        let late = ended.saturating_duration_since(at);
        match late <= BOUND {
            true => worst = worst.max(late),
            false => lost += 1,
        }
    }
    if becomes_trouble {
        let _interest = node.interest([keys[0].clone()]).expect("there is room");
        eventually("it is told again and again", async || {
            sleep(AUDIT / 4).await;
            // Something that it does not hear. (A busy machine may be slower than the engine's timeout.)
            let _ = commit(&keys[0]).await;
            let trouble = node.stats().feed_trouble?;
            (trouble.times > 1).then_some(())
        })
        .await;
    }
    let is_in_step = async || node.stats().lag.is_zero().then_some(());
    if node.stats().feed_trouble.is_none() {
        eventually("the node is in step", is_in_step).await;
    }
    Row {
        waits: keys.len(),
        lost,
        worst,
        in_step: last.elapsed(),
        took: begun.elapsed(),
        stats: node.stats(),
    }
}

/// Nothing is lost with all rules; without the rule, something is. Returns the figures of the first.
async fn both(
    name: &str,
    engine: &str,
    without: &[Rule],
    run: impl AsyncFn(&[Rule]) -> Row,
) -> Row {
    let whole = run(&[]).await;
    whole.print(name, engine, &[]);
    assert_eq!(whole.lost, 0, "{name}: {:?}", whole.stats);
    if !without.is_empty() {
        let broken = run(without).await;
        broken.print(name, engine, without);
        assert!(broken.lost > 0, "nothing was lost without {without:?}");
    }
    whole
}

fn says(row: &Row, word: &str, what: &str) {
    let trouble = row.stats.feed_trouble.as_ref().expect("it is told");
    assert_eq!(trouble.word, word, "{trouble:?}");
    assert!(trouble.cause.contains(what), "{trouble:?}");
    assert!(trouble.times > 1, "{trouble:?}");
    // It backs off: from 50 ms to 500 ms, of which up to a half is left out.
    let most = 10 + row.took.as_millis() / 250;
    assert!(u128::from(trouble.times) < most, "{trouble:?}");
}

async fn redis<const PUBLISHED: bool>(
    arguments: &[&str],
    before: &[&str],
    user: &str,
    keys: Vec<Key>,
    config: Config,
) -> Row {
    let rig = RedisRig::<PUBLISHED>::start_with(100_000, arguments).await;
    for command in before {
        rig.server.query(command).await;
    }
    let engine = rig.direct(user);
    row(engine.clone(), engine, config, keys, false, async |key| {
        rig.commit(key).await.map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_redis_may_not_track() {
    let run = async |left_out: &[Rule]| {
        let user = "ACL SETUSER node on >secret ~* &* +@all -client";
        let config = config(left_out);
        redis::<false>(&[], &[user], "user=node&pass=secret", keys(500, 4), config).await
    };
    let row = both("may not track", "Redis", &[Rule::ReadWithoutSession], run).await;
    says(&row, "refused", "Redis user");
    says(&row, "refused", "client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_redis_may_not_subscribe() {
    let run = async |left_out: &[Rule]| {
        let user = "ACL SETUSER node on >secret ~* &* +@all -subscribe";
        let config = config(left_out);
        redis::<true>(&[], &[user], "user=node&pass=secret", keys(500, 4), config).await
    };
    let row = both(
        "may not subscribe",
        "Redis",
        &[Rule::ReadWithoutSession],
        run,
    )
    .await;
    says(&row, "refused", "Redis user");
    says(&row, "refused", "subscribe");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_redis_has_a_small_output_buffer() {
    // (One name is confirmed in one piece, for which the server must have room.)
    for length in [15_000, 100] {
        let run = async |left_out: &[Rule]| {
            let limit = ["--client-output-buffer-limit", "pubsub 32kb 32kb 60"];
            redis::<true>(&limit, &[], "", keys(300, length), patient(left_out)).await
        };
        let name = format!("32 KB output buffer, keys of {length} B");
        let row = both(&name, "Redis", &[], run).await;
        assert_eq!(row.stats.failed + row.stats.gaps, 0, "{:?}", row.stats);
    }
}

/// More in one piece than the server holds for a connection by default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_redis_long_keys() {
    let rig = RedisRig::<true>::start(100_000).await;
    let node = Cluster::start(rig.engine(), rig.engine(), patient(&[])).expect("in a runtime");
    let waits = ClusterWaits::new(&node).expect("there is a thread");
    let keys = keys(600, 60_000);
    let hour = Duration::from_secs(3_600);
    let parked = keys.iter().map(|key| waits.wait_past(key.clone(), 0, hour));
    let parked = parked.collect::<Vec<_>>();
    // (By a command for each key, one after the other: a busy machine takes its time.)
    let is_live = async |session| {
        let start = Instant::now();
        loop {
            let stats = node.stats();
            if stats.sessions == session && stats.lag.is_zero() {
                return;
            }
            assert!(stats.gaps < session && stats.failed == 0, "{stats:?}");
            assert!(start.elapsed() < 6 * LONG, "{stats:?}");
            sleep(Duration::from_millis(10)).await;
        }
    };
    is_live(1).await;
    // The next session has all of them to watch at once.
    rig.cut();
    is_live(2).await;
    let committed = Instant::now();
    let told = parked.into_iter().zip(&keys).take(20);
    let told = told.collect::<Vec<_>>();
    let count = told.len();
    for (_, key) in &told {
        eventually("it commits", async || rig.commit(key).await.ok()).await;
    }
    for (wait, _) in told {
        wait.await.expect("it is a version");
    }
    let worst = committed.elapsed();
    let stats = node.stats();
    assert_eq!((stats.gaps, stats.failed), (1, 0), "{stats:?}");
    let row = "F1 600 keys of 60,000 B";
    print_row(
        row,
        "Redis, published",
        count,
        0,
        worst,
        format!("{worst:.1?}"),
    );
}

/// Names that no one command takes: each of them is heard of, again and again, without an audit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_redis_hears_of_each_of_many_long_keys() {
    async fn run<const PUBLISHED: bool>() {
        let rig = RedisRig::<PUBLISHED>::start(100_000).await;
        let opened = rig.engine().open(&patient(&[])).await;
        let (mut interests, mut changes) = opened.expect("it opens");
        let keys = keys(12, 60_000);
        interests.watch(&keys).await.expect("it watches");
        for _ in 1..=3 {
            let mut unheard = HashMap::new();
            // All of them wait, and are read together.
            for key in &keys {
                let commit = async || rig.commit(key).await.ok();
                let version = eventually("it commits", commit).await;
                unheard.insert(key.clone(), version);
            }
            hear_all(&mut changes, unheard, LONG).await;
        }
    }
    run::<false>().await;
    run::<true>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_feed_stays_deaf() {
    async fn run<R: Rig>(left_out: &[Rule]) -> Row {
        let rig = R::start(100_000).await;
        let feed = Deafened::new(rig.engine());
        let config = config(left_out);
        let told = left_out.is_empty();
        row(
            rig.engine(),
            feed,
            config,
            keys(500, 4),
            told,
            async |key| rig.commit(key).await.map(drop),
        )
        .await
    }
    async fn deaf<R: Rig>() {
        let row = both("deaf feed", R::NAME, &[Rule::Audit], run::<R>).await;
        says(&row, "unheard", "nothing was heard");
    }
    deaf::<RedisRig<false>>().await;
    deaf::<RedisRig<true>>().await;
    deaf::<NatsRig>().await;
}

async fn nats(lines: &str, user: &str, config: Config) -> Row {
    let server = NatsServer::start_with(lines).await;
    let engine = |user: &str| {
        let mut config = NatsRig::config(vec![server.url()], 100_000);
        if !user.is_empty() {
            config.options = config
                .options
                .user_and_password(user.into(), "secret".into());
        }
        NatsEngine::new(config)
    };
    let admin = if user.is_empty() { "" } else { "admin" };
    let (engine, writer) = (engine(user), engine(admin));
    let keys = keys(500, 4);
    row(engine.clone(), engine, config, keys, false, async |key| {
        writer
            .commit(key, b"body")
            .await
            .map(drop)
            .map_err(Into::into)
    })
    .await
}

const NODE_MAY_NOT_SUBSCRIBE: &str = r#"
authorization { users = [
    { user: admin, password: secret }
    { user: node, password: secret, permissions: {
        publish: ">", subscribe: { allow: ["_INBOX.>", "$JS.EVENT.>"] } } }
] }
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_nats_may_not_subscribe() {
    let run =
        async |left_out: &[Rule]| nats(NODE_MAY_NOT_SUBSCRIBE, "node", config(left_out)).await;
    let row = both(
        "may not subscribe",
        "NATS",
        &[Rule::Audit, Rule::ReadAtNewSession],
        run,
    )
    .await;
    says(&row, "refused", "NATS user");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_nats_allows_few_subscriptions() {
    // Too few for a subscription per key, and too few for anything.
    let run = async |left_out: &[Rule]| nats("max_subscriptions: 100", "", config(left_out)).await;
    let row = both("100 subscriptions", "NATS", &[], run).await;
    assert!(
        row.stats.lag.is_zero(),
        "a wildcard serves: {:?}",
        row.stats
    );
    let run = async |left_out: &[Rule]| nats("max_subscriptions: 2", "", config(left_out)).await;
    let row = both("2 subscriptions", "NATS", &[Rule::ReadWithoutSession], run).await;
    says(&row, "refused", "subscriptions");
}
