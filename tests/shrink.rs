//! G28: what stays of many operations that have ended, counted; and G20: what a start or a recheck allocates at once. A
//! target of its own, because it counts the memory of the whole process.

use request_purgatory::purgatory::{Builder, Handle};
use request_purgatory::threads::Reaper;
use request_purgatory::time::ManualClock;
use request_purgatory::{Completion, DelayedOperation, Listener, Purgatory, Timer, Waits};
use request_purgatory_tracker::{Requests, Tracker};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};
use testing::allocated::{Counting, allocated};
use testing::{PATIENCE, lock, within};

#[global_allocator]
static COUNTING: Counting = Counting;

/// One test at a time counts it.
static MEMORY: Mutex<()> = Mutex::new(());

type ParkedHandle<const BYTES: usize> = Handle<Padded<BYTES>>;

const HOUR: Duration = Duration::from_secs(3_600);

/// It waits for its timeout.
struct Padded<const BYTES: usize> {
    bytes: [u8; BYTES],
    timeout: Duration,
}

impl<const BYTES: usize> Padded<BYTES> {
    fn new(number: usize, timeout: Duration) -> Self {
        let bytes = [number as u8; BYTES];
        Self { bytes, timeout }
    }
}

impl<const BYTES: usize> DelayedOperation for Padded<BYTES> {
    type Key = usize;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(self, _: Completion) {
        assert!(self.bytes.iter().all(|byte| *byte == self.bytes[0]));
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
) -> ParkedHandle<BYTES> {
    let parked = purgatory.try_complete_else_watch(Padded::new(number, HOUR), [key]);
    let handle = parked.expect("there is room").into_handle();
    handle.expect("it cannot complete yet")
}

/// Parks so many operations, each on a key of its own, and ends them. Returns the bytes at the peak, and those that
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
            let (peak, stays) = parked_and_ended::<16>(COUNT, by);
            assert!(stays < (1 << 20) + COUNT * 24, "{by:?}: {stays} of {peak}");
        }
        let (peak, stays) = parked_and_ended::<0>(250_000, By::Cancel);
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
            let large = std::thread::Builder::new().stack_size(1 << 26);
            let large = large.spawn(move || parked_and_ended::<65_536>(500, by));
            let (peak, stays) = large.expect("a thread").join().expect("it passes");
            assert!(peak > 500 * 65_536);
            assert!(stays < 500 * 200, "{by:?}: {stays} of {peak}");
        }
        let (purgatory, _) = by_hand::<4_096>();
        let before = allocated();
        (0..3_000).for_each(|number| _ = park(&purgatory, number, number));
        assert!((0..3_000).all(|key| purgatory.cancel_for_key(&key).len() == 1));
        let stays = allocated() - before;
        assert!(stays < 3_000 * 400, "without a shrink: {stays}");
    });
}

