//! G30: an operation reaches itself, by a waker and by its own deadline; and at the deadline, once more. G1, G5, G11,
//! G12 and G29 for such operations. (The wake-ups are model-checked in `loom-tests/tests/itself.rs`.)

use super::{OnReading, TICK, by_hand, park};
use crate::support::{FragileClock, PATIENCE, Tally, eventually, lock, within};
use request_purgatory::Completion::{self, Cancelled, Expired, Satisfied};
use request_purgatory::future::Awaited;
use request_purgatory::purgatory::{Cause, Stats};
use request_purgatory::time::{Clock, ManualClock, Timestamp};
use request_purgatory::{Deadline, DelayedOperation, Handle, Purgatory, threads::Reaper};
use std::cell::Cell;
use std::hash::{BuildHasher, DefaultHasher};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_millis(100);

/// An operation that is examined by a closure, which is told the cause.
struct Op {
    examine: Box<dyn FnMut(Cause<'_, u64>) -> bool + Send>,
    deadline: Deadline,
    ended: Sender<Completion>,
}

impl DelayedOperation for Op {
    type Key = u64;

    fn timeout(&self) -> Duration {
        unreachable!("the library asks for the deadline")
    }

    fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn try_complete(&mut self) -> bool {
        unreachable!("the library calls the other method")
    }

    fn try_complete_for(&mut self, cause: Cause<'_, u64>) -> bool {
        (self.examine)(cause)
    }

