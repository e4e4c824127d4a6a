//! G15: the end of a tracker and of requests.

use crate::delivered;
use crate::refusal;
use crate::support::noise::assert_median_within;
use crate::support::within;
use crate::support::{
    BadPayload, Job, Mint, PATIENCE, Token, eventually, lock, on_a_stack_of, quietly, threads_named,
};
use request_purgatory::future::block_on;
use request_purgatory::{WaitError, threads::Dispatch, threads::Reaper, time::ManualClock};
use request_purgatory_tracker::{RejectReason, Rejected, Requests, Tracker};
use std::future::Future;
use std::iter::repeat_with;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn g15_what_is_kept_comes_back_once_and_threads_are_joined() {
    within(PATIENCE, || {
        let mint = Mint::default();
        let shutdown = || {
            let tracker = Tracker::<u64, Token>::new("g15-track", |_, value, _| drop(value));
            for key in 0..1_000 {
                let value = mint.token(key);
                tracker
                    .track(key, value, Duration::from_secs(60))
                    .expect("room");
            }
            let start = Instant::now();
            let remains = tracker.shutdown();
            let took = start.elapsed();
            assert!(remains.iter().all(|(key, value)| *key == value.number));
            assert_eq!((remains.len(), tracker.stats().parked), (1_000, 0));
            assert!(tracker.shutdown().is_empty(), "returned twice");
            let refused = tracker.track(7, mint.token(7), Duration::MAX);
            assert_eq!(refusal(&refused), Some(RejectReason::ShutDown));
            drop((remains, refused));
            assert_eq!(mint.living(), 0);
            assert!(!tracker.contains(&1) && tracker.complete(&1).is_none());
            eventually("the end of its threads", || {
                threads_named("g15-track").is_empty()
            });
            took
        };
        assert_median_within(Duration::from_millis(50), || {
            repeat_with(shutdown).take(21).collect()
        });
    });
}

#[test]
fn g15_what_is_kept_is_returned_to_the_first_who_shuts_down() {
    const COUNT: u64 = 20_000;
    within(PATIENCE, || {
        let builder = Tracker::<u64, u64>::builder("g15-first").reaper(Reaper::Manual);
        let tracker = builder.build(|_, _, _| ());
        let tracker = tracker.expect("no threads to refuse");
        for number in 0..COUNT {
            let tracked = tracker.track(number, number, Duration::MAX);
            assert!(tracked.is_ok());
        }
        let others = [(); 3].map(|()| {
            let tracker = tracker.clone();
            thread::spawn(move || {
                while !tracker.is_shut_down() {
                    thread::yield_now();
                }
                let stolen = (0..100).map(|_| tracker.shutdown().len());
                stolen.sum::<usize>()
            })
        });
        let remains = tracker.shutdown().len();
        let stolen = others.map(|other| other.join().expect("it ends"));
        assert_eq!((remains, stolen), (COUNT as usize, [0; 3]));
    });
}

#[test]
fn g15_a_shutdown_is_legal_from_the_callback() {
    within(PATIENCE, || {
        for completions in [Dispatch::OwnThread, Dispatch::Inline] {
            for drop_it in [false, true] {
                let mint = Mint::default();
                let place = Arc::new(Mutex::new(None::<Tracker<u64, Token>>));
                let taken = place.clone();
                let tracker = Tracker::builder("g15-cb")
                    .dispatch(completions.clone())
                    .build(move |_, _: Token, _| {
                        let tracker = lock(&taken).take().expect("it was put there");
                        if !drop_it {
                            assert_eq!(tracker.shutdown().len(), 100);
                        }
                    })
                    .expect("threads are to be had");
                for key in 1..=100 {
                    tracker
                        .track(key, mint.token(key), Duration::MAX)
                        .expect("room");
                }
                let weak = tracker.downgrade();
                let mut guard = lock(&place);
                let soon = Duration::from_millis(5);
                tracker.track(0, mint.token(0), soon).expect("room");
                *guard = Some(tracker);
                drop(guard);
                eventually("the end of all values", || mint.living() == 0);
                eventually("the end of the tracker", || weak.upgrade().is_none());
                eventually("the end of its threads", || {
                    threads_named("g15-cb").is_empty()
                });
            }
        }
    });
}

