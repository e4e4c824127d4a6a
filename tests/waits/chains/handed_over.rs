//! G6, G12 and G23: futures that are dropped while their operation has ended and its completion waits for slow ones: in
//! the queue of the completion thread, in a job of an executor, behind others of the same call.

use super::drops::Bomb;
use crate::jobs_in_hand::{Jobs, done};
use crate::support::bell::Bell;
use crate::support::expiries::{Jobs as Executor, Runs};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, eventually, lock, within};
use crate::{SECOND, Slot, assert_empty, built, by_hand};
use crate::{is_pending, now, owning, pass, put, take};
use request_purgatory::future::{Awaited, Take, WaitError, block_on};
use request_purgatory::{Completion, DelayedOperation, Purgatory, Waits, time::ManualClock};
use request_purgatory::{purgatory::Cause, threads::Dispatch};
use scopeguard::guard;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;

/// Ends a stall: what was handed over is completed.
type EndStall = Box<dyn FnOnce()>;

/// The executor keeps its jobs, and runs none.
fn stalled_executor<Op: DelayedOperation>() -> (Purgatory<Op>, ManualClock, EndStall) {
    let executor = Executor::new(Runs::Later);
    let (purgatory, clock) = built(|builder| builder.dispatch(executor.dispatch()));
    (purgatory, clock, Box::new(move || executor.run_all()))
}

/// The completion thread drops the predicate of an operation that it completes, and does not come to an end of that.
fn stalled_thread() -> (Waits<u64>, ManualClock, EndStall) {
    let (waits, clock) = built(|builder| builder.dispatch(Dispatch::OwnThread));
    let (shut, opened) = channel::<()>();
    // The error says that the other end is gone.
    let slow = guard((), move |()| _ = opened.recv());
    let mut finds = [Some(()), None, None].into_iter();
    let predicate = owning(slow, move || finds.next_back()?);
    // (To drop it would not wait for the predicate that is being dropped; but this one never is.)
    std::mem::forget(waits.wait([0], NEVER_IN_A_TEST, predicate));
    waits.check_later(0);
    waits.advance();
    (waits, clock, Box::new(|| drop(shut)))
}

/// Runs `test` where nothing completes: neither on an executor nor on a completion thread.
fn where_nothing_completes(test: fn(Waits<u64>, ManualClock, EndStall)) {
    within(PATIENCE, move || {
        for (waits, clock, end) in [stalled_executor(), stalled_thread()] {
            test(waits, clock, end);
        }
    });
}

#[test]
fn g23_a_value_in_the_queue_of_completions_goes_back_when_its_future_is_dropped() {
    where_nothing_completes(|waits, _clock, _end| {
        let jobs = Jobs::default();
        let (first, mut second) = (jobs.take(&waits), jobs.take(&waits));
        jobs.put(7);
        waits.check_later(1);
        waits.advance();
        assert_eq!(jobs.len(), 0, "the first has it");
        assert!(is_pending(&mut second));
        drop(first);
        // The check of the second has completed it on this thread.
        assert_eq!(done(second), Ok(7));
    });
}

/// The operation has expired, or has found a value that no task has received.
#[test]
fn g06_a_predicate_in_the_queue_of_completions_is_gone_when_its_future_is_dropped() {
    where_nothing_completes(|waits, clock, _end| {
        for found in [None, Some(Arc::new(()))] {
            let (payload, slot, bell) = (Arc::new(()), Slot::default(), Bell::new());
            let predicate = owning(payload.clone(), take(&slot));
            let mut wait = waits.wait([1], SECOND, predicate);
            assert!(bell.poll(&mut wait).is_pending());
            match &found {
                None => pass(&waits, &clock, SECOND),
                Some(found) => {
                    put(&slot, found.clone());
                    waits.check_later(1);
                    waits.advance();
                }
            }
            assert!(bell.poll(&mut wait).is_pending(), "the queue is stalled");
            assert_eq!(Arc::strong_count(&payload), 2);
            drop(wait);
            assert_eq!(Arc::strong_count(&payload), 1);
            assert!(found.is_none_or(|found| Arc::strong_count(&found) == 1));
            assert_eq!((Arc::strong_count(&bell), bell.rung()), (1, 0));
        }
    });
}

/// Two panics at once would abort the process.
#[test]
fn g12_a_predicate_in_the_queue_and_its_value_panic_when_their_future_is_dropped() {
    where_nothing_completes(|waits, _clock, _end| {
        let slot = Slot::default();
        let wait = waits.wait([1], NEVER_IN_A_TEST, owning(Bomb, take(&slot)));
        put(&slot, Bomb);
        waits.check_later(1);
        waits.advance();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(wait))).is_err());
    });
}

#[test]
fn g06_an_awaited_operation_in_the_queue_is_gone_when_its_future_is_dropped() {
    let (purgatory, clock, end) = stalled_executor::<Awaited<Op>>();
    let payload = Arc::new(());
    let [dropped, mut told] = [0; 2].map(|_| {
        let op = Op::new(SECOND).when(owning(payload.clone(), || false));
        let op = op.then(|_| panic!("it is awaited"));
        purgatory.completion(op, [1]).expect("it parks")
    });
    clock.advance(SECOND);
    assert_eq!(purgatory.advance(), 2);
    drop(dropped);
    assert_eq!(Arc::strong_count(&payload), 2, "that of the other");
    assert!(is_pending(&mut told));
    end();
    let told = now(told).expect("it is told its end");
    assert_eq!(told.1, Completion::Expired);
    assert_empty(&purgatory);
}

