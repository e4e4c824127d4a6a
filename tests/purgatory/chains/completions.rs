//! G14: completions that cause one another, on whatever thread they run.

use crate::support::{
    Job, NEVER_IN_A_TEST, Op, PATIENCE, Tally, eventually, lock, manual, on_a_stack_of, within,
};
use request_purgatory::{
    Completion, Purgatory, threads::Dispatch, threads::Reaper, time::ManualClock,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Each completion completes the next operation. `stack` is in KiB.
fn chain(links: u64, stack: usize) {
    let purgatory = Purgatory::<Op>::builder("g14")
        .reaper(Reaper::Manual)
        .build()
        .expect("no threads to refuse");
    let (ended, nested) = (Tally::new(), Tally::new());
    let inside = Arc::new(AtomicBool::new(false));
    for link in 0..links {
        let weak = purgatory.downgrade();
        let (ended, nested, inside) = (ended.clone(), nested.clone(), inside.clone());
        let op = Op::new(NEVER_IN_A_TEST).then(move |_| {
            if inside.swap(true, Ordering::SeqCst) {
                nested.add();
            }
            ended.add();
            if let Some(purgatory) = weak.upgrade() {
                purgatory.force_complete_for_key(&(link + 1));
            }
            inside.store(false, Ordering::SeqCst);
        });
        purgatory
            .try_complete_else_watch(op, [link])
            .expect("there is room");
    }
    let driven = purgatory.clone();
    let force = move || driven.force_complete_for_key(&0);
    assert_eq!(on_a_stack_of(stack, force), 1);
    assert_eq!((ended.count(), nested.count()), (links, 0));
    assert_eq!(purgatory.stats().parked, 0);
}

#[test]
fn g14_a_chain_of_completions_needs_no_stack() {
    within(PATIENCE, || chain(1_000_000, 64));
}

/// What an examination causes waits for its end: first the completions, in the order in which they were caused, then
/// the checks.
#[test]
fn g14_what_waits_runs_in_order_and_checks_come_last() {
    let (purgatory, _clock) = manual(|builder| builder);
    let log = Arc::new(Mutex::new(Vec::new()));
    let logs = |key| {
        let log = log.clone();
        move || lock(&log).push(key)
    };
    let checked = logs(2);
    let checked = Op::new(NEVER_IN_A_TEST).when(move || {
        checked();
        false
    });
    drop(purgatory.try_complete_else_watch(checked, [2]));
    for key in 3..6 {
        let completed = logs(key);
        let op = Op::new(NEVER_IN_A_TEST).then(move |_| completed());
        drop(purgatory.try_complete_else_watch(op, [key]));
    }
    let (weak, mut examinations) = (purgatory.downgrade(), 0);
    let causes = Op::new(NEVER_IN_A_TEST).when(move || {
        examinations += 1;
        if examinations == 3 {
            let purgatory = weak.upgrade().expect("it is being checked");
            assert_eq!(purgatory.check_and_complete(&2), 0);
            (3..6).for_each(|key| assert_eq!(purgatory.force_complete_for_key(&key), 1));
        }
        false
    });
    drop(purgatory.try_complete_else_watch(causes, [1]));
    lock(&log).clear();
    purgatory.check_and_complete(&1);
    assert_eq!(*lock(&log), [3, 4, 5, 2]);
}

/// Each parks its successor, which can complete at once.
#[test]
fn g14_a_chain_of_parks_needs_no_stack() {
    fn link(purgatory: &Purgatory<Op>, left: u64, ended: Arc<Tally>) {
        let weak = purgatory.downgrade();
        let op = Op::new(NEVER_IN_A_TEST).when(|| true).then(move |_| {
            ended.add();
            if let (Some(purgatory), true) = (weak.upgrade(), left > 0) {
                link(&purgatory, left - 1, ended);
            }
        });
        let admission = purgatory.try_complete_else_watch(op, [left]);
        assert!(admission.is_ok_and(|admission| !admission.is_parked()));
    }
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g14-parks");
        let ended = Tally::new();
        let (first, all) = (purgatory.clone(), ended.clone());
        // Two parks lie on it at most, in a build without optimisation some 60 KiB; a chain would need thousands.
        on_a_stack_of(96, move || link(&first, 100_000, all));
        assert_eq!(ended.count(), 100_001);
    });
}

