//! Resolved keys: the watch list of such a key is looked up once, and found without hashing from then on.

use super::deferred::CheckTarget;
use super::inner::Inner;
use crate::callbacks::examining::Examining;
use crate::hash::{KeyHasher, RandomState};
use crate::operation::DelayedOperation;
use crate::sync::Arc;
use crate::watch::bound::CheckBound;
use crate::watch::resolved::{ListNumber, Peeked, ResolvedList, ResolvedWatchers};

/// A key of a purgatory, with a reference to its watch list. A broker keeps one for each partition, and checks it after
/// every append.
///
/// The resolved key and the plain key are the same key: a check of either finds operations that were parked on either.
/// A resolved key stays valid even while no operation watches the key. The purgatory forgets a key that is neither
/// resolved nor watched. The memory of its list is reused for other resolved keys, and freed with the purgatory.
///
/// A resolved key does not keep the purgatory running: the drop of the last clone of the
/// [`Purgatory`](crate::Purgatory) still shuts it down. After the shutdown the resolved key finds no operation.
pub struct ResolvedKey<Op: DelayedOperation, S: KeyHasher = RandomState> {
    pub(super) inner: Arc<Inner<Op, S>>,
    list: Arc<ResolvedList<Op::Key>>,
    pub(super) number: ListNumber,
    key: Arc<Op::Key>,
}

impl<Op: DelayedOperation, S: KeyHasher> ResolvedKey<Op, S> {
    pub(super) fn new(inner: &Arc<Inner<Op, S>>, key: Op::Key) -> Self {
        let key = Arc::new(key);
        let (number, list) = inner.watch.resolve(&key);
        Self {
            inner: inner.clone(),
            list,
            number,
            key,
        }
    }

    /// The key that was resolved.
    pub fn key(&self) -> &Op::Key {
        &self.key
    }

    /// Examines every operation that watches the key, as
    /// [`Purgatory::check_and_complete`](crate::Purgatory::check_and_complete) does, without hashing the key. If no
    /// operation watches the key, the check costs one locked instruction. The check takes these locks:
    ///
    /// * the lock of the key's watch list, unless the list is a single word. A list is a word, and needs no lock, as
    ///   long as it has at most one watcher. It moves behind the lock when a second watcher comes, or a watcher [with a
    ///   rank](crate::purgatory::Watch::at_rank). A list that had watchers when its key became resolved is behind the
    ///   lock too. A list stays behind the lock until its last watcher leaves;
    /// * for each operation that the check completes: the locks of the operation's other keys, and the lock of the
    ///   operation's timer shard only if that lock is free.
    pub fn check_and_complete(&self) -> usize {
        match self.list.peek().only() {
            Some(only) => self.check(self.list.visit_loaded(only), const { &CheckBound::all() }),
            None => self.check_seen(self.list.peek_published(), const { &CheckBound::all() }),
        }
    }

    /// Examines every operation that watches the key, as [`check_and_complete`](Self::check_and_complete) does, at less
    /// cost. The caller must have published the event **under a lock that `try_complete` takes as well**, and must have
    /// released that lock (as [before every check](crate::Purgatory::check_and_complete)). That lock orders the event
    /// and each examination: either the operation's examination sees the event, or the check finds the operation in the
    /// list. So the check needs no locked instruction (atomic read-modify-write): if no operation watches the key, the
    /// whole check is one load.
    ///
    /// Without such a lock the check may miss an operation that is being parked. That operation then waits for the next
    /// check or its timeout.
    pub fn check_and_complete_after_lock(&self) -> usize {
        self.check_seen(self.list.peek(), const { &CheckBound::all() })
    }

    /// Examines operations that watch the key, only as far as `bound` says: for instance, until a number of operations
    /// have completed. Returns how many operations this call completed. See
    /// [`Purgatory::check_and_complete_with`](crate::Purgatory::check_and_complete_with).
    pub fn check_and_complete_with(&self, bound: CheckBound) -> usize {
        match bound.at_most {
            0 => 0,
            _ => self.check_seen(self.list.peek_published(), &bound),
        }
    }

    #[inline(always)]
    fn check_seen(&self, seen: Peeked, bound: &CheckBound) -> usize {
        match seen.is_empty() {
            true => 0,
            false => self.check_watched(seen, bound),
        }
    }

    #[inline(never)]
    fn check_watched(&self, seen: Peeked, bound: &CheckBound) -> usize {
        self.check(self.list.visit(seen, *bound), bound)
    }

    /// Checks `watchers`. The caller has looked at the key's watch list, and has found at least one watcher. Inside a
    /// `try_complete`, queues the check and returns 0.
    #[inline(never)]
    fn check(&self, mut watchers: ResolvedWatchers<'_, Op::Key>, bound: &CheckBound) -> usize {
        if let Some(within) = Examining::current() {
            let target = CheckTarget::key(self.key().clone());
            self.inner.queue_nested(target, *bound, within);
            return 0;
        }
        self.inner.run_check(&mut watchers, self, bound)
    }
}

/// Takes the lock of the key's watch list for an instant. Runs no method of the key.
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

/// Takes the lock of the key's map shard and, inside it, the lock of the key's watch list. Runs `Hash` and `Eq` of the
/// key, and then destructors of keys. Panics of `Hash` and `Eq` are caught and counted.
impl<Op: DelayedOperation, S: KeyHasher> Drop for ResolvedKey<Op, S> {
    fn drop(&mut self) {
        // If `Hash` or `Eq` of the key panics, the panic is counted, and the entry of the key stays in the map.
        let inner = &self.inner;
        let release = || inner.watch.release(&self.key, self.number);
        let _ = inner.engine.guarded(release);
    }
}

debug_fields!(
    [Op: DelayedOperation<Key: std::fmt::Debug>, S: KeyHasher] ResolvedKey<Op, S>, "ResolvedKey",
    |it| key: it.key
);
