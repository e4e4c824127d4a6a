//! Stand-ins for model checking: loom's atomics and locks, or shuttle's, and a small map built on them.
//!
//! Constants are tiny here, so that a model of three operations already crosses chunks, blocks and list forms.

use super::{Entry, Lazy};
use equivalent::Equivalent;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash, Hasher};
use std::time::Duration;

#[cfg(loom)]
pub(crate) use loom as checker;
#[cfg(shuttle)]
pub(crate) use shuttle as checker;

#[cfg(shuttle)]
pub(crate) use super::cell::UnsafeCell;
pub(crate) use checker::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(crate) use checker::thread;
#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// Neither macro knows `const` initialisers.
macro_rules! const_thread_local {
    ($($(#[$attr:meta])* static $name:ident: $type:ty = const { $init:expr };)*) => {
        crate::sync::checker::thread_local! { $($(#[$attr])* static $name: $type = $init;)* }
    };
}
pub(crate) use const_thread_local as thread_local;

pub(crate) const FIRST_CHUNK: u32 = 1;
pub(crate) const BLOCK: usize = 1;
pub(crate) const FEW: usize = 1;
pub(crate) const SEVERAL: usize = 1;
pub(crate) const LIST_CHUNK: usize = 1;
pub(crate) const COPIED: usize = 1;
pub(crate) const SLICE: usize = 1;
pub(crate) const PARKS_PER_LOOK: u32 = 1;
pub(crate) const MAX_EXAMINATIONS: u32 = 2;
pub(crate) const LAST_GENERATION: u32 = 1;

/// A lock with the methods of parking_lot's, on an atomic of the checker's.
///
/// loom's own mutex does not do: its release is no step of the model, so no execution has a `try_lock` that fails.
#[derive(Debug)]
pub(crate) struct Mutex<T> {
    locked: AtomicBool,
    /// Threads to be woken when it is free. (A thread that spins instead makes loom try every number of rounds.)
    waiting: parking_lot::Mutex<Vec<checker::thread::Thread>>,
    /// Never contended: `locked` comes first. (And never poisoned: all threads of a checker run on one, so that one of
    /// them may seem to panic while another does.)
    value: parking_lot::Mutex<T>,
}

#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    value: Option<parking_lot::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            waiting: parking_lot::Mutex::default(),
            value: parking_lot::Mutex::new(value),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            let me = checker::thread::current();
            self.waiting().push(me.clone());
            // It may have been released before the name was on the list.
            let guard = self.try_lock();
            // A thread that has the lock and has been woken already takes that wake-up, which is for no other sleep.
            if guard.is_none() || !self.waits_no_more(&me) {
                checker::thread::park();
            }
            if let Some(guard) = guard {
                return guard;
            }
        }
    }

    /// Takes the name off the list, if it is there.
    fn waits_no_more(&self, thread: &checker::thread::Thread) -> bool {
        let mut waiting = self.waiting();
        let place = waiting.iter().position(|other| other.id() == thread.id());
        place.map(|place| waiting.remove(place)).is_some()
    }

    /// No step of the model is made with this locked.
    fn waiting(&self) -> parking_lot::MutexGuard<'_, Vec<checker::thread::Thread>> {
        self.waiting.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        // ORDERING: Acquire pairs with the Release in `drop`: the thread that has the lock sees what was done under it
        // before.
        self.locked
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        let value = self.value.try_lock();
        Some(MutexGuard {
            mutex: self,
            value: Some(value.expect("guarded by the flag")),
        })
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> std::ops::Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value.as_ref().expect("present until it is dropped")
    }
}

impl<T> std::ops::DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("present until it is dropped")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        // ORDERING: Release, see `try_lock`.
        self.mutex.locked.store(false, Ordering::Release);
        let waiting = std::mem::take(&mut *self.mutex.waiting());
        waiting.iter().for_each(checker::thread::Thread::unpark);
    }
}

std::thread_local! {
    /// All threads of a model are coroutines of one thread.
    static TIMER_SHARDS: Cell<usize> = const { Cell::new(1) };
}

/// Sets the number of timer shards of the engines that are built from now on.
#[cfg(loom)]
pub(crate) fn set_timer_shards(shards: usize) {
    TIMER_SHARDS.set(shards);
}

