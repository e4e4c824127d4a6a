//! What Kafka's own tests of its purgatory and timer assert, written anew from the behaviour that each describes:
//! `DelayedOperationTest`, `SystemTimerTest`, `TimerTaskListTest`.
//!
//! Among the tests of promises are the timer whose deadline is now (G9), the threads that come at random times (G1),
//! and the operation that needs the lock of its checker (G3).

use request_purgatory::{Completion, Handle, Purgatory, purgatory::Admission, time::Clock};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, lock, manual, within};
use testing as support;

fn park(purgatory: &Purgatory<Op>, op: Op, keys: &[u64]) -> Handle<Op> {
    let admission = purgatory.try_complete_else_watch(op, keys.iter().copied());
    let handle = admission.expect("there is room").into_handle();
    handle.expect("it cannot complete yet")
}

/// One for each of these lists of keys.
fn waiting<const N: usize>(purgatory: &Purgatory<Op>, keys: [&[u64]; N]) -> [Arc<Probe>; N] {
    keys.map(|keys| {
        let probe = Probe::new();
        park(purgatory, probe.op(NEVER_IN_A_TEST), keys);
        probe
    })
}

/// Parked operations, watch entries, and keys that are watched.
fn counts(purgatory: &Purgatory<Op>) -> (usize, usize, usize) {
    let stats = purgatory.stats();
    (stats.parked, stats.watched, purgatory.watched_keys())
}

#[test]
fn a_check_completes_what_can_complete_on_its_key_only() {
    let (purgatory, _clock) = manual(|builder| builder);
    let check = |key: u64| purgatory.check_and_complete(&key);
    assert_eq!(check(1), 0, "no operation waits yet");
    let probes = waiting(&purgatory, [&[1], &[2]]);
    assert_eq!([check(1), check(2)], [0, 0], "they cannot complete yet");
    probes[0].satisfy();
    assert_eq!([check(2), check(1), check(1)], [0, 1, 0]);
    probes[1].satisfy();
    assert_eq!([check(2), check(2)], [1, 0]);
    let endings = probes.map(|probe| probe.ending());
    assert_eq!(endings, [Some(Completion::Satisfied); 2]);
}

/// On the real clock: the one with the short timeout expires, no earlier than that, and the other does not.
#[test]
fn requests_expire_not_before_their_timeout() {
    within(PATIENCE, || {
        let (purgatory, short) = (Purgatory::<Op>::new("expiry"), Probe::new());
        let [long] = waiting(&purgatory, [&[2]]);
        let (start, timeout) = (Instant::now(), Duration::from_millis(20));
        let parked = purgatory.try_complete_else_watch(short.op(timeout), [1]);
        assert!(parked.is_ok());
        eventually("the expiry", || short.ending().is_some());
        let elapsed = start.elapsed();
        assert!(elapsed >= timeout, "{elapsed:?}");
        assert_eq!(
            (short.ending(), long.ending()),
            (Some(Completion::Expired), None)
        );
        assert_eq!(purgatory.stats().parked, 1);
    });
}

/// An ended operation counts under none of its keys. (Kafka still counts its entries until the next purge.)
#[test]
fn completion_through_one_key_purges_the_others() {
    let (purgatory, _clock) = manual(|builder| builder);
    let probes = waiting(&purgatory, [&[1, 2]; 3]);
    assert_eq!(counts(&purgatory), (3, 6, 2));
    let rows = [(1, (2, 4, 2)), (2, (1, 2, 2)), (1, (0, 0, 0))];
    for (probe, (key, left)) in probes.iter().zip(rows) {
        probe.satisfy();
        assert_eq!(purgatory.check_and_complete(&key), 1);
        assert_eq!(counts(&purgatory), left);
    }
}

/// Also what waits on other keys besides, and nothing else.
#[test]
fn cancel_for_key_returns_the_operations_of_that_key() {
    let (purgatory, _clock) = manual(|builder| builder);
    let cancel = |key: u64| purgatory.cancel_for_key(&key).len();
    assert_eq!(cancel(7), 0, "no key is known");
    let probes = waiting(&purgatory, [&[1], &[1], &[1, 2], &[2]]);
    assert_eq!(cancel(7), 0, "others are known");
    assert_eq!(cancel(1), 3);
    assert_eq!(counts(&purgatory), (1, 1, 1));
    probes.iter().for_each(|probe| probe.satisfy());
    assert_eq!(purgatory.check_and_complete(&1), 0);
    assert_eq!(purgatory.check_and_complete(&2), 1);
    let endings = probes.map(|probe| probe.ending());
    assert_eq!(endings, [None, None, None, Some(Completion::Satisfied)]);
}

