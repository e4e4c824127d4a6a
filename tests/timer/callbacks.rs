//! G8, G12, G13, G14: what the callback may do to the timer, and what it may not.

use crate::support::{Job, PATIENCE, Tally, eventually, lock, on_a_stack_of, within};
use crate::tested::{Itself, Tested, builder, found, knowing_itself, manual};
use request_purgatory::Timer;
use request_purgatory::threads::{Dispatch, Reaper, run_unnested};
use request_purgatory::time::{Clock, ManualClock, WakeFn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

/// However close its deadline: else a callback that starts its successor at once would never end the pass. In whatever
/// timer shard that lies: also in one that the pass has yet to come to. (Threads that live together come to several
/// shards, and a callback starts its timers in that of the thread that drives.)
pub(crate) fn g08_what_a_callback_starts_is_left_for_the_next_pass<W: Tested>() {
    // Twice the fewest timer shards that there are; and more timers than are taken off a shard at a time.
    const THREADS: usize = 16;
    const EACH: usize = 70;
    let (builder, clock) = manual::<(), W>();
    let timer = knowing_itself(&Itself::default(), builder, |timer, ()| {
        timer.start(Duration::ZERO, ()).expect("it fits");
    });
    let (all_started, turn) = (Barrier::new(THREADS), Mutex::new(()));
    let start_and_drive = || {
        for _ in 0..EACH {
            timer.start(TICK, ()).expect("there is room");
        }
        all_started.wait();
        let _turn = lock(&turn);
        clock.advance(TICK);
        let all = THREADS * EACH;
        assert_eq!((timer.advance(), timer.len()), (all, all));
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(start_and_drive);
        }
    });
}

/// A call that waits for the end of the pass panics. The pass is over nevertheless, and the next deadline is known.
pub(crate) fn g12_a_queued_call_that_panics_costs_the_pass_nothing<W: Tested>() {
    let clock = ManualClock::new();
    let builder = builder::<u32, W>("g12").dispatch(Dispatch::Inline);
    let builder = builder.clock(clock.clone()).reaper(clock.reaper());
    let called = Arc::new(Mutex::new(Vec::new()));
    let (time, log) = (clock.clone(), called.clone());
    let timer = builder.build(move |number| {
        lock(&log).push((number, time.now().since_origin()));
        run_unnested(|| resume_unwind(Box::new("intended")));
    });
    let timer = timer.expect("no threads to refuse");
    for number in 1..4 {
        timer.start(TICK * number, number).expect("it fits");
    }
    clock.advance(TICK * 10);
    let in_time = [1, 2, 3].map(|number| (number, TICK * number));
    assert_eq!(*lock(&called), in_time);
    assert_eq!((timer.len(), timer.stats().panicked), (0, 3));
}

/// It is the last clone that goes, and a payload queues a call that panics.
pub(crate) fn g12_a_queued_call_that_panics_costs_the_last_drop_nothing<W: Tested>() {
    struct Queues;
    impl Drop for Queues {
        fn drop(&mut self) {
            run_unnested(|| resume_unwind(Box::new("intended")));
        }
    }
    let (builder, _clock) = manual::<Queues, W>();
    let timer = builder.build(drop).expect("no threads to refuse");
    timer.start(TICK, Queues).expect("there is room");
    drop(timer);
}

pub(crate) fn g13_a_slow_callback_does_not_hold_up_the_timer<W: Tested>() {
    within(PATIENCE, || {
        let (go_on, told) = channel::<()>();
        let told = Mutex::new(told);
        let timer = builder::<bool, W>("g13").build(move |slow| {
            if slow {
                // An error: the test has failed.
                let _ = lock(&told).recv();
            }
        });
        let timer = timer.expect("threads are to be had");
        timer.start(TICK * 5, true).expect("there is room");
        for number in 0..3_000 {
            let timeout = Duration::from_millis(10 + number % 50);
            timer.start(timeout, false).expect("there is room");
        }
        // It ends when all have expired, and not before.
        eventually("the expiry of all", || timer.stats().expired == 3_001);
        go_on.send(()).expect("it is not over yet");
    });
}

