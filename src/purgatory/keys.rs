//! The keys that one operation watches.

use crate::hash::KeyHasher;
use crate::trampoline::{drop_user_value, drop_user_values};
use crate::watch::Target;
use crate::watch::bound::Rank;
use crate::watch::resolved::Number;
use std::collections::HashMap;
use std::hash::Hash;

/// Up to this many keys, duplicates are found by comparing; beyond, by hashing.
const COMPARED: usize = 16;

/// What one operation watches, each key once.
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

    /// Keeps the first `len` of them, and returns the others.
    pub(crate) fn split_off(&mut self, len: usize) -> Self {
        let mut all = match std::mem::replace(self, Self::More(Box::default())) {
            Self::Mixed(mut watches) => {
                let others = watches.split_off(len.min(watches.len()));
                *self = Self::Mixed(watches);
                return Self::Mixed(Box::new(others));
            }
            Self::Resolved(number) if len > 0 => {
                *self = Self::Resolved(number);
                return Self::More(Box::default());
            }
            Self::Resolved(number) => return Self::Resolved(number),
            Self::More(keys) => *keys,
            Self::One(key) => vec![key],
            Self::Two(keys) => (*keys).into(),
            Self::Three(keys) => (*keys).into(),
        };
        let others = all.split_off(len.min(all.len()));
        *self = Self::More(Box::new(all));
        Self::More(Box::new(others))
    }

    /// Drops them one by one: see [`drop_user_values`].
    pub(crate) fn drop_each(self)
    where
        K: 'static,
    {
        match self {
            Self::Resolved(_) => {}
            Self::One(key) => drop_user_value(key),
            Self::Two(keys) => drop_user_values(*keys),
            Self::Three(keys) => drop_user_values(*keys),
            Self::More(keys) => drop_user_values(*keys),
            Self::Mixed(watches) => drop_user_values(*watches),
        }
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

    /// Calls `each` for all of them but the first `skipped`. A closure that is marked `inline(always)` becomes part of the
    /// loop over plain keys.
    #[inline(always)]
    pub(crate) fn for_each<'k>(
        &'k self,
        skipped: usize,
        mut each: impl FnMut(Target<&'k K>, Option<Rank>),
    ) {
        match self {
            Self::One(key) if skipped == 0 => each(Target::Key(key), None),
            Self::Resolved(number) if skipped == 0 => each(Target::Resolved(*number), None),
            Self::One(_) | Self::Resolved(_) => {}
            Self::Two(keys) => for_each_key(keys.as_slice(), skipped, each),
            Self::Three(keys) => for_each_key(keys.as_slice(), skipped, each),
            Self::More(keys) => for_each_key(keys, skipped, each),
            Self::Mixed(watches) => for_each_watch(watches, skipped, each),
        }
    }
}

#[inline(never)]
fn for_each_key<'k, K>(
    keys: &'k [K],
    skipped: usize,
    mut each: impl FnMut(Target<&'k K>, Option<Rank>),
) {
    for key in keys.get(skipped..).unwrap_or_default() {
        each(Target::Key(key), None);
    }
}

#[inline(never)]
fn for_each_watch<'k, K>(
    watches: &'k [(Target<K>, Option<Rank>)],
    skipped: usize,
    mut each: impl FnMut(Target<&'k K>, Option<Rank>),
) {
    for (target, rank) in watches.get(skipped..).unwrap_or_default() {
        each(target.as_ref(), *rank);
    }
}

/// Each of `all` once: two are the same if one covers the other, and then they have the same name.
pub(super) fn distinct<T, K: Eq + Hash, S: KeyHasher>(
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
    }

    #[test]
    fn a_plain_key_is_kept_in_two_words() {
        assert_eq!(size_of::<Keys<u64>>(), 16);
    }
}
