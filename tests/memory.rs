//! G6 and G28: what stays of many operations that have ended, counted; and G20: what a start or a recheck allocates at
//! once. A target of its own, because it counts the memory of the whole process.

use request_purgatory::purgatory::{Builder, Equivalent, Handle, Key};
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::ManualClock;
use request_purgatory::{
    Completion, DelayedOperation, Listener, Purgatory, Timer, WaitError, Waits,
};
use request_purgatory_tracker::{Requests, Responded, Tracker};
use std::collections::VecDeque;
use std::future::{Future, ready};
use std::hash::{Hash, Hasher, RandomState};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll};
use std::thread::scope;
use std::time::Duration;
use support::{Op, PATIENCE, Probe, Tally, eventually, lock, manual, on_a_stack_of, within};
use testing as support;
use testing::allocated::{Counting, allocated};
use testing::bell::{Bell, waker};
use testing::patient;

#[global_allocator]
static COUNTING: Counting = Counting;

/// One test at a time counts it.
static MEMORY: Mutex<()> = Mutex::new(());

const HOUR: Duration = Duration::from_secs(3_600);
/// What a burst may leave.
const LITTLE: usize = 1 << 16;

/// The bytes that `burst` leaves.
fn kept(burst: impl FnOnce()) -> usize {
    let before = allocated();
    burst();
    allocated().saturating_sub(before)
}

fn leaves_little(what: &str, burst: impl FnOnce()) {
    let kept = kept(burst);
    assert!(kept < LITTLE, "{what}: {kept}");
}

/// What is kept of each is a slot, and no entry.
fn leaves_slots(what: &str, count: usize, burst: impl FnOnce()) {
    let each = kept(burst) / count;
    assert!(each < 150, "{what}: {each}");
}

fn tracker<T: Send + 'static>() -> Tracker<usize, T> {
    let tracker = Tracker::builder("g28").clock(ManualClock::new());
    let tracker = tracker.reaper(Reaper::Manual).build(|_, _, _| ());
    tracker.expect("no threads to refuse")
}

fn requests<K: Key>() -> Requests<K, ()> {
    let requests = Requests::builder("g28").clock(ManualClock::new());
    let requests = requests.remembered_ids(0).reaper(Reaper::Manual).build();
    requests.expect("no threads to refuse")
}

/// It waits for an hour.
struct Padded<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> DelayedOperation for Padded<BYTES> {
    type Key = usize;

