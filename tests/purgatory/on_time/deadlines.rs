//! G9, G10, G29: what a deadline counts from; that it is met in its tick, at any uptime, and stands still however often
//! a call is given it. (G9 to G11 also in `tests/timer/time.rs` and `tests/model`.)

use super::{TICK, by_hand, park, watched};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, manual, within};
use request_purgatory::future::block_on;
use request_purgatory::purgatory::Admission;
use request_purgatory::threads::Reaper;
use request_purgatory::time::{Clock, ManualClock, Timestamp};
use request_purgatory::{Completion, Deadline, Handle, Purgatory, Timer, WaitError, Waits};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

fn at(reading: Duration) -> Timestamp {
    Timestamp::from_origin(reading)
}

fn park_at(
    purgatory: &Purgatory<Op>,
    arrival: Timestamp,
    timeout: Duration,
) -> (Arc<Probe>, Handle<Op>) {
    let probe = Probe::new();
    let handle = park(purgatory, probe.op(timeout).arrived(arrival));
    (probe, handle)
}

/// A clock that counts how often it is read.
struct Counting(ManualClock, Arc<Tally>);

impl Clock for Counting {
    fn now(&self) -> Timestamp {
        self.1.add();
        self.0.now()
    }
}

#[test]
fn g10_parking_with_a_reading_reads_no_clock() {
    let (clock, readings) = (ManualClock::new(), Tally::new());
    let counting = Counting(clock.clone(), readings.clone());
    let (purgatory, _) = manual::<u64>(|builder| builder.clock(counting));
    let key = purgatory.resolve(1);
    let arrival = clock.now();
    let before = readings.count();
    let op = || Op::new(TICK).arrived(arrival);
    for _ in 0..10 {
        assert!(purgatory.try_complete_else_watch(op(), [1, 2]).is_ok());
        let watches = [key.watch().at_rank(3)];
        assert!(purgatory.try_complete_else_watch(op(), watches).is_ok());
        let watch = purgatory.try_complete_else_watch(op().when(|| true), [1]);
        assert!(matches!(watch, Ok(Admission::Ended)));
    }
    purgatory.check_and_complete(&1);
    key.check_and_complete();
    assert_eq!(readings.count(), before);
    park(&purgatory, Op::new(TICK));
    assert_eq!(readings.count(), before + 1, "one without a reading");
}

/// The first examination may take long.
#[test]
fn g10_without_a_reading_the_timeout_counts_from_the_end_of_the_first_examination() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let mut first = true;
    let op = Op::new(60 * TICK).when(move || {
        if std::mem::take(&mut first) {
            clock.advance(50 * TICK);
        }
        false
    });
    assert_eq!(park(&purgatory, op).remaining(), Some(60 * TICK));
}

