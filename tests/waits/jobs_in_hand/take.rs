//! G23 and G26: what was taken is received and done once, or given back once and offered to the next, whatever ends the
//! worker.

use super::{Jobs, done, held, in_hand, waits_and_jobs};
use crate::chains::drops::Bomb;
use crate::support::bell::Bell;
use crate::support::keys::{Fragile, Hook, with_fuse};
use crate::support::{NEVER_IN_A_TEST, PATIENCE, lock, within};
use crate::{SECOND, assert_empty, built, by_hand, is_pending, now, owning, pass};
use futures::FutureExt;
use request_purgatory::future::{Take, Taken, WaitError, WaitOperation, block_on};
use request_purgatory::{Completion, DelayedOperation, Waits};
use request_purgatory::{purgatory::Cause, time::ManualClock};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::task::Poll;
use std::thread;

#[test]
fn g23_g26_a_job_is_received_once_and_done_or_given_back() {
    let (waits, jobs) = waits_and_jobs();
    let mut first = jobs.take(&waits);
    assert!(is_pending(&mut first));
    assert_eq!(jobs.push(&waits, 7), 1);
    let mut guard = now(&mut first).expect("a job");
    assert!(is_pending(&mut first), "and only once");
    drop(first);
    let second = jobs.take(&waits);
    assert_eq!((*guard, jobs.len(), waits.stats().parked), (7, 0, 1));
    *guard += 1;
    drop(guard);
    assert_eq!(done(second), Ok(8), "as its worker left it");
    assert_eq!(jobs.len(), 0);
    assert_empty(&waits);
}

#[test]
fn g23_what_was_not_received_goes_to_the_next_waiter() {
    type Find = fn(&Jobs, &Waits<u64>, &ManualClock);
    let by_a_check: Find = |jobs, waits, _| assert_eq!(jobs.push(waits, 1), 1);
    let at_the_deadline: Find = |jobs, waits, clock| {
        jobs.put(1);
        pass(waits, clock, SECOND);
        assert_eq!(waits.stats().expired, 1);
    };
    for (name, polled, find) in [
        ("by a check", false, by_a_check),
        ("by a check, polled", true, by_a_check),
        ("at the deadline", false, at_the_deadline),
        ("at the deadline, polled", true, at_the_deadline),
    ] {
        let (waits, clock) = by_hand();
        let (jobs, bell) = (Jobs::default(), Bell::new());
        let mut first = jobs.take_on(&waits, [1], SECOND);
        let mut second = jobs.take(&waits);
        assert!(bell.poll(&mut second).is_pending(), "{name}");
        assert!(!polled || is_pending(&mut first), "{name}");
        find(&jobs, &waits, &clock);
        assert_eq!((jobs.len(), bell.rung()), (0, 0), "{name}: the first's");
        drop(first);
        assert_eq!(bell.rung(), 1, "{name}");
        assert_eq!(done(second), Ok(1), "{name}");
        assert_empty(&waits);
    }
}

/// What goes back is for the waiters of every key that the take watched.
#[test]
fn g23_what_was_not_received_is_offered_on_each_key() {
    let (waits, jobs) = waits_and_jobs();
    let twice = |jobs: &Jobs, job| [job, job].into_iter().for_each(|job| jobs.put(job));
    let dropped = jobs.take_by(&waits, [1, 2, 3], |jobs, _| jobs.pop(), twice);
    let others = [2, 3].map(|key| jobs.take_on(&waits, [key], NEVER_IN_A_TEST));
    assert_eq!(jobs.push(&waits, 7), 1);
    drop(dropped);
    assert_eq!(others.map(done), [Ok(7), Ok(7)]);
    assert_empty(&waits);
}

