//! Scheme 2 of Varghese & Lauck (1987): timers in a list sorted by deadline.
//!
//! The list is doubly linked, so a timer is stopped without a search. A new one is inserted from the end with the
//! latest deadline: where all timeouts are the same, each goes there at once. Timers fire by deadline, and those with
//! the same in the order of their starts; before them, in no order, those that were due when they were started.
//!
//! | | cost |
//! |---|---|
//! | start | O(n), the timers with later deadlines |
//! | stop | O(1) |
//! | a tick | O(1) per fired timer; an empty tick nothing |
//! | space | the timers |
//!
//! *Used by* VMS and Unix when the paper was written, and by FreeRTOS for its software timers. *Choose it* for few
//! starts, or where new deadlines are nearly always the latest.

use super::bag::Bag;
use super::links::Links;
use super::{BeyondSpan, Position, Records, Scheme, Started, Step, Tick};

/// The only list.
const LIST: u32 = 0;

/// Scheme 2: a doubly linked list sorted by deadline.
#[derive(Debug)]
pub struct OrderedList {
    /// The present of the last pass: a deadline up to here is due already.
    seen: Tick,
    links: Links,
    /// The timers that were due when they were started.
    overdue: Bag,
}

impl Scheme for OrderedList {
    fn new(_: u32, now: Tick) -> Self {
        Self {
            seen: now,
            links: Links::new(1),
            overdue: Bag::new(),
        }
    }

    fn len(&self) -> usize {
        self.links.len() + self.overdue.len()
    }

    fn start(
        &mut self,
        _: &mut impl Records,
        id: u32,
        deadline: Tick,
        _: Tick,
    ) -> Result<Started, BeyondSpan> {
        let before = self.next_deadline();
        let position = if deadline <= self.seen {
            self.overdue.push(id, deadline)
        } else {
            self.links.insert(LIST, id, deadline)
        };
        Ok(Started::at(position, before, self.next_deadline()))
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        if Bag::owns(position) {
            self.overdue.remove(records, position);
        } else {
            self.links.unlink(position.number());
        }
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        let first = self.links.timer(self.links.first(LIST));
        let next = first.map(|first| first.deadline);
        self.overdue.earliest().into_iter().chain(next).min()
    }

    fn begin_pass(&mut self, now: Tick) {
        self.seen = self.seen.max(now);
        self.overdue.begin_pass();
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        let step = self.overdue.step(records, now);
        if step != Step::Idle {
            return step;
        }
        let first = self.links.first(LIST);
        match self.links.timer(first) {
            Some(timer) if timer.deadline <= now => {
                self.links.unlink(first);
                records.set_position(timer.id, Position::NONE);
                Step::Fired(timer.id, timer.deadline)
            }
            _ => Step::Idle,
        }
    }
}
