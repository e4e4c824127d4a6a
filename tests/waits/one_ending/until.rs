//! `until` and `until_best`: conditions that await, that borrow, that are not `Send`, and that have half of an answer.

use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, PATIENCE, within};
use crate::{assert_empty, by_hand, now};
use futures::executor::block_on;
use request_purgatory::Waits;
use request_purgatory::future::WaitError;
use request_purgatory::threads::Reaper;
use request_purgatory::time::ManualClock;
use std::cell::{Cell, RefCell};
use std::future::{Future, ready};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

#[test]
fn it_is_evaluated_at_once_and_after_each_check_and_no_more() {
    let (waits, _clock) = by_hand();
    let (examinations, found) = (Cell::new(0), Cell::new(None));
    let mut wait = Box::pin(waits.listen([1, 2], NEVER_IN_A_TEST).until(|| {
        examinations.set(examinations.get() + 1);
        let found = &found;
        async move { found.take() }
    }));
    let bell = Bell::new();
    assert_eq!(examinations.get(), 0, "it is the task that examinations");
    assert_eq!(waits.stats().parked, 1, "but it is parked");
    for polls in 1..4 {
        assert_eq!(bell.poll(&mut wait), Poll::Pending);
        assert_eq!(bell.poll(&mut wait), Poll::Pending, "without a check");
        assert_eq!(examinations.get(), polls);
        waits.check_and_complete(&1);
        waits.check_and_complete(&2);
        assert_eq!((examinations.get(), bell.rung()), (polls, polls));
    }
    found.set(Some("it"));
    assert_eq!(bell.poll(&mut wait), Poll::Ready(Ok("it")));
    assert_eq!(
        (waits.stats().completed, waits.stats().missed_checks),
        (1, 0)
    );
    assert_empty(&waits);
}

/// An event while the condition awaits: it was examined before the event, and must be examined again.
#[test]
fn g01_an_event_while_the_condition_awaits_is_not_missed() {
    let (waits, _clock) = by_hand();
    let event = Cell::new(false);
    let gate = RefCell::new(None);
    let examinations = Cell::new(0);
    let mut wait = Box::pin(waits.listen([1], NEVER_IN_A_TEST).until(|| async {
        examinations.set(examinations.get() + 1);
        let seen = event.get();
        if examinations.get() == 1 {
            let (open, opened) = futures::channel::oneshot::channel::<()>();
            *gate.borrow_mut() = Some(open);
            opened.await.expect("the test opens it");
        }
        seen.then_some(7)
    }));
    let bell = Bell::new();
    assert_eq!(bell.poll(&mut wait), Poll::Pending);
    event.set(true);
    waits.check_and_complete(&1);
    assert_eq!(bell.poll(&mut wait), Poll::Pending);
    let open = gate.borrow_mut().take().expect("it awaits");
    open.send(()).expect("it still does");
    assert_eq!(bell.poll(&mut wait), Poll::Ready(Ok(7)));
    assert_eq!(examinations.get(), 2);
}

#[test]
fn g21_what_the_examination_at_the_deadline_finds_is_counted_as_a_missed_check() {
    let (waits, clock) = by_hand();
    for (happens, expected) in [(false, Err(WaitError::Expired)), (true, Ok(()))] {
        let (event, examinations) = (Cell::new(false), Cell::new(0));
        let mut wait = Box::pin(waits.listen([1], Duration::from_secs(1)).until(|| {
            examinations.set(examinations.get() + 1);
            let seen = event.get().then_some(());
            async move { seen }
        }));
        let bell = Bell::new();
        assert_eq!(bell.poll(&mut wait), Poll::Pending);
        event.set(happens);
        clock.advance(Duration::from_secs(1));
        assert_eq!(waits.advance(), 0, "it is still to be evaluated");
        assert_eq!(bell.rung(), 1);
        assert_eq!(bell.poll(&mut wait), Poll::Ready(expected));
        assert_eq!(examinations.get(), 2);
        assert_eq!(waits.stats().missed_checks, u64::from(happens));
        drop(wait);
        assert_empty(&waits);
    }
    assert_eq!(waits.stats().expired, 2);
}

