//! The watchers without a rank in a long list, in the order of their arrival.
//!
//! Each watcher has a number, which counts the arrivals:
//!
//! * The number gives the watcher's place: number / `LIST_CHUNK` is the chunk, and number % `LIST_CHUNK` is the place
//!   in the chunk.
//! * The low bits of the number are the watcher's [ticket](Ticket), by which the watcher is found when it leaves.
//! * A walk (a check that copies the list slice by slice) remembers a number, and continues there after it has released
//!   the lock.
//!
//! When a watcher leaves, a bit in its chunk is set, and no other watcher moves. The watcher's place is usually not
//! touched: its cache line is owned by the processor that adds watchers, and would have to be transferred. So a thread
//! that adds or removes a watcher takes few cache lines from other processors, however long the list is. A chunk is
//! removed when all its watchers have left. The memory of one empty chunk is kept, so that a list of steady length
//! allocates nothing.

use super::bound::{JOINED, Ticket};
use crate::cell::address::Address;
use crate::sync::{LIST_CHUNK, SEVERAL, SLICE};
use std::collections::VecDeque;
use std::iter::successors;

/// Watchers whose numbers are this far apart have the same ticket, because a ticket is the low 32 bits of a number.
const SPAN: u64 = 1 << Ticket::BITS;

/// The value of `Chunk::left` when all watchers of a full chunk have left.
const ALL: u32 = u32::MAX >> (u32::BITS as usize - LIST_CHUNK);

#[derive(Default)]
pub(super) struct Arrivals {
    /// The number that the next watcher gets.
    pub(super) next: u64,
    pub(super) len: usize,
    /// The chunk to which watchers are added. A field of its own, not the last item of `full`, so that an addition
    /// finds the chunk without a further load.
    last: Option<Chunk>,
    /// The earlier chunks, in the order of their numbers. Each of them was filled with watchers, and has at least one
    /// that has not left.
    full: VecDeque<Chunk>,
    /// The memory of a chunk whose watchers have all left, kept for the next chunk.
    spare: Option<Box<Places>>,
}

/// The watchers with `LIST_CHUNK` consecutive numbers: from `number * LIST_CHUNK` on, where `number` counts the chunks.
struct Chunk {
    number: u64,
    places: Box<Places>,
    /// A bit for each watcher that has left. Two other layouts would be slower: with a bit for each present watcher,
    /// every addition would write this field; with the bits beside the places, every removal would touch one more cache
    /// line.
    left: u32,
}

type Places = [Address; LIST_CHUNK];

impl Arrivals {
    pub(super) fn add(&mut self, watcher: Address) -> Ticket {
        let number = self.next;
        let (chunk, place) = split(number);
        let last = match &mut self.last {
            Some(last) if last.number == chunk => last,
            _ => self.begin(chunk),
        };
        last.places[place] = watcher;
        self.next += 1;
        self.len += 1;
        number as Ticket
    }

    /// Makes a chunk with the number `chunk` the last one. The chunk that was last is full, or there is none.
    fn begin(&mut self, chunk: u64) -> &mut Chunk {
        match self.last.take() {
            Some(full) if full.left != ALL => self.full.push_back(full),
            Some(vacant) => self.spare = Some(vacant.places),
            None => {}
        }
        let places = self.spare.take();
        self.last.insert(Chunk {
            number: chunk,
            places: places.unwrap_or_else(|| Box::new([Address::NONE; LIST_CHUNK])),
            left: 0,
        })
    }

    pub(super) fn remove(&mut self, ticket: Ticket, watcher: Address) {
        // A watcher that came while the list was short (had at most `SEVERAL` watchers) has the ticket 0 or `JOINED`
        // (1). So a higher ticket comes from `add`, and is the low 32 bits of the watcher's number. As long as `add`
        // has given out at most `SPAN` (2^32) numbers, such a ticket is the whole number, and no two watchers have the
        // same one. So the address need not be compared.
        if ticket > JOINED && self.next <= SPAN {
            self.remove_at(ticket.into(), |_| true);
            return;
        }
        // Otherwise the ticket is 0 or `JOINED`, or `add` has given out more than `SPAN` numbers, so several watchers
        // may have this ticket. Visit the numbers whose low bits are this ticket, from the highest number down, until
        // the address at a number is `watcher`.
        let behind = (self.next as Ticket).wrapping_sub(ticket);
        let last = self.next.checked_sub(behind.into());
        let numbers = successors(last, |number| number.checked_sub(SPAN));
        // Then visit the first few numbers too. Watchers that came while the list was short got their numbers only when
        // the list became long. But they keep the tickets (by which they are found here) of the short list: 0 or
        // `JOINED`.
        for number in numbers.chain(0..SEVERAL as u64) {
            if self.remove_at(number, |there| *there == watcher) {
                return;
            }
        }
    }

    /// Removes the watcher with this number, if it has not left and `is_it` accepts its address. Returns whether the
    /// watcher was removed.
    #[inline]
    fn remove_at(&mut self, number: u64, is_it: impl Fn(&Address) -> bool) -> bool {
        let (number, place) = split(number);
        let index = self.index_in_full(number);
        let chunk = match (index, &mut self.last) {
            (Some(index), _) => &mut self.full[index],
            (None, Some(last)) if last.number == number => last,
            _ => return false,
        };
        let bit = 1 << place;
        if chunk.left & bit != 0 || !is_it(&chunk.places[place]) {
            return false;
        }
        chunk.left |= bit;
        self.len -= 1;
        if let Some(index) = index.filter(|_| chunk.left == ALL) {
            self.remove_chunk(index);
        }
        true
    }

