//! Stand-ins for model checking: loom's atomics and locks, or shuttle's, and a small map built on them. The library's
//! module `sync::model`, under loom and shuttle only: it stands here because no user's build has it.
//!
//! Constants are tiny here, so that a model of three operations already crosses chunks, blocks and list forms.

use dashmap::SharedValue;
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::time::Duration;

#[cfg(request_purgatory_loom)]
pub(crate) use loom as checker;
#[cfg(request_purgatory_shuttle)]
pub(crate) use shuttle as checker;

pub(crate) use checker::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence,
};
pub(crate) use checker::thread;
#[cfg(request_purgatory_loom)]
pub(crate) use loom::cell::UnsafeCell;

/// Neither macro knows `const` initialisers.
macro_rules! const_thread_local {
    ($($(#[$attr:meta])* static $name:ident: $type:ty = const { $init:expr };)*) => {
        crate::sync::checker::thread_local! { $($(#[$attr])* static $name: $type = $init;)* }
    };
}
pub(crate) use const_thread_local as thread_local;

pub(crate) const FIRST_CHUNK: u32 = 1;
/// Each chunk pointer is an atomic that loom tracks; a model of shuttle has more slots.
pub(crate) const CHUNKS: usize = if cfg!(request_purgatory_loom) { 4 } else { 28 };
pub(crate) const RESIDENT_CHUNK: u32 = 1;
pub(crate) const RESIDENT_CHUNKS: usize = 3;
pub(crate) const BLOCK: usize = 2;
pub(crate) const FEW: usize = 1;
pub(crate) const SEVERAL: usize = 1;
pub(crate) const LIST_CHUNK: usize = 1;
pub(crate) const COPIED: usize = 1;
pub(crate) const SLICE: usize = 1;
pub(crate) const PARKS_PER_EMPTYING: u32 = 1;
pub(crate) const MAX_EXAMINATIONS: u32 = 2;
pub(crate) const LAST_GENERATION: u32 = 1;
pub(crate) const MAX_TIMER_SHARDS: usize = 2;
pub(crate) const MAX_MAP_SHARDS: usize = 1;

/// A lock with the methods of parking_lot's, on an atomic of the checker's.
///
/// loom's own mutex does not do: its release is no step of the model, so no execution has a `try_lock` that fails.
#[derive(Debug)]
pub struct Mutex<T> {
    locked: AtomicBool,
    /// Threads to be woken when it is free. (A thread that spins instead makes loom try every number of rounds.)
    waiting: parking_lot::Mutex<Vec<checker::thread::Thread>>,
    /// Never contended: `locked` comes first. (And never poisoned: all threads of a checker run on one, so that one of
    /// them may seem to panic while another does.)
    value: parking_lot::Mutex<T>,
}

#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    value: Option<parking_lot::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            waiting: parking_lot::Mutex::default(),
            value: parking_lot::Mutex::new(value),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
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

impl<T> MutexGuard<'_, T> {
    /// Runs `unlocked` without the lock.
    pub(crate) fn unlocked<R>(guard: &mut Self, unlocked: impl FnOnce() -> R) -> R {
        guard.release();
        let result = unlocked();
        guard.take_again();
        result
    }

    fn release(&mut self) {
        self.value = None;
        // ORDERING: Release, see `try_lock`.
        self.mutex.locked.store(false, Ordering::Release);
        let waiting = std::mem::take(&mut *self.mutex.waiting());
        waiting.iter().for_each(checker::thread::Thread::unpark);
    }

    fn take_again(&mut self) {
        self.value = self.mutex.lock().value.take();
    }
}

/// A condition variable with the methods of parking_lot's. Some of its waits end without a notification.
#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Mutex<Vec<checker::thread::Thread>>);

impl Condvar {
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let me = checker::thread::current();
        self.0.lock().push(me.clone());
        guard.release();
        // A wake-up that came since then is kept.
        checker::thread::park();
        self.0.lock().retain(|other| other.id() != me.id());
        guard.take_again();
    }

    pub(crate) fn notify_one(&self) {
        let first = self.0.lock().pop();
        first.iter().for_each(checker::thread::Thread::unpark);
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
        if self.value.is_some() {
            self.release();
        }
    }
}

std::thread_local! {
    /// All threads of a model are coroutines of one thread.
    static TIMER_SHARDS: Cell<usize> = const { Cell::new(1) };
}

/// Sets the number of timer shards of the engines that are built from now on.
#[cfg(request_purgatory_loom)]
pub(crate) fn set_timer_shards(shards: usize) {
    TIMER_SHARDS.set(shards);
}

/// How many timer shards an engine has: one, unless the model says otherwise.
pub(crate) fn timer_shards(_processors: usize) -> usize {
    TIMER_SHARDS.get()
}

/// The shards of a map: a single one. (A model has a handful of keys: they are searched one after the other.)
pub(crate) struct MapShards<K, V>([Shard<K, V>; 1]);

pub(crate) struct Shard<K, V>(Mutex<Table<K, V>>);

pub(crate) struct Table<K, V>(Vec<Pair<K, V>>);

type Pair<K, V> = (K, SharedValue<V>);

pub(crate) fn make_shards<K, V>(_count: usize) -> MapShards<K, V> {
    MapShards([Shard(Mutex::new(Table(Vec::new())))])
}

impl<K, V> MapShards<K, V> {
    pub(crate) fn shards(&self) -> &[Shard<K, V>] {
        &self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0[0].read().0.len()
    }
}

/// A handful of entries is not worth giving back.
pub(crate) fn shrink<K, V>(_map: &MapShards<K, V>, _hash_of: impl Fn(&Pair<K, V>) -> u64) -> bool {
    false
}

pub(crate) fn for_each_entry<K, V>(map: &MapShards<K, V>, mut visit: impl FnMut(&K, &V)) {
    let entries = &map.0[0].read().0;
    entries
        .iter()
        .for_each(|(key, value)| visit(key, value.get()));
}

impl<K, V> Shard<K, V> {
    pub(crate) fn read(&self) -> MutexGuard<'_, Table<K, V>> {
        self.0.lock()
    }

    pub(crate) fn write(&self) -> MutexGuard<'_, Table<K, V>> {
        self.0.lock()
    }
}

impl<K, V> Table<K, V> {
    pub(crate) fn get(
        &self,
        _hash: u64,
        mut is_it: impl FnMut(&Pair<K, V>) -> bool,
    ) -> Option<&Pair<K, V>> {
        self.0.iter().find(|entry| is_it(entry))
    }

    pub(crate) fn get_mut(
        &mut self,
        _hash: u64,
        mut is_it: impl FnMut(&Pair<K, V>) -> bool,
    ) -> Option<&mut Pair<K, V>> {
        self.0.iter_mut().find(|entry| is_it(entry))
    }

    pub(crate) fn remove_entry(
        &mut self,
        _hash: u64,
        is_it: impl FnMut(&Pair<K, V>) -> bool,
    ) -> Option<Pair<K, V>> {
        let place = self.0.iter().position(is_it)?;
        Some(self.0.remove(place))
    }

    /// Gives the entry back, as a full table does: `insert` adds it.
    pub(crate) fn try_insert_no_grow(
        &mut self,
        _hash: u64,
        entry: Pair<K, V>,
    ) -> Result<(), Pair<K, V>> {
        Err(entry)
    }

    pub(crate) fn insert(
        &mut self,
        _hash: u64,
        entry: Pair<K, V>,
        _hash_of: impl Fn(&Pair<K, V>) -> u64,
    ) {
        self.0.push(entry);
    }
}

/// A store to a word that other threads change by read-modify-write.
///
/// To loom, a store and a concurrent read-modify-write that read an earlier value are unordered, so that either could
/// be the last. Really the store is the later one: the other comes directly after the value it read. A swap says so.
pub(crate) fn overwrite(word: &AtomicU64, value: u64, ordering: Ordering) {
    // ORDERING: the caller's.
    word.swap(value, ordering);
}

/// The pointer in an atomic that no other thread uses any more.
///
/// loom cannot tell, because the reference counts are not its own. An exchange finds the last pointer in any case.
pub(crate) fn last_pointer<T>(place: &mut AtomicPtr<T>) -> *mut T {
    // ORDERING: Relaxed: the last reference is gone.
    place.swap(std::ptr::null_mut(), Ordering::Relaxed)
}

/// Time does not pass in a model: the other threads go on.
pub(crate) fn pause(_time: Duration) {
    thread::yield_now();
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
        // ORDERING: Release, see `get`; a swap, because several threads may be here, and see `overwrite`.
        self.filled.swap(true, Ordering::Release);
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

    pub(crate) fn unparker(&self) -> &Unparker {
        &self.0
    }

    /// Time does not pass in a model: a sleep that is not over at once ends by a wake-up only.
    pub(crate) fn park_timeout(&self, timeout: Duration) {
        let (token, woken) = &*self.0.0;
        let mut token = token.lock().expect("no model panics under this lock");
        while !*token && !timeout.is_zero() {
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