/// The event, and perhaps its check, come when the deadline has been processed and the task has not been polled yet. If
/// the task comes so late that its operation has ended, checks meanwhile are not known, and nothing is counted.
#[test]
fn g21_what_was_announced_after_the_deadline_is_no_missed_check() {
    let late = Duration::from_secs(1);
    for (is_checked, polled_after, missed) in [
        (true, Duration::ZERO, 0),
        (true, late - Duration::from_millis(1), 0),
        (true, late, 0),
        (false, Duration::ZERO, 1),
        (false, late - Duration::from_millis(1), 1),
        (false, late, 0),
    ] {
        let (waits, clock) = by_hand();
        let event = Cell::new(false);
        let mut wait = Box::pin(
            waits
                .listen([1], Duration::from_secs(5))
                .until(|| ready(event.get().then_some(()))),
        );
        let bell = Bell::new();
        assert_eq!(bell.poll(&mut wait), Poll::Pending);
        clock.advance(Duration::from_secs(5));
        waits.advance();
        assert_eq!(bell.rung(), 1);
        event.set(true);
        if is_checked {
            assert_eq!(waits.check_and_complete(&1), 0);
        }
        clock.advance(polled_after);
        waits.advance();
        assert_eq!(bell.poll(&mut wait), Poll::Ready(Ok(())));
        drop(wait);
        let stats = waits.stats();
        assert_eq!(
            (stats.expired, stats.missed_checks, stats.extended),
            (1, missed, 0),
            "checked: {is_checked}, polled after {polled_after:?}"
        );
        assert_empty(&waits);
    }
}

/// The deadline comes while a check examines the listener's operation: the thread of the check acts on it, and keeps the
/// operation on its keys as well.
#[test]
fn g21_a_deadline_that_comes_during_a_check_is_announced_after_it_too() {
    struct Late(Waits<u64>, ManualClock);
    impl Wake for Late {
        fn wake(self: Arc<Self>) {
            self.1.advance(Duration::from_secs(5));
            self.0.advance();
        }
    }
    let (waits, clock) = by_hand();
    let event = Cell::new(false);
    let listener = waits.listen([1], Duration::from_secs(5));
    let mut wait = Box::pin(listener.until(|| ready(event.get().then_some(()))));
    let late = Waker::from(Arc::new(Late(waits.clone(), clock)));
    let poll = wait.as_mut().poll(&mut Context::from_waker(&late));
    assert!(poll.is_pending());
    assert_eq!(waits.check_and_complete(&1), 0);
    assert_eq!((waits.len(), waits.watched_keys()), (1, 1));
    // The evaluation after that check finds nothing, and that at the deadline does, after another check.
    let mut examinations = 0;
    drop(wait);
    assert_eq!(waits.stats().cancelled, 1);
    let mut wait = Box::pin(waits.listen([1], Duration::from_secs(5)).until(|| {
        examinations += 1;
        ready((examinations == 3).then_some(()))
    }));
    assert!(
        wait.as_mut()
            .poll(&mut Context::from_waker(&late))
            .is_pending()
    );
    assert_eq!(waits.check_and_complete(&1), 0);
    assert_eq!(waits.check_and_complete(&1), 0);
    assert_eq!(Bell::new().poll(&mut wait), Poll::Ready(Ok(())));
    drop(wait);
    let stats = waits.stats();
    assert_eq!((stats.expired, stats.missed_checks), (1, 0));
    assert_empty(&waits);
}

