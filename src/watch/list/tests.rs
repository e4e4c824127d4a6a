//! The list of one key against sorted sets, and walks over lists that change meanwhile.

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
        Walk::new(bound).visit(
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
    Walk::new(Bound::NONE).visit(
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
    assert_eq!(met.get(), count as usize);
}

/// A check for one of 10,000 copies few.
#[test]
fn g22_a_walk_that_breaks_has_copied_little() {
    let mut list = None;
    (0..10_000).for_each(|id| add(&mut list, id, None));
    let reads = Cell::new(0);
    Walk::new(Bound::NONE.at_most(1)).visit(
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
    assert_eq!(reads.get(), 1);
}

#[test]
fn few_watchers_take_one_small_allocation() {
    assert_eq!(size_of::<WatchList>(), 16);
    assert_eq!(size_of::<[Address; PLACES]>(), 24);
}
