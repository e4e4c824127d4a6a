//! Two threads in the map of the lists, step by step on one: what each does between two holds of a lock.

use super::bound::Ticket;
use super::*;
use std::cell::Cell;
use std::hash::RandomState;

const KEY: u32 = 7;
const OTHER: u32 = 8;

fn watcher(number: u32) -> Address {
    Address::new(0, number, 0)
}

struct Map(WatchMap<u32, RandomState>);

impl Map {
    fn add(&self, place: Number, number: u32) {
        let ticket = Cell::<Ticket>::default();
        let added = self.0.add(
            Target::Resolved(place),
            Turn::Arrived(&ticket),
            watcher(number),
        );
        assert_eq!(added, (true, None));
    }

    /// The first step of a removal. The last one is to retire what this returns, with no lock held in between.
    fn leave(&self, place: Number, number: u32) -> Option<Arc<u32>> {
        let ticket = Cell::<Ticket>::default();
        let place = self.0.resolved.get(place);
        place.remove(watcher(number), Turn::Arrived(&ticket))
    }

    /// Resolves `key`, has it watched, and is resolved no more.
    fn watched(&self, key: u32, number: u32) -> Number {
        let (place, _) = self.0.resolve(&Arc::new(key));
        self.add(place, number);
        self.0.release(&key, place);
        place
    }
}

/// A thread has taken the last watcher off a key's list, and is late to retire the place: that is another key's by now,
/// which waits to be retired as well, and the first key has another place.
#[test]
fn g02_a_place_is_retired_by_the_key_that_has_it() {
    let map = Map(WatchMap::new(RandomState::new(), 2, usize::MAX));
    let place = map.watched(KEY, 0);
    let late = map.leave(place, 0).expect("it was the last");
    let (again, _) = map.0.resolve(&Arc::new(KEY));
    map.0.release(&KEY, again);
    assert_eq!((again, map.0.all_keys()), (place, vec![]), "it was retired");

    assert_eq!(map.watched(OTHER, 1), place, "the place is used again");
    let late_too = map.leave(place, 1).expect("it was the last");
    let (fresh, _) = map.0.resolve(&Arc::new(KEY));
    map.add(fresh, 2);

    map.0.retire(late);
    assert_eq!(
        (map.0.count(&KEY), map.0.keys()),
        (1, 1),
        "its list is the other one"
    );
    map.0.retire(late_too);
    assert_eq!(map.0.all_keys(), [KEY]);
    assert!(map.leave(fresh, 2).is_none(), "the key is resolved");
    map.0.release(&KEY, fresh);
    assert_eq!(map.0.all_keys(), []);
}
