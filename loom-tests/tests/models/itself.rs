//! An operation that reaches itself: its waker against its park, an examination, its deadline and its end; and the
//! deadline that it puts off. A lost wake-up shows as an operation that stays, or as a driver that sleeps for ever.

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use loom_tests::{Outcome, Probe, Sleeper, assert_empty, bounded, driven};
use request_purgatory::purgatory::Cause;
use request_purgatory::threads::Reaper;
use request_purgatory::time::ManualClock;
use request_purgatory::{Completion, DelayedOperation, Handle, Purgatory};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_millis(1);

/// Where an operation leaves its waker in the first examination, and no trace of later ones.
type Slot = Arc<Mutex<Option<Waker>>>;

struct Reaching {
    probe: Probe,
    slot: Slot,
    examinations: Arc<AtomicUsize>,
    /// How much more time it asks for, at the first deadline.
    more: Option<Duration>,
    /// What it does in the first check of its key.
    hook: Option<Box<dyn FnOnce() + Send>>,
}

impl DelayedOperation for Reaching {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.probe.timeout()
    }

    fn try_complete(&mut self) -> bool {
        self.probe.try_complete()
    }

    fn try_complete_for(&mut self, cause: Cause<'_, u64>) -> bool {
        if self.examinations.fetch_add(1, Ordering::Relaxed) == 0 {
            *self.slot.lock().unwrap() = Some(cause.waker());
        }
        if let Some(hook) = self.hook.take_if(|_| cause.key().is_some()) {
            hook();
        }
        if let Some(more) = self.more.take_if(|_| cause.is_deadline()) {
            cause.reschedule(more);
            return false;
        }
        self.try_complete()
    }

    fn on_complete(self, completion: Completion) {
        self.probe.on_complete(completion);
    }
}

struct World {
    clock: ManualClock,
    purgatory: Purgatory<Reaching>,
    outcome: Arc<Outcome>,
    slot: Slot,
    examinations: Arc<AtomicUsize>,
}

impl World {
    fn new(reaper: Reaper) -> Self {
        let clock = ManualClock::new();
        Self {
            purgatory: driven(&clock, reaper),
            clock,
            outcome: Outcome::new(),
            slot: Arc::default(),
            examinations: Arc::default(),
        }
    }

    fn op(&self, timeout: Duration, more: Option<Duration>) -> Reaching {
        Reaching {
            probe: Probe::with_timeout(&self.outcome, timeout),
            slot: self.slot.clone(),
            examinations: self.examinations.clone(),
            more,
            hook: None,
        }
    }

    fn park(&self, op: Reaching) -> Handle<Reaching> {
        let parked = self.purgatory.try_complete_else_watch(op, [1]);
        let handle = parked.expect("it may park").into_handle();
        handle.expect("it parked")
    }

    fn waker(&self) -> Waker {
        let waker = self.slot.lock().unwrap().clone();
        waker.expect("it was examined")
    }

    /// The event, and the wake-up for it.
    fn happens(&self) -> thread::JoinHandle<()> {
        let (outcome, waker) = (self.outcome.clone(), self.waker());
        thread::spawn(move || {
            outcome.satisfy();
            waker.wake();
        })
    }

    fn advances(&self) -> thread::JoinHandle<usize> {
        let purgatory = self.purgatory.clone();
        thread::spawn(move || purgatory.advance())
    }

    fn assert_ended(&self, endings: [usize; 4]) {
        assert_eq!(self.outcome.endings(), endings);
        assert_empty(&self.purgatory);
    }
}

/// Catches: a wake-up that finds no address yet, and whose event the examination after that does not see.
#[test]
fn g30_woken_during_its_park() {
    bounded(|| {
        let world = World::new(Reaper::Manual);
        let waking = {
            let (outcome, slot) = (world.outcome.clone(), world.slot.clone());
            thread::spawn(move || {
                let waker = slot.lock().unwrap().take();
                let woken = waker.is_some();
                if let Some(waker) = waker {
                    outcome.satisfy();
                    waker.wake();
                }
                woken
            })
        };
        let op = world.op(Duration::MAX, None);
        let parked = world.purgatory.try_complete_else_watch(op, [1]);
        assert!(parked.is_ok());
        let woken = waking.join().unwrap();
        world.purgatory.advance();
        if !woken {
            world.purgatory.force_complete_for_key(&1);
        }
        world.assert_ended([1, 0, 0, 0]);
    });
}

