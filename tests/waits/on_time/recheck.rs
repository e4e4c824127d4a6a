//! Rechecks: what a listener finds though no check announces it.

use crate::by_hand;
use crate::support::bell::Bell;
use crate::support::{PATIENCE, Tally, eventually, lock, within};
use request_purgatory::future::{WaitError, block_on};
use request_purgatory::threads::Reaper;
use request_purgatory::time::{ManualClock, WakeFn};
use request_purgatory::{Waits, purgatory::WeakRef};
use std::cell::Cell;
use std::future::{Future, ready};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_millis(100);

pub(crate) fn pass(waits: &Waits<u64>, clock: &ManualClock, time: Duration) {
    clock.advance(time);
    waits.advance();
}

/// What comes after the end keeps no waiter from it: neither checks of a further key, nor rechecks.
#[test]
fn g10_a_listener_ends_at_its_timeout_however_often_it_would_be_woken() {
    let (waits, clock) = by_hand();
    let mut listener = waits.listen([1], SECOND).recheck_every(SECOND / 2);
    listener.also(2);
    let bell = Bell::new();
    let mut poll = || bell.poll(&mut Box::pin(listener.checked()));
    waits.check_and_complete(&2);
    pass(&waits, &clock, SECOND / 2);
    pass(&waits, &clock, SECOND / 2);
    assert_eq!(poll(), Poll::Ready(Ok(())), "what came before the end");
    for _ in 0..3 {
        waits.check_and_complete(&2);
        pass(&waits, &clock, SECOND);
        assert_eq!(poll(), Poll::Ready(Err(WaitError::Expired)));
    }
}

/// Within the interval, and counted once: unless a check comes within the grace, and was only late.
#[test]
fn an_event_that_no_check_announces_is_found_and_counted() {
    let late = |millis| Some(Duration::from_millis(millis));
    for (late_check, missed) in [(None, 1), (late(60), 0), (late(95), 0), (late(105), 1)] {
        let (waits, clock) = by_hand();
        // Neither the intervals nor the grace end at a round time.
        clock.advance(Duration::from_millis(7));
        let event = Cell::new(false);
        let mut evaluations = 0;
        let condition = || {
            evaluations += 1;
            ready(event.get().then_some("found"))
        };
        let listener = waits.listen([1], None).recheck_every(SECOND);
        let mut until = Box::pin(listener.until(condition));
        let bell = Bell::new();
        assert!(bell.poll(&mut until).is_pending());
        pass(&waits, &clock, SECOND);
        assert_eq!(bell.rung(), 1, "a recheck");
        assert!(bell.poll(&mut until).is_pending());
        event.set(true);
        pass(&waits, &clock, SECOND);
        assert_eq!(bell.poll(&mut until), Poll::Ready(Ok("found")));
        drop(until);
        assert_eq!(evaluations, 3);
        assert_eq!(
            (waits.stats().parked, waits.stats().missed_checks),
            (1, 0),
            "it may still come"
        );
        if let Some(late) = late_check {
            pass(&waits, &clock, late);
            assert_eq!(waits.check_and_complete(&1), 0);
        }
        pass(&waits, &clock, GRACE);
        let stats = waits.stats();
        assert_eq!(
            (stats.missed_checks, stats.parked),
            (missed, 0),
            "{late_check:?}"
        );
        assert_eq!(
            (stats.cancelled, stats.watched, stats.panicked),
            (0, 0, 0),
            "{stats:?}"
        );
        assert_eq!(waits.next_deadline(), None, "nor another recheck");
    }
}

/// Rechecks are asked for anew after the end of an interval that was not told: one interval runs then, not two.
#[test]
fn rechecks_that_are_asked_for_anew_come_once_in_an_interval() {
    let (waits, clock) = by_hand();
    let listener = waits.listen([1], None).recheck_every(SECOND);
    pass(&waits, &clock, SECOND);
    let mut listener = listener.recheck_every(SECOND);
    let bell = Bell::new();
    // It was told late, and the next interval has begun with that.
    for told in [true, false, true, false, true] {
        pass(&waits, &clock, SECOND / 2);
        let poll = bell.poll(&mut Box::pin(listener.checked()));
        assert_eq!(poll.is_ready(), told);
    }
    drop(listener);
    assert_eq!(waits.next_deadline(), None);
}

