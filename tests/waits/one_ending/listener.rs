//! G1 and G5, listeners: what they are told, when, and what is left of them.

use crate::chains::drops::Bomb;
use crate::on_time::{Told, WOKEN, Waiter, told};
use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Tally, eventually, within};
use crate::{SECOND, assert_empty, by_hand, poll_in_vain};
use request_purgatory::{Awaited, Purgatory, WaitError, Waits};
use request_purgatory_tracker::Requests;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

/// On keys 1 and 2.
fn listening() -> Waiter {
    Waiter::new(by_hand(), |waits| {
        waits.check_and_complete(&1);
        waits.listen([1, 2], NEVER_IN_A_TEST)
    })
}

/// Those in between are one, and a call that is dropped takes none with it. The model of waits has checks of one key.
#[test]
fn g01_a_check_after_the_call_is_told_to_the_last_waker() {
    type Checks = fn(&mut Waiter);
    let rows: [(&str, Checks); 3] = [
        ("of all keys", |it| {
            assert_eq!(it.waits.check_and_complete_all([&1, &2]), 0);
        }),
        ("by the handle", |it| assert!(!it.handle().check())),
        ("before a call that is dropped", |it| {
            it.check(1);
            drop(it.listener().checked());
        }),
    ];
    let mut waiter = listening();
    assert_eq!(waiter.told(), Poll::Pending, "the park itself is no check");
    for (nth, (name, checks)) in (1..).zip(rows) {
        checks(&mut waiter);
        let told = (waiter.bell.rung(), waiter.told());
        assert_eq!(told, (nth, WOKEN), "{name}");
        assert_eq!(waiter.told(), Poll::Pending, "{name}, once");
    }
    let second = Bell::new();
    assert_eq!(told(&second, waiter.listener()), Poll::Pending);
    waiter.check(1);
    assert_eq!((waiter.bell.rung(), second.rung()), (3, 1));
}

/// A waker is the user's: it may come back to the listener's own keys, and may drop the listener.
#[test]
fn g03_a_waker_may_call_back() {
    within(PATIENCE, || {
        let mut waiter = listening();
        let (waits, woken) = (waiter.waits.clone(), Tally::new());
        let calls_back = move || {
            woken.add();
            if woken.count() <= 3 {
                waits.check_and_complete(&1);
                waits.check_and_complete(&2);
                drop(waits.cancel_for_key(&2));
            }
        };
        poll_in_vain(&mut pin!(waiter.listener().checked()), calls_back);
        waiter.check(1);
        assert_eq!(waiter.told(), WOKEN);
        assert_eq!(waiter.told(), Poll::Ready(Err(WaitError::Cancelled)));
        assert_empty(&waiter.waits);
    });
}

/// Whether a check or a recheck wakes them, it costs no other one its wake-up.
#[test]
fn g12_a_waker_that_panics_ends_its_listener_only() {
    const PANICKED: Told = Poll::Ready(Err(WaitError::Panicked));
    type Wakes = fn(&Waiter);
    let rows: [(&str, Wakes); 2] = [
        ("a check", |other| other.check(1)),
        ("a recheck", |other| other.pass(SECOND)),
    ];
    for (name, wakes) in rows {
        let mut other = Waiter::rechecked(None, SECOND);
        let mut loud = other.waits.listen([1], None).recheck_every(SECOND);
        let panics = || resume_unwind(Box::new("intended"));
        poll_in_vain(&mut pin!(loud.checked()), panics);
        assert!(other.told().is_pending());
        wakes(&other);
        let panicked = other.waits.stats().panicked;
        assert_eq!((other.bell.rung(), panicked), (1, 1), "{name}");
        assert_eq!(told(&Bell::new(), &mut loud), WOKEN, "{name}");
        assert_eq!(told(&Bell::new(), &mut loud), PANICKED, "{name}");
        for _ in 0..2 {
            assert_eq!(other.told(), WOKEN, "{name}");
            other.check(1);
        }
        drop(loud);
        other.leave();
        assert_empty(&other.waits);
    }
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
    fn explode(mut future: impl Future + Unpin) {
        let bomb = Bomb;
        poll_in_vain(&mut future, move || _ = &bomb);
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(future)));
        assert!(dropped.is_err(), "the panic is the caller's");
    }
    let (waits, _clock) = by_hand();
    explode(waits.wait([1], NEVER_IN_A_TEST, || None::<u8>));
    assert_empty(&waits);
    explode(waits.take([1], NEVER_IN_A_TEST, |_| None::<u8>, drop));
    assert_empty(&waits);
    let listener = waits.listen([1], NEVER_IN_A_TEST);
    explode(Box::pin(listener.until(|| async { None::<u8> })));
    assert_empty(&waits);
    assert_eq!(waits.stats().cancelled, 3);

    let completions = Purgatory::<Awaited<Op>>::new("awaited");
    let completion = completions.completion(Op::new(NEVER_IN_A_TEST), [1]);
    explode(completion.expect("it is parked"));
    eventually("the end", || completions.is_empty());
    assert_eq!(completions.stats().cancelled, 1);

    let requests = Requests::<u64, u8>::new("requests");
    let request = requests.request(1, NEVER_IN_A_TEST);
    explode(request.expect("the id is free"));
    assert_eq!(requests.stats().parked, 0);
}
