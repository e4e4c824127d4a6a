//! Deferred checks, which wait in a queue until a thread drives the timer.
//!
//! The target of a check is a key or a single operation. At most one check of each target waits: a second check is
//! merged with the waiting check. The checks stand in a queue, the oldest first, and in two maps, one by key and one by
//! operation, where a second check finds the first.
//!
//! The queue is a linked list, which never moves its items, so its lock is never held longer when more checks wait. Each
//! map has 256 shards, each with a lock and a table. When a table is full, its entries (about 1/256 of the map) are
//! hashed again, under the lock of this shard. Only this takes longer when more checks wait.

use crate::callbacks::panics::Panics;
use crate::cell::address::Address;
use crate::hash::{Key, KeyHasher, RandomState};
use crate::sync::{Arc, Mutex, ShardedMap};
use crate::watch::bound::CheckBound;
use std::collections::LinkedList;
use std::hash::{Hash, Hasher};

/// The target of a check that waits, either deferred or nested (made inside a `try_complete`). Clones share the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CheckTarget<K> {
    /// All operations that watch this key.
    Key(Arc<K>),
    /// One operation. Its handle or its waker has asked for the check. Or a thread has examined the operation
    /// `MAX_EXAMINATIONS` times in a row, and leaves the next examination to the thread that drives the timer.
    Operation(Address),
}

impl<K: Hash> Hash for CheckTarget<K> {
    /// Writes the key, or the address, and no discriminant: the user's hasher may accept nothing but one integer.
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Key(key) => key.hash(state),
            Self::Operation(address) => address.hash(state),
        }
    }
}

impl<K> CheckTarget<K> {
    pub(crate) fn key(key: K) -> Self {
        Self::Key(Arc::new(key))
    }
}

/// The bound of a check while the check waits. `None` once the check was taken out of the queue: then no other check
/// may be merged with it.
type Waiting = Arc<Mutex<Option<CheckBound>>>;

/// The deferred checks of one purgatory, at most one for each target, the oldest first.
pub(crate) struct DeferredChecks<K, S> {
    /// The waiting checks by target, so that a second check of a target finds the first. An entry is removed when its
    /// check is taken out of the queue. If `Hash` or `Eq` of the key panics during the removal, the entry stays as a
    /// tombstone: its bound is `None`, and the next check of the key replaces it.
    keys: ShardedMap<CheckTarget<K>, Waiting, S>,
    /// The waiting checks of single operations, as in `keys`. They have a map of their own, with a hasher of the
    /// library. A [waker](crate::operation::Cause::waker) may be woken under any lock of the user, so a wake-up must
    /// not run `Hash` of a key or the user's hasher.
    operations: ShardedMap<CheckTarget<K>, Waiting, RandomState>,
    queue: Mutex<Queue<K>>,
}

struct Queue<K> {
    checks: LinkedList<(CheckTarget<K>, Waiting)>,
    /// Set by the shutdown. From then on every check is dropped instead of waiting.
    is_closed: bool,
}

/// The number of shards of each map, each with a lock of its own.
const SHARDS: usize = 256;

impl<K: Key, S: KeyHasher> DeferredChecks<K, S> {
    pub(crate) fn new(hasher: S) -> Self {
        Self {
            keys: ShardedMap::new(hasher, SHARDS),
            operations: ShardedMap::new(RandomState::default(), SHARDS),
            queue: Mutex::new(Queue {
                checks: LinkedList::new(),
                is_closed: false,
            }),
        }
    }

