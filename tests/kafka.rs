//! What Kafka's own tests of its purgatory and timer assert, written anew from the behaviour that each describes:
//! `DelayedOperationTest`, `SystemTimerTest`, `TimerTaskListTest`.

use request_purgatory::{
    Completion, Purgatory, purgatory::Admission, threads::Dispatch, time::Clock,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, lock, manual, within};
use testing as support;

fn park(purgatory: &Purgatory<Op>, probe: &Arc<Probe>, timeout: Duration, keys: &[u64]) {
    let watch = purgatory.try_complete_else_watch(probe.op(timeout), keys.iter().copied());
    assert!(watch.expect("there is room").is_parked());
}

/// A check completes the operations on its key that can complete, and only those.
#[test]
fn requests_are_satisfied_on_their_key() {
    let (purgatory, _clock) = manual(|builder| builder);
    let (first, second) = (Probe::new(), Probe::new());
    assert_eq!(
        purgatory.check_and_complete(&1),
        0,
        "no operation waits yet"
    );
    park(&purgatory, &first, NEVER_IN_A_TEST, &[1]);
    assert_eq!(
        purgatory.check_and_complete(&1),
        0,
        "it cannot complete yet"
    );
    park(&purgatory, &second, NEVER_IN_A_TEST, &[2]);
    first.satisfy();
    assert_eq!(purgatory.check_and_complete(&2), 0, "the other key");
    assert_eq!(purgatory.check_and_complete(&1), 1);
    assert_eq!(purgatory.check_and_complete(&1), 0, "it has ended");
    second.satisfy();
    assert_eq!(purgatory.check_and_complete(&2), 1);
    assert_eq!(purgatory.check_and_complete(&2), 0);
    let endings = [first.ending(), second.ending()];
    assert_eq!(endings, [Some(Completion::Satisfied); 2]);
}

/// On the real clock: the one with the short timeout expires, no earlier than that, and the other does not.
#[test]
fn requests_expire_not_before_their_timeout() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("expiry");
        let timeout = Duration::from_millis(20);
        let (short, long) = (Probe::new(), Probe::new());
        let start = Instant::now();
        park(&purgatory, &short, timeout, &[1]);
        park(&purgatory, &long, NEVER_IN_A_TEST, &[2]);
        eventually("the expiry", || short.ending().is_some());
        let elapsed = start.elapsed();
        assert!(elapsed >= timeout, "{elapsed:?}");
        assert_eq!(short.ending(), Some(Completion::Expired));
        assert_eq!((long.ending(), purgatory.stats().parked), (None, 1));
    });
}

/// Counts of parked operations and of watch entries; an ended operation is in neither, under none of its keys. (Kafka
/// still counts its entries until the next purge.)
#[test]
fn completion_through_one_key_purges_the_others() {
    let (purgatory, _clock) = manual(|builder| builder);
    let probes = [(); 3].map(|()| Probe::new());
    park(&purgatory, &probes[0], NEVER_IN_A_TEST, &[1, 2]);
    park(&purgatory, &probes[1], NEVER_IN_A_TEST, &[1, 2]);
    park(&purgatory, &probes[2], NEVER_IN_A_TEST, &[1, 2]);
    assert_eq!(
        (purgatory.stats().parked, purgatory.stats().watched),
        (3, 6)
    );
    probes[0].satisfy();
    assert_eq!(purgatory.check_and_complete(&1), 1);
    assert_eq!(
        (purgatory.stats().parked, purgatory.stats().watched),
        (2, 4)
    );
    probes[1].satisfy();
    assert_eq!(purgatory.check_and_complete(&2), 1);
    assert_eq!(
        (purgatory.stats().parked, purgatory.stats().watched),
        (1, 2)
    );
    probes[2].satisfy();
    assert_eq!(purgatory.check_and_complete(&1), 1);
    assert_eq!(
        (purgatory.stats().parked, purgatory.stats().watched),
        (0, 0)
    );
    assert_eq!(purgatory.watched_keys(), 0);
}

