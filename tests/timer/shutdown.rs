//! G15: a shutdown is prompt, and every payload comes back or expires. G3, G14 of timers. A shutdown by a callback is
//! tested by the `model`, and on own threads in `tests/purgatory`, as is the wait for callbacks under way.

use crate::support::noise::assert_median_within;
use crate::support::{Mint, PATIENCE, Tally, Token, eventually, lock, on_a_stack_of, refusal};
use crate::support::{threads_named, within};
use crate::tested::{Tested, builder, log, manual, unique};
use request_purgatory::purgatory::{RejectReason, Rejected};
use request_purgatory::{Timer, threads::Reaper, time::WakeFn};
use std::any::Any;
use std::cell::RefCell;
use std::iter::repeat_with;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than a test takes; short enough for a simple wheel of 2^16 slots.
const LONG: Duration = Duration::from_secs(60);

fn eventually_no_threads(name: &str) {
    // A joined thread is listed for a moment longer.
    eventually("the end of its threads", || threads_named(name).is_empty());
}

/// Fills a timer and shuts it down. Returns how long that took.
fn remains_are_returned<W: Tested>(name: &str) -> Duration {
    let mint = Mint::default();
    let timer = builder::<Token, W>(name).wheel_size(1 << 16).build(drop);
    let timer = timer.expect("threads are to be had");
    for number in 0..1_000 {
        let timeout = if number % 2 == 0 { LONG } else { Duration::MAX };
        timer.start(timeout, mint.token(number)).expect("it fits");
    }
    let start = Instant::now();
    let mut remains = timer.shutdown();
    let took = start.elapsed();
    remains.sort_unstable_by_key(|token| token.number);
    assert!(remains.iter().map(|token| token.number).eq(0..1_000));
    assert!(timer.is_shut_down() && timer.is_empty());
    let again = timer.downgrade().upgrade();
    assert!(again.is_some_and(|it| it.is_shut_down()), "not dropped yet");
    assert!(timer.shutdown().is_empty(), "returned twice");
    drop(remains);
    assert_eq!(mint.living(), 0);
    let refused = timer.start(LONG, mint.token(7)).expect_err("it is closed");
    let (reason, back) = refused.into_parts();
    assert_eq!((reason, back.number), (RejectReason::ShutDown, 7));
    let stats = timer.stats();
    let counts = (timer.advance(), stats.shut_down, stats.rejected);
    assert_eq!(counts, (0, 1_000, 1));
    eventually_no_threads(name);
    took
}

pub(crate) fn g15_remains_are_returned_once_and_threads_joined<W: Tested>() {
    within(PATIENCE, || {
        let name = unique("remains");
        let shutdowns = || repeat_with(|| remains_are_returned::<W>(&name)).take(21);
        assert_median_within(Duration::from_millis(50), || shutdowns().collect());
        // Dropped without a shutdown, a timer drops what it has, and calls nothing.
        let mint = Mint::default();
        let (timer, ran) = log(builder::<Token, W>(&name), |token| token.number);
        timer.start(Duration::MAX, mint.token(1)).expect("it fits");
        let (clone, weak) = (timer.clone(), timer.downgrade());
        drop(timer);
        assert_eq!((mint.living(), clone.stats().parked), (1, 1));
        drop(clone);
        assert_eq!((mint.living(), lock(&ran).len()), (0, 0));
        assert!(weak.upgrade().is_none());
        eventually_no_threads(&name);
    });
}

/// Another call that comes meanwhile returns at once, and nothing.
pub(crate) fn g15_what_remains_is_returned_to_the_first_who_shuts_down<W: Tested>() {
    const COUNT: u64 = 20_000;
    within(PATIENCE, || {
        let (builder, _clock) = manual::<u64, W>();
        let timer = builder.wheel_size(1 << 16).build(drop);
        let timer = timer.expect("no threads to refuse");
        for number in 0..COUNT {
            timer.start(LONG, number).expect("it fits");
        }
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !timer.is_shut_down() {
                        thread::yield_now();
                    }
                    (0..100).for_each(|_| assert!(timer.shutdown().is_empty(), "stolen"));
                });
            }
            assert_eq!(timer.shutdown().len(), COUNT as usize);
        });
    });
}

