//! G7, G8, G9, G10, G11: everything fires, in its tick, at any uptime.

use crate::support::noise::assert_median_within;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock};
use crate::support::{manual, within};
use request_purgatory::{
    Completion, Purgatory, threads::Dispatch, threads::Reaper, time::Clock, time::ManualClock,
    time::WakeFn,
};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(1);

fn park(purgatory: &Purgatory<Op>, timeout: Duration) -> Arc<Probe> {
    let probe = Probe::new();
    purgatory
        .try_complete_else_watch(probe.op(timeout), [1])
        .expect("there is room");
    probe
}

/// A later deadline is there already, so the reaper sleeps too long unless it is woken.
#[test]
fn g07_an_earlier_deadline_wakes_the_reaper() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g07-earlier");
        for timeout in [3_600_000, 60_000, 20_000, 10_000, 50] {
            let probe = park(&purgatory, Duration::from_millis(timeout));
            // Let the reaper go to sleep on it.
            thread::sleep(Duration::from_millis(20));
            if timeout == 50 {
                eventually("the expiry", || probe.ending().is_some());
            }
        }
        assert_eq!(purgatory.stats().parked, 4);
    });
}

#[test]
fn g07_a_reschedule_wakes_the_reaper() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g07-reschedule");
        for from in [Duration::MAX, NEVER_IN_A_TEST] {
            let probe = Probe::new();
            let handle = purgatory
                .try_complete_else_watch(probe.op(from), [1])
                .expect("there is room")
                .into_handle()
                .expect("it cannot complete yet");
            thread::sleep(Duration::from_millis(20));
            assert!(handle.reschedule(Duration::from_millis(10)));
            eventually("the expiry", || probe.ending().is_some());
        }
    });
}

#[test]
fn g07_a_deferred_check_wakes_the_reaper() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g07-later");
        for timeout in [Duration::MAX, NEVER_IN_A_TEST] {
            let probe = park(&purgatory, timeout);
            thread::sleep(Duration::from_millis(20));
            probe.satisfy();
            purgatory.check_later(1);
            eventually("the completion", || probe.ending().is_some());
        }
    });
}

/// Every mutator of deadlines on many threads; the last short timeout of each round must still fire.
#[test]
fn g07_no_mixture_of_calls_puts_the_reaper_to_sleep() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g07-mixture");
        for round in 0..40 {
            let workers = (0..3).map(|seed| {
                let purgatory = purgatory.clone();
                thread::spawn(move || {
                    let mut random = fastrand::Rng::with_seed(round * 3 + seed + 1);
                    let mut handles = Vec::new();
                    for _ in 0..100 {
                        let timeout = Duration::from_millis(random.u64(..20));
                        let op = Op::new(timeout);
                        let watch = purgatory.try_complete_else_watch(op, [seed]);
                        handles.extend(watch.expect("there is room").into_handle());
                        let pick = random.usize(..=handles.len());
                        if let Some(handle) = handles.get(pick) {
                            match random.u64(..4) {
                                0 => drop(handle.cancel()),
                                1 => drop(handle.reschedule(timeout)),
                                2 => drop(handle.force_complete()),
                                _ => drop(purgatory.advance()),
                            }
                        }
                        if random.u64(..8) == 0 {
                            purgatory.next_deadline();
                        }
                    }
                })
            });
            for worker in workers.collect::<Vec<_>>() {
                worker.join().expect("no call panics");
            }
            eventually("the end of all", || purgatory.is_empty());
        }
    });
}

/// A user who drives the timer as well does not take the alarm away from the reaper.
#[test]
fn g07_a_slow_advance_elsewhere_does_not_hold_up_the_reaper() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g07-elsewhere");
        let me = Arc::new(Mutex::new(None));
        let driver = me.clone();
        // Parked from another thread, so that it lies in another timer shard than what must not wait for it.
        let ((entered, inside), (go_on, told)) = (channel(), channel::<()>());
        let (parker, was_slow) = (purgatory.clone(), Tally::new());
        let slows = was_slow.clone();
        let slow = thread::spawn(move || {
            let slow = Op::new(NEVER_IN_A_TEST).when(move || {
                if *lock(&driver) == Some(thread::current().id()) {
                    slows.add();
                    // The test may be over.
                    let _ = entered.send(());
                    let _ = told.recv();
                }
                false
            });
            drop(parker.try_complete_else_watch(slow, [7]));
        });
        slow.join().expect("a park does not panic");
        let advancing = {
            let purgatory = purgatory.clone();
            thread::spawn(move || {
                *lock(&me) = Some(thread::current().id());
                // It or the reaper does the check, whichever comes first; only here is it slow.
                for _ in 0..10_000 {
                    purgatory.check_later(7);
                    purgatory.advance();
                    if was_slow.count() > 0 {
                        return;
                    }
                }
            })
        };
        if inside.recv_timeout(Duration::from_secs(20)).is_ok() {
            let probe = park(&purgatory, Duration::from_millis(20));
            eventually("the expiry", || probe.ending().is_some());
        }
        drop(go_on);
        advancing.join().expect("an advance does not panic");
    });
}