    /// Removes the chunk at `index` of `full`. To close the gap, the queue moves the chunks before it or those after
    /// it, whichever are fewer, 24 bytes for each.
    fn remove_chunk(&mut self, index: usize) {
        self.spare = self.full.remove(index).map(|chunk| chunk.places);
        // Free the queue's memory if the list was much longer before.
        if self.full.capacity() > 4 * self.full.len().max(SLICE) {
            self.full.shrink_to(2 * self.full.len());
        }
    }

    fn index_in_full(&self, number: u64) -> Option<usize> {
        let last = self.last.as_ref()?;
        let behind = last.number.checked_sub(number).filter(|&n| n > 0)?;
        // If no later chunk was removed, the chunk is at this index.
        let index = self.full.len().wrapping_sub(behind as usize);
        match self.full.get(index) {
            Some(chunk) if chunk.number == number => Some(index),
            _ => self.full.binary_search_by_key(&number, |it| it.number).ok(),
        }
    }

    /// Appends watchers with numbers from `from` on and below `to` to `slice`, at most `limit` of them. Returns the
    /// number to continue from, or `None` if no watcher is left.
    pub(super) fn copy(
        &self,
        from: u64,
        to: u64,
        limit: usize,
        slice: &mut Vec<Address>,
    ) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let watchers = self.from(from).take_while(|(number, _)| *number < to);
        for ((number, watcher), room) in watchers.zip((0..limit).rev()) {
            slice.push(watcher);
            if room == 0 {
                return Some(number + 1);
            }
        }
        None
    }

    /// All watchers.
    pub(super) fn iter(&self) -> impl Iterator<Item = Address> + '_ {
        self.from(0).map(|(_, watcher)| watcher)
    }

    /// The watchers with numbers from `from` on, and their numbers.
    fn from(&self, from: u64) -> impl Iterator<Item = (u64, Address)> + '_ {
        let is_before = |chunk: &Chunk| chunk.number < split(from).0;
        let full = self.full.range(self.full.partition_point(is_before)..);
        let watchers = full.chain(&self.last).flat_map(Chunk::watchers);
        watchers
            .skip_while(move |(number, _)| *number < from)
            .take_while(|(number, _)| *number < self.next)
    }
}

impl Chunk {
    /// The watchers that have not left, with their numbers. In the last chunk of a list, the result includes places
    /// that are not used yet: the caller skips them by their numbers.
    fn watchers(&self) -> impl Iterator<Item = (u64, Address)> + '_ {
        let mut there = ALL & !self.left;
        std::iter::from_fn(move || {
            let place = (there != 0).then(|| there.trailing_zeros() as usize)?;
            there &= there - 1;
            let number = self.number * LIST_CHUNK as u64 + place as u64;
            Some((number, self.places[place]))
        })
    }
}

/// The number of the chunk that has the watcher with this number, and the watcher's place in the chunk.
fn split(number: u64) -> (u64, usize) {
    let chunk = LIST_CHUNK as u64;
    (number / chunk, (number % chunk) as usize)
}

#[cfg(all(test, not(request_purgatory_loom)))]
impl Arrivals {
    /// The number of chunks, with `spare` counted as one, and the capacity of the queue `full`: how many chunks the
    /// queue can hold before it has to grow.
    pub(super) fn kept(&self) -> (usize, usize) {
        let others = usize::from(self.last.is_some()) + usize::from(self.spare.is_some());
        (self.full.len() + others, self.full.capacity())
    }

    /// Skips numbers as if this many chunks of watchers had come and left.
    pub(super) fn skip(&mut self, chunks: u64) {
        let (number, used) = split(self.next);
        if let Some(last) = self.last.as_mut().filter(|_| used > 0) {
            last.left |= ALL << used & ALL;
        }
        self.next = (number + 1 + chunks) * LIST_CHUNK as u64;
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;

    #[test]
    fn g06_chunks_whose_watchers_have_left_are_removed() {
        let watcher = |number| Address::new(0, number, 0);
        let mut arrivals = Arrivals::default();
        arrivals.add(watcher(0));
        for number in 1..20 * LIST_CHUNK as u32 {
            let ticket = arrivals.add(watcher(number));
            arrivals.remove(ticket, watcher(number));
        }
        assert_eq!((arrivals.len, arrivals.full.len()), (1, 1));
    }

    /// The queue of a list that was long gives its memory back when its watchers leave.
    #[test]
    fn g06_a_list_that_was_long_keeps_no_long_queue() {
        let watcher = |number| Address::new(0, number, 0);
        let mut arrivals = Arrivals::default();
        let tickets =
            (0..100 * (SLICE * LIST_CHUNK) as u32).map(|number| arrivals.add(watcher(number)));
        let tickets = (0..).zip(tickets.collect::<Vec<_>>());
        let longest = arrivals.full.capacity();
        tickets.for_each(|(number, ticket)| arrivals.remove(ticket, watcher(number)));
        assert!(longest >= 99 * SLICE);
        assert!(arrivals.full.capacity() <= 4 * SLICE);
    }

    /// The next watchers use the memory of the kept chunk, so a list of steady length allocates nothing.
    #[test]
    fn one_chunk_whose_watchers_have_left_is_kept() {
        let watcher = |number| Address::new(0, number, 0);
        let mut arrivals = Arrivals::default();
        let chunk = LIST_CHUNK as u32;
        let tickets = (0..3 * chunk).map(|number| arrivals.add(watcher(number)));
        for (number, ticket) in (0..2 * chunk).zip(tickets.collect::<Vec<_>>()) {
            arrivals.remove(ticket, watcher(number));
        }
        assert_eq!(arrivals.kept().0, 2, "the last one, and one more");
        arrivals.add(watcher(3 * chunk));
        assert_eq!(arrivals.kept().0, 2, "that one is used");
    }
}
