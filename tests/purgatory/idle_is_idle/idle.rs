//! G28, G19: when the threads of one begin and end. (That an idle one costs next to nothing is counted in
//! `tests/idle.rs`; threads that the system refuses are in the library's own tests, and here by a limit of memory.)

use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually};
use crate::support::{sleeps, threads_named, within};
use request_purgatory::{
    Completion, Purgatory, Timer, Waits, purgatory::RejectReason, purgatory::Rejected,
    threads::Dispatch, threads::Reaper, threads::ReaperThread, time::Clock, time::ManualClock,
    time::WakeFn,
};
use request_purgatory_tracker::{self as tracker, FencingToken, Requests, Tracker};
use std::future::ready;
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;
use testing::process::Process;

const SOON: Duration = Duration::from_millis(2);

fn park(purgatory: &Purgatory<Op>, op: Op) -> request_purgatory::Handle<Op> {
    let parked = purgatory.try_complete_else_watch(op, [1]);
    let parked = parked.expect("there is room").into_handle();
    parked.expect("it cannot complete yet")
}

/// Parks one that may have expired when this returns.
fn park_for_a_moment(purgatory: &Purgatory<Op>, op: Op) {
    let parked = purgatory.try_complete_else_watch(op, [1]);
    assert!(parked.is_ok());
}

/// Each way to a first deadline, or to a deferred check, starts the reaper. The deadline passes or the check is made,
/// and the completion has a thread.
#[test]
fn g28_what_needs_a_thread_starts_it() {
    within(PATIENCE, || {
        let name = "g28-starts";
        let begins = |what: &str, begin: &dyn Fn(&Purgatory<Op>) -> Arc<Probe>| {
            let purgatory = Purgatory::<Op>::new(name);
            let probe = begin(&purgatory);
            eventually("its ending", || probe.ending().is_some());
            assert_eq!(threads_named(name).len(), 2, "{what}");
            drop(purgatory);
            eventually("the end of its threads", || threads_named(name).is_empty());
        };
        let infinite = |purgatory: &Purgatory<Op>| {
            let probe = Probe::new();
            let handle = park(purgatory, probe.op(Duration::MAX));
            assert_eq!(threads_named(name).len(), 0);
            (probe, handle)
        };
        begins("a park", &|purgatory| {
            let probe = Probe::new();
            park_for_a_moment(purgatory, probe.op(SOON));
            probe
        });
        begins("a new deadline by the handle", &|purgatory| {
            let (probe, handle) = infinite(purgatory);
            assert!(handle.reschedule(SOON));
            probe
        });
        begins("a deferred check", &|purgatory| {
            let (probe, _) = infinite(purgatory);
            probe.satisfy();
            purgatory.check_later(1);
            probe
        });
    });
}

