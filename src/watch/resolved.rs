//! The lists of resolved keys. Each has a cache line of its own, and is found without hashing.
//!
//! A list is one word while at most one operation watches the key: adding or removing the watcher is a single
//! compare-and-swap. When a second watcher comes, or a watcher with a rank, the word becomes [`MANY`]. Then the list
//! lies behind a lock, until it is empty again.
//!
//! | word | list |
//! |---|---|
//! | `EMPTY` | no watcher; the key is resolved |
//! | an address | the operation at this address watches; the key is resolved |
//! | `MANY` | the list lies behind the lock; it may be empty if the key is not resolved any more |
//!
//! A list belongs to a key for as long as the key is resolved or watched. After that the list is *retired*, and reused
//! for another key:
//!
//! * A resolution or a watch keeps a list in use. A thread adds either of them only under the lock of the key's map
//!   shard, or while it has the key resolved itself. So a thread that has the lock, and finds neither a resolution nor
//!   a watch, can retire the list.
//! * While a key has watchers but is not resolved, the word of its list is `MANY`. So every removal takes the lock of
//!   the list, and the removal of the last watcher sees that the list can be retired.

use super::bound::{CheckBound, Order};
use super::list::WatchList;
use super::watchers::{Walking, Watchers};
use crate::cell::address::Address;
use crate::sync::numbers::Numbers;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};
use std::sync::OnceLock;

/// Names the list of a resolved key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ListNumber(u32);

/// The word of a list without a watcher. No address has the low 32 bits all set.
const EMPTY: u64 = u32::MAX as u64;
/// The word of a list behind the lock.
const MANY: u64 = 1 << 32 | EMPTY;

/// The list of one resolved key.
#[repr(align(64))]
pub(crate) struct ResolvedList<K> {
    word: AtomicU64,
    locked: Mutex<Locked<K>>,
}

struct Locked<K> {
    /// The key of the list. Shared, so that it is neither cloned nor dropped under this lock.
    key: Option<Arc<K>>,
    /// The number of resolutions of the key that exist.
    pins: usize,
    /// The watchers, if the word is `MANY`.
    list: Option<WatchList>,
}

/// The result of a lookup of the word: no watcher, one watcher, or a list behind the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peeked(u64);

impl Peeked {
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == EMPTY
    }

    /// The watcher, if it is the only one and the list is not behind the lock.
    #[inline]
    pub(crate) fn only(self) -> Option<Address> {
        (!matches!(self.0, EMPTY | MANY)).then_some(Address(self.0))
    }
}

impl<K> ResolvedList<K> {
    fn new() -> Self {
        Self {
            word: AtomicU64::new(MANY),
            locked: Mutex::new(Locked {
                key: None,
                pins: 0,
                list: None,
            }),
        }
    }

    /// Adds `watcher`, unless the list has `max` watchers already. Returns whether the watcher was added.
    #[inline(always)]
    pub(crate) fn add(&self, max: usize, watcher: Address, order: Order<'_>) -> bool {
        let only = !order.is_ranked() && max > 0 && self.swap(EMPTY, watcher.0);
        only || self.add_locked(max, watcher, order)
    }

    #[cold]
    fn add_locked(&self, max: usize, watcher: Address, order: Order<'_>) -> bool {
        if max == 0 {
            return false;
        }
        let mut locked = self.locked.lock();
        // For a watcher without a rank on an empty list, the word is enough.
        if !order.is_ranked() && self.swap(EMPTY, watcher.0) {
            return true;
        }
        self.gather(&mut locked);
        match &mut locked.list {
            Some(list) => list.add_up_to(max, watcher, order),
            none => {
                *none = Some(WatchList::new(watcher, order));
                true
            }
        }
    }

    /// Moves the list behind the lock, which the caller holds.
    fn gather(&self, locked: &mut Locked<K>) {
        // ORDERING: Relaxed: only a thread with this lock changes the word to `MANY`, or from it.
        if self.word.load(Ordering::Relaxed) != MANY {
            // ORDERING: AcqRel, as in `swap`. This is an exchange, so that the only watcher cannot leave between a read
            // and the move.
            let seen = Peeked(self.word.swap(MANY, Ordering::AcqRel));
            locked.list = seen.only().map(WatchList::One);
        }
    }

    /// Removes `watcher`, which was added with `order`. Returns the key if it has neither a watcher nor a resolution
    /// any more.
    #[inline(always)]
    pub(crate) fn remove(&self, watcher: Address, order: Order<'_>) -> Option<Arc<K>> {
        if !order.is_ranked() && self.swap(watcher.0, EMPTY) {
            return None;
        }
        let mut locked = self.locked.lock();
        if !locked.list.as_mut()?.remove(watcher, order) {
            return None;
        }
        locked.list = None;
        match &locked.key {
            Some(key) if locked.pins == 0 => Some(key.clone()),
            _ => {
                // An exchange, not a store. A check whose `peek_published` found `MANY` has published its event by a
                // Release on this word. The next thread that adds a watcher acquires the event through the release
                // sequence, which a store would end.
                self.swap(MANY, EMPTY);
                None
            }
        }
    }

