//! The watch lists of resolved keys: keys that were looked up once, for a `ResolvedKey`. Each list has a cache line of
//! its own, and is found by its number, without hashing the key.
//!
//! While at most one operation watches the key, the list is one atomic word, and adding or removing the watcher is a
//! single compare-and-swap. When a second watcher comes, or a watcher with a rank, the word becomes [`MANY`], and the
//! watchers move to a list behind a lock. They stay behind the lock until the list is empty again.
//!
//! | word | list |
//! |---|---|
//! | `EMPTY` | no watcher; the key is resolved |
//! | an address | only the operation at this address watches; the key is resolved |
//! | `MANY` | the watchers are behind the lock; there may be none if the key is not resolved any more |
//!
//! A key keeps its list for as long as the key is resolved (has a `ResolvedKey`) or watched. After that the list is
//! *retired*: it loses its key, and is reused for another key. Two rules find the right moment:
//!
//! * No list is retired too early. A thread makes a `ResolvedKey` or adds a watch only under the lock of the key's map
//!   shard, or while the thread itself has a `ResolvedKey` of the key. So a thread that has this lock, and finds
//!   neither a `ResolvedKey` nor a watch, can retire the list: neither can be added before the thread releases the
//!   lock.
//! * No list is forgotten. While a key has watchers but is not resolved, the word of its list is `MANY`. So every
//!   removal takes the lock of the list, and the removal of the last watcher sees that the list can be retired.

use super::bound::{CheckBound, Order};
use super::list::WatchList;
use super::watchers::{Walking, Watchers};
use crate::cell::address::Address;
use crate::sync::numbers::Numbers;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};
use std::num::NonZeroU32;
use std::sync::OnceLock;

/// The number of the watch list of a resolved key (a key that was looked up once, for a `ResolvedKey`): the list's
/// place in [`ResolvedLists`], counted from [`FIRST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ListNumber(NonZeroU32);

/// The word of a list without a watcher. Differs from every address, because no address has the low 32 bits all set.
const EMPTY: u64 = u32::MAX as u64;
/// The word of a list whose watchers, if there are any, do not lie in the word, but in `Locked::list`, under the lock.
const MANY: u64 = 1 << 32 | EMPTY;

/// The list of one resolved key: a key that was looked up once, for a `ResolvedKey`.
#[repr(align(64))]
pub(crate) struct ResolvedList<K> {
    word: AtomicU64,
    locked: Mutex<Locked<K>>,
}

struct Locked<K> {
    /// The key of the list; `None` if the list is vacant. Shared, so that the key is neither cloned nor dropped under
    /// this lock: both may run user code.
    key: Option<Arc<K>>,
    /// The number of `ResolvedKey`s of the key. While there is one, the list is not retired (made vacant).
    pins: usize,
    /// The watchers, if `ResolvedList::word` is [`MANY`] and there are any. Otherwise the word names the only watcher,
    /// if there is one.
    list: Option<WatchList>,
}

/// What a read of a list's word has shown: no watcher, the only watcher, or that the watchers are behind the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peeked(u64);

