//! Cancelling, forcing, and other deadlines.

use super::Caller;
use crate::key::{self, Key};
use crate::ledger::Ending;
use std::sync::Arc;
use std::sync::TryLockError;
use std::time::Duration;

impl Caller<'_> {
    pub(super) fn cancel_one(&mut self) {
        let Some(entry) = self.pick() else {
            return;
        };
        let over = entry.record.is_over();
        match entry.handle.cancel() {
            Some(op) => {
                self.must_not_have_been_over(over, &entry.record, "Handle::cancel");
                if !Arc::ptr_eq(&op.record, &entry.record) {
                    let what = format!("Handle::cancel gave back {:?}, not", op.record);
                    self.stage.complain(what, &entry.record);
                }
                op.returned(Ending::TakenBack);
            }
            None => self.must_end(&entry.record, "Handle::cancel"),
        }
    }

    pub(super) fn force_one(&mut self) {
        let Some(entry) = self.pick() else {
            return;
        };
        let over = entry.record.is_over();
        if entry.handle.force_complete() {
            self.must_not_have_been_over(over, &entry.record, "Handle::force_complete");
            self.must_have_ended(&entry.record, "Handle::force_complete");
        } else {
            self.must_end(&entry.record, "Handle::force_complete");
        }
    }

    pub(super) fn cancel_key(&mut self) {
        let key = key::any(self.random);
        self.cancel(key);
    }

    pub(crate) fn cancel(&mut self, key: u32) {
        for op in self.purgatory.cancel_for_key(&Key::new(key)) {
            if !op.record.keys.contains(&key) {
                let what = format!("given back for the key {key}");
                self.stage.complain(what, &op.record);
            }
            op.returned(Ending::TakenBack);
        }
    }

    pub(super) fn force_key(&mut self) {
        let key = key::any(self.random);
        self.force(key);
    }

    pub(crate) fn force(&mut self, key: u32) {
        self.purgatory.force_complete_for_key(&Key::new(key));
    }

    pub(super) fn reschedule_one(&mut self) {
        let Some(entry) = self.pick() else {
            return;
        };
        let record = &entry.record;
        // One at a time, so that the ledger knows which deadline counts.
        let _turn = match record.rescheduling.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let timeout = match self.random.u64(..8) {
            0 => Duration::MAX,
            1 => Duration::from_secs(3_600),
            _ => Duration::from_micros(self.random.u64(..200_000)),
        };
        let over = record.is_over();
        let before = record.deadline();
        let after = self.stage.deadline(timeout);
        // Until the call returns, either may count.
        record.set_deadline(before.min(after));
        let rescheduled = entry.handle.reschedule(timeout);
        record.set_deadline(if rescheduled { after } else { before });
        if rescheduled {
            self.must_not_have_been_over(over, record, "Handle::reschedule");
        }
    }
}