/// And where there is nothing to give a deadline to, there is nothing to start a thread for.
#[test]
fn g28_timers_trackers_and_requests_start_threads_with_the_first_deadline() {
    within(PATIENCE, || {
        let name = "g28-timers";
        let none = || assert_eq!(threads_named(name).len(), 0);
        let two_then_none = |all: Box<dyn std::any::Any>| {
            eventually("two named threads", || threads_named(name).len() == 2);
            drop(all);
            eventually("the end of its threads", || threads_named(name).is_empty());
        };
        let tally = Tally::new();
        let timer = || {
            let expired = tally.clone();
            Timer::new(name, move |_: u64| expired.add())
        };
        let tracker = || {
            let expired = tally.clone();
            Tracker::new(name, move |_: u64, _: u64, _| expired.add())
        };

        let started = timer();
        started.start(SOON, 1).expect("there is room");
        eventually("the expiry", || tally.count() == 1);
        two_then_none(Box::new(started));

        let rescheduled = timer();
        let id = rescheduled.start(Duration::MAX, 1).expect("there is room");
        let gone = rescheduled.start(Duration::MAX, 2).expect("there is room");
        assert_eq!(rescheduled.stop(gone), Some(2));
        let ended = rescheduled.reschedule(gone, SOON);
        assert!(!ended);
        none();
        assert!(rescheduled.reschedule(id, SOON));
        eventually("the expiry", || tally.count() == 2);
        two_then_none(Box::new(rescheduled));

        let tracked = tracker();
        tracked.track(1, 1, SOON).expect("there is room");
        eventually("the expiry", || tally.count() == 3);
        two_then_none(Box::new(tracked));

        let rescheduled = tracker();
        rescheduled
            .track(1, 1, Duration::MAX)
            .expect("there is room");
        assert!(!rescheduled.reschedule(&2, SOON));
        assert!(!rescheduled.reschedule_if(&1, FencingToken::from(9), SOON));
        // (A thread takes its name once it runs.)
        thread::sleep(10 * SOON);
        none();
        assert!(rescheduled.reschedule(&1, SOON));
        eventually("the expiry", || tally.count() == 4);
        two_then_none(Box::new(rescheduled));

        let replaced = tracker();
        let token = replaced.track(1, 1, Duration::MAX).expect("there is room");
        let token = token.0;
        let current = replaced.replace_if(&1, token, 2, Duration::MAX);
        let current = current.expect("it is kept").0;
        let stale = replaced.replace_if(&1, token, 3, SOON);
        let reason = stale.map_err(|rejected| rejected.reason());
        assert_eq!(reason, Err(tracker::RejectReason::StaleToken));
        none();
        assert!(replaced.replace_if(&1, current, 4, SOON).is_ok());
        eventually("the expiry", || tally.count() == 5);
        two_then_none(Box::new(replaced));

        let requests = Requests::<u64, u64>::new(name);
        let request = requests.request(1, SOON).expect("there is room");
        assert!(request_purgatory::future::block_on(request).is_err());
        two_then_none(Box::new(requests));
    });
}

/// Only threads of its own are started late, and only those that there are.
#[test]
fn g28_settings_say_which_threads_there_are_and_when() {
    within(PATIENCE, || {
        let name = "g28-settings";
        let builder = || Purgatory::<Op>::builder(name);
        let named = || threads_named(name).len();
        let at_once = builder().threads_at_once().build();
        let at_once = at_once.expect("threads are to be had");
        eventually("two named threads", || named() == 2);
        drop(at_once);
        eventually("the end of its threads", || named() == 0);

        // No reaper of its own, but a thread for completions.
        let reactor = Reaper::Reactor(WakeFn::new(|| true));
        for reaper in [Reaper::Manual, reactor] {
            let at_once = builder().reaper(reaper).threads_at_once();
            let at_once = at_once.dispatch(Dispatch::OwnThread).build();
            let at_once = at_once.expect("threads are to be had");
            eventually("one named thread", || named() == 1);
            drop(at_once);
            eventually("the end of its thread", || named() == 0);
        }

        let inline = builder().dispatch(Dispatch::Inline).build();
        let inline = inline.expect("threads are to be had");
        park(&inline, Op::new(NEVER_IN_A_TEST));
        eventually("one named thread", || named() == 1);
        drop(inline);
        eventually("the end of its thread", || named() == 0);

        // A reactor drives it, and completions have a thread from the first one on.
        let reactor = builder().reaper(Reaper::Reactor(WakeFn::new(|| true)));
        let reactor = reactor.dispatch(Dispatch::OwnThread).build();
        let reactor = reactor.expect("threads are to be had");
        park(&reactor, Op::new(Duration::MAX));
        assert_eq!(named(), 0);
        park(&reactor, Op::new(NEVER_IN_A_TEST));
        assert_eq!(named(), 0);
        park_for_a_moment(&reactor, Op::new(SOON));
        eventually("one named thread", || {
            reactor.advance();
            named() == 1
        });
        drop(reactor);
        eventually("the end of its thread", || named() == 0);

        let shared = ReaperThread::spawn("g28-shared").expect("threads are to be had");
        for reaper in [Reaper::Shared(shared), Reaper::Manual] {
            let purgatory = builder().reaper(reaper).threads_at_once().build();
            let purgatory = purgatory.expect("no threads of its own");
            park(&purgatory, Op::new(NEVER_IN_A_TEST));
            purgatory.check_later(1);
            assert_eq!(named(), 0);
        }
        eventually("the end of both", || threads_named("g28-shared").is_empty());
    });
}

