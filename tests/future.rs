//! Futures: on three executors, through every ending, and when they are dropped.

mod support;

use request_purgatory::{
    Awaited, Completion, Completions, Lost, ManualClock, Purgatory, Reaper, Rejected, Wait,
    WaitError, Waiter, Waits, WatchOn,
};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;
use support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Random, Tally, eventually, lock, within};

/// A place where at most one value lies.
type Slot<T> = Arc<Mutex<Option<T>>>;

fn put<T>(slot: &Slot<T>, value: T) {
    *lock(slot) = Some(value);
}

/// Finds what lies in `slot`, and takes it.
fn take<T>(slot: &Slot<T>) -> impl FnMut() -> Option<T> + use<T> {
    let slot = slot.clone();
    move || lock(&slot).take()
}

fn by_hand() -> (Waits<u64>, ManualClock) {
    let clock = ManualClock::new();
    let waits = Waits::builder("by hand")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .build()
        .expect("no threads to refuse");
    (waits, clock)
}

fn assert_empty<T: request_purgatory::DelayedOperation>(purgatory: &Purgatory<T>) {
    assert_eq!((purgatory.delayed(), purgatory.watched()), (0, 0));
    assert_eq!(purgatory.watched_keys(), 0);
    assert_eq!(purgatory.next_deadline(), None, "and no timer");
}

/// Counts its wake-ups.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bell {
    fn new() -> Arc<Self> {
        Arc::default()
    }

    fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn poll<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
        let waker = Waker::from(self.clone());
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    }
}

fn now<F: Future + Unpin>(mut future: F) -> F::Output {
    match Bell::new().poll(&mut future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("still pending"),
    }
}

/// An executor of one task, with nothing but the standard library.
fn bare<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// What every executor has to bear: a value from another thread, a timeout, a race that drops the loser, a shutdown.
async fn on_any_executor() {
    let waits = Waits::<u64>::new("anywhere");
    let slot = Slot::default();
    let found = waits.wait([1, 2], NEVER_IN_A_TEST, take(&slot));
    let setter = thread::spawn({
        let waits = waits.clone();
        move || {
            thread::sleep(Duration::from_millis(5));
            put(&slot, "value");
            waits.check_and_complete(&2)
        }
    });
    assert_eq!(found.await, Ok("value"));
    assert_eq!(setter.join().expect("it does not panic"), 1);

    let expired = waits.wait([1], Duration::from_millis(5), || None::<u8>);
    assert_eq!(expired.await, Err(WaitError::Expired));

    let mut slow = waits.wait([1], NEVER_IN_A_TEST, || None::<u8>);
    let mut quick = waits.wait([2], Duration::from_millis(5), || None::<u8>);
    let first = poll_fn(|cx| match Pin::new(&mut slow).poll(cx) {
        Poll::Pending => Pin::new(&mut quick).poll(cx),
        ready => ready,
    });
    assert_eq!(first.await, Err(WaitError::Expired));
    drop(slow);
    assert_eq!((waits.delayed(), waits.watched_keys()), (0, 0));

    let last = waits.wait([3], NEVER_IN_A_TEST, || None::<u8>);
    let closer = thread::spawn({
        let waits = waits.clone();
        move || waits.shutdown()
    });
    assert_eq!(last.await, Err(WaitError::ShutDown));
    closer.join().expect("it does not panic");

    let fetches = Purgatory::<Awaited<Op>>::new("anywhere");
    let probe = Probe::new();
    let fetch = fetches.completion(probe.op(NEVER_IN_A_TEST), [1]);
    let checker = thread::spawn({
        let fetches = fetches.clone();
        move || {
            thread::sleep(Duration::from_millis(5));
            probe.satisfy();
            fetches.check_and_complete(&1)
        }
    });
    let (_, completion) = fetch.expect("there is room").await.expect("it ends");
    assert_eq!(completion, Completion::Satisfied);
    assert_eq!(checker.join().expect("it does not panic"), 1);
}

