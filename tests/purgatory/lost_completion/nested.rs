//! G1, G14: checks that meet an operation which a thread is examining, this one or another.

use super::steps::{
    FIRST_CHECK, SATISFIED, elsewhere, hooked_op, park, park_hook, park_probe, probed_op,
};
use crate::support::keys::by_number;
use crate::support::{
    NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock, manual, within,
};
use request_purgatory::{
    CheckBound, Handle, Purgatory, purgatory::RejectReason, threads::Reaper, time::ManualClock,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the hook calls between its reading of the condition and its answer.
type Call = fn(&Purgatory<Op>);

const CALLS: [(&str, Call); 12] = [
    ("advance", |all| _ = all.advance()),
    ("next_deadline", |all| _ = all.next_deadline()),
    ("check of its key", |all| _ = all.check_and_complete(&1)),
    ("check of another key", |all| _ = all.check_and_complete(&2)),
    ("resolved", |all| _ = all.resolve(1).check_and_complete()),
    ("check_later", |all| all.check_later(1)),
    ("park", |all| _ = park_probe(all, [1, 3])),
    ("park and advance", |all| {
        park_hook(all, [1, 3], |all, _| {
            all.advance();
            false
        });
    }),
    ("park and check", |all| {
        park_probe(all, [1, 3]).1.check();
    }),
    ("force of others", |all| {
        _ = all.force_complete_for_key(&2);
        all.advance();
    }),
    ("cancel of others", |all| {
        drop(all.cancel_for_key(&2));
        all.advance();
    }),
    ("snapshot", |all| drop(all.snapshot())),
];

/// The event comes when the hook has read its condition as false, and the check that follows it is in the deferred ones
/// or has left a mark. Then the hook itself calls the purgatory: on this thread the operation is held, so nothing that
/// this thread runs may take the check for made.
#[test]
fn g01_a_check_during_an_examination_that_calls_is_not_lost() {
    within(PATIENCE, || {
        for reaper in [Reaper::Manual, Reaper::Own] {
            for examination in [2, FIRST_CHECK] {
                for later in [true, false] {
                    for (name, call) in CALLS {
                        call_after_an_event(name, call, reaper.clone(), examination, later);
                    }
                }
            }
        }
    });
}

fn call_after_an_event(name: &str, call: Call, reaper: Reaper, examination: u32, later: bool) {
    let is_manual = matches!(reaper, Reaper::Manual);
    let (purgatory, _clock) = manual::<u64>(|builder| builder.reaper(reaper));
    (0..3).for_each(|_| _ = park_probe(&purgatory, [2]));
    let probe = Probe::new();
    let op = probed_op(&purgatory, &probe, Duration::MAX, move |all, probe, nth| {
        let ready = probe.is_ready();
        if nth == examination {
            elsewhere(|| {
                probe.satisfy();
                match later {
                    true => all.check_later(1),
                    false => assert_eq!(all.check_and_complete(&1), 0),
                }
            });
            call(all);
        }
        ready
    });
    assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
    purgatory.check_and_complete(&1);
    if is_manual {
        purgatory.advance();
    } else {
        eventually(name, || probe.ending().is_some());
    }
    assert_eq!(probe.ending(), SATISFIED, "{name}, {examination}");
    assert_eq!(purgatory.stats().missed_checks, 0);
}

/// In a nested check another thread asks for an examination, which relays the event once more: that check comes with
/// the next `advance`, as it was asked for.
#[test]
fn g01_a_relay_for_another_thread_is_checked_later_as_asked() {
    for by_handle in [false, true] {
        let (purgatory, _clock) = manual(|builder| builder);
        // In the first phase the operations check each other; in the second, two of them can complete.
        let phase = Tally::new();
        let relayed = Arc::new(Mutex::new(None));
        let (now, to, mut relays) = (phase.clone(), relayed.clone(), 0);
        park_hook(&purgatory, [1], move |all, _| {
            if now.count() == 1 {
                if by_handle {
                    let handle = lock(&to).clone().expect("it is parked");
                    Handle::check(&handle);
                } else {
                    all.check_and_complete_with(&2, CheckBound::at_most(1));
                }
                relays += 1;
                if relays == 2 {
                    elsewhere(|| all.check_and_complete(&1));
                }
            }
            false
        });
        for _ in 0..2 {
            let now = phase.clone();
            let handle = park_hook(&purgatory, [2], move |all, _| {
                if now.count() == 1 {
                    all.check_and_complete(&1);
                }
                now.count() == 2
            });
            *lock(&relayed) = Some(handle);
        }
        phase.add();
        assert_eq!(purgatory.check_and_complete(&1), 0);
        phase.add();
        purgatory.advance();
        assert_eq!(purgatory.stats().parked, 2, "by a handle: {by_handle}");
        lock(&relayed).take();
    }
}

/// Each examination checks every key of every purgatory, its own included. These nested checks are merged, so that each
/// operation costs a few examinations, and none waits for the next call.
#[test]
fn g14_operations_that_check_all_keys_are_examined_a_few_times() {
    /// Purgatories, keys of each, and how often an operation is examined at most.
    const ROWS: [(usize, u64, u64); 2] = [(1, 1, 2), (3, 4, 3)];
    const COUNTS: [u64; 5] = [1, 5, 10, 100, 1_000];
    within(PATIENCE, || {
        let cases = ROWS.map(|row| COUNTS.map(|count| (row, count)));
        for ((purgatories, keys, most), count) in cases.into_iter().flatten() {
            let all = (0..purgatories).map(|_| manual::<u64>(|builder| builder).0);
            let all = all.collect::<Vec<_>>();
            let examinations = Tally::new();
            for number in 0..count {
                let examined = examinations.clone();
                let others = all.iter().map(Purgatory::downgrade).collect::<Vec<_>>();
                let (place, key) = (number as usize % purgatories, number / purgatories as u64);
                let op = hooked_op(&all[place], Duration::MAX, move |_, nth| {
                    if nth >= FIRST_CHECK {
                        examined.add();
                        for purgatory in others.iter().filter_map(|weak| weak.upgrade()) {
                            let completed = (0..keys).map(|key| purgatory.check_and_complete(&key));
                            assert_eq!(completed.sum::<usize>(), 0);
                        }
                    }
                    false
                });
                park(&all[place], op, [key % keys]);
            }
            // A call does not count on what an earlier one has done.
            for call in 0..3 {
                let before = examinations.count();
                assert_eq!(all[0].check_and_complete(&0), 0);
                let made = examinations.count() - before;
                let is_fair = (count..=most * count).contains(&made);
                assert!(is_fair, "{made} examinations of {count} in call {call}");
            }
            let is_idle = |purgatory: &Purgatory<_>| purgatory.next_deadline().is_none();
            assert!(all.iter().all(is_idle), "a check waits");
        }
    });
}

/// A nested check meets an operation again, whose state has moved on: now it checks another key than before.
#[test]
fn g14_each_operation_causes_a_nested_check_of_each_key() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual(|builder| builder);
        let ready = Arc::new(AtomicBool::new(false));
        let (happened, mut checked) = (ready.clone(), 1);
        park_hook(&purgatory, [1], move |all, nth| {
            if nth < FIRST_CHECK {
                return false;
            }
            checked += 1;
            happened.store(checked == 3, Ordering::Relaxed);
            all.check_and_complete(&checked) > 0
        });
        park_hook(&purgatory, [2], |all, nth| {
            nth >= FIRST_CHECK && all.check_and_complete(&1) > 0
        });
        park_hook(&purgatory, [3], move |_, _| ready.load(Ordering::Relaxed));
        purgatory.check_and_complete(&1);
        assert_eq!((purgatory.watchers(&3), purgatory.stats().parked), (0, 2));
    });
}

