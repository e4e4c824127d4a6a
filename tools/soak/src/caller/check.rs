//! Making operations satisfiable, and checking keys.

use super::Caller;
use crate::key::{self, Key};
use crate::panics;
use crate::record::Record;
use std::thread;

/// The number of operations that are examined after an event on a key.
const SAMPLE: usize = 6;

impl Caller<'_> {
    fn check(&mut self, key: u32) {
        let completed = self.purgatory.check_and_complete(&Key::new(key));
        self.stage.accounts.said_completed.add(completed as u64);
    }

    fn check_later(&mut self, key: Key) {
        self.behind_the_door(|| self.purgatory.check_later(key));
    }

    /// A check that came after the event was over at `now`. (Inside a `try_complete` it is made later, and the deadline
    /// may come before.)
    fn was_checked(&self, record: &Record, now: u64) {
        if self.callback.is_none() {
            record.was_checked(now);
        }
    }

    /// An event on a key that many may wait for, and the check that must follow it.
    pub(super) fn produce(&mut self) {
        let key = key::with_offset(self.random);
        self.stage.append(key);
        if self.random.u64(..5) == 0 {
            return self.check_later(Key::new(key));
        }
        // Who is parked now, and satisfied by now, does not survive the check.
        let mut satisfied = Vec::new();
        for _ in 0..SAMPLE {
            let entry = self.pick();
            satisfied.extend(entry.filter(|entry| {
                let reached = |(waited, target)| waited == key && self.stage.offset(key) >= target;
                entry.record.wait.is_some_and(reached)
            }));
        }
        self.check(key);
        let now = self.stage.now();
        for entry in satisfied {
            self.was_checked(&entry.record, now);
            self.must_end(&entry.record, "an event and a check of its key");
        }
    }

    /// An event that concerns one operation, and some kind of check.
    pub(super) fn satisfy(&mut self) {
        let Some(entry) = self.pick() else {
            return;
        };
        let record = &entry.record;
        let over = record.is_over();
        record.make_ready();
        let key = record.keys[self.random.usize(..record.keys.len())];
        match self.random.u64(..8) {
            0..4 => {
                self.check(key);
                self.was_checked(record, self.stage.now());
                self.must_end(record, "an event and a check of its key");
            }
            4..6 => {
                if entry.handle.check() {
                    self.stage.accounts.said_completed.add(1);
                    self.must_have_ended(record, "Handle::check");
                    self.must_not_have_been_over(over, record, "Handle::check");
                }
                self.was_checked(record, self.stage.now());
                self.must_end(record, "an event and Handle::check");
            }
            _ => {
                self.check_later(Key::new(key));
                self.must_end(record, "an event and check_later");
            }
        }
        if record.is_over() && entry.handle.is_parked() {
            let what = "is_parked after the completion".to_owned();
            self.stage.complain(what, record);
        }
    }

    pub(super) fn check_anything(&mut self) {
        match self.random.u64(..8) {
            0 => match self.pick() {
                Some(entry) => {
                    let completed = entry.handle.check();
                    self.stage.accounts.said_completed.add(completed.into());
                    let _ = (entry.handle.remaining(), entry.handle.deadline());
                }
                None => self.check_any(),
            },
            1 => {
                let key = Key::new(key::any(self.random));
                self.check_later(key);
            }
            _ => self.check_any(),
        }
    }

    fn check_any(&mut self) {
        let key = key::any(self.random);
        self.check(key);
    }

    /// A key that panics when it is hashed.
    pub(super) fn bomb(&mut self) {
        // While the thread unwinds, the key does not panic here; it would later, where the accounts say nothing of it.
        if thread::panicking() {
            return;
        }
        let accounts = &self.stage.accounts;
        match self.random.u64(..3) {
            0 => {
                let key = Key::bomb(accounts, false);
                panics::tolerate(|| self.purgatory.check_later(key));
            }
            1 => {
                let key = Key::bomb(accounts, false);
                panics::tolerate(|| self.purgatory.check_and_complete(&key));
            }
            _ => {
                let key = Key::bomb(accounts, false);
                panics::tolerate(|| self.purgatory.cancel_for_key(&key));
            }
        }
    }
}
