//! G22: first come, first served. G1: an event of several keys. (What else G22 promises is compared in `tests/model`.)

use crate::chains::scene::{admit, inside, once_checked, park};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, lock, manual, within};
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::{CheckBound, Completion, Purgatory};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

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

/// A list that is short, or long, or outside the map because its key is resolved: a completion may change what the other
/// operations find, so it comes after all examinations.
#[test]
fn g22_a_check_examines_all_before_it_completes_one() {
    for watchers in [1, 2, 5, 40] {
        for is_resolved in [false, true] {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let resolved = is_resolved.then(|| purgatory.resolve(1));
            let happened = Arc::new(AtomicBool::new(false));
            let completions = Arc::new(Mutex::new(Vec::new()));
            for _ in 0..watchers {
                let (happened, seen) = (happened.clone(), completions.clone());
                let completions = completions.clone();
                let op = Op::new(NEVER_IN_A_TEST).when(move || {
                    lock(&seen).push(false);
                    happened.load(SeqCst)
                });
                park(
                    &purgatory,
                    op.then(move |_| lock(&completions).push(true)),
                    [1],
                );
            }
            lock(&completions).clear();
            happened.store(true, SeqCst);
            let completed = match &resolved {
                Some(key) => key.check_and_complete(),
                None => purgatory.check_and_complete(&1),
            };
            assert_eq!(completed, watchers);
            let completions = lock(&completions);
            assert_eq!(completions.len(), 2 * watchers);
            assert!(
                completions.is_sorted(),
                "{watchers}, {is_resolved}: {completions:?}"
            );
        }
    }
}
