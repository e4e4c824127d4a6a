//! The end of an operation, for whatever reason. The calling thread holds the operation: no other thread has access to
//! it. This file also has force and cancel: the calls that end operations without asking them whether they can
//! complete.

use super::inner::{ForceChange, Inner, Parked, Unreclaimed};
use super::keys::Keys;
use crate::callbacks::examining::{Examining, Trigger};
use crate::callbacks::trampoline::{Trampoline, drop_user_value};
use crate::cell::address::Address;
use crate::cell::slab::{Ended, Held};
use crate::cell::state::Mark;
use crate::engine::deliver::{Outbox, deliver};
use crate::engine::handler::EndedPayload;
use crate::hash::KeyHasher;
use crate::operation::{Completion, DelayedOperation};
use crate::stats::Ending;
use crate::sync::Arc;
use crate::watch::sweep::Sweep;
use equivalent::Equivalent;
use std::hash::Hash;

impl Ending {
    /// The completion that `on_complete` gets after this ending. `None` for an operation that was aborted by a panic:
    /// the operation is dropped, and its `on_complete` does not run.
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
    /// Ends a held operation, frees its slot and its timer, and returns the operation. The order of the steps matters:
    ///
    /// 1. [`Held::end_in_place`] makes every address of the operation stale. From now on no other thread can end it.
    /// 2. The operation is removed from the watch lists. This step comes before the ending is counted: otherwise a
    ///    thread that has read the count could still find a watch of the ended operation.
    /// 3. The operation moves out of its slot, the slot and the timer are freed, and the ending is counted.
    ///
    /// A check takes the same steps in [`Check`](super::check::Check), with a guard of its own against panics. An
    /// expiry takes another order: it counts the endings of a batch of operations first, and frees their slots, timers
    /// and watches later. If many operations expire at once, their completions run before their slots are freed.
    pub(super) fn end_and_reclaim(
        &self,
        held: Held<'_, Parked<Op>>,
        ending: Ending,
    ) -> EndedPayload<Op> {
        let ended = self.end_reported(held, ending, false);
        self.reclaim_reported(ended, ending)
    }

    /// Undoes a park in which user code has panicked: removes the watches, frees the timer, the slot and the permit,
    /// and drops the operation.
    #[cold]
    #[inline(never)]
    pub(super) fn unpark(&self, held: Held<'_, Parked<Op>>) {
        let ended = self.end_and_reclaim(held, Ending::Aborted);
        let op = self.return_to_caller(ended);
        // Catch a panic of the operation's destructor. If this thread is unwinding already, a second panic would abort
        // the process.
        let _ = self.engine.guarded(|| drop(op));
    }

