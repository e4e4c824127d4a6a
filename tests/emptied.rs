//! G28: what is kept after much. A target of its own, because it counts the memory of the whole process.

use request_purgatory::purgatory::Equivalent;
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::ManualClock;
use request_purgatory::{Purgatory, Waits};
use request_purgatory_tracker::{Requests, Responded, Tracker};
use std::hash::{Hash, Hasher, RandomState};
use std::sync::mpsc::channel;
use std::sync::{Barrier, Mutex};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use support::{NEVER_IN_A_TEST, eventually, lock, manual};
use testing as support;
use testing::allocated::{Counting, allocated};
use testing::patient::Op;

#[global_allocator]
static COUNTING: Counting = Counting;

/// One test at a time counts it.
static MEMORY: Mutex<()> = Mutex::new(());

/// A reaper may take this long, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(3_600);

/// Fills a purgatory with operations on three of `keys` keys each, and empties it, three times. Returns the bytes for
/// each operation when it was full and when it was empty again, by round. A reaper of its own, on a thread of its own,
/// is waited for until no more is kept than `allowed`.
fn filled_and_emptied(keys: u64, by_expiry: bool, reaper: Reaper, allowed: f64) -> [(f64, f64); 3] {
    const PARKED: u64 = 100_000;
    let clock = ManualClock::new();
    let purgatory = Purgatory::<Op>::builder("g28").clock(clock.clone());
    // Without this, their number follows the processors, and the room that is left in their tables follows their number.
    // The tables of 8,192 shards are small.
    let purgatory = purgatory.map_shards(8_192);
    let is_manual = matches!(reaper, Reaper::Manual);
    let purgatory = purgatory.reaper(reaper).build();
    let purgatory = purgatory.expect("the settings are sound");
    let before = allocated();
    let each = || (allocated() - before) as f64 / PARKED as f64;
    let rounds = std::array::from_fn(|_| {
        for number in 0..PARKED {
            let watched = [0, 1, 2].map(|key| (3 * number + key) % keys);
            let parked = purgatory.try_complete_else_watch(Op(LONG), watched);
            assert!(parked.is_ok_and(|admission| admission.is_parked()));
        }
        let full = each();
        if !by_expiry {
            let all = (0..keys).map(|key| purgatory.cancel_for_key(&key).len());
            assert_eq!(all.sum::<usize>(), PARKED as usize);
        }
        clock.advance(2 * LONG);
        if is_manual {
            let expired = if by_expiry { PARKED as usize } else { 0 };
            assert_eq!(purgatory.advance(), expired);
        }
        let begun = Instant::now();
        while !is_manual && each() > allowed {
            assert!(begun.elapsed() < PATIENCE, "{} is kept", each());
            sleep(Duration::from_millis(1));
        }
        (full, each())
    });
    drop(purgatory);
    // (Threads of its own may end a moment later.)
    let left = allocated().saturating_sub(before);
    assert!(!is_manual || left < 1 << 16, "{left} bytes outlive it");
    rounds
}

/// What was full and is empty keeps the slots, for the operations to come, and gives all else back when the timer is
/// driven and has no deadline left: of many keys it keeps no more than of three. When it is dropped it keeps nothing.
#[test]
fn g28_what_was_full_and_is_empty_gives_memory_back() {
    let _alone = lock(&MEMORY);
    for by_expiry in [false, true] {
        let few = filled_and_emptied(3, by_expiry, Reaper::Manual, 0.0);
        let many = filled_and_emptied(300_000, by_expiry, Reaper::Manual, 0.0);
        for (few, many) in few.iter().zip(&many) {
            let of = format!("few {few:?}, many {many:?}");
            assert!(many.0 > few.0 + 50.0, "what the keys take: {of}");
            assert!(many.1 < few.1 + 10.0, "what is kept: {of}");
        }
        assert!(many[2].1 < many[0].1 + 1.0, "it grows: {many:?}");
        if by_expiry {
            filled_and_emptied(300_000, by_expiry, Reaper::Own, few[0].1 + 10.0);
        }
    }
}

