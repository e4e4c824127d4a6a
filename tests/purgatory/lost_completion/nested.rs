//! G1, G14: checks that meet an operation which a thread is examining, this one or another.

use crate::support::keys::{Act, by_number};
use crate::support::{
    NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock, manual, within,
};
use request_purgatory::{
    CheckBound, Completion, Handle, Purgatory, purgatory::Admission, purgatory::RejectReason,
    threads::Reaper,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// An examination that causes the next event itself, through another thread, a hundred times: the holder lets go of the
/// operation at last, and the events that are left are met when the timer is driven.
#[test]
fn g01_a_deferred_examination_is_made_when_the_timer_is_driven() {
    const EVENTS: u64 = 100;
    within(PATIENCE, || {
        let (purgatory, _clock) = manual(|builder| builder);
        let (events, ended) = (Tally::new(), Tally::new());
        let (happening, ending) = (events.clone(), ended.clone());
        let weak = purgatory.downgrade();
        let op = Op::new(Duration::MAX)
            .when(move || {
                let seen = happening.count();
                if seen < EVENTS {
                    happening.add();
                    let purgatory = weak.upgrade().expect("it is being examined");
                    let checker = thread::spawn(move || purgatory.check_and_complete(&1));
                    checker.join().expect("it only checks");
                }
                seen == EVENTS
            })
            .then(move |_| ending.add());
        purgatory
            .try_complete_else_watch(op, [1])
            .expect("there is room");
        assert!(events.count() < EVENTS / 2, "the parker was kept busy");
        while purgatory.next_deadline().is_some() {
            purgatory.advance();
        }
        assert_eq!((events.count(), ended.count()), (EVENTS, 1));
        assert_eq!(purgatory.stats().parked, 0);
    });
}

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
        drop(all.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1, 3]));
    }),
    ("park and advance", |all| {
        let advancing = all.downgrade();
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            let all = advancing.upgrade().expect("the outer hook has it");
            all.advance();
            false
        });
        drop(all.try_complete_else_watch(op, [1, 3]));
    }),
    ("park and check", |all| {
        let parked = all.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1, 3]);
        let handle = parked.ok().and_then(|parked| parked.into_handle());
        assert!(!handle.is_some_and(|handle| handle.check()));
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
fn g01_a_check_that_waits_while_its_operation_is_examined_is_not_lost() {
    for reaper in [Reaper::Manual, Reaper::Own] {
        for at in [2, 3] {
            for later in [true, false] {
                for (name, call) in CALLS {
                    let reaper = reaper.clone();
                    within(PATIENCE, move || examine(name, call, reaper, at, later));
                }
            }
        }
    }
}

/// The second examination belongs to the park, the third to a check.
fn examine(name: &str, call: Call, reaper: Reaper, at: usize, later: bool) {
    let manual = matches!(reaper, Reaper::Manual);
    let purgatory = Purgatory::<Op>::builder("g01-held")
        .reaper(reaper)
        .build()
        .expect("threads are to be had");
    for _ in 0..3 {
        let neighbour = Op::new(NEVER_IN_A_TEST);
        drop(purgatory.try_complete_else_watch(neighbour, [2]));
    }
    let probe = Probe::new();
    let (examined, ending) = (probe.clone(), probe.clone());
    let (weak, mut examinations) = (purgatory.downgrade(), 0);
    let op = Op::new(NEVER_IN_A_TEST)
        .when(move || {
            examinations += 1;
            examined.examine(|| {
                let ready = examined.is_ready();
                if examinations == at {
                    let purgatory = weak.upgrade().expect("it is being examined");
                    let (event, same) = (examined.clone(), purgatory.clone());
                    let other = thread::spawn(move || {
                        event.satisfy();
                        match later {
                            true => same.check_later(1),
                            false => assert_eq!(same.check_and_complete(&1), 0),
                        }
                    });
                    other.join().expect("it only checks");
                    call(&purgatory);
                }
                ready
            })
        })
        .then(move |completion| ending.end(completion));
    drop(purgatory.try_complete_else_watch(op, [1]));
    purgatory.check_and_complete(&1);
    if manual {
        purgatory.advance();
    } else {
        eventually(name, || probe.ending().is_some());
    }
    let satisfied = Some(Completion::Satisfied);
    assert_eq!(probe.ending(), satisfied, "{name}, examination {at}");
    assert_eq!(purgatory.stats().missed_checks, 0);
}