/// Completions park into the bucket that is just being drained.
#[test]
fn g08_what_is_parked_while_a_bucket_drains_is_neither_lost_nor_early() {
    // Enough that the callbacks of the first run while the last have not fired.
    const MANY: u64 = 2_000;
    let (purgatory, clock) = manual::<u64>(|builder| builder.wheel_size(3));
    let fired = Arc::new(Mutex::new(Vec::new()));
    for key in 0..MANY {
        let (weak, fired, clock) = (purgatory.downgrade(), fired.clone(), clock.clone());
        let op = Op::new(Duration::from_millis(7)).then(move |_| {
            let Some(purgatory) = weak.upgrade() else {
                return;
            };
            let parked = clock.now().since_origin();
            let again = TICK * (key % 5) as u32;
            let op = Op::new(again).then(move |_| {
                let after = clock.now().since_origin() - parked;
                lock(&fired).push((again, after));
            });
            purgatory
                .try_complete_else_watch(op, [key])
                .expect("there is room");
        });
        purgatory
            .try_complete_else_watch(op, [key])
            .expect("there is room");
    }
    for _ in 0..20 {
        clock.advance(TICK);
        // Once for what was due, once for what that parked.
        purgatory.advance();
        purgatory.advance();
    }
    let fired = lock(&fired);
    assert_eq!(fired.len() as u64, MANY);
    assert!(fired.iter().all(|(asked, after)| asked == after));
    assert_eq!(
        (purgatory.stats().parked, purgatory.next_deadline()),
        (0, None)
    );
}

/// Timers take turns with deferred checks. The pass at the end is none of its own if no time has passed since the last
/// turn.
#[test]
fn g08_what_a_completion_starts_between_deferred_checks_is_left_for_the_next_pass() {
    let (purgatory, clock) = manual(|builder| builder);
    let mut examinations = 0;
    let takes_a_tick = Op::new(NEVER_IN_A_TEST).when(move || {
        examinations += 1;
        if examinations == 3 {
            clock.advance(TICK);
        }
        false
    });
    let weak = purgatory.downgrade();
    let expires = Op::new(TICK).then(move |_| {
        let purgatory = weak.upgrade().expect("it is driven");
        drop(purgatory.try_complete_else_watch(Op::new(Duration::ZERO), [2]));
    });
    for op in [takes_a_tick, expires] {
        drop(purgatory.try_complete_else_watch(op, [1]));
    }
    purgatory.check_later(1);
    for parked in [2, 1] {
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(purgatory.stats().parked, parked);
    }
}

#[test]
fn g08_what_a_deferred_check_starts_is_left_for_the_next_pass() {
    let (purgatory, _clock) = manual(|builder| builder);
    let (weak, mut examinations) = (purgatory.downgrade(), 0);
    let starts = Op::new(NEVER_IN_A_TEST).when(move || {
        examinations += 1;
        if examinations == 3 {
            let purgatory = weak.upgrade().expect("it is driven");
            drop(purgatory.try_complete_else_watch(Op::new(Duration::ZERO), [2]));
        }
        false
    });
    drop(purgatory.try_complete_else_watch(starts, [1]));
    purgatory.check_later(1);
    assert_eq!([(); 2].map(|()| purgatory.advance()), [0, 1]);
}

/// Uptimes around which other timers broke: powers of two of ticks, and the end of the count.
fn uptimes() -> Vec<u64> {
    [30, 31, 32, 36, 53, 63]
        .into_iter()
        .flat_map(|bits| [-2_i64, -1, 0, 1].map(|by| (1_u64 << bits).wrapping_add_signed(by)))
        .chain([0, 1, u64::MAX - 100_000, u64::MAX - 5_000])
        .collect()
}

