//! The entries of a tracker: a map that holds each key's value, and says which timer the value has.
//!
//! The slot of a value in the timer holds only the hash of the key. The state of the slot decides which thread ends the
//! value; the entry holds what that thread gets. The rules between the two:
//!
//! * An entry is added while the lock of its map shard is held, after it has got its slot and its timer.
//! * INVARIANT: an entry leaves the map only by the thread that has claimed its slot, which finds it by its address. So
//!   that thread always finds it, and runs no code of the key's for that.
//! * That thread takes the entry out before it runs any code of the user's. So beside the current value of a key lie at
//!   most as many others as there are threads that are just taking one out, however many callbacks wait.
//! * A value whose slot is claimed is ending, though its entry is still there. Where another value comes for the key
//!   meanwhile, it gets an entry of its own, and the old one is superseded. A search by key passes over such entries.
//!
//! The lock of a timer shard may be taken within that of a map shard, never the other way round.

use super::fencing::FencingToken;
use crate::address::Address;
use crate::cell::slab::Held;
use crate::cell::state::Mark;
use crate::engine::shard::Timing;
use crate::engine::{Engine, cores};
use crate::error::{RejectReason, Rejected};
use crate::hash::{Key, KeyHasher};
use crate::scheme::{HierarchicalWheel, Tick};
use crate::stats::{Count, Ending, Statistic};
use crate::sync::ShardedMap;
use crate::timer::inner::ValueStore;
use crate::trampoline::{Trampoline, drop_user_value};
use equivalent::Equivalent;
use parking_lot::Mutex;
use std::hash::Hash;
use std::time::Duration;

/// The slots and timers of the values. In the slots are the hashes of the keys.
pub(super) type Timers = Engine<u64, HierarchicalWheel>;

/// The value of each key.
pub(crate) struct Entries<K, V, S> {
    map: ShardedMap<K, Entry<V>, S>,
    /// Tokens given out so far, and those before the first.
    tokens: Count,
}

struct Entry<V> {
    /// Shared readers clone a value that may not be `Sync`: one at a time.
    value: Mutex<V>,
    id: EntryId,
    /// Another value has come for the key while this one was being ended.
    superseded: bool,
}

impl<V> Entry<V> {
    /// Whether its value is the one that is kept for its key.
    fn is_current(&self, timers: &Timers) -> bool {
        !self.superseded && timers.is_parked(self.id.address)
    }
}

/// A value that is being kept, so that it can be found again.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryId {
    pub(super) address: Address,
    pub(super) hash: u64,
    pub(super) token: FencingToken,
}

/// A value that has just got its slot.
struct Entered<'a, V> {
    id: EntryId,
    /// The value that the key had before.
    replaced: Option<(Held<'a, u64>, V)>,
    /// A deadline to announce.
    earlier: Option<Tick>,
    /// The entry to be added to the map, if the value has not got that of another.
    fresh: Option<Entry<V>>,
}

impl<K: Key, V: Send + 'static, S: KeyHasher> ValueStore<u64, (K, V, FencingToken)>
    for Entries<K, V, S>
{
    /// Takes out the entry of a value.
    fn take_value(&self, address: Address, hash: u64) -> (K, V, FencingToken) {
        let is_it = |_: &K, entry: &Entry<V>| entry.id.address == address;
        match self.map.take_where(hash, is_it) {
            Some((key, entry)) => (key, entry.value.into_inner(), entry.id.token),
            // INVARIANT: see above.
            None => unreachable!("an entry leaves the map by the thread that ends its value"),
        }
    }

    fn shrink(&self) {
        self.map.shrink();
    }
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Entries<K, V, S> {
    /// The first token is one above `before`.
    pub(super) fn new(hasher: S, before: u64) -> Self {
        let map_shards = (cores() * 16).next_power_of_two().clamp(64, 1024);
        let tokens = Count::default();
        tokens.add(before);
        Self {
            map: ShardedMap::new(hasher, map_shards),
            tokens,
        }
    }

    pub(super) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.map.hash_of(key)
    }

    /// A token that is greater than all before. To be called under the lock of a key's map shard: then the tokens of
    /// the key grow in the order in which its values follow one another.
    fn next_token(&self) -> FencingToken {
        self.tokens.add(1).into()
    }

    /// Whether the map has an entry for `key`, which has this hash, whatever becomes of its value.
    pub(super) fn has<Q: Equivalent<K> + ?Sized>(&self, hash: u64, key: &Q) -> bool {
        let is_it = |other: &K, _: &Entry<V>| key.equivalent(other);
        self.map.read_where(hash, is_it, |_, _| ()).is_some()
    }
}

/// The entries of a tracker, with the timers of their values.
pub(super) struct Values<'a, K, V, S> {
    pub(super) entries: &'a Entries<K, V, S>,
    pub(super) timers: &'a Timers,
}