#[test]
fn on_tokio() {
    within(PATIENCE, || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build();
        let runtime = runtime.expect("threads for tokio");
        runtime.block_on(async {
            let spawned = tokio::spawn(on_any_executor());
            on_any_executor().await;
            spawned.await.expect("it does not panic");
        });
    });
}

#[test]
fn on_smol() {
    within(PATIENCE, || {
        smol::block_on(async {
            let spawned = smol::spawn(on_any_executor());
            on_any_executor().await;
            spawned.await;
        });
    });
}

#[test]
fn on_a_bare_block_on() {
    within(PATIENCE, || bare(on_any_executor()));
}

#[test]
fn blocking() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("blocking");
        let slot = Slot::default();
        let setter = thread::spawn({
            let (waits, slot) = (waits.clone(), slot.clone());
            move || {
                eventually("the wait", || waits.delayed() == 1);
                put(&slot, 7);
                waits.check_and_complete(&1)
            }
        });
        let found = waits.wait_blocking([1], NEVER_IN_A_TEST, take(&slot));
        assert_eq!(found, Ok(7));
        assert_eq!(setter.join().expect("it does not panic"), 1);
        let expired = waits.wait_blocking([1], Duration::from_millis(2), || None::<u8>);
        assert_eq!(expired, Err(WaitError::Expired));

        let fetches = Purgatory::<Awaited<Op>>::new("blocking");
        let fetch = fetches.completion(Op::new(Duration::from_millis(2)), [1]);
        let (_, completion) = fetch.expect("there is room").wait().expect("it ends");
        assert_eq!(completion, Completion::Expired);
    });
}

/// It would sleep on the very thread that has to wake it.
#[test]
fn blocking_in_a_callback_panics_and_does_not_hang() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("nested");
        let inner = waits.clone();
        let outer = waits.wait([1], NEVER_IN_A_TEST, move || {
            inner.wait_blocking([2], NEVER_IN_A_TEST, || Some(1)).ok()
        });
        assert_eq!(now(outer), Err(WaitError::Panicked));
        assert_eq!(waits.delayed(), 0);
    });
}

#[test]
fn a_value_at_once_parks_nothing_and_types_may_differ() {
    let (waits, _clock) = by_hand();
    let number = waits.wait([1], NEVER_IN_A_TEST, || Some(1_u8));
    let text = waits.wait([1], NEVER_IN_A_TEST, || Some(String::from("text")));
    let unit = waits.wait([1], Duration::ZERO, || Some(()));
    assert!(number.handle().is_none());
    assert_empty(&waits);
    assert_eq!(now(number), Ok(1));
    assert_eq!(now(text), Ok("text".into()));
    assert_eq!(now(unit), Ok(()));
}

#[test]
fn g01_an_event_before_the_first_poll_is_not_missed() {
    let (waits, _clock) = by_hand();
    let slot = Slot::default();
    let looks = Tally::new();
    let mut wait = waits.wait([1], NEVER_IN_A_TEST, {
        let (looks, mut take) = (looks.clone(), take(&slot));
        move || {
            looks.add();
            take()
        }
    });
    assert_eq!(looks.count(), 2, "it is asked by the call");
    put(&slot, 5);
    let bell = Bell::new();
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_empty(&waits);
    assert_eq!(bell.poll(&mut wait), Poll::Ready(Ok(5)));
    assert!(bell.poll(&mut wait).is_pending(), "and only once");
    assert_eq!(looks.count(), 3, "a poll asks nothing");
}

#[test]
fn the_last_waker_is_woken_and_no_other() {
    let (waits, _clock) = by_hand();
    let slot = Slot::default();
    let mut wait = waits.wait([1], NEVER_IN_A_TEST, take(&slot));
    let (first, second) = (Bell::new(), Bell::new());
    assert!(first.poll(&mut wait).is_pending());
    assert!(second.poll(&mut wait).is_pending());
    assert!(second.poll(&mut wait).is_pending());
    assert_eq!(Arc::strong_count(&first), 1, "the old waker is dropped");
    assert_eq!(Arc::strong_count(&second), 2, "the new one is kept once");
    waits.check_and_complete(&1);
    assert_eq!(second.rung(), 0, "a check in vain wakes nobody");
    put(&slot, 1);
    waits.check_and_complete(&1);
    assert_eq!((first.rung(), second.rung()), (0, 1));
    assert_eq!(Arc::strong_count(&second), 1);
    assert_eq!(now(wait), Ok(1));
}

