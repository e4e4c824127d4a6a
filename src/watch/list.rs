//! The watchers of one key.
//!
//! A single watcher lies inline, and a few lie in one small allocation. More are kept in the order of their
//! [arrival](super::arrivals). Watchers with a rank stand in an ordered map instead, so that those up to a rank are
//! found without a visit to the rest.
//!
//! Watchers arrive while a check walks over a list, and a walk that met all of them might never end. So each watcher has
//! a number, and a walk meets only the watchers that arrived before it began. The numbers start anew with each list that comes to a key; its
//! identity tells a walk that it is another one: all watchers that the walk had to meet have left.

use super::arrivals::Arrivals;
use super::bound::{Bound, Rank};
use crate::address::Address;
use crate::sync::{PLACES, SLICE, unique_number};
use std::collections::BTreeMap;
use std::ops::{Bound as End, ControlFlow};

/// The watchers of one key. An empty list does not exist.
#[derive(Debug)]
pub(crate) enum WatchList {
    /// One without a rank.
    One(Address),
    /// Several without a rank.
    Few(Few),
    Many(Box<Many>),
}

/// At most [`PLACES`] watchers in the order of their arrival, before all vacant places.
#[derive(Debug)]
pub(crate) struct Few(Box<[Address; PLACES]>);

/// Several watchers, or some with a rank.
#[derive(Debug)]
pub(crate) struct Many {
    /// No other list of the key has it.
    identity: u64,
    /// The number of the next watcher.
    next: u64,
    unranked: Arrivals,
    /// Each with its number.
    ranked: BTreeMap<(Rank, Address), u64>,
}

impl WatchList {
    #[inline(always)]
    pub(crate) fn new(watcher: Address, rank: Option<Rank>) -> Self {
        match rank {
            None => Self::One(watcher),
            Some(rank) => Self::ranked(watcher, rank),
        }
    }

    #[cold]
    fn ranked(watcher: Address, rank: Rank) -> Self {
        let mut many = Box::new(Many::new());
        many.add(watcher, Some(rank));
        Self::Many(many)
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, watcher: Address, rank: Option<Rank>) {
        let added = match self {
            Self::One(first) if rank.is_none() && PLACES > 1 => {
                *self = Self::Few(Few::of(*first, watcher));
                true
            }
            Self::Few(few) if rank.is_none() => few.add(watcher),
            _ => false,
        };
        if !added {
            self.make_many().add(watcher, rank);
        }
    }

    /// The same, unless the list has `max` watchers already. Returns whether it was added.
    #[inline(always)]
    pub(crate) fn add_up_to(&mut self, max: usize, watcher: Address, rank: Option<Rank>) -> bool {
        let room = max == usize::MAX || self.count() < max;
        if room {
            self.add(watcher, rank);
        }
        room
    }

    /// How many watchers were added and not removed.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Few(few) => few.watchers().len(),
            Self::Many(many) => many.unranked.count() + many.ranked.len(),
        }
    }

    #[inline(never)]
    fn make_many(&mut self) -> &mut Many {
        if !matches!(self, Self::Many(_)) {
            let mut many = Box::new(Many::new());
            self.for_each(|watcher| many.add(watcher, None));
            *self = Self::Many(many);
        }
        match self {
            Self::Many(many) => many,
            Self::One(_) | Self::Few(_) => unreachable!("it was made many"),
        }
    }

    /// Copies the watchers, if none has a rank and there is room for all. Returns how many.
    #[inline(always)]
    pub(crate) fn copy_few(&self, room: &mut [Address]) -> Option<usize> {
        match self {
            Self::One(watcher) => copy([*watcher], room),
            Self::Few(few) => copy(few.watchers().iter().copied(), room),
            Self::Many(many) if many.ranked.is_empty() && many.unranked.len() <= room.len() => {
                copy(many.unranked.iter(), room)
            }
            Self::Many(_) => None,
        }
    }

    /// Whether `watcher` is the only one, without a rank.
    #[inline(always)]
    pub(crate) fn is_only(&self, watcher: Address) -> bool {
        matches!(self, Self::One(only) if *only == watcher)
    }

    /// `watcher`, which was added with `rank`, leaves. Returns whether the list is empty now.
    #[inline(always)]
    pub(crate) fn remove(
        &mut self,
        watcher: Address,
        rank: Option<Rank>,
        is_live: impl Fn(Address) -> bool,
    ) -> bool {
        match self {
            Self::One(only) => *only == watcher,
            Self::Few(few) => few.remove(watcher),
            Self::Many(many) => many.remove(watcher, rank, is_live),
        }
    }

    /// Moves the watchers out, to another list. This one is to be dropped.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::One(Address::default()))
    }

    /// Calls `each` for all watchers, the dead among them.
    pub(crate) fn for_each(&self, mut each: impl FnMut(Address)) {
        match self {
            Self::One(watcher) => each(*watcher),
            Self::Few(few) => few.watchers().iter().copied().for_each(each),
            Self::Many(many) => {
                many.ranked.keys().for_each(|&(_, watcher)| each(watcher));
                many.unranked.iter().for_each(each);
            }
        }
    }
}

