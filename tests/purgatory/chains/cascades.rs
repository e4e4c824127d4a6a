//! G1, G14: what one outermost call causes on its thread: nested checks that are merged, a timer that is driven from
//! inside, and calls that come when the thread is about to end.

use crate::support::keys::{Act, Acting};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Tally, lock, manual, on_a_stack_of, within};
use request_purgatory::{
    CheckBound, Purgatory, Watch, purgatory::WeakRef, threads::Reaper, time::Clock, time::WakeFn,
};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

const FIRST: u64 = 1;
const RELAY: u64 = 2;
const LAST: u64 = 3;

type Action = Box<dyn Fn(&Purgatory<Op>) + Send>;

/// Parks an operation on `RELAY` that calls `relay` in one examination, and returns the call that leads to it: a check,
/// or a check that another operation's `try_complete` makes.
fn relay(
    purgatory: &Purgatory<Op>,
    nested: bool,
    relay: impl Fn(&Purgatory<Op>) + Send + 'static,
) -> impl FnOnce() {
    let armed = Arc::new(AtomicBool::new(false));
    let once = |action: Action| {
        let (armed, weak, mut done) = (armed.clone(), purgatory.downgrade(), false);
        Op::new(NEVER_IN_A_TEST).when(move || {
            if armed.load(Ordering::SeqCst) && !std::mem::replace(&mut done, true) {
                action(&weak.upgrade().expect("it is being examined"));
            }
            false
        })
    };
    let leads = Box::new(|all: &Purgatory<Op>| assert_eq!(all.check_and_complete(&RELAY), 0));
    drop(purgatory.try_complete_else_watch(once(leads), [FIRST]));
    drop(purgatory.try_complete_else_watch(once(Box::new(relay)), [RELAY]));
    let purgatory = purgatory.clone();
    move || {
        armed.store(true, Ordering::SeqCst);
        purgatory.check_and_complete(if nested { &FIRST } else { &RELAY });
    }
}

/// Two jobs come in one examination, each with a check for one: that check is for two, also if the examination belongs
/// to a nested check. (The second was taken for the first one again.)
#[test]
fn g22_bounded_checks_of_one_examination_are_added() {
    for nested in [false, true] {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let (jobs, done) = (Arc::new(Mutex::new(0)), Tally::new());
        for _ in 0..2 {
            let (jobs, done) = (jobs.clone(), done.clone());
            let worker = Op::new(NEVER_IN_A_TEST).when(move || {
                let taken = *lock(&jobs) > 0;
                *lock(&jobs) -= u64::from(taken);
                taken
            });
            let worker = worker.then(move |_| done.add());
            drop(purgatory.try_complete_else_watch(worker, [LAST]));
        }
        let begin = relay(&purgatory, nested, move |all| {
            for _ in 0..2 {
                *lock(&jobs) += 1;
                assert_eq!(
                    all.check_and_complete_with(&LAST, CheckBound::at_most(1)),
                    0
                );
            }
        });
        begin();
        assert_eq!(done.count(), 2, "nested: {nested}");
    }
}

/// The check goes up to the higher rank, whichever came first.
#[test]
fn g01_ranked_checks_of_one_examination_go_up_to_the_highest() {
    for nested in [false, true] {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let (end, done) = (Arc::new(AtomicU64::new(0)), Tally::new());
        for rank in 1..=10 {
            let (end, done) = (end.clone(), done.clone());
            let op = Op::new(NEVER_IN_A_TEST).when(move || end.load(Ordering::SeqCst) >= rank);
            let watch = Watch::from(LAST).at_rank(rank);
            drop(purgatory.try_complete_else_watch(op.then(move |_| done.add()), [watch]));
        }
        let begin = relay(&purgatory, nested, move |all| {
            for rank in [5, 10] {
                end.store(rank, Ordering::SeqCst);
                assert_eq!(
                    all.check_and_complete_with(&LAST, CheckBound::all().up_to(rank)),
                    0
                );
            }
        });
        begin();
        assert_eq!(done.count(), 10, "nested: {nested}");
    }
}