/// What a check has announced is no missed check, also if an interval has passed since.
#[test]
fn a_check_counts_before_a_recheck() {
    let (waits, clock) = by_hand();
    let mut listener = waits.listen([1], None).recheck_every(SECOND);
    let bell = Bell::new();
    pass(&waits, &clock, SECOND);
    waits.check_and_complete(&1);
    let mut poll = || {
        let mut checked = Box::pin(listener.checked());
        bell.poll(&mut checked)
    };
    assert_eq!(poll(), Poll::Ready(Ok(())));
    assert_eq!(poll(), Poll::Pending, "one wake-up for both");
    // And the next interval has begun.
    pass(&waits, &clock, SECOND);
    assert_eq!(poll(), Poll::Ready(Ok(())));
    waits.check_and_complete(&1);
    assert_eq!(poll(), Poll::Ready(Ok(())));
    listener.satisfied();
    pass(&waits, &clock, GRACE);
    assert_eq!((waits.stats().parked, waits.stats().missed_checks), (0, 0));
    // One that is found by a recheck, after which the waiter went on to wait, is not found by it.
    let mut listener = waits.listen([1], None).recheck_every(SECOND);
    pass(&waits, &clock, SECOND);
    assert_eq!(
        bell.poll(&mut Box::pin(listener.checked())),
        Poll::Ready(Ok(()))
    );
    assert_eq!(bell.poll(&mut Box::pin(listener.checked())), Poll::Pending);
    listener.satisfied();
    assert_eq!((waits.stats().parked, waits.stats().missed_checks), (0, 0));
    // One that is found by a recheck, and announced before the waiter says so, needs no grace.
    let mut listener = waits.listen([1], None).recheck_every(SECOND);
    pass(&waits, &clock, SECOND);
    assert_eq!(
        bell.poll(&mut Box::pin(listener.checked())),
        Poll::Ready(Ok(()))
    );
    waits.check_and_complete(&1);
    listener.satisfied();
    assert_eq!((waits.stats().parked, waits.stats().missed_checks), (0, 0));
}

/// An interval begins when the waiter has received a recheck. A check in between begins none, nor does it put one off.
#[test]
fn g19_a_check_begins_no_interval() {
    let (waits, clock) = by_hand();
    let mut listener = waits.listen([1], None).recheck_every(SECOND);
    let bell = Bell::new();
    let mut poll = || bell.poll(&mut Box::pin(listener.checked()));
    pass(&waits, &clock, SECOND / 2);
    waits.check_and_complete(&1);
    assert_eq!(poll(), Poll::Ready(Ok(())), "the check");
    pass(&waits, &clock, SECOND / 2);
    assert_eq!(poll(), Poll::Ready(Ok(())), "the recheck");
    pass(&waits, &clock, SECOND / 2);
    assert_eq!(poll(), Poll::Pending, "half of an interval");
    pass(&waits, &clock, SECOND / 2);
    assert_eq!(poll(), Poll::Ready(Ok(())), "the next recheck");
    drop(listener);
    assert_eq!(waits.next_deadline(), None);
}

/// A default, say, and then what the caller asks for.
#[test]
fn g19_of_two_intervals_the_last_counts() {
    let (waits, clock) = by_hand();
    let listener = waits.listen([1], None).recheck_every(SECOND);
    let mut listener = listener.recheck_every(SECOND * 3);
    let bell = Bell::new();
    let mut poll = || bell.poll(&mut Box::pin(listener.checked()));
    for _ in 0..2 {
        pass(&waits, &clock, SECOND);
        assert_eq!(poll(), Poll::Pending);
        pass(&waits, &clock, SECOND * 2);
        assert_eq!(poll(), Poll::Ready(Ok(())), "a recheck");
    }
    // One that is never over. (The clock has left its origin.)
    let mut listener = listener.recheck_every(Duration::MAX);
    pass(&waits, &clock, SECOND * 1_000);
    let poll = bell.poll(&mut Box::pin(listener.checked()));
    assert_eq!(poll, Poll::Pending);
    drop(listener);
    assert_eq!(waits.next_deadline(), None);
}

