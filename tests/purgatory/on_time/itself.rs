//! G30: an operation reaches itself, by a waker and by its own deadline; and at the deadline, once more. (The wake-ups
//! are model-checked in `loom-tests/tests/itself.rs`.)

use crate::support::{FragileClock, PATIENCE, Tally, eventually, lock, within};
use request_purgatory::purgatory::{Builder, Cause};
use request_purgatory::threads::Reaper;
use request_purgatory::time::ManualClock;
use request_purgatory::{Completion, DelayedOperation, Handle, Purgatory};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_millis(100);

/// An operation that is examined by a closure, which is told the cause.
struct Told<F> {
    examine: F,
    timeout: Duration,
    ended: Sender<Completion>,
}

impl<F: FnMut(Cause<'_, u64>) -> bool + Send + 'static> DelayedOperation for Told<F> {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.timeout
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

type Examine = Box<dyn FnMut(Cause<'_, u64>) -> bool + Send>;
type Op = Told<Examine>;

fn op(
    timeout: Duration,
    examine: impl FnMut(Cause<'_, u64>) -> bool + Send + 'static,
) -> (Op, Receiver<Completion>) {
    let (ended, ends) = channel();
    let examine = Box::new(examine);
    let op = Told {
        examine: examine as Examine,
        timeout,
        ended,
    };
    (op, ends)
}

fn by_hand(clock: &ManualClock) -> Builder<Purgatory<Op>> {
    let builder = Purgatory::builder("itself").clock(clock.clone());
    builder.reaper(Reaper::Manual)
}

fn manual(clock: &ManualClock) -> Purgatory<Op> {
    by_hand(clock).build().expect("no threads to refuse")
}

fn park(purgatory: &Purgatory<Op>, op: Op) -> Handle<Op> {
    let parked = purgatory.try_complete_else_watch(op, [1]);
    let parked = parked.expect("there is room").into_handle();
    parked.expect("it cannot complete yet")
}

/// An operation that gives its waker away in the first examination, and counts all of them.
fn waking(timeout: Duration) -> (Op, Receiver<Completion>, Receiver<Waker>, Arc<Tally>) {
    let examined = Tally::new();
    let (give, wakers) = channel();
    let tally = examined.clone();
    let (op, ends) = op(timeout, move |cause| {
        if tally.count() == 0 {
            give.send(cause.waker()).expect("the test waits for it");
        }
        tally.add();
        false
    });
    (op, ends, wakers, examined)
}

/// By every waker: the one of the first examination, of that after the keys are watched, and of a check.
#[test]
fn g30_each_wake_up_is_followed_by_an_examination_until_the_end() {
    let clock = ManualClock::new();
    let purgatory = manual(&clock);
    let wakers = Arc::new(Mutex::new(Vec::new()));
    let examined = Tally::new();
    let (tally, given) = (examined.clone(), wakers.clone());
    let (op, ends) = op(TIMEOUT, move |cause| {
        tally.add();
        lock(&given).push(cause.waker());
        tally.count() == 10
    });
    park(&purgatory, op);
    purgatory.check_and_complete(&1);
    assert_eq!(examined.count(), 3);
    let all = std::mem::take(&mut *lock(&wakers));
    for waker in all {
        let before = examined.count();
        // Several are one.
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(examined.count(), before, "not on this thread");
        assert!(
            purgatory
                .next_deadline()
                .is_some_and(|next| next.since_origin() < TIMEOUT)
        );
        purgatory.advance();
        assert_eq!(examined.count(), before + 1);
    }
    let waker = lock(&wakers).pop().expect("of the last examination");
    for _ in 0..4 {
        waker.wake_by_ref();
        purgatory.advance();
    }
    assert_eq!(ends.try_recv(), Ok(Completion::Satisfied));
    waker.wake();
    assert_eq!((examined.count(), purgatory.next_deadline()), (10, None));
    assert_eq!(purgatory.stats().completed, 1);
}

/// The operation has no address yet; another examination follows anyway.
#[test]
fn g30_woken_in_its_first_examination_it_is_examined_again() {
    let purgatory = manual(&ManualClock::new());
    let (op, _ends, wakers, examined) = waking(TIMEOUT);
    let (mut first, mut examine) = (true, op.examine);
    let examine: Examine = Box::new(move |cause| {
        let answer = examine(cause);
        if std::mem::take(&mut first) {
            cause.waker().wake();
        }
        answer
    });
    park(&purgatory, Told { examine, ..op });
    assert_eq!(examined.count(), 2);
    wakers.recv().expect("of the first examination").wake();
    purgatory.advance();
    assert_eq!(examined.count(), 3);
}

#[test]
fn g30_a_waker_of_an_operation_that_never_parked_does_nothing() {
    let purgatory = manual(&ManualClock::new());
    let (op, _ends, wakers, examined) = waking(TIMEOUT);
    let rejected = purgatory.try_complete_else_watch(op, [0; 0]);
    assert!(
        rejected.is_err() && wakers.try_recv().is_err(),
        "not examined"
    );
    purgatory.drain(Duration::ZERO);
    let clock = ManualClock::new();
    let full = by_hand(&clock).max_parked(0).build();
    let full = full.expect("no threads to refuse");
    let (op, _ends, wakers, _) = waking(TIMEOUT);
    assert!(full.try_complete_else_watch(op, [1]).is_err());
    let waker = wakers.recv().expect("of the first examination");
    waker.wake_by_ref();
    assert_eq!((full.next_deadline(), examined.count()), (None, 0));
    drop(full);
    waker.wake();
}

/// A waker outlives what it wakes, and does not keep the purgatory.
#[test]
fn g30_a_waker_of_a_purgatory_that_is_gone_does_nothing() {
    let purgatory = manual(&ManualClock::new());
    let (op, ends, wakers, _) = waking(TIMEOUT);
    park(&purgatory, op);
    drop(purgatory);
    assert_eq!(ends.try_recv(), Ok(Completion::ShutDown));
    assert_eq!(ends.try_recv(), Err(TryRecvError::Disconnected));
    wakers.recv().expect("of the first examination").wake();
}

/// The examination takes the lock that its waker is woken under. (Nothing else has started the reaper.)
#[test]
fn g30_a_waker_is_woken_under_a_lock_that_the_examination_takes() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("itself");
        let (ready, slot) = (Arc::new(Mutex::new(false)), Arc::new(OnceLock::new()));
        let (is_ready, waker) = (ready.clone(), slot.clone());
        let (op, ends) = op(Duration::MAX, move |cause| {
            waker.get_or_init(|| cause.waker());
            *lock(&is_ready)
        });
        park(&purgatory, op);
        {
            let mut ready = lock(&ready);
            slot.get().expect("it was examined").wake_by_ref();
            thread::sleep(10 * MS);
            *ready = true;
            slot.get().expect("it was examined").wake_by_ref();
        }
        assert_eq!(ends.recv(), Ok(Completion::Satisfied));
        eventually("the end", || purgatory.is_empty());
    });
}

/// In each kind of examination; the last call counts. The bound counts from the arrival.
#[test]
fn g30_an_operation_gives_itself_another_deadline() {
    for bound in [Duration::MAX, 250 * MS] {
        let clock = ManualClock::new();
        let purgatory = by_hand(&clock).max_timeout(bound).build();
        let purgatory = purgatory.expect("no threads to refuse");
        let mut timeouts = [40, 50, 60, 500].map(|ms| ms * MS).into_iter();
        let (op, ends) = op(TIMEOUT, move |cause| {
            if let (false, Some(timeout)) = (cause.is_deadline(), timeouts.next()) {
                cause.reschedule(Duration::MAX);
                cause.reschedule(timeout);
            }
            false
        });
        let handle = park(&purgatory, op);
        assert_eq!(
            handle.remaining(),
            Some(50 * MS),
            "of the second examination"
        );
        clock.advance(10 * MS);
        purgatory.check_and_complete(&1);
        assert_eq!(handle.remaining(), Some(60 * MS));
        clock.advance(10 * MS);
        handle.check();
        let left = (500 * MS).min(bound.saturating_sub(20 * MS));
        assert_eq!(handle.remaining(), Some(left));
        // Once it was in time.
        clock.advance(left - MS);
        assert_eq!(purgatory.advance(), 0);
        clock.advance(MS);
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(ends.try_recv(), Ok(Completion::Expired));
        assert_eq!(purgatory.stats().extended, 0);
    }
}

/// The first examination is the only one that asks.
#[test]
fn g30_the_first_examination_sets_the_deadline() {
    let clock = ManualClock::new();
    let purgatory = by_hand(&clock).max_timeout(50 * MS).build();
    let purgatory = purgatory.expect("no threads to refuse");
    for (asked, gets) in [(20, 20), (70, 50)] {
        let mut first = true;
        let (op, _) = op(Duration::MAX, move |cause| {
            if std::mem::take(&mut first) {
                cause.reschedule(asked * MS);
            }
            false
        });
        assert_eq!(park(&purgatory, op).remaining(), Some(gets * MS));
    }
}

#[test]
fn g30_a_deadline_that_a_satisfied_operation_asks_for_is_none() {
    let clock = ManualClock::new();
    let purgatory = manual(&clock);
    let (op, ends) = op(TIMEOUT, |cause| {
        cause.reschedule(MS);
        cause.key().is_some()
    });
    park(&purgatory, op);
    assert_eq!(purgatory.check_and_complete(&1), 1);
    assert_eq!(ends.try_recv(), Ok(Completion::Satisfied));
    assert_eq!(purgatory.next_deadline(), None);
}

/// An operation that asks for `more` time at its deadline, as often as `times` says.
fn extending(more: Duration, times: u64) -> (Op, Receiver<Completion>, Arc<Tally>) {
    let asked = Tally::new();
    let tally = asked.clone();
    let (op, ends) = op(TIMEOUT, move |cause| {
        if cause.is_deadline() {
            tally.add();
            if tally.count() <= times {
                cause.reschedule(more);
            }
        }
        false
    });
    (op, ends, asked)
}

#[test]
fn g30_at_its_deadline_an_operation_gets_more_time() {
    let clock = ManualClock::new();
    let purgatory = manual(&clock);
    let (op, ends, asked) = extending(30 * MS, 2);
    let handle = park(&purgatory, op);
    for (wait, extended) in [(TIMEOUT, 1), (30 * MS, 2)] {
        clock.advance(wait - MS);
        assert_eq!((purgatory.advance(), asked.count()), (0, extended - 1));
        clock.advance(MS);
        assert_eq!((purgatory.advance(), asked.count()), (0, extended));
        assert_eq!(purgatory.stats().extended, extended);
        assert_eq!(handle.remaining(), Some(30 * MS));
        assert_eq!(purgatory.check_and_complete(&1), 0, "it is watched still");
    }
    clock.advance(30 * MS);
    assert_eq!(purgatory.advance(), 1);
    assert_eq!(ends.try_recv(), Ok(Completion::Expired));
    let stats = purgatory.stats();
    assert_eq!(
        (stats.expired, stats.extended, stats.parked, stats.watched),
        (1, 2, 0, 0)
    );
    assert_eq!(
        (stats.lateness_max, stats.missed_checks),
        (Duration::ZERO, 0)
    );
    assert_eq!(purgatory.next_deadline(), None);
}

/// Whatever it asks for; an operation that asks for ever shows in the statistics, and keeps no pass from its end.
#[test]
fn g11_an_extension_lasts_one_tick_at_least() {
    for more in [Duration::ZERO, Duration::from_nanos(1), MS] {
        let clock = ManualClock::new();
        let purgatory = manual(&clock);
        let (op, _ends, asked) = extending(more, u64::MAX);
        park(&purgatory, op);
        clock.advance(TIMEOUT);
        for extended in 1..4 {
            assert_eq!(purgatory.advance(), 0);
            assert_eq!(
                (asked.count(), purgatory.stats().extended),
                (extended, extended)
            );
            assert_eq!(purgatory.advance(), 0);
            assert_eq!(asked.count(), extended, "not before the next tick");
            clock.advance(MS);
        }
    }
}

#[test]
fn g30_more_time_ends_at_the_bound_from_the_arrival() {
    let clock = ManualClock::new();
    let purgatory = by_hand(&clock).max_timeout(TIMEOUT + 50 * MS).build();
    let purgatory = purgatory.expect("no threads to refuse");
    let (op, ends, asked) = extending(30 * MS, u64::MAX);
    park(&purgatory, op);
    for (wait, expired) in [(TIMEOUT, 0), (30 * MS, 0), (20 * MS, 1)] {
        clock.advance(wait);
        assert_eq!(purgatory.advance(), expired);
    }
    assert_eq!(ends.try_recv(), Ok(Completion::Expired));
    assert_eq!((asked.count(), purgatory.stats().extended), (3, 2));
}

/// The clock is read for the new deadline.
#[test]
fn g12_an_operation_whose_clock_panics_at_the_deadline_expires() {
    struct Both(ManualClock, FragileClock);
    impl request_purgatory::time::Clock for Both {
        fn now(&self) -> request_purgatory::time::Timestamp {
            self.1.now();
            self.0.now()
        }
    }
    let (clock, fragile) = (ManualClock::new(), FragileClock::default());
    let builder = Purgatory::<Op>::builder("itself").reaper(Reaper::Manual);
    let purgatory = builder.clock(Both(clock.clone(), fragile.clone())).build();
    let purgatory = purgatory.expect("no threads to refuse");
    let breaks = fragile.clone();
    let (op, ends) = op(TIMEOUT, move |cause| {
        if cause.is_deadline() {
            cause.reschedule(TIMEOUT);
            breaks.set_broken(true);
        }
        false
    });
    park(&purgatory, op);
    clock.advance(TIMEOUT);
    // Counted, and what the pass reads of the clock afterwards may panic as well.
    let _ = catch_unwind(AssertUnwindSafe(|| purgatory.advance()));
    fragile.set_broken(false);
    purgatory.advance();
    assert_eq!(ends.try_recv(), Ok(Completion::Expired));
    let stats = purgatory.stats();
    assert_eq!((stats.expired, stats.extended, stats.parked), (1, 0, 0));
    assert!(stats.panicked > 0);
}

/// And costs no other one its deadline.
#[test]
fn g12_an_operation_that_panics_at_its_deadline_gets_no_more_time() {
    let clock = ManualClock::new();
    let purgatory = manual(&clock);
    let (bad, bad_ends) = op(TIMEOUT, |cause| {
        if cause.is_deadline() {
            cause.reschedule(TIMEOUT);
            panic_any("intended");
        }
        false
    });
    let (good, ends, _) = extending(TIMEOUT, 0);
    park(&purgatory, bad);
    park(&purgatory, good);
    clock.advance(TIMEOUT);
    assert_eq!(purgatory.advance(), 1);
    assert_eq!(ends.try_recv(), Ok(Completion::Expired));
    assert_eq!(
        bad_ends.try_recv(),
        Err(TryRecvError::Disconnected),
        "dropped"
    );
    let stats = purgatory.stats();
    assert_eq!((stats.aborted, stats.extended, stats.parked), (1, 0, 0));
}

/// The deadline comes while another thread examines the operation: that thread asks it, and gives it more time.
#[test]
fn g30_a_deadline_that_comes_during_an_examination_is_put_off_too() {
    for more in [true, false] {
        let clock = ManualClock::new();
        let purgatory = manual(&clock);
        let causes = Arc::new(Mutex::new(Vec::new()));
        let (told, world) = (causes.clone(), (purgatory.downgrade(), clock.clone()));
        let mut more_once = more;
        let (op, ends) = op(TIMEOUT, move |cause| {
            let (weak, clock) = &world;
            if cause.key().is_some() {
                clock.advance(TIMEOUT);
                let purgatory = weak.upgrade().expect("it is in use");
                let pass = thread::spawn(move || purgatory.advance());
                assert_eq!(pass.join().expect("it does not panic"), 0);
            }
            if cause.is_deadline() && std::mem::take(&mut more_once) {
                cause.reschedule(30 * MS);
            }
            lock(&told).push((cause.key().copied(), cause.is_deadline()));
            false
        });
        let handle = park(&purgatory, op);
        lock(&causes).clear();
        assert_eq!(purgatory.check_and_complete(&1), 0);
        assert_eq!(*lock(&causes), [(Some(1), false), (None, true)]);
        assert_eq!(purgatory.stats().extended, u64::from(more));
        if more {
            assert_eq!(handle.remaining(), Some(30 * MS));
            clock.advance(30 * MS);
            assert_eq!(purgatory.advance(), 1);
        }
        assert_eq!(ends.try_recv(), Ok(Completion::Expired));
        assert_eq!(
            (purgatory.stats().expired, purgatory.next_deadline()),
            (1, None)
        );
    }
}

/// What other threads ask for while it is examined at its deadline is not forgotten because it gets more time.
#[test]
fn g05_a_mark_at_a_deadline_that_is_put_off_is_obeyed() {
    type Call = fn(&Handle<Op>, &Purgatory<Op>);
    let calls: [(Call, Completion); 4] = [
        (
            |handle, _| _ = handle.force_complete(),
            Completion::Satisfied,
        ),
        (|handle, _| _ = handle.cancel(), Completion::Cancelled),
        (|handle, _| _ = handle.check(), Completion::Satisfied),
        (
            |_, purgatory| _ = purgatory.check_and_complete(&1),
            Completion::Satisfied,
        ),
    ];
    for (call, expected) in calls {
        let clock = ManualClock::new();
        let purgatory = manual(&clock);
        let slot = Arc::new(OnceLock::<Handle<Op>>::new());
        let (at, weak) = (slot.clone(), purgatory.downgrade());
        let mut was_deadline = false;
        let (op, ends) = op(TIMEOUT, move |cause| {
            if cause.is_deadline() {
                was_deadline = true;
                cause.reschedule(TIMEOUT);
                let (slot, purgatory) = (at.clone(), weak.upgrade().expect("it is in use"));
                let other = thread::spawn(move || {
                    call(slot.get().expect("it is parked"), &purgatory);
                });
                other.join().expect("it does not panic");
            }
            was_deadline && !cause.is_deadline()
        });
        let handle = park(&purgatory, op);
        assert!(slot.set(handle).is_ok());
        clock.advance(TIMEOUT);
        assert_eq!(purgatory.advance(), 0);
        assert_eq!(ends.try_recv(), Ok(expected));
        let stats = purgatory.stats();
        assert_eq!((stats.parked, stats.watched, stats.extended), (0, 0, 1));
        assert_eq!(purgatory.next_deadline(), None);
    }
}

/// A check that came before the deadline was processed completes it all the same.
#[test]
fn g01_a_wake_up_before_the_deadline_is_examined_before_it() {
    let clock = ManualClock::new();
    let purgatory = manual(&clock);
    let (is_ready, waker) = (Arc::new(Mutex::new(false)), Arc::new(OnceLock::new()));
    let (ready, slot) = (is_ready.clone(), waker.clone());
    let (op, ends) = op(TIMEOUT, move |cause| {
        slot.get_or_init(|| cause.waker());
        *lock(&ready)
    });
    park(&purgatory, op);
    *lock(&is_ready) = true;
    waker.get().expect("it was examined").wake_by_ref();
    clock.advance(TIMEOUT);
    assert_eq!(purgatory.advance(), 0);
    assert_eq!(ends.try_recv(), Ok(Completion::Satisfied));
}