/// Rounded up to the tick. A clock may be older than the purgatory, and so may a request. `max_timeout` bounds the
/// timeout, not the deadline. What has passed expires in the next pass, and nothing else does.
#[test]
fn g10_the_deadline_counts_from_a_reading_of_any_time() {
    const NANO: Duration = Duration::from_nanos(1);
    let never = Duration::MAX;
    // The longest timeout, the reading and the timeout; and the deadline in ticks. It is tick 100.
    let rows = [
        (never, 40 * TICK, 50 * TICK, Some(90)),
        (never, Duration::ZERO, TICK, Some(1)),
        (never, 99 * TICK, TICK, Some(100)),
        (never, 99 * TICK, TICK + NANO, Some(101)),
        (never, 99 * TICK + NANO, TICK, Some(101)),
        (never, 40 * TICK, 70 * TICK, Some(110)),
        (never, 100 * TICK + NANO, Duration::ZERO, Some(101)),
        (never, 700 * TICK, 2 * TICK - NANO, Some(702)),
        (never, 40 * TICK, never, None),
        (5 * TICK, 100 * TICK, never, Some(105)),
        (5 * TICK, 98 * TICK, 60 * TICK, Some(103)),
        (5 * TICK, 500 * TICK, 60 * TICK, Some(505)),
        (5 * TICK, 500 * TICK, 2 * TICK, Some(502)),
    ];
    for (longest, reading, timeout, deadline) in rows {
        for age in [0, 1, 100] {
            let row = format!("{timeout:?} of {longest:?} from {reading:?}, age {age}");
            let clock = ManualClock::starting_at((100 - age) * TICK);
            let purgatory = by_hand::<Op>(&clock, |builder| builder.max_timeout(longest));
            clock.advance(age * TICK);
            if age == 1 {
                purgatory.advance();
            }
            let other = park(&purgatory, Op::new(SECOND).arrived(at(10 * SECOND)));
            let (probe, handle) = park_at(&purgatory, at(reading), timeout);
            let left = deadline.map(|deadline: u32| deadline.saturating_sub(100) * TICK);
            assert_eq!(handle.remaining(), left, "{row}");
            if let Some(tick_before) = left.and_then(|left| left.checked_sub(TICK)) {
                let deadline = at(100 * TICK + tick_before + TICK);
                assert_eq!(handle.deadline(), Some(deadline), "{row}");
                clock.advance(tick_before);
                assert_eq!(purgatory.advance(), 0, "{row}");
                clock.advance(TICK);
            }
            let next = purgatory.next_deadline();
            let is_due = next.is_some_and(|next| next <= clock.now());
            assert_eq!(is_due, left.is_some(), "{row}");
            assert_eq!(purgatory.advance(), usize::from(is_due), "{row}");
            let expired = left.map(|_| Completion::Expired);
            assert_eq!(probe.ending(), expired, "{row}");
            assert!(other.is_parked(), "{row}");
        }
    }
}

/// If the timer took that reading for the present, it would count each nearer deadline as passed: every pass would
/// search all of these, and the deadline of a cancelled one would stay announced.
#[test]
fn g10_a_reading_of_the_future_makes_no_other_deadline_an_overdue_one() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    park_at(&purgatory, at(1_000 * SECOND), Duration::ZERO);
    let (_, soon) = park_at(&purgatory, clock.now(), 10 * TICK);
    park_at(&purgatory, clock.now(), 500 * TICK);
    assert!(soon.cancel().is_some());
    let next = purgatory.next_deadline().expect("two are parked");
    assert!(next > at(10 * TICK), "{next:?}");
}

#[test]
fn g09_any_timeout_is_accepted_and_absurd_ones_never_expire() {
    let long = [
        Duration::MAX,
        Duration::MAX - Duration::from_nanos(1),
        Duration::from_secs(u64::MAX),
        Duration::from_secs(u64::MAX / 2),
    ];
    for tick in [Duration::from_nanos(1), TICK, 3_600 * SECOND] {
        for start in [Duration::ZERO, Duration::from_secs(1 << 40), Duration::MAX] {
            let clock = ManualClock::starting_at(start);
            let purgatory = by_hand(&clock, |builder| builder.tick(tick));
            let handles = long.map(|timeout| park(&purgatory, Op::new(timeout)));
            for step in [Duration::ZERO, TICK, Duration::from_secs(1 << 33)] {
                clock.advance(step);
                assert_eq!(purgatory.advance(), 0, "{tick:?} from {start:?}");
            }
            assert_eq!(handles[0].remaining(), None, "never");
            // They end like others.
            assert_eq!(purgatory.cancel_for_key(&1).len(), long.len());
            assert_eq!(purgatory.next_deadline(), None);
        }
    }
}

/// Uptimes around which other timers broke, in ticks: powers of two, and the end of the count. A bucket keeps the low
/// 16 bits of each deadline. What is more comes from the bucket's place, or from the record.
#[test]
fn g09_operations_expire_in_their_tick_by_any_wheel_at_any_uptime() {
    // All powers of two that a wheel may have as its size. It rounds the others of these numbers up to them.
    const SIZES: [usize; 16] = [
        2, 3, 8, 10, 17, 64, 65, 256, 257, 1_000, 2_048, 4_000, 8_191, 16_384, 32_767, 65_536,
    ];
    let powers = [1, 16, 30, 36, 53, 63].map(|bits| (1_u64 << bits) - 2);
    let others = [(1 << 32) - 70_000, u64::MAX - (1 << 33), u64::MAX - 100_000];
    let mut random = fastrand::Rng::with_seed(16);
    for size in SIZES {
        for start in powers.into_iter().chain(others) {
            fires_in_its_tick(size, start, &mut random);
        }
    }
}

