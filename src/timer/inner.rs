//! The state that all clones of one timer share.

use crate::callbacks::trampoline::drop_user_value;
use crate::cell::slab::{EndedSlot, Held};
use crate::engine::Engine;
use crate::engine::handler::{EndedPayload, Expired, Handler, ReclaimQueue};
use crate::engine::shutdown::close_now;
use crate::scheme::{Scheme, Tick};
use crate::stats::Ending;
use crate::sync::Arc;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Inner<T, W> {
    pub(crate) engine: Engine<T, W>,
    /// A number that no other [`Timer`](crate::Timer) has. Each [`TimerId`](super::TimerId) contains the number of the
    /// `Timer` that gave it out, so a `Timer` recognises the ids of others.
    pub(super) number: u64,
    on_expiry: Box<dyn Fn(T) + Send + Sync>,
    unreclaimed: ReclaimQueue<EndedSlot>,
    /// Payloads whose timers had not fired at the shutdown, until `close` returns them.
    remains: Mutex<Vec<T>>,
}

impl<T: Send + 'static, W: Scheme> Inner<T, W> {
    /// `on_expiry` is the user's callback for payloads that have expired.
    pub(super) fn new(
        engine: Engine<T, W>,
        on_expiry: impl Fn(T) + Send + Sync + 'static,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            engine,
            // ORDERING: Relaxed: the numbers only have to differ, and no thread reads memory because of a number.
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            on_expiry: Box::new(on_expiry),
            unreclaimed: ReclaimQueue::new(),
            remains: Mutex::new(Vec::new()),
        })
    }

    /// Ends all timers. The first call returns the payloads whose timers had not fired.
    pub(super) fn close(self: &Arc<Self>) -> Vec<T> {
        // Only the call that does the shutdown takes the payloads. A later call could otherwise take some of the
        // payloads that the first call is still collecting.
        if !close_now(self) {
            return Vec::new();
        }
        // Wake the thread that drives this timer, so that it learns of the shutdown now, and not at its next deadline:
        // a shared reaper then forgets this timer, and a reactor (the user's event loop) may stop driving it.
        self.engine.wake();
        std::mem::take(&mut *self.remains.lock())
    }
}

impl<T: Send + 'static, W: Scheme> Handler for Inner<T, W> {
    type Payload = T;
    type Scheme = W;
    type Value = T;
    type Unreclaimed = EndedSlot;

    fn engine(&self) -> &Engine<T, W> {
        &self.engine
    }

    fn reclaim_queue(&self) -> &ReclaimQueue<EndedSlot> {
        &self.unreclaimed
    }

    fn expire(self: &Arc<Self>, held: Held<'_, T>, _now: Tick) -> Option<Expired<Self>> {
        let address = held.address();
        let (payload, spent) = held.end();
        let ended = EndedPayload::new(payload, Ending::Expired, address);
        Some(Expired {
            ended,
            deadline: None,
            rest: spent.detach(),
        })
    }

    fn reclaim(&self, batch: Vec<EndedSlot>) {
        self.engine
            .free_counted(batch.into_iter().map(|slot| (slot, 0)));
    }

    fn on_shutdown(self: &Arc<Self>, held: Held<'_, T>) -> Option<EndedPayload<T>> {
        let payload = self.engine.withdraw(held, Ending::ShutDown);
        self.remains.lock().push(payload);
        None
    }

    fn on_dropped(&self) {
        let remains = std::mem::take(&mut *self.remains.lock());
        for payload in remains {
            // Catch the panic of each destructor separately. If a second destructor panicked while the first panic
            // unwinds, the process would abort.
            let _ = self.engine.guarded(|| drop_user_value(payload));
        }
    }

    /// Calls the user's callback. A payload comes here only if it has expired: payloads that were stopped or shut down
    /// go back to the caller.
    fn complete(&self, payload: T, _ending: Ending) {
        (self.on_expiry)(payload);
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::super::Timer;
    use crate::threads::reaper::{Driven, Reaper};
    use crate::time::ManualClock;
    use crate::time::ticks::NEVER;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn g07_a_caller_that_asks_leaves_the_alarm_of_a_reaper_alone() {
        let builder = Timer::<()>::builder("g07").clock(ManualClock::new());
        let timer = builder.build(drop).expect("the system has threads left");
        let alarm = &timer.shared.inner.engine.alarm;
        // Set the alarm to tick 1, at which no timer is due. A timer that was started and then stopped leaves such an
        // alarm, and the reaper sleeps until then.
        assert!(alarm.set(1));
        assert_eq!(timer.next_deadline(), None);
        assert_eq!(timer.advance(), 0);
        assert_eq!(alarm.time(), 1);
        let by_hand = Timer::<()>::builder("g07").reaper(Reaper::Manual);
        let by_hand = by_hand.build(drop).expect("there are no threads to refuse");
        let alarm = &by_hand.shared.inner.engine.alarm;
        assert!(alarm.set(1));
        assert_eq!(by_hand.next_deadline(), None);
        assert_eq!(alarm.time(), NEVER);
    }

    /// A shared reaper drives a timer whenever another one on the same reaper is due. A timer that has had no work since
    /// takes no lock of a timer shard then: many timers without a deadline do not delay the one that is due.
    #[test]
    fn g20_a_round_without_work_takes_no_lock_of_a_timer_shard() {
        let builder = Timer::<()>::builder("g20").reaper(Reaper::Manual);
        let timer = builder.build(drop).expect("no threads to refuse");
        timer.start(Duration::MAX, ()).expect("there is room");
        let inner = &timer.shared.inner;
        let locked = inner.engine.shards.iter().map(|shard| shard.slab.lock());
        let locked = locked.collect::<Vec<_>>();
        let driven = inner.clone();
        let (told, until) = channel();
        let driver = thread::spawn(move || told.send(driven.drive()));
        let until = until.recv_timeout(Duration::from_secs(10));
        drop(locked);
        assert_eq!(until, Ok(Some(Duration::MAX)));
        assert!(driver.join().is_ok());
    }
}
