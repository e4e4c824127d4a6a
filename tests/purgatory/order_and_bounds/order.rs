//! G22: first come, first served; a check for at most n, or until a refusal. G1: one examination for an event of
//! several keys.

use crate::chains::scene::{admit, inside, once_checked, park};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, manual, within};
use proptest::prelude::*;
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::{CheckBound, Completion, Purgatory, Watch};
use std::collections::VecDeque;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

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
        let (key, one) = (resolved.then(|| purgatory.resolve(1)), CheckBound::at_most(1));
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = VecDeque::new();
        for (number, (step, pick)) in (0..).zip(steps) {
            match step {
                0..=2 => {
                    let served = served.clone();
                    let mut examinations = 0;
                    // It can complete from its third examination on: the first after it is parked.
                    let op = Op::new(NEVER_IN_A_TEST).when(move || {
                        examinations += 1;
                        examinations > 2
                    });
                    let op = op.then(move |_| lock(&served).push(number));
                    waiting.push_back((number, park(&purgatory, op, [1])));
                }
                3 if !waiting.is_empty() => {
                    let (_, handle) = waiting.remove(pick.index(waiting.len())).unwrap();
                    prop_assert!(handle.cancel().is_some());
                }
                _ => {
                    let completed = match &key {
                        Some(key) => key.check_and_complete_with(one),
                        None => purgatory.check_and_complete_with(&1, one),
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

/// Workers on key 1, and the jobs for which they wait.
struct Shop {
    purgatory: Purgatory<Op>,
    /// How many wait to be taken.
    jobs: Mutex<usize>,
    /// Which workers have had a job, in turn.
    served: Mutex<Vec<usize>>,
}

impl Shop {
    fn new(purgatory: Purgatory<Op>) -> Arc<Self> {
        Arc::new(Self {
            purgatory,
            jobs: Mutex::default(),
            served: Mutex::default(),
        })
    }

    fn push_a_job(&self) -> usize {
        *lock(&self.jobs) += 1;
        let one = CheckBound::at_most(1);
        self.purgatory.check_and_complete_with(&1, one)
    }

    /// Parks the worker: once, or again as soon as it has had its job.
    fn park(self: &Arc<Self>, worker: usize, again: bool) {
        let (examining, ending) = (self.clone(), Arc::downgrade(self));
        let op = Op::new(500 * MS).when(move || {
            let mut jobs = lock(&examining.jobs);
            let is_there = *jobs > 0;
            *jobs -= usize::from(is_there);
            is_there
        });
        let op = op.then(move |completion| {
            if let (Some(shop), Completion::Satisfied) = (ending.upgrade(), completion) {
                lock(&shop.served).push(worker);
                if again {
                    shop.park(worker, again);
                }
            }
        });
        admit(&self.purgatory, op, [1]);
    }
}

/// A job wakes one of many workers, and costs no examination of the others.
#[test]
fn g22_a_push_examines_one_of_ten_thousand_workers() {
    const WORKERS: usize = 10_000;
    within(PATIENCE, || {
        let shop = Shop::new(manual(|builder| builder).0);
        (0..WORKERS).for_each(|worker| shop.park(worker, false));
        for _ in 0..WORKERS {
            assert_eq!(shop.push_a_job(), 1);
        }
        assert!(lock(&shop.served).iter().copied().eq(0..WORKERS));
        let stats = shop.purgatory.stats();
        assert_eq!((stats.checks, stats.parked), (WORKERS as u64, 0));
    });
}

/// Workers that wait for 500 ms each, and a job every millisecond, by a clock that the test moves: every worker gets
/// its share, and no wait runs out empty.
#[test]
fn g22_competing_workers_get_equal_shares() {
    const WORKERS: usize = 10;
    const JOBS: usize = 3_000;
    within(2 * PATIENCE, || {
        let (purgatory, clock) =
            manual(|builder| builder.reaper(Reaper::Own).dispatch(Dispatch::Inline));
        let shop = Shop::new(purgatory);
        (0..WORKERS).for_each(|worker| shop.park(worker, true));
        for job in 0..JOBS {
            shop.push_a_job();
            clock.advance(MS);
            // The reaper sees the time pass.
            if job % 100 == 0 {
                thread::sleep(MS);
            }
        }
        eventually("all jobs are done", || lock(&shop.served).len() == JOBS);
        let mut done = [0; WORKERS];
        lock(&shop.served)
            .iter()
            .for_each(|worker| done[*worker] += 1);
        let share = JOBS / WORKERS;
        let fair = share * 95 / 100..=share * 105 / 100;
        assert!(done.iter().all(|done| fair.contains(done)), "{done:?}");
        let expired = shop.purgatory.stats().expired;
        assert_eq!(expired, 0, "waits that ran out empty");
        shop.purgatory.shutdown();
    });
}

/// A check for at most n stops there, at a rank as well, and takes nothing from those behind.
#[test]
fn g22_a_check_for_n_completes_n() {
    for by_resolved_key in [false, true] {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let key = purgatory.resolve(1);
            let probes = [Some(5), None, Some(3), None, Some(9)].map(|rank| {
                let probe = Probe::new();
                let watch = rank.into_iter().fold(Watch::from(1), Watch::at_rank);
                park(&purgatory, probe.op(NEVER_IN_A_TEST), [watch]);
                probe.satisfy();
                probe
            });
            let at_most = CheckBound::at_most;
            for (bound, completed, ended) in [
                (at_most(0), 0, [false; 5]),
                (at_most(0).up_to(9), 0, [false; 5]),
                (at_most(2).up_to(5), 2, [true, false, true, false, false]),
                (at_most(1).up_to(5), 1, [true, true, true, false, false]),
                (at_most(100), 2, [true; 5]),
            ] {
                let answer = match by_resolved_key {
                    true => key.check_and_complete_with(bound),
                    false => purgatory.check_and_complete_with(&1, bound),
                };
                let ends = probes.each_ref().map(|probe| probe.ending().is_some());
                assert_eq!((answer, ends), (completed, ended), "{bound:?}");
            }
        });
    }
}

/// The first operation drives the timer past its own deadline when a check examines it. It has expired, and has refused
/// nothing: a check until a refusal goes on to the second one.
#[test]
fn g22_one_that_ends_itself_in_its_examination_refuses_nothing() {
    let (purgatory, clock) = manual(|builder| builder);
    let (log, second) = (Arc::new(Mutex::new(Vec::new())), Probe::new());
    let [first_ends, second_ends] = [log.clone(), log.clone()];
    let drive = inside(&purgatory, move |all| {
        clock.advance(10 * MS);
        all.advance();
    });
    let op = once_checked(MS, drive).then(move |end| lock(&first_ends).push(end));
    park(&purgatory, op, [1]);
    let op = second.op(100 * MS);
    let op = op.then(move |end| lock(&second_ends).push(end));
    park(&purgatory, op, [1]);
    second.satisfy();
    let until_refused = CheckBound::all().until_refused();
    assert_eq!(purgatory.check_and_complete_with(&1, until_refused), 1);
    assert_eq!(*lock(&log), [Completion::Expired, Completion::Satisfied]);
}

/// One event that concerns several keys: an operation that watches more than one of them is examined once.
#[test]
fn g01_an_event_of_several_keys_examines_each_operation_once() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let probes = [(); 30].map(|()| Probe::new());
    for (number, probe) in (0..).zip(&probes) {
        let keys = [number % 5, 5 + number % 3, 100];
        park(&purgatory, probe.op(NEVER_IN_A_TEST), keys);
    }
    let examined = probes.iter().map(|probe| probe.examinations());
    let examinations = || examined.clone().sum::<usize>();
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
        park(&purgatory, probe.op(NEVER_IN_A_TEST), [1]);
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
