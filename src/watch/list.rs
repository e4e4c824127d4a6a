//! The watchers of one key.
//!
//! A single watcher lies inline, and a few lie in one small allocation. More are kept in an unordered vector: short
//! ones are searched when a watcher leaves. In long ones a search would cost in what stays, so a leaver is only counted
//! as dead, and with every leaver a few places are swept, in rounds through the vector. The sweep outruns the deaths:
//! it looks at four places for each death, so at most half of a long list is dead, no removal takes long, and none
//! stalls the others to compact.
//!
//! Watchers with a rank stand in an ordered map instead, so that those up to a rank are found without a look at the
//! rest, and each leaves at once. With each stands its turn of arrival: a visit goes by the others' rank, and must not
//! meet those who come while it is under way, or it might never end.

use crate::address::Address;
use crate::sync::{PLACES, SHORT_LIST, SLICE};
use std::collections::BTreeMap;
use std::ops::Bound;

/// What a watcher waits for a key to reach: an offset, an epoch, a version.
pub(crate) type Rank = u64;

/// Room for so many is not worth giving back.
const ROOM: usize = 16;

/// Places swept for each watcher that leaves a long list.
const SWEEP: usize = 4;

/// The watchers of one key. An empty list does not exist.
#[derive(Debug)]
pub(crate) enum WatchList {
    /// One without a rank.
    One(Address),
    /// Several without a rank.
    Few(Few),
    Many(Box<Many>),
}

/// At most [`PLACES`] watchers, before all vacant places.
#[derive(Debug)]
pub(crate) struct Few(Box<[Address; PLACES]>);

/// Several watchers, or some with a rank.
#[derive(Debug, Default)]
pub(crate) struct Many {
    watchers: Vec<Address>,
    /// Watchers that left but are still in the vector, less those that were swept out before they said they leave.
    dead: isize,
    /// Where the next sweep begins.
    cursor: usize,
    /// Each with its turn of arrival.
    ranked: BTreeMap<(Rank, Address), u64>,
    /// The turn of the next one with a rank.
    turn: u64,
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
        let mut many = Box::<Many>::default();
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

    #[inline(never)]
    fn make_many(&mut self) -> &mut Many {
        let watchers = match self {
            Self::One(watcher) => Some(vec![*watcher]),
            Self::Few(few) => Some(few.watchers().to_vec()),
            Self::Many(_) => None,
        };
        if let Some(watchers) = watchers {
            *self = Self::Many(Box::new(Many {
                watchers,
                ..Many::default()
            }));
        }
        match self {
            Self::Many(many) => many,
            Self::One(_) | Self::Few(_) => unreachable!("it was made many"),
        }
    }

    /// All watchers, the dead among them, if none has a rank.
    #[inline(always)]
    pub(crate) fn unranked(&self) -> Option<&[Address]> {
        match self {
            Self::One(watcher) => Some(std::slice::from_ref(watcher)),
            Self::Few(few) => Some(few.watchers()),
            Self::Many(many) => many.ranked.is_empty().then_some(&many.watchers),
        }
    }

    /// Whether nobody else watches, and without a rank.
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

    /// Copies the next watchers of a walk: a slice at most, perhaps fewer. Returns whether the walk goes on.
    pub(crate) fn next_slice(&self, walk: &mut Walk, slice: &mut Vec<Address>) -> bool {
        if walk.end == usize::MAX {
            walk.begin(self);
        }
        let watchers = match self {
            Self::One(watcher) => std::slice::from_ref(watcher),
            Self::Few(few) => few.watchers(),
            Self::Many(many) => {
                let next = many.ranked.range((walk.after, Bound::Included(walk.last)));
                let mut seen = false;
                for (&(rank, watcher), turn) in next.take(SLICE) {
                    seen = true;
                    walk.after = Bound::Excluded((rank, watcher));
                    if *turn < walk.turn {
                        slice.push(watcher);
                    }
                }
                if seen {
                    return true;
                }
                &many.watchers
            }
        };
        walk.end = walk.end.min(watchers.len());
        let start = walk.end.saturating_sub(SLICE);
        slice.extend_from_slice(&watchers[start..walk.end]);
        walk.end = start;
        !slice.is_empty()
    }

    /// Calls `each` for all watchers, the dead among them.
    pub(crate) fn for_each(&self, mut each: impl FnMut(Address)) {
        match self {
            Self::One(watcher) => each(*watcher),
            Self::Few(few) => few.watchers().iter().copied().for_each(each),
            Self::Many(many) => {
                many.ranked.keys().for_each(|&(_, watcher)| each(watcher));
                many.watchers.iter().copied().for_each(each);
            }
        }
    }
}

