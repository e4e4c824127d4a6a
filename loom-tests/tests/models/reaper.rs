//! The reaper's own loop, run by a thread of the model. A lost wake-up shows as a deadlock.

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use loom_tests::{Sleeper, bounded, driven, long};
use request_purgatory::model::{ReaperLoop, use_timer_shards};
use request_purgatory::{
    Completion, DelayedOperation, Purgatory, threads::Reaper, time::ManualClock, time::WakeFn,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Wakes the model's thread at its end, which it writes down.
struct Op {
    timeout: Duration,
    satisfied: Arc<AtomicBool>,
    ended: WakeFn,
    ends: Arc<Mutex<Vec<Completion>>>,
}

impl DelayedOperation for Op {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        self.satisfied.load(Ordering::Relaxed)
    }

    fn on_complete(self, completion: Completion) {
        // No thread of the model is ever stopped while it has this lock.
        self.ends.lock().unwrap().push(completion);
        self.ended.wake();
    }
}

/// A purgatory whose operations wake the model's thread.
#[derive(Clone)]
struct World {
    purgatory: Purgatory<Op>,
    satisfied: Arc<AtomicBool>,
    sleeper: Sleeper,
    ends: Arc<Mutex<Vec<Completion>>>,
}

impl World {
    fn new(reaper: Reaper) -> Self {
        Self {
            purgatory: driven(&ManualClock::new(), reaper),
            satisfied: Arc::new(AtomicBool::new(false)),
            sleeper: Sleeper::default(),
            ends: Arc::default(),
        }
    }

    fn park(&self, timeout: Duration) {
        let op = Op {
            timeout,
            satisfied: self.satisfied.clone(),
            ended: self.sleeper.waker(),
            ends: self.ends.clone(),
        };
        self.purgatory
            .try_complete_else_watch(op, [1])
            .expect("it may park");
    }

    /// Parks one whose deadline has passed already, and sleeps until it has expired.
    fn expire_one(&self) {
        self.park(Duration::ZERO);
        self.sleeper.sleep();
        assert_eq!(*self.ends.lock().unwrap(), [Completion::Expired]);
        assert_eq!(self.purgatory.stats().parked, 0);
        assert_eq!(self.purgatory.stats().panicked, 0);
    }
}

/// Catches: a deadline that is not announced; a loop that sleeps without reading the alarm again.
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
    bounded(|| {
        let (reaper, shared) = ReaperLoop::new();
        let world = World::new(shared);
        world.park(Duration::from_secs(60));
        let end = reaper.end();
        let running = thread::spawn(move || reaper.run());
        for expired in 1..3 {
            world.park(Duration::ZERO);
            world.sleeper.sleep();
            assert_eq!(world.ends.lock().unwrap().len(), expired);
        }
        end.stop();
        running.join().unwrap();
    });
}

/// The alarm is set already when the second check is deferred, so that wakes no thread. Catches: an alarm that is reset
/// after the reaper has seen that no check is deferred.
#[test]
fn g07_a_second_check_later_races_the_loop_of_a_reaper() {
    bounded(|| {
        let (reaper, shared) = ReaperLoop::new();
        let world = World::new(shared);
        world.park(Duration::MAX);
        world.purgatory.check_later(1);
        let end = reaper.end();
        let running = thread::spawn(move || reaper.run());
        world.satisfied.store(true, Ordering::Relaxed);
        world.purgatory.check_later(1);
        world.sleeper.sleep();
        assert_eq!(*world.ends.lock().unwrap(), [Completion::Satisfied]);
        end.stop();
        running.join().unwrap();
    });
}

/// The alarm stands at a later time when the earlier deadline comes, or the other way round.
#[test]
fn g07_a_later_insert_does_not_hide_an_earlier_one() {
    long(|| {
        let (reaper, shared) = ReaperLoop::new();
        let world = World::new(shared);
        let end = reaper.end();
        let running = thread::spawn(move || reaper.run());
        let other = {
            let world = world.clone();
            thread::spawn(move || world.park(Duration::from_secs(60)))
        };
        world.park(Duration::ZERO);
        world.sleeper.sleep();
        assert_eq!(*world.ends.lock().unwrap(), [Completion::Expired]);
        other.join().unwrap();
        end.stop();
        running.join().unwrap();
    });
}

/// Another thread asks when to drive the purgatory, and may find the deadline before it is announced. Catches: a caller
/// that sets the alarm and does not wake the reaper.
#[test]
fn g07_a_caller_that_asks_for_the_next_deadline_races_an_insert() {
    bounded(|| {
        let (reaper, shared) = ReaperLoop::new();
        let world = World::new(shared);
        let end = reaper.end();
        let running = thread::spawn(move || reaper.run());
        let asking = {
            let purgatory = world.purgatory.clone();
            thread::spawn(move || purgatory.next_deadline())
        };
        world.expire_one();
        asking.join().unwrap();
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
        // Keeps the memory, not the purgatory: loom would not see how the loop finds that it was dropped.
        let key = world.purgatory.resolve(1);
        drop(world);
        assert_eq!(*ends.lock().unwrap(), [Completion::ShutDown]);
        running.join().unwrap();
        drop(key);
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

/// Each parks first in a timer shard of its own. The second wakes no thread where the alarm stands at its deadline.
/// Catches: a reaper that takes the alarm away, and does not see a shard that was made before it was set.
#[test]
fn g07_a_first_insert_in_another_shard_races_the_loop_of_a_reaper() {
    long(|| {
        let (reaper, shared) = ReaperLoop::new();
        use_timer_shards(2);
        let world = World::new(shared);
        use_timer_shards(1);
        let end = reaper.end();
        // The first thread that is spawned has the other shard.
        let other = {
            let world = world.clone();
            thread::spawn(move || world.park(Duration::ZERO))
        };
        let running = thread::spawn(move || reaper.run());
        world.park(Duration::ZERO);
        while world.ends.lock().unwrap().len() < 2 {
            world.sleeper.sleep();
        }
        other.join().unwrap();
        end.stop();
        running.join().unwrap();
    });
}