    fn on_complete(self, completion: Completion) {
        // Not every test listens.
        let _ = self.ended.send(completion);
    }
}

fn op(
    deadline: impl Into<Deadline>,
    examine: impl FnMut(Cause<'_, u64>) -> bool + Send + 'static,
) -> (Op, Receiver<Completion>) {
    let (ended, ends) = channel();
    let op = Op {
        examine: Box::new(examine),
        deadline: deadline.into(),
        ended,
    };
    (op, ends)
}

fn park_op(
    purgatory: &Purgatory<Op>,
    deadline: impl Into<Deadline>,
    examine: impl FnMut(Cause<'_, u64>) -> bool + Send + 'static,
) -> (Handle<Op>, Receiver<Completion>) {
    let (op, ends) = op(deadline, examine);
    (park(purgatory, op), ends)
}

/// Parks an operation that completes once the flag says so; with the waker of its first examination.
fn park_for_flag(
    purgatory: &Purgatory<Op>,
    timeout: Duration,
) -> (Arc<Mutex<bool>>, Waker, Receiver<Completion>) {
    let (flag, slot) = (Arc::new(Mutex::new(false)), Arc::new(OnceLock::new()));
    let (is_ready, waker) = (flag.clone(), slot.clone());
    let (_, ends) = park_op(purgatory, timeout, move |cause| {
        waker.get_or_init(|| cause.waker());
        *lock(&is_ready)
    });
    let waker = slot.get().cloned();
    (flag, waker.expect("it was examined"), ends)
}

/// No deadline is later than `bound` after the arrival.
fn bounded(bound: Duration) -> (Purgatory<Op>, ManualClock) {
    let clock = ManualClock::new();
    let purgatory = by_hand(&clock, |builder| builder.max_timeout(bound));
    (purgatory, clock)
}

/// By every waker: the one of the first examination, of that after the keys are watched, and of a check.
#[test]
fn g30_each_wake_up_is_followed_by_an_examination_until_the_end() {
    let (purgatory, _) = bounded(Duration::MAX);
    let (wakers, examined) = (Arc::new(Mutex::new(Vec::new())), Tally::new());
    let (tally, given) = (examined.clone(), wakers.clone());
    let (_, ends) = park_op(&purgatory, TIMEOUT, move |cause| {
        tally.add();
        lock(&given).push(cause.waker());
        tally.count() == 10
    });
    purgatory.check_and_complete(&1);
    assert_eq!(examined.count(), 3);
    let all = std::mem::take(&mut *lock(&wakers));
    for waker in all {
        let before = examined.count();
        // Several are one.
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(examined.count(), before, "not on this thread");
        let next = purgatory.next_deadline();
        assert!(next.is_some_and(|next| next.since_origin() < TIMEOUT));
        purgatory.advance();
        assert_eq!(examined.count(), before + 1);
    }
    let waker = lock(&wakers).pop().expect("of the last examination");
    for _ in 0..4 {
        waker.wake_by_ref();
        purgatory.advance();
    }
    assert_eq!(ends.try_recv(), Ok(Satisfied));
    waker.wake();
    assert_eq!((examined.count(), purgatory.next_deadline()), (10, None));
    assert_eq!(purgatory.stats().completed, 1);
}

/// The operation has no address yet; another examination follows anyway.
#[test]
fn g30_woken_in_its_first_examination_it_is_examined_again() {
    let (purgatory, _) = bounded(Duration::MAX);
    let (examined, (give, wakers)) = (Tally::new(), channel());
    let tally = examined.clone();
    park_op(&purgatory, TIMEOUT, move |cause| {
        if tally.count() == 0 {
            cause.waker().wake();
            give.send(cause.waker()).expect("the test waits for it");
        }
        tally.add();
        false
    });
    assert_eq!(examined.count(), 2);
    wakers.recv().expect("of the first examination").wake();
    purgatory.advance();
    assert_eq!(examined.count(), 3);
}

#[test]
fn g30_a_waker_of_an_operation_that_never_parked_does_nothing() {
    // Without keys it is not even examined.
    for (keys, examined) in [(vec![], false), (vec![1], true)] {
        let full = by_hand::<Op>(&ManualClock::new(), |builder| builder.max_parked(0));
        let (give, wakers) = channel();
        let (op, _ends) = op(TIMEOUT, move |cause| give.send(cause.waker()).is_err());
        assert!(full.try_complete_else_watch(op, keys).is_err());
        let wakers = wakers.try_iter().collect::<Vec<_>>();
        assert_eq!(wakers.len(), usize::from(examined));
        wakers.iter().for_each(Waker::wake_by_ref);
        assert_eq!(full.next_deadline(), None);
        drop(full);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A waker outlives what it wakes, and does not keep the purgatory.
#[test]
fn g30_a_waker_of_a_purgatory_that_is_gone_does_nothing() {
    let (purgatory, _) = bounded(Duration::MAX);
    let (_, waker, ends) = park_for_flag(&purgatory, TIMEOUT);
    drop(purgatory);
    assert_eq!(ends.try_recv(), Ok(Completion::ShutDown));
    assert_eq!(ends.try_recv(), Err(TryRecvError::Disconnected));
    waker.wake();
}

/// The examination takes the lock that its waker is woken under. (Nothing else has started the reaper.)
#[test]
fn g30_a_waker_is_woken_under_a_lock_that_the_examination_takes() {
    within(PATIENCE, || {
        let purgatory = Purgatory::new("itself");
        let (flag, waker, ends) = park_for_flag(&purgatory, Duration::MAX);
        {
            let mut is_ready = lock(&flag);
            waker.wake_by_ref();
            thread::sleep(10 * TICK);
            *is_ready = true;
            waker.wake_by_ref();
        }
        assert_eq!(ends.recv(), Ok(Satisfied));
        eventually("the end", || purgatory.is_empty());
    });
}

/// A check that came before the deadline was processed completes it all the same.
#[test]
fn g01_a_wake_up_before_the_deadline_is_examined_before_it() {
    let (purgatory, clock) = bounded(Duration::MAX);
    let (flag, waker, ends) = park_for_flag(&purgatory, TIMEOUT);
    *lock(&flag) = true;
    waker.wake();
    clock.advance(TIMEOUT);
    assert_eq!(purgatory.advance(), 0);
    assert_eq!(ends.try_recv(), Ok(Satisfied));
}

/// At its next examinations but those at a deadline, it asks for these, in milliseconds. The last call of each counts.
fn asking(asks: &'static [u32]) -> impl FnMut(Cause<'_, u64>) -> bool + Send + 'static {
    let mut asks = asks.iter();
    move |cause| {
        if let (false, Some(ms)) = (cause.is_deadline(), asks.next()) {
            cause.reschedule(Duration::MAX);
            cause.reschedule(*ms * TICK);
        }
        false
    }
}

/// The second examination of the park is one more that may ask, and need not.
#[test]
fn g30_an_examination_of_the_park_sets_the_deadline() {
    let (purgatory, _) = bounded(50 * TICK);
    let rows: [(&[u32], u32); 4] = [(&[20], 20), (&[70], 50), (&[40, 30], 30), (&[30, 70], 50)];
    for (asks, gets) in rows {
        let (handle, _) = park_op(&purgatory, Duration::MAX, asking(asks));
        assert_eq!(handle.remaining(), Some(gets * TICK), "{asks:?}");
    }
}

/// The bound counts from the arrival.
#[test]
fn g30_a_check_and_a_handle_give_the_operation_another_deadline() {
    for bound in [Duration::MAX, 250 * TICK] {
        let (purgatory, clock) = bounded(bound);
        let (handle, ends) = park_op(&purgatory, TIMEOUT, asking(&[40, 50, 60, 500]));
        assert_eq!(handle.remaining(), Some(50 * TICK));
        clock.advance(10 * TICK);
        purgatory.check_and_complete(&1);
        assert_eq!(handle.remaining(), Some(60 * TICK));
        clock.advance(10 * TICK);
        handle.check();
        let left = (500 * TICK).min(bound.saturating_sub(20 * TICK));
        assert_eq!(handle.remaining(), Some(left));
        // Once it was in time.
        clock.advance(left - TICK);
        assert_eq!(purgatory.advance(), 0);
        clock.advance(TICK);
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(ends.try_recv(), Ok(Expired));
        assert_eq!(purgatory.stats().extended, 0);
    }
}

#[test]
fn g30_a_deadline_that_a_satisfied_operation_asks_for_is_none() {
    let (purgatory, _) = bounded(Duration::MAX);
    let (_, ends) = park_op(&purgatory, TIMEOUT, |cause| {
        cause.reschedule(TICK);
        cause.key().is_some()
    });
    assert_eq!(purgatory.check_and_complete(&1), 1);
    assert_eq!(ends.try_recv(), Ok(Satisfied));
    assert_eq!(purgatory.next_deadline(), None);
}

/// The clock moves by so much, and a pass follows: how many expire in it, and how often the operation has been asked at
/// its deadline, and put off, by then.
type Step = (Duration, usize, u64, u64);

/// An operation asks for `more` time at its deadline, as often as `times` says.
fn put_off(bound: Duration, more: Duration, times: u64, steps: &[Step]) -> Stats {
    let (purgatory, clock) = bounded(bound);
    let asked = Tally::new();
    let tally = asked.clone();
    let (handle, ends) = park_op(&purgatory, TIMEOUT, move |cause| {
        if cause.is_deadline() {
            tally.add();
            if tally.count() <= times {
                cause.reschedule(more);
            }
        }
        false
    });
    for (step, &(jump, expired, asked_by_now, extended)) in steps.iter().enumerate() {
        let row = format!("step {step} for {more:?}");
        let before = purgatory.stats().extended;
        clock.advance(jump);
        assert_eq!(purgatory.advance(), expired, "{row}");
        assert_eq!(asked.count(), asked_by_now, "{row}");
        assert_eq!(purgatory.stats().extended, extended, "{row}");
        if expired == 0 {
            assert_eq!(purgatory.stats().watched, 1, "{row}");
            assert_eq!(purgatory.check_and_complete(&1), 0, "{row}");
        }
        if extended > before && bound == Duration::MAX {
            assert_eq!(handle.remaining(), Some(more.max(TICK)), "{row}");
        }
    }
    let stats = purgatory.stats();
    if stats.expired > 0 {
        assert_eq!(ends.try_recv(), Ok(Expired));
        let counts = (stats.parked, stats.watched, stats.missed_checks);
        assert_eq!(counts, (0, 0, 0));
        assert_eq!(purgatory.next_deadline(), None);
    }
    stats
}

#[test]
fn g30_at_its_deadline_an_operation_gets_more_time() {
    let steps = [
        (TIMEOUT - TICK, 0, 0, 0),
        (TICK, 0, 1, 1),
        (29 * TICK, 0, 1, 1),
        (TICK, 0, 2, 2),
        (30 * TICK, 1, 3, 2),
    ];
    let stats = put_off(Duration::MAX, 30 * TICK, 2, &steps);
    assert_eq!(stats.lateness_max, Duration::ZERO, "of the last deadline");
}

/// Whatever it asks for; an operation that asks for ever shows in the statistics, and keeps no pass from its end.
#[test]
fn g11_an_extension_lasts_one_tick_at_least() {
    let zero = Duration::ZERO;
    for more in [zero, Duration::from_nanos(1), TICK] {
        let steps = [
            (TIMEOUT, 0, 1, 1),
            (zero, 0, 1, 1),
            (TICK, 0, 2, 2),
            (zero, 0, 2, 2),
            (TICK, 0, 3, 3),
            (zero, 0, 3, 3),
        ];
        put_off(Duration::MAX, more, u64::MAX, &steps);
    }
}

#[test]
fn g30_more_time_ends_at_the_bound_from_the_arrival() {
    let steps = [
        (TIMEOUT, 0, 1, 1),
        (30 * TICK, 0, 2, 2),
        (20 * TICK, 1, 3, 2),
    ];
    put_off(TIMEOUT + 50 * TICK, 30 * TICK, u64::MAX, &steps);
}

/// In a plain purgatory and in one whose completions are awaited.
#[test]
fn g29_an_operation_with_a_point_is_not_asked_for_a_timeout() {
    let clock = ManualClock::new();
    let plain = by_hand::<Op>(&clock, |builder| builder);
    let awaited = by_hand::<Awaited<Op>>(&clock, |builder| builder);
    let point = Timestamp::from_origin;
    let (handle, ends) = park_op(&plain, point(TIMEOUT), |_| false);
    let (op, _) = op(point(TIMEOUT), |_| false);
    let completion = awaited.completion(op, [1]);
    let completion = completion.map_err(|refused| refused.reason());
    let completion = completion.expect("there is room");
    let awaited_handle = completion.handle().expect("it is parked");
    assert_eq!(handle.deadline(), Some(point(TIMEOUT)));
    assert_eq!(awaited_handle.deadline(), Some(point(TIMEOUT)));
    let (put_off, _) = park_op(&plain, point(TIMEOUT), move |cause| {
        if !cause.is_deadline() {
            cause.reschedule(point(2 * TIMEOUT));
        }
        false
    });
    assert_eq!(put_off.deadline(), Some(point(2 * TIMEOUT)));
    clock.advance(TIMEOUT);
    assert_eq!((plain.advance(), awaited.advance()), (1, 1));
    assert_eq!(ends.try_recv(), Ok(Expired));
    clock.advance(TIMEOUT - TICK);
    assert_eq!(plain.advance(), 0);
    clock.advance(TICK);
    assert_eq!(plain.advance(), 1);
}

#[test]
fn g29_at_the_end_of_time_there_is_no_more_time() {
    let steps = [(TIMEOUT, 0, 1, 1), (Duration::MAX, 1, 2, 1)];
    put_off(Duration::MAX, TIMEOUT, u64::MAX, &steps);
}

/// The clock is read for the new deadline.
#[test]
fn g12_an_operation_whose_clock_panics_at_the_deadline_expires() {
    let (clock, fragile) = (ManualClock::new(), FragileClock::default());
    let breaks = fragile.clone();
    let read = OnReading(clock.clone(), move || _ = breaks.now());
    let purgatory = by_hand(&clock, |builder| builder.clock(read));
    let breaks = fragile.clone();
    let (_, ends) = park_op(&purgatory, TIMEOUT, move |cause| {
        if cause.is_deadline() {
            cause.reschedule(TIMEOUT);
            breaks.set_broken(true);
        }
        false
    });
    clock.advance(TIMEOUT);
    // Counted, and what the pass reads of the clock afterwards may panic as well.
    let _ = catch_unwind(AssertUnwindSafe(|| purgatory.advance()));
    fragile.set_broken(false);
    purgatory.advance();
    assert_eq!(ends.try_recv(), Ok(Expired));
    let stats = purgatory.stats();
    assert_eq!((stats.expired, stats.extended, stats.parked), (1, 0, 0));
    assert!(stats.panicked > 0);
}

/// And costs no other one its deadline.
#[test]
fn g12_an_operation_that_panics_at_its_deadline_gets_no_more_time() {
    let (purgatory, clock) = bounded(Duration::MAX);
    let (_, bad_ends) = park_op(&purgatory, TIMEOUT, |cause| {
        if cause.is_deadline() {
            cause.reschedule(TIMEOUT);
            panic_any("intended");
        }
        false
    });
    let (_, ends) = park_op(&purgatory, TIMEOUT, |_| false);
    clock.advance(TIMEOUT);
    assert_eq!(purgatory.advance(), 1);
    assert_eq!(ends.try_recv(), Ok(Expired));
    let dropped = Err(TryRecvError::Disconnected);
    assert_eq!(bad_ends.try_recv(), dropped);
    let stats = purgatory.stats();
    assert_eq!((stats.aborted, stats.extended, stats.parked), (1, 0, 0));
}

/// The deadline comes while another thread examines the operation: that thread asks it, and gives it more time.
#[test]
fn g30_a_deadline_that_comes_during_an_examination_is_put_off_too() {
    for more in [true, false] {
        let (purgatory, clock) = bounded(Duration::MAX);
        let causes = Arc::new(Mutex::new(Vec::new()));
        let (told, weak, moves) = (causes.clone(), purgatory.downgrade(), clock.clone());
        let mut more_once = more;
        let (handle, ends) = park_op(&purgatory, TIMEOUT, move |cause| {
            if cause.key().is_some() {
                moves.advance(TIMEOUT);
                let purgatory = weak.upgrade().expect("it is in use");
                let pass = thread::spawn(move || purgatory.advance());
                assert_eq!(pass.join().expect("it does not panic"), 0);
            }
            if cause.is_deadline() && std::mem::take(&mut more_once) {
                cause.reschedule(30 * TICK);
            }
            lock(&told).push((cause.key().copied(), cause.is_deadline()));
            false
        });
        lock(&causes).clear();
        assert_eq!(purgatory.check_and_complete(&1), 0);
        assert_eq!(*lock(&causes), [(Some(1), false), (None, true)]);
        assert_eq!(purgatory.stats().extended, u64::from(more));
        if more {
            assert_eq!(handle.remaining(), Some(30 * TICK));
            clock.advance(30 * TICK);
            assert_eq!(purgatory.advance(), 1);
        }
        assert_eq!(ends.try_recv(), Ok(Expired));
        assert_eq!(purgatory.stats().expired, 1);
        assert_eq!(purgatory.next_deadline(), None);
    }
}

/// What other threads ask for while it is examined at its deadline is not forgotten because it gets more time.
#[test]
fn g05_a_mark_at_a_deadline_that_is_put_off_is_obeyed() {
    type Call = fn(&Handle<Op>, &Purgatory<Op>);
    let calls: [(&str, Call, Completion); 4] = [
        ("force", |it, _| _ = it.force_complete(), Satisfied),
        ("cancel", |it, _| _ = it.cancel(), Cancelled),
        ("check", |it, _| _ = it.check(), Satisfied),
        ("key", |_, all| _ = all.check_and_complete(&1), Satisfied),
    ];
    for (name, call, expected) in calls {
        let (purgatory, clock) = bounded(Duration::MAX);
        let slot = Arc::new(OnceLock::<Handle<Op>>::new());
        let (at, weak) = (slot.clone(), purgatory.downgrade());
        let mut was_deadline = false;
        let (handle, ends) = park_op(&purgatory, TIMEOUT, move |cause| {
            if cause.is_deadline() {
                was_deadline = true;
                cause.reschedule(TIMEOUT);
                let purgatory = weak.upgrade().expect("it is in use");
                let handle = at.get().expect("it is parked");
                thread::scope(|scope| _ = scope.spawn(|| call(handle, &purgatory)));
            }
            was_deadline && !cause.is_deadline()
        });
        assert!(slot.set(handle).is_ok());
        clock.advance(TIMEOUT);
        assert_eq!(purgatory.advance(), 0, "{name}");
        assert_eq!(ends.try_recv(), Ok(expected), "{name}");
        let stats = purgatory.stats();
        let counts = (stats.parked, stats.watched, stats.extended);
        assert_eq!(counts, (0, 0, 1), "{name}");
        assert_eq!(purgatory.next_deadline(), None, "{name}");
    }
}

/// A waker may be woken under a lock that `Hash` of a key takes, so a wake-up hashes no key: not even those of other
/// checks that wait, when their table grows.
#[test]
fn g30_a_wake_up_runs_neither_hash_nor_the_hasher() {
    thread_local!(static HASHES: Cell<u64> = const { Cell::new(0) });
    #[derive(Clone)]
    struct Counts;
    impl BuildHasher for Counts {
        type Hasher = DefaultHasher;
        fn build_hasher(&self) -> DefaultHasher {
            HASHES.set(HASHES.get() + 1);
            DefaultHasher::new()
        }
    }
    const MANY: u64 = 20_000;
    let builder = Purgatory::<Op>::builder("g30").reaper(Reaper::Manual);
    let purgatory = builder.hasher(Counts).build();
    let purgatory = purgatory.expect("no threads to refuse");
    let (give, wakers) = channel();
    let examined = Tally::new();
    for number in 0..MANY {
        let (give, examined) = (give.clone(), examined.clone());
        let (op, _) = op(None, move |cause| {
            examined.add();
            // An error: the test has the waker of the first examination.
            _ = give.send(cause.waker());
            false
        });
        let parked = purgatory.try_complete_else_watch(op, [number]);
        assert!(parked.is_ok_and(|it| it.is_parked()));
        purgatory.check_later(number);
    }
    let before = HASHES.get();
    wakers.try_iter().for_each(|waker| waker.wake());
    assert_eq!(HASHES.get(), before);
    let examinations = examined.count();
    purgatory.advance();
    // Of each operation, one for its key and one for its wakers.
    assert_eq!(examined.count(), examinations + 2 * MANY);
}
