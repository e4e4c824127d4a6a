//! G12: a panic in user code ends that operation only.

use crate::support::stall::overasked_op;
use crate::support::threads_named;
use crate::support::{
    Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, manual, quietly, within,
};
use request_purgatory::{
    Completion, Purgatory, future::block_on, threads::Dispatch, threads::Reaper, time::Clock,
    time::ManualClock, time::Timestamp, time::WakeFn,
};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Wake};
use std::thread;
use std::time::{Duration, Instant};

const OPERATIONS: u64 = 210;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    FirstExamination,
    SecondExamination,
    LaterExamination,
    End,
}

#[derive(Debug, Clone, Copy)]
enum By {
    Check,
    CheckLater,
    Expiry,
    Force,
    Shutdown,
}

fn every_seventh_panics(at: At, by: By, completions: Dispatch) {
    quietly();
    let purgatory = Purgatory::<Op>::builder("g12")
        .dispatch(completions)
        .build()
        .expect("threads are to be had");
    let timeout = match by {
        By::Expiry => Duration::from_millis(20),
        _ => NEVER_IN_A_TEST,
    };
    let mut unwound = 0;
    let probes = (0..OPERATIONS).map(|number| {
        let probe = Probe::new();
        let (examining, ending) = (probe.clone(), probe.clone());
        let bad = number % 7 == 0;
        let mut examinations = 0;
        let op = Op::new(timeout)
            .when(move || {
                examinations += 1;
                let now = match at {
                    At::FirstExamination => examinations == 1,
                    At::SecondExamination => examinations == 2,
                    At::LaterExamination => examinations == 3,
                    At::End => false,
                };
                if bad && now {
                    std::panic::panic_any("intended");
                }
                examining.is_ready()
            })
            .then(move |completion| {
                ending.end(completion);
                if bad && at == At::End {
                    std::panic::panic_any("intended");
                }
            });
        let park = || purgatory.try_complete_else_watch(op, [1, 2 + number]);
        match catch_unwind(AssertUnwindSafe(park)) {
            Ok(parked) => assert!(parked.is_ok()),
            Err(_) => unwound += 1,
        }
        probe
    });
    let probes = probes.collect::<Vec<_>>();
    let satisfy = || probes.iter().for_each(|probe| probe.satisfy());
    let examined_again = match by {
        By::Check => {
            satisfy();
            purgatory.check_and_complete(&1);
            true
        }
        By::CheckLater => {
            satisfy();
            purgatory.check_later(1);
            true
        }
        By::Force => {
            purgatory.force_complete_for_key(&1);
            false
        }
        By::Expiry => true,
        By::Shutdown => {
            purgatory.shutdown();
            false
        }
    };
    let expected = match by {
        By::Expiry => Completion::Expired,
        By::Shutdown => Completion::ShutDown,
        _ => Completion::Satisfied,
    };
    eventually("the end of all", || purgatory.is_empty());
    for (number, probe) in probes.iter().enumerate() {
        let bad = number % 7 == 0;
        let dropped = bad
            && match at {
                At::FirstExamination | At::SecondExamination => true,
                At::LaterExamination => examined_again,
                At::End => false,
            };
        if dropped {
            assert_eq!(probe.ending(), None, "{at:?} {by:?} {number}");
        } else {
            eventually("its completion", || probe.ending().is_some());
            assert_eq!(probe.ending(), Some(expected), "{at:?} {by:?} {number}");
        }
    }
    let in_park = matches!(at, At::FirstExamination | At::SecondExamination);
    let bad = OPERATIONS.div_ceil(7);
    assert_eq!(unwound, if in_park { bad } else { 0 }, "{at:?}");
    let panics = match at {
        // These go to the caller.
        _ if in_park => 0,
        At::LaterExamination if !examined_again => 0,
        _ => bad,
    };
    eventually("the count of panics", || {
        purgatory.stats().panicked == panics
    });
    // What a storm leaves is cleared away after its completions.
    eventually("the end of all watches", || {
        (purgatory.stats().watched, purgatory.watched_keys()) == (0, 0)
    });
    if !purgatory.is_shut_down() {
        // The reaper lives.
        let probe = Probe::new();
        purgatory
            .try_complete_else_watch(probe.op(Duration::from_millis(2)), [1])
            .expect("there is room");
        eventually("an expiry after the panics", || {
            probe.ending() == Some(Completion::Expired)
        });
    }
}

