//! Checks: examining the operations on a key, or behind a handle.
//!
//! A check finds the watchers of its key, and examines them one by one, with no lock held: it claims each, or leaves a
//! mark if another thread holds it. The endings are collected, and delivered when all have been examined.
//!
//! # Nested checks
//!
//! A check that an operation's `try_complete` makes is a nested one. Its thread holds that operation, and cannot examine
//! it meanwhile. So the check waits on the trampoline for the end of the outermost call, where the thread holds nothing.
//! Checks of one key are merged.
//!
//! A nested check may examine operations that make it again. So as long as nested checks wait, each operation gets one
//! nested check of each key. A second one is merged with the first if that still waits; it is ignored if the first was
//! made, and a nested check examines the operation now. (A check that a completion makes is not nested: what it
//! examines may check again.) So n operations that check their own key in every `try_complete` cost at most 2 n
//! examinations.
//!
//! One exception: another thread has asked for the examination that makes the check, so there may be a new event. Then
//! the check is deferred instead of ignored. (Were it nested, two threads could keep each other busy without end.)

use super::checked_key::{ByKey, ByNumber, Checked};
use super::deferred::CheckTarget;
use super::inner::Inner;
use crate::address::Address;
use crate::engine::deliver::{Outbox, RunOn, deliver};
use crate::examining::{Examination, Examinee, Examining};
use crate::hash::KeyHasher;
use crate::operation::DelayedOperation;
use crate::stats::{Ending, Statistic};
use crate::sync::Arc;
use crate::trampoline::{
    Trampoline, drop_user_value, drop_user_values, is_in_nested_check, known_of_nested_checks,
    queue_check,
};
use crate::watch::bound::Bound;
use crate::watch::resolved::{Peeked, ResolvedList};
use crate::watch::{Copied, Found};
use equivalent::Equivalent;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::ControlFlow;
use std::rc::Rc;

/// A check in progress. When it is dropped, it counts the examinations in vain; then its [`Outbox`] is dropped, which
/// delivers what has ended.
struct Check<'a, Op: DelayedOperation, S: KeyHasher> {
    inner: &'a Arc<Inner<Op, S>>,
    endings: Outbox<'a, Inner<Op, S>>,
    bound: Bound,
    /// Operations found satisfied; and those of them that use up the bound.
    completed: usize,
    counted: usize,
    in_vain: usize,
}

