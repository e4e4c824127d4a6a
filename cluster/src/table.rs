//! The table of watched keys: what every thread of the node shares.
//!
//! A key's slot is made by the first interest in it, which also orders the watch; it is removed when no wait has been
//! interested for the linger, which also orders the end of the watch. Both happen under the lock of the key's shard, so
//! the orders of one key stand in the list in the order in which its slot came and went. The driver takes the orders
//! out and carries them out one after the other.
//!
//! Nothing here knows the time: a key without interest is only put into a list, and its linger
//! begins when the driver next [tends](Table::tend) the table. So an interest can be dropped on any thread, one of the
//! purgatory's included, which is in no runtime.
//!
//! Locks: a shard, and within it that of an entry or of the history; the list of purgatories by itself. No lock is held
//! while a purgatory is checked.

pub(crate) mod entry;

use crate::error::InterestError;
use crate::key::Key;
use crate::position::Epoch;
use crate::rules::{Rule, Rules};
use crate::stats::Counters;
use crate::sync::{Arc, AtomicU64, AtomicUsize, KeyHash, Mutex, Ordering, SHARDS, shed};
use entry::{Entry, History, Learned, Raised};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

/// A moment, counted from the start of the cluster.
pub type Time = Duration;

/// What the driver is to tell the feed, or to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order<K> {
    /// Watch the key, then read it.
    Watch(K),
    /// End the watch of the key.
    Unwatch(K),
    /// Read the key: a client says that it has seen more than this node knows of.
    Verify(K),
}

/// A place where operations wait for keys to reach versions.
pub trait Waiting<K>: Send + Sync {
    /// Examines what waits for `key` at ranks up to `rank`. Returns whether the place still exists.
    fn check(&self, key: &K, rank: u64) -> bool;

    /// Whether the place still exists.
    fn is_alive(&self) -> bool;

    /// The cluster was shut down.
    fn shut_down(&self);
}

/// How many keys a list that is empty keeps room for.
const ROOM: usize = 64;

struct Slot {
    entry: Arc<Entry>,
    interests: usize,
    /// In the shard's list of idle keys.
    is_idle: bool,
    /// Its latest place in the shard's list of lingering keys.
    lingers: Option<(Time, u64)>,
}

struct Shard<K> {
    slots: HashMap<K, Slot, KeyHash>,
    orders: Vec<Order<K>>,
    /// Keys that lost their last interest since the driver last looked, each once.
    idle: Vec<K>,
    /// By the end of their linger, each once, and by a number that tells those with the same end apart.
    lingering: BTreeMap<(Time, u64), K>,
    lingers_begun: u64,
    /// No interest begins any more.
    is_closed: bool,
}

type Places<K> = Arc<Vec<Arc<dyn Waiting<K>>>>;

/// The watched keys of one node.
pub struct Table<K> {
    shards: Box<[Mutex<Shard<K>>]>,
    hasher: KeyHash,
    keys: AtomicUsize,
    max_keys: usize,
    /// How many keys of a shard may linger, and how many of them may be idle before the driver is woken.
    max_lingering: usize,
    /// Beside it the highest version of the store, of any key, that is known in this history.
    history: Mutex<(History, u64)>,
    /// How many reads have begun.
    reads: AtomicU64,
    places: Mutex<Places<K>>,
    closed: Mutex<bool>,
    wake: Box<dyn Fn() + Send + Sync>,
    rules: Rules,
    pub(crate) counters: Counters,
}

impl<K: Key> Table<K> {
    /// An empty table, for so many keys, of which so many may linger. `wake` is called, with no lock held, when there
    /// is something to do for the driver.
    pub fn new(
        max_keys: usize,
        max_lingering: usize,
        rules: Rules,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let shard = || {
            Mutex::new(Shard {
                slots: HashMap::default(),
                orders: Vec::new(),
                idle: Vec::new(),
                lingering: BTreeMap::new(),
                lingers_begun: 0,
                is_closed: false,
            })
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher: KeyHash::default(),
            keys: AtomicUsize::new(0),
            max_keys,
            max_lingering: max_lingering.div_ceil(SHARDS),
            history: Mutex::default(),
            reads: AtomicU64::new(0),
            places: Mutex::new(Arc::default()),
            closed: Mutex::new(false),
            wake: Box::new(wake),
            rules,
            counters: Counters::default(),
        }
    }

    fn shard(&self, key: &K) -> &Mutex<Shard<K>> {
        let hash = self.hasher.hash_one(key);
        // The shard's map uses the low and the highest bits.
        &self.shards[(hash >> 32) as usize % self.shards.len()]
    }

