//! The watcher map: adding, removing and visiting at the same time.

use loom::thread;
use loom_tests::{bounded, exhaustive};
use request_purgatory::model::{By, Watchers};
use std::sync::Arc;

const KEY: u64 = 7;

/// Catches: an empty list that is removed in a second step, after a watcher was added to it.
#[test]
fn g02_a_watch_is_not_added_to_a_list_that_is_being_removed() {
    exhaustive(|| {
        let watchers = Arc::new(Watchers::new());
        watchers.add(By::Key(KEY), None, 0);
        let leaver = {
            let watchers = watchers.clone();
            thread::spawn(move || watchers.remove(By::Key(KEY), None, 0))
        };
        let adder = {
            let watchers = watchers.clone();
            thread::spawn(move || watchers.add(By::Key(KEY), None, 1))
        };
        leaver.join().unwrap();
        adder.join().unwrap();
        assert_eq!(watchers.on(KEY, u64::MAX), [1]);
        watchers.remove(By::Key(KEY), None, 1);
        assert_eq!(watchers.keys(), 0);
    });
}

/// Catches: a visit, made in slices, that misses a watcher which a removal moves to another place.
#[test]
fn g02_a_visit_meets_every_watcher_that_stays() {
    bounded(|| {
        let watchers = Arc::new(Watchers::new());
        (0..4).for_each(|id| watchers.add(By::Key(KEY), None, id));
        let leavers = {
            let watchers = watchers.clone();
            thread::spawn(move || {
                watchers.remove(By::Key(KEY), None, 0);
                watchers.remove(By::Key(KEY), None, 1);
            })
        };
        let found = watchers.on(KEY, u64::MAX);
        assert!(found.contains(&2) && found.contains(&3), "{found:?}");
        leavers.join().unwrap();
        for last in [2, 3] {
            watchers.remove(By::Key(KEY), None, last);
        }
        assert_eq!(watchers.keys(), 0);
    });
}
