//! What operators ask for: G15 (a shutdown with a bound, one that blocks no runtime thread, the drop of the last
//! handle), G16 (completions pending, watchers of a key), G20 (a snapshot stalls no thread).

use crate::support::keys::{Act, Acting};
use crate::support::noise::assert_median_within;
use crate::support::{
    Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, lock, manual, threads_named, within,
};
use request_purgatory::purgatory::ShutdownError;
use request_purgatory::{
    Completion, Purgatory, threads::Dispatch, threads::Reaper, threads::ReaperThread,
    time::ManualClock,
};
use std::future::Future;
use std::iter::repeat_with;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(5);
/// What a call may take that waits for nothing: generous, for loaded machines.
const PROMPT: Duration = Duration::from_secs(10);

/// (An operation that expires soon may have ended when the call returns.)
fn park(purgatory: &Purgatory<Op>, op: Op, key: u64) {
    let admission = purgatory.try_complete_else_watch(op, [key]);
    assert!(admission.is_ok(), "there is room");
}

/// An operation that expires soon, and whose completion then waits until the sender is dropped.
fn stuck(purgatory: &Purgatory<Op>) -> Sender<()> {
    let (go_on, told) = channel::<()>();
    let op = Op::new(SOON).then(move |_| {
        // An error: the sender was dropped.
        let _ = told.recv();
    });
    park(purgatory, op, 0);
    go_on
}

#[test]
fn g16_completions_pending_are_counted() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g16-pending");
        let go_on = stuck(&purgatory);
        eventually("the first expiry", || purgatory.stats().expired == 1);
        for key in 1..=100 {
            park(&purgatory, Op::new(SOON), key);
        }
        // An expiry is counted a moment before its completion is handed over.
        eventually("all expiries", || {
            purgatory.stats().completions_pending == 101
        });
        let stats = purgatory.stats();
        assert_eq!((stats.parked, stats.expired), (0, 101));
        assert_eq!(stats.completions_pending, 101);
        // A drain waits for them as well.
        assert_eq!(purgatory.drain(Duration::from_millis(20)), 0);
        assert_eq!(purgatory.stats().completions_pending, 101);
        drop(go_on);
        assert_eq!(purgatory.drain(NEVER_IN_A_TEST), 0);
        assert_eq!(purgatory.stats().completions_pending, 0);

        // On an executor that loses its jobs they run as well, when they are dropped.
        let held = Arc::new(Mutex::new(Vec::new()));
        let jobs = held.clone();
        let executor = move |job| jobs.lock().expect("no panic").push(job);
        let purgatory = Purgatory::<Op>::builder("g16-pending2")
            .dispatch(Dispatch::Executor(Arc::new(executor)))
            .build()
            .expect("threads");
        for key in 0..10 {
            park(&purgatory, Op::new(SOON), key);
        }
        eventually("all expiries", || {
            purgatory.stats().completions_pending == 10
        });
        held.lock().expect("no panic").truncate(4);
        assert_eq!(purgatory.stats().completions_pending, 4);
        held.lock()
            .expect("no panic")
            .drain(..)
            .for_each(|job| job());
        assert_eq!(purgatory.stats().completions_pending, 0);
    });
}

#[test]
fn g16_watchers_of_a_key_are_counted() {
    let purgatory = Purgatory::<Op>::builder("g16-watchers").reaper(Reaper::Manual);
    let purgatory = purgatory.build().expect("no threads to refuse");
    assert_eq!(purgatory.watchers(&1), 0);
    let resolved = purgatory.resolve(2);
    let mut handles = Vec::new();
    for count in 1..=1_000 {
        let watched = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1, 2]);
        handles.extend(watched.expect("room").into_handle());
        assert!(count % 97 != 0 || purgatory.watchers(&1) == count);
    }
    for (gone, handle) in handles.iter().enumerate() {
        if gone % 97 == 0 {
            assert_eq!(purgatory.watchers(&1), 1_000 - gone);
            assert_eq!(purgatory.watchers(resolved.key()), 1_000 - gone);
        }
        assert!(handle.cancel().is_some());
    }
    assert_eq!((purgatory.watchers(&1), purgatory.watchers(&2)), (0, 0));
}

