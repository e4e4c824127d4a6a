//! Tests of timer shards and their lock, of the reclaim queue, of threads that the system refuses, and of the
//! processor's counter that replaces the clock.

use super::Engine;
use super::handler::ReclaimQueue;
use super::settings::{Builder, Settings};
use super::shard::{Shard, Timing, Unchanged};
use super::shutdown::wait;
use crate::Purgatory;
use crate::cell::address::SLOTS;
use crate::cell::slab::{EndedSlot, Held};
use crate::error::{RejectReason, ShutdownError};
use crate::future::{WaitError, Waits, block_on};
use crate::operation::{Cause, Completion, DelayedOperation};
use crate::purgatory::WeakRef;
use crate::scheme::{HierarchicalWheel, Scheme, SimpleWheel, Tick};
use crate::stats::Ending;
use crate::sync::{Arc, Mutex, OnceLock, PARKS_PER_EMPTYING, SLICE, thread_number};
use crate::threads::dispatch::Dispatch;
use crate::threads::reaper::{Driven, Reaper};
use crate::threads::worker::refusal::grant;
use crate::time::counter::CounterClock;
use crate::time::ticks::NEVER;
use crate::time::{Clock, ManualClock, Timestamp, WakeFn};
use crate::timer::{RescheduleError, Timer};
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The timing of a payload that arrives at tick `present` and expires at tick `deadline`.
pub(super) fn timing(deadline: Tick, present: Tick) -> Timing {
    Timing {
        start: present,
        deadline,
        present,
        since: Timestamp::default(),
    }
}

/// Parks `count` payloads in `shard`, and returns them still held by this thread.
pub(super) fn parked<W: Scheme>(
    shard: &Shard<(), W>,
    count: usize,
    timing: Timing,
) -> Vec<Held<'_, ()>> {
    let held =
        (0..count).map(
            |_| match shard.admit(&mut shard.slab.lock(), (), 0, timing, SLOTS) {
                Ok((held, _)) => held,
                Err((reason, ())) => panic!("{reason:?}"),
            },
        );
    held.collect()
}

/// Several slices (of [`SLICE`] timers each) lie in one bucket of the wheel. The timers move to a finer level, and then
/// fire, one slice in each hold of the lock: another thread can take the lock between any two slices.
#[test]
fn g20_one_hold_of_the_lock_drains_one_slice() {
    const SLICES: usize = 100;
    // The wheel has 64 slots in each level, so a timer with this deadline lies two levels up.
    const DEADLINE: u64 = 64 * 64;
    let shard = Shard::<(), HierarchicalWheel>::new(0, 64, None);
    for held in parked(&shard, SLICES * SLICE, timing(DEADLINE + 1, 0)) {
        assert!(held.release(false).is_ok());
    }
    shard.begin_pass(DEADLINE + 1);
    let (mut holds, mut fired) = (0, 0);
    loop {
        let mut due = Vec::new();
        let more = shard.fire(DEADLINE + 1, &mut due);
        assert!(due.len() <= SLICE, "{} in one hold", due.len());
        assert!(shard.slab.try_lock().is_some());
        holds += 1;
        fired += due.len();
        if !more {
            break;
        }
    }
    assert_eq!(fired, SLICES * SLICE);
    assert!(
        holds >= 2 * SLICES,
        "{holds} holds for {SLICES} slices that cascade and fire"
    );
}

/// A timer is due, and its new deadline is rejected in the middle of a pass. The timer still fires in that pass.
#[test]
fn g10_a_rejected_deadline_keeps_the_old_one() {
    const SLOTS_OF_WHEEL: u32 = 10;
    let shard = Shard::<(), SimpleWheel>::new(0, SLOTS_OF_WHEEL, None);
    let held = parked(&shard, 1, timing(1, 0)).remove(0);
    let at = held.address();
    assert!(held.release(false).is_ok());
    shard.begin_pass(20);
    let beyond = timing(20 + u64::from(SLOTS_OF_WHEEL), 20);
    assert_eq!(shard.reschedule(at, beyond), Err(Unchanged));
    let mut due = Vec::new();
    shard.fire(20, &mut due);
    assert_eq!(due, [(at, 1)]);
}