/// By `shutdown` and by dropping the last of them, with requests that are awaited, waited for, and not yet polled.
#[test]
fn g15_pending_requests_hear_of_the_end() {
    within(PATIENCE, || {
        for drop_it in [false, true] {
            let requests = Requests::<u32, u32>::new("g15-req");
            let request = |id| requests.request(id, Duration::MAX).expect("room");
            let waiting = request(1);
            let waiter = thread::spawn(move || block_on(waiting));
            let unpolled = request(2);
            let mut polled = pin!(request(3));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(polled.as_mut().poll(&mut cx).is_pending());
            thread::sleep(Duration::from_millis(5));
            if drop_it {
                drop(requests);
            } else {
                requests.shutdown();
                requests.shutdown();
                let refused = requests.request(4, Duration::MAX);
                assert!(matches!(
                    refused.map_err(Rejected::into_parts),
                    Err((RejectReason::ShutDown, 4))
                ));
                assert!(!delivered(requests.respond(&1, 1)));
                assert_eq!((requests.stats().parked, requests.late()), (0, 1));
            }
            assert_eq!(waiter.join().expect("no panic"), Err(WaitError::ShutDown));
            assert_eq!(block_on(unpolled), Err(WaitError::ShutDown));
            let poll = polled.as_mut().poll(&mut cx);
            assert_eq!(poll, Poll::Ready(Err(WaitError::ShutDown)));
            eventually("the end of its threads", || {
                threads_named("g15-req").is_empty()
            });
        }
    });
}

/// Wakes by doing something.
struct Do<F>(F);

impl<F: Fn() + Send + Sync> Wake for Do<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// On the completion thread (a timeout), on the responder's, and on the one that shuts down.
#[test]
fn g15_a_shutdown_is_legal_from_a_waker() {
    for how in 0..3 {
        within(PATIENCE / 2, move || {
            let requests = Requests::<u32, u32>::new("g15-wake");
            let timeout = match how {
                0 => Duration::from_millis(5),
                _ => Duration::MAX,
            };
            let mut first = pin!(requests.request(1, timeout).expect("room"));
            let other = requests.request(2, Duration::MAX).expect("room");
            let ender = requests.clone();
            let waker = Arc::new(Do(move || ender.shutdown())).into();
            let mut cx = Context::from_waker(&waker);
            assert!(first.as_mut().poll(&mut cx).is_pending());
            match how {
                0 => {}
                1 => assert!(delivered(requests.respond(&1, 7))),
                _ => requests.shutdown(),
            }
            assert_eq!(block_on(other), Err(WaitError::ShutDown));
            let expected = match how {
                0 => Err(WaitError::Expired),
                1 => Ok(7),
                _ => Err(WaitError::ShutDown),
            };
            assert_eq!(first.as_mut().poll(&mut cx), Poll::Ready(expected));
            eventually("the end of its threads", || {
                threads_named("g15-wake").is_empty()
            });
        });
    }
}

/// The waker of an expired request keeps the completion thread busy until another one has heard of the shutdown.
#[test]
fn g15_pending_requests_are_told_before_the_threads_are_joined() {
    within(PATIENCE, || {
        let requests = Requests::<u32, u32>::new("g15-join");
        let ((wakes, woken), (hears, heard)) = (channel(), channel());
        let other = requests.request(2, Duration::MAX).expect("room");
        let other = thread::spawn(move || hears.send(block_on(other)));
        let heard = Mutex::new(heard);
        let waker = Arc::new(Do(move || {
            wakes.send(()).expect("the test waits");
            let answer = lock(&heard).recv();
            assert_eq!(answer, Ok(Err(WaitError::ShutDown)));
        }));
        let mut first = pin!(
            requests
                .request(1, Duration::from_millis(100))
                .expect("room")
        );
        let waker = waker.into();
        let mut cx = Context::from_waker(&waker);
        assert!(first.as_mut().poll(&mut cx).is_pending());
        woken.recv().expect("it expires");
        requests.shutdown();
        other.join().expect("no panic").expect("the waker waits");
        assert!(threads_named("g15-join").is_empty());
    });
}

