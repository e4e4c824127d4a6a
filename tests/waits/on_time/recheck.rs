//! G19 and G7, rechecks: what a listener finds though no check announces it, and the timers that this takes.

use super::{EXPIRED, GRACE, WOKEN, Waiter, told};
use crate::support::bell::Bell;
use crate::support::{FragileClock, PATIENCE, Tally, eventually, lock, within};
use crate::{SECOND, assert_empty, built, by_hand, pass, poll_in_vain};
use request_purgatory::future::{WaitError, block_on};
use request_purgatory::threads::Reaper;
use request_purgatory::time::{Clock, ManualClock, WakeFn};
use request_purgatory::{Waits, purgatory::WeakRef};
use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

/// What comes after the end keeps no waiter from it: neither checks of a further key, nor rechecks.
#[test]
fn g10_a_listener_ends_at_its_timeout_however_often_it_would_be_woken() {
    let mut waiter = Waiter::rechecked(SECOND, SECOND / 2);
    waiter.listener().also(2);
    waiter.check(2);
    waiter.pass(SECOND / 2);
    waiter.pass(SECOND / 2);
    assert_eq!(waiter.told(), WOKEN, "what came before the end");
    for _ in 0..3 {
        waiter.check(2);
        waiter.pass(SECOND);
        assert_eq!(waiter.told(), EXPIRED);
    }
}

/// Rechecked each second, the listener is asked after each half of a second whether there is something to tell.
#[test]
fn g19_one_interval_runs_from_one_recheck_to_the_next() {
    type Prepares = fn(&mut Waiter);
    let rows: [(&str, Prepares, bool, &[bool]); 3] = [
        (
            "a check in the first half begins no interval, and puts none off",
            |_| {},
            true,
            &[true, true, false, true],
        ),
        (
            "of two intervals the last counts",
            |it| it.recheck_every(SECOND * 2),
            false,
            &[false, false, false, true, false, false, false, true],
        ),
        (
            "asked for anew, rechecks come once in an interval",
            |it| {
                it.pass(SECOND);
                it.recheck_every(SECOND);
            },
            false,
            // The first was due before: it is told late, and the next interval begins with that.
            &[true, false, true, false, true],
        ),
    ];
    for (name, prepares, is_checked, expected) in rows {
        let mut waiter = Waiter::rechecked(None, SECOND);
        prepares(&mut waiter);
        for (half, is_told) in expected.iter().enumerate() {
            waiter.pass(SECOND / 2);
            if is_checked && half == 0 {
                waiter.check(1);
            }
            let told = waiter.told().is_ready();
            assert_eq!(told, *is_told, "{name}, half {half}");
        }
        // One that is never over, on a clock that has left its origin.
        waiter.recheck_every(Duration::MAX);
        waiter.pass(SECOND * 1_000);
        assert_eq!(waiter.told(), Poll::Pending);
        waiter.leave();
        assert_empty(&waiter.waits);
    }
}

#[test]
fn g19_none_ticks_where_no_interval_is_set() {
    let mut waiter = Waiter::new(by_hand(), |waits| waits.listen([1], None));
    let waits = waiter.waits.clone();
    assert_eq!(waits.next_deadline(), None);
    waiter.recheck_every(SECOND);
    assert!(waits.next_deadline().is_some());
    waiter.pass(SECOND);
    assert_eq!(waits.next_deadline(), None, "until the waiter has looked");
    assert_eq!(waiter.told(), WOKEN);
    assert!(waits.next_deadline().is_some());
    waiter.leave();
    assert_empty(&waits);
}

/// The thread would find nothing to do, and look again and again.
#[test]
fn g19_a_recheck_between_two_ticks_is_not_looked_for_before_the_second() {
    let (waits, _clock): (Waits<u64>, _) = built(|builder| builder.tick(SECOND));
    let _listener = waits.listen([1], None).recheck_every(SECOND / 2);
    waits.advance();
    let next = waits.next_deadline().expect("a recheck");
    assert_eq!(next.since_origin(), SECOND);
}

