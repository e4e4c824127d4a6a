//! Work for `.ci/instructions`, which counts the instructions of the hot calls under valgrind.
//!
//! `instructions NAME COUNT` makes one call COUNT times; `instructions` alone lists the names. Everything that could
//! vary from run to run is fixed: the hasher, the clock, the one thread.

use request_purgatory::future::block_on;
use request_purgatory::{
    CheckBound, Completion, DelayedOperation, Purgatory, Timer, Waits, threads::Dispatch,
    threads::Reaper, time::Clock, time::ManualClock, time::Timestamp,
};
use request_purgatory_tracker::{Requests, Responded, Tracker};
use std::future::Future;
use std::hint::black_box;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

type Hasher = foldhash::fast::FixedState;
type Waiting<Op = Operation> = Purgatory<Op, Hasher>;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Others that wait meanwhile.
const OTHERS: u64 = 1000;

/// A clock that stands still, and costs nothing.
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }
}

struct Operation(Arc<AtomicBool>);

/// One whose time of arrival is known.
struct Arrived(Operation);

impl DelayedOperation for Arrived {
    type Key = u64;

    fn timeout(&self) -> Duration {
        TIMEOUT
    }

    fn arrival(&self) -> Option<Timestamp> {
        Some(Timestamp::default())
    }

    fn try_complete(&mut self) -> bool {
        self.0.try_complete()
    }

    fn on_complete(self, completion: Completion) {
        self.0.on_complete(completion);
    }
}

impl DelayedOperation for Operation {
    type Key = u64;

    fn timeout(&self) -> Duration {
        TIMEOUT
    }