/// A check of a further key within the grace is late as well, and the event was not missed.
#[test]
fn g21_a_late_check_of_a_key_that_was_learnt_is_no_missed_one() {
    for (checked, missed) in [(2, 0), (3, 1)] {
        let (waits, clock) = by_hand();
        let mut listener = waits.listen([1], None).recheck_every(SECOND);
        listener.also(2);
        pass(&waits, &clock, SECOND);
        let woken = Bell::new().poll(&mut Box::pin(listener.checked()));
        assert_eq!(woken, Poll::Ready(Ok(())), "a recheck");
        listener.satisfied();
        assert_eq!(waits.stats().parked, 2, "it may still come, for either key");
        waits.check_and_complete(&checked);
        pass(&waits, &clock, GRACE);
        let stats = waits.stats();
        assert_eq!((stats.missed_checks, stats.parked), (missed, 0));
    }
}

/// The listener's own deadline comes within the grace, and is not heeded: the event was found. It was missed all the
/// same, unless a check came.
#[test]
fn g21_what_a_recheck_finds_near_the_deadline_is_counted() {
    for is_checked in [false, true] {
        let (waits, clock) = by_hand();
        let listener = waits.listen([1], SECOND + GRACE / 2);
        let mut listener = listener.recheck_every(SECOND);
        pass(&waits, &clock, SECOND);
        assert_eq!(block_on(listener.checked()), Ok(()), "a recheck");
        listener.satisfied();
        if is_checked {
            waits.check_and_complete(&1);
        }
        for _ in 0..2 {
            assert_eq!((waits.stats().parked, waits.stats().missed_checks), (1, 0));
            pass(&waits, &clock, GRACE / 2);
        }
        let stats = waits.stats();
        assert_eq!((stats.parked, stats.expired, stats.completed), (0, 0, 1));
        assert_eq!(stats.missed_checks, u64::from(!is_checked));
    }
}

/// It evaluates nothing at the deadline, so a recheck is what tells of a change that no check announces. Either way it
/// has completed.
#[test]
fn g21_what_until_best_finds_by_a_recheck_is_counted() {
    for is_checked in [false, true] {
        let (waits, clock) = by_hand();
        let amount = Cell::new(5);
        let enough = || Some(amount.get()).filter(|amount| *amount >= 10);
        let listener = waits.listen([1], SECOND * 5).recheck_every(SECOND);
        let mut best = Box::pin(listener.until_best(|| ready(enough().ok_or("half"))));
        let bell = Bell::new();
        assert!(bell.poll(&mut best).is_pending());
        amount.set(10);
        match is_checked {
            true => assert_eq!(waits.check_and_complete(&1), 0),
            false => pass(&waits, &clock, SECOND),
        }
        assert_eq!(bell.poll(&mut best), Poll::Ready(Ok(10)));
        drop(best);
        pass(&waits, &clock, GRACE);
        let stats = waits.stats();
        let ended = (stats.completed, stats.cancelled, stats.parked);
        assert_eq!(
            (ended, stats.missed_checks),
            ((1, 0, 0), u64::from(!is_checked))
        );
    }
}

/// Of a check that comes while the waiter evaluates after a recheck, nothing is to be waited for.
#[test]
fn g21_a_check_during_the_evaluation_ends_the_listener_at_once() {
    let (waits, clock) = by_hand();
    let mut listener = waits.listen([1], None).recheck_every(SECOND);
    pass(&waits, &clock, SECOND);
    assert_eq!(block_on(listener.checked()), Ok(()), "a recheck");
    assert_eq!(waits.check_and_complete(&1), 0);
    listener.satisfied();
    assert_eq!((waits.stats().parked, waits.stats().missed_checks), (0, 0));
}

/// G19: the timer of the purgatory knows of nothing to do, before and after.
#[test]
fn g19_none_ticks_where_no_interval_is_set() {
    let (waits, clock) = by_hand();
    let plain = waits.listen([1], None);
    assert_eq!(waits.next_deadline(), None);
    let listener = waits.listen([1], None).recheck_every(SECOND);
    let next = waits.next_deadline().expect("a recheck");
    assert!(next.since_origin() <= SECOND);
    pass(&waits, &clock, SECOND);
    assert_eq!(
        waits.next_deadline(),
        None,
        "a waiter that is slow is not woken twice"
    );
    drop(listener);
    let listener = waits.listen([1], None).recheck_every(SECOND);
    assert!(waits.next_deadline().is_some());
    drop(listener);
    pass(&waits, &clock, SECOND);
    assert_eq!(waits.next_deadline(), None);
    drop(plain);
}

