//! The state that all handles of one timer share.

use crate::address::Address;
use crate::cell::state::Mark;
use crate::engine::handler::Handler;
use crate::engine::reclaim::{ReclaimQueue, Unreclaimed};
use crate::engine::{Claim, Engine};
use crate::error::{RejectReason, Rejected};
use crate::scheme::Scheme;
use crate::stats::Ending;
use crate::sync::Arc;
use crate::trampoline::drop_user_value;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Called for each payload that has expired, with the address that it had.
type OnExpiry<T, X> = Box<dyn Fn(&X, Address, T) + Send + Sync>;

pub(crate) struct Inner<T, W, X = ()> {
    pub(crate) engine: Engine<T, W>,
    /// Tells the ids of this timer from those of others.
    pub(super) number: u64,
    on_expiry: OnExpiry<T, X>,
    /// Data for the callback beside the payloads.
    pub(crate) extra: X,
    unreclaimed: ReclaimQueue<()>,
    /// Payloads that had not expired at the shutdown, with the addresses that they had.
    remains: Mutex<Vec<(Address, T)>>,
}

/// Data for the callback beside the payloads `T`.
pub(crate) trait Extra<T>: Send + Sync + 'static {
    /// Drops a payload that no caller has asked for, and what belongs to it. May panic.
    fn discard(&self, address: Address, payload: T);
}

impl<T: 'static> Extra<T> for () {
    fn discard(&self, _: Address, payload: T) {
        drop_user_value(payload);
    }
}

/// A payload that has expired.
pub(crate) struct Expired<T> {
    address: Address,
    payload: T,
}

impl<T: Send + 'static, W: Scheme, X: Extra<T>> Inner<T, W, X> {
    pub(crate) fn new(
        engine: Engine<T, W>,
        extra: X,
        on_expiry: impl Fn(&X, Address, T) + Send + Sync + 'static,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            engine,
            // ORDERING: Relaxed: a number guards no memory.
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            on_expiry: Box::new(on_expiry),
            extra,
            unreclaimed: ReclaimQueue::new(),
            remains: Mutex::new(Vec::new()),
        })
    }

    /// Starts a timer, and announces it.
    pub(crate) fn start(&self, timeout: Duration, payload: T) -> Result<Address, Rejected<T>> {
        let started = match self.engine.guarded(|| self.engine.timing(timeout)) {
            _ if self.engine.is_closed() => Err(Rejected::new(RejectReason::ShutDown, payload)),
            Err(_) => Err(Rejected::new(RejectReason::Panicked, payload)),
            Ok(timing) => self.engine.admit_released(payload, timing),
        };
        match started {
            Ok((address, earlier)) => {
                self.engine.announce(earlier);
                Ok(address)
            }
            Err(rejected) => {
                self.count_rejected();
                Err(rejected)
            }
        }
    }

    pub(crate) fn count_rejected(&self) {
        self.engine.count_event(|events| &events.rejected, 1);
    }

    /// Ends a timer. `None` if it has ended, or is expiring.
    pub(crate) fn withdraw(&self, address: Address, ending: Ending) -> Option<T> {
        let claim = self.engine.claim(address, Mark::Cancel)?;
        Some(self.engine.withdraw(claim, ending))
    }

    /// Payloads that had not expired at the shutdown; empty at the second call.
    pub(crate) fn take_remains(&self) -> Vec<(Address, T)> {
        std::mem::take(&mut *self.remains.lock())
    }
}

impl<T: Send + 'static, W: Scheme, X: Extra<T>> Handler for Inner<T, W, X> {
    type Payload = T;
    type Scheme = W;
    type Ended = Expired<T>;
    type Stale = ();

    #[inline(always)]
    fn engine(&self) -> &Engine<T, W> {
        &self.engine
    }

    fn reclaim_queue(&self) -> &ReclaimQueue<()> {
        &self.unreclaimed
    }

    fn expire(self: &Arc<Self>, claim: Claim<'_, T, W>) -> (Expired<T>, Unreclaimed<()>) {
        let address = claim.address();
        let (payload, taken) = self.engine.take(claim);
        let unreclaimed = Unreclaimed {
            taken,
            watches: 0,
            stale: (),
        };
        (Expired { address, payload }, unreclaimed)
    }

    fn on_shutdown(self: &Arc<Self>, claim: Claim<'_, T, W>) -> Option<Expired<T>> {
        let address = claim.address();
        let payload = self.engine.withdraw(claim, Ending::ShutDown);
        self.remains.lock().push((address, payload));
        None
    }

    fn discard(&self) {
        for (address, payload) in self.take_remains() {
            // Of destructors that panic together the process would die.
            let _ = self.engine.guarded(|| self.extra.discard(address, payload));
        }
    }

    fn has_expired(_: &Expired<T>) -> bool {
        true
    }

    /// The one place that calls the callback.
    fn complete(&self, Expired { address, payload }: Expired<T>) {
        // A panic is counted, and concerns this payload only.
        let _ = self
            .engine
            .guarded(|| (self.on_expiry)(&self.extra, address, payload));
        self.engine.free_place();
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
