//! The load: producers and long-polling consumers, each with a connection of its own.

use crate::figures::histogram::Histogram;
use crate::figures::metrics::Counter;
use anyhow::{Context, ensure};
use chrono::DateTime;
use rskafka::client::partition::{Compression, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) const DESCRIPTION: &str = "\
4 busy partitions (a record every 5 ms, 2 consumers each), 10 slow ones (a record a second), 50 idle ones; \
producers with acks=-1, consumers with min_bytes=1 and a max_wait of 500 ms";

/// A topic, and what goes on in each of its partitions.
#[derive(Debug, Clone, Copy)]
struct Traffic {
    topic: &'static str,
    partitions: i32,
    /// Pause between two records; none if there are no records.
    pause: Option<Duration>,
    consumers: usize,
}

const TRAFFIC: [Traffic; 3] = [
    Traffic {
        topic: "busy",
        partitions: 4,
        pause: Some(Duration::from_millis(5)),
        consumers: 2,
    },
    Traffic {
        topic: "slow",
        partitions: 10,
        pause: Some(Duration::from_secs(1)),
        consumers: 1,
    },
    Traffic {
        topic: "idle",
        partitions: 50,
        pause: None,
        consumers: 1,
    },
];

const MAX_WAIT_MS: i32 = 500;
const RECORD: usize = 100;

/// What the clients saw.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) sent: Counter,
    pub(crate) answered: Counter,
    pub(crate) produced: Counter,
    pub(crate) consumed: Counter,
    /// How many records the consumers should have seen.
    pub(crate) expected: Counter,
    /// From just before a record was produced until a consumer has it.
    pub(crate) end_to_end: Histogram,
    /// From sending a produce request until its answer.
    pub(crate) produce: Histogram,
}

/// Clients at work.
#[derive(Debug)]
pub(crate) struct Load {
    tally: Arc<Tally>,
    stop: watch::Sender<bool>,
    workers: JoinSet<anyhow::Result<()>>,
}

/// What became of it.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) tally: Arc<Tally>,
    /// Clients that failed, or did not come to their end in time.
    pub(crate) failures: Vec<String>,
}

impl Load {
    pub(crate) async fn start(broker: SocketAddr) -> anyhow::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let tally = Arc::new(Tally {
            sent: Counter::default(),
            answered: Counter::default(),
            produced: Counter::default(),
            consumed: Counter::default(),
            expected: Counter::default(),
            end_to_end: Histogram::new(),
            produce: Histogram::new(),
        });
        let mut workers = JoinSet::new();
        let epoch = Instant::now();
        for traffic in TRAFFIC {
            let controller = connect(broker).await?.controller_client()?;
            controller
                .create_topic(traffic.topic, traffic.partitions, 1, 5_000)
                .await?;
            for partition in 0..traffic.partitions {
                // The producer tells its consumers, at the end, how many records there are.
                let (produced, total) = watch::channel(None);
                for _ in 0..traffic.consumers {
                    let worker = Worker::connect(broker, traffic, partition, &tally, epoch).await?;
                    workers.spawn(worker.consume(total.clone()));
                }
                let worker = Worker::connect(broker, traffic, partition, &tally, epoch).await?;
                workers.spawn(worker.produce(stopped.clone(), produced));
            }
        }
        Ok(Self {
            tally,
            stop,
            workers,
        })
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Stops the producers, and waits until the consumers have seen everything.
    pub(crate) async fn finish(mut self, limit: Duration) -> Finished {
        self.stop.send_replace(true);
        let mut failures = Vec::new();
        let finishing = async {
            while let Some(ended) = self.workers.join_next().await {
                match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => failures.push(format!("{error:#}")),
                    Err(error) => failures.push(error.to_string()),
                }
            }
        };
        if tokio::time::timeout(limit, finishing).await.is_err() {
            failures.push(format!("{} clients still wait", self.workers.len()));
        }
        Finished {
            tally: self.tally,
            failures,
        }
    }
}