impl<Op: DelayedOperation, S: KeyHasher> Check<'_, Op, S> {
    /// Examines one operation, and breaks off the check where its bound ends. A completion uses that up only if it is
    /// for the key that is checked: another one may have taken from another key. (An operation that another thread holds
    /// does not count either: it may end otherwise.)
    #[inline(always)]
    fn examine(
        &mut self,
        address: Address,
        checked: Option<&dyn Checked<Op::Key>>,
    ) -> ControlFlow<()> {
        let mut in_vain = false;
        let ended = self.inner.examine(address, checked, || in_vain = true);
        self.in_vain += usize::from(in_vain);
        if let Some(ended) = ended {
            self.completed += usize::from(ended.ending == Ending::Satisfied);
            self.counted += usize::from(ended.for_its_key);
            self.endings.push(ended);
        }
        match self.counted >= self.bound.at_most || in_vain && self.bound.until_refused {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Drop for Check<'_, Op, S> {
    fn drop(&mut self) {
        if self.in_vain > 0 {
            self.inner
                .engine
                .count(Statistic::VainExamination, self.in_vain);
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Checks the operations on `key`, as far as `bound` goes. Returns how many this completed.
    #[inline(always)]
    pub(crate) fn check_key<Q>(self: &Arc<Self>, key: &Q, bound: &Bound) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let mut copied = Copied::default();
        match self.watch.find(key, &mut copied) {
            // Most checks find no watcher.
            None => 0,
            Some(_) if Examining::current().is_some() => self.queue_key_nested(key, bound),
            // It has no rank, so every bound reaches it.
            Some(Found::One(watcher)) => self.check_only_watcher(key, watcher),
            Some(found) => self.check_found(key, (found, &copied), bound, RunOn::Caller, || ()),
        }
    }

    /// Checks one operation for `key`. Returns how many this completed.
    #[inline(never)]
    fn check_only_watcher<Q>(self: &Arc<Self>, key: &Q, watcher: Address) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        let trampoline = Trampoline::enter();
        let checked = ByKey::new(key, &self.watch);
        let in_vain = || self.engine.count(Statistic::VainExamination, 1);
        let Some(ended) = self.examine(watcher, Some(&checked), in_vain) else {
            return 0;
        };
        let satisfied = usize::from(ended.ending == Ending::Satisfied);
        deliver(self, &trampoline, ended, RunOn::Caller);
        satisfied
    }

    /// Makes a check that has waited; `pause` is called between slices. Not to be called inside a `try_complete`.
    pub(crate) fn check_waiting(
        self: &Arc<Self>,
        what: &CheckTarget<Op::Key>,
        bound: &Bound,
        run_on: RunOn,
        pause: impl FnMut(),
    ) {
        match what {
            CheckTarget::Key(key) => {
                let mut copied = Copied::default();
                if let Some(found) = self.watch.find(&**key, &mut copied) {
                    self.check_found(&**key, (found, &copied), bound, run_on, pause);
                }
            }
            CheckTarget::Operation(address) => {
                self.run_check(*bound, run_on, |check| _ = check.examine(*address, None));
            }
        }
    }

    #[cold]
    fn queue_key_nested<Q>(self: &Arc<Self>, key: &Q, bound: &Bound) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        // A key that is not in the map is watched by no operation.
        if let (Some(within), Some(key)) = (Examining::current(), self.watch.key(key)) {
            self.queue_nested(CheckTarget::key(key), *bound, within);
        }
        0
    }

    #[inline(never)]
    fn check_found<Q: Hash + Equivalent<Op::Key> + ?Sized>(
        self: &Arc<Self>,
        key: &Q,
        found: (Found, &Copied),
        bound: &Bound,
        run_on: RunOn,
        pause: impl FnMut(),
    ) -> usize {
        let checked = ByKey::new(key, &self.watch);
        self.run_check(*bound, run_on, |check| {
            let examine = |watcher| check.examine(watcher, Some(&checked));
            self.watch.visit(key, found, *bound, examine, pause);
        })
    }

    /// Makes a check: `visit` examines the operations. Returns how many this completed. Their completions have run by
    /// then, or were handed over.
    fn run_check(
        self: &Arc<Self>,
        bound: Bound,
        run_on: RunOn,
        visit: impl FnOnce(&mut Check<'_, Op, S>),
    ) -> usize {
        let trampoline = Trampoline::enter();
        let mut check = Check {
            inner: self,
            endings: Outbox::new(self, &trampoline, run_on),
            bound,
            completed: 0,
            counted: 0,
            in_vain: 0,
        };
        visit(&mut check);
        check.completed
    }

    /// Checks the operations on a resolved key, of which these were `seen` in its list.
    #[inline(never)]
    pub(crate) fn check_resolved(
        self: &Arc<Self>,
        checked: ByNumber<'_, Op::Key>,
        list: &ResolvedList<Op::Key>,
        seen: Peeked,
        bound: &Bound,
    ) -> usize {
        if let Some(within) = Examining::current() {
            self.queue_nested(CheckTarget::key(checked.key.clone()), *bound, within);
            return 0;
        }
        self.run_check(*bound, RunOn::Caller, |check| {
            let mut examine = |watcher| check.examine(watcher, Some(&checked));
            match seen.only() {
                // It has no rank, so every bound reaches it, and there is nothing to break off.
                Some(watcher) => _ = examine(watcher),
                None => list.visit(*bound, examine),
            }
        })
    }

    /// Checks a resolved key in whose list a load has shown one watcher, `only`.
    ///
    /// ORDERING: a parker whose watch this check does not see must see the event. For that, the last look of the check at
    /// the word has to be a read-modify-write, or to follow one. Ending `only` was one (or took the list's lock): a load is
    /// enough after it. If `only` was not ended, or is still there because a key has panicked, the second look is one.
    #[inline(never)]
    pub(crate) fn check_resolved_one(
        self: &Arc<Self>,
        checked: ByNumber<'_, Op::Key>,
        list: &ResolvedList<Op::Key>,
        only: Address,
    ) -> usize {
        if Examining::current().is_some() {
            return self.check_resolved(checked, list, list.peek_published(), &Bound::all());
        }
        let trampoline = Trampoline::enter();
        let in_vain = || self.engine.count(Statistic::VainExamination, 1);
        if let Some(ended) = self.examine(only, Some(&checked), in_vain) {
            let satisfied = usize::from(ended.ending == Ending::Satisfied);
            // Before `on_complete`, which may park others: they are not for this check.
            if list.peek().is_empty() {
                deliver(self, &trampoline, ended, RunOn::Caller);
                return satisfied;
            }
            let others = list.peek_published();
            let mut endings = Outbox::new(self, &trampoline, RunOn::Caller);
            endings.push(ended);
            return satisfied + self.check_resolved(checked, list, others, &Bound::all());
        }
        let others = list.peek_published();
        match others.is_empty() || others.only() == Some(only) {
            true => 0,
            false => self.check_resolved(checked, list, others, &Bound::all()),
        }
    }

    /// Checks several keys of one event, and examines each operation once. Returns how many this completed.
    pub(crate) fn check_keys<'q, Q>(self: &Arc<Self>, keys: impl Iterator<Item = &'q Q>) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized + 'q,
    {
        if Examining::current().is_some() {
            keys.for_each(|key| _ = self.check_key(key, &Bound::all()));
            return 0;
        }
        let mut examined = HashSet::new();
        self.run_check(Bound::all(), RunOn::Caller, |check| {
            for key in keys {
                self.watch.visit_all(key, |watcher| {
                    if examined.insert(watcher) {
                        // No bound is set that could break it off.
                        let _ = check.examine(watcher, None);
                    }
                });
            }
        })
    }

    /// Checks one operation for the caller that has its handle.
    pub(crate) fn check_operation(self: &Arc<Self>, address: Address) -> bool {
        if let Some(within) = Examining::current() {
            self.queue_nested(CheckTarget::Operation(address), Bound::all(), within);
            return false;
        }
        let examine = |check: &mut Check<'_, Op, S>| _ = check.examine(address, None);
        self.run_check(Bound::all(), RunOn::Caller, examine) == 1
    }
}