/// The thread would find nothing to do, and look again and again.
#[test]
fn g19_a_recheck_between_two_ticks_is_not_looked_for_before_the_second() {
    let waits = Waits::<u64>::builder("coarse")
        .tick(SECOND)
        .clock(ManualClock::new())
        .reaper(Reaper::Manual);
    let waits = waits.build().expect("no threads to refuse");
    let _listener = waits.listen([1], None).recheck_every(SECOND / 2);
    waits.advance();
    let next = waits.next_deadline().expect("a recheck");
    assert_eq!(next.since_origin(), SECOND);
}

/// Intervals that begin within a tenth of each other end together.
#[test]
fn rechecks_of_many_listeners_share_a_wake_up() {
    let (waits, clock) = by_hand();
    let mut listeners = Vec::new();
    for _ in 0..100 {
        listeners.push(waits.listen([1], None).recheck_every(SECOND));
        clock.advance(Duration::from_millis(1));
    }
    let mut wake_ups = 0;
    while let Some(next) = waits.next_deadline() {
        assert!(next.since_origin() >= SECOND * 9 / 10, "{next:?}");
        let now = request_purgatory::time::Clock::now(&clock);
        pass(&waits, &clock, next.saturating_since(now));
        wake_ups += 1;
    }
    assert!(wake_ups <= 2, "{wake_ups}");
    let bell = Bell::new();
    for listener in &mut listeners {
        assert!(bell.poll(&mut Box::pin(listener.checked())).is_ready());
    }
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
    let clock = ManualClock::new();
    let waits = Waits::builder("reactor")
        .clock(clock.clone())
        .reaper(Reaper::Reactor(WakeFn::new(move || {
            wakes();
            true
        })))
        .build();
    (waits.expect("no threads to refuse"), clock)
}

/// Driven by a reactor that counts how often it is woken.
fn with_a_reactor() -> (Waits<u64>, ManualClock, Arc<Tally>) {
    let woken = Tally::new();
    let wakes = woken.clone();
    let (waits, clock) = with_a_reactor_that(move || wakes.add());
    (waits, clock, woken)
}

#[test]
fn a_reactor_is_woken_for_a_recheck() {
    let (waits, clock, woken) = with_a_reactor();
    let before = woken.count();
    let mut listener = waits.listen([1], None).recheck_every(SECOND);
    assert!(woken.count() > before, "there is a deadline now");
    assert!(waits.next_deadline().is_some());
    clock.advance(SECOND);
    assert_eq!(waits.advance(), 0, "no operation expires");
    assert!(
        Bell::new()
            .poll(&mut Box::pin(listener.checked()))
            .is_ready()
    );
}

/// It may look at once at what there is to do.
#[test]
fn g07_a_reactor_finds_the_recheck_that_it_is_woken_for() {
    let place = Arc::new(OnceLock::<WeakRef<Waits<u64>>>::new());
    let found = Arc::new(Mutex::new(Vec::new()));
    let (at, log) = (place.clone(), found.clone());
    let (waits, clock) = with_a_reactor_that(move || {
        let waits = at.get().and_then(WeakRef::upgrade);
        // Not under the lock: this may wake the reactor again.
        let next = waits.and_then(|waits| waits.next_deadline());
        lock(&log).extend(next);
    });
    assert!(place.set(waits.downgrade()).is_ok());
    let mut listener = waits.listen([1], None).recheck_every(SECOND);
    let next = lock(&found).pop().expect("it is there by then");
    assert!(next.since_origin() <= SECOND);
    pass(&waits, &clock, SECOND);
    assert_eq!(block_on(listener.checked()), Ok(()), "a recheck");
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
    let happened = Cell::new(false);
    let listener = waits.listen([1], None).recheck_every(SECOND);
    let mut until = Box::pin(listener.until(|| ready(happened.get().then_some(()))));
    let bell = Bell::new();
    assert!(bell.poll(&mut until).is_pending());
    happened.set(true);
    pass(&waits, &clock, SECOND);
    let before = woken.count();
    assert!(bell.poll(&mut until).is_ready());
    assert_eq!(woken.count(), before + 2);
    pass(&waits, &clock, GRACE);
    assert_eq!((waits.stats().parked, waits.stats().missed_checks), (0, 1));
}

