//! Scheme 7 of Varghese & Lauck (1987), driven tick by tick.
//!
//! The levels, slots and cascades of a [`HierarchicalWheel`](super::HierarchicalWheel), but nothing knows which buckets
//! are empty: the wheel wants to be advanced at every tick while there is a timer, and goes through its slots one by
//! one. What it does know is how many timers each level has. So a late pass goes through at most one revolution of a
//! level, and then from slot to slot of the next one up. A bucket that it comes to gives its timers to the slots
//! below, or fires them if the pass reaches so far. Timers fire by deadline at a tick's accuracy, but those that a
//! late pass finds in a bucket of a higher level in no order; before them those that were due when they were started.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1) |
//! | a tick | O(1), and O(1) per fired timer and per cascade, at most one cascade per level and timer; a jump no more than O(slots × levels) beside |
//! | space | the slots of the levels in use |
//!
//! *Used by* Linux until 4.7, and NetBSD's callouts. (tokio's wheel has these levels, and a bitmap of the slots in use
//! for each.) *Choose it* where a tick comes anyway and the wheel need not ask for it.
//!
//! INVARIANT: `current` is never past the start of a non-empty bucket. While a bucket drains, `current` is the start of
//! its window, and no timer started meanwhile can be filed into it.

use super::bag::Bag;
use super::blocks::{Blocks, Bucket, Timer};
use super::radix::{Place, Radix};
use super::{BeyondSpan, Position, Records, Scheme, Started, Step, Tick};

/// Scheme 7: a hierarchical timing wheel that is advanced through empty buckets.
#[derive(Debug)]
pub struct SteppedWheel {
    radix: Radix,
    /// All buckets that start up to here are empty, but for the one being drained.
    current: Tick,
    /// The present of the last pass: a deadline up to here is due already.
    seen: Tick,
    /// The bucket that starts at `current`, until it is found empty.
    draining: Option<u32>,
    /// How many timers each level has.
    filed: Vec<usize>,
    /// Level by level.
    buckets: Vec<Bucket>,
    blocks: Blocks,
    /// The timers that were due when they were started.
    overdue: Bag,
    /// Timers in the buckets.
    len: usize,
}

impl SteppedWheel {
    /// Sets a wheel whose buckets are all empty to `now`: from the true present, a timer's level is lower.
    fn wind(&mut self, now: Tick) {
        if self.len == 0 {
            self.current = self.current.max(now);
            self.draining = None;
        }
    }

    /// The place of the next bucket that `current` comes to, in the lowest level with any timer.
    fn next_place(&self) -> Option<Place> {
        let level = self.filed.iter().position(|&timers| timers > 0)?;
        // INVARIANT: a timer of this level lies in a later slot of the same revolution, so its slots do not end here.
        let start = self.radix.next_slot(self.current, level as u32);
        Some(self.radix.locate(self.current, start))
    }

    /// Puts timer `id` into its bucket, seen from `current`, which is before `deadline`.
    fn file(&mut self, id: u32, deadline: Tick) -> Position {
        let place = self.radix.locate(self.current, deadline);
        let levels = place.level as usize + 1;
        if levels > self.filed.len() {
            self.filed.resize(levels, 0);
            let buckets = levels * self.radix.size() as usize;
            self.buckets.resize(buckets, Bucket::EMPTY);
        }
        let number = self.number(place);
        self.count_in(number);
        let bucket = &mut self.buckets[number as usize];
        self.blocks.push(bucket, number, Timer::new(id, deadline))
    }

    fn number(&self, place: Place) -> u32 {
        place.level * self.radix.size() + place.slot
    }

    fn count_in(&mut self, number: u32) {
        self.filed[(number / self.radix.size()) as usize] += 1;
        self.len += 1;
    }

    fn count_out(&mut self, number: u32) {
        self.filed[(number / self.radix.size()) as usize] -= 1;
        self.len -= 1;
    }
}

impl Scheme for SteppedWheel {
    fn new(slots: u32, now: Tick) -> Self {
        Self {
            radix: Radix::new(slots.max(2)),
            current: now,
            seen: now,
            draining: None,
            filed: Vec::new(),
            buckets: Vec::new(),
            blocks: Blocks::new(),
            overdue: Bag::new(),
            len: 0,
        }
    }

    fn len(&self) -> usize {
        self.len + self.overdue.len()
    }

    fn start(
        &mut self,
        _: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, BeyondSpan> {
        self.wind(now);
        let before = self.next_deadline();
        let position = if deadline <= self.current.max(self.seen) {
            self.overdue.push(id, deadline)
        } else {
            self.file(id, deadline)
        };
        Ok(Started::at(position, before, self.next_deadline()))
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        if Bag::owns(position) {
            self.overdue.remove(records, position);
            return;
        }
        let number = self.blocks.bucket_of(position);
        let Some(bucket) = self
            .buckets
            .get_mut(number as usize)
            .filter(|bucket| !bucket.is_empty())
        else {
            return;
        };
        let moved = self.blocks.remove(bucket, position);
        if let Some((other, position)) = moved {
            records.set_position(other, position);
        }
        self.count_out(number);
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        let open = self
            .draining
            .is_some_and(|number| !self.buckets[number as usize].is_empty());
        let tick = self.current.saturating_add(u64::from(!open));
        let next = (self.len > 0).then_some(tick);
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
        // (Past it: another pass is further on.)
        if self.current > now {
            return Step::Idle;
        }
        if let Some(number) = self.draining {
            if let Some((Timer { id, .. }, _)) = self.blocks.pop(&mut self.buckets[number as usize])
            {
                self.count_out(number);
                let deadline = records.deadline(id);
                let due = deadline <= now;
                let position = if due {
                    Position::NONE
                } else {
                    self.file(id, deadline)
                };
                records.set_position(id, position);
                return if due {
                    Step::Fired(id, deadline)
                } else {
                    Step::Bookkeeping
                };
            }
            self.draining = None;
        }
        match self.next_place().filter(|place| place.start <= now) {
            Some(place) => {
                self.current = place.start;
                self.draining = Some(self.number(place));
                Step::Bookkeeping
            }
            None => {
                self.current = now;
                Step::Idle
            }
        }
    }
}
