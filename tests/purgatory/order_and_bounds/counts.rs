//! G16: counts are exact. G20: a snapshot stalls no thread. (Counts of one thread are compared in `tests/model`.)

use crate::chains::scene::{Gate, inside, park};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe};
use crate::support::{eventually, lock, manual, within};
use request_purgatory::Purgatory;
use request_purgatory::threads::{Dispatch, Reaper};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

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

/// The thread for completions gets all three together, or each one by itself while it is in the first.
#[test]
fn g16_each_completion_is_pending_until_it_has_run() {
    for one_by_one in [false, true] {
        within(PATIENCE, move || {
            let (purgatory, clock) = manual::<u64>(|it| it.dispatch(Dispatch::OwnThread));
            let ((gate, wait), (tell, told)) = (Gate::new(), channel());
            // The first completion waits in the gate.
            let wait = Arc::new(Mutex::new(Some(wait)));
            for key in 0..3 {
                let (wait, tell) = (wait.clone(), tell.clone());
                let look = inside(&purgatory, move |all| {
                    let pending = all.stats().completions_pending;
                    tell.send(pending).expect("the test receives it");
                });
                let op = Op::new(MS).then(move |_| {
                    let first = lock(&wait).take();
                    first.into_iter().for_each(|wait| wait());
                    look();
                });
                park(&purgatory, op, [key]);
                if one_by_one {
                    clock.advance(MS);
                    assert_eq!(purgatory.advance(), 1);
                }
            }
            clock.advance(MS);
            purgatory.advance();
            gate.entered();
            let pending = || purgatory.stats().completions_pending;
            assert_eq!(pending(), 3, "one by one: {one_by_one}");
            gate.open();
            assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
            assert_eq!(pending(), 0, "one by one: {one_by_one}");
            assert!(told.try_iter().eq([3, 2, 1]), "one by one: {one_by_one}");
        });
    }
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
