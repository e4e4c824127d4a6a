//! The calls that complete operations, one by one: where the completions run, and what is counted.

use crate::support::{Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, lock, manual, within};
use request_purgatory::{
    CheckBound, Completion, Handle, Purgatory, purgatory::ResolvedKey, threads::Dispatch,
    time::ManualClock,
};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

/// Operations on key 1 and on the resolved key 2, in a purgatory whose executor keeps its jobs.
struct Bench {
    purgatory: Purgatory<Op>,
    clock: ManualClock,
    jobs: Arc<Mutex<Vec<Job>>>,
    resolved: ResolvedKey<Op>,
    handles: Vec<Handle<Op>>,
}

impl Bench {
    fn of(ops: impl IntoIterator<Item = Op>) -> Arc<Self> {
        let jobs = Arc::new(Mutex::new(Vec::new()));
        let kept = jobs.clone();
        let executor = Dispatch::Executor(Arc::new(move |job| lock(&kept).push(job)));
        let (purgatory, clock) = manual(|builder| builder.dispatch(executor));
        let resolved = purgatory.resolve(2);
        let park = |op| {
            let parked = purgatory.try_complete_else_watch(op, [1.into(), resolved.watch()]);
            let handle = parked.expect("there is room").into_handle();
            handle.expect("it cannot complete yet")
        };
        let handles = ops.into_iter().map(park).collect();
        Arc::new(Self {
            purgatory,
            clock,
            jobs,
            resolved,
            handles,
        })
    }

    fn run_jobs(&self) -> usize {
        let jobs = std::mem::take(&mut *lock(&self.jobs));
        jobs.into_iter().map(|job| job()).count()
    }

    /// Calls `check` inside the examination of another operation.
    fn nested(self: &Arc<Self>, check: Call) {
        let (bench, mut examinations) = (self.clone(), 0);
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            examinations == 3 && check(&bench) == 0
        });
        let parked = self.purgatory.try_complete_else_watch(op, [9]);
        assert!(parked.expect("there is room").is_parked());
        assert_eq!(self.purgatory.check_and_complete(&9), 1);
    }
}

/// Returns how many operations it has completed.
type Call = fn(&Bench) -> usize;

const CHECKS: [(&str, Call); 9] = [
    ("a key", |it| it.purgatory.check_and_complete(&1)),
    ("a key with a bound", |it| {
        it.purgatory
            .check_and_complete_with(&1, CheckBound::at_most(99))
    }),
    ("a resolved key", |it| it.resolved.check_and_complete()),
    ("a resolved key after a lock", |it| {
        it.resolved.check_and_complete_after_lock()
    }),
    ("a resolved key with a bound", |it| {
        it.resolved.check_and_complete_with(CheckBound::at_most(99))
    }),
    ("the plain form of a resolved key", |it| {
        it.purgatory.check_and_complete(&2)
    }),
    ("all of several keys", |it| {
        it.purgatory.check_and_complete_all([&1, &2])
    }),
    ("all keys that are picked", |it| {
        it.purgatory.check_where(|key| *key < 3)
    }),
    ("handles", |it| {
        it.handles.iter().filter(|handle| handle.check()).count()
    }),
];

const FORCES: [(&str, Call); 3] = [
    ("force a key", |it| it.purgatory.force_complete_for_key(&1)),
    ("force a key with a change", |it| {
        it.purgatory.force_complete_for_key_with(&1, |_| {})
    }),
    ("force by handles", |it| {
        let force = |handle: &&Handle<_>| handle.force_complete();
        it.handles.iter().filter(force).count()
    }),
];

/// `count` operations that can complete once the probe says so, and how many have completed.
fn bench(count: usize) -> (Arc<Bench>, Arc<Probe>, Arc<Tally>) {
    let (probe, ended) = (Probe::new(), Tally::new());
    let ops = (0..count).map(|_| {
        let (probe, ended) = (probe.clone(), ended.clone());
        let op = Op::new(NEVER_IN_A_TEST).when(move || probe.is_ready());
        op.then(move |_| ended.add())
    });
    (Bench::of(ops), probe, ended)
}

