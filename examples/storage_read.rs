//! Fetches that read a remote storage: an operation that owns a future, polls it in every examination, and has itself
//! examined again when the future says so. One whose read is under way at its deadline gets more time, once.
//!
//! ```text
//! cargo run --release -p examples --bin storage_read
//! ```
//!
//! Shown here: a waker of the operation ([`Cause::waker`]) and a deadline that is put off ([`Cause::reschedule`]). Kafka
//! does both by hand in its delayed remote fetches (KAFKA-20783, KAFKA-19291).

use request_purgatory::purgatory::Cause;
use request_purgatory::{Completion, DelayedOperation, Purgatory};
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;

const MAX_WAIT: Duration = Duration::from_millis(200);
/// How much longer a fetch waits for a read that has begun.
const REMOTE_WAIT: Duration = Duration::from_millis(800);

type Read = Pin<Box<dyn Future<Output = &'static str> + Send>>;

/// How a fetch ended: what it read, and whether it got more time.
type Answer = (Option<&'static str>, bool);

struct RemoteFetch {
    read: Read,
    found: Option<&'static str>,
    /// Made once: every call of `Cause::waker` makes another.
    waker: Option<Waker>,
    got_more_time: bool,
    answer: oneshot::Sender<Answer>,
}

impl DelayedOperation for RemoteFetch {
    type Key = u32;

    fn timeout(&self) -> Duration {
        MAX_WAIT
    }

    fn try_complete(&mut self) -> bool {
        self.found.is_some()
    }

    fn try_complete_for(&mut self, cause: Cause<'_, u32>) -> bool {
        let waker = self.waker.get_or_insert_with(|| cause.waker());
        if self.found.is_none() {
            match self.read.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Ready(records) => self.found = Some(records),
                Poll::Pending if cause.is_deadline() && !self.got_more_time => {
                    self.got_more_time = true;
                    cause.reschedule(REMOTE_WAIT);
                }
                Poll::Pending => {}
            }
        }
        self.try_complete()
    }

    // Satisfied, or expired: with what it has found.
    fn on_complete(self, _: Completion) {
        let _ = self.answer.send((self.found, self.got_more_time)); // the client may have gone
    }
}

/// A storage that takes its time: it answers from a task of its own.
fn read_after(time: Duration) -> Read {
    let read = tokio::spawn(async move {
        sleep(time).await;
        "records"
    });
    Box::pin(async { read.await.unwrap_or("the read has failed") })
}

async fn fetch(
    fetches: &Purgatory<RemoteFetch>,
    name: &str,
    storage: Duration,
) -> Result<Answer, Box<dyn Error>> {
    let (answer, is_answered) = oneshot::channel();
    let op = RemoteFetch {
        read: read_after(storage),
        found: None,
        waker: None,
        got_more_time: false,
        answer,
    };
    fetches.try_complete_else_watch(op, [1])?;
    let (found, more) = is_answered.await?;
    println!("{name}: {found:?}, more time: {more}");
    Ok((found, more))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let fetches = Arc::new(Purgatory::new("remote fetches"));
    let [fast, slow, never] = [1, 400, 60_000].map(Duration::from_millis);
    assert_eq!(
        fetch(&fetches, "a fast read", fast).await?,
        (Some("records"), false)
    );
    assert_eq!(
        fetch(&fetches, "a slow read", slow).await?,
        (Some("records"), true)
    );
    assert_eq!(fetch(&fetches, "a lost read", never).await?, (None, true));
    let stats = fetches.stats();
    println!(
        "{} satisfied, {} expired, {} deadlines put off",
        stats.completed, stats.expired, stats.extended
    );
    assert_eq!((stats.completed, stats.expired, stats.extended), (2, 1, 2));
    tokio::task::spawn_blocking(move || fetches.shutdown()).await?; // it joins threads
    Ok(())
}
