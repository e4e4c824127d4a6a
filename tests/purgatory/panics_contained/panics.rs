//! G12: a panic in user code ends that operation only.

use super::calls::SOON;
use crate::chains::scene::{admit, park};
use crate::lost_completion::steps::{
    FIRST_CHECK, SATISFIED, elsewhere, hooked_op, park_probe, probed_op,
};
use crate::support::bell::waker;
use crate::support::{
    BadPayload, Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, manual, quietly,
    threads_named, within,
};
use request_purgatory::{
    Completion, Purgatory, future::block_on, threads::Dispatch, threads::Reaper,
    threads::ReaperThread, time::Clock, time::ManualClock, time::Timestamp, time::WakeFn,
};
use std::future::Future;
use std::panic::{panic_any, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::Context;
use std::thread;
use std::time::{Duration, Instant};

/// Of seven operations one panics when a deferred check examines it, and one when it is completed. (In any call:
/// `calls.rs`.) Executors may panic besides, in which unwinding the completion panics, or lose the job.
#[test]
fn g12_panics_of_hooks_and_executors_cost_the_reaper_no_other_operation() {
    /// More than one slice of watchers.
    const OPERATIONS: u64 = 210;
    const BAD: u64 = OPERATIONS / 7;
    let executor = |run: fn(Job)| Dispatch::Executor(Arc::new(run));
    // Where completions run, and the panics of an executor, which also gets the operations to drop.
    let rows = [
        (Dispatch::OwnThread, 0),
        (Dispatch::Inline, 0),
        (executor(|_| panic_any("intended")), OPERATIONS),
        (executor(drop), 0),
        (executor(|job| job()), 0),
    ];
    for (row, (completions, own)) in rows.into_iter().enumerate() {
        within(PATIENCE, move || {
            quietly();
            let clock = ManualClock::new();
            let purgatory = Purgatory::<Op>::builder("g12-reaper")
                .clock(clock.clone())
                .dispatch(completions)
                .build()
                .expect("threads are to be had");
            let park = |number: u64| {
                let probe = Probe::new();
                let op = probed_op(&purgatory, &probe, SOON, move |_, _, nth| {
                    if number % 7 == 0 && nth == FIRST_CHECK {
                        panic_any("intended");
                    }
                    false
                });
                let ending = probe.clone();
                let op = op.then(move |completion| {
                    ending.end(completion);
                    if number % 7 == 1 {
                        panic_any("intended");
                    }
                });
                admit(&purgatory, op, [1, 2 + number]);
                probe
            };
            let probes = (0..OPERATIONS).map(park).collect::<Vec<_>>();
            purgatory.check_later(1);
            let stats = || purgatory.stats();
            eventually("the deferred check", || stats().aborted == BAD);
            clock.advance(SOON);
            let expired = Some(Completion::Expired);
            for (number, probe) in probes.iter().enumerate() {
                let expected = expired.filter(|_| number % 7 > 0);
                eventually("its expiry", || probe.ending() == expected);
            }
            let what = format!("all counted and cleared, row {row}");
            eventually(&what, || {
                (stats().panicked, stats().watched) == (2 * BAD + own, 0)
            });
            assert_eq!((stats().parked, purgatory.watched_keys()), (0, 0), "{what}");
            let after = park(2);
            clock.advance(SOON);
            eventually("an expiry after the panics", || after.ending() == expired);
        });
    }
}

/// The waker of an event loop is user code too, whatever it is called for.
#[test]
fn g12_a_waker_of_a_reactor_that_panics_harms_no_operation() {
    within(PATIENCE, || {
        quietly();
        let ends: [fn(Purgatory<Op>); 2] = [drop, |purgatory| {
            purgatory.shutdown();
            assert!(purgatory.is_shut_down());
        }];
        for end in ends {
            let waker = WakeFn::new(|| panic_any("intended"));
            let purgatory = Purgatory::<Op>::builder("g12-waker")
                .reaper(Reaper::Reactor(waker))
                .dispatch(Dispatch::OwnThread)
                .build()
                .expect("threads are to be had");
            let (probe, _) = park_probe(&purgatory, [1]);
            purgatory.check_later(1);
            let panicked = purgatory.stats().panicked;
            assert_eq!(panicked, 2, "an earlier deadline, a check");
            end(purgatory);
            assert_eq!(probe.ending(), Some(Completion::ShutDown));
            eventually("the end of its thread", || {
                threads_named("g12-waker").is_empty()
            });
        }
    });
}

/// Several callers wait for the end of one shutdown, each with a waker of its own.
#[test]
fn g12_a_waker_that_panics_at_the_end_of_a_shutdown_keeps_it_from_no_other_caller() {
    within(PATIENCE, || {
        quietly();
        let purgatory = Purgatory::<Op>::new("g12-over");
        // The shutdown is held up here, until both callers wait for it.
        let (go_on, told) = channel::<()>();
        let slow = Op::new(Duration::MAX).then(move |_| _ = told.recv());
        park(&purgatory, slow, [1]);
        let over = || purgatory.shutdown_async().expect("threads are to be had");
        let (mut first, second) = (over(), over());
        let bad = waker(|| panic_any("intended"));
        let polled = Pin::new(&mut first).poll(&mut Context::from_waker(&bad));
        assert!(polled.is_pending());
        go_on.send(()).expect("it is held up");
        block_on(second);
        block_on(first);
        assert_eq!(purgatory.stats().panicked, 1);
    });
}

/// Panics with a smaller one when it is dropped.
struct Layered(u32);

impl Drop for Layered {
    fn drop(&mut self) {
        if let Some(less) = self.0.checked_sub(1) {
            panic_any(Layered(less));
        }
    }
}

/// What user code panics with is the user's as well, and what that panics with when it is dropped; so is what is
/// dropped because it panicked.
#[test]
fn g12_a_panic_whose_payload_or_operation_panics_costs_only_itself() {
    /// What the third examination of the operation does, what its completion does, and the panics that are counted.
    type Row = (&'static str, fn() -> bool, fn(), u64);
    const ROWS: [Row; 4] = [
        ("a plain payload", || true, || panic_any("intended"), 1),
        ("a bad payload", || true, || panic_any(Layered(1)), 1),
        ("a worse payload", || true, || panic_any(Layered(2)), 1),
        ("a bad operation", || panic_any("intended"), || (), 2),
    ];
    within(PATIENCE, || {
        quietly();
        for (what, examine, end, panics) in ROWS {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let part = Layered(u32::from(panics > 1));
            let op = hooked_op(&purgatory, NEVER_IN_A_TEST, move |_, nth| {
                _ = &part;
                nth == FIRST_CHECK && examine()
            });
            park(&purgatory, op.then(move |_| end()), [1]);
            let (sibling, _) = park_probe(&purgatory, [1]);
            sibling.satisfy();
            let completed = 1 + usize::from(panics == 1);
            assert_eq!(purgatory.check_and_complete(&1), completed, "{what}");
            assert_eq!(sibling.ending(), SATISFIED, "{what}");
            let stats = purgatory.stats();
            let counts = (stats.aborted, stats.panicked);
            assert_eq!(counts, (panics - 1, panics), "{what}");
        }
    });
}

/// An event and an end both come while the operation is held, so it is examined a last time before it ends, and that
/// panics: no end is counted. So it is if others have asked for as many examinations as a check makes.
#[test]
fn g12_a_panic_in_the_last_examination_before_an_end_aborts_the_operation_once() {
    type End = fn(&Purgatory<Op>);
    const ENDS: [(&str, End); 3] = [
        ("cancel", |all| assert!(all.cancel_for_key(&1).is_empty())),
        ("shutdown", Purgatory::shutdown),
        ("force", |all| assert_eq!(all.force_complete_for_key(&1), 0)),
    ];
    /// Two examinations in the park, and one or 16 in the check.
    const LASTS: [u32; 2] = [2 + 1, 2 + 16];
    within(PATIENCE, || {
        quietly();
        for ((name, end), last) in ENDS.iter().flat_map(|end| LASTS.map(|last| (*end, last))) {
            let what = format!("{name}, after {last} examinations");
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let (probe, dropped) = (Probe::new(), Arc::new(()));
            let part = dropped.clone();
            let op = probed_op(&purgatory, &probe, NEVER_IN_A_TEST, move |all, _, nth| {
                _ = &part;
                assert!(nth <= last + 1, "examined after its panic");
                if nth > last {
                    panic_any("intended");
                }
                if nth >= FIRST_CHECK {
                    elsewhere(|| {
                        assert_eq!(all.check_and_complete(&1), 0, "it is held");
                        if nth == last {
                            end(all);
                        }
                    });
                }
                false
            });
            park(&purgatory, op, [1]);
            assert_eq!(purgatory.check_and_complete(&1), 0, "{what}");
            assert_eq!(probe.ending(), None, "{what}");
            assert_eq!(Arc::strong_count(&dropped), 1, "{what}: it is not dropped");
            let stats = purgatory.stats();
            assert_eq!((stats.aborted, stats.panicked), (1, 1), "{what}");
            assert_eq!((stats.parked, stats.watched), (0, 0), "{what}");
            let ended = stats.completed + stats.cancelled + stats.shut_down;
            assert_eq!(ended, 0, "{what}");
        }
    });
}

/// After each panic of its clock, whatever the payload does, a purgatory is left alone for 100 ms, and then driven
/// again. The reaper drives the others meanwhile.
#[test]
fn g12_a_clock_that_goes_on_panicking_keeps_the_reaper_neither_busy_nor_from_others() {
    const PANICS: u32 = 10;
    /// The first ones may come at once, when the reaper starts and is woken for the deadline.
    const PAUSES: u32 = PANICS / 2;

    struct Broken(Instant, Arc<Tally>);

    impl Clock for Broken {
        fn now(&self) -> Timestamp {
            let thread = thread::current();
            let on_reaper = thread
                .name()
                .is_some_and(|name| name.starts_with("g12-clock"));
            if on_reaper && self.1.count() < PANICS.into() {
                self.1.add();
                resume_unwind(Box::new(BadPayload));
            }
            self.0.now()
        }
    }

    within(PATIENCE, || {
        let (begun, panics) = (Instant::now(), Tally::new());
        let reaper = ReaperThread::spawn("g12-clock").expect("two threads more");
        let builder = || Purgatory::<Op>::builder("g12").reaper(Reaper::Shared(reaper.clone()));
        let clock = Broken(begun, panics.clone());
        let broken = builder().clock(clock).build().expect("no thread more");
        let good = builder().build().expect("no thread more");
        let park = |purgatory: &Purgatory<Op>| {
            let probe = Probe::new();
            admit(purgatory, probe.op(Duration::from_millis(1)), [1]);
            probe
        };
        let early = park(&broken);
        eventually("a panic", || panics.count() > 0);
        let beside = park(&good);
        eventually("an expiry beside", || beside.ending().is_some());
        eventually("all panics", || panics.count() == PANICS.into());
        assert!(begun.elapsed() >= PAUSES * Duration::from_millis(100));
        for probe in [early, park(&broken)] {
            let expired = Some(Completion::Expired);
            eventually("an expiry after them", || probe.ending() == expired);
        }
    });
}
