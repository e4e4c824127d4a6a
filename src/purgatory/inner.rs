//! The state that all clones of one purgatory share.

use super::deferred::{CheckTarget, DeferredChecks};
use super::early::EarlyTimers;
use super::keys::Keys;
use super::recycled_weak::RecycledWeak;
use crate::callbacks::trampoline::{drop_user_value, drop_user_values};
use crate::cell::address::Address;
use crate::cell::slab::EndedSlot;
use crate::engine::Engine;
use crate::engine::handler::ReclaimQueue;
use crate::hash::KeyHasher;
use crate::observe::OperationSpan;
use crate::operation::DelayedOperation;
use crate::scheme::HierarchicalWheel;
use crate::sync::{Arc, Mutex};
use crate::watch::WatchMap;
use crate::watch::bound::CheckBound;
use std::collections::HashMap;

/// The timer scheme of a purgatory.
pub(crate) type Wheel = HierarchicalWheel;

/// The contents of a slot.
pub(crate) struct Parked<Op: DelayedOperation> {
    pub(crate) op: Op,
    pub(crate) keys: Keys<Op::Key>,
    pub(crate) span: OperationSpan,
}

/// What an operation that has ended leaves behind: its slot, its timer and its watches.
pub(crate) struct Unreclaimed<K> {
    pub(crate) slot: EndedSlot,
    pub(crate) keys: Keys<K>,
}

/// The settings that only a purgatory has, without its hasher.
pub(crate) struct Own {
    pub(crate) map_shards: usize,
    pub(crate) max_watchers: usize,
}

pub(crate) struct Inner<Op: DelayedOperation, S> {
    pub(crate) engine: Engine<Parked<Op>, Wheel>,
    /// The weak reference that every handle copies. It finds this purgatory without a reference count. An anchor behind
    /// it keeps the purgatory alive until the shutdown.
    pub(crate) weak: RecycledWeak,
    pub(crate) watch: WatchMap<Op::Key, S>,
    /// The timers of listeners with rechecks, which may fire before the deadline.
    pub(crate) early: EarlyTimers,
    /// Checks that wait until the timer is driven.
    pub(crate) deferred: DeferredChecks<Op::Key, S>,
    /// Changes that forcing calls have left for operations that other threads hold.
    pub(crate) changes: ForceChanges<Op>,
    pub(crate) unreclaimed: ReclaimQueue<Unreclaimed<Op::Key>>,
    pub(crate) hasher: S,
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// A purgatory that exists until it is shut down.
    pub(crate) fn new(engine: Engine<Parked<Op>, Wheel>, hasher: S, own: &Own) -> Arc<Self> {
        let map_shards = own.map_shards.clamp(2, 1 << 16).next_power_of_two();
        let weak = RecycledWeak::take();
        let inner = Arc::new(Self {
            weak,
            engine,
            watch: WatchMap::new(hasher.clone(), map_shards, own.max_watchers),
            deferred: DeferredChecks::new(hasher.clone()),
            changes: ForceChanges(Mutex::default()),
            early: EarlyTimers::default(),
            unreclaimed: ReclaimQueue::new(),
            hasher,
        });
        weak.fill(inner.clone());
        inner
    }

    /// A number that no other existing purgatory has.
    pub(crate) fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Leaves a check to the thread that drives the timer.
    pub(crate) fn defer(&self, check: CheckTarget<Op::Key>, bound: CheckBound) {
        if self.deferred.add(check, bound) {
            // Tick 0 has passed: the thread makes the check as soon as it wakes.
            self.engine.announce_work(0);
        }
    }
}

/// Changes an operation that is about to be forced to complete, for instance by setting the error of its answer.
pub(crate) type ForceChange<Op> = Arc<dyn Fn(&mut Op) + Send + Sync>;

/// Changes that holders apply to their operations, by the address of the operation.
///
/// A forcing call with a change applies the change to each operation, and then ends the operation. If another thread
/// holds the operation, that thread takes the change out of here, applies it, and ends the operation.
///
/// INVARIANT: a change is added before [`Mark::Force`](crate::cell::state::Mark::Force) is set. So a holder that finds
/// the mark also finds the change, or a later change that has replaced it.
pub(crate) struct ForceChanges<Op>(Mutex<HashMap<Address, ForceChange<Op>>>);

impl<Op: 'static> ForceChanges<Op> {
    /// Adds a change for an operation. After this call, the caller sets the mark.
    pub(crate) fn add(&self, address: Address, change: &ForceChange<Op>) {
        let before = self.0.lock().insert(address, change.clone());
        // Drop outside the lock: the destructor of a change is user code.
        drop_user_value(before);
    }

    pub(crate) fn take(&self, address: Address) -> Option<ForceChange<Op>> {
        self.0.lock().remove(&address)
    }

    /// Removes the changes whose operations have ended before the changes were applied.
    pub(crate) fn forget(&self, is_parked: impl Fn(Address) -> bool) {
        let mut changes = self.0.lock();
        let all = std::mem::take(&mut *changes).into_iter();
        let (parked, ended) = all.partition::<HashMap<_, _>, _>(|(at, _)| is_parked(*at));
        *changes = parked;
        drop(changes);
        drop_user_values(ended.into_values());
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    /// One call adds a change while another call removes changes.
    #[test]
    fn g18_a_change_that_comes_while_others_are_forgotten_is_kept() {
        let changes = ForceChanges::<()>(Mutex::default());
        let change: ForceChange<()> = Arc::new(|()| {});
        let [ended, later] = [1, 2].map(|index| Address::new(0, index, 0));
        changes.add(ended, &change);
        thread::scope(|scope| {
            let (added, is_added) = channel();
            let (add, forget) = channel();
            let (changes, change) = (&changes, &change);
            scope.spawn(move || {
                forget.recv().expect("it is about to forget");
                changes.add(later, change);
                // The other call may add its change now.
                let _ = added.send(());
            });
            changes.forget(|_| {
                add.send(()).expect("it waits");
                // Enough time for the other call to add its change, if it is not blocked.
                let _ = is_added.recv_timeout(Duration::from_millis(50));
                false
            });
        });
        assert!(changes.take(ended).is_none() && changes.take(later).is_some());
    }
}
