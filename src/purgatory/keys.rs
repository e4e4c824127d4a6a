//! What one operation watches.

use super::resolved_key::ResolvedKey;
use crate::operation::{DelayedOperation, KeyHasher};
use crate::watch::Target;
use crate::watch::list::Rank;
use crate::watch::resolved::Number;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

/// Up to so many keys, duplicates are found by comparing; beyond, by hashing.
const COMPARED: usize = 16;

/// One thing to watch: a key, or one that is [resolved](super::Purgatory::key) already; perhaps at a rank.
pub struct WatchOn<'a, Op: DelayedOperation, S: KeyHasher = crate::RandomState> {
    key: OnKey<'a, Op, S>,
    rank: Option<Rank>,
}

enum OnKey<'a, Op: DelayedOperation, S: KeyHasher> {
    Plain(Op::Key),
    Resolved(&'a ResolvedKey<Op, S>),
}

impl<'a, Op: DelayedOperation, S: KeyHasher> WatchOn<'a, Op, S> {
    /// A key.
    pub fn key(key: Op::Key) -> Self {
        let key = OnKey::Plain(key);
        Self { key, rank: None }
    }

    /// A resolved key: it is found without hashing. (If another purgatory resolved it, it counts as a plain key.)
    pub fn resolved(key: &'a ResolvedKey<Op, S>) -> Self {
        let key = OnKey::Resolved(key);
        Self { key, rank: None }
    }

    /// Watched at `rank`, the offset (version, epoch) that the operation waits for the key to reach:
    /// [`check_and_complete_up_to`](super::Purgatory::check_and_complete_up_to) looks at it only from there on. All
    /// other checks of the key look at it anyway.
    pub fn at_rank(mut self, rank: u64) -> Self {
        self.rank = Some(rank);
        self
    }

    /// The key itself.
    fn name(&self) -> &Op::Key {
        match &self.key {
            OnKey::Plain(key) => key,
            OnKey::Resolved(resolved) => resolved.key(),
        }
    }

    /// Whether both mean the same key; if so, this one counts for both.
    fn covers(&mut self, other: &Self) -> bool {
        let same = self.name() == other.name();
        if same {
            // The lower rank is looked at earlier, and no rank always.
            self.rank = self.rank.min(other.rank);
        }
        same
    }
}

impl<'a, Op: DelayedOperation, S: KeyHasher> From<&'a ResolvedKey<Op, S>> for WatchOn<'a, Op, S> {
    fn from(key: &'a ResolvedKey<Op, S>) -> Self {
        Self::resolved(key)
    }
}

impl<Op: DelayedOperation, S: KeyHasher> fmt::Debug for WatchOn<'_, Op, S>
where
    Op::Key: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchOn")
            .field("key", self.name())
            .field("rank", &self.rank)
            .finish()
    }
}

/// At least one thing to watch, each key once.
///
/// It lies in every slot, so it is small: two words for a key of one. Two or three keys cost one allocation, more of
/// them two.
#[derive(Debug)]
#[expect(
    clippy::box_collection,
    reason = "a vector in place would make every slot larger"
)]
pub(crate) enum Keys<K> {
    One(K),
    Two(Box<[K; 2]>),
    Three(Box<[K; 3]>),
    More(Box<Vec<K>>),
    Resolved(Number),
    /// Resolved keys among them, or some at a rank.
    Mixed(Box<Vec<(Target<K>, Option<Rank>)>>),
}

impl<K: Eq + Hash> Keys<K> {
    /// Plain keys. `None` if there are none.
    #[inline]
    pub(crate) fn collect<S: KeyHasher>(
        keys: impl IntoIterator<Item = K>,
        hasher: &S,
    ) -> Option<Self> {
        let mut keys = keys.into_iter();
        let first = keys.next()?;
        let Some(second) = keys.next() else {
            return Some(Self::One(first));
        };
        let Some(third) = keys.next() else {
            return Some(match first == second {
                true => Self::One(first),
                false => Self::Two(Box::new([first, second])),
            });
        };
        let fourth = keys.next();
        if fourth.is_none() && first != second && first != third && second != third {
            return Some(Self::Three(Box::new([first, second, third])));
        }
        let all = [first, second, third].into_iter().chain(fourth).chain(keys);
        let all = distinct(all, |one, other| one == other, |key| key, hasher);
        Some(match <[K; 1]>::try_from(all) {
            Ok([only]) => Self::One(only),
            Err(all) => match <[K; 2]>::try_from(all) {
                Ok(two) => Self::Two(Box::new(two)),
                Err(all) => match <[K; 3]>::try_from(all) {
                    Ok(three) => Self::Three(Box::new(three)),
                    Err(all) => Self::More(Box::new(all)),
                },
            },
        })
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(_) | Self::Resolved(_) => 1,
            Self::Two(_) => 2,
            Self::Three(_) => 3,
            Self::More(keys) => keys.len(),
            Self::Mixed(watches) => watches.len(),
        }
    }

    /// Calls `each` for all of them but the first so many.
    #[inline(always)]
    pub(crate) fn for_each<'k>(
        &'k self,
        skipped: usize,
        mut each: impl FnMut(Target<&'k K>, Option<Rank>),
    ) {
        match self {
            Self::One(key) if skipped == 0 => each(Target::Key(key), None),
            Self::Resolved(number) if skipped == 0 => each(Target::Resolved(*number), None),
            _ => self.for_each_of_several(skipped, &mut each),
        }
    }

    #[inline(never)]
    fn for_each_of_several<'k>(
        &'k self,
        skipped: usize,
        each: &mut impl FnMut(Target<&'k K>, Option<Rank>),
    ) {
        let keys = match self {
            Self::One(_) | Self::Resolved(_) => return,
            Self::Two(keys) => keys.as_slice(),
            Self::Three(keys) => keys.as_slice(),
            Self::More(keys) => keys,
            Self::Mixed(watches) => {
                let watches = watches.iter().skip(skipped);
                return watches.for_each(|(target, rank)| each(target.as_ref(), *rank));
            }
        };
        let keys = keys.iter().skip(skipped);
        keys.for_each(|key| each(Target::Key(key), None));
    }
}