#[test]
fn g15_a_shutdown_with_a_bound_says_what_still_runs() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-bound");
        let go_on = stuck(&purgatory);
        park(&purgatory, Op::new(NEVER_IN_A_TEST), 1);
        eventually("the expiry", || purgatory.stats().expired == 1);
        let begun = Instant::now();
        let bound = Duration::from_millis(50);
        let answer = purgatory.shutdown_timeout(bound);
        let took = begun.elapsed();
        assert!((bound..bound + PROMPT).contains(&took), "{took:?}");
        let Err(ShutdownError::TimedOut {
            parked,
            completions_pending,
            threads,
            ..
        }) = answer
        else {
            panic!("{answer:?}");
        };
        assert_eq!((parked, completions_pending), (0, 1));
        assert_eq!(threads, ["g15-bound-completions"]);
        assert_eq!(purgatory.stats().shut_down, 1);
        // It goes on in the background, and a second call may wait for its end.
        drop(go_on);
        purgatory
            .shutdown_timeout(NEVER_IN_A_TEST)
            .expect("nothing holds it up");
        eventually("the end of its threads", || {
            threads_named("g15-bound").is_empty()
        });
    });
}

/// All operations have ended and been completed, but the reaper is in the destructor of a key that it reclaims.
#[test]
fn g15_a_shutdown_with_a_bound_waits_for_the_threads_themselves() {
    within(PATIENCE, || {
        let clock = ManualClock::new();
        let purgatory = Purgatory::<Op<Acting>>::builder("g15-late").clock(clock.clone());
        let purgatory = purgatory.build().expect("it starts no thread");
        let ((begun, has_begun), (go_on, told)) = (channel(), channel::<()>());
        let told = Mutex::new(told);
        let act: Act = Arc::new(move || {
            // The test may be over.
            let _ = begun.send(());
            let _ = lock(&told).recv();
        });
        // A storm: these are reclaimed when their completions have run.
        let mut act = Some(act);
        for number in 0..200 {
            let key = Acting(number, act.take());
            let admission = purgatory.try_complete_else_watch(Op::new(SOON), [key]);
            assert!(admission.is_ok(), "there is room");
        }
        clock.advance(2 * SOON);
        has_begun.recv().expect("the reaper reclaims it");
        eventually("all endings", || {
            let stats = purgatory.stats();
            (stats.parked, stats.completions_pending) == (0, 0)
        });
        match purgatory.shutdown_timeout(Duration::from_millis(50)) {
            Err(ShutdownError::TimedOut { threads, .. }) => {
                assert!(
                    threads.contains(&"g15-late-reaper".to_owned()),
                    "{threads:?}"
                );
            }
            other => panic!("{other:?}"),
        }
        drop(go_on);
        purgatory
            .shutdown_timeout(NEVER_IN_A_TEST)
            .expect("nothing holds it up");
    });
}

/// The library cannot join the threads of an executor, but it knows which completions they have not run.
#[test]
fn g15_a_shutdown_with_a_bound_waits_for_the_completions_of_an_executor() {
    within(PATIENCE, || {
        let (give, given) = channel();
        let give = Mutex::new(give);
        let executor = move |job: Job| drop(lock(&give).send(job));
        let purgatory = Purgatory::<Op>::builder("g15-bound3")
            .reaper(Reaper::Manual)
            .dispatch(Dispatch::Executor(Arc::new(executor)))
            .build()
            .expect("no threads to refuse");
        park(&purgatory, Op::new(Duration::from_millis(1)), 1);
        eventually("the expiry", || purgatory.advance() == 1);
        let bound = Duration::from_millis(30);
        match purgatory.shutdown_timeout(bound) {
            Err(ShutdownError::TimedOut {
                completions_pending: 1,
                ..
            }) => {}
            other => panic!("{other:?}"),
        }
        let job: Job = given.recv().expect("the completion");
        job();
        let ended = purgatory.shutdown_timeout(NEVER_IN_A_TEST);
        ended.expect("nothing is left");
    });
}

/// A completion of the shutdown itself does not return.
#[test]
fn g15_a_slow_callback_of_the_shutdown_does_not_hold_up_its_bound() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-bound2");
        let (go_on, told) = channel::<()>();
        let op = Op::new(NEVER_IN_A_TEST).then(move |_| {
            let _ = told.recv();
        });
        park(&purgatory, op, 1);
        let begun = Instant::now();
        let answer = purgatory.shutdown_timeout(Duration::from_millis(20));
        assert!(begun.elapsed() < PROMPT);
        assert!(answer.is_err());
        assert!(
            answer
                .unwrap_err()
                .to_string()
                .contains("g15-bound2-reaper")
        );
        drop(go_on);
        purgatory
            .shutdown_timeout(NEVER_IN_A_TEST)
            .expect("nothing holds it up");
    });
}