    fn try_complete(&mut self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn on_complete(self, completion: Completion) {
        black_box(completion);
    }
}

/// A purgatory in which others wait already.
fn purgatory() -> Waiting {
    purgatory_of(|operation| operation)
}

fn purgatory_of<Op: DelayedOperation<Key = u64>>(op: impl Fn(Operation) -> Op) -> Waiting<Op> {
    let purgatory = Purgatory::builder("instructions")
        .clock(Still)
        .reaper(Reaper::Manual)
        .hasher(Hasher::default())
        .build()
        .expect("the settings are sound");
    park_others(&purgatory, 0..OTHERS, op);
    purgatory
}

fn park_others<Op: DelayedOperation<Key = u64>>(
    purgatory: &Waiting<Op>,
    others: Range<u64>,
    op: impl Fn(Operation) -> Op,
) {
    for other in others {
        let keys = [(1 << 32) | other];
        drop(purgatory.try_complete_else_watch(op(Operation(Arc::default())), keys));
    }
}

/// Parks `count` times on what `park` says, and checks what `check` says.
fn lives<const K: usize>(count: u64) {
    lives_in::<K>(&purgatory(), count);
}

/// 20,000 other operations wait. They have taken the first slots, whose memory is never freed, so each further operation
/// gets a slot in a block.
fn lives_in_blocks(count: u64) {
    let purgatory = purgatory();
    park_others(&purgatory, OTHERS..20 * OTHERS, |operation| operation);
    lives_in::<3>(&purgatory, count);
}

fn lives_in<const K: usize>(purgatory: &Waiting, count: u64) {
    let ready = Arc::new(AtomicBool::new(false));
    for life in 0..count {
        let keys = std::array::from_fn::<_, K, _>(|key| life % OTHERS + key as u64);
        drop(purgatory.try_complete_else_watch(Operation(ready.clone()), keys));
        ready.store(true, Ordering::Relaxed);
        assert_eq!(purgatory.check_and_complete(&keys[0]), 1);
        ready.store(false, Ordering::Relaxed);
    }
}

/// Each operation shares its keys with its neighbours, as in W1 with three keys: of the three that a check examines, one
/// completes.
fn lives_on_shared_keys(count: u64) {
    let purgatory = purgatory();
    let flags = [(); OTHERS as usize].map(|()| Arc::new(AtomicBool::new(false)));
    let park = |number: u64| {
        let keys = [number, number + 1, number + 2].map(|key| key % OTHERS);
        let operation = Operation(flags[number as usize].clone());
        drop(purgatory.try_complete_else_watch(operation, keys));
    };
    (0..OTHERS).for_each(park);
    for life in 0..count {
        let oldest = life % OTHERS;
        let flag = &flags[oldest as usize];
        flag.store(true, Ordering::Relaxed);
        assert_eq!(purgatory.check_and_complete(&oldest), 1);
        flag.store(false, Ordering::Relaxed);
        park(oldest);
    }
}

fn resolved_lives(count: u64) {
    let purgatory = purgatory_of(Arrived);
    let ready = Arc::new(AtomicBool::new(false));
    let keys = [(); 16].map(|()| purgatory.resolve(7));
    for life in 0..count {
        let key = &keys[life as usize % keys.len()];
        let operation = Arrived(Operation(ready.clone()));
        drop(purgatory.try_complete_else_watch(operation, [key.watch()]));
        ready.store(true, Ordering::Relaxed);
        assert_eq!(key.check_and_complete(), 1);
        ready.store(false, Ordering::Relaxed);
    }
}

fn ranked_lives(count: u64) {
    let purgatory = purgatory();
    let ready = Arc::new(AtomicBool::new(false));
    let key = purgatory.resolve(7);
    let park = |rank, ready: &Arc<AtomicBool>| {
        let watch = key.watch().at_rank(rank);
        drop(purgatory.try_complete_else_watch(Operation(ready.clone()), [watch]));
    };
    (0..OTHERS).for_each(|above| park(u64::MAX - above, &Arc::default()));
    for rank in 0..count {
        park(rank, &ready);
        ready.store(true, Ordering::Relaxed);
        assert_eq!(
            key.check_and_complete_with(CheckBound::all().up_to(rank)),
            1
        );
        ready.store(false, Ordering::Relaxed);
    }
}

fn cancelled_lives(count: u64) {
    let purgatory = purgatory();
    for life in 0..count {
        let operation = Operation(Arc::default());
        let watch = purgatory.try_complete_else_watch(operation, [life % OTHERS]);
        let handle = watch.ok().and_then(|watch| watch.into_handle());
        drop(black_box(handle.and_then(|handle| handle.cancel())));
    }
}

/// All of them expire at once.
fn expired_lives(count: u64) {
    let clock = ManualClock::new();
    let purgatory = Purgatory::<Operation>::builder("instructions")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::Inline)
        .hasher(Hasher::default())
        // The default depends on the number of processors, and how many watches of a batch share a lock on this.
        .map_shards(1024)
        .build()
        .expect("the settings are sound");
    for key in 0..count {
        drop(purgatory.try_complete_else_watch(Operation(Arc::default()), [key]));
    }
    clock.advance(2 * TIMEOUT);
    assert_eq!(purgatory.advance() as u64, count);
}

fn checks_of_a_key(count: u64) {
    let purgatory = purgatory();
    for key in 0..count {
        assert_eq!(purgatory.check_and_complete(black_box(&(key % OTHERS))), 0);
    }
}

fn checks_of_a_resolved_key(count: u64) {
    let purgatory = purgatory();
    let key = purgatory.resolve(7);
    for _ in 0..count {
        assert_eq!(black_box(&key).check_and_complete(), 0);
    }
}

fn checks_after_a_lock(count: u64) {
    let purgatory = purgatory();
    let key = purgatory.resolve(7);
    for _ in 0..count {
        assert_eq!(black_box(&key).check_and_complete_after_lock(), 0);
    }
}

fn checks_in_vain(count: u64) {
    let purgatory = purgatory();
    for key in 0..count {
        let key = (1 << 32) | (key % OTHERS);
        assert_eq!(purgatory.check_and_complete(black_box(&key)), 0);
    }
}

fn timers(count: u64) {
    let timer = Timer::builder("instructions")
        .clock(Still)
        .reaper(Reaper::Manual)
        .build(|payload: u64| _ = black_box(payload))
        .expect("the settings are sound");
    for payload in 0..count {
        let id = timer.start(TIMEOUT, payload).expect("there is room");
        assert_eq!(timer.stop(id), Some(payload));
    }
}

