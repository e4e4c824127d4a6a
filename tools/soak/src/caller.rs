//! One random call of a purgatory, and what must be true after it.

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

/// Operations that callbacks of operations that callbacks parked ... park: no more of them than this.
const DEPTH: u32 = 3;

/// Who calls: an actor, or a callback.
pub(crate) struct Caller<'a> {
    pub(crate) stage: &'a Arc<Stage>,
    pub(crate) purgatory: &'a Purgatory<Operation>,
    pub(crate) random: &'a mut Rng,
    /// The depth of the operation whose callback this is; `None` for an actor.
    pub(crate) callback: Option<u32>,
}

impl Caller<'_> {
    /// A few calls from inside a callback.
    pub(crate) fn nested(stage: &Arc<Stage>, seed: u64, depth: u32) {
        let mut random = Rng::with_seed(seed);
        let stage = match random.u64(..4) {
            0 => stage.neighbour().unwrap_or_else(|| stage.clone()),
            _ => stage.clone(),
        };
        // It may be dropped, and this be its last clone otherwise.
        let Some(purgatory) = stage.purgatory() else {
            return;
        };
        stage.accounts.nested.add(1);
        let mut caller = Caller {
            stage: &stage,
            purgatory: &purgatory,
            random: &mut random,
            callback: Some(depth),
        };
        caller.act();
    }

    pub(crate) fn act(&mut self) {
        self.stage.ledger.heartbeat.add(1);
        self.stage.calls.add(1);
        if let Some(early) = self.stage.plan.early {
            let due = self.stage.calls.read() >= early.calls;
            if due && early.from_callback == self.callback.is_some() && self.stage.claim_shutdown()
            {
                self.stage.shut_down();
            }
        }
        match self.random.u64(..1_000) {
            0..420 => self.park(),
            420..560 => self.produce(),
            560..720 => self.satisfy(),
            720..790 => self.check_anything(),
            790..850 => self.cancel_one(),
            850..890 => self.force_one(),
            890..935 => self.reschedule_one(),
            935..955 => self.stage.post(None, self.random),
            955..961 => self.cancel_key(),
            961..976 => self.force_key(),
            976..981 => self.bomb(),
            981..987 => drop(self.purgatory.advance()),
            987..990 => drop(self.purgatory.next_deadline()),
            990..996 => self.look_around(),
            _ => self.pause(),
        }
    }

    fn look_around(&mut self) {
        match self.random.u64(..40) {
            0 => drop(self.purgatory.snapshot()),
            1..10 => drop(self.purgatory.watched_keys()),
            10..20 => drop(format!("{:?}", self.purgatory)),
            _ => drop(self.purgatory.stats()),
        }
    }

    fn pause(&mut self) {
        if self.callback.is_none() {
            thread::sleep(Duration::from_micros(self.random.u64(1..=1_000)));
        } else {
            thread::yield_now();
        }
    }

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
