//! The reaper's own loop, run by a thread of the model. A lost wake-up shows as a deadlock.
#![cfg(loom)]

use loom::thread;
use loom_tests::{Bed, bounded, bounded_to};
use request_purgatory::model::ReaperLoop;
use request_purgatory::{
    Completion, Completions, DelayedOperation, ManualClock, Purgatory, Reaper, Waker,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Wakes somebody at its end, which it writes down.
struct Op {
    timeout: Duration,
    ended: Waker,
    ends: Arc<Mutex<Vec<Completion>>>,
}

impl DelayedOperation for Op {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(self, completion: Completion) {
        // (No thread of the model is ever stopped while it has this lock.)
        self.ends.lock().unwrap().push(completion);
        self.ended.wake();
    }
}

/// A purgatory whose operations get somebody out of bed.
#[derive(Clone)]
struct World {
    purgatory: Purgatory<Op>,
    bed: Bed,
    ends: Arc<Mutex<Vec<Completion>>>,
}

impl World {
    fn new(reaper: Reaper) -> Self {
        let purgatory = Purgatory::builder("model")
            .clock(ManualClock::new())
            .reaper(reaper)
            .completions(Completions::Inline)
            .build();
        Self {
            purgatory: purgatory.expect("the settings are sound"),
            bed: Bed::default(),
            ends: Arc::default(),
        }
    }

    fn park(&self, timeout: Duration) {
        let op = Op {
            timeout,
            ended: self.bed.waker(),
            ends: self.ends.clone(),
        };
        self.purgatory
            .try_complete_else_watch(op, [1])
            .expect("it may park");
    }

    /// Parks one that is due at once, and sleeps until it has expired.
    fn expire_one(&self) {
        self.park(Duration::ZERO);
        self.bed.sleep();
        assert_eq!(*self.ends.lock().unwrap(), [Completion::Expired]);
        assert_eq!(self.purgatory.delayed(), 0);
        assert_eq!(self.purgatory.stats().panicked, 0);
    }
}

/// Catches: a deadline that is not announced; an alarm that is reset after the deadlines were read; a loop that sleeps
/// without another look at the alarm.
#[test]
fn g07_insert_races_the_loop_of_a_reaper_going_to_sleep() {
    bounded(|| {
        let (reaper, shared) = ReaperLoop::new();
        let world = World::new(shared);
        let end = reaper.end();
        let running = thread::spawn(move || reaper.run());
        world.expire_one();
        end.stop();
        running.join().unwrap();
    });
}

/// The same with an alarm that stands at a later time, and again once the first has expired.
#[test]
fn g07_inserts_race_the_loop_of_a_reaper_one_after_the_other() {
    bounded_to(1, || {
        let (reaper, shared) = ReaperLoop::new();
        let world = World::new(shared);
        world.park(Duration::from_secs(60));
        let end = reaper.end();
        let running = thread::spawn(move || reaper.run());
        for expired in 1..3 {
            world.park(Duration::ZERO);
            world.bed.sleep();
            assert_eq!(world.ends.lock().unwrap().len(), expired);
        }
        end.stop();
        running.join().unwrap();
    });
}

/// Catches: a purgatory that goes and does not tell its shared reaper, which would keep it for ever.
#[test]
fn g06_a_shared_reaper_races_a_purgatory_dropped() {
    bounded(|| {
        let (reaper, shared) = ReaperLoop::new();
        let world = World::new(shared);
        world.park(Duration::from_secs(60));
        let running = thread::spawn(move || reaper.run_until_idle());
        let ends = world.ends.clone();
        drop(world);
        assert_eq!(*ends.lock().unwrap(), [Completion::ShutDown]);
        running.join().unwrap();
    });
}

/// Catches: a reaper that leaves out the neighbour of a purgatory that goes.
#[test]
fn g19_a_shared_reaper_goes_on_beside_a_purgatory_dropped() {
    bounded(|| {
        let (reaper, shared) = ReaperLoop::new();
        let (leaving, staying) = (World::new(shared.clone()), World::new(shared));
        leaving.park(Duration::from_secs(60));
        let end = reaper.end();
        let running = thread::spawn(move || reaper.run());
        drop(leaving);
        staying.expire_one();
        end.stop();
        running.join().unwrap();
    });
}