/// What is known of the nested checks of one purgatory on one thread.
struct Nested<Op: DelayedOperation, S: KeyHasher> {
    inner: Arc<Inner<Op, S>>,
    checks: RefCell<HashMap<CheckTarget<Op::Key>, NestedCheck, S>>,
}

#[derive(Default)]
struct NestedCheck {
    /// How far it goes, if it waits.
    waiting: Rc<Cell<Option<Bound>>>,
    /// Operations that have caused it.
    made_by: HashSet<Examinee>,
}

impl<Op: DelayedOperation, S: KeyHasher> Drop for Nested<Op, S> {
    fn drop(&mut self) {
        drop_user_values(self.checks.get_mut().drain().map(|(check, _)| check));
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Has `what` checked when the outermost call of this thread is about to return. It is made within an examination.
    #[cold]
    #[inline(never)]
    pub(crate) fn queue_nested(
        self: &Arc<Self>,
        what: CheckTarget<Op::Key>,
        bound: Bound,
        within: Examination,
    ) {
        let nested = known_of_nested_checks(
            |nested: &Nested<Op, S>| Arc::ptr_eq(&nested.inner, self),
            || Nested {
                inner: self.clone(),
                checks: RefCell::new(HashMap::with_hasher(self.hasher.clone())),
            },
        );
        // The thread is ending: it has no place for checks any more.
        let Some(nested) = nested else {
            return self.defer(what, bound);
        };
        let mut checks = nested.checks.borrow_mut();
        let check = checks.entry(what.clone()).or_default();
        let examinee = within.examinee();
        let first = examinee == Examining::UNPARKED || check.made_by.insert(examinee);
        if let Some(waiting) = check.waiting.get() {
            check.waiting.set(Some(waiting.merge(bound)));
        } else if first || !is_in_nested_check() {
            check.waiting.set(Some(bound));
            let (inner, waiting) = (self.clone(), check.waiting.clone());
            return queue_check(Box::new(move || {
                let bound = waiting.take().unwrap_or(Bound::all());
                inner.check_waiting(&what, &bound, RunOn::Caller, || ());
            }));
        } else if within.is_for_a_mark() {
            drop(checks);
            return self.defer(what, bound);
        }
        drop(checks);
        drop_user_value(what);
    }
}
