//! The entries of a tracker: a map that says where the timer keeps each key's value.
//!
//! A key is entered while the lock of its map shard is held, after its value has got a slot and a timer: so a thread
//! that finds the key finds a value that can be ended. The timer decides which thread ends a value. An entry is taken
//! out by its address, so that an ending that comes late does not touch the next value of its key.
//!
//! The lock of a timer shard may be taken within that of a map shard, never the other way round.

use super::key::TrackedKey;
use crate::address::Address;
use crate::engine::cores;
use crate::error::{RejectReason, Rejected};
use crate::hash::KeyHasher;
use crate::scheme::{HierarchicalWheel, Tick};
use crate::stats::Ending;
use crate::sync::ShardedMap;
use crate::timer::inner::Inner;
use std::borrow::Borrow;
use std::hash::Hash;
use std::time::Duration;

/// The timer below a tracker, with its entries.
pub(super) type Timers<K, V, S> = Inner<(K, V), HierarchicalWheel, Entries<K, S>>;

/// Where each key's value is.
pub(super) struct Entries<K, S>(ShardedMap<K, Address, S>);

/// A value that has just got its slot.
struct Entered {
    address: Address,
    /// The value that the key had before.
    replaced: Option<Address>,
    /// A deadline to announce.
    earlier: Option<Tick>,
}

impl<K: TrackedKey, S: KeyHasher> Entries<K, S> {
    pub(super) fn new(hasher: S) -> Self {
        let map_shards = (cores() * 16).next_power_of_two().clamp(64, 1024);
        Self(ShardedMap::new(hasher, map_shards))
    }

    /// Keeps a value, perhaps in place of another. Returns where, and the other.
    pub(super) fn track<V: Send + 'static>(
        &self,
        timers: &Timers<K, V, S>,
        key: K,
        value: V,
        timeout: Duration,
        replace: bool,
    ) -> Result<(Address, Option<V>), Rejected<V>> {
        match self.enter(timers, key, value, timeout, replace) {
            Ok(entered) => {
                timers.engine.announce(entered.earlier);
                let replaced = entered.replaced;
                let replaced = replaced.and_then(|other| timers.withdraw(other, Ending::Cancelled));
                Ok((entered.address, replaced.map(|(_, value)| value)))
            }
            Err(rejected) => {
                timers.count_rejected();
                Err(rejected)
            }
        }
    }

    /// Gives a value a slot, and its key an entry.
    fn enter<V: Send + 'static>(
        &self,
        timers: &Timers<K, V, S>,
        key: K,
        value: V,
        timeout: Duration,
        replace: bool,
    ) -> Result<Entered, Rejected<V>> {
        let engine = &timers.engine;
        if engine.is_closed() {
            return Err(Rejected::new(RejectReason::ShutDown, value));
        }
        let mut value = Some(value);
        let mut entered = None;
        let tried = engine.guarded(|| {
            let timing = engine.timing(timeout);
            let copy = key.clone();
            drop(self.0.place(key, |occupant| {
                let value = value.take()?;
                // (A value that has just ended is about to leave the map.)
                let occupant = occupant.filter(|other| engine.is_parked(**other));
                if occupant.is_some() && !replace {
                    entered = Some(Err(Rejected::new(RejectReason::Duplicate, value)));
                    return None;
                }
                let (address, result) = match engine.admit_released((copy, value), timing) {
                    Err(rejected) => (None, Err(rejected.map(|(_, value)| value))),
                    Ok((address, earlier)) => {
                        let entered = Entered {
                            address,
                            replaced: occupant.copied(),
                            earlier,
                        };
                        (Some(address), Ok(entered))
                    }
                };
                entered = Some(result);
                address
            }));
        });
        match (tried, entered, value) {
            (Ok(()), Some(entered), _) => entered,
            // A key panicked, before there was a slot or (when the map grew) after.
            (Err(_), Some(Ok(entered)), _) => {
                match timers.withdraw(entered.address, Ending::Aborted) {
                    Some((_, value)) => Err(Rejected::new(RejectReason::Panicked, value)),
                    // It has just expired, as it was going to.
                    None => Ok(entered),
                }
            }
            (_, Some(Err(rejected)), _) => Err(rejected),
            (_, None, Some(value)) => Err(Rejected::new(RejectReason::Panicked, value)),
            (_, None, None) => unreachable!("a value is taken only to be entered"),
        }
    }

    /// Takes the entry of `key` out, and returns where its value is.
    pub(super) fn take<Q>(&self, key: &Q) -> Option<Address>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.remove_if(key, |_| true)
    }

    /// Where the value for `key` is.
    pub(super) fn find<Q>(&self, key: &Q) -> Option<Address>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.read(key, |&address| address)
    }

    /// Takes the entry of an ended value out, if its key has no other by now.
    pub(super) fn remove(&self, key: &K, address: Address) {
        self.0.remove_if(key, |entry| *entry == address);
    }
}