/// How far a visit of a long list has come: it meets everyone who stays in the list meanwhile.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Those with a rank come first, in its order, from one to another of these.
    after: Bound<(Rank, Address)>,
    last: (Rank, Address),
    /// Of them, those are met whose turn came before this.
    turn: u64,
    /// Then the others, from the end: watchers from this place on have been visited. Lists only ever move their last
    /// watcher to a lower place, so walking down meets everyone who stays.
    end: usize,
}

impl Walk {
    /// The list is seen for the first time: whoever comes later is not met, or a walk might never end.
    fn begin(&mut self, list: &WatchList) {
        (self.turn, self.end) = match list {
            WatchList::One(_) => (0, 1),
            WatchList::Few(few) => (0, few.watchers().len()),
            WatchList::Many(many) => (many.turn, many.watchers.len()),
        };
    }

    /// A walk over those with a rank up to `up_to`, and all without.
    pub(crate) fn new(up_to: Rank) -> Self {
        Self {
            after: Bound::Unbounded,
            last: (up_to, Address::LAST),
            turn: 0,
            end: usize::MAX,
        }
    }

    /// Calls `each` for those that the walk meets; `read` shows the list for a slice of them, if it still exists.
    pub(crate) fn visit(
        mut self,
        mut each: impl FnMut(Address),
        mut pause: impl FnMut(),
        read: impl Fn(&mut dyn FnMut(&WatchList)),
    ) {
        let mut slice = Vec::with_capacity(SLICE);
        loop {
            slice.clear();
            let mut more = false;
            read(&mut |list| more = list.next_slice(&mut self, &mut slice));
            if !more {
                return;
            }
            slice.iter().copied().for_each(&mut each);
            pause();
        }
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
            let last = self.watchers().len() - 1;
            self.0[left] = self.0[last];
            self.0[last] = Self::VACANT;
        }
        self.0[0] == Self::VACANT
    }
}

impl Many {
    fn add(&mut self, watcher: Address, rank: Option<Rank>) {
        match rank {
            None => self.watchers.push(watcher),
            Some(rank) => {
                self.ranked.insert((rank, watcher), self.turn);
                self.turn += 1;
            }
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
            None => self.remove_unranked(watcher, is_live),
        }
        self.ranked.is_empty() && self.watchers.len() as isize == self.dead
    }

    fn remove_unranked(&mut self, watcher: Address, is_live: impl Fn(Address) -> bool) {
        let found = if self.watchers.len() <= SHORT_LIST {
            position(&self.watchers, watcher)
        } else {
            None
        };
        match found {
            Some(place) => drop(self.watchers.swap_remove(place)),
            None => self.dead += 1,
        }
        if self.dead != 0 {
            self.sweep(is_live);
        }
        // A key that was hot once does not keep its memory for ever.
        if self.watchers.capacity() > 4 * self.watchers.len().max(ROOM) {
            self.watchers.shrink_to(2 * self.watchers.len());
        }
    }

    fn sweep(&mut self, is_live: impl Fn(Address) -> bool) {
        for _ in 0..SWEEP.min(self.watchers.len()) {
            if self.cursor >= self.watchers.len() {
                self.cursor = 0;
            }
            match self.watchers.get(self.cursor) {
                Some(watcher) if is_live(*watcher) => self.cursor += 1,
                Some(_) => {
                    self.watchers.swap_remove(self.cursor);
                    self.dead -= 1;
                }
                None => return,
            }
        }
    }
}

