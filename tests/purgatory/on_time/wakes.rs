//! G7: the thread that drives the timer is woken by each call that brings an earlier deadline or defers a check. G6,
//! G9, G19: whom a clock wakes that is moved by hand, and whom it forgets.

use super::{TICK, park, watched};
use crate::lost_completion::steps::{elsewhere, on_threads};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock, within};
use request_purgatory::threads::{Reaper, ReaperThread};
use request_purgatory::time::{Clock, ManualClock, Timestamp, WakeFn};
use request_purgatory::{Handle, Purgatory};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(20);

type Call = fn(&Purgatory<Op>, &Handle<Op>, &Probe);

/// By each, one operation ends, and not before this time has passed. The handle and the probe are those of an operation
/// that waits.
const CALLS: [(&str, Duration, Call); 5] = [
    ("a park", SOON, |all, _, _| _ = watched(all, SOON)),
    ("a park that is overdue", Duration::ZERO, |all, _, _| {
        let op = Op::new(SOON).arrived(Timestamp::default());
        drop(all.try_complete_else_watch(op, [1]));
    }),
    ("a timeout by the handle", SOON, |_, handle, _| {
        assert!(handle.reschedule(SOON));
    }),
    ("a point in time by the handle", SOON, |_, handle, _| {
        assert!(handle.reschedule(Instant::now() + SOON));
    }),
    ("a deferred check", Duration::ZERO, |all, _, probe| {
        probe.satisfy();
        all.check_later(1);
    }),
];

fn each_call_wakes_the_driver(driver: &str, purgatory: &Purgatory<Op>) {
    let ended = || {
        let stats = purgatory.stats();
        stats.expired + stats.completed
    };
    // The driver sleeps without end at first, and then until ever earlier deadlines.
    for waits in [Duration::MAX, NEVER_IN_A_TEST, NEVER_IN_A_TEST / 60] {
        for (name, after, call) in CALLS {
            let row = format!("{driver}, one that waits {waits:?}, {name}");
            let probe = Probe::new();
            let handle = park(purgatory, probe.op(waits));
            // Time for the driver to go to sleep.
            thread::sleep(Duration::from_millis(20));
            let (before, begun) = (ended(), Instant::now());
            call(purgatory, &handle, &probe);
            eventually(&row, || ended() > before);
            assert!(begun.elapsed() >= after, "early: {row}");
        }
    }
}

/// A shared reaper sleeps until the first deadline of both purgatories, whichever has it.
#[test]
fn g07_a_deadline_or_deferred_check_wakes_the_reaper() {
    within(PATIENCE, || {
        each_call_wakes_the_driver("a reaper", &Purgatory::new("g07-own"));
        let reaper = ReaperThread::spawn("g07-shared").expect("threads are to be had");
        for (near, driver) in ["of the first", "of the second"].into_iter().enumerate() {
            let pair = [0, 1].map(|_| {
                let builder = Purgatory::<Op>::builder("g07-one-of-two");
                let built = builder.reaper(Reaper::Shared(reaper.clone())).build();
                built.expect("no threads to refuse")
            });
            park(&pair[1 - near], Op::new(NEVER_IN_A_TEST));
            each_call_wakes_the_driver(driver, &pair[near]);
        }
    });
}

/// A user who drives the timer as well does not take the alarm away from the reaper.
#[test]
fn g07_a_slow_advance_elsewhere_does_not_hold_up_the_reaper() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g07-elsewhere");
        let driver = Arc::new(Mutex::new(None));
        let ((entered, inside), (go_on, told)) = (channel(), channel::<()>());
        let slow_on = driver.clone();
        let slow = Op::new(NEVER_IN_A_TEST).when(move || {
            if *lock(&slow_on) == Some(thread::current().id()) {
                // The test may be over.
                let _ = entered.send(());
                let _ = told.recv();
            }
            false
        });
        // Parked from another thread, so that it lies in another timer shard than what must not wait for it.
        elsewhere(|| drop(purgatory.try_complete_else_watch(slow, [7])));
        thread::scope(|scope| {
            scope.spawn(|| {
                *lock(&driver) = Some(thread::current().id());
                // This thread or the reaper makes the check, whichever comes first; only here it is slow.
                for _ in 0..10_000 {
                    purgatory.check_later(7);
                    purgatory.advance();
                }
            });
            if inside.recv_timeout(SOON * 1_000).is_ok() {
                let probe = watched(&purgatory, SOON);
                eventually("the expiry", || probe.ending().is_some());
            }
            drop(go_on);
        });
    });
}

/// A clock that several own is the same clock.
#[test]
fn g09_a_clock_in_an_arc_waits_and_wakes_as_it_does_by_itself() {
    let (clock, woken) = (ManualClock::new(), Tally::new());
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    // It does not follow real time: by that no thread can wait for it.
    let later = clock.now().saturating_add(TICK);
    assert_eq!(Clock::time_until(&shared, later), None);
    Clock::subscribe(&shared, woken.wake_fn());
    clock.advance(TICK);
    assert_eq!(woken.count(), 1);
    assert_eq!(Clock::time_until(&shared, later), Some(Duration::ZERO));
}

/// A clock that stands still forgets the purgatories that are gone.
#[test]
fn g06_a_manual_clock_keeps_no_wake_function_of_purgatories_that_are_gone() {
    within(PATIENCE, || {
        let (clock, wakes) = (ManualClock::new(), Tally::new());
        for _ in 0..10_000 {
            let builder = Purgatory::<Op>::builder("clocks").clock(clock.clone());
            drop(builder.reaper(Reaper::Reactor(wakes.wake_fn())).build());
        }
        let before = wakes.count();
        clock.advance(TICK);
        let kept = wakes.count() - before;
        assert!(kept <= 100, "{kept} wake functions were kept");
    });
}

/// The clock finds out who is gone by waking all, and has room for many more then. 127 is just below the room that it
/// takes without thinking.
#[test]
fn g19_what_is_built_on_a_manual_clock_wakes_few_of_the_others() {
    const LIVING: u64 = 127;
    const BUILT: u64 = 1_000;
    let (clock, woken) = (ManualClock::new(), Tally::new());
    (0..LIVING).for_each(|_| clock.subscribe(woken.wake_fn()));
    let before = woken.count();
    (0..BUILT).for_each(|_| clock.subscribe(WakeFn::new(|| false)));
    let times = woken.count() - before;
    assert!(times < 4 * BUILT, "woken {times} times");
}

/// Several threads move one clock: it loses none of their steps, and never goes back.
#[test]
fn g09_a_clock_that_several_threads_move_never_goes_back() {
    const STEPS: u32 = 200_000;
    let clock = ManualClock::new();
    on_threads(3, |_| {
        let mut before = clock.now();
        for _ in 0..STEPS {
            clock.advance(TICK);
            let now = clock.now();
            assert!(now.saturating_since(before) >= TICK);
            before = now;
        }
    });
    assert_eq!(clock.now().since_origin(), TICK * 3 * STEPS);
}