    /// Makes every address of a held operation stale: step 1 of [`end_and_reclaim`](Self::end_and_reclaim). Then
    /// reports the ending to the observer. `missed_check` says that the operation expired although it could have
    /// completed.
    #[inline(always)]
    pub(super) fn end_reported<'a>(
        &self,
        held: Held<'a, Parked<Op>>,
        ending: Ending,
        missed_check: bool,
    ) -> Ended<'a, Parked<Op>> {
        let ended = held.end_in_place();
        ended.with(|parked| self.observe_end(parked, ending, missed_check));
        ended
    }

    /// Removes an ended operation from its watch lists, frees its slot and its timer, and returns it: steps 2 and 3 of
    /// [`end_and_reclaim`](Self::end_and_reclaim). Its address is stale already, and its ending was reported to the
    /// observer. Catches panics of keys.
    pub(super) fn reclaim_reported(
        &self,
        ended: Ended<'_, Parked<Op>>,
        ending: Ending,
    ) -> EndedPayload<Op> {
        let at = ended.address();
        ended.with(|parked| {
            let unwatched = self.engine.guarded(|| self.unwatch(&parked.keys, at));
            if unwatched.is_err() {
                self.unwatch_one_by_one(&parked.keys, at);
            }
        });
        let (Parked { op, keys, .. }, spent) = ended.take();
        let shard = self.engine.shard(at.shard());
        self.engine.free(shard, spent, ending, keys.len());
        self.drop_keys(keys);
        EndedPayload::new(op, ending, at)
    }

    /// Drops the keys of an ended operation. Catches and counts a panic of a key's destructor. If the destructors of
    /// two keys panic, the process aborts, as it does for two keys in a `Vec`.
    #[inline(always)]
    pub(super) fn drop_keys(&self, keys: Keys<Op::Key>) {
        // Keys without a destructor need no guard. Their memory is freed all the same when this method returns.
        if std::mem::needs_drop::<Op::Key>() {
            let _ = self.engine.guarded(|| drop(keys));
        }
    }

    /// Reports an ending to the user's metrics recorder and tracing subscriber. `missed_check` says that the operation
    /// expired although it could have completed.
    #[inline(always)]
    pub(super) fn observe_end(&self, parked: &Parked<Op>, ending: Ending, missed_check: bool) {
        let engine = &self.engine;
        engine.observe(|observer| {
            let watches = parked.keys.len();
            let now = || engine.clock.now();
            observer.ended(&parked.span, ending, missed_check, watches, now);
        });
    }

    /// Removes an ended operation from the watch lists of its keys. If `Hash` or `Eq` of a key panics, the panic is
    /// passed on, and the remaining watches stay in their lists as dead entries: their address is stale, so no check
    /// examines the operation. The operation still ends, because its slot and its timer depend on no key.
    #[inline(always)]
    pub(super) fn unwatch(&self, keys: &Keys<Op::Key>, at: Address) {
        let watch = &self.watch;
        keys.for_each(
            #[inline(always)]
            move |target, order| watch.remove(target, order, at),
        );
    }

    /// Called after a key has panicked in [`unwatch`](Self::unwatch): removes the watches once more, with a guard for
    /// each. So only the key that panics keeps a dead watch. Removing a watch that has been removed already does
    /// nothing.
    #[cold]
    #[inline(never)]
    fn unwatch_one_by_one(&self, keys: &Keys<Op::Key>, at: Address) {
        keys.for_each(|target, order| {
            let _ = self.engine.guarded(|| self.watch.remove(target, order, at));
        });
    }

    /// Removes several ended operations from the watch lists of their keys. The watches are sorted by map shard first,
    /// so that each hold of a shard's lock removes many of them.
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
            let before = sweep.left();
            let stepped = self.engine.guarded(|| sweep.step());
            // If a step has panicked before it removed a watch, every further step would panic too, and the loop would
            // not end. That happens in a debug build if this thread is inside `Hash` or `Eq` of a key: such a method
            // runs under a lock and must not call the library, so each step panics.
            if stepped.is_err() && sweep.left() == before {
                break;
            }
        }
    }

    /// Frees the permit of an ended operation (its share of `max_parked` and `max_weight`), and returns the operation.
    /// Its `on_complete` does not run.
    pub(crate) fn return_to_caller(&self, ended: EndedPayload<Op>) -> Op {
        self.engine.permits.free(ended.permit);
        ended.value
    }

    /// Completes one operation, whether it can complete or not. Returns whether this call completed it. `false` if the
    /// operation has ended already, or if a thread holds it: that thread finds [`Mark::Force`] and completes it.
    pub(crate) fn force_one(self: &Arc<Self>, address: Address) -> bool {
        let trampoline = Trampoline::enter();
        let Some(held) = self.engine.claim_or_mark(address, Mark::Force) else {
            return false;
        };
        let ended = self.end_and_reclaim(held, Ending::Forced);
        deliver(self, &trampoline, ended);
        true
    }

    /// Completes every operation on `key`, after `change` (if given) has been applied to it. Returns how many
    /// operations this call completed. An operation that another thread holds is not among them: its holder applies the
    /// change, and completes it.
    pub(crate) fn force_key<Q>(self: &Arc<Self>, key: &Q, change: Option<ForceChange<Op>>) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let trampoline = Trampoline::enter();
        let mut endings = Outbox::new(self, &trampoline);
        let mut forced = 0;
        self.watch.visit_all(key, |watcher| {
            // Add no change for an operation that has ended: after a storm of expiries, a million of them may still be
            // in the list, and each change would stay until the end of this call.
            let change = change.as_ref().filter(|_| self.engine.is_parked(watcher));
            if let Some(change) = change {
                // `add` replaces the change that an earlier call may have left for this operation, and drops it. The
                // destructor of that earlier change may panic.
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

    /// Applies the [`ForceChange`] that a forcing call has left for this held operation: a
    /// closure that changes the operation before it ends. Does nothing if there is no such closure.
    #[cold]
    pub(super) fn apply_change(&self, held: &mut Held<'_, Parked<Op>>) {
        if let Some(change) = self.changes.take(held.address()) {
            let _examining = Examining::enter(held.examinee(), Trigger::Check);
            // If the change panics, the panic is counted, and the operation still ends.
            let engine = &self.engine;
            let _ = engine.guarded(|| held.with(|parked| change(&mut parked.op)));
            let _ = engine.guarded(|| drop_user_value(change));
        }
    }

    /// Drops the [`ForceChange`] that a forcing call has left for this held operation, if
    /// there is one. Called if an examination has found the operation satisfied: it then ends unchanged.
    pub(super) fn drop_change(&self, held: &Held<'_, Parked<Op>>) {
        let change = self.changes.take(held.address());
        let _ = self.engine.guarded(|| drop_user_value(change));
    }

    /// Drops the closures ([`ForceChange`]) that no thread will run any more. If another thread holds an operation,
    /// `force_key` leaves a closure for it, which that thread runs before it forces the operation to end. But that
    /// thread may end the operation for another reason. Then it usually does not look for a closure, because the lookup
    /// would make every ending slower, and the closure is left over.
    pub(crate) fn forget_changes(&self) {
        let trampoline = Trampoline::enter();
        let is_parked = |watcher| self.engine.is_parked(watcher);
        // The destructor of a closure is user code, and may panic.
        let _ = self.engine.guarded(|| self.changes.forget(is_parked));
        self.engine.leave(trampoline);
    }

    /// Ends one operation as `mark` says (cancelled or expired), and returns it. Its `on_complete` does not run. `None`
    /// if the operation has ended already, or if a thread holds it: that thread finds `mark` and ends it.
    #[inline(always)]
    pub(super) fn take_back(self: &Arc<Self>, address: Address, mark: Mark) -> Option<Op> {
        let trampoline = Trampoline::enter();
        let held = self.engine.claim_or_mark(address, mark)?;
        let ended = self.end_and_reclaim(held, mark.into());
        let op = self.return_to_caller(ended);
        self.engine.leave(trampoline);
        Some(op)
    }

    /// Cancels every operation on `key`, and returns those that this call has ended. Their `on_complete` does not run.
    /// An operation that another thread holds is not among them: its holder completes it as cancelled. If `Hash` or
    /// `Eq` of a key panics, the operations that this call has ended are completed as cancelled too, and not returned.
    pub(crate) fn cancel_key<Q>(self: &Arc<Self>, key: &Q) -> Vec<Op>
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let trampoline = Trampoline::enter();
        let mut endings = Outbox::new(self, &trampoline);
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