/// Also the end of a predicate that has panicked for a deferred check (G12).
#[test]
fn g12_a_future_resolves_when_the_queue_comes_to_it() {
    where_nothing_completes(|waits, clock, end| {
        let (slot, bell) = (Slot::default(), Bell::new());
        let mut found = waits.wait([1], NEVER_IN_A_TEST, take(&slot));
        let mut expired = waits.wait([2], SECOND, || None::<()>);
        let mut examinations = 0;
        let mut panicked = waits.wait([3], NEVER_IN_A_TEST, move || -> Option<()> {
            examinations += 1;
            assert!(examinations <= 2, "on purpose");
            None
        });
        put(&slot, 7);
        waits.check_later(1);
        waits.check_later(3);
        pass(&waits, &clock, SECOND);
        assert!(bell.poll(&mut found).is_pending());
        assert!(bell.poll(&mut expired).is_pending());
        assert!(is_pending(&mut panicked));
        end();
        eventually("both are told", || bell.rung() == 2);
        assert_eq!((now(found), now(expired)), (Ok(7), Err(WaitError::Expired)));
        assert_eq!(block_on(panicked), Err(WaitError::Panicked));
        eventually("the first is completed", || waits.stats().parked == 0);
    });
}

/// The closure drops its own future, or ends the purgatory besides, and then takes.
fn a_taker_goes(waits: &Waits<u64>, check: fn(&Waits<u64>), shuts_down: bool) {
    let (jobs, own) = (Jobs::default(), Slot::<Take<u64, usize>>::default());
    let (mine, inside) = (own.clone(), waits.downgrade());
    let take_and_go = move |jobs: &Jobs, cause: Cause<'_, u64>| {
        if !cause.is_parking() {
            drop(lock(&mine).take());
            let ended = inside.upgrade().filter(|_| shuts_down);
            ended.inspect(Waits::shutdown);
        }
        jobs.pop()
    };
    put(&own, jobs.take_by(waits, [1], take_and_go, Jobs::give_back));
    jobs.put(7);
    check(waits);
    waits.advance();
    assert_eq!(jobs.len(), 1);
}

/// The value does not go into the queue either, where the reaper's thread takes.
#[test]
fn g23_a_value_whose_taker_goes_while_it_is_taken_goes_back() {
    where_nothing_completes(|waits, _clock, _end| {
        a_taker_goes(&waits, |waits| waits.check_later(1), false);
    });
    for shuts_down in [false, true] {
        let (waits, _clock) = by_hand();
        a_taker_goes(&waits, |waits| _ = waits.check_and_complete(&1), shuts_down);
        assert_eq!(waits.stats().parked, 0);
    }
}

/// The destructor of one predicate runs before the value is told, or an operation behind it is examined.
#[test]
fn g23_a_value_behind_others_of_its_call_goes_back_when_its_future_is_dropped() {
    within(PATIENCE, || {
        for in_destructor in [true, false] {
            let waits = Waits::<u64>::new("one call");
            let (jobs, stop) = (Jobs::default(), Arc::new(Barrier::new(2)));
            let (stops, mut examinations) = (stop.clone(), 0);
            let mut slow = Some(guard((), move |()| {
                stops.wait();
                stops.wait();
            }));
            let mut predicate = Some(move || {
                examinations += 1;
                if examinations > 2 && !in_destructor {
                    drop(slow.take());
                }
                let _ = &slow;
                (examinations > 2).then_some(())
            });
            let before = predicate.take_if(|_| in_destructor);
            let before = before.map(|it| waits.wait([1], NEVER_IN_A_TEST, it));
            let take = jobs.take(&waits);
            let after = predicate.map(|it| waits.wait([1], NEVER_IN_A_TEST, it));
            jobs.put(7);
            let checks = waits.clone();
            let checker = thread::spawn(move || checks.check_and_complete(&1));
            stop.wait();
            eventually("it is taken", || waits.stats().completed >= 1);
            eventually("it is handed over", || jobs.len() == 0);
            drop(take);
            eventually("it goes back", || jobs.len() == 1);
            stop.wait();
            assert_eq!(checker.join().expect("it does not panic"), 2);
            drop((before, after));
            assert_empty(&waits);
        }
    });
}

/// The last operation of a slice has taken. Between this slice and the next one another operation expires. Its
/// callback waits for a thread that drops the future of the take.
#[test]
fn g23_a_value_taken_at_the_end_of_a_slice_goes_back_when_its_future_is_dropped() {
    const SLICE: usize = 64;
    within(PATIENCE, || {
        let (waits, clock) = by_hand();
        let jobs = Jobs::default();
        let there = jobs.clone();
        // The deferred check of the first one lets time pass.
        let lets_time_pass = move || {
            if there.len() > 0 {
                clock.advance(SECOND);
            }
            None::<()>
        };
        waits.wait_then([1], NEVER_IN_A_TEST, lets_time_pass, |_| ());
        let wait = || waits.wait_then([1], NEVER_IN_A_TEST, || None::<()>, |_| ());
        (2..SLICE).for_each(|_| _ = wait());
        let take = jobs.take(&waits);
        // The check goes on to the next slice.
        wait();
        let ((tell, found), back) = (channel(), jobs.clone());
        let drops = move |_| {
            let taken = back.len() == 0;
            let dropped = thread::spawn(move || drop(take)).join();
            dropped.expect("it does not panic");
            tell.send((taken, back.len())).expect("the test waits");
        };
        waits.wait_then([2], SECOND, || None::<()>, drops);
        jobs.put(7);
        waits.check_later(1);
        assert_eq!(waits.advance(), 1);
        assert_eq!(found.try_recv(), Ok((true, 1)));
    });
}
