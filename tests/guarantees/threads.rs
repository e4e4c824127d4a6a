//! G7, G13, G15, G19: what runs on which thread, and what it costs when nothing happens.

use crate::support::noise::{assert_median_within, eventually_asleep};
use crate::support::{Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock};
use crate::support::{busy, manual, sleeps, threads_named, within};
use request_purgatory::{
    Completion, Purgatory, purgatory::RejectReason, purgatory::Rejected, purgatory::WeakRef,
    threads::Dispatch, threads::Reaper, threads::ReaperThread, time::Clock, time::ManualClock,
    time::Timestamp, time::WakeFn,
};
use std::iter::repeat_with;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(5);

#[test]
fn g13_a_slow_completion_does_not_hold_up_the_timer() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g13");
        let (go_on, told) = channel::<()>();
        let slow = Op::new(Duration::from_millis(5)).then(move |_| {
            // An error: the test has failed.
            let _ = told.recv();
        });
        purgatory
            .try_complete_else_watch(slow, [0])
            .expect("there is room");
        for key in 0..10_000 {
            let op = Op::new(Duration::from_millis(20 + key % 100));
            purgatory
                .try_complete_else_watch(op, [key])
                .expect("there is room");
        }
        // It ends when all have expired, and not before.
        eventually("the expiry of all", || purgatory.stats().expired == 10_001);
        go_on.send(()).expect("it is not over yet");
    });
}

/// One after the other, in the order in which they have expired.
#[test]
fn g13_a_completion_delays_those_behind_it_and_none_before_it() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::OwnThread));
        let ((go_on, told), (ended, endings)) = (channel::<()>(), channel());
        let mut first = Some(told);
        for key in 0..5 {
            let (told, ended) = (first.take(), ended.clone());
            let op = Op::new(SOON).then(move |_| {
                _ = told.map(|told| told.recv());
                ended.send(key).expect("the test waits");
            });
            drop(purgatory.try_complete_else_watch(op, [key]));
            clock.advance(SOON);
            assert_eq!(purgatory.advance(), 1);
        }
        go_on.send(()).expect("the first one waits");
        assert_eq!(endings.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    });
}

/// Neither reaper brings a thread for completions.
#[test]
fn g13_without_a_reaper_completions_run_where_the_timer_is_driven() {
    for reaper in [Reaper::Manual, Reaper::Reactor(WakeFn::new(|| true))] {
        let (purgatory, clock) = manual(|builder| builder.reaper(reaper));
        let (told, ended_on) = channel();
        let op = Op::new(SOON).then(move |_| _ = told.send(thread::current().id()));
        drop(purgatory.try_complete_else_watch(op, [1]));
        clock.advance(SOON);
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(ended_on.try_recv(), Ok(thread::current().id()));
    }
}

/// It would sleep until its next deadline. When it is woken, it finds the purgatory shut down.
#[test]
fn g15_a_shutdown_wakes_the_reactor() {
    let ends: [fn(&Purgatory<Op>); 2] = [Purgatory::shutdown, |purgatory| {
        assert!(purgatory.shutdown_timeout(PATIENCE).is_ok());
    }];
    for end in ends {
        let place = Arc::new(OnceLock::<WeakRef<Purgatory<Op>>>::new());
        let (found, over) = (place.clone(), Tally::new());
        let told = over.clone();
        let waker = WakeFn::new(move || {
            let purgatory = found.get().and_then(WeakRef::upgrade);
            if purgatory.is_some_and(|purgatory| purgatory.is_shut_down()) {
                told.add();
            }
            true
        });
        let (purgatory, _clock) = manual(|builder| builder.reaper(Reaper::Reactor(waker)));
        place.set(purgatory.downgrade()).expect("set once");
        end(&purgatory);
        eventually("it is woken", || over.count() > 0);
    }
}