impl<'a, K: Key, V: Send + 'static, S: KeyHasher> Values<'a, K, V, S> {
    /// Keeps a value, perhaps in place of another. Returns where, and the other.
    pub(super) fn track(
        &self,
        key: K,
        value: V,
        timeout: Duration,
        replace: bool,
    ) -> Result<(EntryId, Option<V>), Rejected<V>> {
        let timers = self.timers;
        let mut value = Some(value);
        let mut entered = Err(RejectReason::Panicked);
        // `Hash` and `Eq` of keys and the clock are the user's: they come before the value has its slot. If the destructor
        // of a spare key panics, that is counted, and the value is kept.
        let _ = timers.guarded(|| {
            if timers.phase.is_closed() {
                entered = Err(RejectReason::ShutDown);
                return timers.drop_spare(Some(key));
            }
            let timing = timers.timing(None, timeout);
            let hash = self.entries.hash_of(&key);
            let edit = |occupant: Option<&mut Entry<V>>| {
                entered = self.enter(hash, timing, occupant, &mut value, replace);
                entered.as_mut().ok()?.fresh.take()
            };
            self.edit((hash, key), |entry| entry.is_current(timers), edit);
        });
        match (entered, value) {
            (Ok(entered), _) => {
                timers.announce(entered.earlier);
                let replaced = entered.replaced.map(|(held, value)| {
                    timers.withdraw(held, Ending::Cancelled);
                    value
                });
                Ok((entered.id, replaced))
            }
            (Err(reason), Some(value)) => Err(self.reject(reason, value)),
            (Err(_), None) => unreachable!("a value is taken only to be entered"),
        }
    }

    fn reject(&self, reason: RejectReason, value: V) -> Rejected<V> {
        self.timers.count(Statistic::Rejected, 1);
        Rejected::new(reason, value)
    }

    /// Shows `edit` the entry of `key` that `is_current`, under the lock of the key's map shard, and adds the entry that
    /// `edit` returns, if any. The destructor of a key that is not needed runs without the lock.
    #[inline(always)]
    fn edit(
        &self,
        key: (u64, K),
        is_current: impl Fn(&Entry<V>) -> bool,
        edit: impl FnOnce(Option<&mut Entry<V>>) -> Option<Entry<V>>,
    ) {
        let hash_of = |_: &K, entry: &Entry<V>| entry.id.hash;
        let spare = self.entries.map.upsert(key, is_current, edit, hash_of);
        self.timers.drop_spare(spare);
    }

    /// Gives a value a slot, under the lock of the key's map shard: in the entry of the key's `occupant`, if that can
    /// still be ended, or in a fresh one.
    fn enter(
        &self,
        hash: u64,
        timing: Timing,
        occupant: Option<&mut Entry<V>>,
        value: &mut Option<V>,
        replace: bool,
    ) -> Result<Entered<'a, V>, RejectReason> {
        if occupant.is_some() && !replace {
            return Err(RejectReason::Duplicate);
        }
        let admitted = self.timers.admit_released(hash, timing);
        let (address, earlier) = admitted.map_err(|rejected| rejected.reason())?;
        let Some(value) = value.take() else {
            unreachable!("an entry is made once")
        };
        let id = EntryId {
            address,
            hash,
            token: self.entries.next_token(),
        };
        let mut fresh = Some(Entry {
            value: Mutex::new(value),
            id,
            superseded: false,
        });
        let mut replaced = None;
        if let Some(occupant) = occupant {
            let address = occupant.id.address;
            match self.timers.claim_or_mark(address, Mark::Cancel) {
                Some(held) => {
                    let old = fresh.take().map(|fresh| std::mem::replace(occupant, fresh));
                    replaced = old.map(|old| (held, old.value.into_inner()));
                }
                // It is just expiring, and keeps its entry for the thread that expires it.
                None => occupant.superseded = true,
            }
        }
        Ok(Entered {
            id,
            replaced,
            earlier,
            fresh,
        })
    }

    /// Ends the value for `key`, with `only` this token if one is given, and returns it.
    pub(super) fn complete<Q>(&self, key: &Q, only: Option<FencingToken>) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let is_it =
            |other: &K, token| key.equivalent(other) && only.is_none_or(|only| only == token);
        let (stored, value) = self.end(self.entries.hash_of(key), Ending::Forced, is_it)?;
        if std::mem::needs_drop::<K>() {
            // A destructor that completes the next key does not nest, and one that panics does not cost the value.
            let trampoline = Trampoline::enter();
            let _ = self.timers.guarded(|| drop_user_value(stored));
            self.timers.leave(trampoline);
        }
        Some(value)
    }

    /// Ends the value at `id`, if it is still the one with that token.
    pub(super) fn withdraw(&self, id: EntryId) -> Option<(K, V)> {
        let is_it = |_: &K, token| token == id.token;
        self.end(id.hash, Ending::Cancelled, is_it)
    }

    /// Ends a value with this hash, which `is_it` knows by its key and its token.
    #[inline(always)]
    fn end(
        &self,
        hash: u64,
        ending: Ending,
        is_it: impl Fn(&K, FencingToken) -> bool,
    ) -> Option<(K, V)> {
        let mut held = None;
        let entry = self.entries.map.take_where(hash, |key, entry| {
            if is_it(key, entry.id.token) {
                held = self.timers.claim_or_mark(entry.id.address, Mark::Cancel);
                return held.is_some();
            }
            false
        });
        self.timers.withdraw(held?, ending);
        let (key, entry) = entry?;
        Some((key, entry.value.into_inner()))
    }

    /// Shows `visit` every value that is kept, under the shared lock of one map shard after the other.
    fn visit(&self, mut visit: impl FnMut(&K, &Entry<V>)) {
        self.entries.map.for_each("keys", |key, entry| {
            if entry.is_current(self.timers) {
                visit(key, entry);
            }
        });
    }

    /// The keys of all values.
    pub(super) fn keys(&self) -> Vec<K> {
        let mut keys = Vec::new();
        self.visit(|key, _| keys.push(key.clone()));
        keys
    }

    /// Where the values are that `is_wanted` picks. If that panics, nothing has happened.
    pub(super) fn ids_where(&self, mut is_wanted: impl FnMut(&K, &V) -> bool) -> Vec<EntryId> {
        let mut ids = Vec::new();
        self.visit(|key, entry| {
            if is_wanted(key, &entry.value.lock()) {
                ids.push(entry.id);
            }
        });
        ids
    }

    /// Reads the entry of the live value for `key`, under the shared lock of the key's map shard.
    fn read<Q: Hash + Equivalent<K> + ?Sized, R>(
        &self,
        key: &Q,
        only: Option<FencingToken>,
        read: impl FnOnce(&Entry<V>) -> R,
    ) -> Option<R> {
        let is_it = |other: &K, entry: &Entry<V>| {
            key.equivalent(other)
                && only.is_none_or(|only| only == entry.id.token)
                && entry.is_current(self.timers)
        };
        let hash = self.entries.hash_of(key);
        let read = |_: &K, entry: &Entry<V>| read(entry);
        self.entries.map.read_where(hash, is_it, read)
    }

    /// Where the value for `key` is.
    pub(super) fn find<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<EntryId> {
        self.read(key, None, |entry| entry.id)
    }

    /// A clone of the value for `key`.
    pub(super) fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<V>
    where
        V: Clone,
    {
        self.read(key, None, |entry| entry.value.lock().clone())
    }

    /// Gives the value for `key` another deadline. Returns whether it has it.
    ///
    /// The lock of the map shard is held until the deadline is set: else a value that has got into the same slot and
    /// entry meanwhile would have the deadline of the one before.
    pub(super) fn reschedule<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        only: Option<FencingToken>,
        timeout: Duration,
    ) -> bool {
        let timing = self.timers.timing(None, timeout);
        let exists = || self.read(key, only, |_| ()).is_some();
        let started = self.timers.start_reaper_to_reschedule(timing, exists);
        if started.is_err() {
            return false;
        }
        let reschedule_to = |at| self.timers.reschedule_to(at, timing).ok();
        let earlier = self.read(key, only, |entry| reschedule_to(entry.id.address));
        let announce = |earlier| self.timers.announce(earlier);
        earlier.flatten().map(announce).is_some()
    }

    /// Puts `value` in place of the one for `key` that has this token, in the same slot. Returns the new token and the
    /// value before.
    pub(super) fn replace(
        &self,
        key: K,
        token: FencingToken,
        value: V,
        timeout: Duration,
    ) -> Result<(FencingToken, V), Rejected<V>> {
        let timers = self.timers;
        let mut value = Some(value);
        let (mut replaced, mut refused) = (None, false);
        let tried = timers.guarded(|| {
            let timing = timers.timing(None, timeout);
            let hash = self.entries.hash_of(&key);
            let exists = || self.read(&key, Some(token), |_| ()).is_some();
            refused = timers.start_reaper_to_reschedule(timing, exists).is_err();
            if refused {
                return timers.drop_spare(Some(key));
            }
            let edit = |occupant: Option<&mut Entry<V>>| {
                let occupant = occupant?;
                let earlier = timers.reschedule_to(occupant.id.address, timing).ok()?;
                let old = std::mem::replace(occupant.value.get_mut(), value.take()?);
                occupant.id.token = self.entries.next_token();
                replaced = Some((occupant.id.token, old, earlier));
                None
            };
            let is_it = |entry: &Entry<V>| entry.id.token == token && entry.is_current(timers);
            self.edit((hash, key), is_it, edit);
        });
        match (replaced, value) {
            (Some((token, old, earlier)), _) => {
                timers.announce(earlier);
                Ok((token, old))
            }
            (None, Some(value)) => {
                let reason = match tried {
                    _ if refused => RejectReason::Thread,
                    Err(_) => RejectReason::Panicked,
                    Ok(()) if timers.phase.is_closed() => RejectReason::ShutDown,
                    Ok(()) => RejectReason::StaleToken,
                };
                Err(self.reject(reason, value))
            }
            (None, None) => unreachable!("a value is taken only to be kept"),
        }
    }
}