    #[inline(always)]
    fn swap(&self, from: u64, to: u64) -> bool {
        // ORDERING: AcqRel. Release pairs with the Acquire of each lookup: a thread that finds the watcher sees what
        // was written to the watcher's slot before the watcher was added. Acquire pairs with the Release in
        // `peek_published`: if a check finds no watcher, a thread that adds a watcher later sees the event of the
        // check.
        self.word
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Looks at the watchers, and publishes what happened before this call: if this call misses a watcher, the thread
    /// that adds the watcher sees everything that happened before this call.
    #[inline(always)]
    pub(crate) fn peek_published(&self) -> Peeked {
        // ORDERING: AcqRel. This read-modify-write changes nothing, but it comes before or after the `swap` of each
        // parking thread. If it comes after, this call finds the watcher (this Acquire pairs with the Release in
        // `swap`). If it comes before, the parking thread sees the event (the Acquire in `swap` pairs with this
        // Release). A load would cover only the first case. The load before the exchange is Relaxed, because the
        // exchange compares the loaded value.
        let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
        let (Ok(word) | Err(word)) = self.word.fetch_update(set, fetch, Some);
        Peeked(word)
    }

    /// Looks at the watchers, by a load. A check may use this lookup alone only if the event happened under a lock that
    /// the watchers' `try_complete` takes as well: that lock orders event and examination. Other checks also look by
    /// [`peek_published`](Self::peek_published), or end the only watcher first ([`visit_loaded`](Self::visit_loaded)).
    #[inline]
    pub(crate) fn peek(&self) -> Peeked {
        // ORDERING: Acquire pairs with the Release in `swap`.
        //
        // Relaxed would suffice, so no loom model fails if this load is Relaxed. Either the user's lock orders the
        // watcher's `add` before this load, or the watcher is examined under that lock later and sees the event. If
        // this thread does not see the slot of an address yet, `State::claim_or_mark` finds the address stale.
        Peeked(self.word.load(Ordering::Acquire))
    }

    /// The watchers, after a lookup with the result `seen`: one watcher, or a list behind the lock.
    #[inline(always)]
    pub(crate) fn visit(&self, seen: Peeked, bound: CheckBound) -> ResolvedWatchers<'_, K> {
        let next = match seen.only() {
            Some(only) => Next::Only(only),
            None => Next::Walk(Box::new(Walking::new(bound))),
        };
        ResolvedWatchers { list: self, next }
    }

    /// The watchers, for a check that has made no lookup but [`peek`](Self::peek), and has found `only` as the only
    /// watcher.
    ///
    /// ORDERING: if the check misses a watcher, the thread that adds the watcher must see the event. So the check must
    /// make a read-modify-write of the word, and its last lookup must be that read-modify-write or come after it. If
    /// the check has ended `only`, it has removed `only` from the word by a read-modify-write (or under the list's
    /// lock), and a load is enough as the second lookup. If `only` was not ended, or is still in the word because a key
    /// has panicked, the second lookup is a read-modify-write.
    #[inline(always)]
    pub(crate) fn visit_loaded(&self, only: Address) -> ResolvedWatchers<'_, K> {
        ResolvedWatchers {
            list: self,
            next: Next::Loaded(only),
        }
    }

    /// The key of the list.
    pub(crate) fn key(&self) -> Option<Arc<K>> {
        self.locked.lock().key.clone()
    }

    /// Shows the list to `read`, if the list is behind the lock and not empty.
    pub(crate) fn read(&self, read: impl FnOnce(&WatchList)) {
        if let Some(list) = &self.locked.lock().list {
            read(list);
        }
    }

    /// The number of watchers.
    pub(crate) fn count(&self) -> usize {
        let seen = self.peek();
        match seen.only() {
            _ if seen.is_empty() => 0,
            Some(_) => 1,
            None => self.locked.lock().list.as_ref().map_or(0, WatchList::count),
        }
    }

    /// Counts one more resolution. The caller has the lock of the key's map shard, or has the key resolved already.
    pub(crate) fn pin(&self) {
        let mut locked = self.locked.lock();
        locked.pins += 1;
        if locked.list.is_none() {
            // If the key was not resolved before, the word is `MANY`. Any other word stays.
            self.swap(MANY, EMPTY);
        }
    }

    /// Takes over the watchers that the key had before it was resolved. The caller has the lock of the key's map shard,
    /// and is the only thread that knows this list.
    pub(crate) fn adopt(&self, watchers: WatchList) {
        let mut locked = self.locked.lock();
        self.gather(&mut locked);
        locked.list = Some(watchers);
    }

    /// Counts one resolution less. The caller has the lock of the key's map shard.
    fn unpin(&self) {
        let mut locked = self.locked.lock();
        locked.pins -= 1;
        if locked.pins == 0 {
            self.gather(&mut locked);
        }
    }
}