/// Many threads come with a first deadline together: two threads are started, and every deadline passes.
#[test]
fn g28_first_deadlines_that_come_together_start_two_threads() {
    const PARKERS: usize = 4;
    within(PATIENCE, || {
        for round in 0..100 {
            let name = "g28-together";
            let purgatory = Purgatory::<Op>::new(name);
            let start = Barrier::new(PARKERS);
            let probes = thread::scope(|scope| {
                let parkers = (0..PARKERS).map(|number| {
                    let (purgatory, start) = (&purgatory, &start);
                    scope.spawn(move || {
                        let probe = Probe::new();
                        start.wait();
                        match number % 3 {
                            0 => purgatory.check_later(1),
                            1 => _ = park(purgatory, Op::new(Duration::MAX)).reschedule(SOON),
                            _ => {}
                        }
                        park_for_a_moment(purgatory, probe.op(SOON));
                        probe
                    })
                });
                let parkers = parkers.collect::<Vec<_>>();
                let joined = parkers.into_iter().map(|parker| parker.join());
                joined.collect::<Result<Vec<_>, _>>().expect("no panic")
            });
            let expired = |probe: &Arc<Probe>| probe.ending() == Some(Completion::Expired);
            eventually("the expiry of all", || {
                probes.iter().all(expired) && purgatory.is_empty()
            });
            assert_eq!(threads_named(name).len(), 2, "round {round}");
            drop(purgatory);
            eventually("the end of its threads", || threads_named(name).is_empty());
        }
    });
}

/// A shutdown or a drain comes while the first deadline does: what was parked ends once, the rest is refused, and no
/// thread stays.
#[test]
fn g28_a_first_deadline_races_the_end() {
    within(PATIENCE, || {
        let name = "g28-end";
        for round in 0..300 {
            let purgatory = Purgatory::<Op>::new(name);
            let start = Barrier::new(3);
            let mut random = fastrand::Rng::with_seed(round);
            let [first, second] = [(); 2].map(|()| Duration::from_micros(random.u64(..60)));
            thread::scope(|scope| {
                let parkers = [first, second].map(|pause| {
                    let (purgatory, start) = (&purgatory, &start);
                    scope.spawn(move || {
                        let probe = Probe::new();
                        start.wait();
                        thread::sleep(pause);
                        let parked = purgatory.try_complete_else_watch(probe.op(SOON), [1]);
                        (probe, parked.map(drop).map_err(Rejected::into_parts))
                    })
                });
                start.wait();
                match round % 3 {
                    0 => purgatory.shutdown(),
                    1 => assert!(purgatory.shutdown_timeout(PATIENCE).is_ok()),
                    _ => assert_eq!(purgatory.drain(PATIENCE), 0),
                }
                for parker in parkers {
                    let (probe, parked) = parker.join().expect("no panic");
                    match parked {
                        Ok(()) => eventually("its ending", || probe.ending().is_some()),
                        Err((reason, _)) => {
                            let refusals = [RejectReason::ShutDown, RejectReason::Draining];
                            assert!(refusals.contains(&reason), "{reason:?}");
                            assert_eq!(probe.ending(), None);
                        }
                    }
                }
            });
            assert_eq!(purgatory.stats().parked, 0);
            drop(purgatory);
            eventually("the end of its threads", || threads_named(name).is_empty());
        }
    });
}

