//! G29: a deadline that is a point in time stands still, however often a call is given it.

use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, within};
use request_purgatory::future::{Awaited, block_on};
use request_purgatory::purgatory::Cause;
use request_purgatory::threads::Reaper;
use request_purgatory::time::{Clock, ManualClock, Timestamp};
use request_purgatory::{
    Completion, Deadline, DelayedOperation, Purgatory, Timer, WaitError, Waits,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn waits(clock: &ManualClock) -> Waits<u32> {
    let builder = Waits::<u32>::builder("g32").clock(clock.clone());
    let built = builder.reaper(Reaper::Manual).build();
    built.expect("no threads to refuse")
}

/// The rounds of a wait that is woken every 300 ms, and waits again with the same deadline, until it expires; and when
/// that is.
fn rounds(deadline: impl Fn(&Waits<u32>) -> Deadline) -> (usize, Duration) {
    let clock = ManualClock::new();
    let waits = waits(&clock);
    let deadline = deadline(&waits);
    for round in 0.. {
        let event = Arc::new(AtomicBool::new(false));
        let happened = event.clone();
        let wait = waits.wait([1], deadline, move || {
            happened.load(Ordering::Relaxed).then_some(())
        });
        clock.advance(Duration::from_millis(300));
        // The thread that drives the timer comes before the event.
        waits.advance();
        event.store(true, Ordering::Relaxed);
        waits.check_and_complete(&1);
        if block_on(wait).is_err() || round == 20 {
            return (round, clock.now().since_origin());
        }
    }
    unreachable!("the loop returns")
}

/// It always asks for more time.
struct More;

impl DelayedOperation for More {
    type Key = u32;

    fn timeout(&self) -> Duration {
        SECOND
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn try_complete_for(&mut self, cause: Cause<'_, u32>) -> bool {
        if cause.is_deadline() {
            cause.reschedule(SECOND);
        }
        false
    }

    fn on_complete(self, _: Completion) {}
}

#[test]
fn g29_at_the_end_of_time_there_is_no_more_time() {
    let clock = ManualClock::new();
    let builder = Purgatory::<More>::builder("more").clock(clock.clone());
    let purgatory = builder.reaper(Reaper::Manual).build();
    let purgatory = purgatory.expect("no threads to refuse");
    drop(purgatory.try_complete_else_watch(More, [1]));
    clock.advance(SECOND);
    assert_eq!((purgatory.advance(), purgatory.len()), (0, 1));
    clock.advance(Duration::MAX);
    assert_eq!((purgatory.advance(), purgatory.len()), (1, 0));
}

#[test]
fn g29_a_loop_of_waits_against_one_point_ends_at_that_point() {
    let (round, at) = rounds(|waits| waits.point(SECOND));
    assert_eq!((round, at), (3, Duration::from_millis(1_200)));
    let point = Timestamp::from_origin(SECOND);
    assert_eq!(rounds(|_| point.into()), (3, Duration::from_millis(1_200)));
    // A timeout begins anew in every round.
    assert_eq!(rounds(|_| SECOND.into()).0, 20);
}

#[test]
fn g29_a_loop_of_waits_against_one_instant_ends_at_that_instant() {
    within(PATIENCE, || {
        let waits = Waits::<u32>::new("g29-instant");
        let deadline = Instant::now() + Duration::from_millis(100);
        let mut rounds = 0;
        loop {
            let wait = waits.wait([1], deadline, || None::<()>);
            assert_eq!(block_on(wait), Err(WaitError::Expired));
            // Never early, in the first round and in those behind the deadline.
            assert!(Instant::now() >= deadline);
            rounds += 1;
            if rounds == 5 {
                break;
            }
        }
        let late = waits.stats().lateness_max;
        assert!(late < 5 * SECOND, "{late:?}");
    });
}

#[test]
fn g29_a_point_that_has_passed_expires_at_once() {
    within(PATIENCE, || {
        let waits = Waits::<u32>::new("g29-past");
        let before = Instant::now() - Duration::from_millis(1);
        let long_before = before
            .checked_sub(Duration::from_secs(60))
            .unwrap_or(before);
        for past in [before, long_before] {
            let begun = Instant::now();
            let wait = waits.wait([1], past, || None::<()>);
            assert_eq!(block_on(wait), Err(WaitError::Expired));
            assert!(begun.elapsed() < 5 * SECOND);
            // The predicate is asked first.
            assert_eq!(block_on(waits.wait([1], past, || Some(7))), Ok(7));
            let listener = waits.listen([1], past);
            let found = block_on(listener.until(async || None::<()>));
            assert_eq!(found, Err(WaitError::Expired));
        }
    });
    let clock = ManualClock::starting_at(SECOND);
    let (expired, ends) = channel();
    let timer = Timer::builder("g29-past").clock(clock.clone());
    let timer = timer.reaper(Reaper::Manual);
    let timer = timer.build(move |name| expired.send(name).expect("it is read"));
    let timer = timer.expect("no threads to refuse");
    for past in [Timestamp::default(), Timestamp::from_origin(SECOND)] {
        assert!(timer.start(past, "past").is_ok());
    }
    assert_eq!(timer.advance(), 2);
    let moved = timer.start(None, "moved").expect("there is room");
    assert!(timer.reschedule(moved, Timestamp::default()));
    assert_eq!(timer.advance(), 1);
    assert_eq!(
        ends.try_iter().collect::<Vec<_>>(),
        ["past", "past", "moved"]
    );
}

#[test]
fn g29_a_point_beyond_all_time_never_comes() {
    let clock = ManualClock::new();
    let waits = waits(&clock);
    let last = Timestamp::from_origin(Duration::MAX);
    for never in [
        Deadline::Never,
        last.into(),
        Duration::MAX.into(),
        None.into(),
    ] {
        let wait = waits.wait([1], never, || None::<()>);
        let handle = wait.handle().expect("it is parked");
        assert_eq!(handle.deadline(), None, "{never:?}");
        clock.advance(Duration::from_secs(1 << 40));
        assert_eq!((waits.advance(), waits.len()), (0, 1));
    }
    assert_eq!(waits.point(Duration::MAX), Deadline::Never);
    assert_eq!(waits.point(Duration::MAX - SECOND), Deadline::Never);
    assert_eq!(waits.point(None), Deadline::Never);
    assert_eq!(waits.point(last), Deadline::At(last));
    let far = Instant::now() + Duration::from_secs(1 << 40);
    let wait = waits.wait([1], far, || None::<()>);
    let left = wait.handle().and_then(|handle| handle.remaining());
    assert!(left.is_some_and(|left| left > Duration::from_secs((1 << 40) - 60)));
}

/// What is left until an `Instant` when the call is made counts by the clock of the purgatory.
#[test]
fn g29_a_clock_of_its_own_counts_what_is_left_of_an_instant() {
    let clock = ManualClock::starting_at(5 * SECOND);
    let waits = waits(&clock);
    let instant = Instant::now() + NEVER_IN_A_TEST;
    let wait = waits.wait([1], instant, || None::<()>);
    let left = wait.handle().and_then(|handle| handle.remaining());
    let left = left.expect("it has a deadline");
    assert!(left <= NEVER_IN_A_TEST + TICK && left > NEVER_IN_A_TEST - 60 * SECOND);
    clock.advance(NEVER_IN_A_TEST + TICK);
    waits.advance();
    assert_eq!(block_on(wait), Err(WaitError::Expired));
    // The next call counts anew: this clock has not come nearer to the instant.
    let again = waits.wait([1], instant, || None::<()>);
    let left = again.handle().and_then(|handle| handle.remaining());
    assert!(left.is_some_and(|left| left > NEVER_IN_A_TEST - 60 * SECOND));
}

#[test]
fn g29_the_longest_timeout_bounds_a_point_as_well() {
    let clock = ManualClock::starting_at(SECOND);
    let waits = Waits::<u32>::builder("g29-longest").clock(clock.clone());
    let waits = waits.max_timeout(10 * TICK).reaper(Reaper::Manual).build();
    let waits = waits.expect("no threads to refuse");
    let at = |after| Timestamp::from_origin(SECOND + after);
    for (deadline, granted) in [
        (at(SECOND).into(), 10 * TICK),
        (at(3 * TICK).into(), 3 * TICK),
        (Deadline::from(Instant::now() + NEVER_IN_A_TEST), 10 * TICK),
        (Deadline::Never, 10 * TICK),
    ] {
        let wait = waits.wait([1], deadline, || None::<()>);
        let handle = wait.handle().expect("it is parked");
        assert_eq!(handle.deadline(), Some(at(granted)));
        assert!(handle.reschedule(Deadline::Never) && handle.reschedule(deadline));
        assert_eq!(handle.deadline(), Some(at(granted)));
    }
}

/// Knows the moment, and no timeout.
struct Until {
    deadline: Deadline,
    puts_off: Option<Deadline>,
    ended: Sender<Completion>,
}

impl DelayedOperation for Until {
    type Key = u32;

    fn timeout(&self) -> Duration {
        unreachable!("its deadline is a point")
    }

    fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn try_complete_for(&mut self, cause: Cause<'_, u32>) -> bool {
        if let Some(later) = self.puts_off.take() {
            cause.reschedule(later);
        }
        false
    }

    fn on_complete(self, completion: Completion) {
        self.ended.send(completion).expect("it is read");
    }
}

#[test]
fn g29_an_operation_with_a_point_is_not_asked_for_a_timeout() {
    let clock = ManualClock::new();
    let builder = || Purgatory::builder("g29-until").clock(clock.clone());
    let plain = builder().reaper(Reaper::Manual).build();
    let plain = plain.expect("no threads to refuse");
    let awaited = Purgatory::<Awaited<Until>>::builder("g29-until").clock(clock.clone());
    let awaited = awaited.reaper(Reaper::Manual).build();
    let awaited = awaited.expect("no threads to refuse");
    let (ended, ends) = channel();
    let until = |deadline| Until {
        deadline,
        puts_off: None,
        ended: ended.clone(),
    };
    let point = Timestamp::from_origin(SECOND);
    let parked = plain.try_complete_else_watch(until(point.into()), [1]);
    let handle = parked.expect("there is room").into_handle();
    let handle = handle.expect("it is parked");
    let completion = awaited.completion(until(point.into()), [1]);
    let completion = completion.map_err(|refused| refused.reason());
    let completion = completion.expect("there is room");
    let deadlines = [
        handle.deadline(),
        completion.handle().and_then(|handle| handle.deadline()),
    ];
    assert_eq!(deadlines, [Some(point); 2]);
    let parked = plain.try_complete_else_watch(
        Until {
            puts_off: Some(Timestamp::from_origin(2 * SECOND).into()),
            ..until(point.into())
        },
        [2],
    );
    assert!(parked.is_ok_and(|parked| parked.is_parked()));
    clock.advance(SECOND);
    assert_eq!((plain.advance(), awaited.advance()), (1, 1));
    clock.advance(SECOND - TICK);
    assert_eq!(plain.advance(), 0);
    clock.advance(TICK);
    assert_eq!(plain.advance(), 1);
    assert_eq!(ends.try_iter().count(), 2);
}

#[test]
fn g29_a_handle_moves_an_operation_to_a_point() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g29-handle");
        let probe = Probe::new();
        let parked = purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [1]);
        let handle = parked.expect("there is room").into_handle();
        let handle = handle.expect("it is parked");
        let point = Instant::now() + Duration::from_millis(20);
        assert!(handle.reschedule(point));
        eventually("the expiry", || probe.ending().is_some());
        assert!(Instant::now() >= point);
        assert!(!handle.reschedule(None));
    });
}
