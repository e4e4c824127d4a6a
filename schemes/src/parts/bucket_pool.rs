//! The contents of buckets: timers in no order, in blocks of a fixed size.
//!
//! An entry is the id of a timer and the lowest bits of its deadline. With these bits the wheel can move the timer
//! without reading the timer's record, which is rarely in a cache.
//!
//! A bucket is a chain of blocks, and every block except the top block is full. The [`Position`] of a timer is its
//! block, and its index in the block. A removal fills the hole with the last timer of the bucket. So a removal takes
//! O(1), and moves at most one other timer. The blocks come from a pool that all buckets of a wheel share. The pool
//! grows by whole pages, so its growth copies no timers.

use crate::record::{Position, Tick};

/// The number of timers in a block. Only one in tests under loom and shuttle, so that few timers make a chain.
const BLOCK: usize = if cfg!(any(request_purgatory_loom, request_purgatory_shuttle)) {
    1
} else {
    60
};
/// The number of blocks in a page, the unit of allocation. A page has about 23 KiB.
const PAGE: usize = 64;
const NIL: u32 = u32::MAX;

/// One bucket, by the number of its top block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    top: u32,
    /// Whether the bucket is in the wheel's queue. Only the hierarchical wheel has a queue.
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
pub(crate) struct Entry {
    pub(crate) id: u32,
    /// The lowest bits of the timer's deadline.
    low: u16,
}

impl Entry {
    /// The number of values of `low`, the lowest 16 bits of a deadline. So `low` identifies a deadline within a range
    /// of this number of ticks.
    pub(crate) const WINDOW: Tick = 1 << u16::BITS;

    #[inline]
    pub(crate) fn new(id: u32, deadline: Tick) -> Self {
        // The cast keeps only the lowest bits.
        let low = deadline as u16;
        Self { id, low }
    }

    /// The timer's deadline, which must lie in the [`WINDOW`](Self::WINDOW) of ticks that begins at `start`.
    #[inline]
    pub(crate) fn deadline_from(self, start: Tick) -> Tick {
        start + Tick::from(self.low.wrapping_sub(start as u16))
    }
}

#[derive(Debug, Clone, Copy)]
struct Block {
    ids: [u32; BLOCK],
    lows: [u16; BLOCK],
    len: u32,
    /// The next block of the bucket, or of the pool's free list.
    below: u32,
}

impl Block {
    /// Adds a timer, and returns its index. `None` if the block is full.
    #[inline(always)]
    fn push(&mut self, entry: Entry) -> Option<u32> {
        let index = self.len;
        *self.ids.get_mut(index as usize)? = entry.id;
        self.lows[index as usize] = entry.low;
        self.len = index + 1;
        Some(index)
    }
}

#[derive(Debug)]
struct Page {
    /// For each block, the number of its bucket. These numbers lie together, apart from the blocks, and stay in the
    /// processor's cache. So a removal finds the timer's bucket without waiting for a block to be loaded.
    buckets: [u32; PAGE],
    blocks: [Block; PAGE],
}

/// The blocks of all buckets of a wheel.
#[derive(Debug)]
pub(crate) struct BucketPool {
    #[allow(
        clippy::vec_box,
        reason = "pages stay where they are when the vector grows"
    )]
    pages: Vec<Box<Page>>,
    free: u32,
}

/// The page of block `number`, and the block's index in this page.
#[inline]
fn split(number: u32) -> (usize, usize) {
    (number as usize / PAGE, number as usize % PAGE)
}

/// The id of the timer that a removal moved into the hole, and its new position. `None` if no timer was moved.
pub(crate) type Moved = Option<(u32, Position)>;

impl BucketPool {
    pub(crate) fn new() -> Self {
        Self {
            pages: Vec::new(),
            free: NIL,
        }
    }

    #[inline]
    fn block(&mut self, number: u32) -> &mut Block {
        let (page, index) = split(number);
        &mut self.pages[page].blocks[index]
    }

