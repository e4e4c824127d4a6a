//! G15: a shutdown with a bound, a shutdown in the background, and the drop of the last handle: what they wait for, and
//! what they do not wait for.

use super::at_any_moment::assert_no_threads;
use crate::chains::scene::{Gate, admit, park};
use crate::support::keys::{Act, Acting};
use crate::support::noise::assert_median_within;
use crate::support::{Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe};
use crate::support::{eventually, lock, manual, refusal, threads_named, within};
use futures::executor::block_on;
use request_purgatory::purgatory::{RejectReason, ShutdownError};
use request_purgatory::threads::{Dispatch, Reaper, ReaperThread};
use request_purgatory::{Completion, Purgatory, time::ManualClock};
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(5);
/// What a call may take that waits for nothing: generous, for loaded machines.
const PROMPT: Duration = Duration::from_secs(10);

fn poll(future: impl Future<Output = ()>) -> Poll<()> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// An operation has expired soon, and its completion waits at this gate.
fn stuck(purgatory: &Purgatory<Op>) -> Gate {
    let (gate, wait) = Gate::new();
    let op = Op::new(SOON).then(move |_| wait());
    admit(purgatory, op, [0]);
    gate.entered();
    gate
}

type Held = Purgatory<Op<Acting>>;
/// Lets the shutdown go on, and sees that all has ended.
type Release = Box<dyn FnOnce()>;

fn key(number: u64) -> Acting {
    Acting(number, None)
}

/// Behind it is one that nothing holds up.
fn by_a_completion(purgatory: &Held, _: &ManualClock) -> Release {
    let ((gate, wait), parked) = (Gate::new(), Probe::new());
    let op = Op::new(Duration::ZERO).then(move |_| wait());
    admit(purgatory, op, [key(1)]);
    gate.entered();
    park(purgatory, parked.op(NEVER_IN_A_TEST), [key(2)]);
    Box::new(move || {
        assert_eq!(parked.ending(), Some(Completion::ShutDown));
        gate.open();
    })
}

/// All operations have ended and been completed, but the reaper is in the destructor of a key that it reclaims after a
/// storm.
fn by_the_reaper(purgatory: &Held, clock: &ManualClock) -> Release {
    let (gate, wait) = Gate::new();
    let mut act: Option<Act> = Some(Arc::new(wait));
    for number in 0..200 {
        park(purgatory, Op::new(SOON), [Acting(number, act.take())]);
    }
    clock.advance(2 * SOON);
    gate.entered();
    eventually("all endings", || {
        let stats = purgatory.stats();
        (stats.parked, stats.completions_pending) == (0, 0)
    });
    Box::new(|| gate.open())
}

/// A completion of the shutdown itself, on its thread in the background.
fn by_the_shutdown(purgatory: &Held, _: &ManualClock) -> Release {
    let (gate, wait) = Gate::new();
    let op = Op::new(NEVER_IN_A_TEST).then(move |_| wait());
    park(purgatory, op, [key(1)]);
    Box::new(|| gate.open())
}

/// The same on another thread, which has begun a shutdown before and still ends operations.
fn by_another_shutdown(purgatory: &Held, _: &ManualClock) -> Release {
    let ((gate, wait), probe) = (Gate::new(), Probe::new());
    let ended = probe.clone();
    let op = Op::new(NEVER_IN_A_TEST).then(move |completion| {
        wait();
        ended.end(completion);
    });
    park(purgatory, op, [key(1)]);
    let closing = purgatory.clone();
    let other = thread::spawn(move || closing.shutdown());
    gate.entered();
    Box::new(move || {
        assert_eq!(probe.ending(), None);
        gate.open();
        other.join().expect("it only shuts down");
        assert_eq!(probe.ending(), Some(Completion::ShutDown));
    })
}

/// A thread is in the `try_complete` of an operation, and will end it.
fn by_an_examination(purgatory: &Held, _: &ManualClock) -> Release {
    let probe = Probe::new();
    let (op, stall) = probe.stalled_op(NEVER_IN_A_TEST);
    park(purgatory, op, [key(1)]);
    let check = stall.check(purgatory, key(1));
    Box::new(move || {
        stall.end();
        assert_eq!(check.join().expect("no panic"), 0);
        assert_eq!(probe.ending(), Some(Completion::ShutDown));
    })
}