/// A slot has more occupants in one call than 16 bits count, and each checks a key: none is taken for an earlier one.
#[test]
fn g18_no_operation_is_taken_for_one_that_had_its_slot_before() {
    const LINKS: u64 = (1 << 16) + 100;

    fn link(purgatory: &Purgatory<Op>, number: u64) {
        let (weak, parking) = (purgatory.downgrade(), purgatory.downgrade());
        let mut examinations = 0;
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            let purgatory = weak.upgrade().expect("it is being examined");
            match examinations {
                // Not parked yet: the check comes when it is.
                1 => assert_eq!(purgatory.check_and_complete(&RELAY), 0),
                2 => {}
                _ => assert_eq!(purgatory.check_and_complete(&LAST), 0),
            }
            examinations > 2
        });
        let op = op.then(move |_| {
            if number < LINKS {
                link(&parking.upgrade().expect("the test has it"), number + 1);
            }
        });
        assert!(purgatory.try_complete_else_watch(op, [RELAY]).is_ok());
    }

    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let examinations = Tally::new();
        for key in [RELAY, RELAY, LAST, LAST] {
            let examined = examinations.clone();
            let op = Op::new(NEVER_IN_A_TEST).when(move || {
                if key == LAST {
                    examined.add();
                }
                false
            });
            drop(purgatory.try_complete_else_watch(op, [key]));
        }
        let before = examinations.count();
        link(&purgatory, 1);
        assert_eq!(purgatory.stats().parked, 4);
        assert_eq!(examinations.count() - before, 2 * LINKS);
    });
}

/// The timer is driven from inside an examination that belongs to a pass, which drives it again.
#[test]
fn g14_a_chain_of_examinations_that_drive_the_timer_needs_no_stack() {
    const COUNT: u64 = 20_000;
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let ended = Tally::new();
    for key in 0..COUNT {
        let (ended, weak) = (ended.clone(), purgatory.downgrade());
        let op = Op::new(Duration::from_secs(1)).when(move || {
            if let Some(purgatory) = weak.upgrade() {
                assert_eq!(
                    purgatory.advance(),
                    0,
                    "the others are left to the pass in progress"
                );
            }
            false
        });
        drop(purgatory.try_complete_else_watch(op.then(move |_| ended.add()), [key]));
    }
    clock.advance(Duration::from_secs(2));
    let advance = move || (purgatory.advance() as u64, purgatory.stats().parked);
    assert_eq!(on_a_stack_of(64, advance), (COUNT, 0));
    assert_eq!(ended.count(), COUNT);
}

/// An examination parks another operation, which is examined inside it. It is no less an examination afterwards.
#[test]
fn g14_a_check_waits_for_the_outer_examination_after_an_inner_one() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let ended = Tally::new();
    let ending = ended.clone();
    let ready = Arc::new(AtomicBool::new(false));
    let waiting = ready.clone();
    let last = Op::new(NEVER_IN_A_TEST).when(move || waiting.load(Ordering::SeqCst));
    drop(purgatory.try_complete_else_watch(last.then(move |_| ending.add()), [LAST]));
    let begin = relay(&purgatory, false, move |all| {
        drop(all.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [9]));
        ready.store(true, Ordering::SeqCst);
        assert_eq!(all.check_and_complete(&LAST), 0, "it is made later");
    });
    begin();
    assert_eq!((ended.count(), purgatory.stats().panicked), (1, 0));
}

/// The same at a deadline: what the inner one drives is not another pass.
#[test]
fn g14_no_pass_begins_in_a_park_inside_an_examination_at_a_deadline() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    for key in 0..100 {
        let weak = purgatory.downgrade();
        let (mut examinations, now) = (0, clock.clone());
        let op = Op::new(Duration::from_secs(1)).when(move || {
            examinations += 1;
            if let (Some(purgatory), 3) = (weak.upgrade(), examinations) {
                let (driven, now) = (purgatory.downgrade(), now.clone());
                let inner = Op::new(NEVER_IN_A_TEST).when(move || {
                    let driven = driven.upgrade().expect("the outer hook has it");
                    assert_eq!(driven.advance(), 0, "at {:?}", now.now());
                    false
                });
                drop(purgatory.try_complete_else_watch(inner, [1_000 + key]));
            }
            false
        });
        drop(purgatory.try_complete_else_watch(op, [key]));
    }
    clock.advance(Duration::from_secs(2));
    assert_eq!(purgatory.advance(), 100);
    let stats = purgatory.stats();
    assert_eq!((stats.parked, stats.panicked, stats.rejected), (100, 0, 0));
}

/// An operation relays in a nested check, and what that completes brings something new: the same check by the same
/// operation is made again, because no nested check has caused it.
#[test]
fn g01_what_a_completion_brings_is_relayed_again() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let [came, relayed, ended] = [(); 3].map(|()| Tally::new());
    let (finding, relaying, weak) = (came.clone(), relayed.clone(), purgatory.downgrade());
    let op = Op::new(NEVER_IN_A_TEST).when(move || {
        if relaying.count() < finding.count() {
            relaying.add();
            let purgatory = weak.upgrade().expect("it is being examined");
            assert_eq!(purgatory.check_and_complete(&LAST), 0);
        }
        false
    });
    drop(purgatory.try_complete_else_watch(op, [RELAY]));
    let begin = relay(&purgatory, true, |_| ());
    for wanted in 1..=5 {
        let (relayed, ended, came) = (relayed.clone(), ended.clone(), came.clone());
        let weak = purgatory.downgrade();
        let op = Op::new(NEVER_IN_A_TEST).when(move || relayed.count() >= wanted);
        let op = op.then(move |_| {
            ended.add();
            came.add();
            let purgatory = weak.upgrade().expect("the test has it");
            purgatory.check_and_complete(&RELAY);
        });
        drop(purgatory.try_complete_else_watch(op, [LAST]));
    }
    came.add();
    begin();
    assert_eq!(ended.count(), 5);
}