#[inline(always)]
fn copy(watchers: impl IntoIterator<Item = Address>, room: &mut [Address]) -> Option<usize> {
    let mut places = room.iter_mut();
    let mut copied = 0;
    for watcher in watchers {
        *places.next()? = watcher;
        copied += 1;
    }
    Some(copied)
}

/// How far a visit of a long list has come: it meets all watchers that are in the list from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Of the list that it walks over. `None` before it has seen it.
    identity: Option<u64>,
    /// It meets watchers with lower numbers than this.
    end: u64,
    /// Watchers with a rank come first, in that order, from the end of this to `last`.
    after: End<(Rank, Address)>,
    last: (Rank, Address),
    /// Then those without, from this number on.
    next: u64,
    /// The size of the next slice. It grows: a check that stops after one completion copies few.
    size: usize,
}

impl Walk {
    pub(crate) fn new(bound: Bound) -> Self {
        Self {
            identity: None,
            end: 0,
            after: End::Unbounded,
            last: (bound.up_to, Address::LAST),
            next: 0,
            size: bound.at_most.clamp(1, SLICE),
        }
    }

    /// Calls `each` for the watchers that the walk meets, until it breaks; `read` shows the list for a slice of them,
    /// if it still exists. `pause` is called between slices.
    pub(crate) fn visit(
        mut self,
        mut each: impl FnMut(Address) -> ControlFlow<()>,
        mut pause: impl FnMut(),
        read: impl Fn(&mut dyn FnMut(&WatchList)),
    ) -> ControlFlow<()> {
        let mut slice = Vec::with_capacity(self.size);
        loop {
            slice.clear();
            let mut more = false;
            read(&mut |list| more = self.next_slice(list, &mut slice));
            slice.iter().copied().try_for_each(&mut each)?;
            if !more {
                return ControlFlow::Continue(());
            }
            pause();
        }
    }

    /// Copies the next watchers. Returns whether the walk goes on.
    fn next_slice(&mut self, list: &WatchList, slice: &mut Vec<Address>) -> bool {
        let WatchList::Many(many) = list else {
            // (A list that was long before is another one by now.)
            if self.identity.is_none() {
                list.for_each(|watcher| slice.push(watcher));
            }
            return false;
        };
        match self.identity {
            None => (self.identity, self.end) = (Some(many.identity), many.next),
            Some(identity) if identity != many.identity => return false,
            Some(_) => {}
        }
        let size = self.size;
        self.size = (2 * size).min(SLICE);
        let ranked = many.ranked.range((self.after, End::Included(self.last)));
        let mut seen = false;
        for (&(rank, watcher), number) in ranked.take(size) {
            seen = true;
            self.after = End::Excluded((rank, watcher));
            if *number < self.end {
                slice.push(watcher);
            }
        }
        if seen {
            return true;
        }
        let next = many.unranked.copy(self.next, self.end, size, slice);
        self.next = next.unwrap_or(self.next);
        next.is_some()
    }
}

impl Few {
    /// No watcher has this address.
    const VACANT: Address = Address::LAST;

    fn of(first: Address, second: Address) -> Self {
        let mut places = [Self::VACANT; PLACES];
        for (place, watcher) in places.iter_mut().zip([first, second]) {
            *place = watcher;
        }
        Self(Box::new(places))
    }

    #[inline(always)]
    fn watchers(&self) -> &[Address] {
        let taken = self.0.iter().take_while(|place| **place != Self::VACANT);
        &self.0[..taken.count()]
    }

    /// `false` if there is no place.
    #[inline(always)]
    fn add(&mut self, watcher: Address) -> bool {
        match self.0.iter_mut().find(|place| **place == Self::VACANT) {
            Some(vacant) => {
                *vacant = watcher;
                true
            }
            None => false,
        }
    }

