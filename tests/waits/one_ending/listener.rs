//! Listeners: what they are told, when, and what is left of them.

use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, PATIENCE, eventually, within};
use crate::{assert_empty, by_hand};
use request_purgatory::future::{Listener, WaitError};
use request_purgatory::threads::Reaper;
use request_purgatory::time::{ManualClock, WakeFn};
use request_purgatory::{CheckBound, Purgatory, Waits, Watch};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

/// One call of `checked`, polled once and then dropped.
fn checked(bell: &Arc<Bell>, listener: &mut Listener<u64>) -> Poll<Result<(), WaitError>> {
    let waker = Waker::from(bell.clone());
    pin!(listener.checked()).poll(&mut Context::from_waker(&waker))
}

const CHECKED: Poll<Result<(), WaitError>> = Poll::Ready(Ok(()));
const EXPIRED: Poll<Result<(), WaitError>> = Poll::Ready(Err(WaitError::Expired));

#[test]
fn g01_a_check_after_the_call_is_told_and_those_in_between_are_one() {
    let (waits, _clock) = by_hand();
    let bell = Bell::new();
    waits.check_and_complete(&1);
    let mut listener = waits.listen([1, 2], NEVER_IN_A_TEST);
    assert_eq!(
        checked(&bell, &mut listener),
        Poll::Pending,
        "the park itself is no check"
    );
    for _ in 0..3 {
        for key in [1, 2, 1] {
            assert_eq!(waits.check_and_complete(&key), 0, "it stays parked");
        }
        assert_eq!(checked(&bell, &mut listener), CHECKED);
        assert_eq!(checked(&bell, &mut listener), Poll::Pending);
    }
    assert_eq!(bell.rung(), 3, "once for the checks in between");
    waits.check_and_complete(&3);
    assert_eq!(bell.rung(), 3, "not a key of its");
    // Nor need the check name a key.
    waits.check_and_complete_all([&1, &2]);
    assert_eq!(checked(&bell, &mut listener), CHECKED);
    assert!(!listener.handle().expect("it is parked").check());
    assert_eq!(checked(&bell, &mut listener), CHECKED);
    assert_eq!((waits.stats().parked, waits.stats().watched), (1, 2));
}

/// A call that was dropped has taken nothing: the check comes to the next one, and the last waker is woken.
#[test]
fn g01_a_dropped_call_takes_no_check_with_it() {
    let (waits, _clock) = by_hand();
    let (first, second) = (Bell::new(), Bell::new());
    let mut listener = waits.listen([1], NEVER_IN_A_TEST);
    assert_eq!(checked(&first, &mut listener), Poll::Pending);
    waits.check_and_complete(&1);
    drop(listener.checked());
    assert_eq!(checked(&first, &mut listener), CHECKED);
    assert_eq!(checked(&first, &mut listener), Poll::Pending);
    assert_eq!(checked(&second, &mut listener), Poll::Pending);
    waits.check_and_complete(&1);
    assert_eq!((first.rung(), second.rung()), (1, 1));
    assert_eq!(checked(&second, &mut listener), CHECKED);
}

#[test]
fn g05_a_check_is_told_before_the_timeout_which_repeats() {
    let (waits, clock) = by_hand();
    let bell = Bell::new();
    let mut listener = waits.listen([1], Duration::from_secs(1));
    assert_eq!(checked(&bell, &mut listener), Poll::Pending);
    waits.check_and_complete(&1);
    clock.advance(Duration::from_secs(1));
    assert_eq!(waits.advance(), 1);
    waits.check_and_complete(&1);
    assert_eq!(checked(&bell, &mut listener), CHECKED);
    for _ in 0..3 {
        assert_eq!(checked(&bell, &mut listener), EXPIRED);
    }
    let stats = waits.stats();
    assert_eq!((stats.expired, stats.missed_checks), (1, 0));
    assert_empty(&waits);
    // The timer's last examination is no check.
    let mut listener = waits.listen([1], Duration::from_secs(1));
    assert_eq!(checked(&bell, &mut listener), Poll::Pending);
    let rung = bell.rung();
    clock.advance(Duration::from_secs(1));
    assert_eq!(waits.advance(), 1);
    assert_eq!(bell.rung(), rung + 1);
    assert_eq!(checked(&bell, &mut listener), EXPIRED);
}

