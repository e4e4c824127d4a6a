//! What the faces of one purgatory share.

use super::Parked;
use super::expire::Trace;
use super::keys::{Keys, WatchOn};
use super::tether::Tether;
use crate::address::Address;
use crate::engine::drive::Facility;
use crate::engine::pass::Heap;
use crate::engine::{self, Engine};
use crate::operation::{DelayedOperation, KeyHasher};
use crate::scheme::HierarchicalWheel;
use crate::sync::{Arc, Queue, Weak};
use crate::watch::WatchMap;

/// How a purgatory keeps its deadlines.
pub(crate) type Wheel = HierarchicalWheel;

/// A parked operation in the hands of this thread.
pub(crate) type Tenant<'a, Op> = engine::Tenant<'a, Parked<Op>, Wheel>;

pub(crate) struct Core<Op: DelayedOperation, S> {
    pub(crate) engine: Engine<Parked<Op>, Wheel>,
    /// For handles.
    pub(crate) tether: Tether,
    pub(crate) watch: WatchMap<Op::Key, S>,
    /// Checks that are put off until the timer is driven.
    pub(crate) later: Queue<Later<Op::Key>>,
    pub(crate) gone: Heap<Trace<Op::Key>>,
    pub(crate) hasher: S,
}

/// A check that is put off.
pub(crate) enum Later<K> {
    /// Of all operations on a key.
    Key(K),
    /// Of one operation, whose holder was asked to look again too often.
    Operation(Address),
}

impl<Op: DelayedOperation, S: KeyHasher> Core<Op, S> {
    pub(crate) fn new(engine: Engine<Parked<Op>, Wheel>, hasher: S) -> Arc<Self> {
        let shards = (engine::cores() * 16).next_power_of_two().clamp(64, 1024);
        Arc::new_cyclic(|core: &Weak<Self>| Self {
            tether: Tether::new(core.clone()),
            engine,
            watch: WatchMap::new(hasher.clone(), shards),
            later: Queue::new(),
            gone: Heap::new(),
            hasher,
        })
    }

    /// What `watches` are on. `None` if there are none.
    #[inline(always)]
    pub(crate) fn keys_of<'a>(
        &self,
        watches: impl IntoIterator<Item = WatchOn<'a, Op, S>>,
    ) -> Option<Keys<Op::Key>> {
        Keys::collect_watches(watches, |key| key.number_in(self), &self.hasher)
    }

    #[inline(always)]
    pub(crate) fn is_live(&self, watcher: Address) -> bool {
        self.engine.is_parked(watcher)
    }

    /// Has a check done by whoever drives the timer. Takes no lock, and runs no user code but a reactor's waker (after
    /// a shutdown, the destructors of keys).
    pub(crate) fn put_off(&self, check: Later<Op::Key>) {
        if !self.engine.is_closed() {
            self.later.push(check);
            self.engine.announce(Some(0));
        }
        // A shutdown meanwhile may not have seen it.
        if self.engine.is_closed_meanwhile() {
            self.give_up();
        }
    }
}

impl<Op: DelayedOperation, S> Drop for Core<Op, S> {
    fn drop(&mut self) {
        self.tether.cut();
    }
}
