//! G8: what is started during a pass. G3, G6, G10, G16, G17 for many that expire together: ended by batches, and
//! cleared away afterwards. What holds for one holds for each of them.

use super::{TICK, park};
use crate::support::keys::by_number;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, lock, manual, within};
use request_purgatory::purgatory::{Builder, RandomState, WeakRef};
use request_purgatory::time::{Clock, ManualClock};
use request_purgatory::{Purgatory, Watch};
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(1);

/// So many operations expire in one pass: more than a few batches.
const STORM: usize = 3_000;

/// A storm of operations with a key each: what their examinations in the storm do, and what their callbacks do.
fn storm(
    configure: fn(Builder<Purgatory<Op>>) -> Builder<Purgatory<Op>>,
    examined: impl Fn(&ManualClock, u64) + Send + Sync + 'static,
    ended: impl Fn(&Purgatory<Op>, u64) + Send + Sync + 'static,
) -> Purgatory<Op> {
    within(PATIENCE, move || {
        let (purgatory, clock) = manual::<u64>(configure);
        let hooks = Arc::new((examined, ended));
        for key in 0..STORM as u64 {
            let (on_examination, on_end) = (hooks.clone(), hooks.clone());
            let (weak, clock) = (purgatory.downgrade(), clock.clone());
            let op = Op::new(SOON).when(move || {
                if clock.now().since_origin() > SOON {
                    on_examination.0(&clock, key);
                }
                false
            });
            let op = op.then(move |_| {
                let purgatory = weak.upgrade().expect("it drives the timer");
                on_end.1(&purgatory, key);
            });
            drop(purgatory.try_complete_else_watch(op, [key]));
        }
        pass(&purgatory, &clock);
        purgatory
    })
}

/// The pass in which the storm comes.
fn pass<K>(purgatory: &Purgatory<Op<K>>, clock: &ManualClock)
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
{
    clock.advance(2 * SOON);
    assert_eq!(purgatory.advance(), STORM);
}

/// Keys of one's own and shared ones, plain, resolved and resolved after the park, with ranks and without.
#[test]
fn g06_a_storm_leaves_no_watch_of_any_kind() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<u64>(|builder| builder);
        let resolved = [0, 1, 2].map(|key| purgatory.resolve(key));
        for number in 0..STORM as u64 {
            let shared = resolved[number as usize % resolved.len()].watch();
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
        pass(&purgatory, &clock);
        // The one that stays is still found under each of its keys, and no other is.
        let stats = purgatory.stats();
        assert_eq!((stats.parked, stats.watched), (1, keys.len()));
        assert_eq!(purgatory.watched_keys(), keys.len());
        for key in keys {
            assert_eq!(purgatory.check_and_complete(&key), 0);
        }
        assert_eq!(stays.examinations(), 2 + keys.len());
        stays.satisfy();
        assert_eq!(late[1].check_and_complete(), 1);
        assert_eq!(purgatory.stats().watched, 0);
        assert_eq!(purgatory.watched_keys(), 0);
    });
}

/// Its destructor is how one hears of it.
#[test]
fn g16_an_operation_dropped_for_a_panic_at_its_deadline_finds_that_counted() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<u64>(|builder| builder.max_parked(1));
        let found = Arc::new(Mutex::new(None));
        let (weak, finds) = (purgatory.downgrade(), found.clone());
        let dropped = scopeguard::guard((), move |()| {
            let purgatory = weak.upgrade().expect("it is being advanced");
            let stats = purgatory.stats();
            // Its place is free when it is gone.
            let next = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [2]);
            *lock(&finds) = Some((stats.parked, stats.watched, stats.aborted, next.is_ok()));
        });
        let is_time = clock.clone();
        let op = Op::new(SOON).when(move || {
            let _owned = &dropped;
            assert!(is_time.now().since_origin() < SOON, "at the deadline");
            false
        });
        park(&purgatory, op);
        clock.advance(SOON);
        assert_eq!(purgatory.advance(), 0);
        assert_eq!(*lock(&found), Some((0, 0, 1, false)));
        park(&purgatory, Op::new(NEVER_IN_A_TEST));
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
    let found = Arc::new(Mutex::new((0, 0)));
    let finds = found.clone();
    let purgatory = storm(
        limit,
        |_, _| (),
        move |purgatory, key| {
            let stale = purgatory.watched_keys() - purgatory.stats().parked;
            let parked = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [key]);
            let mut finds = lock(&finds);
            finds.0 += stale;
            finds.1 += usize::from(parked.is_err());
        },
    );
    // Stale watches, and refusals.
    assert_eq!(*lock(&found), (0, but));
    assert_eq!(purgatory.stats().parked, STORM - but);
}