/// One client with its own connection.
struct Worker {
    client: PartitionClient,
    traffic: Traffic,
    tally: Arc<Tally>,
    epoch: Instant,
}

impl Worker {
    async fn connect(
        broker: SocketAddr,
        traffic: Traffic,
        partition: i32,
        tally: &Arc<Tally>,
        epoch: Instant,
    ) -> anyhow::Result<Self> {
        let client = connect(broker)
            .await?
            .partition_client(traffic.topic, partition, UnknownTopicHandling::Error)
            .await?;
        Ok(Self {
            client,
            traffic,
            tally: Arc::clone(tally),
            epoch,
        })
    }

    async fn produce(
        self,
        mut stopped: watch::Receiver<bool>,
        total: watch::Sender<Option<u64>>,
    ) -> anyhow::Result<()> {
        let mut number = 0;
        if let Some(pause) = self.traffic.pause {
            let stopped = stopped.wait_for(|stopped| *stopped);
            tokio::pin!(stopped);
            loop {
                tokio::select! {
                    _ = &mut stopped => break,
                    () = tokio::time::sleep(pause) => {}
                }
                let sent = Instant::now();
                let record = self.record(number);
                let produce = self
                    .client
                    .produce(vec![record], Compression::NoCompression);
                let offsets = self.counted(produce).await?;
                ensure!(offsets == [number as i64], "record {number} at {offsets:?}");
                self.tally.produce.record(sent.elapsed());
                self.tally.produced.increase();
                number += 1;
            }
        } else {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        }
        let consumers = self.traffic.consumers as u64;
        self.tally.expected.add(number * consumers);
        total.send_replace(Some(number));
        Ok(())
    }

    /// Polls until all records are there, and once more at least: an idle partition is polled all the time.
    async fn consume(self, total: watch::Receiver<Option<u64>>) -> anyhow::Result<()> {
        let mut next = 0;
        loop {
            let last_turn = total.borrow().is_some_and(|total| next >= total);
            let fetch = self
                .client
                .fetch_records(next as i64, 1..1_000_000, MAX_WAIT_MS);
            let (records, _) = self.counted(fetch).await?;
            for record in records {
                let (number, sent) = contents(&record.record).context("not one of our records")?;
                ensure!(
                    number == next && record.offset == next as i64,
                    "lost {next}"
                );
                let latency = self.epoch.elapsed().saturating_sub(sent);
                self.tally.end_to_end.record(latency);
                self.tally.consumed.increase();
                next += 1;
            }
            if last_turn {
                return Ok(());
            }
        }
    }

    /// Counts a request and its answer.
    async fn counted<T, E>(&self, request: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.tally.sent.increase();
        let answer = request.await;
        if answer.is_ok() {
            self.tally.answered.increase();
        }
        answer
    }

    /// A record that says which one it is and when it was made.
    fn record(&self, number: u64) -> Record {
        let mut value = vec![0; RECORD];
        value[..8].copy_from_slice(&number.to_be_bytes());
        value[8..16].copy_from_slice(&(self.epoch.elapsed().as_nanos() as u64).to_be_bytes());
        Record {
            key: None,
            value: Some(value),
            headers: BTreeMap::new(),
            timestamp: DateTime::UNIX_EPOCH,
        }
    }
}

fn contents(record: &Record) -> Option<(u64, Duration)> {
    let value = record.value.as_ref()?;
    let number = u64::from_be_bytes(*value.first_chunk()?);
    let sent = u64::from_be_bytes(*value.get(8..)?.first_chunk()?);
    Some((number, Duration::from_nanos(sent)))
}

async fn connect(broker: SocketAddr) -> anyhow::Result<Client> {
    let client = ClientBuilder::new(vec![broker.to_string()]).build().await;
    client.context("cannot reach the broker")
}
