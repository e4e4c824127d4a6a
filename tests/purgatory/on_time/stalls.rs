//! G20: however much is filed again, expired or taken off one key, no other call stands still meanwhile.
//!
//! An innocent thread asks for a deadline all the time, under the lock that the work needs. Were the work done in one
//! hold of that lock, no such call would begin and end meanwhile; so these are counted, and no time is measured, which a
//! loaded machine prolongs. (That one hold does one slice, the tests of the shards count.) A loaded machine may let the
//! innocent thread sleep through most of the work: then it is done once more, and in the end there is more of it.

use crate::support::{NEVER_IN_A_TEST, Op, Tally, eventually, lock, manual};
use request_purgatory::{Handle, Purgatory, time::ManualClock};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const CROWD: u64 = 200_000;
const ATTEMPTS: usize = 40;
/// The crowd doubles after this number of attempts.
const ATTEMPTS_EACH: usize = 10;
/// The calls that come to an end during the work, at least. (Of a work in one hold, two may be meant to: one before, one
/// after.)
const CALLS: usize = 20;
/// Keys of the innocent begin here.
const OWN: u64 = 1 << 40;
const TICK: Duration = Duration::from_millis(1);

/// A purgatory with a crowd in it, parked by this thread.
struct Scene {
    purgatory: Purgatory<Op>,
    clock: ManualClock,
    /// One that stays, in the same timer shard as the crowd.
    beside: Handle<Op>,
}

impl Scene {
    fn new(crowd: u64, timeout: impl Fn(u64) -> Duration) -> Self {
        let (purgatory, clock) = manual(|builder| builder);
        let park = |timeout, keys: Vec<u64>| {
            let watch = purgatory.try_complete_else_watch(Op::new(timeout), keys);
            watch.expect("there is room").into_handle()
        };
        let beside = park(NEVER_IN_A_TEST, vec![OWN - 1]).expect("it cannot complete");
        for number in 0..crowd {
            park(timeout(number), vec![number % 1_000]);
        }
        Self {
            purgatory,
            clock,
            beside,
        }
    }