/// Catches: a wake-up of which the thread that drives the timer is not told, or that an examination in progress hides.
#[test]
fn g30_woken_during_an_examination() {
    bounded(|| {
        let sleeper = Sleeper::default();
        let world = World::new(Reaper::Reactor(sleeper.waker()));
        world.park(world.op(Duration::MAX, None));
        let waking = world.happens();
        assert!(world.purgatory.check_and_complete(&1) <= 1);
        while !world.purgatory.is_empty() {
            world.purgatory.advance();
            if !world.purgatory.is_empty() {
                sleeper.sleep();
            }
        }
        waking.join().unwrap();
        world.assert_ended([1, 0, 0, 0]);
    });
}

/// The operation gets more time, and the event comes meanwhile. Catches: a wake-up that is lost at a deadline which is
/// put off; a mark of that deadline which stays.
#[test]
fn g30_woken_at_a_deadline_that_is_put_off() {
    bounded(|| {
        let world = World::new(Reaper::Manual);
        world.park(world.op(TIMEOUT, Some(TIMEOUT)));
        world.clock.advance(TIMEOUT);
        let (waking, reaper) = (world.happens(), world.advances());
        world.purgatory.check_and_complete(&1);
        waking.join().unwrap();
        reaper.join().unwrap();
        world.purgatory.advance();
        world.assert_ended([1, 0, 0, 0]);
    });
}

/// The first deadline comes while the operation is examined, and the second one while the thread that has examined it
/// files the timer for that. Catches: the mark of the second deadline that is taken for that of the first.
#[test]
fn g05_a_second_deadline_races_the_extension_of_the_first() {
    bounded(|| {
        let world = World::new(Reaper::Manual);
        let time_passes = {
            let (purgatory, clock) = (world.purgatory.downgrade(), world.clock.clone());
            move || {
                clock.advance(TIMEOUT);
                purgatory.upgrade().expect("it is in use").advance();
            }
        };
        let mut op = world.op(TIMEOUT, Some(TIMEOUT));
        op.hook = Some(Box::new(time_passes.clone()));
        world.park(op);
        let other = thread::spawn(time_passes.clone());
        assert_eq!(world.purgatory.check_and_complete(&1), 0);
        other.join().unwrap();
        time_passes();
        world.assert_ended([0, 1, 0, 0]);
    });
}

/// Catches: a wake-up that keeps an operation, or that has another one examined; one after the end that has the timer
/// driven.
#[test]
fn g30_woken_at_its_end() {
    bounded(|| {
        let world = World::new(Reaper::Manual);
        let handle = world.park(world.op(Duration::MAX, None));
        let waker = world.waker();
        let waking = {
            let waker = waker.clone();
            thread::spawn(move || waker.wake())
        };
        assert!(handle.cancel().is_some(), "no thread examines it");
        // It may get the same slot.
        let examined = world.examinations.load(Ordering::Relaxed);
        let next = world.park(world.op(Duration::MAX, None));
        waking.join().unwrap();
        world.purgatory.advance();
        let again = world.examinations.load(Ordering::Relaxed) - examined;
        assert_eq!(again, 2, "its park");
        waker.wake();
        assert_eq!(world.purgatory.next_deadline(), None);
        assert!(next.cancel().is_some());
        world.assert_ended([0; 4]);
    });
}

/// Catches: a deadline that an examination gives its operation, and of which the thread that sleeps is not told.
#[test]
fn g07_an_operation_that_gives_itself_a_deadline_wakes_the_driver() {
    bounded(|| {
        let sleeper = Sleeper::default();
        let world = World::new(Reaper::Reactor(sleeper.waker()));
        let op = Hasty(world.op(Duration::MAX, None));
        let purgatory = driven(&world.clock, Reaper::Reactor(sleeper.waker()));
        assert!(purgatory.try_complete_else_watch(op, [1]).is_ok());
        let checker = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.check_and_complete(&1))
        };
        // The driver sleeps until it is told of a deadline.
        loop {
            purgatory.advance();
            if purgatory.next_deadline().is_some() {
                break;
            }
            sleeper.sleep();
        }
        world.clock.advance(TIMEOUT);
        checker.join().unwrap();
        purgatory.advance();
        assert_eq!(world.outcome.endings(), [0, 1, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Has no deadline until its key is checked.
struct Hasty(Reaching);

impl DelayedOperation for Hasty {
    type Key = u64;

    fn timeout(&self) -> Duration {
        self.0.timeout()
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn try_complete_for(&mut self, cause: Cause<'_, u64>) -> bool {
        if cause.key().is_some() {
            cause.reschedule(TIMEOUT);
        }
        false
    }

    fn on_complete(self, completion: Completion) {
        self.0.on_complete(completion);
    }
}