/// Also past the longest timeout of the purgatory.
#[test]
fn g06_a_listener_whose_task_is_not_polled_after_the_deadline_ends_a_second_later() {
    let clock = ManualClock::new();
    let builder = Waits::<u64>::builder("stuck").clock(clock.clone());
    let builder = builder.reaper(Reaper::Manual);
    let waits = builder.max_timeout(Duration::from_secs(1)).build();
    let waits = waits.expect("no threads to refuse");
    let mut wait = Box::pin(waits.listen([1], None).until(|| ready(None::<()>)));
    let bell = Bell::new();
    assert_eq!(bell.poll(&mut wait), Poll::Pending);
    clock.advance(Duration::from_secs(1));
    assert_eq!((waits.advance(), waits.len()), (0, 1));
    clock.advance(Duration::from_millis(999));
    assert_eq!((waits.advance(), waits.len()), (0, 1));
    clock.advance(Duration::from_millis(1));
    assert_eq!((waits.advance(), waits.len()), (1, 0));
    assert_eq!(bell.poll(&mut wait), Poll::Ready(Err(WaitError::Expired)));
    assert_eq!(waits.stats().expired, 1);
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
        crate::support::eventually("all have ended", || waits.is_empty());
        let stats = waits.stats();
        assert_eq!((stats.expired, stats.cancelled), (WAITS, 0));
    });
}

#[test]
fn a_condition_that_fails_ends_its_wait_with_the_error() {
    let (waits, clock) = by_hand();
    let answer = Cell::new(Ok(None));
    let until = || {
        waits
            .listen([1], Duration::from_secs(1))
            .until(|| ready(answer.get()))
    };
    for (last, expected) in [
        (Ok(Some(7)), Ok(Ok(7))),
        (Err("storage"), Ok(Err("storage"))),
        (Ok(None), Err(WaitError::Expired)),
    ] {
        answer.set(Ok(None));
        let (mut wait, bell) = (Box::pin(until()), Bell::new());
        assert_eq!(bell.poll(&mut wait), Poll::Pending);
        answer.set(last);
        match expected {
            Ok(_) => _ = waits.check_and_complete(&1),
            Err(_) => clock.advance(Duration::from_secs(1)),
        }
        waits.advance();
        assert_eq!(bell.poll(&mut wait), Poll::Ready(expected));
        assert_empty(&waits);
    }
    // And a predicate.
    let mut answers = vec![Err("storage"), Ok(None), Ok(None)];
    let wait = waits.wait([1], None, move || {
        answers.pop().expect("three examinations")
    });
    assert_eq!(waits.check_and_complete(&1), 1);
    assert_eq!(now(wait), Ok(Err::<u8, _>("storage")));
}

/// A condition that learns its keys, with the half that it has at the deadline.
#[test]
fn g01_a_condition_adds_the_keys_that_it_learns() {
    let (waits, clock) = by_hand();
    let (amount, evaluations) = (Cell::new(1), Cell::new(0));
    let mut listener = waits.listen([1], Duration::from_secs(1));
    let keys = listener.further_keys();
    let mut best = Box::pin(listener.until_best(|| async {
        evaluations.set(evaluations.get() + 1);
        keys.also(2);
        keys.clone().also(2);
        enough(amount.get())
    }));
    let bell = Bell::new();
    assert!(bell.poll(&mut best).is_pending());
    assert_eq!(waits.len(), 2, "one for the further key");
    amount.set(5);
    waits.check_and_complete(&2);
    assert!(bell.poll(&mut best).is_pending());
    assert_eq!(evaluations.get(), 2);
    clock.advance(Duration::from_secs(1));
    waits.advance();
    assert_eq!(
        bell.poll(&mut best),
        Poll::Ready(Err((5, WaitError::Expired)))
    );
    drop(best);
    assert_empty(&waits);
    keys.also(3);
    assert_eq!(
        (waits.len(), waits.watched_keys()),
        (0, 0),
        "the listener is gone"
    );
}

/// Once, also if the wake-up before was a recheck, which has found nothing.
#[test]
fn g21_what_is_found_at_the_deadline_after_a_recheck_is_counted_once() {
    let (waits, clock) = by_hand();
    let second = Duration::from_secs(1);
    let evaluations = Cell::new(0);
    let listener = waits.listen([1], second * 3 / 2).recheck_every(second);
    let mut until = Box::pin(listener.until(|| {
        evaluations.set(evaluations.get() + 1);
        if evaluations.get() == 2 {
            // The deadline passes while the condition is evaluated for the recheck.
            clock.advance(second / 2);
            assert_eq!(waits.advance(), 0, "it is still to be evaluated");
        }
        ready((evaluations.get() == 3).then_some("found"))
    }));
    let bell = Bell::new();
    assert!(bell.poll(&mut until).is_pending());
    clock.advance(second);
    assert_eq!((waits.advance(), bell.rung()), (0, 1), "a recheck");
    assert_eq!(bell.poll(&mut until), Poll::Ready(Ok("found")));
    drop(until);
    for _ in 0..2 {
        assert_eq!(waits.stats().missed_checks, 1);
        clock.advance(second);
        waits.advance();
    }
    assert_empty(&waits);
}