/// Payloads are ended without the lock of their shard. Their slots return to the free list when a thread next takes the
/// lock. If no thread takes the lock, they return as soon as [`SLICE`] of them wait.
#[test]
fn g06_slots_that_are_ended_without_the_lock_come_back() {
    let shard = Shard::<(), HierarchicalWheel>::new(0, 64, None);
    let count = SLICE + 2;
    let held = parked(&shard, count, timing(1_000, 0));
    let mut held = held.into_iter().map(|held| held.end().1.detach());
    // `begin_pass` returns the number of timers. It includes the timers of slots on the remote free list: these slots
    // were freed without the lock, and wait for a thread that has it.
    for ended in held.by_ref().take(SLICE - 1) {
        shard.free_from_other_shard(ended);
        assert_eq!(shard.begin_pass(0), count);
    }
    held.by_ref()
        .take(1)
        .for_each(|ended| shard.free_from_other_shard(ended));
    assert_eq!(shard.begin_pass(0), count - SLICE);
    held.for_each(|ended| shard.free_from_other_shard(ended));
    assert_eq!(shard.begin_pass(0), 2);
    assert_eq!(shard.next_deadline(), None);
    assert_eq!(shard.begin_pass(0), 0);
}

/// A park does not always look at the remote free list, where other threads leave slots that they have freed. But parks
/// look often enough to reuse slots, and always before a park is rejected.
#[test]
fn g06_parks_take_slots_that_other_threads_have_freed() {
    let shard = Shard::<(), HierarchicalWheel>::new(0, 64, None);
    let park = |limit| match shard.admit(&mut shard.slab.lock(), (), 0, timing(1_000, 0), limit) {
        Ok((held, _)) => Ok(held.end().1.detach()),
        Err((reason, ())) => Err(reason),
    };
    let few = 2 * PARKS_PER_EMPTYING;
    for _ in 0..1_000 {
        let ended = park(SLOTS).expect("there is room");
        assert!(
            ended.address().index() < few,
            "slot {}",
            ended.address().index()
        );
        shard.free_from_other_shard(ended);
        let timers = shard.begin_pass(0);
        assert!(timers <= few as usize, "{timers} timers");
    }
    // All slots are vacant now.
    assert_eq!(shard.next_deadline(), None);
    let mut ended: VecDeque<_> = (0..few)
        .map(|_| park(few).expect("there is room"))
        .collect();
    assert!(matches!(park(few), Err(RejectReason::Full)));
    for _ in 0..3 {
        if let Some(ended) = ended.pop_front() {
            shard.free_from_other_shard(ended);
        }
        ended.push_back(park(few).expect("another thread has freed one"));
    }
    ended
        .into_iter()
        .for_each(|ended| shard.free_from_other_shard(ended));
    assert_eq!(shard.next_deadline(), None);
    assert_eq!(shard.begin_pass(0), 0);
}

/// Slots of expired payloads are freed while their shard is locked, and while the remote free list already has slots
/// that other threads have freed. All these slots return to the free list once the lock is free.
#[test]
fn g06_a_slice_of_slots_whose_shard_is_locked_comes_back() {
    const BEFORE: usize = SLICE / 2;
    let shard = Shard::<(), HierarchicalWheel>::new(0, 64, None);
    let held = parked(&shard, BEFORE + SLICE, timing(1_000, 0)).into_iter();
    let mut ended = held.map(|held| held.end().1.detach());
    for ended in ended.by_ref().take(BEFORE) {
        shard.free_from_other_shard(ended);
    }
    let mut ended = ended.collect();
    let locked = shard.slab.lock();
    shard.free_counted(&mut ended);
    drop(locked);
    assert!(ended.is_empty());
    assert_eq!(shard.begin_pass(0), BEFORE + SLICE);
    assert_eq!(shard.next_deadline(), None);
    assert_eq!(shard.begin_pass(0), 0);
}