/// A cancel hands back what waits on that key, also what waits on others besides, and nothing else.
#[test]
fn cancel_for_key_returns_the_operations_of_that_key() {
    let (purgatory, _clock) = manual(|builder| builder);
    let probes = [(); 4].map(|()| Probe::new());
    for (probe, keys) in probes.iter().zip([&[1][..], &[1], &[1, 2], &[2]]) {
        park(&purgatory, probe, NEVER_IN_A_TEST, keys);
    }
    assert_eq!(purgatory.cancel_for_key(&1).len(), 3);
    assert_eq!((purgatory.stats().parked, purgatory.watched_keys()), (1, 1));
    probes.iter().for_each(|probe| probe.satisfy());
    assert_eq!(purgatory.check_and_complete(&1), 0);
    assert_eq!(purgatory.check_and_complete(&2), 1);
    let endings = probes.map(|probe| probe.ending());
    assert_eq!(endings, [None, None, None, Some(Completion::Satisfied)]);
}

#[test]
fn cancel_for_an_unknown_key_returns_nothing() {
    let (purgatory, _clock) = manual(|builder| builder);
    assert!(purgatory.cancel_for_key(&7).is_empty());
    park(&purgatory, &Probe::new(), NEVER_IN_A_TEST, &[1]);
    assert!(purgatory.cancel_for_key(&7).is_empty());
    assert_eq!(purgatory.stats().parked, 1);
}

/// An operation whose deadline is now neither waits for a revolution of the wheel nor is lost.
#[test]
fn already_expired_timers_fire_at_the_next_advance() {
    let (purgatory, clock) = manual(|builder| builder.wheel_size(3));
    for uptime in [0, 1, 5, 1_000] {
        clock.advance(Duration::from_millis(uptime));
        let probes = (0..5).map(|_| {
            let probe = Probe::new();
            park(&purgatory, &probe, Duration::ZERO, &[1]);
            probe
        });
        let probes = probes.collect::<Vec<_>>();
        assert_eq!(purgatory.advance(), 5);
        let expired = |probe: &Arc<Probe>| probe.ending() == Some(Completion::Expired);
        assert!(probes.iter().all(expired));
    }
}

/// Every one of the delays fires once, at its time, in the order of time, whatever levels it passes.
fn every_delay_fires_once_in_order(delays: impl IntoIterator<Item = u64>) {
    let (purgatory, clock) = manual(|builder| builder.wheel_size(3));
    let fired = Arc::new(Mutex::new(Vec::new()));
    let mut expected = BTreeMap::<u64, usize>::new();
    for delay in delays {
        *expected.entry(delay).or_default() += 1;
        let (fired, clock) = (fired.clone(), clock.clone());
        let op = Op::new(Duration::from_millis(delay)).then(move |completion| {
            assert_eq!(completion, Completion::Expired);
            lock(&fired).push((clock.now().since_origin().as_millis(), delay));
        });
        purgatory
            .try_complete_else_watch(op, [delay])
            .expect("there is room");
    }
    // From bucket to bucket, as a reactor would go.
    let mut steps = 0;
    while let Some(next) = purgatory.next_deadline() {
        steps += 1;
        assert!(steps < 10_000, "it gets nowhere: {next:?}");
        clock.advance(next.saturating_since(clock.now()));
        purgatory.advance();
    }
    let fired = lock(&fired);
    assert!(fired.iter().all(|(at, delay)| *at == u128::from(*delay)));
    assert!(fired.is_sorted());
    let mut counts = BTreeMap::<u64, usize>::new();
    for (_, delay) in fired.iter() {
        *counts.entry(*delay).or_default() += 1;
    }
    assert_eq!(counts, expected);
    assert_eq!(
        (purgatory.stats().parked, purgatory.stats().panicked),
        (0, 0)
    );
}

#[test]
fn a_wheel_of_three_slots_fires_all_delays_in_order() {
    every_delay_fires_once_in_order(0..500);
}

#[test]
fn a_wheel_of_three_slots_fires_delays_given_several_times() {
    every_delay_fires_once_in_order(
        (0..500)
            .rev()
            .flat_map(|delay| [delay, delay / 2, delay % 7]),
    );
}