/// How many timer shards an engine has: one, unless the model says otherwise.
pub(crate) fn timer_shards(_processors: usize) -> usize {
    TIMER_SHARDS.get()
}

/// A store to a word that other threads change by read-modify-write.
///
/// To loom, a store and a concurrent read-modify-write that read an earlier value are unordered, so that either could
/// be the last. Really the store is the later one: the other comes directly after the value it read. A swap says so.
pub(crate) fn overwrite(word: &AtomicU64, value: u64, ordering: Ordering) {
    // ORDERING: the caller's.
    word.swap(value, ordering);
}

/// A number of its own for each thread of the model, the same in every execution: 1 for the first thread, which so has
/// the second of two timer shards, 2 for the next. Never 0.
pub(crate) fn thread_number() -> u32 {
    /// `ThreadId` shows its number only to a hasher.
    struct Last(u64);
    impl Hasher for Last {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes.iter().rev() {
                self.0 = self.0 << 8 | u64::from(*byte);
            }
        }
        fn write_usize(&mut self, number: usize) {
            self.0 = number as u64;
        }
    }
    let mut last = Last(0);
    checker::thread::current().id().hash(&mut last);
    last.finish() as u32 + 1
}

/// A number that no other call in this process returns.
pub(crate) fn unique_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    // ORDERING: Relaxed: all that counts is that no two are equal.
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// A place that is filled once. A thread that finds it filled sees what was done before: std's says nothing of that to
/// the checker.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    filled: AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self {
            filled: AtomicBool::new(false),
            value: std::sync::OnceLock::new(),
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        // ORDERING: Acquire pairs with the Release in `get_or_init`.
        let filled = self.filled.load(Ordering::Acquire);
        filled.then(|| self.value.get()).flatten()
    }

    /// `init` takes no step of the model.
    pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        let value = self.value.get_or_init(init);
        // ORDERING: Release, see `get`.
        self.filled.store(true, Ordering::Release);
        value
    }
}

/// Padding has no meaning in a model.
#[derive(Debug, Default)]
pub(crate) struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A parker on the checker's own locks, with the token kept as the real one keeps it.
#[derive(Debug)]
pub(crate) struct Parker(Unparker);

#[derive(Debug, Clone)]
pub(crate) struct Unparker(std::sync::Arc<(checker::sync::Mutex<bool>, checker::sync::Condvar)>);

impl Parker {
    pub(crate) fn new() -> Self {
        Self(Unparker(std::sync::Arc::new((
            checker::sync::Mutex::new(false),
            checker::sync::Condvar::new(),
        ))))
    }

    pub(crate) fn unparker(&self) -> Unparker {
        self.0.clone()
    }

    /// Time does not pass in a model: a sleep that is not over at once ends by a wake-up only.
    pub(crate) fn park(&self, timeout: Option<Duration>) {
        let (token, woken) = &*self.0.0;
        let mut token = token.lock().expect("no model panics under this lock");
        while !*token && timeout != Some(Duration::ZERO) {
            token = woken.wait(token).expect("no model panics under this lock");
        }
        *token = false;
    }
}

impl Unparker {
    pub(crate) fn unpark(&self) {
        let (token, woken) = &*self.0;
        *token.lock().expect("no model panics under this lock") = true;
        woken.notify_one();
    }
}

/// A change to an entry of the map.
#[derive(Debug)]
pub(crate) struct Edit<'k, K, T> {
    key: &'k K,
    what: T,
}

impl<K, T> Edit<'_, K, T> {
    pub(crate) fn shard(&self) -> usize {
        0
    }
}

/// The map with a single shard. (A model has a handful of keys: they are searched one after the other.)
pub(crate) struct ShardedMap<K, V, S> {
    entries: Lazy<Mutex<Vec<(K, V)>>>,
    hasher: S,
}

impl<K: Eq + Hash, V, S: BuildHasher + Clone> ShardedMap<K, V, S> {
    pub(crate) fn new(hasher: S, _shards: usize) -> Self {
        Self {
            entries: Lazy::new(),
            hasher,
        }
    }

