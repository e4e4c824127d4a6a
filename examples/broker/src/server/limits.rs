//! What clients may take: each by itself without asking, and all of them together.

use crate::exchange::MAX_ANSWER;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Memory that each connection has for itself: a request or an answer of this many bytes never waits for others.
pub(crate) const ALLOWANCE: usize = 32 * 1024;

/// Memory for the longer requests and answers of all connections, from the first byte that came to the last that went.
/// (Not counted: what groups keep.)
const IN_FLIGHT: usize = 2 * MAX_ANSWER;

/// What an array element of a request takes at most once it is decoded, with its part of the answer.
pub(crate) const PER_ELEMENT: usize = 512;

/// Work on this many bytes is done beside the threads that serve all clients.
pub(crate) const HEAVY: usize = 256 * 1024;

/// How much of such work goes on at once.
const TURNS: usize = 1;

/// How long a connection may be idle, as Kafka's `connections.max.idle.ms`.
pub(crate) const IDLE: Duration = Duration::from_secs(600);

/// How long a new connection may take until its first request.
pub(crate) const FIRST: Duration = Duration::from_secs(10);

/// How long a request may wait for memory before its connection is closed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most kinds of refusals that are told.
const MAX_REFUSALS: usize = 100;

const MIB: usize = 1024 * 1024;
const UNIT: usize = 1024;

pub(crate) struct Limits {
    memory: Arc<Semaphore>,
    /// Turns at heavy work: few, since the threads that do it keep memory of their own.
    turns: Semaphore,
    /// What was refused, once for each kind of client.
    refused: Mutex<BTreeSet<String>>,
}

/// Memory beyond a connection's [`ALLOWANCE`]. Given back when dropped.
pub(crate) type Share = OwnedSemaphorePermit;

impl Limits {
    pub(crate) fn new() -> Self {
        Self {
            memory: Arc::new(Semaphore::new(IN_FLIGHT / UNIT)),
            turns: Semaphore::new(TURNS),
            refused: Mutex::default(),
        }
    }

    /// Waits until there is room for `bytes`. What is longer than all that there is waits for all.
    pub(crate) async fn memory(&self, bytes: usize) -> Result<Share, String> {
        let units = bytes.saturating_sub(ALLOWANCE).div_ceil(UNIT);
        let share = units.min(IN_FLIGHT / UNIT) as u32;
        let share = Arc::clone(&self.memory).acquire_many_owned(share);
        match timeout(PATIENCE, share).await {
            Ok(Ok(share)) => Ok(share),
            _ => Err(format!("no memory for {bytes} bytes in {PATIENCE:?}")),
        }
    }

    /// Does `work` on about `bytes` bytes. If that is much, it waits for its turn, and other tasks leave this thread.
    pub(crate) async fn work<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        if bytes < HEAVY {
            return work();
        }
        // INVARIANT: nothing closes the semaphore.
        let _turn = self.turns.acquire().await;
        tokio::task::block_in_place(work)
    }

    /// Whether this has not been refused before. (Of more kinds than clients have, no more are told.)
    pub(crate) fn is_first_refusal(&self, why: &str) -> bool {
        let mut refused = self.refused.lock();
        refused.len() < MAX_REFUSALS && refused.insert(why.to_owned())
    }
}

/// How long `bytes` may take on their way, in or out: ten seconds, and one more for each MiB.
pub(crate) fn time_for(bytes: usize) -> Duration {
    Duration::from_secs(10) + Duration::from_secs((bytes / MIB) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So a client that sends many short requests at once gets no more than its turn, even if it awaits no answers.
    #[tokio::test]
    async fn a_task_that_takes_memory_again_and_again_lets_others_go_on() {
        let (limits, other) = (Limits::new(), tokio::spawn(async {}));
        for _ in 0..200 {
            drop(limits.memory(100).await.expect("it is short"));
        }
        assert!(other.is_finished());
    }
}
