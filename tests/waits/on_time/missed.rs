//! G21: what a listener finds by a recheck or at its deadline counts as a missed check, unless a check announces it.

use super::{GRACE, WOKEN, Waiter};
use crate::support::NEVER_IN_A_TEST;
use crate::support::bell::Bell;
use crate::{SECOND, assert_empty, built, by_hand, pass, poll_in_vain, waiting};
use request_purgatory::Waits;
use request_purgatory::future::WaitError;
use std::cell::Cell;
use std::future::ready;
use std::task::Poll;
use std::time::Duration;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Rechecked each second, a listener to keys 1 and 2 finds what it waits for. Neither its own deadline nor the longest
/// timeout of the purgatory, which the operation of each key has, ends it within the grace.
#[test]
fn g21_what_a_recheck_finds_is_missed_unless_a_check_comes_within_the_grace() {
    let soon = SECOND + GRACE / 2;
    for (timeout, longest, late, checked, missed) in [
        (NEVER_IN_A_TEST, Duration::MAX, 0, 3, 1),
        (NEVER_IN_A_TEST, Duration::MAX, 0, 2, 0),
        (NEVER_IN_A_TEST, Duration::MAX, 60, 1, 0),
        (NEVER_IN_A_TEST, Duration::MAX, 95, 1, 0),
        (NEVER_IN_A_TEST, Duration::MAX, 105, 1, 1),
        (soon, Duration::MAX, 0, 3, 1),
        (soon, Duration::MAX, 0, 1, 0),
        (soon, Duration::MAX, 60, 1, 0),
        (NEVER_IN_A_TEST, soon, 0, 3, 1),
        (NEVER_IN_A_TEST, soon, 60, 2, 0),
    ] {
        let row =
            format!("of {timeout:?} up to {longest:?}, key {checked} is checked {late} ms late");
        let (waits, clock) = built(|builder| builder.max_timeout(longest));
        // Neither the intervals nor the grace end at a round time.
        clock.advance(7 * MILLISECOND);
        let mut waiter = Waiter::new((waits, clock), |waits| {
            waits.listen([1], timeout).recheck_every(SECOND)
        });
        waiter.listener().also(2);
        waiter.pass(SECOND);
        assert_eq!(waiter.told(), WOKEN, "a recheck");
        waiter.satisfied();
        assert_eq!(waiter.parked_and_missed(), (2, 0), "it may still come");
        waiter.pass(late * MILLISECOND);
        waiter.check(checked);
        waiter.pass(GRACE);
        let stats = waiter.waits.stats();
        assert_eq!(stats.missed_checks, missed, "{row}");
        // The operation of the further key is cancelled.
        let ends = (stats.completed, stats.cancelled, stats.expired);
        assert_eq!((ends, stats.panicked), ((1, 1, 0), 0), "{row}");
        assert_empty(&waiter.waits);
    }
}

/// The listener has ended, so its handle moves no deadline, and the end of the grace neither.
#[test]
fn g06_g21_a_handle_moves_no_deadline_within_the_grace() {
    for to in [Duration::ZERO, GRACE / 2, 5 * GRACE] {
        let mut waiter = Waiter::rechecked(NEVER_IN_A_TEST, SECOND);
        let handle = waiter.handle();
        waiter.pass(SECOND);
        assert_eq!(waiter.told(), WOKEN, "a recheck");
        waiter.satisfied();
        assert!(!handle.reschedule(to), "{to:?}");
        assert_eq!(waiter.parked_and_missed(), (1, 0), "{to:?}");
        waiter.pass(GRACE);
        assert_eq!(waiter.parked_and_missed(), (0, 1), "{to:?}");
        let stats = waiter.waits.stats();
        assert_eq!((stats.completed, stats.expired), (1, 0), "{to:?}");
        assert_empty(&waiter.waits);
    }
}

/// One of its operations has ended before, by its own deadline or by hand, so a check may have come that the listener
/// does not know of. This check comes before it is satisfied or after.
#[test]
fn g21_what_a_recheck_finds_is_not_missed_if_an_operation_of_the_listener_has_ended() {
    type Ends = fn(&Waits<u64>);
    const ENDS: [(u64, Ends); 3] = [
        (1, |_| ()),
        (2, |waits| drop(waits.cancel_for_key(&2))),
        (2, |waits| _ = waits.force_complete_for_key(&2)),
    ];
    for (key, ends) in ENDS {
        for is_early in [true, false] {
            let timeout = SECOND
                + if key == 1 {
                    MILLISECOND
                } else {
                    NEVER_IN_A_TEST
                };
            let mut waiter = Waiter::rechecked(timeout, SECOND);
            waiter.listener().also(2);
            waiter.pass(SECOND);
            assert_eq!(waiter.told(), WOKEN, "a recheck");
            waiter.pass(MILLISECOND);
            ends(&waiter.waits);
            if is_early {
                waiter.check(key);
            }
            waiter.satisfied();
            if !is_early {
                waiter.check(key);
            }
            waiter.pass(GRACE);
            assert_eq!(waiter.parked_and_missed(), (0, 0), "key {key}, {is_early}");
        }
    }
}