/// The borders of the levels of a wheel of `size`, one to each side.
fn borders(size: u64) -> Vec<u64> {
    let powers = std::iter::successors(Some(size), |power| power.checked_mul(size));
    powers
        .flat_map(|power| [power - 1, power, power.saturating_add(1)])
        .chain([0, 1, 2])
        .collect()
}

/// Nanosecond ticks, so that the clock itself reaches any tick; alone and beside a far timer.
#[test]
fn g09_fires_exactly_at_every_level_border_at_any_uptime() {
    within(PATIENCE, || {
        for size in [2, 3, 10, 64, 100] {
            for uptime in uptimes() {
                let (purgatory, clock) =
                    manual::<u64>(|b| b.tick(Duration::from_nanos(1)).wheel_size(size));
                clock.advance(Duration::from_nanos(uptime));
                let reach = u64::MAX - 2 - uptime;
                let far = (reach > 1 << 40).then(|| park(&purgatory, Duration::from_nanos(reach)));
                let mut timeouts = borders(size as u64);
                timeouts.retain(|timeout| *timeout < reach);
                timeouts.sort_unstable();
                timeouts.dedup();
                let parked = timeouts
                    .iter()
                    .map(|timeout| (*timeout, park(&purgatory, Duration::from_nanos(*timeout))));
                let mut now = 0;
                for (timeout, probe) in parked.collect::<Vec<_>>() {
                    let what = format!("size {size}, uptime {uptime}, timeout {timeout}");
                    if timeout > now {
                        clock.advance(Duration::from_nanos(timeout - 1 - now));
                        purgatory.advance();
                        assert_eq!(probe.ending(), None, "early: {what}");
                        clock.advance(Duration::from_nanos(1));
                        now = timeout;
                    }
                    purgatory.advance();
                    assert_eq!(probe.ending(), Some(Completion::Expired), "late: {what}");
                }
                if let Some(far) = far {
                    assert_eq!(far.ending(), None);
                    clock.advance(Duration::from_nanos(reach - now));
                    purgatory.advance();
                    assert_eq!(far.ending(), Some(Completion::Expired));
                }
                assert_eq!(purgatory.stats().parked, 0);
            }
        }
    });
}

#[test]
fn g09_any_timeout_is_accepted_and_the_longest_is_never() {
    let long = [
        Duration::MAX,
        Duration::MAX - Duration::from_nanos(1),
        Duration::from_secs(u64::MAX),
        Duration::from_secs(u64::MAX / 2),
    ];
    for tick in [Duration::from_nanos(1), TICK, Duration::from_secs(3_600)] {
        for start in [Duration::ZERO, Duration::from_secs(1 << 40), Duration::MAX] {
            let clock = ManualClock::starting_at(start);
            let purgatory = Purgatory::<Op>::builder("g09-long")
                .clock(clock.clone())
                .tick(tick)
                .reaper(Reaper::Manual)
                .build()
                .expect("no threads to refuse");
            let probes = long.map(|timeout| park(&purgatory, timeout));
            for step in [Duration::ZERO, TICK, Duration::from_secs(1 << 33)] {
                clock.advance(step);
                purgatory.advance();
            }
            for probe in &probes {
                assert_eq!(probe.ending(), None, "{tick:?} from {start:?}");
            }
            assert_eq!(purgatory.stats().parked, long.len());
            let listed = purgatory.snapshot();
            assert!(listed.iter().any(|op| op.remaining.is_none()), "never");
            // They end like others.
            assert_eq!(purgatory.cancel_for_key(&1).len(), long.len());
            assert_eq!(purgatory.next_deadline(), None);
        }
    }
}

#[test]
fn g09_never_may_become_soon_and_soon_never() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let probe = Probe::new();
    let handle = purgatory
        .try_complete_else_watch(probe.op(Duration::MAX), [1])
        .expect("there is room")
        .into_handle()
        .expect("it cannot complete yet");
    assert_eq!((handle.remaining(), handle.deadline()), (None, None));
    assert!(handle.reschedule(TICK));
    assert_eq!(handle.remaining(), Some(TICK));
    assert!(handle.reschedule(Duration::MAX));
    assert_eq!(
        (handle.remaining(), purgatory.next_deadline()),
        (None, None)
    );
    clock.advance(NEVER_IN_A_TEST);
    assert_eq!((purgatory.advance(), probe.ending()), (0, None));
    assert!(handle.reschedule(TICK));
    clock.advance(TICK);
    assert_eq!(purgatory.advance(), 1);
    assert_eq!(probe.ending(), Some(Completion::Expired));
}