    fn timeout(&self) -> Duration {
        HOUR
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(self, _: Completion) {
        assert!(self.0.iter().all(|byte| *byte == self.0[0]));
    }
}

fn by_hand<const BYTES: usize>() -> (Purgatory<Padded<BYTES>>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Purgatory::builder("g28").clock(clock.clone());
    let purgatory = builder.map_shards(16).reaper(Reaper::Manual).build();
    let purgatory = purgatory.expect("no threads to refuse");
    // The map is made with the first key.
    assert!(park(&purgatory, 0, 0).cancel().is_some());
    (purgatory, clock)
}

/// Every way in which operations end.
#[derive(Debug, Clone, Copy)]
enum By {
    Cancel,
    OtherThread,
    Expiry,
}

const ALL: [By; 3] = [By::Cancel, By::OtherThread, By::Expiry];

fn park<const BYTES: usize>(
    purgatory: &Purgatory<Padded<BYTES>>,
    number: usize,
    key: usize,
) -> Handle<Padded<BYTES>> {
    let op = Padded([number as u8; BYTES]);
    let parked = purgatory.try_complete_else_watch(op, [key]);
    let handle = parked.expect("there is room").into_handle();
    handle.expect("it cannot complete yet")
}

/// Parks `count` operations, each on a key of its own, and ends them. Returns the bytes at the peak, and those that
/// stay; handles to what has ended are harmless then, and the purgatory works on.
fn parked_and_ended<const BYTES: usize>(count: usize, by: By) -> (usize, usize) {
    let (purgatory, clock) = by_hand::<BYTES>();
    let mut handles = Vec::with_capacity(count);
    let before = allocated();
    handles.extend((0..count).map(|number| park(&purgatory, number, number)));
    let peak = allocated() - before;
    // The first ones last: what stays does not depend on the order.
    let end = || assert!(handles.iter().rev().all(|handle| handle.cancel().is_some()));
    match by {
        By::Cancel => end(),
        By::OtherThread => scope(|scope| scope.spawn(end).join().expect("it only ends them")),
        By::Expiry => {
            clock.advance(2 * HOUR);
            assert_eq!(purgatory.advance(), count);
        }
    }
    purgatory.shrink();
    // (Less than before: the block of slots that the first operation left has gone.)
    let stays = allocated().saturating_sub(before);

    // In the same slots, from first to last.
    let again = (0..count).map(|number| park(&purgatory, number, number));
    let again = again.collect::<Vec<_>>();
    for handle in &handles {
        assert!(!handle.is_parked() && handle.cancel().is_none());
        assert!(!handle.reschedule(HOUR) && !handle.force_complete() && !handle.check());
    }
    assert_eq!(purgatory.stats().parked, count);
    assert!(again.iter().all(|handle| handle.is_parked()));
    let cancelled = (0..count).map(|key| purgatory.cancel_for_key(&key).len());
    assert_eq!(cancelled.sum::<usize>(), count);
    (peak, stays)
}

#[test]
fn g28_of_many_small_operations_that_have_ended_less_than_a_tenth_stays() {
    let _alone = lock(&MEMORY);
    within(2 * PATIENCE, || {
        for by in ALL {
            const COUNT: usize = 30_000;
            let (peak, stays) = parked_and_ended::<32>(COUNT, by);
            assert!(stays < (1 << 20) + COUNT * 24, "{by:?}: {stays} of {peak}");
        }
        let (peak, stays) = parked_and_ended::<8>(250_000, By::Cancel);
        assert!(stays < peak / 10, "{stays} of {peak}");
    });
}

/// Whatever the thread is that ends them, and without a call that shrinks.
#[test]
fn g28_large_payloads_do_not_stay_with_their_slots() {
    let _alone = lock(&MEMORY);
    within(2 * PATIENCE, || {
        for by in ALL {
            let (peak, stays) = parked_and_ended::<4_096>(3_000, by);
            assert!(peak > 3_000 * 4_096);
            assert!(stays < 3_000 * 200, "{by:?}: {stays} of {peak}");
            // A build without optimization moves it over the stack again and again.
            let (peak, stays) = on_a_stack_of(1 << 16, move || parked_and_ended::<65_536>(500, by));
            assert!(peak > 500 * 65_536);
            assert!(stays < 500 * 200, "{by:?}: {stays} of {peak}");
        }
        let (purgatory, _) = by_hand::<4_096>();
        let stays = kept(|| {
            (0..3_000).for_each(|number| _ = park(&purgatory, number, number));
            assert!((0..3_000).all(|key| purgatory.cancel_for_key(&key).len() == 1));
        });
        assert!(stays < 3_000 * 400, "without a shrink: {stays}");
    });
}

/// The test does not call `shrink`, and an operation without an end keeps the timer's shards in use.
#[test]
fn g28_slots_go_while_another_operation_stays_parked() {
    const COUNT: usize = 100_000;
    let _alone = lock(&MEMORY);
    let (purgatory, _) = by_hand::<32>();
    let forever = park(&purgatory, 0, COUNT);
    let before = allocated();
    // No lists: the slots only.
    let handles = (0..COUNT).map(|_| park(&purgatory, 1, COUNT));
    let handles = handles.collect::<Vec<_>>();
    let peak = allocated() - before;
    assert!(handles.into_iter().all(|handle| handle.cancel().is_some()));
    assert!(forever.is_parked());
    let stays = allocated() - before;
    assert!(stays < peak / 4, "{stays} of {peak}");
}

/// The most bytes that one of these calls allocates at once. A table that moves its entries moves them to memory that it
/// allocates at once.
fn most_at_once<T, R>(all: Vec<T>, call: impl Fn(T) -> R) -> usize {
    let mut results = Vec::with_capacity(all.len());
    let calls = all.into_iter().map(|each| {
        let before = allocated();
        results.push(call(each));
        allocated().saturating_sub(before)
    });
    calls.max().expect("there are some")
}

/// A start of a payload with a weight allocates no more at once than a start of a payload without one.
#[test]
fn g20_a_start_with_a_weight_moves_no_weights_of_others() {
    let _alone = lock(&MEMORY);
    let most = |builder: Builder<Timer<usize>>| {
        let timer = builder.reaper(Reaper::Manual).build(drop);
        let timer = timer.expect("no threads to refuse");
        most_at_once((0..100_000).collect(), |number| {
            let started = timer.start_weighed(HOUR, 2, number);
            started.expect("there is room")
        })
    };
    let builder = || Timer::builder("g20");
    let unweighed = most(builder());
    for weighed in [
        builder().max_weight(usize::MAX),
        builder().max_weight(usize::MAX).max_parked(usize::MAX),
    ] {
        let weighed = most(weighed);
        let more = weighed.saturating_sub(unweighed);
        assert!(more < 1 << 14, "{weighed}, and {unweighed} without weights");
    }
}

/// Many listeners ask for rechecks. None of these calls allocates more at once than a call that moves the deadline of
/// one of the listeners.
#[test]
fn g20_a_recheck_moves_none_of_other_listeners() {
    let _alone = lock(&MEMORY);
    let most = |files: fn(Listener<u64>) -> Listener<u64>| {
        let builder = Waits::<u64>::builder("g20").clock(ManualClock::new());
        let waits = builder.map_shards(16).reaper(Reaper::Manual).build();
        let waits = waits.expect("no threads to refuse");
        let listeners = (0..100_000).map(|_| waits.listen([1], None));
        most_at_once(listeners.collect(), files)
    };
    let moved = most(|listener| {
        let handle = listener.handle().expect("there is room");
        assert!(handle.reschedule(HOUR));
        listener
    });
    let rechecked = most(|listener| listener.recheck_every(HOUR));
    let more = rechecked.saturating_sub(moved);
    assert!(more < 1 << 14, "{rechecked}, and {moved} without rechecks");
}

/// A reaper of its own, and what has no lists.
#[test]
fn g28_an_idle_timer_gives_back_what_many_have_needed() {
    const COUNT: u64 = 250_000;
    let _alone = lock(&MEMORY);
    let before = allocated();
    let fired = Tally::new();
    let (count, clock) = (fired.clone(), ManualClock::new());
    let timer = Timer::builder("g28").clock(clock.clone());
    let timer = timer.build(move |bytes: [u64; 24]| {
        assert_eq!(bytes, [7; 24]);
        count.add();
    });
    let timer = timer.expect("the system has threads left");
    for _ in 0..COUNT {
        timer.start(HOUR, [7; 24]).expect("there is room");
    }
    let peak = allocated() - before;
    clock.advance(2 * HOUR);
    eventually("all fire, and no more than a tenth stays", || {
        fired.count() == COUNT && allocated().saturating_sub(before) <= peak / 10
    });
}

#[test]
fn g28_a_shrink_beside_parks_on_four_threads_loses_nothing() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 30;
    const PARKED: usize = 500;
    let _alone = lock(&MEMORY);
    fn rounds<const BYTES: usize>(purgatory: &Purgatory<Padded<BYTES>>, thread: usize) {
        let mut old = Vec::new();
        for round in 0..ROUNDS {
            let keys = (0..PARKED).map(|number| number * THREADS + thread);
            let parked = keys.clone().map(|key| park(purgatory, key, key));
            let parked = parked.collect::<Vec<_>>();
            let is_harmless = |handle: &Handle<_>| !handle.is_parked() && handle.cancel().is_none();
            assert!(old.iter().all(is_harmless));
            for (key, handle) in keys.zip(&parked) {
                // Every other one by its key.
                let op = match (key + round) % 2 {
                    0 => handle.cancel(),
                    _ => purgatory.cancel_for_key(&key).pop(),
                };
                let bytes = op.expect("it is parked").0;
                assert!(bytes.iter().all(|byte| *byte == key as u8));
            }
            old = parked;
        }
    }
    within(2 * PATIENCE, || {
        let (small, _) = by_hand::<1_200>();
        let (large, _) = by_hand::<5_000>();
        let done = AtomicBool::new(false);
        scope(|scope| {
            let (small, large, done) = (&small, &large, &done);
            let work = |thread| {
                rounds(small, thread);
                rounds(large, thread);
            };
            let workers = (0..THREADS).map(|thread| scope.spawn(move || work(thread)));
            let workers = workers.collect::<Vec<_>>();
            let shrinks = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    small.shrink();
                    large.shrink();
                }
            });
            // Whether one has panicked or not, the shrinks end.
            let ended = workers.into_iter().map(|worker| worker.join().is_ok());
            let ended = ended.filter(|is_ok| *is_ok).count();
            done.store(true, Ordering::Relaxed);
            shrinks.join().expect("it only shrinks");
            assert_eq!(ended, THREADS, "nothing is lost");
        });
        assert_eq!((small.len(), large.len()), (0, 0));
    });
}

