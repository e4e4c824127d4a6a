//! The values of a tracker: a map from each key to its [`Entry`], in shards, each under a lock. An entry contains the
//! value, its token, its deadline and the id of its timer. For [`Requests`](crate::Requests), the keys are the
//! requests' ids.
//!
//! The payload of a timer is an [`Expiring`], which names the entry that the timer ends. Either the timer ends a value,
//! or a call does. A call that completes a value first stops the timer. A call that replaces a value moves the timer to
//! the new deadline, and the new value takes the timer over. If the timer has fired already, the stop or the move
//! fails, and the call leaves the entry in the map for the timer's callback.
//!
//! * INVARIANT: the callback of a timer finds its entry. A call starts the timer and adds the entry in one hold of the
//!   map shard's lock, and the callback takes the same lock. An entry leaves the map only when a call or the shutdown
//!   has stopped its timer, or when the callback takes the entry out.
//! * INVARIANT: a key has at most one entry in the table of its shard. A call may track a value for a key whose old
//!   entry has expired, but whose callback has not run yet. The call then moves the old entry to `aside`, where the
//!   callback finds it by its number. So entries that wait for callbacks do not slow down a search by key.
//! * Every call compares the deadline with a reading of the clock to decide whether a value has expired. The shard
//!   remembers the latest exact reading. So once one thread has found a value expired, no thread that gets the lock
//!   later finds the value alive, even if the later thread has read the clock earlier.
//! * A call may also find that the timer of a value has fired, although the call's reading is before the deadline. It
//!   then sets the deadline to the origin of the clock, so that every later call finds the value expired as well.
//! * A call that tracks or completes a value first uses a cheaper reading ([`Timer::soon`]), which may be slightly
//!   later than the clock. If the deadline is after even this reading, the value is alive. Otherwise the call decides
//!   by an exact reading.
//! * INVARIANT: a response does not miss its request while the request moves from the table to the [`Remembered`]
//!   requests (those that ended without a response). When a request ends without a response, its entry leaves the table
//!   and its hash is added to `Remembered` in one hold of the map shard's lock. A response is looked up in both places
//!   in one hold of this lock.
//!
//! `Hash` of a key is called without a lock, and `Eq` before anything is changed. So a panic of either is passed on to
//! the caller, and nothing has to be undone. Lock order: the lock of a timer shard may be taken inside the lock of a
//! map shard, never the other way round. Destructors run without either lock.

use crate::panics::Panics;
use crate::reentry::UnderLock;
use crate::remembered::Remembered;
use crate::sync::{Mutex, MutexGuard, map_shards};
use crate::token::FencingToken;
use crossbeam_utils::CachePadded;
use equivalent::Equivalent;
use hashbrown::HashTable;
use request_purgatory::Timer;
use request_purgatory::purgatory::KeyHasher;
use request_purgatory::time::Timestamp;
use request_purgatory::timer::TimerId;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The payload of a timer, which names the entry that the timer ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expiring {
    pub(crate) hash: u64,
    /// A number that no other entry of the map shard has or had.
    pub(crate) number: u64,
}

/// A reading of the clock.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) at: Timestamp,
    /// `false` for the cheaper reading by `Timer::soon`, which may be a moment later than the time that the clock
    /// shows. So it does not prove that a value has expired.
    pub(crate) is_exact: bool,
}

impl Reading {
    #[inline]
    pub(crate) fn soon(timer: &Timer<Expiring>) -> Self {
        Self {
            at: timer.soon(),
            is_exact: false,
        }
    }

    #[inline]
    pub(crate) fn exact(timer: &Timer<Expiring>) -> Self {
        Self {
            at: timer.now(),
            is_exact: true,
        }
    }

    /// An exact reading, made because a value has expired by the reading of [`soon`](Self::soon).
    #[cold]
    #[inline(never)]
    pub(crate) fn again(timer: &Timer<Expiring>) -> Self {
        Self::exact(timer)
    }
}

