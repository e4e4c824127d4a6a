//! G7, G9 to G12, G29: everything fires in time, also after a long time without a timer; deadlines that have passed; a
//! clock that panics. Tested elsewhere: that timers fire in their ticks at any uptime (by the `model`, in
//! `tests/builders`, and for each scheme in its crate), that an idle thread sleeps (in `tests/purgatory`), how often a
//! scheme wakes it (in the crate of the schemes), the bound of G17 and the ids of G18 (by the `model`).

use crate::support::noise::assert_median_within;
use crate::support::{FragileClock, Mint, PATIENCE, Token, eventually, lock, quietly, within};
use crate::tested::{Tested, builder, log, manual, with_channel};
use request_purgatory::Timer;
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::time::{Clock, Timestamp, WakeFn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(1);

/// A wheel of one revolution counts its span from the present or the caller's reading, and not from the last pass.
pub(crate) fn g09_a_timer_that_was_idle_for_long_takes_any_timeout<W: Tested>() {
    let (builder, clock) = manual::<u32, W>();
    let (timer, expired) = with_channel(builder.wheel_size(1_000));
    let endless = timer.start(None, 0).expect("there is no bound");
    let times = (timer.remaining(endless), timer.deadline(endless));
    assert_eq!(times, (None, None));
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
    assert!(timer.reschedule(endless, TICK));
    assert_eq!(timer.remaining(endless), Some(TICK));
    assert!(timer.reschedule(endless, Duration::MAX));
    let times = (timer.remaining(endless), timer.next_deadline());
    assert_eq!(times, (None, None));
    clock.advance(5_000 * TICK);
    assert_eq!((timer.advance(), timer.stats().parked), (0, 1));
    let moved = timer.reschedule_under_lock(endless, timer.now(), 100 * TICK);
    drop(moved.expect("it fits"));
    clock.advance(100 * TICK);
    assert_eq!((timer.advance(), expired.recv()), (1, Ok(0)));
    assert!(timer.is_empty());
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

/// A later deadline is there already, so the driver sleeps too long unless it is woken: by a start, and by a reset.
fn earlier_deadlines_wake_the_driver<W: Tested>(
    timer: &Timer<Duration, W>,
    expired: &Receiver<Duration>,
) {
    let far = Duration::from_secs(if W::ENDLESS { 3_600 } else { 60 });
    let nap = || thread::sleep(Duration::from_millis(20));
    let later = [far, Duration::from_secs(50), Duration::MAX].map(|timeout| {
        let id = timer.start(timeout, timeout).expect("it fits");
        // Let the driver go to sleep on it.
        nap();
        (id, timeout)
    });
    let soon = Duration::from_millis(10);
    timer.start(soon, soon).expect("it fits");
    let patience = Duration::from_secs(20);
    assert_eq!(expired.recv_timeout(patience), Ok(soon));
    for (id, timeout) in later {
        nap();
        assert!(timer.reschedule(id, soon));
        assert_eq!(expired.recv_timeout(patience), Ok(timeout));
    }
}

pub(crate) fn g07_an_earlier_deadline_wakes_the_reaper<W: Tested>() {
    within(PATIENCE, || {
        let builder = builder::<Duration, W>("g07").wheel_size(1 << 16);
        let (timer, expired) = with_channel(builder);
        earlier_deadlines_wake_the_driver(&timer, &expired);
    });
}

/// A thread of the user's drives the timer: it hears of each deadline that is earlier than the one it knows.
pub(crate) fn g07_an_earlier_deadline_wakes_a_reactor<W: Tested>() {
    within(PATIENCE, || {
        let (wake, woken) = channel();
        let waker = WakeFn::new(move || wake.send(()).is_ok());
        let clock = Instant::now();
        let builder = builder::<Duration, W>("g07")
            .clock(clock)
            .wheel_size(1 << 16);
        let (timer, expired) = with_channel(builder.reaper(Reaper::Reactor(waker)));
        let weak = timer.downgrade();
        let reactor = thread::spawn(move || {
            while let Some(timer) = weak.upgrade() {
                timer.advance();
                let next = timer.next_deadline();
                drop(timer);
                let sleep = next.map_or(PATIENCE, |next| next.saturating_since(clock.now()));
                // Woken or not, it asks again.
                if woken.recv_timeout(sleep) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        });
        earlier_deadlines_wake_the_driver(&timer, &expired);
        drop(timer);
        reactor.join().expect("the reactor hears of the end");
    });
}

pub(crate) fn g12_a_panic_in_your_own_start_is_yours_and_leaves_nothing<W: Tested>() {
    quietly();
    let (clock, mint) = (FragileClock::default(), Mint::default());
    let (builder, _clock) = manual::<Token, W>();
    let (timer, _expired) = with_channel(builder.clock(clock.clone()).max_parked(1));
    let panics = |call: &dyn Fn()| {
        clock.set_broken(true);
        let unwound = catch_unwind(AssertUnwindSafe(call));
        clock.set_broken(false);
        unwound.is_err()
    };
    assert!(panics(&|| drop(timer.start(TICK, mint.token(1)))));
    // No payload, no timer, and no place taken.
    let left = (mint.living(), timer.len(), timer.next_deadline());
    assert_eq!(left, (0, 0, None));
    let stats = timer.stats();
    assert_eq!((stats.panicked, stats.rejected), (0, 0));
    let id = timer.start(TICK, mint.token(2)).expect("there is room");
    assert!(panics(&|| _ = timer.reschedule(id, Duration::MAX)));
    assert!(panics(&|| _ = timer.remaining(id)));
    assert!(panics(&|| _ = timer.now()));
    // With a reading of the caller's, no clock is asked.
    assert!(!panics(&|| {
        let given = timer.reschedule_under_lock(id, Timestamp::default(), 2 * TICK);
        drop(given.expect("it runs"));
    }));
    assert_eq!(timer.remaining(id), Some(2 * TICK));
}

/// G29: whether the thread that drives the timer has come or not. `stop` does not look at the clock.
pub(crate) fn g29_past_its_deadline_a_timer_is_not_rescheduled<W: Tested>() {
    for by_reading in [false, true] {
        let (builder, clock) = manual::<u32, W>();
        let (timer, expired) = with_channel(builder);
        let reschedule = |id| match by_reading {
            false => timer.reschedule(id, 5 * TICK),
            true => {
                let given = timer.reschedule_under_lock(id, timer.now(), 5 * TICK);
                given.is_ok()
            }
        };
        let [late, stopped, early] =
            [2, 2, 5].map(|ticks| timer.start(ticks * TICK, ticks).expect("there is room"));
        clock.advance(TICK);
        assert!(reschedule(early));
        clock.advance(TICK);
        assert!(!reschedule(late) && !reschedule(stopped));
        assert!(timer.is_running(late) && timer.is_running(early));
        assert_eq!(timer.remaining(late), Some(Duration::ZERO));
        assert_eq!(timer.stop(stopped), Some(2));
        assert!(!timer.is_running(stopped));
        assert_eq!((timer.advance(), expired.try_recv()), (1, Ok(2)));
        assert!(!timer.is_running(late) && !reschedule(late));
        clock.advance(4 * TICK);
        assert_eq!((timer.advance(), expired.try_recv()), (1, Ok(5)));
    }
}
