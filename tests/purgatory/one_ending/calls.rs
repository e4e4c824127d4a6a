//! G5, G13, G16: the calls that complete operations, one by one: where the completions run, and what is counted.

use crate::lost_completion::steps::{
    FIRST_CHECK, SATISFIED, elsewhere, park, park_hook, probed_op, taken,
};
use crate::support::{Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, lock, manual, within};
use request_purgatory::{
    CheckBound, Handle, Purgatory, ResolvedKey, threads::Dispatch, time::ManualClock,
};
use std::sync::{Arc, Mutex};

/// Operations on key 1 and on the resolved key 2, in a purgatory whose executor keeps its jobs.
struct Bench {
    all: Purgatory<Op>,
    clock: ManualClock,
    jobs: Arc<Mutex<Vec<Job>>>,
    key: ResolvedKey<Op>,
    handles: Vec<Handle<Op>>,
}

impl Bench {
    fn of(ops: impl IntoIterator<Item = Op>) -> Arc<Self> {
        let jobs = Arc::new(Mutex::new(Vec::new()));
        let kept = jobs.clone();
        let executor = Dispatch::Executor(Arc::new(move |job| lock(&kept).push(job)));
        let (all, clock) = manual(|builder| builder.dispatch(executor));
        let key = all.resolve(2);
        let ops = ops.into_iter();
        let handles = ops.map(|op| park(&all, op, [1.into(), key.watch()]));
        Arc::new(Self {
            handles: handles.collect(),
            all,
            clock,
            jobs,
            key,
        })
    }

    /// So many that can complete once the probe says so, and how many have completed.
    fn of_count(count: usize) -> (Arc<Self>, Arc<Probe>, Arc<Tally>) {
        let (probe, ended) = (Probe::new(), Tally::new());
        let ops = (0..count).map(|_| {
            let (probe, ended) = (probe.clone(), ended.clone());
            let op = Op::new(NEVER_IN_A_TEST).when(move || probe.is_ready());
            op.then(move |_| ended.add())
        });
        (Self::of(ops), probe, ended)
    }

    fn run_jobs(&self) -> usize {
        taken(&self.jobs).into_iter().map(|job| job()).count()
    }
}

/// Returns how many operations it has completed.
type Call = fn(&Bench) -> usize;

const CHECKS: [(&str, Call); 9] = [
    ("a key", |it| it.all.check_and_complete(&1)),
    ("a key for some", |it| {
        it.all.check_and_complete_with(&1, for_some())
    }),
    ("resolved", |it| it.key.check_and_complete()),
    ("after a lock", |it| it.key.check_and_complete_after_lock()),
    ("resolved, for some", |it| {
        it.key.check_and_complete_with(for_some())
    }),
    ("its plain form", |it| it.all.check_and_complete(&2)),
    ("several keys", |it| it.all.check_and_complete_all([&1, &2])),
    ("keys picked", |it| it.all.check_where(|key| *key < 3)),
    ("handles", |it| {
        it.handles.iter().filter(|handle| handle.check()).count()
    }),
];

fn for_some() -> CheckBound {
    CheckBound::at_most(99)
}

const FORCES: [(&str, Call); 3] = [
    ("force", |it| it.all.force_complete_for_key(&1)),
    ("force with a change", |it| {
        it.all.force_complete_for_key_with(&1, |_| {})
    }),
    ("force by handles", |it| {
        let force = |handle: &&Handle<_>| handle.force_complete();
        it.handles.iter().filter(force).count()
    }),
];

