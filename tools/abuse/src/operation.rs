//! The operation that is parked: small, and with an end of the scenario's choice.

use anyhow::{Result, anyhow};
use request_purgatory::{Completion, DelayedOperation, Purgatory, time::Clock, time::Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

/// What an operation does besides waiting.
#[derive(Debug)]
pub(crate) enum Kind {
    Plain,
    /// Can complete once this is set.
    When(Arc<AtomicBool>),
    /// Its `try_complete` takes so long.
    SlowLook(Duration),
    /// Its `on_complete` takes so long, and then tells so.
    SlowEnd(Duration, Sender<()>),
    /// Tells how long after this moment it completed.
    Timed(Timestamp, Instant, Sender<Duration>),
}

#[derive(Debug)]
pub(crate) struct Operation {
    timeout: Duration,
    kind: Kind,
}

impl Operation {
    pub(crate) fn new(timeout: Duration, kind: Kind) -> Self {
        Self { timeout, kind }
    }
}

impl DelayedOperation for Operation {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        match &self.kind {
            Kind::When(ready) => ready.load(Ordering::Acquire),
            Kind::SlowLook(time) => {
                thread::sleep(*time);
                false
            }
            _ => false,
        }
    }

    fn on_complete(self, _: Completion) {
        match self.kind {
            // The scenario may have stopped listening.
            Kind::SlowEnd(time, tell) => {
                thread::sleep(time);
                let _ = tell.send(());
            }
            Kind::Timed(deadline, clock, tell) => {
                let _ = tell.send(clock.now().saturating_since(deadline));
            }
            _ => {}
        }
    }
}

pub(crate) fn park(
    purgatory: &Purgatory<Operation>,
    timeout: Duration,
    kind: Kind,
    keys: &[u64],
) -> Result<()> {
    purgatory
        .try_complete_else_watch(Operation::new(timeout, kind), keys.iter().copied())
        .map(drop)
        .map_err(|refused| anyhow!("an operation to abuse with: {refused}"))
}