/// Each park takes stack of the hook that makes it, so there is an end to it.
#[test]
fn g14_the_ninth_nested_park_is_refused() {
    type Refused = Arc<Mutex<Vec<u64>>>;

    fn nest(purgatory: &Purgatory<Op>, depth: u64, refused: Refused) {
        let inner = refused.clone();
        let op = hooked_op(purgatory, NEVER_IN_A_TEST, move |all, nth| {
            if nth == 1 && depth < 20 {
                nest(all, depth + 1, inner.clone());
            }
            false
        });
        if let Err(rejected) = purgatory.try_complete_else_watch(op, [depth]) {
            assert_eq!(rejected.reason(), RejectReason::Nested);
            lock(&refused).push(depth);
        }
    }

    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    for round in 1..4 {
        let refused = Refused::default();
        nest(&purgatory, 0, refused.clone());
        // The outermost one and eight nested ones.
        assert_eq!(purgatory.stats().parked, round * 10 - 1);
        // It was not examined, and nothing of it is left.
        assert_eq!(*lock(&refused), [9]);
        park_probe(&purgatory, [9]);
    }
    let stats = purgatory.stats();
    assert_eq!((stats.rejected, stats.panicked, stats.parked), (3, 0, 30));
}

/// Every examination is asked for another one, until the holder has made as many as it makes in a row and leaves the
/// next one to the timer. In one of them the event comes, and its check; then another thread ends the operation, or
/// nothing more happens. The event is found, and before that end, in whichever examination it comes.
#[test]
fn g01_an_event_in_any_examination_is_found_before_a_later_end() {
    type End = fn(&Purgatory<Op>, &ManualClock);
    const ENDS: [(&str, End); 4] = [
        ("nothing", |_, _| ()),
        ("cancel", |all, _| drop(all.cancel_for_key(&2))),
        ("shutdown", |all, _| all.shutdown()),
        ("expiry", |all, clock| {
            clock.advance(2 * TIMEOUT);
            all.advance();
        }),
    ];
    const TIMEOUT: Duration = Duration::from_secs(1);
    let cases = ENDS.map(|end| (2..40).map(move |at| (end, at)));
    for ((name, end), at) in cases.into_iter().flatten() {
        within(PATIENCE, move || {
            let (purgatory, clock) = manual::<u64>(|builder| builder);
            let probe = Probe::new();
            let op = probed_op(&purgatory, &probe, TIMEOUT, move |all, probe, nth| {
                let ready = probe.is_ready();
                // The first is made before any other thread can find it.
                if nth > 1 && !ready {
                    elsewhere(|| {
                        if nth == at {
                            probe.satisfy();
                        }
                        assert_eq!(all.check_and_complete(&1), 0, "it is held");
                        if nth == at {
                            end(all, &clock);
                        }
                    });
                }
                ready
            });
            assert!(purgatory.try_complete_else_watch(op, [1, 2]).is_ok());
            assert!(probe.examinations() <= 2 + 16, "the parker was kept busy");
            (0..10).for_each(|_| _ = purgatory.advance());
            assert_eq!(probe.ending(), SATISFIED, "{name} in examination {at}");
        });
    }
}

