//! The watch list of one key: the operations that wait for the key (its *watchers*), each by its address.
//!
//! A single watcher lies inline, and up to [`SEVERAL`] watchers lie in one small allocation. More are kept in chunks,
//! in order of [arrival](super::arrivals). Watchers with a rank (an offset, say, that the key has to reach) are kept in
//! an ordered map instead, so that a check up to a rank does not visit watchers at higher ranks.
//!
//! Watchers arrive while a check walks over a list, and a walk that also met the newcomers might never end. Two rules
//! prevent this:
//!
//! * Each watcher of a long list has a number, which counts arrivals. A walk skips watchers that arrived after it
//!   began.
//! * Each long list has an identity, which no other list of the key has: the watcher that made the list long. When the
//!   last watcher leaves, the list is dropped, and the watchers of the key's next list are numbered from 0 again. A
//!   walk that finds a list with another identity ends.

use super::arrivals::Arrivals;
use super::bound::{CheckBound, JOINED, Order, Rank};
use crate::cell::address::Address;
use crate::sync::{FEW, SEVERAL, SLICE};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound as RangeEnd;
use std::slice::from_ref;

/// Marks a vacant place in a short list.
const VACANT: Address = Address::NONE;

/// The watchers of one key. There is no empty list: the caller drops a list with its last watcher.
pub(crate) enum WatchList {
    /// One watcher without a rank.
    One(Address),
    /// A short list of watchers without a rank, in one allocation. The allocation takes half a cache line for `Few`,
    /// and a whole cache line for `Several`.
    Few(Short<FEW>),
    Several(Short<SEVERAL>),
    Many(Box<Many>),
}

/// At most `N` watchers in the order of their arrival, followed by vacant places.
pub(crate) struct Short<const N: usize>(Box<[Address; N]>);

/// A long list: many watchers, or some with a rank. Aligned, so that it takes two cache lines and not parts of three.
/// Each cache line costs a transfer, because usually another processor has written the list last.
#[repr(align(64))]
pub(crate) struct Many {
    /// The identity of this list: the watcher that made it long. No other list of the key has this identity, because an
    /// operation watches each of its keys once, and no later operation gets its address.
    identity: Address,
    unranked: Arrivals,
    /// The watchers with a rank, each with its number in the order of arrival.
    ranked: BTreeMap<(Rank, Address), u64>,
    /// The number that the next watcher with a rank gets.
    next_ranked: u64,
}

impl WatchList {
    #[inline(always)]
    pub(crate) fn new(watcher: Address, order: Order<'_>) -> Self {
        match order {
            Order::Arrived(_) => Self::One(watcher),
            Order::Ranked(_) => Self::ranked(watcher, order),
        }
    }

    #[cold]
    fn ranked(watcher: Address, order: Order<'_>) -> Self {
        let mut many = Box::new(Many::new(watcher));
        many.add(watcher, order);
        Self::Many(many)
    }

    /// Appends `watcher` to a short list, which may grow to the next size. Returns `false`, and adds nothing, if the
    /// list is long, or is a full `Several`.
    #[inline(always)]
    fn add_to_short(&mut self, watcher: Address) -> bool {
        match self {
            Self::One(first) if FEW > 1 => {
                *self = Self::Few(Short::of([*first, watcher]));
                true
            }
            Self::Few(few) => {
                if !few.add(watcher) {
                    *self = Self::Several(few.grown(watcher));
                }
                true
            }
            Self::Several(several) => several.add(watcher),
            _ => false,
        }
    }

    /// Adds a watcher, unless the list has `max` watchers already. Returns whether the watcher was added.
    #[inline(always)]
    pub(crate) fn add_up_to(&mut self, max: usize, watcher: Address, order: Order<'_>) -> bool {
        let room = max == usize::MAX || self.count() < max;
        match order {
            _ if !room => {}
            Order::Arrived(ticket) if self.add_to_short(watcher) => ticket.set(JOINED),
            _ => self.add_to_many(watcher, order),
        }
        room
    }

    /// The watchers of a short list as a slice, or a long list as `Err`.
    #[inline]
    fn watchers(&self) -> Result<&[Address], &Many> {
        match self {
            Self::One(watcher) => Ok(from_ref(watcher)),
            Self::Few(few) => Ok(few.watchers()),
            Self::Several(several) => Ok(several.watchers()),
            Self::Many(many) => Err(many),
        }
    }

