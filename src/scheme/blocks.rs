//! The contents of buckets: unordered bags of timers in blocks of fixed size.
//!
//! A timer is an id here, and the lowest bits of its deadline: enough for the wheel to move it on without a look at its
//! record, which is rarely in a cache.
//!
//! A bucket is a chain of blocks, of which only the topmost is not full. A timer's [`Position`] is its block and its
//! place in it, so removal is one swap with the bucket's last timer: O(1), and no neighbour is touched but that one.
//! Blocks come from a pool that all buckets of a wheel share and that grows by whole pages, so that no growth copies
//! what is there.

use super::{Position, Tick};
use crate::sync::BLOCK;

/// Blocks are allocated so many at a time: 24 KiB.
const PAGE: usize = 64;
const NIL: u32 = u32::MAX;

/// One bucket: a handle to its topmost block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    top: u32,
    /// For the owner of the bucket: whether its deadline stands in the queue of bucket deadlines.
    pub(crate) queued: bool,
}

impl Bucket {
    pub(crate) const EMPTY: Self = Self {
        top: NIL,
        queued: false,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.top == NIL
    }
}

/// A timer in a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timer {
    pub(crate) id: u32,
    /// The lowest bits of its deadline.
    low: u16,
}

impl Timer {
    /// The deadlines of a window of so many ticks differ in their lowest bits.
    pub(crate) const WINDOW: Tick = 1 << u16::BITS;

    #[inline(always)]
    pub(crate) fn new(id: u32, deadline: Tick) -> Self {
        // (Cut off.)
        let low = deadline as u16;
        Self { id, low }
    }

    /// Its deadline, if that lies in the [`WINDOW`](Self::WINDOW) that begins at `start`.
    #[inline(always)]
    pub(crate) fn deadline_from(self, start: Tick) -> Tick {
        start + Tick::from(self.low.wrapping_sub(start as u16))
    }
}

#[derive(Debug, Clone, Copy)]
struct Block {
    ids: [u32; BLOCK],
    lows: [u16; BLOCK],
    len: u32,
    /// The bucket that this block belongs to.
    bucket: u32,
    /// The next lower block of the bucket, or the next free one of the pool.
    below: u32,
}

/// The pool.
#[derive(Debug)]
pub(crate) struct Blocks {
    #[allow(
        clippy::vec_box,
        reason = "pages stay where they are when the vector grows"
    )]
    pages: Vec<Box<[Block; PAGE]>>,
    free: u32,
}

/// What a removal moved: this timer is now filed there.
pub(crate) type Moved = Option<(u32, Position)>;

impl Blocks {
    pub(crate) fn new() -> Self {
        Self {
            pages: Vec::new(),
            free: NIL,
        }
    }

    #[inline(always)]
    fn block(&mut self, number: u32) -> &mut Block {
        &mut self.pages[number as usize / PAGE][number as usize % PAGE]
    }

    /// Files `timer` on top of `bucket`, whose number is `number`.
    #[inline(always)]
    pub(crate) fn push(&mut self, bucket: &mut Bucket, number: u32, timer: Timer) -> Position {
        if bucket.top == NIL {
            self.stack(bucket, number);
        }
        if self.block(bucket.top).len as usize == BLOCK {
            self.stack(bucket, number);
        }
        let top = bucket.top;
        let block = self.block(top);
        let place = block.len;
        block.ids[place as usize] = timer.id;
        block.lows[place as usize] = timer.low;
        block.len = place + 1;
        Position(top * BLOCK as u32 + place)
    }

    /// Puts an empty block on top of `bucket`.
    #[cold]
    fn stack(&mut self, bucket: &mut Bucket, number: u32) {
        let fresh = self.allocate();
        let block = self.block(fresh);
        block.len = 0;
        block.bucket = number;
        block.below = bucket.top;
        bucket.top = fresh;
    }

    /// The timers of `bucket`, in the order in which they leave.
    pub(crate) fn ids(&self, bucket: &Bucket) -> impl Iterator<Item = u32> {
        let block = |number: u32| {
            let page = self.pages.get(number as usize / PAGE)?;
            Some(&page[number as usize % PAGE])
        };
        let blocks = std::iter::successors(block(bucket.top), move |&above| block(above.below));
        blocks.flat_map(|block| block.ids[..block.len as usize].iter().rev().copied())
    }

    /// The number of the bucket in which `position` lies. If no timer is there, that of any bucket, or of none.
    #[inline(always)]
    pub(crate) fn bucket_of(&self, position: Position) -> u32 {
        let block = position.0 as usize / BLOCK;
        self.pages
            .get(block / PAGE)
            .map_or(NIL, |page| page[block % PAGE].bucket)
    }

    /// Takes the last timer of `bucket`, and says where it was.
    #[inline(always)]
    pub(crate) fn pop(&mut self, bucket: &mut Bucket) -> Option<(Timer, Position)> {
        if bucket.top == NIL {
            return None;
        }
        let top = bucket.top;
        let block = self.block(top);
        // INVARIANT: no block of a bucket is empty.
        let place = block.len - 1;
        block.len = place;
        let timer = Timer {
            id: block.ids[place as usize],
            low: block.lows[place as usize],
        };
        if place == 0 {
            bucket.top = block.below;
            self.release(top);
        }
        Some((timer, Position(top * BLOCK as u32 + place)))
    }

    /// Removes the timer at `position`, which lies in `bucket`.
    #[inline(always)]
    pub(crate) fn remove(&mut self, bucket: &mut Bucket, position: Position) -> Moved {
        let (last, last_at) = self.pop(bucket)?;
        if last_at == position {
            return None;
        }
        let (number, place) = (position.0 / BLOCK as u32, position.0 % BLOCK as u32);
        let block = self.block(number);
        block.ids[place as usize] = last.id;
        block.lows[place as usize] = last.low;
        Some((last.id, position))
    }