#[test]
fn g09_a_clamp_bounds_every_timeout() {
    let bound = Duration::from_millis(50);
    let (purgatory, clock) = manual::<u64>(|builder| builder.max_timeout(bound));
    let clamped = [park(&purgatory, Duration::MAX), park(&purgatory, bound)];
    let short = park(&purgatory, TICK);
    let parked = purgatory.try_complete_else_watch(Op::new(TICK), [1]);
    let handle = parked.expect("there is room").into_handle();
    assert!(handle.is_some_and(|handle| handle.reschedule(Duration::MAX)));
    clock.advance(bound - TICK);
    assert_eq!(purgatory.advance(), 1, "the short one");
    clock.advance(TICK);
    assert_eq!(purgatory.advance(), 3);
    assert!(
        clamped
            .iter()
            .chain([&short])
            .all(|probe| probe.ending().is_some())
    );
}

/// The clock moves under a reaper that sleeps.
#[test]
fn g09_a_reaper_follows_a_clock_moved_by_hand() {
    within(PATIENCE, || {
        for uptime in [0, 1 << 30, 1 << 36, 1 << 62_u64] {
            let clock = ManualClock::new();
            let purgatory = Purgatory::<Op>::builder("g09-moved")
                .clock(clock.clone())
                .build()
                .expect("threads are to be had");
            clock.advance(Duration::from_millis(uptime));
            for timeout in [0, 1, 64, 4_096, 1 << 30] {
                let probe = park(&purgatory, Duration::from_millis(timeout));
                let far = park(&purgatory, Duration::from_secs(1 << 40));
                clock.advance(Duration::from_millis(timeout));
                eventually("the expiry", || probe.ending().is_some());
                assert_eq!(far.ending(), None);
            }
        }
    });
}

/// On the system's clock: never early, and at most a tick late but for the scheduling of threads.
#[test]
fn g10_fires_after_the_deadline_and_soon() {
    let lateness = || {
        let purgatory = Purgatory::<Op>::builder("g10")
            .dispatch(Dispatch::Inline)
            .build()
            .expect("threads are to be had");
        let mut random = fastrand::Rng::with_seed(10);
        let lateness = Arc::new(Mutex::new(Vec::new()));
        let early = Tally::new();
        for key in 0..2_000 {
            let timeout = Duration::from_micros(random.u64(..300_000));
            let (lateness, early) = (lateness.clone(), early.clone());
            let start = Instant::now();
            let op = Op::new(timeout).then(move |_| match start.elapsed().checked_sub(timeout) {
                Some(late) => lock(&lateness).push(late),
                None => early.add(),
            });
            purgatory
                .try_complete_else_watch(op, [key])
                .expect("there is room");
        }
        eventually("all expiries", || purgatory.is_empty());
        purgatory.shutdown();
        assert_eq!(early.count(), 0);
        let lateness = std::mem::take(&mut *lock(&lateness));
        assert_eq!(lateness.len(), 2_000);
        lateness
    };
    // A rotation of the wheel (64 ms) would show in the median.
    within(PATIENCE, move || {
        assert_median_within(Duration::from_millis(30), lateness);
    });
}

/// A year of milliseconds is 31 billion ticks.
#[test]
fn g11_a_long_jump_costs_little() {
    within(PATIENCE, || {
        let year = Duration::from_secs(365 * 86_400);
        for size in [2, 3, 64] {
            let (purgatory, clock) = manual::<u64>(|builder| builder.wheel_size(size));
            let probes = (1..=10)
                .map(|part| park(&purgatory, year / 10 * part))
                .collect::<Vec<_>>();
            let start = Instant::now();
            clock.advance(year);
            assert_eq!(purgatory.advance(), 10);
            // A loaded machine takes longer; a step for each tick would take days.
            assert!(start.elapsed() < Duration::from_secs(10));
            assert!(probes.iter().all(|probe| probe.ending().is_some()));
        }
    });
}

