//! Scheme 5 of Varghese & Lauck (1987): a hashed wheel with sorted slots.
//!
//! A timer lies in the slot `deadline % slots`, in a list sorted by deadline. The *hand* of the wheel points to one
//! slot. A pass (one round of expiry) turns the hand through the slots of the ticks since the last pass. In each slot
//! the pass fires timers until the first timer of the list is not due, and examines no timer behind it.
//!
//! A pass first fires the overdue timers (timers that were started after their deadline), in no particular order, and
//! then the other timers slot by slot. Within a slot, timers fire by deadline; timers with the same deadline fire in
//! the order in which they were started. So timers fire by deadline, unless the pass comes more than one revolution
//! late.
//!
//! | | cost |
//! |---|---|
//! | start | O(1) on average if there are fewer timers than slots, O(n) at worst |
//! | stop | O(1) |
//! | tick | O(1), and O(1) per fired timer; a pass after many ticks: at most O(slots) more |
//! | space | the slots and the timers |
//!
//! *Used by* no library known to us. In the paper it is the step from scheme 2 to scheme 6. *Choose it* if the time of
//! a tick matters more than the time of a start, and there are fewer timers than slots.

use crate::parts::intrusive_lists::IntrusiveLists;
use crate::parts::ring::Ring;
use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use crate::scheme::{Scheme, sealed::Sealed};

/// Scheme 5 of Varghese & Lauck (1987): a hashed timing wheel with sorted slots.
#[derive(Debug)]
pub struct SortedHashedWheel {
    ring: Ring,
}

impl Sealed for SortedHashedWheel {}

impl Scheme for SortedHashedWheel {
    fn new(slots: u32, now: Tick) -> Self {
        Self {
            ring: Ring::new(slots, now),
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
        Ok(self.ring.start(id, deadline, now, IntrusiveLists::insert))
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        self.ring.stop(records, position);
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
            let first = self.ring.lists.first(self.ring.slot(hand));
            match self.ring.lists.timer(first) {
                Some(timer) if timer.deadline <= hand => {
                    self.ring.lists.unlink(first);
                    Step::fire(records, timer.id, timer.deadline)
                }
                _ => match self.ring.turn(now) {
                    Some(_) => Step::Bookkeeping,
                    None => Step::Idle,
                },
            }
        })
    }
}
