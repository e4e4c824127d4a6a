//! G28, G15: when the threads of one begin and end. (Threads that the system refuses are in the library's own tests,
//! `src/engine/tests.rs`, and here by a limit of memory.)

use super::{SOON, eventually_threads, park, together};
use crate::chains::scene::{Gate, admit};
use crate::support::{
    NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, threads_named, within,
};
use request_purgatory::future::block_on;
use request_purgatory::purgatory::{RejectReason, Rejected};
use request_purgatory::threads::{Dispatch, Reaper, ReaperThread};
use request_purgatory::time::{ManualClock, WakeFn};
use request_purgatory::{Completion, Handle, Purgatory, Timer};
use request_purgatory_tracker::{self as tracker, FencingToken, Requests, Tracker};
use std::any::Any;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use testing::process::Process;

const NAME: &str = "g28-starts";

fn no_thread_yet() {
    // A thread takes its name once it runs.
    thread::sleep(10 * SOON);
    assert_eq!(threads_named(NAME).len(), 0);
}

type Parked = (Purgatory<Op>, Arc<Probe>, Handle<Op>);

/// With an operation that never expires, so without a thread; its end is counted.
fn infinite(told: Arc<Tally>) -> Parked {
    let (purgatory, probe) = (Purgatory::new(NAME), Probe::new());
    let op = probe.op(Duration::MAX).then(move |_| told.add());
    let handle = park(&purgatory, op);
    no_thread_yet();
    (purgatory, probe, handle)
}

/// The same in a drain, which lets deferred checks be made and new deadlines pass.
fn drained(told: Arc<Tally>) -> Parked {
    let it = infinite(told);
    assert_eq!(it.0.drain(Duration::ZERO), 1);
    no_thread_yet();
    it
}

fn reschedule((purgatory, _, handle): Parked) -> Box<dyn Any> {
    assert!(handle.reschedule(SOON));
    Box::new(purgatory)
}

fn defer((purgatory, probe, _): Parked) -> Box<dyn Any> {
    probe.satisfy();
    purgatory.check_later(1);
    Box::new(purgatory)
}

fn tracker(told: Arc<Tally>) -> Tracker<u64, u64> {
    Tracker::new(NAME, move |_: u64, _: u64, _| told.add())
}

/// Builds one, and calls it until one of its deadlines has passed, or a deferred check has been made: that is counted.
type Use = fn(Arc<Tally>) -> Box<dyn Any>;

const USES: [(&str, Use); 8] = [
    ("a new deadline", |told| reschedule(infinite(told))),
    ("a new deadline in a drain", |told| {
        reschedule(drained(told))
    }),
    ("a deferred check", |told| defer(infinite(told))),
    ("a deferred check in a drain", |told| defer(drained(told))),
    ("a timer's new deadline", |told| {
        let timer = Timer::new(NAME, move |_: u64| told.add());
        let id = timer.start(Duration::MAX, 1).expect("there is room");
        let gone = timer.start(Duration::MAX, 2).expect("there is room");
        assert_eq!(timer.stop(gone), Some(2));
        assert!(!timer.reschedule(gone, SOON));
        no_thread_yet();
        assert!(timer.reschedule(id, SOON));
        Box::new(timer)
    }),
    ("a tracker's new deadline", |told| {
        let tracker = tracker(told);
        tracker.track(1, 1, Duration::MAX).expect("there is room");
        assert!(!tracker.reschedule(&2, SOON));
        assert!(!tracker.reschedule_if(&1, FencingToken::from(9), SOON));
        no_thread_yet();
        assert!(tracker.reschedule(&1, SOON));
        Box::new(tracker)
    }),
    ("a value that replaces one", |told| {
        let tracker = tracker(told);
        let (stale, _) = tracker.track(1, 1, Duration::MAX).expect("there is room");
        let replaced = tracker.replace_if(&1, stale, 2, Duration::MAX);
        let (current, _) = replaced.expect("it is kept");
        let refused = tracker.replace_if(&1, stale, 3, SOON);
        let reason = refused.map_err(|rejected| rejected.reason());
        assert_eq!(reason, Err(tracker::RejectReason::StaleToken));
        no_thread_yet();
        assert!(tracker.replace_if(&1, current, 4, SOON).is_ok());
        Box::new(tracker)
    }),
    ("a request", |told| {
        let requests = Requests::<u64, u64>::new(NAME);
        let request = requests.request(1, SOON).expect("there is room");
        assert!(block_on(request).is_err());
        told.add();
        Box::new(requests)
    }),
];

