//! What the faces of one timer share.

use super::TimerId;
use crate::address::Address;
use crate::cell::state::Mark;
use crate::engine::deliver::{Outbox, Ready};
use crate::engine::drive::Facility;
use crate::engine::pass::{Gone, Heap};
use crate::engine::{Engine, Tenant};
use crate::error::Rejected;
use crate::scheme::Scheme;
use crate::stats::Ending;
use crate::sync::Arc;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(super) struct Core<T, W> {
    pub(super) engine: Engine<T, W>,
    /// Tells the ids of this timer from those of others.
    facility: u64,
    on_expiry: Box<dyn Fn(T) + Send + Sync>,
    gone: Heap<()>,
    /// What had not expired at the shutdown.
    remains: Mutex<Vec<T>>,
}

impl<T: Send + 'static, W: Scheme> Core<T, W> {
    pub(super) fn new(
        engine: Engine<T, W>,
        on_expiry: impl Fn(T) + Send + Sync + 'static,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            engine,
            // ORDERING: Relaxed: a number guards no memory.
            facility: NEXT.fetch_add(1, Ordering::Relaxed),
            on_expiry: Box::new(on_expiry),
            gone: Heap::new(),
            remains: Mutex::new(Vec::new()),
        })
    }

    fn id_of(&self, address: Address) -> TimerId {
        TimerId {
            address,
            facility: self.facility,
        }
    }

    /// `None` for an id of another timer.
    pub(super) fn address_of(&self, id: TimerId) -> Option<Address> {
        (id.facility == self.facility).then_some(id.address)
    }

    pub(super) fn start(&self, timeout: Duration, payload: T) -> Result<TimerId, Rejected<T>> {
        let started = match self.engine.guarded(|| self.engine.span(timeout)) {
            _ if self.engine.is_closed() => Err(Rejected::ShutDown(payload)),
            Err(_) => Err(Rejected::Panicked(payload)),
            Ok(span) => self.engine.keep(payload, span),
        };
        let started = started.map(|(address, earlier)| {
            self.engine.announce(earlier);
            self.id_of(address)
        });
        started.inspect_err(|_| self.engine.my_home().events.rejected.add(1))
    }

    pub(super) fn stop(&self, id: TimerId) -> Option<T> {
        let tenant = self.engine.begin(self.address_of(id)?, Mark::Cancel)?;
        Some(self.engine.end(tenant, Ending::Cancelled))
    }

    pub(super) fn take_remains(&self) -> Vec<T> {
        std::mem::take(&mut *self.remains.lock())
    }
}

impl<T: Send + 'static, W: Scheme> Facility for Core<T, W> {
    type Payload = T;
    type Scheme = W;
    type Ended = T;
    type Trace = ();

    #[inline(always)]
    fn engine(&self) -> &Engine<T, W> {
        &self.engine
    }

    fn gone(&self) -> &Heap<()> {
        &self.gone
    }

    fn expire(self: &Arc<Self>, tenant: Tenant<'_, T, W>, ready: &mut Ready<T>) -> Gone<()> {
        let (payload, vacated) = self.engine.vacate(tenant);
        ready.push(payload);
        Gone {
            vacated,
            expired: true,
            watches: 0,
            trace: (),
        }
    }

    fn clear(&self, _: &[Gone<()>]) {}

    fn abandon(self: &Arc<Self>, tenant: Tenant<'_, T, W>, _: &mut Ready<T>) {
        let payload = self.engine.end(tenant, Ending::ShutDown);
        self.remains.lock().push(payload);
    }

    fn has_expired(_: &T) -> bool {
        true
    }

    /// The one place that calls the callback.
    fn complete(&self, payload: T) {
        // A panic is counted, and ends this payload only.
        let _ = self.engine.guarded(|| (self.on_expiry)(payload));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Timer;
    use crate::time::ManualClock;
    use crate::time::ticks::NEVER;

    #[test]
    fn g07_who_asks_leaves_the_alarm_of_a_reaper_alone() {
        let builder = Timer::<()>::builder("g07").clock(ManualClock::new());
        let timer = builder.build(drop).expect("threads are to be had");
        let alarm = &timer.face.core.engine.alarm;
        // As if something had been due then. The reaper sleeps, and is told when it comes.
        assert!(alarm.set(1));
        assert_eq!(timer.next_deadline(), None);
        assert_eq!(timer.advance(), 0);
        assert_eq!(alarm.time(), 1);
        let by_hand = Timer::<()>::builder("g07").reaper(crate::Reaper::Manual);
        let by_hand = by_hand.build(drop).expect("no threads to refuse");
        let alarm = &by_hand.face.core.engine.alarm;
        assert!(alarm.set(1));
        assert_eq!(by_hand.next_deadline(), None);
        assert_eq!(alarm.time(), NEVER);
    }
}
