//! Checks that an operation's `try_complete` makes.
//!
//! The thread that makes one holds an operation, which it cannot examine meanwhile. So such a check waits on the
//! trampoline for the end of the outermost call, where this thread holds nothing. Checks of one key are merged.
//!
//! A nested check examines operations, and those may make the same check in turn: it would never end. So of the checks
//! that are made while a nested check runs, each operation can cause one of each key until no nested check waits any
//! more; the same check by the same operation again is merged while the first one waits, and ignored when that was
//! made. n operations that check their own key in every `try_complete` so cost at most 2 n examinations.
//!
//! What another thread asked for is no echo of this thread's checks: a check that such an examination makes again is
//! not ignored but deferred. (It is not nested: two threads that check the same operations could ask each other for
//! ever.)

use super::deferred::Deferred;
use super::inner::Inner;
use crate::engine::dispatch::RunOn;
use crate::hash::KeyHasher;
use crate::operation::DelayedOperation;
use crate::sync::Arc;
use crate::trampoline::{
    Examination, Examinee, Examining, NestedChecks, drop_user_values, is_in_nested_check,
    nested_checks,
};
use crate::watch::bound::Bound;
use std::any::Any;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

/// The nested checks of one purgatory on one thread, until the outermost call returns.
struct Nested<Op: DelayedOperation, S: KeyHasher> {
    inner: Arc<Inner<Op, S>>,
    queue: RefCell<Queue<Op::Key, S>>,
}

struct Queue<K, S> {
    order: VecDeque<Deferred<K>>,
    checks: HashMap<Deferred<K>, NestedCheck, S>,
}

#[derive(Default)]
struct NestedCheck {
    /// How far it goes, if it waits.
    waiting: Option<Bound>,
    /// Operations that have caused it.
    causes: HashSet<Examinee>,
}

impl<Op: DelayedOperation, S: KeyHasher> Nested<Op, S> {
    /// The check that has waited longest.
    fn next(&self) -> Option<(Deferred<Op::Key>, Bound)> {
        // Dropped after the borrow has ended, also if `Hash` or `Eq` of the key panics here.
        let what;
        let mut queue = self.queue.borrow_mut();
        what = queue.order.pop_front()?;
        let waiting = queue.checks.get_mut(&what)?.waiting.take()?;
        Some((what, waiting))
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Drop for Nested<Op, S> {
    fn drop(&mut self) {
        let Queue { order, checks } = self.queue.get_mut();
        let checks = checks.drain().map(|(check, _)| check);
        drop_user_values(order.drain(..).chain(checks));
    }
}

impl<Op: DelayedOperation, S: KeyHasher> NestedChecks for Nested<Op, S> {
    fn run_next(&self) -> bool {
        let Some((what, bound)) = self.next() else {
            return false;
        };
        match what {
            Deferred::Key(key) => _ = self.inner.check_key(&*key, &bound, RunOn::Caller),
            Deferred::Operation(address) => {
                self.inner.check_one(address, None, RunOn::Caller);
            }
        }
        true
    }

    fn into_any(self: Rc<Self>) -> Rc<dyn Any> {
        self
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Has `what` checked when the outermost call of this thread is about to return. `cause` is in progress.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_nested(
        self: &Arc<Self>,
        what: Deferred<Op::Key>,
        bound: Bound,
        cause: Examination,
    ) {
        let nested = nested_checks(
            |nested: &Nested<Op, S>| Arc::ptr_eq(&nested.inner, self),
            || Nested {
                inner: self.clone(),
                queue: RefCell::new(Queue {
                    order: VecDeque::new(),
                    checks: HashMap::with_hasher(self.hasher.clone()),
                }),
            },
        );
        // The thread is ending: it has no place for checks any more.
        let Some(nested) = nested else {
            return self.defer(what, bound);
        };
        let mut queue = nested.queue.borrow_mut();
        let check = queue.checks.entry(what.clone()).or_default();
        let cause_of = cause.examinee();
        let first = cause_of == Examining::UNPARKED || check.causes.insert(cause_of);
        if let Some(waiting) = &mut check.waiting {
            *waiting = waiting.merge(bound);
        } else if first || !is_in_nested_check() {
            check.waiting = Some(bound);
            queue.order.push_back(what);
        } else if cause.is_for_a_mark() {
            drop(queue);
            self.defer(what, bound);
        }
    }
}