impl<K: Eq + Hash + Clone> Keys<K> {
    /// Watches of all kinds. `None` if there are none; `number` knows the resolved keys of this purgatory.
    pub(crate) fn collect_watches<'a, Op: DelayedOperation<Key = K>, S: KeyHasher>(
        watches: impl IntoIterator<Item = WatchOn<'a, Op, S>>,
        number: impl Fn(&ResolvedKey<Op, S>) -> Option<Number>,
        hasher: &S,
    ) -> Option<Self> {
        let target = |watch: WatchOn<'a, Op, S>| {
            let target = match watch.key {
                OnKey::Plain(key) => Target::Key(key),
                OnKey::Resolved(resolved) => match number(resolved) {
                    Some(number) => Target::Resolved(number),
                    None => Target::Key(resolved.key().clone()),
                },
            };
            (target, watch.rank)
        };
        let mut watches = watches.into_iter();
        let first = watches.next()?;
        let Some(second) = watches.next() else {
            return Some(match target(first) {
                (Target::Key(key), None) => Self::One(key),
                (Target::Resolved(number), None) => Self::Resolved(number),
                ranked => Self::Mixed(Box::new(vec![ranked])),
            });
        };
        let all = [first, second].into_iter().chain(watches);
        let all = distinct(all, WatchOn::covers, WatchOn::name, hasher);
        Some(Self::Mixed(Box::new(all.into_iter().map(target).collect())))
    }
}

/// Each of `all` once: two are the same if one covers the other, and then they have the same name.
fn distinct<T, K: Eq + Hash, S: KeyHasher>(
    all: impl Iterator<Item = T>,
    covers: impl Fn(&mut T, &T) -> bool,
    name: impl Fn(&T) -> &K,
    hasher: &S,
) -> Vec<T> {
    let mut distinct = Vec::<T>::with_capacity(all.size_hint().0);
    for item in all {
        let few = distinct.len() <= COMPARED;
        if !few || !distinct.iter_mut().any(|other| covers(other, &item)) {
            distinct.push(item);
        }
    }
    if distinct.len() <= COMPARED {
        return distinct;
    }
    let mut first = HashMap::with_capacity_and_hasher(distinct.len(), hasher.clone());
    let same_as = distinct
        .iter()
        .enumerate()
        .map(|(place, item)| *first.entry(name(item)).or_insert(place))
        .collect::<Vec<_>>();
    for (place, &first) in same_as.iter().enumerate() {
        let (before, from) = distinct.split_at_mut(place);
        if let (Some(other), Some(item)) = (before.get_mut(first), from.first()) {
            covers(other, item);
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
    use std::collections::BTreeSet;
    use std::hash::RandomState;

    proptest! {
        #[test]
        fn each_key_stands_once(keys in prop::collection::vec(0..60_u32, 0..80)) {
            let collected = Keys::collect(keys.clone(), &RandomState::new());
            let distinct = keys.iter().copied().collect::<BTreeSet<_>>();
            let Some(collected) = collected else {
                prop_assert!(keys.is_empty());
                return Ok(());
            };
            let mut found = Vec::new();
            collected.for_each(0, |target, rank| match (target, rank) {
                (Target::Key(key), None) => found.push(*key),
                other => panic!("{other:?}"),
            });
            prop_assert_eq!(collected.len(), found.len());
            prop_assert_eq!(found.len(), distinct.len());
            prop_assert_eq!(found.iter().copied().collect::<BTreeSet<_>>(), distinct);
            prop_assert_eq!(matches!(collected, Keys::One(_)), found.len() == 1);
        }

        #[test]
        fn a_key_at_several_ranks_has_the_lowest(
            watches in prop::collection::vec((0..30_u32, prop::option::of(0..5_u64)), 1..60),
        ) {
            struct Op;
            impl DelayedOperation for Op {
                type Key = u32;
                fn timeout(&self) -> std::time::Duration { std::time::Duration::MAX }
                fn try_complete(&mut self) -> bool { false }
                fn on_complete(self, _: crate::Completion) {}
            }
            let on = watches.iter().map(|&(key, rank)| WatchOn::<Op, RandomState> { key: OnKey::Plain(key), rank });
            let collected = Keys::collect_watches(on, |_| None, &RandomState::new());
            let collected = collected.ok_or_else(|| TestCaseError::fail("there are keys"))?;
            let mut lowest = std::collections::BTreeMap::new();
            for &(key, rank) in &watches {
                lowest.entry(key).and_modify(|known: &mut Option<Rank>| *known = (*known).min(rank)).or_insert(rank);
            }
            prop_assert_eq!(collected.len(), lowest.len());
            let mut skipped = 0;
            while skipped < collected.len() {
                let mut rest = Vec::new();
                collected.for_each(skipped, |target, rank| match target {
                    Target::Key(key) => rest.push((*key, rank)),
                    Target::Resolved(_) => panic!("nothing is resolved here"),
                });
                prop_assert_eq!(rest.len(), collected.len() - skipped);
                prop_assert!(rest.iter().all(|(key, rank)| *rank == lowest[key]));
                skipped += 1;
            }
        }
    }

    #[test]
    fn a_plain_key_is_kept_in_two_words() {
        assert_eq!(size_of::<Keys<u64>>(), 16);
    }
}