    /// How many calls an innocent thread begins and ends during `work`.
    fn measure(&self, work: impl FnOnce(&Self)) -> usize {
        let stop = Arc::new(AtomicBool::new(false));
        let innocent = thread::spawn({
            let (purgatory, beside) = (self.purgatory.clone(), self.beside.clone());
            let stop = stop.clone();
            move || call(&purgatory, &beside, &stop)
        });
        // It is at work before this thread is.
        thread::sleep(Duration::from_millis(20));
        let begin = Instant::now();
        work(self);
        let end = Instant::now();
        stop.store(true, Ordering::SeqCst);
        let calls = innocent.join().expect("no call panics");
        let within = |call: &&Range<Instant>| call.start >= begin && call.end <= end;
        calls.iter().filter(within).count()
    }
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

fn assert_no_call_stalls(attempt: impl Fn(u64) -> usize) {
    let mut seen = Vec::new();
    for number in 0..ATTEMPTS {
        let calls = attempt(CROWD << (number / ATTEMPTS_EACH));
        if calls >= CALLS {
            return;
        }
        seen.push(calls);
    }
    panic!("calls: {seen:?}");
}

/// A bucket of the third level, whose window begins: all of it is filed again, and none expires.
#[test]
fn g20_a_bucket_that_cascades_stalls_no_call() {
    assert_no_call_stalls(|crowd| {
        let window = TICK * 64 * 64;
        let timeout = |number: u64| window + TICK * (64 + number as u32 % 4_000);
        let scene = Scene::new(crowd, timeout);
        scene.measure(|scene| {
            scene.clock.advance(window);
            assert_eq!(scene.purgatory.advance(), 0);
        })
    });
}

#[test]
fn g20_a_storm_stalls_no_call() {
    assert_no_call_stalls(|crowd| {
        let timeout = |number: u64| TICK * (1 + number as u32 % 100);
        let scene = Scene::new(crowd, timeout);
        scene.measure(|scene| {
            scene.clock.advance(TICK * 100);
            assert_eq!(scene.purgatory.advance(), crowd as usize);
        })
    });
}

/// All watch one key, and leave it one by one: none works for many of the others, whatever they left behind. That is
/// counted in the time of the processor, which no load prolongs: were the list cleared in one go, one call in thousands
/// would take as long as thousands.
#[cfg(unix)]
#[test]
fn g20_no_departure_from_a_hot_key_clears_it_for_all() {
    const HOT: u64 = 1 << 30;
    const CALLS_IN_ONE: u32 = 1_000;
    const FEW_ATTEMPTS: usize = 5;
    let worked = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let mut seen = Vec::new();
    for _ in 0..FEW_ATTEMPTS {
        let (purgatory, _) = manual(|builder| builder);
        let park = |number| {
            let keys = [HOT, number % 1_000];
            let watch = purgatory.try_complete_else_watch(Op::new(Duration::MAX), keys);
            let handle = watch.expect("there is room").into_handle();
            handle.expect("it cannot complete")
        };
        let crowd = (0..CROWD).map(park).collect::<Vec<_>>();
        let (begin, mut longest) = (worked(), Duration::ZERO);
        for handle in crowd.iter().rev() {
            let start = worked();
            assert!(handle.force_complete());
            longest = longest.max(worked() - start);
        }
        let whole = worked() - begin;
        if longest < whole / CROWD as u32 * CALLS_IN_ONE {
            return;
        }
        seen.push((whole, longest));
    }
    panic!("whole work, longest call: {seen:?}");
}

/// A deferred check of 1,000 operations, of which each examination takes a tick: a timer that becomes due meanwhile
/// waits for the slice in progress, and not for the check.
#[test]
fn g10_a_timer_waits_for_one_slice_of_a_deferred_check() {
    for is_resolved in [false, true] {
        a_timer_does_not_wait_for_deferred_checks(|_| 0, is_resolved);
    }
}

/// The same for deferred checks of 200 keys, each with five of the operations.
#[test]
fn g10_a_timer_waits_for_one_of_many_deferred_checks() {
    a_timer_does_not_wait_for_deferred_checks(|operation| 2 + operation / 5, false);
}

/// And none of the timers that expire between them is left out of the count.
fn a_timer_does_not_wait_for_deferred_checks(key_of: impl Fn(u64) -> u64, is_resolved: bool) {
    const WATCHERS: u64 = 1_000;
    const DUE: u64 = 5;
    // As many as a slice has, and twice that to be generous.
    const LATE: u64 = 2 * 64;
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
    let (before, so_far) = (Arc::new(Mutex::new(None)), examined.clone());
    let fired = before.clone();
    let op = Op::new(TICK * DUE as u32).then(move |_| *lock(&fired) = Some(so_far.count()));
    drop(purgatory.try_complete_else_watch(op, [1]));
    let late = Op::new(TICK * (DUE + LATE) as u32 * 2);
    drop(purgatory.try_complete_else_watch(late, [1]));
    armed.store(true, Ordering::SeqCst);
    (0..WATCHERS).for_each(|operation| purgatory.check_later(key_of(operation)));
    assert_eq!(purgatory.advance(), 2);
    assert_eq!(examined.count(), WATCHERS);
    let before = lock(&before).expect("it has expired");
    assert!(
        (DUE..=DUE + LATE).contains(&before),
        "{before} examinations came before"
    );
}

/// 20,000 deferred checks a second of a key that 10,000 operations watch: examinations and expiries take turns, and a
/// deferred check after the last event is made. (The bound is that of an idle machine; a loaded one gets more
/// attempts.)
#[test]
fn g10_a_storm_of_deferred_checks_makes_no_timer_late() {
    const BOUND: Duration = Duration::from_millis(20);
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let mut lateness = deferred_storm();
        lateness.sort_unstable();
        let percentile = lateness[lateness.len() * 99 / 100];
        if percentile <= BOUND {
            return;
        }
        seen.push(percentile);
    }
    panic!("99 of 100 timers of 10 ms were late by no more than {seen:?}");
}

fn deferred_storm() -> Vec<Duration> {
    const WATCHERS: usize = 10_000;
    const TIMEOUT: Duration = Duration::from_millis(10);
    let purgatory = Purgatory::<Op>::new("g10-deferred");
    let (event, ended) = (Arc::new(AtomicBool::new(false)), Tally::new());
    for _ in 0..WATCHERS {
        let (event, ended) = (event.clone(), ended.clone());
        let op = Op::new(NEVER_IN_A_TEST)
            .when(move || event.load(Ordering::SeqCst))
            .then(move |_| ended.add());
        drop(purgatory.try_complete_else_watch(op, [0]));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let storm = {
        let (purgatory, stop) = (purgatory.clone(), stop.clone());
        thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                (0..20).for_each(|_| purgatory.check_later(0));
                thread::sleep(TICK);
            }
        })
    };
    let lateness = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..500 {
        let (all, due) = (lateness.clone(), Instant::now() + TIMEOUT);
        let op = Op::new(TIMEOUT).then(move |_| lock(&all).push(due.elapsed()));
        drop(purgatory.try_complete_else_watch(op, [1]));
        thread::sleep(TICK);
    }
    eventually("the expiry of all", || lock(&lateness).len() == 500);
    stop.store(true, Ordering::SeqCst);
    storm.join().expect("it only defers checks");
    event.store(true, Ordering::SeqCst);
    purgatory.check_later(0);
    eventually("their completion", || ended.count() == WATCHERS as u64);
    assert!(purgatory.is_empty());
    lock(&lateness).clone()
}