/// The test does not call `shrink`, and an operation without an end keeps the timer's shards in use.
#[test]
fn g28_slots_go_while_another_operation_stays_parked() {
    const COUNT: usize = 100_000;
    let _alone = lock(&MEMORY);
    let (purgatory, _) = by_hand::<16>();
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

/// A table that moves its entries, under a lock, moves them to memory that it allocates at once. A start of a payload
/// with a weight allocates no more at once than a start of a payload without one.
#[test]
fn g20_a_start_with_a_weight_moves_no_weights_of_others() {
    const COUNT: usize = 100_000;
    /// The most that one start allocates, while so many others are parked.
    fn most_at_once(timer: &Timer<usize>) -> usize {
        let start = |number| {
            let before = allocated();
            let started = timer.start_weighed(HOUR, 2, number);
            assert!(started.is_ok(), "there is room");
            allocated().saturating_sub(before)
        };
        (0..COUNT).map(start).max().expect("there are some")
    }
    let _alone = lock(&MEMORY);
    let builder = || Timer::builder("g20").reaper(Reaper::Manual);
    let build = |it: Builder<Timer<usize>>| it.build(drop).expect("no threads to refuse");
    let unweighed = most_at_once(&build(builder()));
    for weighed in [
        builder().max_weight(usize::MAX),
        builder().max_weight(usize::MAX).max_parked(usize::MAX),
    ] {
        let weighed = most_at_once(&build(weighed));
        let more = weighed.saturating_sub(unweighed);
        assert!(more < 1 << 14, "{weighed}, and {unweighed} without weights");
    }
}

/// Many listeners ask for rechecks. None of these calls allocates more at once than a call that moves the deadline of
/// one of the listeners. (A table that moves its entries moves them to memory that it allocates at once.)
#[test]
fn g20_a_recheck_moves_none_of_other_listeners() {
    const COUNT: u64 = 100_000;
    /// The most bytes that one call of `files` allocates, beside `COUNT` listeners.
    fn most_at_once(files: impl Fn(Listener<u64>) -> Listener<u64>) -> usize {
        let builder = Waits::<u64>::builder("g20").clock(ManualClock::new());
        let waits = builder.map_shards(16).reaper(Reaper::Manual).build();
        let waits = waits.expect("no threads to refuse");
        let listeners = (0..COUNT).map(|_| waits.listen([1], None));
        let listeners = listeners.collect::<Vec<_>>();
        let mut filed = Vec::with_capacity(listeners.len());
        let mut most = 0;
        for listener in listeners {
            let before = allocated();
            filed.push(files(listener));
            most = most.max(allocated().saturating_sub(before));
        }
        most
    }
    let _alone = lock(&MEMORY);
    let moved = most_at_once(|listener| {
        let handle = listener.handle().expect("there is room");
        assert!(handle.reschedule(HOUR));
        listener
    });
    let rechecked = most_at_once(|listener| listener.recheck_every(HOUR));
    let more = rechecked.saturating_sub(moved);
    assert!(more < 1 << 14, "{rechecked}, and {moved} without rechecks");
}

/// What the weights needed is given back, but for less than a kibibyte for each timer shard.
#[test]
fn g28_weights_that_have_gone_keep_no_memory() {
    const COUNT: usize = 100_000;
    let _alone = lock(&MEMORY);
    let kept = |bound: Option<usize>| {
        let builder = Timer::builder("g28").reaper(Reaper::Manual);
        let builder = match bound {
            Some(max) => builder.max_weight(max),
            None => builder,
        };
        let timer = builder.build(drop::<usize>).expect("no threads to refuse");
        let mut ids = Vec::with_capacity(COUNT);
        let before = allocated();
        let started = (0..COUNT).map(|number| timer.start_weighed(HOUR, 2, number));
        ids.extend(started.map(|id| id.expect("there is room")));
        assert!(ids.iter().all(|id| timer.stop(*id).is_some()));
        allocated().saturating_sub(before)
    };
    let (unweighed, weighed) = (kept(None), kept(Some(usize::MAX)));
    let more = weighed.saturating_sub(unweighed);
    assert!(more < 1 << 16, "{weighed}, and {unweighed} without weights");
}

/// A reaper of its own, and what has no lists.
#[test]
fn g28_an_idle_timer_gives_back_what_many_have_needed() {
    const COUNT: usize = 250_000;
    let _alone = lock(&MEMORY);
    let before = allocated();
    let fired = std::sync::Arc::new(AtomicUsize::new(0));
    let count = fired.clone();
    let clock = ManualClock::new();
    let timer = Timer::builder("g28").clock(clock.clone());
    let timer = timer.build(move |bytes: [u64; 24]| {
        assert_eq!(bytes, [7; 24]);
        count.fetch_add(1, Ordering::Relaxed);
    });
    let timer = timer.expect("the system has threads left");
    for _ in 0..COUNT {
        timer.start(HOUR, [7; 24]).expect("there is room");
    }
    let peak = allocated() - before;
    clock.advance(2 * HOUR);
    let begun = Instant::now();
    while allocated() - before > peak / 10 || fired.load(Ordering::Relaxed) < COUNT {
        let stays = allocated() - before;
        assert!(begun.elapsed() < PATIENCE, "{stays} of {peak}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Four threads park and end while a fifth shrinks; nothing is lost, and nothing ends twice.
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
                let bytes = op.expect("it is parked").bytes;
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
    let tracker = Tracker::builder("g28").clock(ManualClock::new());
    let tracker = tracker.reaper(Reaper::Manual).build(|_, _, _| ());
    let tracker: Tracker<usize, u64> = tracker.expect("no threads to refuse");
    let calls = Requests::builder("g28").clock(ManualClock::new());
    let calls = calls.remembered_ids(0).reaper(Reaper::Manual).build();
    let calls: Requests<usize, ()> = calls.expect("no threads to refuse");
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