/// A value that is kept for a key, or that has expired and waits for its callback.
pub(crate) struct Entry<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) token: FencingToken,
    /// `None` if the value never expires.
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) timer: TimerId,
    pub(crate) expiring: Expiring,
    /// Whether the end of this request has been added to [`Remembered`], so that no second call adds it.
    pub(crate) is_noted: bool,
}

impl<K, V> Entry<K, V> {
    pub(crate) fn is_live(&self, now: Timestamp) -> bool {
        self.deadline.is_none_or(|deadline| now < deadline)
    }

    /// Whether this is the entry of `key`. Compares the hashes first, so `Eq` is not called for a key with another
    /// hash.
    pub(crate) fn is_of<Q: Equivalent<K> + ?Sized>(&self, hash: u64, key: &Q) -> bool {
        self.expiring.hash == hash && key.equivalent(&self.key)
    }

    pub(crate) fn hash(&self) -> u64 {
        self.expiring.hash
    }

    /// Called if the timer of this entry turns out to have ended: from now on the value has expired for every call,
    /// whatever reading of the clock the call has.
    #[cold]
    pub(crate) fn set_expired(&mut self) {
        self.deadline = Some(Timestamp::default());
    }
}

/// One shard of the map: the entries under one lock.
pub(crate) struct Shard<K, V> {
    pub(crate) table: HashTable<Entry<K, V>>,
    /// Expired entries by number. Each is here because its callback has not run yet, and its key has a new entry.
    pub(crate) aside: BTreeMap<u64, Entry<K, V>>,
    /// The latest exact [`Reading`] of the clock among the calls that have locked this shard. An exact reading is not
    /// ahead of the clock.
    latest: Timestamp,
    /// The last number that was given out for an entry.
    numbers: u64,
}

/// If an empty table has room for more entries than this, its memory is released. A smaller table is kept for the next
/// entries.
const KEPT: usize = 28;

impl<K, V> Shard<K, V> {
    /// The present by which this call decides what has expired: `reading`, or the shard's latest exact reading if that
    /// reading is later.
    #[inline]
    pub(crate) fn present(&mut self, reading: Reading) -> Timestamp {
        let latest = self.latest.max(reading.at);
        if reading.is_exact {
            self.latest = latest;
        }
        latest
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The entry of `key`. `None` if there is no entry, or the entry has expired.
    #[inline]
    pub(crate) fn live<Q: Equivalent<K> + ?Sized>(
        &mut self,
        hash: u64,
        key: &Q,
        reading: Reading,
    ) -> Option<&mut Entry<K, V>> {
        let now = self.present(reading);
        let found = self.table.find_mut(hash, |entry| entry.is_of(hash, key));
        found.filter(|entry| entry.is_live(now))
    }

    /// Releases the memory of a large empty table.
    #[inline]
    pub(crate) fn shrink(&mut self) {
        if self.table.is_empty() && self.table.capacity() > KEPT {
            self.table = HashTable::new();
        }
    }
}

/// A count that is written under the lock of its shard, and read without the lock.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds one. Only a thread that has the lock of the shard may call this.
    #[inline]
    pub(crate) fn add_one(&self) {
        // ORDERING: Relaxed, also in `read`. Only a thread with the lock of the shard writes the count, so load and
        // store need not be one operation. A reader needs the exact count only if no call is in progress. Other
        // synchronisation (a join, a lock, a channel) then makes the stores of all earlier calls happen before the load
        // in `read`.
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count + 1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A shard of the map, with its counts.
pub(crate) struct Counted<K, V> {
    shard: Mutex<Shard<K, V>>,
    /// Values that were completed.
    pub(crate) completed: Count,
    /// Rejections by `track` that the timer has not counted: of duplicates, and of replacements for which the system has
    /// refused a thread.
    pub(crate) refused: Count,
}

impl<K, V> Counted<K, V> {
    fn new() -> CachePadded<Self> {
        CachePadded::new(Self {
            shard: Mutex::new(Shard {
                table: HashTable::new(),
                aside: BTreeMap::new(),
                latest: Timestamp::default(),
                numbers: 0,
            }),
            completed: Count::default(),
            refused: Count::default(),
        })
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, K, V> {
        let under_lock = UnderLock::enter();
        Locked {
            shard: self.shard.lock(),
            _under_lock: under_lock,
        }
    }
}

/// The guard of a locked shard.
pub(crate) struct Locked<'a, K, V> {
    shard: MutexGuard<'a, Shard<K, V>>,
    _under_lock: UnderLock,
}

impl<K, V> Deref for Locked<'_, K, V> {
    type Target = Shard<K, V>;

    fn deref(&self) -> &Shard<K, V> {
        &self.shard
    }
}

impl<K, V> DerefMut for Locked<'_, K, V> {
    fn deref_mut(&mut self) -> &mut Shard<K, V> {
        &mut self.shard
    }
}

