//! Checks: examining the operations on a key, or behind a handle.
//!
//! Every check runs [`Check::examine_all`], whether one operation watches the key or a million, and whether the check
//! names its key by a borrowed form, by its resolution, or not at all. For each watcher, one after another:
//!
//! 1. The check claims the operation, or leaves a mark if another thread holds it.
//! 2. The check asks the operation whether it can complete.
//! 3. After a no, the check releases the operation. If a mark came meanwhile, the release fails, and
//!    [`settle`](Inner::settle) acts on the mark.
//! 4. After a yes, the check ends the operation: its address goes stale, it leaves the watch lists, it moves out of its
//!    slot, the slot is freed, and the ending is collected.
//!
//! The endings are delivered when all watchers have been examined. No lock is held while user code runs.
//!
//! One guard catches the panics of the whole check. If user code panics, [`Check::interrupted`] keeps the stage of its
//! operation. [`Check::recover`] finishes that stage, and the check goes on with the next watcher.

use super::checked_key::{ByForm, ByNumber, Checked, NoKey};
use super::deferred::CheckTarget;
use super::inner::{Inner, Parked, Wheel};
use super::settle::Settled;
use crate::callbacks::examining::{Examining, Trigger};
use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::{Trampoline, is_in_nested_check};
use crate::cell::address::Address;
use crate::cell::slab::{Ended, Held};
use crate::cell::state::{Mark, Unreleased};
use crate::engine::deliver::{Outbox, RunOn};
use crate::engine::handler::EndedPayload;
use crate::engine::shard::Shard;
use crate::hash::KeyHasher;
use crate::operation::{Cause, DelayedOperation};
use crate::stats::{Ending, Statistic};
use crate::sync::Arc;
use crate::watch::bound::CheckBound;
use crate::watch::resolved::ResolvedWatchers;
use crate::watch::watchers::{Copied, Found, Room, Watchers};
use equivalent::Equivalent;
use scopeguard::{ScopeGuard, guard};
use std::cell::Cell;
use std::collections::HashSet;
use std::hash::Hash;

/// A check in progress.
struct Check<'a, Op: DelayedOperation, S: KeyHasher> {
    inner: &'a Arc<Inner<Op, S>>,
    endings: Outbox<'a, Inner<Op, S>>,
    bound: &'a CheckBound,
    /// The number of operations completed, and how many of them count for the bound.
    completed: usize,
    counted: usize,
    in_vain: usize,
    /// Whether no further operation is to be examined, because the bound is used up or all watchers were examined.
    is_over: bool,
    interrupted: Cell<Option<Interrupted<'a, Parked<Op>>>>,
}

