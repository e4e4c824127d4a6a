//! G19: what is idle wakes nobody. (That an idle one costs next to nothing is counted in `tests/idle.rs`.) G13: on
//! which thread completions run, and that a slow one delays no timer. (`tests/timer/callbacks.rs` has that for a
//! crowd.)

use super::{SOON, eventually_threads, park, park_for_a_moment, slept};
use crate::support::bell::Bell;
use crate::support::keys::{Act, Acting};
use crate::support::noise::eventually_asleep;
use crate::support::{Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, busy, eventually, lock};
use crate::support::{manual, threads_named, within};
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::{Clock, ManualClock, WakeFn};
use request_purgatory::{Completion, Handle, Purgatory, Waits};
use std::future::ready;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// No timers, no wake-ups; and with a far one neither.
#[test]
fn g19_idle_means_idle() {
    within(PATIENCE, || {
        let [used, far] = ["g19-idle", "g19-far"].map(Purgatory::<Op>::new);
        park(&far, Op::new(NEVER_IN_A_TEST));
        (0..100).for_each(|_| park_for_a_moment(&used, Op::new(SOON)));
        eventually("the expiry of all", || used.is_empty());
        thread::sleep(Duration::from_millis(100));
        let named = || [threads_named("g19-idle"), threads_named("g19-far")].concat();
        // Only where something has expired there is a thread for completions.
        eventually("three named threads", || named().len() == 3);
        let threads = named();
        eventually_asleep(&threads);
        let has_run = || threads.iter().map(|thread| busy(*thread)).sum::<u64>();
        let before = (slept(&threads), has_run());
        thread::sleep(Duration::from_secs(2));
        assert_eq!((slept(&threads), has_run()), before, "wake-ups, spins");
    });
}

/// One that was used and is empty wakes up once more at most: at the deadline that it knew.
#[test]
fn g19_one_that_was_used_and_is_empty_wakes_up_once_at_most() {
    const DEADLINE: Duration = Duration::from_millis(300);
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g19-used");
        for _ in 0..100 {
            let probe = Probe::new();
            park(&purgatory, probe.op(DEADLINE));
            probe.satisfy();
        }
        assert_eq!(purgatory.check_and_complete(&1), 100);
        assert!(purgatory.is_empty());
        eventually_threads("g19-used", 1);
        // It sleeps until the deadline that it knew.
        thread::sleep(DEADLINE / 3);
        let threads = threads_named("g19-used");
        let before = slept(&threads);
        thread::sleep(2 * DEADLINE);
        let once = slept(&threads) - before;
        assert!(once <= 1, "{once} wake-ups");
        thread::sleep(2 * DEADLINE);
        assert_eq!(slept(&threads) - before, once, "wake-ups");
    });
}

/// Woken, it would ask again, and so on.
#[test]
fn g19_a_reactor_that_asks_is_not_woken_for_what_it_finds() {
    let woken = Tally::new();
    let wakes = woken.clone();
    let waker = WakeFn::new(move || {
        wakes.add();
        true
    });
    let (purgatory, _) = manual(|builder| builder.reaper(Reaper::Reactor(waker)));
    for parked in 0..2 {
        let before = woken.count();
        for _ in 0..2 {
            purgatory.advance();
            assert_eq!(purgatory.next_deadline().is_some(), parked > 0);
        }
        assert_eq!(woken.count(), before, "with {parked} parked");
        park(&purgatory, Op::new(NEVER_IN_A_TEST));
    }
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
        let ((go_on, told), (ended, endings)) = (channel::<()>(), channel());
        let mut first = Some(told);
        for number in 0..5 {
            let (told, ended) = (first.take(), ended.clone());
            let op = Op::new(SOON).then(move |_| {
                _ = told.map(|told| told.recv());
                ended.send(number).expect("the test waits");
            });
            park(&purgatory, op);
            clock.advance(SOON);
            assert_eq!(purgatory.advance(), 1);
        }
        go_on.send(()).expect("the first one waits");
        assert_eq!(endings.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    });
}

/// Neither reaper brings a thread for completions.
#[test]
fn g13_without_a_reaper_completions_run_where_the_timer_is_driven() {
    for reaper in [Reaper::Manual, Reaper::Reactor(WakeFn::new(|| true))] {
        let (purgatory, clock) = manual(|builder| builder.reaper(reaper));
        let (told, ended_on) = channel();
        let op = Op::new(SOON).then(move |_| _ = told.send(thread::current().id()));
        park(&purgatory, op);
        clock.advance(SOON);
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(ended_on.try_recv(), Ok(thread::current().id()));
    }
}

/// An operation expires while the shutdown waits for the reaper: it is completed by the thread for that all the same.
#[test]
fn g13_the_shutdown_leaves_no_completion_to_the_reaper() {
    within(PATIENCE, || {
        let clock = ManualClock::new();
        let builder = Purgatory::<Op>::builder("g13-end").clock(clock.clone());
        let purgatory = builder.build().expect("the system has threads left");
        let ((asked, asks), (answer, answers), (ended, ends)) = (channel(), channel(), channel());
        let is_reaper = || thread::current().name() == Some("g13-end-reaper");
        let op = Op::new(SOON).when(move || {
            if is_reaper() {
                asked.send(()).expect("the test waits");
                // An error: the test has failed.
                answers.recv().unwrap_or_default();
            }
            false
        });
        let op = op.then(move |completion| _ = ended.send((completion, is_reaper())));
        park(&purgatory, op);
        // Not before: the thread that parks it would end it.
        clock.advance(SOON);
        asks.recv().expect("its deadline comes");
        let shutdown = thread::spawn({
            let purgatory = purgatory.clone();
            move || purgatory.shutdown()
        });
        eventually("the shutdown", || purgatory.is_shut_down());
        // Time to close the thread for completions, for a shutdown that does so first.
        thread::sleep(Duration::from_millis(20));
        answer.send(()).expect("the reaper waits");
        assert_eq!(ends.recv(), Ok((Completion::Expired, false)));
        shutdown.join().expect("it does not panic");
    });
}

