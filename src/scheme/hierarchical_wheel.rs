//! Scheme 7 of Varghese & Lauck (1987), driven by a queue of bucket deadlines.
//!
//! Levels of `slots` slots, each level's slot as wide as the whole level below it, grown as far timeouts ask for them.
//! A timer waits in the bucket that [`Radix::locate`] names; when a bucket of a higher level is due, its timers are
//! filed again from there (they *cascade*) until each lies in a slot one tick wide, so firing is exact.
//!
//! The deadlines of the non-empty buckets stand in a binary heap: time jumps from bucket to bucket, and empty slots
//! cost nothing.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1); O(log buckets) when the bucket was empty |
//! | a tick | O(1) per fired timer and per cascade, at most one cascade per level and timer; an empty tick nothing |
//! | space | the slots of the levels in use |
//!
//! *Used by* Kafka's request purgatory, which queues its buckets in a `DelayQueue`. *Choose it* where timeouts are
//! wide or sparse, where an idle timer must not wake, or when in doubt.
//!
//! INVARIANT: a bucket has at most one deadline in the heap, and has one whenever it is not empty. (An emptied bucket
//! keeps its deadline until that comes to the top.)
//!
//! INVARIANT: `current` is never past the deadline of a non-empty bucket of a level. So while a bucket drains,
//! `current` is the start of its window, and no timer started meanwhile can be filed into it.

use super::bag::Bag;
use super::blocks::{Blocks, Bucket, Timer};
use super::radix::{Place, Radix};
use super::{BeyondSpan, Position, Records, Scheme, Started, Step, Tick};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Scheme 7: a hierarchical timing wheel whose bucket deadlines stand in a queue, as Kafka's do.
#[derive(Debug)]
pub struct HierarchicalWheel {
    radix: Radix,
    /// In buckets below this number the low bits of the deadlines tell them apart.
    told_apart: u32,
    /// All buckets with a deadline up to here are empty, but for the one being drained.
    current: Tick,
    /// The present of the last pass: a deadline up to here is due already.
    seen: Tick,
    /// Level by level.
    buckets: Vec<Bucket>,
    /// Deadline and number of every queued bucket.
    queue: BinaryHeap<Reverse<(Tick, u32)>>,
    blocks: Blocks,
    /// The timers that were due when they were started.
    overdue: Bag,
    /// Timers in the buckets.
    len: usize,
}

impl HierarchicalWheel {
    /// Starts a timer that is due already: in the next pass.
    #[cold]
    fn start_due(&mut self, id: u32, deadline: Tick) -> Started {
        let before = self.next_deadline();
        let position = self.overdue.push(id, deadline);
        Started::at(position, before, self.next_deadline())
    }

    /// The earliest deadline of a non-empty bucket.
    #[inline(always)]
    fn next_bucket(&mut self) -> Option<Tick> {
        while let Some(&Reverse((deadline, number))) = self.queue.peek() {
            let bucket = &mut self.buckets[number as usize];
            if !bucket.is_empty() {
                return Some(deadline);
            }
            bucket.queued = false;
            self.queue.pop();
        }
        None
    }

    /// Puts timer `id` into its bucket, seen from `current`, which is before `deadline`.
    #[inline(always)]
    fn file(&mut self, id: u32, deadline: Tick) -> Started {
        let Place { level, slot, start } = self.radix.locate(self.current, deadline);
        let number = level * self.radix.size() + slot;
        if number as usize >= self.buckets.len() {
            self.grow(number);
        }
        let bucket = &mut self.buckets[number as usize];
        let timer = Timer::new(id, deadline);
        let position = self.blocks.push(bucket, number, timer);
        let earliest = if bucket.queued {
            None
        } else {
            self.enqueue(number, start)
        };
        Started { position, earliest }
    }

