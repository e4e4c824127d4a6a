//! What clients may take: each by itself without asking, and all of them together.

use crate::server::budget::{Budget, Share};
use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Memory that each connection has for itself: a request or an answer of this many bytes never waits for others.
pub(crate) const ALLOWANCE: usize = 32 * 1024;

/// Memory for the longer requests and answers of all connections, from the first byte that came to the last that went.
const IN_FLIGHT: usize = 64 * MIB;

/// Memory for what is parked of the longer requests. Past it they are answered at once, with what is there.
const PARKED: usize = 32 * MIB;

/// What an array element of a request takes at most once it is decoded, with its part of the answer.
pub(crate) const PER_ELEMENT: usize = 512;

/// Work on this many bytes is done beside the threads that serve all clients.
const HEAVY: usize = 256 * 1024;

/// How long a connection may be idle, as Kafka's `connections.max.idle.ms`.
pub(crate) const IDLE: Duration = Duration::from_secs(600);

/// How long a new connection may take until its first request.
pub(crate) const FIRST: Duration = Duration::from_secs(10);

/// How long a request may wait for memory before its connection is closed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

const MIB: usize = 1024 * 1024;
const UNIT: usize = 1024;

/// The budgets of one server.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) connections: Arc<Budget>,
    memory: Arc<Budget>,
    parked: Arc<Budget>,
    /// Turns at heavy work: half of the processors at most, so that light work always finds one.
    turns: Semaphore,
}

impl Limits {
    pub(crate) fn new(connections: usize) -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        Self {
            connections: Budget::new(connections),
            memory: Budget::new(IN_FLIGHT / UNIT),
            parked: Budget::new(PARKED / UNIT),
            turns: Semaphore::new((processors / 2).max(1)),
        }
    }

    pub(crate) fn memory(&self) -> Memory {
        Memory(self.memory.share())
    }

    pub(crate) fn parked(&self) -> Memory {
        Memory(self.parked.share())
    }

    /// Runs `work` on about `bytes` bytes: here if that is little, else on a thread of its own when its turn comes.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        if bytes < HEAVY {
            return Ok(work());
        }
        // INVARIANT: nothing closes the semaphore.
        let _turn = self
            .turns
            .acquire()
            .await
            .map_err(|error| error.to_string())?;
        let worked = tokio::task::spawn_blocking(work).await;
        worked.map_err(|error| format!("a request could not be worked on: {error}"))
    }
}

/// Bytes that a connection holds beyond its [`ALLOWANCE`].
#[derive(Debug)]
pub(crate) struct Memory(Share);

impl Memory {
    /// Waits until there is room for `bytes`, of which the connection may then fill memory.
    pub(crate) async fn hold(&mut self, bytes: usize) -> Result<(), String> {
        match tokio::time::timeout(PATIENCE, self.0.hold(units(bytes))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(REVOKED.to_owned()),
            Err(_) => Err(format!("no memory for {bytes} bytes in {PATIENCE:?}")),
        }
    }

    pub(crate) fn try_hold(&mut self, bytes: usize) -> bool {
        self.0.try_hold(units(bytes))
    }

    /// Resolves, with the reason, when the connection has to go so that others have room.
    pub(crate) async fn revoked(&self) -> String {
        self.0.revoked().await;
        REVOKED.to_owned()
    }
}

const REVOKED: &str = "too slow while other clients wait for memory";

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.saturating_sub(ALLOWANCE).div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// How long `bytes` may take on their way, in or out: ten seconds, and one more for each 64 KiB.
pub(crate) fn time_for(bytes: usize) -> Duration {
    Duration::from_secs(10) + Duration::from_secs((bytes / (64 * 1024)) as u64)
}
