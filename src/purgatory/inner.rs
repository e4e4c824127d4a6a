//! The state that all clones of one purgatory share.

use super::deferred::{CheckTarget, DeferredChecks};
use super::early::EarlyTimers;
use super::keys::Keys;
use super::recycled_weak::RecycledWeak;
#[cfg(debug_assertions)]
use super::stuck::NamesNumber;
use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::drop_user_value;
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

/// The timer scheme of a purgatory: the data structure that finds the timers that are due.
pub(crate) type Wheel = HierarchicalWheel;

/// The contents of a slot: an operation, the keys that it watches, and the data that the report of its ending needs.
pub(crate) struct Parked<Op: DelayedOperation> {
    pub(crate) op: Op,
    pub(crate) keys: Keys<Op::Key>,
    pub(crate) span: OperationSpan,
}

/// What is left of an expired operation until its timer and its watches (its entries in the watch lists of its keys)
/// are removed. The slot leads to the timer, and the keys lead to the watches.
pub(crate) struct Unreclaimed<K> {
    pub(crate) slot: EndedSlot,
    pub(crate) keys: Keys<K>,
}

/// The settings of a [`Purgatory`](crate::Purgatory) that a [`Timer`](crate::Timer) does not have. The hasher of the
/// keys is such a setting too, but is kept beside this struct.
pub(crate) struct Own {
    pub(crate) map_shards: usize,
    pub(crate) max_watchers: usize,
}

