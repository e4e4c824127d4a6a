//! The table alone: its lists, its counts, and the places that it checks.

use super::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A place that exists, or no longer does.
struct Place {
    is_alive: bool,
    checks: AtomicUsize,
}

fn place(is_alive: bool) -> Arc<Place> {
    let checks = AtomicUsize::new(0);
    Arc::new(Place { is_alive, checks })
}

impl Waiting<u8> for Place {
    fn check(&self, _: &u8, _: u64) -> bool {
        self.checks.fetch_add(1, Ordering::Relaxed);
        self.is_alive
    }

    fn is_alive(&self) -> bool {
        self.is_alive
    }

    fn shut_down(&self) {}
}

/// A key that is waited for again and again, each time for a moment, has one place in the lists, and its linger begins
/// with the end of the last interest.
#[test]
fn a_hot_key_lingers_once() {
    let table = Table::<u8>::new(1, 1, Rules::default(), || {});
    let tend = |now| {
        table.tend(
            Duration::from_secs(now),
            Duration::from_secs(10),
            &mut vec![],
        )
    };
    for now in 0..100 {
        for _ in 0..2 {
            let entry = table.enter(&7).unwrap();
            table.leave(&7, &entry);
            assert_eq!(table.shard(&7).lock().idle.len(), 1);
        }
        assert_eq!(tend(now), Some(Duration::from_secs(now + 10)));
        assert_eq!(table.shard(&7).lock().lingering.len(), 1);
    }
    let again = table.enter(&7).unwrap();
    assert_eq!((tend(200), table.watched_keys()), (None, 1));
    table.leave(&7, &again);
    assert_eq!(tend(200), Some(Duration::from_secs(210)));
    assert_eq!((tend(210), table.watched_keys()), (None, 0));
}

/// A crowd leaves: as many linger as may, the last ones to leave, and nothing waits for the driver's next look.
#[test]
fn no_more_keys_linger_than_may() {
    const KEYS: u64 = 10_000;
    const MOST: usize = 1_000;
    let wakes = Arc::new(AtomicUsize::new(0));
    let woken = wakes.clone();
    let wake = move || _ = woken.fetch_add(1, Ordering::Relaxed);
    let table = Table::<u64>::new(usize::MAX, MOST, Rules::default(), wake);
    let tend = |now, orders: &mut Vec<_>| {
        table.tend(Duration::from_secs(now), Duration::from_secs(10), orders)
    };
    let entries = (0..KEYS)
        .map(|key| table.enter(&key).unwrap())
        .collect::<Vec<_>>();
    tend(0, &mut Vec::new());
    let before = wakes.swap(0, Ordering::Relaxed);
    assert_ne!(before, 0, "they were to be watched");
    let leave = |keys: std::ops::Range<u64>| {
        keys.for_each(|key| table.leave(&key, &entries[key as usize]));
    };
    // As many as may: the driver is let be, and forgets none.
    leave(0..500);
    let mut orders = Vec::new();
    tend(1, &mut orders);
    assert_eq!((wakes.load(Ordering::Relaxed), orders.len()), (0, 0));
    // All but the last ten.
    leave(500..KEYS - 10);
    assert_ne!(wakes.load(Ordering::Relaxed), 0);
    tend(2, &mut orders);
    let lingering = table.watched_keys() - 10;
    assert!((MOST..MOST + SHARDS).contains(&lingering), "{lingering}");
    assert_eq!(orders.len(), KEYS as usize - 10 - lingering);
    assert!(orders.contains(&Order::Unwatch(0)), "the first to leave");
    assert!(table.entry(&(KEYS - 11)).is_some(), "the last to leave");
    assert!(table.entry(&(KEYS - 1)).is_some(), "one that is waited for");
    // One that is waited for again is watched anew, or still.
    let again = table.enter(&0).unwrap();
    table.leave(&0, &again);
    tend(13, &mut orders);
    assert_eq!(table.watched_keys(), 11);
}

/// The store tells its epoch while there is no interest in the key.
#[test]
fn g24_a_key_that_lingers_learns_the_epoch() {
    let table = Table::<u8>::new(1, 1, Rules::default(), || {});
    let entry = table.enter(&7).unwrap();
    table.leave(&7, &entry);
    assert!(table.adopt(Epoch(1)));
    assert_eq!(entry.known().history.epoch, Some(Epoch(1)));
}

/// A burst of keys leaves no room behind, wherever they were.
#[test]
fn a_burst_of_keys_leaves_no_memory() {
    let table = Table::<u64>::new(usize::MAX, 0, Rules::default(), || {});
    let all = || 0..20_000;
    let entries = all().map(|key| table.enter(&key).unwrap());
    let entries = entries.collect::<Vec<_>>();
    for (key, entry) in all().zip(&entries).skip(100) {
        table.leave(&key, entry);
    }
    let tend = || table.tend(Duration::ZERO, Duration::ZERO, &mut vec![]);
    assert_eq!((tend(), table.watched_keys()), (None, 100));
    let shards = table.shards.iter().map(Mutex::lock);
    let rooms = shards.map(|it| it.slots.capacity() + it.idle.capacity() + it.orders.capacity());
    assert!(rooms.sum::<usize>() < 20_000 / 4);
    assert!(all().take(100).all(|key| table.entry(&key).is_some()));
}

#[test]
fn a_place_that_is_gone_is_forgotten_by_the_next_check() {
    let table = Table::<u8>::new(1, 1, Rules::default(), || {});
    let place = place(false);
    table.attach(place.clone());
    assert_eq!(Arc::strong_count(&place), 2);
    table.check(&7, 0);
    assert_eq!(Arc::strong_count(&place), 1);
}

/// Purgatories are replaced one after the other, the next one made before the last one is dropped.
#[test]
fn g06_a_place_that_is_gone_is_forgotten_beside_those_that_stay() {
    let table = Table::<u8>::new(1, 1, Rules::default(), || {});
    let places = [true, false, true].map(place);
    for place in &places {
        table.attach(place.clone());
    }
    table.check(&7, 0);
    assert_eq!(places.each_ref().map(Arc::strong_count), [2, 1, 2]);
    // Nor does it keep that check from the later ones.
    let checks = places.map(|it| it.checks.load(Ordering::Relaxed));
    assert_eq!(checks, [1, 1, 1]);
}

thread_local! {
    /// After how many copies the next one panics.
    static COPIES: Cell<u32> = const { Cell::new(0) };
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Fragile(u8);

impl Clone for Fragile {
    fn clone(&self) -> Self {
        let left = COPIES.get().checked_sub(1);
        COPIES.set(left.expect("the copy panics"));
        Self(self.0)
    }
}

/// Whichever of its copies panics, an interest leaves nothing behind, and the next one has the key watched.
#[test]
fn g24_an_interest_whose_key_panics_leaves_nothing_behind() {
    let table = Table::<Fragile>::new(1, 1, Rules::default(), || {});
    let enter = |copies| {
        COPIES.set(copies);
        catch_unwind(AssertUnwindSafe(|| table.enter(&Fragile(7))))
    };
    let mut copies = 0;
    while enter(copies).is_err() {
        assert!(table.entry(&Fragile(7)).is_none(), "after {copies}");
        assert_eq!(table.watched_keys(), 0, "after {copies}");
        copies += 1;
    }
    assert_eq!((copies > 0, table.watched_keys()), (true, 1));
    let mut orders = Vec::new();
    table.tend(Duration::ZERO, Duration::ZERO, &mut orders);
    assert_eq!(orders, [Order::Watch(Fragile(7))]);
}
