//! Tests of the watch list of one key. They compare the list with a sorted set, and walk over lists. A walk copies a
//! long list slice by slice, and in these tests the list changes between two slices.

use super::super::watchers::Walking;
use super::*;
use crate::sync::LIST_CHUNK;
use crate::watch::bound::Ticket;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;

fn watcher(id: u32) -> Address {
    Address::new(0, id, 0)
}

/// A list, and the tickets of its watchers. A ticket is the number by which a list finds a watcher that leaves.
#[derive(Default)]
struct Listed {
    list: Option<WatchList>,
    /// The rank of each watcher, and its ticket (by which the list finds the watcher, to remove it), by the watcher's
    /// id.
    tickets: Vec<(Option<Rank>, Cell<Ticket>)>,
}

impl Listed {
    fn of(count: u32) -> Self {
        let mut listed = Self::default();
        (0..count).for_each(|_| listed.add(None));
        listed
    }

    fn add(&mut self, rank: Option<Rank>) {
        let ticket = Cell::default();
        let (id, order) = (self.tickets.len() as u32, Order::new(rank, &ticket));
        match &mut self.list {
            None => self.list = Some(WatchList::new(watcher(id), order)),
            Some(list) => assert!(list.add_up_to(usize::MAX, watcher(id), order)),
        }
        self.tickets.push((rank, ticket));
    }

    /// Removes a watcher that is in the list.
    fn remove(&mut self, id: u32) {
        let (rank, ticket) = &self.tickets[id as usize];
        let order = Order::new(*rank, ticket);
        if let Some(list) = &mut self.list {
            let empty = list.remove(watcher(id), order);
            if empty {
                self.list = None;
            }
        }
    }

    fn ids(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        self.list
            .iter()
            .for_each(|list| list.for_each(|watcher| ids.push(watcher.index())));
        ids
    }

    /// The number of chunks, including the spare one, and the capacity of the queue of chunks.
    fn kept(&self) -> (usize, usize) {
        match &self.list {
            Some(WatchList::Many(many)) => many.unranked.kept(),
            _ => (0, 0),
        }
    }
}

/// The tickets repeat after this many chunks, each of which has `LIST_CHUNK` watchers. A list numbers its watchers in
/// the order of arrival, and the ticket of a watcher is the low 32 bits of its number. So a ticket repeats after 2^32
/// watchers.
const SPAN: u64 = (1 << Ticket::BITS) / LIST_CHUNK as u64;

/// Walks over the list that `read` gives access to, for as long as `each` returns `true`.
fn meet(
    bound: CheckBound,
    mut each: impl FnMut(Address) -> bool,
    read: impl Fn(&mut dyn FnMut(&WatchList)),
) {
    let mut walking = Walking::new(bound);
    while walking.next(|| (), &read).is_some_and(&mut each) {}
}

/// An operation is removed from the list of this key twice, because `Hash` or `Eq` of another of its keys has panicked.
/// Between the two removals, all watchers leave the list, and others come to a new list of the key. The second removal
/// takes none of the new watchers out.
#[test]
fn a_watcher_that_is_removed_twice_takes_no_place_of_a_later_list() {
    let mut first = Listed::of(20);
    (0..20).for_each(|id| first.remove(id));
    assert!(first.list.is_none());
    let mut later = Listed {
        // The tickets (numbers by which a list finds its watchers) of the watchers 0 to 19 in the old list. The
        // watchers 20 to 39, which come to the new list, get the same tickets there, but have other addresses.
        tickets: first.tickets,
        list: None,
    };
    (0..20).for_each(|_| later.add(None));
    (0..20).for_each(|id| later.remove(id));
    assert_eq!(later.ids(), (20..40).collect::<Vec<_>>());
}

