//! The crate `nexus-timer`: a wheel that never cascades, after Linux's of 2016, but looks at the
//! exact deadlines.
//!
//! Alone only: its handles are not `Send`, so it cannot stand behind a mutex without unsafe code.

use std::time::{Duration, Instant};

use nexus_timer::{TimerHandle, Wheel};

use crate::timer_queue::{Tick, TimerQueue};

/// Entries for which it allocates at a time.
const CHUNK: usize = 4096;

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
        self.wheel.poll(now, &mut self.fired);
        self.fired.drain(..).for_each(fire);
    }

    fn len(&self) -> usize {
        self.wheel.len()
    }
}
