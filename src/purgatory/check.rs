//! Checks, and the other things that can be done to the operations on a key or behind a handle.

use super::core::{Core, address_of};
use super::end::Examined;
use crate::cell::state::Mark;
use crate::engine::Address;
use crate::engine::deliver::{Ready, Site, deliver};
use crate::engine::home::Rescheduled;
use crate::operation::{Completion, DelayedOperation, KeyHasher};
use crate::stats::Ending;
use crate::sync::Arc;
use crate::turn::Turn;
use std::borrow::Borrow;
use std::hash::Hash;
use std::time::Duration;

/// What a check came to.
#[derive(Debug, Default)]
struct Outcome {
    completed: usize,
    in_vain: u64,
}

impl<Op: DelayedOperation, S: KeyHasher> Core<Op, S> {
    /// Checks every operation on `key`. Returns how many this completed.
    #[inline(always)]
    pub(crate) fn check_key<Q>(self: &Arc<Self>, key: &Q, site: Site) -> usize
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // Most checks find nobody: the turn begins with the first watcher.
        let mut turn = None;
        let mut ready = Ready::new();
        let mut outcome = Outcome::default();
        self.watch.visit(key, |watcher| {
            turn.get_or_insert_with(Turn::enter);
            self.check_into(address_of(watcher), &mut outcome, &mut ready);
        });
        match turn {
            Some(turn) => self.conclude(&turn, outcome, ready, site),
            None => 0,
        }
    }

    /// Checks one operation. Returns whether this completed it.
    pub(crate) fn check_one(self: &Arc<Self>, address: Address, site: Site) -> bool {
        let turn = Turn::enter();
        let mut ready = Ready::new();
        let mut outcome = Outcome::default();
        self.check_into(address, &mut outcome, &mut ready);
        self.conclude(&turn, outcome, ready, site) == 1
    }

    #[inline(always)]
    fn check_into(
        self: &Arc<Self>,
        address: Address,
        outcome: &mut Outcome,
        ready: &mut Ready<(Op, Completion)>,
    ) {
        let Some(mut tenant) = self.engine.begin(address, Mark::Recheck) else {
            return;
        };
        let answer = self.look(&mut tenant);
        match self.settle(tenant, answer, ready) {
            Examined::Ended(Ending::Satisfied) => outcome.completed += 1,
            Examined::Ended(_) => {}
            Examined::Aborted(op) => self.discard(op),
            Examined::Parked => outcome.in_vain += 1,
        }
    }

    #[inline(always)]
    fn conclude(
        self: &Arc<Self>,
        turn: &Turn,
        outcome: Outcome,
        ready: Ready<(Op, Completion)>,
        site: Site,
    ) -> usize {
        if outcome.in_vain > 0 {
            let home = self.engine.my_home();
            home.events.vain_checks.add(outcome.in_vain);
        }
        deliver(self, turn, ready, site);
        outcome.completed
    }

    /// Completes one operation whether it can or not. Returns whether this call did it.
    pub(crate) fn force_one(self: &Arc<Self>, address: Address) -> bool {
        let turn = Turn::enter();
        let mut ready = Ready::new();
        let forced = self.force_into(address, &mut ready);
        deliver(self, &turn, ready, Site::Here);
        forced
    }

    /// The same for every operation on `key`. Returns how many this call did.
    pub(crate) fn force_key<Q>(self: &Arc<Self>, key: &Q) -> usize
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let turn = Turn::enter();
        let mut ready = Ready::new();
        let mut forced = 0;
        self.watch.visit(key, |watcher| {
            forced += usize::from(self.force_into(address_of(watcher), &mut ready));
        });
        deliver(self, &turn, ready, Site::Here);
        forced
    }

    fn force_into(self: &Arc<Self>, address: Address, ready: &mut Ready<(Op, Completion)>) -> bool {
        match self.engine.begin(address, Mark::Force) {
            Some(tenant) => {
                self.end_into(tenant, Ending::Forced, ready);
                true
            }
            None => false,
        }
    }

    /// Takes one operation back without a completion.
    pub(crate) fn cancel_one(&self, address: Address) -> Option<Op> {
        let tenant = self.engine.begin(address, Mark::Cancel)?;
        Some(self.end(tenant, Ending::Cancelled))
    }

    /// The same for every operation on `key`.
    pub(crate) fn cancel_key<Q>(&self, key: &Q) -> Vec<Op>
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut cancelled = Vec::new();
        self.watch.visit(key, |watcher| {
            cancelled.extend(self.cancel_one(address_of(watcher)));
        });
        cancelled
    }

    /// Gives every operation on `key` another deadline. Returns how many got it.
    pub(crate) fn reschedule_key<Q>(&self, key: &Q, timeout: Duration) -> usize
    where
        Op::Key: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut rescheduled = std::collections::HashSet::new();
        self.watch.visit(key, |watcher| {
            if let Rescheduled::Done(_) = self.engine.reschedule(address_of(watcher), timeout) {
                rescheduled.insert(watcher);
            }
        });
        rescheduled.len()
    }
}