/// Starts and stops timers until the shutdown. Returns the numbers that came back, and how many there were.
fn start_until_refused<W: Tested>(
    timer: &Timer<Token, W>,
    mint: &Mint,
    round: u64,
    seed: u64,
) -> (Vec<u64>, u64) {
    let mut random = fastrand::Rng::with_seed(round * 3 + seed);
    let (mut ids, mut back) = (Vec::new(), Vec::new());
    for number in 0.. {
        let token = mint.token(number * 3 + seed);
        let timeout = Duration::from_millis(random.u64(..10));
        match timer.start(timeout, token).map_err(Rejected::into_parts) {
            Ok(id) => ids.push(id),
            Err((RejectReason::ShutDown, token)) => {
                back.push(token.number);
                return (back, number + 1);
            }
            Err(other) => panic!("{other:?}"),
        }
        let pick = ids[random.usize(..ids.len())];
        back.extend(timer.stop(pick).map(|token| token.number));
    }
    unreachable!("numbers do not end")
}

pub(crate) fn g15_a_shutdown_at_any_moment_loses_nothing<W: Tested>() {
    within(PATIENCE, || {
        for round in 1..=30_u64 {
            let mint = &Mint::default();
            let (timer, expired) = log(builder::<Token, W>("g15-any"), |token| token.number);
            let (mut ends, mut made) = (Vec::new(), 0);
            thread::scope(|scope| {
                let timer = &timer;
                let starter =
                    |seed| scope.spawn(move || start_until_refused(timer, mint, round, seed));
                let starters = [0, 1, 2].map(starter);
                let moment = fastrand::Rng::with_seed(round).u64(..10_000);
                thread::sleep(Duration::from_micros(moment));
                ends.extend(timer.shutdown().iter().map(|token| token.number));
                for starter in starters {
                    let (back, count) = starter.join().expect("no call panics");
                    ends.extend(back);
                    made += count;
                }
            });
            // One may have been expired by its starter, on that thread, after the shutdown.
            ends.append(&mut lock(&expired));
            let count = ends.len() as u64;
            ends.sort_unstable();
            ends.dedup();
            let ended = (ends.len() as u64, count);
            assert_eq!(ended, (made, made), "lost or ended twice");
            assert_eq!((mint.living(), timer.stats().parked), (0, 0));
        }
    });
}

/// A callback runs meanwhile, and needs the caller to go on.
pub(crate) fn g15_a_timer_that_is_closed_returns_what_runs_and_does_not_wait<W: Tested>() {
    within(PATIENCE, || {
        let ((begins, begun), (goes_on, go_on)) = (channel(), channel());
        let go_on = Mutex::new(go_on);
        let builder = builder::<u32, W>(&unique("closed")).wheel_size(1 << 16);
        let timer = builder.build(move |number| {
            begins.send(number).expect("the test waits");
            lock(&go_on).recv().expect("the test goes on");
        });
        let timer = timer.expect("threads are to be had");
        timer.start(Duration::ZERO, 1).expect("it fits");
        assert_eq!(begun.recv(), Ok(1));
        timer.start(LONG, 2).expect("it fits");
        assert_eq!((timer.close(), timer.close()), (vec![2], vec![]));
        let refused = timer.start(LONG, 3);
        assert_eq!(refusal(&refused), Some(RejectReason::ShutDown));
        assert!(timer.is_shut_down() && timer.is_empty());
        goes_on.send(()).expect("it waits");
        assert!(timer.shutdown().is_empty());
    });
}

/// The callback is running when both begin, and each joins the thread or waits for the one that does.
#[test]
fn g15_two_shutdowns_at_once_both_wait_for_the_callback() {
    within(PATIENCE, || {
        let ((begins, begun), ended) = (channel(), Arc::<AtomicBool>::default());
        let ends = ended.clone();
        let timer = Timer::new("g15-both", move |()| {
            begins.send(()).expect("the test waits");
            thread::sleep(Duration::from_millis(200));
            ends.store(true, Ordering::SeqCst);
        });
        timer.start(Duration::ZERO, ()).expect("there is room");
        begun.recv().expect("it fires");
        let both = [(); 2].map(|()| {
            let (timer, ended) = (timer.clone(), ended.clone());
            thread::spawn(move || {
                timer.shutdown();
                ended.load(Ordering::SeqCst)
            })
        });
        assert_eq!(both.map(|it| it.join().expect("no panic")), [true; 2]);
    });
}

