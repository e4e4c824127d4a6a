//! One random call.

use super::Caller;
use crate::stage::Stage;
use fastrand::Rng;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

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
}
