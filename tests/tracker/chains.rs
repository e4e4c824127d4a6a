//! G14: chains through what trackers, requests and timers drop need no stack, however long they are.

use crate::delivered;
use crate::support::keys::{Act, Acting, by_number};
use crate::support::{PATIENCE, Tally, lock, on_a_stack_of, within};
use request_purgatory::tracker::{Requests, Responded, ResponseFuture};
use request_purgatory::{Timer, Tracker, purgatory::RejectReason, threads::Reaper};
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

/// It fails the next request, and drops its future before that has its response.
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
            assert_eq!(failed, 1);
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

/// Of ended requests one id is remembered: the next end drops it, and its destructor drops the next future.
#[test]
fn g14_a_chain_of_ids_that_are_forgotten_needs_no_stack() {
    /// Its clone, which the library keeps, has the futures.
    struct Id(u64, Option<Futures>, bool);

    type Futures = Arc<Mutex<Vec<ResponseFuture<Id, ()>>>>;

    by_number!(Id);

    impl Clone for Id {
        fn clone(&self) -> Self {
            Self(self.0, self.1.clone(), true)
        }
    }

    impl Drop for Id {
        fn drop(&mut self) {
            if let Some(futures) = self.1.take().filter(|_| self.2) {
                let next = lock(&futures).pop();
                drop(next);
            }
        }
    }

    let test = || {
        let builder = Requests::<Id, ()>::builder("chain").reaper(Reaper::Manual);
        let calls = builder.remembered_ids(1).build();
        let calls = calls.expect("no threads to refuse");
        let futures = Futures::default();
        for number in 0..LINKS {
            let id = Id(number, Some(futures.clone()), false);
            let request = calls.request(id, Duration::MAX).expect("a new id");
            lock(&futures).push(request);
        }
        for _ in 0..2 {
            let ended = lock(&futures).pop();
            drop(ended);
        }
        assert_eq!((calls.stats().cancelled, calls.stats().parked), (LINKS, 0));
    };
    within(PATIENCE, move || on_a_stack_of(64, test));
}

/// All have ended, and the destructor of each id that is remembered responds to the next one.
#[test]
fn g14_a_chain_of_late_responses_needs_no_stack() {
    /// Its clone, which the library keeps, responds.
    struct Id(u64, Option<Place>, bool);

    type Place = Arc<Mutex<Option<Requests<Id, ()>>>>;

    by_number!(Id);

    impl Clone for Id {
        fn clone(&self) -> Self {
            Self(self.0, self.1.clone(), true)
        }
    }

    impl Drop for Id {
        fn drop(&mut self) {
            let place = self.1.take().filter(|_| self.2);
            if let Some(calls) = place.and_then(|place| lock(&place).clone()) {
                let _ = calls.respond(&Self(self.0 + 1, None, false), ());
                if self.0 + 1 == LINKS {
                    resume_unwind(Box::new("intended"));
                }
            }
        }
    }

    within(PATIENCE, || {
        on_a_stack_of(STACK, || {
            let builder = Requests::<Id, ()>::builder("chain").reaper(Reaper::Manual);
            let calls = builder.remembered_ids(LINKS as usize).build();
            let calls = calls.expect("no threads to refuse");
            let place = Place::default();
            for number in 0..LINKS {
                let id = Id(number, Some(place.clone()), false);
                drop(calls.request(id, Duration::MAX).expect("a new id"));
            }
            *lock(&place) = Some(calls.clone());
            assert_eq!(calls.respond(&Id(0, None, false), ()), Responded::Late(()));
            *lock(&place) = None;
            // The last one has responded to one that never was, and has panicked, which costs the first no response.
            assert_eq!((calls.late(), calls.unknown()), (LINKS, 1));
            assert_eq!(calls.stats().panicked, 1);
        });
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

/// Whether its key panics, or completes the next value, whose key panics, or does either. Each panic counts.
#[test]
fn g12_a_value_that_is_completed_comes_back_though_its_key_panics() {
    for (links, panicked) in [(1, 1), (2, 1), (2, 2)] {
        let tracker = tracker();
        let completes = tracker.clone();
        let panics: Act = Arc::new(|| resume_unwind(Box::new("intended")));
        let next: Act = Arc::new(move || {
            completes.complete(&Acting(1, None));
            if panicked == 2 {
                resume_unwind(Box::new("intended"));
            }
        });
        for (number, act) in (1..=links).zip([panics, next]) {
            let tracked = tracker.track(Acting(number, Some(act)), (), Duration::MAX);
            assert!(tracked.is_ok());
        }
        let complete = || tracker.complete(&Acting(links, None));
        let completed = catch_unwind(AssertUnwindSafe(complete)).ok();
        let counted = tracker.stats().panicked;
        assert_eq!((completed, counted), (Some(Some(())), panicked));
        assert!(tracker.is_empty(), "{links}");
    }
}
