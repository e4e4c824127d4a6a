//! What is parked: an operation that answers as it is told, and keeps a log.

use super::call::Answer;
use crate::support::lock;
use request_purgatory::time::Timestamp;
use request_purgatory::{Completion, DelayedOperation, future::WaitError};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How an operation ended, as far as the user is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Completion(Completion),
    /// Only the task that awaits it hears of that.
    Lost(WaitError),
}

/// Completions in the order in which they came.
pub(crate) type Log = Arc<Mutex<Vec<(usize, Completion)>>>;

/// What an operation answers from now on.
#[derive(Debug, Clone)]
pub(crate) struct Says(Arc<AtomicU8>);

impl Says {
    pub(crate) fn new(answer: Answer) -> Self {
        Self(Arc::new(AtomicU8::new(answer as u8)))
    }

    pub(crate) fn set(&self, answer: Answer) {
        self.0.store(answer as u8, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Answer {
        let answers = [Answer::No, Answer::Yes, Answer::Panic];
        answers[usize::from(self.0.load(Ordering::Relaxed))]
    }
}

pub(crate) struct Op {
    pub(crate) number: usize,
    pub(crate) timeout: Duration,
    pub(crate) arrival: Option<Timestamp>,
    /// For the first question only.
    pub(crate) first: Option<Answer>,
    pub(crate) says: Says,
    pub(crate) fragile: bool,
    pub(crate) log: Log,
}

impl DelayedOperation for Op {
    type Key = u8;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn arrival(&self) -> Option<Timestamp> {
        self.arrival
    }

    fn try_complete(&mut self) -> bool {
        match self.first.take().unwrap_or_else(|| self.says.now()) {
            Answer::No => false,
            Answer::Yes => true,
            Answer::Panic => panic(),
        }
    }

    fn on_complete(self, completion: Completion) {
        lock(&self.log).push((self.number, completion));
        if self.fragile {
            panic();
        }
    }
}

/// Without the hook: that would print it, and a fuzzer's takes every panic for a failure.
fn panic() -> ! {
    resume_unwind(Box::new("intended"))
}