/// The entries of a tracker, or of requests, by key.
pub(crate) struct Values<K, V, S> {
    /// The shards of the map, which the first call that tracks a value makes.
    shards: OnceLock<Box<[CachePadded<Counted<K, V>>]>>,
    hasher: S,
    /// The number of the next token of a tracker.
    next_token: AtomicU64,
    /// The requests that ended without a response. `None` for a tracker.
    ended: Option<Ended>,
    /// The number of refused calls of `replace_if`, which the timer has not counted.
    refused: AtomicU64,
    pub(crate) panics: Panics,
}

/// The requests that ended without a response.
struct Ended {
    /// Lock order: a thread may take this lock inside the lock of a map shard. Inside this lock it takes no other lock.
    remembered: Mutex<Remembered>,
    /// The number of late responses: their requests had ended without a response, and are still remembered.
    late: AtomicU64,
    /// The number of responses to requests that are neither pending nor remembered.
    unknown: AtomicU64,
}

impl<K, V, S: KeyHasher> Values<K, V, S> {
    pub(crate) fn new(hasher: S, first_token: u64, remembered: Option<Remembered>) -> Self {
        let ended = remembered.map(|remembered| Ended {
            remembered: Mutex::new(remembered),
            late: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        });
        let values = Self {
            shards: OnceLock::new(),
            hasher,
            next_token: AtomicU64::new(first_token),
            ended,
            refused: AtomicU64::new(0),
            panics: Panics::default(),
        };
        if cfg!(request_purgatory_loom) {
            // Make the shards now, because loom does not know the happens-before edge from the initialisation of a std
            // `OnceLock` to a later `get`.
            values.make(0);
        }
        values
    }

    #[inline]
    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The shard of the entries with this hash. `None` if no shard has been made yet. The bits of the hash that choose
    /// the shard lie in the middle: they begin at bit 32. The lowest and the highest bits are left to the hash table of
    /// the shard, in which they would otherwise be the same for all entries.
    #[inline]
    pub(crate) fn find_shard(&self, hash: u64) -> Option<&Counted<K, V>> {
        let shards = self.shards.get()?;
        Some(&shards[(hash >> 32) as usize & (shards.len() - 1)])
    }

    /// The shard of the entries with this hash. Makes all shards if they do not exist yet.
    #[inline]
    pub(crate) fn shard(&self, hash: u64) -> &Counted<K, V> {
        self.find_shard(hash).unwrap_or_else(|| self.make(hash))
    }

    #[cold]
    fn make(&self, hash: u64) -> &Counted<K, V> {
        let shards = self
            .shards
            .get_or_init(|| (0..map_shards()).map(|_| Counted::new()).collect());
        &shards[(hash >> 32) as usize & (shards.len() - 1)]
    }

    /// All shards; an empty slice if they have not been made yet.
    pub(crate) fn shards(&self) -> &[CachePadded<Counted<K, V>>] {
        self.shards.get().map_or(&[], |shards| shards)
    }

    /// The token of the new entry with this number. The caller holds the lock of the key's map shard.
    ///
    /// * In a tracker, the token is greater than all earlier tokens. The calls for one key take the lock one after
    ///   another, so a value that is tracked later for the key has a greater token.
    /// * The tokens of requests are not public. They only need to be distinct within a map shard, as the numbers are.
    #[inline]
    pub(crate) fn token_of(&self, number: u64) -> FencingToken {
        match self.ended {
            Some(_) => number.into(),
            None => self.next_token(),
        }
    }

