//! Checks that are made later: deferred to the thread that drives the timer, or made in a `try_complete` and run when
//! the outermost call returns. Each must be followed by an examination that begins after it.

use loom::thread;
use loom_tests::{Hooked, Outcome, Probe, assert_empty, bounded, manual};
use request_purgatory::{Handle, Purgatory, time::ManualClock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Operations with hooks, of which each runs at the first examination after it was armed.
struct World {
    purgatory: Purgatory<Hooked>,
    armed: Arc<AtomicBool>,
    examining: Arc<AtomicBool>,
}

impl World {
    fn new() -> Self {
        Self {
            purgatory: manual(&ManualClock::new()),
            armed: Arc::default(),
            examining: Arc::default(),
        }
    }

    fn park(
        &self,
        key: u64,
        mut hook: impl FnMut(&Purgatory<Hooked>) + Send + 'static,
    ) -> (Arc<Outcome>, Handle<Hooked>) {
        let outcome = Outcome::new();
        let (purgatory, armed) = (self.purgatory.clone(), self.armed.clone());
        let op = Hooked::new(&outcome, &self.examining, move || {
            if armed.swap(false, Ordering::Relaxed) {
                hook(&purgatory);
            }
        });
        let admission = self.purgatory.try_complete_else_watch(op, [key]);
        let handle = admission.expect("it may park").into_handle();
        (outcome, handle.expect("it parked"))
    }

    /// From now on, the next examination runs its hook.
    fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
    }
}

/// The event comes and its check is deferred when the operation has read that it has not happened; then its own
/// `try_complete` drives the timer. Catches: a deferred check that is lost because its own thread holds the operation.
#[test]
fn g01_a_deferred_check_races_an_examination_that_drives_the_timer() {
    bounded(|| {
        let world = World::new();
        let (outcome, _) = world.park(1, |purgatory| _ = purgatory.advance());
        world.arm();
        let publisher = {
            let (purgatory, outcome) = (world.purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                outcome.satisfy();
                purgatory.check_later(1);
            })
        };
        world.purgatory.check_and_complete(&1);
        publisher.join().unwrap();
        world.purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        assert_empty(&world.purgatory);
    });
}

/// The same with a check of another operation's key. Catches: a deferred check that is made inside an examination.
#[test]
fn g14_an_examination_that_drives_the_timer_makes_no_deferred_check() {
    bounded(|| {
        let world = World::new();
        let (_, driver) = world.park(1, |purgatory| _ = purgatory.advance());
        let (outcome, _) = world.park(2, |_| ());
        world.arm();
        let publisher = {
            let (purgatory, outcome) = (world.purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                purgatory.check_later(2);
                outcome.satisfy();
                purgatory.check_later(2);
            })
        };
        world.purgatory.check_and_complete(&1);
        publisher.join().unwrap();
        world.purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        drop(driver.cancel().expect("no other thread ended it"));
        assert_empty(&world.purgatory);
    });
}

/// An operation's `try_complete` publishes an event and checks its key, while another thread parks the operation that
/// waits for it. Catches: a nested check that is dropped, or made before the event.
#[test]
fn g01_a_check_made_in_try_complete_races_a_parker() {
    bounded(|| {
        let world = World::new();
        let outcome = Outcome::new();
        let (_, publisher) = {
            let outcome = outcome.clone();
            world.park(1, move |purgatory| {
                purgatory.check_and_complete(&2);
                outcome.satisfy();
                purgatory.check_and_complete(&2);
            })
        };
        world.arm();
        let parker = {
            let purgatory = world.purgatory.clone();
            // It runs on another thread, at the same time as the examination of the first.
            let examining = Arc::<AtomicBool>::default();
            let op = Hooked::new(&outcome, &examining, || ());
            thread::spawn(move || drop(purgatory.try_complete_else_watch(op, [2])))
        };
        world.purgatory.check_and_complete(&1);
        parker.join().unwrap();
        // A parker that was asked twice to examine again leaves that to the thread that drives the timer.
        world.purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        drop(publisher.cancel().expect("no other thread ended it"));
        assert_empty(&world.purgatory);
    });
}

/// The first check waits, or is just being made, when the event comes and the second is deferred. Catches: a check that
/// is merged with one that was taken off the queue already.
#[test]
fn g01_an_event_before_a_merged_check_is_seen() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let outcome = Outcome::new();
        purgatory
            .try_complete_else_watch(Probe::new(&outcome), [1])
            .expect("it may park");
        purgatory.check_later(1);
        let publisher = {
            let (purgatory, outcome) = (purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                outcome.satisfy();
                purgatory.check_later(1);
            })
        };
        purgatory.advance();
        publisher.join().unwrap();
        purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Catches: an operation that a deferred check and the shutdown both end, or that each leaves to the other.
#[test]
fn g15_a_deferred_check_races_its_pass_and_the_shutdown() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let outcome = Outcome::new();
        purgatory
            .try_complete_else_watch(Probe::new(&outcome), [1])
            .expect("it may park");
        let publisher = {
            let (purgatory, outcome) = (purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                outcome.satisfy();
                purgatory.check_later(1);
                purgatory.advance();
            })
        };
        purgatory.shutdown();
        publisher.join().unwrap();
        let [completed, expired, cancelled, shut_down] = outcome.endings();
        assert_eq!((completed + shut_down, expired + cancelled), (1, 0));
        assert_empty(&purgatory);
    });
}
