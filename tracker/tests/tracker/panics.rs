//! G12, G14, G15: destructors, wakers and clocks that panic together. Each panic is caught by itself: of two panics
//! that unwind at once, the process would die.

use crate::delivered;
use crate::support::{PATIENCE, lock, threads_named, within};
use request_purgatory::future::block_on;
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::{Clock, ManualClock, Timestamp};
use request_purgatory::{Deadline, WaitError};
use request_purgatory_tracker::{RejectReason, Requests, ResponseFuture, Tracker};
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);
const COUNT: usize = 6;

fn panics() -> ! {
    resume_unwind(Box::new("intended"))
}

/// Whether the call panics.
fn unwinds<R>(call: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(call()))).is_err()
}

/// While it is lit, the bombs that share it panic when they are dropped.
#[derive(Clone, Default)]
struct Fuse(Arc<(AtomicBool, AtomicUsize)>);

impl Fuse {
    fn light(&self, is_lit: bool) {
        self.0.0.store(is_lit, Ordering::SeqCst);
    }

    /// How many bombs have panicked.
    fn count(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }

    fn bomb(&self, number: usize) -> Bomb {
        Bomb(number, self.clone())
    }
}

/// A key, a value, a response or a waker whose destructor panics while its fuse is lit.
#[derive(Clone)]
struct Bomb(usize, Fuse);

impl Drop for Bomb {
    fn drop(&mut self) {
        let (is_lit, panicked) = &*self.1.0;
        if is_lit.load(Ordering::SeqCst) {
            panicked.fetch_add(1, Ordering::SeqCst);
            panics();
        }
    }
}

impl PartialEq for Bomb {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Bomb {}

impl Hash for Bomb {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {}
}

/// Wakes by doing something.
struct Do<F>(F);

impl<F: Fn() + Send + Sync> Wake for Do<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn panicking_waker() -> Waker {
    Arc::new(Do(|| panics())).into()
}

fn await_with(future: &mut (impl Future + Unpin), waker: &Waker) {
    let polled = Pin::new(future).poll(&mut Context::from_waker(waker));
    assert!(polled.is_pending());
}

/// Every other waker queues a destructor that panics, and the others panic themselves.
fn await_with_bad_wakers(pending: &mut [ResponseFuture<usize, u32>], fuse: &Fuse) {
    for future in pending {
        let waker = match future.id() % 2 {
            0 => queueing_waker(fuse),
            _ => panicking_waker(),
        };
        await_with(future, &waker);
    }
}

/// A future whose response has come and is not received, and panics when it is dropped.
fn answered(fuse: &Fuse) -> ResponseFuture<u32, Bomb> {
    let calls = Requests::builder("other").reaper(Reaper::Manual).build();
    let calls = calls.expect("no threads to refuse");
    let future = calls.request(1, Duration::MAX).expect("room");
    assert!(delivered(calls.respond(&1, fuse.bomb(0))));
    future
}

/// A waker that drops such a future when it wakes for the first time. The response then waits in the queue of the
/// thread.
fn queueing_waker(fuse: &Fuse) -> Waker {
    let future = Mutex::new(Some(answered(fuse)));
    Arc::new(Do(move || drop(lock(&future).take()))).into()
}

/// Panics when it was read this number of times.
#[derive(Clone)]
struct Breaks(Arc<AtomicUsize>);

impl Breaks {
    fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }

    fn after(&self, readings: usize) {
        self.0.store(readings, Ordering::SeqCst);
    }
}

impl Clock for Breaks {
    fn now(&self) -> Timestamp {
        match self.0.fetch_sub(1, Ordering::SeqCst) {
            0 => panics(),
            _ => Timestamp::default(),
        }
    }
}

fn requests<K, R>() -> Requests<K, R>
where
    K: request_purgatory::purgatory::Key,
    R: Send + 'static,
{
    let calls = Requests::builder("panics").reaper(Reaper::Manual).build();
    calls.expect("no threads to refuse")
}

