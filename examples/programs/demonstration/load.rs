//! The load: threads that produce, fetch, replicate and cancel at random, and keep as many requests parked as they are
//! told.

use crate::records::{Kind, Records};
use crate::report::{Report, Row};
use crate::request::{Broker, Need, Partition, Request};
use request_purgatory::{Completion, Handle, Purgatory};
use std::iter::repeat_with;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// What a thread does between two looks at how many requests are parked.
const BATCH: usize = 128;
/// A fetch waits for at most this number of records.
const MOST_RECORDS: u64 = 4;
/// One request of 50 waits for what never comes.
const SILENT: u32 = 50;
/// One request of 16 has a client that may leave.
const LEAVING: u32 = 16;
/// The clients that may leave, for each thread. If there are more, one does.
const CLIENTS: usize = 500;
const PATIENT: Duration = Duration::from_secs(30);

pub(crate) struct Load {
    broker: Arc<Broker>,
    fetches: Purgatory<Request>,
    produces: Purgatory<Request>,
    /// To be parked of each kind.
    each: usize,
    pub(crate) threads: usize,
}

impl Load {
    pub(crate) fn new(requests: usize, miscount: bool) -> Self {
        // The library's own threads need a processor for the timeouts.
        let threads = thread::available_parallelism().map_or(1, |cores| cores.get() - 1);
        Self {
            broker: Arc::new(Broker::new(requests.max(6) / 2, Records::new(miscount))),
            fetches: Purgatory::new("fetch"),
            produces: Purgatory::new("produce"),
            each: requests.max(6) / 2,
            threads: threads.clamp(1, 8),
        }
    }

    fn purgatory(&self, kind: Kind) -> &Purgatory<Request> {
        match kind {
            Kind::Fetch => &self.fetches,
            Kind::Produce => &self.produces,
        }
    }

    pub(crate) fn parked(&self) -> usize {
        self.fetches.stats().parked + self.produces.stats().parked
    }

    pub(crate) fn ended(&self) -> u64 {
        [Kind::Fetch, Kind::Produce]
            .map(|kind| self.row(kind).ended())
            .iter()
            .sum()
    }

    /// Nothing is parked, nothing is watched, and every completion has run.
    pub(crate) fn is_empty(&self) -> bool {
        [&self.fetches, &self.produces].iter().all(|purgatory| {
            let stats = purgatory.stats();
            stats.parked == 0 && stats.watched == 0 && stats.completions_pending == 0
        })
    }

    fn partition(&self) -> Partition {
        Partition(fastrand::u32(..self.broker.logs.len() as u32))
    }

    /// Three different ones.
    fn partitions(&self) -> [Partition; 3] {
        let count = self.broker.logs.len() as u32;
        let (first, step) = (fastrand::u32(..count), fastrand::u32(1..=(count - 1) / 2));
        [0, 1, 2].map(|number| Partition((first + number * step) % count))
    }

    fn park(&self, kind: Kind, partitions: [Partition; 3], need: Need) -> Option<Handle<Request>> {
        let (need, timeout) = match fastrand::u32(..SILENT) {
            0 => (
                Need::Never,
                Duration::from_millis(fastrand::u64(100..2_000)),
            ),
            _ => (need, PATIENT),
        };
        let request = Request {
            broker: self.broker.clone(),
            kind,
            partitions,
            need,
            timeout,
            deadline: Instant::now() + timeout,
            event: None,
        };
        let tally = self.broker.records.tally(kind);
        tally.requests.fetch_add(1, Relaxed);
        let purgatory = self.purgatory(kind);
        let admission = purgatory.try_complete_else_watch(request, partitions);
        admission
            .expect("a purgatory without a limit")
            .into_handle()
    }