#[test]
fn g05_every_ending_has_its_error_and_its_count() {
    type End = fn(&Waits<u64>);
    let ends: [(WaitError, End); 3] = [
        (WaitError::Forced, |waits| {
            assert_eq!(waits.force_complete_for_key(&1), 1);
        }),
        (WaitError::Cancelled, |waits| {
            assert_eq!(waits.cancel_for_key(&1).len(), 1);
        }),
        (WaitError::ShutDown, |waits| waits.shutdown()),
    ];
    for (error, end) in ends {
        let (waits, _clock) = by_hand();
        let bell = Bell::new();
        let mut listener = waits.listen([1], Duration::MAX);
        assert_eq!(checked(&bell, &mut listener), Poll::Pending);
        end(&waits);
        assert_eq!(bell.rung(), 1, "{error:?}");
        for _ in 0..2 {
            assert_eq!(checked(&bell, &mut listener), Poll::Ready(Err(error)));
        }
        assert_empty(&waits);
        listener.satisfied();
        let stats = waits.stats();
        let ended = stats.completed + stats.cancelled + stats.shut_down;
        assert_eq!(ended, 1, "{stats:?}");
    }
    let (waits, _clock) = by_hand();
    waits.listen([1], NEVER_IN_A_TEST).satisfied();
    drop(waits.listen([1], NEVER_IN_A_TEST));
    assert_eq!((waits.stats().completed, waits.stats().cancelled), (1, 1));
    assert_empty(&waits);
}

/// They are operations of their own: parked until the listener is dropped, also after its timeout, and cancelled then,
/// also if it was satisfied.
#[test]
fn g16_further_keys_of_a_listener_count_by_themselves() {
    let (waits, clock) = by_hand();
    for timeout in [Duration::from_secs(1), Duration::MAX] {
        let mut listener = waits.listen([1], timeout);
        (2..4).for_each(|key| listener.also(key));
        clock.advance(Duration::from_secs(1));
        waits.advance();
        let parked = 2 + usize::from(timeout == Duration::MAX);
        assert_eq!(
            (waits.stats().parked, waits.stats().watched),
            (parked, parked)
        );
        listener.satisfied();
        assert_empty(&waits);
    }
    let stats = waits.stats();
    assert_eq!((stats.expired, stats.completed, stats.cancelled), (1, 1, 4));
}

/// A loop of the user's that sleeps until the next deadline would wake for nothing.
#[test]
fn g15_no_recheck_is_waited_for_after_the_shutdown() {
    let (waits, _clock) = by_hand();
    let kept = waits.listen([1], None);
    let kept = kept.recheck_every(Duration::from_secs(1));
    assert!(waits.next_deadline().is_some());
    waits.shutdown();
    assert_empty(&waits);
    drop(kept);
}

#[test]
fn g17_a_refused_listener_says_so() {
    let waits = Waits::<u64>::builder("full")
        .clock(ManualClock::new())
        .reaper(Reaper::Manual)
        .max_parked(1)
        .build()
        .expect("no threads to refuse");
    let bell = Bell::new();
    let held = waits.listen([1], NEVER_IN_A_TEST);
    let mut refused = waits.listen([1], NEVER_IN_A_TEST);
    for _ in 0..2 {
        let full = Poll::Ready(Err(WaitError::Full));
        assert_eq!(checked(&bell, &mut refused), full);
    }
    assert!(refused.handle().is_none());
    drop(held);
    let mut keyless = waits.listen([0; 0], NEVER_IN_A_TEST);
    let no_keys = Poll::Ready(Err(WaitError::NoKeys));
    assert_eq!(checked(&bell, &mut keyless), no_keys);
    waits.shutdown();
    let mut late = waits.listen([1], NEVER_IN_A_TEST);
    let shut_down = Poll::Ready(Err(WaitError::ShutDown));
    assert_eq!(checked(&bell, &mut late), shut_down);
    assert_eq!(waits.stats().rejected, 3);
}

#[test]
fn listens_on_resolved_keys_and_at_ranks() {
    let (waits, _clock) = by_hand();
    let bell = Bell::new();
    let topic = waits.resolve(9);
    let watches = || [topic.watch().at_rank(10), Watch::from(1)];
    let mut listener = waits.listen(watches(), NEVER_IN_A_TEST);
    waits.check_and_complete_with(&9, CheckBound::all().up_to(9));
    assert_eq!(checked(&bell, &mut listener), Poll::Pending);
    waits.check_and_complete_with(&9, CheckBound::all().up_to(10));
    assert_eq!(checked(&bell, &mut listener), CHECKED);
    topic.check_and_complete();
    assert_eq!(checked(&bell, &mut listener), CHECKED);
    waits.check_and_complete(&1);
    assert_eq!(checked(&bell, &mut listener), CHECKED);
    assert_eq!(checked(&bell, &mut listener), Poll::Pending);
}

