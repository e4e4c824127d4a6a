//! Scheme 7 of Varghese & Lauck (1987), driven by a queue of bucket deadlines as in Kafka's purgatory.
//!
//! Levels of `size` slots, each level's slot as wide as the whole level below it, grown as far timeouts ask for them.
//! A timer waits in the bucket that [`Radix::locate`] names; when a bucket of a higher level is due, its timers are
//! filed again from there (they *cascade*) until each lies in a slot one tick wide, so firing is exact.
//!
//! The deadlines of the non-empty buckets stand in a binary heap: time jumps from bucket to bucket, and empty slots
//! cost nothing.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1); O(log buckets) when the bucket was empty |
//! | advance | O(1) per fired timer and per cascade; at most one cascade per level and timer |
//! | idle | nothing |
//!
//! The wheel is advanced in small steps, between which its owner may release a lock and others start and stop timers.
//!
//! INVARIANT: a bucket has at most one deadline in the heap, and has one whenever it is not empty. (An emptied bucket
//! keeps its deadline until that comes to the top.)
//! An advance is a *pass*: it fires what was due when it began, and leaves for the next pass what its visitors start
//! meanwhile, however close, so that every pass ends.
//!
//! INVARIANT: `current` is never past the deadline of a non-empty bucket (of a level). So while a bucket drains, `current` is the
//! start of its window, and no timer started meanwhile can be filed into it.

use super::blocks::{Blocks, Bucket};
use super::radix::{Place, Radix};
use super::{Position, Records};
use crate::time::ticks::Tick;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The numbers of two buckets outside of the levels, for timers that are due already. One takes those that are started
/// so; the other is part of the pass in progress. Each pass exchanges them.
const DUE: [u32; 2] = [0, 1];

/// What one step of an advance came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// This timer is due, since the given tick. It has left the wheel.
    Fired(u32, Tick),
    /// A timer moved to a lower level.
    Cascaded,
    /// Nothing more is due.
    Idle,
}

/// A timer that was started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Started {
    /// Where it is filed, for the caller's record.
    pub(crate) position: Position,
    /// The deadline of its bucket, if that is earlier than every other's: a sleeper must hear of it.
    pub(crate) earliest: Option<Tick>,
}

/// A hierarchical timing wheel over the timers of one [`Records`].
#[derive(Debug)]
pub(crate) struct Wheel {
    radix: Radix,
    /// All buckets with a deadline up to here are empty, but for the one being drained.
    current: Tick,
    /// The present of the last pass: a deadline up to here is due already.
    seen: Tick,
    /// Which of [`DUE`] takes the timers that are started when they are due.
    fresh: usize,
    /// The earliest deadline of these.
    overdue: Tick,
    /// [`DUE`], then level by level.
    buckets: Vec<Bucket>,
    /// Deadline and number of every queued bucket.
    queue: BinaryHeap<Reverse<(Tick, u32)>>,
    blocks: Blocks,
    len: usize,
}

impl Wheel {
    /// An empty wheel of `size` slots per level at tick `current`. `size` is at least 2.
    pub(crate) fn new(size: u32, current: Tick) -> Self {
        Self {
            radix: Radix::new(size),
            current,
            seen: current,
            fresh: 0,
            overdue: Tick::MAX,
            buckets: vec![Bucket::EMPTY; DUE.len()],
            queue: BinaryHeap::new(),
            blocks: Blocks::new(),
            len: 0,
        }
    }

    /// Timers in the wheel.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Starts timer `id`, due at `deadline`. `now` is the present, or a tick before it.
    #[inline(always)]
    pub(crate) fn start(&mut self, id: u32, deadline: Tick, now: Tick) -> Started {
        // An idle wheel has fallen behind; from the true present, the timer's level is lower and cascades fewer.
        let limit = match self.next_bucket() {
            Some(next) => now.min(next.saturating_sub(1)),
            None => now,
        };
        self.current = self.current.max(limit);
        self.len += 1;
        if deadline <= self.current.max(self.seen) {
            self.start_due(id, deadline)
        } else {
            self.file(id, deadline)
        }
    }

