//! The state that all handles of one timer share.

use crate::address::Address;
use crate::cell::slab::{EndedSlot, Held};
use crate::cell::state::Mark;
use crate::engine::Engine;
use crate::engine::handler::{EndedPayload, Handler, ReclaimQueue};
use crate::engine::shutdown::shut_down;
use crate::error::{RejectReason, Rejected};
use crate::scheme::{Scheme, Tick};
use crate::stats::{Ending, Statistic};
use crate::sync::Arc;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The user's value, `V`, is a payload with data of `store`.
pub(crate) struct Inner<T, W, X = (), V = T> {
    pub(crate) engine: Engine<T, W>,
    /// Tells the ids of this timer from those of others.
    pub(super) number: u64,
    /// Data beside the payloads.
    pub(crate) store: X,
    on_end: Box<dyn Fn(V, Ending) + Send + Sync>,
    unreclaimed: ReclaimQueue<EndedSlot>,
    /// Payloads that had not expired at the shutdown.
    remains: Mutex<Vec<V>>,
}

/// Data beside the payloads `T`.
pub(crate) trait ValueStore<T, V>: Send + Sync + 'static {
    /// Whether the payloads that have not expired at the shutdown are returned to its caller. Else `on_end` is told.
    const RETURNS_REMAINS: bool = true;

    /// Makes the user's value of a payload that the calling thread has ended. Runs no code of the user's.
    fn take_value(&self, address: Address, payload: T) -> V;

    /// Gives memory back that is not needed now.
    fn shrink(&self) {}
}

impl<T> ValueStore<T, T> for () {
    fn take_value(&self, _: Address, payload: T) -> T {
        payload
    }
}

impl<T: Send + 'static, W: Scheme, X: ValueStore<T, V>, V: Send + 'static> Inner<T, W, X, V> {
    /// `on_end` runs the user's code for a payload that has expired, and drops one that the shutdown has left. It may
    /// panic.
    pub(crate) fn new(
        engine: Engine<T, W>,
        store: X,
        on_end: impl Fn(V, Ending) + Send + Sync + 'static,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            engine,
            // ORDERING: Relaxed: a number guards no memory.
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            store,
            on_end: Box::new(on_end),
            unreclaimed: ReclaimQueue::new(),
            remains: Mutex::new(Vec::new()),
        })
    }

    /// Starts a timer, and announces it.
    pub(crate) fn start(&self, timeout: Duration, payload: T) -> Result<Address, Rejected<T>> {
        let engine = &self.engine;
        let started = match engine.guarded(|| engine.timing(None, timeout)) {
            _ if engine.phase.is_closed() => Err(Rejected::new(RejectReason::ShutDown, payload)),
            Err(_) => Err(Rejected::new(RejectReason::Panicked, payload)),
            Ok(timing) => engine.admit_released(payload, timing),
        };
        let started = started.inspect_err(|_| engine.count(Statistic::Rejected, 1));
        let (address, earlier) = started?;
        engine.announce(earlier);
        Ok(address)
    }

    /// Ends a timer. `None` if it has ended, or is expiring.
    pub(crate) fn withdraw(&self, address: Address, ending: Ending) -> Option<V> {
        let held = self.engine.claim_or_mark(address, Mark::Cancel)?;
        let payload = self.engine.withdraw(held, ending);
        Some(self.store.take_value(address, payload))
    }

    /// Shuts it down. The first call returns the payloads that had not expired.
    pub(crate) fn shut_down(self: &Arc<Self>) -> Vec<V> {
        // A second caller must not take what the first one is still collecting.
        match shut_down(self) {
            true => std::mem::take(&mut *self.remains.lock()),
            false => Vec::new(),
        }
    }
}

impl<T: Send + 'static, W: Scheme, X: ValueStore<T, V>, V: Send + 'static> Handler
    for Inner<T, W, X, V>
{
    type Payload = T;
    type Scheme = W;
    type Value = V;
    type Unreclaimed = EndedSlot;

    fn engine(&self) -> &Engine<T, W> {
        &self.engine
    }

    fn reclaim_queue(&self) -> &ReclaimQueue<EndedSlot> {
        &self.unreclaimed
    }

    fn expire(
        self: &Arc<Self>,
        held: Held<'_, T>,
        _now: Tick,
    ) -> Option<(EndedPayload<V>, EndedSlot)> {
        let (payload, spent) = held.end();
        let value = self.store.take_value(spent.address(), payload);
        let ended = EndedPayload::new(value, Ending::Expired);
        Some((ended, spent.detach()))
    }

    fn reclaim(&self, batch: Vec<EndedSlot>) {
        self.engine
            .free_counted(batch.into_iter().map(|slot| (slot, 0)));
    }

    fn on_shutdown(self: &Arc<Self>, held: Held<'_, T>) -> Option<EndedPayload<V>> {
        let address = held.address();
        let payload = self.engine.withdraw(held, Ending::ShutDown);
        let value = self.store.take_value(address, payload);
        if X::RETURNS_REMAINS {
            self.remains.lock().push(value);
            return None;
        }
        Some(EndedPayload {
            has_permit: false,
            ..EndedPayload::new(value, Ending::ShutDown)
        })
    }

    fn on_idle(&self) {
        self.store.shrink();
    }

    fn on_dropped(&self) {
        let remains = std::mem::take(&mut *self.remains.lock());
        for value in remains {
            // Of destructors that panic together the process would die.
            let discard = || (self.on_end)(value, Ending::ShutDown);
            let _ = self.engine.guarded(discard);
        }
    }

    fn complete(&self, value: V, ending: Ending) {
        (self.on_end)(value, ending);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Timer;
    use crate::time::ManualClock;
    use crate::time::ticks::NEVER;

    #[test]
    fn g07_a_caller_that_asks_leaves_the_alarm_of_a_reaper_alone() {
        let builder = Timer::<()>::builder("g07").clock(ManualClock::new());
        let timer = builder.build(drop).expect("the system has threads left");
        let alarm = &timer.shared.inner.engine.alarm;
        // As if a timer had been started and stopped. The reaper sleeps, and is woken when it is due.
        assert!(alarm.set(1));
        assert_eq!(timer.next_deadline(), None);
        assert_eq!(timer.advance(), 0);
        assert_eq!(alarm.time(), 1);
        let by_hand = Timer::<()>::builder("g07").reaper(crate::reaper::Reaper::Manual);
        let by_hand = by_hand.build(drop).expect("there are no threads to refuse");
        let alarm = &by_hand.shared.inner.engine.alarm;
        assert!(alarm.set(1));
        assert_eq!(by_hand.next_deadline(), None);
        assert_eq!(alarm.time(), NEVER);
    }
}
