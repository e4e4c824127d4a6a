//! What the faces of one purgatory share.

use super::Parked;
use super::tether::Tether;
use crate::engine::drive::Facility;
use crate::engine::{self, Address, Engine};
use crate::operation::{DelayedOperation, KeyHasher};
use crate::scheme::HierarchicalWheel;
use crate::sync::{Arc, Queue};
use crate::watch::{WatchMap, Watcher};

/// How a purgatory keeps its deadlines.
pub(crate) type Wheel = HierarchicalWheel;

/// A parked operation in the hands of this thread.
pub(crate) type Tenant<'a, Op> = engine::Tenant<'a, Parked<Op>, Wheel>;

pub(crate) struct Core<Op: DelayedOperation, S> {
    pub(crate) engine: Engine<Parked<Op>, Wheel>,
    /// One for each home, for the handles of operations parked there.
    pub(crate) tethers: Box<[Arc<Tether<Op, S>>]>,
    pub(crate) watch: WatchMap<Op::Key, S>,
    /// Checks that are put off until the timer is driven.
    pub(crate) later: Queue<Later<Op::Key>>,
    pub(crate) hasher: S,
}

/// A check that is put off.
pub(crate) enum Later<K> {
    /// Of all operations on a key.
    Key(K),
    /// Of one operation, whose holder was asked to look again too often.
    Operation(Address),
}

/// An address as it stands in the watch lists.
#[inline(always)]
pub(crate) fn watcher_of(address: Address) -> Watcher {
    Watcher {
        id: address.id(),
        generation: address.at.generation,
    }
}

#[inline(always)]
pub(crate) fn address_of(watcher: Watcher) -> Address {
    Address::new(watcher.id, watcher.generation)
}

impl<Op: DelayedOperation, S: KeyHasher> Core<Op, S> {
    pub(crate) fn new(engine: Engine<Parked<Op>, Wheel>, hasher: S) -> Arc<Self> {
        let shards = (engine::cores() * 16).next_power_of_two().clamp(64, 1024);
        Arc::new_cyclic(|core| Self {
            tethers: (0..engine.homes.len())
                .map(|_| Arc::new(Tether::new(core.clone())))
                .collect(),
            engine,
            watch: WatchMap::new(hasher.clone(), shards),
            later: Queue::new(),
            hasher,
        })
    }

    #[inline(always)]
    pub(crate) fn is_live(&self, watcher: Watcher) -> bool {
        self.engine.is_parked(address_of(watcher))
    }

    /// Has a check done by whoever drives the timer. Takes no lock and runs no user code.
    pub(crate) fn put_off(&self, check: Later<Op::Key>) {
        if !self.engine.is_closed() {
            self.later.push(check);
            self.engine.announce(Some(0));
        }
        // A shutdown meanwhile may not have seen it.
        if self.engine.is_closed() {
            self.give_up();
        }
    }
}
