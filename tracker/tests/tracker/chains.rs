//! G14: chains through what trackers, requests and timers drop need no stack, however long they are.

use crate::support::bell::waker;
use crate::support::{lock, on_a_stack_of};
use crate::{delivered, manual_requests, manual_tracker, poll_in_vain};
use request_purgatory_tracker::{Requests, ResponseFuture, Tracker};
use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LINKS: u64 = 100_000;
/// In KiB.
const STACK: usize = 256;

fn requests<R: Send + 'static>() -> Requests<u64, R> {
    manual_requests(|builder| builder).0
}

/// A response that was not received owns the future of the next request.
#[test]
fn g14_a_chain_of_responses_needs_no_stack() {
    struct Response(
        #[expect(dead_code, reason = "it is there to be dropped")]
        Option<ResponseFuture<u64, Response>>,
    );

    on_a_stack_of(64, || {
        let requests = requests();
        let mut next = None;
        for id in 0..1_000_000 {
            let response = requests.request(id, Duration::MAX).expect("a new id");
            assert!(delivered(requests.respond(&id, Response(next.take()))));
            next = Some(response);
        }
        drop(next);
        assert!(requests.is_empty());
    });
}

/// A response whose destructor hands on to the next request, of which it has the future. No task receives any of them,
/// and the library drops each.
struct Link {
    id: u64,
    futures: Arc<Mutex<Vec<ResponseFuture<u64, Self>>>>,
    calls: Requests<u64, Self>,
    hand_on: fn(&Self, ResponseFuture<u64, Self>),
}

impl Link {
    /// The response that comes before this number of requests.
    fn before(links: u64, hand_on: fn(&Self, ResponseFuture<u64, Self>)) -> Self {
        let calls = requests();
        let request = |id| calls.request(id, Duration::MAX).expect("a new id");
        let futures = (1..=links).rev().map(request).collect();
        Self {
            id: 0,
            futures: Arc::new(Mutex::new(futures)),
            calls,
            hand_on,
        }
    }

    fn next(&self) -> Self {
        Self {
            id: self.id + 1,
            futures: self.futures.clone(),
            calls: self.calls.clone(),
            hand_on: self.hand_on,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let future = lock(&self.futures).pop();
        if let Some(future) = future {
            (self.hand_on)(self, future);
        }
    }
}

/// It fails the next request, and drops its future when it makes the response, which no request needs then.
#[test]
fn g14_a_chain_of_responses_to_dropped_futures_needs_no_stack() {
    on_a_stack_of(64, || {
        let first = Link::before(2_000, |link, future| {
            let mut future = Some(future);
            let response = |_: &u64| {
                drop(future.take());
                link.next()
            };
            let failed = link.calls.fail_where(|id| *id == link.id + 1, response);
            assert_eq!(failed, 0);
        });
        let calls = first.calls.clone();
        drop(first);
        assert!(calls.is_empty());
    });
}

/// It responds to the next request, and then drops its future.
#[test]
fn g14_a_chain_of_responses_that_come_back_needs_no_stack() {
    on_a_stack_of(64, || {
        const LINKS: u64 = 1_000_000;
        let first = Link::before(LINKS, |link, future| {
            assert!(delivered(link.calls.respond(&(link.id + 1), link.next())));
            drop(future);
        });
        let calls = first.calls.clone();
        drop(first);
        assert_eq!((calls.stats().completed, calls.stats().parked), (LINKS, 0));
    });
}

/// The task that waits for a response owns the future of the next request.
#[test]
fn g14_a_chain_of_tasks_that_wait_needs_no_stack() {
    on_a_stack_of(STACK, || {
        let requests = requests::<()>();
        let mut next = None;
        for id in 0..LINKS {
            let mut response = requests.request(id, Duration::MAX).expect("a new id");
            let owned = Mutex::new(next.take());
            poll_in_vain(&mut response, &waker(move || _ = &owned));
            next = Some(response);
        }
        drop(next);
        assert!(requests.is_empty());
    });
}

/// A value is the last handle of the next tracker.
#[test]
fn g14_a_chain_of_trackers_needs_no_stack() {
    type Value = Box<dyn Any + Send>;

    fn tracker() -> Tracker<u8, Value> {
        manual_tracker(|builder| builder, |_, _, _| ()).0
    }

    on_a_stack_of(STACK, || {
        let mut last = tracker();
        for _ in 0..2_000 {
            let next = tracker();
            assert!(next.track(1, Box::new(last), Duration::MAX).is_ok());
            last = next;
        }
    });
}