    /// One more interest in `key`.
    ///
    /// # Errors
    /// The table is full, or closed.
    pub fn enter(&self, key: &K) -> Result<Arc<Entry>, InterestError> {
        let mut shard = self.shard(key).lock();
        if shard.is_closed {
            return Err(InterestError::ShutDown);
        }
        if let Some(slot) = shard.slots.get_mut(key) {
            slot.interests += 1;
            return Ok(slot.entry.clone());
        }
        // Before anything is changed: `Clone` may panic.
        let (slot_key, order_key) = (key.clone(), key.clone());
        // ORDERING: Relaxed: the number bounds memory, and nothing else depends on it.
        if self.keys.fetch_add(1, Ordering::Relaxed) >= self.max_keys {
            self.keys.fetch_sub(1, Ordering::Relaxed);
            return Err(InterestError::TooManyKeys);
        }
        // ORDERING: the history is read under the lock of the shard. `reset` sets the history first and then visits the
        // shards: either it finds this entry, or this entry begins with the new history.
        let (history, head) = *self.history.lock();
        let entry = Arc::new(Entry::new(history, head));
        let was_quiet = shard.orders.is_empty();
        let slot = Slot {
            entry: entry.clone(),
            interests: 1,
            is_idle: false,
            lingers: None,
        };
        shard.slots.insert(slot_key, slot);
        shard.orders.push(Order::Watch(order_key));
        drop(shard);
        self.wake_if(was_quiet);
        Ok(entry)
    }

    /// One interest less.
    pub fn leave(&self, key: &K, entry: &Arc<Entry>) {
        let mut shard = self.shard(key).lock();
        let Some(slot) = shard.slots.get_mut(key) else {
            return;
        };
        if !Arc::ptr_eq(&slot.entry, entry) {
            return;
        }
        if slot.interests > 1 {
            slot.interests -= 1;
            return;
        }
        // Before the count: `Clone` may panic.
        let idle = (!slot.is_idle).then(|| key.clone());
        slot.interests = 0;
        slot.is_idle = true;
        // The driver looks now and then. To wake it for each would cost as much as to end a wait.
        let had_room = shard.idle.len() <= self.max_lingering;
        shard.idle.extend(idle);
        let is_burst = had_room && shard.idle.len() > self.max_lingering;
        drop(shard);
        if is_burst {
            (self.wake)();
        }
    }

    /// Orders a read of `key`.
    pub fn verify(&self, key: &K) {
        let order = Order::Verify(key.clone());
        let mut shard = self.shard(key).lock();
        // The driver, which takes the orders, has ended.
        if shard.is_closed {
            return;
        }
        let was_quiet = shard.orders.is_empty();
        shard.orders.push(order);
        drop(shard);
        self.wake_if(was_quiet);
    }

    fn wake_if(&self, was_quiet: bool) {
        if was_quiet {
            (self.wake)();
        }
    }

