//! A log whose readers wait for records, where a read has to await its storage: no predicate can look at that.
//!
//! ```text
//! cargo run --release -p examples --bin listener
//! ```
//!
//! `fetch` is the part to read: a long poll with `min_bytes`, by `until`, with a recheck as a net. `follow` does by hand
//! what `until` does inside, with a listener that lasts: a stream of records.

use request_purgatory::Waits;
use request_purgatory::future::WaitError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::RwLock;

const RECORDS: usize = 1_000;
/// All readers wait for this key. With several logs, the key would be the log.
const LOG: u32 = 0;

/// Stands for a database: every read awaits.
#[derive(Default)]
struct Storage(RwLock<Vec<String>>);
impl Storage {
    async fn read(&self, from: usize) -> Vec<String> {
        let records = self.0.read().await;
        records.get(from..).unwrap_or_default().to_vec()
    }
}

#[derive(Clone)]
struct Log {
    storage: Arc<Storage>,
    waits: Waits<u32>,
}

impl Log {
    async fn append(&self, record: String) {
        self.storage.0.write().await.push(record);
        // After the change. The thread that appends runs none of the readers' code but their wakers.
        self.waits.check_and_complete(&LOG);
    }

    /// The records from `from` on, once they have `min_bytes` together. Reads anew after every check.
    async fn fetch(&self, from: usize, min_bytes: usize) -> Result<Vec<String>, WaitError> {
        let read = || async {
            let records = self.storage.read(from).await;
            let bytes = records.iter().map(String::len).sum::<usize>();
            (bytes >= min_bytes).then_some(records)
        };
        let listener = self.waits.listen([LOG], Duration::from_secs(5));
        let rechecked = listener.recheck_every(Duration::from_secs(1)); // what it finds is counted
        rechecked.until(read).await
    }

    /// Calls `each` for every record, until that says no, or nothing was appended for a second.
    async fn follow(&self, mut each: impl FnMut(String) -> bool) -> Result<(), WaitError> {
        let mut next = 0;
        let mut listener = self.waits.listen([LOG], None);
        loop {
            for record in self.storage.read(next).await {
                next += 1;
                if !each(record) {
                    listener.satisfied();
                    return Ok(());
                }
            }
            // Cancel-safe, so it may stand in any `select` or timeout.
            let checked = tokio::time::timeout(Duration::from_secs(1), listener.checked());
            checked.await.unwrap_or(Err(WaitError::Expired))?;
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (storage, waits) = (Arc::default(), Waits::new("log"));
    let log = Log { storage, waits };
    let (fetches, follows) = (log.clone(), log.clone());
    let fetcher = tokio::spawn(async move { fetches.fetch(10, 100).await });
    let follower = tokio::spawn(async move {
        let mut seen = Vec::new();
        let collect = |record| {
            seen.push(record);
            seen.len() < RECORDS
        };
        follows.follow(collect).await.map(|()| seen)
    });
    for number in 0..RECORDS {
        log.append(format!("record {number}")).await;
    }
    let (fetched, followed) = (fetcher.await??, follower.await??);
    let all = (0..RECORDS).map(|number| format!("record {number}"));
    assert!(all.eq(followed), "each record, in order");
    let stats = log.waits.stats();
    assert_eq!(stats.missed_checks, 0);
    println!("fetched {}, from {:?} on", fetched.len(), fetched[0]);
    println!("followed {RECORDS} records, {} parked now", stats.parked);
    Ok(())
}