/// A name, how it is held up, how many are parked and pending meanwhile, and which thread still runs.
type HeldUp = (&'static str, Hold, (usize, usize), &'static str);
type Hold = fn(&Held, &ManualClock) -> Release;

/// The table of what holds a shutdown up.
const HELD_UP: [HeldUp; 5] = [
    ("completion", by_a_completion, (0, 1), "completions"),
    ("reaper", by_the_reaper, (0, 0), "reaper"),
    ("its own end", by_the_shutdown, (0, 0), "reaper"),
    ("another", by_another_shutdown, (0, 0), "reaper"),
    ("examination", by_an_examination, (1, 0), "none"),
];

/// The shutdown goes on in the background, on one thread for all calls, and later calls may wait for its end.
#[test]
fn g15_a_shutdown_with_a_bound_says_what_holds_it_up() {
    for (name, hold, left, running) in HELD_UP {
        within(PATIENCE, move || {
            let clock = ManualClock::new();
            let builder = Purgatory::builder("g15-held").clock(clock.clone());
            let purgatory = builder.build().expect("it starts no thread");
            let release = hold(&purgatory, &clock);
            let bound = Duration::from_millis(50);
            for bound in [bound, SOON, SOON, SOON] {
                let begun = Instant::now();
                let answer = purgatory.shutdown_timeout(bound);
                let took = begun.elapsed();
                assert!((bound..bound + PROMPT).contains(&took), "{name}: {took:?}");
                let error = answer.expect_err(name);
                let (said, thread) = (error.to_string(), format!("g15-held-{running}"));
                let ShutdownError::TimedOut {
                    parked,
                    completions_pending,
                    threads,
                    ..
                } = error
                else {
                    panic!("{name}: {error}");
                };
                assert_eq!((parked, completions_pending), left, "{name}");
                let is_named = match running {
                    "none" => said.ends_with("threads running: none"),
                    _ => said.contains(&thread) && threads.contains(&thread),
                };
                assert!(is_named, "{name}: {said}");
            }
            eventually("one waits in the background", || {
                threads_named("g15-held-shut").len() == 1
            });
            let mut over = pin!(purgatory.shutdown_async().expect("a thread more"));
            assert_eq!(poll(over.as_mut()), Poll::Pending, "{name}");
            release();
            block_on(over);
            assert!(purgatory.shutdown_timeout(Duration::ZERO).is_ok(), "{name}");
            assert_no_threads("g15-held");
        });
    }
}

/// The library cannot join the threads of an executor, but it knows which completions they have not run. The operation
/// expires in the hands of a checking thread, or of the one that drives the timer.
#[test]
fn g15_only_a_shutdown_with_a_bound_waits_for_the_jobs_of_an_executor() {
    for by_a_check in [false, true] {
        within(PATIENCE, move || {
            let jobs = Arc::<Mutex<Vec<Job>>>::default();
            let keeps = jobs.clone();
            let executor = Dispatch::Executor(Arc::new(move |job| lock(&keeps).push(job)));
            let (purgatory, clock) = manual(|builder| builder.dispatch(executor));
            if by_a_check {
                let (op, stall) = Probe::new().stalled_op(NEVER_IN_A_TEST);
                park(&purgatory, op, [1]);
                let check = stall.check(&purgatory, 1);
                stall.end_after_the_deadline(&purgatory, &clock);
                assert_eq!(check.join().expect("no panic"), 0);
            } else {
                park(&purgatory, Op::new(SOON), [1]);
                clock.advance(SOON);
                assert_eq!(purgatory.advance(), 1);
            }
            assert_eq!(lock(&jobs).len(), 1);
            let answer = purgatory.shutdown_timeout(Duration::from_millis(30));
            let Err(ShutdownError::TimedOut {
                completions_pending: 1,
                ..
            }) = answer
            else {
                panic!("{answer:?}");
            };
            block_on(purgatory.shutdown_async().expect("a thread more"));
            assert_eq!(purgatory.stats().completions_pending, 1);
            lock(&jobs).drain(..).for_each(|job| job());
            let ended = purgatory.shutdown_timeout(NEVER_IN_A_TEST);
            ended.expect("nothing is left");
            assert_eq!(purgatory.stats().completions_pending, 0);
        });
    }
}