/// Whatever levels of the wheel they pass: from deadline to deadline, as a reactor would go, and by one long jump.
#[test]
fn a_wheel_of_three_slots_fires_every_delay_once_in_order() {
    let several = |delay: u64| [delay, delay / 2, delay % 7];
    let rows = [
        ("all delays", (0..500).collect::<Vec<_>>(), false),
        (
            "some twice",
            (0..500).rev().flat_map(several).collect(),
            false,
        ),
        (
            "one jump",
            (0..500).map(|step| step * 37 % 500).collect(),
            true,
        ),
    ];
    for (name, mut delays, by_jump) in rows {
        let (purgatory, clock) = manual(|builder| builder.wheel_size(3));
        let fired = Arc::new(Mutex::new(Vec::new()));
        for delay in &delays {
            let (fired, clock, delay) = (fired.clone(), clock.clone(), *delay);
            let op = Op::new(Duration::from_millis(delay)).then(move |completion| {
                assert_eq!(completion, Completion::Expired);
                lock(&fired).push((clock.now().since_origin().as_millis(), delay));
            });
            park(&purgatory, op, &[delay]);
        }
        let mut steps = 0;
        while let Some(next) = purgatory.next_deadline() {
            steps += 1;
            assert!(steps < 10_000, "{name}: it gets nowhere: {next:?}");
            let step = next.saturating_since(clock.now());
            clock.advance(if by_jump {
                Duration::from_millis(500)
            } else {
                step
            });
            purgatory.advance();
        }
        let fired = lock(&fired);
        let due = |delay: u64| if by_jump { 500 } else { delay.into() };
        assert!(fired.iter().all(|(at, delay)| *at == due(*delay)), "{name}");
        delays.sort_unstable();
        assert!(fired.iter().map(|(_, delay)| delay).eq(&delays), "{name}");
        assert_eq!(purgatory.stats().panicked, 0, "{name}");
    }
}

/// Timers move from list to list, forth and back: none is counted twice, none is lost, none fires at an old time.
#[test]
fn reinsertion_into_other_lists_keeps_the_count() {
    let (purgatory, clock) = manual(|builder| builder.wheel_size(3));
    let probes = [(); 10].map(|()| Probe::new());
    let handles = probes
        .each_ref()
        .map(|probe| park(&purgatory, probe.op(NEVER_IN_A_TEST), &[1]));
    for round in 0..200_u64 {
        for (number, handle) in (0..).zip(&handles) {
            let timeout = 1 + round * 7 + number * 3_u64.pow((round % 7) as u32);
            assert!(handle.reschedule(Duration::from_millis(timeout)));
            assert_eq!(handle.remaining(), Some(Duration::from_millis(timeout)));
        }
        assert_eq!(counts(&purgatory), (10, 10, 1));
        assert_eq!(purgatory.advance(), 0, "no old deadline counts");
    }
    let soon = Duration::from_millis(5);
    assert!(handles.iter().all(|handle| handle.reschedule(soon)));
    clock.advance(soon);
    assert_eq!(purgatory.advance(), 10);
    let endings = probes.map(|probe| probe.ending());
    assert_eq!(endings, [Some(Completion::Expired); 10]);
    clock.advance(NEVER_IN_A_TEST);
    assert_eq!(purgatory.advance(), 0);
}

/// Another thread holds the lock that the operation's hooks take. Kafka's check gave up on a lock that it could not
/// have at once; here the check waits for the user's lock as the hook does, and others do not wait for the check.
#[test]
fn completion_while_another_thread_holds_the_lock_of_the_operation() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("locks");
        let group = Arc::new(Mutex::new(false));
        let (examining, ending) = (group.clone(), group.clone());
        let ((ended, end), (entered, entries)) = (mpsc::channel(), mpsc::channel());
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
        let handle = park(&purgatory, op, &[1]);
        let mut held = lock(&group);
        let checks = purgatory.clone();
        let checker = thread::spawn(move || checks.check_and_complete(&1));
        // It was examined twice as it parked, and now by the checker.
        (0..3).for_each(|_| entries.recv().expect("an examination"));
        // With the lock held: none of these may wait for the checker, who waits for the lock.
        assert!(handle.is_parked());
        assert_eq!(purgatory.check_and_complete(&1), 0);
        assert!(!handle.check());
        purgatory.check_later(1);
        let [other] = waiting(&purgatory, [&[1, 2]]);
        *held = true;
        drop(held);
        let completed = checker.join().expect("the checker does not panic");
        assert_eq!(end.recv(), Ok(Completion::Satisfied));
        assert!(completed <= 1, "by the checker or by the deferred check");
        assert_eq!((purgatory.stats().parked, other.ending()), (1, None));
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
    assert_eq!(
        (counts(&purgatory), purgatory.next_deadline()),
        ((0, 0, 0), None)
    );
    clock.advance(NEVER_IN_A_TEST);
    assert_eq!(purgatory.advance(), 0);
    let stats = purgatory.stats();
    assert_eq!(
        (stats.completed_at_once, stats.completed, stats.expired),
        (1, 0, 0)
    );
}
