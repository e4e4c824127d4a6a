//! Checks that wait until the timer is driven.

use crate::address::Address;
use crate::hash::{Key, KeyHasher};
use crate::sync::{Arc, Mutex, SLICE};
use crate::trampoline::{Trampoline, drop_user_value};
use crate::watch::bound::Bound;
use std::collections::{HashMap, VecDeque};

/// What is to be checked by a check that waits, because it is deferred or nested.
///
/// A key is shared by the entries of a queue and of a map. So a map in which `Hash` panics never drops it, under the
/// lock: destructors of keys are the user's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum CheckTarget<K> {
    /// All operations on a key.
    Key(Arc<K>),
    /// One operation: it was checked by its handle, or its holder has left it another examination.
    Operation(Address),
}

impl<K> CheckTarget<K> {
    pub(crate) fn key(key: K) -> Self {
        Self::Key(Arc::new(key))
    }
}

/// The deferred checks of one purgatory, each once, the oldest first.
pub(crate) struct DeferredChecks<K, S>(Mutex<Deferred<K, S>>);

struct Deferred<K, S> {
    order: VecDeque<CheckTarget<K>>,
    /// The number of the first in `order`.
    first: u64,
    /// How far each goes, and its number. An entry whose number has passed is dead: `Hash` or `Eq` of its key panicked
    /// when it was to be removed.
    bounds: HashMap<CheckTarget<K>, (Bound, u64), S>,
    /// After the shutdown no check waits.
    closed: bool,
}

impl<K: Key, S: KeyHasher> DeferredChecks<K, S> {
    pub(crate) fn new(hasher: S) -> Self {
        Self(Mutex::new(Deferred {
            order: VecDeque::new(),
            first: 0,
            bounds: HashMap::with_hasher(hasher),
            closed: false,
        }))
    }

    /// Adds a check, or merges it with the one that waits already. `false` after the shutdown.
    pub(crate) fn add(&self, check: CheckTarget<K>, bound: Bound) -> bool {
        let mut guard = self.0.lock();
        let waiting = &mut *guard;
        let accepted = !waiting.closed;
        if accepted {
            let number = waiting.first + waiting.order.len() as u64;
            let entry = waiting.bounds.entry(check.clone());
            // That of the map: a dead entry has a key of its own, which must not be dropped under this lock.
            let key = entry.key().clone();
            let (known, at) = entry.or_insert((bound, number));
            if (waiting.first..number).contains(at) {
                *known = known.merge(bound);
            } else {
                (*known, *at) = (bound, number);
                waiting.order.push_back(key);
            }
        }
        drop(guard);
        // Not under the lock: the destructor of a key is the user's.
        let _trampoline = Trampoline::enter();
        drop_user_value(check);
        accepted
    }

    /// The check that has waited longest.
    pub(crate) fn next(&self) -> Option<(CheckTarget<K>, Bound)> {
        // Dropped after the lock is released, also if `Hash` or `Eq` of the key panics here.
        let check;
        let mut waiting = self.0.lock();
        check = waiting.order.pop_front()?;
        waiting.first += 1;
        let (bound, _) = waiting.bounds.remove(&check)?;
        Some((check, bound))
    }

    /// Gives the memory of a burst back.
    pub(crate) fn shrink(&self) {
        let waiting = &mut *self.0.lock();
        // (Only an empty map is moved without hashing keys, which may panic.)
        if waiting.bounds.is_empty() && waiting.order.capacity() > SLICE {
            waiting.order = VecDeque::new();
            waiting.bounds.shrink_to_fit();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().order.len()
    }

    /// Takes no more checks, and gives back those that wait.
    pub(crate) fn close(&self) -> impl Iterator<Item = CheckTarget<K>> {
        let mut waiting = self.0.lock();
        waiting.closed = true;
        // A dead entry is not in the order any more, and holds the last reference to its key.
        let order = std::mem::take(&mut waiting.order);
        let bounds: Vec<_> = waiting.bounds.drain().map(|(check, _)| check).collect();
        drop(waiting);
        order.into_iter().chain(bounds)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::hash::{Hash, Hasher, RandomState};
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    #[test]
    fn checks_of_one_key_are_merged_and_go_as_far_as_both() {
        let checks = DeferredChecks::new(RandomState::new());
        assert!(checks.add(CheckTarget::key(1), Bound::at_most(1).up_to(9)));
        assert!(checks.add(CheckTarget::key(2), Bound::all()));
        assert!(checks.add(CheckTarget::key(1), Bound::at_most(2).up_to(5)));
        let until_refused = Bound::all().until_refused();
        for key in [2, 3, 3] {
            assert!(checks.add(CheckTarget::key(key), until_refused));
        }
        assert_eq!(checks.len(), 3);
        let both = Bound::at_most(3).up_to(9);
        assert_eq!(checks.next(), Some((CheckTarget::key(1), both)));
        assert_eq!(checks.next(), Some((CheckTarget::key(2), Bound::all())));
        assert_eq!(checks.next(), Some((CheckTarget::key(3), until_refused)));
        assert_eq!(checks.next(), None);
    }

    #[test]
    fn g01_a_check_that_waits_keeps_its_bound_though_others_were_made() {
        let checks = DeferredChecks::new(RandomState::new());
        for key in [1, 2, 3] {
            assert!(checks.add(CheckTarget::key(key), Bound::all()));
        }
        assert_eq!(checks.next(), Some((CheckTarget::key(1), Bound::all())));
        for key in [3, 2, 1] {
            assert!(checks.add(CheckTarget::key(key), Bound::at_most(1)));
        }
        let left = [2, 3].map(|key| Some((CheckTarget::key(key), Bound::all())));
        assert_eq!([checks.next(), checks.next()], left);
        let again = Some((CheckTarget::key(1), Bound::at_most(1)));
        assert_eq!([checks.next(), checks.next()], [again, None]);
    }

    thread_local!(static BROKEN: Cell<bool> = const { Cell::new(false) });

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Fragile(u8);

    impl Hash for Fragile {
        fn hash<H: Hasher>(&self, state: &mut H) {
            if BROKEN.get() {
                resume_unwind(Box::new("on purpose"));
            }
            self.0.hash(state);
        }
    }

    /// It costs its own check. What it leaves in the map takes no later one for itself.
    #[test]
    fn g12_a_key_that_panics_when_its_check_is_made_costs_no_later_check() {
        let checks = DeferredChecks::new(RandomState::new());
        let add = |key, bound| assert!(checks.add(CheckTarget::key(Fragile(key)), bound));
        add(1, Bound::all());
        add(2, Bound::all());
        BROKEN.set(true);
        assert!(catch_unwind(AssertUnwindSafe(|| checks.next())).is_err());
        BROKEN.set(false);
        add(1, Bound::all());
        add(2, Bound::at_most(1));
        let left = [2, 1].map(|key| Some((CheckTarget::key(Fragile(key)), Bound::all())));
        assert_eq!([checks.next(), checks.next()], left);
    }
}
