//! G16: counts are exact. G18: stale handles are harmless. G20: a snapshot stalls no thread. G21: a forgotten check
//! shows.

use crate::chains::scene::{Gate, admit, inside, once_checked, park};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe};
use crate::support::{eventually, lock, manual, quietly, within};
use request_purgatory::purgatory::RejectReason;
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::{Handle, Purgatory};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

/// Parked on one thread, ended on others in every way: at rest, the counts agree.
#[test]
fn g16_counts_are_exact_at_every_quiet_moment() {
    const MAX: usize = 1_000;
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::builder("g16").max_parked(MAX).build();
        let purgatory = purgatory.expect("threads are to be had");
        for round in 0..20 {
            let (handles, refused) = (Mutex::new(Vec::<Handle<Op>>::new()), AtomicUsize::new(0));
            let rejected_before = purgatory.stats().rejected;
            let work = |seed: u64| {
                let mut random = fastrand::Rng::with_seed(seed + 10 * round + 1);
                for _ in 0..400 {
                    let keys = (0..=random.u64(..4)).map(|key| key * 3);
                    match purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), keys) {
                        Ok(admission) => lock(&handles).extend(admission.into_handle()),
                        Err(rejected) => {
                            assert_eq!(rejected.reason(), RejectReason::Full);
                            refused.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    if random.u64(..3) == 0 {
                        continue;
                    }
                    let mut handles = lock(&handles);
                    if handles.is_empty() {
                        continue;
                    }
                    let pick = random.usize(..handles.len());
                    let handle = handles.swap_remove(pick);
                    drop(handles);
                    match random.bool() {
                        true => drop(handle.cancel()),
                        false => _ = handle.force_complete(),
                    }
                }
            };
            thread::scope(|scope| {
                for seed in 0..4 {
                    let work = &work;
                    scope.spawn(move || work(seed));
                }
            });
            let parked = lock(&handles).len();
            let (stats, listed) = (purgatory.stats(), purgatory.snapshot());
            assert_eq!((stats.parked, listed.len()), (parked, parked));
            let watched = listed.iter().map(|op| op.keys.len()).sum::<usize>();
            assert_eq!(stats.watched, watched);
            let rejected = stats.rejected - rejected_before;
            assert_eq!(rejected, refused.load(Ordering::SeqCst) as u64);
            // The bound: exactly what is missing up to it fits.
            let fits = MAX - parked;
            for number in 0..=fits {
                let result = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [0]);
                assert_eq!(result.is_ok(), number < fits, "{number} of {fits}");
            }
            assert_eq!(purgatory.cancel_for_key(&0).len(), MAX);
            assert_eq!((purgatory.stats().parked, purgatory.watched_keys()), (0, 0));
            assert_eq!(purgatory.next_deadline(), None, "and no timer");
        }
    });
}

/// The slot of an ended operation has many occupants after it; its handle touches none of them.
#[test]
fn g18_a_stale_handle_does_nothing() {
    fn touch(stale: &Handle<Op>) {
        assert!(!stale.is_parked());
        assert!(!stale.check());
        assert!(!stale.force_complete());
        assert!(stale.cancel().is_none());
        assert!(!stale.reschedule(Duration::ZERO));
        assert_eq!((stale.remaining(), stale.deadline()), (None, None));
    }

    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let mut stale = Vec::new();
    for _ in 0..100 {
        let probe = Probe::new();
        let handle = park(&purgatory, probe.op(NEVER_IN_A_TEST), [1]);
        stale.iter().for_each(touch);
        assert!(handle.is_parked());
        assert_eq!(probe.examinations(), 2, "the two of the park");
        assert_eq!(purgatory.stats().parked, 1);
        assert!(handle.cancel().is_some());
        assert!(handle.cancel().is_none());
        stale.push(handle);
    }
    purgatory.shutdown();
    stale.iter().for_each(touch);
    drop(purgatory);
    stale.iter().for_each(touch);
}

