//! G12, G14, G15: wakers that panic beside a destructor, queued destructors, and clocks that panic half-way. A
//! destructor that panics alone, in any call, is in `keys.rs`.

use crate::support::bell::waker;
use crate::support::keys::{Fragile, Hook, fragile, fragile_keys, with_fuse, with_one_panic_after};
use crate::support::{Mint, PATIENCE, lock, threads_named, within};
use crate::{delivered, manual_requests, manual_tracker, panicking_waker, poll_in_vain};
use request_purgatory::WaitError;
use request_purgatory::future::block_on;
use request_purgatory::time::{Clock, ManualClock, Timestamp};
use request_purgatory_tracker::{RejectReason, Rejected, Requests, ResponseFuture};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

/// The key, and the value or the response, whose destructor panics.
const KEY: u32 = 1;
const VALUE: u32 = 101;

/// The caller gets the value, and the panic is counted.
#[test]
fn g12_a_key_that_panics_when_it_is_dropped_takes_no_value_along() {
    let (tracker, _) = manual_tracker::<Fragile, u32>(|builder| builder, |_, _, _| ());
    let key = fragile(KEY);
    let (token, _) = tracker.track(fragile(KEY), 1, TICK).expect("room");
    let called = with_fuse(KEY, Hook::Drop, || {
        let refused = tracker.try_track(fragile(KEY), 2, TICK);
        let refused = refused.map_err(Rejected::into_parts);
        assert_eq!(refused, Err((RejectReason::Duplicate, 2)));
        let replaced = tracker.track(fragile(KEY), 3, TICK).expect("room");
        assert_eq!((replaced.0 > token, replaced.1), (true, Some(1)));
        assert_eq!(tracker.complete(&key), Some(3));
        let tracked = tracker.track(fragile(KEY), 4, TICK).expect("room");
        assert_eq!(tracker.complete_if(&key, tracked.0), Some(4));
        tracker.shutdown();
        let refused = tracker.track(fragile(KEY), 5, TICK);
        let refused = refused.map_err(Rejected::into_parts);
        assert_eq!(refused, Err((RejectReason::ShutDown, 5)));
    });
    assert!(called.is_ok(), "no panic of a key comes out");
    assert_eq!(tracker.stats().panicked, 5);
}

/// The answer is the request's, whatever its waker and its id do. Both panics are counted.
#[test]
fn g12_the_waker_and_the_id_of_a_request_that_ends_may_panic() {
    type End = fn(&Requests<Fragile, u32>, &ManualClock);
    const ENDS: [(End, Result<u32, WaitError>); 3] = [
        (
            |calls, _| assert!(delivered(calls.respond(&fragile(KEY), 7))),
            Ok(7),
        ),
        (|calls, _| calls.shutdown(), Err(WaitError::ShutDown)),
        (
            |calls, clock| {
                clock.advance(TICK);
                assert_eq!(calls.advance(), 1);
            },
            Err(WaitError::Expired),
        ),
    ];
    for (end, answer) in ENDS {
        let (calls, clock) = manual_requests::<Fragile, u32>(|builder| builder);
        let mut future = calls.request(fragile(KEY), TICK).expect("room");
        poll_in_vain(&mut future, &panicking_waker());
        let ended = with_one_panic_after(0, KEY, Hook::Drop, || end(&calls, &clock));
        assert!(matches!(ended, Some(Ok(()))), "{answer:?}");
        assert_eq!(calls.stats().panicked, 2, "{answer:?}");
        assert_eq!(block_on(future), answer);
    }
}

/// A thread drops a future, and this drop runs four destructors. One of them panics: the destructor of the response that
/// nobody has received, of the waker, of the future's copy of the id, or of the tracker's copy of the id.
#[test]
fn g12_a_destructor_that_a_dropped_future_runs_panics_in_its_caller() {
    const WAKER: u32 = 201;
    for (number, calls) in [(VALUE, 0), (WAKER, 0), (KEY, 0), (KEY, 1)] {
        let (requests, _) = manual_requests::<Fragile, Fragile>(|builder| builder);
        let mut future = requests.request(fragile(KEY), TICK).expect("room");
        let owned = fragile(WAKER);
        poll_in_vain(&mut future, &waker(move || _ = &owned));
        if number == VALUE {
            assert!(delivered(requests.respond(future.id(), fragile(VALUE))));
        }
        let dropped = with_one_panic_after(calls, number, Hook::Drop, || drop(future));
        assert!(matches!(dropped, Some(Err(_))), "{number}, {calls}");
        assert_eq!(requests.len(), 0, "{number}, {calls}");
    }
}

/// A future whose response has come and is not received. The destructor of the response panics.
fn answered() -> ResponseFuture<u32, Fragile> {
    let (calls, _) = manual_requests::<u32, Fragile>(|builder| builder);
    let future = calls.request(1, Duration::MAX).expect("room");
    assert!(delivered(calls.respond(&1, fragile(VALUE))));
    future
}

