//! G15: a shutdown ends everything once, at any moment and from any place.

use crate::chains::scene::{admit, park};
use crate::support::noise::assert_median_within;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally};
use crate::support::{eventually, lock, manual, threads_named, within};
use request_purgatory::future::block_on;
use request_purgatory::purgatory::{RejectReason, WeakRef};
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::{Clock, Timestamp, WakeFn};
use request_purgatory::{Completion, Purgatory, WaitError, Waits};
use std::future::ready;
use std::iter::repeat_with;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// A joined thread is listed for a moment longer.
pub(super) fn assert_no_threads(name: &str) {
    eventually("the end of its threads", || threads_named(name).is_empty());
}

/// It would sleep until its next deadline. When it is woken, it finds the purgatory shut down, or gone.
#[test]
fn g15_a_shutdown_wakes_the_reactor() {
    // Whether what is left is kept: its drop wakes the reactor as well.
    let ends: [(fn(&Purgatory<Op>), bool); 3] = [
        (|purgatory| purgatory.shutdown(), true),
        (|it| assert!(it.shutdown_timeout(PATIENCE).is_ok()), true),
        (|_| (), false),
    ];
    for (end, is_kept) in ends {
        let place = Arc::new(OnceLock::<WeakRef<Purgatory<Op>>>::new());
        let (found, over) = (place.clone(), Tally::new());
        let told = over.clone();
        let waker = WakeFn::new(move || {
            let is_over = |purgatory: Purgatory<Op>| purgatory.is_shut_down();
            let found = found.get();
            if found.is_some_and(|it| it.upgrade().is_none_or(is_over)) {
                told.add();
            }
            true
        });
        let (purgatory, _clock) = manual(|builder| builder.reaper(Reaper::Reactor(waker)));
        place.set(purgatory.downgrade()).expect("set once");
        end(&purgatory);
        let _left = Some(purgatory).filter(|_| is_kept);
        eventually("it is woken", || over.count() > 0);
    }
}

/// Threads park, check and cancel while the shutdown comes.
#[test]
fn g15_a_shutdown_at_any_moment_ends_everything_once_and_joins_the_threads() {
    let shutdown = |round: u64| {
        let purgatory = Purgatory::<Op>::new("g15-any");
        let parkers = [0, 1, 2].map(|seed| {
            let purgatory = purgatory.clone();
            thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(round * 3 + seed);
                let (mut parked, mut returned) = (Vec::new(), 0);
                loop {
                    let probe = Probe::new();
                    let op = probe.op(Duration::from_millis(random.u64(..10)));
                    match purgatory.try_complete_else_watch(op, [seed, random.u64(..5)]) {
                        Ok(_) => parked.push(probe),
                        Err(rejected) => {
                            assert_eq!(rejected.reason(), RejectReason::ShutDown);
                            assert_eq!(probe.ending(), None);
                            return (parked, returned);
                        }
                    }
                    returned += purgatory.cancel_for_key(&random.u64(..40)).len();
                }
            })
        });
        let mut random = fastrand::Rng::with_seed(round);
        thread::sleep(Duration::from_micros(random.u64(..10_000)));
        let start = Instant::now();
        purgatory.shutdown();
        let took = start.elapsed();
        purgatory.shutdown();
        let (mut left, mut returned) = (0, 0);
        for parker in parkers {
            let (probes, back) = parker.join().expect("no call panics");
            left += probes.iter().filter(|it| it.ending().is_none()).count();
            returned += back;
        }
        assert_eq!(left, returned);
        assert_eq!((purgatory.stats().parked, purgatory.watched_keys()), (0, 0));
        assert_no_threads("g15-any");
        took
    };
    within(PATIENCE, move || {
        assert_median_within(Duration::from_millis(50), || {
            (1..=30).map(shutdown).collect()
        });
    });
}

#[test]
fn g15_a_shutdown_of_a_quiet_purgatory_is_prompt() {
    within(PATIENCE, || {
        let shutdown = || {
            let purgatory = Purgatory::<Op>::new("g15-quiet");
            let probes = [(); 1_000].map(|()| Probe::new());
            for (key, probe) in (0..).zip(&probes) {
                park(&purgatory, probe.op(NEVER_IN_A_TEST), [key]);
            }
            let start = Instant::now();
            purgatory.shutdown();
            let took = start.elapsed();
            let ended = |probe: &Arc<Probe>| probe.ending() == Some(Completion::ShutDown);
            assert!(probes.iter().all(ended));
            assert!(purgatory.is_shut_down());
            took
        };
        assert_median_within(Duration::from_millis(50), || {
            repeat_with(shutdown).take(21).collect()
        });
    });
}

