//! G1, G14: calls of a thread that is about to end. Its queues may be gone when its last destructor calls the library:
//! that must not hang, and everything is done all the same, at the latest when the timer is driven.

use super::scene::{inside, park};
use crate::lost_completion::steps::park_hook;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Tally, manual, within};
use request_purgatory::{CheckBound, Purgatory};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
        let weak = other.downgrade();
        let nests = Op::new(NEVER_IN_A_TEST).then(move |_| {
            let all = weak.upgrade().expect("it is forced");
            park(&all, Op::new(NEVER_IN_A_TEST).then(|_| touch()), [9]);
            all.force_complete_for_key(&9);
        });
        park(&other, nests, [9]);
        other.force_complete_for_key(&9);
        work();
    }),
    ("beside a nested check", |work, touch| {
        let (other, _clock) = manual::<u64>(|builder| builder);
        park(&other, Op::new(NEVER_IN_A_TEST), [9]);
        let mut touch = Some(touch);
        park_hook(&other, [8], move |all, _| {
            all.check_and_complete(&9);
            touch.take().into_iter().for_each(|touch| touch());
            false
        });
        work();
    }),
];

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
    park_hook(purgatory, [1], move |all, _| {
        ready.store(true, Ordering::SeqCst);
        all.check_and_complete_with(&2, CheckBound::at_most(1));
        false
    });
    drop(purgatory.cancel_for_key(&1));
}

#[test]
fn g01_a_thread_that_is_about_to_end_makes_its_checks() {
    for (name, order) in ORDERS {
        within(PATIENCE / 6, move || {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let ended = Tally::new();
            let (all, tally) = (purgatory.clone(), ended.clone());
            let work = move || cascade(&all, &tally);
            let last = work.clone();
            let touch = || LAST_CALL.set(AtTheEnd(Some(Box::new(last))));
            // The work is done on a thread, and once more when that thread ends.
            let ending = thread::spawn(move || order(&work, Box::new(touch)));
            ending.join().expect("no call panics");
            // Their deadlines are far: this is for the checks that were deferred.
            purgatory.advance();
            let counts = (ended.count(), purgatory.stats().panicked);
            assert_eq!(counts, (6, 0), "{name}");
        });
    }
}