impl Peeked {
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == EMPTY
    }

    /// The watcher, if the word is its address. `None` if there is no watcher, or if the watchers lie in
    /// `Locked::list`, under the lock.
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
        // The word of the list can hold one watcher without a rank. `add` has tried to store `watcher` there, but the
        // word was not `EMPTY`. Try again: the list may have become empty meanwhile.
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

    /// Sets the list's word to `MANY`. This says that from now on the watchers are in `locked.list`, under the lock,
    /// which the caller holds. If the word was the address of the only watcher, puts this watcher into `locked.list`.
    fn gather(&self, locked: &mut Locked<K>) {
        // ORDERING: Relaxed: only a thread with this lock changes the word to `MANY` (the value which says that the
        // watchers are behind this lock), or from `MANY` to another value. The lock orders these changes before this
        // load, so the load shows correctly whether the word is `MANY`.
        if self.word.load(Ordering::Relaxed) != MANY {
            // ORDERING: AcqRel, as in `swap`. The Acquire pairs with two Releases:
            //
            // * The Release in `swap`, by which the only watcher was added: a thread that takes this lock later sees
            //   the slot (the memory of the operation) of this watcher.
            // * The Release in `peek_published`, if a check looks before this exchange. The check misses a watcher that
            //   is added under this lock afterwards. But the thread that adds the watcher then sees the change that the
            //   check announces.
            //
            // An exchange, not a load and a store: between these two, the only watcher could leave, and the list would
            // then keep a watcher that has left.
            let seen = Peeked(self.word.swap(MANY, Ordering::AcqRel));
            locked.list = seen.only().map(WatchList::One);
        }
    }

    /// Removes `watcher`, which was added with `order`. Returns the key of this list if two conditions are met: the
    /// list has lost its last watcher, and no `ResolvedKey` refers to the list any more. Then the caller retires the
    /// list (makes it vacant).
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
                // An exchange, not a store, so that no event is lost. A check may have found `MANY` in this word, and
                // has published its event by the Release of that access (`peek_published`). The next thread that adds a
                // watcher acquires this event if it reads the word from the release sequence of that Release. An
                // exchange continues this release sequence; a store would end it.
                self.swap(MANY, EMPTY);
                None
            }
        }
    }

    #[inline(always)]
    fn swap(&self, from: u64, to: u64) -> bool {
        // ORDERING: AcqRel. This Release pairs with the Acquire of each lookup: a thread that finds the watcher sees
        // what was written to the watcher's slot (the memory of its operation) before the watcher was added.
        //
        // This Acquire pairs with the Release in `peek_published`. There a check looks for watchers by a
        // read-modify-write, which also publishes its event (the change that it announces). If the check finds no
        // watcher, a thread that adds a watcher later sees the event.
        self.word
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Reads the list's word by a read-modify-write that stores the value it has read. Unlike a load, a
    /// read-modify-write also publishes what this thread did before the call (its event). So if the call misses a
    /// watcher, the thread that adds the watcher sees the event.
    #[inline(always)]
    pub(crate) fn peek_published(&self) -> Peeked {
        // ORDERING: AcqRel. This read-modify-write does not change the value of the word. Like every read-modify-write
        // of the word, it comes before or after the `swap` by which a parking thread adds its watcher:
        //
        // * If it comes after, this call finds the watcher: this Acquire pairs with the Release in `swap`.
        // * If it comes before, the parking thread sees the event: the Acquire in `swap` pairs with this Release.
        //
        // A load instead of the read-modify-write would publish nothing, so it would cover only the first case.
        // `fetch_update` loads the word, and then exchanges the loaded value for itself. Its load may be Relaxed: the
        // exchange is AcqRel, and succeeds only if the word still has the loaded value.
        let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
        let (Ok(word) | Err(word)) = self.word.fetch_update(set, fetch, Some);
        Peeked(word)
    }

    /// Looks at the watchers by a load, which publishes nothing. The load may miss an operation that is being parked. A
    /// check may use this lookup alone only if its event (the change that it announces) happened under a lock that the
    /// watchers' `try_complete` takes as well: that lock orders the event and the examination, so the missed operation
    /// sees the event. Any other check needs a second lookup: by [`peek_published`](Self::peek_published), or after it
    /// has ended the only watcher (see [`visit_loaded`](Self::visit_loaded)).
    #[inline]
    pub(crate) fn peek(&self) -> Peeked {
        // ORDERING: Acquire pairs with the Release in `swap`: a thread that finds a watcher sees the watcher's slot.
        //
        // Relaxed would suffice, so no loom model fails if this load is Relaxed. A check that uses only this lookup has
        // made its event under a lock of the user, which `try_complete` takes as well. There are two cases:
        //
        // * That lock orders the watcher's `add` before this load. Then the thread sees the watcher and its slot.
        // * Otherwise the watcher is examined under that lock after the event, and sees the event. So the check need
        //   not examine this watcher. If the load shows an address whose slot the thread does not see yet, the check
        //   skips this watcher, because `State::claim_or_mark` finds the address stale.
        Peeked(self.word.load(Ordering::Acquire))
    }

    /// The watchers that a check examines. `seen` is what the check's lookup has read from the word. If `seen` names
    /// the only watcher, returns this watcher. Otherwise returns the list behind the lock, which is walked within
    /// `bound`.
    #[inline(always)]
    pub(crate) fn visit(&self, seen: Peeked, bound: CheckBound) -> ResolvedWatchers<'_, K> {
        let next = match seen.only() {
            Some(only) => Next::Only(only),
            None => Next::Walk(Box::new(Walking::new(bound))),
        };
        ResolvedWatchers { list: self, next }
    }

    /// The watchers for a check that has looked at the word only by a load, in [`peek`](Self::peek), and has found the
    /// single watcher `only`.
    ///
    /// ORDERING: the load may miss a watcher that another thread is adding. Then that thread must see the event (the
    /// change that the check announces). A load does not ensure this. A read-modify-write of the word does: it comes
    /// before or after the read-modify-write that adds the watcher (see `peek_published`). So the check examines
    /// `only`, and then looks at the word a second time. This second lookup must be a read-modify-write, or come after
    /// one by the same thread:
    ///
    /// * If the check has ended `only`, it has removed `only` from the word by a read-modify-write, or under the list's
    ///   lock. So a load is enough as the second lookup.
    /// * If `only` was not ended, or is still in the word because a key has panicked, the second lookup is a
    ///   read-modify-write.
    #[inline(always)]
    pub(crate) fn visit_loaded(&self, only: Address) -> ResolvedWatchers<'_, K> {
        ResolvedWatchers {
            list: self,
            next: Next::Loaded(only),
        }
    }

    /// The key of the list. `None` if the list is vacant.
    pub(crate) fn key(&self) -> Option<Arc<K>> {
        self.locked.lock().key.clone()
    }

    /// Calls `read` with the list behind the lock, and holds the lock meanwhile. Does not call `read` if there is no
    /// such list.
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

    /// Counts one more `ResolvedKey` of the list's key. The caller has the lock of the key's map shard, or has a
    /// `ResolvedKey` of the key already, or is the only thread that knows the list. So the list is not retired (made
    /// vacant) meanwhile.
    pub(crate) fn pin(&self) {
        let mut locked = self.locked.lock();
        locked.pins += 1;
        if locked.list.is_none() {
            // The list has no watcher behind the lock. If the key was not resolved before, the word is `MANY` all the
            // same. Then set it to `EMPTY` (no watcher). Otherwise the word is `EMPTY` or an address, and the exchange
            // leaves it as it is.
            self.swap(MANY, EMPTY);
        }
    }

    /// Takes over the watchers that the key had before it was resolved (before a `ResolvedKey` of it was made). The
    /// caller has the lock of the key's map shard, and is the only thread that knows this list.
    pub(crate) fn adopt(&self, watchers: WatchList) {
        let mut locked = self.locked.lock();
        self.gather(&mut locked);
        locked.list = Some(watchers);
    }

    /// Counts one `ResolvedKey` less. If none is left, sets the word to `MANY`, and moves the watcher that lies there,
    /// if any, to `Locked::list`. From then on every removal of a watcher takes the lock, and the removal of the last
    /// one sees that the list can be retired (made vacant). The caller has the lock of the key's map shard, or is the
    /// only thread that knows the list.
    fn unpin(&self) {
        let mut locked = self.locked.lock();
        locked.pins -= 1;
        if locked.pins == 0 {
            self.gather(&mut locked);
        }
    }
}

