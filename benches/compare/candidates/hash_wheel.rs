//! The crate `hierarchical_hash_wheel_timer`: four wheels of 256, its cancellable variant, which
//! keeps the timers in a hash map by id and leaves a dead reference in the wheel when one stops.
//!
//! Alone only: its entries are `Rc`, so it cannot stand behind a mutex without unsafe code.

use std::time::Duration;

use hierarchical_hash_wheel_timer::IdOnlyTimerEntry;
use hierarchical_hash_wheel_timer::wheels::Skip;
use hierarchical_hash_wheel_timer::wheels::cancellable::QuadWheelWithOverflow;

use crate::timer_queue::{Tick, TimerQueue};

pub(crate) struct HashWheel {
    wheel: QuadWheelWithOverflow<IdOnlyTimerEntry<u32>>,
    now: Tick,
    len: usize,
}

/// The value is the id, as the crate wants ids anyway: no second map is needed.
impl TimerQueue<u32> for HashWheel {
    const NAME: &'static str = "hash_wheel";

    type Token = u32;

    fn new() -> Self {
        Self {
            wheel: QuadWheelWithOverflow::new(),
            now: 0,
            len: 0,
        }
    }

    fn start(&mut self, id: u32, deadline: Tick) -> u32 {
        // It refuses a timeout of zero.
        let delay = Duration::from_millis(deadline.saturating_sub(self.now).max(1));
        let entry = IdOnlyTimerEntry { id, delay };
        assert!(self.wheel.insert(entry).is_ok(), "it lies in the future");
        self.len += 1;
        id
    }

    fn stop(&mut self, id: u32) {
        if self.wheel.cancel(&id).is_ok() {
            self.len -= 1;
        }
    }

    fn advance(&mut self, now: Tick, fire: &mut impl FnMut(u32)) {
        while self.now < now {
            let left = now - self.now;
            let skipped = match self.wheel.can_skip() {
                Skip::Empty => left as u32,
                Skip::Millis(empty) => empty.min(left as u32),
                Skip::None => 0,
            };
            if skipped > 0 {
                self.wheel.skip(skipped);
                self.now += Tick::from(skipped);
                continue;
            }
            self.now += 1;
            for entry in self.wheel.tick() {
                self.len -= 1;
                fire(entry.id);
            }
        }
    }

    fn len(&self) -> usize {
        self.len
    }
}
