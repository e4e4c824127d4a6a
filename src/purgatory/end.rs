//! Examining an operation, and ending it: because it is satisfied, forced or cancelled.

use super::checked_key::Checked;
use super::deferred::CheckTarget;
use super::inner::{ForceChange, Inner, Parked, Unreclaimed};
use super::keys::Keys;
#[cfg(debug_assertions)]
use super::stuck::NotedCall;
use crate::address::Address;
use crate::cell::slab::Held;
use crate::cell::state::{Mark, Unreleased};
use crate::engine::UserPanic;
use crate::engine::deliver::{Outbox, RunOn, deliver};
use crate::engine::handler::EndedPayload;
use crate::examining::{Examinee, Examining, Trigger};
use crate::hash::KeyHasher;
use crate::operation::{Cause, Completion, DelayedOperation};
use crate::stats::Ending;
use crate::sync::{Arc, MAX_EXAMINATIONS};
use crate::trampoline::{Trampoline, drop_user_value};
use crate::watch::Target;
use crate::watch::bound::{Bound, Order};
use crate::watch::sweep::Sweep;
use equivalent::Equivalent;
use std::hash::Hash;

/// What became of an examined operation.
pub(crate) enum Examined<Op> {
    /// This thread has released it at this address: then it was parked.
    Parked(Address),
    /// This thread has ended it.
    Ended(EndedPayload<Op>),
}