/// On the library's own threads, which nothing else has started.
#[test]
fn rechecks_come_in_real_time() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("rechecks");
        let event = AtomicBool::new(false);
        let begun = Instant::now();
        let listener = waits.listen([1], None);
        let listener = listener.recheck_every(Duration::from_millis(20));
        let found = block_on(listener.until(|| {
            let is_there = event.swap(true, Ordering::Relaxed);
            async move { is_there.then_some(7) }
        }));
        assert_eq!(found, Ok(7));
        assert!(begun.elapsed() >= Duration::from_millis(18));
        eventually("the missed check", || waits.stats().missed_checks == 1);
        eventually("the end", || waits.is_empty());
    });
}

/// Driven by a reactor that does this when it is woken.
fn with_a_reactor_that(wakes: impl Fn() + Send + Sync + 'static) -> (Waits<u64>, ManualClock) {
    let wake = WakeFn::new(move || {
        wakes();
        true
    });
    built(|builder| builder.reaper(Reaper::Reactor(wake)))
}

/// Driven by a reactor that counts how often it is woken.
fn with_a_reactor() -> (Waits<u64>, ManualClock, Arc<Tally>) {
    let woken = Tally::new();
    let wakes = woken.clone();
    let (waits, clock) = with_a_reactor_that(move || wakes.add());
    (waits, clock, woken)
}

/// It may look at once at what there is to do.
#[test]
fn g07_a_reactor_finds_the_recheck_that_it_is_woken_for() {
    let place = Arc::new(OnceLock::<WeakRef<Waits<u64>>>::new());
    let found = Arc::new(Mutex::new(Vec::new()));
    let (at, log) = (place.clone(), found.clone());
    let (waits, _clock) = with_a_reactor_that(move || {
        let waits = at.get().and_then(WeakRef::upgrade);
        // Not under the lock: this may wake the reactor again.
        let next = waits.and_then(|waits| waits.next_deadline());
        lock(&log).extend(next);
    });
    assert!(place.set(waits.downgrade()).is_ok());
    let _listener = waits.listen([1], None).recheck_every(SECOND);
    let next = lock(&found).pop().expect("it is there by then");
    assert!(next.since_origin() <= SECOND);
}

/// The recheck is to come 50 ms before its interval ends, and a deadline lies between the two.
#[test]
fn g07_a_reactor_is_woken_for_a_recheck_that_comes_early() {
    let (waits, clock, woken) = with_a_reactor();
    clock.advance(SECOND / 20);
    let _wait = waits.wait([1], SECOND - SECOND / 50, || None::<()>);
    let known = waits.next_deadline().expect("that of the wait");
    let before = woken.count();
    let _listener = waits.listen([1], None).recheck_every(SECOND);
    assert_eq!(woken.count(), before + 1);
    assert!(waits.next_deadline().is_some_and(|next| next < known));
}

/// A recheck has found what no check has announced. The reactor hears of the next recheck, and of the end of the grace,
/// which comes before it.
#[test]
fn g07_a_reactor_is_woken_for_the_grace_after_a_recheck() {
    let (waits, clock, woken) = with_a_reactor();
    let mut waiter = Waiter::new((waits, clock), |waits| {
        waits.listen([1], None).recheck_every(SECOND)
    });
    assert!(waiter.told().is_pending());
    waiter.pass(SECOND);
    let before = woken.count();
    assert_eq!(waiter.told(), WOKEN);
    waiter.satisfied();
    assert_eq!(woken.count(), before + 2);
    waiter.pass(GRACE);
    assert_eq!(waiter.parked_and_missed(), (0, 1));
}

#[test]
fn g15_rechecks_end_with_the_purgatory() {
    let mut waiter = Waiter::rechecked(None, SECOND);
    let waits = waiter.waits.clone();
    assert!(waits.next_deadline().is_some());
    waits.shutdown();
    // A loop of the user's that sleeps until the next deadline would wake for nothing.
    assert_empty(&waits);
    assert_eq!(waiter.told(), Poll::Ready(Err(WaitError::ShutDown)));
    let late = waits.listen([1], None).recheck_every(SECOND);
    assert_eq!(block_on(late.until(|| ready(Some(1)))), Ok(1));
}

