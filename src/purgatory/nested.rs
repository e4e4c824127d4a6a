//! Nested checks: the checks that a `try_complete` makes.
//!
//! The thread that runs the `try_complete` holds an operation, which a check on this thread could not examine. So the
//! check waits in a queue of the thread, the [trampoline](crate::callbacks::trampoline). The queue runs when the
//! *outermost call* is about to return: the call of the library that this thread has made outside every callback. By
//! then the thread holds no operation. Waiting checks of one key are merged.
//!
//! A nested check may examine operations that make the same check again, and this could go on without end. So the
//! library notes which operation has checked which key. It forgets these notes when no nested check of this thread
//! waits any more. If an operation checks a key that the notes say it has checked, there are three cases:
//!
//! * The earlier check still waits. Then the new check is merged with it.
//! * The earlier check has run, and the `try_complete` that makes the new check was called by something other than a
//!   nested check. Then the new check is queued.
//! * The earlier check has run, and the `try_complete` that makes the new check was called by a nested check. Then the
//!   new check is ignored.
//!
//! Example: a check of a key examines n operations, and each of them checks this key again in every `try_complete`.
//! These n nested checks are merged into one, which examines the operations once more. The checks that the operations
//! make then are ignored. So there are at most 2 n examinations. A check that an `on_complete` makes is not nested: the
//! operations that it examines may make their checks again.
//!
//! The third case has one exception. Another thread may have asked for the examination whose `try_complete` makes the
//! new check, by a mark (a bit in the state word of the operation), and may have brought a new event. Then the new
//! check is not ignored, but deferred to the thread that drives the timer. If it were queued here, two threads could
//! keep each other busy without end.
//!
//! It would be less code to defer every nested check to the thread that drives the timer. But then the outermost call
//! could return before the operations that its nested checks should complete are completed: they would wait for that
//! thread or, without a reaper, for the next `advance`.

use super::deferred::CheckTarget;
use super::inner::Inner;
use crate::callbacks::examining::{Examination, Examinee, Examining};
use crate::callbacks::trampoline::{is_in_nested_check, known_of_nested_checks, queue_check};
use crate::hash::KeyHasher;
use crate::operation::DelayedOperation;
use crate::sync::Arc;
use crate::watch::bound::CheckBound;
use equivalent::Equivalent;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::rc::Rc;

/// The nested checks of one purgatory on one thread: those that wait, and those that have run. The latter are kept
/// until no nested check of the thread waits any more, so that an operation cannot cause the same check again and again
/// without end (see the head of this file).
struct Nested<Op: DelayedOperation, S: KeyHasher> {
    inner: Arc<Inner<Op, S>>,
    checks: RefCell<HashMap<CheckTarget<Op::Key>, NestedCheck, S>>,
}

#[derive(Default)]
struct NestedCheck {
    /// While the check waits: its bound, which says how far the check goes through the operations that watch the key.
    /// `None` once the check has begun to run.
    waiting: Rc<Cell<Option<CheckBound>>>,
    /// The operations whose `try_complete` has asked for this check.
    made_by: HashSet<Examinee>,
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    #[cold]
    pub(super) fn queue_key_nested<Q>(self: &Arc<Self>, key: &Q, bound: &CheckBound) -> usize
    where
        Q: Hash + Equivalent<Op::Key> + ?Sized,
    {
        // If the watch map has no such key, no operation watches the key, and there is no check to queue.
        if let (Some(within), Some(key)) = (Examining::current(), self.watch.key(key)) {
            self.queue_nested(CheckTarget::key(key), *bound, within);
        }
        0
    }

    /// Queues a nested check of `what`. The check runs when the outermost call of this thread is about to return.
    /// `within` is the examination whose `try_complete` makes the check.
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
        // `None`: this thread is ending, and its queue of nested checks is destroyed. So the thread that drives the
        // timer makes the check.
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
                inner.check_waiting(&what, &bound, || ());
            }));
        } else if within.is_for_a_mark() {
            drop(checks);
            self.defer(what, bound);
        }
    }
}
