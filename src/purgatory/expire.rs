//! What the passing of time does: expiring operations, and checks put off until later.

use super::core::{Address, Core, Later};
use super::home::Home;
use super::ready::{Ready, Site};
use crate::cell::state::Mark;
use crate::operation::{DelayedOperation, KeyHasher};
use crate::reaper::{Driven, Rest};
use crate::stats::Ending;
use crate::sync::{Arc, Ordering};
use crate::time::ticks::{NEVER, Tick};
use crate::turn::Turn;

impl<Op: DelayedOperation, S: KeyHasher> Core<Op, S> {
    /// Does everything that is due now. Returns how many operations this expired.
    ///
    /// What user code makes due meanwhile, however close, is left for the next call, so that this one ends.
    pub(crate) fn advance(self: &Arc<Self>) -> usize {
        let turn = Turn::enter();
        self.check_put_off();
        let now = self.now();
        self.homes
            .iter()
            .map(|home| self.advance_home(&turn, home, now))
            .sum()
    }

    fn check_put_off(self: &Arc<Self>) {
        for _ in 0..self.later.len() {
            // Only `Hash` or `Eq` of a key, or its destructor, can panic in here.
            let _ = self.guarded(|| match self.later.pop() {
                Some(Later::Key(key)) => drop(self.check_key(&key, Site::Elsewhere)),
                Some(Later::Operation(address)) => drop(self.check_one(address, Site::Elsewhere)),
                None => {}
            });
        }
    }

    /// Expires what is due in one home, slice by slice.
    fn advance_home(self: &Arc<Self>, turn: &Turn, home: &Home<Op>, now: Tick) -> usize {
        let mut expired = 0;
        let mut left = home.begin_pass(now);
        while left > 0 {
            let due = home.drain(now);
            left = left.saturating_sub(due.fired.len());
            let mut ready = Ready::new();
            let mut ended = Vec::with_capacity(due.fired.len());
            for (at, deadline) in due.fired {
                let home = home.number;
                if self.expire(Address { home, at }, &mut ready) {
                    ended.push(deadline);
                }
            }
            expired += ended.len();
            self.book_lateness(home, &ended);
            self.deliver(turn, ready, Site::Here);
            if !due.more {
                break;
            }
        }
        expired
    }

    /// Ends one operation whose deadline has passed, or has its holder do so. Returns whether this call did it.
    fn expire(self: &Arc<Self>, address: Address, ready: &mut Ready<Op>) -> bool {
        let Some(mut tenant) = self.begin(address, Mark::Expire) else {
            return false;
        };
        let could = self.look(&mut tenant);
        if let Ok(true) = could {
            tenant.home.events.missed_checks.add(1);
        }
        let ending = could.map_or(Ending::Aborted, |_| Ending::Expired);
        self.end_into(tenant, ending, ready);
        ending == Ending::Expired
    }

    /// Books how late the operations with these deadlines were ended: all of them by now.
    fn book_lateness(&self, home: &Home<Op>, deadlines: &[Tick]) {
        // (The clock may be the user's. If it panics, nothing is booked.)
        if let (false, Ok(now)) = (deadlines.is_empty(), self.guarded(|| self.clock.now())) {
            for &deadline in deadlines {
                let late = now.saturating_since(self.scale.timestamp(deadline));
                let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
                home.events.lateness_total.add(late);
                home.events.lateness_max.raise_to(late);
            }
        }
    }

    /// Sets the alarm anew, to what is to be done next. Returns that, and whether it could be earlier than the
    /// sleeper knows.
    fn rearm(&self) -> (Tick, bool) {
        self.alarm.reset();
        let put_off = (!self.later.is_empty()).then_some(0);
        let buckets = self.homes.iter().filter_map(|home| home.next_deadline());
        let mut next = NEVER;
        let mut earlier = false;
        for deadline in put_off.into_iter().chain(buckets) {
            next = next.min(deadline);
            earlier |= self.alarm.set(deadline);
        }
        // Others may have reset the alarm just now, or set it to what they knew: the earlier one counts.
        (next.min(self.alarm.time()), earlier)
    }

    /// The same on behalf of a caller who is not the reaper: that must hear of it. (A reactor is the caller itself.)
    pub(crate) fn rearm_for_caller(&self) -> Tick {
        let (next, earlier) = self.rearm();
        if earlier && self.threads.has_reaper() {
            self.threads.wake();
        }
        next
    }

    /// Has a check done by whoever drives the timer. Takes no lock and runs no user code.
    pub(crate) fn put_off(&self, check: Later<Op::Key>) {
        if !self.is_closed() {
            self.later.push(check);
            self.announce(Some(0));
        }
        // A shutdown meanwhile may not have seen it.
        if self.is_closed() {
            self.forget_put_off();
        }
    }

    fn forget_put_off(&self) {
        while let Some(check) = self.later.pop() {
            // The destructor of a key may panic.
            let _ = self.guarded(|| drop(check));
        }
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
            self.deliver(&turn, ready, Site::Here);
        }
        self.forget_put_off();
        drop(turn);
        self.threads.stop();
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Driven for Core<Op, S> {
    fn drive(self: Arc<Self>) -> Rest {
        if self.is_closed() {
            return Rest::Done;
        }
        let mut next = self.alarm.time();
        if next != NEVER && next <= self.now() {
            self.advance();
            (next, _) = self.rearm();
        }
        // What no reading of the clock can reach is never due.
        if next == NEVER || !self.scale.can_come(next) {
            return Rest::UntilWoken;
        }
        match self.clock.time_until(self.timestamp(next)) {
            Some(time) => Rest::For(time),
            None => Rest::UntilWoken,
        }
    }
}