/// Threads park, check and cancel while the shutdown comes.
#[test]
fn g15_a_shutdown_at_any_moment_ends_everything_once_and_joins_the_threads() {
    within(PATIENCE, || {
        let mut slowest = Vec::new();
        for round in 1..=30 {
            let purgatory = Purgatory::<Op>::new("g15-any");
            let parkers = (0..3).map(|seed| {
                let purgatory = purgatory.clone();
                thread::spawn(move || {
                    let mut random = fastrand::Rng::with_seed(round * 3 + seed);
                    let (mut parked, mut returned) = (Vec::new(), 0);
                    loop {
                        let probe = Probe::new();
                        let timeout = Duration::from_millis(random.u64(..10));
                        let op = probe.op(timeout);
                        match purgatory.try_complete_else_watch(op, [seed, random.u64(..5)]) {
                            Ok(_) => parked.push(probe),
                            Err(ref rejected) if rejected.reason() == RejectReason::ShutDown => {
                                assert_eq!(probe.ending(), None);
                                break;
                            }
                            Err(other) => panic!("{other:?}"),
                        }
                        returned += purgatory.cancel_for_key(&random.u64(..40)).len();
                    }
                    (parked, returned)
                })
            });
            let parkers = parkers.collect::<Vec<_>>();
            let mut random = fastrand::Rng::with_seed(round);
            thread::sleep(Duration::from_micros(random.u64(..10_000)));
            let start = Instant::now();
            purgatory.shutdown();
            slowest.push(start.elapsed());
            purgatory.shutdown();
            let (mut ended, mut all, mut returned) = (0, 0, 0);
            for parker in parkers {
                let (probes, back) = parker.join().expect("no call panics");
                all += probes.len();
                returned += back;
                ended += probes
                    .iter()
                    .filter(|probe| probe.ending().is_some())
                    .count();
            }
            assert_eq!(ended + returned, all);
            assert_eq!((purgatory.stats().parked, purgatory.watched_keys()), (0, 0));
            // A joined thread is listed for a moment longer.
            eventually("the end of its threads", || {
                threads_named("g15-any").is_empty()
            });
        }
        slowest.sort_unstable();
        let median = slowest[slowest.len() / 2];
        assert!(median < Duration::from_millis(50), "{median:?}");
    });
}

