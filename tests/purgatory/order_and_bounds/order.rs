//! G22: first come, first served; a check for at most n; one examination for an event of several keys.

use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, manual, within};
use proptest::prelude::*;
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::ManualClock;
use request_purgatory::{CheckBound, Completion, Purgatory, Watch};
use std::collections::VecDeque;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever leaves in between, by plain key and by resolved key: each check for one completes the operation that
    /// has been parked longest.
    #[test]
    fn g22_each_check_for_one_completes_the_oldest(
        steps in prop::collection::vec((0..5_u8, any::<prop::sample::Index>()), 1..200),
        resolved in any::<bool>(),
    ) {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let key = resolved.then(|| purgatory.resolve(1));
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = VecDeque::new();
        for (number, (step, pick)) in (0..).zip(steps) {
            match step {
                0..=2 => {
                    let served = served.clone();
                    let examinations = Tally::new();
                    // It can complete from its third examination on: the first after it is parked.
                    let op = Op::new(NEVER_IN_A_TEST)
                        .when(move || {
                            examinations.add();
                            examinations.count() > 2
                        })
                        .then(move |_| lock(&served).push(number));
                    let parked = purgatory.try_complete_else_watch(op, [1]);
                    let handle = parked.ok().and_then(|admission| admission.into_handle());
                    waiting.push_back((number, handle.expect("it cannot complete yet")));
                }
                3 if !waiting.is_empty() => {
                    let (_, handle) = waiting.remove(pick.index(waiting.len())).unwrap();
                    prop_assert!(handle.cancel().is_some());
                }
                _ => {
                    let completed = match &key {
                        Some(key) => key.check_and_complete_with(CheckBound::at_most(1)),
                        None => purgatory.check_and_complete_with(&1, CheckBound::at_most(1)),
                    };
                    let oldest = waiting.pop_front().map(|(number, _)| number);
                    prop_assert_eq!(completed, usize::from(oldest.is_some()));
                    prop_assert_eq!(lock(&served).pop(), oldest);
                }
            }
        }
        let rest = purgatory.check_and_complete(&1);
        prop_assert_eq!(rest, waiting.len());
        prop_assert!(lock(&served).iter().eq(waiting.iter().map(|(number, _)| number)));
    }
}

/// A job wakes one of many workers, and costs no examination of the others.
#[test]
fn g22_a_push_examines_one_of_ten_thousand_workers() {
    const WORKERS: usize = 10_000;
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let (jobs, examinations) = (Arc::new(Mutex::new(VecDeque::new())), Tally::new());
        let served = Arc::new(Mutex::new(Vec::new()));
        for worker in 0..WORKERS {
            let (jobs, examining) = (jobs.clone(), examinations.clone());
            let served = served.clone();
            let op = Op::new(NEVER_IN_A_TEST)
                .when(move || {
                    examining.add();
                    lock(&jobs).pop_front().is_some()
                })
                .then(move |_| lock(&served).push(worker));
            drop(purgatory.try_complete_else_watch(op, [1]));
        }
        let before = examinations.count();
        for job in 0..WORKERS {
            lock(&jobs).push_back(job);
            assert_eq!(
                purgatory.check_and_complete_with(&1, CheckBound::at_most(1)),
                1
            );
        }
        assert!(
            examinations.count() - before <= 3 * WORKERS as u64,
            "{}",
            examinations.count() - before
        );
        assert!(lock(&served).iter().copied().eq(0..WORKERS));
        assert_eq!(purgatory.stats().parked, 0);
    });
}

