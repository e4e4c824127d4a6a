//! The start of the threads: the first deadline, the first deferred check and the end of the purgatory come together.
//! The reaper is the library's own, as a thread of the model. A lost deadline or check shows as a deadlock.

use loom::sync::{Condvar, Mutex};
use loom::thread;
use loom_tests::{assert_empty, bounded, long};
use request_purgatory::{
    Completion, DelayedOperation, Handle, Purgatory, Timer, purgatory::RejectReason,
    threads::Dispatch, time::ManualClock,
};
use request_purgatory_tracker::Tracker;
use std::sync::Arc;
use std::time::Duration;

const NEAR: Duration = Duration::from_millis(2);
const NEVER: Duration = Duration::MAX;

/// How operations ended, in any order.
#[derive(Clone, Default)]
struct Ends(Arc<(Mutex<Vec<Completion>>, Condvar)>);

impl Ends {
    /// Sleeps until this many have ended.
    fn wait(&self, count: usize) -> Vec<Completion> {
        let (ends, changed) = &*self.0;
        let mut ends = ends.lock().unwrap();
        while ends.len() < count {
            ends = changed.wait(ends).unwrap();
        }
        ends.clone()
    }
}

struct Op {
    timeout: Duration,
    /// Whether it can complete, once it is parked.
    ready: Option<u32>,
    ends: Ends,
}

impl DelayedOperation for Op {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    /// No at the two examinations of the park, if it is to complete at all.
    fn try_complete(&mut self) -> bool {
        match &mut self.ready {
            None => false,
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }

    fn on_complete(self, completion: Completion) {
        let (ends, changed) = &*self.ends.0;
        ends.lock().unwrap().push(completion);
        changed.notify_one();
    }
}

fn purgatory(clock: &ManualClock) -> Purgatory<Op> {
    Purgatory::builder("model")
        .clock(clock.clone())
        .dispatch(Dispatch::Inline)
        .build()
        .expect("the settings are sound")
}

/// Parks one, which may have ended by then.
fn park(purgatory: &Purgatory<Op>, timeout: Duration, ends: &Ends) -> Option<Handle<Op>> {
    let op = Op {
        timeout,
        ready: (timeout == NEVER).then_some(2),
        ends: ends.clone(),
    };
    let parked = purgatory.try_complete_else_watch(op, [1]);
    parked.expect("it may park").into_handle()
}

/// Catches: a deadline that is filed before there is a thread and that no thread announces, and a start that leaves a
/// shard closed to deadlines.
#[test]
fn g28_two_first_deadlines_race() {
    long(|| {
        let expired = Arc::new((Mutex::new(0), Condvar::new()));
        let count = expired.clone();
        let clock = ManualClock::new();
        let timer = Timer::builder("model").clock(clock.clone());
        let timer = timer.dispatch(Dispatch::Inline).build(move |_: u32| {
            *count.0.lock().unwrap() += 1;
            count.1.notify_one();
        });
        let timer = timer.expect("the settings are sound");
        let starter = {
            let timer = timer.clone();
            thread::spawn(move || assert!(timer.start(Duration::ZERO, 1).is_ok()))
        };
        assert!(timer.start(Duration::ZERO, 2).is_ok());
        starter.join().unwrap();
        clock.advance(NEAR);
        let mut count = expired.0.lock().unwrap();
        while *count < 2 {
            count = expired.1.wait(count).unwrap();
        }
        drop(count);
        assert_eq!(timer.shutdown(), []);
    });
}

fn first_park_races_the_shutdown(timeout: Duration) {
    bounded(move || {
        let purgatory = purgatory(&ManualClock::new());
        let ends = Ends::default();
        let parker = {
            let (purgatory, ends) = (purgatory.clone(), ends.clone());
            thread::spawn(move || {
                let op = Op {
                    timeout,
                    ready: None,
                    ends,
                };
                match purgatory.try_complete_else_watch(op, [1]) {
                    Ok(_) => true,
                    Err(rejected) => {
                        assert_eq!(rejected.reason(), RejectReason::ShutDown);
                        false
                    }
                }
            })
        };
        purgatory.shutdown();
        let parked = parker.join().unwrap();
        assert_eq!(
            ends.wait(0),
            vec![Completion::ShutDown; usize::from(parked)]
        );
        assert_empty(&purgatory);
    });
}

/// Catches: a thread that is started after the shutdown has looked for threads, which never ends.
#[test]
fn g28_the_first_deadline_races_the_shutdown() {
    first_park_races_the_shutdown(NEAR);
}

/// Catches: a timer shard that is made after the shutdown has looked for shards, and that takes what needs no thread.
#[test]
fn g15_a_first_park_without_a_deadline_races_the_shutdown() {
    first_park_races_the_shutdown(NEVER);
}

/// Catches: an alarm that is set before there is a thread, and lost.
#[test]
fn g28_the_first_deferred_check_races_the_first_deadline() {
    bounded(|| {
        let clock = ManualClock::new();
        let purgatory = purgatory(&clock);
        let ends = Ends::default();
        let _ = park(&purgatory, NEVER, &ends);
        let checker = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.check_later(1))
        };
        let _ = park(&purgatory, NEAR, &Ends::default());
        checker.join().unwrap();
        assert_eq!(ends.wait(1), [Completion::Satisfied]);
        purgatory.shutdown();
        assert_empty(&purgatory);
    });
}