/// In a nested check another thread asks for an examination, which relays the event once more: that check comes with the
/// next `advance`, as it was asked for.
#[test]
fn g01_what_is_relayed_for_another_thread_is_checked_later_as_it_was_asked() {
    for by_handle in [false, true] {
        let (purgatory, _clock) = manual(|builder| builder);
        let [armed, ready] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let relayed = Arc::new(Mutex::new(None));
        let (weak, is_armed) = (purgatory.downgrade(), armed.clone());
        let (to, mut relays) = (relayed.clone(), 0);
        let relay = Op::new(NEVER_IN_A_TEST).when(move || {
            if is_armed.load(Ordering::SeqCst) {
                let all = weak.upgrade().expect("it is being examined");
                let handle = lock(&to);
                match handle.as_ref().filter(|_| by_handle) {
                    Some(handle) => _ = Handle::check(handle),
                    None => _ = all.check_and_complete_with(&2, CheckBound::at_most(1)),
                }
                drop(handle);
                relays += 1;
                if relays == 2 {
                    let other = thread::spawn(move || all.check_and_complete(&1));
                    other.join().expect("it only checks");
                }
            }
            false
        });
        drop(purgatory.try_complete_else_watch(relay, [1]));
        for _ in 0..2 {
            let (weak, is_armed, is_ready) = (purgatory.downgrade(), armed.clone(), ready.clone());
            let op = Op::new(NEVER_IN_A_TEST).when(move || {
                if is_armed.load(Ordering::SeqCst) {
                    let all = weak.upgrade().expect("it is being examined");
                    all.check_and_complete(&1);
                }
                is_ready.load(Ordering::SeqCst)
            });
            let parked = purgatory.try_complete_else_watch(op, [2]);
            *lock(&relayed) = parked.ok().and_then(Admission::into_handle);
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

/// Operations that make these checks in each examination, once it is switched on.
struct Checkers {
    purgatories: Vec<Purgatory<Op>>,
    on: Arc<AtomicBool>,
    examinations: Arc<Tally>,
}

impl Checkers {
    /// `count` of them, each on one of `keys` keys of one of the purgatories; each checks every key of all of them.
    fn new(purgatories: usize, keys: u64, count: u64) -> Self {
        let all = (0..purgatories).map(|_| manual(|builder| builder).0);
        let all = Self {
            purgatories: all.collect(),
            on: Arc::default(),
            examinations: Tally::new(),
        };
        for number in 0..count {
            let (on, examinations) = (all.on.clone(), all.examinations.clone());
            let weak = all.purgatories.iter().map(Purgatory::downgrade);
            let weak = weak.collect::<Vec<_>>();
            let op = Op::new(Duration::MAX).when(move || {
                if on.load(Ordering::SeqCst) {
                    examinations.add();
                    for purgatory in weak.iter().filter_map(|weak| weak.upgrade()) {
                        (0..keys).for_each(|key| assert_eq!(purgatory.check_and_complete(&key), 0));
                    }
                }
                false
            });
            let purgatory = &all.purgatories[number as usize % purgatories];
            let key = number / purgatories as u64 % keys;
            drop(purgatory.try_complete_else_watch(op, [key]));
        }
        all.on.store(true, Ordering::SeqCst);
        all
    }
}

/// Each examination asks for another one of all, itself included.
#[test]
fn g14_operations_that_check_their_own_key_are_examined_twice_at_most() {
    within(PATIENCE, || {
        for count in [1, 5, 10, 100, 1_000] {
            let all = Checkers::new(1, 1, count);
            for round in 1..4 {
                assert_eq!(all.purgatories[0].check_and_complete(&0), 0);
                let examinations = all.examinations.count();
                assert!(
                    (round * count..=2 * round * count).contains(&examinations),
                    "{examinations} examinations of {count} operations in {round} checks"
                );
            }
            assert_eq!(all.purgatories[0].next_deadline(), None, "a check waits");
        }
    });
}

/// Once for the outermost check, and once for each key.
#[test]
fn g14_checks_nested_over_keys_and_purgatories_cost_examinations_in_proportion() {
    within(PATIENCE, || {
        for count in [10, 100, 1_000] {
            let (purgatories, keys) = (3, 4);
            let all = Checkers::new(purgatories, keys, count);
            assert_eq!(all.purgatories[1].check_and_complete(&2), 0);
            let examinations = all.examinations.count();
            assert!(
                (count..=3 * count).contains(&examinations),
                "{examinations} examinations of {count} operations"
            );
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
        let (examined, weak) = (examinations.clone(), purgatory.downgrade());
        let op = Op::new(Duration::MAX).when(move || {
            examined.add();
            let purgatory = weak.upgrade().expect("it is being examined");
            (0..10).for_each(|_| purgatory.check_later(1));
            false
        });
        drop(purgatory.try_complete_else_watch(op, [1]));
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
fn g01_an_operation_enabled_by_the_examination_of_another_completes_in_the_same_call() {
    const LINKS: usize = 50;
    within(PATIENCE, || {
        let purgatories = [(); 3].map(|()| manual::<u64>(|builder| builder).0);
        let reached = Arc::new(Mutex::new(0));
        let ended = Tally::new();
        // Each is examined when the one before has been, and enables the next one.
        for link in 1..=LINKS {
            let (reached, ended) = (reached.clone(), ended.clone());
            let next = purgatories[(link + 1) % 3].downgrade();
            let op = Op::new(NEVER_IN_A_TEST)
                .when(move || {
                    let ready = *lock(&reached) == link;
                    if ready {
                        *lock(&reached) += 1;
                        let next = next.upgrade().expect("the test has it");
                        assert_eq!(next.check_and_complete(&(link as u64 + 1)), 0);
                    }
                    ready
                })
                .then(move |_| ended.add());
            drop(purgatories[link % 3].try_complete_else_watch(op, [link as u64]));
        }
        *lock(&reached) = 1;
        assert_eq!(purgatories[1].check_and_complete(&1), 1);
        assert_eq!(ended.count(), LINKS as u64);
    });
}

/// Within one call a nested check that an operation has caused is not made for it again. The next call begins anew.
#[test]
fn g01_a_nested_check_is_made_in_every_call() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let seen = Tally::new();
        let sees = seen.clone();
        let last = Op::new(NEVER_IN_A_TEST).when(move || {
            sees.add();
            false
        });
        drop(purgatory.try_complete_else_watch(last, [3]));
        for key in [1, 2] {
            let all = purgatory.downgrade();
            let passes_on = Op::new(NEVER_IN_A_TEST).when(move || {
                let all = all.upgrade().expect("the test has it");
                all.check_and_complete(&(key + 1)) > 0
            });
            drop(purgatory.try_complete_else_watch(passes_on, [key]));
        }
        for _ in 0..3 {
            let before = seen.count();
            assert_eq!(purgatory.check_and_complete(&1), 0);
            assert_eq!(seen.count(), before + 1);
        }
    });
}

/// A nested check meets an operation again, whose state has moved on: now it checks another key than before.
#[test]
fn g14_each_operation_causes_a_nested_check_of_each_key() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual(|builder| builder);
        let ready = Arc::new(AtomicBool::new(false));
        let happened = ready.clone();
        let park = |key, mut when: Box<dyn FnMut(&Purgatory<Op>) -> bool + Send>| {
            let (all, mut examinations) = (purgatory.downgrade(), 0);
            let op = Op::new(NEVER_IN_A_TEST).when(move || {
                examinations += 1;
                // The park examines it twice.
                examinations > 2 && when(&all.upgrade().expect("the test has it"))
            });
            assert!(purgatory.try_complete_else_watch(op, [key]).is_ok());
        };
        let mut checked = 1;
        let moves_on = move |all: &Purgatory<Op>| {
            checked += 1;
            happened.store(checked == 3, Ordering::Relaxed);
            all.check_and_complete(&checked) > 0
        };
        park(1, Box::new(moves_on));
        park(2, Box::new(|all| all.check_and_complete(&1) > 0));
        park(3, Box::new(move |_| ready.load(Ordering::Relaxed)));
        purgatory.check_and_complete(&1);
        assert_eq!((purgatory.watchers(&3), purgatory.stats().parked), (0, 2));
    });
}

/// Each park takes stack of the hook that makes it, so there is an end to it: an error, with the operation inside.
#[test]
fn g14_the_ninth_nested_park_is_refused() {
    type Refused = Arc<Mutex<Vec<(u64, Op)>>>;

    fn park(purgatory: &Purgatory<Op>, depth: u64, refused: Refused) {
        let (weak, inner, mut examinations) = (purgatory.downgrade(), refused.clone(), 0);
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            if examinations == 1 && depth < 20 {
                let purgatory = weak.upgrade().expect("it is being examined");
                park(&purgatory, depth + 1, inner.clone());
            }
            false
        });
        if let Err(rejected) = purgatory.try_complete_else_watch(op, [depth]) {
            let (reason, op) = rejected.into_parts();
            assert_eq!(reason, RejectReason::Nested);
            lock(&refused).push((depth, op));
        }
    }

    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        for round in 1..4 {
            let refused = Refused::default();
            park(&purgatory, 0, refused.clone());
            // The outermost one and eight nested ones.
            assert_eq!(purgatory.stats().parked, round * 10 - 1);
            let Some((9, op)) = lock(&refused).pop() else {
                panic!("another one was refused");
            };
            assert!(lock(&refused).is_empty());
            // It was not examined, and nothing of it is left.
            drop(op);
            let op = Op::new(NEVER_IN_A_TEST);
            assert!(purgatory.try_complete_else_watch(op, [9]).is_ok());
        }
        let stats = purgatory.stats();
        assert_eq!((stats.rejected, stats.panicked, stats.parked), (3, 0, 30));
    });
}