#[test]
fn g12_a_panic_in_any_hook_ends_that_operation_only() {
    within(PATIENCE, || {
        for at in [
            At::FirstExamination,
            At::SecondExamination,
            At::LaterExamination,
            At::End,
        ] {
            for by in [
                By::Check,
                By::CheckLater,
                By::Expiry,
                By::Force,
                By::Shutdown,
            ] {
                for completions in [Dispatch::OwnThread, Dispatch::Inline] {
                    every_seventh_panics(at, by, completions);
                }
            }
        }
    });
}

/// Executors may panic, lose the job, or run it on the spot: the operation ends all the same.
#[test]
fn g12_a_bad_executor_loses_no_operation() {
    within(PATIENCE, || {
        quietly();
        let bad: [fn(Job); 3] = [
            |_| std::panic::panic_any("intended"),
            |job| drop(job),
            |job| job(),
        ];
        // The completions of the second half panic as well, in the unwinding of the executor's panic.
        for (number, executor) in bad.into_iter().enumerate() {
            let purgatory = Purgatory::<Op>::builder("g12-executor")
                .dispatch(Dispatch::Executor(Arc::new(executor)))
                .build()
                .expect("threads are to be had");
            let probes = (0..100).map(|key| {
                let probe = Probe::new();
                let ending = probe.clone();
                let op = Op::new(Duration::from_millis(5)).then(move |completion| {
                    ending.end(completion);
                    if key >= 50 {
                        std::panic::panic_any("intended");
                    }
                });
                drop(purgatory.try_complete_else_watch(op, [key]));
                probe
            });
            for probe in probes.collect::<Vec<_>>() {
                eventually("its expiry", || probe.ending() == Some(Completion::Expired));
            }
            let panics = if number == 0 { 150 } else { 50 };
            eventually("all counted", || purgatory.stats().panicked == panics);
        }
    });
}

/// The waker of an event loop is user code too, whatever it is called for.
#[test]
fn g12_a_waker_of_a_reactor_that_panics_harms_no_operation() {
    within(PATIENCE, || {
        quietly();
        for drop_it in [false, true] {
            let purgatory = Purgatory::<Op>::builder("g12-waker")
                .reaper(Reaper::Reactor(WakeFn::new(|| {
                    std::panic::panic_any("intended")
                })))
                .dispatch(Dispatch::OwnThread)
                .build()
                .expect("threads are to be had");
            let probe = Probe::new();
            purgatory
                .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [1])
                .expect("there is room");
            purgatory.check_later(1);
            assert_eq!(
                purgatory.stats().panicked,
                2,
                "an earlier deadline, a check"
            );
            if drop_it {
                drop(purgatory);
            } else {
                purgatory.shutdown();
                assert!(purgatory.is_shut_down());
            }
            assert_eq!(probe.ending(), Some(Completion::ShutDown));
            eventually("the end of its thread", || {
                threads_named("g12-waker").is_empty()
            });
        }
    });
}

/// Several reactors on one clock that is moved by hand. The first panics once.
#[test]
fn g12_a_wake_function_that_panics_keeps_no_other_from_being_called() {
    quietly();
    let clock = ManualClock::new();
    let is_bad = Arc::new(AtomicBool::new(false));
    let calls = [0, 1].map(|number| {
        let (calls, is_bad) = (Arc::new(AtomicUsize::new(0)), is_bad.clone());
        let count = calls.clone();
        clock.subscribe(WakeFn::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            if number == 0 && is_bad.swap(false, Ordering::Relaxed) {
                std::panic::panic_any("intended");
            }
            true
        }));
        calls
    });
    let calls = || calls.each_ref().map(|calls| calls.load(Ordering::Relaxed));
    let before = calls();
    is_bad.store(true, Ordering::Relaxed);
    let advance = || catch_unwind(AssertUnwindSafe(|| clock.advance(Duration::ZERO)));
    assert_eq!([advance().is_err(), advance().is_err()], [true, false]);
    assert_eq!(calls(), before.map(|calls| calls + 2));
}

