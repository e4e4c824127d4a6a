//! The *overdue* timers: timers whose deadline had passed when they were started.
//!
//! An overdue timer waits for the next pass (round of expiry), in an unordered vector. Each pass examines every timer
//! of the vector once. [`UnorderedList`](crate::UnorderedList) consists of this vector only: it keeps all timers here,
//! overdue or not.
//!
//! The vector has two parts:
//!
//! 1. the timers that the pass in progress has not examined yet;
//! 2. the timers that this pass has examined, and the timers that were started since this pass began.
//!
//! A removal fills the hole with the last timer of the same part. If the hole was in the first part, there is then a
//! hole between the parts, and the last timer of the vector fills it. So both parts stay contiguous, and a removal
//! moves at most two other timers.
//!
//! The [`Position`] of an overdue timer has its highest bit set. The positions of all other timers have this bit clear,
//! so a stop sees from the position where the timer lies.

use crate::record::{Position, Records, Step, Tick};

/// This bit is set in every position of an overdue timer.
const OVERDUE: u32 = 1 << 31;

/// Timers in no particular order, and the tick at which the caller has begun its latest pass (round of expiry).
#[derive(Debug)]
pub(crate) struct Overdue {
    /// The latest tick at which a pass (one round in which due timers fire) has begun. A timer that is started with a
    /// deadline up to this tick is overdue.
    present: Tick,
    timers: Vec<(Tick, u32)>,
    /// The number of timers in the first part of the vector, which the pass in progress has not examined yet.
    unexamined: usize,
    /// A lower bound of the deadlines. A push may lower this bound, and a removal leaves it unchanged.
    /// [`tighten`](Self::tighten), or the first push into an empty vector, makes the bound equal to the earliest
    /// deadline.
    earliest: Tick,
}

impl Overdue {
    pub(crate) fn new(now: Tick) -> Self {
        Self {
            present: now,
            timers: Vec::new(),
            unexamined: 0,
            earliest: Tick::MAX,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.timers.len()
    }

    /// The latest tick at which a pass (one round in which due timers fire) has begun.
    #[inline]
    pub(crate) fn present(&self) -> Tick {
        self.present
    }

    /// Whether `position` is the position of an overdue timer. Returns `true` for [`Position::NONE`] too.
    #[inline]
    pub(crate) fn owns(position: Position) -> bool {
        position.number() >= OVERDUE
    }

    /// A tick at or before the earliest deadline of the timers here. `None` if there are no timers.
    #[inline]
    pub(crate) fn earliest(&self) -> Option<Tick> {
        (!self.timers.is_empty()).then_some(self.earliest)
    }

    /// The earlier of [`earliest`](Self::earliest) and `other`. `None` if both are `None`.
    #[inline]
    pub(crate) fn earliest_or(&self, other: Option<Tick>) -> Option<Tick> {
        self.earliest().into_iter().chain(other).min()
    }

    /// Makes [`earliest`](Self::earliest) equal to the earliest deadline. Reads the deadline of every timer here.
    pub(crate) fn tighten(&mut self) {
        let deadlines = self.timers.iter().map(|&(deadline, _)| deadline);
        self.earliest = deadlines.min().unwrap_or(Tick::MAX);
    }

    pub(crate) fn push(&mut self, id: u32, deadline: Tick) -> Position {
        self.earliest = self.earliest_or(Some(deadline)).unwrap_or(deadline);
        self.timers.push((deadline, id));
        Self::position(self.timers.len() - 1)
    }

    /// Removes the timer at `position`. Does nothing if no overdue timer has this position.
    #[cold]
    pub(crate) fn remove(&mut self, records: &mut impl Records, position: Position) {
        let mut hole = (position.number() & !OVERDUE) as usize;
        if !Self::owns(position) || hole >= self.timers.len() {
            return;
        }
        if hole < self.unexamined {
            self.unexamined -= 1;
            self.fill(records, hole, self.unexamined);
            hole = self.unexamined;
        }
        self.fill(records, hole, self.timers.len() - 1);
        self.timers.pop();
    }

    /// Begins a pass at `now`. The pass will examine every timer that is here now.
    #[inline]
    pub(crate) fn begin_pass(&mut self, now: Tick) {
        self.present = self.present.max(now);
        self.unexamined = self.timers.len();
    }

    /// Examines one timer for the pass in progress, and fires the timer if its deadline is not later than `now`.
    /// Returns [`Step::Idle`] if the pass has examined every timer.
    #[inline]
    pub(crate) fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        // If a later pass has begun meanwhile, leave the timers to it: a timer that this earlier pass examines and does
        // not fire, because its deadline is later than `now`, would not be examined by the later pass.
        if self.unexamined == 0 || now < self.present {
            return Step::Idle;
        }
        self.examine(records, now)
    }

    #[cold]
    fn examine(&mut self, records: &mut impl Records, now: Tick) -> Step {
        let last = self.unexamined - 1;
        let (deadline, id) = self.timers[last];
        if deadline > now {
            self.unexamined = last;
            return Step::Bookkeeping;
        }
        self.remove(records, Self::position(last));
        Step::fire(records, id, deadline)
    }

    /// Moves the timer at index `from` to index `hole`.
    fn fill(&mut self, records: &mut impl Records, hole: usize, from: usize) {
        if hole != from {
            self.timers[hole] = self.timers[from];
            records.set_position(self.timers[hole].1, Self::position(hole));
        }
    }

    fn position(index: usize) -> Position {
        Position::new(OVERDUE | index as u32)
    }
}