/// It waits for nothing there, and is told that there is nothing to wait for.
#[test]
fn g15_a_callback_is_told_that_a_shutdown_is_over() {
    within(PATIENCE, || {
        let [purgatory, over] = ["g15-callback", "g15-over"].map(Purgatory::<Op>::new);
        over.shutdown();
        let told = Arc::new(Mutex::new(None));
        let tell = told.clone();
        let op = Op::new(NEVER_IN_A_TEST).then(move |_| {
            *lock(&tell) = Some(over.shutdown_timeout(NEVER_IN_A_TEST).is_ok());
        });
        park(&purgatory, op, [1]);
        assert_eq!(purgatory.force_complete_for_key(&1), 1);
        assert_eq!(*lock(&told), Some(true));
    });
}

/// The first was made in a callback, and has waited for none.
#[test]
fn g15_a_second_shutdown_waits_for_no_thread() {
    within(PATIENCE / 6, || {
        let purgatory = Purgatory::<Op>::new("g15-second");
        let gate = stuck(&purgatory);
        let inside = purgatory.clone();
        let op = Op::new(NEVER_IN_A_TEST).then(move |_| inside.shutdown());
        park(&purgatory, op, [1]);
        assert_eq!(purgatory.force_complete_for_key(&1), 1);
        purgatory.shutdown();
        assert_eq!(purgatory.stats().completions_pending, 1);
        gate.open();
    });
}

/// It blocks neither the thread that calls it nor the one that polls its future.
#[test]
fn g15_an_async_shutdown_blocks_no_thread_and_goes_on_without_its_future() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g15-async");
        let (gate, parked) = (stuck(&purgatory), Probe::new());
        park(&purgatory, parked.op(NEVER_IN_A_TEST), [1]);
        let shutdown = purgatory.shutdown_async().expect("a thread");
        assert_eq!(poll(shutdown), Poll::Pending, "a completion is stuck");
        // That was the only poll.
        eventually("the end", || parked.ending() == Some(Completion::ShutDown));
        assert!(purgatory.is_shut_down());
        gate.open();
        assert_no_threads("g15-async");
        assert_eq!(purgatory.stats().shut_down, 1);
        // Once more, it has nothing to do.
        block_on(purgatory.shutdown_async().expect("a thread"));
    });
}

/// Whichever call begins it: what comes next is rejected, and the drop of the last clone ends nothing on its thread.
#[test]
fn g15_a_shutdown_in_the_background_has_begun_when_the_call_returns() {
    type Begin = fn(&Purgatory<Op>);
    const BEGINS: [Begin; 2] = [
        |all| drop(all.shutdown_async().expect("a thread")),
        |all| _ = all.shutdown_timeout(Duration::ZERO),
    ];
    within(PATIENCE, || {
        for begin in BEGINS {
            for _ in 0..100 {
                let purgatory = Purgatory::<Op>::new("g15-begun");
                let (tell, told) = channel();
                let end = move |_| tell.send(thread::current().id()).expect("it is awaited");
                park(&purgatory, Op::new(NEVER_IN_A_TEST).then(end), [1]);
                begin(&purgatory);
                assert!(purgatory.is_shut_down());
                let late = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [2]);
                assert_eq!(refusal(&late), Some(RejectReason::ShutDown));
                drop((late, purgatory));
                assert_ne!(told.recv(), Ok(thread::current().id()));
            }
        }
        assert_no_threads("g15-begun");
    });
}

/// Ends after a while, and notes that.
struct Slow(Arc<AtomicBool>);

impl Drop for Slow {
    fn drop(&mut self) {
        thread::sleep(60 * SOON);
        self.0.store(true, Ordering::SeqCst);
    }
}

thread_local!(static SLOW: RefCell<Option<Slow>> = const { RefCell::new(None) });

/// The completion has left a thread-local value, whose destructor takes long.
#[test]
fn g15_every_shutdown_that_is_over_has_joined_the_threads() {
    type ShutDown = fn(&Purgatory<Op>);
    const SHUTDOWNS: [ShutDown; 3] = [
        |all| all.shutdown(),
        |all| block_on(all.shutdown_async().expect("a thread")),
        |all| all.shutdown_timeout(NEVER_IN_A_TEST).expect("it is over"),
    ];
    within(PATIENCE, || {
        for shut_down in SHUTDOWNS {
            let (purgatory, ended) = (Purgatory::<Op>::new("g15-joined"), Arc::default());
            let slow = Slow(Arc::clone(&ended));
            let op = Op::new(SOON).then(move |_| SLOW.set(Some(slow)));
            admit(&purgatory, op, [1]);
            let has_run = || {
                let stats = purgatory.stats();
                (stats.expired, stats.completions_pending) == (1, 0)
            };
            eventually("the completion", has_run);
            shut_down(&purgatory);
            assert!(ended.load(Ordering::SeqCst));
        }
    });
}