    fn allocate(&mut self) -> u32 {
        if self.free == NIL {
            self.grow();
        }
        let fresh = self.free;
        self.free = self.block(fresh).below;
        fresh
    }

    #[cold]
    fn grow(&mut self) {
        let first = (self.pages.len() * PAGE) as u32;
        let empty = Block {
            ids: [0; BLOCK],
            lows: [0; BLOCK],
            len: 0,
            bucket: NIL,
            below: NIL,
        };
        self.pages.push(Box::new([empty; PAGE]));
        for number in (first..first + PAGE as u32).rev() {
            self.release(number);
        }
    }

    fn release(&mut self, number: u32) {
        let free = self.free;
        self.block(number).below = free;
        self.free = number;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, HashSet};

    const BUCKETS: usize = 3;

    /// A pool with some buckets, and what should be in them: the place of each timer, by bucket and id.
    struct Model {
        blocks: Blocks,
        buckets: [Bucket; BUCKETS],
        timers: [BTreeMap<u32, Position>; BUCKETS],
        next: u32,
        /// The most blocks that were in use at once, at most.
        used: usize,
    }

    impl Model {
        fn new() -> Self {
            Self {
                blocks: Blocks::new(),
                buckets: [Bucket::EMPTY; BUCKETS],
                timers: Default::default(),
                next: 0,
                used: 0,
            }
        }

        fn push(&mut self, which: usize) {
            let timer = Timer::new(self.next, Tick::from(self.next));
            let bucket = &mut self.buckets[which];
            let position = self.blocks.push(bucket, which as u32, timer);
            self.timers[which].insert(self.next, position);
            self.next += 1;
        }

        fn pop(&mut self, which: usize) {
            let next = self.blocks.ids(&self.buckets[which]).next();
            let popped = self.blocks.pop(&mut self.buckets[which]);
            assert_eq!(popped.map(|(timer, _)| timer.id), next);
            if let Some((timer, position)) = popped {
                assert_eq!(timer.deadline_from(0), Tick::from(timer.id));
                assert_eq!(self.timers[which].remove(&timer.id), Some(position));
            }
        }

        fn remove(&mut self, which: usize, pick: prop::sample::Index) {
            let ids = self.timers[which].keys().copied().collect::<Vec<_>>();
            let Some(id) = (!ids.is_empty()).then(|| pick.get(&ids)) else {
                return;
            };
            let position = self.timers[which].remove(id).expect("it is there");
            let moved = self.blocks.remove(&mut self.buckets[which], position);
            if let Some((other, to)) = moved {
                assert_eq!(to, position, "into the place that became free");
                assert!(self.timers[which].insert(other, to).is_some());
            }
        }

        fn check(&mut self) {
            for which in 0..BUCKETS {
                let mut ids = self.blocks.ids(&self.buckets[which]).collect::<Vec<_>>();
                ids.sort_unstable();
                assert!(ids.iter().eq(self.timers[which].keys()));
                assert_eq!(self.buckets[which].is_empty(), ids.is_empty());
                for position in self.timers[which].values() {
                    assert_eq!(self.blocks.bucket_of(*position), which as u32);
                }
            }
            let places = self.timers.iter().flat_map(BTreeMap::values);
            let places = places.map(|place| place.number()).collect::<HashSet<_>>();
            let timers = self.timers.iter().map(BTreeMap::len).sum::<usize>();
            assert_eq!(places.len(), timers, "each has a place of its own");
            let used = self
                .timers
                .iter()
                .map(|timers| timers.len().div_ceil(BLOCK));
            self.used = self.used.max(used.sum());
            assert_eq!(
                self.blocks.pages.len(),
                self.used.div_ceil(PAGE),
                "no more than is needed"
            );
        }
    }

    proptest! {
        #[test]
        fn buckets_are_bags_out_of_one_pool(
            steps in prop::collection::vec((0..4_u8, 0..BUCKETS, any::<prop::sample::Index>()), 1..40),
        ) {
            let mut model = Model::new();
            for (step, which, pick) in steps {
                match step {
                    0 => model.push(which),
                    // More than a block.
                    1 => (0..pick.index(3 * BLOCK)).for_each(|_| model.push(which)),
                    2 => (0..pick.index(2 * BLOCK)).for_each(|_| model.pop(which)),
                    _ => model.remove(which, pick),
                }
                model.check();
            }
        }

        #[test]
        fn low_bits_tell_the_deadlines_of_a_window_apart(
            start in 0..=Tick::MAX - Timer::WINDOW,
            past in 0..Timer::WINDOW,
        ) {
            let timer = Timer::new(7, start + past);
            prop_assert_eq!(timer.deadline_from(start), start + past);
        }
    }

    #[test]
    fn the_pool_grows_by_pages() {
        let mut model = Model::new();
        (0..2 * PAGE * BLOCK + 1).for_each(|number| model.push(number % BUCKETS));
        model.check();
        (0..PAGE * BLOCK).for_each(|_| model.pop(1));
        model.check();
    }

    #[test]
    fn a_position_that_was_never_given_is_in_no_bucket() {
        let mut model = Model::new();
        assert_eq!(model.blocks.bucket_of(Position(0)), NIL);
        model.push(0);
        let beyond = Position((PAGE * BLOCK) as u32);
        assert_eq!(model.blocks.bucket_of(beyond), NIL);
    }
}
