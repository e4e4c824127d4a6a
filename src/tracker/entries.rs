//! The entries of a tracker: a map that holds each key's value, and says which timer the value has.
//!
//! The slot of a value in the timer holds only the hash of the key. The state of the slot decides which thread ends the
//! value; the entry holds what that thread gets. The rules between the two:
//!
//! * An entry is added while the lock of its map shard is held, after it has got its slot and its timer.
//! * INVARIANT: an entry leaves the map only by the thread that has claimed its slot, which finds it by its address. So
//!   that thread always finds it, and runs no code of the key's for that.
//! * A value whose slot is claimed is ending, though its entry is still there. Where another value comes for the key
//!   meanwhile, it gets an entry of its own, and the old one is superseded. So a key may have several entries, of which
//!   at most one is current; a search by key passes over the others.
//!
//! The lock of a timer shard may be taken within that of a map shard, never the other way round.

use super::fencing::FencingToken;
use crate::address::Address;
use crate::cell::state::Mark;
use crate::engine::shard::Rescheduled;
use crate::engine::timing::Timing;
use crate::engine::{self, Engine, cores};
use crate::error::{RejectReason, Rejected};
use crate::hash::{Key, KeyHasher};
use crate::panics::Panics;
use crate::scheme::{HierarchicalWheel, Scheme, Tick};
use crate::stats::{Count, Ending};
use crate::sync::ShardedMap;
use crate::timer::inner::{Extra, Inner};
use crate::trampoline::{Trampoline, drop_user_value};
use equivalent::Equivalent;
use parking_lot::Mutex;
use std::hash::Hash;
use std::time::Duration;

/// The timer below a tracker, with its entries. In the slots are the hashes of the keys.
pub(super) type Timers<K, V, S> = Inner<u64, HierarchicalWheel, Entries<K, V, S>>;

/// The slot of a value that this thread ends.
type Claim<'a> = engine::Claim<'a, u64, HierarchicalWheel>;

/// The value of each key.
pub(super) struct Entries<K, V, S> {
    map: ShardedMap<K, Entry<V>, S>,
    /// Tokens given out so far, and those before the first.
    tokens: Count,
}

struct Entry<V> {
    /// Shared readers clone a value that may not be `Sync`: one at a time.
    value: Mutex<V>,
    address: Address,
    hash: u64,
    token: u64,
    /// Another value has come for the key while this one was being ended.
    superseded: bool,
}

impl<V> Entry<V> {
    /// Whether its value is the one that is kept for its key.
    fn is_current<P, W: Scheme>(&self, engine: &Engine<P, W>) -> bool {
        !self.superseded && engine.is_parked(self.address)
    }
}

/// A value that is being kept, so that it can be found again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) address: Address,
    pub(super) hash: u64,
    pub(super) token: FencingToken,
}

/// A value that has just got its slot.
struct Entered<'a, V> {
    place: Place,
    /// The value that the key had before.
    replaced: Option<(Claim<'a>, V)>,
    /// A deadline to announce.
    earlier: Option<Tick>,
}

/// Which of a key's values a call is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Which {
    Any,
    /// The one with this token.
    Only(FencingToken),
}

impl Which {
    fn matches(self, token: u64) -> bool {
        match self {
            Self::Any => true,
            Self::Only(only) => only.get() == token,
        }
    }
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Extra<u64> for Entries<K, V, S> {
    fn discard(&self, address: Address, hash: u64) {
        let (key, value) = self.take(address, hash);
        let mut panics = Panics::default();
        panics.catch(|| drop_user_value(value));
        panics.catch(|| drop_user_value(key));
        panics.resume();
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

    /// A token that is greater than all before. To be called under the lock of a key's map shard: then the tokens of
    /// the key grow in the order in which its values follow one another.
    fn next_token(&self) -> u64 {
        self.tokens.add_and_read(1)
    }

    /// Keeps a value, perhaps in place of another. Returns where, and the other.
    pub(super) fn track(
        &self,
        timers: &Timers<K, V, S>,
        key: K,
        value: V,
        timeout: Duration,
        replace: bool,
    ) -> Result<(Place, Option<V>), Rejected<V>> {
        match self.enter(timers, key, value, timeout, replace) {
            Ok(entered) => {
                timers.engine.announce(entered.earlier);
                let replaced = entered.replaced.map(|(claim, value)| {
                    timers.engine.withdraw(claim, Ending::Cancelled);
                    value
                });
                Ok((entered.place, replaced))
            }
            Err(rejected) => {
                timers.count_rejected();
                Err(rejected)
            }
        }
    }

    /// Gives a value a slot, and its key an entry.
    fn enter<'a>(
        &self,
        timers: &'a Timers<K, V, S>,
        key: K,
        value: V,
        timeout: Duration,
        replace: bool,
    ) -> Result<Entered<'a, V>, Rejected<V>> {
        let engine = &timers.engine;
        if engine.is_closed() {
            let _ = engine.guarded(|| engine.drop_spare(Some(key)));
            return Err(Rejected::new(RejectReason::ShutDown, value));
        }
        let mut value = Some(value);
        let mut entered = None;
        // `Hash` and `Eq` of keys and the clock are the user's: they come before the value has its slot.
        let tried = engine.guarded(|| {
            let timing = engine.timing(timeout);
            let hash = self.map.hash_of(&key);
            let edit = |occupant: Option<&mut Entry<V>>| {
                entered = Some(self.admit(timers, hash, timing, occupant, &mut value, replace));
                match &mut entered {
                    Some(Ok((_, fresh))) => fresh.take(),
                    _ => None,
                }
            };
            let is_current = |entry: &Entry<V>| entry.is_current(engine);
            self.edit(engine, (hash, key), is_current, edit);
        });
        match (entered, value) {
            // If the destructor of a spare key panicked, that is counted, and the value is kept.
            (Some(Ok((entered, _))), _) => Ok(entered),
            (Some(Err(reason)), Some(value)) => Err(Rejected::new(reason, value)),
            (None, Some(value)) => {
                debug_assert!(tried.is_err());
                Err(Rejected::new(RejectReason::Panicked, value))
            }
            (_, None) => unreachable!("a value is taken only to be entered"),
        }
    }

