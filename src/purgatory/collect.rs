//! Turns the keys and watches that a caller gives to a park into the operation's [`Keys`], each key once.

use super::inner::Inner;
use super::keys::{Keys, PlainKeys};
use super::resolved_key::ResolvedKey;
use crate::hash::{Key, KeyHasher};
use crate::operation::DelayedOperation;
use crate::watch::Target;
use crate::watch::bound::Rank;
use crate::watch::resolved::ListNumber;
use std::cell::Cell;
use std::collections::HashMap;

/// Among up to this many watches, duplicate keys are found by comparing all pairs; among more watches, by hashing.
const COMPARED: usize = 16;

/// What an operation watches: a key, plain or [resolved](crate::ResolvedKey::watch), and perhaps the
/// [rank](Self::at_rank) (an offset, say) that the operation waits for the key to reach.
///
/// Every call that takes keys accepts all types that are `Into<Watch>`. A key is one of them: `[7]` and
/// `[Watch::from(7)]` mean the same. To mix plain and resolved keys, pass a list of watches.
///
/// ```
/// use request_purgatory::{Waits, Watch};
/// use std::time::Duration;
///
/// let waits = Waits::<u32>::new("logs");
/// let log = waits.resolve(7);
/// let wait = waits.wait(
///     [log.watch().at_rank(100), Watch::from(8)],
///     Duration::from_secs(5),
///     || Some("found"),
/// );
/// # drop(wait);
/// ```
pub struct Watch<'a, K> {
    key: WatchedKey<'a, K>,
    pub(crate) rank: Option<Rank>,
}

enum WatchedKey<'a, K> {
    Plain(K),
    Resolved {
        key: &'a K,
        number: ListNumber,
        /// The identity of the purgatory that has made the `ResolvedKey`. Only in this purgatory, `number` is the
        /// number of the key's watch list. In another purgatory, the same number may name the list of another key.
        purgatory: usize,
    },
}

/// A [`Watch`] of `$key` without a rank. The key is plain: given as itself, and not by a `ResolvedKey`. Usable as an
/// expression, and as a pattern that binds `$key`.
macro_rules! plain {
    ($key:ident) => {
        Watch {
            key: WatchedKey::Plain($key),
            rank: None,
        }
    };
}

impl<K> Watch<'_, K> {
    /// Watches the key at `rank`: the offset, version or epoch that the operation waits for the key to reach. A check
    /// [up to a rank](crate::CheckBound::up_to) examines the operation only if the check's rank is at least `rank`. A
    /// check without such a bound examines the operation at any rank.
    ///
    /// A rank is a priority as well: every check examines the lowest rank first, and operations without a rank last.
    /// Operations of one rank are examined in no particular order. For example, operations wait at the ranks 9, 1 and
    /// 5: three checks for [one completion](crate::CheckBound::at_most) each complete them in the order 1, 5, 9.
    pub fn at_rank(self, rank: u64) -> Self {
        Self {
            rank: Some(rank),
            ..self
        }
    }

    /// The key itself.
    pub(crate) fn name(&self) -> &K {
        match &self.key {
            WatchedKey::Plain(key) => key,
            WatchedKey::Resolved { key, .. } => key,
        }
    }
}

/// A key alone is a watch of this key without a [rank](Watch::at_rank).
impl<K> From<K> for Watch<'_, K> {
    fn from(key: K) -> Self {
        plain!(key)
    }
}

