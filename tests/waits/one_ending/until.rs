//! G1 and G5, `until` and `until_best`: conditions that await, that borrow, and that have half of an answer.

use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, PATIENCE, eventually, within};
use crate::{SECOND, assert_empty, built, by_hand, now, pass, waiting};
use futures::executor::block_on;
use request_purgatory::Waits;
use request_purgatory::future::WaitError;
use std::cell::Cell;
use std::future::ready;
use std::task::Poll;
use std::time::Duration;

#[test]
fn it_is_evaluated_at_once_and_after_each_check_and_no_more() {
    let (waits, _clock) = by_hand();
    let (evaluations, found) = (Cell::new(0), Cell::new(None));
    let mut until = Box::pin(waits.listen([1, 2], NEVER_IN_A_TEST).until(|| {
        evaluations.set(evaluations.get() + 1);
        ready(found.take())
    }));
    let bell = Bell::new();
    assert_eq!(evaluations.get(), 0, "it is the task that evaluates");
    assert_eq!(waits.stats().parked, 1, "but it is parked");
    for polls in 1..4 {
        assert_eq!(bell.poll(&mut until), Poll::Pending);
        assert_eq!(bell.poll(&mut until), Poll::Pending, "without a check");
        assert_eq!(evaluations.get(), polls);
        waits.check_and_complete(&1);
        waits.check_and_complete(&2);
        assert_eq!((evaluations.get(), bell.rung()), (polls, polls));
    }
    found.set(Some("it"));
    assert_eq!(bell.poll(&mut until), Poll::Ready(Ok("it")));
    let stats = waits.stats();
    assert_eq!((stats.completed, stats.missed_checks), (1, 0));
    assert_empty(&waits);
}

/// An event while the condition awaits comes after the look at it, so that another look is due. The deadline does not
/// interrupt the condition, and what that finds is no missed check.
#[test]
fn g01_an_evaluation_is_awaited_to_its_end_and_another_follows_a_check() {
    for (is_late, expected) in [(false, 2), (true, 1)] {
        let (waits, clock) = by_hand();
        let (event, evaluations) = (Cell::new(is_late), Cell::new(0));
        let (open, gate) = async_channel::unbounded::<()>();
        let (mut until, bell) = waiting(waits.listen([1], SECOND).until(|| async {
            evaluations.set(evaluations.get() + 1);
            let seen = event.get();
            if evaluations.get() == 1 {
                gate.recv().await.expect("the test opens it");
            }
            seen.then_some(7)
        }));
        if is_late {
            pass(&waits, &clock, SECOND * 5);
        } else {
            event.set(true);
            waits.check_and_complete(&1);
        }
        assert_eq!(bell.poll(&mut until), Poll::Pending, "still awaited");
        open.try_send(()).expect("it awaits");
        assert_eq!(bell.poll(&mut until), Poll::Ready(Ok(7)));
        let counts = (evaluations.get(), waits.stats().missed_checks);
        assert_eq!(counts, (expected, 0), "late: {is_late}");
    }
}

/// It is awaited to its end, and its answer is the last one.
#[test]
fn a_deadline_in_the_first_evaluation_of_until_best_does_not_interrupt_it() {
    for (amount, expected) in [(5, Err((5, WaitError::Expired))), (10, Ok(10))] {
        let (waits, clock) = by_hand();
        let ((open, gate), evaluations) = (async_channel::unbounded(), Cell::new(0));
        let (mut best, bell) = waiting(waits.listen([1], SECOND).until_best(|| async {
            evaluations.set(evaluations.get() + 1);
            enough(gate.recv().await.expect("the test opens it"))
        }));
        waits.check_and_complete(&1);
        clock.advance(SECOND * 5);
        assert_eq!(waits.advance(), 1);
        assert!(bell.poll(&mut best).is_pending(), "still awaited");
        open.try_send(amount).expect("it awaits");
        assert_eq!(bell.poll(&mut best), Poll::Ready(expected));
        assert_eq!(evaluations.get(), 1, "a key was checked meanwhile");
        drop(best);
        assert_empty(&waits);
    }
}

/// Enough is ten.
fn enough(amount: u32) -> Result<u32, u32> {
    (amount >= 10).then_some(amount).ok_or(amount)
}