/// Time passes in random steps, and random timeouts begin. Nanosecond ticks, so that the clock itself reaches any tick.
fn fires_in_its_tick(size: usize, start: u64, random: &mut fastrand::Rng) {
    let clock = ManualClock::starting_at(Duration::from_nanos(start));
    let tick = Duration::from_nanos(1);
    let purgatory = by_hand(&clock, |builder| builder.tick(tick).wheel_size(size));
    let window = size.next_power_of_two() as u64;
    // The borders of levels.
    let near = [1 << 16, window, window.pow(2), window.pow(3)];
    let mut waiting = Vec::<(u64, Arc<Probe>)>::new();
    let mut now = start;
    for _ in 0..60 {
        for _ in 0..random.u64(..4) {
            let timeout = match random.u64(..3) {
                0 => near[random.usize(..near.len())] + random.u64(..3) - 1,
                _ => random.u64(..) >> (63 - random.u64(..36)),
            };
            let timeout = timeout.min(u64::MAX - 2 - now);
            let probe = watched(&purgatory, Duration::from_nanos(timeout));
            waiting.push((now + timeout, probe));
        }
        let first = waiting.iter().map(|&(deadline, _)| deadline).min();
        let first = first.unwrap_or(now) - now;
        let jump = match random.u64(..5) {
            0 => first,
            1 => first.saturating_sub(1),
            2 => random.u64(..70_000),
            _ => random.u64(..) >> (63 - random.u64(..36)),
        };
        let jump = jump.min(u64::MAX - 2 - now);
        clock.advance(Duration::from_nanos(jump));
        now += jump;
        purgatory.advance();
        waiting.retain(|(deadline, probe)| {
            let expired = probe.ending() == Some(Completion::Expired);
            assert_eq!(expired, *deadline <= now, "{size} slots from {start}");
            !expired
        });
    }
}

/// None is granted a longer timeout than `longest`.
fn waits(clock: &ManualClock, longest: Duration) -> Waits<u64> {
    let builder = Waits::<u64>::builder("g29").clock(clock.clone());
    let built = builder.max_timeout(longest).reaper(Reaper::Manual).build();
    built.expect("no threads to refuse")
}

/// Never early, and at once in the calls after the first.
#[test]
fn g29_each_wait_and_listener_until_one_instant_ends_at_that_instant() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("g29-instant");
        let now = Instant::now();
        let long_ago = now.checked_sub(60 * SECOND).unwrap_or(now);
        for deadline in [now + 100 * TICK, now, long_ago] {
            for _ in 0..3 {
                let wait = waits.wait([1], deadline, || None::<()>);
                assert_eq!(block_on(wait), Err(WaitError::Expired));
                assert!(Instant::now() >= deadline);
            }
            // The predicate is asked first.
            assert_eq!(block_on(waits.wait([1], deadline, || Some(7))), Ok(7));
            let listener = waits.listen([1], deadline);
            let found = block_on(listener.until(async || None::<()>));
            assert_eq!(found, Err(WaitError::Expired));
        }
        let late = waits.stats().lateness_max;
        assert!(late.max(now.elapsed()) < 10 * SECOND, "{late:?}");
    });
}

#[test]
fn g29_a_timer_started_or_moved_to_a_passed_point_expires_at_once() {
    let timer = Timer::builder("g29-past").clock(ManualClock::starting_at(SECOND));
    let timer = timer.reaper(Reaper::Manual).build(drop);
    let timer = timer.expect("no threads to refuse");
    for past in [at(Duration::ZERO), at(SECOND)] {
        assert!(timer.start(past, "past").is_ok());
    }
    assert_eq!(timer.advance(), 2);
    let moved = timer.start(None, "moved").expect("there is room");
    assert!(timer.reschedule(moved, at(Duration::ZERO)));
    assert_eq!(timer.advance(), 1);
}