/// Catches: an operation that never expired and gets its first deadline where no thread knows of it.
#[test]
fn g28_a_first_deadline_by_its_handle_races_a_park() {
    long(|| {
        let clock = ManualClock::new();
        let purgatory = purgatory(&clock);
        let ends = Ends::default();
        let op = Op {
            timeout: NEVER,
            ready: None,
            ends: ends.clone(),
        };
        let handle = purgatory.try_complete_else_watch(op, [1]);
        let handle = handle
            .expect("it may park")
            .into_handle()
            .expect("it parked");
        let other = {
            let handle = handle.clone();
            thread::spawn(move || assert!(handle.reschedule(Duration::ZERO)))
        };
        let _ = park(&purgatory, Duration::from_secs(60), &Ends::default());
        other.join().unwrap();
        clock.advance(NEAR);
        assert_eq!(ends.wait(1), [Completion::Expired]);
        purgatory.shutdown();
        assert_empty(&purgatory);
    });
}

/// Catches: a value that gets a deadline by a `reschedule`, though no thread was started for it.
#[test]
fn g28_a_touch_races_the_first_value() {
    bounded(|| {
        let expired = Arc::new((Mutex::new(0), Condvar::new()));
        let count = expired.clone();
        let tracker = Tracker::builder("model").clock(ManualClock::new());
        let tracker = tracker.dispatch(Dispatch::Inline);
        let tracker = tracker.build(move |_: u64, (), _| {
            *count.0.lock().unwrap() += 1;
            count.1.notify_one();
        });
        let tracker = tracker.expect("the settings are sound");
        let rescheduler = {
            let tracker = tracker.clone();
            thread::spawn(move || tracker.reschedule(&1, Duration::ZERO))
        };
        assert!(tracker.track(1, (), NEVER).is_ok());
        let rescheduled = usize::from(rescheduler.join().unwrap());
        let mut count = expired.0.lock().unwrap();
        while *count < rescheduled {
            count = expired.1.wait(count).unwrap();
        }
        drop(count);
        assert_eq!(tracker.shutdown().len(), 1 - rescheduled);
    });
}

/// Catches: a check that finds no map yet, and whose event the operation does not see that is being watched first.
#[test]
fn g01_a_check_races_the_first_watches() {
    use loom_tests::{Outcome, Probe, manual};
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let outcome = Outcome::new();
        let parkers = [1, 2].map(|key| {
            let purgatory = purgatory.clone();
            let probe = Probe::new(&outcome);
            thread::spawn(move || {
                let parked = purgatory.try_complete_else_watch(probe, [key]);
                assert!(parked.is_ok());
            })
        });
        outcome.satisfy();
        purgatory.check_and_complete(&1);
        purgatory.check_and_complete(&2);
        for parker in parkers {
            parker.join().unwrap();
        }
        assert_eq!(outcome.endings(), [2, 0, 0, 0]);
        assert_empty(&purgatory);
    });
}