/// While one thread has the lock and does nothing, other threads end many payloads. The slots of these payloads then
/// return to the free list one slice at a time.
#[test]
fn g20_no_hold_of_the_lock_returns_more_than_a_slice() {
    let shard = Shard::<(), HierarchicalWheel>::new(0, 64, None);
    let held = parked(&shard, 4 * SLICE, timing(1_000, 0));
    let locked = shard.slab.lock();
    for held in held {
        shard.free(held.end().1, Ending::Cancelled, 0, || ());
    }
    drop(locked);
    let mut due = Vec::new();
    for left in [3, 2] {
        assert!(!shard.fire(0, &mut due));
        assert_eq!(shard.begin_pass(0), left * SLICE);
    }
    // `next_deadline` first frees all slots on the remote free list (the slots that were ended while the lock was
    // taken). It frees one slice of them in each hold of the lock, so it takes the lock several times.
    assert_eq!(shard.next_deadline(), None);
    assert_eq!((shard.begin_pass(0), due), (0, Vec::new()));
}

/// Each pass adds more than one batch to the reclaim queue. The longer the queue is, the more batches
/// [`ReclaimQueue::take`] takes at a time. So the queue stops growing.
#[test]
fn g06_a_reclaim_queue_stops_growing_under_a_lasting_storm() {
    const EACH_PASS: usize = 20;
    let shard = Shard::<(), HierarchicalWheel>::new(0, 64, None);
    let queue = ReclaimQueue::<EndedSlot>::new();
    let (mut added, mut taken) = (0, 0);
    let take = || {
        let mut part = queue.take();
        let count = part.len();
        shard.free_counted(&mut part);
        count
    };
    for _ in 0..3_000 {
        for held in parked(&shard, EACH_PASS, timing(1_000, 0)) {
            queue.add(vec![held.end().1.detach()]);
        }
        added += EACH_PASS;
        taken += take();
        assert!(added - taken < EACH_PASS * 256, "{} left", added - taken);
    }
    while added > taken {
        let part = take();
        assert!(part > 0);
        taken += part;
    }
    assert_eq!(take(), 0);
}

/// An operation with this timeout, which can complete when its state is [`State::May`].
struct Op(Duration, std::sync::Arc<parking_lot::Mutex<State>>);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Waits,
    May,
    Ended,
}

impl Op {
    fn new(timeout: Duration) -> Self {
        Self(timeout, std::sync::Arc::default())
    }
}

impl DelayedOperation for Op {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.0
    }

    fn try_complete(&mut self) -> bool {
        *self.1.lock() == State::May
    }

    fn on_complete(self, _: Completion) {
        *self.1.lock() = State::Ended;
    }
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never comes");
        std::thread::yield_now();
    }
}

/// The library numbers the threads. When a thread ends, it gives its number back, and another thread may take the
/// number. Destructors of thread-local values may still run on the ending thread. They must not use the old number.
#[test]
fn g16_a_thread_that_has_given_its_number_back_has_none() {
    struct Late(std::sync::mpsc::Sender<u32>);
    impl Drop for Late {
        fn drop(&mut self) {
            self.0.send(thread_number()).expect("the test waits");
        }
    }
    thread_local! {
        static BEFORE: Cell<Option<Late>> = const { Cell::new(None) };
        static AFTER: Cell<Option<Late>> = const { Cell::new(None) };
    }
    let (sender, late) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // The system destroys thread-local values in an unspecified order. Whatever the order is, one of these two
        // values is dropped after the thread has given its number back.
        BEFORE.set(Some(Late(sender.clone())));
        let number = thread_number();
        AFTER.set(Some(Late(sender)));
        number
    });
    let number = thread.join().expect("it does not panic");
    assert!(late.iter().any(|late| late != number));
}

/// The library numbers the threads, and only a thread with a low number has counters of its own. Numbers are used
/// again, the lowest first. So they stay low in a server that starts a thread for each request, and also after a burst
/// of threads.
#[test]
fn g16_threads_that_come_and_go_use_low_numbers() {
    let number = || std::thread::spawn(thread_number).join();
    for _ in 0..1_000 {
        let number = number().expect("it does not panic");
        assert!(number < 500, "{number}");
    }
    let numbers = crate::sync::numbers::Numbers::default();
    assert_eq!([(); 4].map(|()| numbers.take()), [0, 1, 2, 3]);
    for number in [2, 0, 3] {
        numbers.put_back(number);
    }
    assert_eq!([(); 4].map(|()| numbers.take()), [0, 2, 3, 4]);
}