    /// Begins the linger of keys that lost their last interest, forgets those whose linger is over (and the oldest,
    /// where too many linger), and takes out all orders. Returns when the next linger is over.
    pub fn tend(&self, now: Time, linger: Duration, orders: &mut Vec<Order<K>>) -> Option<Time> {
        let mut next = None::<Time>;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let Shard {
                slots,
                orders: ordered,
                idle,
                lingering,
                lingers_begun,
                ..
            } = &mut *shard;
            for key in idle.drain(..) {
                let Some(slot) = slots.get_mut(&key) else {
                    continue;
                };
                slot.is_idle = false;
                if slot.interests == 0 {
                    *lingers_begun += 1;
                    let end = (now.saturating_add(linger), *lingers_begun);
                    // A linger that began before the last interest is over.
                    if let Some(before) = slot.lingers.replace(end) {
                        lingering.remove(&before);
                    }
                    lingering.insert(end, key);
                }
            }
            loop {
                let are_too_many = lingering.len() > self.max_lingering;
                let Some(first) = lingering.first_entry() else {
                    break;
                };
                if first.key().0 > now && !are_too_many {
                    break;
                }
                let key = first.remove();
                let Some(slot) = slots.get(&key) else {
                    continue;
                };
                // An interest may have begun again.
                if slot.interests == 0 || !self.rules.keep(Rule::LookAgain) {
                    // Nothing will be heard of it, and that is no fault of the session's.
                    slot.entry.excuse(u64::MAX);
                    slots.remove(&key);
                    self.keys.fetch_sub(1, Ordering::Relaxed);
                    ordered.push(Order::Unwatch(key));
                }
            }
            orders.append(ordered);
            shed(slots);
            idle.shrink_to(ROOM);
            ordered.shrink_to(ROOM);
            let first = lingering.first_key_value().map(|(&(end, _), _)| end);
            next = [next, first].into_iter().flatten().min();
        }
        next
    }

    /// All watched keys, for a session that begins, and the orders so far: it has watched nothing yet.
    pub fn begin(&self, orders: &mut Vec<Order<K>>) -> Vec<K> {
        let mut keys = Vec::new();
        for shard in &self.shards {
            // ORDERING: keys and orders are taken under one lock: a key that comes later orders its watch, one that
            // goes later orders the end of it.
            let mut shard = shard.lock();
            orders.append(&mut shard.orders);
            keys.extend(shard.slots.keys().cloned());
        }
        keys
    }

    /// All watched keys.
    pub fn all_keys(&self) -> Vec<K> {
        let mut keys = Vec::new();
        for shard in &self.shards {
            keys.extend(shard.lock().slots.keys().cloned());
        }
        keys
    }

    /// How many keys are watched.
    pub fn watched_keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// The entry of a watched key.
    pub fn entry(&self, key: &K) -> Option<Arc<Entry>> {
        let shard = self.shard(key).lock();
        shard.slots.get(key).map(|slot| slot.entry.clone())
    }

    /// Raises the mark of `key` and checks what waits for it. What is learned of another generation than the present
    /// one is not believed. Returns whether the mark was lower.
    pub fn reached(
        &self,
        key: &K,
        entry: &Entry,
        version: u64,
        learned: Learned,
        generation: u64,
    ) -> bool {
        if !self.rules.keep(Rule::MarkBeforeCheck) {
            self.check(key, version);
            return entry.raise(version, learned, generation) != Raised::Nothing;
        }
        // ORDERING: the mark first, the check then. A wait that parks meanwhile is examined once more after it can be
        // found by the check (G1 of the library): either the check finds it, or it finds the mark.
        match entry.raise(version, learned, generation) {
            Raised::Nothing => false,
            Raised::Mark => {
                self.check(key, version);
                true
            }
            Raised::Gap(up_to) => {
                self.check(key, up_to);
                false
            }
        }
    }

    /// Checks what waits for `key` at ranks up to `rank`. Runs user code: no lock may be held.
    pub fn check(&self, key: &K, rank: u64) {
        let places = self.places.lock().clone();
        let mut gone = false;
        for place in places.iter() {
            gone |= !place.check(key, rank);
        }
        if gone {
            self.sweep();
        }
    }

    /// Another place where operations wait.
    pub fn attach(&self, place: Arc<dyn Waiting<K>>) {
        {
            let mut places = self.places.lock();
            let all = places.iter().cloned().chain([place.clone()]);
            *places = Arc::new(all.collect());
        }
        // If it was closed before the place was in the list, `close` did not see it.
        if self.is_closed() {
            place.shut_down();
        }
    }

    /// Whether the cluster was shut down.
    pub fn is_closed(&self) -> bool {
        *self.closed.lock()
    }

    #[cold]
    fn sweep(&self) {
        let mut places = self.places.lock();
        let alive = places.iter().filter(|place| place.is_alive());
        *places = Arc::new(alive.cloned().collect());
    }

    /// Whether this rule of the protocol is kept.
    pub fn keeps(&self, rule: Rule) -> bool {
        self.rules.keep(rule)
    }

    /// The history that this node believes in.
    pub fn history(&self) -> History {
        self.history.lock().0
    }

    /// A read in this generation has shown the highest version of all keys.
    pub(crate) fn note_head(&self, head: u64, generation: u64) {
        let mut known = self.history.lock();
        if known.0.generation == generation {
            known.1 = known.1.max(head);
        }
    }

    /// The number of reads that have begun.
    pub fn reads(&self) -> u64 {
        // ORDERING: Acquire, pairs with `begin_read`: a read with a higher number begins after this call.
        self.reads.load(Ordering::Acquire)
    }

    /// A read begins. Returns its number.
    pub fn begin_read(&self) -> u64 {
        // ORDERING: AcqRel: whatever the caller sends to the store comes after the numbering.
        self.reads.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The store told its epoch. Returns whether that is the epoch of the history now: not if another one is known.
    pub fn adopt(&self, epoch: Epoch) -> bool {
        let history = {
            let (history, _) = &mut *self.history.lock();
            if let Some(known) = history.epoch {
                return known == epoch;
            }
            history.epoch = Some(epoch);
            *history
        };
        for shard in &self.shards {
            let shard = shard.lock();
            shard
                .slots
                .values()
                .for_each(|slot| slot.entry.adopt(history));
        }
        true
    }

    /// The store lost what was known in the history `of`: every mark begins again, and all that waits is examined.
    /// Returns the new generation, unless the history is another one already. Runs user code: no lock may be held.
    pub fn reset(&self, epoch: Epoch, of: History) -> Option<u64> {
        let history = {
            let (history, head) = &mut *self.history.lock();
            if *history != of {
                return None;
            }
            history.generation += 1;
            history.epoch = Some(epoch);
            *head = 0;
            *history
        };
        self.counters.resets.add(1);
        for shard in &self.shards {
            let mut keys = Vec::new();
            {
                let shard = shard.lock();
                for (key, slot) in &shard.slots {
                    if slot.entry.reset(history) {
                        keys.push(key.clone());
                    }
                }
            }
            keys.iter().for_each(|key| self.check(key, u64::MAX));
        }
        Some(history.generation)
    }

    /// Refuses interests from now on, and ends what waits.
    pub fn close(&self) {
        *self.closed.lock() = true;
        for shard in &self.shards {
            shard.lock().is_closed = true;
        }
        let places = std::mem::take(&mut *self.places.lock());
        places.iter().for_each(|place| place.shut_down());
    }
}

impl<K> fmt::Debug for Table<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("keys", &self.keys)
            .field("history", &self.history.lock().0)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