/// A chunk points to its lists, and each list is allocated by itself: one allocation for all of them would take long.
type Chunk<K> = Box<[OnceLock<Arc<ResolvedList<K>>>]>;

/// The watchers of a resolved key.
pub(crate) struct ResolvedWatchers<'l, K> {
    list: &'l ResolvedList<K>,
    next: Next,
}

enum Next {
    /// The only watcher.
    Only(Address),
    /// The only watcher, found by a load.
    Loaded(Address),
    /// The check has visited the watcher from `Loaded`. A second lookup tells whether others were added.
    Look(Address),
    /// Boxed, so that the other variants stay small.
    Walk(Box<Walking>),
    Over,
}

impl<K> Watchers for ResolvedWatchers<'_, K> {
    #[inline(always)]
    fn next(&mut self, has_ended: bool) -> Option<Address> {
        match self.next {
            // The only watcher has no rank, so every bound reaches it.
            Next::Only(only) => {
                self.next = Next::Over;
                Some(only)
            }
            Next::Loaded(only) => {
                self.next = Next::Look(only);
                Some(only)
            }
            Next::Over => None,
            // `visit_loaded` says why this load is enough.
            Next::Look(_) if has_ended && self.list.peek().is_empty() => None,
            Next::Look(_) | Next::Walk(_) => self.next_of_many(),
        }
    }

    #[inline(always)]
    fn is_over(&mut self) -> bool {
        match self.next {
            Next::Over => true,
            Next::Look(_) if self.list.peek().is_empty() => {
                self.next = Next::Over;
                true
            }
            _ => false,
        }
    }
}

impl<K> ResolvedWatchers<'_, K> {
    #[cold]
    #[inline(never)]
    fn next_of_many(&mut self) -> Option<Address> {
        if let Next::Look(met) = self.next {
            let seen = self.list.peek_published();
            if seen.is_empty() || seen.only() == Some(met) {
                self.next = Next::Over;
                return None;
            }
            // `visit_loaded` is only for checks without a bound.
            self.next = self.list.visit(seen, CheckBound::all()).next;
        }
        match &mut self.next {
            Next::Walk(walking) => walking.next(|| (), |read| self.list.read(read)),
            _ => self.next(false),
        }
    }
}

/// The lists of all resolved keys.
pub(crate) struct ResolvedLists<K> {
    /// Chunk `c` has `1 << c` lists; chunks with fewer than `FIRST` lists are not used. Lists are never moved; they are
    /// freed with this struct.
    chunks: [OnceLock<Chunk<K>>; u32::BITS as usize],
    /// The numbers of lists without a key.
    pub(super) free: Numbers,
}

/// The number of lists in the smallest chunk that is used.
const FIRST: u32 = 16;

impl<K> ResolvedLists<K> {
    pub(crate) fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; u32::BITS as usize],
            free: Numbers::default(),
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, number: ListNumber) -> &Arc<ResolvedList<K>> {
        let place = number.0 + FIRST;
        let chunk = place.ilog2();
        let lists = self.chunks[chunk as usize].get_or_init(|| {
            let lists = 0..1_u32 << chunk;
            lists.map(|_| OnceLock::new()).collect()
        });
        let offset = place ^ 1 << chunk;
        lists[offset as usize].get_or_init(|| Arc::new(ResolvedList::new()))
    }

    /// Gives `key` a list without watchers, for one resolution.
    pub(crate) fn occupy(&self, key: Arc<K>) -> ListNumber {
        let number = ListNumber(self.free.take());
        let resolved = self.get(number);
        resolved.locked.lock().key = Some(key);
        resolved.pin();
        number
    }

    /// Counts one resolution less. Retires the list if that was the last resolution and there is no watcher. The caller
    /// has the lock of the key's map shard, or is the only thread that knows the list.
    pub(crate) fn unpin(&self, number: ListNumber) -> Option<Arc<K>> {
        self.get(number).unpin();
        self.retire(number)
    }

    /// Takes a list back if its key has neither a resolution nor a watcher. Returns the key, to be dropped under no
    /// lock. The caller has the lock of the key's map shard, and removes the entry of the key.
    pub(crate) fn retire(&self, number: ListNumber) -> Option<Arc<K>> {
        let mut locked = self.get(number).locked.lock();
        let unused = locked.pins == 0 && locked.list.is_none();
        let key = locked.key.take_if(|_| unused)?;
        drop(locked);
        self.free.put_back(number.0);
        Some(key)
    }
}