/// A drain of one that has no thread yet lets deferred checks be made and new deadlines pass.
#[test]
fn g28_threads_are_started_during_a_drain_as_well() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g28-drain");
        let [checked, expired] = [(); 2].map(|()| Probe::new());
        let all = [&checked, &expired].map(|probe| {
            let parked = purgatory.try_complete_else_watch(probe.op(Duration::MAX), [1]);
            parked.expect("there is room").into_handle()
        });
        assert_eq!(purgatory.drain(Duration::ZERO), 2);
        assert_eq!(threads_named("g28-drain").len(), 0);
        checked.satisfy();
        purgatory.check_later(1);
        eventually("the check", || checked.ending().is_some());
        let [_, Some(last)] = all else {
            panic!("it is parked");
        };
        assert!(last.reschedule(SOON));
        eventually("the expiry", || expired.ending().is_some());
        assert_eq!(purgatory.drain(PATIENCE), 0);
    });
}

/// One that was used and is empty wakes up once more at most: at the deadline that it knew.
#[test]
fn g19_one_that_was_used_and_is_empty_wakes_up_once_at_most() {
    const DEADLINE: Duration = Duration::from_millis(300);
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g19-used");
        let probes = [(); 100].map(|()| {
            let probe = Probe::new();
            park(&purgatory, probe.op(DEADLINE));
            probe
        });
        probes.iter().for_each(|probe| probe.satisfy());
        assert_eq!(purgatory.check_and_complete(&1), 100);
        assert!(purgatory.is_empty());
        eventually("the reaper", || threads_named("g19-used").len() == 1);
        // It sleeps until the deadline that it knew.
        thread::sleep(DEADLINE / 3);
        let threads = threads_named("g19-used");
        let slept = || threads.iter().map(|thread| sleeps(*thread)).sum::<u64>();
        let before = slept();
        thread::sleep(2 * DEADLINE);
        let once = slept() - before;
        assert!(once <= 1, "{once} wake-ups");
        thread::sleep(2 * DEADLINE);
        assert_eq!(slept() - before, once, "wake-ups");
    });
}

/// Woken, it would ask again, and so on.
#[test]
fn g19_a_reactor_that_asks_is_not_woken_for_what_it_finds() {
    let woken = Tally::new();
    let wakes = woken.clone();
    let waker = WakeFn::new(move || {
        wakes.add();
        true
    });
    let purgatory = Purgatory::<Op>::builder("g19")
        .clock(ManualClock::new())
        .reaper(Reaper::Reactor(waker));
    let purgatory = purgatory.build().expect("no threads to refuse");
    for parked in 0..2 {
        let before = woken.count();
        for _ in 0..2 {
            purgatory.advance();
            assert_eq!(purgatory.next_deadline().is_some(), parked > 0);
        }
        assert_eq!(woken.count(), before, "with {parked} parked");
        park(&purgatory, Op::new(NEVER_IN_A_TEST));
    }
}

/// Many calls shut it down in the background at once, and one thread does it.
#[test]
fn g15_many_calls_that_shut_down_in_the_background_start_one_thread() {
    const CALLERS: usize = 8;
    within(PATIENCE, || {
        let name = "g15-one";
        for _ in 0..50 {
            let purgatory = Purgatory::<Op>::new(name);
            // The thread that shuts down is held up here, and all the others if there were any.
            let (go_on, told) = std::sync::mpsc::channel::<()>();
            let slow = Op::new(Duration::MAX).then(move |_| _ = told.recv());
            park(&purgatory, slow);
            let start = Barrier::new(CALLERS);
            let futures = thread::scope(|scope| {
                let callers = (0..CALLERS).map(|number| {
                    let (purgatory, start) = (&purgatory, &start);
                    scope.spawn(move || {
                        start.wait();
                        match number % 2 {
                            0 => purgatory.shutdown_async().ok(),
                            _ => {
                                let over = purgatory.shutdown_timeout(Duration::ZERO);
                                assert!(over.is_err(), "it is held up");
                                None
                            }
                        }
                    })
                });
                let callers = callers.collect::<Vec<_>>();
                let joined = callers.into_iter().map(|caller| caller.join());
                let joined = joined.collect::<Result<Vec<_>, _>>();
                joined
                    .expect("no panic")
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
            });
            eventually("its thread", || threads_named(name).len() == 1);
            thread::sleep(Duration::from_millis(1));
            assert_eq!((threads_named(name).len(), futures.len()), (1, CALLERS / 2));
            go_on.send(()).expect("it waits");
            assert!(purgatory.shutdown_timeout(PATIENCE).is_ok());
            // Everyone who asked is told, and one who asks later as well.
            for over in futures.into_iter().chain(purgatory.shutdown_async()) {
                futures::executor::block_on(over);
            }
            eventually("the end of its thread", || threads_named(name).is_empty());
        }
    });
}