/// Operations that are being parked, one in a check and one in a nested check, cause the same check: both are made.
#[test]
fn g01_each_operation_that_is_being_parked_causes_its_check() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let events = Tally::new();
        for number in 0..2 {
            let happened = events.clone();
            park_hook(&purgatory, [7], move |_, _| happened.count() > number);
        }
        let happening = events.clone();
        park_hook(&purgatory, [1], move |all, nth| {
            if nth >= FIRST_CHECK {
                let happening = happening.clone();
                park_hook(all, [9], move |all, nth| {
                    if nth == 1 {
                        happening.add();
                        all.check_and_complete(&7);
                    }
                    false
                });
                all.check_and_complete(&1);
            }
            false
        });
        park_probe(&purgatory, [1]);
        purgatory.check_and_complete(&1);
        assert_eq!((events.count(), purgatory.stats().completed), (2, 2));
    });
}

/// Keeps something until the last of its clones is dropped.
#[derive(Clone)]
struct Keeps(
    u64,
    #[expect(dead_code, reason = "it is there to be dropped")] Option<Arc<dyn Send + Sync>>,
);

by_number!(Keeps);

/// What is known of a nested check goes when the outermost call is about to return, and with it the last clone of the
/// key whose operation it has completed.
#[test]
fn g14_the_key_of_a_nested_check_may_complete_another_operation() {
    let (purgatory, _clock) = manual::<Keeps>(|builder| builder);
    let key = |number| Keeps(number, None);
    let inside = purgatory.downgrade();
    let check = scopeguard::guard((), move |()| {
        let inside = inside.upgrade().expect("the test has it");
        inside.check_and_complete(&key(2));
    });
    let (by_its_key, _) = park_probe(&purgatory, [key(2)]);
    let (completed, _) = park_probe(&purgatory, [Keeps(3, Some(Arc::new(check)))]);
    park_hook(&purgatory, [key(1)], move |all, _| {
        all.check_and_complete(&key(3)) > 0
    });
    let probes = [completed, by_its_key];
    probes.iter().for_each(|probe| probe.satisfy());
    assert_eq!(purgatory.check_and_complete(&key(1)), 0);
    assert_eq!(probes.map(|probe| probe.ending()), [SATISFIED; 2]);
}
