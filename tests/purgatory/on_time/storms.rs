//! Many that expire together: ended by batches, and cleared away afterwards. What holds for one holds for each of them.

use crate::support::keys::by_number;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, lock, manual, within};
use request_purgatory::purgatory::{Builder, RandomState, WeakRef};
use request_purgatory::{Purgatory, Watch, time::Clock};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(1);

/// More than a few batches.
const STORM: usize = 3_000;

/// Keys of one's own and shared ones, plain, resolved and resolved after the park, with ranks and without.
#[test]
fn g06_a_storm_leaves_no_watch_of_any_kind() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<u64>(|builder| builder);
        let resolved = [0, 1, 2].map(|key| purgatory.resolve(key));
        for number in 0..STORM as u64 {
            let shared = &resolved[number as usize % resolved.len()];
            let shared = shared.watch();
            let shared = match number % 2 {
                0 => shared,
                _ => shared.at_rank(number),
            };
            let watches = [
                shared,
                Watch::from(10 + number % 7),
                Watch::from(20 + number % 5).at_rank(number),
                Watch::from(1_000 + number),
            ];
            drop(purgatory.try_complete_else_watch(Op::new(SOON), watches));
        }
        let late = [10, 20, 1_000].map(|key| purgatory.resolve(key));
        let (stays, other) = (Probe::new(), 1_000_000);
        let keys = [0, 10, 20, 1_001, other];
        drop(purgatory.try_complete_else_watch(stays.op(NEVER_IN_A_TEST), keys));
        assert_eq!(purgatory.stats().watched, 4 * STORM + keys.len());
        clock.advance(2 * SOON);
        assert_eq!(purgatory.advance(), STORM);
        // The one that stays is still found under each of its keys, and no other is.
        assert_eq!(
            (purgatory.stats().parked, purgatory.stats().watched),
            (1, keys.len())
        );
        assert_eq!(purgatory.watched_keys(), keys.len());
        for key in keys {
            assert_eq!(purgatory.check_and_complete(&key), 0);
        }
        assert_eq!(stays.examinations(), 2 + keys.len());
        stays.satisfy();
        assert_eq!(late[1].check_and_complete(), 1);
        assert_eq!(
            (purgatory.stats().watched, purgatory.watched_keys()),
            (0, 0)
        );
    });
}

/// Calls this when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Its destructor is how one hears of it.
#[test]
fn g16_an_operation_dropped_for_a_panic_at_its_deadline_finds_that_counted() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<u64>(|builder| builder.max_parked(1));
        let park = |op, key| purgatory.try_complete_else_watch(op, [key]);
        let found = Arc::new(Mutex::new(None));
        let dropped = {
            let (weak, found) = (purgatory.downgrade(), found.clone());
            OnDrop(move || {
                let purgatory = weak.upgrade().expect("it is being advanced");
                let stats = purgatory.stats();
                // Its place is free when it is gone.
                let next = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [2]);
                *lock(&found) = Some((stats.parked, stats.watched, stats.aborted, next.is_ok()));
            })
        };
        let is_time = clock.clone();
        let op = Op::new(SOON).when(move || {
            let _owned = &dropped;
            assert!(is_time.now().since_origin() < SOON, "at the deadline");
            false
        });
        assert!(park(op, 1).is_ok());
        clock.advance(SOON);
        assert_eq!(purgatory.advance(), 0);
        assert_eq!(*lock(&found), Some((0, 0, 1, false)));
        assert!(park(Op::new(NEVER_IN_A_TEST), 2).is_ok());
        assert_eq!(purgatory.stats().parked, 1);
    });
}

/// A place is free when `on_complete` has run: each callback but the first parks in the place of the one before. By
/// then nothing is left of the operations that have ended, neither in the lists nor in the slots.
#[test]
fn g17_each_completion_in_a_storm_makes_room_for_one() {
    each_completion_in_a_storm_parks(1, |builder| builder.max_parked(STORM));
}

/// A place on the key is free before.
#[test]
fn g17_no_completion_in_a_storm_finds_its_key_full() {
    each_completion_in_a_storm_parks(0, |builder| {
        let bounded = builder.max_watchers_per_key(1);
        bounded.hasher(RandomState::default())
    });
}

