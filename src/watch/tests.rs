//! Tests of the map of watch lists. Some run the steps of two threads by turns on one thread. A step is what a thread
//! does in one hold of a lock.

use super::bound::Ticket;
use super::*;
use std::cell::Cell;
use std::hash::{Hasher, RandomState};
use std::sync::atomic::Ordering;
use std::time::Duration;

const KEY: u32 = 7;
const OTHER: u32 = 8;

fn watcher(number: u32) -> Address {
    Address::new(0, number, 0)
}

struct Map(WatchMap<u32, RandomState>);

impl Map {
    fn add(&self, list: ListNumber, number: u32) {
        let ticket = Cell::<Ticket>::default();
        let added = self.0.add(
            Target::Resolved(list),
            Order::Arrived(&ticket),
            watcher(number),
        );
        assert!(added);
    }

    /// The first step of a removal: removes the watcher from `list`, which is the list of a resolved key (one that had
    /// a `ResolvedKey`). Returns the key if the list has lost its last watcher and the key has no `ResolvedKey` any
    /// more. The second step takes the key away from the list, so that another key can get the list. It is left to the
    /// test. A thread holds no lock between the two steps.
    fn leave(&self, list: ListNumber, number: u32) -> Option<Arc<u32>> {
        let ticket = Cell::<Ticket>::default();
        let list = self.0.resolved.get(list);
        list.remove(watcher(number), Order::Arrived(&ticket))
    }

    /// Resolves `key`, adds a watcher to its list, and releases the key again, as the drop of its `ResolvedKey` does.
    /// So nothing but the watcher uses the list any more.
    fn watched(&self, key: u32, number: u32) -> ListNumber {
        let (list, _) = self.0.resolve(&Arc::new(key));
        self.add(list, number);
        self.0.release(&key, list);
        list
    }
}

thread_local!(static COMPARISONS_LEFT: Cell<u32> = const { Cell::new(u32::MAX) });

/// A key that panics in its next comparison but `COMPARISONS_LEFT`.
#[derive(Debug, Clone, Eq)]
struct Fragile(u32);

impl Hash for Fragile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for Fragile {
    fn eq(&self, other: &Self) -> bool {
        COMPARISONS_LEFT.set(COMPARISONS_LEFT.get().checked_sub(1).expect("on purpose"));
        self.0 == other.0
    }
}

/// A comparison of a key panics while the key's list is retired. No other key that gets this list is reached by a check
/// of the first key, whichever comparison it was.
#[test]
fn g12_a_key_that_panics_while_its_list_is_retired_reaches_no_other_key() {
    for comparisons in 0..3 {
        let map = WatchMap::new(RandomState::new(), 2, usize::MAX);
        let fragile = Arc::new(Fragile(KEY));
        let (list, _) = map.resolve(&fragile);
        COMPARISONS_LEFT.set(comparisons);
        Panics::contain(|| map.release(&fragile, list));
        COMPARISONS_LEFT.set(u32::MAX);
        let (other, resolved) = map.resolve(&Arc::new(Fragile(OTHER)));
        let ticket = Cell::<Ticket>::default();
        assert!(resolved.add(usize::MAX, watcher(0), Order::Arrived(&ticket)));
        let watchers = [KEY, OTHER].map(|key| map.count(&Fragile(key)));
        assert_eq!(
            watchers,
            [0, 1],
            "after {comparisons} comparisons; {list:?}, {other:?}"
        );
    }
}

/// Thread A has removed the last watcher from list X of the first key, and has yet to retire the list (make it vacant).
/// Meanwhile:
///
/// 1. Thread B retires list X.
/// 2. List X is reused for a second key. The last watcher of the second key leaves as well, so the list is unused
///    again.
/// 3. The first key gets another list, Y, which is in use.
///
/// Then thread A looks for the list that the first key has now. This is list Y, so thread A retires no list.
#[test]
fn g02_a_list_is_retired_by_the_key_that_has_it() {
    let map = Map(WatchMap::new(RandomState::new(), 2, usize::MAX));
    let list = map.watched(KEY, 0);
    let late = map.leave(list, 0).expect("it was the last");
    let (again, _) = map.0.resolve(&Arc::new(KEY));
    map.0.release(&KEY, again);
    assert_eq!(again, list);
    assert!(map.0.all_keys().is_empty(), "it was retired");

    assert_eq!(map.watched(OTHER, 1), list, "the list is used again");
    let late_too = map.leave(list, 1).expect("it was the last");
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
    assert!(map.0.all_keys().is_empty());
}