#[test]
fn rechecks_end_with_the_listener_and_with_the_purgatory() {
    let (waits, clock) = by_hand();
    let bell = Bell::new();
    let mut listener = waits.listen([1], SECOND / 2).recheck_every(SECOND);
    pass(&waits, &clock, SECOND);
    let mut poll = || bell.poll(&mut Box::pin(listener.checked()));
    assert_eq!(poll(), Poll::Ready(Err(WaitError::Expired)));
    drop(listener);
    let mut best = pin!(
        waits
            .listen([1], None)
            .recheck_every(SECOND)
            .until_best(|| ready(Err::<(), _>("half")))
    );
    assert!(bell.poll(&mut best).is_pending());
    pass(&waits, &clock, SECOND);
    waits.shutdown();
    let late = waits.listen([1], None).recheck_every(SECOND);
    let end = Err(("half", WaitError::ShutDown));
    assert_eq!(bell.poll(&mut best), Poll::Ready(end));
    assert_eq!(block_on(late.until(|| ready(Some(1)))), Ok(1));
}

/// A drain waits for a listener, and an event that no check announces ends that.
#[test]
fn g15_rechecks_go_on_while_a_drain_waits() {
    let (waits, clock) = by_hand();
    let mut listener = waits.listen([1], None).recheck_every(SECOND);
    let bell = Bell::new();
    assert!(bell.poll(&mut Box::pin(listener.checked())).is_pending());
    assert_eq!(waits.drain(Duration::ZERO), 1);
    assert!(waits.next_deadline().is_some(), "the recheck");
    pass(&waits, &clock, SECOND);
    let woken = bell.poll(&mut Box::pin(listener.checked()));
    assert_eq!(woken, Poll::Ready(Ok(())), "a recheck");
}

