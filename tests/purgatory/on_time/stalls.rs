//! G20: however much is filed again, expired or taken off one key, no other call stands still meanwhile. G10: no timer
//! waits for deferred checks.
//!
//! An innocent thread asks for a deadline all the time, under the lock that the work needs. Were the work done in one
//! hold of that lock, no such call would begin and end meanwhile; so these are counted, and no time is measured, which
//! a loaded machine prolongs. (That one hold does one slice, the tests of the shards count.) A loaded machine may let
//! the innocent thread sleep through most of the work: then it is done once more, and in the end there is more of it.

use super::{TICK, park};
use crate::support::{NEVER_IN_A_TEST, Op, Tally, lock, manual};
use request_purgatory::{Handle, Purgatory};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const CROWD: u64 = 200_000;
const ATTEMPTS: usize = 40;
/// The crowd doubles after this number of attempts.
const ATTEMPTS_EACH: usize = 10;
/// The calls that come to an end during the work, at least. (Of a work in one hold, two may be meant to: one before,
/// one after.)
const CALLS: usize = 20;
/// Keys of the innocent begin here.
const OWN: u64 = 1 << 40;

/// A crowd with these timeouts is parked. The clock then moves by `jump`, and so many `expire` in one pass: how many
/// calls an innocent thread begins and ends during that pass.
fn calls_during_a_pass(
    crowd: u64,
    timeout: impl Fn(u32) -> Duration,
    jump: Duration,
    expire: u64,
) -> usize {
    let (purgatory, clock) = manual(|builder| builder);
    // One that stays, in the same timer shard as the crowd.
    let beside = park(&purgatory, Op::new(NEVER_IN_A_TEST));
    for number in 0..crowd {
        let op = Op::new(timeout(number as u32));
        drop(purgatory.try_complete_else_watch(op, [number % 1_000]));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let innocent = thread::spawn({
        let (purgatory, stop) = (purgatory.clone(), stop.clone());
        move || call(&purgatory, &beside, &stop)
    });
    // It is at work before this thread is.
    thread::sleep(20 * TICK);
    let begin = Instant::now();
    clock.advance(jump);
    assert_eq!(purgatory.advance() as u64, expire);
    let work = begin..Instant::now();
    stop.store(true, Ordering::SeqCst);
    let calls = innocent.join().expect("no call panics");
    let within = |call: &&Range<Instant>| call.start >= work.start && call.end <= work.end;
    calls.iter().filter(within).count()
}

/// Parks, asks and completes, and notes when it asked.
fn call(purgatory: &Purgatory<Op>, beside: &Handle<Op>, stop: &AtomicBool) -> Vec<Range<Instant>> {
    let mut calls = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let key = OWN + number % 16;
        let parked = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [key]);
        // Takes the lock of the timer shard where the crowd is.
        let start = Instant::now();
        assert!(beside.deadline().is_some());
        calls.push(start..Instant::now());
        let handle = parked.expect("there is room").into_handle();
        handle.map(|handle| handle.force_complete());
        purgatory.check_and_complete(&key);
        thread::sleep(Duration::from_micros(50));
    }
    calls
}

/// Fails if no attempt succeeds: a fault is there each time, and the load of the machine is not.
fn assert_once<T: Debug>(attempts: usize, attempt: impl FnMut(usize) -> Result<(), T>) {
    let seen = (0..attempts).map(attempt);
    let seen = seen.map_while(Result::err).collect::<Vec<_>>();
    assert!(seen.len() < attempts, "{seen:?}");
}

fn assert_no_call_stalls(timeout: fn(u32) -> Duration, jump: Duration, expire: fn(u64) -> u64) {
    assert_once(ATTEMPTS, |number| {
        let crowd = CROWD << (number / ATTEMPTS_EACH);
        let calls = calls_during_a_pass(crowd, timeout, jump, expire(crowd));
        if calls < CALLS { Err(calls) } else { Ok(()) }
    });
}

/// A bucket of the third level, whose window begins: all of it is filed again, and none expires.
#[test]
fn g20_a_bucket_that_cascades_stalls_no_call() {
    const WINDOW: u32 = 64 * 64;
    let timeout = |number| TICK * (WINDOW + 64 + number % 4_000);
    assert_no_call_stalls(timeout, TICK * WINDOW, |_| 0);
}

