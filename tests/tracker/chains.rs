//! G14: chains through what trackers, requests and timers drop need no stack, however long they are.

use crate::delivered;
use crate::support::keys::{Act, Acting};
use crate::support::{Tally, lock, on_a_stack_of};
use request_purgatory::tracker::{Requests, ResponseFuture};
use request_purgatory::{RejectReason, Timer, Tracker, threads::Reaper};
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const LINKS: u64 = 100_000;
/// In KiB.
const STACK: usize = 256;

fn requests<R: Send + 'static>() -> Requests<u64, R> {
    let builder = Requests::builder("chain").reaper(Reaper::Manual);
    builder.build().expect("no threads to refuse")
}

/// A response that was not received owns the future of the next request.
#[test]
fn g14_a_chain_of_responses_needs_no_stack() {
    struct Response(
        #[expect(dead_code, reason = "it is there to be dropped")]
        Option<ResponseFuture<u64, Response>>,
    );

    on_a_stack_of(STACK, || {
        let requests = requests();
        let mut next = None;
        for id in 0..LINKS {
            let response = requests.request(id, Duration::MAX).expect("a new id");
            assert!(delivered(requests.respond(&id, Response(next.take()))));
            next = Some(response);
        }
        drop(next);
        assert!(requests.is_empty());
    });
}

/// The task that waits for a response owns the future of the next request.
#[test]
fn g14_a_chain_of_tasks_that_wait_needs_no_stack() {
    struct Owns(
        #[expect(dead_code, reason = "it is there to be dropped")]
        Mutex<Option<ResponseFuture<u64, ()>>>,
    );

    impl Wake for Owns {
        fn wake(self: Arc<Self>) {}
    }

    on_a_stack_of(STACK, || {
        let requests = requests();
        let mut next = None;
        for id in 0..LINKS {
            let mut response = requests.request(id, Duration::MAX).expect("a new id");
            let waker = Waker::from(Arc::new(Owns(Mutex::new(next.take()))));
            let mut cx = Context::from_waker(&waker);
            assert_eq!(Pin::new(&mut response).poll(&mut cx), Poll::Pending);
            next = Some(response);
        }
        drop(next);
        assert!(requests.is_empty());
    });
}

fn tracker() -> Tracker<Acting, ()> {
    let builder = Tracker::builder("chain").reaper(Reaper::Manual);
    builder.build(|_, (), _| ()).expect("no threads to refuse")
}

/// Each key is refused as a duplicate, and its destructor tracks the next one.
#[test]
fn g14_a_chain_of_spare_keys_needs_no_stack() {
    type Slot = Arc<Mutex<Option<Act>>>;

    on_a_stack_of(STACK, || {
        let tracker = tracker();
        for number in 0..=LINKS {
            let tracked = tracker.track(Acting(number, None), (), Duration::MAX);
            assert!(tracked.is_ok());
        }
        let (slot, tracks, refusals) = (Slot::default(), tracker.clone(), Tally::new());
        let next = slot.clone();
        let act: Act = Arc::new(move || {
            if refusals.count() < LINKS {
                refusals.add();
                let key = Acting(refusals.count(), lock(&next).clone());
                let refused = tracks.try_track(key, (), Duration::MAX);
                assert!(refused.is_err_and(|it| it.reason() == RejectReason::Duplicate));
            }
        });
        *lock(&slot) = Some(act.clone());
        assert!(
            tracker
                .try_track(Acting(0, Some(act)), (), Duration::MAX)
                .is_err()
        );
        *lock(&slot) = None;
        assert_eq!(tracker.stats().rejected, LINKS + 1);
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

    on_a_stack_of(STACK, || {
        let mut last = timer();
        for _ in 0..2_000 {
            let next = timer();
            assert!(next.start(Duration::MAX, Box::new(last)).is_ok());
            last = next;
        }
    });
}

/// After the shutdown a value comes back whatever the destructor of its key does.
#[test]
fn g12_a_value_that_is_refused_comes_back_though_its_key_panics() {
    let tracker = tracker();
    tracker.shutdown();
    let panics: Act = Arc::new(|| resume_unwind(Box::new("intended")));
    let track = || tracker.track(Acting(1, Some(panics)), (), Duration::MAX);
    let refused = catch_unwind(AssertUnwindSafe(track)).ok();
    let refused = refused.and_then(Result::err).map(|it| it.reason());
    assert_eq!(refused, Some(RejectReason::ShutDown));
}
