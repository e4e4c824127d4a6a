//! G19, and who drives the timer: an idle thread sleeps, many timers share one, an event loop can do it.

use crate::support::noise::eventually_asleep;
use crate::support::{PATIENCE, Tally, busy, eventually, lock, sleeps, threads_named, within};
use crate::tested::{Tested, builder, log, unique, with_channel};
use request_purgatory::{
    threads::Reaper, threads::ReaperThread, time::Clock, time::ManualClock, time::WakeFn,
};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(1);

/// No timers, no wake-ups; and with a far one neither.
pub(crate) fn g19_idle_means_idle<W: Tested>() {
    if !W::SLEEPS {
        return;
    }
    within(PATIENCE, || {
        let (idle_name, far_name) = (unique("idle"), unique("far"));
        let (idle, ran) = log(builder::<u32, W>(&idle_name), |_| ());
        let (far, _) = log(builder::<u32, W>(&far_name), |_| ());
        far.start(Duration::from_secs(3_600), 1).expect("it fits");
        far.start(Duration::MAX, 2).expect("it fits");
        for number in 0..100 {
            let id = idle.start(TICK * 5, number).expect("it fits");
            if number % 2 == 0 {
                assert!(idle.reschedule(id, TICK * 20));
            }
        }
        eventually("the expiry of all", || lock(&ran).len() == 100);
        thread::sleep(Duration::from_millis(100));
        let named = || [threads_named(&idle_name), threads_named(&far_name)].concat();
        // Only where something has expired there is a thread for completions.
        eventually("three named threads", || named().len() == 3);
        let threads = named();
        eventually_asleep(&threads);
        let sum = |of: fn(u64) -> u64| threads.iter().map(|thread| of(*thread)).sum::<u64>();
        let (slept, had_run) = (sum(sleeps), sum(busy));
        thread::sleep(Duration::from_secs(2));
        assert_eq!(sum(sleeps) - slept, 0, "wake-ups");
        assert_eq!(sum(busy) - had_run, 0, "they spin");
    });
}

pub(crate) fn a_shared_reaper_serves_many_timers<W: Tested>() {
    within(PATIENCE, || {
        let name = unique("shared");
        let reaper = ReaperThread::spawn(&name).expect("threads are to be had");
        let clock = ManualClock::new();
        let ran = Tally::new();
        let timers = (0..300).map(|number| {
            let builder = builder::<u32, W>(&format!("{number}")).clock(clock.clone());
            let (builder, count) = (builder.reaper(Reaper::Shared(reaper.clone())), ran.clone());
            let timer = builder.build(move |_| count.add());
            timer.expect("no threads to refuse")
        });
        let timers = timers.collect::<Vec<_>>();
        for timer in &timers {
            timer.start(TICK * 5, 1).expect("it fits");
        }
        clock.advance(TICK * 5);
        eventually("the callbacks", || ran.count() == 300);
        assert_eq!(threads_named(&name).len(), 2);
        // Any of them may go, and the others are served.
        let stay = timers.into_iter().skip(150).collect::<Vec<_>>();
        stay[149].start(TICK * 5, 1).expect("it fits");
        clock.advance(TICK * 5);
        eventually("one more", || ran.count() == 301);
        drop((stay, reaper));
        eventually("the end of both", || threads_named(&name).is_empty());
    });
}

/// A thread of the user's drives the timer: it hears of each deadline that is earlier than the one it knows.
pub(crate) fn a_reactor_is_woken_for_earlier_deadlines<W: Tested>() {
    within(PATIENCE, || {
        let (wake, woken) = std::sync::mpsc::channel();
        let waker = WakeFn::new(move || wake.send(()).is_ok());
        let clock = Instant::now();
        let builder = builder::<u32, W>("reactor")
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
        // Those before the last are longer than this test waits.
        for timeout in [60_000, 50_000, 20] {
            timer.start(TICK * timeout, 1).expect("it fits");
            thread::sleep(TICK * 5);
        }
        let patience = Duration::from_secs(30);
        assert_eq!(expired.recv_timeout(patience), Ok(1));
        let late = timer.start(Duration::from_secs(50), 2).expect("it fits");
        thread::sleep(Duration::from_millis(5));
        assert!(timer.reschedule(late, Duration::ZERO));
        assert_eq!(expired.recv_timeout(patience), Ok(2));
        drop(timer);
        reactor.join().expect("the reactor hears of the end");
    });
}
