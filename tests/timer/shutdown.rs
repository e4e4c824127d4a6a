//! G15: a shutdown is prompt, legal from the callback, and every payload comes back or expires.

use crate::support::noise::assert_median_within;
use crate::support::{Mint, PATIENCE, Tally, Token, eventually, lock, on_a_stack_of, refusal};
use crate::support::{threads_named, within};
use crate::tested::{Tested, builder, manual, unique};
use request_purgatory::{
    Timer, purgatory::RejectReason, purgatory::Rejected, threads::Dispatch, threads::Reaper,
    time::WakeFn,
};
use std::any::Any;
use std::iter::repeat_with;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than a test takes; short enough for a simple wheel of 2^16 slots.
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn g15_remains_are_returned_once_and_threads_joined<W: Tested>() {
    within(PATIENCE, || {
        let name = unique("remains");
        let shutdown = || {
            let mint = Mint::default();
            let timer = builder::<Token, W>(&name)
                .wheel_size(1 << 16)
                .build(drop)
                .expect("threads are to be had");
            for number in 0..1_000 {
                let timeout = if number % 2 == 0 { LONG } else { Duration::MAX };
                timer.start(timeout, mint.token(number)).expect("it fits");
            }
            let start = Instant::now();
            let remains = timer.shutdown();
            let took = start.elapsed();
            let mut numbers = remains.iter().map(|token| token.number).collect::<Vec<_>>();
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..1_000));
            assert!(timer.is_shut_down() && timer.is_empty());
            let again = timer.downgrade().upgrade();
            assert!(again.is_some_and(|it| it.is_shut_down()), "not dropped yet");
            assert!(timer.shutdown().is_empty(), "returned twice");
            drop(remains);
            assert_eq!(mint.living(), 0);
            let Err((RejectReason::ShutDown, back)) = timer
                .start(LONG, mint.token(7))
                .map_err(Rejected::into_parts)
            else {
                panic!("a start after the shutdown");
            };
            assert_eq!((back.number, timer.advance()), (7, 0));
            assert_eq!(
                (timer.stats().shut_down, timer.stats().rejected),
                (1_000, 1)
            );
            // A joined thread is listed for a moment longer.
            eventually("the end of its threads", || threads_named(&name).is_empty());
            took
        };
        assert_median_within(Duration::from_millis(50), || {
            repeat_with(shutdown).take(21).collect()
        });
        // Dropped without a shutdown, a timer drops what it has, and calls nothing.
        let (mint, ran) = (Mint::default(), Tally::new());
        let count = ran.clone();
        let timer = builder::<Token, W>(&name).build(move |_| count.add());
        let timer = timer.expect("threads are to be had");
        timer.start(Duration::MAX, mint.token(1)).expect("it fits");
        let (clone, weak) = (timer.clone(), timer.downgrade());
        drop(timer);
        assert_eq!((mint.living(), clone.stats().parked), (1, 1));
        drop(clone);
        assert_eq!((mint.living(), ran.count()), (0, 0));
        assert!(weak.upgrade().is_none());
        eventually("the end of its threads", || threads_named(&name).is_empty());
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
        let others = [(); 3].map(|()| {
            let timer = timer.clone();
            thread::spawn(move || {
                while !timer.is_shut_down() {
                    thread::yield_now();
                }
                let stolen = (0..100).map(|_| timer.shutdown().len());
                stolen.sum::<usize>()
            })
        });
        let remains = timer.shutdown().len();
        let stolen = others.map(|other| other.join().expect("it ends"));
        assert_eq!((remains, stolen), (COUNT as usize, [0; 3]));
    });
}

/// By `shutdown`, or by dropping the last strong handle, on whatever thread the callback runs.
pub(crate) fn g15_a_shutdown_is_legal_from_the_callback<W: Tested>() {
    for completions in [Dispatch::OwnThread, Dispatch::Inline] {
        for drop_it in [false, true] {
            let completions = completions.clone();
            within(PATIENCE / 2, move || {
                end_from_callback::<W>(completions, drop_it)
            });
        }
    }
}

fn end_from_callback<W: Tested>(completions: Dispatch, drop_it: bool) {
    let mint = Mint::default();
    let place = Arc::new(Mutex::new(None::<Timer<Token, W>>));
    let returned = Arc::new(Mutex::new(None));
    let (taken, result) = (place.clone(), returned.clone());
    let name = unique("callback");
    let timer = builder::<Token, W>(&name)
        .dispatch(completions)
        .build(move |token| {
            if token.number > 0 {
                return;
            }
            let timer = lock(&taken).take().expect("it was put there");
            if !drop_it {
                let remains = timer.shutdown();
                *lock(&result) = Some(remains.len());
                let refused = timer.start(LONG, token);
                assert_eq!(refusal(&refused), Some(RejectReason::ShutDown));
            }
        })
        .expect("threads are to be had");
    for number in 1..=100 {
        timer
            .start(Duration::MAX, mint.token(number))
            .expect("it fits");
    }
    let weak = timer.downgrade();
    let mut guard = lock(&place);
    timer
        .start(Duration::from_millis(5), mint.token(0))
        .expect("it fits");
    *guard = Some(timer);
    drop(guard);
    eventually("the end of all payloads", || mint.living() == 0);
    eventually("the end of the timer", || weak.upgrade().is_none());
    eventually("the end of its threads", || threads_named(&name).is_empty());
    assert_eq!(*lock(&returned), (!drop_it).then_some(100));
}

