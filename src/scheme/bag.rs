//! An unordered bag of timers that a pass goes through once.
//!
//! It is all of scheme 1, and the anteroom of every other scheme: there, a timer that is due already when it is
//! started goes into the bag, and so waits for the next pass.
//!
//! The vector has two parts: first what the pass in progress has still to look at, then what it has looked at or what
//! was started since it began. A removal fills the hole from the end of its part, and a hole between the parts from the
//! end of the vector, so both parts stay whole and at most two other timers move.
//!
//! A [`Position`] here has its highest bit set, which tells it from those of the scheme around the bag.

use super::{Position, Records, Step, Tick};

/// Set in the positions of a bag.
const HERE: u32 = 1 << 31;

/// Timers in no order.
#[derive(Debug)]
pub(crate) struct Bag {
    timers: Vec<(Tick, u32)>,
    /// The pass in progress has still to look at so many, the first ones.
    unseen: usize,
    /// No deadline here is earlier. Exact, but for timers that have left since.
    earliest: Tick,
}

impl Bag {
    pub(crate) fn new() -> Self {
        Self {
            timers: Vec::new(),
            unseen: 0,
            earliest: Tick::MAX,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.timers.len()
    }

    /// Whether `position` is one in a bag. [`Position::NONE`] is taken for one.
    #[inline(always)]
    pub(crate) fn owns(position: Position) -> bool {
        position.0 >= HERE
    }

    /// At or before the earliest deadline.
    #[inline(always)]
    pub(crate) fn earliest(&self) -> Option<Tick> {
        (!self.timers.is_empty()).then_some(self.earliest)
    }

    /// Makes [`earliest`](Self::earliest) exact. Looks at every timer.
    #[cfg(any(test, feature = "reference-schemes"))]
    pub(crate) fn tighten(&mut self) {
        let deadlines = self.timers.iter().map(|&(deadline, _)| deadline);
        self.earliest = deadlines.min().unwrap_or(Tick::MAX);
    }

    pub(crate) fn push(&mut self, id: u32, deadline: Tick) -> Position {
        let earliest = self.earliest().unwrap_or(Tick::MAX);
        self.earliest = earliest.min(deadline);
        self.timers.push((deadline, id));
        Self::position(self.timers.len() - 1)
    }

    /// Removes the timer at `position`, if there is one here.
    #[cold]
    pub(crate) fn remove(&mut self, records: &mut impl Records, position: Position) {
        let mut hole = (position.0 & !HERE) as usize;
        if !Self::owns(position) || hole >= self.timers.len() {
            return;
        }
        if hole < self.unseen {
            self.unseen -= 1;
            self.fill(records, hole, self.unseen);
            hole = self.unseen;
        }
        self.fill(records, hole, self.timers.len() - 1);
        self.timers.pop();
    }

    /// The pass that begins has all of them to look at.
    #[inline(always)]
    pub(crate) fn begin_pass(&mut self) {
        self.unseen = self.timers.len();
    }

    /// Looks at one timer for the pass in progress.
    #[inline(always)]
    pub(crate) fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        if self.unseen == 0 {
            return Step::Idle;
        }
        self.look(records, now)
    }

    #[cold]
    fn look(&mut self, records: &mut impl Records, now: Tick) -> Step {
        let last = self.unseen - 1;
        let (deadline, id) = self.timers[last];
        if deadline > now {
            self.unseen = last;
            return Step::Bookkeeping;
        }
        self.remove(records, Self::position(last));
        records.set_position(id, Position::NONE);
        Step::Fired(id, deadline)
    }

    /// Moves a timer into a hole.
    fn fill(&mut self, records: &mut impl Records, hole: usize, from: usize) {
        if hole != from {
            self.timers[hole] = self.timers[from];
            records.set_position(self.timers[hole].1, Self::position(hole));
        }
    }

    fn position(place: usize) -> Position {
        Position(HERE | place as u32)
    }
}
