//! Scheme 3 of Varghese & Lauck (1987): timers in a tree ordered by deadline, here a heap.
//!
//! The heap is 4-ary: it is half as deep as a binary heap, and the four children of a node lie side by side in 64
//! bytes. The record of a timer has the timer's index in the heap. So a stop removes the timer at once, and no stopped
//! timers are left in the heap. A pass first fires the overdue timers (timers that were started after their deadline),
//! and then the other timers by deadline. Timers with the same deadline fire in no particular order.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(log n), with O(log n) positions written to records |
//! | tick | O(log n) per fired timer; an empty tick costs nothing |
//! | space | the timers |
//!
//! *Used by* Go's runtime (4-ary as well), and as a binary heap by libevent, libuv and Java's
//! `ScheduledThreadPoolExecutor`. *Choose it* for few timers, or for deadlines so sparse that the slots of a wheel
//! would waste memory.

use crate::parts::overdue::Overdue;
use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use crate::scheme::{Scheme, sealed::Sealed};

/// The number of children of a node.
const ARITY: usize = 4;

/// Scheme 3 of Varghese & Lauck (1987): a heap that writes the position of each timer to the timer's record.
#[derive(Debug)]
pub struct Heap {
    /// INVARIANT: no timer has an earlier deadline than its parent. The parent of the timer at `index` is at
    /// `(index - 1) / ARITY`.
    timers: Vec<(Tick, u32)>,
    overdue: Overdue,
}

impl Heap {
    /// Moves the timer at `index` up until its parent's deadline is not later. Returns the timer's new index, which the
    /// caller must write to the timer's record.
    fn sift_up(&mut self, records: &mut impl Records, mut index: usize) -> usize {
        let timer = self.timers[index];
        while index > 0 {
            let parent = (index - 1) / ARITY;
            if self.timers[parent].0 <= timer.0 {
                break;
            }
            self.put(records, index, self.timers[parent]);
            index = parent;
        }
        self.timers[index] = timer;
        index
    }

    /// Moves the timer at `index` down until no child has an earlier deadline. Returns the timer's new index, which the
    /// caller must write to the timer's record.
    fn sift_down(&mut self, records: &mut impl Records, mut index: usize) -> usize {
        let timer = self.timers[index];
        loop {
            let first = index * ARITY + 1;
            let children = first..self.timers.len().min(first + ARITY);
            let Some(child) = children.min_by_key(|&child| self.timers[child].0) else {
                break;
            };
            if self.timers[child].0 >= timer.0 {
                break;
            }
            self.put(records, index, self.timers[child]);
            index = child;
        }
        self.timers[index] = timer;
        index
    }

    fn put(&mut self, records: &mut impl Records, index: usize, timer: (Tick, u32)) {
        self.timers[index] = timer;
        records.set_position(timer.1, Position::new(index as u32));
    }

    /// Removes the timer at `index`. Does nothing if there is none. The last timer of the vector takes the free place,
    /// and then moves up or down until the order is right.
    fn remove(&mut self, records: &mut impl Records, index: usize) {
        if index >= self.timers.len() {
            return;
        }
        self.timers.swap_remove(index);
        if let Some(&moved) = self.timers.get(index) {
            let index = self.sift_up(records, index);
            let index = self.sift_down(records, index);
            self.put(records, index, moved);
        }
    }
}

impl Sealed for Heap {}

impl Scheme for Heap {
    fn new(_: u32, now: Tick) -> Self {
        Self {
            timers: Vec::new(),
            overdue: Overdue::new(now),
        }
    }

    fn len(&self) -> usize {
        self.timers.len() + self.overdue.len()
    }

    fn start(
        &mut self,
        records: &mut impl Records,
        id: u32,
        deadline: Tick,
        _: Tick,
    ) -> Result<Started, HorizonError> {
        let before = self.next_deadline();
        let position = if deadline <= self.overdue.present() {
            self.overdue.push(id, deadline)
        } else {
            self.timers.push((deadline, id));
            Position::new(self.sift_up(records, self.timers.len() - 1) as u32)
        };
        Ok(Started::at(position, before, self.next_deadline()))
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        if Overdue::owns(position) {
            self.overdue.remove(records, position);
        } else {
            self.remove(records, position.number() as usize);
        }
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        let first = self.timers.first().map(|&(deadline, _)| deadline);
        self.overdue.earliest_or(first)
    }

    fn begin_pass(&mut self, now: Tick) {
        self.overdue.begin_pass(now);
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        let step = self.overdue.step(records, now);
        step.or_else(|| match self.timers.first() {
            Some(&(deadline, id)) if deadline <= now => {
                self.remove(records, 0);
                Step::fire(records, id, deadline)
            }
            _ => Step::Idle,
        })
    }
}