/// On the key of the operation that has ended.
fn each_completion_in_a_storm_parks(
    but: usize,
    limit: fn(Builder<Purgatory<Op>>) -> Builder<Purgatory<Op>>,
) {
    within(PATIENCE, move || {
        let (purgatory, clock) = manual::<u64>(limit);
        let found = Arc::new(Mutex::new((0, 0)));
        for number in 0..STORM as u64 {
            let (weak, found) = (purgatory.downgrade(), found.clone());
            let op = Op::new(SOON).then(move |_| {
                let purgatory = weak.upgrade().expect("it drives the timer");
                let stale = purgatory.watched_keys() - purgatory.stats().parked;
                let next = Op::new(NEVER_IN_A_TEST);
                let parked = purgatory.try_complete_else_watch(next, [number]);
                let mut found = lock(&found);
                found.0 += stale;
                found.1 += usize::from(parked.is_err());
            });
            drop(purgatory.try_complete_else_watch(op, [number]));
        }
        clock.advance(2 * SOON);
        assert_eq!(purgatory.advance(), STORM);
        let (stale, refused) = *lock(&found);
        assert_eq!(
            (stale, refused, purgatory.stats().parked),
            (0, but, STORM - but)
        );
    });
}

/// Where operations take their time to say whether they could complete, those that have ended do not wait for all the
/// others.
#[test]
fn g10_slow_examinations_in_a_storm_keep_no_completion_waiting_for_all() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<u64>(|builder| builder);
        let (looked, longest) = (Arc::new(Mutex::new(0_u64)), Arc::new(Mutex::new(0)));
        for key in 0..STORM as u64 {
            let (own, clock) = (Arc::new(Mutex::new(None)), clock.clone());
            let (asked, count, all) = (own.clone(), looked.clone(), looked.clone());
            let longest = longest.clone();
            let op = Op::new(SOON)
                .when(move || {
                    if clock.now().since_origin() > SOON {
                        clock.advance(SOON);
                        let mut count = lock(&count);
                        *count += 1;
                        *lock(&asked) = Some(*count);
                    }
                    false
                })
                .then(move |_| {
                    let own = lock(&own).expect("it was asked once more");
                    let since = *lock(&all) - own;
                    let mut longest = lock(&longest);
                    *longest = since.max(*longest);
                });
            drop(purgatory.try_complete_else_watch(op, [key]));
        }
        clock.advance(2 * SOON);
        assert_eq!(purgatory.advance(), STORM);
        let longest = *lock(&longest);
        assert!(
            longest < STORM as u64 / 10,
            "{longest} were asked meanwhile"
        );
    });
}

/// A key that looks for itself when it is dropped.
#[derive(Clone)]
struct Curious(u64, Arc<OnceLock<WeakRef<Purgatory<Op<Curious>>>>>);

by_number!(Curious);

impl Drop for Curious {
    fn drop(&mut self) {
        let purgatory = self.1.get().and_then(WeakRef::upgrade);
        if let Some(purgatory) = purgatory {
            // (The one that it asks with looks for nothing.)
            purgatory.watchers(&Self(self.0, Arc::default()));
        }
    }
}

#[test]
fn g03_no_lock_is_held_while_a_key_is_dropped_in_a_storm() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<Curious>(|builder| builder);
        let place = Arc::new(OnceLock::new());
        for number in 0..STORM as u64 {
            let key = Curious(number, place.clone());
            drop(purgatory.try_complete_else_watch(Op::new(SOON), [key]));
        }
        assert!(place.set(purgatory.downgrade()).is_ok());
        clock.advance(2 * SOON);
        assert_eq!(purgatory.advance(), STORM);
        assert_eq!(
            (purgatory.stats().panicked, purgatory.watched_keys()),
            (0, 0)
        );
    });
}

/// Completions come first, a batch at a time: none waits until all have expired, nor until the watches of any are
/// removed.
#[test]
fn g10_in_a_storm_completions_wait_for_one_batch_and_no_clearing_away() {
    const BATCH: u64 = 512;
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<u64>(|builder| builder);
        let found = Arc::new(Mutex::new((0, 0, STORM)));
        for key in 0..STORM as u64 {
            let (weak, found) = (purgatory.downgrade(), found.clone());
            let op = Op::new(SOON).then(move |_| {
                let purgatory = weak.upgrade().expect("it drives the timer");
                let (stats, mut found) = (purgatory.stats(), lock(&found));
                let (ran, most_waited, least_watched) = *found;
                let (waited, watched) = (stats.expired - ran, stats.watched);
                *found = (ran + 1, most_waited.max(waited), least_watched.min(watched));
            });
            drop(purgatory.try_complete_else_watch(op, [key]));
        }
        clock.advance(2 * SOON);
        assert_eq!(purgatory.advance(), STORM);
        let (ran, most_waited, least_watched) = *lock(&found);
        assert_eq!((ran, least_watched), (STORM as u64, STORM));
        assert!(most_waited <= BATCH, "{most_waited} waited");
        assert_eq!(purgatory.stats().watched, 0);
    });
}