#[test]
fn g05_every_ending_has_its_error() {
    type End = fn(&Waits<u64>, &ManualClock);
    let endings: [(WaitError, End); 6] = [
        (WaitError::Expired, |waits, clock| {
            clock.advance(Duration::from_secs(1));
            assert_eq!(waits.advance(), 1);
        }),
        (WaitError::Forced, |waits, _| {
            assert_eq!(waits.force_complete_for_key(&1), 1);
        }),
        (WaitError::Cancelled, |waits, _| {
            assert_eq!(waits.cancel_for_key(&1).len(), 1);
        }),
        (WaitError::ShutDown, |waits, _| waits.shutdown()),
        (WaitError::Panicked, |waits, _| {
            PANIC.store(true, Ordering::SeqCst);
            assert_eq!(waits.check_and_complete(&1), 0);
        }),
        // The last look, at the deadline, panics.
        (WaitError::Panicked, |waits, clock| {
            PANIC.store(true, Ordering::SeqCst);
            clock.advance(Duration::from_secs(1));
            assert_eq!(waits.advance(), 0);
        }),
    ];
    static PANIC: AtomicBool = AtomicBool::new(false);
    for (error, end) in endings {
        PANIC.store(false, Ordering::SeqCst);
        let (waits, clock) = by_hand();
        let payload = Arc::new(());
        let mut wait = waits.wait([1, 2], Duration::from_secs(1), {
            let payload = payload.clone();
            move || {
                let _ = &payload;
                assert!(!PANIC.load(Ordering::SeqCst), "on purpose");
                None::<u8>
            }
        });
        let bell = Bell::new();
        assert!(bell.poll(&mut wait).is_pending());
        end(&waits, &clock);
        assert_eq!(bell.rung(), 1, "{error:?}");
        assert_eq!(bell.poll(&mut wait), Poll::Ready(Err(error)));
        assert_eq!(Arc::strong_count(&payload), 1, "{error:?}");
        assert!(wait.handle().is_none());
        assert_empty(&waits);
    }
}

#[test]
fn a_refused_wait_resolves_at_once() {
    let clock = ManualClock::new();
    let waits = Waits::<u64>::builder("full")
        .clock(clock)
        .reaper(Reaper::Manual)
        .max_parked(1)
        .build()
        .expect("no threads to refuse");
    let payload = Arc::new(());
    let wait = |keys: &[u64]| {
        let payload = payload.clone();
        let nothing = move || (Arc::strong_count(&payload) == 0).then_some(());
        waits.wait(keys.to_vec(), NEVER_IN_A_TEST, nothing)
    };
    assert_eq!(now(wait(&[])), Err(WaitError::NoKeys));
    let held = wait(&[1]);
    assert_eq!(now(wait(&[1])), Err(WaitError::Full));
    assert_eq!(Arc::strong_count(&payload), 2);
    drop(held);
    let held = wait(&[1]);
    assert_eq!(waits.delayed(), 1, "the place is free again");
    let panics = waits.wait([1], NEVER_IN_A_TEST, || -> Option<u8> {
        panic!("on purpose")
    });
    assert_eq!(now(panics), Err(WaitError::Panicked));
    waits.shutdown();
    assert_eq!(now(held), Err(WaitError::ShutDown));
    assert_eq!(now(wait(&[1])), Err(WaitError::ShutDown));
    assert_eq!(Arc::strong_count(&payload), 1);
    assert_empty(&waits);
}

#[test]
fn a_dropped_purgatory_ends_its_waits() {
    let waits = Waits::<u64>::new("dropped");
    let wait = waits.wait([1], NEVER_IN_A_TEST, || None::<u8>);
    drop(waits);
    assert_eq!(now(wait), Err(WaitError::ShutDown));
}