impl Ending {
    /// What the operation is told. (After a panic, nothing.)
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

impl From<Mark> for Ending {
    fn from(mark: Mark) -> Self {
        match mark {
            Mark::Examine => unreachable!("an examination ends nothing by itself"),
            Mark::Force => Self::Forced,
            Mark::Cancel => Self::Cancelled,
            Mark::Expire => Self::Expired,
            Mark::ShutDown => Self::ShutDown,
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// While the result exists, this thread is inside the `try_complete` of an operation.
    pub(super) fn enter_try_complete(
        &self,
        of: Examinee,
        trigger: Trigger,
    ) -> impl Sized + use<Op, S> {
        let examining = Examining::enter(of, trigger);
        #[cfg(debug_assertions)]
        let examining = (
            NotedCall::begin::<Op, Op::Key>(&self.engine.name),
            examining,
        );
        examining
    }

    /// Examines one operation for the key that is `checked`; for no key in particular if there is none. Returns it if
    /// this has ended it. If another thread holds it, that one will examine it again. If it was examined and stays
    /// parked, this calls `in_vain`.
    #[inline(always)]
    pub(crate) fn examine(
        self: &Arc<Self>,
        address: Address,
        checked: Option<&dyn Checked<Op::Key>>,
        in_vain: impl FnOnce(),
    ) -> Option<EndedPayload<Op>> {
        let mut held = self.engine.claim_or_mark(address, Mark::Examine)?;
        let inside = self.enter_try_complete(held.examinee(), Trigger::Check);
        let try_complete = |parked: &mut Parked<Op>| {
            let Parked { op, keys, .. } = parked;
            match checked {
                Some(checked) => op.try_complete_for(Cause::of_key(&|| checked.find_in(keys))),
                None => op.try_complete_for(Cause::OTHER),
            }
        };
        let answer = self.engine.guarded(|| held.with(try_complete));
        drop(inside);
        let for_its_key = checked.is_some() && matches!(answer, Ok(true));
        match self.release_or_end(held, answer) {
            Examined::Ended(mut ended) => {
                ended.for_its_key = for_its_key;
                Some(ended)
            }
            Examined::Parked(_) => {
                in_vain();
                None
            }
        }
    }

    /// Examines an operation that this thread holds, for a reason that names no key: another thread has left a mark, or
    /// the deadline has passed.
    #[cold]
    #[inline(never)]
    pub(crate) fn examine_without_key(
        &self,
        held: &mut Held<'_, Parked<Op>>,
        cause: Cause<'_, Op::Key>,
        trigger: Trigger,
    ) -> Result<bool, UserPanic> {
        let _inside = self.enter_try_complete(held.examinee(), trigger);
        let try_complete = |parked: &mut Parked<Op>| parked.op.try_complete_for(cause);
        self.engine.guarded(|| held.with(try_complete))
    }

    /// Hands a held operation that is being forced its change, if one was left for it.
    #[cold]
    pub(crate) fn apply_change(&self, held: &mut Held<'_, Parked<Op>>) {
        if let Some(change) = self.changes.take(held.address()) {
            let _examining = Examining::enter(held.examinee(), Trigger::Check);
            // A panic is counted, and the operation ends all the same.
            let engine = &self.engine;
            let _ = engine.guarded(|| held.with(|parked| change(&mut parked.op)));
            let _ = engine.guarded(|| drop_user_value(change));
        }
    }

    /// Acts on the operation's answer: releases the operation, examines it again as often as marks ask for that, up to
    /// `MAX_EXAMINATIONS`, or ends it.
    #[inline(always)]
    pub(crate) fn release_or_end(
        self: &Arc<Self>,
        mut held: Held<'_, Parked<Op>>,
        mut answer: Result<bool, UserPanic>,
    ) -> Examined<Op> {
        let (mut examinations, mut underway) = (0, None);
        let ending = loop {
            match answer {
                Ok(true) => break Ending::Satisfied,
                Ok(false) => {}
                Err(UserPanic) => break Ending::Aborted,
            }
            examinations += 1;
            let address = held.address();
            // A holder that other threads keep asking for another examination leaves that to the thread that drives the
            // timer: its own thread has other things to do.
            match held.release(examinations < MAX_EXAMINATIONS) {
                Ok(unexamined) => {
                    if unexamined {
                        self.defer(CheckTarget::Operation(address), Bound::all());
                    }
                    return Examined::Parked(address);
                }
                Err((again, Unreleased::Examine)) => {
                    held = again;
                    answer = self.examine_without_key(&mut held, Cause::OTHER, Trigger::Mark);
                }
                Err((marked, Unreleased::End { mark, unexamined })) => {
                    held = marked;
                    // From here on a drain or a shutdown waits until the completion is handed over or has run (`Underway`).
                    if matches!(mark, Mark::Expire | Mark::ShutDown) {
                        underway = Some(self.engine.underway.begin());
                    }
                    // The event may have been reported before the ending.
                    let examine =
                        || self.examine_without_key(&mut held, Cause::OTHER, Trigger::Mark);
                    let ending = match unexamined.then(examine) {
                        Some(Ok(true)) => Ending::Satisfied,
                        Some(Err(UserPanic)) => Ending::Aborted,
                        Some(Ok(false)) | None => mark.into(),
                    };
                    if ending == Ending::Forced {
                        self.apply_change(&mut held);
                    }
                    break ending;
                }
            }
        };
        let ended = self.end_and_reclaim(held, ending);
        Examined::Ended(EndedPayload { underway, ..ended })
    }

    /// Ends an operation. The order matters:
    ///
    /// 1. The operation moves out, and every address of it goes stale: no other thread can end it.
    /// 2. It leaves the watch lists, before its ending is counted: at a quiescent moment (see `Count`) there is no watch of
    ///    what has ended. (The destructor of the map's copy of a key may run here.)
    /// 3. The slot and the timer are freed, and the ending is counted.
    ///
    /// (An expiry counts the endings of a batch first, and then reclaims the batch: in a storm, after the completions.)
    #[inline(always)]
    pub(crate) fn end_and_reclaim(
        &self,
        held: Held<'_, Parked<Op>>,
        ending: Ending,
    ) -> EndedPayload<Op> {
        let (ended, rest) = self.end(held, ending, false);
        self.unwatch(&rest.keys, rest.slot.address());
        self.engine.free(rest.slot, ending, rest.keys.len());
        self.drop_keys(rest.keys);
        ended
    }

    /// Drops keys that are not watched, or not any more. A destructor that panics costs the operation neither its
    /// completion nor its way back.
    pub(crate) fn drop_keys(&self, keys: Keys<Op::Key>) {
        if std::mem::needs_drop::<Op::Key>() {
            let _ = self.engine.guarded(|| keys.drop_each());
        }
    }

    /// THE one ending of a parked operation, whatever the reason: step 1 of [`end_and_reclaim`](Self::end_and_reclaim).
    /// The caller makes the others.
    #[inline(always)]
    pub(crate) fn end(
        &self,
        held: Held<'_, Parked<Op>>,
        ending: Ending,
        missed_check: bool,
    ) -> (EndedPayload<Op>, Unreclaimed<Op::Key>) {
        let engine = &self.engine;
        let wanted = engine.observe(|observer| observer.wants_deadline(ending));
        let deadline = wanted.then(|| engine.deadline(held.address())).flatten();
        let (Parked { op, keys, span }, slot) = held.end();
        let watches = keys.len();
        engine.observe(|observer| {
            let now = || engine.clock.now();
            observer.ended(span, ending, missed_check, watches, deadline, now);
        });
        (EndedPayload::new(op, ending), Unreclaimed { slot, keys })
    }

    /// Takes an operation that has ended off the lists of its keys.
    #[inline(always)]
    fn unwatch(&self, keys: &Keys<Op::Key>, watcher: Address) {
        self.for_each_watch(
            keys,
            #[inline(always)]
            |target, order| self.watch.remove(target, order, watcher),
        );
    }

    /// Takes several operations off the lists of their keys, list by list.
    pub(crate) fn unwatch_all(&self, batch: &[Unreclaimed<Op::Key>]) {
        if let [rest] = batch {
            return self.unwatch(&rest.keys, rest.slot.address());
        }
        let watches = batch.iter().map(|rest| rest.keys.len()).sum();
        let mut sweep = Sweep::of(&self.watch, watches);
        for rest in batch {
            self.for_each_watch(&rest.keys, |target, order| {
                sweep.add(target, order, rest.slot.address());
            });
        }
        sweep.sort();
        while !sweep.is_done() {
            // `Eq` or the destructor of a key may panic.
            let _ = self.engine.guarded(|| sweep.step());
        }
    }

    /// Calls `each` for every watch. If `Hash` or `Eq` of a key panics, its list keeps a dead watch, and the others
    /// follow.
    #[inline(always)]
    pub(super) fn for_each_watch<'k>(
        &self,
        keys: &'k Keys<Op::Key>,
        mut each: impl FnMut(Target<&'k Op::Key>, Order<'k>),
    ) {
        let mut next = 0;
        while next < keys.len() {
            let _ = self.engine.guarded(|| {
                keys.for_each(
                    next,
                    #[inline(always)]
                    |target, order| {
                        next += 1;
                        each(target, order);
                    },
                );
            });
        }
    }

    /// Returns an ended operation to the caller: no user code runs for it.
    pub(crate) fn return_to_caller(&self, ended: EndedPayload<Op>) -> Op {
        self.engine.free_permit();
        ended.value
    }

    /// Completes one operation whether it can or not. Returns whether this call did it.
    pub(crate) fn force_one(self: &Arc<Self>, address: Address) -> bool {
        let trampoline = Trampoline::enter();
        let Some(held) = self.engine.claim_or_mark(address, Mark::Force) else {
            return false;
        };
        let ended = self.end_and_reclaim(held, Ending::Forced);
        deliver(self, &trampoline, ended, RunOn::Caller);
        true
    }

    /// Completes every operation on `key`, after `change`, if there is one. Returns how many this call did.
    pub(crate) fn force_key<Q>(self: &Arc<Self>, key: &Q, change: Option<ForceChange<Op>>) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let trampoline = Trampoline::enter();
        let mut endings = Outbox::new(self, &trampoline, RunOn::Caller);
        let mut forced = 0;
        self.watch.visit_all(key, |watcher| {
            if let Some(change) = &change {
                // One that stood there is dropped, and its destructor may panic.
                let _ = self.engine.guarded(|| self.changes.add(watcher, change));
            }
            if let Some(mut held) = self.engine.claim_or_mark(watcher, Mark::Force) {
                self.apply_change(&mut held);
                endings.push(self.end_and_reclaim(held, Ending::Forced));
                forced += 1;
            }
        });
        if change.is_some() {
            self.forget_changes();
        }
        forced
    }

    /// Forgets the changes of operations that have ended otherwise. (The thread that ends one does not look for a change: it
    /// would have to in every ending.)
    pub(crate) fn forget_changes(&self) {
        let trampoline = Trampoline::enter();
        let is_parked = |watcher| self.engine.is_parked(watcher);
        // The destructor of a change is the user's.
        let _ = self.engine.guarded(|| self.changes.forget(is_parked));
        self.engine.leave(trampoline);
    }

    /// Ends one operation without a completion, and returns it.
    pub(crate) fn cancel_one(self: &Arc<Self>, address: Address) -> Option<Op> {
        let trampoline = Trampoline::enter();
        let held = self.engine.claim_or_mark(address, Mark::Cancel)?;
        let ended = self.end_and_reclaim(held, Ending::Cancelled);
        let op = self.return_to_caller(ended);
        self.engine.leave(trampoline);
        Some(op)
    }

    /// Ends every operation on `key` without a completion, and returns them. If that panics, those that had ended are
    /// completed as cancelled instead.
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
