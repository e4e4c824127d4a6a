//! Scheme 3 of Varghese & Lauck (1987): timers in a tree ordered by deadline, here a heap.
//!
//! The heap is 4-ary: half as deep as a binary one, and the four children share a cache line. Each timer's record
//! knows its place in the heap, so a stopped timer leaves at once, and the heap never holds more than what is started.
//! Timers fire by deadline, those with the same in no particular order; before them those that were due when they were
//! started.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(log n), with as many records told of a new place |
//! | a tick | O(log n) per fired timer; an empty tick nothing |
//! | space | the timers |
//!
//! *Used by* Go's runtime, with four children too; with two by libevent, libuv, and Java's
//! `ScheduledThreadPoolExecutor`. *Choose it* for few timers, or where deadlines are so sparse that a wheel's slots
//! would not be worth their space.

use super::bag::Bag;
use super::{BeyondSpan, Position, Records, Scheme, Started, Step, Tick};

/// Children of a node.
const ARITY: usize = 4;

/// Scheme 3: a heap that knows where each timer is.
#[derive(Debug)]
pub struct Heap {
    /// The present of the last pass: a deadline up to here is due already.
    seen: Tick,
    /// INVARIANT: no timer is earlier than its parent, the one at `(place - 1) / ARITY`.
    timers: Vec<(Tick, u32)>,
    /// The timers that were due when they were started.
    overdue: Bag,
}

impl Heap {
    /// Moves the timer at `place` up to where it belongs, and returns that. Its own record is not told.
    fn sift_up(&mut self, records: &mut impl Records, mut place: usize) -> usize {
        let timer = self.timers[place];
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.timers[parent].0 <= timer.0 {
                break;
            }
            self.put(records, place, self.timers[parent]);
            place = parent;
        }
        self.timers[place] = timer;
        place
    }

    /// Moves the timer at `place` down to where it belongs, and returns that. Its own record is not told.
    fn sift_down(&mut self, records: &mut impl Records, mut place: usize) -> usize {
        let timer = self.timers[place];
        loop {
            let first = place * ARITY + 1;
            let children = first..self.timers.len().min(first + ARITY);
            let Some(child) = children.min_by_key(|&child| self.timers[child].0) else {
                break;
            };
            if self.timers[child].0 >= timer.0 {
                break;
            }
            self.put(records, place, self.timers[child]);
            place = child;
        }
        self.timers[place] = timer;
        place
    }

    fn put(&mut self, records: &mut impl Records, place: usize, timer: (Tick, u32)) {
        self.timers[place] = timer;
        records.set_position(timer.1, Position(place as u32));
    }

    /// Removes the timer at `place`, if there is one. The last one comes to its place, and moves from there.
    fn remove(&mut self, records: &mut impl Records, place: usize) {
        if place >= self.timers.len() {
            return;
        }
        self.timers.swap_remove(place);
        if let Some(&(_, moved)) = self.timers.get(place) {
            let place = self.sift_up(records, place);
            let place = self.sift_down(records, place);
            records.set_position(moved, Position(place as u32));
        }
    }
}

impl Scheme for Heap {
    fn new(_: u32, now: Tick) -> Self {
        Self {
            seen: now,
            timers: Vec::new(),
            overdue: Bag::new(),
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
    ) -> Result<Started, BeyondSpan> {
        let before = self.next_deadline();
        let position = if deadline <= self.seen {
            self.overdue.push(id, deadline)
        } else {
            self.timers.push((deadline, id));
            Position(self.sift_up(records, self.timers.len() - 1) as u32)
        };
        Ok(Started::at(position, before, self.next_deadline()))
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        if Bag::owns(position) {
            self.overdue.remove(records, position);
        } else {
            self.remove(records, position.number() as usize);
        }
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        let next = self.timers.first().map(|&(deadline, _)| deadline);
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
        match self.timers.first() {
            Some(&(deadline, id)) if deadline <= now => {
                self.remove(records, 0);
                records.set_position(id, Position::NONE);
                Step::Fired(id, deadline)
            }
            _ => Step::Idle,
        }
    }
}
