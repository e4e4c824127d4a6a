//! The keys of one operation.

use crate::operation::KeyHasher;
use std::collections::HashSet;
use std::hash::Hash;

/// Up to so many keys, duplicates are found by comparing; beyond, by hashing.
const COMPARED: usize = 16;

/// At least one key, each once.
#[derive(Debug)]
pub(crate) enum Keys<K> {
    One(K),
    Many(Box<[K]>),
}

impl<K: Eq + Hash> Keys<K> {
    /// `None` if there are no keys.
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
        let mut all = Vec::with_capacity(2 + keys.size_hint().0);
        all.push(first);
        if second != all[0] {
            all.push(second);
        }
        for key in keys {
            if all.len() > COMPARED || !all.contains(&key) {
                all.push(key);
            }
        }
        if all.len() > COMPARED {
            deduplicate(&mut all, hasher);
        }
        if all.len() == 1 {
            return all.pop().map(Self::One);
        }
        Some(Self::Many(all.into_boxed_slice()))
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[K] {
        match self {
            Self::One(key) => std::slice::from_ref(key),
            Self::Many(keys) => keys,
        }
    }
}

fn deduplicate<K: Eq + Hash, S: KeyHasher>(keys: &mut Vec<K>, hasher: &S) {
    let repeated = {
        let mut seen = HashSet::with_capacity_and_hasher(keys.len(), hasher.clone());
        keys.iter().map(|key| !seen.insert(key)).collect::<Vec<_>>()
    };
    let mut repeated = repeated.into_iter();
    keys.retain(|_| !repeated.next().unwrap_or(false));
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
            match collected {
                None => prop_assert!(keys.is_empty()),
                Some(collected) => {
                    let slice = collected.as_slice();
                    prop_assert_eq!(slice.len(), distinct.len());
                    prop_assert_eq!(slice.iter().copied().collect::<BTreeSet<_>>(), distinct);
                    prop_assert_eq!(matches!(collected, Keys::One(_)), slice.len() == 1);
                }
            }
        }
    }
}