/// The system refuses the reaper thread. Every call that needed the thread fails without a change, and succeeds when it
/// is repeated after the system grants threads again.
#[test]
fn g28_a_refused_thread_changes_nothing() {
    const SOON: Duration = Duration::from_millis(1);
    {
        // At most two operations may be parked. So if a rejected call wrongly kept a place under this bound, a later
        // park of this test would be rejected.
        let purgatory = Purgatory::<Op>::builder("g28-refused").max_parked(2);
        let purgatory = purgatory.build().expect("it starts no thread");
        let op = Op::new(Duration::MAX);
        let state = op.1.clone();
        let infinite = purgatory.try_complete_else_watch(op, [1]);
        let infinite = infinite.expect("it needs no thread").into_handle();
        let infinite = infinite.expect("it cannot complete yet");
        grant(0);
        for _ in 0..2 {
            let rejected = purgatory.try_complete_else_watch(Op::new(SOON), [1]);
            let (reason, op) = rejected.map(drop).expect_err("no threads").into_parts();
            assert_eq!((reason, op.0), (RejectReason::Thread, SOON));
            assert!(!infinite.reschedule(SOON));
        }
        assert_eq!((infinite.deadline(), purgatory.stats().parked), (None, 1));
        assert_eq!(purgatory.stats().rejected, 2);
        // The check stays deferred until the first deadline starts the reaper, which makes the check.
        *state.lock() = State::May;
        purgatory.check_later(1);
        assert!(infinite.is_parked());
        grant(usize::MAX);
        let far = Op::new(3_600_000 * SOON);
        assert!(purgatory.try_complete_else_watch(far, [3]).is_ok());
        // When the completion of the first operation has run, its place under `max_parked` is free.
        let is_delivered = || purgatory.stats().completions_pending == 0;
        eventually(|| *state.lock() == State::Ended && is_delivered());
        let op = Op::new(SOON);
        let expired = op.1.clone();
        assert!(purgatory.try_complete_else_watch(op, [2]).is_ok());
        eventually(|| *state.lock() == State::Ended && *expired.lock() == State::Ended);
    }
}

/// The system refuses the completion thread. Completions then run on the thread that drives the timer, and none is
/// lost. When the system grants a thread again, the next completion runs on the completion thread.
#[test]
fn g28_where_the_completion_thread_is_refused_the_driving_thread_completes() {
    const SOON: Duration = Duration::from_millis(1);
    let clock = ManualClock::new();
    let (sender, ended_on) = std::sync::mpsc::channel();
    let timer = Timer::builder("g28-refused")
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::OwnThread)
        .clock(clock.clone());
    let told = move |value: u64| _ = sender.send((value, std::thread::current().id()));
    let timer = timer.build(told).expect("it starts no thread");
    let expire = |value| {
        timer.start(SOON, value).expect("it starts no thread");
        clock.advance(2 * SOON);
        assert_eq!(timer.advance(), 1);
    };
    let here = std::thread::current().id();
    grant(0);
    for value in [1, 2] {
        expire(value);
        assert_eq!(ended_on.try_recv(), Ok((value, here)));
    }
    grant(1);
    for value in [3, 4] {
        expire(value);
        let (ended, thread) = ended_on.recv().expect("it is not lost");
        assert_eq!((ended, thread != here), (value, true));
    }
    timer.shutdown();
    assert_eq!(timer.stats().expired, 4);
}

/// A deferred check waits for the reaper thread, which the system has refused. The next call of `check_later`, for the
/// same key or another, starts the thread, and the thread makes the waiting check. A call of `advance` makes it without
/// the thread.
#[test]
fn g28_a_deferred_check_waits_for_a_thread() {
    for next in [None, Some(1), Some(2)] {
        let purgatory = Purgatory::<Op>::new("g28-deferred");
        let op = Op::new(Duration::MAX);
        let state = op.1.clone();
        assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
        *state.lock() = State::May;
        grant(0);
        purgatory.check_later(1);
        grant(usize::MAX);
        match next {
            None => _ = purgatory.advance(),
            Some(key) => purgatory.check_later(key),
        }
        eventually(|| *state.lock() == State::Ended);
        assert_eq!(purgatory.stats().parked, 0);
    }
}

