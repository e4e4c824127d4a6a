//! G19: what is idle wakes nobody. (That an idle one costs next to nothing is counted in `tests/idle.rs`.) G13: on
//! which thread completions run, and that a slow one delays no timer. (`tests/timer/callbacks.rs` has that for a
//! crowd.)

use super::{SOON, park};
use crate::chains::scene::{self, Gate, admit, inside, once_checked};
use crate::support::bell::Bell;
use crate::support::expiries::{Jobs, Runs};
use crate::support::keys::{Act, Acting};
use crate::support::noise::eventually_asleep;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, busy, eventually, manual};
use crate::support::{sleeps, threads_named, within};
use request_purgatory::purgatory::Key;
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::{Clock, ManualClock};
use request_purgatory::{Completion, Handle, Purgatory, Waits};
use std::future::ready;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// No timers, no wake-ups; and with a far one neither. One that was used and is empty wakes up once at most: at the
/// deadline that it knew.
#[test]
fn g19_idle_means_idle() {
    const DEADLINE: Duration = Duration::from_secs(1);
    const NAMES: [&str; 3] = ["g19-used", "g19-far", "g19-empty"];
    within(PATIENCE, || {
        let [used, far, emptied] = NAMES.map(Purgatory::<Op>::new);
        park(&far, Op::new(NEVER_IN_A_TEST));
        (0..100).for_each(|_| _ = admit(&used, Op::new(SOON), [1]));
        eventually("the expiry of all", || used.is_empty());
        for _ in 0..100 {
            let probe = Probe::new();
            park(&emptied, probe.op(DEADLINE));
            probe.satisfy();
        }
        assert_eq!(emptied.check_and_complete(&1), 100);
        // Only where something has expired there is a thread for completions.
        let threads = || NAMES.map(threads_named);
        eventually("all threads", || threads().map(|of| of.len()) == [2, 1, 1]);
        let threads = threads();
        eventually_asleep(&threads.concat());
        let slept = |of: &Vec<u64>| of.iter().map(|thread| sleeps(*thread)).sum::<u64>();
        let wake_ups = || {
            let before = threads.each_ref().map(slept);
            thread::sleep(2 * DEADLINE);
            [0, 1, 2].map(|of| slept(&threads[of]) - before[of])
        };
        let first = wake_ups();
        assert!(first <= [0, 0, 1], "{first:?} wake-ups");
        let has_run = || threads.concat().iter().map(|it| busy(*it)).sum::<u64>();
        let before = has_run();
        assert_eq!((wake_ups(), has_run()), ([0; 3], before), "wake-ups, spins");
    });
}

/// An interval of zero is a millisecond: a thread that drives the timer sleeps in between.
#[test]
fn g19_rechecks_without_an_interval_leave_the_thread_asleep() {
    let clock = ManualClock::new();
    let waits = Waits::<u64>::builder("g19-recheck").clock(clock.clone());
    let waits = waits.reaper(Reaper::Manual).build();
    let waits = waits.expect("no threads to refuse");
    let listener = waits.listen([1], None).recheck_every(Duration::ZERO);
    let mut until = Box::pin(listener.until(|| ready(None::<()>)));
    for _ in 0..10 {
        assert!(Bell::new().poll(&mut until).is_pending());
        let next = waits.next_deadline().expect("a recheck");
        assert!(next > clock.now(), "it is due all the time");
        clock.advance(next.saturating_since(clock.now()));
        waits.advance();
    }
}

/// One after the other, in the order in which they have expired.
#[test]
fn g13_a_completion_delays_those_behind_it_and_no_timer() {
    within(PATIENCE, || {
        let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::OwnThread));
        let ((gate, wait), (ended, endings)) = (Gate::new(), channel());
        let mut first = Some(wait);
        for number in 0..5 {
            let (wait, ended) = (first.take(), ended.clone());
            let op = Op::new(SOON).then(move |_| {
                wait.iter().for_each(|wait| wait());
                ended.send(number).expect("the test waits");
            });
            park(&purgatory, op);
            clock.advance(SOON);
            assert_eq!(purgatory.advance(), 1);
        }
        gate.open();
        assert_eq!(endings.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    });
}

/// An operation expires while the shutdown waits for the reaper: it is completed by the thread for that all the same.
#[test]
fn g13_the_shutdown_leaves_no_completion_to_the_reaper() {
    within(PATIENCE, || {
        let clock = ManualClock::new();
        let builder = Purgatory::<Op>::builder("g13-end").clock(clock.clone());
        let purgatory = builder.build().expect("the system has threads left");
        let ((gate, wait), (ended, ends)) = (Gate::new(), channel());
        let is_reaper = || thread::current().name() == Some("g13-end-reaper");
        let op = Op::new(SOON).when(move || {
            if is_reaper() {
                wait();
            }
            false
        });
        let op = op.then(move |completion| _ = ended.send((completion, is_reaper())));
        park(&purgatory, op);
        // Not before: the thread that parks it would end it.
        clock.advance(SOON);
        gate.entered();
        let shutdown = thread::spawn({
            let purgatory = purgatory.clone();
            move || purgatory.shutdown()
        });
        eventually("the shutdown", || purgatory.is_shut_down());
        // Time to close the thread for completions, for a shutdown that does so first.
        thread::sleep(Duration::from_millis(20));
        gate.open();
        assert_eq!(ends.recv(), Ok((Completion::Expired, false)));
        shutdown.join().expect("it does not panic");
    });
}