/// The list of a resolved key (one that was looked up once, for a `ResolvedKey`) is one word while only one operation
/// without a rank watches the key. A lookup then takes no lock. The same is true after a longer list has become empty.
#[test]
fn g28_a_resolved_list_that_becomes_empty_is_one_word_again() {
    let map = Map(WatchMap::new(RandomState::new(), 2, usize::MAX));
    let named = map.watched(KEY, 0);
    let (again, list) = map.0.resolve(&Arc::new(KEY));
    assert_eq!(again, named, "it was watched");
    map.leave(named, 0);
    assert!(list.peek().is_empty());
    for watchers in [1, 2, 7] {
        (0..watchers).for_each(|number| map.add(named, number));
        assert_eq!(list.peek().only().is_some(), watchers == 1);
        (0..watchers).for_each(|number| _ = map.leave(named, number));
        assert!(list.peek().is_empty(), "there were {watchers}");
    }
    let ranked = Order::Ranked(3);
    assert!(list.add(usize::MAX, watcher(0), ranked));
    assert!(list.remove(watcher(0), ranked).is_none() && list.peek().is_empty());
}

/// One thread retires a list (makes it vacant), and another thread takes the list for a key of another map shard.
#[test]
fn g18_a_list_that_passes_between_threads_has_the_key_that_took_it() {
    let map = Map(WatchMap::new(RandomState::new(), 64, usize::MAX));
    std::thread::scope(|scope| {
        for key in 0..4 {
            let map = &map.0;
            scope.spawn(move || {
                for _ in 0..20_000 {
                    let (list, _) = map.resolve(&Arc::new(key));
                    assert_eq!(map.resolved_key(list).as_deref(), Some(&key));
                    map.release(&key, list);
                }
            });
        }
    });
    assert!(map.0.all_keys().is_empty());
}

/// Two checks of one key can run at the same time.
#[test]
fn g20_two_threads_look_at_one_key_together() {
    let map = Map(WatchMap::new(RandomState::new(), 2, usize::MAX));
    map.watched(KEY, 0);
    let map = &map.0;
    std::thread::scope(|scope| {
        map.lists.read("a test", &KEY, |_, _| {
            let (told, counted) = std::sync::mpsc::channel();
            scope.spawn(move || told.send(map.count(&KEY)));
            let counted = counted.recv_timeout(Duration::from_secs(60));
            assert_eq!(counted, Ok(1), "it waits for the other");
        });
    });
}

/// If the same bits of the hash chose the shard and the place in its table, all keys of one shard would collide there.
#[test]
fn no_bit_that_chooses_a_shard_chooses_a_place_in_its_table() {
    let map = WatchMap::<u32, _>::new(RandomState::new(), 1 << 16, usize::MAX);
    let (lowest, highest) = (u64::from(u16::MAX), 0x7F << 57);
    for number in 0..1 << 16 {
        let shard = map.lists.shard_of(number << 32);
        assert_eq!(map.lists.shard_of(number << 32 | lowest | highest), shard);
        assert_eq!(shard as u64, number, "all bits count");
    }
}

/// Each resolved key (one that has a `ResolvedKey`) has a list of its own. When a million keys are resolved and one
/// more follows, places for a million more lists are allocated at once. This happens without the lock of the map shard:
/// another thread adds and removes watches in the same shard meanwhile.
#[test]
fn g20_a_key_that_is_resolved_beside_a_million_keeps_no_thread_from_its_shard() {
    let map = Map(WatchMap::new(RandomState::new(), 2, usize::MAX));
    let shard_of = |key: u32| map.0.lists.shard_of(map.0.lists.hash_of(&key));
    let key = (1 << 30..)
        .find(|key| shard_of(*key) == shard_of(KEY))
        .expect("one of two shards");
    // Take the numbers of a million lists. The place of a list follows from its number, and the places lie in chunks
    // that double in size. So the list of the next key needs a new chunk, of a million places.
    for _ in 1..1 << 20 {
        let _ = map.0.resolved.free.take();
    }
    // ORDERING: SeqCst throughout, for simplicity: these atomics count the turns of the test, and order no access of
    // the library.
    let turns = std::sync::atomic::AtomicU32::new(0);
    let resolved = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (map, turns, resolved) = (&map, &turns, &resolved);
        let other = scope.spawn(move || {
            let ticket = Cell::<Ticket>::default();
            while !resolved.load(Ordering::SeqCst) {
                let order = Order::Arrived(&ticket);
                assert!(map.0.add(Target::Key(&key), order, watcher(1)));
                map.0.remove(Target::Key(&key), order, watcher(1));
                turns.fetch_add(1, Ordering::SeqCst);
            }
        });
        while turns.load(Ordering::SeqCst) < 10 {
            std::thread::yield_now();
        }
        let before = turns.load(Ordering::SeqCst);
        drop(map.0.resolve(&Arc::new(KEY)));
        let meanwhile = turns.load(Ordering::SeqCst) - before;
        resolved.store(true, Ordering::SeqCst);
        other.join().expect("it only adds and removes");
        assert!(meanwhile > 500, "{meanwhile} turns while a chunk was made");
    });
}