    fn fetch(&self) -> Option<Handle<Request>> {
        let partitions = self.partitions();
        let ends = partitions.map(|one| self.broker.log(one).end.load(Relaxed));
        let sum = ends.iter().sum::<u64>() + fastrand::u64(1..=MOST_RECORDS);
        self.park(Kind::Fetch, partitions, Need::Records(sum))
    }

    /// Appends a record to each of three logs, which satisfies fetches, and waits for their followers.
    fn produce(&self) -> Option<Handle<Request>> {
        let partitions = self.partitions();
        let ends = partitions.map(|partition| {
            let end = self.broker.append(partition, 1); // first the change,
            self.fetches.check_and_complete(&partition); // then the check
            end
        });
        self.park(Kind::Produce, partitions, Need::Replicated(ends))
    }

    fn replicate(&self, partition: Partition) {
        self.broker.replicate(partition);
        self.produces.check_and_complete(&partition);
    }

    /// How many are missing of this kind, and at most a batch.
    fn missing(&self, kind: Kind) -> usize {
        let parked = self.purgatory(kind).stats().parked;
        self.each.saturating_sub(parked).min(BATCH)
    }

    /// Parks the fetches that are missing, and some of the produces; if none is, the followers answer some.
    fn step(&self, clients: &mut Vec<(Kind, Handle<Request>)>) {
        let mut keep = |kind: Kind, handle: Option<Handle<Request>>| {
            let leaving = handle.filter(|_| fastrand::u32(..LEAVING) == 0);
            clients.extend(leaving.map(|handle| (kind, handle)));
        };
        for _ in 0..self.missing(Kind::Fetch) {
            keep(Kind::Fetch, self.fetch());
        }
        match self.missing(Kind::Produce) {
            0 => repeat_with(|| self.partition())
                .take(BATCH)
                .for_each(|partition| self.replicate(partition)),
            // Each answers several fetches.
            missing => repeat_with(|| self.produce())
                .take(missing.min(BATCH / 4))
                .for_each(|handle| keep(Kind::Produce, handle)),
        }
        while clients.len() > CLIENTS {
            let (kind, leaving) = clients.swap_remove(fastrand::usize(..clients.len()));
            // None: it has ended already, or ends on the thread that is examining it.
            if leaving.cancel().is_some() {
                self.broker.records.count(kind, Completion::Cancelled);
            }
        }
    }

    pub(crate) fn fill(&self) {
        while self.missing(Kind::Produce) > 0 {
            self.produce();
        }
        while self.missing(Kind::Fetch) > 0 {
            self.fetch();
        }
    }

    pub(crate) fn run_until(&self, stop: &AtomicBool) {
        let mut clients = Vec::new();
        while !stop.load(Relaxed) {
            self.step(&mut clients);
        }
    }

    /// An event on each partition that is large enough. What is parked then can only time out.
    pub(crate) fn satisfy_all(&self) {
        for partition in (0..self.broker.logs.len() as u32).map(Partition) {
            self.broker.append(partition, MOST_RECORDS);
            self.fetches.check_and_complete(&partition);
            self.replicate(partition);
        }
    }

    fn row(&self, kind: Kind) -> Row {
        let tally = self.broker.records.tally(kind);
        Row {
            requests: tally.requests.load(Relaxed),
            satisfied: tally.satisfied.load(Relaxed),
            expired: tally.expired.load(Relaxed),
            cancelled: tally.cancelled.load(Relaxed),
            library: self.purgatory(kind).stats(),
        }
    }

    pub(crate) fn report(&self, parked: usize, per_second: f64, memory: Option<f64>) -> Report {
        Report {
            fetch: self.row(Kind::Fetch),
            produce: self.row(Kind::Produce),
            keys_left: self.fetches.watched_keys() + self.produces.watched_keys(),
            partitions: self.broker.logs.len(),
            threads: self.threads,
            parked_at_once: parked,
            per_second,
            memory,
            wake_ups: self.broker.records.wake_ups(),
            lateness: self.broker.records.lateness(),
        }
    }
}
