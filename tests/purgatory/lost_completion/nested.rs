//! G1, G14: checks that meet an operation which a thread is examining, this one or another.

use super::steps::{
    FIRST_CHECK, SATISFIED, elsewhere, hooked_op, park, park_hook, park_probe, probed_op,
};
use crate::support::keys::{Act, by_number};
use crate::support::{
    NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock, manual, within,
};
use request_purgatory::{
    CheckBound, Handle, Purgatory, purgatory::RejectReason, threads::Reaper, time::ManualClock,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the hook calls between its reading of the condition and its answer.
type Call = fn(&Purgatory<Op>);

const CALLS: [(&str, Call); 12] = [
    ("advance", |all| _ = all.advance()),
    ("next_deadline", |all| _ = all.next_deadline()),
    ("check of its own key", |all| {
        assert_eq!(all.check_and_complete(&1), 0);
    }),
    ("check of another key", |all| _ = all.check_and_complete(&2)),
    ("check of its own resolved key", |all| {
        assert_eq!(all.resolve(1).check_and_complete(), 0);
    }),
    ("check_later", |all| all.check_later(1)),
    ("park", |all| {
        park(all, Op::new(NEVER_IN_A_TEST), [1, 3]);
    }),
    ("park and advance", |all| {
        park_hook(all, [1, 3], |all, _| {
            all.advance();
            false
        });
    }),
    ("park and check", |all| {
        let handle = park(all, Op::new(NEVER_IN_A_TEST), [1, 3]);
        assert!(!handle.check());
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
    for reaper in [Reaper::Manual, Reaper::Own] {
        for examination in [2, FIRST_CHECK] {
            for later in [true, false] {
                for (name, call) in CALLS {
                    let reaper = reaper.clone();
                    within(PATIENCE, move || {
                        call_after_an_event(name, call, reaper, examination, later);
                    });
                }
            }
        }
    }
}

fn call_after_an_event(name: &str, call: Call, reaper: Reaper, examination: u32, later: bool) {
    let manual = matches!(reaper, Reaper::Manual);
    let purgatory = Purgatory::<Op>::builder("g01-held").reaper(reaper).build();
    let purgatory = purgatory.expect("threads are to be had");
    for _ in 0..3 {
        park(&purgatory, Op::new(NEVER_IN_A_TEST), [2]);
    }
    let probe = Probe::new();
    let op = probed_op(
        &purgatory,
        &probe,
        NEVER_IN_A_TEST,
        move |all, probe, nth| {
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
        },
    );
    assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
    purgatory.check_and_complete(&1);
    if manual {
        purgatory.advance();
    } else {
        eventually(name, || probe.ending().is_some());
    }
    let ending = probe.ending();
    assert_eq!(ending, SATISFIED, "{name}, in examination {examination}");
    assert_eq!(purgatory.stats().missed_checks, 0);
}

/// In a nested check another thread asks for an examination, which relays the event once more: that check comes with
/// the next `advance`, as it was asked for.
#[test]
fn g01_a_relay_for_another_thread_is_checked_later_as_asked() {
    for by_handle in [false, true] {
        let (purgatory, _clock) = manual(|builder| builder);
        let [armed, ready] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let relayed = Arc::new(Mutex::new(None));
        let (is_armed, to, mut relays) = (armed.clone(), relayed.clone(), 0);
        park_hook(&purgatory, [1], move |all, _| {
            if is_armed.load(Ordering::SeqCst) {
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
            let (is_armed, is_ready) = (armed.clone(), ready.clone());
            let handle = park_hook(&purgatory, [2], move |all, _| {
                if is_armed.load(Ordering::SeqCst) {
                    all.check_and_complete(&1);
                }
                is_ready.load(Ordering::SeqCst)
            });
            *lock(&relayed) = Some(handle);
        }
        armed.store(true, Ordering::SeqCst);
        assert_eq!(purgatory.check_and_complete(&1), 0);
        armed.store(false, Ordering::SeqCst);
        ready.store(true, Ordering::SeqCst);
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
            let (is_on, examinations) = (Arc::new(AtomicBool::new(false)), Tally::new());
            for number in 0..count {
                let (is_on, examinations) = (is_on.clone(), examinations.clone());
                let others = all.iter().map(Purgatory::downgrade).collect::<Vec<_>>();
                let op = Op::new(Duration::MAX).when(move || {
                    if is_on.load(Ordering::SeqCst) {
                        examinations.add();
                        for purgatory in others.iter().filter_map(|weak| weak.upgrade()) {
                            let completed = (0..keys).map(|key| purgatory.check_and_complete(&key));
                            assert_eq!(completed.sum::<usize>(), 0);
                        }
                    }
                    false
                });
                let (place, key) = (number as usize % purgatories, number / purgatories as u64);
                park(&all[place], op, [key % keys]);
            }
            is_on.store(true, Ordering::SeqCst);
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

/// A deferred check is merged with those of the same key that wait; what an examination defers waits for the next call,
/// or this one would never end.
#[test]
fn g14_deferred_checks_of_one_key_are_one() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual(|builder| builder);
        let examinations = Tally::new();
        let examined = examinations.clone();
        let op = hooked_op(&purgatory, Duration::MAX, move |all, _| {
            examined.add();
            (0..10).for_each(|_| all.check_later(1));
            false
        });
        park(&purgatory, op, [1]);
        assert_eq!(examinations.count(), 2);
        for number in 3..6 {
            purgatory.advance();
            assert_eq!(examinations.count(), number);
            assert!(purgatory.next_deadline().is_some(), "one more check waits");
        }
    });
}

/// One operation's examination is what another waits for: that one completes before the outermost call returns, also
/// over several keys and purgatories.
#[test]
fn g01_what_an_examination_enables_completes_in_the_same_call() {
    const LINKS: u64 = 50;
    let purgatories = [(); 3].map(|()| manual::<u64>(|builder| builder).0);
    let place = |link| &purgatories[link as usize % 3];
    let (reached, ended) = (Arc::new(AtomicU64::new(0)), Tally::new());
    // Each is examined when the one before has been, and enables the next one.
    for link in 1..=LINKS {
        let (reached, ended) = (reached.clone(), ended.clone());
        let op = hooked_op(place(link + 1), NEVER_IN_A_TEST, move |next, _| {
            let ready = reached.load(Ordering::SeqCst) == link;
            if ready {
                reached.store(link + 1, Ordering::SeqCst);
                assert_eq!(next.check_and_complete(&(link + 1)), 0);
            }
            ready
        });
        park(place(link), op.then(move |_| ended.add()), [link]);
    }
    reached.store(1, Ordering::SeqCst);
    assert_eq!(place(1).check_and_complete(&1), 1);
    assert_eq!(ended.count(), LINKS);
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

/// Each park takes stack of the hook that makes it, so there is an end to it: an error, with the operation inside.
#[test]
fn g14_the_ninth_nested_park_is_refused() {
    type Refused = Arc<Mutex<Vec<(u64, Op)>>>;

    fn nest(purgatory: &Purgatory<Op>, depth: u64, refused: Refused) {
        let inner = refused.clone();
        let op = hooked_op(purgatory, NEVER_IN_A_TEST, move |all, nth| {
            if nth == 1 && depth < 20 {
                nest(all, depth + 1, inner.clone());
            }
            false
        });
        if let Err(rejected) = purgatory.try_complete_else_watch(op, [depth]) {
            let (reason, op) = rejected.into_parts();
            assert_eq!(reason, RejectReason::Nested);
            lock(&refused).push((depth, op));
        }
    }

    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    for round in 1..4 {
        let refused = Refused::default();
        nest(&purgatory, 0, refused.clone());
        // The outermost one and eight nested ones.
        assert_eq!(purgatory.stats().parked, round * 10 - 1);
        let Some((9, op)) = lock(&refused).pop() else {
            panic!("another one was refused");
        };
        assert!(lock(&refused).is_empty());
        // It was not examined, and nothing of it is left.
        drop(op);
        park(&purgatory, Op::new(NEVER_IN_A_TEST), [9]);
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
        ("cancel", |all, _| {
            assert!(all.cancel_for_key(&2).is_empty())
        }),
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
            for _ in 0..10 {
                purgatory.advance();
            }
            assert_eq!(probe.ending(), SATISFIED, "{name} in examination {at}");
        });
    }
}

/// Operations that are being parked, one in a check and one in a nested check, cause the same check: both are made.
#[test]
fn g01_each_operation_that_is_being_parked_causes_its_check() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let (events, ended) = (Tally::new(), Tally::new());
        for number in 0..2 {
            let (happened, ended) = (events.clone(), ended.clone());
            let op = Op::new(NEVER_IN_A_TEST).when(move || happened.count() > number);
            park(&purgatory, op.then(move |_| ended.add()), [7]);
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
        park(&purgatory, Op::new(NEVER_IN_A_TEST), [1]);
        purgatory.check_and_complete(&1);
        assert_eq!((events.count(), ended.count()), (2, 2));
        assert_eq!(purgatory.stats().completed, 2);
    });
}

/// Acts when the last of its clones is dropped.
#[derive(Clone)]
struct Last(u64, Arc<Act>);

by_number!(Last);

impl Drop for Last {
    fn drop(&mut self) {
        if Arc::strong_count(&self.1) == 1 {
            (self.1)();
        }
    }
}

/// What is known of a nested check goes when the outermost call is about to return, and with it the last clone of the
/// key whose operation it has completed.
#[test]
fn g14_the_key_of_a_nested_check_may_complete_another_operation() {
    let (purgatory, _clock) = manual::<Last>(|builder| builder);
    let nothing = Arc::<Act>::new(Arc::new(|| ()));
    let key = move |number| Last(number, nothing.clone());
    let (inside, second) = (purgatory.downgrade(), key(2));
    let act: Act = Arc::new(move || {
        let inside = inside.upgrade().expect("the test has it");
        inside.check_and_complete(&second);
    });
    let third = key(3);
    let (by_its_key, _) = park_probe(&purgatory, [key(2)]);
    let (completed, _) = park_probe(&purgatory, [Last(3, Arc::new(act))]);
    park_hook(&purgatory, [key(1)], move |all, _| {
        all.check_and_complete(&third) > 0
    });
    let probes = [completed, by_its_key];
    probes.iter().for_each(|probe| probe.satisfy());
    assert_eq!(purgatory.check_and_complete(&key(1)), 0);
    assert_eq!(probes.map(|probe| probe.ending()), [SATISFIED; 2]);
}

/// A change has hold of an operation, as an examination has: its check is made when the call is about to return.
#[test]
fn g14_a_check_inside_a_change_is_made_later() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let probes = [1, 2].map(|key| park_probe(&purgatory, [key]).0);
    probes[1].satisfy();
    let (weak, seen) = (purgatory.downgrade(), Arc::new(Mutex::new(None)));
    let told = seen.clone();
    let change = move |_: &mut Op| {
        let inside = weak.upgrade().expect("the test has it");
        *lock(&told) = Some((inside.check_and_complete(&2), inside.stats().parked));
    };
    assert_eq!(purgatory.force_complete_for_key_with(&1, change), 1);
    assert_eq!(*lock(&seen), Some((0, 2)), "it is made later");
    assert_eq!(probes.map(|probe| probe.ending()), [SATISFIED; 2]);
}
