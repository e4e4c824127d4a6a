//! G1, G14, G22: what one outermost call causes on its thread: nested checks that are merged, and passes of the timer
//! from inside.

use super::scene::{counted, inside, once_checked, park};
use crate::lost_completion::steps::{
    FIRST_CHECK, SATISFIED, elsewhere, hooked_op, park_hook, park_probe,
};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, manual, within};
use request_purgatory::{CheckBound, Purgatory, Watch};
use request_purgatory::{purgatory::WeakRef, threads::Reaper, time::WakeFn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const FIRST: u64 = 1;
const RELAY: u64 = 2;
const LAST: u64 = 3;

/// Parks an operation on `RELAY` that makes the call in one examination, and returns what leads to it: a check, or a
/// check that another operation's `try_complete` makes.
fn relay(
    purgatory: &Purgatory<Op>,
    nested: bool,
    call: impl Fn(&Purgatory<Op>) + Send + 'static,
) -> impl FnOnce() {
    let leads = inside(purgatory, |all| {
        assert_eq!(all.check_and_complete(&RELAY), 0);
    });
    park(purgatory, once_checked(NEVER_IN_A_TEST, leads), [FIRST]);
    let call = inside(purgatory, call);
    park(purgatory, once_checked(NEVER_IN_A_TEST, call), [RELAY]);
    let purgatory = purgatory.clone();
    move || _ = purgatory.check_and_complete(if nested { &FIRST } else { &RELAY })
}

/// Two checks of one key by one examination, which belongs to a nested check or not: their bounds are added, and they
/// go up to the higher rank. (The second check was taken for the first one again.)
#[test]
fn g22_checks_of_one_examination_are_merged() {
    let (all, one) = (CheckBound::all(), CheckBound::at_most(1));
    for (what, bounds, completed) in [
        ("added", [one, one], 2),
        ("added", [one, CheckBound::at_most(3)], 4),
        ("all beside one", [one, all], 10),
        ("the higher rank", [all.up_to(5), all.up_to(8)], 8),
        ("the higher rank first", [all.up_to(8), all.up_to(5)], 8),
    ] {
        for nested in [false, true] {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let (come, ended) = (Arc::new(AtomicBool::new(false)), Tally::new());
            for rank in 1..=10 {
                let come = come.clone();
                let op = counted(&ended).when(move || come.load(Ordering::SeqCst));
                park(&purgatory, op, [Watch::from(LAST).at_rank(rank)]);
            }
            let begin = relay(&purgatory, nested, move |all| {
                come.store(true, Ordering::SeqCst);
                for bound in bounds {
                    assert_eq!(all.check_and_complete_with(&LAST, bound), 0);
                }
            });
            begin();
            assert_eq!(ended.count(), completed, "{what}, nested: {nested}");
        }
    }
}

/// A slot has more occupants in one call than 16 bits count, and each checks a key: none is taken for an earlier one.
#[test]
fn g18_no_operation_is_taken_for_one_that_had_its_slot_before() {
    const LINKS: u64 = (1 << 16) + 100;

    fn link(purgatory: &Purgatory<Op>, number: u64) {
        let op = hooked_op(purgatory, NEVER_IN_A_TEST, |all, nth| {
            match nth {
                // Not parked yet: the check comes when it is.
                1 => assert_eq!(all.check_and_complete(&RELAY), 0),
                2 => {}
                _ => assert_eq!(all.check_and_complete(&LAST), 0),
            }
            nth > 2
        });
        let next = inside(purgatory, move |all| {
            if number < LINKS {
                link(all, number + 1);
            }
        });
        let op = op.then(move |_| next());
        assert!(purgatory.try_complete_else_watch(op, [RELAY]).is_ok());
    }

    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let probes = [RELAY, RELAY, LAST, LAST].map(|key| park_probe(&purgatory, [key]).0);
        link(&purgatory, 1);
        assert_eq!(purgatory.stats().parked, 4);
        // Two of the park, and one for each link.
        let examinations = [&probes[2], &probes[3]].map(|probe| probe.examinations() as u64);
        assert_eq!(examinations, [2 + LINKS; 2]);
    });
}

/// An examination parks another operation, which is examined inside it. It is no less an examination afterwards.
#[test]
fn g14_a_check_waits_for_the_outer_examination_after_an_inner_one() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let (last, _) = park_probe(&purgatory, [LAST]);
    let ready = last.clone();
    let begin = relay(&purgatory, false, move |all| {
        park(all, Op::new(NEVER_IN_A_TEST), [9]);
        ready.satisfy();
        assert_eq!(all.check_and_complete(&LAST), 0, "it is made later");
    });
    begin();
    assert_eq!(last.ending(), SATISFIED);
    assert_eq!(purgatory.stats().panicked, 0);
}