    fn made(&self) -> Option<MutexGuard<'_, Vec<(K, V)>>> {
        let entries = self.entries.get(Mutex::default)?;
        Some(entries.lock())
    }

    pub(crate) fn read<Q, R>(&self, key: &Q, read: impl FnOnce(&V) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let entries = self.made()?;
        let found = entries.iter().find(|(other, _)| key.equivalent(other));
        found.map(|(_, value)| read(value))
    }

    pub(crate) fn read_key<Q, R>(&self, key: &Q, read: impl FnOnce(&K) -> R) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let entries = self.made()?;
        let found = entries.iter().find(|(other, _)| key.equivalent(other));
        found.map(|(stored, _)| read(stored))
    }

    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(crate) fn read_where<R>(
        &self,
        _hash: u64,
        mut is_it: impl FnMut(&K, &V) -> bool,
        read: impl FnOnce(&V) -> R,
    ) -> Option<R> {
        let entries = self.made()?;
        let found = entries.iter().find(|(key, value)| is_it(key, value));
        found.map(|(_, value)| read(value))
    }

    pub(crate) fn take_where(
        &self,
        _hash: u64,
        mut is_it: impl FnMut(&K, &V) -> bool,
    ) -> Option<(K, V)> {
        let mut entries = self.made()?;
        let place = entries.iter().position(|(key, value)| is_it(key, value))?;
        Some(entries.remove(place))
    }

    pub(crate) fn edit_current(
        &self,
        _hash: u64,
        key: K,
        is_current: impl Fn(&V) -> bool,
        edit: impl FnOnce(Option<&mut V>) -> Option<V>,
        _hash_of: impl Fn(&V) -> u64,
    ) -> Option<K> {
        let mut entries = self.entries.get_or_make(Mutex::default).lock();
        let found = entries
            .iter_mut()
            .find(|(other, value)| *other == key && is_current(value));
        match edit(found.map(|(_, value)| value)) {
            Some(value) => {
                entries.push((key, value));
                None
            }
            None => Some(key),
        }
    }

    pub(crate) fn place(
        &self,
        key: K,
        place: impl FnOnce(Option<&mut V>) -> Option<V>,
    ) -> Option<K> {
        let mut entries = self.entries.get_or_make(Mutex::default).lock();
        if let Some((_, value)) = entries.iter_mut().find(|(other, _)| *other == key) {
            if let Some(other) = place(Some(value)) {
                *value = other;
            }
            return Some(key);
        }
        match place(None) {
            Some(value) => {
                entries.push((key, value));
                None
            }
            None => Some(key),
        }
    }

    pub(crate) fn edit<Q>(
        &self,
        key: &Q,
        goes: Option<impl Fn(&V) -> bool>,
        edit: impl FnOnce(&mut V) -> Entry,
    ) -> Option<K>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let mut entries = self.made()?;
        let place = entries
            .iter()
            .position(|(other, _)| key.equivalent(other))?;
        let value = &mut entries[place].1;
        match goes.is_some_and(|goes| goes(value)) || edit(value) == Entry::Remove {
            true => Some(entries.remove(place).0),
            false => None,
        }
    }

    pub(crate) fn prepare<'k, T>(&self, key: &'k K, what: T) -> Edit<'k, K, T> {
        Edit { key, what }
    }

    pub(crate) fn edit_all<T: Copy>(
        &self,
        edits: &[Edit<'_, K, T>],
        _prefetch: impl Fn(&V) -> bool,
        mut edit: impl FnMut(&mut V, T) -> Entry,
        done: &mut usize,
        removed: &mut Vec<(K, V)>,
    ) {
        let Some(mut entries) = self.made() else {
            return;
        };
        for &Edit { key, what, .. } in edits {
            *done += 1;
            let Some(place) = entries.iter().position(|(other, _)| other == key) else {
                continue;
            };
            if edit(&mut entries[place].1, what) == Entry::Remove {
                removed.push(entries.remove(place));
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.made().map_or(0, |entries| entries.len())
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(&K, &V)) {
        for (key, value) in self.made().iter().flat_map(|entries| entries.iter()) {
            visit(key, value);
        }
    }
}