/// Where `watcher` is. Looks at eight at once: without a branch for each, the compiler compares them by vectors.
#[inline(always)]
fn position(watchers: &[Address], watcher: Address) -> Option<usize> {
    const TOGETHER: usize = 8;
    let is_among = |some: &[Address]| {
        some.iter()
            .fold(false, |found, other| found | (*other == watcher))
    };
    let mut some = watchers.chunks_exact(TOGETHER);
    let before = some.by_ref().position(is_among);
    let first = before.unwrap_or(watchers.len() / TOGETHER) * TOGETHER;
    let place = watchers[first..]
        .iter()
        .position(|other| *other == watcher)?;
    Some(first + place)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn watcher(id: u32) -> Address {
        Address::new(0, id, 0)
    }

    proptest! {
        /// Watchers end first (so that sweeps may meet them) and leave later, in another order.
        #[test]
        fn a_list_holds_the_living_and_few_dead(
            // Without its watchers, a list of many stays one.
            before in prop_oneof![Just(0), SHORT_LIST as u32 - 2..SHORT_LIST as u32 + 40],
            steps in prop::collection::vec((0..3_u8, any::<prop::sample::Index>()), 1..400),
        ) {
            let mut list = (before > 0).then(|| WatchList::One(watcher(0)));
            (1..before).for_each(|id| list.iter_mut().for_each(|list| list.add(watcher(id), None)));
            let mut live = BTreeSet::from_iter(0..before);
            let (mut ending, mut next) = (Vec::new(), before);
            let mut members = before as usize;
            for (step, pick) in steps {
                match step {
                    0 => {
                        match &mut list {
                            None => list = Some(WatchList::One(watcher(next))),
                            Some(list) => list.add(watcher(next), None),
                        }
                        live.insert(next);
                        next += 1;
                        members += 1;
                    }
                    1 if !live.is_empty() => {
                        let id = *live.iter().nth(pick.index(live.len())).unwrap();
                        live.remove(&id);
                        ending.push(id);
                    }
                    2 if !ending.is_empty() => {
                        let id = ending.swap_remove(pick.index(ending.len()));
                        let empty = list
                            .as_mut()
                            .unwrap()
                            .remove(watcher(id), None, |other| live.contains(&other.index()));
                        members -= 1;
                        prop_assert_eq!(empty, members == 0);
                        if empty {
                            list = None;
                        }
                    }
                    _ => {}
                }
                let mut held = Vec::new();
                list.iter().for_each(|list| list.for_each(|watcher| held.push(watcher)));
                prop_assert!(live.iter().all(|id| held.contains(&watcher(*id))));
            }
        }
    }

    #[test]
    fn the_dead_are_never_more_than_half_of_a_long_list() {
        let count = 10_000;
        let mut list = WatchList::One(watcher(0));
        (1..count).for_each(|id| list.add(watcher(id), None));
        // In the worst order for the sweep: what it has just passed dies next.
        for gone in 0..count {
            let empty = list.remove(watcher(gone), None, |other| other.index() > gone);
            assert_eq!(empty, gone == count - 1);
            let WatchList::Many(many) = &list else {
                panic!("a list of many stays one until it is empty")
            };
            let live = (count - 1 - gone) as usize;
            assert!(
                many.watchers.len() <= 2 * live.max(SHORT_LIST),
                "{} places for {live} live watchers",
                many.watchers.len()
            );
        }
    }

    #[test]
    fn few_watchers_take_one_small_allocation() {
        let mut list = WatchList::new(watcher(0), None);
        for id in 1..3 {
            list.add(watcher(id), None);
            assert!(matches!(&list, WatchList::Few(few) if few.watchers().len() as u32 == id + 1));
        }
        for (id, left) in [(1, 2), (0, 1), (7, 1), (2, 0)] {
            assert_eq!(list.remove(watcher(id), None, |_| true), left == 0);
            assert_eq!(list.unranked().map(<[_]>::len), Some(left));
        }
        assert_eq!(size_of::<WatchList>(), 16);
    }

    /// G6: what was needed once is given back.
    #[test]
    fn g06_a_list_that_was_long_keeps_little_memory() {
        let count = 10_000;
        let mut list = WatchList::One(watcher(0));
        (1..count).for_each(|id| list.add(watcher(id), None));
        for gone in 1..count {
            list.remove(watcher(gone), None, |other| {
                other.index() == 0 || other.index() > gone
            });
        }
        let WatchList::Many(many) = &list else {
            panic!("a list of many stays one until it is empty")
        };
        let room = many.watchers.capacity();
        assert!(room <= 4 * SHORT_LIST, "room for {room}");
    }

    /// G20: what one removal looks at does not depend on how many watch or have left.
    #[test]
    fn g20_no_removal_looks_at_more_than_a_few() {
        let count = 10_000;
        let mut list = WatchList::One(watcher(0));
        (1..count).for_each(|id| list.add(watcher(id), None));
        for gone in 0..count {
            let looks = std::cell::Cell::new(0);
            // All but the last have ended before the first leaves.
            list.remove(watcher(gone), None, |other| {
                looks.set(looks.get() + 1);
                other.index() == count - 1
            });
            assert!(looks.get() <= SWEEP, "{} looks", looks.get());
        }
    }

    /// G20: what is copied in one hold of the lock does not depend on how many watch, with a rank or without.
    #[test]
    fn g20_a_walk_has_the_list_for_a_slice_at_a_time() {
        let count = 10_000;
        let mut list = WatchList::One(watcher(0));
        (1..count).for_each(|id| list.add(watcher(id), (id % 2 == 0).then(|| Rank::from(id))));
        let (met, copied) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        Walk::new(Rank::MAX).visit(
            |_| met.set(met.get() + 1),
            || (),
            |read| {
                // All that was copied so far has been met, and the lock was not held meanwhile.
                assert!(
                    met.get() - copied.get() <= SLICE,
                    "{} at once",
                    met.get() - copied.get()
                );
                copied.set(met.get());
                read(&list);
            },
        );
        assert_eq!(met.get(), count as usize);
    }
}
