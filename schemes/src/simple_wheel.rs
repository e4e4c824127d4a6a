//! Scheme 4 of Varghese & Lauck (1987): one slot for each of the next ticks.
//!
//! The wheel has a horizon of one revolution: with `slots` slots, a deadline lies at most `slots - 1` ticks ahead. So
//! this is a [hashed wheel](crate::HashedWheel) in which no slot has timers of later revolutions: if there is a pass at
//! each tick, every timer in the slot of this tick fires. Timers fire in the same order as in a hashed wheel.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1) |
//! | tick | O(1), and O(1) per fired timer; a pass after many ticks: at most O(slots) more |
//! | space | one slot for each tick of the longest timeout, and the timers |
//!
//! *Used by* logic simulators, whose event wheels are the starting point of the paper, and by traffic shapers with a
//! bounded horizon, such as Carousel. *Choose it* if no timeout is longer than a moderate number of ticks.

use crate::hashed_wheel::HashedWheel;
use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use crate::scheme::{Scheme, sealed::Sealed};

/// Scheme 4 of Varghese & Lauck (1987): a timing wheel with a horizon of one revolution.
#[derive(Debug)]
pub struct SimpleWheel {
    wheel: HashedWheel,
}

impl Sealed for SimpleWheel {}

impl Scheme for SimpleWheel {
    const HAS_HORIZON: bool = true;

    fn new(slots: u32, now: Tick) -> Self {
        Self {
            wheel: HashedWheel::new(slots, now),
        }
    }

    fn len(&self) -> usize {
        self.wheel.len()
    }

    fn latest(&self, now: Tick) -> Tick {
        self.wheel.latest_in_this_round(now)
    }

    fn start(
        &mut self,
        records: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, HorizonError> {
        let latest = self.latest(now);
        if deadline > latest {
            return Err(HorizonError { latest });
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
