//! G6, G7, G13, G19: what runs on which thread, and what it costs when nothing happens.

use crate::support::noise::eventually_asleep;
use crate::support::{
    Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, busy, eventually, lock, manual, sleeps,
    threads_named, within,
};
use request_purgatory::threads::{Dispatch, Reaper, ReaperThread};
use request_purgatory::time::{Clock, ManualClock, WakeFn};
use request_purgatory::{Completion, Purgatory};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

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
        let (purgatory, _clock) = manual(|builder| {
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
