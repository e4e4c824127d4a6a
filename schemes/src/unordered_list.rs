//! Scheme 1 of Varghese & Lauck (1987): timers in no order. Each pass (round of expiry) examines all of them.
//!
//! The timers lie in a vector, and a removal fills the hole with another timer. The scheme does not keep track of the
//! earliest deadline: a call of `next_deadline` searches for it. Timers fire in no particular order.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1) |
//! | tick | O(n), in steps of O(1); O(n) more if the next deadline is then searched for |
//! | space | the timers |
//!
//! *Used by* Contiki's event timers, and, says the paper, by interfaces with one timer for each of a few modules.
//! *Choose it* for a handful of timers, or if nearly all timers are stopped before the next tick.

use crate::parts::overdue::Overdue;
use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use crate::scheme::{Scheme, sealed::Sealed};

/// Scheme 1 of Varghese & Lauck (1987): an unordered list.
#[derive(Debug)]
pub struct UnorderedList {
    /// All timers, overdue or not.
    timers: Overdue,
}

impl Sealed for UnorderedList {}

impl Scheme for UnorderedList {
    fn new(_: u32, now: Tick) -> Self {
        Self {
            timers: Overdue::new(now),
        }
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
    ) -> Result<Started, HorizonError> {
        // To see whether this start makes the next deadline earlier, compare lower bounds of the deadlines, because a
        // search for the earliest deadline would take O(n). The bound is what the last call of `next_deadline`
        // returned, or an earlier deadline of a timer that was started since.
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

    fn begin_pass(&mut self, now: Tick) {
        self.timers.begin_pass(now);
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        self.timers.step(records, now)
    }
}
