//! Scheme 7 of Varghese & Lauck (1987), with a queue of bucket deadlines.
//!
//! Each level has `slots` slots, rounded up to a power of two, and a slot is as wide as the whole level below. A level
//! is added when a deadline needs it. A *bucket* is a slot of a level with its timers;
//! [`Geometry::locate`](crate::parts::geometry::Geometry::locate) chooses the bucket of a timer.
//!
//! The *deadline* of a bucket is the first tick of its window, the range of deadlines that it holds. When time reaches
//! the deadline of a bucket, timers with this deadline fire. The others *cascade*: each moves to a bucket of a lower
//! level. A bucket of the lowest level is one tick wide. So each timer fires exactly in its tick.
//!
//! A binary heap holds the deadlines of the buckets that are not empty. So time jumps from bucket to bucket, and empty
//! slots cost nothing.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1); O(log buckets) if the bucket was empty |
//! | tick | O(1) per fired timer and per cascade, with at most one cascade per level and timer; an empty tick costs nothing |
//! | space | the slots of the levels in use, and the timers |
//!
//! *Used by* Kafka's request purgatory, which queues its buckets in a `DelayQueue`. *Choose it* if timeouts vary widely
//! or are sparse, if an idle timer must not wake its thread, or if you are in doubt.
//!
//! INVARIANT: a bucket that is not empty has exactly one entry in the heap, and an empty bucket has at most one. When a
//! bucket becomes empty, its entry stays in the heap until it comes to the top.
//!
//! INVARIANT: `current`, the tick that the wheel has reached, is never past the deadline of a bucket that is not empty.
//! To drain a bucket, a pass moves `current` to the bucket's deadline, where `current` stays until the bucket is empty.
//! A timer that is started meanwhile has a later deadline. Even if this deadline lies in the window of the same bucket,
//! the timer is filed on a lower level. So the pass does not meet it.

use crate::parts::bucket_pool::Entry;
use crate::parts::levels::Levels;
use crate::parts::overdue::Overdue;
use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use crate::scheme::{Scheme, sealed::Sealed};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Scheme 7 of Varghese & Lauck (1987): a hierarchical timing wheel with a queue of bucket deadlines, as in Kafka.
///
/// The number of slots per level is rounded up to a power of two.
#[derive(Debug)]
pub struct HierarchicalWheel {
    levels: Levels,
    /// A bucket whose number is lower than this spans so few ticks that the low bits of a deadline, which an [`Entry`]
    /// keeps, are enough to compute the deadline.
    narrow: u32,
    /// The tick that the wheel has reached: all buckets with a deadline up to this tick are empty, except the bucket
    /// from which a pass is taking the timers.
    current: Tick,
    /// An entry for each queued bucket: the deadline and the number of the bucket, the earliest deadline first. The
    /// deadline of a bucket is the first tick of the range of deadlines that it holds.
    queue: BinaryHeap<Reverse<(Tick, u32)>>,
    overdue: Overdue,
    /// The number of timers in the buckets.
    len: usize,
}

impl HierarchicalWheel {
    #[cold]
    fn start_overdue(&mut self, id: u32, deadline: Tick) -> Started {
        let before = self.next_deadline();
        let position = self.overdue.push(id, deadline);
        Started::at(position, before, self.next_deadline())
    }

    /// The earliest deadline of a bucket that is not empty. Removes entries of empty buckets from the top of the queue.
    /// `None` if all buckets are empty.
    #[inline(always)]
    fn next_bucket(&mut self) -> Option<Tick> {
        while let Some(&Reverse((deadline, number))) = self.queue.peek() {
            let bucket = self.levels.bucket(number);
            if !bucket.is_empty() {
                return Some(deadline);
            }
            bucket.queued = false;
            self.queue.pop();
        }
        None
    }

    /// Files timer `id` in the bucket for `deadline`, which is later than `current`.
    #[inline(always)]
    fn file(&mut self, id: u32, deadline: Tick) -> Started {
        let location = self.levels.geometry().locate(self.current, deadline);
        let number = location.bucket;
        let (position, bucket) = self.levels.push(number, id, deadline);
        let earliest = if bucket.queued {
            None
        } else {
            self.enqueue(number, location.start)
        };
        Started { position, earliest }
    }

