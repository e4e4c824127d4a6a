//! G7, G9, G10, G11: everything fires, in its tick, at any uptime.

use crate::support::noise::assert_median_within;
use crate::support::spans::Choices;
use crate::support::{NEVER_IN_A_TEST, PATIENCE, eventually, lock, within};
use crate::tested::{Tested, builder, log, manual, with_channel};
use request_purgatory::{threads::Dispatch, threads::Reaper, time::Clock, time::ManualClock};
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(1);

/// At and beside the borders of the levels of a wheel of 64 slots.
const TICKS: [u32; 12] = [0, 1, 2, 63, 64, 65, 127, 128, 4_095, 4_096, 4_097, 5_000];

/// Fires each timeout of [`TICKS`] exactly, with the present moved to `uptime` ticks in one of two ways.
fn fires_exactly<W: Tested>(tick: Duration, uptime: u64, by_jump: bool) {
    let mut choices = Choices {
        tick,
        wheel_size: if W::ENDLESS { 64 } else { 1 << 13 },
        max_parked: None,
        max_timeout: Duration::MAX,
        start: Duration::ZERO,
    };
    let present = choices.ticks(uptime);
    if !by_jump {
        choices.start = present;
    }
    let clock = ManualClock::starting_at(choices.start);
    let (timer, expired) = with_channel(
        builder::<usize, W>("g09")
            .clock(clock.clone())
            .tick(tick)
            .wheel_size(choices.wheel_size)
            .reaper(Reaper::Manual),
    );
    clock.advance(present - choices.start);
    assert_eq!(timer.advance(), 0);
    let odd = Duration::from_nanos(u64::from(tick.as_nanos() > 1));
    let timeouts = TICKS
        .into_iter()
        .flat_map(|ticks| [tick * ticks, tick * ticks + odd]);
    let mut due = Vec::new();
    for (number, timeout) in timeouts.enumerate() {
        let id = timer.start(timeout, number).expect("it fits");
        let deadline = choices.deadline(present, timeout);
        let deadline = deadline.map(|deadline| choices.timestamp(deadline));
        assert_eq!(timer.deadline(id), deadline, "{timeout:?} at {uptime}");
        due.extend(deadline.map(|deadline| (deadline.since_origin(), number)));
    }
    due.sort_unstable();
    while let Some(&(deadline, _)) = due.first() {
        let now = clock.now().since_origin();
        if deadline > now {
            clock.advance(deadline - now - Duration::from_nanos(1));
            assert_eq!(timer.advance(), 0, "early: {tick:?} at {uptime}");
            clock.advance(Duration::from_nanos(1));
        }
        let later = due.split_off(due.partition_point(|(at, _)| *at <= deadline));
        assert_eq!(timer.advance(), due.len(), "{tick:?} at {uptime}");
        let mut now_due = due.into_iter().map(|(_, it)| it).collect::<Vec<_>>();
        let mut fired = expired.try_iter().collect::<Vec<_>>();
        now_due.sort_unstable();
        fired.sort_unstable();
        assert_eq!(fired, now_due);
        due = later;
    }
    // What is left is never due.
    assert_eq!(timer.next_deadline(), None);
}

pub(crate) fn g09_any_duration_at_any_uptime<W: Tested>() {
    for tick in [Duration::from_nanos(1), TICK, Duration::from_millis(250)] {
        for border in [0, 1 << 12, 1 << 30, 1 << 36, 1 << 63, u64::MAX] {
            for uptime in [-4_200, -1, 0, 1_i64].map(|by| border.checked_add_signed(by)) {
                let Some(uptime) = uptime else { continue };
                fires_exactly::<W>(tick, uptime, false);
                fires_exactly::<W>(tick, uptime, true);
            }
        }
    }
}

/// A wheel of one revolution counts its span from the caller's reading, and not from the last pass.
pub(crate) fn g09_a_timer_that_was_idle_for_long_takes_a_timeout_under_a_lock<W: Tested>() {
    let (builder, clock) = manual::<u32, W>();
    let (timer, expired) = with_channel(builder.wheel_size(1_000));
    let endless = timer.start(None, 0).expect("there is no bound");
    for number in 1..4 {
        clock.advance(5_000 * TICK);
        let started = timer.start_under_lock(timer.now(), 100 * TICK, number);
        drop(started.expect("it fits").1);
        clock.advance(99 * TICK);
        assert_eq!(timer.advance(), 0);
        clock.advance(TICK);
        assert_eq!((timer.advance(), expired.recv()), (1, Ok(number)));
    }
    clock.advance(5_000 * TICK);
    let moved = timer.reschedule_under_lock(endless, timer.now(), 100 * TICK);
    drop(moved.expect("it fits"));
    clock.advance(100 * TICK);
    assert_eq!((timer.advance(), expired.recv()), (1, Ok(0)));
}