#[test]
fn g15_a_shutdown_of_a_quiet_purgatory_is_prompt() {
    within(PATIENCE, || {
        let shutdown = || {
            let purgatory = Purgatory::<Op>::new("g15-quiet");
            let probes = (0..1_000).map(|key| {
                let probe = Probe::new();
                purgatory
                    .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [key])
                    .expect("there is room");
                probe
            });
            let probes = probes.collect::<Vec<_>>();
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

#[derive(Debug, Clone, Copy)]
enum Moment {
    FirstExamination,
    SecondExamination,
    LaterExamination,
    ExaminationAtExpiry,
    Satisfied,
    Expired,
    ShutDown,
}

/// On whatever thread the callback runs, the purgatory's own included.
#[test]
fn g15_a_shutdown_is_legal_from_every_callback() {
    use Moment::{
        ExaminationAtExpiry, Expired, FirstExamination, LaterExamination, Satisfied,
        SecondExamination, ShutDown,
    };
    let froms = [
        FirstExamination,
        SecondExamination,
        LaterExamination,
        ExaminationAtExpiry,
        Satisfied,
        Expired,
        ShutDown,
    ];
    for from in froms {
        for completions in [Dispatch::OwnThread, Dispatch::Inline] {
            for drop_it in [false, true] {
                let completions = completions.clone();
                within(PATIENCE / 2, move || end_from(from, completions, drop_it));
            }
        }
    }
}

/// Ends the purgatory in a callback: by `shutdown`, or by dropping the last strong handle of it.
fn end_from(from: Moment, completions: Dispatch, drop_it: bool) {
    let name = format!("g15-{}{}", from as u8, u8::from(drop_it));
    let purgatory = Purgatory::<Op>::builder(&*name)
        .dispatch(completions)
        .build()
        .expect("threads are to be had");
    let weak = purgatory.downgrade();
    let place = Arc::new(Mutex::new(Some(purgatory.clone())));
    let end = {
        let place = place.clone();
        move || {
            let taken = lock(&place).take();
            if let Some(purgatory) = taken {
                if !drop_it {
                    purgatory.shutdown();
                }
            }
        }
    };
    let sibling = Probe::new();
    purgatory
        .try_complete_else_watch(sibling.op(NEVER_IN_A_TEST), [9])
        .expect("there is room");
    let probe = Probe::new();
    let timeout = match from {
        Moment::ExaminationAtExpiry | Moment::Expired => Duration::from_millis(10),
        _ => NEVER_IN_A_TEST,
    };
    let op = {
        let (examining, ending) = (probe.clone(), probe.clone());
        let (end, end_late) = (end.clone(), end);
        let mut examinations = 0;
        Op::new(timeout)
            .when(move || {
                examinations += 1;
                let now = match from {
                    Moment::FirstExamination => examinations == 1,
                    Moment::SecondExamination => examinations == 2,
                    Moment::LaterExamination | Moment::ExaminationAtExpiry => examinations == 3,
                    _ => false,
                };
                if now {
                    end();
                }
                examining.is_ready()
            })
            .then(move |completion| {
                ending.end(completion);
                let now = match from {
                    Moment::Satisfied => completion == Completion::Satisfied,
                    Moment::Expired => completion == Completion::Expired,
                    Moment::ShutDown => completion == Completion::ShutDown,
                    _ => false,
                };
                if now {
                    end_late();
                }
            })
    };
    // With the last strong handle in the callback's hands, the caller has a temporary one.
    let result = weak
        .upgrade()
        .expect("it lives")
        .try_complete_else_watch(op, [1]);
    drop(purgatory);
    let alive = weak.upgrade();
    if let Some(purgatory) = &alive {
        match from {
            Moment::Satisfied => {
                probe.satisfy();
                purgatory.check_and_complete(&1);
            }
            Moment::LaterExamination => drop(purgatory.check_and_complete(&1)),
            Moment::ShutDown => purgatory.shutdown(),
            _ => {}
        }
    }
    drop(alive);
    eventually("the end of the sibling", || {
        sibling.ending() == Some(Completion::ShutDown)
    });
    match result {
        // Neither parked nor completed: handed back.
        Err(rejected) => assert!(rejected.reason() == RejectReason::ShutDown, "{from:?}"),
        Ok(_) => eventually("its end", || probe.ending().is_some()),
    }
    eventually("the end of its threads", || threads_named(&name).is_empty());
    drop(lock(&place).take());
}

#[test]
fn g15_after_a_shutdown_every_call_is_answered() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-after");
        let watch = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1]);
        let handle = watch.expect("there is room").into_handle();
        let handle = handle.expect("it cannot complete yet");
        purgatory.shutdown();
        let probe = Probe::new();
        probe.satisfy();
        let result = purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [1]);
        let Err((RejectReason::ShutDown, op)) = result.map_err(Rejected::into_parts) else {
            panic!("a park after the shutdown");
        };
        drop(op);
        assert_eq!((probe.examinations(), probe.ending()), (0, None));
        assert_eq!(purgatory.check_and_complete(&1), 0);
        purgatory.check_later(1);
        assert!(purgatory.cancel_for_key(&1).is_empty());
        assert_eq!(purgatory.force_complete_for_key(&1), 0);
        assert_eq!(purgatory.advance(), 0);
        assert!(!handle.is_parked() && !handle.check() && handle.cancel().is_none());
        assert_eq!(purgatory.stats().shut_down, 1);
    });
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
            purgatory
                .try_complete_else_watch(op, [key])
                .expect("there is room");
        }
        eventually("the expiry of all", || purgatory.is_empty());
        purgatory.shutdown();
        assert_eq!(ended.count(), 20);
    });
}

/// An operation expires while the shutdown waits for the reaper: it is completed by the thread for that all the same.
#[test]
fn g13_the_shutdown_leaves_no_completion_to_the_reaper() {
    within(PATIENCE, || {
        let clock = ManualClock::new();
        let purgatory = Purgatory::<Op>::builder("g13-end").clock(clock.clone());
        let purgatory = purgatory.build().expect("the system has threads left");
        let ((asked, asks), (answer, answers), (ended, ends)) = (channel(), channel(), channel());
        let is_reaper = || thread::current().name() == Some("g13-end-reaper");
        let op = Op::new(Duration::from_millis(1)).when(move || {
            if is_reaper() {
                asked.send(()).expect("the test waits");
                // An error: the test has failed.
                answers.recv().unwrap_or_default();
            }
            false
        });
        let op = op.then(move |completion| _ = ended.send((completion, is_reaper())));
        let parked = purgatory.try_complete_else_watch(op, [1]);
        parked.expect("there is room");
        // Not before: the thread that parks it would end it.
        clock.advance(Duration::from_millis(1));
        asks.recv().expect("its deadline comes");
        let shutdown = thread::spawn({
            let purgatory = purgatory.clone();
            move || purgatory.shutdown()
        });
        eventually("the shutdown", || purgatory.is_shut_down());
        // Time to close the thread for completions, for a shutdown that does so first.
        thread::sleep(Duration::from_millis(20));
        answer.send(()).expect("the reaper waits");
        assert_eq!(ends.recv(), Ok((Completion::Expired, false)));
        shutdown.join().expect("it does not panic");
    });
}

