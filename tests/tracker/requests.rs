//! What `Requests` answer: responses, timeouts, late responses, forgotten requests.

use crate::support::{PATIENCE, lock, within};
use request_purgatory::{
    RejectReason, Rejected, threads::Reaper, time::ManualClock, tracker::RequestError,
    tracker::Requests, tracker::RequestsBuilder,
};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

fn manual() -> (RequestsBuilder<u32, String>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Requests::builder("manual").clock(clock.clone());
    (builder.reaper(Reaper::Manual), clock)
}

/// Late responses with their ids.
type Log = Arc<Mutex<Vec<(u32, String)>>>;

fn reporting() -> (Requests<u32, String>, ManualClock, Log) {
    let (builder, clock) = manual();
    let late = Log::default();
    let log = late.clone();
    let builder = builder.on_late(move |id, response| lock(&log).push((*id, response)));
    (builder.build().expect("no threads to refuse"), clock, late)
}

#[test]
fn each_request_is_answered_or_times_out() {
    let (calls, clock, late) = reporting();
    let answered = calls.request(1, TICK).expect("room");
    let silent = calls.request(2, TICK).expect("room");
    assert_eq!((*answered.id(), calls.len()), (1, 2));
    assert!(calls.respond(&1, "one".into()));
    // The second response to one request is late.
    assert!(!calls.respond(&1, "again".into()));
    clock.advance(TICK);
    assert_eq!(calls.advance(), 1);
    assert!(!calls.respond(&2, "two".into()));
    // An id that nobody ever asked with.
    assert!(!calls.respond(&3, "three".into()));
    assert_eq!(answered.wait_blocking(), Ok("one".into()));
    assert_eq!(silent.wait_blocking(), Err(RequestError::TimedOut));
    let reported = [(1, "again"), (2, "two"), (3, "three")];
    let reported = reported.map(|(id, text)| (id, text.to_owned()));
    assert_eq!((lock(&late).as_slice(), calls.late()), (&reported[..], 3));
    let stats = calls.stats();
    assert_eq!((stats.completed, stats.expired, stats.parked), (1, 1, 0));
}

#[test]
fn a_touched_request_waits_longer() {
    let (calls, clock, _) = reporting();
    let request = calls.request(1, TICK).expect("room");
    assert!(calls.touch(&1, TICK * 5) && !calls.touch(&2, TICK));
    clock.advance(TICK * 4);
    assert_eq!(calls.advance(), 0);
    assert!(calls.next_deadline().is_some());
    clock.advance(TICK);
    assert_eq!(calls.advance(), 1);
    assert_eq!(request.wait_blocking(), Err(RequestError::TimedOut));
}

#[test]
fn an_id_in_use_is_refused() {
    let (calls, _, _) = reporting();
    let first = calls.request(1, TICK).expect("room");
    let refused = calls.request(1, TICK);
    assert!(matches!(
        refused.map_err(Rejected::into_parts),
        Err((RejectReason::Duplicate, 1))
    ));
    // The refusal did nothing to the first.
    assert!(calls.respond(&1, "first".into()));
    assert_eq!(first.wait_blocking(), Ok("first".into()));
    // Answered, it frees its id before anyone has looked at the answer.
    let kept = calls.request(1, TICK).expect("free");
    assert!(calls.respond(&1, "kept".into()));
    let next = calls.request(1, TICK).expect("free again");
    drop(kept);
    assert_eq!(
        calls.len(),
        1,
        "the drop of an answered one forgets nothing"
    );
    assert!(calls.respond(&1, "next".into()));
    assert_eq!(next.wait_blocking(), Ok("next".into()));
}

#[test]
fn a_dropped_request_is_forgotten() {
    let (calls, clock, late) = reporting();
    let dropped = calls.request(1, TICK).expect("room");
    drop(dropped);
    assert_eq!((calls.len(), calls.stats().cancelled), (0, 1));
    assert!(!calls.respond(&1, "nobody".into()));
    assert_eq!(lock(&late).len(), 1);
    let again = calls.request(1, TICK * 9).expect("the id is free at once");
    // The timeout of the forgotten one is gone with it.
    clock.advance(TICK);
    assert_eq!((calls.advance(), calls.len()), (0, 1));
    drop(again);
    assert_eq!(calls.next_deadline(), None);
}

/// An old request of the same id, timed out or answered but not yet looked at, does nothing to the new one.
#[test]
fn an_old_request_does_not_touch_a_new_one_with_its_id() {
    let (calls, clock, _) = reporting();
    let old = calls.request(1, TICK).expect("room");
    clock.advance(TICK);
    assert_eq!(calls.advance(), 1);
    let new = calls.request(1, TICK * 5).expect("free");
    drop(old);
    assert_eq!(calls.len(), 1);
    assert!(calls.respond(&1, "new".into()));
    assert_eq!(new.wait_blocking(), Ok("new".into()));
}

#[test]
fn g17_the_bound_is_exact() {
    let (builder, clock) = manual();
    let calls = builder.max_parked(2).build().expect("no threads to refuse");
    for round in 0..30 {
        let one = calls.request(1, TICK).expect("room");
        let two = calls.request(2, TICK).expect("room");
        assert!(matches!(
            calls.request(3, TICK).map_err(Rejected::into_parts),
            Err((RejectReason::Full, 3))
        ));
        match round % 3 {
            0 => drop((one, two)),
            1 => {
                clock.advance(TICK);
                assert_eq!(calls.advance(), 2);
            }
            _ => assert!(calls.respond(&1, String::new()) && calls.respond(&2, String::new())),
        }
        assert_eq!(calls.len(), 0);
    }
}

#[test]
fn a_thread_can_wait() {
    within(PATIENCE, || {
        let calls = Requests::<u32, u32>::new("wait");
        let answered = calls.request(1, Duration::from_secs(60)).expect("room");
        let silent = calls.request(2, Duration::from_millis(30)).expect("room");
        let waiters =
            [answered, silent].map(|request| thread::spawn(move || request.wait_blocking()));
        thread::sleep(Duration::from_millis(10));
        assert!(calls.respond(&1, 7));
        let answers = waiters.map(|waiter| waiter.join().expect("no panic"));
        assert_eq!(answers, [Ok(7), Err(RequestError::TimedOut)]);
    });
}

/// Any number of polls, then the answer once; a future that is polled on says nothing more.
#[test]
fn an_answer_is_handed_out_once() {
    let (calls, _, _) = reporting();
    let mut request = pin!(calls.request(1, TICK).expect("room"));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        assert!(request.as_mut().poll(&mut cx).is_pending());
    }
    assert!(calls.respond(&1, "one".into()));
    assert_eq!(
        request.as_mut().poll(&mut cx),
        Poll::Ready(Ok("one".into()))
    );
    assert!(request.as_mut().poll(&mut cx).is_pending());
}
