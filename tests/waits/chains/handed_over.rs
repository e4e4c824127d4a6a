//! Futures that are dropped while their operation has ended and its completion waits for slow ones: in the queue of the
//! completion thread, in a job of an executor, behind others of the same call.

use crate::support::bell::Bell;
use crate::support::{Job, NEVER_IN_A_TEST, PATIENCE, eventually, lock, within};
use crate::{Slot, assert_empty, now, put, take};
use request_purgatory::future::{Awaited, Taken, WaitError, WaitFuture, WaitOperation, block_on};
use request_purgatory::{
    Completion, DelayedOperation, Purgatory, Waits, threads::Dispatch, threads::Reaper,
    time::ManualClock,
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// A purgatory in which nothing completes as long as this exists, where another thread or an executor completes.
struct Stalled<Op: DelayedOperation<Key = u64>> {
    purgatory: Purgatory<Op>,
    clock: ManualClock,
    jobs: Arc<Mutex<Vec<Job>>>,
    /// Ends the stall.
    _open: Option<Sender<()>>,
}

fn stalled<Op: DelayedOperation<Key = u64>>(dispatch: Dispatch) -> Stalled<Op> {
    let clock = ManualClock::new();
    let builder = Purgatory::<Op>::builder("stalled").clock(clock.clone());
    let built = builder.reaper(Reaper::Manual).dispatch(dispatch).build();
    Stalled {
        purgatory: built.expect("its thread starts later"),
        clock,
        jobs: Arc::default(),
        _open: None,
    }
}

/// Where jobs are kept and not run, and where a completion runs for ever.
fn all_stalled<Op: DelayedOperation<Key = u64>>(
    stall: impl FnOnce(&Purgatory<Op>, Receiver<()>),
) -> [Stalled<Op>; 2] {
    let jobs = Arc::<Mutex<Vec<Job>>>::default();
    let keeps = jobs.clone();
    let keeper = Dispatch::Executor(Arc::new(move |job| lock(&keeps).push(job)));
    let mut kept = stalled(keeper);
    kept.jobs = jobs;

    let mut own = stalled(Dispatch::OwnThread);
    let (open, stays_shut) = channel();
    stall(&own.purgatory, stays_shut);
    own.purgatory.check_later(0);
    own.purgatory.advance();
    own._open = Some(open);
    [kept, own]
}

/// In each purgatory nothing completes.
fn all_stalled_waits() -> [Stalled<WaitOperation<u64>>; 2] {
    all_stalled(|waits, stays_shut| {
        let slow = Slow(stays_shut);
        let mut examinations = 0;
        let mut wait = waits.wait([0], NEVER_IN_A_TEST, move || {
            let _ = &slow;
            examinations += 1;
            (examinations > 2).then_some(())
        });
        assert!(Bell::new().poll(&mut wait).is_pending());
        // (To drop it would not wait for the predicate that is being dropped; but this one never is.)
        std::mem::forget(wait);
    })
}

/// Its destructor waits until the stall ends.
struct Slow(Receiver<()>);

impl Drop for Slow {
    fn drop(&mut self) {
        // An error says that the other end is gone.
        let _ = self.0.recv();
    }
}

/// A take that has a value from `slot`; it goes back there.
fn taking(
    waits: &Waits<u64>,
    slot: &Slot<u8>,
    timeout: Duration,
) -> WaitFuture<WaitOperation<u64>, Taken<u8>> {
    let (mut takes, returns) = (take(slot), slot.clone());
    waits.take([1], timeout, move |_| takes(), move |it| put(&returns, it))
}

#[test]
fn g23_a_value_in_the_queue_of_completions_goes_back_when_its_future_is_dropped() {
    within(PATIENCE, || {
        for Stalled {
            purgatory: waits,
            _open,
            ..
        } in all_stalled_waits()
        {
            let slot = Slot::default();
            let first = taking(&waits, &slot, NEVER_IN_A_TEST);
            let mut second = taking(&waits, &slot, NEVER_IN_A_TEST);
            put(&slot, 7);
            waits.check_later(1);
            waits.advance();
            assert_eq!(*lock(&slot), None, "the first has it");
            assert!(Bell::new().poll(&mut second).is_pending());
            drop(first);
            // The check of the second has completed it on this thread.
            assert_eq!(now(second).map(Taken::done), Ok(7));
        }
    });
}

#[test]
fn g06_a_predicate_in_the_queue_of_completions_is_gone_when_its_future_is_dropped() {
    within(PATIENCE, || {
        for Stalled {
            purgatory: waits,
            clock,
            _open,
            ..
        } in all_stalled_waits()
        {
            // It has expired, was found, and has found a value that no task has received.
            for found in [None, Some(Arc::new(()))] {
                let (payload, slot, bell) = (Arc::new(()), Slot::default(), Bell::new());
                let mut finds = take(&slot);
                let kept = payload.clone();
                let mut wait = waits.wait([1], SECOND, move || {
                    let _ = &kept;
                    finds()
                });
                assert!(bell.poll(&mut wait).is_pending());
                match &found {
                    None => clock.advance(SECOND),
                    Some(found) => {
                        put(&slot, found.clone());
                        waits.check_later(1);
                    }
                }
                waits.advance();
                assert!(bell.poll(&mut wait).is_pending(), "the queue is stalled");
                assert_eq!(Arc::strong_count(&payload), 2);
                drop(wait);
                assert_eq!(Arc::strong_count(&payload), 1);
                assert!(found.is_none_or(|found| Arc::strong_count(&found) == 1));
                assert_eq!((Arc::strong_count(&bell), bell.rung()), (1, 0));
            }
        }
    });
}

#[test]
fn a_future_resolves_when_the_queue_comes_to_it() {
    within(PATIENCE, || {
        for stalled in all_stalled_waits() {
            let Stalled {
                purgatory: waits,
                clock,
                jobs,
                _open,
            } = stalled;
            let (slot, bell) = (Slot::default(), Bell::new());
            let mut found = waits.wait([1], NEVER_IN_A_TEST, take(&slot));
            let mut expired = waits.wait([2], SECOND, || None::<()>);
            assert!(bell.poll(&mut found).is_pending());
            assert!(bell.poll(&mut expired).is_pending());
            put(&slot, 7);
            waits.check_later(1);
            clock.advance(SECOND);
            waits.advance();
            assert!(bell.poll(&mut found).is_pending());
            assert!(bell.poll(&mut expired).is_pending());
            drop(_open);
            lock(&jobs).drain(..).for_each(|job| job());
            eventually("both are told", || bell.rung() == 2);
            assert_eq!((now(found), now(expired)), (Ok(7), Err(WaitError::Expired)));
            eventually("the first is completed", || waits.stats().parked == 0);
        }
    });
}

/// A predicate that panics for a deferred check: the future hears so when the queue comes to it.
#[test]
fn g12_the_end_of_a_predicate_that_has_panicked_waits_in_the_queue_as_well() {
    within(PATIENCE, || {
        for stalled in all_stalled_waits() {
            let waits = stalled.purgatory;
            let mut examinations = 0;
            let mut wait = waits.wait([1], NEVER_IN_A_TEST, move || -> Option<()> {
                examinations += 1;
                assert!(examinations <= 2, "on purpose");
                None
            });
            waits.check_later(1);
            waits.advance();
            assert!(Bell::new().poll(&mut wait).is_pending());
            drop(stalled._open);
            lock(&stalled.jobs).drain(..).for_each(|job| job());
            assert_eq!(block_on(wait), Err(WaitError::Panicked));
        }
    });
}

/// The taker goes while the reaper's thread takes for it: the value does not go into the queue.
#[test]
fn g23_a_value_whose_taker_goes_while_it_is_taken_does_not_wait_in_the_queue() {
    within(PATIENCE, || {
        for Stalled {
            purgatory: waits,
            _open,
            ..
        } in all_stalled_waits()
        {
            let (slot, future) = (Slot::default(), Slot::default());
            let (mut takes, returns, own) = (take(&slot), slot.clone(), future.clone());
            let take = move |_: request_purgatory::purgatory::Cause<'_, u64>| {
                let taken = takes();
                drop(taken.and(lock(&own).take()));
                taken
            };
            let give_back = move |it| put(&returns, it);
            put(&future, waits.take([1], NEVER_IN_A_TEST, take, give_back));
            put(&slot, 7);
            waits.check_later(1);
            waits.advance();
            assert_eq!(*lock(&slot), Some(7));
        }
    });
}