/// The same at a deadline: what the inner one drives is not another pass.
#[test]
fn g14_no_pass_begins_in_a_park_inside_an_examination_at_a_deadline() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    for key in 0..100 {
        let parks = inside(&purgatory, move |all| {
            park_hook(all, [1_000 + key], |all, _| {
                assert_eq!(all.advance(), 0);
                false
            });
        });
        let op = once_checked(Duration::from_secs(1), parks);
        park(&purgatory, op, [key]);
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
    let [came, relayed] = [(); 2].map(|()| Tally::new());
    let (finding, relaying) = (came.clone(), relayed.clone());
    park_hook(&purgatory, [RELAY], move |all, _| {
        if relaying.count() < finding.count() {
            relaying.add();
            assert_eq!(all.check_and_complete(&LAST), 0);
        }
        false
    });
    let begin = relay(&purgatory, true, |_| ());
    for wanted in 1..=5 {
        let (relayed, came) = (relayed.clone(), came.clone());
        let check = inside(&purgatory, |all| _ = all.check_and_complete(&RELAY));
        let op = Op::new(NEVER_IN_A_TEST).when(move || relayed.count() >= wanted);
        let op = op.then(move |_| {
            came.add();
            check();
        });
        park(&purgatory, op, [LAST]);
    }
    came.add();
    begin();
    assert_eq!((came.count(), purgatory.stats().completed), (6, 5));
}

/// The first that a thread parks in each of two purgatories. Both check one key, the second when the check of the first
/// has been made.
#[test]
fn g14_operations_of_two_purgatories_cause_a_nested_check_each() {
    let [one, other] = [(); 2].map(|()| manual::<u64>(|builder| builder).0);
    let probe = Probe::new();
    let (next, back, happens) = (other.clone(), one.downgrade(), probe.clone());
    park_hook(&one, [1], move |all, nth| {
        if nth >= FIRST_CHECK {
            assert_eq!(all.check_and_complete(&7), 0, "it waits");
            assert_eq!(next.check_and_complete(&1), 0, "it waits");
        }
        false
    });
    park_hook(&other, [1], move |_, nth| {
        if nth >= FIRST_CHECK {
            happens.satisfy();
            let one = back.upgrade().expect("the test has it");
            assert_eq!(one.check_and_complete(&7), 0, "it waits");
        }
        false
    });
    park(&one, probe.op(NEVER_IN_A_TEST), [7]);
    assert_eq!(one.check_and_complete(&1), 0);
    assert_eq!(probe.ending(), SATISFIED);
    assert_eq!(probe.examinations(), 4, "two of the park, and two checks");
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
            let (finding, relaying) = (came.clone(), relayed.clone());
            let mut examinations = 0;
            park_hook(&purgatory, [RELAY, OWN], move |all, _| {
                if relaying.count() < finding.count() {
                    relaying.add();
                    all.check_and_complete(&LAST);
                } else if finding.count() == 1 {
                    examinations += 1;
                    let brings = examinations == asked;
                    elsewhere(|| {
                        if brings {
                            finding.add();
                        }
                        assert_eq!(all.check_and_complete(&RELAY), 0, "it is held");
                        if brings && asked > 1 {
                            assert!(all.cancel_for_key(&OWN).is_empty(), "it is held");
                        }
                    });
                }
                false
            });
            let first = came.clone();
            let begin = relay(&purgatory, true, move |all| {
                first.add();
                assert_eq!(all.check_and_complete(&RELAY), 0);
            });
            for _ in 0..2 {
                let relayed = relayed.clone();
                let check = inside(&purgatory, |all| {
                    assert_eq!(all.check_and_complete(&RELAY), 0);
                });
                let op = counted(&ended).when(move || {
                    if relayed.count() == 1 {
                        check();
                    }
                    relayed.count() == 2
                });
                park(&purgatory, op, [LAST]);
            }
            begin();
            let now = Duration::ZERO;
            while purgatory.next_deadline().map(|next| next.since_origin()) == Some(now) {
                purgatory.advance();
            }
            assert_eq!((came.count(), relayed.count(), ended.count()), (2, 2, 2));
            assert_eq!(purgatory.stats().panicked, 0);
            assert_eq!(purgatory.stats().cancelled, u64::from(asked > 1));
        });
    }
}
