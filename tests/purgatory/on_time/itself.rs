//! G30: an operation reaches itself, by a waker and by its own deadline; and at the deadline, once more. G1, G5, G11,
//! G12 and G29 for such operations. (The wake-ups are model-checked in `loom-tests/tests/models/itself.rs`.)

use super::{TICK, by_hand, park};
use crate::chains::scene::inside;
use crate::lost_completion::steps::elsewhere;
use crate::support::{FragileClock, Op, PATIENCE, Tally, eventually, lock, manual, within};
use request_purgatory::Completion::{self, Cancelled, Expired, Satisfied};
use request_purgatory::future::Awaited;
use request_purgatory::purgatory::Cause;
use request_purgatory::time::{Clock, ManualClock, Timestamp};
use request_purgatory::{Deadline, DelayedOperation, Handle, Purgatory, threads::Reaper};
use std::cell::Cell;
use std::hash::{BuildHasher, DefaultHasher};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_millis(100);

/// An operation that is examined by a closure, which is told the cause; and what hears of its end.
fn told(
    timeout: Duration,
    examine: impl FnMut(Cause<'_, u64>) -> bool + Send + 'static,
) -> (Op, Receiver<Completion>) {
    let (ended, ends) = channel();
    let op = Op::new(timeout).told(examine);
    // Not every test listens.
    (op.then(move |completion| _ = ended.send(completion)), ends)
}

fn park_told(
    purgatory: &Purgatory<Op>,
    timeout: Duration,
    examine: impl FnMut(Cause<'_, u64>) -> bool + Send + 'static,
) -> (Handle<Op>, Receiver<Completion>) {
    let (op, ends) = told(timeout, examine);
    (park(purgatory, op), ends)
}

/// Parks an operation that completes once the flag says so; with the waker of its first examination.
fn park_for_flag(
    purgatory: &Purgatory<Op>,
    timeout: Duration,
) -> (Arc<Mutex<bool>>, Waker, Receiver<Completion>) {
    let (flag, slot) = (Arc::new(Mutex::new(false)), Arc::new(OnceLock::new()));
    let (is_ready, waker) = (flag.clone(), slot.clone());
    let (_, ends) = park_told(purgatory, timeout, move |cause| {
        waker.get_or_init(|| cause.waker());
        *lock(&is_ready)
    });
    let waker = slot.get().cloned();
    (flag, waker.expect("it was examined"), ends)
}

/// By every waker: the one of the first examination, of that after the keys are watched, and of a check. In the first
/// examination the operation has no address yet; another examination follows anyway.
#[test]
fn g30_each_wake_up_is_followed_by_an_examination_until_the_end() {
    let (purgatory, _) = manual(|builder| builder);
    let (wakers, examined) = (Arc::new(Mutex::new(Vec::new())), Tally::new());
    let (tally, given) = (examined.clone(), wakers.clone());
    let (_, ends) = park_told(&purgatory, TIMEOUT, move |cause| {
        if tally.count() == 0 {
            cause.waker().wake();
        }
        tally.add();
        lock(&given).push(cause.waker());
        tally.count() == 10
    });
    assert_eq!(examined.count(), 2);
    let of_the_park = std::mem::take(&mut *lock(&wakers));
    for waker in of_the_park {
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
    purgatory.check_and_complete(&1);
    assert_eq!(examined.count(), 5);
    let waker = lock(&wakers).pop().expect("of the check");
    for _ in 5..10 {
        waker.wake_by_ref();
        purgatory.advance();
    }
    assert_eq!(ends.try_recv(), Ok(Satisfied));
    waker.wake();
    assert_eq!((examined.count(), purgatory.next_deadline()), (10, None));
    assert_eq!(purgatory.stats().completed, 1);
}

/// A waker outlives what it wakes, and keeps neither the operation nor the purgatory.
#[test]
fn g30_a_waker_of_what_is_not_parked_does_nothing() {
    // The places for operations, the keys, how often it is examined, and how it ends. Without keys it is not examined.
    let rows = [
        (0, vec![], 0, None),
        (0, vec![1], 1, None),
        (1, vec![1], 2, Some(Completion::ShutDown)),
    ];
    for (places, keys, examined, ended) in rows {
        let (purgatory, _) = manual(|builder| builder.max_parked(places));
        let (give, wakers) = channel();
        let (op, ends) = told(TIMEOUT, move |cause| give.send(cause.waker()).is_err());
        let parked = purgatory.try_complete_else_watch(op, keys).is_ok();
        assert_eq!(parked, ended.is_some());
        let wakers = wakers.try_iter().collect::<Vec<_>>();
        assert_eq!(wakers.len(), examined);
        if !parked {
            wakers.iter().for_each(Waker::wake_by_ref);
            assert_eq!(purgatory.next_deadline(), None);
        }
        drop(purgatory);
        assert_eq!(ends.try_recv().ok(), ended);
        assert_eq!(ends.try_recv(), Err(TryRecvError::Disconnected));
        wakers.into_iter().for_each(Waker::wake);
    }
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
    let (purgatory, clock) = manual(|builder| builder);
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
    let (purgatory, _) = manual(|builder| builder.max_timeout(50 * TICK));
    let rows: [(&[u32], u32); 4] = [(&[20], 20), (&[70], 50), (&[40, 30], 30), (&[30, 70], 50)];
    for (asks, gets) in rows {
        let (handle, _) = park_told(&purgatory, Duration::MAX, asking(asks));
        assert_eq!(handle.remaining(), Some(gets * TICK), "{asks:?}");
    }
}

/// The bound counts from the arrival.
#[test]
fn g30_a_check_and_a_handle_give_the_operation_another_deadline() {
    for bound in [Duration::MAX, 250 * TICK] {
        let (purgatory, clock) = manual(|builder| builder.max_timeout(bound));
        let (handle, ends) = park_told(&purgatory, TIMEOUT, asking(&[40, 50, 60, 500]));
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

/// Not from the tick of the arrival, which may be later or earlier: an operation that asks for more time has the
/// deadline of one that has the longest timeout from the start, whichever of its examinations asks.
#[test]
fn g30_the_longest_timeout_counts_from_an_arrival_between_two_ticks_or_before_the_purgatory() {
    let at = |ms: u32| Timestamp::from_origin(ms * TICK);
    // When the purgatory is built, when the operation arrives, its own timeout and the longest one, in milliseconds.
    let rows = [
        (0, 9, 1, 10),
        (0, 11, 5, 15),
        (100, 0, 110, 130),
        (100, 95, 10, 20),
    ];
    for (built, arrived, timeout, longest) in rows {
        for asks in 1..=3 {
            let clock = ManualClock::starting_at(built * TICK);
            let purgatory = by_hand(&clock, |builder| {
                builder.tick(10 * TICK).max_timeout(longest * TICK)
            });
            clock.advance((arrived * TICK).saturating_sub(built * TICK));
            let silent = park(&purgatory, Op::new(longest * TICK).arrived(at(arrived)));
            let mut examinations = 0;
            let (op, _) = told(timeout * TICK, move |cause| {
                examinations += 1;
                if examinations == asks {
                    cause.reschedule(Duration::MAX);
                }
                false
            });
            let asking = park(&purgatory, op.arrived(at(arrived)));
            // The third examination.
            purgatory.check_and_complete(&1);
            let row = format!("built at {built}, arrived at {arrived}, asked {asks}");
            assert_eq!(asking.deadline(), silent.deadline(), "{row}");
            let ages = purgatory.snapshot().into_iter().map(|parked| parked.age);
            let age = clock.now().saturating_since(at(arrived));
            assert_eq!(Vec::from_iter(ages), [age, age], "{row}");
        }
    }
}

/// The operation arrives at 9 ms, where ticks last 10 ms, and its deadline comes at 20 ms: 4 ms of the longest timeout
/// are left.
#[test]
fn g30_at_its_deadline_an_operation_gets_what_is_left_of_the_longest_timeout() {
    let clock = ManualClock::new();
    let purgatory = by_hand(&clock, |builder| {
        builder.tick(10 * TICK).max_timeout(15 * TICK)
    });
    clock.advance(9 * TICK);
    let handle = park(&purgatory, Op::new(5 * TICK).put_off_by(3 * TICK));
    clock.advance(11 * TICK);
    assert_eq!(purgatory.advance(), 0);
    assert_eq!(handle.deadline(), Some(Timestamp::from_origin(30 * TICK)));
}

/// The next tick would begin after the last reading of the clock.
#[test]
fn g09_g30_more_time_at_the_end_of_the_clock_never_ends() {
    within(PATIENCE, || {
        let clock = ManualClock::starting_at(Duration::from_nanos(u64::MAX - 10));
        let builder = Purgatory::<Op>::builder("the end").clock(clock.clone());
        let purgatory = builder.reaper(clock.reaper()).build();
        let purgatory = purgatory.expect("no threads to refuse");
        let handle = park(
            &purgatory,
            Op::new(Duration::ZERO).put_off_by(Duration::ZERO),
        );
        clock.advance(Duration::ZERO);
        assert_eq!(purgatory.stats().extended, 1);
        let deadlines = (handle.deadline(), purgatory.next_deadline());
        assert_eq!(deadlines, (None, None));
        clock.advance(TICK);
        assert!(handle.cancel().is_some());
    });
}

#[test]
fn g30_a_deadline_that_a_satisfied_operation_asks_for_is_none() {
    let (purgatory, _) = manual(|builder| builder);
    let (_, ends) = park_told(&purgatory, TIMEOUT, |cause| {
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

/// An extension lasts one tick at least, whatever the operation asks for, and ends at the bound from the arrival. An
/// operation that asks for ever shows in the statistics, and keeps no pass from its end. At the end of time there is no
/// more time.
#[test]
fn g11_g29_g30_at_its_deadline_an_operation_gets_more_time() {
    let (never, zero) = (Duration::MAX, Duration::ZERO);
    let twice = [
        (TIMEOUT - TICK, 0, 0, 0),
        (TICK, 0, 1, 1),
        (29 * TICK, 0, 1, 1),
        (TICK, 0, 2, 2),
        (30 * TICK, 1, 3, 2),
    ];
    let by_ticks = [
        (TIMEOUT, 0, 1, 1),
        (zero, 0, 1, 1),
        (TICK, 0, 2, 2),
        (zero, 0, 2, 2),
        (TICK, 0, 3, 3),
        (zero, 0, 3, 3),
    ];
    let to_the_bound = [
        (TIMEOUT, 0, 1, 1),
        (30 * TICK, 0, 2, 2),
        (20 * TICK, 1, 3, 2),
    ];
    // The longest timeout, how much more time the operation asks for, and how often.
    let rows: [(Duration, Duration, u64, &[Step]); 5] = [
        (never, 30 * TICK, 2, &twice),
        (never, zero, u64::MAX, &by_ticks),
        (never, Duration::from_nanos(1), u64::MAX, &by_ticks),
        (never, TICK, u64::MAX, &by_ticks),
        (TIMEOUT + 50 * TICK, 30 * TICK, u64::MAX, &to_the_bound),
    ];
    for (bound, more, times, steps) in rows {
        let (purgatory, clock) = manual(|builder| builder.max_timeout(bound));
        let asked = Tally::new();
        let tally = asked.clone();
        let (handle, ends) = park_told(&purgatory, TIMEOUT, move |cause| {
            if cause.is_deadline() {
                tally.add();
                if tally.count() <= times {
                    cause.reschedule(more);
                }
            }
            false
        });
        for (step, &(jump, expired, asked_by_now, extended)) in steps.iter().enumerate() {
            let row = format!("step {step} for {more:?} up to {bound:?}");
            let before = purgatory.stats().extended;
            clock.advance(jump);
            assert_eq!(purgatory.advance(), expired, "{row}");
            let stats = purgatory.stats();
            assert_eq!(asked.count(), asked_by_now, "{row}");
            assert_eq!(stats.extended, extended, "{row}");
            if jump < never {
                assert_eq!(stats.lateness_max, zero, "{row}: of the last deadline");
            }
            if expired == 0 {
                assert_eq!(stats.watched, 1, "{row}");
                assert_eq!(purgatory.check_and_complete(&1), 0, "{row}");
            } else {
                assert_eq!(ends.try_recv(), Ok(Expired), "{row}");
                let counts = (stats.parked, stats.watched, stats.missed_checks);
                assert_eq!(counts, (0, 0, 0), "{row}");
                assert_eq!(purgatory.next_deadline(), None, "{row}");
            }
            if extended > before && bound == never {
                assert_eq!(handle.remaining(), Some(more.max(TICK)), "{row}");
            }
        }
    }
}

/// An operation that lasts to this point.
struct Lasting(Timestamp);

impl DelayedOperation for Lasting {
    type Key = u64;

    fn timeout(&self) -> Duration {
        unreachable!("the library asks for the deadline")
    }

    fn deadline(&self) -> Deadline {
        self.0.into()
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(self, _: Completion) {}
}

/// In a plain purgatory and in one whose completions are awaited. An operation may ask for a point as well.
#[test]
fn g29_an_operation_with_a_point_is_not_asked_for_a_timeout() {
    let clock = ManualClock::new();
    let plain = by_hand::<Lasting>(&clock, |builder| builder);
    let awaited = by_hand::<Awaited<Lasting>>(&clock, |builder| builder);
    let point = Timestamp::from_origin(TIMEOUT);
    let handle = park(&plain, Lasting(point));
    let completion = awaited.completion(Lasting(point), [1]);
    let completion = completion.map_err(|refused| refused.reason());
    let completion = completion.expect("there is room");
    let awaited_handle = completion.handle().expect("it is parked");
    assert_eq!(handle.deadline(), Some(point));
    assert_eq!(awaited_handle.deadline(), Some(point));
    let told = by_hand::<Op>(&clock, |builder| builder);
    let (asking, _) = park_told(&told, Duration::MAX, move |cause| {
        cause.reschedule(point);
        false
    });
    assert_eq!(asking.deadline(), Some(point));
    clock.advance(TIMEOUT);
    assert_eq!((plain.advance(), awaited.advance()), (1, 1));
}

/// The clock panics when it is read for the new deadline, or the operation panics after it has asked.
#[test]
fn g12_a_panic_at_a_deadline_gives_no_more_time() {
    type Row = (fn(&FragileClock), Option<Completion>, [u64; 2]);
    // What happens, how the operation ends, and how many have expired and were aborted.
    let rows: [Row; 2] = [
        (|clock| clock.set_broken(true), Some(Expired), [1, 0]),
        (|_| panic_any("intended"), None, [0, 1]),
    ];
    for (panics, ending, counts) in rows {
        let fragile = FragileClock::default();
        let purgatory = by_hand(&fragile.time, |builder| builder.clock(fragile.clone()));
        let clock = fragile.clone();
        let (_, ends) = park_told(&purgatory, TIMEOUT, move |cause| {
            if cause.is_deadline() {
                cause.reschedule(TIMEOUT);
                panics(&clock);
            }
            false
        });
        fragile.time.advance(TIMEOUT);
        // Counted, and what the pass reads of the clock afterwards may panic as well.
        let _ = catch_unwind(AssertUnwindSafe(|| purgatory.advance()));
        fragile.set_broken(false);
        purgatory.advance();
        assert_eq!(ends.try_recv().ok(), ending);
        assert_eq!(ends.try_recv(), Err(TryRecvError::Disconnected));
        let stats = purgatory.stats();
        assert_eq!([stats.expired, stats.aborted], counts, "{ending:?}");
        assert_eq!((stats.extended, stats.parked), (0, 0), "{ending:?}");
        assert!(stats.panicked > 0, "{ending:?}");
    }
}

/// The deadline comes while another thread examines the operation: that thread asks it, and gives it more time.
#[test]
fn g30_a_deadline_that_comes_during_an_examination_is_put_off_too() {
    for more in [true, false] {
        let (purgatory, clock) = manual::<u64>(|builder| builder);
        let causes = Arc::new(Mutex::new(Vec::new()));
        let (told, moves, mut more_once) = (causes.clone(), clock.clone(), more);
        let passes = inside(&purgatory, |all| assert_eq!(elsewhere(|| all.advance()), 0));
        let (handle, ends) = park_told(&purgatory, TIMEOUT, move |cause| {
            if cause.key().is_some() {
                moves.advance(TIMEOUT);
                passes();
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
        let (purgatory, clock) = manual::<u64>(|builder| builder);
        let slot = Arc::new(OnceLock::<Handle<Op>>::new());
        let (at, mut was_deadline) = (slot.clone(), false);
        let acts = inside(&purgatory, move |all| {
            let handle = at.get().expect("it is parked");
            elsewhere(|| call(handle, all));
        });
        let (handle, ends) = park_told(&purgatory, TIMEOUT, move |cause| {
            if cause.is_deadline() {
                was_deadline = true;
                cause.reschedule(TIMEOUT);
                acts();
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
    for number in 0..MANY {
        let give = give.clone();
        let (op, _) = told(Duration::MAX, move |cause| {
            // An error: the test is over.
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
    purgatory.advance();
    // Of each operation, one examination for its key and one for its wakers.
    assert_eq!(wakers.try_iter().count() as u64, 2 * MANY);
}