/// Late by more than a counter of nanoseconds holds, again and again.
#[test]
fn g16_the_sum_of_latenesses_stops_at_its_end() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let late = Duration::from_nanos(u64::MAX / 2 + 1);
    for _ in 0..3 {
        park(&purgatory, Op::new(Duration::ZERO), [1]);
        clock.advance(late);
        assert_eq!(purgatory.advance(), 1);
    }
    let stats = purgatory.stats();
    assert_eq!(stats.lateness_total, Duration::from_nanos(u64::MAX));
    assert_eq!(stats.lateness_max, late);
}

/// How late operations expired is known before their completions run: however long these take, it stays.
#[test]
fn g16_a_slow_completion_is_no_lateness() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    for key in 0..3 {
        let slow = clock.clone();
        let op = Op::new(MS).then(move |_| slow.advance(Duration::from_secs(1)));
        park(&purgatory, op, [key]);
    }
    clock.advance(3 * MS);
    assert_eq!(purgatory.advance(), 3);
    let stats = purgatory.stats();
    let lateness = (stats.lateness_max, stats.lateness_total);
    assert_eq!(lateness, (2 * MS, 3 * 2 * MS));
}

/// In a storm, watches and slots are reclaimed after the completions: the endings are counted before.
#[test]
fn g16_a_completion_in_a_storm_finds_its_ending_counted() {
    const COUNT: u64 = 5_000;
    for dispatch in [Dispatch::Inline, Dispatch::OwnThread] {
        within(PATIENCE, || {
            let (purgatory, clock) = manual(|it| it.reaper(Reaper::Own).dispatch(dispatch));
            let (heard, missing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            for key in 0..COUNT {
                let (hears, misses) = (heard.clone(), missing.clone());
                let look = inside(&purgatory, move |all| {
                    let heard = hears.fetch_add(1, Ordering::SeqCst) + 1;
                    let counted = all.stats().expired as usize;
                    misses.fetch_add(heard.saturating_sub(counted), Ordering::SeqCst);
                });
                let op = Op::new(MS).then(move |_| look());
                park(&purgatory, op, [key, COUNT + key % 3]);
            }
            clock.advance(2 * MS);
            eventually("the last completion", || {
                heard.load(Ordering::SeqCst) as u64 == COUNT
            });
            assert_eq!(missing.load(Ordering::SeqCst), 0);
            assert_eq!(purgatory.stats().parked, 0);
            eventually("the rest", || {
                (purgatory.stats().watched, purgatory.watched_keys()) == (0, 0)
            });
        });
    }
}

/// A check counts what it examines: not an operation that another thread examines, which it only marks.
#[test]
fn g16_a_check_counts_no_operation_that_another_thread_examines() {
    for several in [false, true] {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual(|builder| builder);
            let (op, stall) = Probe::new().stalled_op(Duration::MAX);
            park(&purgatory, op, [1]);
            let check = stall.check(&purgatory, 1);
            if several {
                park(&purgatory, Op::new(Duration::MAX), [1]);
            }
            // It marks the one, and examines the other if there is one.
            assert_eq!(purgatory.check_and_complete(&1), 0);
            assert_eq!(purgatory.stats().checks, u64::from(several));
            stall.end();
            assert_eq!(check.join().expect("no panic"), 0);
            assert_eq!(purgatory.stats().checks, 1 + u64::from(several));
        });
    }
}

/// The first one ends the others while the check is on its way to them.
#[test]
fn g16_a_check_counts_no_operation_that_ends_before_it_comes() {
    let (purgatory, _clock) = manual(|builder| builder);
    let others = Arc::new(Mutex::new(Vec::<Handle<Op>>::new()));
    let ended = others.clone();
    let end_others = move || {
        for other in std::mem::take(&mut *lock(&ended)) {
            assert!(other.cancel().is_some());
        }
    };
    park(&purgatory, once_checked(Duration::MAX, end_others), [1]);
    for _ in 0..3 {
        lock(&others).push(park(&purgatory, Op::new(Duration::MAX), [1]));
    }
    assert_eq!(purgatory.check_and_complete(&1), 0);
    let stats = purgatory.stats();
    assert_eq!((stats.checks, stats.parked), (1, 1));
}

