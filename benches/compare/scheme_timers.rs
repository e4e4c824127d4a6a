//! Timers in a scheme, with the records that it asks for in a vector.

use request_purgatory::scheme::{Position, Records};

use crate::candidates::Named;
use crate::timer_queue::Tick;

/// A scheme and a number of timers, told the time. Each timer has a number and is started or not.
pub(crate) struct SchemeTimers<S> {
    scheme: S,
    records: Table,
    now: Tick,
}

struct Table(Vec<Record>);

#[derive(Clone, Copy)]
struct Record {
    deadline: Tick,
    position: Position,
}

impl Records for Table {
    fn deadline(&self, id: u32) -> Tick {
        self.0[id as usize].deadline
    }

    fn set_position(&mut self, id: u32, position: Position) {
        self.0[id as usize].position = position;
    }
}

impl<S: Named> SchemeTimers<S> {
    /// At tick 0, none of them started.
    pub(crate) fn new(timers: usize) -> Self {
        let record = Record {
            deadline: 0,
            position: Position::NONE,
        };
        Self {
            scheme: S::new(S::SLOTS, 0),
            records: Table(vec![record; timers]),
            now: 0,
        }
    }

    pub(crate) fn now(&self) -> Tick {
        self.now
    }

    /// Started and neither stopped nor fired.
    pub(crate) fn len(&self) -> usize {
        self.scheme.len()
    }

    /// The one that the timer was started with last.
    pub(crate) fn deadline(&self, id: u32) -> Tick {
        self.records.deadline(id)
    }

    pub(crate) fn start(&mut self, id: u32, deadline: Tick) {
        self.records.0[id as usize].deadline = deadline;
        let started = self
            .scheme
            .start(&mut self.records, id, deadline, self.now)
            .expect("the workload knows the span");
        self.records.0[id as usize].position = started.position;
    }

    pub(crate) fn stop(&mut self, id: u32) {
        let position = self.records.0[id as usize].position;
        self.scheme.stop(&mut self.records, position);
        self.records.0[id as usize].position = Position::NONE;
    }

    /// The tick by which the scheme wants to be advanced.
    pub(crate) fn next_deadline(&mut self) -> Option<Tick> {
        self.scheme.next_deadline()
    }

    /// Moves on to `now`; `fire` gets the number and the deadline of each timer that was due.
    pub(crate) fn advance(&mut self, now: Tick, mut fire: impl FnMut(u32, Tick)) {
        self.now = now;
        self.scheme
            .advance(&mut self.records, now, |_, _, id, deadline| {
                fire(id, deadline);
            });
    }
}
