//! Watchers without a rank, in the order of their arrival.
//!
//! Each has a number, in the order of arrival, by which a walk that has released the list finds its place again. The
//! watchers lie in chunks, so no addition copies more than a chunk.
//!
//! A watcher may leave from any place. The first of the list is removed, and a short list is searched. In a long list a
//! search would take as long as the list is, so a watcher that leaves is only counted as dead, and a few places are
//! swept: the watchers at the front of `unswept` move to the back of `swept` if they live, and are dropped if not. The
//! order does not change. For each death four places are swept, so at most half of a long list is dead, and no removal
//! takes long.

use crate::address::Address;
use crate::sync::{LIST_CHUNK, SHORT_LIST, SLICE};
use std::collections::VecDeque;

/// Places swept for each watcher that leaves a long list.
const SWEEP: usize = 4;

/// One watcher, with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arrival {
    number: u64,
    watcher: Address,
}

#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Before all in `unswept`.
    swept: Chunks,
    unswept: Chunks,
    /// Watchers that have left but are still in the list, less those that were swept out before they left.
    dead: isize,
}

impl Arrivals {
    /// Watchers in the list, the dead among them.
    pub(super) fn len(&self) -> usize {
        self.swept.len + self.unswept.len
    }

    /// Watchers that were added and not removed.
    pub(super) fn count(&self) -> usize {
        (self.len() as isize - self.dead) as usize
    }

    /// Whether all have left.
    pub(super) fn have_left(&self) -> bool {
        self.count() == 0
    }

    /// `number` is higher than all before.
    pub(super) fn add(&mut self, number: u64, watcher: Address) {
        self.unswept.push(Arrival { number, watcher });
    }

    pub(super) fn remove(&mut self, watcher: Address, is_live: impl Fn(Address) -> bool) {
        let removed = self.swept.pop_if(watcher)
            || self.swept.is_empty() && self.unswept.pop_if(watcher)
            || self.len() <= SHORT_LIST
                && (self.swept.search_and_remove(watcher)
                    || self.unswept.search_and_remove(watcher));
        if !removed {
            self.dead += 1;
        }
        if self.dead != 0 {
            self.sweep(is_live);
        }
    }

    fn sweep(&mut self, is_live: impl Fn(Address) -> bool) {
        for _ in 0..SWEEP {
            if self.unswept.is_empty() {
                std::mem::swap(&mut self.swept, &mut self.unswept);
            }
            match self.unswept.pop() {
                Some(arrival) if is_live(arrival.watcher) => self.swept.push(arrival),
                Some(_) => self.dead -= 1,
                None => return,
            }
        }
    }

    /// Copies the watchers numbered from `from` to before `to`, at most `limit` of them. Returns the number to go on
    /// from, or `None` if there are no more.
    pub(super) fn copy(
        &self,
        from: u64,
        to: u64,
        limit: usize,
        slice: &mut Vec<Address>,
    ) -> Option<u64> {
        if self.len() == 0 {
            return None;
        }
        let all = self.swept.from(from).chain(self.unswept.from(from));
        let mut next = None;
        for arrival in all.take_while(|arrival| arrival.number < to).take(limit) {
            slice.push(arrival.watcher);
            next = Some(arrival.number + 1);
        }
        next
    }

    /// All watchers, the dead among them.
    pub(super) fn iter(&self) -> impl Iterator<Item = Address> + '_ {
        let all = self.swept.from(0).chain(self.unswept.from(0));
        all.map(|arrival| arrival.watcher)
    }
}

/// A queue in chunks.
#[derive(Debug, Default)]
struct Chunks {
    chunks: VecDeque<VecDeque<Arrival>>,
    len: usize,
}

impl Chunks {
    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn push(&mut self, arrival: Arrival) {
        self.len += 1;
        if let Some(last) = self.chunks.back_mut() {
            if last.len() < LIST_CHUNK {
                return last.push_back(arrival);
            }
        }
        self.chunks.push_back(VecDeque::from([arrival]));
    }

    fn pop(&mut self) -> Option<Arrival> {
        let popped = self.chunks.front_mut()?.pop_front();
        self.len -= 1;
        self.drop_empty(0);
        popped
    }

    /// Takes `watcher` off if it is the first.
    fn pop_if(&mut self, watcher: Address) -> bool {
        let first = self.chunks.front().and_then(VecDeque::front);
        let is_first = first.is_some_and(|first| first.watcher == watcher);
        if is_first {
            self.pop();
        }
        is_first
    }

    fn search_and_remove(&mut self, watcher: Address) -> bool {
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            let place = chunk.iter().position(|other| other.watcher == watcher);
            if let Some(place) = place {
                chunk.remove(place);
                self.len -= 1;
                self.drop_empty(number);
                return true;
            }
        }
        false
    }

    /// Drops the chunk if it is empty, so that a key that was hot once does not keep its memory.
    fn drop_empty(&mut self, number: usize) {
        if self.chunks[number].is_empty() {
            self.chunks.remove(number);
            if self.chunks.capacity() > 4 * self.chunks.len().max(SLICE) {
                self.chunks.shrink_to(2 * self.chunks.len());
            }
        }
    }

    /// Those numbered from `number` on.
    fn from(&self, number: u64) -> impl Iterator<Item = &Arrival> {
        let is_before = |arrival: &Arrival| arrival.number < number;
        let before = |chunk: &VecDeque<Arrival>| chunk.back().is_some_and(is_before);
        let first = self.chunks.partition_point(before);
        let skipped = self
            .chunks
            .get(first)
            .map_or(0, |chunk| chunk.partition_point(is_before));
        self.chunks.range(first..).flatten().skip(skipped)
    }
}