    /// The part of a [`step`](Scheme::step) that takes timers out of buckets.
    fn step_in_buckets(&mut self, records: &mut impl Records, now: Tick) -> Step {
        let due = self.next_bucket().filter(|&deadline| deadline <= now);
        self.current = self.current.max(due.unwrap_or(now));
        let (Some(_), Some(&Reverse((_, number)))) = (due, self.queue.peek()) else {
            return Step::Idle;
        };
        let Some(entry) = self.levels.pop(number) else {
            return Step::Idle;
        };
        let deadline = self.deadline_of(entry, number, records);
        if deadline <= self.current {
            self.len -= 1;
            Step::fire(records, entry.id, deadline)
        } else {
            let position = self.file(entry.id, deadline).position;
            records.set_position(entry.id, position);
            Step::Bookkeeping
        }
    }

    /// The deadline of the timer of `entry`, which lies in bucket `number`. The bucket's range of deadlines starts at
    /// `current`. Reads the timer's record only if necessary: the records of a bucket's timers lie far apart in memory,
    /// and each read is a likely cache miss.
    #[inline]
    fn deadline_of(&self, entry: Entry, number: u32, records: &impl Records) -> Tick {
        if number < self.narrow {
            let deadline = entry.deadline_from(self.current);
            debug_assert_eq!(deadline, records.deadline(entry.id));
            deadline
        } else {
            records.deadline(entry.id)
        }
    }

    /// Queues bucket `number`, whose deadline is `start`. Returns `start` if `start` is now the earliest deadline of
    /// the scheme, otherwise `None`.
    #[cold]
    fn enqueue(&mut self, number: u32, start: Tick) -> Option<Tick> {
        self.levels.bucket(number).queued = true;
        let first = self.queue.peek().map(|&Reverse((first, _))| first);
        let before = self.overdue.earliest_or(first);
        self.queue.push(Reverse((start, number)));
        Some(start).filter(|&start| before.is_none_or(|before| start < before))
    }
}

impl Sealed for HierarchicalWheel {}

impl Scheme for HierarchicalWheel {
    fn new(slots: u32, now: Tick) -> Self {
        let levels = Levels::new(slots);
        let geometry = levels.geometry();
        Self {
            levels,
            narrow: geometry.levels_within(Entry::WINDOW) * geometry.size(),
            current: now,
            queue: BinaryHeap::new(),
            overdue: Overdue::new(now),
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
    ) -> Result<Started, HorizonError> {
        // First move `current` forward, because after an idle time `current` is far behind `now`. The nearer `current`
        // is to the timer's deadline, the lower is the timer's level, and the less often the timer moves between
        // levels. But keep `current` before the deadline of the next bucket with timers, because a pass has yet to
        // drain this bucket.
        let limit = match self.next_bucket() {
            Some(next) => now.min(next.saturating_sub(1)),
            None => now,
        };
        self.current = self.current.max(limit);
        if deadline <= self.current.max(self.overdue.present()) {
            return Ok(self.start_overdue(id, deadline));
        }
        self.len += 1;
        Ok(self.file(id, deadline))
    }

    #[inline(always)]
    fn stop(&mut self, records: &mut impl Records, position: Position) {
        match self.levels.remove(records, position) {
            Some(_) => self.len -= 1,
            // The position lies in no bucket, so the timer may be overdue: started after its deadline. Overdue timers
            // are rare, so look for them last.
            None => self.overdue.remove(records, position),
        }
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        let next = self.next_bucket();
        self.overdue.earliest_or(next)
    }

    fn begin_pass(&mut self, now: Tick) {
        self.overdue.begin_pass(now);
    }

    fn upcoming(&self) -> impl Iterator<Item = u32> {
        let next = self.queue.peek().map(|&Reverse((_, number))| number);
        next.into_iter().flat_map(|number| self.levels.ids(number))
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        self.overdue
            .step(records, now)
            .or_else(|| self.step_in_buckets(records, now))
    }
}