/// Without another waiter the job lies where it lay: the future may be dropped, or the guard, and that anywhere.
#[test]
fn g23_g26_what_is_dropped_anywhere_goes_back() {
    type Held = Box<dyn Send>;
    let drops: [(&str, fn(Held, Waits<u64>)); 3] = [
        ("by a panic of another thread", |held, _| {
            let worker = thread::spawn(move || {
                let _held = held;
                resume_unwind(Box::new("the worker fails"));
            });
            assert!(worker.join().is_err());
        }),
        ("after the shutdown", |held, waits| {
            waits.shutdown();
            drop(held);
        }),
        ("without the purgatory", |held, waits| {
            drop(waits);
            drop(held);
        }),
    ];
    for (name, drops) in drops {
        for received in [false, true] {
            let (waits, jobs) = waits_and_jobs();
            let take = jobs.take(&waits);
            assert_eq!(jobs.push(&waits, 1), 1);
            jobs.put(2);
            drops(held(take, received), waits);
            let back = [jobs.pop(), jobs.pop(), jobs.pop()];
            assert_eq!(back, [Some(1), Some(2), None], "{name}, {received}");
        }
    }
}

/// Keys that panic in `Hash` when a value goes back. It is offered to those that wait under the other key, and the
/// panic is counted.
#[test]
fn g12_g23_g26_a_key_that_panics_keeps_no_job_from_the_other_key() {
    for received in [false, true] {
        for bad in [1, 2] {
            let (waits, _clock) = built::<WaitOperation<Fragile>>(|builder| builder);
            let jobs = Jobs::default();
            jobs.put(7);
            let take = jobs.take_on(&waits, [1, 2].map(Fragile), NEVER_IN_A_TEST);
            let held = held(take, received);
            let next = jobs.take_on(&waits, [Fragile(3 - bad)], NEVER_IN_A_TEST);
            assert!(with_fuse(bad, Hook::Hash, || drop(held)).is_ok());
            assert_eq!(waits.stats().panicked, 1, "{received}, {bad}");
            assert_eq!(in_hand(next).done(), 7, "{received}, {bad}");
            assert_eq!(jobs.len(), 0);
        }
    }
}

/// The thread that has just taken the value finds the future gone: it gives the value back.
#[test]
fn g23_a_future_dropped_while_another_thread_takes_gives_back() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("busy");
        let (jobs, stop) = (Jobs::default(), Arc::new(Barrier::new(2)));
        let (stops, (tells, thread_of)) = (stop.clone(), channel());
        let take_slowly = move |jobs: &Jobs, _: Cause<'_, u64>| {
            let job = jobs.pop()?;
            stops.wait();
            stops.wait();
            Some(job)
        };
        let give_back = move |jobs: &Jobs, job| {
            tells.send(thread::current().id()).expect("the test asks");
            jobs.give_back(job);
        };
        let first = jobs.take_by(&waits, [1], take_slowly, give_back);
        let second = jobs.take(&waits);
        let (checks, pushes) = (waits.clone(), jobs.clone());
        let checker = thread::spawn(move || pushes.push(&checks, 7));
        stop.wait();
        drop(first);
        stop.wait();
        assert_eq!(block_on(second).map(Taken::done), Ok(7));
        assert_eq!(thread_of.recv(), Ok(checker.thread().id()));
        checker.join().expect("it does not panic");
        assert_eq!((waits.stats().parked, waits.watched_keys()), (0, 0));
    });
}

/// Under no lock: it may call everything. After its panic, the key is checked all the same.
#[test]
fn g03_g12_giving_back_may_call_the_purgatory_and_panic() {
    within(PATIENCE, || {
        let (waits, jobs) = waits_and_jobs();
        let again = waits.clone();
        let give_back = move |jobs: &Jobs, job| {
            jobs.put(job);
            again.check_and_complete(&1);
            drop(again.cancel_for_key(&2));
            jobs.put(job + 1);
            panic!("on purpose")
        };
        let first = jobs.take_by(&waits, [1], |jobs, _| jobs.pop(), give_back);
        let others = [jobs.take(&waits), jobs.take(&waits)];
        let cancelled = waits.wait([2], NEVER_IN_A_TEST, || None::<u8>);
        assert_eq!(jobs.push(&waits, 1), 1);
        drop(first);
        assert_eq!(waits.stats().panicked, 1);
        assert_eq!(others.map(done), [Ok(1), Ok(2)]);
        assert_eq!(now(cancelled), Err(WaitError::Cancelled));
    });
}

