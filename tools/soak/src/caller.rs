//! Who calls a purgatory at random, and what must be true after each call.

mod act;
mod check;
mod end;
mod park;

use crate::panics::lock;
use crate::record::Record;
use crate::stage::{Entry, Operation, Stage};
use fastrand::Rng;
use request_purgatory::Purgatory;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Who calls: an actor, or a callback.
pub(crate) struct Caller<'a> {
    pub(crate) stage: &'a Arc<Stage>,
    pub(crate) purgatory: &'a Purgatory<Operation>,
    pub(crate) random: &'a mut Rng,
    /// The depth of the operation whose callback this is; `None` for an actor.
    pub(crate) callback: Option<u32>,
}

impl Caller<'_> {
    fn pick(&mut self) -> Option<Entry> {
        self.stage.pick(self.random)
    }

    /// After this call the operation has ended, or is just being ended by another thread.
    fn must_end(&self, record: &Record, call: &str) {
        // A callback does not wait: what it waits for may need its thread.
        if self.callback.is_some() || !record.is_open() {
            return;
        }
        self.stage.accounts.waited.add(1);
        let start = Instant::now();
        while record.is_open() {
            if self.stage.ledger.is_out_of_patience(start) {
                let what = format!("still parked {:?} after {call}", start.elapsed());
                return self.stage.complain(what, record);
            }
            match start.elapsed() < Duration::from_micros(50) {
                true => thread::yield_now(),
                false => thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    /// The call said that it ended the operation.
    fn must_have_ended(&self, record: &Record, call: &str) {
        // In a callback the completion waits for the outermost call.
        if self.callback.is_none() && record.is_open() {
            let what = format!("{call} returned before the completion had run");
            self.stage.complain(what, record);
        }
    }

    /// A handle to what had ended before said that it did something.
    fn must_not_have_been_over(&self, over: bool, record: &Record, call: &str) {
        if over {
            let what = format!("{call} did something to an operation that had ended");
            self.stage.complain(what, record);
        }
    }

    /// Runs `call` under a lock that callbacks take too.
    fn behind_the_door(&self, call: impl FnOnce()) {
        match self.callback {
            // A callback may have the door already.
            Some(_) => call(),
            None => {
                let _door = lock(&self.stage.door);
                call();
            }
        }
    }
}
