//! Nested checks.
//!
//! A check that a `try_complete` makes is nested: its thread holds an operation, which the check could not examine. So
//! the check waits on the [trampoline](crate::callbacks::trampoline) for the end of the outermost call, when the thread
//! holds no operation. Checks of one key are merged.
//!
//! A nested check may examine operations that make the same check again. To bound this, each operation gets one nested
//! check of each key until no nested check waits any more:
//!
//! * If the operation's earlier check of the key still waits, the new check is merged with it.
//! * If the earlier check was made, and the new check comes from an examination by a nested check, the new check is
//!   ignored.
//!
//! So n operations that check their own key in every `try_complete` cost at most 2 n examinations. A check that a
//! completion makes is not nested, so the operations it examines may check again.
//!
//! One exception: if another thread asked for the examination that makes the check, there may be a new event, and the
//! check is deferred instead of ignored. If it were nested, two threads could keep each other busy without end.
//!
//! Deferring every nested check to the thread that drives the timer would be less code. But then a caller could not
//! rely on a call that has returned: operations that the call should have completed would wait for another thread or,
//! without a reaper, for the next `advance`.

use super::deferred::CheckTarget;
use super::inner::Inner;
use crate::callbacks::examining::{Examination, Examinee, Examining};
use crate::callbacks::trampoline::{is_in_nested_check, known_of_nested_checks, queue_check};
use crate::engine::deliver::RunOn;
use crate::hash::KeyHasher;
use crate::operation::DelayedOperation;
use crate::sync::Arc;
use crate::watch::bound::CheckBound;
use equivalent::Equivalent;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::rc::Rc;

/// The nested checks of one purgatory on one thread, waiting or made.
struct Nested<Op: DelayedOperation, S: KeyHasher> {
    inner: Arc<Inner<Op, S>>,
    checks: RefCell<HashMap<CheckTarget<Op::Key>, NestedCheck, S>>,
}

#[derive(Default)]
struct NestedCheck {
    /// The bound of the check, while it waits.
    waiting: Rc<Cell<Option<CheckBound>>>,
    /// The operations that have made this check.
    made_by: HashSet<Examinee>,
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    #[cold]
    pub(super) fn queue_key_nested<Q>(self: &Arc<Self>, key: &Q, bound: &CheckBound) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        // A key that is not in the map has no watcher.
        if let (Some(within), Some(key)) = (Examining::current(), self.watch.key(key)) {
            self.queue_nested(CheckTarget::key(key), *bound, within);
        }
        0
    }

    /// Queues a check of `what` that the examination `within` makes. The check runs when the outermost call of this
    /// thread is about to return.
    #[cold]
    #[inline(never)]
    pub(super) fn queue_nested(
        self: &Arc<Self>,
        what: CheckTarget<Op::Key>,
        bound: CheckBound,
        within: Examination,
    ) {
        let nested = known_of_nested_checks(
            |nested: &Nested<Op, S>| Arc::ptr_eq(&nested.inner, self),
            || Nested {
                inner: self.clone(),
                checks: RefCell::new(HashMap::with_hasher(self.hasher.clone())),
            },
        );
        // `None`: the thread is ending, and its queue of checks is destroyed.
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
            queue_check(Box::new(move || {
                let bound = waiting.take().unwrap_or(CheckBound::all());
                inner.check_waiting(&what, &bound, RunOn::Caller, || ());
            }));
        } else if within.is_for_a_mark() {
            drop(checks);
            self.defer(what, bound);
        }
    }
}