    /// Adds the timer of `entry` to `bucket`, whose number is `number`. Returns the position of this timer.
    #[inline(always)]
    pub(crate) fn push(&mut self, bucket: &mut Bucket, number: u32, entry: Entry) -> Position {
        // `top` of an empty bucket is `NIL`, which is in no page.
        let (page, index) = split(bucket.top);
        let top = self.pages.get_mut(page).map(|page| &mut page.blocks[index]);
        let index = match top.and_then(|top| top.push(entry)) {
            Some(index) => index,
            None => self.push_on_new_block(bucket, number, entry),
        };
        Position::new(bucket.top * BLOCK as u32 + index)
    }

    /// Puts a block with the one timer `entry` on top of `bucket`. Returns the index of the timer in the block.
    #[cold]
    fn push_on_new_block(&mut self, bucket: &mut Bucket, number: u32, entry: Entry) -> u32 {
        self.stack(bucket, number);
        let pushed = self.block(bucket.top).push(entry);
        pushed.unwrap_or_else(|| unreachable!("an empty block has room"))
    }

    /// Puts an empty block on top of `bucket`.
    fn stack(&mut self, bucket: &mut Bucket, number: u32) {
        let fresh = self.allocate();
        let block = self.block(fresh);
        block.len = 0;
        block.below = bucket.top;
        bucket.top = fresh;
        let (page, index) = split(fresh);
        self.pages[page].buckets[index] = number;
    }

    /// The timers of `bucket`, in the order in which [`pop`](Self::pop) takes them.
    pub(crate) fn ids(&self, bucket: &Bucket) -> impl Iterator<Item = u32> {
        let block = |number: u32| {
            let (page, index) = split(number);
            Some(&self.pages.get(page)?.blocks[index])
        };
        let blocks = std::iter::successors(block(bucket.top), move |&above| block(above.below));
        blocks.flat_map(|block| block.ids[..block.len as usize].iter().rev().copied())
    }

    /// The number of the bucket whose timer is at `position`. If there is no timer at `position`, the result may be the
    /// number of any bucket, or [`NIL`].
    #[inline]
    pub(crate) fn bucket_of(&self, position: Position) -> u32 {
        let (page, index) = split(position.number() / BLOCK as u32);
        self.pages.get(page).map_or(NIL, |page| page.buckets[index])
    }

    /// Removes the last timer of `bucket`. Returns its entry and its position. `None` if the bucket is empty.
    #[inline(always)]
    pub(crate) fn pop(&mut self, bucket: &mut Bucket) -> Option<(Entry, Position)> {
        if bucket.top == NIL {
            return None;
        }
        let top = bucket.top;
        let block = self.block(top);
        // INVARIANT: no block of a bucket is empty, because the removal of the last timer in a block frees the block.
        // So `len` is at least 1.
        let index = block.len - 1;
        block.len = index;
        let entry = Entry {
            id: block.ids[index as usize],
            low: block.lows[index as usize],
        };
        if index == 0 {
            bucket.top = block.below;
            self.release(top);
        }
        Some((entry, Position::new(top * BLOCK as u32 + index)))
    }