/// The error or the panic ends this take only. The check that an error has used up goes to the next one when the timer
/// is driven, whether it named a key or not.
#[test]
fn a_take_that_fails_or_panics_ends_alone() {
    const LOCKED: &str = "the table is locked";
    type Failure = Option<fn() -> &'static str>;
    let fails: Failure = Some(|| LOCKED);
    let panics: Failure = Some(|| resume_unwind(Box::new("on purpose")));
    for (name, failure, by_handle, end) in [
        ("a check", fails, false, Ok(Some(LOCKED))),
        ("a handle", fails, true, Ok(Some(LOCKED))),
        ("a panic", panics, false, Err(WaitError::Panicked)),
    ] {
        let (waits, jobs) = waits_and_jobs();
        let take = |failure: Failure| {
            let take = move |jobs: &Jobs, cause: Cause<'_, u64>| match failure {
                Some(fails) if !cause.is_parking() && jobs.len() > 0 => Err(fails()),
                _ => Ok(jobs.pop()),
            };
            jobs.take_by(&waits, [1], take, Jobs::give_back)
        };
        let (failing, mut next) = (take(failure), take(None));
        assert!(is_pending(&mut next));
        if by_handle {
            jobs.put(1);
            let handle = failing.handle().expect("it waits").clone();
            assert!(handle.check(), "it ends the operation");
        } else {
            assert_eq!(jobs.push(&waits, 1), 1, "{name}: it ends one operation");
        }
        assert_eq!(now(failing).map(Result::err), end, "{name}");
        waits.advance();
        let next = now(next).expect("it ended").map(Taken::done);
        assert_eq!(next, Ok(1), "{name}");
        assert_empty(&waits);
    }
}

/// They panic one by one: a second panic while the first one unwinds would end the process.
#[test]
fn g12_both_closures_of_a_take_that_took_nothing_panic_when_dropped() {
    type Answer = Result<Option<u8>, &'static str>;
    // Where the future is dropped, the panic of the first one is the caller's.
    let answers: [(Answer, bool, u64); 2] = [(Ok(None), true, 1), (Err("at once"), false, 2)];
    for (answer, unwinds, counted) in answers {
        let (waits, _clock) = by_hand();
        let mut take = owning(Bomb, move || answer);
        let mut give_back = owning(Bomb, || ());
        let mut take = waits.take([1], None, move |_| take(), move |_| give_back());
        if answer.is_err() {
            let end = Bell::new().poll(&mut take).map_ok(Result::err);
            assert_eq!(end, Poll::Ready(Ok(answer.err())));
        }
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(take)));
        let seen = (dropped.is_err(), waits.stats().panicked);
        assert_eq!(seen, (unwinds, counted), "{answer:?}");
        assert_empty(&waits);
    }
}

/// An operation drops a take or its guard in each of two examinations, the second of them by a nested check. Both
/// values are offered to the workers that wait.
#[test]
fn g23_values_that_go_back_in_nested_examinations_are_all_offered() {
    within(PATIENCE, || {
        for received in [false, true] {
            let (waits, jobs) = waits_and_jobs();
            let take = || jobs.take_on(&waits, [7], NEVER_IN_A_TEST);
            let hands = [1, 2].map(|job| {
                jobs.put(job);
                held(take(), received)
            });
            let hands = Arc::new(Mutex::new(Vec::from(hands)));
            let workers = [take(), take()];
            let (weak, dropped, mut examinations) = (waits.downgrade(), hands.clone(), 0);
            // Key 1 has two watchers, so its check is not that of one operation.
            let _listener = waits.listen([1], NEVER_IN_A_TEST);
            let _wait = waits.wait([1], NEVER_IN_A_TEST, move || {
                examinations += 1;
                if examinations > 2 {
                    let hand = lock(&dropped).pop();
                    drop(hand);
                    weak.upgrade()?.check_and_complete(&1);
                }
                None::<()>
            });
            waits.check_and_complete(&1);
            waits.advance();
            assert!(lock(&hands).is_empty() && jobs.len() == 0);
            let mut offered = workers.map(|worker| done(worker).expect("a job"));
            offered.sort_unstable();
            assert_eq!(offered, [1, 2]);
        }
    });
}