#[test]
fn g16_a_check_counts_no_operation_that_panics() {
    quietly();
    let (purgatory, _clock) = manual(|builder| builder);
    let panics = || std::panic::panic_any("intended");
    park(&purgatory, once_checked(Duration::MAX, panics), [2]);
    assert_eq!(purgatory.check_and_complete(&2), 0);
    let stats = purgatory.stats();
    assert_eq!((stats.checks, stats.aborted), (0, 1));
}

/// There are more threads than timer shards, so some count in the same place: those that run at the same time.
#[test]
fn g16_no_count_of_many_threads_is_lost() {
    const THREADS: usize = 40;
    const TIMES: usize = 100_000;
    // The fewest timer shards that there are.
    const SHARDS: usize = 8;
    within(PATIENCE, || {
        let (purgatory, _clock) = manual(|builder| builder);
        assert_eq!(purgatory.drain(Duration::ZERO), 0);
        let refused = |times| {
            for _ in 0..times {
                let admission = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1]);
                assert!(admission.is_err());
            }
        };
        // Threads get their numbers in order, when they first use the library.
        let begun = Barrier::new(2);
        let gates = [(); SHARDS].map(|()| Barrier::new(1 + THREADS / SHARDS));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (begun, gate) = (&begun, &gates[thread % SHARDS]);
                scope.spawn(move || {
                    refused(1);
                    begun.wait();
                    gate.wait();
                    refused(TIMES);
                    gate.wait();
                });
                begun.wait();
            }
            for gate in &gates {
                gate.wait();
                gate.wait();
            }
        });
        assert_eq!(purgatory.stats().rejected, (THREADS * (TIMES + 1)) as u64);
    });
}

#[test]
fn g16_watchers_of_a_key_are_counted() {
    let (purgatory, _clock) = manual(|builder| builder);
    assert_eq!(purgatory.watchers(&1), 0);
    let resolved = purgatory.resolve(2);
    let handles = (1..=1_000).map(|count| {
        let handle = park(&purgatory, Op::new(NEVER_IN_A_TEST), [1, 2]);
        assert!(count % 97 != 0 || purgatory.watchers(&1) == count);
        handle
    });
    for (gone, handle) in handles.collect::<Vec<_>>().iter().enumerate() {
        if gone % 97 == 0 {
            assert_eq!(purgatory.watchers(&1), 1_000 - gone);
            assert_eq!(purgatory.watchers(resolved.key()), 1_000 - gone);
        }
        assert!(handle.cancel().is_some());
    }
    assert_eq!((purgatory.watchers(&1), purgatory.watchers(&2)), (0, 0));
}

#[test]
fn g16_completions_behind_a_slow_one_are_pending() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g16-pending");
        let (gate, wait) = Gate::new();
        admit(&purgatory, Op::new(MS).then(move |_| wait()), [0]);
        gate.entered();
        for key in 1..=100 {
            admit(&purgatory, Op::new(MS), [key]);
        }
        let pending = || purgatory.stats().completions_pending;
        // An expiry is counted a moment before its completion is handed over.
        eventually("all expiries", || pending() == 101);
        let stats = purgatory.stats();
        assert_eq!((stats.parked, stats.expired), (0, 101));
        // A drain waits for them as well.
        assert_eq!(purgatory.drain(20 * MS), 0);
        assert_eq!(pending(), 101);
        gate.open();
        assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
        assert_eq!(pending(), 0);
    });
}

