//! What the passing of time does: expiring operations, and checks put off until later.

use super::core::{Address, Core};
use super::ready::Ready;
use crate::cell::state::Mark;
use crate::operation::DelayedOperation;
use crate::reaper::{Driven, Rest};
use crate::stats::Ending;
use crate::sync::{Arc, Ordering};
use crate::time::ticks::{NEVER, Tick};
use crate::turn::Turn;
use std::hash::BuildHasher;

impl<Op: DelayedOperation, S: BuildHasher + Clone + Send + Sync + 'static> Core<Op, S> {
    /// Does everything that is due now. Returns how many operations this expired.
    ///
    /// What user code makes due meanwhile, however close, is left for the next call, so that this one ends.
    pub(crate) fn advance(self: &Arc<Self>) -> usize {
        let turn = Turn::enter();
        self.check_put_off();
        let now = self.now();
        (0..self.homes.len())
            .map(|home| self.advance_home(&turn, home, now))
            .sum()
    }

    fn check_put_off(self: &Arc<Self>) {
        for _ in 0..self.later.len() {
            let Some(key) = self.later.pop() else { return };
            // Only a `Hash` or `Eq` of the key can panic in here, and it has been counted.
            let _ = self.guarded(|| self.check_key(&key));
        }
    }

    fn advance_home(self: &Arc<Self>, turn: &Turn, home: usize, now: Tick) -> usize {
        let mut expired = 0;
        let mut left = self.home(home).timers();
        while left > 0 {
            let due = self.home(home).drain(now);
            left = left.saturating_sub(due.fired.len());
            let mut ready = Ready::new();
            for (at, deadline) in due.fired {
                let address = Address { home, at };
                expired += usize::from(self.expire(address, deadline, now, &mut ready));
            }
            self.deliver(turn, ready);
            if !due.more {
                break;
            }
        }
        expired
    }

    /// Sets the alarm anew, to what is to be done next. Returns whether that could be earlier than the sleeper knows.
    fn rearm(&self) -> bool {
        self.alarm.reset();
        let mut earlier = !self.later.is_empty() && self.alarm.set(0);
        for home in &self.homes {
            if let Some(next) = home.next_deadline() {
                earlier |= self.alarm.set(next);
            }
        }
        earlier
    }

    /// The same on behalf of a caller who is not the reaper: that must hear of it. (A reactor is the caller itself.)
    pub(crate) fn rearm_for_caller(&self) {
        if self.rearm() && self.threads.has_reaper() {
            self.threads.wake();
        }
    }

    /// Ends one operation whose deadline has passed, or has its holder do so.
    fn expire(
        self: &Arc<Self>,
        address: Address,
        deadline: Tick,
        now: Tick,
        ready: &mut Ready<Op>,
    ) -> bool {
        let Some(mut tenant) = self.begin(address, Mark::Expire) else {
            return false;
        };
        let events = &self.home(address.home).events;
        let could = self.guarded(|| tenant.held.with(|parked| parked.op.try_complete()));
        let ending = match could {
            Ok(could) => {
                events.missed_checks.add(u64::from(could));
                Ending::Expired
            }
            Err(_) => Ending::Aborted,
        };
        let late = self.scale.duration(now - deadline).as_nanos();
        let late = u64::try_from(late).unwrap_or(u64::MAX);
        events.lateness_total.add(late);
        events.lateness_max.raise_to(late);
        self.end_into(tenant, ending, ready);
        true
    }

    /// Asks for a check of `key` by whoever drives the timer. Takes no lock and runs no user code.
    pub(crate) fn check_later(&self, key: Op::Key) {
        self.later.push(key);
        self.announce(Some(0));
    }

    /// When something is to be done next; the sleeper is woken if that becomes earlier.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        self.rearm_for_caller();
        Some(self.alarm.time()).filter(|&next| next != NEVER)
    }

    /// Ends every operation and the threads, once.
    pub(crate) fn shut_down(self: &Arc<Self>) {
        // ORDERING: AcqRel pairs with the Acquire in `is_closed`; a swap, so that one caller does the work.
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let turn = Turn::enter();
        for (number, home) in self.homes.iter().enumerate() {
            // After this nobody gets a slot here. Who has one and is still being registered is held, and will find
            // the mark.
            home.close();
            let mut ready = Ready::new();
            for at in home.tenants() {
                let address = Address { home: number, at };
                if let Some(tenant) = self.begin(address, Mark::ShutDown) {
                    self.end_into(tenant, Ending::ShutDown, &mut ready);
                }
            }
            self.deliver(&turn, ready);
        }
        self.threads.stop();
    }
}

impl<Op: DelayedOperation, S: BuildHasher + Clone + Send + Sync + 'static> Driven for Core<Op, S> {
    fn drive(self: Arc<Self>) -> Rest {
        if self.is_closed() {
            return Rest::Done;
        }
        let due = self.alarm.time();
        if due != NEVER && due <= self.now() {
            self.advance();
            self.rearm();
        }
        match self.alarm.time() {
            NEVER => Rest::UntilWoken,
            next => match self.clock.time_until(self.timestamp(next)) {
                Some(time) => Rest::For(time),
                None => Rest::UntilWoken,
            },
        }
    }
}
