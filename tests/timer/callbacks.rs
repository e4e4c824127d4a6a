//! G8, G12, G13, G14: what the callback may do to the timer, and what it may not.

use crate::support::{Job, PATIENCE, Tally, eventually, lock, quietly, within};
use crate::tested::{Tested, builder, manual};
use request_purgatory::{
    Timer, purgatory::WeakRef, threads::Dispatch, threads::Reaper, time::ManualClock, time::WakeFn,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

/// A timer whose callback starts another at once.
fn successors<W: Tested>() -> (Timer<u32, W>, ManualClock) {
    let place = Arc::new(OnceLock::<WeakRef<Timer<u32, W>>>::new());
    let (builder, clock) = manual::<u32, W>();
    let found = place.clone();
    let timer = builder
        .build(move |number| {
            let timer = found.get().and_then(WeakRef::upgrade);
            let timer = timer.expect("it lives while it is driven");
            timer.start(Duration::ZERO, number + 1).expect("it fits");
        })
        .expect("no threads to refuse");
    place.set(timer.downgrade()).expect("set once");
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
        assert_eq!(timer.advance(), 200);
        assert_eq!(timer.stats().parked, 200);
    }
}

/// In whatever timer shard that lies: also in one that the pass has yet to come to. (Threads that live together come to
/// several shards, and a callback starts its timers in that of the thread that drives.)
pub(crate) fn g08_what_a_callback_starts_is_left_whatever_shard_it_lies_in<W: Tested>() {
    // Twice the fewest timer shards that there are.
    const THREADS: usize = 16;
    let (timer, clock) = successors::<W>();
    let (all_started, turn) = (Barrier::new(THREADS), Mutex::new(()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                timer.start(TICK, 0).expect("there is room");
                all_started.wait();
                let _turn = lock(&turn);
                clock.advance(TICK);
                assert_eq!(timer.advance(), THREADS);
                assert_eq!(timer.stats().parked, THREADS);
            });
        }
    });
}

/// What expires then is called when the callback has returned.
pub(crate) fn g14_a_callback_may_drive_the_timer<W: Tested>() {
    let place = Arc::new(OnceLock::<WeakRef<Timer<u32, W>>>::new());
    let (builder, clock) = manual::<u32, W>();
    let called = Arc::new(Mutex::new(Vec::new()));
    let (found, time, log) = (place.clone(), clock.clone(), called.clone());
    let timer = builder.build(move |number| {
        lock(&log).push(number);
        if number == 1 {
            time.advance(TICK);
            let timer = found.get().and_then(WeakRef::upgrade);
            let timer = timer.expect("it lives while it is driven");
            assert_eq!(timer.advance(), 1);
            assert_eq!(*lock(&log), [1]);
        }
    });
    let timer = timer.expect("no threads to refuse");
    place.set(timer.downgrade()).expect("set once");
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
        let executor = Arc::new(|job: Job| {
            thread::spawn(job);
        });
        let places = [
            Dispatch::OwnThread,
            Dispatch::Inline,
            Dispatch::Executor(executor),
        ];
        for completions in places {
            let received = Arc::new(Mutex::new(Vec::new()));
            let log = received.clone();
            let timer = builder::<u64, W>("g12")
                .dispatch(completions)
                .build(move |number| {
                    if number % 7 == 0 {
                        std::panic::panic_any("intended");
                    }
                    lock(&log).push(number);
                })
                .expect("threads are to be had");
            for number in 0..210 {
                let timeout = Duration::from_millis(number % 10);
                timer.start(timeout, number).expect("there is room");
            }
            eventually("the callbacks", || lock(&received).len() == 180);
            eventually("the count of panics", || timer.stats().panicked == 30);
            assert_eq!((timer.stats().expired, timer.stats().parked), (210, 0));
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
        let timer = builder::<bool, W>("g13")
            .build(move |slow| {
                if slow {
                    // An error: the test has failed.
                    let _ = lock(&told).recv();
                }
            })
            .expect("threads are to be had");
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
        let place = Arc::new(OnceLock::<WeakRef<Timer<u32, W>>>::new());
        let (clock, found) = (ManualClock::new(), place.clone());
        let time = clock.clone();
        let wakes = AtomicUsize::new(0);
        let waker = WakeFn::new(move || {
            // The clock wakes as well. It is told to forget this waker, which it would otherwise keep, and be kept
            // by.
            let first = wakes.fetch_add(1, Ordering::SeqCst) == 0;
            if first {
                let timer = found.get().and_then(WeakRef::upgrade);
                let (timer, time) = (timer.expect("it is in use"), time.clone());
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
        let timer = builder::<u32, W>("g13")
            .clock(clock.clone())
            .reaper(Reaper::Reactor(waker))
            .dispatch(Dispatch::Inline)
            .build(move |_| lock(&log).push(thread::current().name().map(String::from)))
            .expect("no threads to refuse");
        place.set(timer.downgrade()).expect("set once");
        timer.start(TICK, 1).expect("there is room");
        assert_eq!(*lock(&threads), [Some("driver".into())]);
    });
}

/// Each callback advances the timer that makes the next one due.
pub(crate) fn g14_a_chain_of_callbacks_needs_no_stack<W: Tested>() {
    within(PATIENCE, || {
        let place = Arc::new(OnceLock::<WeakRef<Timer<u32, W>>>::new());
        let (builder, clock) = manual::<u32, W>();
        let (found, ran) = (place.clone(), Tally::new());
        let (depth, nested) = (Arc::new(AtomicUsize::new(0)), Tally::new());
        let (count, overlaps) = (ran.clone(), nested.clone());
        let timer = builder
            .build(move |left| {
                if depth.fetch_add(1, Ordering::SeqCst) > 0 {
                    overlaps.add();
                }
                count.add();
                let timer = found.get().and_then(WeakRef::upgrade);
                if let (Some(timer), true) = (timer, left > 0) {
                    timer.start(Duration::ZERO, left - 1).expect("it fits");
                    timer.advance();
                }
                depth.fetch_sub(1, Ordering::SeqCst);
            })
            .expect("no threads to refuse");
        place.set(timer.downgrade()).expect("set once");
        timer.start(TICK, 50_000).expect("it fits");
        clock.advance(TICK);
        let driver = thread::Builder::new().stack_size(128 * 1_024);
        let driver = driver.spawn(move || {
            while !timer.is_empty() {
                timer.advance();
            }
        });
        let driver = driver.expect("one thread more");
        driver.join().expect("the stack suffices");
        assert_eq!((ran.count(), nested.count()), (50_001, 0));
    });
}