fn tracker<K, V>() -> Tracker<K, V>
where
    K: request_purgatory::purgatory::Key,
    V: Send + 'static,
{
    let builder = Tracker::builder("panics").reaper(Reaper::Manual);
    let tracker = builder.build(|_, _, _| ());
    tracker.expect("no threads to refuse")
}

/// The requests are answered while they are picked, so no request needs the response that was made for it.
#[test]
fn g12_responses_that_no_request_needs_are_dropped_one_by_one() {
    let (calls, fuse) = (requests::<usize, Option<Bomb>>(), Fuse::default());
    let request = |id| calls.request(id, Duration::MAX).expect("room");
    let pending = (0..COUNT).map(request).collect::<Vec<_>>();
    fuse.light(true);
    let response = |id: &usize| {
        assert!(delivered(calls.respond(id, None)));
        Some(fuse.bomb(*id))
    };
    assert_eq!(calls.fail_all_with(response), 0);
    assert_eq!(fuse.count(), COUNT);
    assert_eq!(calls.stats().panicked, COUNT as u64);
    for future in pending {
        assert!(block_on(future).is_ok_and(|response| response.is_none()));
    }
}

/// The caller hears of the panic when every request has its response.
#[test]
fn g14_requests_that_fail_together_get_their_responses_before_a_queued_panic_goes_on() {
    let (calls, fuse) = (requests::<usize, u32>(), Fuse::default());
    let request = |id| calls.request(id, Duration::MAX).expect("room");
    let mut pending = (0..COUNT).map(request).collect::<Vec<_>>();
    await_with_bad_wakers(&mut pending, &fuse);
    fuse.light(true);
    assert!(unwinds(|| calls.fail_all_with(|_| 9)));
    assert_eq!(fuse.count(), COUNT / 2);
    assert_eq!(calls.stats().panicked, COUNT as u64 / 2);
    for future in pending {
        assert_eq!(block_on(future), Ok(9));
    }
}

/// A shutdown passes on no panic: it has threads to join.
#[test]
fn g15_a_shutdown_joins_its_threads_though_a_queued_destructor_panics() {
    within(PATIENCE, || {
        let (calls, fuse) = (Requests::<usize, u32>::new("g15-queue"), Fuse::default());
        let request = |id| calls.request(id, PATIENCE * 2).expect("room");
        let mut pending = (0..COUNT).map(request).collect::<Vec<_>>();
        await_with_bad_wakers(&mut pending, &fuse);
        fuse.light(true);
        calls.shutdown();
        assert!(threads_named("g15-queue").is_empty());
        assert_eq!(fuse.count(), COUNT / 2);
        // Of the panics in the queue, the first one comes out, and is counted.
        assert_eq!(calls.stats().panicked, COUNT as u64 / 2 + 1);
        for future in pending {
            assert_eq!(block_on(future), Err(WaitError::ShutDown));
        }
    });
}

/// Neither the copies of the ids nor the ids of the requests that have ended.
#[test]
fn g12_ids_that_panic_when_they_are_dropped_keep_no_answer_from_a_request() {
    for shut_down in [false, true] {
        let (calls, fuse) = (requests::<Bomb, u32>(), Fuse::default());
        let request = |id| calls.request(fuse.bomb(id), Duration::MAX).expect("room");
        let pending = (0..COUNT).map(request).collect::<Vec<_>>();
        fuse.light(true);
        let (answer, dropped) = match shut_down {
            true => {
                calls.shutdown();
                (Err(WaitError::ShutDown), COUNT)
            }
            false => {
                assert_eq!(calls.fail_all_with(|_| 9), COUNT);
                (Ok(9), COUNT * 2)
            }
        };
        fuse.light(false);
        assert_eq!(fuse.count(), dropped);
        assert_eq!(calls.stats().panicked, dropped as u64);
        for future in pending {
            assert_eq!(block_on(future), answer);
        }
    }
}