#[test]
fn g28_a_tracker_and_requests_shrink_too() {
    const COUNT: usize = 100_000;
    let _alone = lock(&MEMORY);
    let before = allocated();
    let (tracker, calls) = (tracker::<u64>(), requests());
    let mut pending = Vec::with_capacity(COUNT);
    for key in 0..COUNT {
        assert!(tracker.track(key, 0, HOUR).is_ok());
        pending.extend(calls.request(key, HOUR));
    }
    let peak = allocated() - before;
    assert!((0..COUNT).all(|key| tracker.complete(&key).is_some()));
    drop(pending);
    tracker.shrink();
    calls.shrink();
    let stays = allocated() - before;
    assert!(stays < peak / 5, "{stays} of {peak}");
    assert!(tracker.track(1, 0, HOUR).is_ok() && calls.request(1, HOUR).is_ok());
}

/// A handful is parked at a time. Kafka's purgatory kept each operation in the list of the quiet key until the next
/// purge.
#[test]
fn g06_operations_on_a_busy_and_a_quiet_key_leave_nothing() {
    const BUSY: u64 = 1;
    const QUIET: u64 = 2;
    const OPERATIONS: u64 = 100_000;
    let _alone = lock(&MEMORY);
    within(2 * PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g06-quiet");
        let mut parked = VecDeque::new();
        let mut settled = 0;
        for number in 0..OPERATIONS {
            let probe = Probe::new();
            let admission = purgatory.try_complete_else_watch(probe.op(HOUR), [BUSY, QUIET]);
            assert!(admission.is_ok());
            parked.push_back(probe);
            if parked.len() > 10 {
                let oldest = parked.pop_front().expect("eleven are parked");
                oldest.satisfy();
                assert_eq!(purgatory.check_and_complete(&BUSY), 1);
            }
            if number == OPERATIONS / 3 {
                settled = allocated();
            }
        }
        let grown = allocated().saturating_sub(settled);
        assert!(
            grown < LITTLE,
            "{grown} bytes more than after a third of them"
        );
        parked.iter().for_each(|probe| probe.satisfy());
        assert_eq!(purgatory.check_and_complete(&BUSY), 10);
        let stats = purgatory.stats();
        assert_eq!((stats.parked, stats.watched), (0, 0));
        assert_eq!((purgatory.watched_keys(), stats.completed), (0, OPERATIONS));
    });
}