/// Of one call: while the destructor of one predicate runs, or an operation behind it is examined.
#[test]
fn g23_a_value_behind_others_of_its_call_goes_back_when_its_future_is_dropped() {
    within(PATIENCE, || {
        for examined in [false, true] {
            let waits = Waits::<u64>::new("one call");
            let ((entered, inside), (leave, left)) = (channel(), channel());
            let slot = Slot::default();
            // The slow one: in a destructor that runs before the value is told, or in an examination after it was taken.
            let mut examinations = 0;
            let mut slow = Some(Slow(left));
            let slow_wait = || {
                waits.wait([1], NEVER_IN_A_TEST, move || {
                    examinations += 1;
                    if examinations > 2 {
                        entered.send(()).expect("the test waits for it");
                        if examined {
                            drop(slow.take());
                        }
                    }
                    let _ = &slow;
                    (examinations > 2).then_some(())
                })
            };
            let (before, take, after) = match examined {
                false => (
                    Some(slow_wait()),
                    taking(&waits, &slot, NEVER_IN_A_TEST),
                    None,
                ),
                true => {
                    let take = taking(&waits, &slot, NEVER_IN_A_TEST);
                    (None, take, Some(slow_wait()))
                }
            };
            put(&slot, 7);
            let checker = thread::spawn({
                let waits = waits.clone();
                move || waits.check_and_complete(&1)
            });
            inside.recv().expect("the slow one is at work");
            eventually("it is taken", || waits.stats().completed >= 1);
            eventually("it is handed over", || lock(&slot).is_none());
            drop(take);
            eventually("it goes back", || *lock(&slot) == Some(7));
            leave.send(()).expect("the slow one waits for it");
            assert_eq!(checker.join().expect("it does not panic"), 2);
            drop((before, after));
            assert_empty(&waits);
        }
    });
}