    /// Removes the timer at `position`, which is in `bucket`. Fills the hole with the last timer of the bucket.
    #[inline(always)]
    #[cfg_attr(
        any(request_purgatory_loom, request_purgatory_shuttle),
        expect(clippy::modulo_one, reason = "under loom a block holds one timer")
    )]
    pub(crate) fn remove(&mut self, bucket: &mut Bucket, position: Position) -> Moved {
        let (last, last_at) = self.pop(bucket)?;
        if last_at == position {
            return None;
        }
        let (block, index) = (
            position.number() / BLOCK as u32,
            position.number() as usize % BLOCK,
        );
        let block = self.block(block);
        block.ids[index] = last.id;
        block.lows[index] = last.low;
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
            below: NIL,
        };
        self.pages.push(Box::new(Page {
            buckets: [NIL; PAGE],
            blocks: [empty; PAGE],
        }));
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, HashSet};

    const BUCKETS: usize = 3;

    /// A pool with three buckets, and the position of each timer by bucket and id.
    struct Model {
        pool: BucketPool,
        buckets: [Bucket; BUCKETS],
        timers: [BTreeMap<u32, Position>; BUCKETS],
        next: u32,
        /// An upper bound of the number of blocks that have been in use at the same time.
        used: usize,
    }

    impl Model {
        fn new() -> Self {
            Self {
                pool: BucketPool::new(),
                buckets: [Bucket::EMPTY; BUCKETS],
                timers: Default::default(),
                next: 0,
                used: 0,
            }
        }

        fn push(&mut self, which: usize) {
            let entry = Entry::new(self.next, Tick::from(self.next));
            let bucket = &mut self.buckets[which];
            let position = self.pool.push(bucket, which as u32, entry);
            self.timers[which].insert(self.next, position);
            self.next += 1;
        }

        fn pop(&mut self, which: usize) {
            let next = self.pool.ids(&self.buckets[which]).next();
            let popped = self.pool.pop(&mut self.buckets[which]);
            assert_eq!(popped.map(|(entry, _)| entry.id), next);
            if let Some((entry, position)) = popped {
                assert_eq!(entry.deadline_from(0), Tick::from(entry.id));
                assert_eq!(self.timers[which].remove(&entry.id), Some(position));
            }
        }

        fn remove(&mut self, which: usize, pick: prop::sample::Index) {
            let ids = self.timers[which].keys().copied().collect::<Vec<_>>();
            let Some(id) = (!ids.is_empty()).then(|| pick.get(&ids)) else {
                return;
            };
            let position = self.timers[which].remove(id).expect("it is there");
            let moved = self.pool.remove(&mut self.buckets[which], position);
            if let Some((other, to)) = moved {
                assert_eq!(to, position, "into the hole");
                assert!(self.timers[which].insert(other, to).is_some());
            }
        }

        fn check(&mut self) {
            for which in 0..BUCKETS {
                let mut ids = self.pool.ids(&self.buckets[which]).collect::<Vec<_>>();
                ids.sort_unstable();
                assert!(ids.iter().eq(self.timers[which].keys()));
                assert_eq!(self.buckets[which].is_empty(), ids.is_empty());
                for position in self.timers[which].values() {
                    assert_eq!(self.pool.bucket_of(*position), which as u32);
                }
            }
            let positions = self.timers.iter().flat_map(BTreeMap::values);
            let positions = positions.map(|position| position.number());
            let positions = positions.collect::<HashSet<_>>();
            let timers = self.timers.iter().map(BTreeMap::len).sum::<usize>();
            assert_eq!(positions.len(), timers, "positions are distinct");
            let used = self
                .timers
                .iter()
                .map(|timers| timers.len().div_ceil(BLOCK));
            self.used = self.used.max(used.sum());
            assert_eq!(
                self.pool.pages.len(),
                self.used.div_ceil(PAGE),
                "no more pages than needed"
            );
        }
    }

    proptest! {
        #[test]
        fn buckets_share_one_pool(
            steps in prop::collection::vec((0..4_u8, 0..BUCKETS, any::<prop::sample::Index>()), 1..40),
        ) {
            let mut model = Model::new();
            for (step, which, pick) in steps {
                match step {
                    0 => model.push(which),
                    // The number of pushes is up to three blocks of timers, so they can fill more than one block.
                    1 => (0..pick.index(3 * BLOCK)).for_each(|_| model.push(which)),
                    2 => (0..pick.index(2 * BLOCK)).for_each(|_| model.pop(which)),
                    _ => model.remove(which, pick),
                }
                model.check();
            }
        }

        #[test]
        fn low_bits_identify_a_deadline_within_a_window(
            start in 0..=Tick::MAX - Entry::WINDOW,
            past in 0..Entry::WINDOW,
        ) {
            let entry = Entry::new(7, start + past);
            prop_assert_eq!(entry.deadline_from(start), start + past);
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
        assert_eq!(model.pool.bucket_of(Position::new(0)), NIL);
        model.push(0);
        let beyond = Position::new((PAGE * BLOCK) as u32);
        assert_eq!(model.pool.bucket_of(beyond), NIL);
    }
}