/// Each way to a first deadline, or to a deferred check, starts the reaper. The deadline passes or the check is made,
/// and the completion has a thread. Where there is nothing to give a deadline to, no thread is started.
#[test]
fn g28_the_first_deadline_or_deferred_check_starts_two_threads() {
    within(PATIENCE, || {
        for (name, begin) in USES {
            let told = Tally::new();
            let all = begin(told.clone());
            eventually(name, || told.count() == 1);
            eventually_threads(NAME, 2);
            drop(all);
            eventually_threads(NAME, 0);
        }
    });
}

/// Only threads of its own are started late, and only those that there are. Where a reactor or the user drives the
/// timer, completions run there, and have a thread only if the builder asks for one.
#[test]
fn g13_g28_settings_say_which_threads_there_are_and_when() {
    let reactor = || Reaper::Reactor(WakeFn::new(|| true));
    let shared = ReaperThread::spawn("g28-shared").expect("threads are to be had");
    let thread = || Some(Dispatch::OwnThread);
    // The reaper, where completions run, whether threads start at once; and the threads when it is built, with an
    // operation that never expires, with a deadline, and after an expiry.
    let rows = [
        (Reaper::Own, None, false, [0, 0, 1, 2]),
        (Reaper::Own, None, true, [2; 4]),
        (Reaper::Own, Some(Dispatch::Inline), false, [0, 0, 1, 1]),
        // No reaper of its own, but a thread for completions.
        (reactor(), thread(), false, [0, 0, 0, 1]),
        (reactor(), thread(), true, [1; 4]),
        (reactor(), None, true, [0; 4]),
        (Reaper::Manual, thread(), true, [1; 4]),
        (Reaper::Manual, None, true, [0; 4]),
        (Reaper::Shared(shared), None, true, [0; 4]),
    ];
    within(PATIENCE, move || {
        for (reaper, dispatch, at_once, threads) in rows {
            let name = "g28-settings";
            let row = format!("{reaper:?}, {dispatch:?}, at once: {at_once}");
            let mut builder = Purgatory::<Op>::builder(name).reaper(reaper);
            if let Some(dispatch) = dispatch {
                builder = builder.dispatch(dispatch);
            }
            if at_once {
                builder = builder.threads_at_once();
            }
            let purgatory = builder.build().expect("threads are to be had");
            let uses: [&dyn Fn(); 4] = [
                &|| (),
                &|| _ = park(&purgatory, Op::new(Duration::MAX)),
                &|| _ = park(&purgatory, Op::new(NEVER_IN_A_TEST)),
                &|| {
                    admit(&purgatory, Op::new(SOON), [1]);
                    eventually(&row, || {
                        purgatory.advance();
                        purgatory.stats().expired == 1
                    });
                    purgatory.check_later(1);
                },
            ];
            for (begin, count) in uses.iter().zip(threads) {
                begin();
                let what = format!("{count} threads with {row}");
                eventually(&what, || threads_named(name).len() == count);
            }
            drop(purgatory);
            eventually_threads(name, 0);
        }
        eventually_threads("g28-shared", 0);
    });
}

/// Many threads come with a first deadline together: two threads are started, and every deadline passes.
#[test]
fn g28_first_deadlines_that_come_together_start_two_threads() {
    within(PATIENCE, || {
        for round in 0..100 {
            let name = "g28-together";
            let purgatory = Purgatory::<Op>::new(name);
            let probes = together(4, |number| {
                match number % 3 {
                    0 => purgatory.check_later(1),
                    1 => _ = park(&purgatory, Op::new(Duration::MAX)).reschedule(SOON),
                    _ => {}
                }
                let probe = Probe::new();
                admit(&purgatory, probe.op(SOON), [1]);
                probe
            });
            let expired = |probe: &Arc<Probe>| probe.ending() == Some(Completion::Expired);
            eventually("the expiry of all", || {
                probes.iter().all(expired) && purgatory.is_empty()
            });
            assert_eq!(threads_named(name).len(), 2, "round {round}");
            drop(purgatory);
            eventually_threads(name, 0);
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
            let mut random = fastrand::Rng::with_seed(round);
            let pauses = [(); 2].map(|()| Duration::from_micros(random.u64(..60)));
            together(3, |number| {
                let Some(pause) = pauses.get(number) else {
                    return match round % 3 {
                        0 => purgatory.shutdown(),
                        1 => assert!(purgatory.shutdown_timeout(PATIENCE).is_ok()),
                        _ => assert_eq!(purgatory.drain(PATIENCE), 0),
                    };
                };
                let probe = Probe::new();
                thread::sleep(*pause);
                let parked = purgatory.try_complete_else_watch(probe.op(SOON), [1]);
                match parked.map_err(Rejected::into_parts) {
                    Ok(_) => eventually("its ending", || probe.ending().is_some()),
                    Err((reason, _)) => {
                        let refusals = [RejectReason::ShutDown, RejectReason::Draining];
                        assert!(refusals.contains(&reason), "{reason:?}");
                        assert_eq!(probe.ending(), None);
                    }
                }
            });
            assert_eq!(purgatory.stats().parked, 0);
            drop(purgatory);
            eventually_threads(name, 0);
        }
    });
}

