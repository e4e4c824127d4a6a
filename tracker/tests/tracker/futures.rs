//! A request as a future: on executors, and polled by hand with wakers that change.

use crate::support::bell::{Bell, waker};
use crate::support::{PATIENCE, within};
use crate::{delivered, manual_requests, poll_in_vain};
use futures::executor::block_on;
use futures::future::join_all;
use request_purgatory::WaitError;
use request_purgatory_tracker::{Requests, ResponseFuture};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

type Calls = Requests<u32, u32>;

fn manual() -> Calls {
    manual_requests(|builder| builder).0
}

/// Sends requests, of which every third is never answered; checks what comes.
async fn exchange(calls: Calls) {
    let requests = (0..300).map(|id| {
        let timeout = if id % 3 == 0 { SHORT } else { LONG };
        calls.request(id, timeout).expect("room")
    });
    let requests = requests.collect::<Vec<_>>();
    let responder = {
        let calls = calls.clone();
        thread::spawn(move || {
            for id in (0..300).filter(|id| id % 3 != 0) {
                assert!(delivered(calls.respond(&id, id * 2)));
            }
        })
    };
    for (id, answer) in join_all(requests).await.into_iter().enumerate() {
        let expected = match id % 3 {
            0 => Err(WaitError::Expired),
            _ => Ok(id as u32 * 2),
        };
        assert_eq!(answer, expected);
    }
    responder.join().expect("all were waiting");
    assert_eq!((calls.stats().parked, calls.late()), (0, 0));
}

#[test]
fn requests_run_on_tokio_and_on_the_executor_of_futures() {
    within(PATIENCE, || {
        let many = tokio::runtime::Runtime::new().expect("a runtime");
        many.block_on(async {
            let exchange = tokio::spawn(exchange(Requests::new("tokio")));
            exchange.await.expect("no panic");
        });
        let one = tokio::runtime::Builder::new_current_thread().build();
        let one = one.expect("a runtime");
        one.block_on(exchange(Requests::new("tokio")));
        block_on(exchange(Requests::new("futures")));
    });
}

/// A task that gives up by its own timeout drops the request, and is not woken for that.
#[test]
fn a_request_dropped_by_its_task_wakes_no_task() {
    let calls = manual();
    let bell = Bell::new();
    let waker = Waker::from(bell.clone());
    let mut request = calls.request(1, LONG).expect("room");
    poll_in_vain(&mut request, &waker);
    drop(request);
    assert_eq!((calls.stats().parked, bell.rung()), (0, 0));
    drop(waker);
    assert_eq!(Arc::strong_count(&bell), 1, "the waker is let go");
}

fn poll(request: &mut ResponseFuture<u32, u32>, waker: &Waker) -> Poll<Result<u32, WaitError>> {
    Pin::new(request).poll(&mut Context::from_waker(waker))
}

/// The waker of the last poll is the one that is woken, once.
#[test]
fn a_request_that_changes_tasks_wakes_the_last_one() {
    let calls = manual();
    let bells = [(); 3].map(|()| Bell::new());
    let wakers = [0, 1, 2].map(|task| Waker::from(bells[task].clone()));
    let counts = || [0, 1, 2].map(|task| bells[task].rung());
    let mut request = calls.request(1, LONG).expect("room");
    for task in [0, 0, 1, 2, 1, 1] {
        poll_in_vain(&mut request, &wakers[task]);
    }
    assert_eq!(counts(), [0, 0, 0], "no task is woken for nothing");
    assert!(delivered(calls.respond(&1, 7)));
    assert_eq!(counts(), [0, 1, 0]);
    assert_eq!(poll(&mut request, &wakers[0]), Poll::Ready(Ok(7)));
    assert_eq!(counts(), [0, 1, 0]);
    // The answer is handed out once.
    poll_in_vain(&mut request, &wakers[0]);
}