/// A dropped purgatory leaves no memory behind, although there are handles to its operations; the recycled places of
/// the handles are used again.
#[test]
fn g06_purgatories_that_come_and_go_leave_nothing() {
    let _alone = lock(&MEMORY);
    let come_and_go = |count| {
        for _ in 0..count {
            let builder = Purgatory::<Padded<256>>::builder("g06-many").reaper(Reaper::Manual);
            let purgatory = builder.build().expect("no threads to refuse");
            let handle = park(&purgatory, 0, 1);
            assert!(handle.cancel().is_some());
            drop(purgatory);
            assert!(!handle.is_parked());
        }
    };
    come_and_go(2_000);
    leaves_little("purgatories", || come_and_go(18_000));
}

/// No time passes, so the clock's reaper never drives them.
#[test]
fn g06_timers_that_come_and_go_on_a_manual_clock_leave_nothing() {
    let _alone = lock(&MEMORY);
    let clock = ManualClock::new();
    let come_and_go = |count| {
        for _ in 0..count {
            let builder = Timer::<u64>::builder("g06-clock").clock(clock.clone());
            let timer = builder.reaper(clock.reaper()).build(drop);
            drop(timer.expect("no threads to refuse"));
        }
    };
    come_and_go(1_000);
    leaves_little("timers", || come_and_go(10_000));
}