/// A waker that drops such a future when it wakes for the first time. The response then waits in the queue of the
/// thread.
fn queueing_waker() -> Waker {
    let future = Mutex::new(Some(answered()));
    waker(move || drop(lock(&future).take()))
}

/// One of these wakers queues a destructor that panics, and five panic themselves.
fn await_with_bad_wakers(calls: &Requests<u32, u32>) -> Vec<ResponseFuture<u32, u32>> {
    let request = |id| {
        let mut future = calls.request(id, PATIENCE * 2).expect("room");
        let waker = match id {
            0 => queueing_waker(),
            _ => panicking_waker(),
        };
        poll_in_vain(&mut future, &waker);
        future
    };
    (0..6).map(request).collect()
}

/// The caller hears of the panic when every request has its response.
#[test]
fn g14_requests_get_their_responses_before_a_queued_panic_goes_on() {
    let (calls, _) = manual_requests::<u32, u32>(|builder| builder);
    let pending = await_with_bad_wakers(&calls);
    let failed = with_one_panic_after(0, VALUE, Hook::Drop, || calls.fail_all_with(|_| 9));
    assert!(matches!(failed, Some(Err(_))));
    assert_eq!(calls.stats().panicked, 5);
    for future in pending {
        assert_eq!(block_on(future), Ok(9));
    }
    let mut pending = calls.request(7, TICK).expect("room");
    poll_in_vain(&mut pending, &queueing_waker());
    let responded = with_one_panic_after(0, VALUE, Hook::Drop, || calls.respond(&7, 8));
    assert!(matches!(responded, Some(Err(_))));
    assert_eq!(block_on(pending), Ok(8));
}

/// A shutdown passes on no panic: it has threads to join.
#[test]
fn g15_a_shutdown_joins_its_threads_though_a_queued_destructor_panics() {
    within(PATIENCE, || {
        let calls = Requests::<u32, u32>::new("g15-queue");
        let pending = await_with_bad_wakers(&calls);
        let shut_down = with_one_panic_after(0, VALUE, Hook::Drop, || calls.shutdown());
        assert!(matches!(shut_down, Some(Ok(()))));
        assert!(threads_named("g15-queue").is_empty());
        assert_eq!(calls.stats().panicked, 6);
        for future in pending {
            assert_eq!(block_on(future), Err(WaitError::ShutDown));
        }
    });
}

/// A drop shuts down, and passes on no panic: not that of a key, and not a queued one.
#[test]
fn g15_the_drop_of_the_last_handle_passes_on_no_panic() {
    for number in [KEY, VALUE] {
        let before = fragile_keys();
        let (tracker, _) = manual_tracker(|builder| builder, |_, _, _| ());
        for key in [KEY, 2] {
            assert!(tracker.track(fragile(key), answered(), TICK).is_ok());
        }
        let dropped = with_one_panic_after(0, number, Hook::Drop, || drop(tracker));
        assert!(matches!(dropped, Some(Ok(()))), "{number}");
        assert_eq!(fragile_keys(), before, "{number}");
    }
}

/// Panics when it was read this number of times.
#[derive(Clone)]
struct Breaks(Arc<AtomicUsize>);

impl Breaks {
    fn after(&self, readings: usize) {
        self.0.store(readings, Ordering::SeqCst);
    }
}

impl Clock for Breaks {
    fn now(&self) -> Timestamp {
        match self.0.fetch_sub(1, Ordering::SeqCst) {
            0 => resume_unwind(Box::new("intended")),
            _ => Timestamp::default(),
        }
    }
}

/// The clock is read when all closures have run, and before the first request or value ends.
#[test]
fn g12_a_clock_that_panics_while_many_end_ends_none() {
    const COUNT: usize = 6;
    let clock = Breaks(Arc::new(AtomicUsize::new(usize::MAX)));
    let (calls, _) = manual_requests::<usize, u32>(|builder| builder.clock(clock.clone()));
    let request = |id| calls.request(id, Duration::MAX).expect("room");
    let mut pending = (0..COUNT).map(request).collect::<Vec<_>>();
    for future in &mut pending {
        poll_in_vain(future, &panicking_waker());
    }
    let fails = || {
        calls.fail_all_with(|_| {
            clock.after(0);
            9
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(fails)).is_err());
    clock.after(usize::MAX);
    assert_eq!((calls.len(), calls.stats().panicked), (COUNT, 0));
    calls.shutdown();
    for future in pending {
        assert_eq!(block_on(future), Err(WaitError::ShutDown));
    }

    let (tracker, _) = manual_tracker(|builder| builder.clock(clock.clone()), |_, _, _| ());
    let mint = Mint::default();
    for key in 0..COUNT {
        let value = Arc::new(mint.token(0));
        assert!(tracker.track(key, value, Duration::MAX).is_ok());
    }
    let withdraws = || {
        tracker.withdraw_where(|_, _| {
            clock.after(0);
            true
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(withdraws)).is_err());
    clock.after(usize::MAX);
    assert_eq!((tracker.len(), mint.living()), (COUNT, COUNT as u64));
    assert_eq!(tracker.withdraw_where(|_, _| true).len(), COUNT);
}