/// The timeout does not interrupt it.
#[test]
fn a_condition_that_runs_at_the_deadline_is_awaited_to_its_end() {
    let (waits, clock) = by_hand();
    let gate = RefCell::new(None);
    let mut wait = Box::pin(waits.listen([1], Duration::from_secs(1)).until(|| async {
        let (open, opened) = futures::channel::oneshot::channel::<u8>();
        *gate.borrow_mut() = Some(open);
        opened.await.ok()
    }));
    let bell = Bell::new();
    assert_eq!(bell.poll(&mut wait), Poll::Pending);
    clock.advance(Duration::from_secs(5));
    waits.advance();
    assert_eq!(bell.poll(&mut wait), Poll::Pending, "still awaited");
    let open = gate.borrow_mut().take().expect("it awaits");
    open.send(3).expect("it still does");
    assert_eq!(bell.poll(&mut wait), Poll::Ready(Ok(3)));
    assert_eq!(waits.stats().missed_checks, 0, "it had begun before");
}

#[test]
fn every_other_end_is_an_error_and_a_refused_wait_is_examined_once() {
    let (waits, _clock) = by_hand();
    let examinations = Cell::new(0);
    let mut wait = Box::pin(waits.listen([1], Duration::MAX).until(|| {
        examinations.set(examinations.get() + 1);
        async { None::<u8> }
    }));
    let bell = Bell::new();
    assert_eq!(bell.poll(&mut wait), Poll::Pending);
    assert_eq!(waits.force_complete_for_key(&1), 1);
    let forced = Poll::Ready(Err(WaitError::Forced));
    assert_eq!((bell.poll(&mut wait), examinations.get()), (forced, 1));
    waits.shutdown();
    let there = waits.listen([1], Duration::MAX).until(|| async { Some(1) });
    assert_eq!(block_on(there), Ok(1));
    let nothing = waits
        .listen([1], Duration::MAX)
        .until(|| async { None::<u8> });
    assert_eq!(block_on(nothing), Err(WaitError::ShutDown));
}

/// Enough is ten.
fn enough(amount: u32) -> Result<u32, u32> {
    if amount >= 10 {
        Ok(amount)
    } else {
        Err(amount)
    }
}