/// The operation of an added key is ended by hand within the grace, which ends the grace.
#[test]
fn g16_a_satisfied_listener_counts_as_completed_whatever_ends_its_grace() {
    let mut waiter = Waiter::rechecked(NEVER_IN_A_TEST, SECOND);
    waiter.listener().also(2);
    waiter.pass(SECOND);
    assert_eq!(waiter.told(), WOKEN, "a recheck");
    waiter.satisfied();
    drop(waiter.waits.cancel_for_key(&2));
    let stats = waiter.waits.stats();
    assert_eq!((stats.completed, stats.cancelled), (1, 1));
    assert_empty(&waiter.waits);
}

/// The longest timeout ends the operation of the added key, in the tick of the listener's own deadline or while the
/// condition is evaluated for the last time.
#[test]
fn g21_what_until_finds_at_the_deadline_is_missed_although_an_added_key_has_its_deadline() {
    for apart in [Duration::ZERO, SECOND / 3] {
        let (waits, clock) = built(|builder| builder.max_timeout(SECOND));
        let event = Cell::new(false);
        let mut listener = waits.listen([1], None);
        clock.advance(apart);
        listener.also(2);
        let (mut until, bell) = waiting(listener.until(|| ready(event.get().then_some(()))));
        pass(&waits, &clock, SECOND - apart);
        pass(&waits, &clock, apart);
        event.set(true);
        assert_eq!(bell.poll(&mut until), Poll::Ready(Ok(())));
        let stats = waits.stats();
        let ends = (stats.expired, stats.cancelled);
        assert_eq!((stats.missed_checks, ends), (1, (1, 1)), "{apart:?}");
        assert_empty(&waits);
    }
}

/// The listener has ended, so it adds no key, and a check of that key announces nothing.
#[test]
fn g21_a_listener_adds_no_key_within_the_grace() {
    let mut waiter = Waiter::rechecked(NEVER_IN_A_TEST, SECOND);
    let further = waiter.listener().further_keys();
    waiter.pass(SECOND);
    assert_eq!(waiter.told(), WOKEN, "a recheck");
    waiter.satisfied();
    further.also(2);
    assert_eq!(waiter.parked_and_missed(), (1, 0));
    waiter.check(2);
    waiter.pass(GRACE);
    assert_eq!(waiter.parked_and_missed(), (0, 1));
}

/// Of what a check has announced, nothing is to be waited for.
#[test]
fn g21_a_check_beside_a_recheck_ends_the_listener_at_once() {
    type Finds = fn(&mut Waiter);
    let rows: [(&str, Finds); 3] = [
        ("the check and the recheck are told as one", |it| {
            it.pass(SECOND);
            it.check(1);
            assert_eq!(it.told(), WOKEN);
            assert_eq!(it.told(), Poll::Pending, "one wake-up for both");
            // And the next interval has begun.
            it.pass(SECOND);
            assert_eq!(it.told(), WOKEN);
            it.check(1);
            assert_eq!(it.told(), WOKEN);
        }),
        ("the waiter has waited since the recheck", |it| {
            it.pass(SECOND);
            assert_eq!(it.told(), WOKEN);
            assert_eq!(it.told(), Poll::Pending);
        }),
        ("the check comes during the evaluation", |it| {
            it.pass(SECOND);
            assert_eq!(it.told(), WOKEN);
            it.check(1);
        }),
    ];
    for (name, finds) in rows {
        let mut waiter = Waiter::rechecked(None, SECOND);
        finds(&mut waiter);
        waiter.satisfied();
        assert_eq!(waiter.parked_and_missed(), (0, 0), "{name}");
    }
}

