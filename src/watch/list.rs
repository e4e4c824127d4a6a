//! The watchers of one key.
//!
//! A single watcher lies inline. More are kept in an unordered vector: short ones are searched when a watcher leaves.
//! In long ones a search would cost in what stays, so a leaver is only counted as dead, and with every leaver a few
//! places are swept, in rounds through the vector. The sweep outruns the deaths: it looks at four places for each
//! death, so at most a third of a long list is dead, no removal takes long, and none stalls the shard to compact.

use super::Watcher;
use crate::sync::SHORT_LIST;

/// Places swept for each watcher that leaves a long list.
const SWEEP: usize = 4;

/// The watchers of one key; an empty list does not exist.
#[derive(Debug)]
pub(crate) enum WatchList {
    One(Watcher),
    Many(Box<Many>),
}

/// Several watchers.
#[derive(Debug)]
pub(crate) struct Many {
    watchers: Vec<Watcher>,
    /// Watchers that left but are still in the vector, less those that were swept out before they said they leave.
    dead: isize,
    /// Where the next sweep begins.
    cursor: usize,
}

impl WatchList {
    pub(crate) fn push(&mut self, watcher: Watcher) {
        match self {
            Self::One(first) => {
                *self = Self::Many(Box::new(Many {
                    watchers: vec![*first, watcher],
                    dead: 0,
                    cursor: 0,
                }));
            }
            Self::Many(many) => many.watchers.push(watcher),
        }
    }

    /// `watcher` leaves. Returns whether the list is empty now.
    #[inline(always)]
    pub(crate) fn remove(&mut self, watcher: Watcher, is_live: impl Fn(Watcher) -> bool) -> bool {
        match self {
            Self::One(only) => *only == watcher,
            Self::Many(many) => many.remove(watcher, is_live),
        }
    }
}

impl Many {
    /// All watchers, the dead among them.
    pub(crate) fn watchers(&self) -> &[Watcher] {
        &self.watchers
    }

    fn remove(&mut self, watcher: Watcher, is_live: impl Fn(Watcher) -> bool) -> bool {
        let found = if self.watchers.len() <= SHORT_LIST {
            self.watchers.iter().position(|other| *other == watcher)
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
        self.watchers.len() as isize == self.dead
    }

    fn sweep(&mut self, is_live: impl Fn(Watcher) -> bool) {
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
        // A key that was hot once does not keep its memory for ever.
        if self.watchers.capacity() > 4 * self.watchers.len().max(SHORT_LIST) {
            self.watchers.shrink_to(2 * self.watchers.len());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn watcher(id: u32) -> Watcher {
        Watcher { id, generation: 0 }
    }

    proptest! {
        /// Watchers end first (so that sweeps may meet them) and leave later, in another order.
        #[test]
        fn a_list_holds_the_living_and_few_dead(
            steps in prop::collection::vec((0..3_u8, any::<prop::sample::Index>()), 1..400),
        ) {
            let mut list = None::<WatchList>;
            let (mut live, mut ending, mut next) = (BTreeSet::new(), Vec::new(), 0);
            let mut members = 0_usize;
            for (step, pick) in steps {
                match step {
                    0 => {
                        match &mut list {
                            None => list = Some(WatchList::One(watcher(next))),
                            Some(list) => list.push(watcher(next)),
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
                            .remove(watcher(id), |other| live.contains(&other.id));
                        members -= 1;
                        prop_assert_eq!(empty, members == 0);
                        if empty {
                            list = None;
                        }
                    }
                    _ => {}
                }
                let held = match &list {
                    None => Vec::new(),
                    Some(WatchList::One(only)) => vec![*only],
                    Some(WatchList::Many(many)) => many.watchers().to_vec(),
                };
                prop_assert!(live.iter().all(|id| held.contains(&watcher(*id))));
            }
        }
    }

    #[test]
    fn the_dead_are_never_more_than_half_of_a_long_list() {
        let count = 10_000;
        let mut list = WatchList::One(watcher(0));
        (1..count).for_each(|id| list.push(watcher(id)));
        // In the worst order for the sweep: what it has just passed dies next.
        for gone in 0..count {
            let empty = list.remove(watcher(gone), |other| other.id > gone);
            assert_eq!(empty, gone == count - 1);
            let WatchList::Many(many) = &list else {
                panic!("a list of many stays one until it is empty")
            };
            let live = (count - 1 - gone) as usize;
            assert!(
                many.watchers().len() <= 2 * live.max(SHORT_LIST),
                "{} places for {live} live watchers",
                many.watchers().len()
            );
        }
    }
}