    /// Shows `edit` the entry of `key` that `is_current`, under the lock of the key's map shard, and adds the entry that
    /// `edit` returns, if any. The destructor of a key that is not needed runs without the lock.
    #[inline(always)]
    fn edit(
        &self,
        engine: &Engine<u64, HierarchicalWheel>,
        (hash, key): (u64, K),
        is_current: impl Fn(&Entry<V>) -> bool,
        edit: impl FnOnce(Option<&mut Entry<V>>) -> Option<Entry<V>>,
    ) {
        let hash_of = |entry: &Entry<V>| entry.hash;
        let spare = self.map.edit_current(hash, key, is_current, edit, hash_of);
        engine.drop_spare(spare);
    }

    /// Gives a value a slot, under the lock of the key's map shard: in the entry of the key's `occupant`, if that can
    /// still be ended, or in a fresh one.
    fn admit<'a>(
        &self,
        timers: &'a Timers<K, V, S>,
        hash: u64,
        timing: Timing,
        occupant: Option<&mut Entry<V>>,
        value: &mut Option<V>,
        replace: bool,
    ) -> Result<(Entered<'a, V>, Option<Entry<V>>), RejectReason> {
        let engine = &timers.engine;
        if occupant.is_some() && !replace {
            return Err(RejectReason::Duplicate);
        }
        let admitted = engine.admit_released(hash, timing);
        let (address, earlier) = admitted.map_err(|rejected| rejected.reason())?;
        let Some(value) = value.take() else {
            unreachable!("an entry is made once")
        };
        let token = self.next_token();
        let fresh = Entry {
            value: Mutex::new(value),
            address,
            hash,
            token,
            superseded: false,
        };
        let place = Place {
            address,
            hash,
            token: FencingToken::new(token),
        };
        let mut entered = Entered {
            place,
            replaced: None,
            earlier,
        };
        if let Some(occupant) = occupant {
            if let Some(claim) = engine.claim(occupant.address, Mark::Cancel) {
                let old = std::mem::replace(occupant, fresh);
                entered.replaced = Some((claim, old.value.into_inner()));
                return Ok((entered, None));
            }
            // It is just expiring, and keeps its entry for the thread that expires it.
            occupant.superseded = true;
        }
        Ok((entered, Some(fresh)))
    }

    /// Ends the value for `key`, and returns it.
    pub(super) fn complete<Q>(&self, timers: &Timers<K, V, S>, key: &Q, which: Which) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let mut claim = None;
        let entry = self.map.take_where(self.map.hash_of(key), |other, entry| {
            if key.equivalent(other) && which.matches(entry.token) {
                claim = timers.engine.claim(entry.address, Mark::Cancel);
                return claim.is_some();
            }
            false
        });
        timers.engine.withdraw(claim?, Ending::Forced);
        let (stored, entry) = entry?;
        let value = entry.value.into_inner();
        if std::mem::needs_drop::<K>() {
            // A destructor that completes the next key does not nest, and one that panics does not cost the value.
            let trampoline = Trampoline::enter();
            let _ = timers.engine.guarded(|| drop_user_value(stored));
            timers.engine.leave(trampoline);
        }
        Some(value)
    }

    /// Ends the value at `place`, whatever other value its key has got since, and returns it.
    pub(super) fn withdraw(&self, timers: &Timers<K, V, S>, place: Place) -> Option<(K, V)> {
        let claim = timers.engine.claim(place.address, Mark::Cancel)?;
        let entry = self.take(place.address, place.hash);
        timers.engine.withdraw(claim, Ending::Cancelled);
        Some(entry)
    }

    /// Ends every value, and returns those that this call has ended.
    pub(super) fn withdraw_all(&self, timers: &Timers<K, V, S>) -> Vec<(K, V)> {
        let engine = &timers.engine;
        let mut all = Vec::new();
        for shard in engine.shards() {
            let (mut next, mut slice) = (Some(0), Vec::new());
            while let Some(first) = next {
                next = shard.started(first, &mut slice);
                for at in slice.drain(..) {
                    let address = shard.address(at);
                    if let Some(claim) = engine.claim(address, Mark::Cancel) {
                        let hash = engine.withdraw(claim, Ending::Cancelled);
                        all.push(self.take(address, hash));
                    }
                }
            }
        }
        all
    }

    /// Takes out the entry of a value that the calling thread has ended.
    pub(super) fn take(&self, address: Address, hash: u64) -> (K, V) {
        let is_it = |_: &K, entry: &Entry<V>| entry.address == address;
        match self.map.take_where(hash, is_it) {
            Some((key, entry)) => (key, entry.value.into_inner()),
            // INVARIANT: see above.
            None => unreachable!("an entry leaves the map by the thread that ends its value"),
        }
    }

    /// Reads the entry of the live value for `key`, under the shared lock of the key's map shard.
    fn read<Q, R>(
        &self,
        timers: &Timers<K, V, S>,
        key: &Q,
        which: Which,
        read: impl FnOnce(&Entry<V>) -> R,
    ) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let is_it = |other: &K, entry: &Entry<V>| {
            key.equivalent(other) && which.matches(entry.token) && entry.is_current(&timers.engine)
        };
        self.map.read_where(self.map.hash_of(key), is_it, read)
    }

    /// Where the value for `key` is.
    pub(super) fn find<Q>(&self, timers: &Timers<K, V, S>, key: &Q) -> Option<Place>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.read(timers, key, Which::Any, |entry| Place {
            address: entry.address,
            hash: entry.hash,
            token: FencingToken::new(entry.token),
        })
    }

    /// A clone of the value for `key`.
    pub(super) fn get<Q>(&self, timers: &Timers<K, V, S>, key: &Q) -> Option<V>
    where
        V: Clone,
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.read(timers, key, Which::Any, |entry| entry.value.lock().clone())
    }

    /// Gives the value for `key` another deadline. Returns whether it has it.
    ///
    /// The lock of the map shard is held until the deadline is set: else a value that has got into the same slot and
    /// entry meanwhile would have the deadline of the one before.
    pub(super) fn touch<Q>(
        &self,
        timers: &Timers<K, V, S>,
        key: &Q,
        which: Which,
        timeout: Duration,
    ) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let timing = timers.engine.timing(timeout);
        let exists = || self.read(timers, key, which, |_| ()).is_some();
        let started = timers.engine.start_threads_to_reschedule(timing, exists);
        if started.is_err() {
            return false;
        }
        let rescheduled = self.read(timers, key, which, |entry| {
            timers.engine.reschedule_to(entry.address, timing)
        });
        match rescheduled {
            Some(Rescheduled::Done(earlier)) => {
                timers.engine.announce(earlier);
                true
            }
            _ => false,
        }
    }

    /// Puts `value` in place of the one for `key` that has this token, in the same slot. Returns the new token and the
    /// value before.
    pub(super) fn replace(
        &self,
        timers: &Timers<K, V, S>,
        key: K,
        token: FencingToken,
        value: V,
        timeout: Duration,
    ) -> Result<(FencingToken, V), Rejected<V>> {
        let engine = &timers.engine;
        let mut value = Some(value);
        let (mut replaced, mut refused) = (None, false);
        let tried = engine.guarded(|| {
            let timing = engine.timing(timeout);
            let hash = self.map.hash_of(&key);
            let exists = || {
                self.read(timers, &key, Which::Only(token), |_| ())
                    .is_some()
            };
            refused = engine.start_threads_to_reschedule(timing, exists).is_err();
            if refused {
                return engine.drop_spare(Some(key));
            }
            let edit = |occupant: Option<&mut Entry<V>>| {
                let occupant = occupant?;
                let Rescheduled::Done(earlier) = engine.reschedule_to(occupant.address, timing)
                else {
                    return None;
                };
                let old = std::mem::replace(occupant.value.get_mut(), value.take()?);
                occupant.token = self.next_token();
                replaced = Some((FencingToken::new(occupant.token), old, earlier));
                None
            };
            let is_it = |entry: &Entry<V>| entry.token == token.get() && entry.is_current(engine);
            self.edit(engine, (hash, key), is_it, edit);
        });
        match (replaced, value) {
            (Some((token, old, earlier)), _) => {
                engine.announce(earlier);
                Ok((token, old))
            }
            (None, Some(value)) => {
                let reason = match tried {
                    _ if refused => RejectReason::Thread,
                    Err(_) => RejectReason::Panicked,
                    Ok(()) if engine.is_closed() => RejectReason::ShutDown,
                    Ok(()) => RejectReason::StaleToken,
                };
                timers.count_rejected();
                Err(Rejected::new(reason, value))
            }
            (None, None) => unreachable!("a value is taken only to be kept"),
        }
    }
}
