//! The key of a check, for operations that ask which key was checked (`Cause::key`).
//!
//! The answer is the key of the operation that is equal to the key of the check. This key is looked up only if the
//! operation asks, so a check clones no key for this purpose. The lookup takes no lock, except in one case: the check
//! names a plain key, and the operation watches a key by a `ResolvedKey`. Such an operation has only the number of the
//! key's watch list. The key itself is in the list, under the lock of the list.

use super::keys::Keys;
use super::resolved_key::ResolvedKey;
use crate::hash::KeyHasher;
use crate::operation::DelayedOperation;
use crate::sync::Arc;
use crate::watch::resolved::ListNumber;
use crate::watch::{Target, WatchMap};
use equivalent::Equivalent;
use std::cell::OnceCell;
use std::hash::Hash;

/// The key of a check, in the form in which the caller has named it: by a plain key ([`ByForm`]), by a
/// [`ResolvedKey`], or not at all ([`NoKey`]).
pub(crate) trait Checked<K> {
    /// Returns the key among `keys`, the keys of the examined operation, that is equal to the key of the check. `None`
    /// if the check names no key.
    fn find_in<'k>(&'k self, keys: &'k Keys<K>) -> Option<&'k K>;

    /// Whether the check names a key. `false` only for [`NoKey`].
    fn names_key(&self) -> bool {
        true
    }
}

/// The [`Checked`] of a check whose examinations name no key: the check is of several keys for one event, or of one
/// operation by its handle or its waker.
pub(crate) struct NoKey;

impl<K> Checked<K> for NoKey {
    fn find_in<'k>(&'k self, _: &'k Keys<K>) -> Option<&'k K> {
        None
    }

    fn names_key(&self) -> bool {
        false
    }
}

/// The key of a check whose caller has passed a key, and no `ResolvedKey`. The key may have a borrowed form (`str` for
/// `String`).
pub(crate) struct ByForm<'q, Q: ?Sized, K, S> {
    key: &'q Q,
    watch: &'q WatchMap<K, S>,
    /// The number of the checked key's watch list, and the list's own copy of the key. Needed for operations that watch
    /// the key by a `ResolvedKey` (a key whose list was looked up once): such an operation has only the number of the
    /// list, and not the key. Empty until the first such operation asks which key was checked (`Cause::key`).
    resolved: OnceCell<(ListNumber, Arc<K>)>,
}

impl<'q, Q: ?Sized, K, S> ByForm<'q, Q, K, S> {
    #[inline(always)]
    pub(crate) fn new(key: &'q Q, watch: &'q WatchMap<K, S>) -> Self {
        Self {
            key,
            watch,
            resolved: OnceCell::new(),
        }
    }
}

impl<Q, K, S> Checked<K> for ByForm<'_, Q, K, S>
where
    Q: Hash + Equivalent<K> + ?Sized,
    K: Eq + Hash + Clone + 'static,
    S: KeyHasher,
{
    fn find_in<'k>(&'k self, keys: &'k Keys<K>) -> Option<&'k K> {
        let found = keys.find(|target| match target {
            Target::Key(key) => self.key.equivalent(key),
            Target::Resolved(number) => match self.resolved.get() {
                Some((known, _)) => known == number,
                None => {
                    let key = self.watch.resolved_key(*number);
                    let key = key.filter(|key| self.key.equivalent(key));
                    key.is_some_and(|key| self.resolved.set((*number, key)).is_ok())
                }
            },
        });
        match found? {
            Target::Key(key) => Some(key),
            Target::Resolved(_) => self.resolved.get().map(|(_, key)| &**key),
        }
    }
}

/// A resolved key (a key whose watch list was looked up once) has the number of that list, and the key itself.
impl<Op: DelayedOperation, S: KeyHasher> Checked<Op::Key> for ResolvedKey<Op, S> {
    fn find_in<'k>(&'k self, keys: &'k Keys<Op::Key>) -> Option<&'k Op::Key> {
        let found = keys.find(|target| match target {
            Target::Key(key) => *key == self.key(),
            Target::Resolved(number) => *number == self.number,
        });
        match found? {
            Target::Key(key) => Some(key),
            Target::Resolved(_) => Some(self.key()),
        }
    }
}