pub(crate) struct Inner<Op: DelayedOperation, S> {
    pub(crate) engine: Engine<Parked<Op>, Wheel>,
    /// The weak reference that every handle copies, without a reference count. It leads to an anchor: a place in memory
    /// that is never freed. Until the shutdown the anchor has an `Arc` of this purgatory, and so keeps it alive.
    pub(crate) weak: RecycledWeak,
    pub(crate) watch: WatchMap<Op::Key, S>,
    /// The early timers: those that may fire before the deadlines of their operations, because each wakes a listener
    /// after an interval, without a check.
    pub(crate) early: EarlyTimers,
    /// The deferred checks: checks that wait for the thread that drives the timer.
    pub(crate) deferred: DeferredChecks<Op::Key, S>,
    /// Closures that were passed to `force_key`. Each changes an operation just before it is forced to complete, and
    /// waits here for the thread that holds the operation.
    pub(crate) changes: ForceChanges<Op>,
    pub(crate) unreclaimed: ReclaimQueue<Unreclaimed<Op::Key>>,
    pub(crate) hasher: S,
    /// The number of the names in reports of calls that do not return.
    #[cfg(debug_assertions)]
    pub(super) names: NamesNumber,
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Makes a purgatory. It stays alive until it is shut down, because `weak.fill` below stores an `Arc` of it in
    /// memory that is never freed.
    pub(crate) fn new(engine: Engine<Parked<Op>, Wheel>, hasher: S, own: &Own) -> Arc<Self> {
        let map_shards = own.map_shards.clamp(2, 1 << 16).next_power_of_two();
        let weak = RecycledWeak::take();
        let inner = Arc::new(Self {
            #[cfg(debug_assertions)]
            names: NamesNumber::register::<Op, Op::Key>(&engine.name),
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

    /// A number that no other existing purgatory has: the memory address of this struct.
    pub(crate) fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Leaves a check to the thread that drives the timer, and wakes that thread. Does nothing after the shutdown.
    pub(crate) fn defer(&self, check: CheckTarget<Op::Key>, bound: CheckBound) {
        if self.deferred.add(check, bound) {
            // The 0 is the tick at which the check is due. Tick 0 has passed, so the thread wakes at once, and makes
            // the check.
            self.engine.announce_work(0);
        }
    }
}

/// A closure that changes an operation just before it is forced to complete, for instance by setting the error of its
/// answer.
pub(crate) type ForceChange<Op> = Arc<dyn Fn(&mut Op) + Send + Sync>;

/// The changes that wait to be applied, each under the address of its operation.
///
/// A forcing call with a change adds the change here before it claims the operation (takes exclusive access). When it
/// has claimed the operation, it takes the change out, applies it, and ends the operation. If another thread holds the
/// operation, the call sets [`Mark::Force`](crate::cell::state::Mark::Force) in the operation's state word, and the
/// holder takes the change, applies it, and ends the operation.
///
/// INVARIANT: a change is added before `Mark::Force` is set. So a holder that finds the mark also finds the change, or
/// a later change that has replaced it. In the other order, the holder could end the operation without its change.
pub(crate) struct ForceChanges<Op>(Mutex<HashMap<Address, ForceChange<Op>>>);

impl<Op: 'static> ForceChanges<Op> {
    /// Adds a change for the operation at `address`: a closure that runs on the operation just before it is forced to
    /// complete. Drops an earlier change for the same operation. The caller claims or marks the operation only after
    /// this call.
    pub(crate) fn add(&self, address: Address, change: &ForceChange<Op>) {
        let before = self.0.lock().insert(address, change.clone());
        // Drop the earlier change outside the lock: its destructor is user code, and may call the library.
        drop_user_value(before);
    }

    pub(crate) fn take(&self, address: Address) -> Option<ForceChange<Op>> {
        self.0.lock().remove(&address)
    }

    /// Drops each change that was not applied although its operation has ended. A change is a closure that a forcing
    /// call has left for an operation that another thread holds. `is_parked` says whether the operation at an address
    /// has not ended.
    pub(crate) fn forget(&self, is_parked: impl Fn(Address) -> bool) {
        let mut changes = self.0.lock();
        let all = std::mem::take(&mut *changes).into_iter();
        let (parked, ended) = all.partition::<HashMap<_, _>, _>(|(at, _)| is_parked(*at));
        *changes = parked;
        drop(changes);
        Panics::for_each(ended.into_values(), drop_user_value);
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use crate::Waits;
    use crate::sync::SLICE;
    use crate::threads::Reaper;
    use crate::time::ManualClock;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    /// A change that one thread adds is not lost, even if another thread is dropping the changes of ended operations at
    /// that time (`forget`).
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
                // Ignore the error: the receiver may be gone, because the other thread waits only for a short time.
                let _ = added.send(());
            });
            changes.forget(|_| {
                add.send(()).expect("it waits");
                // If `forget` did not hold the lock, the other thread would add its change now, and the change would be
                // lost. `forget` holds the lock, so the other thread is blocked, and this wait times out.
                let _ = is_added.recv_timeout(Duration::from_millis(50));
                false
            });
        });
        assert!(changes.take(ended).is_none() && changes.take(later).is_some());
    }

    /// Many operations on one key have expired at once, and are still in the list of the key when a call forces the key
    /// with a change. The call adds a change for the last operation, which is still parked, and for none of the others.
    #[test]
    fn g20_a_forced_end_keeps_no_change_for_operations_that_have_ended() {
        const STORM: usize = 2 * SLICE;
        const SECOND: Duration = Duration::from_secs(1);
        let clock = ManualClock::new();
        let waits = Waits::<u64>::builder("g20").clock(clock.clone());
        let waits = waits.reaper(Reaper::Manual).build();
        let waits = waits.expect("no threads to refuse");
        let (tell, found) = channel();
        let mut first = Some((waits.downgrade(), tell));
        for _ in 0..STORM {
            let first = first.take();
            let force = move |_| {
                let Some((waits, tell)) = first else { return };
                let waits = waits.upgrade().expect("it drives the timer");
                let inner = waits.shared.inner.clone();
                let listed = waits.watchers(&1);
                let forced = waits.force_complete_for_key_with(&1, move |_| {
                    let found = (listed, inner.changes.0.lock().len());
                    tell.send(found).expect("the test waits");
                });
                assert_eq!(forced, 1);
            };
            waits.wait_then([1], SECOND, || None::<()>, force);
        }
        waits.wait_then([1], None, || None::<()>, |_| ());
        clock.advance(SECOND);
        assert_eq!(waits.advance(), STORM);
        // The change of the last operation was taken out before it ran.
        assert_eq!(found.try_recv(), Ok((STORM + 1, 0)));
    }
}
