//! G6: a map shard that has to make room for a key, while `Hash` of another key panics.

use crate::chains::scene::park;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, manual, quietly, within};
use request_purgatory::Handle;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// All lie in one map shard. `Hash` of a numbered one panics once when told to.
#[derive(Debug, Clone)]
struct Crowded(u32, Arc<Crowd>);

#[derive(Debug, Default)]
struct Crowd {
    panics: AtomicBool,
    panicked: AtomicBool,
    dropped: AtomicUsize,
}

impl PartialEq for Crowded {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Crowded {}

impl Hash for Crowded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let crowd = &self.1;
        if self.0 < 100 && crowd.panics.swap(false, Ordering::SeqCst) {
            crowd.panicked.store(true, Ordering::SeqCst);
            std::panic::panic_any("intended");
        }
        0_u64.hash(state);
    }
}

impl Drop for Crowded {
    fn drop(&mut self) {
        let crowd = &self.1;
        let dropped = usize::from(self.0 < 100 && crowd.panicked.load(Ordering::SeqCst));
        crowd.dropped.fetch_add(dropped, Ordering::SeqCst);
    }
}

/// Some places of a map shard are taken by removed entries when it has to make room, and `Hash` panics: no entry of
/// another key is dropped, every operation is found by its key afterwards, and the new key leaves nothing.
#[test]
fn g06_a_shard_that_cannot_make_room_keeps_its_entries() {
    const LIVING: [usize; 10] = [2, 6, 7, 8, 12, 13, 14, 20, 27, 28];
    within(PATIENCE, || {
        quietly();
        for (living, resolves) in LIVING.iter().flat_map(|it| [(*it, false), (*it, true)]) {
            let (purgatory, _clock) = manual::<Crowded>(|builder| builder);
            let crowd = Arc::new(Crowd::default());
            let key = |number| Crowded(number, crowd.clone());
            let park = |number| park(&purgatory, Op::new(NEVER_IN_A_TEST), [key(number)]);
            let cancel = |handle: Handle<_>| assert!(handle.cancel().is_some());
            let mut handles = (0..28).map(park).collect::<Vec<_>>();
            handles.drain(living..).for_each(cancel);
            // New keys come and go until the shard makes room.
            let mut panics = 0;
            for number in 100..200 {
                let mut parked = None;
                crowd.panics.store(true, Ordering::SeqCst);
                let come = || {
                    if resolves {
                        drop(purgatory.resolve(key(number)));
                    } else {
                        parked = Some(park(number));
                    }
                };
                panics += usize::from(catch_unwind(AssertUnwindSafe(come)).is_err());
                crowd.panics.store(false, Ordering::SeqCst);
                parked.into_iter().for_each(cancel);
            }
            let what = format!("{living} living, resolves: {resolves}");
            assert!(living < 28 || panics > 50, "{what}: {panics} panics");
            assert_eq!(crowd.dropped.load(Ordering::SeqCst), 0, "{what}");
            let found = (0..living as u32).filter(|number| purgatory.watchers(&key(*number)) == 1);
            assert_eq!(found.count(), living, "{what}");
            handles.into_iter().for_each(cancel);
            assert_eq!(purgatory.watched_keys(), 0, "{what}");
            // The test's own reference, and none of a key.
            assert_eq!(Arc::strong_count(&crowd), 1, "{what}");
        }
    });
}
