//! G14: futures and guards that own one another, or hand on a value, end without a stack as deep as the chain is long.

use crate::jobs_in_hand::{Jobs, done};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Tally, on_a_stack_of, within};
use crate::{assert_empty, built, by_hand, now, owning};
use request_purgatory::future::{Awaited, Taken, Wait, WaitFuture, WaitOperation};
use request_purgatory::{Completion, DelayedOperation, Handle, Waits};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const LINKS: u64 = 20_000;

#[test]
fn g14_a_chain_needs_no_stack() {
    let ends: [(&str, fn(&Waits<u64>, Wait<u64, ()>)); 5] = [
        ("drop", |_, last| drop(last)),
        ("cancel by key", |waits, _last| {
            drop(waits.cancel_for_key(&(LINKS - 1)))
        }),
        ("cancel by handle", |_, last| {
            drop(last.handle().map(Handle::cancel))
        }),
        ("force", |waits, _last| {
            _ = waits.force_complete_for_key(&(LINKS - 1))
        }),
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
    on_a_small_stack("a value through many hands", a_value_through_many_hands);
}

fn on_a_small_stack(name: &str, chain: impl FnOnce() + Send + 'static) {
    println!("{name}");
    within(PATIENCE, || on_a_stack_of(256, chain));
}

/// The predicate of each of so many waits owns the future of the one before. Returns the last.
fn chain(waits: &Waits<u64>, links: u64) -> Wait<u64, ()> {
    let wait = |key, owned: Option<Wait<u64, ()>>| {
        waits.wait([key], NEVER_IN_A_TEST, owning(owned, || None))
    };
    (1..links).fold(wait(0, None), |last, key| wait(key, Some(last)))
}

fn operations_that_own_futures() {
    let (purgatory, _clock) = built::<Awaited<Op>>(|builder| builder);
    let mut last: Option<WaitFuture<Awaited<Op>, (Op, Completion)>> = None;
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

/// Each of those that are dropped hands it to the next.
fn a_value_through_many_hands() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    let takes = (0..LINKS).map(|_| jobs.take(&waits)).collect::<Vec<_>>();
    let last = jobs.take(&waits);
    assert_eq!(jobs.push(&waits, 1), 1);
    drop(takes);
    assert_eq!(done(last), Ok(1));
    assert_empty(&waits);
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
        let (jobs, examinations) = (Jobs::default(), Arc::new(AtomicUsize::new(0)));
        let (inside, tries, count) = (waits.downgrade(), jobs.clone(), examinations.clone());
        jobs.put(7);
        let prober = waits.wait([1], NEVER_IN_A_TEST, move || {
            count.fetch_add(1, Ordering::Relaxed);
            drop(tries.take_on(&inside.upgrade()?, [1], Duration::ZERO));
            None::<()>
        });
        for _ in 0..10 {
            waits.check_and_complete(&1);
            waits.advance();
        }
        assert!(examinations.load(Ordering::Relaxed) <= 100);
        assert_eq!(jobs.len(), 1);
        drop(prober);
        waits.advance();
        assert_eq!(done(jobs.take(&waits)), Ok(7));
        assert_empty(&waits);
    });
}

/// Ends an operation when it is dropped.
struct Ends(Option<WaitOperation<u64>>, Arc<Tally>);

impl Drop for Ends {
    fn drop(&mut self) {
        let owned = self.0.take().into_iter();
        owned.for_each(|it| it.on_complete(Completion::Satisfied));
        self.1.add();
    }
}

/// Their futures are gone. The value of one ends the next, in no call of the library.
#[test]
fn g14_values_of_operations_that_are_ended_by_hand_are_gone_when_the_call_returns() {
    let (waits, _clock) = by_hand();
    let dropped = Tally::new();
    let ended = |owned| {
        let mut found = [Some(Ends(owned, dropped.clone())), None, None].into_iter();
        let wait = waits.wait([1], NEVER_IN_A_TEST, move || found.next_back()?);
        let mut operation = waits.cancel_for_key(&1).pop().expect("it was parked");
        assert!(operation.try_complete());
        drop(wait);
        operation
    };
    ended(Some(ended(None))).on_complete(Completion::Satisfied);
    assert_eq!(dropped.count(), 2);
}