    /// Adds a check. If a check of the same target waits already, merges the two: the waiting check gets a bound that
    /// covers both. Returns `false` after the shutdown, when the check is dropped. Drops no check that another call has
    /// added: the destructor of that check's key may take a lock that the caller holds.
    pub(crate) fn add(&self, check: CheckTarget<K>, bound: CheckBound) -> bool {
        let mut is_open = true;
        let merge_or_push = |known: Option<&mut Waiting>| {
            if let Some(known) = &known {
                if let Some(waiting) = &mut *known.lock() {
                    *waiting = waiting.merge(bound);
                    return None;
                }
            }
            let waiting = Arc::new(Mutex::new(Some(bound)));
            // Push while the map shard is locked. Another thread that finds the entry of this check in the map merges
            // its own check with it, and pushes nothing. So this check must be in the queue by then.
            let mut last = LinkedList::from([(check.clone(), waiting.clone())]);
            let mut queue = self.queue.lock();
            if queue.is_closed {
                is_open = false;
                return None;
            }
            queue.checks.append(&mut last);
            drop(queue);
            match known {
                Some(dead) => {
                    *dead = waiting;
                    None
                }
                None => Some(waiting),
            }
        };
        match check {
            CheckTarget::Key(_) => self.keys.update("check_later", &check, merge_or_push),
            CheckTarget::Operation(_) => self.operations.update("wake", &check, merge_or_push),
        }
        is_open
    }

    /// Takes the check that has waited longest out of the queue. `None` if no check waits. Calls `on_panic` if `Hash`
    /// or `Eq` of the key panics: the panic does not keep the check from being made.
    pub(crate) fn next(&self, on_panic: impl Fn()) -> Option<(CheckTarget<K>, CheckBound)> {
        loop {
            let (check, waiting) = self.queue.lock().checks.pop_front()?;
            // From here on this check is being made, and may have examined an operation already when another thread
            // announces a further event by a check of the same target. If that later check were merged with this one,
            // the operation could miss the event. So take the bound out: no check is merged with one that has no bound.
            let bound = waiting.lock().take();
            let is_dead = |known: &Waiting| known.lock().is_none();
            let removed = Panics::contain(|| {
                let (what, is_dead) = ("a deferred check", Some(is_dead));
                drop(match check {
                    CheckTarget::Key(_) => self.keys.edit(what, &check, is_dead, |_| false),
                    CheckTarget::Operation(_) => {
                        self.operations.edit(what, &check, is_dead, |_| false)
                    }
                });
            });
            if removed.is_none() {
                // The entry stays in the map as a tombstone: its bound is `None`, and the next check of the key
                // replaces it.
                on_panic();
            }
            if let Some(bound) = bound {
                return Some((check, bound));
            }
        }
    }

    /// Releases memory of the two maps that is left from a time when more checks waited.
    pub(crate) fn shrink(&self) {
        self.keys.shrink();
        self.operations.shrink();
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.lock().checks.len()
    }

