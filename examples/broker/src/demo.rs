//! The `demo` command: a broker under the load of a real client library, and what its purgatories did.

use crate::broker::Broker;
use crate::cli::{DemoOptions, Settings};
use crate::page::COUNTS;
use crate::{serve, server};
use anyhow::{Context, anyhow, ensure};
use chrono::DateTime;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use rskafka::client::ClientBuilder;
use rskafka::client::partition::{Compression, PartitionClient, UnknownTopicHandling};
use rskafka::record::Record;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// What the clients do. For the page as well.
const LOAD: &str = "\
4 busy partitions get a record 5 ms after the last was acknowledged and have 2 consumers each, 10 slow ones get one a \
second later, 50 idle ones get none. Each producer and each consumer has a connection of its own; producers wait for \
all replicas (acks=-1), consumers for the first byte (min_bytes=1), 500 ms at most";

/// Topic, partitions, pause between the acknowledgement of a record and the next one in its partition, consumers of
/// each.
const TRAFFIC: [(&str, i32, Duration, u64); 3] = [
    ("busy", 4, Duration::from_millis(5), 2),
    ("slow", 10, Duration::from_secs(1), 1),
    ("idle", 50, Duration::MAX, 1),
];

const MAX_WAIT_MS: i32 = 500;

/// How long the last requests may take once no new ones are made.
const DRAIN: Duration = Duration::from_secs(20);

/// Runs the demonstration. Fails if a request got no answer or a record got lost.
pub(crate) async fn run(options: &DemoOptions) -> anyhow::Result<()> {
    let settings = Settings {
        data: None,
        partitions: 1,
        replica_lag_ms: options.replica_lag_ms,
        group_delay_ms: Duration::ZERO,
    };
    let metrics = options.metrics.as_deref();
    let (broker, listeners) = serve::start(&settings, "127.0.0.1:0", metrics, LOAD).await?;
    let address = listeners.address()?;
    let mut loaded = Ok(());
    let stop = async { loaded = drive(&broker, address, options.seconds).await };
    server::run(listeners, Arc::clone(&broker), stop).await;
    loaded
}

async fn drive(broker: &Broker, address: SocketAddr, seconds: u64) -> anyhow::Result<()> {
    let tally = Arc::new(Mutex::new(Tally {
        answered: 0,
        produced: 0,
        expected: 0,
        consumed: 0,
        end_to_end: Histogram::new(2)?,
        produce: Histogram::new(2)?,
    }));
    let (stop, stopped) = watch::channel(false);
    let mut clients = start(address, &tally, &stopped).await?;
    let watched = watch(broker, &tally, seconds).await;
    stop.send_replace(true);
    let end = async {
        while let Some(client) = clients.join_next().await {
            client?.context("a client failed")?;
        }
        Ok(())
    };
    let ended = timeout(DRAIN, end).await;
    let ended = ended.unwrap_or_else(|_| Err(anyhow!("a client still waits")));
    watched?;
    let tally = tally.lock();
    report(broker, &tally)?;
    ended?;
    let lost = tally.expected - tally.consumed;
    ensure!(lost == 0, "{lost} records got lost");
    Ok(())
}

/// Prints a line per second, as long as its reader takes them.
async fn watch(broker: &Broker, tally: &Mutex<Tally>, seconds: u64) -> io::Result<()> {
    let mut before = 0;
    for second in 1..=seconds {
        sleep(Duration::from_secs(1)).await;
        let tally = tally.lock().clone();
        say!(
            "{second:3} s: {:6} requests/s, parked: {:3} fetch + {} produce, records: {} produced, {} consumed",
            tally.answered - before,
            broker.purgatories.fetch.stats().parked,
            broker.purgatories.produce.stats().parked,
            tally.produced,
            tally.consumed,
        )?;
        before = tally.answered;
    }
    Ok(())
}

