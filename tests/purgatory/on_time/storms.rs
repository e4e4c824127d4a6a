//! G8: what is started during a pass. G3, G6, G10, G16, G17 for many that expire together: ended by batches, and
//! cleared away afterwards. What holds for one holds for each of them.

use super::{TICK, park};
use crate::chains::scene::{admit, inside, once_checked};
use crate::lost_completion::steps::ranked;
use crate::support::keys::Busy;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, lock, manual, within};
use request_purgatory::purgatory::{Builder, Key};
use request_purgatory::time::{Clock, ManualClock};
use request_purgatory::{Purgatory, Watch};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(1);

/// So many operations expire in one pass: more than a few batches.
const STORM: usize = 3_000;

type Building = Builder<Purgatory<Op>>;

/// A storm of operations with a key each: what their examinations in the storm do, and what their callbacks do.
fn storm(
    configure: fn(Building) -> Building,
    examined: impl Fn(&ManualClock, u64) + Send + Sync + 'static,
    ended: impl Fn(&Purgatory<Op>, u64) + Send + Sync + 'static,
) -> Purgatory<Op> {
    within(PATIENCE, move || {
        let (purgatory, clock) = manual::<u64>(configure);
        let (examined, ended) = (Arc::new(examined), Arc::new(ended));
        for key in 0..STORM as u64 {
            let (examined, ended, clock) = (examined.clone(), ended.clone(), clock.clone());
            let op = Op::new(SOON).when(move || {
                if clock.now().since_origin() > SOON {
                    examined(&clock, key);
                }
                false
            });
            let ends = inside(&purgatory, move |all| ended(all, key));
            admit(&purgatory, op.then(move |_| ends()), [key]);
        }
        pass(&purgatory, &clock);
        purgatory
    })
}

/// The pass in which the storm comes.
fn pass<K: Key>(purgatory: &Purgatory<Op<K>>, clock: &ManualClock) {
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
            let watches = [
                ranked(shared, (number % 2 == 1).then_some(number)),
                Watch::from(10 + number % 7),
                Watch::from(20 + number % 5).at_rank(number),
                Watch::from(1_000 + number),
            ];
            admit(&purgatory, Op::new(SOON), watches);
        }
        let late = [10, 20, 1_000].map(|key| purgatory.resolve(key));
        let (stays, other) = (Probe::new(), 1_000_000);
        let keys = [0, 10, 20, 1_001, other];
        admit(&purgatory, stays.op(NEVER_IN_A_TEST), keys);
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
        let finds = found.clone();
        let looks = inside(&purgatory, move |all| {
            let stats = all.stats();
            // Its place is free when it is gone.
            let next = all.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [2]);
            *lock(&finds) = Some((stats.parked, stats.watched, stats.aborted, next.is_ok()));
        });
        let dropped = scopeguard::guard((), move |()| looks());
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

/// A place is free when `on_complete` has run: each callback but the first parks in the place of the one before, on the
/// key of the operation that has ended. A place on that key is free before. By then nothing is left of the operations
/// that have ended, neither in the lists nor in the slots.
#[test]
fn g17_each_completion_in_a_storm_makes_room_for_one() {
    let limits: [(fn(Building) -> Building, usize); 2] = [
        (|builder| builder.max_parked(STORM), 1),
        (|builder| builder.max_watchers_per_key(1), 0),
    ];
    for (limit, refusals) in limits {
        let found = Arc::new(Mutex::new((0, 0)));
        let finds = found.clone();
        let ended = move |all: &Purgatory<Op>, key| {
            let stale = all.watched_keys() - all.stats().parked;
            let parked = all.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [key]);
            let mut finds = lock(&finds);
            finds.0 += stale;
            finds.1 += usize::from(parked.is_err());
        };
        let purgatory = storm(limit, |_, _| (), ended);
        // Stale watches, and refusals.
        assert_eq!(*lock(&found), (0, refusals));
        assert_eq!(purgatory.stats().parked, STORM - refusals);
    }
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

/// Each key looks for itself.
#[test]
fn g03_no_lock_is_held_while_a_key_is_dropped_in_a_storm() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual::<Busy>(|builder| builder);
        for number in 0..STORM as u64 {
            let looks = inside(&purgatory, move |all| {
                all.watchers(&Busy(number, None));
            });
            let key = Busy(number, Some(Arc::new(looks)));
            admit(&purgatory, Op::new(SOON), [key]);
        }
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

#[test]
fn g08_what_is_parked_while_a_bucket_drains_is_neither_lost_nor_early() {
    // Enough that the callbacks of the first run while the last have not fired.
    const MANY: u64 = 2_000;
    let (purgatory, clock) = manual::<u64>(|builder| builder.wheel_size(4));
    let fired = Arc::new(Mutex::new(Vec::new()));
    for key in 0..MANY {
        let (fired, clock) = (fired.clone(), clock.clone());
        let parks = inside(&purgatory, move |all| {
            let (fired, clock, parked) = (fired.clone(), clock.clone(), clock.now());
            let again = TICK * (key % 5) as u32;
            let op = Op::new(again).then(move |_| {
                lock(&fired).push((again, clock.now().saturating_since(parked)));
            });
            admit(all, op, [key]);
        });
        admit(&purgatory, Op::new(7 * TICK).then(move |_| parks()), [key]);
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

/// Timers take turns with deferred checks. The pass at the end is none of its own if no time has passed since the last
/// turn.
#[test]
fn g08_what_is_started_between_deferred_checks_is_left_for_the_next_pass() {
    for (by_a_completion, expired) in [(true, [1, 1]), (false, [0, 1])] {
        let (purgatory, clock) = manual::<u64>(|builder| builder);
        let starts = inside(&purgatory, |all| {
            admit(all, Op::new(Duration::ZERO), [2]);
        });
        if by_a_completion {
            let passes = once_checked(NEVER_IN_A_TEST, move || clock.advance(TICK));
            park(&purgatory, passes);
            park(&purgatory, Op::new(TICK).then(move |_| starts()));
        } else {
            park(&purgatory, once_checked(NEVER_IN_A_TEST, starts));
        }
        purgatory.check_later(1);
        assert_eq!([(); 2].map(|()| purgatory.advance()), expired);
        assert_eq!(purgatory.stats().parked, 1);
    }
}