/// A predicate may have taken it from somewhere.
#[test]
fn what_is_found_at_the_deadline_is_not_thrown_away() {
    let (waits, clock) = by_hand();
    let slot = Slot::default();
    let wait = waits.wait([1], Duration::from_secs(1), take(&slot));
    put(&slot, "late");
    clock.advance(Duration::from_secs(1));
    waits.advance();
    assert_eq!(waits.stats().missed_checks, 1);
    assert_eq!(now(wait), Ok("late"));
}

#[test]
fn g06_dropping_leaves_nothing() {
    let (waits, clock) = by_hand();
    let (slot, bell) = (Slot::<Arc<()>>::default(), Bell::new());
    let wait = || waits.wait([1, 2, 3], Duration::from_secs(1), take(&slot));

    drop(wait());
    assert_empty(&waits);
    assert_eq!(Arc::strong_count(&slot), 1);

    let mut polled = wait();
    assert!(bell.poll(&mut polled).is_pending());
    drop(polled);
    assert_empty(&waits);
    assert_eq!((Arc::strong_count(&slot), Arc::strong_count(&bell)), (1, 1));
    assert_eq!(waits.stats().cancelled, 2);

    // The value is there, and nobody polls.
    let value = Arc::new(());
    let unpolled = wait();
    put(&slot, value.clone());
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_eq!(Arc::strong_count(&value), 2);
    drop(unpolled);
    assert_eq!(Arc::strong_count(&value), 1);

    // The purgatory goes first.
    let orphan = wait();
    drop(waits);
    drop(orphan);
    clock.advance(Duration::from_secs(2));
    assert_eq!((Arc::strong_count(&slot), bell.rung()), (1, 0));
}

/// Nobody waits for a busy predicate; its thread clears away what the dropped future left.
#[test]
fn g06_dropping_while_another_thread_asks() {
    within(PATIENCE, || {
        for finds in [false, true] {
            let waits = Waits::<u64>::new("busy");
            let ((entered, inside), (leave, left)) = (channel(), channel());
            let (payload, mut looks) = (Arc::new(()), 0);
            let mut wait = waits.wait([1], NEVER_IN_A_TEST, {
                let payload = payload.clone();
                move || {
                    looks += 1;
                    (looks > 2).then(|| {
                        entered.send(()).expect("the test waits for it");
                        left.recv().expect("the test lets it go");
                        finds.then(|| payload.clone())
                    })?
                }
            });
            let bell = Bell::new();
            assert!(bell.poll(&mut wait).is_pending());
            let checker = thread::spawn({
                let waits = waits.clone();
                move || waits.check_and_complete(&1)
            });
            inside.recv().expect("the predicate is asked");
            drop(wait);
            assert_eq!(Arc::strong_count(&bell), 1, "the waker is not kept");
            leave.send(()).expect("the predicate waits for it");
            let completed = checker.join().expect("it does not panic");
            assert_eq!(completed, usize::from(finds));
            assert_eq!(bell.rung(), 0);
            assert_eq!(Arc::strong_count(&payload), 1);
            assert_eq!((waits.delayed(), waits.watched_keys()), (0, 0));
        }
    });
}

/// Rings once the predicate is gone.
struct After(Arc<()>, AtomicBool);

impl Wake for After {
    fn wake(self: Arc<Self>) {
        let alone = Arc::strong_count(&self.0) == 1;
        self.1.store(alone, Ordering::SeqCst);
    }
}