/// All are told, though the wakers of several panic.
#[test]
fn g12_panicking_wakers_at_the_shutdown_harm_no_other_request() {
    quietly();
    for drop_it in [false, true] {
        let requests = Requests::<u32, u32>::builder("g12-wake")
            .reaper(Reaper::Manual)
            .build()
            .expect("no threads to refuse");
        let waker = Arc::new(Do(|| std::panic::panic_any("intended"))).into();
        let mut cx = Context::from_waker(&waker);
        let pending = (0..20).map(|id| {
            let mut request = Box::pin(requests.request(id, Duration::MAX).expect("room"));
            assert!(request.as_mut().poll(&mut cx).is_pending());
            request
        });
        let pending = pending.collect::<Vec<_>>();
        match drop_it {
            true => drop(requests),
            false => requests.shutdown(),
        }
        let mut cx = Context::from_waker(Waker::noop());
        for mut request in pending {
            let poll = request.as_mut().poll(&mut cx);
            assert_eq!(poll, Poll::Ready(Err(WaitError::ShutDown)));
        }
    }
}

/// Threads track and complete while the shutdown comes: of each value exactly one end is seen.
#[test]
fn g15_a_shutdown_at_any_moment_loses_nothing() {
    within(PATIENCE, || {
        for round in 1..=40_u64 {
            let mint = Mint::default();
            let expired = Arc::new(Mutex::new(Vec::new()));
            let log = expired.clone();
            let tracker = Tracker::new("g15-any", move |_: u64, value: Token, _| {
                lock(&log).push(value.number);
            });
            let workers = (0..3).map(|seed| {
                let (tracker, mint) = (tracker.clone(), mint.clone());
                thread::spawn(move || {
                    let mut random = fastrand::Rng::with_seed(round * 3 + seed);
                    let mut back = Vec::new();
                    for number in 0.. {
                        let value = mint.token(number * 3 + seed);
                        let timeout = Duration::from_millis(random.u64(..10));
                        match tracker
                            .track(random.u64(..3), value, timeout)
                            .map_err(Rejected::into_parts)
                        {
                            Ok(tracked) => back.extend(tracked.1.map(|value| value.number)),
                            Err((RejectReason::ShutDown, value)) => {
                                back.push(value.number);
                                return (back, number + 1);
                            }
                            Err(other) => panic!("{other:?}"),
                        }
                        let completed = tracker.complete(&random.u64(..6));
                        back.extend(completed.map(|value| value.number));
                    }
                    unreachable!("numbers do not end")
                })
            });
            let workers = workers.collect::<Vec<_>>();
            let moment = fastrand::Rng::with_seed(round).u64(..5_000);
            thread::sleep(Duration::from_micros(moment));
            let remains = tracker.shutdown().into_iter();
            let mut ends = remains.map(|(_, value)| value.number).collect::<Vec<_>>();
            let mut made = 0;
            for worker in workers {
                let (back, count) = worker.join().expect("no call panics");
                ends.extend(back);
                made += count;
            }
            ends.append(&mut lock(&expired));
            let count = ends.len() as u64;
            ends.sort_unstable();
            ends.dedup();
            assert_eq!(
                (ends.len() as u64, count),
                (made, made),
                "lost or ended twice"
            );
            assert_eq!((mint.living(), tracker.stats().parked), (0, 0));
        }
    });
}