/// Neither keeps a recheck from coming: a drain waits for the listener, and an event that no check announces ends that;
/// and somebody may defer checks all the time.
#[test]
fn g15_rechecks_go_on_beside_a_drain_and_deferred_checks() {
    type Beside = fn(&Waits<u64>);
    let rows: [(&str, Beside); 2] = [
        ("a drain", |it| assert_eq!(it.drain(Duration::ZERO), 2)),
        ("a deferred check", |it| it.check_later(2)),
    ];
    for (name, beside) in rows {
        let mut waiter = Waiter::rechecked(None, SECOND);
        let _other = waiter.waits.listen([2], None);
        assert!(waiter.told().is_pending());
        beside(&waiter.waits);
        assert!(waiter.waits.next_deadline().is_some(), "{name}");
        waiter.pass(SECOND);
        assert_eq!(waiter.told(), WOKEN, "beside {name}");
    }
}

/// The one timer of a listener is filed at a recheck; what its handle says is the deadline all the same.
#[test]
fn g10_the_deadline_of_a_listener_is_not_its_next_recheck() {
    let mut waiter = Waiter::rechecked(SECOND * 10, SECOND);
    let handle = waiter.handle();
    let move_to = |left: Duration| {
        assert!(handle.reschedule(left));
        assert_eq!(handle.remaining(), Some(left));
    };
    assert_eq!(handle.remaining(), Some(SECOND * 10));
    let snapshot = waiter.waits.snapshot();
    assert_eq!(snapshot[0].remaining, Some(SECOND * 10));
    waiter.pass(SECOND);
    // The recheck was not received: the deadline is next.
    assert_eq!(handle.remaining(), Some(SECOND * 9));
    move_to(SECOND * 3);
    assert_eq!(waiter.told(), WOKEN, "the recheck");
    // One is ahead, before either deadline.
    move_to(SECOND * 2);
    waiter.pass(SECOND);
    assert_eq!(waiter.told(), WOKEN, "the recheck");
    // And after it, so that it is none.
    move_to(SECOND / 2);
    waiter.pass(SECOND / 2);
    assert_eq!(waiter.told(), EXPIRED);
    assert!(!handle.reschedule(SECOND) && handle.remaining().is_none());
    let stats = waiter.waits.stats();
    assert_eq!((stats.expired, stats.extended), (1, 0));
    waiter.leave();
    assert_empty(&waiter.waits);
}

/// A recheck is due in the same pass. The task is woken for the deadline, and its waker asks for that.
#[test]
fn g10_a_handle_tells_the_deadline_while_it_is_handled() {
    let (waits, clock) = by_hand();
    let listener = waits.listen([1], 10 * SECOND).recheck_every(SECOND);
    let handle = listener.handle().expect("there is room").clone();
    let (deadline, seen) = (handle.deadline(), Arc::new(Mutex::new(Vec::new())));
    let mut until = Box::pin(listener.until(|| ready(None::<()>)));
    let sees = seen.clone();
    poll_in_vain(&mut until, move || lock(&sees).push(handle.deadline()));
    pass(&waits, &clock, 10 * SECOND);
    assert_eq!(*lock(&seen), [deadline]);
}

/// The clock panics in the poll that is told of a recheck and a check: the next poll is, and the rechecks go on.
#[test]
fn g01_a_clock_that_panics_in_a_poll_costs_neither_a_check_nor_the_rechecks() {
    let clock = FragileClock::default();
    let builder = Waits::<u64>::builder("fragile").clock(clock.clone());
    let waits = builder.reaper(Reaper::Manual).build();
    let waits = waits.expect("no threads to refuse");
    let (mut listener, bell) = (waits.listen([1], None).recheck_every(SECOND), Bell::new());
    let pass = || {
        clock.time.advance(SECOND);
        waits.advance();
    };
    pass();
    waits.check_and_complete(&1);
    clock.set_broken(true);
    let polled = catch_unwind(AssertUnwindSafe(|| told(&bell, &mut listener)));
    assert!(polled.is_err());
    clock.set_broken(false);
    for _ in 0..2 {
        assert_eq!(told(&bell, &mut listener), WOKEN);
        assert!(told(&bell, &mut listener).is_pending());
        pass();
    }
}