#[test]
fn the_predicate_is_gone_before_the_future_hears() {
    let (waits, _clock) = by_hand();
    let after = Arc::new(After(Arc::new(()), AtomicBool::new(false)));
    let (payload, slot) = (after.0.clone(), Slot::default());
    let mut take = take(&slot);
    let mut wait = waits.wait([1], NEVER_IN_A_TEST, move || {
        let _ = &payload;
        take()
    });
    let waker = Waker::from(after.clone());
    let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    put(&slot, 1);
    waits.check_and_complete(&1);
    assert!(after.1.load(Ordering::SeqCst));
    assert_eq!(now(wait), Ok(1));
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[test]
fn g12_a_destructor_that_panics_does_not_keep_the_value_back() {
    let (waits, _clock) = by_hand();
    let slot = Slot::default();
    let (mut take, bomb) = (take(&slot), Bomb);
    let wait = waits.wait([1], NEVER_IN_A_TEST, move || {
        let _ = &bomb;
        take()
    });
    put(&slot, 1);
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_eq!(waits.stats().panicked, 1);
    assert_eq!(now(wait), Ok(1));
    assert_empty(&waits);
}

#[test]
fn g12_a_waker_that_panics_harms_nobody_else() {
    struct Loud;
    impl Wake for Loud {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let (waits, _clock) = by_hand();
    let (slots, bell) = ([Slot::default(), Slot::default()], Bell::new());
    let [mut loud, mut other] = [0, 1].map(|at| waits.wait([1], NEVER_IN_A_TEST, take(&slots[at])));
    let waker = Waker::from(Arc::new(Loud));
    let polled = Pin::new(&mut loud).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending() && bell.poll(&mut other).is_pending());
    slots.iter().for_each(|slot| put(slot, 1));
    assert_eq!(waits.check_and_complete(&1), 2);
    assert_eq!((waits.stats().panicked, bell.rung()), (1, 1));
    assert_eq!((now(loud), now(other)), (Ok(1), Ok(1)));

    // Also where it panics in the destructor of what panicked before.
    let bomb = Bomb;
    let mut loud = waits.wait([1], NEVER_IN_A_TEST, move || {
        let _ = &bomb;
        None::<u8>
    });
    let polled = Pin::new(&mut loud).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let taken = waits.cancel_for_key(&1);
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(taken)));
    assert!(dropped.is_err());
    assert_eq!(now(loud), Err(WaitError::Cancelled));
}

/// As executors do that run a task where it is woken.
#[test]
fn g03_a_waker_may_poll_and_drop_the_future() {
    struct Inline(Slot<Wait<u64, u8>>, Slot<Result<u8, WaitError>>);
    impl Wake for Inline {
        fn wake(self: Arc<Self>) {
            let wait = lock(&self.0).take().expect("woken once");
            put(&self.1, now(wait));
        }
    }
    within(PATIENCE, || {
        let (waits, _clock) = by_hand();
        let (slot, inline) = (Slot::default(), Inline(Slot::default(), Slot::default()));
        let (future, output) = (inline.0.clone(), inline.1.clone());
        let mut wait = waits.wait([1], NEVER_IN_A_TEST, take(&slot));
        let waker = Waker::from(Arc::new(inline));
        let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        put(&future, wait);
        put(&slot, 1);
        assert_eq!(waits.check_and_complete(&1), 1);
        assert_eq!(lock(&output).take(), Some(Ok(1)));
    });
}

#[test]
fn a_handle_moves_the_deadline() {
    let (waits, clock) = by_hand();
    let mut wait = waits.wait([1], Duration::from_secs(1), || None::<u8>);
    let handle = wait.handle().expect("it is parked");
    assert!(handle.reschedule(Duration::from_secs(3)));
    clock.advance(Duration::from_secs(2));
    assert_eq!(waits.advance(), 0);
    let bell = Bell::new();
    assert!(bell.poll(&mut wait).is_pending());
    clock.advance(Duration::from_secs(1));
    assert_eq!(waits.advance(), 1);
    assert_eq!(now(wait), Err(WaitError::Expired));
}

#[test]
fn waits_on_resolved_keys_and_at_ranks() {
    let (waits, _clock) = by_hand();
    let end = Arc::new(AtomicUsize::new(0));
    let topic = waits.key(9);
    let [near, far] = [10, 20].map(|offset| {
        let end = end.clone();
        let watches = [WatchOn::resolved(&topic).at_rank(offset as u64)];
        waits.wait_on(watches, NEVER_IN_A_TEST, move || {
            Some(end.load(Ordering::SeqCst)).filter(|&end| end >= offset)
        })
    });
    end.store(15, Ordering::SeqCst);
    assert_eq!(waits.check_and_complete_up_to(&9, 15), 1);
    assert_eq!(waits.stats().checks, 1, "only the nearer one");
    assert_eq!(now(near), Ok(15));
    end.store(20, Ordering::SeqCst);
    assert_eq!(topic.check_and_complete(), 1);
    assert_eq!(now(far), Ok(20));
}

