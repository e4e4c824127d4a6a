//! G6: a map shard that has to make room for a key, while `Hash` of another key panics.

use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, manual, within};
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
        let dropped = self.0 < 100 && self.1.panicked.load(Ordering::SeqCst);
        self.1
            .dropped
            .fetch_add(usize::from(dropped), Ordering::SeqCst);
    }
}

/// Some places of a map shard are taken by removed entries when it has to make room, and `Hash` panics: no entry of
/// another key is dropped, and every operation is found by its key afterwards.
#[test]
fn g06_a_shard_that_cannot_make_room_keeps_its_entries() {
    within(PATIENCE, || {
        for living in [2, 6, 7, 8, 12, 13, 14, 20, 27, 28] {
            let (purgatory, _clock) = manual::<Crowded>(|builder| builder);
            let crowd = Arc::new(Crowd::default());
            let key = |number| Crowded(number, crowd.clone());
            let park = |number| {
                let op = Op::new(NEVER_IN_A_TEST).when(|| false);
                let park = || purgatory.try_complete_else_watch(op, [key(number)]);
                let parked = catch_unwind(AssertUnwindSafe(park)).ok()?;
                parked.ok().and_then(|parked| parked.into_handle())
            };
            let handles = (0..28).map(park).collect::<Vec<_>>();
            for handle in handles[living..].iter().flatten() {
                assert!(handle.cancel().is_some());
            }
            // New keys come and go until the shard makes room.
            for number in 100..200 {
                crowd.panics.store(true, Ordering::SeqCst);
                if let Some(handle) = park(number) {
                    crowd.panics.store(false, Ordering::SeqCst);
                    assert!(handle.cancel().is_some());
                }
            }
            crowd.panics.store(false, Ordering::SeqCst);
            assert_eq!(crowd.dropped.load(Ordering::SeqCst), 0, "of {living}");
            let found = (0..living as u32).filter(|number| purgatory.watchers(&key(*number)) == 1);
            assert_eq!(found.count(), living);
            purgatory.shutdown();
        }
    });
}

#[test]
fn g06_a_key_that_cannot_be_resolved_leaves_nothing() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Crowded>(|builder| builder);
        let crowd = Arc::new(Crowd::default());
        let key = |number| Crowded(number, crowd.clone());
        let park = |number| {
            let op = Op::new(NEVER_IN_A_TEST);
            let parked = purgatory.try_complete_else_watch(op, [key(number)]);
            parked.ok().and_then(|parked| parked.into_handle())
        };
        let handles = (0..28).map(park).collect::<Vec<_>>();
        let mut panics = 0;
        for number in 100..200 {
            crowd.panics.store(true, Ordering::SeqCst);
            let resolve = || drop(purgatory.resolve(key(number)));
            panics += usize::from(catch_unwind(AssertUnwindSafe(resolve)).is_err());
        }
        crowd.panics.store(false, Ordering::SeqCst);
        assert!(panics > 50, "{panics} panics");
        for handle in handles.into_iter().flatten() {
            assert!(handle.cancel().is_some());
        }
        assert_eq!(purgatory.watched_keys(), 0);
        // The test's own reference, and none of a key.
        assert_eq!(Arc::strong_count(&crowd), 1);
    });
}
