//! Scheme 6 of Varghese & Lauck (1987): a hashed wheel with unordered slots.
//!
//! A timer lies in the slot `deadline % slots`. The *hand* of the wheel points to one slot. A pass (one round of
//! expiry) turns the hand through the slots of the ticks since the last pass. In each slot the pass examines every
//! timer, and fires the timers whose deadline is not in a later revolution.
//!
//! A pass first fires the overdue timers (timers that were started after their deadline), in no particular order, and
//! then the other timers slot by slot. Within a slot, timers fire in the order in which they were started. So timers
//! fire by deadline, unless the pass comes more than one revolution late.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1) |
//! | tick | O(n / slots) on average, O(n) at worst; a pass after many ticks: at most O(n + slots) |
//! | space | the slots and the timers |
//!
//! *Used by* Netty's `HashedWheelTimer` and FreeBSD's callouts. *Choose it* if most timeouts are shorter than one
//! revolution, or most timers are stopped within one revolution: the wheel examines a timer once per revolution.

use crate::parts::intrusive_lists::IntrusiveLists;
use crate::parts::ring::Ring;
use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use crate::scheme::{Scheme, sealed::Sealed};

/// Scheme 6 of Varghese & Lauck (1987): a hashed timing wheel with unordered slots, as in Netty.
#[derive(Debug)]
pub struct HashedWheel {
    ring: Ring,
    /// The list node that the pass in progress examines next. If this node is the head of a list (a node without a
    /// timer), the pass has examined all timers of its present slot.
    cursor: u32,
}

impl HashedWheel {
    /// The latest deadline within one revolution of the wheel. The revolution begins at `now`, or at the tick that the
    /// latest pass has reached if that tick is later.
    pub(crate) fn latest_in_this_round(&self, now: Tick) -> Tick {
        self.ring.latest(now)
    }
}

impl Sealed for HashedWheel {}

impl Scheme for HashedWheel {
    fn new(slots: u32, now: Tick) -> Self {
        Self {
            ring: Ring::new(slots, now),
            cursor: 0,
        }
    }

    fn len(&self) -> usize {
        self.ring.len()
    }

    fn start(
        &mut self,
        _: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, HorizonError> {
        Ok(self.ring.start(id, deadline, now, IntrusiveLists::push))
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        if let Some(timer) = self.ring.stop(records, position) {
            if self.cursor == position.number() {
                self.cursor = timer.next;
            }
        }
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        self.ring.next_deadline()
    }

    fn begin_pass(&mut self, now: Tick) {
        self.ring.overdue.begin_pass(now);
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        let step = self.ring.overdue.step(records, now);
        step.or_else(|| {
            let Some(hand) = self.ring.hand(now) else {
                return Step::Idle;
            };
            let Some(timer) = self.ring.lists.timer(self.cursor) else {
                let Some(slot) = self.ring.turn(now) else {
                    return Step::Idle;
                };
                self.cursor = self.ring.lists.first(slot);
                return Step::Bookkeeping;
            };
            let node = std::mem::replace(&mut self.cursor, timer.next);
            if timer.deadline > hand {
                return Step::Bookkeeping;
            }
            self.ring.lists.unlink(node);
            Step::fire(records, timer.id, timer.deadline)
        })
    }
}