fn tracked(count: u64) {
    let tracker = Tracker::builder("instructions")
        .clock(Still)
        .reaper(Reaper::Manual)
        .hasher(Hasher::default())
        .build(|key: u64, value: u64, _| _ = black_box((key, value)))
        .expect("the settings are sound");
    for key in 0..count {
        drop(tracker.track(key % OTHERS, key, TIMEOUT));
        assert_eq!(tracker.complete(&(key % OTHERS)), Some(key));
    }
}

fn requests(count: u64) {
    let requests = Requests::builder("instructions")
        .clock(Still)
        .reaper(Reaper::Manual)
        .hasher(Hasher::default())
        .build()
        .expect("the settings are sound");
    for id in 0..count {
        let request = requests.request(id, TIMEOUT).expect("the id is free");
        assert_eq!(requests.respond(&id, id), Responded::Delivered);
        assert_eq!(block_on(request), Ok(id));
    }
}

fn waits() -> Waits<u64, Hasher> {
    Waits::builder("instructions")
        .clock(Still)
        .reaper(Reaper::Manual)
        .hasher(Hasher::default())
        .build()
        .expect("the settings are sound")
}

fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// A wait is polled, satisfied and polled again.
fn waited(count: u64) {
    let (waits, last) = (waits(), Arc::new(AtomicU64::new(0)));
    for event in 1..=count {
        let seen = last.clone();
        let happened = move || (seen.load(Ordering::Relaxed) == event).then_some(event);
        let mut wait = waits.wait([event % OTHERS], TIMEOUT, happened);
        assert!(poll(&mut wait).is_pending());
        last.store(event, Ordering::Relaxed);
        assert_eq!(waits.check_and_complete(&(event % OTHERS)), 1);
        assert_eq!(poll(wait), Poll::Ready(Ok(event)));
    }
}

/// A value is taken that is there, and given back. An operation has waited before, and none does now.
fn taken(count: u64) {
    let (waits, values) = (waits(), Arc::new(Mutex::new(vec![1_u64])));
    drop(waits.wait([1], TIMEOUT, || None::<()>));
    for _ in 0..count {
        let (takes, returns) = (values.clone(), values.clone());
        let take = waits.take(
            [1],
            TIMEOUT,
            move |_| takes.lock().ok()?.pop(),
            move |value| returns.lock().expect("no holder panics").push(value),
        );
        assert!(matches!(poll(take), Poll::Ready(Ok(value)) if *value == 1));
    }
}

/// A listener is polled, told of a check, polled again, and ended.
fn listened(count: u64) {
    let waits = waits();
    for key in 0..count {
        let mut listener = waits.listen([key % OTHERS], TIMEOUT);
        assert!(poll(listener.checked()).is_pending());
        assert_eq!(waits.check_and_complete(&(key % OTHERS)), 0);
        assert_eq!(poll(listener.checked()), Poll::Ready(Ok(())));
        listener.satisfied();
    }
}

type Work = fn(u64);

/// Names of the hot calls, as the table of `.ci/instructions` has them.
const WORK: &[(&str, Work)] = &[
    ("life-of-one-key", lives::<1>),
    ("life-of-three-keys", lives::<3>),
    ("life-beside-20000-others", lives_in_blocks),
    ("life-on-three-shared-keys", lives_on_shared_keys),
    ("life-on-a-resolved-key", resolved_lives),
    ("life-at-a-rank", ranked_lives),
    ("life-cancelled", cancelled_lives),
    ("life-expired", expired_lives),
    ("check-of-a-key", checks_of_a_key),
    ("check-of-a-resolved-key", checks_of_a_resolved_key),
    ("check-after-a-lock", checks_after_a_lock),
    ("check-in-vain", checks_in_vain),
    ("timer-started-and-stopped", timers),
    ("tracked-and-completed", tracked),
    ("request-and-response", requests),
    ("wait-satisfied", waited),
    ("taken-at-once-and-given-back", taken),
    ("listener-told-and-satisfied", listened),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(name) = arguments.next() else {
        WORK.iter().for_each(|(name, _)| println!("{name}"));
        return;
    };
    let count = arguments.next().and_then(|count| count.parse().ok());
    let work = WORK.iter().find(|(known, _)| *known == name);
    match (work, count) {
        (Some((_, work)), Some(count)) => work(count),
        _ => {
            eprintln!("usage: instructions [NAME COUNT]");
            std::process::exit(2);
        }
    }
}
