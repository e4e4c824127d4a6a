//! The values of a tracker: a map, in shards, that holds each key's value with its token, its deadline and the id of its
//! timer.
//!
//! A timer's payload names the entry that it ends: by its hash, and by a number that no other entry of the map shard
//! has had. Two things end a value, and who decides between them is the timer: an ending by hand first stops the timer,
//! and only where that has not fired the entry is taken out; else the entry stays for the callback.
//!
//! * INVARIANT: an entry is in the map as long as its timer runs, or its callback is on the way. It gets its timer under
//!   the lock of its map shard, and is added under the same hold; so a callback, which takes that lock, finds it.
//! * INVARIANT: a key has at most one entry in the table of its shard. Where a value comes for a key whose entry has
//!   expired, and the callback has not run yet, the old entry moves aside, and is found by its number alone. So a search
//!   by key costs the same however many callbacks wait.
//! * Whether a value has expired is decided by its deadline and a reading of the clock, by every call. A shard remembers
//!   the latest reading that it was shown: a thread that has read the clock before another one, and gets the lock after
//!   it, does not find alive what the other has found expired. To keep a value or to take it out, a cheaper reading is
//!   enough, which may be of the near future: what is alive by that is alive. What has expired by it is looked at again,
//!   by an exact one.
//! * A request that ends without a response moves from the table to the remembered ends under the lock of its map shard.
//!   A response looks in both under that lock, so it never misses a request that is on its way from one to the other.
//!
//! `Hash` of a key is called without a lock, and `Eq` before anything is changed. So a panic of either goes to the
//! caller, and nothing has to be taken back. The lock of a timer shard may be taken within that of a map shard, never
//! the other way round; destructors run without either.

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

/// What a timer holds: which entry it ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expiring {
    pub(crate) hash: u64,
    /// Of all entries of the map shard, just one has it.
    pub(crate) number: u64,
}

/// A reading of the clock.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) at: Timestamp,
    /// If not, it may be of the near future: whoever is found expired by it is asked about again.
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
}

/// A value that is kept.
pub(crate) struct Entry<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) token: FencingToken,
    /// `None`: it never expires.
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) timer: TimerId,
    pub(crate) expiring: Expiring,
    /// Its end is known to those who ask for ended requests.
    pub(crate) is_noted: bool,
}

impl<K, V> Entry<K, V> {
    pub(crate) fn is_live(&self, now: Timestamp) -> bool {
        self.deadline.is_none_or(|deadline| now < deadline)
    }

    /// Whether it is the entry of `key`. The hash goes first: a key of another hash is not compared.
    pub(crate) fn is_of<Q: Equivalent<K> + ?Sized>(&self, hash: u64, key: &Q) -> bool {
        self.expiring.hash == hash && key.equivalent(&self.key)
    }

    pub(crate) fn hash(&self) -> u64 {
        self.expiring.hash
    }
}

/// Entries under one lock.
pub(crate) struct Shard<K, V> {
    pub(crate) table: HashTable<Entry<K, V>>,
    /// Expired entries whose keys have another by now, by their numbers: their callbacks have not run yet.
    pub(crate) aside: BTreeMap<u64, Entry<K, V>>,
    /// The latest reading of the clock that a call came with.
    latest: Timestamp,
    /// How many entries it has had.
    numbers: u64,
}

/// A table with room for at most so many entries stays when it is empty: the next ones need it as well.
const KEPT: usize = 28;

impl<K, V> Shard<K, V> {
    /// The time as this shard knows it, given a reading of the clock.
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

    /// The entry of `key`, if that has not expired.
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

    /// Takes out the entry that `is_it`, among those of this hash in the table.
    #[inline]
    pub(crate) fn take(
        &mut self,
        hash: u64,
        is_it: impl FnMut(&Entry<K, V>) -> bool,
    ) -> Option<Entry<K, V>> {
        let (entry, _) = self.table.find_entry(hash, is_it).ok()?.remove();
        self.shrink();
        Some(entry)
    }

    /// Gives the memory of a large table back when it is empty.
    #[inline]
    pub(crate) fn shrink(&mut self) {
        if self.table.is_empty() && self.table.capacity() > KEPT {
            self.table = HashTable::new();
        }
    }
}

