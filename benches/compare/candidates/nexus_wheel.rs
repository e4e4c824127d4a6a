//! The crate `nexus-timer` 1.5: its wheel for any deadline, and its queue for one timeout.
//!
//! The wheel is driven by `poll_and_rebalance`, which the crate recommends: a timer moves to finer levels as its
//! deadline comes near, and fires in its tick. (By `poll` alone no timer would move, and each advance would look at all
//! timers of a coarse slot.)
//!
//! Alone only: its handles are not `Send`, so it cannot stand behind a mutex without unsafe code.

use std::time::{Duration, Instant};

use nexus_timer::{TimeoutQueue, TimerHandle, Wheel};

use crate::timer_queue::{Tick, TimerQueue};

/// Entries for which it allocates at a time: what the crate's documentation has.
const CHUNK: usize = 4096;

/// The timeout of all timers of [`NexusQueue`], and of the case of W2 in which it takes part.
const TIMEOUT: Tick = 30_000;

pub(crate) struct NexusWheel<V: 'static> {
    origin: Instant,
    wheel: Wheel<V>,
    fired: Vec<V>,
}

impl<V> TimerQueue<V> for NexusWheel<V> {
    const NAME: &'static str = "nexus_wheel";

    type Token = TimerHandle<V>;

    fn new() -> Self {
        let origin = Instant::now();
        Self {
            origin,
            wheel: Wheel::unbounded(CHUNK, origin),
            fired: Vec::new(),
        }
    }

    fn start(&mut self, value: V, deadline: Tick) -> TimerHandle<V> {
        let deadline = self.origin + Duration::from_millis(deadline);
        self.wheel.schedule(deadline, value)
    }

    fn stop(&mut self, token: TimerHandle<V>) {
        self.wheel.cancel(token);
    }

    fn release(&mut self, token: TimerHandle<V>) {
        self.wheel.free(token);
    }

    fn advance(&mut self, now: Tick, fire: &mut impl FnMut(V)) {
        let now = self.origin + Duration::from_millis(now);
        self.wheel.poll_and_rebalance(now, &mut self.fired);
        self.fired.drain(..).for_each(fire);
    }

    fn len(&self) -> usize {
        self.wheel.len()
    }
}

/// A list in the order of arrival, which is that of the deadlines.
pub(crate) struct NexusQueue<V: 'static> {
    origin: Instant,
    queue: TimeoutQueue<V>,
    fired: Vec<V>,
}

impl<V> NexusQueue<V> {
    /// The middle of a tick, as a clock hardly ever shows its very beginning: there the queue's fixed-point arithmetic
    /// finds the tick before.
    fn middle(&self, tick: Tick) -> Instant {
        self.origin + Duration::from_micros(tick * 1_000 + 500)
    }
}

impl<V> TimerQueue<V> for NexusQueue<V> {
    const NAME: &'static str = "nexus_timeout_queue";

    const ONE_TIMEOUT: Option<Tick> = Some(TIMEOUT);

    type Token = TimerHandle<V>;

    fn new() -> Self {
        let origin = Instant::now();
        Self {
            origin,
            queue: TimeoutQueue::unbounded(Duration::from_millis(TIMEOUT), CHUNK, origin),
            fired: Vec::new(),
        }
    }

    fn start(&mut self, value: V, deadline: Tick) -> TimerHandle<V> {
        // The queue is told when the timer starts, and adds the timeout itself.
        self.queue.schedule(self.middle(deadline - TIMEOUT), value)
    }

    fn stop(&mut self, token: TimerHandle<V>) {
        self.queue.cancel(token);
    }

    fn release(&mut self, token: TimerHandle<V>) {
        self.queue.free(token);
    }

    fn advance(&mut self, now: Tick, fire: &mut impl FnMut(V)) {
        self.queue.poll(self.middle(now), &mut self.fired);
        self.fired.drain(..).for_each(fire);
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}
