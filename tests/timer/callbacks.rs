//! G8, G12, G13, G14: what the callback may do to the timer, and what it may not.

use crate::support::{Job, PATIENCE, Tally, eventually, lock, on_a_stack_of, quietly, within};
use crate::tested::{Itself, Tested, builder, log, manual};
use request_purgatory::Timer;
use request_purgatory::threads::{Dispatch, Reaper, run_unnested};
use request_purgatory::time::{Clock, ManualClock, WakeFn};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

/// A timer whose callback starts another at once.
fn successors<W: Tested>() -> (Timer<u32, W>, ManualClock) {
    let (builder, clock) = manual::<u32, W>();
    let itself = Itself::default();
    let timer = itself.build(builder, |timer, number| {
        timer.start(Duration::ZERO, number + 1).expect("it fits");
    });
    (timer, clock)
}

/// However close its deadline: else a callback that starts its successor at once would never end the pass.
pub(crate) fn g08_what_a_callback_starts_is_left_for_the_next_pass<W: Tested>() {
    let (timer, clock) = successors::<W>();
    for number in 0..200 {
        timer.start(TICK, 1_000 * number).expect("there is room");
    }
    clock.advance(TICK);
    for _ in 0..5 {
        assert_eq!((timer.advance(), timer.len()), (200, 200));
    }
}

/// In whatever timer shard that lies: also in one that the pass has yet to come to. (Threads that live together come to
/// several shards, and a callback starts its timers in that of the thread that drives.)
pub(crate) fn g08_what_a_callback_starts_is_left_whatever_shard_it_lies_in<W: Tested>() {
    // Twice the fewest timer shards that there are.
    const THREADS: usize = 16;
    let (timer, clock) = successors::<W>();
    let (all_started, turn) = (Barrier::new(THREADS), Mutex::new(()));
    let start_and_drive = || {
        timer.start(TICK, 0).expect("there is room");
        all_started.wait();
        let _turn = lock(&turn);
        clock.advance(TICK);
        assert_eq!((timer.advance(), timer.len()), (THREADS, THREADS));
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

/// What expires then is called when the callback has returned.
pub(crate) fn g14_a_callback_may_drive_the_timer<W: Tested>() {
    let (builder, clock) = manual::<u32, W>();
    let called = Arc::new(Mutex::new(Vec::new()));
    let (time, log, itself) = (clock.clone(), called.clone(), Itself::default());
    let timer = itself.build(builder, move |timer, number| {
        lock(&log).push(number);
        if number == 1 {
            time.advance(TICK);
            assert_eq!(timer.advance(), 1);
            assert_eq!(*lock(&log), [1]);
        }
    });
    for number in [1, 2, 3] {
        timer.start(number * TICK, number).expect("there is room");
    }
    clock.advance(TICK);
    assert_eq!(timer.advance(), 1);
    assert_eq!((&**lock(&called), timer.stats().panicked), (&[1, 2][..], 0));
}

pub(crate) fn g12_a_panic_ends_that_payload_only<W: Tested>() {
    within(PATIENCE, || {
        quietly();
        let executor = Arc::new(|job: Job| drop(thread::spawn(job)));
        let executor = Dispatch::Executor(executor);
        for dispatch in [Dispatch::OwnThread, Dispatch::Inline, executor] {
            let builder = builder::<u64, W>("g12").dispatch(dispatch);
            let (timer, received) = log(builder, |number| {
                if number % 7 == 0 {
                    std::panic::panic_any("intended");
                }
                *number
            });
            for number in 0..210 {
                let timeout = Duration::from_millis(number % 10);
                timer.start(timeout, number).expect("there is room");
            }
            eventually("the callbacks", || lock(&received).len() == 180);
            eventually("the count of panics", || timer.stats().panicked == 30);
            assert_eq!((timer.stats().expired, timer.len()), (210, 0));
            // The reaper lives.
            timer.start(TICK, 1).expect("there is room");
            eventually("one more", || lock(&received).len() == 181);
        }
    });
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
                let (timer, time) = (driven.timer(), time.clone());
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
        let timer = itself.build(builder, move |_, _| {
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
        let (count, overlaps, itself) = (ran.clone(), nested.clone(), Itself::default());
        let timer = itself.build(builder, move |timer, left| {
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
