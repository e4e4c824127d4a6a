//! Scheme 6 of Varghese & Lauck (1987): a hashed wheel with unordered slots.
//!
//! A timer waits in the slot that its deadline names modulo the number of slots. The hand looks at every timer of a
//! slot, and passes over those that have rounds to wait for, which is to say, whose deadline is past the hand. Timers
//! fire slot by slot, in a slot in the order of their starts; so by deadline, unless a pass comes a revolution late.
//! Before them, in no order, those that were due when they were started.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1) |
//! | a tick | O(n / slots) on average, O(n) at worst; a jump no more than O(n + slots) |
//! | space | the slots and the timers |
//!
//! *Used by* Netty's `HashedWheelTimer` and FreeBSD's callouts. *Choose it* where most timeouts are below a revolution,
//! or are stopped before one is over: a timer that stays is looked at in each revolution.

use super::bag::Bag;
use super::dial::Dial;
use super::{BeyondSpan, Position, Records, Scheme, Started, Step, Tick};

/// Scheme 6: a hashed timing wheel whose slots are in no order, as Netty's.
#[derive(Debug)]
pub struct HashedWheel {
    dial: Dial,
    /// The node that the hand looks at next; if that is no timer's, it has seen its slot.
    cursor: u32,
}

#[cfg(any(test, feature = "reference-schemes"))]
impl HashedWheel {
    /// The latest deadline that has no round to wait for.
    pub(super) fn latest_in_one_round(&self, now: Tick) -> Tick {
        self.dial.latest(now)
    }
}

impl Scheme for HashedWheel {
    fn new(slots: u32, now: Tick) -> Self {
        Self {
            dial: Dial::new(slots, now),
            cursor: 0,
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
            self.dial.links.push(slot, id, deadline)
        };
        Ok(Started::at(position, before, self.next_deadline()))
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        if Bag::owns(position) {
            self.dial.overdue.remove(records, position);
        } else if let Some(timer) = self.dial.links.unlink(position.number()) {
            if self.cursor == position.number() {
                self.cursor = timer.next;
            }
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
        let Some(timer) = self.dial.links.timer(self.cursor) else {
            let Some(slot) = self.dial.turn(now) else {
                return Step::Idle;
            };
            self.cursor = self.dial.links.first(slot);
            return Step::Bookkeeping;
        };
        let node = std::mem::replace(&mut self.cursor, timer.next);
        if timer.deadline > hand {
            return Step::Bookkeeping;
        }
        self.dial.links.unlink(node);
        records.set_position(timer.id, Position::NONE);
        Step::Fired(timer.id, timer.deadline)
    }
}