#[test]
fn g15_many_calls_that_shut_down_in_the_background_start_one_thread() {
    const CALLERS: usize = 8;
    within(PATIENCE, || {
        let name = "g15-one";
        for _ in 0..50 {
            let purgatory = Purgatory::<Op>::new(name);
            // The thread that shuts down is held up here, and all the others if there were any.
            let (gate, wait) = Gate::new();
            park(&purgatory, Op::new(Duration::MAX).then(move |_| wait()));
            let futures = together(CALLERS, |number| {
                if number % 2 == 0 {
                    return purgatory.shutdown_async().ok();
                }
                let over = purgatory.shutdown_timeout(Duration::ZERO);
                assert!(over.is_err(), "it is held up");
                None
            });
            let futures = futures.into_iter().flatten().collect::<Vec<_>>();
            eventually_threads(name, 1);
            thread::sleep(Duration::from_millis(1));
            assert_eq!((threads_named(name).len(), futures.len()), (1, CALLERS / 2));
            gate.open();
            assert!(purgatory.shutdown_timeout(PATIENCE).is_ok());
            // Everyone who asked is told, and one who asks later as well.
            for over in futures.into_iter().chain(purgatory.shutdown_async()) {
                futures::executor::block_on(over);
            }
            eventually_threads(name, 0);
        }
    });
}

const IN_CHILD: &str = "G28_LIMITED";

/// The system refuses a thread for real: no memory is left for a stack. The operation comes back, and can be parked
/// when there is memory again.
#[test]
fn g28_a_thread_that_the_system_refuses_gives_the_operation_back() {
    if std::env::var_os(IN_CHILD).is_none() {
        // The test alone, in a process of its own.
        let name =
            "idle_is_idle::starts::g28_a_thread_that_the_system_refuses_gives_the_operation_back";
        let this = std::env::current_exe().expect("this is Linux");
        let mut child = Command::new(this);
        let child = child.args([name, "--exact", "--nocapture", "--test-threads=1"]);
        let child = child.env(IN_CHILD, "1").output().expect("a child");
        let said = String::from_utf8_lossy(&child.stdout);
        let passed = child.status.success() && said.contains("1 passed");
        assert!(passed, "{child:?}");
        return;
    }
    let limit = |soft: &str| {
        let (me, limit) = (std::process::id().to_string(), format!("--as={soft}:"));
        let mut prlimit = Command::new("prlimit");
        let set = prlimit.args(["--pid", &me, &limit]).status();
        assert!(set.expect("util-linux is installed").success());
    };
    let purgatory = Purgatory::<Op>::builder("g28-refused").clock(ManualClock::new());
    let purgatory = purgatory.map_shards(2).build().expect("nothing to refuse");
    let handle = park(&purgatory, Op::new(Duration::MAX));
    handle.cancel().expect("it is parked");
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
    assert!(!rescheduled);
    let replaced = replaced.map(drop).map_err(tracker::Rejected::into_parts);
    assert_eq!(replaced, Err((tracker::RejectReason::Thread, 2)));
    assert_eq!((tracker.get(&1), tracker.token(&1)), (Some(1), Some(token)));
    let parked = parked.map(drop).map_err(Rejected::into_parts);
    let (reason, op) = parked.expect_err("no memory");
    assert_eq!((reason, probe.ending()), (RejectReason::Thread, None));
    let stats = purgatory.stats();
    assert_eq!((stats.parked, stats.rejected), (0, 1));
    admit(&purgatory, op, [1]);
    eventually_threads("g28-refused", 1);
}