/// A waker is the user's: it may come back to the listener's own keys, and may drop the listener.
#[test]
fn g03_a_waker_may_call_back() {
    struct CallsBack(Waits<u64>, AtomicUsize);
    impl Wake for CallsBack {
        fn wake(self: Arc<Self>) {
            if self.1.fetch_add(1, Ordering::SeqCst) < 3 {
                self.0.check_and_complete(&1);
                self.0.check_and_complete(&2);
                drop(self.0.cancel_for_key(&2));
            }
        }
    }
    within(PATIENCE, || {
        let (waits, _clock) = by_hand();
        let back = Arc::new(CallsBack(waits.clone(), AtomicUsize::new(0)));
        let waker = Waker::from(back.clone());
        let mut listener = waits.listen([1, 2], NEVER_IN_A_TEST);
        let mut cx = Context::from_waker(&waker);
        let mut poll = || pin!(listener.checked()).poll(&mut cx);
        assert!(poll().is_pending());
        waits.check_and_complete(&1);
        assert_eq!(poll(), CHECKED);
        assert_eq!(poll(), Poll::Ready(Err(WaitError::Cancelled)));
        assert_empty(&waits);
    });
}

#[test]
fn g12_a_waker_that_panics_ends_its_listener_only() {
    struct Loud;
    impl Wake for Loud {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let (waits, _clock) = by_hand();
    let bell = Bell::new();
    let [mut loud, mut other] = [0, 1].map(|_| waits.listen([1], NEVER_IN_A_TEST));
    let waker = Waker::from(Arc::new(Loud));
    let mut cx = Context::from_waker(&waker);
    assert!(pin!(loud.checked()).poll(&mut cx).is_pending());
    assert_eq!(checked(&bell, &mut other), Poll::Pending);
    waits.check_and_complete(&1);
    assert_eq!(waits.stats().panicked, 1);
    assert_eq!(checked(&bell, &mut other), CHECKED);
    assert_eq!(checked(&bell, &mut loud), CHECKED);
    let panicked = Poll::Ready(Err(WaitError::Panicked));
    assert_eq!(checked(&bell, &mut loud), panicked);
    waits.check_and_complete(&1);
    assert_eq!(checked(&bell, &mut other), CHECKED);
    drop((loud, other));
    assert_empty(&waits);
}

/// One thread: the listener's task, the timer and the checks take turns, and the reactor sleeps for as long as the
/// purgatory says.
#[test]
fn g07_with_a_reactor_on_one_thread() {
    within(PATIENCE, || {
        let woken = Arc::new(AtomicUsize::new(0));
        let told = woken.clone();
        let wake = WakeFn::new(move || {
            told.fetch_add(1, Ordering::SeqCst);
            true
        });
        let clock = ManualClock::new();
        let waits = Waits::<u64>::builder("reactor")
            .clock(clock.clone())
            .reaper(Reaper::Reactor(wake))
            .dispatch(request_purgatory::threads::Dispatch::Inline)
            .build()
            .expect("no threads to refuse");
        let bell = Bell::new();
        let mut listener = waits.listen([1], Duration::from_millis(50));
        assert!(woken.load(Ordering::SeqCst) > 0, "the reactor is told");
        let mut seen = Vec::new();
        for turn in 0.. {
            match checked(&bell, &mut listener) {
                Poll::Ready(Ok(())) => seen.push(turn),
                Poll::Ready(Err(error)) => {
                    assert_eq!(error, WaitError::Expired);
                    break;
                }
                Poll::Pending => {
                    let due = waits.next_deadline().expect("the timeout");
                    if turn < 6 {
                        waits.check_later(1);
                    } else {
                        clock.advance(
                            due.saturating_since(request_purgatory::time::Clock::now(&clock)),
                        );
                    }
                    waits.advance();
                }
            }
        }
        assert!(seen.len() >= 3, "{seen:?}");
        assert_empty(&waits);
    });
}

/// Numbers only grow; a listener that misses the last one sleeps for ever.
#[test]
fn g01_many_checks_and_no_wake_up_is_lost() {
    const LISTENERS: usize = 4;
    const ROUNDS: u64 = 20_000;
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("many");
        let number = Arc::new(AtomicU64::new(0));
        let listeners = (0..LISTENERS).map(|_| {
            let (waits, number) = (waits.clone(), number.clone());
            thread::spawn(move || {
                let (mut last, mut examinations) = (0, 0_u64);
                while last < ROUNDS {
                    // Half of all wake-ups by a listener that stays, the others by a new one.
                    let mut listener = waits.listen([1, 2], Duration::MAX);
                    for _ in 0..64 {
                        let now = number.load(Ordering::Relaxed);
                        examinations += 1;
                        assert!(now >= last);
                        last = now;
                        if now >= ROUNDS {
                            break;
                        }
                        futures::executor::block_on(listener.checked()).expect("it stays parked");
                    }
                    listener.satisfied();
                }
                examinations
            })
        });
        let listeners = listeners.collect::<Vec<_>>();
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..ROUNDS {
            number.fetch_add(1, Ordering::Relaxed);
            waits.check_and_complete(&(1 + random.u64(..2)));
        }
        for listener in listeners {
            assert!(listener.join().expect("it does not panic") > 0);
        }
        eventually("the end of all", || waits.is_empty());
        assert_eq!(waits.stats().panicked, 0);
    });
}

