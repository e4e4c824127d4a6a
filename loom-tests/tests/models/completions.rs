//! The completion thread: its own loop, in a thread of the model. A lost wake-up, and a pass that waits for a
//! completion, show as a deadlock.

use loom::thread;
use loom_tests::{Outcome, Probe, Sleeper, assert_empty, bounded};
use request_purgatory::{
    Completion, DelayedOperation, Purgatory, threads::Dispatch, threads::Reaper, time::ManualClock,
};
use std::sync::Arc;
use std::time::Duration;

/// An operation whose deadline has passed, and whose completion does something more.
struct Op<F> {
    probe: Probe,
    completed: F,
}

impl<F: FnOnce() + Send + 'static> DelayedOperation for Op<F> {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.probe.timeout()
    }

    fn try_complete(&mut self) -> bool {
        self.probe.try_complete()
    }

    fn on_complete(self, completion: Completion) {
        (self.completed)();
        self.probe.on_complete(completion);
    }
}

/// A purgatory that the model drives, with a thread for completions.
fn with_a_completion_thread<F: FnOnce() + Send + 'static>() -> Purgatory<Op<F>> {
    Purgatory::builder("model")
        .clock(ManualClock::new())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::OwnThread)
        .build()
        .expect("the settings are sound")
}

fn park<F>(purgatory: &Purgatory<Op<F>>, completed: F) -> Arc<Outcome>
where
    F: FnOnce() + Send + 'static,
{
    let outcome = Outcome::new();
    let probe = Probe::with_timeout(&outcome, Duration::ZERO);
    let op = Op { probe, completed };
    let admission = purgatory.try_complete_else_watch(op, [1]);
    assert!(admission.is_ok());
    outcome
}

/// Catches: a completion on the thread that drives the timer, and one that is lost behind another.
#[test]
fn g13_a_pass_does_not_wait_for_a_completion() {
    bounded(|| {
        let purgatory = with_a_completion_thread();
        let goes_on = Sleeper::default();
        let ops = [0, 1].map(|_| {
            let goes_on = goes_on.clone();
            let outcome = park(&purgatory, move || goes_on.sleep());
            // It returns, although no completion does before the model says so.
            assert_eq!(purgatory.advance(), 1);
            outcome
        });
        // Each wake-up lets one of them go on.
        for outcome in &ops {
            goes_on.waker().wake();
            while outcome.endings() == [0; 4] {
                thread::yield_now();
            }
        }
        purgatory.shutdown();
        ops.iter().for_each(|outcome| outcome.assert_over());
        assert_empty(&purgatory);
    });
}

/// Catches: a job that wakes no thread, and one that wakes it before it is in the queue.
#[test]
fn g13_a_completion_races_the_thread_for_it_going_to_sleep() {
    bounded(|| {
        let purgatory = with_a_completion_thread();
        let completed = Sleeper::default();
        for _ in 0..2 {
            let completed_now = completed.waker();
            let outcome = park(&purgatory, move || _ = completed_now.wake());
            assert_eq!(purgatory.advance(), 1);
            completed.sleep();
            drop(outcome);
        }
        purgatory.shutdown();
        assert_empty(&purgatory);
    });
}

/// Catches: a thread that ends with jobs in its queue, a queue that takes jobs after its thread has ended, and an end
/// that wakes no thread.
#[test]
fn g15_a_shutdown_races_the_completion_of_an_expired_operation() {
    bounded(|| {
        let purgatory = with_a_completion_thread();
        let first = park(&purgatory, (|| ()) as fn());
        assert_eq!(purgatory.advance(), 1);
        let second = park(&purgatory, (|| ()) as fn());
        let pass = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.advance())
        };
        purgatory.shutdown();
        first.assert_over();
        pass.join().unwrap();
        second.assert_over();
        assert_empty(&purgatory);
    });
}