    pub(crate) fn count(&self) -> usize {
        match self.watchers() {
            Ok(watchers) => watchers.len(),
            Err(many) => many.unranked.len + many.ranked.len(),
        }
    }

    /// Adds to a long list. A short list becomes a long one first.
    #[inline(never)]
    fn add_to_many(&mut self, watcher: Address, order: Order<'_>) {
        if let Self::Many(many) = self {
            return many.add(watcher, order);
        }
        let mut many = Box::new(Many::new(watcher));
        self.for_each(|watcher| many.add(watcher, Order::Arrived(&Cell::default())));
        many.add(watcher, order);
        *self = Self::Many(many);
    }

    /// Copies the watchers to the first of these places, if none has a rank and all fit. Returns `None` otherwise.
    #[inline(always)]
    pub(super) fn copy_few(&self, room: &mut [Address]) -> Option<()> {
        match self.watchers() {
            Ok(watchers) => copy(watchers.iter().copied(), room),
            Err(many) if many.ranked.is_empty() && many.unranked.len <= room.len() => {
                copy(many.unranked.iter(), room)
            }
            Err(_) => None,
        }
    }

    /// Whether `watcher` is the only watcher of this list, and has no rank (an offset, say, that the key has to reach).
    #[inline]
    pub(crate) fn is_only(&self, watcher: Address) -> bool {
        matches!(self, Self::One(only) if *only == watcher)
    }

    /// Removes `watcher`, which was added with `order`. Returns whether the list has lost its last watcher: then the
    /// caller drops the list.
    #[inline(always)]
    pub(crate) fn remove(&mut self, watcher: Address, order: Order<'_>) -> bool {
        match self {
            Self::One(only) => *only == watcher,
            Self::Few(few) => few.remove(watcher),
            Self::Several(several) => several.remove(watcher),
            Self::Many(many) => many.remove(watcher, order),
        }
    }

    /// Calls `each` for all watchers, first for those with a rank.
    pub(crate) fn for_each(&self, mut each: impl FnMut(Address)) {
        match self.watchers() {
            Ok(watchers) => watchers.iter().copied().for_each(each),
            Err(many) => {
                many.ranked.keys().for_each(|&(_, watcher)| each(watcher));
                many.unranked.iter().for_each(each);
            }
        }
    }
}

#[inline(always)]
fn copy(watchers: impl IntoIterator<Item = Address>, room: &mut [Address]) -> Option<()> {
    let mut places = room.iter_mut();
    for watcher in watchers {
        *places.next()? = watcher;
    }
    Some(())
}

/// The position of a walk, which copies a long list slice by slice. A walk meets every watcher that stays in the list
/// during the whole walk, and none that arrives during the walk.
#[derive(Default)]
pub(crate) struct Walk {
    /// The identity of the list that the walk copies: no other list of the key has it. A walk that finds another list
    /// ends. `None` until the first slice (at most 64 watchers) is copied.
    identity: Option<Address>,
    /// The walk first meets the watchers with a rank up to `up_to`, in the order of ranks. The next slice begins after
    /// the watcher `after`. Watchers with numbers from `until_ranked` on arrived after the walk began, and are skipped.
    up_to: Rank,
    after: Option<(Rank, Address)>,
    until_ranked: u64,
    /// After the watchers with a rank, the walk meets those without a rank. The next slice begins at the number `next`.
    /// Watchers with numbers from `until` on arrived after the walk began, and are skipped.
    next: u64,
    until: u64,
    /// The maximum number of watchers in the next slice. At first it is the number of completions after which the check
    /// stops, and it doubles from slice to slice, up to `SLICE`. So a check for one completion copies few watchers.
    size: usize,
}

impl Walk {
    pub(crate) fn new(bound: CheckBound) -> Self {
        Self {
            up_to: bound.up_to,
            size: bound.at_most.clamp(1, SLICE),
            ..Self::default()
        }
    }