fn report(broker: &Broker, tally: &Tally) -> io::Result<()> {
    let (fetch, produce) = (&broker.purgatories.fetch, &broker.purgatories.produce);
    say!("\n{:24} {:>10} {:>10}", "purgatory", "fetch", "produce")?;
    let stats = [fetch.stats(), produce.stats()];
    for (name, count) in COUNTS {
        let [fetch, produce] = stats.each_ref().map(count);
        say!("{name:24} {fetch:>10} {produce:>10}")?;
    }
    say!("\n{:24} {:>10} {:>10} {:>10}", "", "p50", "p99", "max")?;
    let names = ["produce to consumer", "produce to its answer"];
    for (name, times) in names.iter().zip([&tally.end_to_end, &tally.produce]) {
        let [p50, p99, max] = [0.5, 0.99, 1.0]
            .map(|share| format!("{:.2} ms", times.value_at_quantile(share) as f64 / 1e3));
        say!("{name:24} {p50:>10} {p99:>10} {max:>10}")?;
    }
    let [answered, consumed, expected] = [tally.answered, tally.consumed, tally.expected];
    say!("\nanswered {answered}, consumed {consumed} of {expected}")
}

#[derive(Clone)]
struct Tally {
    answered: u64,
    produced: u64,
    /// How many records the consumers should have seen, and how many they have.
    expected: u64,
    consumed: u64,
    /// From just before a record was produced until a consumer has it, in microseconds.
    end_to_end: Histogram<u64>,
    produce: Histogram<u64>,
}

/// What the times in records count from.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Starts the clients, each of which ends on its own once the producers are `stopped`.
async fn start(
    broker: SocketAddr,
    tally: &Arc<Mutex<Tally>>,
    stopped: &watch::Receiver<bool>,
) -> anyhow::Result<JoinSet<anyhow::Result<()>>> {
    let mut clients = JoinSet::new();
    let connect = || ClientBuilder::new(vec![broker.to_string()]).build();
    for (topic, partitions, pause, consumers) in TRAFFIC {
        let controller = connect().await?.controller_client()?;
        controller.create_topic(topic, partitions, 1, 5_000).await?;
        for partition in 0..partitions {
            let client = async || {
                let (client, unknown) = (connect().await?, UnknownTopicHandling::Error);
                client.partition_client(topic, partition, unknown).await
            };
            for _ in 0..consumers {
                clients.spawn(consume(client().await?, Arc::clone(tally)));
            }
            let (client, tally) = (client().await?, Arc::clone(tally));
            clients.spawn(produce(client, tally, pause, consumers, stopped.clone()));
        }
    }
    Ok(clients)
}

/// Produces records that say which one they are and when they were made, and one without a value at the end.
async fn produce(
    client: PartitionClient,
    tally: Arc<Mutex<Tally>>,
    pause: Duration,
    consumers: u64,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    for number in 0.. {
        let is_over = timeout(pause, stopped.wait_for(|stop| *stop)).await.is_ok();
        let sent = EPOCH.elapsed();
        let record = Record {
            key: None,
            value: (!is_over).then(|| format!("{number} {}", sent.as_micros()).into()),
            headers: BTreeMap::new(),
            timestamp: DateTime::UNIX_EPOCH,
        };
        let records = vec![record];
        let offsets = client.produce(records, Compression::NoCompression).await?;
        ensure!(offsets == [number], "record {number} at {offsets:?}");
        if is_over {
            break;
        }
        let mut tally = tally.lock();
        tally.produce += (EPOCH.elapsed() - sent).as_micros() as u64;
        tally.answered += 1;
        tally.produced += 1;
        tally.expected += consumers;
    }
    Ok(())
}

/// Polls until the last record is there: an idle partition is polled all the time.
async fn consume(client: PartitionClient, tally: Arc<Mutex<Tally>>) -> anyhow::Result<()> {
    let mut next = 0;
    loop {
        let fetch = client.fetch_records(next, 1..1_000_000, MAX_WAIT_MS);
        let (records, _) = fetch.await?;
        let now = EPOCH.elapsed().as_micros() as u64;
        let mut tally = tally.lock();
        tally.answered += 1;
        for found in records {
            let Some(value) = found.record.value else {
                return Ok(());
            };
            let contents = std::str::from_utf8(&value)?.split_once(' ');
            let (number, sent) = contents.context("not one of our records")?;
            let is_next = found.offset == next && number.parse() == Ok(next);
            ensure!(is_next, "lost {next}");
            tally.end_to_end += now.saturating_sub(sent.parse()?);
            tally.consumed += 1;
            next += 1;
        }
    }
}