/// Who starts a timer may have a lock that the callback takes. The waker comes in the middle of the start, and the time
/// is over before it returns.
pub(crate) fn g13_an_inline_callback_runs_where_the_timer_is_driven<W: Tested>() {
    within(PATIENCE, || {
        let (clock, itself) = (ManualClock::new(), Itself::default());
        let (time, driven, woken) = (clock.clone(), itself.clone(), AtomicBool::new(false));
        let waker = WakeFn::new(move || {
            // The clock wakes as well. It is told to forget this waker, which it would otherwise keep, and be kept
            // by.
            let first = !woken.swap(true, Ordering::SeqCst);
            if first {
                let (timer, time) = (found(&driven), time.clone());
                let drive = move || {
                    time.advance(TICK);
                    timer.advance()
                };
                let driver = thread::Builder::new().name("driver".into()).spawn(drive);
                driver.expect("one thread more").join().expect("it ends");
            }
            first
        });
        let threads = Arc::new(Mutex::new(Vec::new()));
        let log = threads.clone();
        let builder = builder::<u32, W>("g13").clock(clock.clone());
        let builder = builder
            .reaper(Reaper::Reactor(waker))
            .dispatch(Dispatch::Inline);
        let timer = knowing_itself(&itself, builder, move |_, _| {
            lock(&log).push(thread::current().name().map(String::from));
        });
        timer.start(TICK, 1).expect("there is room");
        assert_eq!(*lock(&threads), [Some("driver".into())]);
    });
}

/// Each callback advances the timer that makes the next one due.
pub(crate) fn g14_a_chain_of_callbacks_needs_no_stack<W: Tested>() {
    within(PATIENCE, || {
        let (builder, clock) = manual::<u32, W>();
        let (ran, nested, depth) = (Tally::new(), Tally::new(), AtomicUsize::new(0));
        let (count, overlaps) = (ran.clone(), nested.clone());
        let timer = knowing_itself(&Itself::default(), builder, move |timer, left| {
            if depth.fetch_add(1, Ordering::SeqCst) > 0 {
                overlaps.add();
            }
            count.add();
            if left > 0 {
                timer.start(Duration::ZERO, left - 1).expect("it fits");
                timer.advance();
            }
            depth.fetch_sub(1, Ordering::SeqCst);
        });
        timer.start(TICK, 50_000).expect("it fits");
        clock.advance(TICK);
        on_a_stack_of(128, move || {
            while !timer.is_empty() {
                timer.advance();
            }
        });
        assert_eq!((ran.count(), nested.count()), (50_001, 0));
    });
}

/// The job has the last reference to the timer, and so runs or drops the destructor of the callback.
#[test]
fn g12_a_job_does_not_panic_although_the_destructor_of_the_callback_does() {
    for is_run in [true, false] {
        let (hand_over, jobs) = channel();
        let executor = Dispatch::Executor(Arc::new(move |job: Job| {
            hand_over.send(job).expect("the test waits");
        }));
        let (timer, clock) = timer_on(executor);
        timer.start(Duration::ZERO, ()).expect("there is room");
        clock.advance(Duration::from_millis(1));
        timer.advance();
        let job = jobs.recv().expect("it expires");
        drop(timer);
        let ended = catch_unwind(AssertUnwindSafe(|| match is_run {
            true => job(),
            false => drop(job),
        }));
        assert!(ended.is_ok(), "it is run: {is_run}");
    }
}

/// A timer whose callback panics when it is dropped.
fn timer_on(executor: Dispatch) -> (Timer<()>, ManualClock) {
    let clock = ManualClock::new();
    let bad = scopeguard::guard((), |()| resume_unwind(Box::new("intended")));
    let builder = Timer::<()>::builder("g12-job").clock(clock.clone());
    let builder = builder.reaper(Reaper::Manual).dispatch(executor);
    let timer = builder.build(move |()| _ = &bad);
    (timer.expect("no threads to refuse"), clock)
}
