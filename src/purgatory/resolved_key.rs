//! Keys that are resolved once, and found without hashing from then on.

use super::inner::Inner;
use crate::hash::{KeyHasher, RandomState};
use crate::operation::DelayedOperation;
use crate::sync::Arc;
use crate::trampoline::Trampoline;
use crate::watch::bound::{Bound, Rank};
use crate::watch::resolved::{Number, Resolved, Seen};
use std::fmt;

/// A key of a purgatory, with a reference to its watch list: a broker keeps one for each partition, and checks it after
/// every append.
///
/// It is the same key as the plain one: a check of either finds operations that were parked on either. It stays valid
/// while no operation watches the key. The purgatory forgets a key that is neither resolved nor watched; the memory of
/// its list is reused for other resolved keys, and freed with the purgatory.
///
/// It does not keep the purgatory running. After the shutdown it finds no operation.
pub struct ResolvedKey<Op: DelayedOperation, S: KeyHasher = RandomState> {
    inner: Arc<Inner<Op, S>>,
    list: Arc<Resolved<Op::Key>>,
    number: Number,
    key: Arc<Op::Key>,
}

impl<Op: DelayedOperation, S: KeyHasher> ResolvedKey<Op, S> {
    pub(super) fn new(inner: &Arc<Inner<Op, S>>, key: Op::Key) -> Self {
        let key = Arc::new(key);
        // Within a call of the library: a spare copy of the key may be dropped.
        let _trampoline = Trampoline::enter();
        let (number, list) = inner.watch.resolve(&key);
        Self {
            inner: inner.clone(),
            list,
            number,
            key,
        }
    }

    /// The key.
    pub fn key(&self) -> &Op::Key {
        &self.key
    }

    /// Its number, if it belongs to `inner`.
    pub(super) fn number_in(&self, inner: &Inner<Op, S>) -> Option<Number> {
        std::ptr::eq(&*self.inner, inner).then_some(self.number)
    }

    /// Examines every operation that watches the key, as
    /// [`Purgatory::check_and_complete`](crate::Purgatory::check_and_complete) does, without hashing the key. If no
    /// operation watches it, it costs one locked instruction. It takes no lock while at most one operation has watched
    /// the key at a time, without a rank; else that of the key's list. For each operation that it completes, it takes
    /// the locks of the other keys, and that of the timer shard only if it is free.
    #[inline]
    pub fn check_and_complete(&self) -> usize {
        match self.list.peek().only() {
            Some(only) => self.inner.check_only(&self.key, &self.list, only),
            None => self.check(self.list.peek_published(), Bound::NONE),
        }
    }

    /// The same, for a caller that has published the event **under a lock that `try_complete` takes as well** (and has
    /// released it, as [always](crate::Purgatory::check_and_complete)). That lock orders the event and the operation's
    /// examination, so this check needs no locked instruction: if no operation watches the key, it is one load.
    ///
    /// Without such a lock the check may miss an operation that is being parked, which then waits for the next check or
    /// its timeout.
    #[inline]
    pub fn check_and_complete_after_lock(&self) -> usize {
        self.check(self.list.peek(), Bound::NONE)
    }

    /// Examines the operations that watch the key at a rank up to `rank`, in that order, and all that watch it without
    /// one, as [`Purgatory::check_and_complete_up_to`](crate::Purgatory::check_and_complete_up_to) does.
    #[inline]
    pub fn check_and_complete_up_to(&self, rank: u64) -> usize {
        self.check(self.list.peek_published(), Bound::up_to(rank))
    }

    /// The same, but stops after `count` completions, as
    /// [`Purgatory::check_and_complete_at_most`](crate::Purgatory::check_and_complete_at_most) does.
    #[inline]
    pub fn check_and_complete_at_most(&self, count: usize) -> usize {
        self.check_and_complete_up_to_at_most(Rank::MAX, count)
    }

    /// Both: examines operations up to `rank`, in that order, and stops after `count` completions.
    #[inline]
    pub fn check_and_complete_up_to_at_most(&self, rank: u64, count: usize) -> usize {
        match count {
            0 => 0,
            _ => {
                let bound = Bound::up_to(rank).at_most(count);
                self.check(self.list.peek_published(), bound)
            }
        }
    }

    #[inline(always)]
    fn check(&self, seen: Seen, bound: Bound) -> usize {
        if seen.is_empty() {
            return 0;
        }
        self.inner
            .check_resolved(&self.key, &self.list, seen, bound)
    }
}

/// Takes the lock of the key's list for an instant. Runs no method of the key.
impl<Op: DelayedOperation, S: KeyHasher> Clone for ResolvedKey<Op, S> {
    fn clone(&self) -> Self {
        self.list.pin();
        Self {
            inner: self.inner.clone(),
            list: self.list.clone(),
            number: self.number,
            key: self.key.clone(),
        }
    }
}

/// Takes the lock of the key's map shard and, within it, that of the list. Runs `Hash` and `Eq` of the key, whose
/// panics are caught and counted; then destructors of keys.
impl<Op: DelayedOperation, S: KeyHasher> Drop for ResolvedKey<Op, S> {
    fn drop(&mut self) {
        // `Hash` or `Eq` of the key may panic: then the key stays in the map.
        let inner = &self.inner;
        let _trampoline = Trampoline::enter();
        let _ = inner
            .engine
            .guarded(|| inner.watch.release(&self.key, self.number));
    }
}

impl<Op: DelayedOperation, S: KeyHasher> fmt::Debug for ResolvedKey<Op, S>
where
    Op::Key: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResolvedKey")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