/// Calls the library when its thread ends, when some of the thread's locals are gone already.
struct AtTheEnd(Option<Box<dyn FnOnce() + Send>>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        if let Some(last) = self.0.take() {
            last();
        }
    }
}

/// An operation that checks for one of three others in each of its two examinations: two complete, and what they check.
fn cascade(purgatory: &Purgatory<Op>, ended: &Arc<Tally>) {
    let ready = Arc::new(AtomicBool::new(false));
    let (setting, weak) = (ready.clone(), purgatory.downgrade());
    for key in [RELAY, RELAY, RELAY, LAST] {
        let (ready, ended, weak) = (ready.clone(), ended.clone(), weak.clone());
        let op = Op::new(NEVER_IN_A_TEST).when(move || ready.load(Ordering::SeqCst));
        let op = op.then(move |_| {
            ended.add();
            weak.upgrade()
                .expect("the test has it")
                .check_and_complete(&LAST);
        });
        assert!(purgatory.try_complete_else_watch(op, [key]).is_ok());
    }
    let op = Op::new(NEVER_IN_A_TEST).when(move || {
        setting.store(true, Ordering::SeqCst);
        let all = weak.upgrade().expect("the test has it");
        all.check_and_complete_with(&RELAY, CheckBound::at_most(1));
        false
    });
    assert!(purgatory.try_complete_else_watch(op, [FIRST]).is_ok());
    drop(purgatory.cancel_for_key(&FIRST));
}

/// The thread's queues may be gone when the last destructor of the thread calls the library: that must not hang, and
/// each check is made all the same, at the latest when the timer is driven.
#[test]
fn g01_a_thread_that_is_about_to_end_makes_its_checks() {
    thread_local!(static LAST_CALL: RefCell<AtTheEnd> = const { RefCell::new(AtTheEnd(None)) });

    for at in 0..4 {
        within(PATIENCE / 6, move || {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let ended = Tally::new();
            let ending = thread::spawn({
                let (purgatory, ended) = (purgatory.clone(), ended.clone());
                move || {
                    let (last, tally) = (purgatory.clone(), ended.clone());
                    let last = AtTheEnd(Some(Box::new(move || cascade(&last, &tally))));
                    let last = Arc::new(Mutex::new(Some(last)));
                    let touch = move || {
                        if let Some(last) = lock(&last).take() {
                            LAST_CALL.set(last);
                        }
                    };
                    // The locals are destroyed in an order that depends on which was touched first: this one before
                    // those of the library, after them, or in between.
                    match at {
                        0 => {
                            touch();
                            cascade(&purgatory, &ended);
                        }
                        1 => {
                            cascade(&purgatory, &ended);
                            touch();
                        }
                        2 => {
                            let weak = purgatory.downgrade();
                            let op = Op::new(NEVER_IN_A_TEST).then(move |_| {
                                let again = weak.upgrade().expect("the test has it");
                                let op = Op::new(NEVER_IN_A_TEST).then(move |_| touch());
                                drop(again.try_complete_else_watch(op, [9]));
                                again.force_complete_for_key(&9);
                            });
                            drop(purgatory.try_complete_else_watch(op, [9]));
                            purgatory.force_complete_for_key(&9);
                            cascade(&purgatory, &ended);
                        }
                        _ => {
                            let weak = purgatory.downgrade();
                            let op = Op::new(NEVER_IN_A_TEST).when(move || {
                                let again = weak.upgrade().expect("the test has it");
                                again.check_and_complete(&9);
                                touch();
                                false
                            });
                            let other = Op::new(NEVER_IN_A_TEST);
                            drop(purgatory.try_complete_else_watch(other, [9]));
                            drop(purgatory.try_complete_else_watch(op, [8]));
                            cascade(&purgatory, &ended);
                        }
                    }
                }
            });
            ending.join().expect("no call panics");
            // Their deadlines are far: this is for the checks that were deferred.
            purgatory.advance();
            assert_eq!(ended.count(), 6, "order {at}");
            assert_eq!(purgatory.stats().panicked, 0, "order {at}");
        });
    }
}