/// It joins the reaper, which takes long to end. Another shutdown begins meanwhile, and finds the reaper joined.
#[test]
fn g15_a_shutdown_waits_for_completions_although_another_one_begins() {
    within(PATIENCE, || {
        let (purgatory, ended) = (Purgatory::<Op>::new("g15-two"), Arc::default());
        let slow = Mutex::new(Some(Slow(Arc::default())));
        let parker = thread::current().id();
        let (gate, wait) = Gate::new();
        let ends = Arc::<AtomicBool>::clone(&ended);
        let op = Op::new(SOON).when(move || {
            if thread::current().id() != parker {
                SLOW.set(lock(&slow).take());
            }
            false
        });
        let op = op.then(move |_| {
            wait();
            thread::sleep(60 * SOON);
            ends.store(true, Ordering::SeqCst);
        });
        admit(&purgatory, op, [1]);
        gate.entered();
        let first = purgatory.clone();
        let first = thread::spawn(move || first.shutdown());
        eventually("the first shutdown", || purgatory.is_shut_down());
        thread::sleep(4 * SOON);
        let second = purgatory.shutdown_async().expect("a thread");
        gate.open();
        first.join().expect("it shuts down");
        assert!(ended.load(Ordering::SeqCst));
        block_on(second);
    });
}

/// Drops the last handle while a completion waits on a thread: how long that took.
fn drop_the_last_handle(reaper: Reaper) -> Duration {
    let builder = Purgatory::<Op>::builder("g15-drop").reaper(reaper);
    let purgatory = builder.build().expect("threads");
    let (gate, behind, parked) = (stuck(&purgatory), Probe::new(), Probe::new());
    admit(&purgatory, behind.op(SOON), [1]);
    eventually("both expiries", || purgatory.stats().expired == 2);
    park(&purgatory, parked.op(NEVER_IN_A_TEST), [2]);
    let begun = Instant::now();
    drop(purgatory);
    let took = begun.elapsed();
    // What was parked has ended, on this thread; what waits for the thread still runs.
    assert_eq!(parked.ending(), Some(Completion::ShutDown));
    assert_eq!(behind.ending(), None);
    gate.open();
    eventually("the completion behind", || behind.ending().is_some());
    assert_no_threads("g15-drop");
    took
}

/// A task of an async runtime may drop it: for each thread of its own it waits 10 ms.
#[test]
fn g15_the_drop_of_the_last_handle_waits_for_a_moment_only() {
    within(PATIENCE, || {
        assert_median_within(Duration::from_millis(100), || {
            let took = [(); 5].map(|()| drop_the_last_handle(Reaper::Own));
            assert!(
                took.iter().min() >= Some(&Duration::from_millis(10)),
                "{took:?}"
            );
            took.to_vec()
        });
        let shared = ReaperThread::spawn("g15-drop").expect("threads");
        let took = drop_the_last_handle(Reaper::Shared(shared));
        assert!(took < PROMPT, "{took:?}");
    });
}

/// Wherever its completions run: only its own threads end with it.
#[test]
fn g15_the_end_of_one_leaves_the_shared_reaper_to_the_others() {
    within(PATIENCE, || {
        let name = "g15-siblings";
        let shared = ReaperThread::spawn(name).expect("threads are to be had");
        eventually("two named threads", || threads_named(name).len() == 2);
        let build = |dispatch| {
            let builder = Purgatory::<Op>::builder("g15").reaper(Reaper::Shared(shared.clone()));
            let built = builder.dispatch(dispatch).build();
            built.expect("no threads to refuse")
        };
        let stays = build(Dispatch::OwnThread);
        let executor = Dispatch::Executor(Arc::new(|job| job()));
        for dispatch in [Dispatch::OwnThread, Dispatch::Inline, executor] {
            let ends: [fn(Purgatory<Op>); 2] = [drop, |gone| gone.shutdown()];
            for end in ends {
                end(build(dispatch.clone()));
                assert_eq!(threads_named(name).len(), 2, "{dispatch:?}");
                let probe = Probe::new();
                admit(&stays, probe.op(SOON), [1]);
                eventually("its expiry", || probe.ending() == Some(Completion::Expired));
            }
        }
    });
}
