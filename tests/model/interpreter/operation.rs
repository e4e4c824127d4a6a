//! What is parked: an operation that answers as it is told, does what it is told to do, and keeps a log.

use super::call::{Act, Answer, Arriving};
use crate::support::lock;
use request_purgatory::future::{Awaited, WaitError};
use request_purgatory::purgatory::{Cause, RejectReason};
use request_purgatory::time::Timestamp;
use request_purgatory::{Completion, DelayedOperation};
use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How an operation ended, as far as the task that awaits it is told.
pub(crate) type Told = Result<Completion, WaitError>;

/// For what an operation is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Because {
    Parking,
    Key(u8),
    Deadline,
    Other,
}

/// What the user hears of, in the order in which it happens. Operations by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Asked(usize, Because),
    Completed(usize, Completion),
    /// It was dropped without an end, because it had panicked.
    Dropped(usize),
    /// The change of a forced completion was made.
    Changed(usize),
    /// `check_where` has asked whether this key is concerned.
    Picked(u8),
    /// The task that awaits it was woken.
    Woken(usize),
    Told(usize, Told),
    /// A call has returned this.
    Returned(Outcome),
}

/// What a call returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Nothing,
    Flag(bool),
    Count(usize),
    Operations(Vec<usize>),
    /// Whether it is parked.
    Admitted(bool),
    Refused(RejectReason, usize),
    /// The call has panicked, with this operation.
    Panicked(usize),
}

impl From<bool> for Outcome {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<usize> for Outcome {
    fn from(count: usize) -> Self {
        Self::Count(count)
    }
}

/// What an operation answers from now on.
pub(crate) type Says = Arc<Mutex<Answer>>;

/// Who makes the calls of operations.
pub(crate) trait Caller: Send + Sync {
    fn note(&self, event: Event);
    fn act_all(&self, acts: &[Act], itself: usize);
}

pub(crate) struct Op {
    pub(crate) number: usize,
    pub(crate) is: Arc<Arriving>,
    pub(crate) timeout: Duration,
    pub(crate) arrival: Option<Timestamp>,
    /// For the first question only.
    pub(crate) first: Option<Answer>,
    pub(crate) says: Says,
    pub(crate) caller: Weak<dyn Caller>,
    /// Its destructor is told.
    pub(crate) told_of_drop: bool,
}

impl Op {
    /// It has come back, and its destructor tells nothing.
    pub(crate) fn returned(mut self) -> usize {
        self.told_of_drop = false;
        self.number
    }

    /// The library calls it, and it makes these calls.
    fn called(&self, event: Event, acts: &[Act]) {
        if let Some(caller) = self.caller.upgrade() {
            caller.note(event);
            caller.act_all(acts, self.number);
        }
    }
}

impl DelayedOperation for Op {
    type Key = u8;

    fn timeout(&self) -> Duration {
        NAMED.set(self.number);
        self.timeout
    }

    fn arrival(&self) -> Option<Timestamp> {
        self.arrival
    }

    fn try_complete(&mut self) -> bool {
        unreachable!("it is told for what it is asked")
    }

    fn try_complete_for(&mut self, cause: Cause<'_, u8>) -> bool {
        let because = match cause.key() {
            Some(key) => Because::Key(*key),
            None if cause.is_parking() => Because::Parking,
            None if cause.is_deadline() => Because::Deadline,
            None => Because::Other,
        };
        let is = [
            cause.key().is_some(),
            cause.is_parking(),
            cause.is_deadline(),
        ];
        assert!(is.into_iter().filter(|is| *is).count() <= 1, "{is:?}");
        self.called(Event::Asked(self.number, because), &self.is.asked);
        match self.first.take().unwrap_or_else(|| *lock(&self.says)) {
            Answer::No => false,
            Answer::Yes => true,
            Answer::Panic => panic(),
        }
    }

    fn on_complete(mut self, completion: Completion) {
        self.told_of_drop = false;
        self.called(Event::Completed(self.number, completion), &self.is.ended);
        if self.is.fragile {
            panic();
        }
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if self.told_of_drop {
            self.called(Event::Dropped(self.number), &self.is.ended);
        }
    }
}

thread_local!(static NAMED: Cell<usize> = const { Cell::new(0) });

/// The number of an operation that shows only what every operation has.
pub(crate) fn named(op: &Awaited<Op>) -> usize {
    op.timeout();
    NAMED.get()
}

/// Without the hook: that would print it, and a fuzzer's takes every panic for a failure.
fn panic() -> ! {
    resume_unwind(Box::new("intended"))
}