    /// Starts a timer that is due already: in the next pass.
    #[cold]
    fn start_due(&mut self, id: u32, deadline: Tick) -> Started {
        let number = DUE[self.fresh];
        let bucket = &mut self.buckets[number as usize];
        if bucket.is_empty() {
            self.overdue = Tick::MAX;
        }
        let earliest = Some(deadline).filter(|&deadline| deadline < self.overdue);
        self.overdue = self.overdue.min(deadline);
        let position = self.blocks.push(bucket, number, id);
        Started { position, earliest }
    }

    /// Stops the timer at `position`, if that is in the wheel.
    #[inline(always)]
    pub(crate) fn stop(&mut self, records: &mut impl Records, position: Position) {
        if position == Position::NONE {
            return;
        }
        let number = self.blocks.bucket_of(position) as usize;
        let moved = self.blocks.remove(&mut self.buckets[number], position);
        if let Some((other, position)) = moved {
            records.set_position(other, position);
        }
        self.len -= 1;
    }

    /// The earliest deadline of a non-empty bucket: before it, an advance has nothing to do.
    pub(crate) fn next_deadline(&mut self) -> Option<Tick> {
        let next = self.next_bucket();
        if self.buckets[DUE[self.fresh] as usize].is_empty() {
            next
        } else {
            Some(next.map_or(self.overdue, |next| next.min(self.overdue)))
        }
    }

    /// The same without the bucket that waits for the next pass.
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

    /// Begins a pass at `now`.
    pub(crate) fn begin_pass(&mut self, now: Tick) {
        self.seen = self.seen.max(now);
        let [fresh, old] = [self.fresh, 1 - self.fresh].map(|which| DUE[which]);
        // (Not empty: another pass is in progress.)
        if self.buckets[old as usize].is_empty() && !self.buckets[fresh as usize].is_empty() {
            self.fresh = 1 - self.fresh;
            self.enqueue(fresh, self.current);
        }
    }

    /// Does one thing that is due at `now`. The caller begins a pass, and repeats this until it is [`Step::Idle`].
    pub(crate) fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        let due = self.next_bucket().filter(|&deadline| deadline <= now);
        self.current = self.current.max(due.unwrap_or(now));
        let (Some(_), Some(&Reverse((_, number)))) = (due, self.queue.peek()) else {
            return Step::Idle;
        };
        let Some((id, _)) = self.blocks.pop(&mut self.buckets[number as usize]) else {
            return Step::Idle;
        };
        let deadline = records.deadline(id);
        if deadline <= self.current {
            records.set_position(id, Position::NONE);
            self.len -= 1;
            Step::Fired(id, deadline)
        } else {
            records.set_position(id, self.file(id, deadline).position);
            Step::Cascaded
        }
    }

    /// Puts timer `id` into its bucket, seen from `current`, which is before `deadline`.
    #[inline(always)]
    fn file(&mut self, id: u32, deadline: Tick) -> Started {
        let Place { level, slot, start } = self.radix.locate(self.current, deadline);
        let number = DUE.len() as u32 + level * self.radix.size() + slot;
        if number as usize >= self.buckets.len() {
            self.grow(number);
        }
        let bucket = &mut self.buckets[number as usize];
        let position = self.blocks.push(bucket, number, id);
        let earliest = if bucket.queued {
            None
        } else {
            self.enqueue(number, start)
        };
        Started { position, earliest }
    }

    /// Queues a bucket's deadline, unless it is. Returns it if it is the earliest.
    #[cold]
    fn enqueue(&mut self, number: u32, start: Tick) -> Option<Tick> {
        let bucket = &mut self.buckets[number as usize];
        if bucket.queued {
            return None;
        }
        bucket.queued = true;
        let first = self.queue.peek().map(|&Reverse((first, _))| first);
        self.queue.push(Reverse((start, number)));
        Some(start).filter(|&start| first.is_none_or(|first| start < first))
    }

    /// Adds overflow levels up to the one of bucket `number`.
    #[cold]
    fn grow(&mut self, number: u32) {
        let size = self.radix.size() as usize;
        let levels = (number as usize - DUE.len()) / size + 1;
        self.buckets
            .resize(DUE.len() + levels * size, Bucket::EMPTY);
    }
}
