//! The key that a check is of, for the operations that ask for it by their cause.
//!
//! [`Checked`] is the key as the caller of the check has named it. The cause finds it among the keys of the operation.

use super::keys::Keys;
use crate::hash::KeyHasher;
use crate::sync::Arc;
use crate::watch::resolved::ListNumber;
use crate::watch::{Target, WatchMap};
use equivalent::Equivalent;
use std::cell::OnceCell;
use std::hash::Hash;

/// A key that is checked.
pub(crate) trait Checked<K> {
    /// The key among those of an operation.
    fn find_in<'k>(&'k self, keys: &'k Keys<K>) -> Option<&'k K>;
}

/// Checked by a form of the key that the caller has.
pub(crate) struct ByKey<'q, Q: ?Sized, K, S> {
    key: &'q Q,
    watch: &'q WatchMap<K, S>,
    /// The key itself, once an operation that watches it by number has asked.
    resolved: OnceCell<(ListNumber, Arc<K>)>,
}

impl<'q, Q: ?Sized, K, S> ByKey<'q, Q, K, S> {
    #[inline(always)]
    pub(crate) fn new(key: &'q Q, watch: &'q WatchMap<K, S>) -> Self {
        Self {
            key,
            watch,
            resolved: OnceCell::new(),
        }
    }
}

impl<Q, K, S> Checked<K> for ByKey<'_, Q, K, S>
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

/// Checked by its resolution.
pub(crate) struct ByNumber<'q, K> {
    pub(crate) number: ListNumber,
    pub(crate) key: &'q K,
}

impl<K: Eq> Checked<K> for ByNumber<'_, K> {
    fn find_in<'k>(&'k self, keys: &'k Keys<K>) -> Option<&'k K> {
        let found = keys.find(|target| match target {
            Target::Key(key) => *key == self.key,
            Target::Resolved(number) => *number == self.number,
        });
        match found? {
            Target::Key(key) => Some(key),
            Target::Resolved(_) => Some(self.key),
        }
    }
}