/// An operation that is awaited, and in vain.
struct Kept(#[expect(dead_code)] Arc<()>);

impl DelayedOperation for Kept {
    type Key = u64;

    fn timeout(&self) -> Duration {
        SECOND
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(self, _: Completion) {
        panic!("it is awaited");
    }
}

#[test]
fn g06_an_awaited_operation_in_the_queue_is_gone_when_its_future_is_dropped() {
    let jobs = Arc::<Mutex<Vec<Job>>>::default();
    let keeps = jobs.clone();
    let keeper = Dispatch::Executor(Arc::new(move |job| lock(&keeps).push(job)));
    let Stalled {
        purgatory, clock, ..
    } = stalled::<Awaited<Kept>>(keeper);
    let payload = Arc::new(());
    let park = || purgatory.completion(Kept(payload.clone()), [1]);
    let (dropped, mut told) = (park().expect("it parks"), park().expect("it parks"));
    clock.advance(SECOND);
    assert_eq!(purgatory.advance(), 2);
    drop(dropped);
    assert_eq!(Arc::strong_count(&payload), 2, "that of the other");
    assert!(Bell::new().poll(&mut told).is_pending());
    lock(&jobs).drain(..).for_each(|job| job());
    let told = now(told).expect("it is told its end");
    assert_eq!(told.1, Completion::Expired);
    assert_empty(&purgatory);
}