/// A jump over all of them, in one advance: still in the order of time.
#[test]
fn one_long_jump_fires_all_delays_in_order() {
    let (purgatory, clock) = manual(|builder| builder.wheel_size(3));
    let fired = Arc::new(Mutex::new(Vec::new()));
    for step in 0..500_u64 {
        let delay = step * 37 % 500;
        let fired = fired.clone();
        let op = Op::new(Duration::from_millis(delay)).then(move |_| lock(&fired).push(delay));
        purgatory
            .try_complete_else_watch(op, [step])
            .expect("there is room");
    }
    clock.advance(Duration::from_millis(500));
    assert_eq!(purgatory.advance(), 500);
    assert_eq!(*lock(&fired), (0..500).collect::<Vec<_>>());
}

/// Timers move from list to list, forth and back: none is counted twice, none is lost, none fires at an old time.
#[test]
fn reinsertion_into_other_lists_keeps_the_count() {
    let (purgatory, clock) = manual(|builder| builder.wheel_size(3));
    let parked = (0..10_u64).map(|key| {
        let probe = Probe::new();
        let watch = purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [key]);
        let handle = watch.expect("there is room").into_handle();
        (probe, handle.expect("it cannot complete yet"))
    });
    let parked = parked.collect::<Vec<_>>();
    for round in 0..200_u64 {
        for (number, (_, handle)) in (0..).zip(&parked) {
            let timeout = 1 + round * 7 + number * 3_u64.pow((round % 7) as u32);
            assert!(handle.reschedule(Duration::from_millis(timeout)));
            assert_eq!(handle.remaining(), Some(Duration::from_millis(timeout)));
        }
        assert_eq!(
            (purgatory.stats().parked, purgatory.stats().watched),
            (10, 10)
        );
        assert_eq!(purgatory.advance(), 0, "no old deadline counts");
    }
    for (_, handle) in &parked {
        assert!(handle.reschedule(Duration::from_millis(5)));
    }
    clock.advance(Duration::from_millis(5));
    assert_eq!(purgatory.advance(), 10);
    assert!(
        parked
            .iter()
            .all(|(probe, _)| probe.ending() == Some(Completion::Expired))
    );
    clock.advance(NEVER_IN_A_TEST);
    assert_eq!(purgatory.advance(), 0);
}

/// Each operation can complete after its 20 threads have all come; they come at random times and check at once.
#[test]
fn twenty_threads_with_random_delays_complete_a_hundred_operations() {
    const OPERATIONS: u64 = 100;
    const THREADS: usize = 20;
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("many");
        let arrived = (0..OPERATIONS).map(|_| AtomicUsize::new(0));
        let arrived = Arc::new(arrived.collect::<Vec<_>>());
        let probes = (0..OPERATIONS).map(|key| {
            let probe = Probe::new();
            let (examining, ending, arrived) = (probe.clone(), probe.clone(), arrived.clone());
            let mut random = fastrand::Rng::with_seed(key + 1);
            let op = Op::new(NEVER_IN_A_TEST)
                .when(move || {
                    examining.examine(|| {
                        let all = arrived[key as usize].load(Ordering::SeqCst) == THREADS;
                        thread::sleep(Duration::from_micros(random.u64(..200)));
                        all
                    })
                })
                .then(move |completion| ending.end(completion));
            purgatory
                .try_complete_else_watch(op, [key])
                .expect("there is room");
            probe
        });
        let probes = probes.collect::<Vec<_>>();
        let threads = (0..THREADS).map(|seed| {
            let (purgatory, arrived) = (purgatory.clone(), arrived.clone());
            thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed as u64 + 1_000);
                for key in 0..OPERATIONS {
                    thread::sleep(Duration::from_micros(random.u64(..300)));
                    arrived[key as usize].fetch_add(1, Ordering::SeqCst);
                    purgatory.check_and_complete(&key);
                }
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.join().expect("a check does not panic");
        }
        for (key, probe) in probes.iter().enumerate() {
            assert_eq!(probe.ending(), Some(Completion::Satisfied), "{key}");
        }
        assert_eq!(purgatory.stats().parked, 0);
    });
}