/// Where operations take their time to say whether they could complete, those that have ended do not wait for all the
/// others.
#[test]
fn g10_slow_examinations_in_a_storm_keep_no_completion_waiting_for_all() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let longest = Arc::new(AtomicUsize::new(0));
    let (by_now, all, most) = (asked.clone(), asked, longest.clone());
    let examined = move |clock: &ManualClock, key| {
        clock.advance(SOON);
        lock(&by_now).push(key);
    };
    let ended = move |_: &Purgatory<Op>, key| {
        let since = lock(&all).iter().rev().position(|asked| *asked == key);
        most.fetch_max(since.expect("it was asked once more"), Ordering::SeqCst);
    };
    storm(|builder| builder, examined, ended);
    let longest = longest.load(Ordering::SeqCst);
    assert!(longest < STORM / 10, "{longest} were asked meanwhile");
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
        pass(&purgatory, &clock);
        assert_eq!(purgatory.stats().panicked, 0);
        assert_eq!(purgatory.watched_keys(), 0);
    });
}

/// Completions come first, a batch at a time: none waits until all have expired, nor until the watches of any are
/// removed.
#[test]
fn g10_in_a_storm_completions_wait_for_one_batch_and_no_clearing_away() {
    const BATCH: u64 = 512;
    let found = Arc::new(Mutex::new((0, 0, STORM)));
    let finds = found.clone();
    let ended = move |purgatory: &Purgatory<Op>, _| {
        let (stats, mut finds) = (purgatory.stats(), lock(&finds));
        let (ran, most_waited, least_watched) = *finds;
        let (waited, watched) = (stats.expired - ran, stats.watched);
        *finds = (ran + 1, most_waited.max(waited), least_watched.min(watched));
    };
    let purgatory = storm(|builder| builder, |_, _| (), ended);
    let (ran, most_waited, least_watched) = *lock(&found);
    assert_eq!((ran, least_watched), (STORM as u64, STORM));
    assert!(most_waited <= BATCH, "{most_waited} waited");
    assert_eq!(purgatory.stats().watched, 0);
}

/// Completions park into the bucket that is just being drained.
#[test]
fn g08_what_is_parked_while_a_bucket_drains_is_neither_lost_nor_early() {
    // Enough that the callbacks of the first run while the last have not fired.
    const MANY: u64 = 2_000;
    let (purgatory, clock) = manual::<u64>(|builder| builder.wheel_size(3));
    let fired = Arc::new(Mutex::new(Vec::new()));
    for key in 0..MANY {
        let (weak, fired, clock) = (purgatory.downgrade(), fired.clone(), clock.clone());
        let op = Op::new(7 * TICK).then(move |_| {
            let parked = clock.now().since_origin();
            let again = TICK * (key % 5) as u32;
            let op = Op::new(again).then(move |_| {
                let after = clock.now().since_origin() - parked;
                lock(&fired).push((again, after));
            });
            let purgatory = weak.upgrade().expect("it is driven");
            drop(purgatory.try_complete_else_watch(op, [key]));
        });
        drop(purgatory.try_complete_else_watch(op, [key]));
    }
    for _ in 0..20 {
        clock.advance(TICK);
        // Once for what was due, once for what that parked.
        purgatory.advance();
        purgatory.advance();
    }
    let fired = lock(&fired);
    assert_eq!(fired.len() as u64, MANY);
    assert!(fired.iter().all(|(asked, after)| asked == after));
    assert_eq!(purgatory.stats().parked, 0);
    assert_eq!(purgatory.next_deadline(), None);
}

/// Does this when a check examines it for the first time.
fn at_check(mut act: impl FnMut() + Send + 'static) -> Op {
    let mut examinations = 0;
    Op::new(NEVER_IN_A_TEST).when(move || {
        examinations += 1;
        if examinations == 3 {
            act();
        }
        false
    })
}

/// Timers take turns with deferred checks. The pass at the end is none of its own if no time has passed since the last
/// turn.
#[test]
fn g08_what_a_completion_starts_between_deferred_checks_is_left_for_the_next_pass() {
    let (purgatory, clock) = manual(|builder| builder);
    park(&purgatory, at_check(move || clock.advance(TICK)));
    let weak = purgatory.downgrade();
    let expires = Op::new(TICK).then(move |_| {
        let purgatory = weak.upgrade().expect("it is driven");
        drop(purgatory.try_complete_else_watch(Op::new(Duration::ZERO), [2]));
    });
    park(&purgatory, expires);
    purgatory.check_later(1);
    for parked in [2, 1] {
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(purgatory.stats().parked, parked);
    }
}

#[test]
fn g08_what_a_deferred_check_starts_is_left_for_the_next_pass() {
    let (purgatory, _clock) = manual(|builder| builder);
    let weak = purgatory.downgrade();
    let starts = at_check(move || {
        let purgatory = weak.upgrade().expect("it is driven");
        drop(purgatory.try_complete_else_watch(Op::new(Duration::ZERO), [2]));
    });
    park(&purgatory, starts);
    purgatory.check_later(1);
    assert_eq!([(); 2].map(|()| purgatory.advance()), [0, 1]);
}
