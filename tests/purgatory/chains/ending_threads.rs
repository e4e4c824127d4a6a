//! G1, G14: calls of a thread that is about to end. Its queues may be gone when its last destructor calls the library:
//! that must not hang, and everything is done all the same, at the latest when the timer is driven.

use super::scene::{counted, inside, park};
use crate::support::keys::{Act, Acting};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Tally, lock, manual, within};
use request_purgatory::{CheckBound, Purgatory};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

type Call = Box<dyn FnOnce() + Send>;

/// Calls the library when its thread ends, when some of the thread's locals are gone already.
struct AtTheEnd(Option<Call>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        if let Some(last) = self.0.take() {
            last();
        }
    }
}

thread_local!(static LAST_CALL: RefCell<AtTheEnd> = const { RefCell::new(AtTheEnd(None)) });

/// The locals are destroyed in an order that depends on which was touched first. `touch` touches the one of this test:
/// before those of the library, after them, or in between.
const ORDERS: [(&str, fn(&dyn Fn(), Call)); 4] = [
    ("first", |work, touch| {
        touch();
        work();
    }),
    ("last", |work, touch| {
        work();
        touch();
    }),
    ("in a nested completion", |work, touch| {
        let (other, _clock) = manual::<u64>(|builder| builder);
        let touch = Mutex::new(Some(touch));
        let nests = inside(&other, move |all| {
            let touch = lock(&touch).take().expect("once");
            park(all, Op::new(NEVER_IN_A_TEST).then(|_| touch()), [9]);
            all.force_complete_for_key(&9);
        });
        park(&other, Op::new(NEVER_IN_A_TEST).then(move |_| nests()), [9]);
        other.force_complete_for_key(&9);
        work();
    }),
    ("beside a nested check", |work, touch| {
        let (other, _clock) = manual::<u64>(|builder| builder);
        park(&other, Op::new(NEVER_IN_A_TEST), [9]);
        let check = inside(&other, |all| _ = all.check_and_complete(&9));
        let mut touch = Some(touch);
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            check();
            touch.take().into_iter().for_each(|touch| touch());
            false
        });
        park(&other, op, [8]);
        work();
    }),
];

/// Does this work on a thread, and once more when that thread ends.
fn twice_on_an_ending_thread(order: fn(&dyn Fn(), Call), work: impl Fn() + Clone + Send + 'static) {
    let last = work.clone();
    let touch = || LAST_CALL.set(AtTheEnd(Some(Box::new(last))));
    let ending = thread::spawn(move || order(&work, Box::new(touch)));
    ending.join().expect("no call panics");
}

/// An operation that checks for one of three others in each of its two examinations: two complete, and what they check.
fn cascade(purgatory: &Purgatory<Op>, ended: &Arc<Tally>) {
    let ready = Arc::new(AtomicBool::new(false));
    for key in [2, 2, 2, 3] {
        let (ready, ended) = (ready.clone(), ended.clone());
        let check = inside(purgatory, |all| _ = all.check_and_complete(&3));
        let op = Op::new(NEVER_IN_A_TEST).when(move || ready.load(Ordering::SeqCst));
        let op = op.then(move |_| {
            ended.add();
            check();
        });
        park(purgatory, op, [key]);
    }
    let check_for_one = inside(purgatory, |all| {
        all.check_and_complete_with(&2, CheckBound::at_most(1));
    });
    let op = Op::new(NEVER_IN_A_TEST).when(move || {
        ready.store(true, Ordering::SeqCst);
        check_for_one();
        false
    });
    park(purgatory, op, [1]);
    drop(purgatory.cancel_for_key(&1));
}

#[test]
fn g01_a_thread_that_is_about_to_end_makes_its_checks() {
    for (name, order) in ORDERS {
        within(PATIENCE / 6, move || {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let ended = Tally::new();
            let (all, tally) = (purgatory.clone(), ended.clone());
            twice_on_an_ending_thread(order, move || cascade(&all, &tally));
            // Their deadlines are far: this is for the checks that were deferred.
            purgatory.advance();
            assert_eq!(
                (ended.count(), purgatory.stats().panicked),
                (6, 0),
                "{name}"
            );
        });
    }
}

/// The destructor of a key ends the next operation, whose key is then dropped inside it: where the thread is ending and
/// has no queue any more, at once.
#[test]
fn g14_a_thread_that_is_about_to_end_drops_the_key_of_what_a_key_ends() {
    for (name, order) in ORDERS {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual::<Acting>(|builder| builder);
            let ended = Tally::new();
            let (all, tally) = (purgatory.clone(), ended.clone());
            twice_on_an_ending_thread(order, move || {
                let next: Act = Arc::new(inside(&all, |all| {
                    all.force_complete_for_key(&Acting(2, None));
                }));
                for key in [Acting(2, None), Acting(1, Some(next))] {
                    park(&all, counted(&tally), [key]);
                }
                all.force_complete_for_key(&Acting(1, None));
            });
            let stats = purgatory.stats();
            assert_eq!((ended.count(), stats.parked), (4, 0), "{name}");
            assert_eq!((stats.watched, stats.panicked), (0, 0), "{name}");
        });
    }
}
