//! Checks: they ask the operations that watch a key, or one operation behind a handle, whether they can complete.
//!
//! Every check runs [`Check::examine_all`], whether one operation watches the key or a million, and whether the check
//! names its key by a borrowed form, by a resolved key, or not at all. For each watcher, one after another:
//!
//! 1. The check claims the operation: this thread then holds it. If another thread holds the operation, the check
//!    leaves a mark instead, which asks that thread for one more examination, and continues with the next watcher.
//! 2. The check asks the operation whether it can complete.
//! 3. After a no, the check releases the operation. If another thread has left a mark meanwhile, the release fails, and
//!    [`settle`](Inner::settle) acts on the mark.
//! 4. After a yes, the check ends the operation: its address goes stale, it leaves the watch lists, it moves out of its
//!    slot, the slot is freed, and the ending is collected in an [`Outbox`].
//!
//! When all watchers have been examined, the check delivers the collected endings: it runs each `on_complete`, or hands
//! it to another thread. No lock is held while user code runs.
//!
//! One `catch_unwind` catches the panics of the whole check. If user code panics, a drop guard notes in
//! [`Check::interrupted`] which operation was interrupted, and whether it was being examined or ended.
//! [`Check::recover`] then ends this operation, and the check continues with the next watcher.

use super::checked_key::{ByForm, Checked, NoKey};
use super::deferred::CheckTarget;
use super::inner::{Inner, Parked, Wheel};
use crate::callbacks::examining::{Examining, Trigger};
use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::{Trampoline, is_in_nested_check};
use crate::cell::address::Address;
use crate::cell::slab::{Ended, Held};
use crate::cell::state::{Mark, Unreleased};
use crate::engine::deliver::Outbox;
use crate::engine::handler::EndedPayload;
use crate::engine::shard::Shard;
use crate::hash::KeyHasher;
use crate::operation::{Cause, DelayedOperation};
use crate::stats::{Ending, Statistic};
use crate::sync::Arc;
use crate::watch::bound::CheckBound;
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
    /// How many operations this check has completed.
    completed: usize,
    /// How many completed operations count for `bound.at_most`: those whose examination named the key of the check. An
    /// operation does not count if it was completed because of another thread's mark, or if the check names no key.
    counted: usize,
    /// How many examinations found an operation that cannot complete.
    in_vain: usize,
    /// Whether the check examines no further operation, because the bound is used up or all watchers were examined.
    is_over: bool,
    /// The operation that the check was examining or ending when user code panicked. `recover` takes it from here.
    interrupted: Cell<Option<Interrupted<'a, Parked<Op>>>>,
}