/// The number of keys with which each operation of [`filled_and_emptied`] has three keys of its own.
const MANY_KEYS: u64 = 90_000;

/// Fills a purgatory with operations on three of `keys` keys each, and empties it, three times. Returns the bytes for
/// each operation when it was full and when it was empty again, by round. A reaper of its own, on a thread of its own,
/// is waited for until no more is kept than `allowed`.
fn filled_and_emptied(keys: u64, by_expiry: bool, reaper: Reaper, allowed: f64) -> [(f64, f64); 3] {
    const PARKED: u64 = MANY_KEYS / 3;
    let clock = ManualClock::new();
    let purgatory = Purgatory::<patient::Op>::builder("g28").clock(clock.clone());
    // Without this, their number follows the processors, and the room that is left in their tables follows their number.
    // The tables of 2,048 shards are small.
    let purgatory = purgatory.map_shards(2_048);
    let is_manual = matches!(reaper, Reaper::Manual);
    let purgatory = purgatory.reaper(reaper).build();
    let purgatory = purgatory.expect("the settings are sound");
    let before = allocated();
    let each = || (allocated() - before) as f64 / PARKED as f64;
    let rounds = std::array::from_fn(|_| {
        for number in 0..PARKED {
            let watched = [0, 1, 2].map(|key| (3 * number + key) % keys);
            let parked = purgatory.try_complete_else_watch(patient::Op(HOUR), watched);
            assert!(parked.is_ok_and(|admission| admission.is_parked()));
        }
        let full = each();
        if !by_expiry {
            let all = (0..keys).map(|key| purgatory.cancel_for_key(&key).len());
            assert_eq!(all.sum::<usize>(), PARKED as usize);
        }
        clock.advance(2 * HOUR);
        if is_manual {
            let expired = if by_expiry { PARKED as usize } else { 0 };
            assert_eq!(purgatory.advance(), expired);
        } else {
            eventually("all but the slots goes", || each() <= allowed);
        }
        (full, each())
    });
    drop(purgatory);
    // (Threads of its own may end a moment later.)
    let left = allocated().saturating_sub(before);
    assert!(!is_manual || left < LITTLE, "{left} bytes outlive it");
    rounds
}

/// What was full and is empty keeps the slots, for the operations to come, and gives all else back when the timer is
/// driven and has no deadline left: of many keys it keeps no more than of three. When it is dropped it keeps nothing.
#[test]
fn g28_what_was_full_and_is_empty_gives_memory_back() {
    let _alone = lock(&MEMORY);
    for by_expiry in [false, true] {
        let few = filled_and_emptied(3, by_expiry, Reaper::Manual, 0.0);
        let many = filled_and_emptied(MANY_KEYS, by_expiry, Reaper::Manual, 0.0);
        for (few, many) in few.iter().zip(&many) {
            let of = format!("few {few:?}, many {many:?}");
            assert!(many.0 > few.0 + 50.0, "what the keys take: {of}");
            assert!(many.1 < few.1 + 10.0, "what is kept: {of}");
        }
        assert!(many[2].1 < many[0].1 + 1.0, "it grows: {many:?}");
        if by_expiry {
            filled_and_emptied(MANY_KEYS, by_expiry, Reaper::Own, few[0].1 + 10.0);
        }
    }
}

/// A form of a key that is compared between two calls of another thread.
struct Slowly<'a>(usize, &'a Barrier);

impl Hash for Slowly<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Equivalent<usize> for Slowly<'_> {
    fn equivalent(&self, key: &usize) -> bool {
        self.1.wait();
        self.1.wait();
        self.0 == *key
    }
}

