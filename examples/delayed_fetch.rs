//! A delayed fetch: a consumer waits until its partitions have enough bytes between them, or until its time is up.
//!
//! ```text
//! cargo run --release -p examples --bin delayed_fetch
//! ```
//!
//! Shown here: an operation that watches several keys, [resolved](ResolvedKey) ones, so that an append hashes nothing;
//! its answer goes to the task that waits through a oneshot channel. The broker in `examples/broker` speaks Kafka's
//! protocol around the same.

use request_purgatory::stats::Stats;
use request_purgatory::{Completion, DelayedOperation, Handle, Purgatory, ResolvedKey};
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Topic and partition.
type Key = (&'static str, u32);

struct Partition {
    log: Mutex<Vec<Vec<u8>>>,
    fetches: ResolvedKey<DelayedFetch>,
}

impl Partition {
    fn new(fetches: &Purgatory<DelayedFetch>, key: Key) -> Arc<Self> {
        Arc::new(Self {
            log: Mutex::default(),
            fetches: fetches.resolve(key),
        })
    }

    /// First the change, then the check, without the lock that `try_complete` takes.
    fn append(&self, record: &[u8]) {
        self.log.lock().unwrap().push(record.to_vec());
        self.fetches.check_and_complete();
    }

    fn bytes_from(&self, offset: usize) -> usize {
        let log = self.log.lock().unwrap();
        log.iter().skip(offset).map(Vec::len).sum()
    }
}

/// What the consumer gets: how many bytes there are, and why the wait ended.
type Answer = (usize, Completion);

struct DelayedFetch {
    from: Vec<(Arc<Partition>, usize)>,
    min_bytes: usize,
    max_wait: Duration,
    answer: oneshot::Sender<Answer>,
}

impl DelayedFetch {
    fn bytes(&self) -> usize {
        let from = self.from.iter();
        from.map(|(partition, offset)| partition.bytes_from(*offset))
            .sum()
    }
}

impl DelayedOperation for DelayedFetch {
    type Key = Key;

    fn timeout(&self) -> Duration {
        self.max_wait
    }

    fn try_complete(&mut self) -> bool {
        self.bytes() >= self.min_bytes
    }

    fn on_complete(self, completion: Completion) {
        // However it ended, the consumer gets the readable records. (It may have disconnected.)
        let bytes = self.bytes();
        let _ = self.answer.send((bytes, completion));
    }
}

/// Parks a fetch, and awaits its answer.
async fn fetch(
    fetches: &Purgatory<DelayedFetch>,
    from: Vec<(Arc<Partition>, usize)>,
    min_bytes: usize,
    max_wait: Duration,
) -> Result<Answer, Box<dyn Error>> {
    let (answer, answered) = oneshot::channel();
    let partitions = from.clone();
    let keys = partitions.iter().map(|(partition, _)| &partition.fetches);
    let fetch = DelayedFetch {
        from,
        min_bytes,
        max_wait,
        answer,
    };
    let admission = fetches.try_complete_else_watch(fetch, keys.map(|key| key.watch()))?; // full, or shut down
    // A consumer that goes away drops this future, and with the guard its fetch.
    let _guard = CancelOnDrop(admission.into_handle());
    Ok(answered.await?)
}

struct CancelOnDrop(Option<Handle<DelayedFetch>>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.take().and_then(|handle| handle.cancel());
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let builder = Purgatory::builder("fetch").max_parked(100_000); // clients choose how many
    let fetches = builder.max_timeout(Duration::from_secs(60)).build()?;
    let logs = [0, 1].map(|number| Partition::new(&fetches, ("logs", number)));
    let both = || logs.iter().map(|log| (log.clone(), 0)).collect::<Vec<_>>();

    // Ten bytes from both partitions between them: the first append is not enough, the second is.
    let consumer = fetch(&fetches, both(), 10, Duration::from_secs(30));
    let producer = async {
        tokio::task::yield_now().await;
        logs[0].append(b"seven..");
        logs[1].append(b"four");
    };
    let (answer, ()) = tokio::join!(consumer, producer);
    println!("at least 10 bytes from two partitions: {answer:?}");
    assert_eq!(answer?, (11, Completion::Satisfied));

    // More than there is: after `max_wait` the consumer gets what there is.
    let answer = fetch(&fetches, both(), 1_000, Duration::from_millis(50)).await?;
    println!("at least 1,000 bytes, for at most 50 ms: {answer:?}");
    assert_eq!(answer, (11, Completion::Expired));

    // A consumer that goes away leaves nothing behind.
    let gone = fetch(&fetches, both(), 1_000, Duration::from_secs(30));
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