pub(crate) fn g09_never_may_become_soon_and_soon_never<W: Tested>() {
    let (builder, clock) = manual::<_, W>();
    let (timer, expired) = with_channel(builder);
    let id = timer.start(Duration::MAX, 7).expect("there is room");
    assert_eq!((timer.remaining(id), timer.deadline(id)), (None, None));
    // How far off it may be is asked from the present, however long ago the timer was started.
    clock.advance(Duration::from_secs(3_600));
    assert!(timer.reschedule(id, TICK));
    assert_eq!(timer.remaining(id), Some(TICK));
    assert!(timer.reschedule(id, Duration::MAX));
    assert_eq!((timer.remaining(id), timer.next_deadline()), (None, None));
    clock.advance(Duration::from_secs(5));
    assert_eq!((timer.advance(), timer.stats().parked), (0, 1));
    assert!(timer.reschedule(id, TICK));
    clock.advance(TICK);
    assert_eq!(timer.advance(), 1);
    assert_eq!((expired.try_recv(), timer.stats().parked), (Ok(7), 0));
}

/// On the system's clock: never early, and at most a tick late but for the scheduling of threads.
pub(crate) fn g10_fires_after_the_deadline_and_soon<W: Tested>() {
    let lateness = || {
        let builder = builder::<(Instant, Duration), W>("g10").dispatch(Dispatch::Inline);
        let (timer, lateness) = log(builder, |(start, timeout)| {
            (start.elapsed().checked_sub(*timeout), *timeout)
        });
        let mut random = fastrand::Rng::with_seed(10);
        for _ in 0..2_000 {
            let timeout = Duration::from_micros(random.u64(..300_000));
            // For a simple wheel of 64 slots.
            let timeout = if W::ENDLESS { timeout } else { timeout / 5 };
            let start = (Instant::now(), timeout);
            timer.start(timeout, start).expect("it fits");
        }
        eventually("all expiries", || timer.is_empty());
        timer.shutdown();
        let lateness = lock(&lateness);
        assert_eq!(lateness.len(), 2_000);
        let late = |(late, timeout): &(Option<_>, _)| {
            late.unwrap_or_else(|| panic!("{timeout:?} fired early"))
        };
        lateness.iter().map(late).collect()
    };
    // A rotation of the wheel (64 ms) would show in the median.
    within(PATIENCE, move || {
        assert_median_within(Duration::from_millis(30), lateness);
    });
}

/// A century of milliseconds is three million million ticks.
pub(crate) fn g11_a_jump_of_a_century_costs_little<W: Tested>() {
    if !W::ENDLESS {
        return;
    }
    let century = Duration::from_secs(100 * 365 * 86_400);
    for size in [2, 3, 64, 1 << 16] {
        let (builder, clock) = manual::<_, W>();
        let (timer, expired) = with_channel(builder.wheel_size(size));
        for part in 1..=10 {
            let timeout = century / 10 * part;
            timer.start(timeout, part).expect("it fits");
        }
        let start = Instant::now();
        clock.advance(century);
        assert_eq!(timer.advance(), 10);
        // Steps, not time, are counted by the tests of the schemes; this allows for a loaded machine.
        assert!(start.elapsed() < Duration::from_secs(10), "{size} slots");
        assert_eq!(expired.try_iter().count(), 10);
    }
}

/// A later deadline is there already, so the reaper sleeps too long unless it is woken: by a start, and by a reset.
pub(crate) fn g07_an_earlier_deadline_wakes_the_reaper<W: Tested>() {
    within(PATIENCE, || {
        let builder = builder::<_, W>("g07");
        let (timer, expired) = with_channel(builder.wheel_size(1 << 16));
        let [seconds_60, seconds_50] = [60, 50].map(Duration::from_secs);
        let far = if W::ENDLESS {
            NEVER_IN_A_TEST
        } else {
            seconds_60
        };
        let later = [far, seconds_50, Duration::MAX]
            .map(|timeout| (timer.start(timeout, timeout).expect("it fits"), timeout));
        // Let the reaper go to sleep on it.
        thread::sleep(Duration::from_millis(20));
        let soon = Duration::from_millis(10);
        timer.start(soon, soon).expect("it fits");
        let patience = Duration::from_secs(20);
        assert_eq!(expired.recv_timeout(patience), Ok(soon));
        for (id, timeout) in later {
            thread::sleep(Duration::from_millis(20));
            assert!(timer.reschedule(id, soon));
            assert_eq!(expired.recv_timeout(patience), Ok(timeout));
        }
    });
}
