//! G14: futures and guards that own one another end without a stack as deep as the chain is long.

use crate::jobs_in_hand::{Jobs, done};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Tally, on_a_stack_of, within};
use crate::{assert_empty, built, by_hand, now, owning};
use request_purgatory::future::{Awaited, Taken, Wait, WaitOperation};
use request_purgatory::{Completion, DelayedOperation, Handle, Waits};
use scopeguard::guard;
use std::cell::RefCell;
use std::thread;
use std::time::Duration;

const LINKS: u64 = 20_000;

#[test]
fn g14_a_chain_needs_no_stack() {
    let ends: [(&str, fn(&Waits<u64>, Wait<u64, ()>)); 5] = [
        ("drop", |_, last| drop(last)),
        ("cancel key", |waits, _last| drop(waits.cancel_for_key(&0))),
        ("cancel by handle", |_, last| {
            drop(last.handle().map(Handle::cancel))
        }),
        ("force", |waits, _last| _ = waits.force_complete_for_key(&0)),
        ("shutdown", |waits, _last| waits.shutdown()),
    ];
    for (name, end) in ends {
        on_a_small_stack(name, move || {
            let (waits, _clock) = by_hand();
            end(&waits, chain(&waits, LINKS));
            assert_eq!(waits.stats().parked, 0);
        });
    }
    on_a_small_stack("operations that own futures", operations_that_own_futures);
    on_a_small_stack("guards: drop", || end_of_guards(drop, LINKS));
    on_a_small_stack("guards: done", || {
        end_of_guards(|last| _ = last.done(), LINKS - 1)
    });
    on_a_small_stack("values that own guards", values_that_own_guards);
}

fn on_a_small_stack(name: &str, chain: impl FnOnce() + Send + 'static) {
    println!("{name}");
    within(PATIENCE, || on_a_stack_of(256, chain));
}

/// Makes `links` waits. The predicate of each owns the future of the wait before. Returns the last, which waits on key
/// 0.
fn chain(waits: &Waits<u64>, links: u64) -> Wait<u64, ()> {
    let wait = |owned: Option<Wait<u64, ()>>, key| {
        Some(waits.wait([key], NEVER_IN_A_TEST, owning(owned, || None)))
    };
    (0..links).rev().fold(None, wait).expect("a link")
}

fn operations_that_own_futures() {
    let (purgatory, _clock) = built::<Awaited<Op>>(|builder| builder);
    let mut last = None;
    for key in 0..LINKS {
        let op = Op::new(NEVER_IN_A_TEST).when(owning(last.take(), || false));
        last = Some(purgatory.completion(op, [key]).expect("there is room"));
    }
    drop(last);
    assert_eq!(purgatory.stats().parked, 0);
}

/// What gives back owns the guard before. So many go back.
fn end_of_guards(end: fn(Taken<u64>), returns: u64) {
    let (waits, _clock) = by_hand();
    let returned = Tally::new();
    let mut last = None;
    for _ in 0..LINKS {
        let returned = returned.clone();
        let mut add = owning(last.take(), move || returned.add());
        let take = waits.take([1], None, |_| Some(0), move |_| add());
        last = Some(now(take).expect("it is there"));
    }
    end(last.expect("the last"));
    assert_eq!(returned.count(), returns);
}

fn values_that_own_guards() {
    let (waits, _clock) = by_hand();
    let mut last: Option<Box<dyn Send>> = None;
    for _ in 0..LINKS {
        let mut owned = Some(last.take());
        let take = waits.take([1], None, move |_| owned.take(), drop);
        last = Some(Box::new(now(take).expect("it is there")));
    }
    drop(last);
}

thread_local! {
    static LAST: RefCell<Option<Wait<u64, ()>>> = const { RefCell::new(None) };
}

/// What is to be dropped later waits in a local of the thread, which is gone when a local that is older is destroyed.
#[test]
fn g14_a_chain_in_a_local_of_a_thread_ends_with_the_thread() {
    within(PATIENCE, || {
        let (waits, _clock) = by_hand();
        let ending = waits.clone();
        let ended = thread::spawn(move || {
            // Touched first, it is destroyed last.
            LAST.set(None);
            LAST.set(Some(chain(&ending, 3)));
            // (This uses the library's queue.)
            drop(chain(&ending, 3));
        });
        ended.join().expect("it does not panic");
        assert_eq!((waits.stats().parked, waits.stats().cancelled), (0, 6));
    });
}

/// An operation whose every examination makes a take that finds a job, and drops it. What goes back causes a check, and
/// that an examination. Each call returns all the same.
#[test]
fn g14_a_predicate_that_tries_to_take_does_not_keep_its_thread() {
    within(PATIENCE, || {
        let (waits, _clock) = by_hand();
        let (jobs, examinations) = (Jobs::default(), Tally::new());
        let (inside, tries, count) = (waits.downgrade(), jobs.clone(), examinations.clone());
        jobs.put(7);
        let prober = waits.wait([1], NEVER_IN_A_TEST, move || {
            count.add();
            drop(tries.take_on(&inside.upgrade()?, [1], Duration::ZERO));
            None::<()>
        });
        for _ in 0..10 {
            waits.check_and_complete(&1);
            waits.advance();
        }
        assert!(examinations.count() <= 100);
        assert_eq!(jobs.len(), 1);
        drop(prober);
        waits.advance();
        assert_eq!(done(jobs.take(&waits)), Ok(7));
        assert_empty(&waits);
    });
}

/// Their futures are gone. The value of one ends the next, in no call of the library.
#[test]
fn g14_values_of_operations_that_are_ended_by_hand_are_gone_when_the_call_returns() {
    let (waits, _clock) = by_hand();
    let dropped = Tally::new();
    let ended = |owned: Option<WaitOperation<u64>>| {
        let counts = dropped.clone();
        let ends = guard(owned, move |owned| {
            let owned = owned.into_iter();
            owned.for_each(|it| it.on_complete(Completion::Satisfied));
            counts.add();
        });
        let mut found = [Some(ends), None, None].into_iter();
        let wait = waits.wait([1], NEVER_IN_A_TEST, move || found.next_back()?);
        let mut operation = waits.cancel_for_key(&1).pop().expect("it was parked");
        assert!(operation.try_complete());
        drop(wait);
        operation
    };
    ended(Some(ended(None))).on_complete(Completion::Satisfied);
    assert_eq!(dropped.count(), 2);
}
