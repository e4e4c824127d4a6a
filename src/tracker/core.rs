//! What the faces of one tracker share: an engine full of values, and a map that says where each key's value is.
//!
//! A key is entered while the lock of its shard is held, after its value has got a slot and a timer: so whoever finds
//! the key finds a value that can be ended. The engine decides who ends a value. An entry is taken out by its address,
//! so that an ending that comes late does not touch the next value of its key.
//!
//! The lock of a home may be taken within that of a shard, never the other way round.

use super::TrackedKey;
use crate::address::Address;
use crate::cell::state::Mark;
use crate::engine::deliver::{Outbox, Ready};
use crate::engine::drive::Facility;
use crate::engine::home::Rescheduled;
use crate::engine::pass::{Gone, Heap};
use crate::engine::{self, Engine, cores};
use crate::error::Rejected;
use crate::operation::KeyHasher;
use crate::scheme::{HierarchicalWheel, Tick};
use crate::stats::Ending;
use crate::sync::{Arc, ShardedMap};
use parking_lot::Mutex;
use std::borrow::Borrow;
use std::hash::Hash;
use std::time::Duration;

/// How a tracker keeps its deadlines.
pub(super) type Wheel = HierarchicalWheel;

type Tenant<'a, K, V> = engine::Tenant<'a, (K, V), Wheel>;

pub(super) struct Core<K: TrackedKey, V, S> {
    pub(super) engine: Engine<(K, V), Wheel>,
    places: ShardedMap<K, Address, S>,
    on_expiry: Box<dyn Fn(K, V) + Send + Sync>,
    gone: Heap<()>,
    /// What was kept at the shutdown.
    remains: Mutex<Vec<(K, V)>>,
}

/// A value that has just got its place.
struct Entered {
    address: Address,
    /// Who had the key before.
    replaced: Option<Address>,
    /// A deadline to announce.
    earlier: Option<Tick>,
}

impl<K: TrackedKey, V: Send + 'static, S: KeyHasher> Core<K, V, S> {
    pub(super) fn new(
        engine: Engine<(K, V), Wheel>,
        hasher: S,
        on_expiry: impl Fn(K, V) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let shards = (cores() * 16).next_power_of_two().clamp(64, 1024);
        Arc::new(Self {
            engine,
            places: ShardedMap::new(hasher, shards),
            on_expiry: Box::new(on_expiry),
            gone: Heap::new(),
            remains: Mutex::new(Vec::new()),
        })
    }

    /// Keeps a value, perhaps in place of another. Returns where, and the other.
    pub(super) fn track(
        &self,
        key: K,
        value: V,
        timeout: Duration,
        replace: bool,
    ) -> Result<(Address, Option<V>), Rejected<V>> {
        let tracked = self.enter(key, value, timeout, replace).map(|entered| {
            self.engine.announce(entered.earlier);
            let replaced = entered.replaced.and_then(|other| {
                let tenant = self.engine.begin(other, Mark::Cancel)?;
                Some(self.engine.end(tenant, Ending::Cancelled).1)
            });
            (entered.address, replaced)
        });
        tracked.inspect_err(|_| self.engine.my_home().events.rejected.add(1))
    }

    /// Gives a value a place, and its key an entry.
    fn enter(
        &self,
        key: K,
        value: V,
        timeout: Duration,
        replace: bool,
    ) -> Result<Entered, Rejected<V>> {
        if self.engine.is_closed() {
            return Err(Rejected::ShutDown(value));
        }
        let mut value = Some(value);
        let mut entered = None;
        let tried = self.engine.guarded(|| {
            let span = self.engine.span(timeout);
            let copy = key.clone();
            drop(self.places.place(key, |occupant| {
                let value = value.take()?;
                // (One that has just ended is about to leave the map.)
                let occupant = occupant.filter(|other| self.engine.is_parked(**other));
                if occupant.is_some() && !replace {
                    entered = Some(Err(Rejected::Duplicate(value)));
                    return None;
                }
                let (address, result) = match self.engine.keep((copy, value), span) {
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
            // A panic of a key, before there was a place or (when the map grew) after.
            (Err(_), Some(Ok(entered)), _) => {
                match self.engine.begin(entered.address, Mark::Cancel) {
                    Some(tenant) => Err(Rejected::Panicked(
                        self.engine.end(tenant, Ending::Aborted).1,
                    )),
                    // It has just expired, as it was going to.
                    None => Ok(entered),
                }
            }
            (_, Some(Err(rejected)), _) => Err(rejected),
            (_, None, Some(value)) => Err(Rejected::Panicked(value)),
            (_, None, None) => unreachable!("a value is taken only to be entered"),
        }
    }

    /// Ends the value of `key`.
    pub(super) fn complete<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let address = self.places.remove_if(key, |_| true)?;
        let tenant = self.engine.begin(address, Mark::Cancel)?;
        Some(self.engine.end(tenant, Ending::Forced).1)
    }

    /// Ends one value, whatever else its key may have got since.
    pub(super) fn withdraw(&self, key: &K, address: Address) -> Option<V> {
        let tenant = self.engine.begin(address, Mark::Cancel)?;
        let (_, value) = self.engine.end(tenant, Ending::Cancelled);
        self.remove(key, address);
        Some(value)
    }

    pub(super) fn touch<Q>(&self, key: &Q, timeout: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.find(key).is_some_and(|address| {
            let rescheduled = self.engine.reschedule(address, timeout);
            matches!(rescheduled, Rescheduled::Done(_))
        })
    }

    /// Where the value for `key` is.
    pub(super) fn find<Q>(&self, key: &Q) -> Option<Address>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.places.read(key, |&address| address)
    }

    /// Takes the entry of an ended value out of the map, if its key has no other by now.
    fn remove(&self, key: &K, address: Address) {
        // (`Hash` and `Eq` may panic: then the entry stays until the key is tracked again.)
        let _ = self.engine.guarded(|| {
            self.places.remove_if(key, |place| *place == address);
        });
    }

    pub(super) fn take_remains(&self) -> Vec<(K, V)> {
        std::mem::take(&mut *self.remains.lock())
    }
}

impl<K: TrackedKey, V: Send + 'static, S: KeyHasher> Facility for Core<K, V, S> {
    type Payload = (K, V);
    type Scheme = Wheel;
    type Ended = (K, V);
    type Trace = ();

    #[inline(always)]
    fn engine(&self) -> &Engine<(K, V), Wheel> {
        &self.engine
    }

    fn gone(&self) -> &Heap<()> {
        &self.gone
    }

    /// (The key leaves the map at once: it goes on to the callback.)
    fn expire(self: &Arc<Self>, tenant: Tenant<'_, K, V>, ready: &mut Ready<(K, V)>) -> Gone<()> {
        let address = tenant.address();
        let ((key, value), vacated) = self.engine.vacate(tenant);
        self.remove(&key, address);
        ready.push((key, value));
        Gone {
            vacated,
            expired: true,
            watches: 0,
            trace: (),
        }
    }

    fn clear(&self, _: &[Gone<()>]) {}

    fn abandon(self: &Arc<Self>, tenant: Tenant<'_, K, V>, _: &mut Ready<(K, V)>) {
        let address = tenant.address();
        let (key, value) = self.engine.end(tenant, Ending::ShutDown);
        self.remove(&key, address);
        self.remains.lock().push((key, value));
    }

    fn has_expired(_: &(K, V)) -> bool {
        true
    }

    /// The one place that calls the callback.
    fn complete(&self, (key, value): (K, V)) {
        // A panic is counted, and ends this value only.
        let _ = self.engine.guarded(|| (self.on_expiry)(key, value));
    }
}