/// The thread has got all three together.
#[test]
fn g16_each_completion_is_pending_until_it_has_run() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::OwnThread));
        let (tell, told) = channel();
        for key in 0..3 {
            let (of, tell) = (purgatory.downgrade(), tell.clone());
            let op = Op::new(SOON).then(move |_| {
                let pending = of.upgrade().map(|it| it.stats().completions_pending);
                tell.send(pending).expect("the test receives it");
            });
            park(&purgatory, op, key);
        }
        clock.advance(2 * SOON);
        assert_eq!(purgatory.advance(), 3);
        let pending = told.iter().take(3).collect::<Vec<_>>();
        assert_eq!(pending, [Some(3), Some(2), Some(1)]);
    });
}

/// An operation expires in the hands of a checking thread, and the executor keeps its job for ever.
#[test]
fn g15_an_async_shutdown_does_not_wait_for_the_jobs_of_an_executor() {
    within(PATIENCE, || {
        let jobs = Arc::<Mutex<Vec<Job>>>::default();
        let keeps = jobs.clone();
        let executor = Dispatch::Executor(Arc::new(move |job| lock(&keeps).push(job)));
        let (purgatory, clock) = manual(|builder| builder.dispatch(executor));
        let (op, stall) = Probe::new().stalled_op(NEVER_IN_A_TEST);
        park(&purgatory, op, 1);
        let check = stall.check(&purgatory, 1);
        stall.end_after_the_deadline(&purgatory, &clock);
        assert_eq!(check.join().expect("no panic"), 0);
        assert_eq!(lock(&jobs).len(), 1);
        assert_eq!(purgatory.stats().completions_pending, 1);
        futures::executor::block_on(purgatory.shutdown_async().expect("a thread more"));
        assert_eq!(purgatory.stats().completions_pending, 1);
        lock(&jobs).drain(..).for_each(|job| job());
        assert_eq!(purgatory.stats().completions_pending, 0);
    });
}

/// It waits for nothing there, and is told that there is nothing to wait for.
#[test]
fn g15_a_callback_is_told_that_a_shutdown_is_over() {
    within(PATIENCE, || {
        let [purgatory, over] = ["g15-callback", "g15-over"].map(Purgatory::<Op>::new);
        over.shutdown();
        let (told, answer) = channel();
        let op = Op::new(NEVER_IN_A_TEST).then(move |_| {
            let answer = over.shutdown_timeout(NEVER_IN_A_TEST);
            told.send(answer.is_ok()).expect("the test waits");
        });
        park(&purgatory, op, 1);
        assert_eq!(purgatory.force_complete_for_key(&1), 1);
        assert_eq!(answer.recv(), Ok(true));
    });
}

/// A thread is in the `try_complete` of an operation when the shutdown comes, and will end it.
#[test]
fn g15_a_shutdown_in_the_background_waits_for_an_operation_that_is_examined() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-held");
        let probe = Probe::new();
        let (op, stall) = probe.stalled_op(NEVER_IN_A_TEST);
        park(&purgatory, op, 1);
        let check = stall.check(&purgatory, 1);
        for _ in 0..20 {
            match purgatory.shutdown_timeout(SOON) {
                Err(ShutdownError::TimedOut { parked, .. }) => assert_eq!(parked, 1),
                other => panic!("{other:?}"),
            }
        }
        eventually("one waits in the background", || {
            threads_named("g15-held-shut").len() == 1
        });
        let mut over = pin!(purgatory.shutdown_async().expect("a thread more"));
        assert_eq!(poll(over.as_mut()), Poll::Pending);
        stall.end();
        futures::executor::block_on(over);
        assert_eq!(probe.ending(), Some(Completion::ShutDown));
        assert_eq!(purgatory.shutdown_timeout(Duration::ZERO).ok(), Some(()));
        assert_eq!(check.join().expect("no panic"), 0);
    });
}

/// The first was made in a callback, and has waited for none.
#[test]
fn g15_a_second_shutdown_waits_for_no_thread() {
    within(PATIENCE / 6, || {
        let purgatory = Purgatory::<Op>::new("g15-second");
        let go_on = stuck(&purgatory);
        eventually("the expiry", || purgatory.stats().completions_pending == 1);
        let inside = purgatory.clone();
        let op = Op::new(NEVER_IN_A_TEST).then(move |_| inside.shutdown());
        park(&purgatory, op, 1);
        assert_eq!(purgatory.force_complete_for_key(&1), 1);
        purgatory.shutdown();
        assert_eq!(purgatory.stats().completions_pending, 1);
        drop(go_on);
    });
}

