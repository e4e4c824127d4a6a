//! G1 and G5, `until` and `until_best`: conditions that await, that borrow, and that have half of an answer.

use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, PATIENCE, eventually, within};
use crate::{SECOND, assert_empty, built, by_hand, now, pass};
use futures::channel::oneshot;
use futures::executor::block_on;
use request_purgatory::Waits;
use request_purgatory::future::WaitError;
use std::cell::{Cell, RefCell};
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

#[test]
fn it_is_evaluated_at_once_and_after_each_check_and_no_more() {
    let (waits, _clock) = by_hand();
    let (evaluations, found) = (Cell::new(0), Cell::new(None));
    let mut until = Box::pin(waits.listen([1, 2], NEVER_IN_A_TEST).until(|| {
        evaluations.set(evaluations.get() + 1);
        let found = &found;
        async move { found.take() }
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

/// Keeps an evaluation waiting until the test opens it, and says what it finds.
#[derive(Default)]
struct Gate(RefCell<Option<oneshot::Sender<u32>>>);

impl Gate {
    async fn opened(&self) -> u32 {
        let (open, opened) = oneshot::channel();
        *self.0.borrow_mut() = Some(open);
        opened.await.expect("the test opens it")
    }

    fn open(&self, found: u32) {
        let open = self.0.borrow_mut().take().expect("it awaits");
        open.send(found).expect("it still does");
    }
}

/// An event while the condition awaits comes after the look at it, so that another look is due. The deadline does not
/// interrupt the condition, and what that finds is no missed check.
#[test]
fn g01_an_evaluation_is_awaited_to_its_end_and_another_follows_a_check() {
    for (is_late, expected) in [(false, 2), (true, 1)] {
        let (waits, clock) = by_hand();
        let (event, evaluations, gate) = (Cell::new(is_late), Cell::new(0), Gate::default());
        let mut until = Box::pin(waits.listen([1], SECOND).until(|| async {
            evaluations.set(evaluations.get() + 1);
            let seen = event.get();
            if evaluations.get() == 1 {
                gate.opened().await;
            }
            seen.then_some(7)
        }));
        let bell = Bell::new();
        assert_eq!(bell.poll(&mut until), Poll::Pending);
        if is_late {
            pass(&waits, &clock, SECOND * 5);
        } else {
            event.set(true);
            waits.check_and_complete(&1);
        }
        assert_eq!(bell.poll(&mut until), Poll::Pending, "still awaited");
        gate.open(0);
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
        let (gate, evaluations) = (Gate::default(), Cell::new(0));
        let mut best = Box::pin(waits.listen([1], SECOND).until_best(|| async {
            evaluations.set(evaluations.get() + 1);
            enough(gate.opened().await)
        }));
        let bell = Bell::new();
        assert!(bell.poll(&mut best).is_pending());
        waits.check_and_complete(&1);
        clock.advance(SECOND * 5);
        assert_eq!(waits.advance(), 1);
        assert!(bell.poll(&mut best).is_pending(), "still awaited");
        gate.open(amount);
        assert_eq!(bell.poll(&mut best), Poll::Ready(expected));
        assert_eq!(evaluations.get(), 1, "a key was checked meanwhile");
        drop(best);
        assert_empty(&waits);
    }
}

/// Enough is ten.
fn enough(amount: u32) -> Result<u32, u32> {
    if amount >= 10 {
        Ok(amount)
    } else {
        Err(amount)
    }
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
        let mut best = Box::pin(listener.until_best(|| {
            evaluations.set(evaluations.get() + 1);
            ready(enough(amount.get()))
        }));
        let bell = Bell::new();
        assert!(bell.poll(&mut best).is_pending());
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
        let mut until = Box::pin(listener.until(|| ready(answer.get())));
        let bell = Bell::new();
        assert_eq!(bell.poll(&mut until), Poll::Pending);
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
    let mut until = Box::pin(listener.until(|| async {
        keys.also(2);
        keys.clone().also(2);
        found.get()
    }));
    let bell = Bell::new();
    assert!(bell.poll(&mut until).is_pending());
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

/// In a task of a runtime of many threads: the future is `Send`, and what the condition borrows lives in the task.
#[test]
fn g01_many_spawned_tasks_and_an_async_condition() {
    const TASKS: u64 = 64;
    within(PATIENCE, || {
        let runtime = tokio::runtime::Runtime::new().expect("threads for tokio");
        let waits = Waits::<u64>::new("spawned");
        let storage = Arc::new(tokio::sync::RwLock::new(0_u64));
        let evaluations = Arc::new(AtomicUsize::new(0));
        let tasks = (0..TASKS).map(|task| {
            let (waits, storage) = (waits.clone(), storage.clone());
            let evaluations = evaluations.clone();
            runtime.spawn(async move {
                let wanted = (task + 1) * 10;
                let listener = waits.listen([task % 4], NEVER_IN_A_TEST);
                let until = listener.until(|| async {
                    evaluations.fetch_add(1, Ordering::Relaxed);
                    let now = *storage.read().await;
                    tokio::task::yield_now().await;
                    (now >= wanted).then_some(now)
                });
                until.await
            })
        });
        let tasks = tasks.collect::<Vec<_>>();
        runtime.block_on(async {
            for _ in 0..TASKS * 10 {
                *storage.write().await += 1;
                for key in 0..4 {
                    waits.check_and_complete(&key);
                }
            }
            for (task, found) in (0..).zip(tasks) {
                let found = found.await.expect("it does not panic");
                assert!(found.expect("it is found") >= (task + 1) * 10);
            }
        });
        assert!(evaluations.load(Ordering::Relaxed) >= TASKS as usize);
        assert!(waits.is_empty());
    });
}