/// A deferred check runs no completion on the thread that drives the timer, however many it finds.
#[test]
fn g13_completions_of_a_deferred_check_go_where_they_were_sent() {
    for count in [1, 2, 20] {
        let jobs = Arc::new(Mutex::new(Vec::new()));
        let sent = jobs.clone();
        let executor = Arc::new(move |job| lock(&sent).push(job));
        let (purgatory, _clock) = crate::support::manual(|builder| {
            // A clone of the executor stays with the purgatory.
            builder.dispatch(Dispatch::Executor(executor))
        });
        let ended = Tally::new();
        for _ in 0..count {
            let (ended, mut examinations) = (ended.clone(), 0);
            let examination = move || {
                examinations += 1;
                examinations == 3
            };
            let op = Op::new(NEVER_IN_A_TEST)
                .when(examination)
                .then(move |_| ended.add());
            drop(purgatory.try_complete_else_watch(op, [1]));
        }
        purgatory.check_later(1);
        purgatory.advance();
        assert_eq!((purgatory.stats().parked, ended.count()), (0, 0));
        let jobs = std::mem::take(&mut *lock(&jobs));
        assert_eq!(jobs.len() as u64, count);
        jobs.into_iter().for_each(|job: Job| job());
        assert_eq!(ended.count(), count);
    }
}

/// No timers, no wake-ups; and with a far one neither.
#[test]
fn g19_idle_means_idle() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g19-idle");
        let far = Purgatory::<Op>::new("g19-far");
        far.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1])
            .expect("there is room");
        for key in 0..100 {
            let watch = purgatory.try_complete_else_watch(Op::new(Duration::from_millis(5)), [key]);
            assert!(watch.is_ok(), "there is room");
        }
        eventually("the expiry of all", || purgatory.is_empty());
        thread::sleep(Duration::from_millis(100));
        let named = || [threads_named("g19-idle"), threads_named("g19-far")].concat();
        // Only where something has expired there is a thread for completions.
        eventually("three named threads", || named().len() == 3);
        let threads = named();
        eventually_asleep(&threads);
        let sum = |of: fn(u64) -> u64| threads.iter().map(|thread| of(*thread)).sum::<u64>();
        let (slept, had_run) = (sum(sleeps), sum(busy));
        thread::sleep(Duration::from_secs(2));
        assert_eq!(sum(sleeps) - slept, 0, "wake-ups");
        assert_eq!(sum(busy) - had_run, 0, "they spin");
    });
}

#[test]
fn g19_a_thousand_purgatories_share_two_threads() {
    within(PATIENCE, || {
        let reaper = ReaperThread::spawn("g19-one").expect("threads are to be had");
        let clock = ManualClock::new();
        let purgatories = (0..1_000)
            .map(|number| {
                Purgatory::<Op>::builder(format!("g19-{number}"))
                    .reaper(Reaper::Shared(reaper.clone()))
                    .clock(clock.clone())
                    .build()
                    .expect("no threads to refuse")
            })
            .collect::<Vec<_>>();
        eventually("two named threads", || threads_named("g19-one").len() == 2);
        assert_eq!(threads_named("g19-5").len(), 0);
        let probes = purgatories.iter().map(|purgatory| {
            let probe = Probe::new();
            purgatory
                .try_complete_else_watch(probe.op(Duration::from_millis(5)), [1])
                .expect("there is room");
            probe
        });
        let probes = probes.collect::<Vec<_>>();
        clock.advance(Duration::from_millis(5));
        for probe in &probes {
            eventually("its expiry", || probe.ending() == Some(Completion::Expired));
        }
        // Their completions had no thread but the second one.
        assert_eq!(threads_named("g19-5").len(), 0);
        // Any of them may go, and the others are served.
        let (gone, stay) = purgatories.split_at(500);
        gone.iter().for_each(Purgatory::shutdown);
        let probe = Probe::new();
        stay[499]
            .try_complete_else_watch(probe.op(Duration::from_millis(5)), [1])
            .expect("there is room");
        clock.advance(Duration::from_millis(5));
        eventually("its expiry", || probe.ending() == Some(Completion::Expired));
        drop(purgatories);
        assert_eq!(threads_named("g19-one").len(), 2);
        drop(reaper);
        eventually("the end of both", || threads_named("g19-one").is_empty());
    });
}

