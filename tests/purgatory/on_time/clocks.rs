//! G7, G9: clocks that are moved by hand, and whom they wake.

use crate::support::{Op, Tally};
use request_purgatory::{Purgatory, threads::Reaper, time::Clock, time::ManualClock, time::WakeFn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

/// A clock that several own is the same clock.
#[test]
fn g09_a_clock_in_an_arc_waits_and_wakes_as_it_does_by_itself() {
    let (clock, woken) = (ManualClock::new(), Tally::new());
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    // It does not follow real time: by that no thread can wait for it.
    let later = clock.now().saturating_add(TICK);
    assert_eq!(Clock::time_until(&shared, later), None);
    let count = woken.clone();
    let wake = WakeFn::new(move || {
        count.add();
        true
    });
    Clock::subscribe(&shared, wake);
    clock.advance(TICK);
    assert_eq!(woken.count(), 1);
    assert_eq!(Clock::time_until(&shared, later), Some(Duration::ZERO));
}

/// Of several purgatories on one clock any may be gone: the others are woken.
#[test]
fn g07_a_manual_clock_wakes_all_that_are_left() {
    let clock = ManualClock::new();
    let gone = Arc::new(AtomicBool::new(false));
    let woken = [(); 4].map(|()| Tally::new());
    for (number, woken) in woken.iter().enumerate() {
        let (count, gone) = (woken.clone(), gone.clone());
        clock.subscribe(WakeFn::new(move || {
            count.add();
            number % 2 == 1 || !gone.load(Ordering::SeqCst)
        }));
    }
    gone.store(true, Ordering::SeqCst);
    // (A subscription may have woken some.)
    let before = woken.each_ref().map(|woken| woken.count());
    clock.advance(TICK);
    clock.advance(TICK);
    let after = woken.each_ref().map(|woken| woken.count());
    let wakes = [0, 1, 2, 3].map(|number| after[number] - before[number]);
    assert_eq!(wakes, [1, 2, 1, 2]);
}

/// So does a reactor; and the clock forgets wake functions that are not needed any more.
#[test]
fn g09_a_reactor_follows_a_clock_moved_by_hand() {
    let (woken, clock) = (Tally::new(), ManualClock::new());
    let count = woken.clone();
    let purgatory = Purgatory::<Op>::builder("g09-reactor")
        .clock(clock.clone())
        .reaper(Reaper::Reactor(WakeFn::new(move || {
            count.add();
            true
        })))
        .build()
        .expect("no threads to refuse");
    for moves in 1..4 {
        clock.advance(TICK);
        assert_eq!(woken.count(), moves);
    }
    drop(purgatory);
    clock.advance(TICK);
    assert_eq!(Arc::strong_count(&woken), 1);
}

/// Several threads move one clock: it loses none of their steps, and never goes back.
#[test]
fn g09_a_clock_that_several_threads_move_never_goes_back() {
    const STEPS: u32 = 200_000;
    let (clock, all_here) = (ManualClock::new(), Barrier::new(3));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                all_here.wait();
                let mut before = clock.now();
                for _ in 0..STEPS {
                    clock.advance(TICK);
                    let now = clock.now();
                    assert!(now.saturating_since(before) >= TICK);
                    before = now;
                }
            });
        }
    });
    assert_eq!(clock.now().since_origin(), TICK * 3 * STEPS);
}