/// The destructor of a key ends the next operation, whose key is then dropped inside it: where the thread is ending and
/// has no queue any more, at once.
#[test]
fn g14_a_thread_that_is_about_to_end_drops_the_key_of_what_a_key_ends() {
    thread_local!(static LAST_CALL: RefCell<AtTheEnd> = const { RefCell::new(AtTheEnd(None)) });

    for queue_first in [false, true] {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual::<Acting>(|builder| builder);
            let ended = Tally::new();
            let two_by_one = {
                let (purgatory, ended) = (purgatory.clone(), ended.clone());
                move || {
                    let weak = purgatory.downgrade();
                    let next: Act = Arc::new(move || {
                        let all = weak.upgrade().expect("the test has it");
                        all.force_complete_for_key(&Acting(2, None));
                    });
                    for key in [Acting(2, None), Acting(1, Some(next))] {
                        let ended = ended.clone();
                        let op = Op::new(NEVER_IN_A_TEST).then(move |_| ended.add());
                        assert!(purgatory.try_complete_else_watch(op, [key]).is_ok());
                    }
                    purgatory.force_complete_for_key(&Acting(1, None));
                }
            };
            let last = two_by_one.clone();
            let ending = thread::spawn(move || {
                let touch = || LAST_CALL.set(AtTheEnd(Some(Box::new(last))));
                if queue_first {
                    two_by_one();
                    touch();
                } else {
                    touch();
                    two_by_one();
                }
            });
            ending.join().expect("no call panics");
            assert_eq!((ended.count(), purgatory.stats().parked), (4, 0));
            assert_eq!(
                (purgatory.stats().watched, purgatory.stats().panicked),
                (0, 0)
            );
        });
    }
}

/// An operation relays what comes, by a check of another key. Another thread brings something new while it is being
/// examined in a nested check, after it has made that check once: what it finds then is relayed as well, at the latest
/// when the timer is driven. So it is if others have asked for as many examinations as a thread makes, and it is then
/// cancelled.
#[test]
fn g01_what_another_thread_brings_during_a_nested_check_is_relayed() {
    const OWN: u64 = 4;
    for asked in [1, 16] {
        within(PATIENCE, move || {
            // A reactor is woken for it inside the examination, and makes another check there.
            let place = Arc::new(OnceLock::<WeakRef<Purgatory<Op>>>::new());
            let woken = place.clone();
            let waker = WakeFn::new(move || {
                let all = woken.get().and_then(WeakRef::upgrade);
                all.is_some_and(|all| all.check_and_complete(&FIRST) == 0)
            });
            let reactor = Reaper::Reactor(waker);
            let (purgatory, _clock) = manual::<u64>(|builder| builder.reaper(reactor));
            assert!(place.set(purgatory.downgrade()).is_ok());
            let [came, relayed, ended] = [(); 3].map(|()| Tally::new());
            let (finding, relaying, weak) = (came.clone(), relayed.clone(), purgatory.downgrade());
            let mut examinations = 0;
            let op = Op::new(NEVER_IN_A_TEST).when(move || {
                let purgatory = weak.upgrade().expect("it is being examined");
                if relaying.count() < finding.count() {
                    relaying.add();
                    purgatory.check_and_complete(&LAST);
                } else if finding.count() == 1 {
                    examinations += 1;
                    let event = (examinations == asked).then(|| finding.clone());
                    let other = thread::spawn(move || {
                        event.iter().for_each(|event| event.add());
                        let completed = purgatory.check_and_complete(&RELAY);
                        if event.is_some() && asked > 1 {
                            assert!(purgatory.cancel_for_key(&OWN).is_empty(), "it is held");
                        }
                        completed
                    });
                    assert_eq!(other.join().expect("it only checks"), 0, "it is held");
                }
                false
            });
            drop(purgatory.try_complete_else_watch(op, [RELAY, OWN]));
            let first = came.clone();
            let begin = relay(&purgatory, true, move |all| {
                first.add();
                assert_eq!(all.check_and_complete(&RELAY), 0);
            });
            for _ in 0..2 {
                let (relayed, ended, weak) =
                    (relayed.clone(), ended.clone(), purgatory.downgrade());
                let op = Op::new(NEVER_IN_A_TEST).when(move || {
                    if relayed.count() == 1 {
                        let purgatory = weak.upgrade().expect("it is being examined");
                        assert_eq!(purgatory.check_and_complete(&RELAY), 0);
                    }
                    relayed.count() == 2
                });
                drop(purgatory.try_complete_else_watch(op.then(move |_| ended.add()), [LAST]));
            }
            begin();
            while purgatory
                .next_deadline()
                .is_some_and(|next| next.since_origin() == Duration::ZERO)
            {
                purgatory.advance();
            }
            assert_eq!((came.count(), relayed.count(), ended.count()), (2, 2, 2));
            assert_eq!(purgatory.stats().panicked, 0);
            assert_eq!(purgatory.stats().cancelled, u64::from(asked > 1));
        });
    }
}