/// It has half. Then there is enough, perhaps a check says so, and time passes. At the deadline nothing is evaluated,
/// so a recheck is what tells of a change that no check announces.
#[test]
fn g21_until_best_finds_enough_by_a_check_or_a_recheck_before_the_deadline() {
    let half = Err((5, WaitError::Expired));
    for (is_checked, passes, expected, missed) in [
        (true, Duration::ZERO, Ok(10), 0),
        (false, SECOND, Ok(10), 1),
        (false, SECOND * 5, half, 0),
        (true, SECOND * 5, half, 0),
    ] {
        let row = format!("after {passes:?}, checked: {is_checked}");
        let (waits, clock) = by_hand();
        let (amount, evaluations) = (Cell::new(3), Cell::new(0));
        let listener = waits.listen([1], SECOND * 5).recheck_every(SECOND);
        let (mut best, bell) = waiting(listener.until_best(|| {
            evaluations.set(evaluations.get() + 1);
            ready(enough(amount.get()))
        }));
        amount.set(5);
        waits.check_and_complete(&1);
        assert!(bell.poll(&mut best).is_pending());
        assert_eq!(evaluations.get(), 2, "a check in time is an evaluation");
        amount.set(10);
        if is_checked {
            waits.check_and_complete(&1);
        }
        pass(&waits, &clock, passes);
        assert_eq!(bell.poll(&mut best), Poll::Ready(expected), "{row}");
        assert_eq!(evaluations.get(), 2 + u32::from(expected.is_ok()), "{row}");
        drop(best);
        pass(&waits, &clock, SECOND);
        let stats = waits.stats();
        let ends = (stats.completed, stats.expired, stats.missed_checks);
        let is_best = u64::from(expected.is_ok());
        assert_eq!(ends, (is_best, 1 - is_best, missed), "{row}");
        assert_empty(&waits);
    }
}

/// On another thread, at the moment at which the deadline is being processed: each wait is counted as expired, once.
#[test]
fn g05_a_task_that_is_faster_than_the_pass_that_woke_it_ends_its_wait_once() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("fast");
        const WAITS: u64 = 200;
        for _ in 0..WAITS {
            let wait = waits.listen([1], Duration::from_millis(1));
            let expired = block_on(wait.until(|| ready(None::<()>)));
            assert_eq!(expired, Err(WaitError::Expired));
        }
        eventually("all have ended", || waits.is_empty());
        let stats = waits.stats();
        assert_eq!((stats.expired, stats.cancelled), (WAITS, 0));
    });
}

#[test]
fn a_condition_that_fails_ends_its_wait_with_the_error() {
    let (waits, _clock) = by_hand();
    for (last, expected) in [(Ok(Some(7)), Ok(7)), (Err("storage"), Err("storage"))] {
        let answer = Cell::new(Ok(None));
        let listener = waits.listen([1], None);
        let (mut until, bell) = waiting(listener.until(|| ready(answer.get())));
        answer.set(last);
        waits.check_and_complete(&1);
        assert_eq!(bell.poll(&mut until), Poll::Ready(Ok(expected)));
        assert_empty(&waits);
        // And a predicate, which is examined twice before it is parked.
        let mut answers = vec![last, Ok(None), Ok(None)];
        let answer = move || answers.pop().expect("three examinations");
        let wait = waits.wait([1], None, answer);
        assert_eq!(waits.check_and_complete(&1), 1);
        assert_eq!(now(wait), Ok(expected));
    }
}

#[test]
fn g01_a_condition_adds_the_keys_that_it_learns() {
    let (waits, _clock) = by_hand();
    let found = Cell::new(None);
    let mut listener = waits.listen([1], None);
    let keys = listener.further_keys();
    let (mut until, bell) = waiting(listener.until(|| async {
        keys.also(2);
        keys.clone().also(2);
        found.get()
    }));
    assert_eq!(waits.len(), 2, "one for the further key");
    found.set(Some(7));
    waits.check_and_complete(&2);
    assert_eq!(bell.poll(&mut until), Poll::Ready(Ok(7)));
    drop(until);
    keys.also(3);
    assert_empty(&waits);
}

/// The refusal is told only if nothing is found.
#[test]
fn a_refused_condition_that_holds_is_told_what_it_finds() {
    let (waits, _clock): (Waits<u64>, _) = built(|builder| builder.max_parked(1));
    let is_found = || {
        let evaluations = Cell::new(0);
        let condition = || {
            evaluations.set(evaluations.get() + 1);
            enough(10)
        };
        let listen = || waits.listen([1], NEVER_IN_A_TEST);
        let found = block_on(listen().until(|| ready(condition().ok())));
        let best = block_on(listen().until_best(|| ready(condition())));
        assert_eq!((found, best, evaluations.get()), (Ok(10), Ok(10), 2));
    };
    let place = waits.listen([2], None);
    is_found();
    drop(place);
    waits.shutdown();
    is_found();
}

/// A runtime of many threads may have the task, in which what the condition borrows lives.
#[test]
fn g01_a_spawned_task_awaits_an_async_condition() {
    let (waits, _clock) = by_hand();
    let storage = tokio::sync::RwLock::new(Some(7));
    let task = async move {
        let until = waits
            .listen([1], None)
            .until(|| async { *storage.read().await });
        until.await
    };
    let runtime = tokio::runtime::Runtime::new().expect("threads for tokio");
    let found = runtime.block_on(runtime.spawn(task));
    assert_eq!(found.expect("it does not panic"), Ok(7));
}
