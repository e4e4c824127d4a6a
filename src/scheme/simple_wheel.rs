//! Scheme 4 of Varghese & Lauck (1987): one slot for each tick to come.
//!
//! A wheel of one revolution: with so many slots, no deadline may lie so many ticks ahead. It is a
//! [hashed wheel](super::HashedWheel) in which no timer has a round to wait for: in a pass at each tick, all that the
//! hand meets is due. Timers fire in the same order as there.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1) |
//! | a tick | O(1), and O(1) per fired timer; a jump no more than O(slots) |
//! | space | the slots, one for each tick of the longest timeout, and the timers |
//!
//! *Used by* logic simulators, from whose wheels of events the paper starts, and by traffic shapers with a bounded
//! horizon, such as Carousel. *Choose it* where timeouts are known to be below a bound that is not many ticks.

use super::hashed_wheel::HashedWheel;
use super::{BeyondSpan, Position, Records, Scheme, Started, Step, Tick};

/// Scheme 4: a timing wheel that spans one revolution.
#[derive(Debug)]
pub struct SimpleWheel {
    wheel: HashedWheel,
}

impl Scheme for SimpleWheel {
    fn new(slots: u32, now: Tick) -> Self {
        Self {
            wheel: HashedWheel::new(slots, now),
        }
    }

    fn len(&self) -> usize {
        self.wheel.len()
    }

    fn latest(&self, now: Tick) -> Tick {
        self.wheel.latest_in_one_round(now)
    }

    fn start(
        &mut self,
        records: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, BeyondSpan> {
        let latest = self.latest(now);
        if deadline > latest {
            return Err(BeyondSpan { latest });
        }
        self.wheel.start(records, id, deadline, now)
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        self.wheel.stop(records, position);
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        self.wheel.next_deadline()
    }

    fn begin_pass(&mut self, now: Tick) {
        self.wheel.begin_pass(now);
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        self.wheel.step(records, now)
    }
}