/// Parks the operation `other`, and what `park_beside` parks beside it. When `expired` operations have expired, user
/// code of theirs ends `other` on the thread that drives the timer. The completion of `other` may be slow: asserts that
/// it runs on another thread, as completions of expired operations do.
fn assert_ends_elsewhere<K: Key>(
    name: &str,
    key: K,
    expired: usize,
    park_beside: impl FnOnce(&Purgatory<Op<K>>, Handle<Op<K>>),
) {
    let (purgatory, clock) = manual::<K>(|builder| builder.dispatch(Dispatch::OwnThread));
    let ((ended, ends), mut examinations) = (channel(), 0);
    let other = Op::new(Duration::MAX).when(move || {
        examinations += 1;
        examinations > 2
    });
    let other = other.then(move |_| _ = ended.send(thread::current().id()));
    let other = scene::park(&purgatory, other, [key]);
    park_beside(&purgatory, other);
    clock.advance(SOON);
    assert_eq!(purgatory.advance(), expired, "{name}");
    let ended_on = ends.recv_timeout(PATIENCE).expect("it ends");
    assert_ne!(ended_on, thread::current().id(), "{name}");
}

/// An operation ends another one at its deadline, by whatever call.
#[test]
fn g13_what_ends_in_a_try_complete_at_its_deadline_delays_no_timer() {
    type End = fn(&Purgatory<Op>, &Handle<Op>);
    const ROWS: [(&str, End); 4] = [
        ("a check", |all, _| _ = all.check_and_complete(&1)),
        ("a check by its handle", |_, other| _ = other.check()),
        ("a forced end", |_, other| _ = other.force_complete()),
        ("a forced end by key", |all, _| {
            _ = all.force_complete_for_key(&1)
        }),
    ];
    for (name, end) in ROWS {
        assert_ends_elsewhere(name, 1_u64, 1, |all, other| {
            let ends = inside(all, move |all| end(all, &other));
            scene::park(all, once_checked(SOON, ends), [2]);
        });
    }
}

/// The key of an operation ends another operation when it is dropped: in the pass in which its own operation has
/// expired or, after a storm, between two passes.
#[test]
fn g13_what_a_key_of_an_expired_operation_ends_delays_no_timer() {
    for expire in [1, 63, 64] {
        let name = format!("{expire} have expired");
        assert_ends_elsewhere(&name, Acting(0, None), expire, |all, other| {
            let mut act = Some(Arc::new(move || _ = other.force_complete()) as Act);
            for number in 1..=expire as u64 {
                admit(all, Op::new(SOON), [Acting(number, act.take())]);
            }
        });
    }
}

/// An operation is forced to end with a change in its examination at the deadline, and expires. The change is dropped
/// when the thread that drives the timer finds no deadline, and then ends another operation.
#[test]
fn g13_what_a_change_ends_that_comes_too_late_delays_no_timer() {
    assert_ends_elsewhere("a change", 1_u64, 1, |all, other| {
        let ends = Acting(0, Some(Arc::new(move || _ = other.force_complete())));
        let weak = all.downgrade();
        let force = move || {
            let all = weak.upgrade().expect("it is driven");
            all.force_complete_for_key_with(&2, move |_| _ = &ends);
        };
        scene::park(all, once_checked(SOON, force), [2]);
    });
}

/// A deferred check runs no completion on the thread that drives the timer, however many it finds.
#[test]
fn g13_completions_of_a_deferred_check_go_where_they_were_sent() {
    for count in [1, 2, 20] {
        let jobs = Jobs::new(Runs::Later);
        let (purgatory, _clock) = manual(|builder| builder.dispatch(jobs.dispatch()));
        let (ready, ended) = (Probe::new(), Tally::new());
        for _ in 0..count {
            let (ready, ended) = (ready.clone(), ended.clone());
            let op = Op::new(NEVER_IN_A_TEST).when(move || ready.is_ready());
            park(&purgatory, op.then(move |_| ended.add()));
        }
        ready.satisfy();
        purgatory.check_later(1);
        purgatory.advance();
        assert_eq!((purgatory.stats().parked, ended.count()), (0, 0));
        assert_eq!(jobs.kept(), count);
        jobs.run_all();
        assert_eq!(ended.count() as usize, count);
    }
}