proptest! {
    /// Watchers leave in another order than they came. The others stay in the list, in the order of their arrival.
    #[test]
    fn g22_a_list_holds_its_watchers_in_the_order_of_arrival(
        before in prop_oneof![Just(0), 0..4 * LIST_CHUNK as u32],
        steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..400),
        passed in prop_oneof![Just(0), SPAN - 2..SPAN + 3, 3 * SPAN - 2..3 * SPAN + 3],
    ) {
        let mut listed = Listed::of(before);
        if let Some(WatchList::Many(many)) = &mut listed.list {
            many.unranked.skip(passed);
        }
        let mut present = BTreeSet::from_iter(0..before);
        for (arrives, pick) in steps {
            if arrives || present.is_empty() {
                present.insert(listed.tickets.len() as u32);
                listed.add(None);
            } else {
                let id = *present.iter().nth(pick.index(present.len())).unwrap();
                present.remove(&id);
                listed.remove(id);
            }
            prop_assert!(listed.ids().iter().eq(&present));
            prop_assert_eq!(listed.list.as_ref().map_or(0, WatchList::count), present.len());
        }
    }

    /// A walk in slices meets each watcher that stays, and meets it once. First come the watchers with a rank up to the
    /// bound, in the order of ranks; then those without a rank, in the order of arrival. The walk meets no watcher that
    /// arrives during the walk, not even in another list of the key.
    #[test]
    fn g22_a_walk_meets_in_order_all_that_stay(
        ranks in prop::collection::vec(prop::option::weighted(0.3, 0..8_u64), 1..300),
        up_to in 0..8_u64,
        at_most in 1..100_usize,
        leaving in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let listed = RefCell::new(Listed::default());
        ranks.iter().for_each(|rank| listed.borrow_mut().add(*rank));
        let mut left = BTreeSet::new();
        let mut leaving = leaving.iter().map(|pick| pick.index(ranks.len()) as u32);
        let mut met = Vec::new();
        let bound = CheckBound::at_most(at_most).up_to(up_to);
        meet(
            bound,
            |watcher| {
                met.push(watcher.index());
                // One watcher leaves, and another arrives.
                let mut listed = listed.borrow_mut();
                if let Some(id) = leaving.next().filter(|id| left.insert(*id)) {
                    listed.remove(id);
                }
                let newcomer = listed.tickets.len();
                listed.add((newcomer % 2 == 0).then_some(0));
                true
            },
            |read| listed.borrow().list.iter().for_each(&mut *read),
        );
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

/// A walk copies a list of watchers slice by slice. Between two slices all watchers leave, and their list is dropped.
/// Other watchers then arrive, and the key gets a new list, short or long. The walk meets none of the new watchers.
#[test]
fn g22_a_walk_meets_no_watcher_of_another_list() {
    let count = 3 * SLICE as u32;
    let newcomers = [
        vec![None],
        vec![None; SEVERAL],
        vec![None; 3 * SLICE],
        vec![Some(0)],
    ];
    for newcomers in newcomers {
        let listed = RefCell::new(Listed::of(count));
        let mut met = Vec::new();
        meet(
            CheckBound::at_most(1),
            |watcher| {
                met.push(watcher.index());
                let mut listed = listed.borrow_mut();
                (0..count).for_each(|id| listed.remove(id));
                newcomers.iter().for_each(|rank| listed.add(*rank));
                true
            },
            |read| listed.borrow().list.iter().for_each(&mut *read),
        );
        assert_eq!(met, [0], "{} came", newcomers.len());
    }
}

/// A watcher that stays for long does not keep the memory of watchers that come and leave meanwhile.
#[test]
fn g06_a_list_keeps_no_chunk_without_watchers_but_one() {
    let mut listed = Listed::of(10 * LIST_CHUNK as u32);
    for id in 1..100_000 {
        listed.add(None);
        listed.remove(id);
    }
    assert_eq!(listed.ids().len(), 10 * LIST_CHUNK);
    // The list has the chunk of watcher 0, which stays. The 319 watchers that came last lie in ten or eleven chunks,
    // because the first of them may lie in the middle of a chunk. One empty chunk is kept as the spare.
    assert!(listed.kept().0 <= 1 + 11 + 1, "{:?}", listed.kept());
}

#[test]
fn g06_a_list_that_was_long_once_does_not_keep_its_room() {
    const COUNT: u32 = 100_000;
    let mut listed = Listed::of(COUNT);
    assert!(listed.kept().1 >= COUNT as usize / LIST_CHUNK - 1);
    (1..COUNT).for_each(|id| listed.remove(id));
    assert_eq!(listed.ids(), [0]);
    assert!(listed.kept().1 <= 4 * SLICE, "{:?}", listed.kept());
}

/// The number of watchers copied in one hold of the lock does not depend on how many watch, with a rank or without.
#[test]
fn g20_a_walk_has_the_list_for_a_slice_at_a_time() {
    let count = 10_000;
    let mut listed = Listed::default();
    (0..count).for_each(|id| listed.add((id % 2 == 0).then_some(id)));
    let list = listed.list.expect("there are watchers");
    let (met, copied) = (Cell::new(0), Cell::new(0));
    // Called before each slice is copied, and once at the end. At each call, the walk has returned all watchers that
    // were copied so far. So those that it has returned since the last call were copied together, in one hold of the
    // lock.
    let count_slice = || {
        let together = met.get() - copied.replace(met.get());
        assert!(together <= SLICE, "{together} at once");
    };
    meet(
        CheckBound::all(),
        |_| {
            met.set(met.get() + 1);
            true
        },
        |read| {
            count_slice();
            read(&list);
        },
    );
    count_slice();
    assert_eq!(met.get(), count as usize);
}

/// A walk holds the lock while it copies a slice, and a check that stops after few completions needs few watchers. So
/// the first slice has as many watchers as the check may complete, and each later slice is twice as large, up to
/// `SLICE`.
#[test]
fn g22_the_slices_of_a_walk_begin_as_large_as_its_bound_and_grow() {
    for ranked in [false, true] {
        let mut listed = Listed::default();
        (0..300).for_each(|id| listed.add(ranked.then_some(id)));
        let list = listed.list.expect("there are watchers");
        let mut walk = Walk::new(CheckBound::at_most(5));
        for expected in [5, 10, 20, 40, SLICE, SLICE] {
            let mut slice = Vec::new();
            assert!(walk.next_slice(&list, &mut slice));
            assert_eq!(slice.len(), expected);
        }
    }
}

/// A check for one completion among 10,000 watchers copies few of them.
#[test]
fn g22_a_walk_that_breaks_has_copied_little() {
    let list = Listed::of(10_000).list;
    let reads = Cell::new(0);
    meet(
        CheckBound::at_most(1),
        |first| {
            assert_eq!(first, watcher(0));
            false
        },
        |read| {
            reads.set(reads.get() + 1);
            list.iter().for_each(&mut *read);
        },
    );
    assert_eq!(reads.get(), 1);
}

#[test]
fn a_short_list_takes_one_small_allocation() {
    assert_eq!(size_of::<WatchList>(), 16);
    // With malloc's own 8 bytes, the allocation of a `Few` takes 32 bytes, and the allocation of a `Several` a cache
    // line.
    assert_eq!(size_of::<Short<FEW>>(), 8);
    assert_eq!(size_of::<[Address; FEW]>(), 24);
    assert_eq!(size_of::<[Address; SEVERAL]>(), 56);
    for count in 2..=SEVERAL as u32 {
        let list = Listed::of(count).list;
        let is_few = matches!(list, Some(WatchList::Few(_)));
        assert_eq!(is_few, count <= FEW as u32);
        assert!(is_few || matches!(list, Some(WatchList::Several(_))));
    }
}
