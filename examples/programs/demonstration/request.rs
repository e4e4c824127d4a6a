//! What waits: a fetch for records, or a produce for its replication, each on three partitions.

use crate::records::{Kind, Records};
use request_purgatory::purgatory::Cause;
use request_purgatory::{Completion, DelayedOperation};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The key: the number of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Partition(pub(crate) u32);

/// A log: its records, those that the followers have, and when each of the two numbers changed last.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) end: AtomicU64,
    pub(crate) replicated: AtomicU64,
    appended_at: AtomicU64,
    replicated_at: AtomicU64,
}

/// What all requests read and write.
pub(crate) struct Broker {
    pub(crate) logs: Vec<Log>,
    pub(crate) records: Records,
    begun: Instant,
}

impl Broker {
    pub(crate) fn new(partitions: usize, records: Records) -> Self {
        Self {
            logs: (0..partitions).map(|_| Log::default()).collect(),
            records,
            begun: Instant::now(),
        }
    }

    pub(crate) fn log(&self, partition: Partition) -> &Log {
        &self.logs[partition.0 as usize]
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Returns the new end of the log.
    pub(crate) fn append(&self, partition: Partition, records: u64) -> u64 {
        let log = self.log(partition);
        log.appended_at.store(self.now(), Relaxed);
        log.end.fetch_add(records, Relaxed) + records
    }

    /// The followers catch up.
    pub(crate) fn replicate(&self, partition: Partition) {
        let log = self.log(partition);
        log.replicated_at.store(self.now(), Relaxed);
        log.replicated.fetch_max(log.end.load(Relaxed), Relaxed);
    }
}

pub(crate) enum Need {
    /// The sum of the ends of the three logs.
    Records(u64),
    /// What has to be replicated of each log.
    Replicated([u64; 3]),
    /// What never comes: its followers are down, its producers are silent.
    Never,
}

pub(crate) struct Request {
    pub(crate) broker: Arc<Broker>,
    pub(crate) kind: Kind,
    pub(crate) partitions: [Partition; 3],
    pub(crate) need: Need,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
    /// When the event happened that satisfied the request, if it was parked then.
    pub(crate) event: Option<u64>,
}

impl Request {
    fn event_at(&self, partition: Partition) -> u64 {
        let log = self.broker.log(partition);
        match self.kind {
            Kind::Fetch => log.appended_at.load(Relaxed),
            Kind::Produce => log.replicated_at.load(Relaxed),
        }
    }
}

impl DelayedOperation for Request {
    type Key = Partition;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        let logs = self.partitions.map(|partition| self.broker.log(partition));
        match self.need {
            Need::Records(sum) => logs.iter().map(|log| log.end.load(Relaxed)).sum::<u64>() >= sum,
            Need::Replicated(offsets) => logs
                .iter()
                .zip(offsets)
                .all(|(log, offset)| log.replicated.load(Relaxed) >= offset),
            Need::Never => false,
        }
    }

    fn try_complete_for(&mut self, cause: Cause<'_, Partition>) -> bool {
        let satisfied = self.try_complete();
        if satisfied && !cause.is_parking() {
            // If several checks came together, it was one of the latest event.
            let latest = || self.partitions.map(|one| self.event_at(one)).into_iter();
            self.event = match cause.key() {
                Some(key) => Some(self.event_at(*key)),
                None => latest().max(),
            };
        }
        satisfied
    }

    fn on_complete(self, completion: Completion) {
        let records = &self.broker.records;
        match completion {
            Completion::Satisfied => {
                if let Some(event) = self.event {
                    records.woke_up(self.broker.now().saturating_sub(event));
                }
            }
            Completion::Expired => records.expired(self.deadline.elapsed()),
            _ => {}
        }
        records.count(self.kind, completion);
    }
}