fn poll(future: impl Future<Output = ()>) -> Poll<()> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// On a runtime with one thread, beside a task that must not be held up.
#[test]
fn g15_an_async_shutdown_blocks_no_runtime_thread() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-asy1");
        let go_on = stuck(&purgatory);
        park(&purgatory, Op::new(NEVER_IN_A_TEST), 1);
        eventually("the expiry", || purgatory.stats().expired == 1);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.expect("a runtime").block_on(async {
            let over = Arc::new(AtomicBool::new(false));
            let task = tokio::spawn({
                let (purgatory, over) = (purgatory.clone(), over.clone());
                async move {
                    let shutdown = purgatory.shutdown_async().expect("a thread");
                    drop(purgatory);
                    shutdown.await;
                    over.store(true, Ordering::SeqCst);
                }
            });
            let mut worst = Duration::ZERO;
            for _ in 0..20 {
                let begun = Instant::now();
                tokio::time::sleep(Duration::from_millis(2)).await;
                worst = worst.max(begun.elapsed());
            }
            assert!(worst < PROMPT, "{worst:?}");
            assert!(purgatory.is_shut_down() && !over.load(Ordering::SeqCst));
            drop(go_on);
            task.await.expect("no panic");
            assert!(over.load(Ordering::SeqCst));
        });
        eventually("the end of its threads", || {
            threads_named("g15-asy1").is_empty()
        });
        assert_eq!(purgatory.stats().shut_down, 1);
        // Once more, it has nothing to do.
        futures::executor::block_on(purgatory.shutdown_async().expect("a thread"));
    });
}

#[test]
fn g15_an_async_shutdown_goes_on_without_its_future() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-asy2");
        let probe = Probe::new();
        park(&purgatory, probe.op(NEVER_IN_A_TEST), 1);
        let shutdown = purgatory.shutdown_async().expect("a thread");
        // Whatever it answers: it need not be polled again.
        let _ = poll(shutdown);
        eventually("the end", || probe.ending() == Some(Completion::ShutDown));
        eventually("the end of its threads", || {
            threads_named("g15-asy2").is_empty()
        });
    });
}

/// The last handle is dropped while a completion sleeps: on its own thread, and on that of a shared reaper.
/// A task of an async runtime may drop it: for each thread it waits 10 ms.
#[test]
fn g15_the_drop_of_the_last_handle_waits_for_a_moment_only() {
    within(PATIENCE, || {
        let drop_it = || {
            let purgatory = Purgatory::<Op>::new("g15-moment");
            let _go_on = stuck(&purgatory);
            eventually("the expiry", || purgatory.stats().completions_pending == 1);
            let begun = Instant::now();
            drop(purgatory);
            let took = begun.elapsed();
            assert!(took >= Duration::from_millis(10), "for no moment: {took:?}");
            took
        };
        assert_median_within(Duration::from_millis(100), || {
            repeat_with(drop_it).take(5).collect()
        });
    });
}

#[test]
fn g15_dropping_the_last_handle_does_not_wait_for_completions() {
    within(PATIENCE, || {
        let mut idle = (0..101).map(|_| {
            let purgatory = Purgatory::<Op>::new("g15-idle");
            park(&purgatory, Op::new(NEVER_IN_A_TEST), 0);
            let begun = Instant::now();
            drop(purgatory);
            begun.elapsed()
        });
        let mut idle = idle.by_ref().collect::<Vec<_>>();
        idle.sort_unstable();
        println!("with nothing to wait for, the drop took {:?}", idle[50]);
        for shared in [false, true] {
            let reaper = match shared {
                true => Reaper::Shared(ReaperThread::spawn("g15-drop").expect("threads")),
                false => Reaper::Own,
            };
            let purgatory = Purgatory::<Op>::builder("g15-drop").reaper(reaper);
            let purgatory = purgatory.build().expect("threads");
            let go_on = stuck(&purgatory);
            eventually("the first expiry", || purgatory.stats().expired == 1);
            let behind = Probe::new();
            park(&purgatory, behind.op(SOON), 1);
            eventually("both expiries", || purgatory.stats().expired == 2);
            let parked = Probe::new();
            park(&purgatory, parked.op(NEVER_IN_A_TEST), 2);
            let begun = Instant::now();
            drop(purgatory);
            let took = begun.elapsed();
            println!("shared {shared}: the drop took {took:?}");
            assert!(took < PROMPT, "{took:?}");
            // What was parked has ended, on this thread; what waits for the thread still runs.
            assert_eq!(parked.ending(), Some(Completion::ShutDown));
            assert_eq!(behind.ending(), None);
            drop(go_on);
            eventually("the completion behind", || behind.ending().is_some());
            eventually("the end of its threads", || {
                threads_named("g15-drop").is_empty()
            });
        }
    });
}

