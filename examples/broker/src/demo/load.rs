//! The load: producers and long-polling consumers, each with a connection of its own.

use anyhow::{Context, ensure};
use chrono::DateTime;
use parking_lot::Mutex;
use rskafka::client::ClientBuilder;
use rskafka::client::partition::{Compression, PartitionClient, UnknownTopicHandling};
use rskafka::record::Record;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// For the page as well.
pub(crate) const DESCRIPTION: &str = "\
4 busy partitions get a record every 5 ms and have 2 consumers each, 10 slow ones get a record a second, 50 idle ones \
get none. Each producer and each consumer has a connection of its own; producers wait for all replicas (acks=-1), \
consumers for the first byte (min_bytes=1), 500 ms at most";

/// Topic, partitions, time between the records of each partition, consumers of each.
const TRAFFIC: [(&str, i32, Duration, u64); 3] = [
    ("busy", 4, Duration::from_millis(5), 2),
    ("slow", 10, Duration::from_secs(1), 1),
    ("idle", 50, Duration::MAX, 1),
];

const MAX_WAIT_MS: i32 = 500;

/// What the clients saw. (Counts are Relaxed: they guard no memory.)
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) answered: AtomicU64,
    pub(crate) produced: AtomicU64,
    /// How many records the consumers should have seen, and how many they have.
    pub(crate) expected: AtomicU64,
    pub(crate) consumed: AtomicU64,
    /// From just before a record was produced until a consumer has it.
    pub(crate) end_to_end: Histogram,
    /// From sending a produce request until its answer.
    pub(crate) produce: Histogram,
}

/// Durations, any number of them in little memory, in microseconds.
pub(crate) struct Histogram(Mutex<hdrhistogram::Histogram<u64>>);

impl Default for Histogram {
    fn default() -> Self {
        // INVARIANT: this is a precision that there is.
        let histogram = hdrhistogram::Histogram::new(2);
        Self(Mutex::new(histogram.expect("two digits")))
    }
}

impl Histogram {
    pub(crate) fn record(&self, duration: Duration) {
        *self.0.lock() += duration.as_micros() as u64;
    }

    /// The milliseconds that this share (0 to 1) of all recorded durations does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> String {
        let micros = self.0.lock().value_at_quantile(share);
        format!("{:.2} ms", micros as f64 / 1e3)
    }
}

pub(crate) struct Load {
    pub(crate) tally: Arc<Tally>,
    stop: watch::Sender<bool>,
    workers: JoinSet<anyhow::Result<()>>,
}

impl Load {
    pub(crate) async fn start(broker: SocketAddr) -> anyhow::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let tally = Arc::<Tally>::default();
        let mut workers = JoinSet::new();
        let epoch = Instant::now();
        let connect = || ClientBuilder::new(vec![broker.to_string()]).build();
        for (topic, partitions, pause, consumers) in TRAFFIC {
            let controller = connect().await?.controller_client()?;
            controller.create_topic(topic, partitions, 1, 5_000).await?;
            for partition in 0..partitions {
                let worker = async || {
                    let (client, unknown) = (connect().await?, UnknownTopicHandling::Error);
                    let client = client.partition_client(topic, partition, unknown).await?;
                    anyhow::Ok(Worker(client, Arc::clone(&tally), epoch))
                };
                // The producer tells its consumers, at the end, how many records there are.
                let (produced, total) = watch::channel(None);
                for _ in 0..consumers {
                    workers.spawn(worker().await?.consume(total.clone()));
                }
                let worker = worker().await?;
                workers.spawn(worker.produce(pause, consumers, stopped.clone(), produced));
            }
        }
        Ok(Self {
            tally,
            stop,
            workers,
        })
    }

    /// Stops the producers, and waits until the consumers have seen everything. Returns what failed.
    pub(crate) async fn finish(mut self, limit: Duration) -> Vec<String> {
        self.stop.send_replace(true);
        let mut failures = Vec::new();
        let finishing = async {
            while let Some(ended) = self.workers.join_next().await {
                if let Err(error) = ended.map_err(anyhow::Error::from).flatten() {
                    failures.push(format!("{error:#}"));
                }
            }
        };
        if timeout(limit, finishing).await.is_err() {
            failures.push(format!("{} clients still wait", self.workers.len()));
        }
        failures
    }
}

/// One client with its own connection, what all of them saw, and when they began.
struct Worker(PartitionClient, Arc<Tally>, Instant);

impl Worker {
    async fn produce(
        self,
        pause: Duration,
        consumers: u64,
        mut stop: watch::Receiver<bool>,
        total: watch::Sender<Option<u64>>,
    ) -> anyhow::Result<()> {
        let Self(client, tally, epoch) = self;
        let mut number = 0;
        let mut stopped = async || timeout(pause, stop.wait_for(|stop| *stop)).await.is_ok();
        while !stopped().await {
            let sent = Instant::now();
            let records = vec![record(number, epoch.elapsed())];
            let offsets = client.produce(records, Compression::NoCompression).await?;
            ensure!(offsets == [number as i64], "record {number} at {offsets:?}");
            tally.answered.fetch_add(1, Relaxed);
            tally.produce.record(sent.elapsed());
            tally.produced.fetch_add(1, Relaxed);
            number += 1;
        }
        tally.expected.fetch_add(number * consumers, Relaxed);
        total.send_replace(Some(number));
        Ok(())
    }

    /// Polls until all records are there, and once more at least: an idle partition is polled all the time.
    async fn consume(self, total: watch::Receiver<Option<u64>>) -> anyhow::Result<()> {
        let Self(client, tally, epoch) = self;
        let mut next = 0;
        loop {
            let last_turn = total.borrow().is_some_and(|total| next >= total);
            let fetch = client.fetch_records(next as i64, 1..1_000_000, MAX_WAIT_MS);
            let (records, _) = fetch.await?;
            tally.answered.fetch_add(1, Relaxed);
            for record in records {
                let (number, sent) = contents(&record.record).context("not one of our records")?;
                let expected = number == next && record.offset == next as i64;
                ensure!(expected, "lost {next}");
                let took = epoch.elapsed().saturating_sub(sent);
                tally.end_to_end.record(took);
                tally.consumed.fetch_add(1, Relaxed);
                next += 1;
            }
            if last_turn {
                return Ok(());
            }
        }
    }
}

/// A record that says which one it is and when it was made.
fn record(number: u64, sent: Duration) -> Record {
    let sent = sent.as_nanos() as u64;
    Record {
        key: None,
        value: Some([number.to_be_bytes(), sent.to_be_bytes()].concat()),
        headers: BTreeMap::new(),
        timestamp: DateTime::UNIX_EPOCH,
    }
}

fn contents(record: &Record) -> Option<(u64, Duration)> {
    let value = record.value.as_ref()?;
    let number = u64::from_be_bytes(*value.first_chunk()?);
    let sent = u64::from_be_bytes(*value.last_chunk()?);
    Some((number, Duration::from_nanos(sent)))
}