/// What another thread or an executor runs is no callback of the library's caller, and still nothing nests in it.
#[test]
fn g14_a_chain_that_begins_on_a_thread_for_completions_does_not_nest() {
    fn link(purgatory: &Purgatory<Op>, left: u64, inside: Arc<AtomicBool>, ended: Arc<Tally>) {
        let weak = purgatory.downgrade();
        let (timeout, first) = (Duration::from_millis(1), left == 3);
        let op = Op::new(timeout).when(move || !first).then(move |_| {
            if !inside.swap(true, Ordering::SeqCst) {
                ended.add();
            }
            if let (Some(purgatory), true) = (weak.upgrade(), left > 0) {
                link(&purgatory, left - 1, inside.clone(), ended);
            }
            inside.store(false, Ordering::SeqCst);
        });
        drop(purgatory.try_complete_else_watch(op, [left]));
    }
    within(PATIENCE, || {
        let executor = Dispatch::Executor(Arc::new(|job| drop(thread::spawn(job))));
        for completions in [Dispatch::OwnThread, executor] {
            let purgatory = Purgatory::<Op>::builder("g14-elsewhere")
                .dispatch(completions)
                .build()
                .expect("threads are to be had");
            let (inside, ended) = (Arc::default(), Tally::new());
            link(&purgatory, 3, inside, ended.clone());
            eventually("the last one, within no other", || ended.count() == 4);
        }
    });
}

/// After the shutdown the thread for completions takes no more: what expires then is completed here, but not in the
/// middle of another completion.
#[test]
fn g14_what_expires_in_a_callback_after_the_shutdown_does_not_nest() {
    within(PATIENCE, || {
        let (purgatory, clock) = crate::support::manual(|builder| {
            // There is no reaper, but such a thread.
            builder.dispatch(Dispatch::OwnThread)
        });
        let inside = Arc::new(AtomicBool::new(false));
        let (nested, ending) = (inside.clone(), Arc::new(Mutex::new(None)));
        let (ended, weak) = (ending.clone(), purgatory.downgrade());
        let mut examinations = 0;
        let inner = Op::new(Duration::from_millis(1))
            .when(move || {
                examinations += 1;
                if let (Some(purgatory), 3) = (weak.upgrade(), examinations) {
                    clock.advance(Duration::from_millis(2));
                    purgatory.advance();
                    purgatory.shutdown();
                }
                false
            })
            .then(move |completion| {
                *lock(&ended) = Some((completion, nested.load(Ordering::SeqCst)));
            });
        let weak = purgatory.downgrade();
        let outer = Op::new(NEVER_IN_A_TEST).then(move |_| {
            inside.store(true, Ordering::SeqCst);
            if let Some(purgatory) = weak.upgrade() {
                purgatory.check_and_complete(&1);
            }
            inside.store(false, Ordering::SeqCst);
        });
        for (key, op) in [(1, inner), (2, outer)] {
            drop(purgatory.try_complete_else_watch(op, [key]));
        }
        assert_eq!(purgatory.force_complete_for_key(&2), 1);
        assert_eq!(*lock(&ending), Some((Completion::Expired, false)));
    });
}

/// An executor may run a job at once. A completion that expires the next operation does not nest all the same.
#[test]
fn g14_a_chain_of_completions_needs_no_stack_where_an_executor_runs_jobs_at_once() {
    const SECOND: Duration = Duration::from_secs(1);

    fn link(purgatory: &Purgatory<Op>, clock: &ManualClock, left: u64, ended: Arc<Tally>) {
        let (weak, clock) = (purgatory.downgrade(), clock.clone());
        let op = Op::new(SECOND).then(move |_| {
            ended.add();
            if let (Some(purgatory), true) = (weak.upgrade(), left > 0) {
                link(&purgatory, &clock, left - 1, ended);
                clock.advance(2 * SECOND);
                purgatory.advance();
            }
        });
        let parked = purgatory.try_complete_else_watch(op, [left]);
        assert!(parked.is_ok_and(|parked| parked.is_parked()));
    }

    within(PATIENCE, || {
        let clock = ManualClock::new();
        let at_once = Dispatch::Executor(Arc::new(|job: Job| job()));
        let purgatory = Purgatory::<Op>::builder("g14")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .dispatch(at_once)
            .build()
            .expect("no threads to refuse");
        let ended = Tally::new();
        link(&purgatory, &clock, 20_000, ended.clone());
        clock.advance(2 * SECOND);
        let driven = purgatory.clone();
        assert_eq!(on_a_stack_of(256, move || driven.advance()), 1);
        assert_eq!((ended.count(), purgatory.stats().parked), (20_001, 0));
        assert_eq!(purgatory.stats().completions_pending, 0);
    });
}