/// The requests that have ended by then are told so. The others are pending still.
#[test]
fn g12_a_clock_that_panics_while_requests_fail_may_meet_wakers_and_destructors_that_panic() {
    let (clock, fuse) = (Breaks::new(), Fuse::default());
    let builder = Requests::<Bomb, Bomb>::builder("panics").reaper(Reaper::Manual);
    let calls = builder.clock(clock.clone()).build();
    let calls = calls.expect("no threads to refuse");
    let request = |id| calls.request(fuse.bomb(id), Duration::MAX).expect("room");
    let mut pending = (0..COUNT).map(request).collect::<Vec<_>>();
    for future in &mut pending {
        await_with(future, &panicking_waker());
    }
    fuse.light(true);
    let response = |id: &Bomb| {
        clock.after(2);
        fuse.bomb(id.0)
    };
    assert!(unwinds(|| calls.fail_all_with(response)));
    clock.after(usize::MAX);
    fuse.light(false);
    // The copies of the ids, the responses, and the ids of the two requests that have ended.
    assert_eq!(fuse.count(), COUNT + COUNT + 2);
    assert_eq!(calls.stats().panicked as usize, fuse.count() + 2);
    assert_eq!(calls.len(), COUNT - 2);
    calls.shutdown();
    for future in pending {
        assert!(block_on(future).is_err_and(|error| error == WaitError::ShutDown));
    }
}

/// A closure that panics in the middle, a clock that does, and a call that goes well.
#[test]
fn g12_the_copies_and_the_values_of_a_withdrawal_are_dropped_one_by_one() {
    let (clock, fuse) = (Breaks::new(), Fuse::default());
    let builder = Tracker::<Bomb, Bomb>::builder("panics").reaper(Reaper::Manual);
    let tracker = builder.clock(clock.clone()).build(|_, _, _| ());
    let tracker = tracker.expect("no threads to refuse");
    for number in 0..COUNT {
        let (key, value) = (fuse.bomb(number), fuse.bomb(number));
        assert!(tracker.track(key, value, Duration::MAX).is_ok());
    }
    fuse.light(true);
    let mut asked = 0;
    let stops = |_: &Bomb, _: &Bomb| {
        asked += 1;
        asked < 3 || panics()
    };
    assert!(unwinds(|| tracker.withdraw_where(stops)));
    assert_eq!((fuse.count(), tracker.len()), (COUNT * 2, COUNT));
    let breaks = |_: &Bomb, _: &Bomb| {
        clock.after(2);
        true
    };
    assert!(unwinds(|| tracker.withdraw_where(breaks)));
    clock.after(usize::MAX);
    assert_eq!((fuse.count(), tracker.len()), (COUNT * 4 + 4, COUNT - 2));
    let withdrawn = tracker.withdraw_where(|_, _| true);
    fuse.light(false);
    assert_eq!(withdrawn.len(), COUNT - 2);
    let expected = COUNT * 4 + 4 + (COUNT - 2) * 2;
    assert_eq!(fuse.count(), expected);
    assert_eq!(tracker.stats().panicked, expected as u64);
}

#[test]
fn g12_the_key_and_the_value_of_an_entry_are_dropped_one_by_one_by_the_last_handle() {
    let (tracker, fuse) = (tracker::<Bomb, Bomb>(), Fuse::default());
    for number in 0..COUNT {
        let (key, value) = (fuse.bomb(number), fuse.bomb(number));
        assert!(tracker.track(key, value, Duration::MAX).is_ok());
    }
    fuse.light(true);
    drop(tracker);
    assert_eq!(fuse.count(), COUNT * 2);
}

/// A drop shuts down, and passes on no panic.
#[test]
fn g15_the_drop_of_the_last_handle_passes_on_no_queued_panic() {
    let (tracker, fuse) = (
        tracker::<usize, ResponseFuture<u32, Bomb>>(),
        Fuse::default(),
    );
    for key in 0..COUNT {
        assert!(tracker.track(key, answered(&fuse), Duration::MAX).is_ok());
    }
    fuse.light(true);
    assert!(!unwinds(|| tracker));
    assert_eq!(fuse.count(), COUNT);
}