/// Every examination is asked for another one, until the holder has made as many as it makes in a row. In one of them
/// the event comes, and its check; then another thread ends the operation. The event is found first, in whichever
/// examination it comes.
#[test]
fn g01_an_event_that_was_checked_before_the_end_is_found_before_it() {
    type End = fn(&Purgatory<Op>);
    const ENDS: [(&str, End); 3] = [
        ("cancel", |all| assert!(all.cancel_for_key(&2).is_empty())),
        ("shutdown", Purgatory::shutdown),
        ("expiry", |all| _ = all.advance()),
    ];
    for (name, end) in ENDS {
        for at in 2..20 {
            within(PATIENCE, move || {
                let (purgatory, clock) = manual::<u64>(|builder| builder);
                let probe = Probe::new();
                let (examined, ending) = (probe.clone(), probe.clone());
                let (weak, mut examinations) = (purgatory.downgrade(), 0);
                let op = Op::new(Duration::from_secs(1)).when(move || {
                    examinations += 1;
                    let ready = examined.is_ready();
                    let (event, purgatory) = (examined.clone(), weak.upgrade());
                    let purgatory = purgatory.expect("it is being examined");
                    let clock = clock.clone();
                    // The first is made before any other thread can find it.
                    if examinations == 1 || ready {
                        return ready;
                    }
                    let other = thread::spawn(move || {
                        if examinations == at {
                            event.satisfy();
                        }
                        assert_eq!(purgatory.check_and_complete(&1), 0, "it is held");
                        if examinations == at {
                            clock.advance(Duration::from_secs(2));
                            end(&purgatory);
                        }
                    });
                    other.join().expect("it only checks and ends");
                    ready
                });
                let op = op.then(move |completion| ending.end(completion));
                assert!(purgatory.try_complete_else_watch(op, [1, 2]).is_ok());
                while probe.ending().is_none() {
                    purgatory.advance();
                }
                let satisfied = Some(Completion::Satisfied);
                assert_eq!(probe.ending(), satisfied, "{name} in examination {at}");
            });
        }
    }
}

