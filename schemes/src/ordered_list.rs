//! Scheme 2 of Varghese & Lauck (1987): timers in a list sorted by deadline.
//!
//! The list is doubly linked, so a stop needs no search. A start searches backwards from the latest deadline. If all
//! timeouts are equal, the search ends at the first node that it examines. A pass first fires the overdue timers
//! (timers that were started after their deadline), in no particular order, and then the other timers by deadline.
//! Timers with the same deadline fire in the order in which they were started.
//!
//! | | cost |
//! |---|---|
//! | start | O(n): the search passes the timers with later deadlines |
//! | stop | O(1) |
//! | tick | O(1) per fired timer; an empty tick costs nothing |
//! | space | the timers |
//!
//! *Used by* VMS and Unix when the paper was written, and by FreeRTOS for its software timers. *Choose it* for few
//! starts, or if a new deadline is nearly always the latest.

use crate::parts::intrusive_lists::IntrusiveLists;
use crate::parts::overdue::Overdue;
use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use crate::scheme::{Scheme, sealed::Sealed};

/// The number of the only list in `lists`.
const LIST: u32 = 0;

/// Scheme 2 of Varghese & Lauck (1987): a doubly linked list sorted by deadline.
#[derive(Debug)]
pub struct OrderedList {
    lists: IntrusiveLists,
    overdue: Overdue,
}

impl Sealed for OrderedList {}

impl Scheme for OrderedList {
    fn new(_: u32, now: Tick) -> Self {
        Self {
            lists: IntrusiveLists::new(1),
            overdue: Overdue::new(now),
        }
    }

    fn len(&self) -> usize {
        self.lists.len() + self.overdue.len()
    }

    fn start(
        &mut self,
        _: &mut impl Records,
        id: u32,
        deadline: Tick,
        _: Tick,
    ) -> Result<Started, HorizonError> {
        let before = self.next_deadline();
        let position = if deadline <= self.overdue.present() {
            self.overdue.push(id, deadline)
        } else {
            self.lists.insert(LIST, id, deadline)
        };
        Ok(Started::at(position, before, self.next_deadline()))
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        if Overdue::owns(position) {
            self.overdue.remove(records, position);
        } else {
            self.lists.unlink(position.number());
        }
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        let first = self.lists.timer(self.lists.first(LIST));
        self.overdue.earliest_or(first.map(|first| first.deadline))
    }

    fn begin_pass(&mut self, now: Tick) {
        self.overdue.begin_pass(now);
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        let step = self.overdue.step(records, now);
        step.or_else(|| {
            let first = self.lists.first(LIST);
            match self.lists.timer(first) {
                Some(timer) if timer.deadline <= now => {
                    self.lists.unlink(first);
                    Step::fire(records, timer.id, timer.deadline)
                }
                _ => Step::Idle,
            }
        })
    }
}