/// A listener asks for rechecks, and the system refuses the reaper thread. The recheck waits. It comes when another call
/// has started the thread, or in a call of `advance`. Meanwhile a move of the listener's deadline is refused. If the
/// listener ends because of a recheck, it leaves nothing parked for a thread that may never come.
#[test]
fn g28_a_recheck_waits_for_a_thread() {
    const SOON: Duration = Duration::from_millis(5);
    for by_advance in [false, true] {
        let waits = Waits::<u64>::new("g28-recheck");
        let listener = waits.listen([1], None);
        grant(0);
        let mut listener = listener.recheck_every(SOON);
        let handle = listener.handle().expect("it needs no thread").clone();
        let mut is_rechecked = || {
            if by_advance {
                waits.advance();
            }
            let checked = pin!(listener.checked()).poll(&mut Context::from_waker(Waker::noop()));
            checked == Poll::Ready(Ok(()))
        };
        if by_advance {
            eventually(&mut is_rechecked);
        } else {
            grant(usize::MAX);
            waits.check_later(9);
        }
        eventually(&mut is_rechecked);
        if by_advance {
            assert!(!handle.reschedule(SOON));
            assert_eq!(handle.deadline(), None);
            listener.satisfied();
            let stats = waits.stats();
            assert_eq!((stats.parked, stats.missed_checks), (0, 1));
        }
        grant(usize::MAX);
    }
}

/// Gives itself a deadline in each check, and cannot complete.
struct Debounced;

impl DelayedOperation for Debounced {
    type Key = u64;

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn try_complete_for(&mut self, cause: Cause<'_, u64>) -> bool {
        if cause.is_check() {
            cause.reschedule(Duration::from_millis(1));
        }
        false
    }

    fn on_complete(self, _: Completion) {}
}

/// An operation without a deadline gives itself one, and the system refuses the reaper thread. The operation has its
/// deadline all the same. It expires when another call has started the thread, or in a call of `advance`.
#[test]
fn g28_a_deadline_that_an_operation_gives_itself_waits_for_a_thread() {
    for by_advance in [false, true] {
        let purgatory = Purgatory::<Debounced>::new("g28-itself");
        let parked = purgatory.try_complete_else_watch(Debounced, [1]);
        let handle = parked.expect("it needs no thread").into_handle();
        let handle = handle.expect("it cannot complete");
        grant(0);
        assert_eq!(purgatory.check_and_complete(&1), 0);
        if !by_advance {
            grant(usize::MAX);
            purgatory.check_later(9);
        }
        eventually(|| {
            if by_advance {
                purgatory.advance();
            }
            // The reaper counts the end after the handle has become stale.
            purgatory.stats().expired == 1
        });
        assert!(!handle.is_parked());
        grant(usize::MAX);
    }
}

/// A drain that reaches a timer shard after the shutdown keeps the shutdown's reason for rejections.
#[test]
fn g15_a_late_drain_does_not_hide_the_shutdown() {
    let shard = Shard::<(), HierarchicalWheel>::new(0, 64, Some(RejectReason::Draining));
    let reason = || {
        let admitted = shard.admit(&mut shard.slab.lock(), (), 0, timing(1, 0), SLOTS);
        admitted.map(|_| ()).expect_err("it is closed").0
    };
    for (rejects, expected) in [
        (RejectReason::Draining, RejectReason::Draining),
        (RejectReason::ShutDown, RejectReason::ShutDown),
        (RejectReason::Draining, RejectReason::ShutDown),
    ] {
        shard.close_with(rejects);
        assert_eq!(reason(), expected);
    }
}

/// A deferred check waits for a reaper thread that the system has refused. A drain then makes the check.
#[test]
fn g28_a_drain_does_not_wait_for_a_thread_that_was_refused() {
    let purgatory = Purgatory::<Op>::new("g28-drained");
    let op = Op::new(Duration::MAX);
    let state = op.1.clone();
    assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
    *state.lock() = State::May;
    grant(0);
    purgatory.check_later(1);
    assert_eq!(purgatory.drain(Duration::from_secs(60)), 0);
    grant(usize::MAX);
    assert!(*state.lock() == State::Ended);
}