/// An operation ends another one at its deadline, on the thread that drives the timer. However it does so: the
/// completion of the other one may be slow, and runs where completions of expired operations run.
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
        let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::OwnThread));
        let (ended, ends) = channel();
        let probe = Probe::new();
        let other = probe.op(NEVER_IN_A_TEST);
        let other = other.then(move |_| _ = ended.send(thread::current().id()));
        let other = park(&purgatory, other);
        let (mut examinations, all, ready) = (0, purgatory.downgrade(), probe.clone());
        let op = Op::new(SOON).when(move || {
            examinations += 1;
            if examinations == 3 {
                ready.satisfy();
                end(&all.upgrade().expect("it lives"), &other);
            }
            false
        });
        let parked = purgatory.try_complete_else_watch(op, [2]);
        assert!(parked.is_ok_and(|it| it.is_parked()), "{name}");
        clock.advance(SOON);
        assert_eq!(purgatory.advance(), 1, "{name}");
        let ended_on = ends.recv_timeout(PATIENCE).expect("it ends");
        assert_ne!(ended_on, thread::current().id(), "{name}");
    }
}

/// An operation whose completion tells on which thread it runs, and what hears of that.
fn telling<K>() -> (Op<K>, Receiver<ThreadId>) {
    let (ended, ends) = channel();
    let op = Op::new(Duration::MAX).then(move |_| _ = ended.send(thread::current().id()));
    (op, ends)
}

/// The key of an operation ends another operation when it is dropped, on the thread that drives the timer: in the pass
/// in which its own operation has expired or, after a storm, between two passes.
#[test]
fn g13_what_a_key_of_an_expired_operation_ends_delays_no_timer() {
    for expire in [1, 63, 64] {
        let (purgatory, clock) = manual::<Acting>(|builder| builder.dispatch(Dispatch::OwnThread));
        let (other, ends) = telling();
        let other = purgatory.try_complete_else_watch(other, [Acting(0, None)]);
        let other = other.expect("there is room").into_handle();
        let other = other.expect("it cannot complete yet");
        let mut act = Some(Arc::new(move || _ = other.force_complete()) as Act);
        for number in 1..=expire {
            let key = Acting(number, act.take());
            drop(purgatory.try_complete_else_watch(Op::new(SOON), [key]));
        }
        clock.advance(SOON);
        assert_eq!(purgatory.advance() as u64, expire);
        let ended_on = ends.recv_timeout(PATIENCE).expect("it ends");
        assert_ne!(ended_on, thread::current().id(), "{expire} have expired");
    }
}

/// An operation is forced to end with a change in its examination at the deadline, and expires. The change is dropped
/// when the thread that drives the timer finds no deadline, and then ends another operation.
#[test]
fn g13_what_a_change_ends_that_comes_too_late_delays_no_timer() {
    let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::OwnThread));
    let (other, ends) = telling();
    let other = park(&purgatory, other);
    let mut ends_other = Some(Acting(
        0,
        Some(Arc::new(move || _ = other.force_complete())),
    ));
    let (weak, mut examinations) = (purgatory.downgrade(), 0);
    let op = Op::new(SOON).when(move || {
        examinations += 1;
        if examinations == 3 {
            let (all, owned) = (weak.upgrade(), ends_other.take());
            let all = all.expect("it is driven");
            all.force_complete_for_key_with(&2, move |_| _ = &owned);
        }
        false
    });
    drop(purgatory.try_complete_else_watch(op, [2]));
    clock.advance(SOON);
    assert_eq!(purgatory.advance(), 1);
    let ended_on = ends.recv_timeout(PATIENCE).expect("it ends");
    assert_ne!(ended_on, thread::current().id());
}

/// A deferred check runs no completion on the thread that drives the timer, however many it finds.
#[test]
fn g13_completions_of_a_deferred_check_go_where_they_were_sent() {
    for count in [1, 2, 20] {
        let jobs = Arc::new(Mutex::new(Vec::<Job>::new()));
        let sent = jobs.clone();
        let executor = Dispatch::Executor(Arc::new(move |job| lock(&sent).push(job)));
        // A clone of the executor stays with the purgatory.
        let (purgatory, _clock) = manual(|builder| builder.dispatch(executor));
        let ended = Tally::new();
        for _ in 0..count {
            let (ended, mut examinations) = (ended.clone(), 0);
            let op = Op::new(NEVER_IN_A_TEST).when(move || {
                examinations += 1;
                examinations == 3
            });
            park(&purgatory, op.then(move |_| ended.add()));
        }
        purgatory.check_later(1);
        purgatory.advance();
        assert_eq!((purgatory.stats().parked, ended.count()), (0, 0));
        let jobs = std::mem::take(&mut *lock(&jobs));
        assert_eq!(jobs.len() as u64, count);
        jobs.into_iter().for_each(|job| job());
        assert_eq!(ended.count(), count);
    }
}