/// What is beyond all time never comes, and the longest timeout bounds that as well.
#[test]
fn g29_a_wait_lasts_to_its_point_or_for_the_longest_timeout() {
    const NOW: Duration = SECOND;
    let last = at(Duration::MAX);
    let rows: [(Deadline, Option<Duration>); 6] = [
        (Deadline::Never, None),
        (last.into(), None),
        (Duration::MAX.into(), None),
        (None.into(), None),
        (at(NOW + 3 * TICK).into(), Some(3 * TICK)),
        (at(NOW + SECOND).into(), Some(SECOND)),
    ];
    for (deadline, after) in rows {
        for longest in [Duration::MAX, 10 * TICK] {
            let clock = ManualClock::starting_at(NOW / 2);
            let waits = waits(&clock, longest);
            clock.advance(NOW / 2);
            let granted = Some(after.unwrap_or(Duration::MAX).min(longest));
            let granted = granted.filter(|granted| *granted < Duration::MAX);
            let expected = granted.map(|granted| at(NOW + granted));
            let wait = waits.wait([1], deadline, || None::<()>);
            let handle = wait.handle().expect("it is parked");
            assert_eq!(handle.deadline(), expected, "{deadline:?}");
            assert!(handle.reschedule(Deadline::Never) && handle.reschedule(deadline));
            assert_eq!(handle.deadline(), expected, "{deadline:?}");
            clock.advance(Duration::from_secs(1 << 40));
            assert_eq!(waits.advance(), usize::from(granted.is_some()));
        }
    }
    let waits = waits(&ManualClock::starting_at(2 * SECOND), Duration::MAX);
    assert_eq!(waits.point(Duration::MAX), Deadline::Never);
    assert_eq!(waits.point(Duration::MAX - SECOND), Deadline::Never);
    assert_eq!(waits.point(None), Deadline::Never);
    assert_eq!(waits.point(last), Deadline::Never);
    // A loop of waits against this point ends there, however often it is woken.
    assert_eq!(waits.point(SECOND), Deadline::At(at(3 * SECOND)));
}

/// What is left until an `Instant` when the call is made counts by the clock of the purgatory.
#[test]
fn g29_a_clock_of_its_own_counts_what_is_left_of_an_instant() {
    const LONG: Duration = Duration::from_secs(1 << 32);
    let clock = ManualClock::starting_at(5 * SECOND);
    let bounded = waits(&clock, 10 * TICK);
    let waits = waits(&clock, Duration::MAX);
    let left = |waits: &Waits<u64>, deadline: Instant| {
        let wait = waits.wait([1], deadline, || None::<()>);
        wait.handle().expect("it is parked").remaining()
    };
    let now = Instant::now();
    assert_eq!(left(&bounded, now + NEVER_IN_A_TEST), Some(10 * TICK));
    for far in [NEVER_IN_A_TEST, LONG] {
        let wait = waits.wait([1], now + far, || None::<()>);
        // The next call counts anew: this clock has not come nearer to the instant by then.
        for _ in 0..2 {
            let left = left(&waits, now + far).expect("it has a deadline");
            assert!(left <= far + TICK && left > far - 60 * SECOND, "{left:?}");
            clock.advance(far + TICK);
        }
        waits.advance();
        assert_eq!(block_on(wait), Err(WaitError::Expired));
    }
}

/// Whoever comes first, the caller or the thread that drives the timer. A check after the deadline completes all the
/// same: better an answer than none.
#[test]
fn g29_past_its_deadline_an_operation_is_not_rescheduled_and_a_check_completes_it() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let (early, late, checked) = (Probe::new(), Probe::new(), Probe::new());
    let all = [&early, &late, &checked];
    let [first, second, third] = all.map(|probe| park(&purgatory, probe.op(TICK)));
    clock.advance(TICK - Duration::from_nanos(1));
    assert!(first.reschedule(2 * TICK));
    clock.advance(Duration::from_nanos(1));
    assert!(!second.reschedule(TICK) && !third.reschedule(Duration::MAX));
    assert_eq!(second.remaining(), Some(Duration::ZERO));
    checked.satisfy();
    assert!(third.check());
    assert_eq!(checked.ending(), Some(Completion::Satisfied));
    assert_eq!(purgatory.advance(), 1);
    assert_eq!(late.ending(), Some(Completion::Expired));
    assert_eq!(early.ending(), None);
    assert!(!second.reschedule(None), "it has ended");
}