/// The event, and perhaps its check, come when the deadline has been processed and the task has not been polled yet. If
/// the task comes so late that its operation has ended, checks meanwhile are not known, and nothing is counted.
#[test]
fn g21_what_until_finds_at_the_deadline_is_missed_unless_a_check_came_since() {
    for (happens, is_checked, polled_after, missed) in [
        (false, false, Duration::ZERO, 0),
        (true, true, Duration::ZERO, 0),
        (true, true, SECOND - MILLISECOND, 0),
        (true, true, SECOND, 0),
        (true, false, Duration::ZERO, 1),
        (true, false, SECOND - MILLISECOND, 1),
        (true, false, SECOND, 0),
    ] {
        let row = format!("{happens}, checked: {is_checked}, polled after {polled_after:?}");
        let (waits, clock) = by_hand();
        let (event, evaluations) = (Cell::new(false), Cell::new(0));
        let (mut until, bell) = waiting(waits.listen([1], 5 * SECOND).until(|| {
            evaluations.set(evaluations.get() + 1);
            ready(event.get().then_some(()))
        }));
        clock.advance(5 * SECOND);
        assert_eq!(waits.advance(), 0, "it is still to be evaluated");
        assert_eq!(bell.rung(), 1);
        event.set(happens);
        if is_checked {
            assert_eq!(waits.check_and_complete(&1), 0);
        }
        pass(&waits, &clock, polled_after);
        let expected = happens.then_some(()).ok_or(WaitError::Expired);
        assert_eq!(bell.poll(&mut until), Poll::Ready(expected), "{row}");
        assert_eq!(evaluations.get(), 2);
        drop(until);
        let stats = waits.stats();
        let counts = (stats.expired, stats.missed_checks, stats.extended);
        assert_eq!(counts, (1, missed, 0), "{row}");
        assert_empty(&waits);
    }
}

/// The recheck is told after the deadline, and finds the event. A check has announced it, before or after that.
#[test]
fn g21_a_check_after_the_deadline_announces_what_a_recheck_finds() {
    for is_before in [true, false] {
        let (waits, clock) = by_hand();
        let event = Cell::new(false);
        let listener = waits.listen([1], SECOND);
        let listener = listener.recheck_every(990 * MILLISECOND);
        let (mut until, bell) = waiting(listener.until(|| ready(event.get().then_some(()))));
        pass(&waits, &clock, 990 * MILLISECOND);
        pass(&waits, &clock, 10 * MILLISECOND);
        event.set(true);
        if is_before {
            waits.check_and_complete(&1);
        }
        assert_eq!(bell.poll(&mut until), Poll::Ready(Ok(())));
        if !is_before {
            waits.check_and_complete(&1);
        }
        pass(&waits, &clock, GRACE);
        assert_eq!((waits.stats().missed_checks, waits.len()), (0, 0));
    }
}

/// The deadline comes while a check examines the listener's operation: the thread of the check acts on it, and keeps
/// the operation on its keys as well.
#[test]
fn g21_a_deadline_that_comes_during_a_check_is_announced_after_it_too() {
    let (waits, clock) = by_hand();
    for is_dropped in [true, false] {
        // The evaluation after that check finds nothing, and that at the deadline does, after another check.
        let mut evaluations = 0;
        let mut until = Box::pin(waits.listen([1], 5 * SECOND).until(|| {
            evaluations += 1;
            ready((evaluations == 3).then_some(()))
        }));
        let (late, clock) = (waits.clone(), clock.clone());
        poll_in_vain(&mut until, move || pass(&late, &clock, 5 * SECOND));
        assert_eq!(waits.check_and_complete(&1), 0);
        assert_eq!((waits.len(), waits.watched_keys()), (1, 1));
        if !is_dropped {
            assert_eq!(waits.check_and_complete(&1), 0);
            assert_eq!(Bell::new().poll(&mut until), Poll::Ready(Ok(())));
        }
        drop(until);
        let stats = waits.stats();
        let ended = (stats.cancelled, stats.expired, stats.missed_checks);
        assert_eq!(ended, (1, u64::from(!is_dropped), 0));
        assert_empty(&waits);
    }
}

/// Once, also if the wake-up before was a recheck, which has found nothing.
#[test]
fn g21_what_is_found_at_the_deadline_after_a_recheck_is_counted_once() {
    let (waits, clock) = by_hand();
    let evaluations = Cell::new(0);
    let listener = waits.listen([1], SECOND * 3 / 2).recheck_every(SECOND);
    let (mut until, bell) = waiting(listener.until(|| {
        evaluations.set(evaluations.get() + 1);
        if evaluations.get() == 2 {
            // The deadline passes while the condition is evaluated for the recheck.
            clock.advance(SECOND / 2);
            assert_eq!(waits.advance(), 0, "it is still to be evaluated");
        }
        ready((evaluations.get() == 3).then_some("found"))
    }));
    clock.advance(SECOND);
    assert_eq!((waits.advance(), bell.rung()), (0, 1), "a recheck");
    assert_eq!(bell.poll(&mut until), Poll::Ready(Ok("found")));
    drop(until);
    for _ in 0..2 {
        assert_eq!(waits.stats().missed_checks, 1);
        pass(&waits, &clock, SECOND);
    }
    assert_empty(&waits);
}