/// Each poll comes with another waker, while the answers come from another thread: no wake-up is lost.
#[test]
fn no_wake_up_is_lost_to_a_change_of_wakers() {
    within(PATIENCE, || {
        let calls = Requests::<u32, u32>::new("changing");
        for round in 0..2_000 {
            let mut request = calls.request(round, LONG).expect("room");
            let responder = {
                let calls = calls.clone();
                thread::spawn(move || assert!(delivered(calls.respond(&round, round))))
            };
            let answer = block_on(poll_fn(|cx| {
                let [first, second] = [(); 2].map(|()| {
                    let task = cx.waker().clone();
                    waker(move || task.wake_by_ref())
                });
                let before = poll(&mut request, &first);
                match before.is_pending() {
                    true => poll(&mut request, &second),
                    false => before,
                }
            }));
            assert_eq!(answer, Ok(round));
            responder.join().expect("it was waited for");
        }
    });
}

/// What cloning a [`tricky`] waker does, once.
type Trick = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// A waker whose `clone` runs code of ours.
fn tricky(trick: &'static Trick) -> Waker {
    const TABLE: RawWakerVTable = RawWakerVTable::new(clone, |_| (), |_| (), |_| ());
    fn clone(data: *const ()) -> RawWaker {
        // SAFETY: `data` came from a `&'static Trick` in `tricky`.
        let trick = unsafe { &*data.cast::<Trick>() };
        let run = trick.lock().ok().and_then(|mut trick| trick.take());
        if let Some(run) = run {
            run();
        }
        RawWaker::new(data, &TABLE)
    }
    let data = std::ptr::from_ref(trick).cast();
    // SAFETY: `clone` and the functions that do nothing are safe on any thread with this data, which lives for ever.
    unsafe { Waker::from_raw(RawWaker::new(data, &TABLE)) }
}

/// G3: no lock of the library is held while a waker is cloned.
#[test]
fn g03_a_waker_may_answer_while_it_is_cloned() {
    within(PATIENCE, || {
        static ANSWER: Trick = Mutex::new(None);
        let calls = manual();
        let responder = calls.clone();
        *ANSWER.lock().expect("unused") = Some(Box::new(move || {
            assert!(delivered(responder.respond(&1, 7)));
        }));
        let mut request = calls.request(1, LONG).expect("room");
        let poll = poll(&mut request, &tricky(&ANSWER));
        assert_eq!(poll, Poll::Ready(Ok(7)), "the answer has come meanwhile");
    });
}

/// G12: the request survives it.
#[test]
fn g12_a_waker_that_panics_when_cloned_loses_no_answer() {
    static PANIC: Trick = Mutex::new(None);
    let calls = manual();
    *PANIC.lock().expect("unused") = Some(Box::new(|| resume_unwind(Box::new("intended"))));
    let waker = tricky(&PANIC);
    let mut request = calls.request(1, LONG).expect("room");
    let polled = catch_unwind(AssertUnwindSafe(|| poll(&mut request, &waker)));
    assert!(polled.is_err());
    assert!(delivered(calls.respond(&1, 7)));
    assert_eq!(poll(&mut request, Waker::noop()), Poll::Ready(Ok(7)));
}

/// G1: the last task that polled is woken, though neither its waker nor the one before has data.
#[test]
fn g01_a_waker_without_data_is_not_taken_for_another() {
    static WOKEN: AtomicUsize = AtomicUsize::new(0);
    static TABLE: RawWakerVTable = RawWakerVTable::new(|_| raw(), wake, wake, |_| ());
    fn raw() -> RawWaker {
        RawWaker::new(std::ptr::null(), &TABLE)
    }
    fn wake(_: *const ()) {
        WOKEN.fetch_add(1, Ordering::SeqCst);
    }
    // SAFETY: the functions of the table use no data, and are safe on any thread.
    let last = unsafe { Waker::from_raw(raw()) };
    let calls = manual();
    let mut request = calls.request(1, LONG).expect("room");
    for waker in [Waker::noop(), &last] {
        poll_in_vain(&mut request, waker);
    }
    assert!(delivered(calls.respond(&1, 7)));
    assert_eq!(WOKEN.load(Ordering::SeqCst), 1);
    assert_eq!(poll(&mut request, &last), Poll::Ready(Ok(7)));
}
