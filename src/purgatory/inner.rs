//! The state that all handles of one purgatory share.

use super::deferred::{Deferred, DeferredChecks};
use super::keys::Keys;
use super::recycled_weak::RecycledWeak;
use crate::address::Address;
use crate::cell::slab::EndedSlot;
use crate::engine::Engine;
use crate::engine::handler::ReclaimQueue;
use crate::hash::KeyHasher;
use crate::observe::OperationSpan;
use crate::operation::DelayedOperation;
use crate::scheme::HierarchicalWheel;
use crate::sync::{Arc, Mutex};
use crate::trampoline::drop_user_values;
use crate::watch::WatchMap;
use crate::watch::bound::Bound;
use std::collections::HashMap;

/// The timer scheme of a purgatory.
pub(crate) type Wheel = HierarchicalWheel;

/// The contents of a slot.
pub(crate) struct Parked<Op: DelayedOperation> {
    pub(crate) op: Op,
    pub(crate) keys: Keys<Op::Key>,
    pub(crate) span: OperationSpan,
}

/// What an operation that has ended leaves behind: its slot, its timer and its watch entries.
pub(crate) struct Stale<K> {
    pub(crate) slot: EndedSlot,
    pub(crate) keys: Keys<K>,
}

/// The settings of a purgatory alone, but for its hasher.
pub(crate) struct Own {
    pub(crate) map_shards: usize,
    pub(crate) max_watchers: usize,
}

pub(crate) struct Inner<Op: DelayedOperation, S> {
    pub(crate) engine: Engine<Parked<Op>, Wheel>,
    /// For handles. Keeps this from being dropped until the shutdown cuts it.
    pub(crate) weak: RecycledWeak,
    pub(crate) watch: WatchMap<Op::Key, S>,
    /// Checks that wait until the timer is driven.
    pub(crate) deferred: DeferredChecks<Op::Key, S>,
    /// For operations that other threads hold.
    pub(crate) causes: ForceCauses<Op>,
    pub(crate) unreclaimed: ReclaimQueue<Stale<Op::Key>>,
    pub(crate) hasher: S,
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Exists until it is shut down.
    pub(crate) fn new(engine: Engine<Parked<Op>, Wheel>, hasher: S, own: &Own) -> Arc<Self> {
        let map_shards = own.map_shards.clamp(2, 1 << 16).next_power_of_two();
        let weak = RecycledWeak::take();
        let inner = Arc::new(Self {
            weak,
            engine,
            watch: WatchMap::new(hasher.clone(), map_shards, own.max_watchers),
            deferred: DeferredChecks::new(hasher.clone()),
            causes: ForceCauses(Mutex::default()),
            unreclaimed: ReclaimQueue::new(),
            hasher,
        });
        weak.fill(inner.clone());
        inner
    }

    /// Tells this purgatory from all others that exist.
    pub(crate) fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Leaves a check to the thread that drives the timer.
    pub(crate) fn defer(&self, check: Deferred<Op::Key>, bound: Bound) {
        if self.deferred.add(check, bound) {
            self.engine.announce_work(0);
        }
    }
}

/// Changes an operation that is about to be forced to complete: sets the error that it answers with, for instance.
pub(crate) type ForceCause<Op> = Arc<dyn Fn(&mut Op) + Send + Sync>;

/// Causes that wait for the thread that holds an operation, by the address of the operation.
///
/// A call that forces operations to complete with a cause hands the cause to each before it ends. An operation that
/// another thread holds is ended by that thread, which finds the cause here.
///
/// INVARIANT: a cause is left before the mark. A holder that finds the mark therefore finds the cause.
pub(crate) struct ForceCauses<Op>(Mutex<HashMap<Address, ForceCause<Op>>>);

impl<Op: 'static> ForceCauses<Op> {
    /// For an operation that will be marked next.
    pub(crate) fn add(&self, address: Address, cause: &ForceCause<Op>) {
        // A cause that stood there is dropped without the lock: its destructor is the user's.
        let _before = self.0.lock().insert(address, cause.clone());
    }

    pub(crate) fn take(&self, address: Address) -> Option<ForceCause<Op>> {
        self.0.lock().remove(&address)
    }

    /// Forgets the causes of operations that have ended otherwise.
    pub(crate) fn forget(&self, is_parked: impl Fn(Address) -> bool) {
        let mut causes = self.0.lock();
        let all = std::mem::take(&mut *causes).into_iter();
        let (parked, ended) = all.partition::<HashMap<_, _>, _>(|(at, _)| is_parked(*at));
        *causes = parked;
        drop(causes);
        drop_user_values(ended.into_values());
    }
}