#[test]
fn g28_a_refused_thread_gives_values_back() {
    const SOON: Duration = Duration::from_millis(1);
    let (sender, expired) = std::sync::mpsc::channel();
    let timer = Timer::new("g28-refused", move |value: u64| _ = sender.send(value));
    let id = timer.start(Duration::MAX, 1).expect("it needs no thread");
    grant(0);
    let rejected = timer.start(SOON, 3).expect_err("no threads");
    assert_eq!(rejected.into_parts(), (RejectReason::Thread, 3));
    assert!(!timer.reschedule(id, SOON));
    let rejected = timer.start_under_lock(timer.now(), SOON, 4);
    let rejected = rejected.map(drop).expect_err("no threads");
    assert_eq!(rejected.into_parts(), (RejectReason::Thread, 4));
    let rescheduled = timer.reschedule_under_lock(id, timer.now(), SOON);
    let refused = rescheduled.map(drop).expect_err("no threads");
    assert_eq!(refused, RescheduleError::Thread);
    assert_eq!(timer.len(), 1);
    let waits = Waits::<u64>::new("g28-refused");
    assert_eq!(
        block_on(waits.wait([1], SOON, || None::<()>)),
        Err(WaitError::Thread)
    );
    assert!(matches!(
        waits.shutdown_timeout(SOON),
        Err(ShutdownError::Thread(_))
    ));
    assert!(!waits.is_shut_down());
    grant(usize::MAX);
    assert!(timer.reschedule(id, SOON));
    assert_eq!(expired.recv(), Ok(1));
    // The shutdown that failed above has not begun. This call begins it, and completes it.
    assert!(waits.shutdown_timeout(Duration::from_secs(60)).is_ok());
}

/// A thread waits for a condition, and evaluates it again and again. The pause between two evaluations stays short,
/// however long the thread has waited.
#[test]
fn g15_who_waits_looks_again_every_few_milliseconds() {
    // If each pause were twice as long as the pause before, this many evaluations would take minutes.
    const LOOKS: u32 = 25;
    let mut looks = 0;
    let mut is_done = || {
        looks += 1;
        looks == LOOKS
    };
    assert!(wait(Duration::from_secs(20), &mut is_done), "{looks} looks");
}

/// After a storm (many operations have expired at once), slots and watches of expired operations are reclaimed in
/// batches. The driving thread looks at its timers before each batch, so a timer that becomes due does not wait for all
/// batches.
#[test]
fn g10_timers_do_not_wait_for_what_a_storm_has_left() {
    const STORM: u64 = 3_000;
    const TICK: Duration = Duration::from_millis(1);
    let clock = ManualClock::new();
    let builder = Purgatory::<Op>::builder("g10").clock(clock.clone());
    let purgatory = builder.reaper(Reaper::Manual).build();
    let purgatory = purgatory.expect("no threads to refuse");
    for key in 0..STORM {
        assert!(
            purgatory
                .try_complete_else_watch(Op::new(TICK), [key])
                .is_ok()
        );
    }
    let later = purgatory.try_complete_else_watch(Op::new(2 * TICK), [0]);
    assert!(later.is_ok_and(|later| later.is_parked()));
    let drive = || purgatory.shared.inner.clone().drive();
    for expired in [STORM, STORM + 1] {
        clock.advance(TICK);
        assert_eq!(drive(), Some(Duration::ZERO), "there is more to do");
        let stats = purgatory.stats();
        assert_eq!(stats.expired, expired);
        assert!(stats.watched > 0, "all of it came first");
    }
    while drive() == Some(Duration::ZERO) {}
    assert_eq!(purgatory.stats().watched, 0);
}

/// A park whose deadline the scheme cannot hold is rejected, and gives its slot back.
#[test]
fn g06_a_rejected_deadline_gives_the_slot_back() {
    let shard = Shard::<(), SimpleWheel>::new(0, 10, None);
    let park = |deadline| {
        let admitted = shard.admit(&mut shard.slab.lock(), (), 0, timing(deadline, 0), 1);
        let admitted = admitted.map(|(held, _)| _ = held.end());
        admitted.map_err(|(reason, ())| reason)
    };
    for _ in 0..2 {
        assert_eq!(park(1_000), Err(RejectReason::TooLong));
    }
    assert_eq!(park(1), Ok(()));
}