/// Workers that wait for 500 ms each, and a job every millisecond, by a clock that the test moves: every worker gets its
/// share, and no wait runs out empty.
#[test]
fn g22_competing_workers_get_equal_shares() {
    const WORKERS: usize = 10;
    const JOBS: usize = 3_000;
    within(2 * PATIENCE, || {
        let clock = ManualClock::new();
        let purgatory = Purgatory::<Op>::builder("g22")
            .clock(clock.clone())
            .reaper(Reaper::Own)
            .dispatch(Dispatch::Inline)
            .build()
            .expect("the system has threads left");
        let jobs = Arc::new(Mutex::new(VecDeque::new()));
        let done = Arc::new(Mutex::new([0_usize; WORKERS]));
        let empty = Tally::new();
        /// Parks the worker again as soon as it has its job.
        fn work(
            worker: usize,
            purgatory: &Purgatory<Op>,
            jobs: &Arc<Mutex<VecDeque<usize>>>,
            done: &Arc<Mutex<[usize; WORKERS]>>,
            empty: &Arc<Tally>,
        ) {
            let (weak, taking) = (purgatory.downgrade(), jobs.clone());
            let (jobs, done, empty) = (jobs.clone(), done.clone(), empty.clone());
            let op = Op::new(Duration::from_millis(500))
                .when(move || lock(&taking).pop_front().is_some())
                .then(move |completion| {
                    match completion {
                        Completion::Satisfied => lock(&done)[worker] += 1,
                        Completion::Expired => empty.add(),
                        _ => return,
                    }
                    if let Some(purgatory) = weak.upgrade() {
                        work(worker, &purgatory, &jobs, &done, &empty);
                    }
                });
            drop(purgatory.try_complete_else_watch(op, [1]));
        }
        (0..WORKERS).for_each(|worker| work(worker, &purgatory, &jobs, &done, &empty));
        for job in 0..JOBS {
            lock(&jobs).push_back(job);
            purgatory.check_and_complete_with(&1, CheckBound::at_most(1));
            clock.advance(Duration::from_millis(1));
            // The reaper sees the time pass.
            if job % 100 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        crate::support::eventually("all jobs are done", || {
            lock(&done).iter().sum::<usize>() == JOBS
        });
        let done = *lock(&done);
        let share = JOBS / WORKERS;
        let fair = share * 95 / 100..=share * 105 / 100;
        assert!(done.iter().all(|done| fair.contains(done)), "{done:?}");
        assert_eq!(empty.count(), 0, "waits that ran out empty");
        purgatory.shutdown();
    });
}

/// A check for at most n stops there, at a rank as well, and takes nothing from those behind.
#[test]
fn g22_a_check_for_n_completes_n() {
    for by_resolved_key in [false, true] {
        within(PATIENCE, move || check_for_n(by_resolved_key));
    }
}

fn check_for_n(by_resolved_key: bool) {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let key = purgatory.resolve(1);
    let check = |count| match by_resolved_key {
        true => key.check_and_complete_with(CheckBound::at_most(count)),
        false => purgatory.check_and_complete_with(&1, CheckBound::at_most(count)),
    };
    let check_up_to = |rank, count| match by_resolved_key {
        true => key.check_and_complete_with(CheckBound::at_most(count).up_to(rank)),
        false => purgatory.check_and_complete_with(&1, CheckBound::at_most(count).up_to(rank)),
    };
    let park = |rank: Option<u64>| {
        let probe = Probe::new();
        let watch = rank.into_iter().fold(Watch::from(1), Watch::at_rank);
        drop(purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [watch]));
        probe.satisfy();
        probe
    };
    let probes = [Some(5), None, Some(3), None, Some(9)].map(park);
    let ended = || probes.each_ref().map(|probe| probe.ending().is_some());
    assert_eq!((check(0), check_up_to(9, 0)), (0, 0));
    assert_eq!(ended(), [false; 5]);
    assert_eq!(check_up_to(5, 2), 2);
    assert_eq!(ended(), [true, false, true, false, false]);
    assert_eq!(check_up_to(5, 1), 1);
    assert_eq!(ended(), [true, true, true, false, false]);
    assert_eq!(check(100), 2);
    assert_eq!(ended(), [true; 5]);
}

/// One event that concerns several keys: an operation that watches more than one of them is examined once.
#[test]
fn g01_an_event_of_several_keys_examines_each_operation_once() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let probes: Vec<_> = (0..30_u64)
        .map(|number| {
            let probe = Probe::new();
            let keys = [number % 5, 5 + number % 3, 100];
            drop(purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), keys));
            probe
        })
        .collect();
    let examinations = || {
        probes
            .iter()
            .map(|probe| probe.examinations())
            .sum::<usize>()
    };
    let before = examinations();
    assert_eq!(purgatory.check_and_complete_all(&[0, 1, 5, 6, 100, 999]), 0);
    assert_eq!(examinations() - before, probes.len());
    let before = examinations();
    assert_eq!(purgatory.check_where(|key| *key < 2), 0);
    assert_eq!(examinations() - before, 12, "two of five keys");
    probes.iter().for_each(|probe| probe.satisfy());
    assert_eq!(purgatory.check_where(|key| *key == 0), 6);
    assert_eq!(purgatory.check_and_complete_all(&[1, 2, 100]), 24);
    assert_eq!((purgatory.stats().parked, purgatory.watched_keys()), (0, 0));
}

/// The first that each of several threads has parked: these have the same number, each among those of its thread.
#[test]
fn g01_an_event_of_several_keys_meets_what_many_threads_have_parked() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let probes = [(); 8].map(|()| Probe::new());
    let all_there = Barrier::new(probes.len());
    let park = |probe: &Arc<Probe>| {
        drop(purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [1]));
        all_there.wait();
    };
    thread::scope(|scope| {
        for probe in &probes {
            scope.spawn(|| park(probe));
        }
    });
    probes.iter().for_each(|probe| probe.satisfy());
    assert_eq!(purgatory.check_and_complete_all(&[1, 2]), probes.len());
}
