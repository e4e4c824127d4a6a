//! Latency, CPU time and memory of a node, beside the raw engine in the same run:
//! `cargo bench -p request-purgatory-cluster --all-features --bench cluster`.
//!
//! Node A, which waits, is a process of its own (this program, started again), so that its CPU time and its memory are
//! its own. This process is B: it starts the engine and commits. Both read the system's monotonic clock, so a moment in
//! A can be compared with one in B. A simple harness: each figure is printed with what it was measured on.

#![allow(unreachable_pub, reason = "a benchmark has no users")]

mod engine;
mod measure;
mod node;
mod node_process;
mod raw;
#[path = "../../tests/support/mod.rs"]
mod support;

use engine::{Kind, Site};
use futures_util::{StreamExt, stream};
use measure::{now, quantiles};
use node_process::NodeProcess;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

const ROUNDS: u32 = 3_000;
/// Rounds that are not counted.
const WARM_UP: u32 = 200;
const EVENTS: u32 = 20_000;
const PARKED: u32 = 10_000;
const IDLE: Duration = Duration::from_secs(5);
const MANY: u32 = 100_000;

/// From the commit on B to the wake-up on A, and from its acknowledgement. `command` says what listens there.
async fn latency(site: &Site, a: &mut NodeProcess, what: &str, command: &str) {
    a.say(&format!("{command} {}", ROUNDS + WARM_UP)).await;
    a.expect("ready").await;
    let (mut acknowledged, mut whole, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS + WARM_UP {
        let start = now();
        site.commit(0).await;
        let acknowledgement = now();
        let woken = a.hear("woken").await[0];
        if round >= WARM_UP {
            acknowledged.push(acknowledgement - start);
            whole.push(woken.saturating_sub(start));
            // A may be woken before B has read the acknowledgement.
            after.push(woken.saturating_sub(acknowledgement));
        }
    }
    println!(
        "{what}: commit to acknowledgement {}; commit to A {}; acknowledgement to A {}",
        quantiles(acknowledged),
        quantiles(whole),
        quantiles(after)
    );
}

/// 10,000 keys parked on A; of the events that B makes, one in `part` concerns them. The CPU time of A's process per
/// event, without audits. Each event of a B that makes one after the other wakes a process that sleeps; what a B with
/// several under way commits reaches A in batches.
async fn cpu(site: &Site, a: &mut NodeProcess, what: &str) {
    a.say(&format!("watch {PARKED}")).await;
    a.expect("live").await;
    let before = a.cpu().await;
    tokio::time::sleep(IDLE).await;
    println!(
        "{what}: {PARKED} keys parked, no events: {:.0} us of A's CPU time per second",
        (a.cpu().await - before) as f64 / 1e3 / IDLE.as_secs_f64()
    );
    for part in [1, 10, 100] {
        for at_once in [1, 64] {
            let before = a.cpu().await;
            let events = (0..EVENTS).map(|event| match event % part {
                0 => event / part % PARKED,
                _ => PARKED + event % PARKED,
            });
            stream::iter(events)
                .for_each_concurrent(at_once, |event| site.commit(event))
                .await;
            // What was told last.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let used = a.cpu().await - before;
            println!(
                "{what}: {PARKED} keys parked, 1 in {part} events of interest, {at_once} at once: {:.2} us of A's CPU \
                 time per event made",
                used as f64 / 1e3 / f64::from(EVENTS)
            );
        }
    }
}

/// 100,000 waits for as many keys.
async fn park(a: &mut NodeProcess, what: &str) {
    a.say(&format!("park {MANY}")).await;
    let figures = a.hear("parked").await;
    let [called, cpu_called, read, cpu_read, bytes, sessions] = figures[..] else {
        panic!("A said {figures:?}");
    };
    let ms = |nanos: u64| nanos / 1_000_000;
    println!(
        "{what}: {MANY} waits parked in {} ms ({} ms of A's CPU time), all keys watched and read after {} ms ({} ms) in \
         {} sessions; {} MB more",
        ms(called),
        ms(cpu_called),
        ms(read),
        ms(cpu_read),
        sessions,
        bytes / 1_000_000
    );
}

async fn rows(kind: Kind) {
    let site = Site::start(kind).await;
    let per_key = 1_000_000;
    let wants = |part: &str| {
        let wanted = std::env::args().skip(1).filter(|it| !it.starts_with('-'));
        let wanted = wanted.collect::<Vec<_>>();
        wanted.is_empty() || wanted.iter().any(|it| part == it)
    };
    if wants("latency") {
        let mut raw = NodeProcess::start(&site, per_key, false);
        latency(&site, &mut raw, &format!("{kind}, raw client"), "raw").await;
        drop(raw);
        for (max_subscriptions, how) in kind.ways() {
            let mut a = NodeProcess::start(&site, max_subscriptions, true);
            latency(&site, &mut a, &format!("{kind}{how}"), "wait").await;
        }
    }
    if wants("park") {
        for number in (0..MANY).step_by(node::SAMPLE as usize) {
            site.commit(number).await;
        }
        for (max_subscriptions, how) in kind.ways() {
            let mut a = NodeProcess::start(&site, max_subscriptions, true);
            park(&mut a, &format!("{kind}{how}")).await;
        }
    }
    if wants("cpu") {
        for (max_subscriptions, how) in kind.ways() {
            let mut a = NodeProcess::start(&site, max_subscriptions, false);
            cpu(&site, &mut a, &format!("{kind}{how}")).await;
        }
    }
}

fn runtime() -> Runtime {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("the system has threads")
}

fn main() {
    let arguments = std::env::args().collect::<Vec<_>>();
    if arguments.get(1).is_some_and(|it| it == node::ARGUMENT) {
        return runtime().block_on(node::run(&arguments[2..]));
    }
    println!("load average: {}", measure::load());
    runtime().block_on(async {
        for kind in [Kind::RedisTracking, Kind::RedisPublished, Kind::Nats] {
            rows(kind).await;
        }
    });
    println!("load average: {}", measure::load());
}
