//! Scheme 1 of Varghese & Lauck (1987): timers in no order, all looked at in each tick.
//!
//! They lie in a vector; a timer that leaves is replaced by the last one. The scheme knows no earliest deadline: it
//! looks for it when asked. Timers fire in no particular order.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1) |
//! | a tick | O(n), O(1) for each step of a pass; as much again to find the next deadline |
//! | space | the timers |
//!
//! *Used by* Contiki's event timers; in the paper, by interfaces with one timer for each of a few modules. *Choose it*
//! for a handful of timers, or where nearly all are stopped before anyone looks.

use super::bag::Bag;
use super::{BeyondSpan, Position, Records, Scheme, Started, Step, Tick};

/// Scheme 1: an unordered list.
#[derive(Debug)]
pub struct UnorderedList {
    timers: Bag,
}

impl Scheme for UnorderedList {
    fn new(_: u32, _: Tick) -> Self {
        Self { timers: Bag::new() }
    }

    fn len(&self) -> usize {
        self.timers.len()
    }

    fn start(
        &mut self,
        _: &mut impl Records,
        id: u32,
        deadline: Tick,
        _: Tick,
    ) -> Result<Started, BeyondSpan> {
        // Not `next_deadline`, which is O(n): the bound that it left is what the caller knows.
        let before = self.timers.earliest();
        let position = self.timers.push(id, deadline);
        Ok(Started::at(position, before, self.timers.earliest()))
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        self.timers.remove(records, position);
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        self.timers.tighten();
        self.timers.earliest()
    }

    fn begin_pass(&mut self, _: Tick) {
        self.timers.begin_pass();
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        self.timers.step(records, now)
    }
}