/// Another thread holds the lock that the operation's hooks take. Kafka's check gave up on a lock that it could not
/// have at once; here the check waits for the user's lock as the hook does, and others do not wait for the check.
#[test]
fn completion_while_another_thread_holds_the_lock_of_the_operation() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("locks");
        let group = Arc::new(Mutex::new(false));
        let (examining, ending) = (group.clone(), group.clone());
        let (ended, end) = mpsc::channel();
        let (entered, entries) = mpsc::channel();
        let op = Op::new(NEVER_IN_A_TEST)
            .when(move || {
                // Once more after the test has heard enough.
                let _ = entered.send(());
                *lock(&examining)
            })
            .then(move |completion| {
                drop(lock(&ending));
                ended.send(completion).expect("the test listens");
            });
        let watch = purgatory.try_complete_else_watch(op, [1]);
        let handle = watch.expect("there is room").into_handle();
        let handle = handle.expect("it cannot complete yet");
        let mut held = lock(&group);
        let checker = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.check_and_complete(&1))
        };
        // It was examined twice as it parked, and now by the checker.
        (0..3).for_each(|_| entries.recv().expect("an examination"));
        // With the lock held: none of these may wait for the checker, who waits for the lock.
        assert!(handle.is_parked());
        assert_eq!(purgatory.check_and_complete(&1), 0);
        assert!(!handle.check());
        purgatory.check_later(1);
        let other = Probe::new();
        let watch = purgatory.try_complete_else_watch(other.op(NEVER_IN_A_TEST), [1, 2]);
        assert!(watch.expect("there is room").is_parked());
        *held = true;
        drop(held);
        let completed = checker.join().expect("the checker does not panic");
        assert_eq!(end.recv(), Ok(Completion::Satisfied));
        assert!(completed <= 1, "by the checker or by the deferred check");
        assert_eq!((purgatory.stats().parked, other.ending()), (1, None));
    });
}

/// Two operations under one lock; the check for one, made under it, is deferred and does not deadlock.
#[test]
fn completion_that_needs_the_lock_of_its_checker() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::builder("one-lock")
            .dispatch(Dispatch::Inline)
            .build()
            .expect("threads are to be had");
        let group = Arc::new(Mutex::new(0));
        let probes = (0..50_u64).map(|key| {
            let probe = Probe::new();
            let (examining, ending) = (probe.clone(), probe.clone());
            let (locked_looking, locked_ending) = (group.clone(), group.clone());
            let op = Op::new(NEVER_IN_A_TEST)
                .when(move || examining.examine(|| *lock(&locked_looking) > key))
                .then(move |completion| {
                    drop(lock(&locked_ending));
                    ending.end(completion);
                });
            purgatory
                .try_complete_else_watch(op, [key])
                .expect("there is room");
            probe
        });
        let probes = probes.collect::<Vec<_>>();
        for key in 0..50 {
            let mut state = lock(&group);
            *state += 1;
            purgatory.check_later(key);
            drop(state);
        }
        for probe in &probes {
            eventually("its completion", || probe.ending().is_some());
        }
    });
}

/// It is completed before any thread can find it: no timer, no watch, no second examination.
#[test]
fn what_can_complete_at_once_never_parks() {
    let (purgatory, clock) = manual(|builder| builder);
    let probe = Probe::new();
    probe.satisfy();
    let watch = purgatory.try_complete_else_watch(probe.op(Duration::from_millis(5)), [1, 2]);
    assert!(matches!(watch, Ok(Admission::Ended)));
    assert_eq!(
        (probe.examinations(), probe.ending()),
        (1, Some(Completion::Satisfied))
    );
    assert_eq!((purgatory.stats().parked, purgatory.watched_keys()), (0, 0));
    assert_eq!(purgatory.next_deadline(), None);
    clock.advance(NEVER_IN_A_TEST);
    assert_eq!(purgatory.advance(), 0);
    let stats = purgatory.stats();
    assert_eq!(
        (stats.completed_at_once, stats.completed, stats.expired),
        (1, 0, 0)
    );
}