/// The processor's counter is slightly ahead of the clock. So it replaces only the default clock, and only where this
/// does no harm: not if ticks are short, and not if the scheme has a horizon (a latest deadline).
#[test]
fn g10_the_counter_stands_in_for_the_default_clock_alone() {
    const TICK: Duration = Duration::from_millis(1);
    let here = CounterClock::since(Instant::now()).is_some();
    let purgatory = || Purgatory::<Op>::builder("g10-counter");
    let counts = |builder: Builder<Purgatory<Op>>| {
        let purgatory = builder.build().expect("it starts no thread");
        let engine = &purgatory.shared.inner.engine;
        // With a counter, `start` is the tick of the counter's reading, which may be up to a tick ahead of the clock.
        // `present` must have passed on the clock, because the wheel moves up to it. So it is one tick earlier.
        let lead = u64::from(engine.counter.is_some());
        std::thread::sleep(2 * engine.scale.duration(1));
        let timing = engine.timing(None, TICK.into());
        assert_eq!(timing.present, timing.start.saturating_sub(lead));
        assert!(timing.present <= engine.now());
        engine.counter.is_some()
    };
    assert_eq!(counts(purgatory()), here);
    assert_eq!(counts(purgatory().tick(10 * TICK)), here);
    assert!(!counts(purgatory().tick(TICK - Duration::from_nanos(1))));
    assert!(!counts(purgatory().clock(Instant::now())));
    assert!(!counts(purgatory().clock(ManualClock::new())));
    let engine = Engine::<(), SimpleWheel>::new(Settings::new("g10-counter".into()));
    assert!(engine.is_ok_and(|engine| engine.counter.is_none()));
}

/// A deadline is computed from the processor's counter, by other arithmetic than from the clock. There too, an infinite
/// timeout stays infinite, and the longest finite timeouts stay finite.
#[test]
fn g09_beside_the_counter_every_timeout_is_kept() {
    let purgatory = Purgatory::<Op>::builder("g09-counter").build();
    let purgatory = purgatory.expect("it starts no thread");
    let engine = &purgatory.shared.inner.engine;
    assert_eq!(engine.timing(None, Duration::MAX.into()).deadline, NEVER);
    for secs in [1, 1 << 30, 1 << 33, 1 << 34, 1 << 50] {
        let timeout = Duration::from_secs(secs);
        let earliest = engine.clock.now().saturating_add(timeout);
        let deadline = engine.timing(None, timeout.into()).deadline;
        assert!(engine.scale.timestamp(deadline) >= earliest, "{secs}");
        let latest = engine
            .clock
            .now()
            .saturating_add(timeout + Duration::from_millis(2));
        assert!(engine.scale.timestamp(deadline) <= latest, "{secs}");
    }
}

/// Thread A has filed a deadline, and has not yet lowered the alarm or woken the reactor for it. Thread B finds the
/// deadline, and wakes the reactor. Thread B holds no lock then, because the reactor may call the library back at once.
#[test]
fn g03_who_finds_a_deadline_wakes_the_reactor_with_no_lock_held() {
    type Place = OnceLock<WeakRef<Purgatory<Op>>>;
    let (place, unlocked) = (Arc::new(Place::new()), Arc::new(Mutex::new(Vec::new())));
    let (found, told) = (place.clone(), unlocked.clone());
    let waker = WakeFn::new(move || {
        if let Some(purgatory) = found.get().and_then(WeakRef::upgrade) {
            let engine = &purgatory.shared.inner.engine;
            told.lock().push(engine.rearming.try_lock().is_some());
        }
        true
    });
    let builder = Purgatory::<Op>::builder("g03").reaper(Reaper::Reactor(waker));
    let purgatory = builder.build().expect("no threads to refuse");
    assert!(place.set(purgatory.downgrade()).is_ok());
    let parked = purgatory.try_complete_else_watch(Op::new(Duration::MAX), [1]);
    assert!(parked.is_ok_and(|parked| parked.is_parked()));
    let engine = &purgatory.shared.inner.engine;
    let at = engine
        .shards
        .iter()
        .flat_map(|shard| shard.slab.occupants());
    let at = at.last().expect("it is parked");
    let shard = engine.shard(at.shard());
    assert!(shard.reschedule(at, timing(1_000_000, 0)).is_ok());
    assert!(purgatory.next_deadline().is_some());
    assert_eq!(*unlocked.lock(), [true]);
}