/// The maps of a tracker and of requests; checks that wait until the timer is driven; rechecks of listeners that have
/// gone; completions that wait for their thread, calls that wait for the end of another, and nested checks. (These calls
/// and checks wait in queues of the thread.)
#[test]
fn g28_a_burst_leaves_no_memory() {
    const BURST: usize = 20_000;
    const TICK: Duration = Duration::from_millis(1);
    let _alone = lock(&MEMORY);
    let plain = || manual::<usize>(|builder| builder).0;

    let tracker = tracker::<[u64; 50]>();
    leaves_slots("a tracker", BURST, || {
        let track = |key| tracker.track(key, [0; 50], Duration::MAX).is_ok();
        assert!((0..BURST).all(track));
        // Nothing can go yet, and all of it later.
        tracker.advance();
        assert!((0..BURST).all(|key| tracker.complete(&key).is_some()));
        tracker.advance();
    });
    drop(tracker);

    let calls = requests::<[usize; 50]>();
    leaves_slots("requests", BURST, || {
        let request = |id| calls.request([id; 50], Duration::MAX).expect("a new id");
        let pending = (0..BURST).map(request).collect::<Vec<_>>();
        calls.advance();
        for id in 0..BURST {
            assert_eq!(calls.respond(&[id; 50], ()), Responded::Delivered);
        }
        drop(pending);
        calls.advance();
    });
    drop(calls);

    let mut kept = None;
    leaves_little("a map of two shards, with whatever hasher", || {
        let builder = Purgatory::<Op<usize>>::builder("g28").reaper(Reaper::Manual);
        let purgatory = builder.map_shards(2).hasher(RandomState::new()).build();
        let purgatory = kept.insert(purgatory.expect("no threads to refuse"));
        drop(purgatory.try_complete_else_watch(Op::new(Duration::MAX), [1]));
    });
    drop(kept);

    let purgatory = plain();
    leaves_little("deferred checks", || {
        (0..BURST).for_each(|key| purgatory.check_later(key));
        purgatory.advance();
    });

    let waits = Waits::<usize>::builder("g28").clock(ManualClock::new());
    let waits = waits.map_shards(2).reaper(Reaper::Manual).build();
    let waits = waits.expect("no threads to refuse");
    let listeners = || (0..BURST).map(|_| waits.listen([1], None));
    // Their slots stay.
    drop(listeners().collect::<Vec<_>>());
    waits.advance();
    leaves_little("rechecks", || {
        let rechecked = listeners().map(|listener| listener.recheck_every(TICK));
        drop(rechecked.collect::<Vec<_>>());
        waits.advance();
    });

    let purgatory = manual::<usize>(|builder| builder.map_shards(2)).0;
    let burst = |is_read: bool| {
        for key in 0..BURST {
            drop(purgatory.try_complete_else_watch(Op::new(Duration::MAX), [key]));
        }
        for key in 1..BURST {
            assert_eq!(purgatory.cancel_for_key(&key).len(), 1);
        }
        let both = Barrier::new(2);
        if is_read {
            // A thread has the lock of the last key's shard when the purgatory looks for tables that can go.
            scope(|scope| {
                let reader = scope.spawn(|| purgatory.watchers(&Slowly(0, &both)));
                both.wait();
                purgatory.advance();
                both.wait();
                assert_eq!(reader.join().expect("it only counts"), 1);
            });
        }
        assert_eq!(purgatory.cancel_for_key(&0).len(), 1);
        purgatory.advance();
    };
    // Its slots stay.
    burst(false);
    leaves_little("a table that is being read", || burst(true));

    let (purgatory, clock) = manual::<usize>(|builder| builder.dispatch(Dispatch::OwnThread));
    let expire_one = |op| {
        drop(purgatory.try_complete_else_watch(op, [1]));
        clock.advance(2 * TICK);
        assert_eq!(purgatory.advance(), 1);
    };
    let all_have_run = || purgatory.stats().completions_pending == 0;
    // The map and the thread are there from now on.
    expire_one(Op::new(TICK));
    eventually("the first completion", all_have_run);
    let before = allocated();
    let (go_on, gate) = channel();
    expire_one(Op::new(TICK).then(move |_| gate.recv().expect("it is opened")));
    (0..BURST).for_each(|_| expire_one(Op::new(TICK)));
    go_on.send(()).expect("it waits");
    eventually("all completions", all_have_run);
    eventually("their memory", || allocated() - before < LITTLE);

    leaves_little("calls", || {
        let purgatory = plain();
        let park = |_| purgatory.try_complete_else_watch(Op::new(HOUR), [1]);
        let handles = (0..BURST).map(|number| park(number).expect("there is room").into_handle());
        let handles = handles.flatten().collect::<Vec<_>>();
        assert_eq!(handles.len(), BURST);
        let force = move |_| handles.iter().for_each(|it| assert!(it.force_complete()));
        let all = Op::new(HOUR).then(force);
        drop(purgatory.try_complete_else_watch(all, [2]));
        assert_eq!(purgatory.force_complete_for_key(&2), 1);
        assert!(purgatory.is_empty());
    });

    leaves_little("nested checks", || {
        let purgatory = plain();
        for key in 0..BURST {
            drop(purgatory.try_complete_else_watch(Op::new(HOUR), [key]));
        }
        let weak = purgatory.downgrade();
        let all = Op::new(HOUR).when(move || {
            let purgatory = weak.upgrade().expect("it is being parked");
            (0..BURST).for_each(|key| _ = purgatory.check_and_complete(&key));
            false
        });
        drop(purgatory.try_complete_else_watch(all, [BURST]));
    });
}