    /// The deadline of a timer of bucket `number`, whose window starts at `current`. Timers lie far apart, and a look at
    /// the record of one waits for memory; so it is asked only where windows are wider than the low bits can count.
    #[inline(always)]
    fn deadline_of(&self, timer: Timer, number: u32, records: &impl Records) -> Tick {
        if number < self.told_apart {
            let deadline = timer.deadline_from(self.current);
            debug_assert_eq!(deadline, records.deadline(timer.id));
            deadline
        } else {
            records.deadline(timer.id)
        }
    }

    /// Queues a bucket's deadline. Returns it if it is the earliest.
    #[cold]
    fn enqueue(&mut self, number: u32, start: Tick) -> Option<Tick> {
        self.buckets[number as usize].queued = true;
        let first = self.queue.peek().map(|&Reverse((first, _))| first);
        let before = self.overdue.earliest().into_iter().chain(first).min();
        self.queue.push(Reverse((start, number)));
        Some(start).filter(|&start| before.is_none_or(|before| start < before))
    }

    /// Adds overflow levels up to the one of bucket `number`.
    #[cold]
    fn grow(&mut self, number: u32) {
        let size = self.radix.size() as usize;
        let levels = number as usize / size + 1;
        self.buckets.resize(levels * size, Bucket::EMPTY);
    }
}

impl Scheme for HierarchicalWheel {
    fn new(slots: u32, now: Tick) -> Self {
        let radix = Radix::new(slots.max(2));
        Self {
            radix,
            told_apart: radix.levels_within(Timer::WINDOW) * radix.size(),
            current: now,
            seen: now,
            buckets: Vec::new(),
            queue: BinaryHeap::new(),
            blocks: Blocks::new(),
            overdue: Bag::new(),
            len: 0,
        }
    }

    fn len(&self) -> usize {
        self.len + self.overdue.len()
    }

    #[inline(always)]
    fn start(
        &mut self,
        _: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, BeyondSpan> {
        // An idle wheel has fallen behind; from the true present, the timer's level is lower and cascades fewer.
        let limit = match self.next_bucket() {
            Some(next) => now.min(next.saturating_sub(1)),
            None => now,
        };
        self.current = self.current.max(limit);
        if deadline <= self.current.max(self.seen) {
            return Ok(self.start_due(id, deadline));
        }
        self.len += 1;
        Ok(self.file(id, deadline))
    }

    #[inline(always)]
    fn stop(&mut self, records: &mut impl Records, position: Position) {
        let number = self.blocks.bucket_of(position) as usize;
        let Some(bucket) = self.buckets.get_mut(number).filter(|b| !b.is_empty()) else {
            // Asked last, since it is rarely so: no block has a position of the bag.
            return self.overdue.remove(records, position);
        };
        let moved = self.blocks.remove(bucket, position);
        if let Some((other, position)) = moved {
            records.set_position(other, position);
        }
        self.len -= 1;
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        let next = self.next_bucket();
        self.overdue.earliest().into_iter().chain(next).min()
    }

    fn begin_pass(&mut self, now: Tick) {
        self.seen = self.seen.max(now);
        self.overdue.begin_pass();
    }

    fn upcoming(&self) -> impl Iterator<Item = u32> {
        let next = self.queue.peek();
        let bucket = next.map(|&Reverse((_, number))| &self.buckets[number as usize]);
        bucket
            .into_iter()
            .flat_map(|bucket| self.blocks.ids(bucket))
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        let step = self.overdue.step(records, now);
        if step != Step::Idle {
            return step;
        }
        let due = self.next_bucket().filter(|&deadline| deadline <= now);
        self.current = self.current.max(due.unwrap_or(now));
        let (Some(_), Some(&Reverse((_, number)))) = (due, self.queue.peek()) else {
            return Step::Idle;
        };
        let Some((timer, _)) = self.blocks.pop(&mut self.buckets[number as usize]) else {
            return Step::Idle;
        };
        let id = timer.id;
        let deadline = self.deadline_of(timer, number, records);
        if deadline <= self.current {
            records.set_position(id, Position::NONE);
            self.len -= 1;
            Step::Fired(id, deadline)
        } else {
            records.set_position(id, self.file(id, deadline).position);
            Step::Bookkeeping
        }
    }
}