/// The caller gets the value, and the panic is counted.
#[test]
fn g12_a_key_that_panics_when_it_is_dropped_takes_no_value_along() {
    let (tracker, fuse) = (tracker::<Bomb, usize>(), Fuse::default());
    let key = fuse.bomb(1);
    let (token, _) = tracker.track(fuse.bomb(1), 1, Duration::MAX).expect("room");
    fuse.light(true);
    let refused = tracker.try_track(fuse.bomb(1), 2, Duration::MAX);
    let refused = refused.map_err(|refused| refused.into_parts());
    assert_eq!(refused, Err((RejectReason::Duplicate, 2)));
    let replaced = tracker.track(fuse.bomb(1), 3, Duration::MAX).expect("room");
    assert_eq!((replaced.0 > token, replaced.1), (true, Some(1)));
    assert_eq!(tracker.complete(&key), Some(3));
    let tracked = tracker.track(fuse.bomb(1), 4, Duration::MAX).expect("room");
    assert_eq!(tracker.complete_if(&key, tracked.0), Some(4));
    tracker.shutdown();
    let refused = tracker.track(fuse.bomb(1), 5, Duration::MAX);
    let refused = refused.map_err(|refused| refused.into_parts());
    assert_eq!(refused, Err((RejectReason::ShutDown, 5)));
    fuse.light(false);
    assert_eq!((fuse.count(), tracker.stats().panicked), (5, 5));
}

/// The response is the request's, whatever the id does.
#[test]
fn g12_an_id_and_a_queued_destructor_may_panic_when_a_response_comes() {
    let (calls, fuse) = (requests::<Bomb, u32>(), Fuse::default());
    let ids = [0, 1].map(|id| fuse.bomb(id));
    let [plain, mut queueing] = ids
        .clone()
        .map(|id| calls.request(id, Duration::MAX).expect("room"));
    await_with(&mut queueing, &queueing_waker(&fuse));
    fuse.light(true);
    assert!(delivered(calls.respond(&ids[0], 7)));
    assert_eq!((fuse.count(), calls.stats().panicked), (1, 1));
    assert!(unwinds(|| calls.respond(&ids[1], 8)));
    fuse.light(false);
    assert_eq!((fuse.count(), calls.stats().panicked), (3, 2));
    assert_eq!((block_on(plain), block_on(queueing)), (Ok(7), Ok(8)));
}

/// The caller hears of one panic. Each part is dropped.
#[test]
fn g12_what_a_future_drops_may_panic_together() {
    let (calls, fuse) = (requests::<Bomb, Bomb>(), Fuse::default());
    let request = |id| calls.request(fuse.bomb(id), Duration::MAX).expect("room");
    // The response and the id of the future.
    let (future, id) = (request(1), fuse.bomb(1));
    assert!(delivered(calls.respond(&id, fuse.bomb(1))));
    fuse.light(true);
    assert!(unwinds(|| future));
    fuse.light(false);
    assert_eq!(fuse.count(), 2);
    // The waker, the id of the request and the id of the future.
    let mut future = request(2);
    await_with(&mut future, &Arc::new(fuse.bomb(0)).into());
    fuse.light(true);
    assert!(unwinds(|| future));
    fuse.light(false);
    assert_eq!((fuse.count(), calls.len()), (5, 0));
}

#[test]
fn g12_the_waker_and_the_id_of_an_expired_request_may_panic_together() {
    let (clock, fuse) = (ManualClock::new(), Fuse::default());
    let builder = Requests::<Bomb, u32>::builder("panics").clock(clock.clone());
    let builder = builder.reaper(Reaper::Manual).dispatch(Dispatch::Inline);
    let calls = builder.build().expect("no threads to refuse");
    let deadline = Deadline::from(TICK);
    let request = |id| calls.request(fuse.bomb(id), deadline).expect("room");
    let mut pending = (0..COUNT).map(request).collect::<Vec<_>>();
    for future in &mut pending {
        await_with(future, &panicking_waker());
    }
    clock.advance(TICK);
    fuse.light(true);
    assert_eq!(calls.advance(), COUNT);
    fuse.light(false);
    assert_eq!(fuse.count(), COUNT);
    assert_eq!(calls.stats().panicked, COUNT as u64 * 2);
    for future in pending {
        assert_eq!(block_on(future), Err(WaitError::Expired));
    }
}