    /// The maximum number of watchers in the next slice (the part of the list that is copied in one hold of the lock).
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Whether the walk has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.identity.is_some()
    }

    /// Appends the next watchers of `list` to `slice`. Returns `false` if the walk is over.
    pub(super) fn next_slice(&mut self, list: &WatchList, slice: &mut Vec<Address>) -> bool {
        let WatchList::Many(many) = list else {
            // A long list never becomes short. But a list is dropped with its last watcher, and the key then gets a new
            // one. So if the walk has begun on a long list, this short list is a new one, and the walk is over.
            if self.identity.is_none() {
                list.for_each(|watcher| slice.push(watcher));
            }
            return false;
        };
        if self.identity.is_none() {
            self.until_ranked = many.next_ranked;
            self.until = many.unranked.next;
        }
        if *self.identity.get_or_insert(many.identity) != many.identity {
            return false;
        }
        let size = self.size;
        self.size = (2 * size).min(SLICE);
        let after = self.after.map_or(RangeEnd::Unbounded, RangeEnd::Excluded);
        let ranked = many.ranked.range((after, RangeEnd::Unbounded));
        let ranked = ranked.take_while(|((rank, _), _)| *rank <= self.up_to);
        let mut room = size;
        for (&(rank, watcher), number) in ranked.take(size) {
            room -= 1;
            self.after = Some((rank, watcher));
            if *number < self.until_ranked {
                slice.push(watcher);
            }
        }
        if room == 0 {
            return true;
        }
        let next = many.unranked.copy(self.next, self.until, room, slice);
        self.next = next.unwrap_or(self.next);
        next.is_some()
    }
}

/// The watchers in these places: they come first, and vacant places follow.
#[inline(always)]
pub(super) fn occupied(places: &[Address]) -> &[Address] {
    let occupied = places.iter().take_while(|place| **place != VACANT);
    &places[..occupied.count()]
}

impl<const N: usize> Short<N> {
    /// A list of `watchers`. There must be at most `N` of them.
    fn of(watchers: impl IntoIterator<Item = Address>) -> Self {
        let mut places = [VACANT; N];
        for (place, watcher) in places.iter_mut().zip(watchers) {
            *place = watcher;
        }
        Self(Box::new(places))
    }

    /// The places of the list, occupied and vacant.
    #[inline(always)]
    pub(super) fn places(&self) -> [Address; N] {
        *self.0
    }

    #[inline]
    fn watchers(&self) -> &[Address] {
        occupied(&*self.0)
    }

    /// A larger list with the same watchers and `watcher` at the end.
    #[inline(never)]
    fn grown<const M: usize>(&self, watcher: Address) -> Short<M> {
        Short::of(self.watchers().iter().copied().chain([watcher]))
    }

    /// Appends a watcher. Returns `false` if there is no vacant place.
    #[inline(always)]
    fn add(&mut self, watcher: Address) -> bool {
        let vacant = self.0.iter_mut().find(|place| **place == VACANT);
        vacant.map(|vacant| *vacant = watcher).is_some()
    }

    /// Removes a watcher. Returns whether the list is empty now.
    #[inline(always)]
    fn remove(&mut self, watcher: Address) -> bool {
        // Move each later watcher forward by one place, so that the order stays. A loop saves a call of `memmove`.
        let mut left = false;
        for place in 0..N {
            left |= self.0[place] == watcher;
            if left {
                self.0[place] = self.0.get(place + 1).copied().unwrap_or(VACANT);
            }
        }
        self.0[0] == VACANT
    }
}

impl Many {
    fn new(identity: Address) -> Self {
        Self {
            identity,
            unranked: Arrivals::default(),
            ranked: BTreeMap::new(),
            next_ranked: 0,
        }
    }

    fn add(&mut self, watcher: Address, order: Order<'_>) {
        match order {
            Order::Ranked(rank) => {
                self.ranked.insert((rank, watcher), self.next_ranked);
                self.next_ranked += 1;
            }
            Order::Arrived(ticket) => ticket.set(self.unranked.add(watcher)),
        }
    }

    fn remove(&mut self, watcher: Address, order: Order<'_>) -> bool {
        match order {
            Order::Ranked(rank) => drop(self.ranked.remove(&(rank, watcher))),
            // A watcher is usually found by its ticket (a number that the list has given out), and its address is not
            // compared. If `Hash` or `Eq` of another key of the operation panics, this watcher is removed a second
            // time. By then this key may have a new list, in which another watcher has the same ticket. So replace the
            // ticket by `JOINED`. Many watchers share this ticket, so a removal by `JOINED` compares addresses, and
            // takes no other watcher out.
            Order::Arrived(ticket) => self.unranked.remove(ticket.replace(JOINED), watcher),
        }
        self.ranked.is_empty() && self.unranked.len == 0
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests;
