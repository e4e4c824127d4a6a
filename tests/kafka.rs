//! What Kafka's own tests of its purgatory and timer assert, written anew from the behaviour that each describes:
//! `DelayedOperationTest`, `SystemTimerTest`, `TimerTaskListTest`.
//!
//! Among the tests of promises are the timer whose deadline is now (G9), the threads that come at random times (G1),
//! and the operation that needs the lock of its checker (G3). In `tests/model` are the checks of one key and of another,
//! the counts after a completion through one of several keys, `cancelForKey`, and timers that move from list to list.

use request_purgatory::{Completion, Handle, Purgatory, time::Clock};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, lock, manual, within};
use testing as support;

fn park(purgatory: &Purgatory<Op>, op: Op, keys: &[u64]) -> Handle<Op> {
    let admission = purgatory.try_complete_else_watch(op, keys.iter().copied());
    let handle = admission.expect("there is room").into_handle();
    handle.expect("it cannot complete yet")
}

/// Whatever levels of the wheel they pass: from deadline to deadline, as a reactor would go, and by one long jump. The
/// wheel of Kafka's test has three slots. Here three are rounded up to four.
#[test]
fn a_wheel_of_few_slots_fires_every_delay_once_in_order() {
    let several = |delay: u64| [delay, delay / 2, delay % 7];
    let some_twice = (0..500).rev().flat_map(several).collect::<Vec<_>>();
    let each_once = (0..500).map(|step| step * 37 % 500).collect();
    let rows = [
        ("deadline by deadline", some_twice, false),
        ("one jump", each_once, true),
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
            clock.advance(match by_jump {
                true => Duration::from_millis(500),
                false => next.saturating_since(clock.now()),
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
        let other = Probe::new();
        park(&purgatory, other.op(NEVER_IN_A_TEST), &[1, 2]);
        *held = true;
        drop(held);
        let completed = checker.join().expect("the checker does not panic");
        assert_eq!(end.recv(), Ok(Completion::Satisfied));
        assert!(completed <= 1, "by the checker or by the deferred check");
        assert_eq!((purgatory.stats().parked, other.ending()), (1, None));
    });
}