/// A thread of the user's drives the timer: it hears of each deadline that is earlier than the one it knows.
#[test]
fn g07_an_earlier_deadline_wakes_a_reactor() {
    within(PATIENCE, || {
        let (wake, woken) = std::sync::mpsc::channel();
        let waker = WakeFn::new(move || wake.send(()).is_ok());
        let clock = Instant::now();
        let purgatory = Purgatory::<Op>::builder("g07-reactor")
            .clock(clock)
            .reaper(Reaper::Reactor(waker))
            .build()
            .expect("no threads to refuse");
        let weak = purgatory.downgrade();
        let reactor = thread::spawn(move || {
            while let Some(purgatory) = weak.upgrade() {
                purgatory.advance();
                let next = purgatory.next_deadline();
                drop(purgatory);
                let Some(next) = next else {
                    // Nothing to wait for but a wake-up: an error says that the purgatory was dropped.
                    if woken.recv().is_err() {
                        return;
                    }
                    continue;
                };
                // Woken or not, it asks again.
                let _ = woken.recv_timeout(next.saturating_since(clock.now()));
            }
        });
        for timeout in [3_600_000, 100, 20] {
            let probe = park(&purgatory, Duration::from_millis(timeout));
            thread::sleep(Duration::from_millis(20));
            if timeout == 20 {
                eventually("the expiry", || probe.ending().is_some());
            }
        }
        let checked = park(&purgatory, Duration::MAX);
        thread::sleep(Duration::from_millis(20));
        checked.satisfy();
        purgatory.check_later(1);
        eventually("the deferred check", || checked.ending().is_some());
        eventually("the expiry of the second", || purgatory.stats().parked == 1);
        drop(purgatory);
        reactor.join().expect("the reactor hears of the end");
    });
}

/// A bucket keeps the low 16 bits of each deadline. What is more comes from the bucket's place, or from the record.
#[test]
fn g09_wheels_of_any_size_tell_deadlines_apart_wherever_16_bits_end() {
    let sizes = [
        2, 3, 5, 16, 63, 64, 65, 255, 256, 257, 1_000, 4_096, 32_767, 32_768, 40_000, 65_535,
        65_536,
    ];
    let starts = [0, (1 << 16) - 3, (1 << 32) - 70_000, u64::MAX - (1 << 33)];
    let mut random = fastrand::Rng::with_seed(16);
    for (size, start) in sizes
        .iter()
        .flat_map(|size| starts.map(|start| (*size, start)))
    {
        let clock = ManualClock::starting_at(Duration::from_nanos(start));
        let purgatory = Purgatory::<Op>::builder("g09-low-bits")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .tick(Duration::from_nanos(1))
            .wheel_size(size)
            .build()
            .expect("no threads to refuse");
        let window = size as u64;
        let near = [65_535, 65_536, 65_537, window, window * window];
        let mut waiting = Vec::<(u64, Arc<Probe>)>::new();
        let mut now = start;
        for _ in 0..60 {
            for _ in 0..random.u64(..4) {
                let timeout = match random.u64(..3) {
                    0 => near[random.usize(..5)] - random.u64(..2),
                    _ => random.u64(..) >> (63 - random.u64(..36)),
                };
                let timeout = timeout.min(u64::MAX - 2 - now);
                let probe = park(&purgatory, Duration::from_nanos(timeout));
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
}

/// G29: whoever comes first, the caller or the thread that drives the timer. A check after the deadline completes all
/// the same: better an answer than none.
#[test]
fn g29_past_its_deadline_an_operation_is_not_rescheduled_and_a_check_completes_it() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    let park = |probe: &Arc<Probe>| {
        let parked = purgatory.try_complete_else_watch(probe.op(TICK), [1]);
        let handle = parked.expect("there is room").into_handle();
        handle.expect("it cannot complete yet")
    };
    let (early, late, checked) = (Probe::new(), Probe::new(), Probe::new());
    let [first, second, third] = [&early, &late, &checked].map(park);
    clock.advance(TICK - Duration::from_nanos(1));
    assert!(first.reschedule(2 * TICK));
    clock.advance(Duration::from_nanos(1));
    assert!(!second.reschedule(TICK) && !third.reschedule(Duration::MAX));
    assert_eq!(second.remaining(), Some(Duration::ZERO));
    checked.satisfy();
    assert!(third.check());
    assert_eq!(checked.ending(), Some(Completion::Satisfied));
    assert_eq!(
        (purgatory.advance(), late.ending()),
        (1, Some(Completion::Expired))
    );
    assert_eq!(early.ending(), None);
}