/// In either order: what is the user's goes last.
#[test]
fn g06_a_waker_that_panics_when_it_is_dropped_keeps_nothing_parked() {
    struct Grenade(Arc<AtomicBool>);
    impl Wake for Grenade {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Grenade {
        fn drop(&mut self) {
            if self.0.load(Ordering::SeqCst) {
                panic!("on purpose");
            }
        }
    }
    fn explode(poll: impl FnOnce(&mut Context<'_>), future: impl Sized) {
        let armed = Arc::new(AtomicBool::new(false));
        let waker = Waker::from(Arc::new(Grenade(armed.clone())));
        poll(&mut Context::from_waker(&waker));
        drop(waker);
        armed.store(true, Ordering::SeqCst);
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(future)));
        assert!(dropped.is_err(), "the panic is the caller's");
    }
    /// The future is shared so that it can be polled first and dropped then.
    struct Both<F>(std::rc::Rc<std::cell::RefCell<Option<F>>>);
    impl<F> Drop for Both<F> {
        fn drop(&mut self) {
            drop(self.0.borrow_mut().take());
        }
    }
    fn both<F: Future + Unpin>(future: F) -> (impl FnOnce(&mut Context<'_>), Both<F>) {
        let shared = std::rc::Rc::new(std::cell::RefCell::new(Some(future)));
        let polled = shared.clone();
        let poll = move |cx: &mut Context<'_>| {
            let mut future = polled.borrow_mut();
            let future = std::pin::Pin::new(future.as_mut().expect("not dropped yet"));
            assert!(future.poll(cx).is_pending());
        };
        (poll, Both(shared))
    }
    let (waits, _clock) = by_hand();
    let (poll, future) = both(waits.wait([1], NEVER_IN_A_TEST, || None::<u8>));
    explode(poll, future);
    assert_empty(&waits);
    let (poll, future) = both(waits.take([1], NEVER_IN_A_TEST, |_| None::<u8>, drop));
    explode(poll, future);
    assert_empty(&waits);
    let (poll, future) = both(Box::pin(
        waits
            .listen([1], NEVER_IN_A_TEST)
            .until(|| async { None::<u8> }),
    ));
    explode(poll, future);
    assert_empty(&waits);
    assert_eq!(waits.stats().cancelled, 3);

    let completions =
        Purgatory::<request_purgatory::future::Awaited<crate::support::Op>>::new("awaited");
    let op = crate::support::Op::new(NEVER_IN_A_TEST);
    let (poll, future) = both(completions.completion(op, [1]).expect("it is parked"));
    explode(poll, future);
    eventually("the end", || completions.is_empty());
    assert_eq!(completions.stats().cancelled, 1);

    let requests = request_purgatory_tracker::Requests::<u64, u8>::new("requests");
    let request = requests.request(1, NEVER_IN_A_TEST);
    let (poll, future) = both(request.expect("the id is free"));
    explode(poll, future);
    assert_eq!(requests.stats().parked, 0);
}