/// Before the call returns. (A check that is made inside an examination: before the outermost call returns.)
#[test]
fn g13_completions_of_a_call_run_on_its_thread() {
    for count in [1, 2, 20] {
        for (name, call) in CHECKS.into_iter().chain(FORCES) {
            let (it, probe, ended) = bench(count);
            probe.satisfy();
            assert_eq!((call(&it), it.run_jobs()), (count, 0), "{name}");
            assert_eq!(ended.count(), count as u64, "{name}");
        }
        for (name, check) in CHECKS {
            let (it, probe, ended) = bench(count);
            probe.satisfy();
            it.nested(check);
            assert_eq!((ended.count(), it.run_jobs()), (count as u64, 0), "{name}");
        }
    }
}

/// Whether they find the operation satisfied or not.
#[test]
fn g16_every_kind_of_check_counts_what_it_examines() {
    for count in [1, 3] {
        for (name, check) in CHECKS {
            let (it, probe, _) = bench(count);
            let checks = || it.purgatory.stats().checks as usize;
            assert_eq!((check(&it), checks()), (0, count), "{name}");
            probe.satisfy();
            assert_eq!((check(&it), checks()), (count, 2 * count), "{name}");
        }
    }
}

/// Though the end comes while a check examines the operation, and so is made by its thread.
#[test]
fn g05_no_check_counts_what_was_ended_otherwise() {
    const ENDS: [fn(&Bench); 4] = [
        |it| assert!(it.handles[0].cancel().is_none(), "it is held"),
        |it| assert!(!it.handles[0].force_complete(), "it is held"),
        |it| it.purgatory.shutdown(),
        |it| {
            it.clock.advance(2 * NEVER_IN_A_TEST);
            assert_eq!(it.purgatory.advance(), 0, "it is held");
        },
    ];
    for (name, check) in CHECKS {
        for (way, end) in ENDS.into_iter().enumerate() {
            within(PATIENCE, move || {
                let probe = Probe::new();
                let (op, stall) = probe.stalled_op(NEVER_IN_A_TEST);
                let it = Bench::of([op]);
                let checked = it.clone();
                let check = stall.examine(move || check(&checked));
                end(&it);
                stall.end();
                assert_eq!(check.join().expect("no panic"), 0, "{name}, {way}");
                // The executor has the one that expired.
                assert_eq!(it.run_jobs(), usize::from(way == 3));
                assert!(probe.ending().is_some(), "{name}, {way}");
            });
        }
    }
}

/// It makes at most 16 in a row for the checks of others. What the one that it leaves to the timer completes goes where
/// the builder says.
#[test]
fn g13_the_completion_of_an_examination_that_was_left_goes_where_it_was_sent() {
    within(PATIENCE, || {
        let (probe, place) = (Probe::new(), Arc::new(OnceLock::<Weak<Bench>>::new()));
        let (examined, ending, busy) = (probe.clone(), probe.clone(), place.clone());
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            examined.examine(|| {
                if let (Some(it), false) = (busy.get(), examined.is_ready()) {
                    let it = it.upgrade().expect("the test has it");
                    let other = thread::spawn(move || it.purgatory.check_and_complete(&1));
                    assert_eq!(other.join().expect("it only checks"), 0, "it is held");
                }
                examined.is_ready()
            })
        });
        let it = Bench::of([op.then(move |completion| ending.end(completion))]);
        place.set(Arc::downgrade(&it)).expect("it is set once");
        assert!(!it.handles[0].check());
        assert!(probe.examinations() <= 2 + 16);
        probe.satisfy();
        it.purgatory.advance();
        assert_eq!((it.purgatory.stats().parked, probe.ending()), (0, None));
        assert_eq!(it.run_jobs(), 1);
        assert_eq!(probe.ending(), Some(Completion::Satisfied));
    });
}

/// Also of what a deferred check ends because another call has meanwhile come for it.
#[test]
fn g13_what_a_deferred_check_ends_for_another_call_goes_where_it_was_sent() {
    const ENDS: [fn(&Bench); 2] = [
        |it| assert!(it.handles[0].cancel().is_none(), "it is held"),
        |it| assert!(!it.handles[0].force_complete(), "it is held"),
    ];
    for end in ENDS {
        within(PATIENCE, move || {
            let probe = Probe::new();
            let (op, stall) = probe.stalled_op(NEVER_IN_A_TEST);
            let it = Bench::of([op]);
            it.purgatory.check_later(1);
            let checked = it.clone();
            let check = stall.examine(move || checked.purgatory.advance());
            end(&it);
            stall.end();
            check.join().expect("no panic");
            assert_eq!((probe.ending(), it.run_jobs()), (None, 1));
            assert!(probe.ending().is_some());
        });
    }
}