/// A chunk of places for lists. Each list is allocated by itself when it is first used, because one allocation of a
/// large chunk with all its lists would take long.
type Chunk<K> = Box<[OnceLock<Arc<ResolvedList<K>>>]>;

/// The watchers that a check by a `ResolvedKey` (a key whose list was looked up once) visits, one after another.
pub(crate) struct ResolvedWatchers<'l, K> {
    list: &'l ResolvedList<K>,
    next: Next,
}

enum Next {
    /// The check visits this watcher, and no other.
    Only(Address),
    /// The check visits this watcher first. A load has shown it as the only one, but may have missed a watcher that is
    /// being added. So a second lookup follows.
    Loaded(Address),
    /// The check has visited this watcher, the only one that the load of [`Loaded`](Self::Loaded) has shown. A second
    /// lookup tells whether others were added.
    Look(Address),
    /// The check walks over several watchers, or over watchers with a rank. They lie in `Locked::list`, and not in the
    /// word. Boxed, so that the other variants stay small.
    Walk(Box<Walking>),
    Over,
}

impl<K> Watchers for ResolvedWatchers<'_, K> {
    /// The list is found without the key, and there is no `pause` between its slices.
    const RUNS_USER_CODE: bool = false;

    #[inline(always)]
    fn next(&mut self, has_ended: bool) -> Option<Address> {
        match self.next {
            // Only the address of a watcher without a rank is stored in the word. Every check reaches such a watcher.
            Next::Only(only) => {
                self.next = Next::Over;
                Some(only)
            }
            Next::Loaded(only) => {
                self.next = Next::Look(only);
                Some(only)
            }
            Next::Over => None,
            // The check has ended the only watcher, and has removed its address from the word, by a read-modify-write
            // or under the list's lock. After such a removal, a load is enough to look for further watchers
            // (`visit_loaded` argues that).
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
            // The check has no bound: it has called `visit_loaded` before, and every check that calls `visit_loaded` is
            // without a bound.
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
    /// Chunk `c` has places for `1 << c` lists. Chunks with fewer than `FIRST` places are not used. Lists are never
    /// moved, and are freed with this struct.
    chunks: [OnceLock<Chunk<K>>; u32::BITS as usize],
    /// The numbers of vacant lists (lists without a key).
    pub(super) free: Numbers,
}

/// The number of lists in the smallest chunk that is used.
const FIRST: NonZeroU32 = NonZeroU32::new(16).unwrap();

impl<K> ResolvedLists<K> {
    pub(crate) fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; u32::BITS as usize],
            free: Numbers::default(),
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, number: ListNumber) -> &Arc<ResolvedList<K>> {
        let place = number.0;
        let chunk = place.ilog2();
        let lists = self.chunks[chunk as usize].get_or_init(|| {
            let lists = 0..1_u32 << chunk;
            lists.map(|_| OnceLock::new()).collect()
        });
        let offset = place.get() ^ 1 << chunk;
        lists[offset as usize].get_or_init(|| Arc::new(ResolvedList::new()))
    }

    /// Gives `key` a vacant list (a list without a key), and counts one `ResolvedKey` of `key`. Returns the number of
    /// the list.
    pub(crate) fn occupy(&self, key: Arc<K>) -> ListNumber {
        let number = ListNumber(FIRST.saturating_add(self.free.take()));
        let resolved = self.get(number);
        resolved.locked.lock().key = Some(key);
        resolved.pin();
        number
    }

    /// Subtracts one from the number of `ResolvedKey`s of the list's key. If none is left, and the key has no watcher,
    /// retires the list (makes it vacant), and returns the key. The caller has the lock of the key's map shard. It
    /// needs no lock if no other thread has the number of the list yet.
    pub(crate) fn unpin(&self, number: ListNumber) -> Option<Arc<K>> {
        self.get(number).unpin();
        self.retire(number)
    }

    /// Retires a list (makes it vacant), if its key has neither a `ResolvedKey` nor a watcher. Returns the key, which
    /// the caller drops with no lock held; `None` if the list is in use, or vacant already. The caller is the only
    /// thread that knows the list, or it has the lock of the key's map shard, and removes the key's entry from the map
    /// under this lock.
    pub(crate) fn retire(&self, number: ListNumber) -> Option<Arc<K>> {
        let mut locked = self.get(number).locked.lock();
        let unused = locked.pins == 0 && locked.list.is_none();
        let key = locked.key.take_if(|_| unused)?;
        drop(locked);
        self.free.put_back(number.0.get() - FIRST.get());
        Some(key)
    }
}