#[test]
fn futures_are_send_and_debug() {
    fn check<T: Send + Sync + Unpin + std::fmt::Debug + 'static>() {}
    check::<Wait<u64, u8>>();
    check::<Waits<u64>>();
    fn sendable<T: Send + Unpin + 'static>() {}
    sendable::<request_purgatory::Completing<Op>>();
    sendable::<Waiter<u64>>();
}

fn fetches(completions: Completions) -> (Purgatory<Awaited<Op>>, ManualClock) {
    let clock = ManualClock::new();
    let fetches = Purgatory::builder("fetches")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .completions(completions)
        .max_parked(2)
        .build()
        .expect("no threads to refuse");
    (fetches, clock)
}

#[test]
fn g05_a_completion_gives_the_operation_back_and_calls_nothing() {
    type End = fn(&Purgatory<Awaited<Op>>, &ManualClock, &Probe);
    let endings: [(Completion, End); 4] = [
        (Completion::Satisfied, |fetches, _, probe| {
            probe.satisfy();
            assert_eq!(fetches.check_and_complete(&2), 1);
        }),
        (Completion::Satisfied, |fetches, _, _| {
            assert_eq!(fetches.force_complete_for_key(&1), 1);
        }),
        (Completion::Expired, |fetches, clock, _| {
            clock.advance(Duration::from_secs(1));
            assert_eq!(fetches.advance(), 1);
        }),
        (Completion::ShutDown, |fetches, _, _| fetches.shutdown()),
    ];
    for (expected, end) in endings {
        let (fetches, clock) = fetches(Completions::Inline);
        let (probe, bell) = (Probe::new(), Bell::new());
        let op = probe.op(Duration::from_secs(1));
        let mut fetch = fetches.completion(op, [1, 2]).expect("there is room");
        assert!(bell.poll(&mut fetch).is_pending());
        end(&fetches, &clock, &probe);
        assert_eq!(bell.rung(), 1);
        let (op, completion) = now(fetch).expect("it has ended");
        assert_eq!(completion, expected);
        assert_eq!(probe.ending(), None, "on_complete is the caller's affair");
        drop(op);
        assert_eq!(Arc::strong_count(&probe), 1);
        assert_empty(&fetches);
    }
}

#[test]
fn an_operation_that_is_lost_says_why() {
    let (fetches, _clock) = fetches(Completions::Inline);
    let probe = Probe::new();

    let cancelled = fetches.completion(probe.op(NEVER_IN_A_TEST), [1]);
    let taken = fetches.cancel_for_key(&1).pop().expect("it is parked");
    let op = taken.into_operation();
    assert_eq!(
        now(cancelled.expect("there is room")).err(),
        Some(Lost::Cancelled)
    );
    drop(op);

    let mut looks = 0;
    let panics = fetches.completion(
        Op::new(NEVER_IN_A_TEST).when(move || {
            looks += 1;
            assert!(looks < 3, "on purpose");
            false
        }),
        [1],
    );
    fetches.check_and_complete(&1);
    assert_eq!(
        now(panics.expect("there is room")).err(),
        Some(Lost::Panicked)
    );

    // Taken back by handle.
    let fetch = fetches.completion(probe.op(NEVER_IN_A_TEST), [1]);
    let fetch = fetch.expect("there is room");
    assert!(fetch.handle().and_then(|handle| handle.cancel()).is_some());
    assert_eq!(now(fetch).err(), Some(Lost::Cancelled));

    // Dropped.
    let fetch = fetches.completion(probe.op(NEVER_IN_A_TEST), [1, 2]);
    assert_eq!(fetches.delayed(), 1);
    drop(fetch);
    assert_eq!((probe.ending(), Arc::strong_count(&probe)), (None, 1));
    assert_empty(&fetches);
}