/// Whichever of those that it drives comes first.
#[test]
fn g07_a_shared_reaper_sleeps_until_the_first_of_all_deadlines() {
    within(PATIENCE, || {
        let reaper = ReaperThread::spawn("g07-shared").expect("threads are to be had");
        for near in [0, 1] {
            let pair = [0, 1].map(|_| {
                Purgatory::<Op>::builder("g07-one-of-two")
                    .reaper(Reaper::Shared(reaper.clone()))
                    .build()
                    .expect("no threads to refuse")
            });
            let far = pair[1 - near].try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1]);
            assert!(far.is_ok());
            // Let the reaper go to sleep on it.
            thread::sleep(Duration::from_millis(20));
            let probe = Probe::new();
            pair[near]
                .try_complete_else_watch(probe.op(Duration::from_millis(50)), [1])
                .expect("there is room");
            eventually("its expiry", || probe.ending() == Some(Completion::Expired));
        }
    });
}

/// What has expired in a storm is cleared away later; a shutdown does not leave it there.
#[test]
fn g15_a_shutdown_in_the_middle_of_a_storm_leaves_nothing_behind() {
    within(PATIENCE, || {
        let clock = ManualClock::new();
        let purgatory = Purgatory::<Op>::builder("g15-storm")
            .clock(clock.clone())
            .dispatch(Dispatch::Inline)
            .build()
            .expect("threads are to be had");
        let ended = Tally::new();
        let count = 3_000;
        let (middle, reached) = channel();
        for key in 0..count {
            let (ended, middle) = (ended.clone(), middle.clone());
            let op = Op::new(Duration::from_millis(1)).then(move |_| {
                ended.add();
                if ended.count() == count / 2 {
                    // The reaper stays here until the shutdown has done what it can without it.
                    middle.send(()).expect("the test waits for it");
                    thread::sleep(Duration::from_millis(100));
                }
            });
            purgatory
                .try_complete_else_watch(op, [key, count + key % 3])
                .expect("there is room");
        }
        clock.advance(Duration::from_millis(2));
        reached.recv().expect("they all expire");
        purgatory.shutdown();
        let stats = purgatory.stats();
        assert!(stats.shut_down > 0, "{stats:?}");
        assert_eq!((ended.count(), stats.parked), (count, 0));
        assert_eq!(
            (purgatory.stats().watched, purgatory.watched_keys()),
            (0, 0)
        );
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
        eventually("the end of the threads", || {
            threads_named("g15-build").is_empty()
        });
    });
}

/// A clock that stands still forgets the purgatories that are gone.
#[test]
fn g06_a_manual_clock_keeps_no_wake_function_of_purgatories_that_are_gone() {
    within(PATIENCE, || {
        let (clock, wakes) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
        for _ in 0..10_000 {
            let wakes = wakes.clone();
            let wake = WakeFn::new(move || {
                wakes.fetch_add(1, Ordering::SeqCst);
                true
            });
            let builder = Purgatory::<Op>::builder("g06").clock(clock.clone());
            drop(builder.reaper(Reaper::Reactor(wake)).build());
        }
        wakes.store(0, Ordering::SeqCst);
        clock.advance(Duration::from_millis(1));
        let kept = wakes.load(Ordering::SeqCst);
        assert!(kept <= 100, "{kept} wake functions were kept");
    });
}

/// It finds out who is gone by waking all, and has room for many more then. 127 is just below the room that it takes
/// without thinking.
#[test]
fn g19_what_is_built_on_a_manual_clock_wakes_few_of_the_others() {
    const LIVING: u64 = 127;
    const BUILT: u64 = 1_000;
    let (clock, woken) = (ManualClock::new(), Tally::new());
    for _ in 0..LIVING {
        let woken = woken.clone();
        clock.subscribe(WakeFn::new(move || {
            woken.add();
            true
        }));
    }
    let before = woken.count();
    (0..BUILT).for_each(|_| clock.subscribe(WakeFn::new(|| false)));
    let times = woken.count() - before;
    assert!(times < 4 * BUILT, "woken {times} times");
}
