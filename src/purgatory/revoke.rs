//! Force, cancel and reschedule, by key and by handle.

use super::inner::{ForceCause, Inner};
use crate::address::Address;
use crate::cell::state::Mark;
use crate::engine::dispatch::{Endings, RunOn, dispatch};
use crate::hash::KeyHasher;
use crate::operation::DelayedOperation;
use crate::stats::Ending;
use crate::sync::Arc;
use crate::trampoline::Trampoline;
use equivalent::Equivalent;
use std::hash::Hash;

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Completes one operation whether it can or not. Returns whether this call did it.
    pub(crate) fn force_one(self: &Arc<Self>, address: Address) -> bool {
        let trampoline = Trampoline::enter();
        let Some(claim) = self.engine.claim(address, Mark::Force) else {
            return false;
        };
        let ended = self.end_and_reclaim(claim, Ending::Forced);
        dispatch(self, &trampoline, ended, RunOn::Caller);
        true
    }

    /// Completes every operation on `key`, after `cause` has changed it, if there is one. Returns how many this call did.
    pub(crate) fn force_key<Q>(self: &Arc<Self>, key: &Q, cause: Option<&ForceCause<Op>>) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let trampoline = Trampoline::enter();
        let mut endings = Endings::new(self, &trampoline, RunOn::Caller);
        let mut forced = 0;
        self.watch.visit_all(key, |watcher| {
            if let Some(cause) = cause {
                self.causes.leave(watcher, cause);
            }
            if let Some(mut claim) = self.engine.claim(watcher, Mark::Force) {
                self.apply_cause(&mut claim);
                endings.push(self.end_and_reclaim(claim, Ending::Forced));
                forced += 1;
            }
        });
        if cause.is_some() {
            self.causes.forget(|watcher| self.engine.is_parked(watcher));
        }
        forced
    }

    /// Takes one operation back without a completion.
    pub(crate) fn cancel_one(self: &Arc<Self>, address: Address) -> Option<Op> {
        let trampoline = Trampoline::enter();
        let claim = self.engine.claim(address, Mark::Cancel)?;
        let ended = self.end_and_reclaim(claim, Ending::Cancelled);
        let op = self.give_back(ended);
        self.engine.leave(trampoline);
        Some(op)
    }

    /// Takes every operation on `key` back. If that panics, those that were taken are completed as cancelled instead.
    pub(crate) fn cancel_key<Q>(self: &Arc<Self>, key: &Q) -> Vec<Op>
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let trampoline = Trampoline::enter();
        let mut endings = Endings::new(self, &trampoline, RunOn::Caller);
        self.watch.visit_all(key, |watcher| {
            if let Some(claim) = self.engine.claim(watcher, Mark::Cancel) {
                endings.push(self.end_and_reclaim(claim, Ending::Cancelled));
            }
        });
        let cancelled = endings.into_all().map(|ended| self.give_back(ended));
        let cancelled = cancelled.collect();
        self.engine.leave(trampoline);
        cancelled
    }
}