/// An interval of zero is a millisecond: a thread that drives the timer sleeps in between.
#[test]
fn g19_rechecks_without_an_interval_leave_the_thread_asleep() {
    let clock = ManualClock::new();
    let waits = Waits::<u64>::builder("g19-recheck")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .build()
        .expect("no threads to refuse");
    let listener = waits.listen([1], None).recheck_every(Duration::ZERO);
    let mut until = Box::pin(listener.until(|| ready(None::<()>)));
    for _ in 0..10 {
        assert!(Bell::new().poll(&mut until).is_pending());
        let next = waits.next_deadline().expect("a recheck");
        assert!(next > clock.now(), "it is due all the time");
        clock.advance(next.saturating_since(clock.now()));
        waits.advance();
    }
}

const IN_CHILD: &str = "G28_LIMITED";

/// The system refuses a thread for real: no memory is left for a stack. The operation comes back, and can be parked when
/// there is memory again.
#[test]
fn g28_a_thread_that_the_system_refuses_gives_the_operation_back() {
    if std::env::var_os(IN_CHILD).is_none() {
        let this = std::env::current_exe().expect("this is Linux");
        let child = Command::new(this)
            .args(["--exact", "--nocapture", "--test-threads=1"])
            .arg("idle::g28_a_thread_that_the_system_refuses_gives_the_operation_back")
            .env(IN_CHILD, "1")
            .output()
            .expect("a child");
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && said.contains("1 passed"),
            "{child:?}"
        );
        return;
    }
    let limit = |soft: &str| {
        let me = std::process::id().to_string();
        let set = Command::new("prlimit")
            .args(["--pid", &me, &format!("--as={soft}:")])
            .status();
        assert!(set.expect("util-linux is installed").success());
    };
    let purgatory = Purgatory::<Op>::builder("g28-refused").clock(ManualClock::new());
    let purgatory = purgatory.map_shards(2).build().expect("nothing to refuse");
    park(&purgatory, Op::new(Duration::MAX))
        .cancel()
        .expect("it is parked");
    let tracker = Tracker::<u32, u32>::new("g28-kept", |_, _, _| ());
    let (token, _) = tracker.track(1, 1, Duration::MAX).expect("there is room");
    let size = || Process::this().size().expect("this is Linux");
    // A debug build has started a thread, which takes its heap.
    eventually("a size that stays", || {
        let before = size();
        thread::sleep(Duration::from_millis(50));
        size() == before
    });
    let room = size() + (1_024 << 10);
    let probe = Probe::new();
    let op = probe.op(SOON);
    // A thread that is alive when the limit comes keeps its stack; so this one goes on.
    limit(&room.to_string());
    let parked = purgatory.try_complete_else_watch(op, [1]);
    let rescheduled = tracker.reschedule(&1, SOON);
    let replaced = tracker.replace_if(&1, token, 2, SOON);
    limit("unlimited");
    let replaced = replaced.map(drop).map_err(tracker::Rejected::into_parts);
    assert_eq!(
        (rescheduled, replaced),
        (false, Err((tracker::RejectReason::Thread, 2)))
    );
    assert_eq!((tracker.get(&1), tracker.token(&1)), (Some(1), Some(token)));
    let (reason, op) = parked
        .map(drop)
        .map_err(Rejected::into_parts)
        .expect_err("no memory");
    assert_eq!(reason, RejectReason::Thread);
    assert_eq!(
        (purgatory.stats().parked, purgatory.stats().rejected),
        (0, 1)
    );
    assert_eq!(probe.ending(), None);
    park_for_a_moment(&purgatory, op);
    eventually("the reaper", || threads_named("g28-refused").len() == 1);
}
