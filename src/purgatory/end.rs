//! Ends an operation that this thread holds, whatever the reason. This file also has the calls that end operations
//! without an examination: force and cancel.

use super::inner::{ForceChange, Inner, Parked, Unreclaimed};
use super::keys::Keys;
use crate::callbacks::trampoline::Trampoline;
use crate::cell::address::Address;
use crate::cell::slab::{Ended, Held};
use crate::cell::state::Mark;
use crate::engine::deliver::{Outbox, RunOn, deliver};
use crate::engine::handler::EndedPayload;
use crate::hash::KeyHasher;
use crate::operation::{Completion, DelayedOperation};
use crate::scheme::Tick;
use crate::stats::Ending;
use crate::sync::Arc;
use crate::time::Timestamp;
use crate::watch::sweep::Sweep;
use equivalent::Equivalent;
use std::hash::Hash;

impl Ending {
    /// The completion that is reported to the operation. `None` after a panic.
    pub(super) fn completion(self) -> Option<Completion> {
        match self {
            Self::Satisfied | Self::Forced => Some(Completion::Satisfied),
            Self::Expired => Some(Completion::Expired),
            Self::Cancelled => Some(Completion::Cancelled),
            Self::ShutDown => Some(Completion::ShutDown),
            Self::Aborted => None,
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Ends an operation. The order matters:
    ///
    /// 1. Every address of the operation goes stale ([`Held::end_in_place`]): no other thread can end it.
    /// 2. The operation leaves the watch lists before its ending is counted. So when no call is in progress, the counts
    ///    and the lists agree: no ended operation has a watch.
    /// 3. The operation moves out of its slot, the slot and the timer are freed, and the ending is counted.
    ///
    /// A check takes the same steps in [`Check`](super::check::Check), under its own guard. An expiry takes another
    /// order: it counts the endings of a batch, and then reclaims the batch. If many operations expire at once, they
    /// are reclaimed only after their completions.
    pub(super) fn end_and_reclaim(
        &self,
        held: Held<'_, Parked<Op>>,
        ending: Ending,
    ) -> EndedPayload<Op> {
        let deadline = self.reported_deadline(&held, ending, None);
        self.reclaim_ended(held.end_in_place(), ending, deadline)
    }

    /// Steps 2 and 3 of [`end_and_reclaim`](Self::end_and_reclaim). Catches panics of keys.
    pub(super) fn reclaim_ended(
        &self,
        ended: Ended<'_, Parked<Op>>,
        ending: Ending,
        deadline: Option<Timestamp>,
    ) -> EndedPayload<Op> {
        let at = ended.address();
        ended.with(|parked| {
            self.observe_end(parked, ending, false, deadline);
            if self
                .engine
                .guarded(|| self.unwatch(&parked.keys, at))
                .is_err()
            {
                self.unwatch_one_by_one(&parked.keys, at);
            }
        });
        let (Parked { op, keys, .. }, spent) = ended.take();
        let shard = self.engine.shard(at.shard());
        self.engine.free(shard, spent, ending, keys.len());
        if std::mem::needs_drop::<Op::Key>() {
            let _ = self.engine.guarded(|| drop(keys));
        }
        EndedPayload::new(op, ending, at)
    }

    /// The deadline, if the report of this ending needs it. Must be read before the ending makes the address stale.
    pub(super) fn reported_deadline(
        &self,
        held: &Held<'_, Parked<Op>>,
        ending: Ending,
        known: Option<Tick>,
    ) -> Option<Timestamp> {
        let engine = &self.engine;
        if !engine.observe(|observer| observer.wants_deadline(ending)) {
            return None;
        }
        match known {
            Some(deadline) => Some(engine.scale.timestamp(deadline)),
            None => self.deadline(held.address()),
        }
    }

    /// Reports an ending to the user's recorder and subscriber.
    #[inline(always)]
    pub(super) fn observe_end(
        &self,
        parked: &Parked<Op>,
        ending: Ending,
        missed_check: bool,
        deadline: Option<Timestamp>,
    ) {
        let engine = &self.engine;
        engine.observe(|observer| {
            let watches = parked.keys.len();
            let now = || engine.clock.now();
            observer.ended(&parked.span, ending, missed_check, watches, deadline, now);
        });
    }

    /// Removes an ended operation from the lists of its keys. If a method of a key panics, dead watches stay in the
    /// lists. They do not keep the operation from ending, because its slot and timer depend on no key.
    #[inline(always)]
    pub(super) fn unwatch(&self, keys: &Keys<Op::Key>, at: Address) {
        let watch = &self.watch;
        keys.for_each(
            #[inline(always)]
            move |target, order| watch.remove(target, order, at),
        );
    }

    /// [Unwatches](Self::unwatch) an operation after a panic of one of its keys, so that only the watch of that key
    /// stays. Removing a watch twice is a no-op.
    #[cold]
    #[inline(never)]
    fn unwatch_one_by_one(&self, keys: &Keys<Op::Key>, at: Address) {
        keys.for_each(|target, order| {
            let _ = self.engine.guarded(|| self.watch.remove(target, order, at));
        });
    }

    /// Removes several operations from the lists of their keys, list by list.
    pub(super) fn unwatch_all(&self, batch: &[Unreclaimed<Op::Key>]) {
        let watches = batch.iter().map(|rest| rest.keys.len()).sum();
        let mut sweep = Sweep::of(&self.watch, watches);
        for rest in batch {
            let at = rest.slot.address();
            let added = self.engine.guarded(|| {
                rest.keys
                    .for_each(|target, order| sweep.add(target, order, at));
            });
            if added.is_err() {
                self.unwatch_one_by_one(&rest.keys, at);
            }
        }
        sweep.sort();
        while !sweep.is_done() {
            let _ = self.engine.guarded(|| sweep.step());
        }
    }

    /// Frees the permit of an ended operation, and returns the operation to the caller. Its `on_complete` does not run.
    pub(crate) fn return_to_caller(&self, ended: EndedPayload<Op>) -> Op {
        self.engine.permits.free(ended.permit);
        ended.value
    }

    /// Completes one operation, whether it can complete or not. Returns whether this call completed it.
    pub(crate) fn force_one(self: &Arc<Self>, address: Address) -> bool {
        let trampoline = Trampoline::enter();
        let Some(held) = self.engine.claim_or_mark(address, Mark::Force) else {
            return false;
        };
        let ended = self.end_and_reclaim(held, Ending::Forced);
        deliver(self, &trampoline, ended, RunOn::Caller);
        true
    }

    /// Completes every operation on `key`, after `change` (if given) has run on it. Returns how many operations this
    /// call completed.
    pub(crate) fn force_key<Q>(self: &Arc<Self>, key: &Q, change: Option<ForceChange<Op>>) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let trampoline = Trampoline::enter();
        let mut endings = Outbox::new(self, &trampoline, RunOn::Caller);
        let mut forced = 0;
        self.watch.visit_all(key, |watcher| {
            if let Some(change) = &change {
                // This drops an earlier change for the operation. The destructor of that change may panic.
                let _ = self.engine.guarded(|| self.changes.add(watcher, change));
            }
            if let Some(mut held) = self.engine.claim_or_mark(watcher, Mark::Force) {
                self.apply_change(&mut held);
                endings.push(self.end_and_reclaim(held, Ending::Forced));
                endings.hand_over_last();
                forced += 1;
            }
        });
        if change.is_some() {
            self.forget_changes();
        }
        forced
    }

    /// Drops the changes whose operations have ended before the changes were applied. The thread that ends an operation
    /// does not look for a change, because that lookup would burden every ending.
    pub(crate) fn forget_changes(&self) {
        let trampoline = Trampoline::enter();
        let is_parked = |watcher| self.engine.is_parked(watcher);
        // The destructor of a change is user code.
        let _ = self.engine.guarded(|| self.changes.forget(is_parked));
        self.engine.leave(trampoline);
    }

    /// Ends one operation for the reason that `mark` gives, and returns the operation without a completion.
    #[inline(always)]
    pub(super) fn take_back(self: &Arc<Self>, address: Address, mark: Mark) -> Option<Op> {
        let trampoline = Trampoline::enter();
        let held = self.engine.claim_or_mark(address, mark)?;
        let ended = self.end_and_reclaim(held, mark.into());
        let op = self.return_to_caller(ended);
        self.engine.leave(trampoline);
        Some(op)
    }

    /// Ends every operation on `key` without a completion, and returns the operations. If a panic interrupts this, the
    /// operations that had ended are completed as cancelled instead.
    pub(crate) fn cancel_key<Q>(self: &Arc<Self>, key: &Q) -> Vec<Op>
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let trampoline = Trampoline::enter();
        let mut endings = Outbox::new(self, &trampoline, RunOn::Caller);
        self.watch.visit_all(key, |watcher| {
            if let Some(held) = self.engine.claim_or_mark(watcher, Mark::Cancel) {
                endings.push(self.end_and_reclaim(held, Ending::Cancelled));
            }
        });
        let cancelled = endings.into_all();
        let cancelled = cancelled
            .map(|ended| self.return_to_caller(ended))
            .collect();
        self.engine.leave(trampoline);
        cancelled
    }
}