/// What would never come needs no timer.
#[test]
fn g19_a_recheck_behind_the_deadline_arms_nothing() {
    let (waits, clock) = by_hand();
    let plain = waits.listen([1], SECOND);
    let next = waits.next_deadline();
    drop(plain);
    let mut listener = waits.listen([1], SECOND).recheck_every(SECOND * 5);
    assert_eq!(waits.next_deadline(), next);
    pass(&waits, &clock, SECOND);
    assert_empty(&waits);
    assert_eq!(block_on(listener.checked()), Err(WaitError::Expired));
}

/// A stall that is longer than both: the deadline has come, and a recheck does not put it off.
#[test]
fn g10_a_recheck_and_the_deadline_that_come_together_are_the_deadline() {
    let mut waiter = Waiter::rechecked(SECOND * 2, SECOND);
    waiter.clock.advance(SECOND * 3);
    assert_eq!(waiter.waits.advance(), 1);
    assert_eq!(waiter.told(), EXPIRED);
    assert_eq!(waiter.waits.stats().lateness_max, SECOND);
}

/// Intervals that begin within a tenth of each other end together. Where very many would be due at once, they are
/// spread over the ticks of that tenth: none of these has more than the thread wakes in a moment, so deadlines in
/// between are in time.
#[test]
fn g13_rechecks_share_their_ticks_and_no_tick_has_too_many() {
    for (many, apart, most_ticks, most_in_one) in [
        (100_u64, Duration::from_millis(1), 2, 100),
        (100_000, Duration::ZERO, 1_000, 1_100),
    ] {
        let (waits, clock) = by_hand();
        let (mut listeners, mut first) = (Vec::new(), clock.now());
        for key in 0..many {
            listeners.push(waits.listen([key], None).recheck_every(SECOND));
            clock.advance(apart);
        }
        let bells = listeners.iter().map(|_| Bell::new()).collect::<Vec<_>>();
        let mut receive = |is_due: bool| {
            for (listener, bell) in listeners.iter_mut().zip(&bells) {
                assert_eq!(told(bell, listener).is_ready(), is_due);
            }
        };
        let mut rung = 0;
        // The second time, all begin their interval in one moment.
        for round in 1..3 {
            receive(false);
            let (last, mut ticks) = (clock.now(), 0);
            while let Some(next) = waits.next_deadline() {
                pass(&waits, &clock, next.saturating_since(clock.now()));
                let before = std::mem::replace(&mut rung, bells.iter().map(|it| it.rung()).sum());
                let woken = rung - before;
                assert!(woken <= most_in_one, "{woken} of {many} in one tick");
                let after = clock.now().saturating_since(first);
                assert!(woken == 0 || after >= SECOND * 9 / 10, "{after:?}");
                ticks += 1;
            }
            assert!(ticks <= most_ticks, "{ticks} ticks for {many}");
            assert!(clock.now().saturating_since(last) <= SECOND, "{many}");
            assert_eq!(rung, bells.len() * round);
            receive(true);
            first = clock.now();
        }
    }
}

/// The condition is true after a recheck, and the clock panics when the grace for a late check is to begin.
#[test]
fn g06_a_clock_that_panics_when_a_listener_is_satisfied_leaves_nothing() {
    let clock = FragileClock::default();
    let (waits, _) = built(|builder| builder.clock(clock.clone()));
    let mut listener = waits.listen([1], None).recheck_every(SECOND);
    let bell = Bell::new();
    assert_eq!(told(&bell, &mut listener), Poll::Pending);
    pass(&waits, &clock.time, SECOND);
    assert_eq!(told(&bell, &mut listener), WOKEN);
    clock.set_broken(true);
    let satisfied = catch_unwind(AssertUnwindSafe(|| listener.satisfied()));
    clock.set_broken(false);
    assert!(satisfied.is_err(), "the panic is the caller's");
    assert_empty(&waits);
}