/// Operations that are being parked, one in a check and one in a nested check, cause the same check: both are made.
#[test]
fn g01_each_operation_that_is_being_parked_causes_its_check() {
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let events = Tally::new();
        let waiting = [0, 1].map(|number| {
            let (probe, happened) = (Probe::new(), events.clone());
            let ending = probe.clone();
            let op = Op::new(NEVER_IN_A_TEST).when(move || happened.count() > number);
            let op = op.then(move |completion| ending.end(completion));
            drop(purgatory.try_complete_else_watch(op, [7]));
            probe
        });
        let (weak, happening) = (purgatory.downgrade(), events.clone());
        let mut examinations = 0;
        let parks_others = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            if examinations > 2 {
                let (all, again) = (weak.upgrade().expect("it is checked"), weak.clone());
                let (happens, mut is_first) = (happening.clone(), true);
                let newcomer = Op::new(NEVER_IN_A_TEST).when(move || {
                    if std::mem::take(&mut is_first) {
                        happens.add();
                        let all = again.upgrade().expect("it is being parked");
                        all.check_and_complete(&7);
                    }
                    false
                });
                drop(all.try_complete_else_watch(newcomer, [9]));
                all.check_and_complete(&1);
            }
            false
        });
        drop(purgatory.try_complete_else_watch(parks_others, [1]));
        drop(purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1]));
        purgatory.check_and_complete(&1);
        assert_eq!(events.count(), 2);
        let endings = waiting.map(|probe| probe.ending());
        assert_eq!(endings, [Some(Completion::Satisfied); 2]);
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
    within(PATIENCE, || {
        let (purgatory, _clock) = manual::<Last>(|builder| builder);
        let nothing = Arc::<Act>::new(Arc::new(|| ()));
        let key = move |number| Last(number, nothing.clone());
        let (inside, second) = (purgatory.downgrade(), key(2));
        let act: Act = Arc::new(move || {
            let inside = inside.upgrade().expect("the test has it");
            inside.check_and_complete(&second);
        });
        let (of, third) = (purgatory.downgrade(), key(3));
        let checks = Op::new(NEVER_IN_A_TEST).when(move || {
            let of = of.upgrade().expect("the test has it");
            of.check_and_complete(&third) > 0
        });
        let probes = [Probe::new(), Probe::new()];
        let [completed, by_its_key] = probes.each_ref().map(|it| it.op(NEVER_IN_A_TEST));
        let third = Last(3, Arc::new(act));
        for (op, key) in [(by_its_key, key(2)), (completed, third), (checks, key(1))] {
            assert!(purgatory.try_complete_else_watch(op, [key]).is_ok());
        }
        probes.iter().for_each(|probe| probe.satisfy());
        assert_eq!(purgatory.check_and_complete(&key(1)), 0);
        for probe in probes {
            assert_eq!(probe.ending(), Some(Completion::Satisfied));
        }
    });
}

/// A change has hold of an operation, as an examination has: its check is made when the call is about to return.
#[test]
fn g14_a_check_inside_a_change_is_made_later() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let probes = [(); 2].map(|()| Probe::new());
    for (probe, key) in probes.iter().zip([1, 2]) {
        let op = probe.op(NEVER_IN_A_TEST);
        assert!(purgatory.try_complete_else_watch(op, [key]).is_ok());
    }
    probes[1].satisfy();
    let (weak, seen) = (purgatory.downgrade(), Arc::new(Mutex::new(None)));
    let told = seen.clone();
    let change = move |_: &mut Op| {
        let inside = weak.upgrade().expect("the test has it");
        *lock(&told) = Some((inside.check_and_complete(&2), inside.stats().parked));
    };
    assert_eq!(purgatory.force_complete_for_key_with(&1, change), 1);
    assert_eq!(*lock(&seen), Some((0, 2)), "it is made later");
    let endings = probes.map(|probe| probe.ending());
    assert_eq!(endings, [Some(Completion::Satisfied); 2]);
}