/// As in a check: it ends the listener, and costs no other one its wake-up.
#[test]
fn g12_a_waker_that_panics_in_a_recheck_ends_its_listener() {
    struct Loud;
    impl Wake for Loud {
        fn wake(self: Arc<Self>) {
            resume_unwind(Box::new("on purpose"));
        }
    }
    let (waits, clock) = by_hand();
    let listen = || waits.listen([1], None).recheck_every(SECOND);
    let (mut loud, mut quiet) = (listen(), listen());
    let waker = Waker::from(Arc::new(Loud));
    assert!(
        pin!(loud.checked())
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    let bell = Bell::new();
    assert!(bell.poll(&mut Box::pin(quiet.checked())).is_pending());
    pass(&waits, &clock, SECOND);
    assert_eq!((bell.rung(), waits.stats().panicked), (1, 1));
    let mut poll = || bell.poll(&mut Box::pin(loud.checked()));
    assert_eq!(poll(), Poll::Ready(Ok(())));
    assert_eq!(poll(), Poll::Ready(Err(WaitError::Panicked)));
}

/// Somebody may defer checks all the time.
#[test]
fn g21_a_pass_makes_rechecks_beside_deferred_checks() {
    let (waits, clock) = by_hand();
    let mut listener = waits.listen([1], None).recheck_every(SECOND);
    let _other = waits.listen([2], None);
    waits.check_later(2);
    pass(&waits, &clock, SECOND);
    let woken = Bell::new().poll(&mut Box::pin(listener.checked()));
    assert_eq!(woken, Poll::Ready(Ok(())), "a recheck");
}

#[test]
fn g19_a_listener_that_is_dropped_leaves_no_recheck() {
    let (waits, _clock) = by_hand();
    let mut listener = waits.listen([1], None).recheck_every(SECOND);
    assert!(
        Bell::new()
            .poll(&mut Box::pin(listener.checked()))
            .is_pending()
    );
    assert!(waits.next_deadline().is_some(), "the recheck");
    drop(listener);
    assert_eq!(waits.next_deadline(), None);
}

/// The one timer of a listener is filed at a recheck; what its handle says is the deadline all the same.
#[test]
fn g10_the_deadline_of_a_listener_is_not_its_next_recheck() {
    let (waits, clock) = by_hand();
    let mut listener = waits.listen([1], SECOND * 10).recheck_every(SECOND);
    let handle = listener.handle().expect("there is room").clone();
    let bell = Bell::new();
    assert_eq!(handle.remaining(), Some(SECOND * 10));
    assert_eq!(waits.snapshot()[0].remaining, Some(SECOND * 10));
    pass(&waits, &clock, SECOND);
    // The recheck was not received: the deadline is next.
    assert_eq!(handle.remaining(), Some(SECOND * 9));
    assert!(handle.reschedule(SECOND * 3) && handle.remaining() == Some(SECOND * 3));
    let mut poll = || bell.poll(&mut Box::pin(listener.checked()));
    assert_eq!(poll(), Poll::Ready(Ok(())), "the recheck");
    // One is ahead, before either deadline.
    assert!(handle.reschedule(SECOND * 2) && handle.remaining() == Some(SECOND * 2));
    pass(&waits, &clock, SECOND);
    assert_eq!(poll(), Poll::Ready(Ok(())), "the recheck");
    // And after it, so that it is none.
    assert!(handle.reschedule(SECOND / 2) && handle.remaining() == Some(SECOND / 2));
    pass(&waits, &clock, SECOND / 2);
    assert_eq!(poll(), Poll::Ready(Err(WaitError::Expired)));
    assert!(!handle.reschedule(SECOND) && handle.remaining().is_none());
    assert_eq!((waits.stats().expired, waits.stats().extended), (1, 0));
    drop(listener);
    assert_eq!(waits.next_deadline(), None);
}

#[test]
fn g10_a_deadline_behind_a_recheck_can_be_moved_until_it_has_come() {
    let (waits, clock) = by_hand();
    let listener = waits.listen([1], SECOND * 2).recheck_every(SECOND);
    let handle = listener.handle().expect("there is room");
    clock.advance(SECOND * 2 - Duration::from_millis(1));
    assert!(
        handle.reschedule(SECOND),
        "the recheck has come, and the deadline has not"
    );
    assert_eq!(handle.remaining(), Some(SECOND));
    clock.advance(SECOND);
    assert!(!handle.reschedule(SECOND), "it has");
    assert_eq!(waits.advance(), 1);
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
    assert_eq!(waits.next_deadline(), None);
    assert_eq!(block_on(listener.checked()), Err(WaitError::Expired));
}

/// A stall that is longer than both: the deadline has come, and a recheck does not put it off.
#[test]
fn g10_a_recheck_and_the_deadline_that_come_together_are_the_deadline() {
    let (waits, clock) = by_hand();
    let mut listener = waits.listen([1], SECOND * 2).recheck_every(SECOND);
    clock.advance(SECOND * 3);
    assert_eq!(waits.advance(), 1);
    assert_eq!(block_on(listener.checked()), Err(WaitError::Expired));
    assert_eq!(waits.stats().lateness_max, SECOND);
}

/// Where very many would be due at once, they are spread over the ticks of a tenth of the interval: none of these has
/// more than the thread wakes in a moment, so deadlines in between are in time.
#[test]
fn g13_no_tick_has_more_rechecks_than_a_thread_wakes_in_a_moment() {
    const MANY: usize = 100_000;
    let (waits, clock) = by_hand();
    let listen = |key| waits.listen([key], None).recheck_every(SECOND);
    let mut listeners = (0..MANY as u64).map(listen).collect::<Vec<_>>();
    let bells = (0..MANY).map(|_| Bell::new()).collect::<Vec<_>>();
    let mut receive = |due: bool| {
        for (listener, bell) in listeners.iter_mut().zip(&bells) {
            let poll = bell.poll(&mut Box::pin(listener.checked()));
            assert_eq!(poll.is_ready(), due);
        }
    };
    receive(false);
    // The second time, all begin their interval in one moment.
    let mut rung = 0;
    for round in 1..3 {
        let mut most = 0;
        let limit = SECOND * round;
        while let Some(next) = waits
            .next_deadline()
            .filter(|at| at.since_origin() <= limit)
        {
            let now = request_purgatory::time::Clock::now(&clock);
            pass(&waits, &clock, next.saturating_since(now));
            let before = std::mem::replace(&mut rung, bells.iter().map(|it| it.rung()).sum());
            most = most.max(rung - before);
        }
        assert_eq!(rung, MANY * round as usize);
        assert!(most <= 1_100, "{most} in one tick");
        receive(true);
        receive(false);
    }
}