/// Several callers wait for the end of one shutdown, each with a waker of its own.
#[test]
fn g12_a_waker_that_panics_at_the_end_of_a_shutdown_keeps_it_from_no_other_caller() {
    struct Bad;

    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            std::panic::panic_any("intended");
        }
    }

    within(PATIENCE, || {
        quietly();
        let purgatory = Purgatory::<Op>::new("g12-over");
        // The shutdown is held up here, until both callers wait for it.
        let (go_on, told) = channel::<()>();
        let slow = Op::new(Duration::MAX).then(move |_| _ = told.recv());
        let parked = purgatory.try_complete_else_watch(slow, [1]);
        assert!(parked.expect("there is room").is_parked());
        let over = || purgatory.shutdown_async().expect("threads are to be had");
        let (mut first, second) = (over(), over());
        let bad = Arc::new(Bad).into();
        let polled = Pin::new(&mut first).poll(&mut Context::from_waker(&bad));
        assert!(polled.is_pending());
        go_on.send(()).expect("it is held up");
        block_on(second);
        block_on(first);
        assert_eq!(purgatory.stats().panicked, 1);
    });
}

/// What user code panics with is the user's as well, and what that panics with when it is dropped.
#[test]
fn g12_a_panic_whose_payload_panics_is_one_panic() {
    /// Panics with a smaller one.
    struct Payload(u32);

    impl Drop for Payload {
        fn drop(&mut self) {
            if self.0 > 0 {
                std::panic::panic_any(Payload(self.0 - 1));
            }
        }
    }

    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::builder("g12-payload")
            .reaper(Reaper::Manual)
            .build()
            .expect("no threads to refuse");
        for layers in 0..3 {
            let sibling = Probe::new();
            let loud = Op::new(NEVER_IN_A_TEST).then(move |_| {
                std::panic::panic_any(Payload(layers));
            });
            for op in [loud, sibling.op(NEVER_IN_A_TEST)] {
                drop(purgatory.try_complete_else_watch(op, [1]));
            }
            assert_eq!(purgatory.force_complete_for_key(&1), 2);
            assert_eq!(sibling.ending(), Some(Completion::Satisfied));
            assert_eq!(purgatory.stats().panicked, u64::from(layers) + 1);
        }
    });
}

/// An event and an end both come while it is held, so it is examined a last time before it ends, and that panics.
#[test]
fn g12_a_panic_in_the_last_examination_before_an_end_aborts_the_operation_once() {
    type End = fn(&Purgatory<Op>);
    const ENDS: [End; 3] = [
        |all| assert!(all.cancel_for_key(&1).is_empty(), "it is held"),
        Purgatory::shutdown,
        |all| assert_eq!(all.force_complete_for_key(&1), 0, "it is held"),
    ];
    for end in ENDS {
        within(PATIENCE, move || {
            quietly();
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let (probe, dropped) = (Probe::new(), Arc::new(()));
            let (ending, part) = (probe.clone(), dropped.clone());
            let (weak, mut examinations) = (purgatory.downgrade(), 0);
            let op = Op::new(NEVER_IN_A_TEST).when(move || {
                let _ = &part;
                examinations += 1;
                if examinations == 3 {
                    let purgatory = weak.upgrade().expect("it is being examined");
                    let other = thread::spawn(move || {
                        assert_eq!(purgatory.check_and_complete(&1), 0, "it is held");
                        end(&purgatory);
                    });
                    other.join().expect("it only checks and ends");
                } else if examinations == 4 {
                    std::panic::panic_any("intended");
                }
                assert!(examinations <= 4, "examined after its panic");
                false
            });
            let op = op.then(move |completion| ending.end(completion));
            assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
            assert_eq!(purgatory.check_and_complete(&1), 0);
            assert_eq!(probe.ending(), None);
            assert_eq!(Arc::strong_count(&dropped), 1, "the operation is gone");
            let stats = purgatory.stats();
            assert_eq!((stats.aborted, stats.panicked), (1, 1));
            assert_eq!((stats.parked, stats.watched), (0, 0));
            assert_eq!(stats.completed + stats.cancelled + stats.shut_down, 0);
        });
    }
}