    /// Rejects all further checks. Returns an iterator that takes the waiting checks out of the queue, one by one. The
    /// caller must run it to its end, because a check that it leaves in the queue stays there.
    pub(crate) fn close(&self) -> impl Iterator<Item = CheckTarget<K>> {
        // After this line no check enters the queue.
        self.queue.lock().is_closed = true;
        // A panic of a key's `Hash` or `Eq` is not counted here: the purgatory is shut down.
        std::iter::from_fn(|| self.next(|| ())).map(|(check, _)| check)
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::hash::{Hash, Hasher, RandomState};
    use std::panic::resume_unwind;

    #[test]
    fn checks_of_one_key_are_merged_and_go_as_far_as_both() {
        let checks = DeferredChecks::new(RandomState::new());
        assert!(checks.add(CheckTarget::key(1), CheckBound::at_most(1).up_to(9)));
        assert!(checks.add(CheckTarget::key(2), CheckBound::all()));
        assert!(checks.add(CheckTarget::key(1), CheckBound::at_most(2).up_to(5)));
        let until_refused = CheckBound::all().until_refused();
        for key in [2, 3, 3] {
            assert!(checks.add(CheckTarget::key(key), until_refused));
        }
        assert_eq!(checks.len(), 3);
        let both = CheckBound::at_most(3).up_to(9);
        assert_eq!(checks.next(|| ()), Some((CheckTarget::key(1), both)));
        assert_eq!(
            checks.next(|| ()),
            Some((CheckTarget::key(2), CheckBound::all()))
        );
        assert_eq!(
            checks.next(|| ()),
            Some((CheckTarget::key(3), until_refused))
        );
        assert_eq!(checks.next(|| ()), None);
    }

    #[test]
    fn g01_a_check_that_waits_keeps_its_bound_though_others_were_made() {
        let checks = DeferredChecks::new(RandomState::new());
        for key in [1, 2, 3] {
            assert!(checks.add(CheckTarget::key(key), CheckBound::all()));
        }
        assert_eq!(
            checks.next(|| ()),
            Some((CheckTarget::key(1), CheckBound::all()))
        );
        for key in [3, 2, 1] {
            assert!(checks.add(CheckTarget::key(key), CheckBound::at_most(1)));
        }
        let left = [2, 3].map(|key| Some((CheckTarget::key(key), CheckBound::all())));
        assert_eq!([checks.next(|| ()), checks.next(|| ())], left);
        let again = Some((CheckTarget::key(1), CheckBound::at_most(1)));
        assert_eq!([checks.next(|| ()), checks.next(|| ())], [again, None]);
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

    /// A tombstone in the map (the entry of a key whose removal has panicked) does not swallow a later check of the
    /// key.
    #[test]
    fn g12_a_key_that_panics_when_its_check_is_made_costs_no_later_check() {
        let checks = DeferredChecks::new(RandomState::new());
        let add = |key, bound| assert!(checks.add(CheckTarget::key(Fragile(key)), bound));
        add(1, CheckBound::all());
        add(2, CheckBound::all());
        BROKEN.set(true);
        let first = Some((CheckTarget::key(Fragile(1)), CheckBound::all()));
        assert_eq!(checks.next(|| ()), first);
        BROKEN.set(false);
        add(1, CheckBound::all());
        add(2, CheckBound::at_most(1));
        let left = [2, 1].map(|key| Some((CheckTarget::key(Fragile(key)), CheckBound::all())));
        assert_eq!([checks.next(|| ()), checks.next(|| ())], left);
    }

    thread_local!(static HASHED: Cell<u32> = const { Cell::new(0) });

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Counting(u32);

    impl Hash for Counting {
        fn hash<H: Hasher>(&self, state: &mut H) {
            HASHED.set(HASHED.get() + 1);
            self.0.hash(state);
        }
    }

    /// The shutdown has begun, and a check still waits, when another thread wakes an operation or defers a check. That
    /// thread may hold a lock of the user. It drops its own check, and leaves the waiting one to the shutdown.
    #[test]
    fn g30_an_add_after_the_shutdown_has_begun_leaves_what_waits_alone() {
        let checks = DeferredChecks::new(RandomState::new());
        let waiting = CheckTarget::key(Counting(1));
        assert!(checks.add(waiting.clone(), CheckBound::all()));
        let mut dropped = checks.close();
        HASHED.set(0);
        let operation = CheckTarget::Operation(Address::new(0, 1, 0));
        assert!(!checks.add(operation, CheckBound::all()));
        assert_eq!(HASHED.get(), 0);
        assert!(!checks.add(CheckTarget::key(Counting(2)), CheckBound::all()));
        assert_eq!(HASHED.get(), 1, "its own key");
        assert_eq!([dropped.next(), dropped.next()], [Some(waiting), None]);
    }

    /// An add holds no lock for long, however many checks wait. If a full table has to be moved to a larger one, its
    /// keys are hashed again: these are the keys of one map shard only.
    #[test]
    fn g20_no_deferred_check_takes_longer_where_many_wait() {
        const CHECKS: u32 = 300_000;
        let checks = DeferredChecks::new(RandomState::new());
        let add = |number| {
            HASHED.set(0);
            assert!(checks.add(CheckTarget::key(Counting(number)), CheckBound::all()));
            HASHED.get()
        };
        let most = (0..CHECKS).map(add).max();
        assert!(most < Some(CHECKS / 50), "{most:?} keys hashed in one add");
    }
}
