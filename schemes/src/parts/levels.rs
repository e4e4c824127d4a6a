//! The buckets of a wheel with several levels. A *bucket* is a slot of a level, with its timers.
//!
//! All levels have the same number of buckets, a power of two, and one bucket spans as many ticks as the whole level
//! below. Buckets are numbered level by level, from the lowest level up. A level is added when a deadline first needs
//! it.

use super::bucket_pool::{Bucket, BucketPool, Entry};
use super::geometry::Geometry;
use crate::record::{Position, Records, Tick};

/// The buckets and their contents.
#[derive(Debug)]
pub(crate) struct Levels {
    geometry: Geometry,
    /// The buckets of all levels, level by level.
    buckets: Vec<Bucket>,
    pool: BucketPool,
}

impl Levels {
    /// Makes a wheel without timers, with `slots` buckets in each level, [rounded up](Geometry::new) to a power of two.
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            geometry: Geometry::new(slots),
            buckets: Vec::new(),
            pool: BucketPool::new(),
        }
    }

    #[inline]
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The level of bucket `number`.
    pub(crate) fn level(&self, number: u32) -> usize {
        (number / self.geometry.size()) as usize
    }

    /// Bucket `number`, whose level must have been added: otherwise this panics.
    #[inline]
    pub(crate) fn bucket(&mut self, number: u32) -> &mut Bucket {
        &mut self.buckets[number as usize]
    }

    /// The timers of bucket `number`, in the order in which [`pop`](Self::pop) takes them.
    pub(crate) fn ids(&self, number: u32) -> impl Iterator<Item = u32> {
        self.pool.ids(&self.buckets[number as usize])
    }

    /// Adds a timer to bucket `number`. Returns its position, and the bucket.
    #[inline(always)]
    pub(crate) fn push(&mut self, number: u32, id: u32, deadline: Tick) -> (Position, &mut Bucket) {
        if number as usize >= self.buckets.len() {
            self.grow(number);
        }
        let bucket = &mut self.buckets[number as usize];
        let position = self.pool.push(bucket, number, Entry::new(id, deadline));
        (position, bucket)
    }

    /// Removes the last timer of bucket `number`, and returns its entry. `None` if the bucket is empty.
    #[inline(always)]
    pub(crate) fn pop(&mut self, number: u32) -> Option<Entry> {
        let popped = self.pool.pop(&mut self.buckets[number as usize]);
        popped.map(|(entry, _)| entry)
    }

    /// Removes the timer at `position`, and returns the number of its bucket. `None` if there is no timer at
    /// `position`.
    #[inline(always)]
    pub(crate) fn remove(&mut self, records: &mut impl Records, position: Position) -> Option<u32> {
        let number = self.pool.bucket_of(position);
        let bucket = self.buckets.get_mut(number as usize);
        let bucket = bucket.filter(|bucket| !bucket.is_empty())?;
        if let Some((other, position)) = self.pool.remove(bucket, position) {
            records.set_position(other, position);
        }
        Some(number)
    }

    /// Adds levels up to the level of bucket `number`.
    #[cold]
    fn grow(&mut self, number: u32) {
        let levels = self.level(number) + 1;
        let buckets = levels * self.geometry.size() as usize;
        self.buckets.resize(buckets, Bucket::EMPTY);
    }
}