/// What is dropped because it panicked may panic once more.
#[test]
fn g12_a_destructor_of_an_operation_that_panicked_costs_only_itself() {
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any("intended");
        }
    }

    within(PATIENCE, || {
        quietly();
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let sibling = Probe::new();
        let (bomb, mut examinations) = (Bomb, 0);
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            let _ = &bomb;
            examinations += 1;
            if examinations == 3 {
                std::panic::panic_any("intended");
            }
            false
        });
        for op in [op, sibling.op(NEVER_IN_A_TEST)] {
            drop(purgatory.try_complete_else_watch(op, [1]));
        }
        sibling.satisfy();
        assert_eq!(purgatory.check_and_complete(&1), 1);
        assert_eq!(sibling.ending(), Some(Completion::Satisfied));
        let stats = purgatory.stats();
        assert_eq!((stats.aborted, stats.panicked), (1, 2));
    });
}

/// After each panic it is left alone for 100 ms, and then driven again.
#[test]
fn g12_a_clock_that_goes_on_panicking_does_not_keep_the_reaper_busy() {
    const PANICS: u32 = 10;
    /// The first ones may come at once, when the reaper starts and is woken for the deadline.
    const PAUSES: u32 = PANICS / 2;

    struct Broken(Instant, Arc<Tally>);

    impl Clock for Broken {
        fn now(&self) -> Timestamp {
            let on_reaper = thread::current().name() == Some("g12-clock-reaper");
            if on_reaper && self.1.count() < PANICS.into() {
                self.1.add();
                resume_unwind(Box::new("intended"));
            }
            self.0.now()
        }
    }

    within(PATIENCE, || {
        let (begun, panics) = (Instant::now(), Tally::new());
        let clock = Broken(begun, panics.clone());
        let purgatory = Purgatory::<Op>::builder("g12-clock").clock(clock);
        let purgatory = purgatory.build().expect("threads are to be had");
        let park = |op| drop(purgatory.try_complete_else_watch(op, [1]));
        park(Op::new(NEVER_IN_A_TEST));
        eventually("all panics", || panics.count() == PANICS.into());
        assert!(begun.elapsed() >= PAUSES * Duration::from_millis(100));
        let probe = Probe::new();
        park(probe.op(Duration::from_millis(1)));
        eventually("an expiry after them", || probe.ending().is_some());
    });
}

/// A check that was asked for too many examinations makes one more before it ends the operation as another thread has
/// said. If that panics, nothing is completed.
#[test]
fn g12_an_examination_that_panics_before_a_forced_end_ends_nothing_well() {
    within(PATIENCE, || {
        let purgatory = manual(|builder| builder).0;
        let force = |purgatory: &Purgatory<Op>| {
            assert_eq!(
                purgatory.force_complete_for_key(&1),
                0,
                "the check holds it"
            );
        };
        let probe = Probe::new();
        let ending = probe.clone();
        let op = overasked_op(&purgatory, force, || resume_unwind(Box::new("intended")));
        let op = op.then(move |completion| ending.end(completion));
        let admission = purgatory.try_complete_else_watch(op, [1]);
        assert!(admission.is_ok(), "there is room");
        assert_eq!(purgatory.check_and_complete(&1), 0);
        let stats = purgatory.stats();
        assert_eq!((stats.aborted, stats.panicked, stats.parked), (1, 1, 0));
        assert_eq!((stats.completed, probe.ending()), (0, None));
    });
}