/// The slots of timers that have fired are used again.
/// The waker of a task drops its future when the deadline has come, as a timeout of the runtime may, while the thread
/// that wakes it has the operation. A third one waits all the while, so the timer is never idle.
#[test]
fn g06_listeners_that_are_dropped_at_their_deadline_leave_nothing() {
    type Until = Pin<Box<dyn Future<Output = Result<(), WaitError>> + Send>>;
    let _alone = lock(&MEMORY);
    let clock = ManualClock::new();
    let waits = Waits::<u64>::builder("g06").clock(clock.clone());
    let waits = waits.reaper(Reaper::Manual).build();
    let waits = waits.expect("no threads to refuse");
    let _third = waits.listen([3], HOUR * 1_000_000);
    let ends = || {
        let task = Arc::<Mutex<Option<Until>>>::default();
        let until = waits.listen([1], HOUR).until(|| ready(None::<()>));
        let dropped = task.clone();
        let waker = waker(move || drop(lock(&dropped).take()));
        let mut until: Until = Box::pin(until);
        let polled = until.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        *lock(&task) = Some(until);
        clock.advance(HOUR);
        waits.advance();
        assert_eq!(waits.len(), 1);
    };
    (0..100).for_each(|_| ends());
    leaves_little("listeners", || (0..2_000).for_each(|_| ends()));
}

/// The operation of the added key stays parked past its deadline, while the listener's own, which was moved, has time. A
/// third one waits all the while, so the timer is never idle.
#[test]
fn g06_listeners_whose_added_keys_expire_leave_nothing() {
    let _alone = lock(&MEMORY);
    let clock = ManualClock::new();
    let waits = Waits::<u64>::builder("g06").clock(clock.clone());
    let waits = waits.max_timeout(HOUR).reaper(Reaper::Manual).build();
    let waits = waits.expect("no threads to refuse");
    let third = waits.listen([3], HOUR);
    let moves = |listener: &Listener<u64>| {
        let handle = listener.handle().expect("it is parked");
        assert!(handle.reschedule(HOUR));
    };
    let ends = || {
        let mut listener = waits.listen([1], HOUR);
        listener.also(2);
        clock.advance(HOUR / 2);
        moves(&listener);
        moves(&third);
        let mut until = pin!(listener.until(|| ready(None::<()>)));
        assert!(Bell::new().poll(&mut until).is_pending());
        clock.advance(HOUR / 2);
        moves(&third);
        assert_eq!(waits.advance(), 0);
        let ended = Bell::new().poll(&mut until);
        assert_eq!(ended, Poll::Ready(Err(WaitError::Expired)));
    };
    (0..100).for_each(|_| ends());
    leaves_little("listeners", || (0..2_000).for_each(|_| ends()));
    assert_eq!(waits.len(), 1);
}

#[test]
fn g06_timers_that_fire_leave_no_slots() {
    const COUNT: usize = 1_000;
    let _alone = lock(&MEMORY);
    let clock = ManualClock::new();
    let builder = Timer::builder("g06").clock(clock.clone());
    let timer = builder.reaper(Reaper::Manual).build(drop::<usize>);
    let timer = timer.expect("no threads to refuse");
    let fire_all = || {
        for number in 0..COUNT {
            timer.start(HOUR, number).expect("there is room");
        }
        clock.advance(2 * HOUR);
        assert_eq!(timer.advance(), COUNT);
        allocated()
    };
    let before = fire_all();
    let after = (0..50).map(|_| fire_all()).max().expect("there are some");
    assert!(after < before + LITTLE, "{before}, then {after}");
}