    /// A token that is greater than all tokens of earlier calls.
    #[inline]
    pub(crate) fn next_token(&self) -> FencingToken {
        // ORDERING: Relaxed. A read-modify-write gives each call a different number. For one key the tokens grow: the
        // lock of the key's map shard makes an earlier call happen before a later call, which then reads a greater
        // number.
        self.next_token.fetch_add(1, Ordering::Relaxed).into()
    }

    /// Takes out the entry that `ended` names. Its timer has fired, or the shutdown has ended the timer. `None` if the
    /// entry is not in the map.
    pub(crate) fn take_ended(&self, ended: Expiring) -> Option<Entry<K, V>> {
        let mut shard = self.find_shard(ended.hash)?.lock();
        let is_it = |entry: &Entry<K, V>| entry.expiring.number == ended.number;
        let mut entry = match shard.table.find_entry(ended.hash, is_it) {
            Ok(found) => found.remove().0,
            Err(_) => shard.aside.remove(&ended.number)?,
        };
        shard.shrink();
        // Note the end while the shard is locked. Otherwise a response could miss the request in both places: in the
        // map, and among the remembered requests.
        self.note_end(&mut entry);
        drop(shard);
        Some(entry)
    }

    /// Remembers that the request of this entry has ended without a response. Does nothing if this is noted already.
    /// Does nothing in a tracker either, because its values await no response. The caller holds the lock of the
    /// request's map shard.
    pub(crate) fn note_end(&self, entry: &mut Entry<K, V>) {
        if let Some(ended) = self.ended.as_ref().filter(|_| !entry.is_noted) {
            entry.is_noted = true;
            ended.remembered.lock().add(entry.hash());
        }
    }

    /// Raises the maximum number of remembered requests to `pending`, unless this maximum is greater already, or the
    /// user has chosen it. A call that is about to end several requests together, at most `pending`, calls this first.
    pub(crate) fn end_together(&self, pending: usize) {
        if let Some(ended) = &self.ended {
            ended.remembered.lock().end_together(pending);
        }
    }

    /// Counts a response to a request that is not pending. Returns `true` if the response is late, and `false` if the
    /// request is unknown. `found` is the expired entry of the id, if there is one. The caller holds the lock of the
    /// map shard, if the shard exists.
    pub(crate) fn is_late(&self, hash: u64, found: Option<&mut Entry<K, V>>) -> bool {
        let Some(ended) = &self.ended else {
            return false;
        };
        // The expired entry is still in the map. The call that takes the entry out adds the request to the remembered
        // requests (those that ended without a response). Add the request now instead, so that this response counts as
        // late, and a second response as unknown.
        if let Some(entry) = found {
            self.note_end(entry);
        }
        let is_late = ended.remembered.lock().take(hash);
        let count = if is_late { &ended.late } else { &ended.unknown };
        // ORDERING: Relaxed, also in `late` and `unknown`: these are statistics, and no thread reads other memory by
        // them.
        count.fetch_add(1, Ordering::Relaxed);
        is_late
    }

    /// Counts a refused call of `replace_if`.
    #[cold]
    pub(crate) fn count_refused(&self) {
        // ORDERING: Relaxed, also in `refused`: this is a statistic, and no thread reads other memory by it.
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of refused calls of `replace_if`.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The number of late responses.
    pub(crate) fn late(&self) -> u64 {
        let late = self.ended.as_ref().map(|ended| &ended.late);
        late.map_or(0, |late| late.load(Ordering::Relaxed))
    }

    /// The number of responses to requests that are neither pending nor remembered.
    pub(crate) fn unknown(&self) -> u64 {
        let unknown = self.ended.as_ref().map(|ended| &ended.unknown);
        unknown.map_or(0, |unknown| unknown.load(Ordering::Relaxed))
    }
}