/// What the check was doing with an operation when user code panicked.
enum Interrupted<'a, P> {
    /// The operation was being examined.
    Examination(Held<'a, P>),
    /// The operation was satisfied, and the check was removing it from the watch lists. The flag says whether its
    /// completion counts for the bound of the check.
    Ending(Ended<'a, P>, bool),
}

impl<'a, Op: DelayedOperation, S: KeyHasher> Check<'a, Op, S> {
    #[inline(always)]
    fn new(
        inner: &'a Arc<Inner<Op, S>>,
        trampoline: &'a Trampoline,
        bound: &'a CheckBound,
    ) -> Self {
        Self {
            inner,
            endings: Outbox::new(inner, trampoline),
            bound,
            completed: 0,
            counted: 0,
            in_vain: 0,
            is_over: false,
            interrupted: Cell::new(None),
        }
    }

    /// Ends the check: adds its examinations in vain (of operations that could not complete) to the statistics. Returns
    /// how many operations were completed. Endings that are left in the [`Outbox`] are delivered when the check is
    /// dropped.
    #[inline(always)]
    fn finish(&mut self) -> usize {
        if self.in_vain > 0 {
            let engine = &self.inner.engine;
            engine.count(Statistic::VainExamination, self.in_vain);
        }
        self.completed
    }

    /// Runs `course`. After each panic of user code in it, catches the panic, ends the interrupted operation by
    /// `recover`, and runs `course` again. Returns when `course` has returned without a panic.
    #[inline(always)]
    fn guarded(&mut self, mut course: impl FnMut(&mut Self)) {
        while Panics::contain(|| course(self)).is_none() {
            self.recover();
        }
    }

    /// Examines all `watchers` of the key `checked`. If exactly one operation has ended, runs its completion now,
    /// unless another thread is to run the completion, or this thread is inside an outer call of the library, which
    /// must end first. All other endings are delivered when the check is dropped.
    #[inline(always)]
    fn run(&mut self, watchers: &mut impl Watchers, checked: &impl Checked<Op::Key>) {
        self.guarded(|check| {
            if !check.is_over {
                check.examine_all(watchers, checked, true);
                // Set `is_over` before the delivery. If the completion panics, `guarded` runs this closure once more,
                // and the closure must then examine no further operation.
                check.is_over = true;
            }
            check.endings.deliver_only();
        });
    }

    /// Examines `watchers`, one after another, until none is left or the bound is used up. `last` says that the check
    /// ends with this call: it is `false` in a check of several keys, which calls this method for each key. If `last`
    /// is `true`, and the check ends only one operation, that of the final watcher, then this operation is not
    /// collected: its completion runs at once, unless it must run later or on another thread.
    #[inline(always)]
    fn examine_all(
        &mut self,
        watchers: &mut impl Watchers,
        checked: &impl Checked<Op::Key>,
        last: bool,
    ) {
        let mut has_ended = false;
        while let Some(address) = self.next_watcher(watchers, has_ended) {
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

    /// The next watcher, or `None` after the last one. `has_ended` says whether the check has ended the operation of
    /// the previous watcher. If so, this method hands that operation over: if a future awaits the operation, the result
    /// moves to where the future finds it. This must happen before user code of other operations runs, because that
    /// code may drop the future:
    ///
    /// * If the lookup of the next watcher runs user code, the operation is handed over before the lookup.
    /// * Otherwise the operation is handed over after the lookup, if there is a next watcher. If there is none, the
    ///   caller of `examine_all` hands the operation over or delivers its completion, before other user code runs.
    #[inline(always)]
    fn next_watcher<W: Watchers>(&mut self, watchers: &mut W, has_ended: bool) -> Option<Address> {
        if has_ended && W::RUNS_USER_CODE {
            self.endings.hand_over_last();
        }
        let next = watchers.next(has_ended)?;
        if has_ended && !W::RUNS_USER_CODE {
            self.endings.hand_over_last();
        }
        Some(next)
    }

    /// Ends a satisfied operation that this thread holds: makes its address stale, removes its watches, and then frees
    /// its slot. [`Inner::end_and_reclaim`] gives the reasons for this order.
    ///
    /// * `for_its_key` says whether the operation was told the key of the check. It is told none if the check names no
    ///   key: a check of several keys, or by a handle. Only if it was told the key, its completion counts for the
    ///   bound. Example: a key is a queue, and the check announces one item in it. An operation that is told no key may
    ///   take an item from another queue. If that counted, the check would stop, and the announced item would have no
    ///   taker.
    /// * `is_last` returns `true` if the check ends no operation after this one.
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
            self.inner.observe_end(parked, Ending::Satisfied, false);
            self.inner.unwatch(&parked.keys, at);
        });
        let (Parked { op, keys, .. }, spent) = ScopeGuard::into_inner(ended).take();
        let engine = &self.inner.engine;
        engine.free(shard, spent, Ending::Satisfied, keys.len());
        // Hand the ended operation to `endings` (at the end of this function) before its keys are dropped: if the
        // destructor of a key panics, the operation still gets its completion.
        let ended = EndedPayload::new(op, Ending::Satisfied, at);
        self.count_ended(Ending::Satisfied, for_its_key);
        // The keys are dropped at the end of this function, or by the unwinding if the completion panics.
        let _keys = guard(keys, |keys| self.inner.drop_keys(keys));
        match is_last() {
            true => self.endings.complete_or_push(ended),
            false => self.endings.push(ended),
        }
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

    /// Called when the release of an operation has failed, because another thread has left a mark: a request to examine
    /// the operation again, or to end it. Acts on the mark. Returns whether the operation has ended. If it stays
    /// parked, the check counts it as an operation that cannot complete.
    #[cold]
    #[inline(never)]
    fn settle(&mut self, held: Held<'a, Parked<Op>>, unreleased: Unreleased) -> bool {
        let Some(ended) = self.inner.settle(held, unreleased, false) else {
            self.in_vain += 1;
            self.is_over = self.bound.until_refused;
            return false;
        };
        // `false`: the ending does not count for the bound, because a mark caused it, and not the key of the check.
        self.collect(ended, false);
        true
    }

    /// Called after a caught panic of user code. Counts the panic. If the panic has interrupted the examination of an
    /// operation, ends the operation as aborted. If it has interrupted the ending of an operation, ends the operation
    /// as satisfied.
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
                let ended = inner.reclaim_reported(ended, Ending::Satisfied);
                self.collect(ended, for_its_key);
            }
            // No operation was interrupted. The panic came from a completion, or from a key that was looked up or
            // dropped.
            None => {}
        }
        self.is_over |= self.counted >= self.bound.at_most;
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Checks the operations on `key`, within `bound`. Returns how many operations this call completed. Inside a
    /// `try_complete`, queues the check and returns 0.
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
            Some(found) => self.check_found(key, found, bound, || ()),
        }
    }

    /// Checks `key` for at most one completion, because an operation has given back an item that it had taken, and one
    /// other operation on the key can take the item. Inside a `try_complete`, leaves this check to the thread that
    /// drives the timer, instead of queueing a nested check (one that waits for the end of this thread's outermost
    /// call). A nested check may be ignored if the examined operation has caused the same one before. Then no operation
    /// would take the item.
    pub(crate) fn offer(self: &Arc<Self>, key: &Op::Key) {
        let bound = CheckBound::at_most(1);
        match Examining::current() {
            Some(_) => self.defer(CheckTarget::key(key.clone()), bound),
            None => _ = self.check_key(key, &bound),
        }
    }

    /// Checks `key`, so that operations that were parked earlier get an item that a newcomer has given back. The
    /// newcomer is an operation that is being parked, and that this thread examines. The check is made at the end of
    /// this thread's outermost call. If the thread runs a nested check already, the check is left to the thread that
    /// drives the timer: otherwise each nested check could cause another one.
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
        pause: impl FnMut(),
    ) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        match found {
            Found::Few(watchers) => self.check_few(key, watchers, bound),
            Found::Long => self.check_long(key, bound, pause),
        }
    }

    /// Makes a check that has waited in a queue: a deferred or a nested check. Calls `pause` between the slices of a
    /// long list (up to 64 watchers each). Must not be called inside a `try_complete`: this thread would hold an
    /// operation that the check could not examine.
    pub(super) fn check_waiting(
        self: &Arc<Self>,
        what: &CheckTarget<Op::Key>,
        bound: &CheckBound,
        pause: impl FnMut(),
    ) {
        match what {
            CheckTarget::Key(key) => {
                let mut room = Room::default();
                if let Some(found) = self.watch.find(&**key, &mut room) {
                    self.check_found(&**key, found, bound, pause);
                }
            }
            CheckTarget::Operation(address) => {
                self.run_check(&mut Copied::new(&[*address]), &NoKey, bound);
            }
        }
    }

    /// Checks `watchers`, the operations of a short list. None of them has a rank (a value that the key must reach). A
    /// bound on the rank concerns only operations with a rank, so it excludes none of these.
    #[inline(never)]
    fn check_few<Q>(self: &Arc<Self>, key: &Q, watchers: &[Address], bound: &CheckBound) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let checked = ByForm::new(key, &self.watch);
        self.run_check(&mut Copied::new(watchers), &checked, bound)
    }

    #[inline(never)]
    fn check_long<Q>(self: &Arc<Self>, key: &Q, bound: &CheckBound, pause: impl FnMut()) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let checked = ByForm::new(key, &self.watch);
        let mut watchers = self.watch.walk(key, *bound, pause);
        self.run_check(&mut watchers, &checked, bound)
    }

    /// Checks `watchers`. Returns how many operations the check has completed. By then, each of their completions has
    /// run, or was handed to another thread, or is queued on this thread until its outermost call of the library is
    /// about to return.
    #[inline(always)]
    pub(super) fn run_check(
        self: &Arc<Self>,
        watchers: &mut impl Watchers,
        checked: &impl Checked<Op::Key>,
        bound: &CheckBound,
    ) -> usize {
        let trampoline = Trampoline::enter();
        let mut check = Check::new(self, &trampoline, bound);
        check.run(watchers, checked);
        check.finish()
    }

    /// Checks several keys for one event, and examines each operation once. Returns how many operations this call
    /// completed. Inside a `try_complete`, queues one check for each key instead, and returns 0. An operation that
    /// watches several of the keys may then be examined several times.
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
        // All keys share one `Check`. Its completions run when it is dropped: after the last key, or when a panic of
        // the caller's iterator or of a key unwinds.
        let check = Check::new(self, &trampoline, const { &CheckBound::all() });
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

    /// Checks one operation, for a caller that has its handle. Returns whether this call completed the operation.
    /// Inside a `try_complete`, queues the check and returns `false`.
    pub(super) fn check_operation(self: &Arc<Self>, address: Address) -> bool {
        if let Some(within) = Examining::current() {
            self.queue_nested(CheckTarget::Operation(address), CheckBound::all(), within);
            return false;
        }
        let bound = const { &CheckBound::all() };
        self.run_check(&mut Copied::new(&[address]), &NoKey, bound) == 1
    }
}
