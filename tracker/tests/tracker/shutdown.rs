//! G15: the end of a tracker and of requests.

use crate::support::bell::waker;
use crate::support::expiries::{Jobs, Runs};
use crate::support::noise::assert_median_within;
use crate::support::{
    BadPayload, Mint, PATIENCE, Token, eventually, lock, on_a_stack_of, threads_named, within,
};
use crate::{delivered, manual_requests, manual_tracker, refusal};
use crate::{panicking_waker, poll_in_vain};
use futures::FutureExt;
use request_purgatory::future::block_on;
use request_purgatory::{WaitError, threads::Dispatch};
use request_purgatory_tracker::{RejectReason, Rejected, Requests, Tracker};
use std::iter::repeat_with;
use std::panic::resume_unwind;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

fn eventually_no_thread(name: &str) {
    eventually("the end of its threads", || threads_named(name).is_empty());
}

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
            eventually_no_thread("g15-track");
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
        let (tracker, _) = manual_tracker::<u64, u64>(|builder| builder, |_, _, _| ());
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
                    let tracked = tracker.track(key, mint.token(key), Duration::MAX);
                    tracked.expect("room");
                }
                let weak = tracker.downgrade();
                let mut guard = lock(&place);
                let soon = Duration::from_millis(5);
                tracker.track(0, mint.token(0), soon).expect("room");
                *guard = Some(tracker);
                drop(guard);
                eventually("the end of all values", || mint.living() == 0);
                eventually("the end of the tracker", || weak.upgrade().is_none());
                eventually_no_thread("g15-cb");
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
            let mut polled = request(3);
            poll_in_vain(&mut polled, Waker::noop());
            thread::sleep(Duration::from_millis(5));
            if drop_it {
                drop(requests);
            } else {
                requests.shutdown();
                requests.shutdown();
                let refused = requests.request(4, Duration::MAX).map(drop);
                let refused = refused.map_err(Rejected::into_parts);
                assert_eq!(refused, Err((RejectReason::ShutDown, 4)));
                assert!(!delivered(requests.respond(&1, 1)));
                assert_eq!((requests.stats().parked, requests.late()), (0, 1));
            }
            assert_eq!(waiter.join().expect("no panic"), Err(WaitError::ShutDown));
            assert_eq!(block_on(unpolled), Err(WaitError::ShutDown));
            assert_eq!(polled.now_or_never(), Some(Err(WaitError::ShutDown)));
            eventually_no_thread("g15-req");
        }
    });
}

/// On the completion thread, on the responder's, and on the one that shuts down.
#[test]
fn g15_a_shutdown_is_legal_from_a_waker() {
    type End = fn(&Requests<u32, u32>);
    const ENDS: [(Duration, End, Result<u32, WaitError>); 3] = [
        (Duration::from_millis(5), |_| (), Err(WaitError::Expired)),
        (
            Duration::MAX,
            |all| assert!(delivered(all.respond(&1, 7))),
            Ok(7),
        ),
        (
            Duration::MAX,
            |all| all.shutdown(),
            Err(WaitError::ShutDown),
        ),
    ];
    for (timeout, end, answer) in ENDS {
        within(PATIENCE / 2, move || {
            let requests = Requests::<u32, u32>::new("g15-wake");
            let mut first = requests.request(1, timeout).expect("room");
            let other = requests.request(2, Duration::MAX).expect("room");
            let ender = requests.clone();
            poll_in_vain(&mut first, &waker(move || ender.shutdown()));
            end(&requests);
            assert_eq!(block_on(other), Err(WaitError::ShutDown));
            assert_eq!(first.now_or_never(), Some(answer));
            eventually_no_thread("g15-wake");
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
        let tells_and_waits = waker(move || {
            wakes.send(()).expect("the test waits");
            let answer = lock(&heard).recv();
            assert_eq!(answer, Ok(Err(WaitError::ShutDown)));
        });
        let soon = Duration::from_millis(100);
        let mut first = requests.request(1, soon).expect("room");
        poll_in_vain(&mut first, &tells_and_waits);
        woken.recv().expect("it expires");
        requests.shutdown();
        other.join().expect("no panic").expect("the waker waits");
        assert!(threads_named("g15-join").is_empty());
    });
}

/// All are told, though the wakers of several panic, even with a payload that panics when it is dropped.
#[test]
fn g12_panicking_wakers_at_the_shutdown_harm_no_other_request() {
    within(PATIENCE, || {
        let bad_payload = waker(|| resume_unwind(Box::new(BadPayload)));
        for waker in [panicking_waker(), bad_payload] {
            for drop_it in [false, true] {
                let (requests, _) = manual_requests::<u32, u32>(|builder| builder);
                let pending = (0..20).map(|id| {
                    let mut request = requests.request(id, Duration::MAX).expect("room");
                    poll_in_vain(&mut request, &waker);
                    request
                });
                let pending = pending.collect::<Vec<_>>();
                match drop_it {
                    true => drop(requests),
                    false => requests.shutdown(),
                }
                for request in pending {
                    assert_eq!(request.now_or_never(), Some(Err(WaitError::ShutDown)));
                }
            }
        }
    });
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
            let ended = (ends.len() as u64, count);
            assert_eq!(ended, (made, made), "lost or ended twice");
            assert_eq!((mint.living(), tracker.stats().parked), (0, 0));
        }
    });
}

/// A job of theirs that an executor has not run keeps no requests pending.
#[test]
fn g15_dropping_the_last_handle_ends_all_though_an_executor_has_a_job() {
    within(PATIENCE, || {
        let jobs = Jobs::new(Runs::Later);
        let (calls, clock) =
            manual_requests::<u64, ()>(|builder| builder.dispatch(jobs.dispatch()));
        let late = calls.request(1, Duration::from_secs(1)).expect("a new id");
        let pending = calls.request(2, Duration::MAX).expect("a new id");
        clock.advance(Duration::from_secs(2));
        assert_eq!(calls.advance(), 1);
        drop(calls);
        assert_eq!(jobs.kept(), 1);
        assert_eq!(block_on(pending), Err(WaitError::ShutDown));
        jobs.run_all();
        assert_eq!(block_on(late), Err(WaitError::Expired));
    });
}

/// The waker of a request answers the next one.
#[test]
fn g14_a_chain_of_wakers_needs_no_stack() {
    const LINKS: u64 = 20_000;

    let chain = || {
        let (calls, _) = manual_requests::<u64, ()>(|builder| builder);
        let pending = (0..LINKS).map(|id| {
            let mut request = calls.request(id, Duration::MAX).expect("a new id");
            let responder = calls.clone();
            let respond = move || _ = responder.respond(&(id + 1), ());
            poll_in_vain(&mut request, &waker(respond));
            request
        });
        let pending = pending.collect::<Vec<_>>();
        assert!(delivered(calls.respond(&0, ())));
        assert_eq!(calls.stats().parked, 0);
        drop(pending);
    };
    within(PATIENCE, move || on_a_stack_of(256, chain));
}