/// Also if a check came just before the deadline, and would let it find enough.
#[test]
fn g21_half_at_the_deadline_is_the_answer_without_another_evaluation() {
    for is_checked in [false, true] {
        let (waits, clock) = by_hand();
        let (amount, evaluations) = (Cell::new(3), Cell::new(0));
        let mut best = Box::pin(waits.listen([1], Duration::from_secs(1)).until_best(|| {
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
        clock.advance(Duration::from_secs(1));
        assert_eq!(waits.advance(), 1);
        let half = Poll::Ready(Err((5, WaitError::Expired)));
        assert_eq!(bell.poll(&mut best), half, "checked: {is_checked}");
        assert_eq!(evaluations.get(), 2);
        drop(best);
        let stats = waits.stats();
        assert_eq!((stats.expired, stats.missed_checks), (1, 0));
        assert_empty(&waits);
    }
}

/// It is awaited to its end, and its answer is the last one.
#[test]
fn a_deadline_in_the_first_evaluation_of_until_best_does_not_interrupt_it() {
    for (amount, expected) in [(5, Err((5, WaitError::Expired))), (10, Ok(10))] {
        let (waits, clock) = by_hand();
        let (gate, evaluations) = (RefCell::new(None), Cell::new(0));
        let listener = waits.listen([1], Duration::from_secs(1));
        let mut best = Box::pin(listener.until_best(|| async {
            evaluations.set(evaluations.get() + 1);
            let (open, opened) = futures::channel::oneshot::channel::<u32>();
            *gate.borrow_mut() = Some(open);
            enough(opened.await.expect("the test opens it"))
        }));
        let bell = Bell::new();
        assert!(bell.poll(&mut best).is_pending());
        waits.check_and_complete(&1);
        clock.advance(Duration::from_secs(5));
        assert_eq!(waits.advance(), 1);
        assert!(bell.poll(&mut best).is_pending(), "still awaited");
        let open = gate.borrow_mut().take().expect("it awaits");
        open.send(amount).expect("it still does");
        assert_eq!(bell.poll(&mut best), Poll::Ready(expected));
        assert_eq!(evaluations.get(), 1, "a key was checked meanwhile");
        drop(best);
        assert_empty(&waits);
    }
}

#[test]
fn a_refused_until_best_is_evaluated_once() {
    let builder = Waits::<u64>::builder("full").reaper(Reaper::Manual);
    let waits = builder.max_parked(1).build().expect("no thread to refuse");
    let evaluated_once = |amount, expected| {
        let evaluations = Cell::new(0);
        let best = waits.listen([1], NEVER_IN_A_TEST).until_best(|| {
            evaluations.set(evaluations.get() + 1);
            ready(enough(amount))
        });
        assert_eq!(now(Box::pin(best)), expected);
        assert_eq!(evaluations.get(), 1, "{expected:?}");
    };
    let place = waits.listen([2], None);
    evaluated_once(5, Err((5, WaitError::Full)));
    evaluated_once(10, Ok(10));
    drop(place);
    waits.shutdown();
    evaluated_once(5, Err((5, WaitError::ShutDown)));
    evaluated_once(10, Ok(10));
}

/// A condition that is not `Send`, on an executor of one thread; it borrows what lies on the stack.
#[test]
fn a_condition_may_borrow_and_need_not_be_send() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("local");
        let event = Arc::new(AtomicU64::new(0));
        let seen = Rc::new(RefCell::new(Vec::new()));
        let (borrowed, log) = (&event, &seen);
        let producer = thread::spawn({
            let (waits, event) = (waits.clone(), event.clone());
            move || {
                for _ in 0..5 {
                    event.fetch_add(1, Ordering::Relaxed);
                    waits.check_and_complete(&1);
                }
            }
        });
        let found = block_on(waits.listen([1], NEVER_IN_A_TEST).until(|| async move {
            futures::future::ready(()).await;
            let now = borrowed.load(Ordering::Relaxed);
            log.borrow_mut().push(now);
            (now == 5).then_some(now)
        }));
        assert_eq!(found, Ok(5));
        producer.join().expect("it does not panic");
        assert_eq!(seen.borrow().last(), Some(&5));
    });
}

/// In a task of a runtime of many threads: the future is `Send`, and what the condition borrows lives in the task.
#[test]
fn g01_many_spawned_tasks_and_an_async_condition() {
    const TASKS: u64 = 64;
    within(PATIENCE, || {
        let runtime = tokio::runtime::Runtime::new().expect("threads for tokio");
        let waits = Waits::<u64>::new("spawned");
        let storage = Arc::new(tokio::sync::RwLock::new(0_u64));
        let examinations = Arc::new(AtomicUsize::new(0));
        let tasks = (0..TASKS).map(|task| {
            let (waits, storage, examinations) =
                (waits.clone(), storage.clone(), examinations.clone());
            runtime.spawn(async move {
                let wanted = (task + 1) * 10;
                waits
                    .listen([task % 4], NEVER_IN_A_TEST)
                    .until(|| async {
                        examinations.fetch_add(1, Ordering::Relaxed);
                        let now = *storage.read().await;
                        tokio::task::yield_now().await;
                        (now >= wanted).then_some(now)
                    })
                    .await
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
        assert!(examinations.load(Ordering::Relaxed) >= TASKS as usize);
        assert!(waits.is_empty());
    });
}