/// A callback: its name, its number if it is an examination, and the ending that it belongs to.
type Moment = (&'static str, u32, Option<Completion>);

const MOMENTS: [Moment; 7] = [
    ("first examination", 1, None),
    ("second examination", 2, None),
    ("examination by a check", 3, None),
    // Where the park takes longer than the timeout, no examination follows.
    ("at the deadline", 3, Some(Completion::Expired)),
    ("satisfied", 0, Some(Completion::Satisfied)),
    ("expired", 0, Some(Completion::Expired)),
    ("shut down", 0, Some(Completion::ShutDown)),
];

/// On whatever thread the callback runs, the purgatory's own included.
#[test]
fn g15_a_shutdown_is_legal_from_every_callback() {
    for (number, moment) in MOMENTS.into_iter().enumerate() {
        for dispatch in [Dispatch::OwnThread, Dispatch::Inline] {
            for drop_it in [false, true] {
                let (dispatch, name) = (dispatch.clone(), format!("g15-{number}{drop_it}"));
                within(PATIENCE / 2, move || {
                    end_from(moment, &name, dispatch, drop_it)
                });
            }
        }
    }
}

/// Ends the purgatory in a callback: by `shutdown`, or by dropping the last strong handle of it.
fn end_from(moment: Moment, name: &str, dispatch: Dispatch, drop_it: bool) {
    let (what, examination, ending) = moment;
    let builder = Purgatory::<Op>::builder(name).dispatch(dispatch);
    let purgatory = builder.build().expect("threads are to be had");
    let weak = purgatory.downgrade();
    let place = Arc::new(Mutex::new(Some(purgatory.clone())));
    let taking = place.clone();
    let end = move || {
        let taken = lock(&taking).take();
        if let Some(purgatory) = taken.filter(|_| !drop_it) {
            purgatory.shutdown();
        }
    };
    let (sibling, probe) = (Probe::new(), Probe::new());
    park(&purgatory, sibling.op(NEVER_IN_A_TEST), [9]);
    let timeout = match ending {
        Some(Completion::Expired) => Duration::from_millis(10),
        _ => NEVER_IN_A_TEST,
    };
    let (examined, ended, end_late) = (probe.clone(), probe.clone(), end.clone());
    let mut examinations = 0;
    let op = Op::new(timeout).when(move || {
        examinations += 1;
        if examinations == examination {
            end();
        }
        examined.is_ready()
    });
    let op = op.then(move |completion| {
        ended.end(completion);
        if ending == Some(completion) {
            end_late();
        }
    });
    // With the last strong handle in the callback's hands, the caller has a temporary one.
    let temporary = weak.upgrade().expect("it lives");
    let result = temporary.try_complete_else_watch(op, [1]);
    drop((purgatory, temporary));
    if let Some(purgatory) = weak.upgrade() {
        match ending {
            Some(Completion::ShutDown) => purgatory.shutdown(),
            Some(Completion::Expired) => {}
            _ => {
                if ending.is_some() {
                    probe.satisfy();
                }
                purgatory.check_and_complete(&1);
            }
        }
    }
    eventually("the end of the sibling", || {
        sibling.ending() == Some(Completion::ShutDown)
    });
    match result {
        // Neither parked nor completed: handed back.
        Err(rejected) => assert!(rejected.reason() == RejectReason::ShutDown, "{what}"),
        Ok(_) => eventually("its end", || probe.ending().is_some()),
    }
    assert_no_threads(name);
    drop(lock(&place).take());
}

/// Expired before the shutdown, completed by the end of it: the completion thread leaves none behind.
#[test]
fn g15_completions_under_way_are_waited_for() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-wait");
        let ended = Tally::new();
        for key in 0..20 {
            let ended = ended.clone();
            let op = Op::new(Duration::from_millis(1)).then(move |_| {
                thread::sleep(Duration::from_millis(5));
                ended.add();
            });
            admit(&purgatory, op, [key]);
        }
        eventually("the expiry of all", || purgatory.is_empty());
        purgatory.shutdown();
        assert_eq!(ended.count(), 20);
    });
}

