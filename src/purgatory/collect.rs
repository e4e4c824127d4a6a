//! The watches that a caller asks for.

use super::inner::Inner;
use super::keys::Keys;
use super::resolved_key::ResolvedKey;
use crate::hash::{Key, KeyHasher};
use crate::operation::DelayedOperation;
use crate::watch::Target;
use crate::watch::bound::Rank;
use crate::watch::resolved::Number;
use std::collections::HashMap;

/// Up to this many watches, duplicates are found by comparing; beyond, by hashing.
const COMPARED: usize = 16;

/// What an operation watches: a key, plain or [resolved](crate::ResolvedKey::watch), and perhaps a rank.
///
/// Every call that takes keys takes anything that is `Into<Watch>`, and a key is: `[7]` and `[Watch::from(7)]` mean the
/// same. Keys of different kinds stand in one list as watches.
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
    rank: Option<Rank>,
}

enum WatchedKey<'a, K> {
    Plain(K),
    Resolved {
        key: &'a K,
        number: Number,
        /// The address of the purgatory that resolved it.
        purgatory: usize,
    },
}

/// The pattern of a plain key without a rank.
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
    /// [up to a rank](crate::Bound::up_to) examines the operation only if that rank is at least this one. All other
    /// checks of the key examine it as well.
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

    pub(crate) fn rank(&self) -> Option<Rank> {
        self.rank
    }
}

impl<K: Eq> Watch<'_, K> {
    /// Whether both mean the same key; if so, this one counts for both.
    fn covers(&mut self, other: &Self) -> bool {
        let same = self.name() == other.name();
        if same {
            // At the lower rank it is examined earlier, and without a rank always.
            self.rank = self.rank.min(other.rank);
        }
        same
    }
}

/// A plain key, without a rank.
impl<K> From<K> for Watch<'_, K> {
    #[inline]
    fn from(key: K) -> Self {
        Self {
            key: WatchedKey::Plain(key),
            rank: None,
        }
    }
}

debug_fields!([K: std::fmt::Debug] Watch<'_, K>, "Watch", |it| key: it.name(), rank: it.rank);

impl<Op: DelayedOperation, S: KeyHasher> ResolvedKey<Op, S> {
    /// Watches this key, which is found without hashing. (In another purgatory than the one that resolved it, it counts
    /// as a plain key.)
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
    /// The keys of `watches`, each once. `None` if there are none.
    #[inline(always)]
    pub(crate) fn collect<'a>(
        &self,
        watches: impl IntoIterator<Item = impl Into<Watch<'a, Op::Key>>>,
    ) -> Option<Keys<Op::Key>> {
        let mut watches = watches.into_iter().map(Into::into);
        let first = watches.next()?;
        let Some(second) = watches.next() else {
            return Some(match first {
                plain!(key) => Keys::one(key),
                other => self.collect_other(other),
            });
        };
        let third = watches.next();
        let fourth = third.is_some().then(|| watches.next()).flatten();
        Some(match (first, second, third, fourth) {
            // Most operations watch a few plain keys, all different.
            (plain!(a), plain!(b), None, None) if a != b => Keys::two([a, b]),
            (plain!(a), plain!(b), Some(plain!(c)), None) if a != b && a != c && b != c => {
                Keys::three([a, b, c])
            }
            (first, second, third, fourth) => {
                let all = [first, second].into_iter().chain(third).chain(fourth);
                self.collect_all(all.chain(watches).collect())
            }
        })
    }

    /// A resolved key, or a ranked one.
    #[inline(always)]
    fn collect_other(&self, watch: Watch<'_, Op::Key>) -> Keys<Op::Key> {
        match self.target(watch) {
            (Target::Key(key), None) => Keys::one(key),
            (Target::Resolved(number), None) => Keys::resolved(number),
            ranked => Keys::mixed([ranked]),
        }
    }

    #[inline(never)]
    fn collect_all(&self, all: Vec<Watch<'_, Op::Key>>) -> Keys<Op::Key> {
        let all = distinct(all, &self.hasher);
        let plain = all.iter().all(|watch| matches!(watch, plain!(_key)));
        let targets = all.into_iter().map(|watch| self.target(watch));
        if !plain {
            return Keys::mixed(targets);
        }
        Keys::plain(targets.filter_map(|(target, _)| match target {
            Target::Key(key) => Some(key),
            Target::Resolved(_) => None,
        }))
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

/// Each of `all` once.
fn distinct<'a, K: Key>(all: Vec<Watch<'a, K>>, hasher: &impl KeyHasher) -> Vec<Watch<'a, K>> {
    let mut distinct = Vec::<Watch<'a, K>>::with_capacity(all.len());
    for watch in all {
        let few = distinct.len() <= COMPARED;
        if !few || !distinct.iter_mut().any(|other| other.covers(&watch)) {
            distinct.push(watch);
        }
    }
    if distinct.len() <= COMPARED {
        return distinct;
    }
    let mut first = HashMap::with_capacity_and_hasher(distinct.len(), hasher.clone());
    let same_as = distinct
        .iter()
        .enumerate()
        .map(|(place, watch)| *first.entry(watch.name()).or_insert(place))
        .collect::<Vec<_>>();
    for (place, &first) in same_as.iter().enumerate() {
        let (before, from) = distinct.split_at_mut(place);
        if let (Some(other), Some(watch)) = (before.get_mut(first), from.first()) {
            other.covers(watch);
        }
    }
    let mut places = same_as.iter().enumerate();
    distinct.retain(|_| places.next().is_some_and(|(place, &first)| place == first));
    distinct
}

#[cfg(all(test, not(loom)))]
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
