//! Parking.

use super::Caller;
use crate::key::{self, Key, OFFSETS};
use crate::ledger::Ending;
use crate::misbehaviour::Misbehaviour;
use crate::panics;
use crate::record::Record;
use crate::stage::{Entry, Operation};
use fastrand::Rng;
use request_purgatory::{
    Handle, purgatory::Admission, purgatory::RejectReason, purgatory::Rejected,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Operations that may be parked at once; beyond, actors do other things.
const CROWD: u64 = 15_000;
/// Operations that callbacks of operations that callbacks parked ... park: no more of them than this.
const DEPTH: u32 = 3;

fn timeout(random: &mut Rng) -> Duration {
    let micros = match random.u64(..20) {
        0 => 0,
        1..6 => random.u64(..5_000),
        6..12 => random.u64(..50_000),
        12..17 => random.u64(..250_000),
        17 => 3_600_000_000,
        18 => 400 * 86_400_000_000,
        _ => return Duration::MAX,
    };
    Duration::from_micros(micros)
}

impl Caller<'_> {
    pub(super) fn park(&mut self) {
        if self.stage.accounts.open() > CROWD {
            return self.thin_out();
        }
        let mut numbers = key::some(self.random);
        let with_offset = numbers.iter().copied().find(|key| *key < OFFSETS);
        let wait = with_offset
            .filter(|_| self.random.bool())
            .map(|key| (key, self.stage.offset(key) + self.random.u64(..30)));
        if self.random.u64(..500) == 0 {
            numbers.clear();
        }
        let mut keys = numbers.iter().copied().map(Key::new).collect::<Vec<_>>();
        // In a callback that runs while its thread unwinds, the key would not go off: it would when it is removed.
        let bomb = (self.random.u64(..400) == 0 && !thread::panicking()).then_some(key::BOMB);
        if bomb.is_some() {
            let place = self.random.usize(..=keys.len());
            keys.insert(place, Key::bomb(&self.stage.accounts, true));
        }
        numbers.extend(bomb);
        let mut misbehaviour = Misbehaviour::random(self.random);
        let depth = self.callback.map_or(0, |depth| depth + 1);
        if depth >= DEPTH {
            misbehaviour.reenters = None;
        }
        let timeout = timeout(self.random);
        let record = Arc::new(Record::new(&numbers, wait, self.stage.deadline(timeout)));
        self.stage.remember(&record, self.random);
        let op = Operation::new(record.clone(), self.stage, misbehaviour, timeout, depth);
        let closed = self.stage.shutdown_over.load(Ordering::SeqCst);
        let park = || {
            let outcome = self.purgatory.try_complete_else_watch(op, keys);
            outcome.map_err(Box::new)
        };
        match panics::tolerate(park) {
            None => {
                // The operation or its key has panicked, and this call made that panic its own.
                self.stage.accounts.unwound.add(1);
                if record.is_open() {
                    let what = "a park has panicked, and the operation is open".to_owned();
                    self.stage.complain(what, &record);
                }
            }
            Some(Ok(Admission::Ended)) => self.must_end(&record, "Admission::Ended"),
            Some(Ok(Admission::Parked(handle))) => {
                if closed {
                    let what = "parked after the shutdown".to_owned();
                    self.stage.complain(what, &record);
                }
                self.stage.post(Some(Entry { handle, record }), self.random);
            }
            Some(Err(rejected)) => {
                self.stage.accounts.refused.add(1);
                self.refused(*rejected, &record);
            }
        }
    }

    /// Whether the reason is a good one.
    fn refused(&self, rejected: Rejected<Operation>, record: &Record) {
        let plausible = match rejected.reason() {
            RejectReason::NoKeys => record.keys.is_empty(),
            RejectReason::Full => self.stage.plan.max_parked.is_some(),
            RejectReason::ShutDown => self.purgatory.is_shut_down(),
            _ => false,
        };
        if !plausible {
            self.stage
                .complain(format!("refused as {rejected:?}"), record);
        }
        rejected.into_inner().returned(Ending::Rejected);
    }

    fn thin_out(&mut self) {
        match self.random.bool() {
            true => self.cancel_key(),
            false => self.force_key(),
        }
    }

    /// Parks an operation that waits for ever and for nothing. `None` if there was no room.
    pub(crate) fn park_calmly(
        &mut self,
        key: u32,
        misbehaviour: Misbehaviour,
    ) -> Option<(Arc<Record>, Handle<Operation>)> {
        let timeout = Duration::MAX;
        let deadline = self.stage.deadline(timeout);
        let record = Arc::new(Record::new(&[key], None, deadline));
        self.stage.remember(&record, self.random);
        let op = Operation::new(record.clone(), self.stage, misbehaviour, timeout, DEPTH);
        match self.purgatory.try_complete_else_watch(op, [Key::new(key)]) {
            Ok(admission) => admission.into_handle().map(|handle| (record, handle)),
            Err(rejected) => {
                self.stage.accounts.refused.add(1);
                self.refused(rejected, &record);
                None
            }
        }
    }
}