#[test]
fn g20_a_storm_stalls_no_call() {
    let timeout = |number| TICK * (1 + number % 100);
    assert_no_call_stalls(timeout, TICK * 100, |crowd| crowd);
}

/// All watch one key, and leave it one by one: none works for many of the others, whatever they left behind. That is
/// counted in the time of the processor, which no load of this machine prolongs: were the list cleared in one go, one
/// call in thousands would take as long as thousands. A few calls may be long because of other machines: what these take
/// of a virtual processor counts as its time.
#[cfg(unix)]
#[test]
fn g20_no_departure_from_a_hot_key_clears_it_for_all() {
    const HOT: u64 = 1 << 30;
    const CALLS_IN_ONE: u32 = 1_000;
    const MAY_BE_LONG: usize = 10;
    let worked = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    assert_once(5, |_| {
        let (purgatory, _) = manual(|builder| builder);
        let park = |number| {
            let keys = [HOT, number % 1_000];
            let watch = purgatory.try_complete_else_watch(Op::new(Duration::MAX), keys);
            let handle = watch.expect("there is room").into_handle();
            handle.expect("it cannot complete")
        };
        let crowd = (0..CROWD).map(park).collect::<Vec<_>>();
        let mut calls = Vec::with_capacity(crowd.len());
        for handle in crowd.iter().rev() {
            let start = worked();
            assert!(handle.force_complete());
            calls.push(worked() - start);
        }
        calls.sort();
        let whole = calls.iter().sum::<Duration>();
        let long = calls[calls.len() - 1 - MAY_BE_LONG];
        let bound = whole / CROWD as u32 * CALLS_IN_ONE;
        if long < bound {
            Ok(())
        } else {
            Err((whole, long))
        }
    });
}

/// A deferred check of 1,000 operations, of which each examination takes a tick: a timer that becomes due meanwhile
/// waits for the slice in progress, and not for the check. The same for deferred checks of 200 keys, each with five of
/// the operations. And none of the timers that expire between them is left out of the count.
#[test]
fn g10_a_timer_waits_for_one_slice_of_deferred_checks() {
    const WATCHERS: u64 = 1_000;
    const DUE: u64 = 5;
    // As many as a slice has, and twice that to be generous.
    const LATE: u64 = 2 * 64;
    let rows: [(&str, bool, fn(u64) -> u64); 3] = [
        ("one key", false, |_| 0),
        ("one resolved key", true, |_| 0),
        ("200 keys", false, |operation| 2 + operation / 5),
    ];
    for (name, is_resolved, key_of) in rows {
        let (purgatory, clock) = manual(|builder| builder);
        let _resolved = is_resolved.then(|| purgatory.resolve(0));
        let (armed, examined) = (Arc::new(AtomicBool::new(false)), Tally::new());
        for operation in 0..WATCHERS {
            let (armed, examined, clock) = (armed.clone(), examined.clone(), clock.clone());
            let op = Op::new(NEVER_IN_A_TEST).when(move || {
                if armed.load(Ordering::SeqCst) {
                    clock.advance(TICK);
                    examined.add();
                }
                false
            });
            drop(purgatory.try_complete_else_watch(op, [key_of(operation)]));
        }
        let before = Arc::new(Mutex::new(None));
        let (so_far, fired) = (examined.clone(), before.clone());
        let due = Op::new(TICK * DUE as u32).then(move |_| *lock(&fired) = Some(so_far.count()));
        park(&purgatory, due);
        park(&purgatory, Op::new(TICK * (DUE + LATE) as u32 * 2));
        armed.store(true, Ordering::SeqCst);
        (0..WATCHERS).for_each(|operation| purgatory.check_later(key_of(operation)));
        assert_eq!(purgatory.advance(), 2, "{name}");
        assert_eq!(examined.count(), WATCHERS, "{name}");
        let before = lock(&before).expect("it has expired");
        let is_soon = (DUE..=DUE + LATE).contains(&before);
        assert!(is_soon, "{name}: {before} examinations came before");
    }
}