/// Parks and cancels on a key with many watchers, while snapshots of it are taken.
#[test]
fn g20_a_snapshot_of_a_hot_key_stalls_no_thread() {
    const WATCHERS: usize = if cfg!(debug_assertions) {
        100_000
    } else {
        1_000_000
    };
    within(PATIENCE * 2, || {
        let purgatory = Purgatory::<Op>::new("g20-snap");
        for key in 0..WATCHERS as u64 {
            let op = Op::new(NEVER_IN_A_TEST);
            let parked = purgatory.try_complete_else_watch(op, [u64::MAX, key % 1_000]);
            parked.expect("room");
        }
        let done = Arc::new(AtomicBool::new(false));
        let other = {
            let (purgatory, done) = (purgatory.clone(), done.clone());
            thread::spawn(move || {
                let mut calls = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    let op = Op::new(NEVER_IN_A_TEST);
                    let parked = purgatory.try_complete_else_watch(op, [u64::MAX]);
                    let handle = parked.expect("room").into_handle().expect("parked");
                    assert!(handle.cancel().is_some());
                    calls.push(begun..Instant::now());
                    thread::sleep(Duration::from_micros(50));
                }
                calls
            })
        };
        let snapshots = (0..5).map(|_| {
            let begun = Instant::now();
            let parked = purgatory.snapshot();
            let snapshot = begun..Instant::now();
            assert!((WATCHERS..=WATCHERS + 1).contains(&parked.len()));
            let with_two_keys = parked.iter().filter(|operation| operation.keys.len() == 2);
            assert_eq!(with_two_keys.count(), WATCHERS);
            assert_eq!(purgatory.watched_keys(), 1_001);
            assert!((WATCHERS..=WATCHERS + 1).contains(&purgatory.watchers(&u64::MAX)));
            snapshot
        });
        let snapshots = snapshots.collect::<Vec<_>>();
        done.store(true, Ordering::Relaxed);
        let calls = other.join().expect("no panic");
        let length = |period: &Range<Instant>| period.end - period.start;
        let shares = snapshots.iter().map(|snapshot| {
            let meanwhile =
                |call: &&Range<Instant>| call.start < snapshot.end && snapshot.start < call.end;
            let longest = calls.iter().filter(meanwhile).map(length).max();
            let longest = longest.expect("the other thread has run");
            println!(
                "a call of {longest:?} in a snapshot of {:?}",
                length(snapshot)
            );
            longest.as_secs_f64() / length(snapshot).as_secs_f64()
        });
        // A loaded machine stops a thread now and then, but not for so long in each of them.
        let least = shares.fold(f64::INFINITY, f64::min);
        assert!(least < 0.1, "{least} of a snapshot");
    });
}

/// A shutdown in the background is not over while another thread still ends operations.
#[test]
fn g15_a_shutdown_in_the_background_waits_for_one_that_has_begun() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15");
        let ended = Arc::new(AtomicUsize::new(0));
        let (inside, begun) = channel();
        let (go_on, told) = channel::<()>();
        let last = {
            let ended = ended.clone();
            Op::new(NEVER_IN_A_TEST).then(move |_| {
                let _ = inside.send(());
                // An error: the sender was dropped.
                let _ = told.recv();
                ended.fetch_add(1, Ordering::SeqCst);
            })
        };
        park(&purgatory, last, 1);
        let closing = purgatory.clone();
        let other = thread::spawn(move || closing.shutdown());
        begun.recv().expect("the shutdown completes the operation");
        let timed_out = purgatory.shutdown_timeout(Duration::from_millis(20));
        assert!(timed_out.is_err(), "{timed_out:?}");
        let waiting = purgatory.shutdown_async().expect("a thread more");
        let mut waiting = pin!(waiting);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        drop(go_on);
        eventually("the end of the shutdown", || {
            purgatory.shutdown_timeout(PROMPT).is_ok()
        });
        assert_eq!(ended.load(Ordering::SeqCst), 1);
        other.join().expect("it only shuts down");
        while waiting.as_mut().poll(&mut cx).is_pending() {
            thread::yield_now();
        }
    });
}