/// Threads start and stop while the shutdown comes: of each payload exactly one end is seen.
pub(crate) fn g15_a_shutdown_at_any_moment_loses_nothing<W: Tested>() {
    within(PATIENCE, || {
        for round in 1..=30_u64 {
            let mint = Mint::default();
            let expired = Arc::new(Mutex::new(Vec::new()));
            let log = expired.clone();
            let timer = builder::<Token, W>("g15-any")
                .build(move |token: Token| lock(&log).push(token.number))
                .expect("threads are to be had");
            let starters = (0..3).map(|seed| {
                let (timer, mint) = (timer.clone(), mint.clone());
                thread::spawn(move || {
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
                })
            });
            let starters = starters.collect::<Vec<_>>();
            let moment = fastrand::Rng::with_seed(round).u64(..10_000);
            thread::sleep(Duration::from_micros(moment));
            let remains = timer.shutdown();
            let mut ends = remains.iter().map(|token| token.number).collect::<Vec<_>>();
            drop(remains);
            let mut made = 0;
            for starter in starters {
                let (back, count) = starter.join().expect("no call panics");
                ends.extend(back);
                made += count;
            }
            // One may have been expired by its starter, on that thread, after the shutdown.
            ends.append(&mut lock(&expired));
            let count = ends.len() as u64;
            ends.sort_unstable();
            ends.dedup();
            assert_eq!(
                (ends.len() as u64, count),
                (made, made),
                "lost or ended twice"
            );
            assert_eq!((mint.living(), timer.stats().parked), (0, 0));
        }
    });
}

/// Expired before the shutdown: the callback has run when that returns.
pub(crate) fn g15_callbacks_under_way_are_waited_for<W: Tested>() {
    within(PATIENCE, || {
        let ran = Tally::new();
        let count = ran.clone();
        let timer = builder::<u32, W>("g15-wait")
            .build(move |_| {
                thread::sleep(Duration::from_millis(5));
                count.add();
            })
            .expect("threads are to be had");
        for number in 0..20 {
            let timeout = Duration::from_millis(1);
            timer.start(timeout, number).expect("it fits");
        }
        eventually("the expiry of all", || timer.is_empty());
        assert!(timer.shutdown().is_empty());
        assert_eq!(ran.count(), 20);
        // And where no thread drives it, the shutdown has nothing to wait for.
        let timer = builder::<u32, W>("g15-manual").reaper(Reaper::Manual);
        let timer = timer.build(drop).expect("no threads to refuse");
        timer.start(Duration::MAX, 1).expect("it fits");
        assert_eq!((timer.shutdown(), timer.shutdown()), (vec![1], vec![]));
    });
}

/// A callback runs meanwhile, and needs the caller to go on.
pub(crate) fn g15_a_timer_that_is_closed_returns_what_runs_and_does_not_wait<W: Tested>() {
    within(PATIENCE, || {
        let ((begins, begun), (goes_on, go_on)) = (channel(), channel());
        let go_on = Mutex::new(go_on);
        let timer = builder::<u32, W>(&unique("closed"))
            .wheel_size(1 << 16)
            .build(move |number| {
                begins.send(number).expect("the test waits");
                lock(&go_on).recv().expect("the test goes on");
            })
            .expect("threads are to be had");
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

/// The payload of a timer is the last handle of the next timer.
#[test]
fn g14_a_chain_of_timers_needs_no_stack() {
    type Payload = Box<dyn Any + Send>;

    fn timer() -> Timer<Payload> {
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

/// G3: the wake function of a reactor takes the lock under which a timer is started and rescheduled. The callback takes
/// it as well, and finds the record.
#[test]
fn g03_a_timer_is_started_under_a_lock_that_all_callbacks_take() {
    within(PATIENCE, || {
        let (records, woken) = (Arc::new(Mutex::new(Vec::new())), Tally::new());
        let (of_waker, wakes) = (records.clone(), woken.clone());
        let waker = WakeFn::new(move || {
            drop(lock(&of_waker));
            wakes.add();
            true
        });
        let of_callback = records.clone();
        let timer = Timer::builder("g03")
            .reaper(Reaper::Reactor(waker))
            .build(move |number: u32| {
                let mut records = lock(&of_callback);
                let at = records.iter().position(|(_, other)| *other == number);
                records.swap_remove(at.expect("its record is there"));
            })
            .expect("no threads to refuse");
        for number in 0..100 {
            let since = timer.now();
            let mut locked = lock(&records);
            let started = timer.start_under_lock(since, LONG - number * LONG / 1_000, number);
            let (id, wake) = started.expect("there is room");
            locked.push((id, number));
            let timeout = (LONG - number * LONG / 1_000) / 2;
            let sooner = timer.reschedule_under_lock(id, since, timeout);
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