    /// Returns whether this was the last one.
    #[inline(always)]
    fn remove(&mut self, watcher: Address) -> bool {
        if let Some(left) = self.0.iter().position(|place| *place == watcher) {
            // (Those behind it close up: their order stays.)
            self.0[left..].rotate_left(1);
            self.0[PLACES - 1] = Self::VACANT;
        }
        self.0[0] == Self::VACANT
    }
}

impl Many {
    fn new() -> Self {
        Self {
            identity: unique_number(),
            next: 0,
            unranked: Arrivals::default(),
            ranked: BTreeMap::new(),
        }
    }

    fn add(&mut self, watcher: Address, rank: Option<Rank>) {
        let number = self.next;
        self.next += 1;
        match rank {
            None => self.unranked.add(number, watcher),
            Some(rank) => drop(self.ranked.insert((rank, watcher), number)),
        }
    }

    fn remove(
        &mut self,
        watcher: Address,
        rank: Option<Rank>,
        is_live: impl Fn(Address) -> bool,
    ) -> bool {
        match rank {
            Some(rank) => drop(self.ranked.remove(&(rank, watcher))),
            None => self.unranked.remove(watcher, is_live),
        }
        self.ranked.is_empty() && self.unranked.have_left()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::SHORT_LIST;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::collections::BTreeSet;

    fn watcher(id: u32) -> Address {
        Address::new(0, id, 0)
    }

    fn watchers_of(list: Option<&WatchList>) -> Vec<Address> {
        let mut watchers = Vec::new();
        list.into_iter()
            .for_each(|list| list.for_each(|watcher| watchers.push(watcher)));
        watchers
    }

    fn add(list: &mut Option<WatchList>, id: u32, rank: Option<Rank>) {
        match list {
            None => *list = Some(WatchList::new(watcher(id), rank)),
            Some(list) => list.add(watcher(id), rank),
        }
    }

    proptest! {
        /// Watchers end first (so that sweeps may meet them) and leave later, in another order. Those that live are in
        /// the list, in the order of their arrival.
        #[test]
        fn g22_a_list_holds_the_living_in_the_order_of_arrival(
            // Without its watchers, a list of many stays one.
            before in prop_oneof![Just(0), SHORT_LIST as u32 - 2..SHORT_LIST as u32 + 40],
            steps in prop::collection::vec((0..3_u8, any::<prop::sample::Index>()), 1..400),
        ) {
            let mut list = None;
            (0..before).for_each(|id| add(&mut list, id, None));
            let mut live = BTreeSet::from_iter(0..before);
            let (mut ending, mut next) = (Vec::new(), before);
            for (step, pick) in steps {
                match step {
                    0 => {
                        add(&mut list, next, None);
                        live.insert(next);
                        next += 1;
                    }
                    1 if !live.is_empty() => {
                        let id = *live.iter().nth(pick.index(live.len())).unwrap();
                        live.remove(&id);
                        ending.push(id);
                    }
                    2 if !ending.is_empty() => {
                        let id = ending.swap_remove(pick.index(ending.len()));
                        let is_live = |other: Address| live.contains(&other.index());
                        let empty = list.as_mut().unwrap().remove(watcher(id), None, is_live);
                        prop_assert_eq!(empty, live.is_empty() && ending.is_empty());
                        if empty {
                            list = None;
                        }
                    }
                    _ => {}
                }
                let mut held = watchers_of(list.as_ref());
                held.retain(|watcher| live.contains(&watcher.index()));
                prop_assert!(held.iter().map(|watcher| watcher.index()).eq(live.iter().copied()));
            }
        }

        /// A walk in slices meets those that stay, once each: with a rank up to the bound in its order, then those
        /// without in the order of their arrival. None that arrives meanwhile, also in another list of the key.
        #[test]
        fn g22_a_walk_meets_in_order_all_that_stay(
            ranks in prop::collection::vec(prop::option::weighted(0.3, 0..8_u64), 1..300),
            up_to in 0..8_u64,
            at_most in 1..100_usize,
            leaving in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let list = std::cell::RefCell::new(None);
            for (id, rank) in (0..).zip(&ranks) {
                add(&mut list.borrow_mut(), id, *rank);
            }
            let mut left = BTreeSet::new();
            let mut leaving = leaving.iter().map(|pick| pick.index(ranks.len()));
            let mut newcomer = ranks.len() as u32;
            let mut met = Vec::new();
            let bound = Bound::up_to(up_to).at_most(at_most);
            let visit = Walk::new(bound).visit(
                |watcher| {
                    met.push(watcher.index());
                    // One leaves, and one arrives.
                    let mut list = list.borrow_mut();
                    if let Some(id) = leaving.next().filter(|id| left.insert(*id as u32)) {
                        let is_live = |other: Address| !left.contains(&other.index());
                        let emptied = list
                            .as_mut()
                            .is_some_and(|list| list.remove(self::watcher(id as u32), ranks[id], is_live));
                        if emptied {
                            *list = None;
                        }
                    }
                    add(&mut list, newcomer, (newcomer % 2 == 0).then_some(0));
                    newcomer += 1;
                    ControlFlow::Continue(())
                },
                || (),
                |read| list.borrow().iter().for_each(&mut *read),
            );
            prop_assert_eq!(visit, ControlFlow::Continue(()));
            let distinct = met.iter().collect::<BTreeSet<_>>();
            prop_assert_eq!(distinct.len(), met.len(), "met twice");
            prop_assert!(met.iter().all(|id| (*id as usize) < ranks.len()), "a newcomer was met");
            let expected = |id: &u32| ranks[*id as usize].is_none_or(|rank| rank <= up_to);
            prop_assert!(met.iter().all(expected));
            let stayed = (0..ranks.len() as u32).filter(|id| !left.contains(id) && expected(id));
            prop_assert!(stayed.into_iter().all(|id| met.contains(&id)), "one that stays was not met");
            let order = |id: &u32| (ranks[*id as usize].is_none(), ranks[*id as usize], *id);
            prop_assert!(met.is_sorted_by_key(order));
        }
    }

    #[test]
    fn the_dead_are_never_more_than_half_of_a_long_list() {
        let count = 10_000;
        let mut list = None;
        (0..count).for_each(|id| add(&mut list, id, None));
        let mut list = list.expect("there are watchers");
        // In the worst order for the sweep: what it has just passed dies next.
        for left in 0..count {
            let gone = count - 1 - left;
            let empty = list.remove(watcher(gone), None, |other| other.index() < gone);
            assert_eq!(empty, gone == 0);
            let held = watchers_of(Some(&list)).len() as u32;
            assert!(held <= 2 * gone.max(SHORT_LIST as u32), "{held} for {gone}");
        }
    }

    #[test]
    fn g20_no_removal_examines_more_than_a_few() {
        const SWEEP: usize = 4;
        let count = 10_000;
        let mut list = None;
        (0..count).for_each(|id| add(&mut list, id, None));
        let mut list = list.expect("there are watchers");
        for gone in (0..count).rev() {
            let asked = Cell::new(0);
            list.remove(watcher(gone), None, |other| {
                asked.set(asked.get() + 1);
                other.index() < gone
            });
            assert!(asked.get() <= SWEEP, "{} examined", asked.get());
        }
    }

    /// What is copied in one hold of the lock does not depend on how many watch, with a rank or without.
    #[test]
    fn g20_a_walk_has_the_list_for_a_slice_at_a_time() {
        let count = 10_000;
        let mut list = None;
        (0..count).for_each(|id| add(&mut list, id, (id % 2 == 0).then(|| Rank::from(id))));
        let list = list.expect("there are watchers");
        let (met, copied) = (Cell::new(0), Cell::new(0));
        let visit = Walk::new(Bound::NONE).visit(
            |_| {
                met.set(met.get() + 1);
                ControlFlow::Continue(())
            },
            || (),
            |read| {
                // All that was copied so far has been met, and the lock was not held meanwhile.
                let together = met.get() - copied.get();
                assert!(together <= SLICE, "{together} at once");
                copied.set(met.get());
                read(&list);
            },
        );
        assert_eq!(visit, ControlFlow::Continue(()));
        assert_eq!(met.get(), count as usize);
    }

    /// A check for one of 10,000 copies few.
    #[test]
    fn g22_a_walk_that_breaks_has_copied_little() {
        let mut list = None;
        (0..10_000).for_each(|id| add(&mut list, id, None));
        let reads = Cell::new(0);
        let visit = Walk::new(Bound::NONE.at_most(1)).visit(
            |first| {
                assert_eq!(first, watcher(0));
                ControlFlow::Break(())
            },
            || (),
            |read| {
                reads.set(reads.get() + 1);
                list.iter().for_each(&mut *read);
            },
        );
        assert_eq!((visit, reads.get()), (ControlFlow::Break(()), 1));
    }

    #[test]
    fn few_watchers_take_one_small_allocation() {
        assert_eq!(size_of::<WatchList>(), 16);
        assert_eq!(size_of::<[Address; PLACES]>(), 24);
    }
}