/// A count that is written under the lock of its shard, and read without.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// For the thread that has the lock.
    #[inline]
    pub(crate) fn add_one(&self) {
        // ORDERING: Relaxed, as in `read`: counts are compared when no call is in progress, which something else tells.
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count + 1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A shard, and what is counted in it.
pub(crate) struct Counted<K, V> {
    shard: Mutex<Shard<K, V>>,
    /// Values that were completed.
    pub(crate) completed: Count,
    /// Values that were refused before they could get a timer.
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

/// A shard, locked.
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

/// The value of each key.
pub(crate) struct Values<K, V, S> {
    /// Made when the first value comes.
    shards: OnceLock<Box<[CachePadded<Counted<K, V>>]>>,
    hasher: S,
    /// The number of the next token.
    next_token: AtomicU64,
    /// A tracker has none.
    ended: Option<Ended>,
}

/// What has become of requests that got no response in time.
struct Ended {
    /// Its lock is taken within that of a map shard.
    remembered: Mutex<Remembered>,
    /// Responses that came to one of them, and those to no request.
    late: AtomicU64,
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
        };
        if cfg!(request_purgatory_loom) {
            // A model does not know that what a `OnceLock` of std's holds was made before it is found.
            values.make(0);
        }
        values
    }

    #[inline]
    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The shard of the entries with this hash, by bits that choose no place in its table: those are the lowest and the
    /// highest ones. `None` if no value has come yet.
    #[inline]
    pub(crate) fn find_shard(&self, hash: u64) -> Option<&Counted<K, V>> {
        let shards = self.shards.get()?;
        Some(&shards[(hash >> 32) as usize & (shards.len() - 1)])
    }

    /// The [shard](Self::find_shard), which is made if there is none.
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

    /// All shards, none if no value has come yet.
    pub(crate) fn shards(&self) -> &[CachePadded<Counted<K, V>>] {
        self.shards.get().map_or(&[], |shards| shards)
    }

    /// The token of a new entry with this number. For a tracker it is greater than all before. To be called under the lock of
    /// a key's map shard: then the tokens of the key grow in the order in which its values follow one another. Requests show
    /// their tokens to nobody: those of one map shard differ.
    #[inline]
    pub(crate) fn token_of(&self, number: u64) -> FencingToken {
        match self.ended {
            Some(_) => number.into(),
            None => self.next_token(),
        }
    }

    /// A token that is greater than all before.
    #[inline]
    pub(crate) fn next_token(&self) -> FencingToken {
        // ORDERING: Relaxed: all that counts is that no two are equal, and that those of one lock grow.
        self.next_token.fetch_add(1, Ordering::Relaxed).into()
    }

    /// Takes out the entry whose timer has fired, or was ended with all others.
    pub(crate) fn take_ended(&self, ended: Expiring) -> Option<Entry<K, V>> {
        let mut shard = self.find_shard(ended.hash)?.lock();
        let is_it = |entry: &Entry<K, V>| entry.expiring.number == ended.number;
        let mut entry = match shard.take(ended.hash, is_it) {
            Some(entry) => entry,
            None => shard.aside.remove(&ended.number)?,
        };
        // While the shard is locked: a response finds the request in the map, or among the ended ones.
        self.note_end(&mut entry);
        drop(shard);
        Some(entry)
    }

    /// A request ends without a response, and its end is to be known. Under the lock of its map shard.
    pub(crate) fn note_end(&self, entry: &mut Entry<K, V>) {
        if let Some(ended) = &self.ended
            && !entry.is_noted
        {
            entry.is_noted = true;
            ended.remembered.lock().add(entry.hash());
        }
    }

    /// A response has come, and its request is not pending: whether it is late. `found` is the expired entry of its id, if
    /// there is one. Under the lock of the map shard.
    pub(crate) fn is_late(&self, hash: u64, found: Option<&mut Entry<K, V>>) -> bool {
        let Some(ended) = &self.ended else {
            return false;
        };
        // As if its callback had come before: this response is the one to it, and the next is none.
        if let Some(entry) = found {
            self.note_end(entry);
        }
        let is_late = ended.remembered.lock().take(hash);
        let count = if is_late { &ended.late } else { &ended.unknown };
        // ORDERING: Relaxed, here and below: a count guards no memory.
        count.fetch_add(1, Ordering::Relaxed);
        is_late
    }

    /// How many responses were late.
    pub(crate) fn late(&self) -> u64 {
        let late = self.ended.as_ref().map(|ended| &ended.late);
        late.map_or(0, |late| late.load(Ordering::Relaxed))
    }

    /// How many responses were to no request.
    pub(crate) fn unknown(&self) -> u64 {
        let unknown = self.ended.as_ref().map(|ended| &ended.unknown);
        unknown.map_or(0, |unknown| unknown.load(Ordering::Relaxed))
    }
}