/// The stage of an operation when user code panicked.
enum Interrupted<'a, P> {
    /// The operation was being examined.
    Examination(Held<'a, P>),
    /// The operation was satisfied, and was being removed from the watch lists. The flag says whether it was satisfied
    /// for the key of the check.
    Ending(Ended<'a, P>, bool),
}

impl<'a, Op: DelayedOperation, S: KeyHasher> Check<'a, Op, S> {
    #[inline(always)]
    fn new(
        inner: &'a Arc<Inner<Op, S>>,
        trampoline: &'a Trampoline,
        run_on: RunOn,
        bound: &'a CheckBound,
    ) -> Self {
        Self {
            inner,
            endings: Outbox::new(inner, trampoline, run_on),
            bound,
            completed: 0,
            counted: 0,
            in_vain: 0,
            is_over: false,
            interrupted: Cell::new(None),
        }
    }

    /// Ends the check: counts the examinations in vain. Returns how many operations were completed. Endings that are
    /// left in the [`Outbox`] are delivered when the check is dropped.
    #[inline(always)]
    fn finish(&mut self) -> usize {
        if self.in_vain > 0 {
            let engine = &self.inner.engine;
            engine.count(Statistic::VainExamination, self.in_vain);
        }
        self.completed
    }

    /// Runs `course`, catches its panics, and runs it again after each panic, until it returns.
    #[inline(always)]
    fn guarded(&mut self, mut course: impl FnMut(&mut Self)) {
        while Panics::contain(|| course(self)).is_none() {
            self.recover();
        }
    }

    /// Examines the watchers, and delivers the ending if there is only one.
    #[inline(always)]
    fn run(&mut self, watchers: &mut impl Watchers, checked: &impl Checked<Op::Key>) {
        self.guarded(|check| {
            if !check.is_over {
                check.examine_all(watchers, checked, true);
                // Set before the delivery: if a completion panics, no further operation is examined.
                check.is_over = true;
            }
            check.endings.deliver_only();
        });
    }

    /// Examines the watchers, one after another, until the check is over. If these are the `last` watchers of the
    /// check, a single ending is delivered as soon as no further watcher can come.
    #[inline(always)]
    fn examine_all(
        &mut self,
        watchers: &mut impl Watchers,
        checked: &impl Checked<Op::Key>,
        last: bool,
    ) {
        let mut has_ended = false;
        while let Some(address) = watchers.next(has_ended) {
            if has_ended {
                self.endings.hand_over_last();
            }
            has_ended = false;
            let shard = self.inner.engine.shard(address.shard());
            let Some(held) = shard.slab.claim_or_mark(address, Mark::Examine) else {
                continue;
            };
            let interrupted = &self.interrupted;
            let mut held = guard(held, |held| {
                interrupted.set(Some(Interrupted::Examination(held)));
            });
            let answer = self
                .inner
                .examine(&mut held, Trigger::Check, |parked, reach| {
                    let Parked { op, keys, .. } = parked;
                    let find = || checked.find_in(keys);
                    op.try_complete_for(match checked.names_key() {
                        true => Cause::of_key(&find, reach),
                        false => Cause::other(reach),
                    })
                });
            let held = ScopeGuard::into_inner(held);
            if answer {
                self.end(shard, held, checked.names_key(), || {
                    last && watchers.is_over()
                });
                has_ended = true;
                if self.counted >= self.bound.at_most {
                    break;
                }
            } else if let Err((held, unreleased)) = held.release(true) {
                has_ended = self.settle(held, unreleased);
                if self.is_over {
                    break;
                }
            } else {
                self.in_vain += 1;
                if self.bound.until_refused {
                    break;
                }
            }
        }
    }

    /// Ends a satisfied operation, in the order that [`Inner::end_and_reclaim`] explains. The completion counts for the
    /// bound only if it is `for_its_key`: an operation that is satisfied for another key may have taken an item of that
    /// key.
    #[inline(always)]
    fn end(
        &mut self,
        shard: &'a Shard<Parked<Op>, Wheel>,
        held: Held<'a, Parked<Op>>,
        for_its_key: bool,
        is_last: impl FnOnce() -> bool,
    ) {
        let interrupted = &self.interrupted;
        let ended = guard(held.end_in_place(), |ended| {
            interrupted.set(Some(Interrupted::Ending(ended, for_its_key)));
        });
        let at = ended.address();
        ended.with(|parked| {
            self.inner
                .observe_end(parked, Ending::Satisfied, false, None);
            self.inner.unwatch(&parked.keys, at);
        });
        let (Parked { op, keys, .. }, spent) = ScopeGuard::into_inner(ended).take();
        let engine = &self.inner.engine;
        engine.free(shard, spent, Ending::Satisfied, keys.len());
        // Collect the ending before the keys are dropped: if a destructor of a key panics, the operation still gets its
        // completion.
        let ended = EndedPayload::new(op, Ending::Satisfied, at);
        self.count_ended(Ending::Satisfied, for_its_key);
        // If the completion panics, the keys are dropped by the unwinding. Contain a panic of a key there: a second panic
        // would abort the process.
        let keys = guard(keys, |keys| _ = engine.guarded(|| drop(keys)));
        match is_last() {
            true => self.endings.complete_or_push(ended),
            false => self.endings.push(ended),
        }
        drop(ScopeGuard::into_inner(keys));
    }

    #[inline(always)]
    fn count_ended(&mut self, ending: Ending, for_its_key: bool) {
        self.completed += usize::from(ending == Ending::Satisfied);
        self.counted += usize::from(for_its_key);
    }

    fn collect(&mut self, ended: EndedPayload<Op>, for_its_key: bool) {
        self.count_ended(ended.ending, for_its_key);
        self.endings.push(ended);
        self.endings.hand_over_last();
    }

    /// Acts on a mark that another thread has left on an operation examined by this thread. Returns whether the
    /// operation has ended.
    #[cold]
    #[inline(never)]
    fn settle(&mut self, held: Held<'a, Parked<Op>>, unreleased: Unreleased) -> bool {
        let (held, ending, underway) = match self.inner.settle(held, unreleased) {
            Settled::Parked => {
                self.in_vain += 1;
                self.is_over = self.bound.until_refused;
                return false;
            }
            Settled::End(held, ending, underway) => (held, ending, underway),
            Settled::Panicked(held, panics) => {
                self.inner.engine.end_panic(panics);
                (held, Ending::Aborted, None)
            }
        };
        let ended = self.inner.end_and_reclaim(held, ending);
        // The key of the check is not the reason for this ending.
        self.collect(EndedPayload { underway, ..ended }, false);
        true
    }

    /// Finishes the stage that a panic of user code has interrupted.
    #[cold]
    #[inline(never)]
    fn recover(&mut self) {
        let inner = self.inner;
        inner.engine.count_panic();
        match self.interrupted.take() {
            Some(Interrupted::Examination(held)) => {
                let ended = inner.end_and_reclaim(held, Ending::Aborted);
                self.collect(ended, false);
            }
            Some(Interrupted::Ending(ended, for_its_key)) => {
                let ended = inner.reclaim_ended(ended, Ending::Satisfied, None);
                self.collect(ended, for_its_key);
            }
            // The panic came from a completion, or from a key that was dropped or looked up.
            None => {}
        }
        self.is_over |= self.counted >= self.bound.at_most;
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Checks the operations on `key`, within `bound`. Returns how many operations this call completed.
    #[inline(always)]
    pub(crate) fn check_key<Q>(self: &Arc<Self>, key: &Q, bound: &CheckBound) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let mut room = Room::default();
        match self.watch.find(key, &mut room) {
            // Most checks find no watcher.
            None => 0,
            Some(_) if Examining::current().is_some() => self.queue_key_nested(key, bound),
            Some(found) => self.check_found(key, found, bound, RunOn::Caller, || ()),
        }
    }

    /// Checks `key` for one completion: at once or, inside an examination, when the timer is driven next. A nested
    /// check would not do there: it is ignored if the examined operation has caused the same check before.
    pub(crate) fn offer(self: &Arc<Self>, key: &Op::Key) {
        let bound = CheckBound::at_most(1);
        match Examining::current() {
            Some(_) => self.defer(CheckTarget::key(key.clone()), bound),
            None => _ = self.check_key(key, &bound),
        }
    }

    /// Checks `key` during the examination of a newcomer: at the end of the outermost call or, if this thread runs a
    /// nested check, when the timer is driven next.
    pub(crate) fn offer_to_earlier(self: &Arc<Self>, key: &Op::Key) {
        match is_in_nested_check() {
            true => self.defer(CheckTarget::key(key.clone()), CheckBound::all()),
            false => _ = self.check_key(key, &CheckBound::all()),
        }
    }

    #[inline(always)]
    fn check_found<Q>(
        self: &Arc<Self>,
        key: &Q,
        found: Found<'_>,
        bound: &CheckBound,
        run_on: RunOn,
        pause: impl FnMut(),
    ) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        match found {
            Found::Few(watchers) => self.check_few(key, watchers, bound, run_on),
            Found::Long => self.check_long(key, bound, run_on, pause),
        }
    }

    /// Makes a check that has waited. Calls `pause` between slices of a long list. Must not be called inside a
    /// `try_complete`.
    pub(super) fn check_waiting(
        self: &Arc<Self>,
        what: &CheckTarget<Op::Key>,
        bound: &CheckBound,
        run_on: RunOn,
        pause: impl FnMut(),
    ) {
        match what {
            CheckTarget::Key(key) => {
                let mut room = Room::default();
                if let Some(found) = self.watch.find(&**key, &mut room) {
                    self.check_found(&**key, found, bound, run_on, pause);
                }
            }
            CheckTarget::Operation(address) => {
                self.run_check(&mut Copied::new(&[*address]), &NoKey, bound, run_on);
            }
        }
    }

    /// Checks the operations of a short list. None of them has a rank, so every bound reaches them.
    #[inline(never)]
    fn check_few<Q>(
        self: &Arc<Self>,
        key: &Q,
        watchers: &[Address],
        bound: &CheckBound,
        run_on: RunOn,
    ) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let checked = ByForm::new(key, &self.watch);
        self.run_check(&mut Copied::new(watchers), &checked, bound, run_on)
    }

    #[inline(never)]
    fn check_long<Q>(
        self: &Arc<Self>,
        key: &Q,
        bound: &CheckBound,
        run_on: RunOn,
        pause: impl FnMut(),
    ) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let checked = ByForm::new(key, &self.watch);
        let mut watchers = self.watch.walk(key, *bound, pause);
        self.run_check(&mut watchers, &checked, bound, run_on)
    }

    /// Runs a check. Returns how many operations it completed. Their completions have run or were handed over before
    /// the return.
    #[inline(always)]
    fn run_check(
        self: &Arc<Self>,
        watchers: &mut impl Watchers,
        checked: &impl Checked<Op::Key>,
        bound: &CheckBound,
        run_on: RunOn,
    ) -> usize {
        let trampoline = Trampoline::enter();
        let mut check = Check::new(self, &trampoline, run_on, bound);
        check.run(watchers, checked);
        check.finish()
    }

    /// Checks the operations on a resolved key whose word has shown at least one watcher.
    #[inline(always)]
    pub(super) fn check_resolved(
        self: &Arc<Self>,
        checked: &ByNumber<'_, Op::Key>,
        mut watchers: ResolvedWatchers<'_, Op::Key>,
        bound: &CheckBound,
    ) -> usize {
        if let Some(within) = Examining::current() {
            self.queue_nested(CheckTarget::key(checked.key.clone()), *bound, within);
            return 0;
        }
        self.run_check(&mut watchers, checked, bound, RunOn::Caller)
    }

    /// Checks several keys for one event, and examines each operation once. Returns how many operations this call
    /// completed.
    pub(crate) fn check_keys<'q, Q>(self: &Arc<Self>, keys: impl Iterator<Item = &'q Q>) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized + 'q,
    {
        if Examining::current().is_some() {
            for key in keys {
                self.check_key(key, &CheckBound::all());
            }
            return 0;
        }
        let trampoline = Trampoline::enter();
        // One check of all keys. Its completions run when it is dropped: after the last key, or after a panic of the
        // caller's iterator or of a key.
        let check = Check::new(
            self,
            &trampoline,
            RunOn::Caller,
            const { &CheckBound::all() },
        );
        let mut check = guard(check, |mut check| {
            check.finish();
        });
        let mut examined = HashSet::new();
        for key in keys {
            let mut fresh = Vec::new();
            self.watch.visit_all(key, |watcher| {
                if examined.insert(watcher) {
                    fresh.push(watcher);
                }
            });
            let mut fresh = Copied::new(&fresh);
            check.guarded(|check| check.examine_all(&mut fresh, &NoKey, false));
            check.endings.hand_over_last();
        }
        ScopeGuard::into_inner(check).finish()
    }

    /// Checks one operation, for a caller that has its handle.
    pub(super) fn check_operation(self: &Arc<Self>, address: Address) -> bool {
        if let Some(within) = Examining::current() {
            self.queue_nested(CheckTarget::Operation(address), CheckBound::all(), within);
            return false;
        }
        let bound = const { &CheckBound::all() };
        self.run_check(&mut Copied::new(&[address]), &NoKey, bound, RunOn::Caller) == 1
    }
}