#[test]
fn a_refused_operation_comes_back() {
    let (fetches, _clock) = fetches(Completions::Inline);
    let refused = fetches.completion(Op::new(NEVER_IN_A_TEST), []);
    assert!(matches!(refused, Err(Rejected::NoKeys(Op { .. }))));
    let parked = [1, 2].map(|key| {
        let parked = fetches.completion(Op::new(NEVER_IN_A_TEST), [key]);
        parked.expect("there is room")
    });
    let refused = fetches.completion(Op::new(NEVER_IN_A_TEST), [1]);
    assert!(matches!(refused, Err(Rejected::Full(Op { .. }))));
    drop(parked);
    fetches.shutdown();
    let refused = fetches.completion(Op::new(NEVER_IN_A_TEST), [1]);
    assert!(matches!(refused, Err(Rejected::ShutDown(Op { .. }))));
}

#[test]
fn an_operation_that_nobody_awaits_has_its_callback() {
    let (fetches, _clock) = fetches(Completions::Inline);
    let probe = Probe::new();
    let op = Awaited::new(probe.op(NEVER_IN_A_TEST));
    let watch = fetches.try_complete_else_watch(op, [1]);
    assert!(watch.expect("there is room").is_parked());
    probe.satisfy();
    assert_eq!(fetches.check_and_complete(&1), 1);
    assert_eq!(probe.ending(), Some(Completion::Satisfied));
}

/// Values, timeouts and drops against checks from other threads: whoever stays learns its end, and nothing is left.
#[test]
fn g01_many_tasks_many_checkers() {
    const TASKS: usize = 4_000;
    const KEYS: u64 = 8;
    within(PATIENCE, || {
        let runtime = tokio::runtime::Runtime::new().expect("threads for tokio");
        let waits = Waits::<u64>::new("many");
        let stop = Arc::new(AtomicBool::new(false));
        let epoch = Arc::new(AtomicUsize::new(0));
        let checkers = [0, 1].map(|_| {
            let (waits, stop, epoch) = (waits.clone(), stop.clone(), epoch.clone());
            thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    epoch.fetch_add(1, Ordering::SeqCst);
                    for key in 0..KEYS {
                        waits.check_and_complete(&key);
                    }
                    thread::yield_now();
                }
            })
        });
        let mut random = Random::new(11);
        let payload = Arc::new(());
        let tasks = (0..TASKS).map(|_| {
            let (waits, epoch, payload) = (waits.clone(), epoch.clone(), payload.clone());
            let (keys, kind) = ([random.below(KEYS), random.below(KEYS)], random.below(4));
            runtime.spawn(async move {
                let begun = epoch.load(Ordering::SeqCst);
                // (The timeout is longer than any test: a lost wake-up hangs.)
                let timeout = match kind {
                    0 => Duration::from_millis(1),
                    _ => NEVER_IN_A_TEST,
                };
                let needed = if kind == 1 { usize::MAX } else { begun + 3 };
                let mut wait = waits.wait(keys, timeout, move || {
                    let _ = &payload;
                    Some(epoch.load(Ordering::SeqCst)).filter(|&epoch| epoch >= needed)
                });
                if kind == 1 {
                    let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut wait).poll(cx))).await;
                    tokio::task::yield_now().await;
                    drop(wait);
                    return polled.is_pending();
                }
                match wait.await {
                    Ok(epoch) => epoch >= needed,
                    Err(WaitError::Expired) => kind == 0,
                    Err(_) => false,
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            assert!(runtime.block_on(task).expect("it does not panic"));
        }
        stop.store(true, Ordering::SeqCst);
        for checker in checkers {
            checker.join().expect("it does not panic");
        }
        eventually("the end of all", || {
            (waits.delayed(), waits.watched_keys()) == (0, 0) && Arc::strong_count(&payload) == 1
        });
        assert_eq!(waits.stats().panicked, 0);
    });
}