/// Those that are lost run as well, when they are dropped.
#[test]
fn g16_the_jobs_of_an_executor_are_pending_until_they_run_or_are_dropped() {
    let jobs = Arc::new(Mutex::new(Vec::new()));
    let keeps = jobs.clone();
    let executor = Dispatch::Executor(Arc::new(move |job| lock(&keeps).push(job)));
    let (purgatory, clock) = manual(|builder| builder.dispatch(executor));
    for key in 0..10 {
        park(&purgatory, Op::new(MS), [key]);
    }
    clock.advance(MS);
    assert_eq!(purgatory.advance(), 10);
    let pending = || purgatory.stats().completions_pending;
    assert_eq!(pending(), 10);
    lock(&jobs).truncate(4);
    assert_eq!(pending(), 4);
    lock(&jobs).drain(..).for_each(|job| job());
    assert_eq!(pending(), 0);
}

/// The thread has got all three together.
#[test]
fn g16_each_completion_is_pending_until_it_has_run() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::OwnThread));
        let (tell, told) = channel();
        for key in 0..3 {
            let tell = tell.clone();
            let look = inside(&purgatory, move |all| {
                let pending = all.stats().completions_pending;
                tell.send(pending).expect("the test receives it");
            });
            park(&purgatory, Op::new(MS).then(move |_| look()), [key]);
        }
        clock.advance(2 * MS);
        assert_eq!(purgatory.advance(), 3);
        assert!(told.iter().take(3).eq([3, 2, 1]));
    });
}

#[test]
fn g21_an_expiry_that_a_check_would_have_prevented_is_counted() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let (forgotten, hopeless) = (Probe::new(), Probe::new());
    for probe in [&forgotten, &hopeless] {
        park(&purgatory, probe.op(MS), [1]);
    }
    forgotten.satisfy();
    clock.advance(MS);
    assert_eq!(purgatory.advance(), 2);
    assert_eq!(purgatory.stats().missed_checks, 1);
}

/// Parks and cancels on a key with many watchers, while snapshots of it are taken.
#[test]
fn g20_a_snapshot_of_a_hot_key_stalls_no_thread() {
    const WATCHERS: usize = if cfg!(debug_assertions) {
        100_000
    } else {
        1_000_000
    };
    within(PATIENCE * 2, || {
        let purgatory = Purgatory::<Op>::new("g20-snap");
        for key in 0..WATCHERS as u64 {
            park(
                &purgatory,
                Op::new(NEVER_IN_A_TEST),
                [u64::MAX, key % 1_000],
            );
        }
        let done = AtomicBool::new(false);
        let park_and_cancel = || {
            let mut calls = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let handle = park(&purgatory, Op::new(NEVER_IN_A_TEST), [u64::MAX]);
                assert!(handle.cancel().is_some());
                calls.push(begun..Instant::now());
                thread::sleep(Duration::from_micros(50));
            }
            calls
        };
        let take_snapshot = |_| {
            let begun = Instant::now();
            let parked = purgatory.snapshot();
            let snapshot = begun..Instant::now();
            assert!((WATCHERS..=WATCHERS + 1).contains(&parked.len()));
            let with_two_keys = parked.iter().filter(|operation| operation.keys.len() == 2);
            assert_eq!(with_two_keys.count(), WATCHERS);
            assert_eq!(purgatory.watched_keys(), 1_001);
            assert!((WATCHERS..=WATCHERS + 1).contains(&purgatory.watchers(&u64::MAX)));
            snapshot
        };
        let (snapshots, calls) = thread::scope(|scope| {
            let other = scope.spawn(park_and_cancel);
            let snapshots = [(); 5].map(take_snapshot);
            done.store(true, Ordering::Relaxed);
            (snapshots, other.join().expect("no panic"))
        });
        let length = |period: &Range<Instant>| (period.end - period.start).as_secs_f64();
        let shares = snapshots.iter().map(|snapshot| {
            let meanwhile =
                |call: &&Range<Instant>| call.start < snapshot.end && snapshot.start < call.end;
            let calls = calls.iter().filter(meanwhile).map(length);
            let longest = calls.reduce(f64::max).expect("the other thread has run");
            longest / length(snapshot)
        });
        // A loaded machine stops a thread now and then, but not for so long in each of them.
        let least = shares.fold(f64::INFINITY, f64::min);
        assert!(least < 0.1, "{least} of a snapshot");
    });
}