/// What has expired in a storm is cleared away later; a shutdown does not leave it there.
#[test]
fn g15_a_shutdown_in_the_middle_of_a_storm_leaves_nothing_behind() {
    const COUNT: u64 = 3_000;
    within(PATIENCE, || {
        let (purgatory, clock) = manual(|it| it.reaper(Reaper::Own).dispatch(Dispatch::Inline));
        let ended = Tally::new();
        let (middle, reached) = channel();
        for key in 0..COUNT {
            let (ended, middle) = (ended.clone(), middle.clone());
            let op = Op::new(Duration::from_millis(1)).then(move |_| {
                ended.add();
                if ended.count() == COUNT / 2 {
                    // The reaper stays here until the shutdown has done what it can without it.
                    middle.send(()).expect("the test waits for it");
                    thread::sleep(Duration::from_millis(100));
                }
            });
            park(&purgatory, op, [key, COUNT + key % 3]);
        }
        clock.advance(Duration::from_millis(2));
        reached.recv().expect("they all expire");
        purgatory.shutdown();
        let stats = purgatory.stats();
        assert!(stats.shut_down > 0, "{stats:?}");
        assert_eq!((ended.count(), stats.parked), (COUNT, 0));
        assert_eq!((stats.watched, purgatory.watched_keys()), (0, 0));
    });
}

/// A clock may panic when a purgatory that is being built subscribes to it: its threads end.
#[test]
fn g15_a_clock_that_panics_in_a_build_leaves_no_thread() {
    struct Refusing(Instant);

    impl Clock for Refusing {
        fn now(&self) -> Timestamp {
            self.0.now()
        }

        fn subscribe(&self, _: WakeFn) {
            resume_unwind(Box::new("intended"));
        }
    }

    within(PATIENCE, || {
        for _ in 0..5 {
            let builder = Purgatory::<Op>::builder("g15-build");
            let builder = builder.clock(Refusing(Instant::now())).threads_at_once();
            assert!(catch_unwind(AssertUnwindSafe(|| builder.build())).is_err());
        }
        assert_no_threads("g15-build");
    });
}

#[test]
fn g15_a_shutdown_if_idle_ends_nothing_that_waits() {
    let purgatory = Waits::<u64>::new("lease");
    let wait = purgatory.wait([1], NEVER_IN_A_TEST, || None::<()>);
    assert!(!purgatory.shutdown_if_idle());
    assert!(!purgatory.is_shut_down() && purgatory.len() == 1);
    drop(wait);
    assert!(purgatory.shutdown_if_idle());
    assert!(!purgatory.shutdown_if_idle(), "one call does it");
    let mut late = purgatory.listen([1], None);
    let late = block_on(Box::pin(async move { late.checked().await }));
    assert_eq!(late, Err(WaitError::ShutDown));
    // One that nothing has ever used.
    assert!(Waits::<u64>::new("new").shutdown_if_idle());
}

/// Each thread waits for its turn, and ends the purgatory that it finds idle. No wait is ended by that.
#[test]
fn g15_parks_that_race_a_shutdown_if_idle_are_parked_or_rejected() {
    within(PATIENCE, || {
        for round in 0..300_u64 {
            let purgatory = Waits::<u64>::new("lease");
            let (event, ended) = (AtomicBool::new(false), Tally::new());
            thread::scope(|scope| {
                for number in 0..3 {
                    let (purgatory, event, ended) = (&purgatory, &event, &ended);
                    scope.spawn(move || {
                        if number == round % 3 {
                            event.store(true, Ordering::SeqCst);
                        }
                        let wait = purgatory.listen([1], NEVER_IN_A_TEST);
                        let seen = || ready(event.load(Ordering::SeqCst).then_some(()));
                        purgatory.check_and_complete(&1);
                        match block_on(wait.until(seen)) {
                            Ok(()) => {}
                            error => assert_eq!(error, Err(WaitError::ShutDown)),
                        }
                        if purgatory.shutdown_if_idle() {
                            ended.add();
                        }
                    });
                }
            });
            assert_eq!((ended.count(), purgatory.len()), (1, 0));
            let stats = purgatory.stats();
            assert_eq!(stats.shut_down, 0, "a wait was ended");
        }
    });
}