/// What a burst may leave.
const LITTLE: usize = 1 << 16;

fn leaves_little(what: &str, burst: impl FnOnce()) {
    let before = allocated();
    burst();
    let kept = allocated().saturating_sub(before);
    assert!(kept < LITTLE, "{what}: {kept}");
}

/// What is kept of each is a slot, and no entry.
fn leaves_slots(what: &str, count: usize, burst: impl FnOnce()) {
    let before = allocated();
    burst();
    let each = (allocated() - before) / count;
    assert!(each < 150, "{what}: {each}");
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
    type Op = support::Op<usize>;
    let _alone = lock(&MEMORY);
    let by_hand = || manual::<usize>(|builder| builder).0;

    let tracker = Tracker::builder("g28").clock(ManualClock::new());
    let tracker = tracker.reaper(Reaper::Manual).build(|_, _, _| ());
    let tracker: Tracker<usize, [u64; 50]> = tracker.expect("no threads to refuse");
    leaves_slots("a tracker", BURST, || {
        let track = |key| tracker.track(key, [0; 50], Duration::MAX).is_ok();
        assert!((0..BURST).all(track));
        // Nothing can go yet, and all of it later.
        tracker.advance();
        assert!((0..BURST).all(|key| tracker.complete(&key).is_some()));
        tracker.advance();
    });
    drop(tracker);

    let calls = Requests::builder("g28").clock(ManualClock::new());
    let calls = calls.reaper(Reaper::Manual).remembered_ids(0).build();
    let calls: Requests<[usize; 50], ()> = calls.expect("no threads to refuse");
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
        let builder = Purgatory::<Op>::builder("g28").reaper(Reaper::Manual);
        let purgatory = builder.map_shards(2).hasher(RandomState::new()).build();
        let purgatory = kept.insert(purgatory.expect("no threads to refuse"));
        drop(purgatory.try_complete_else_watch(Op::new(Duration::MAX), [1]));
    });
    drop(kept);

    let purgatory = by_hand();
    leaves_little("deferred checks", || {
        (0..BURST).for_each(|key| purgatory.check_later(key));
        purgatory.advance();
    });

    let waits = Waits::<usize>::builder("g28").clock(ManualClock::new());
    let waits = waits.map_shards(2).reaper(Reaper::Manual).build();
    let waits = waits.expect("no threads to refuse");
    let burst = |interval: Option<Duration>| {
        let listeners = (0..BURST).map(|_| {
            let listener = waits.listen([1], None);
            match interval {
                Some(interval) => listener.recheck_every(interval),
                None => listener,
            }
        });
        drop(listeners.collect::<Vec<_>>());
        waits.advance();
    };
    // Its slots stay.
    burst(None);
    leaves_little("rechecks", || burst(Some(TICK)));

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
        let purgatory = by_hand();
        let park = |_| purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1]);
        let handles = (0..BURST).map(|number| park(number).expect("there is room").into_handle());
        let handles = handles.flatten().collect::<Vec<_>>();
        assert_eq!(handles.len(), BURST);
        let force = move |_| handles.iter().for_each(|it| assert!(it.force_complete()));
        let all = Op::new(NEVER_IN_A_TEST).then(force);
        drop(purgatory.try_complete_else_watch(all, [2]));
        assert_eq!(purgatory.force_complete_for_key(&2), 1);
        assert!(purgatory.is_empty());
    });

    leaves_little("nested checks", || {
        let purgatory = by_hand();
        for key in 0..BURST {
            drop(purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [key]));
        }
        let weak = purgatory.downgrade();
        let all = Op::new(NEVER_IN_A_TEST).when(move || {
            let purgatory = weak.upgrade().expect("it is being parked");
            (0..BURST).for_each(|key| _ = purgatory.check_and_complete(&key));
            false
        });
        drop(purgatory.try_complete_else_watch(all, [BURST]));
    });
}
