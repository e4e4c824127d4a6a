//! A delayed produce: what was appended is acknowledged when every replica has it, or not in time.
//!
//! ```text
//! cargo run --release -p examples --bin delayed_produce
//! ```
//!
//! Shown here: a *rank*. The produce watches its partition at the offset that it needs, and when the high watermark
//! moves, only the produces up to there are examined, however many wait for more. The waits are futures: [`Awaited`]
//! gives one for any operation.

use request_purgatory::future::Awaited;
use request_purgatory::{CheckBound, Completion, DelayedOperation, Purgatory, Watch};
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

type Produces = Purgatory<Awaited<DelayedProduce>>;
const PARTITION: u32 = 0;
const REPLICAS: usize = 3;

/// How far each replica has the log. The least of these is the high watermark.
#[derive(Default)]
struct Partition(Mutex<[u64; REPLICAS]>);

impl Partition {
    fn high_watermark(&self) -> u64 {
        self.0.lock().unwrap().iter().copied().min().unwrap_or(0)
    }

    /// A replica has the log up to `end`.
    fn replicated(&self, produces: &Produces, replica: usize, end: u64) {
        self.0.lock().unwrap()[replica] = end;
        // Without the lock, and only those that need no more than this.
        produces
            .check_and_complete_with(&PARTITION, CheckBound::all().up_to(self.high_watermark()));
    }
}

struct DelayedProduce {
    partition: Arc<Partition>,
    required: u64,
    timeout: Duration,
}

impl DelayedOperation for DelayedProduce {
    type Key = u32;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        self.partition.high_watermark() >= self.required
    }

    fn on_complete(self, _: Completion) {} // not called: it is awaited instead
}

/// Waits until the high watermark has reached `required`.
async fn produce(
    produces: &Produces,
    partition: &Arc<Partition>,
    required: u64,
    timeout: Duration,
) -> Result<(), &'static str> {
    let partition = partition.clone();
    let produce = DelayedProduce {
        partition,
        required,
        timeout,
    };
    let watch = Watch::from(PARTITION).at_rank(required);
    let replicated = produces
        .completion(produce, [watch])
        .map_err(|_| "THROTTLED")?;
    match replicated.await {
        Ok((_, Completion::Satisfied)) => Ok(()),
        // The record may be replicated yet: the producer has to ask, or to repeat it.
        Ok((_, Completion::Expired)) => Err("REQUEST_TIMED_OUT"),
        _ => Err("NOT_LEADER"), // cancelled, or shut down
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let produces = Produces::builder("produce").max_parked(100_000).build()?;
    let partition = Arc::new(Partition::default());

    // Followers that copy the leader's log, the last of them slowly.
    let (leader, log_end) = watch::channel(0);
    for replica in 1..REPLICAS {
        let (partition, produces, mut log_end) =
            (partition.clone(), produces.clone(), log_end.clone());
        tokio::spawn(async move {
            while log_end.changed().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5 * replica as u64)).await;
                let end = *log_end.borrow();
                partition.replicated(&produces, replica, end);
            }
        });
    }

    // A hundred producers: each appends one record, and waits until all three have it.
    let mut producers = JoinSet::new();
    for end in 1..=100 {
        partition.replicated(&produces, 0, end);
        leader.send(end)?;
        let (produces, partition) = (produces.clone(), partition.clone());
        producers.spawn(async move {
            produce(&produces, &partition, end, Duration::from_secs(30)).await
        });
        if end % 10 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    let results = producers.join_all().await;
    let acknowledged = results.iter().filter(|result| result.is_ok()).count();
    let stats = produces.stats();
    println!(
        "{acknowledged} of 100 produces acknowledged, after {} examinations",
        stats.checks
    );
    assert_eq!(acknowledged, 100);
    assert!(
        stats.checks <= 100,
        "a rank above the high watermark is never examined"
    );

    // The followers are lost: the producer learns in time that the outcome is not known.
    drop(leader);
    let lost = produce(&produces, &partition, 101, Duration::from_millis(50)).await;
    println!("without followers: {lost:?}");
    assert_eq!(lost, Err("REQUEST_TIMED_OUT"));

    // Nor does it wait that long when the leadership is lost: every request that waits for the partition is answered.
    let moved = produce(&produces, &partition, 101, Duration::from_secs(30));
    let lose = async {
        tokio::task::yield_now().await;
        drop(produces.cancel_for_key(&PARTITION));
    };
    let (moved, ()) = tokio::join!(moved, lose);
    println!("leadership lost: {moved:?}");
    assert_eq!((moved, produces.stats().parked), (Err("NOT_LEADER"), 0));

    tokio::task::spawn_blocking(move || produces.shutdown()).await?; // it joins threads
    Ok(())
}
