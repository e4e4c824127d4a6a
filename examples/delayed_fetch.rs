//! A delayed fetch: a consumer waits until its partitions have enough bytes between them, or until its time is up, and
//! then gets what there is.
//!
//! ```text
//! cargo run --release -p examples --bin delayed_fetch
//! ```
//!
//! Shown here: a wait on several keys, [resolved](ResolvedKey) ones, so that an append hashes nothing; a condition that
//! awaits its storage; and the best answer at the deadline without another read. The broker in `examples/broker` speaks
//! Kafka's protocol around such fetches.

use request_purgatory::future::WaitOperation;
use request_purgatory::purgatory::Stats;
use request_purgatory::{ResolvedKey, WaitError, Waits};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::RwLock;
use tokio::time::timeout;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    topic: u32,
    partition: u32,
}

type Records = Vec<Vec<u8>>;

struct Partition {
    /// Stands for a disk: every read awaits.
    log: RwLock<Records>,
    reads: AtomicUsize,
    fetches: ResolvedKey<WaitOperation<Key>>,
}

impl Partition {
    fn new(fetches: &Waits<Key>, key: Key) -> Arc<Self> {
        Arc::new(Self {
            log: RwLock::default(),
            reads: AtomicUsize::new(0),
            fetches: fetches.resolve(key),
        })
    }

    /// First the change, then the check, without the lock that a read takes.
    async fn append(&self, record: &[u8]) {
        self.log.write().await.push(record.to_vec());
        self.fetches.check_and_complete();
    }

    async fn read(&self, offset: usize) -> Records {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let log = self.log.read().await;
        log.get(offset..).unwrap_or_default().to_vec()
    }
}

fn bytes(records: &Records) -> usize {
    records.iter().map(Vec::len).sum()
}

/// What the consumer gets, and why it is not enough if it is not.
type Answer = (Records, Result<(), WaitError>);

/// A consumer that goes away drops this future, and with it the wait.
async fn fetch(
    fetches: &Waits<Key>,
    from: &[(Arc<Partition>, usize)],
    min_bytes: usize,
    max_wait: Duration,
) -> Answer {
    let read = || async {
        let mut records = Records::new(); // anew in every evaluation
        for (partition, offset) in from {
            records.extend(partition.read(*offset).await);
        }
        match bytes(&records) >= min_bytes {
            true => Ok(records),
            false => Err(records),
        }
    };
    let keys = from.iter().map(|(partition, _)| partition.fetches.watch());
    match fetches.listen(keys, max_wait).until_best(read).await {
        Ok(records) => (records, Ok(())),
        Err((records, reason)) => (records, Err(reason)), // expired; full, shut down, ...
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let builder = Waits::builder("fetch").max_parked(100_000); // clients choose how many
    let fetches = builder.max_timeout(Duration::from_secs(60)).build()?;
    let logs = [0, 1].map(|partition| {
        Partition::new(
            &fetches,
            Key {
                topic: 7,
                partition,
            },
        )
    });
    let both = logs.each_ref().map(|log| (log.clone(), 0));
    let reads = || logs[0].reads.load(Ordering::Relaxed);

    // Ten bytes from both partitions between them: the first append is not enough, the second is.
    let consumer = fetch(&fetches, &both, 10, Duration::from_secs(30));
    let producer = async {
        tokio::task::yield_now().await;
        logs[0].append(b"seven..").await;
        logs[1].append(b"four").await;
    };
    let ((records, end), ()) = tokio::join!(consumer, producer);
    let found = bytes(&records);
    println!("at least 10 bytes from two partitions: {found}, {end:?}");
    assert_eq!((found, end), (11, Ok(())));

    // More than there is: after `max_wait` the consumer gets what has been read already.
    let before = reads();
    let (records, end) = fetch(&fetches, &both, 1_000, Duration::from_millis(50)).await;
    let (found, read) = (bytes(&records), reads() - before);
    println!("at least 1,000 bytes, for at most 50 ms: {found}, {end:?}, read {read} time");
    assert_eq!((found, end, read), (11, Err(WaitError::Expired), 1));

    // A consumer that goes away leaves nothing behind.
    let gone = fetch(&fetches, &both, 1_000, Duration::from_secs(30));
    assert!(timeout(Duration::from_millis(5), gone).await.is_err());
    let Stats {
        parked,
        watched,
        cancelled,
        ..
    } = fetches.stats();
    println!("afterwards: {parked} parked, {watched} watches, {cancelled} cancelled");
    assert_eq!((parked, watched, cancelled), (0, 0, 1));

    tokio::task::spawn_blocking(move || fetches.shutdown()).await?; // it joins threads
    Ok(())
}