/// A job of theirs that an executor has not run keeps neither requests pending nor values alive.
#[test]
fn g15_dropping_the_last_handle_ends_all_though_an_executor_has_a_job() {
    within(PATIENCE, || {
        let (clock, jobs) = (ManualClock::new(), Arc::<Mutex<Vec<Job>>>::default());
        let expired = Arc::new(Mutex::new(Vec::new()));
        let log = expired.clone();
        let executor = || {
            let queue = jobs.clone();
            Dispatch::Executor(Arc::new(move |job| lock(&queue).push(job)))
        };
        let calls = Requests::<u64, ()>::builder("g15")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .dispatch(executor())
            .build()
            .expect("no threads to refuse");
        let tracker = Tracker::builder("g15")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .dispatch(executor())
            .build(move |key: u64, _: Arc<()>, _| lock(&log).push(key))
            .expect("no threads to refuse");
        let late = calls.request(1, Duration::from_secs(1)).expect("a new id");
        let pending = calls.request(2, Duration::MAX).expect("a new id");
        let value = Arc::new(());
        for (key, timeout) in [(1, Duration::from_secs(1)), (2, Duration::MAX)] {
            let tracked = tracker.track(key, value.clone(), timeout);
            tracked.expect("a new key");
        }
        clock.advance(Duration::from_secs(2));
        assert_eq!([calls.advance(), tracker.advance()], [1, 1]);
        drop((calls, tracker));
        assert_eq!(lock(&jobs).len(), 2);
        assert_eq!(block_on(pending), Err(WaitError::ShutDown));
        assert_eq!(Arc::strong_count(&value), 2, "one is in a job");
        lock(&jobs).drain(..).for_each(|job| job());
        assert_eq!(block_on(late), Err(WaitError::Expired));
        assert_eq!(*lock(&expired), [1], "not what the shutdown ended");
    });
}

/// Each value is dropped by itself: of two destructors that panic together the process would die.
#[test]
fn g12_values_that_panic_when_the_last_handle_is_dropped_are_all_dropped() {
    struct Bomb(Arc<Mutex<usize>>);

    impl Drop for Bomb {
        fn drop(&mut self) {
            *lock(&self.0) += 1;
            resume_unwind(Box::new("intended"));
        }
    }

    within(PATIENCE, || {
        let dropped = Arc::<Mutex<usize>>::default();
        let tracker = Tracker::builder("g12").reaper(Reaper::Manual);
        let tracker = tracker.build(|_: u64, _: Bomb, _| ());
        let tracker = tracker.expect("no threads to refuse");
        for number in 0..10 {
            let bomb = Bomb(dropped.clone());
            assert!(tracker.track(number, bomb, Duration::MAX).is_ok());
        }
        drop(tracker);
        assert_eq!(*lock(&dropped), 10);
    });
}

/// A waker's panic may have a payload that panics when it is dropped: every request ends.
#[test]
fn g12_a_shutdown_survives_wakers_whose_panics_have_bad_payloads() {
    struct BadWaker;

    impl Wake for BadWaker {
        fn wake(self: Arc<Self>) {
            resume_unwind(Box::new(BadPayload));
        }
    }

    within(PATIENCE, || {
        let calls = Requests::<u64, ()>::builder("g12").reaper(Reaper::Manual);
        let calls = calls.build().expect("no threads to refuse");
        let waker = Waker::from(Arc::new(BadWaker));
        let mut pending = (0..3)
            .map(|id| Box::pin(calls.request(id, Duration::MAX).expect("a new id")))
            .collect::<Vec<_>>();
        for request in &mut pending {
            let mut cx = Context::from_waker(&waker);
            assert!(request.as_mut().poll(&mut cx).is_pending());
        }
        calls.shutdown();
        for request in &mut pending {
            let mut cx = Context::from_waker(Waker::noop());
            let ended = Poll::Ready(Err(WaitError::ShutDown));
            assert_eq!(request.as_mut().poll(&mut cx), ended);
        }
    });
}

/// The waker of a request answers the next one.
#[test]
fn g14_a_chain_of_wakers_needs_no_stack() {
    const LINKS: u64 = 20_000;

    struct Respond(u64, Requests<u64, ()>);

    impl Wake for Respond {
        fn wake(self: Arc<Self>) {
            let _ = self.1.respond(&(self.0 + 1), ());
        }
    }

    let chain = || {
        let calls = Requests::builder("g14").reaper(Reaper::Manual).build();
        let calls = calls.expect("no threads to refuse");
        let pending = (0..LINKS).map(|id| {
            let mut request = calls.request(id, Duration::MAX).expect("a new id");
            let waker = Waker::from(Arc::new(Respond(id, calls.clone())));
            let poll = pin!(&mut request).poll(&mut Context::from_waker(&waker));
            assert!(poll.is_pending());
            request
        });
        let pending = pending.collect::<Vec<_>>();
        assert!(delivered(calls.respond(&0, ())));
        assert_eq!(calls.stats().parked, 0);
        drop(pending);
    };
    within(PATIENCE, move || on_a_stack_of(256, chain));
}