/// A callback leaves a value in a thread-local of the completion thread, whose destructor needs the dropping thread.
#[test]
fn g15_the_drop_of_the_last_clone_waits_for_no_thread_local() {
    struct Waits(Receiver<()>);
    impl Drop for Waits {
        fn drop(&mut self) {
            // An error: the test has failed.
            self.0.recv().unwrap_or_default();
        }
    }
    thread_local!(static LEFT: RefCell<Option<Waits>> = const { RefCell::new(None) });
    within(PATIENCE, || {
        let ((goes_on, go_on), (told, tells)) = (channel(), channel());
        let go_on = Mutex::new(Some(go_on));
        let timer = Timer::new("g15-local", move |()| {
            LEFT.set(lock(&go_on).take().map(Waits));
            told.send(()).expect("the test waits");
        });
        timer.start(Duration::ZERO, ()).expect("there is room");
        tells.recv().expect("it fires");
        drop(timer);
        goes_on.send(()).expect("the destructor waits");
    });
}

/// The payload of a timer is the last handle of the next timer.
#[test]
fn g14_a_chain_of_timers_needs_no_stack() {
    fn timer() -> Timer<Box<dyn Any + Send>> {
        let builder = Timer::builder("chain").reaper(Reaper::Manual);
        builder.build(drop).expect("no threads to refuse")
    }

    on_a_stack_of(256, || {
        let mut last = timer();
        for _ in 0..2_000 {
            let next = timer();
            assert!(next.start(Duration::MAX, Box::new(last)).is_ok());
            last = next;
        }
    });
}

/// The wake function of a reactor takes the lock under which a timer is started and rescheduled. The callback takes it
/// as well, and finds the record.
#[test]
fn g03_a_timer_is_started_under_a_lock_that_all_callbacks_take() {
    within(PATIENCE, || {
        let (records, woken) = (Arc::new(Mutex::new(Vec::new())), Tally::new());
        let (of_waker, of_callback, wakes) = (records.clone(), records.clone(), woken.clone());
        let waker = WakeFn::new(move || {
            drop(lock(&of_waker));
            wakes.add();
            true
        });
        let builder = Timer::builder("g03").reaper(Reaper::Reactor(waker));
        let timer = builder.build(move |number: u32| {
            let mut records = lock(&of_callback);
            let at = records.iter().position(|(_, other)| *other == number);
            records.swap_remove(at.expect("its record is there"));
        });
        let timer = timer.expect("no threads to refuse");
        for number in 0..100 {
            let (since, timeout) = (timer.now(), LONG - number * LONG / 1_000);
            let mut locked = lock(&records);
            let started = timer.start_under_lock(since, timeout, number);
            let (id, wake) = started.expect("there is room");
            locked.push((id, number));
            let sooner = timer.reschedule_under_lock(id, since, timeout / 2);
            let sooner = sooner.expect("it runs");
            drop(locked);
            drop((wake, sooner));
        }
        assert!(woken.count() > 0, "at least for the earliest of all");
        let since = timer.now();
        for (id, _) in lock(&records).iter() {
            let now = timer.reschedule_under_lock(*id, since, Duration::ZERO);
            // Not yet: this thread has the lock.
            std::mem::forget(now.expect("it runs"));
        }
        // Their deadlines are at the next tick.
        thread::sleep(Duration::from_millis(2));
        assert_eq!((timer.advance(), lock(&records).len()), (100, 0));
        assert_eq!(timer.stats().panicked, 0);
    });
}

/// A reactor sleeps without a deadline. It learns that the timer is closed, and need not drive it any more.
#[test]
fn g15_a_close_wakes_the_reactor() {
    let woken = Tally::new();
    let builder = Timer::builder("g15").reaper(Reaper::Reactor(woken.wake_fn()));
    let timer = builder.build(drop).expect("no threads to refuse");
    timer.start(Duration::MAX, 1).expect("there is room");
    assert_eq!((timer.next_deadline(), woken.count()), (None, 0));
    assert_eq!(timer.close(), [1]);
    assert_eq!(woken.count(), 1);
}