#[test]
fn a_take_and_its_guard_are_send_and_debug() {
    fn check<T: Send + Sync + Unpin + std::fmt::Debug + 'static>() {}
    check::<Take<u64, usize>>();
    check::<Taken<usize>>();
}

#[test]
fn g26_a_guard_that_is_leaked_loses_its_own_job_only() {
    let (waits, jobs) = waits_and_jobs();
    let (first, second) = (jobs.take(&waits), jobs.take(&waits));
    jobs.push(&waits, 1);
    std::mem::forget(in_hand(first));
    jobs.push(&waits, 2);
    assert_eq!(done(second), Ok(2));
    assert_empty(&waits);
    let weak = waits.downgrade();
    drop(waits);
    assert!(weak.upgrade().is_none(), "it does not keep the purgatory");
}

/// What a destructor on the way does: that of a key, or of what `give_back` captured. The destructor of the take itself
/// panics in each row.
#[test]
fn g26_a_destructor_that_panics_loses_no_job() {
    for (at_once, by_key) in [(true, true), (true, false), (false, true), (false, false)] {
        let (waits, _clock) = built::<WaitOperation<Fragile>>(|builder| builder);
        let jobs = Jobs::default();
        if at_once {
            jobs.put(1);
        }
        let takes = jobs.clone();
        let mut take = owning(Bomb, move || takes.pop());
        let bomb = if by_key { None } else { Some(Bomb) };
        let give_back = move |_| _ = &bomb;
        let take = waits.take([Fragile(1)], None, move |_| take(), give_back);
        if !at_once {
            jobs.put(1);
            assert_eq!(waits.check_and_complete(&Fragile(1)), 1);
        }
        let job = in_hand(take);
        let before = waits.stats().panicked;
        // There is no key 0.
        let done = with_fuse(u32::from(by_key), Hook::Drop, || job.done());
        let what = format!("at once: {at_once}, the key: {by_key}");
        assert_eq!(done.ok(), Some(1), "{what}");
        assert_eq!(waits.stats().panicked, before + 1, "{what}");
        assert_eq!(jobs.len(), 0, "{what}");
    }
}

/// In a predicate, in `give_back`, and in the destructor of a value that was not received.
#[test]
fn g26_a_guard_that_is_dropped_in_a_callback_goes_to_the_next() {
    let ((waits, _clock), (others, _)) = (by_hand(), by_hand());
    let jobs = Jobs::default();
    let [mut in_predicate, mut in_give_back, mut in_value] = [1, 2, 3].map(|job| {
        jobs.put(job);
        Some(in_hand(jobs.take(&waits)))
    });
    let next = [(); 3].map(|()| jobs.take(&waits));
    let dropped = others.wait([1], NEVER_IN_A_TEST, move || {
        in_predicate.take().is_none().then_some(())
    });
    let give_back = move |()| drop(in_give_back.take());
    let guard = now(others.take([2], None, |_| Some(()), give_back));
    drop(guard.expect("it is there"));
    drop(others.wait([3], NEVER_IN_A_TEST, move || in_value.take()));
    waits.advance();
    let mut got = next.map(|take| done(take).expect("a job"));
    got.sort_unstable();
    assert_eq!(got, [1, 2, 3]);
    assert_eq!(now(dropped), Ok(()));
    assert_empty(&waits);
}

