//! The crate `tm-wheel`, the fastest of today's Rust wheels, in 6 levels of 64, one of the shapes that its own benchmark
//! has. Nobody maintains it: its last version, 0.1.1, is of 2024. It stays here because it is the fastest.

use std::sync::Arc;

use tm_wheel::{TimerDriver, TimerHandle};

use super::driven::Driven;
use super::timer_and_map::{Entry, TimerAndMap};
use crate::timer_queue::{Sleepable, Tick, TimerQueue};

pub(crate) type TmWheelAndMap = TimerAndMap<Driven<TimerHandle, TmWheel<Arc<Entry<TimerHandle>>>>>;

const LEVELS: usize = 6;
const SLOTS: usize = 64;

pub(crate) struct TmWheel<V: 'static>(TimerDriver<V, LEVELS, SLOTS>);

impl<V> TimerQueue<V> for TmWheel<V> {
    const NAME: &'static str = "tm_wheel";

    type Token = TimerHandle;

    fn new() -> Self {
        Self(TimerDriver::default())
    }

    fn start(&mut self, value: V, deadline: Tick) -> TimerHandle {
        // The wheel panics on a time in its past, which a thread delayed before it got the lock
        // could bring.
        let deadline = deadline.max(self.0.now() + 1);
        self.0.insert(value, deadline)
    }

    fn stop(&mut self, token: TimerHandle) {
        self.0.remove(token);
    }

    fn advance(&mut self, now: Tick, fire: &mut impl FnMut(V)) {
        self.0.advance_to(now).for_each(fire);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl<V> Sleepable<V> for TmWheel<V> {
    /// `nearest_wakeup` looks at the lowest level first and oversleeps a timer that a higher level
    /// has not handed down yet, but which is due before the nearest one below. Waking at every
    /// turn of the lowest level hands such timers down in time.
    fn next_wakeup(&mut self) -> Option<Tick> {
        let turn = SLOTS as Tick;
        let nearest = self.0.nearest_wakeup()?.get();
        Some(nearest.min((self.0.now() / turn + 1) * turn))
    }
}
