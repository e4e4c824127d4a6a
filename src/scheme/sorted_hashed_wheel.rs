//! Scheme 5 of Varghese & Lauck (1987): a hashed wheel with sorted slots.
//!
//! A timer waits in the slot that its deadline names modulo the number of slots, in a list sorted by deadline. The hand
//! looks at the first timer of a slot alone: the rest have rounds to wait for. Timers fire slot by slot, in a slot by
//! deadline, and those with the same in the order of their starts; so by deadline, unless a pass comes a revolution
//! late. Before them, in no order, those that were due when they were started.
//!
//! | | cost |
//! |---|---|
//! | start | O(1) on average with fewer timers than slots, O(n) at worst |
//! | stop | O(1) |
//! | a tick | O(1), and O(1) per fired timer; a jump no more than O(slots) |
//! | space | the slots and the timers |
//!
//! *Used by* no library known to us; in the paper it is the step from scheme 2 to scheme 6. *Choose it* where the time
//! in a tick counts for more than that of a start, and timers are fewer than slots.

use super::bag::Bag;
use super::dial::Dial;
use super::{BeyondSpan, Position, Records, Scheme, Started, Step, Tick};

/// Scheme 5: a hashed timing wheel whose slots are sorted.
#[derive(Debug)]
pub struct SortedHashedWheel {
    dial: Dial,
}

impl Scheme for SortedHashedWheel {
    fn new(slots: u32, now: Tick) -> Self {
        Self {
            dial: Dial::new(slots, now),
        }
    }

    fn len(&self) -> usize {
        self.dial.len()
    }

    fn start(
        &mut self,
        _: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, BeyondSpan> {
        self.dial.wind(now);
        let before = self.next_deadline();
        let position = if self.dial.is_due(deadline) {
            self.dial.overdue.push(id, deadline)
        } else {
            let slot = self.dial.slot(deadline);
            self.dial.links.insert(slot, id, deadline)
        };
        Ok(Started::at(position, before, self.next_deadline()))
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        if Bag::owns(position) {
            self.dial.overdue.remove(records, position);
        } else {
            self.dial.links.unlink(position.number());
        }
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        self.dial.next_deadline()
    }

    fn begin_pass(&mut self, now: Tick) {
        self.dial.begin_pass(now);
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        let step = self.dial.overdue.step(records, now);
        if step != Step::Idle {
            return step;
        }
        let Some(hand) = self.dial.hand(now) else {
            return Step::Idle;
        };
        let first = self.dial.links.first(self.dial.slot(hand));
        match self.dial.links.timer(first) {
            Some(timer) if timer.deadline <= hand => {
                self.dial.links.unlink(first);
                records.set_position(timer.id, Position::NONE);
                Step::Fired(timer.id, timer.deadline)
            }
            _ => match self.dial.turn(now) {
                Some(_) => Step::Bookkeeping,
                None => Step::Idle,
            },
        }
    }
}