/// How many completions the executor gets from what ends the one operation while another thread examines it.
type End = (&'static str, usize, fn(&Bench));

const ENDS: [End; 4] = [
    ("cancel", 0, |it| assert!(it.handles[0].cancel().is_none())),
    ("force", 0, |it| assert!(!it.handles[0].force_complete())),
    ("shutdown", 0, |it| it.all.shutdown()),
    ("expiry", 1, |it| {
        it.clock.advance(2 * NEVER_IN_A_TEST);
        assert_eq!(it.all.advance(), 0, "it is held");
    }),
];

/// Completions of a call run on its thread, before it returns. (Those of a check inside an examination: before the
/// outermost call returns.) A check counts what it examines, whether it finds that satisfied or not.
#[test]
fn g13_g16_each_call_runs_its_completions_and_counts_what_it_examines() {
    for count in [1, 2, 20] {
        for (name, check) in CHECKS {
            let (it, probe, ended) = Bench::of_count(count);
            let checks = || it.all.stats().checks as usize;
            assert_eq!((check(&it), checks()), (0, count), "{name}");
            probe.satisfy();
            assert_eq!((check(&it), checks()), (count, 2 * count), "{name}");
            assert_eq!((ended.count(), it.run_jobs()), (count as u64, 0), "{name}");
        }
        for (name, check) in CHECKS {
            let (it, probe, ended) = Bench::of_count(count);
            probe.satisfy();
            let inside = it.clone();
            park_hook(&it.all, [9], move |_, nth| {
                nth == FIRST_CHECK && check(&inside) == 0
            });
            assert_eq!(it.all.check_and_complete(&9), 1, "{name}");
            assert_eq!((ended.count(), it.run_jobs()), (count as u64, 0), "{name}");
        }
        for (name, force) in FORCES {
            let (it, _, ended) = Bench::of_count(count);
            assert_eq!(force(&it), count, "{name}");
            assert_eq!((ended.count(), it.run_jobs()), (count as u64, 0), "{name}");
        }
    }
}

/// Parks one operation, which `end` ends while `check` examines it. Asserts that the executor gets `jobs` completions.
fn end_while_it_is_examined(what: &str, check: Call, jobs: usize, end: fn(&Bench)) {
    let probe = Probe::new();
    let (op, stall) = probe.stalled_op(NEVER_IN_A_TEST);
    let it = Bench::of([op]);
    let checked = it.clone();
    let check = stall.examine(move || check(&checked));
    end(&it);
    stall.end();
    assert_eq!(check.join().expect("no panic"), 0, "{what}");
    assert_eq!(probe.ending().is_none(), jobs == 1, "{what}");
    assert_eq!(it.run_jobs(), jobs, "{what}");
    assert!(probe.ending().is_some(), "{what}");
}

/// Though the end comes while a check examines the operation, and so is made by its thread. What a deferred check ends
/// goes where the builder says, though it ends that because another call has come for it.
#[test]
fn g05_g13_no_check_counts_what_was_ended_otherwise() {
    within(PATIENCE, || {
        for (way, jobs, end) in ENDS {
            for (name, check) in CHECKS {
                end_while_it_is_examined(&format!("{name}, {way}"), check, jobs, end);
            }
        }
        let deferred: Call = |it| {
            it.all.check_later(1);
            it.all.advance()
        };
        for (way, _, end) in ENDS.into_iter().take(2) {
            end_while_it_is_examined(&format!("deferred, {way}"), deferred, 1, end);
        }
    });
}

/// It makes at most 16 in a row for the checks of others. What the one that it leaves to the timer completes goes where
/// the builder says.
#[test]
fn g13_dispatch_of_what_a_deferred_examination_completes() {
    within(PATIENCE, || {
        let (it, probe) = (Bench::of([]), Probe::new());
        let op = probed_op(&it.all, &probe, NEVER_IN_A_TEST, |all, probe, nth| {
            if nth >= FIRST_CHECK && !probe.is_ready() {
                assert_eq!(elsewhere(|| all.check_and_complete(&1)), 0, "it is held");
            }
            probe.is_ready()
        });
        let handle = park(&it.all, op, [1]);
        assert!(!handle.check());
        assert!(probe.examinations() <= 2 + 16);
        probe.satisfy();
        it.all.advance();
        assert_eq!((it.all.stats().parked, probe.ending()), (0, None));
        assert_eq!(it.run_jobs(), 1);
        assert_eq!(probe.ending(), SATISFIED);
    });
}