/// A worker that takes the next job where it gives one back; and one that takes back what it gives.
#[test]
fn g26_a_take_inside_give_back() {
    let ((waits, jobs), made) = (waits_and_jobs(), Arc::new(Mutex::new(Vec::new())));
    let take_and_again = || {
        let (inside, into) = (waits.downgrade(), made.clone());
        let give_back = move |jobs: &Jobs, job| {
            jobs.give_back(job);
            let next = inside.upgrade().map(|inside| jobs.take(&inside));
            lock(&into).extend(next);
        };
        jobs.take_by(&waits, [1], |jobs, _| jobs.pop(), give_back)
    };
    // Without another waiter, the new take has the job at once.
    jobs.put(1);
    drop(in_hand(take_and_again()));
    let again = lock(&made).pop().expect("it was made");
    assert_eq!(done(again), Ok(1));
    // With another, that one has it; and on arrival the same.
    let waiting = jobs.take(&waits);
    jobs.put(2);
    let newcomer = take_and_again();
    assert_eq!(done(waiting), Ok(2));
    assert_eq!(jobs.push(&waits, 3), 1);
    let mut all = std::mem::take(&mut *lock(&made));
    all.push(newcomer);
    let got = all.iter_mut().filter_map(FutureExt::now_or_never);
    let got = got.collect::<Vec<_>>();
    assert_eq!((got.len(), jobs.len()), (1, 0));
    drop((all, got));
    lock(&made).clear();
    assert_eq!((jobs.len(), waits.stats().parked), (1, 0));
}

/// A take that has been taken back, and is examined, or ended, by hand.
#[test]
fn g26_an_operation_in_the_users_hands_loses_nothing() {
    let (waits, jobs) = waits_and_jobs();
    let cancelled = || {
        let take = jobs.take(&waits);
        let operation = waits.cancel_for_key(&1).pop();
        (take, operation.expect("it was parked"))
    };
    let (take, mut operation) = cancelled();
    jobs.put(1);
    jobs.put(2);
    assert!(operation.try_complete());
    assert_eq!(jobs.len(), 1);
    assert!(!operation.try_complete(), "it has no way back for another");
    assert_eq!(jobs.len(), 2, "what it had went back");
    drop(operation);
    assert_eq!(done(take), Err(WaitError::Cancelled));
    assert_eq!([jobs.pop(), jobs.pop()], [Some(1), Some(2)]);
    // One whose future is gone is ended: the guard that it has is dropped in no call of the library.
    let (take, mut operation) = cancelled();
    jobs.put(3);
    assert!(operation.try_complete());
    drop(take);
    within(PATIENCE, || operation.on_complete(Completion::Satisfied));
    assert_eq!(jobs.len(), 1, "it went back");
}

/// Keys that are references, in the method of a type, in spawned tasks: `Send` must not be too special for that.
#[test]
fn take_until_and_listen_can_be_awaited_in_spawned_methods() {
    struct Service {
        waits: Waits<&'static str>,
        jobs: Jobs,
    }
    impl Service {
        async fn work(&self) -> Result<[usize; 2], WaitError> {
            let listen = || self.waits.listen(["key"], NEVER_IN_A_TEST);
            listen().checked().await?;
            let take = self.jobs.take_on(&self.waits, ["key"], NEVER_IN_A_TEST);
            let taken = take.await?.done();
            let found = listen().until(|| async { self.jobs.pop() }).await?;
            Ok([taken, found])
        }
    }
    /// As executors want it that spawn a task.
    fn spawnable<T: Future + Send + 'static>(task: T) -> T {
        task
    }
    let (waits, jobs) = (built(|builder| builder).0, Jobs::default());
    let service = Arc::new(Service { waits, jobs });
    let worker = service.clone();
    let mut work = Box::pin(spawnable(async move { worker.work().await }));
    assert!(is_pending(&mut work));
    (1..3).for_each(|job| service.jobs.put(job));
    service.waits.check_and_complete("key");
    assert_eq!(now(work), Ok([1, 2]));
}
