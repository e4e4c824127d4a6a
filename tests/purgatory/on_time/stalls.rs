//! G20: however much is filed again, expired or taken off one key, no other call stands still meanwhile. G10: no timer
//! waits for deferred checks.
//!
//! An innocent thread asks for a deadline all the time, under the lock that the work needs. Were the work done in one
//! hold of that lock, no such call would begin and end meanwhile; so these are counted, and no time is measured, which
//! a loaded machine prolongs. (That one hold does one slice, the tests of the shards count.) A loaded machine may let
//! the innocent thread sleep through most of the work: then it is done once more, and in the end there is more of it.

use super::{TICK, park};
use crate::chains::scene::{self, admit};
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
/// calls an innocent thread begins and ends during that pass. (Times are in ticks.)
fn calls_during_a_pass(crowd: u64, timeout: fn(u32) -> u32, jump: u32, expire: u64) -> usize {
    let (purgatory, clock) = manual(|builder| builder);
    // One that stays, in the same timer shard as the crowd.
    let beside = park(&purgatory, Op::new(NEVER_IN_A_TEST));
    for number in 0..crowd {
        let op = Op::new(TICK * timeout(number as u32));
        admit(&purgatory, op, [number % 1_000]);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let innocent = thread::spawn({
        let (purgatory, stop) = (purgatory.clone(), stop.clone());
        move || call(&purgatory, &beside, &stop)
    });
    // It is at work before this thread is.
    thread::sleep(20 * TICK);
    let begin = Instant::now();
    clock.advance(TICK * jump);
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
    for key in (OWN..OWN + 16).cycle() {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let handle = scene::park(purgatory, Op::new(NEVER_IN_A_TEST), [key]);
        // Takes the lock of the timer shard where the crowd is.
        let start = Instant::now();
        assert!(beside.deadline().is_some());
        calls.push(start..Instant::now());
        handle.force_complete();
        purgatory.check_and_complete(&key);
        thread::sleep(Duration::from_micros(50));
    }
    calls
}

/// Fails if no attempt succeeds: a fault is there each time, and the load of the machine is not. An attempt returns
/// whether it succeeds, and what it has seen.
fn assert_once<T: Debug>(attempts: usize, attempt: impl FnMut(usize) -> (bool, T)) {
    let failed = (0..attempts).map(attempt).take_while(|seen| !seen.0);
    let failed = failed.collect::<Vec<_>>();
    assert!(failed.len() < attempts, "{failed:?}");
}

/// In a cascade the window of a bucket of the third level begins: all of it is filed again, and none expires. In a storm
/// all expire.
#[test]
fn g20_neither_a_bucket_that_cascades_nor_a_storm_stalls_a_call() {
    const WINDOW: u32 = 64 * 64;
    type Row = (&'static str, fn(u32) -> u32, u32, fn(u64) -> u64);
    const ROWS: [Row; 2] = [
        ("a cascade", |it| WINDOW + 64 + it % 4_000, WINDOW, |_| 0),
        ("a storm", |it| 1 + it % 100, 100, |crowd| crowd),
    ];
    for (name, timeout, jump, expire) in ROWS {
        assert_once(ATTEMPTS, |number| {
            let crowd = CROWD << (number / ATTEMPTS_EACH);
            let calls = calls_during_a_pass(crowd, timeout, jump, expire(crowd));
            (calls >= CALLS, (name, calls))
        });
    }
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
            scene::park(&purgatory, Op::new(Duration::MAX), keys)
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
        (long < bound, (whole, long))
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
            admit(&purgatory, op, [key_of(operation)]);
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