debug_fields!([K: std::fmt::Debug] Watch<'_, K>, "Watch", |it| key: it.name(), rank: it.rank);

impl<Op: DelayedOperation, S: KeyHasher> ResolvedKey<Op, S> {
    /// A watch of this key, which a park adds without hashing the key. In any purgatory other than the one that
    /// resolved the key, this is a watch of the plain key.
    pub fn watch(&self) -> Watch<'_, Op::Key> {
        Watch {
            key: WatchedKey::Resolved {
                key: self.key(),
                number: self.number,
                purgatory: self.inner.identity(),
            },
            rank: None,
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// The keys of `watches`, each once. `None` if `watches` is empty.
    #[inline(always)]
    pub(crate) fn collect<'a>(
        &self,
        watches: impl IntoIterator<Item = impl Into<Watch<'a, Op::Key>>>,
    ) -> Option<Keys<Op::Key>> {
        let mut watches = watches.into_iter().map(Into::into).fuse();
        let first = watches.next()?;
        let Some(second) = watches.next() else {
            return Some(match first {
                plain!(key) => Keys::One(key, Cell::default()),
                other => self.collect_other(other),
            });
        };
        let (third, fourth) = (watches.next(), watches.next());
        Some(match (first, second, third, fourth) {
            // The common case is two or three different keys, without ranks and none by a `ResolvedKey`. It has
            // variants of its own, which cost one allocation less than `Keys::Mixed`.
            (plain!(a), plain!(b), None, None) if a != b => Keys::Two(PlainKeys::of([a, b]), 0),
            (plain!(a), plain!(b), Some(plain!(c)), None) if a != b && a != c && b != c => {
                Keys::Three(PlainKeys::of([a, b, c]), 0)
            }
            (first, second, third, fourth) => {
                let all = [first, second].into_iter().chain(third).chain(fourth);
                self.collect_all(all.chain(watches).collect())
            }
        })
    }

    /// The keys of an operation with a single watch. The watch is of a resolved key (a key that was looked up once, for
    /// a [`ResolvedKey`]), or has a rank (the value that the operation waits for the key to reach).
    #[inline(always)]
    fn collect_other(&self, watch: Watch<'_, Op::Key>) -> Keys<Op::Key> {
        match self.target(watch) {
            (Target::Key(key), None) => Keys::One(key, Cell::default()),
            (Target::Resolved(number), None) => Keys::Resolved(number, Cell::default()),
            ranked => Keys::mixed([ranked]),
        }
    }

    #[inline(never)]
    fn collect_all(&self, all: Vec<Watch<'_, Op::Key>>) -> Keys<Op::Key> {
        let all = distinct(all, &self.hasher).into_iter();
        Keys::mixed(all.map(|watch| self.target(watch)))
    }

    #[inline(always)]
    fn target(&self, watch: Watch<'_, Op::Key>) -> (Target<Op::Key>, Option<Rank>) {
        let target = match watch.key {
            WatchedKey::Plain(key) => Target::Key(key),
            WatchedKey::Resolved {
                number, purgatory, ..
            } if purgatory == self.identity() => Target::Resolved(number),
            WatchedKey::Resolved { key, .. } => Target::Key(key.clone()),
        };
        (target, watch.rank)
    }
}

/// Returns each key of `all` once, with the lowest of its ranks (a rank is the value that the operation waits for the
/// key to reach). `None`, a watch without a rank, is less than every rank. So a key that is given both with and without
/// a rank gets no rank. Then even a check that is limited to low ranks examines the operation.
fn distinct<'a, K: Key>(all: Vec<Watch<'a, K>>, hasher: &impl KeyHasher) -> Vec<Watch<'a, K>> {
    if all.len() <= COMPARED {
        let mut distinct = Vec::<Watch<'a, K>>::with_capacity(all.len());
        for watch in all {
            match distinct.iter_mut().find(|it| it.name() == watch.name()) {
                Some(known) => known.rank = known.rank.min(watch.rank),
                None => distinct.push(watch),
            }
        }
        return distinct;
    }
    let mut lowest = HashMap::with_capacity_and_hasher(all.len(), hasher.clone());
    for watch in &all {
        let rank = lowest.entry(watch.name()).or_insert(watch.rank);
        *rank = watch.rank.min(*rank);
    }
    let ranks = all.iter().map(|watch| lowest.remove(watch.name()));
    let ranks = ranks.collect::<Vec<_>>();
    let all = all.into_iter().zip(ranks);
    all.filter_map(|(watch, rank)| rank.map(|rank| Watch { rank, ..watch }))
        .collect()
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::hash::RandomState;

    proptest! {
        #[test]
        fn each_key_stands_once_at_its_lowest_rank(
            watches in prop::collection::vec((0..60_u32, prop::option::of(0..9_u64)), 0..80)
        ) {
            let mut lowest = BTreeMap::new();
            let all = watches.iter().map(|&(key, rank)| {
                let known = lowest.entry(key).or_insert(rank);
                *known = rank.min(*known);
                Watch { rank, ..Watch::from(key) }
            });
            let found = distinct(all.collect(), &RandomState::new());
            prop_assert_eq!(found.len(), lowest.len());
            let found = found.iter().map(|watch| (*watch.name(), watch.rank));
            prop_assert_eq!(found.collect::<BTreeMap<_, _>>(), lowest);
        }
    }
}
