//! The engine under the purgatory: a bucket that drains or cascades, the lock of a timer shard and the
//! slots that are freed without it, a bound on what is parked, deferred checks at the shutdown.

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use loom_tests::{Outcome, Probe, assert_empty, bounded, long, manual};
use request_purgatory::purgatory::Builder;
use request_purgatory::{
    Completion, DelayedOperation, Handle, Purgatory, purgatory::RejectReason, threads::Dispatch,
    threads::Reaper, time::ManualClock,
};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);
const FAR: Duration = Duration::from_secs(60);

fn park(purgatory: &Purgatory<Probe>, timeout: Duration) -> (Arc<Outcome>, Option<Handle<Probe>>) {
    let outcome = Outcome::new();
    let watch = purgatory
        .try_complete_else_watch(Probe::with_timeout(&outcome, timeout), [1])
        .expect("it may park");
    (outcome, watch.into_handle())
}

/// A slice is one timer here, so the lock is free between the two whose deadline has passed. Catches: a newcomer that
/// is filed where the drain has been, or that fires before its time; a drain that ends with its first slice.
#[test]
fn g08_insert_races_a_drain() {
    bounded(|| {
        let clock = ManualClock::new();
        let purgatory = manual(&clock);
        let due = [(); 2].map(|()| park(&purgatory, TICK).0);
        clock.advance(TICK);
        let reaper = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.advance())
        };
        let (now, _) = park(&purgatory, Duration::ZERO);
        let (later, handle) = park(&purgatory, FAR);
        assert!(reaper.join().unwrap() >= 2);
        for outcome in due {
            assert_eq!(outcome.endings(), [0, 1, 0, 0]);
        }
        purgatory.advance();
        assert_eq!(now.endings(), [0, 1, 0, 0]);
        assert_eq!(later.endings(), [0; 4]);
        assert!(purgatory.next_deadline().is_some());
        handle
            .expect("it parked")
            .cancel()
            .expect("no other thread ended it");
        assert_empty(&purgatory);
    });
}

/// A purgatory whose wheel has two slots on a level, so that the least timeout cascades.
fn with_small_wheel(clock: &ManualClock) -> Purgatory<Probe> {
    Purgatory::builder("model")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::Inline)
        .wheel_size(2)
        .build()
        .expect("the settings are sound")
}

/// Catches: a timer stopped or started while its bucket moves to a lower level, and lost, fired early, or fired though
/// it was stopped.
#[test]
fn g05_cancel_races_cascade_and_insert() {
    bounded(|| {
        let clock = ManualClock::new();
        let purgatory = with_small_wheel(&clock);
        let (leaving, handle) = park(&purgatory, 5 * TICK);
        let (staying, _) = park(&purgatory, 5 * TICK);
        clock.advance(4 * TICK);
        let reaper = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.advance())
        };
        let canceller = thread::spawn(move || handle.expect("it parked").cancel().is_some());
        let (newcomer, _) = park(&purgatory, TICK);
        assert!(canceller.join().unwrap(), "no other thread ended it");
        assert_eq!(reaper.join().unwrap(), 0, "early");
        clock.advance(TICK);
        assert_eq!(purgatory.advance(), 2);
        assert_eq!(leaving.endings(), [0; 4]);
        for outcome in [staying, newcomer] {
            assert_eq!(outcome.endings(), [0, 1, 0, 0]);
        }
        assert_empty(&purgatory);
    });
}

/// All at once on one operation. Catches: an ending that two threads win, or none.
#[test]
fn g05_cancel_expiry_check_cascade_and_insert_race() {
    long(|| {
        let clock = ManualClock::new();
        let purgatory = with_small_wheel(&clock);
        let (outcome, handle) = park(&purgatory, 3 * TICK);
        let handle = handle.expect("it parked");
        clock.advance(3 * TICK);
        let canceller = {
            let handle = handle.clone();
            thread::spawn(move || handle.cancel().is_some())
        };
        let checker = {
            let (purgatory, outcome) = (purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                outcome.satisfy();
                purgatory.check_and_complete(&1)
            })
        };
        let inserter = {
            let purgatory = purgatory.clone();
            thread::spawn(move || park(&purgatory, TICK).0)
        };
        purgatory.advance();
        let cancelled = usize::from(canceller.join().unwrap());
        checker.join().unwrap();
        let newcomer = inserter.join().unwrap();
        assert_eq!(outcome.endings().iter().sum::<usize>() + cancelled, 1);
        assert!(!handle.is_parked());
        clock.advance(TICK);
        assert_eq!(purgatory.advance(), 1);
        assert_eq!(newcomer.endings(), [0, 1, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Three parties to one operation whose timeout is over when it comes. Catches: a mark that the parker goes past, an
/// ending won twice.
#[test]
fn g01_parker_checker_and_reaper_race() {
    bounded(|| {
        let clock = ManualClock::new();
        let purgatory = manual(&clock);
        let outcome = Outcome::new();
        let checker = {
            let (purgatory, outcome) = (purgatory.clone(), outcome.clone());
            thread::spawn(move || {
                outcome.satisfy();
                purgatory.check_and_complete(&1)
            })
        };
        let reaper = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.advance())
        };
        purgatory
            .try_complete_else_watch(Probe::with_timeout(&outcome, Duration::ZERO), [1])
            .expect("it may park");
        let completed = checker.join().unwrap();
        let expired = reaper.join().unwrap();
        purgatory.advance();
        let [satisfied, timed_out, ..] = outcome.endings();
        assert_eq!(satisfied + timed_out, 1);
        assert!(completed <= satisfied && expired <= timed_out);
        assert_empty(&purgatory);
    });
}

/// Catches: a slot that is freed remotely because the lock is taken, and whose timer still counts for the next thread
/// that has the lock.
#[test]
fn g06_a_remote_free_races_the_lock_of_its_timer_shard() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let (_, handle) = park(&purgatory, TICK);
        let canceller = thread::spawn(move || handle.expect("it parked").cancel().is_some());
        // Takes the lock; it frees what it finds on the remote free list, and the next one the rest.
        let (_, handle) = park(&purgatory, Duration::MAX);
        assert!(canceller.join().unwrap(), "no other thread ended it");
        assert_eq!(purgatory.next_deadline(), None, "a timer is left");
        handle
            .expect("it parked")
            .cancel()
            .expect("no other thread ended it");
        assert_empty(&purgatory);
    });
}

/// Says when its `on_complete` has run to its end.
#[derive(Clone)]
struct Slow {
    weight: usize,
    /// Loom's, and Relaxed: it is only sure to be seen by what happens after `on_complete`.
    completed: Arc<AtomicBool>,
    /// Loom's: it lets another thread that touches it run at every step of `on_complete`.
    steps: Arc<AtomicUsize>,
}

impl Slow {
    fn new(weight: usize) -> Self {
        Self {
            weight,
            completed: Arc::new(AtomicBool::new(false)),
            steps: Arc::default(),
        }
    }
}

impl DelayedOperation for Slow {
    type Key = u64;

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn weight(&self) -> usize {
        self.weight
    }

    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(self, _: Completion) {
        for _ in 0..2 {
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        self.completed.store(true, Ordering::Relaxed);
    }
}

/// Bounds a purgatory to one operation, by number or by weight.
type Bounds = fn(Builder<Purgatory<Slow>>) -> Builder<Purgatory<Slow>>;

fn with_one_place(bounds: Bounds) -> Purgatory<Slow> {
    let builder = Purgatory::builder("model")
        .clock(ManualClock::new())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::Inline);
    bounds(builder).build().expect("the settings are sound")
}

/// Catches: a place that is free while the `on_complete` of the operation that had it has not run to its end, or that is
/// taken by a thread which does not see what it did.
#[test]
fn g17_a_park_at_the_bound_races_a_completion() {
    a_park_at_the_bound_races_a_completion(|builder| builder.max_parked(1));
}

/// Catches the same of a weight, and one that is taken and not put down, or freed as another.
#[test]
fn g17_a_park_at_the_bound_of_the_weight_races_a_completion() {
    a_park_at_the_bound_races_a_completion(|builder| builder.max_weight(3));
}

fn a_park_at_the_bound_races_a_completion(bounds: Bounds) {
    bounded(move || {
        let purgatory = with_one_place(bounds);
        let first = Slow::new(2);
        let admission = purgatory.try_complete_else_watch(first.clone(), [1]);
        let handle = admission.expect("there is a place").into_handle();
        let forcer = thread::spawn(move || handle.expect("it parked").force_complete());
        first.steps.fetch_add(1, Ordering::Relaxed);
        let second = purgatory.try_complete_else_watch(Slow::new(2), [2]);
        match &second {
            Ok(_) => assert!(first.completed.load(Ordering::Relaxed)),
            Err(rejected) => assert_eq!(rejected.reason(), RejectReason::Full),
        }
        assert!(forcer.join().unwrap(), "no other thread ended it");
        let third = purgatory.try_complete_else_watch(Slow::new(2), [2]);
        assert_eq!(third.is_ok(), second.is_err(), "there is one place");
        assert_eq!(purgatory.cancel_for_key(&2).len(), 1);
        assert_empty(&purgatory);
    });
}

/// A key, of which it is known how many clones there are.
#[derive(Clone)]
struct Key(Arc<()>);

impl PartialEq for Key {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Never parked.
struct Keyed;

impl DelayedOperation for Keyed {
    type Key = Key;

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn try_complete(&mut self) -> bool {
        true
    }

    fn on_complete(self, _: Completion) {}
}

/// Catches: a deferred check that outlives the shutdown: no thread will ever make it, and its key would stay.
#[test]
fn g15_shutdown_races_check_later() {
    bounded(|| {
        let purgatory = Purgatory::<Keyed>::builder("model")
            .clock(ManualClock::new())
            .reaper(Reaper::Manual)
            .build()
            .expect("the settings are sound");
        let key = Key(Arc::new(()));
        let asker = {
            let (purgatory, key) = (purgatory.clone(), key.clone());
            thread::spawn(move || purgatory.check_later(key))
        };
        purgatory.shutdown();
        asker.join().unwrap();
        assert_eq!(Arc::strong_count(&key.0), 1, "a key is kept");
        drop(purgatory);
    });
}

/// Catches: a count that two threads make at once, and that counts as one.
#[test]
fn g16_threads_that_share_a_counter_race() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        purgatory.drain(Duration::ZERO);
        let refused = |purgatory: &Purgatory<Probe>| {
            let admission = purgatory.try_complete_else_watch(Probe::new(&Outcome::new()), [1]);
            assert!(admission.is_err());
        };
        let other = {
            let purgatory = purgatory.clone();
            thread::spawn(move || refused(&purgatory))
        };
        refused(&purgatory);
        other.join().unwrap();
        assert_eq!(purgatory.stats().rejected, 2);
    });
}

/// Catches: a place that two threads take.
#[test]
fn g17_parks_at_the_bound_race() {
    parks_at_the_bound_race(|builder| builder.max_parked(1));
}

/// Catches: a weight that is compared with the bound in one step and taken in another.
#[test]
fn g17_parks_at_the_bound_of_the_weight_race() {
    parks_at_the_bound_race(|builder| builder.max_weight(3));
}

/// Catches the same of a weight that is bounded beside the number.
#[test]
fn g17_parks_at_both_bounds_race() {
    parks_at_the_bound_race(|builder| builder.max_weight(3).max_parked(2));
}

/// Catches: an operation that is too heavy, and takes a place of the number for a moment.
#[test]
fn g17_a_park_races_one_that_is_too_heavy() {
    bounded(|| {
        let purgatory = with_one_place(|builder| builder.max_weight(3).max_parked(1));
        let heavy = {
            let purgatory = purgatory.clone();
            thread::spawn(move || purgatory.try_complete_else_watch(Slow::new(4), [1]).is_ok())
        };
        let light = purgatory.try_complete_else_watch(Slow::new(2), [1]);
        assert!(light.is_ok(), "there is a place");
        assert!(!heavy.join().unwrap(), "it is heavier than the bound");
        assert_eq!(purgatory.cancel_for_key(&1).len(), 1);
        assert_empty(&purgatory);
    });
}

fn parks_at_the_bound_race(bounds: Bounds) {
    bounded(move || {
        let purgatory = with_one_place(bounds);
        let park = |purgatory: &Purgatory<Slow>| {
            usize::from(purgatory.try_complete_else_watch(Slow::new(2), [1]).is_ok())
        };
        let other = {
            let purgatory = purgatory.clone();
            thread::spawn(move || park(&purgatory))
        };
        assert_eq!(park(&purgatory) + other.join().unwrap(), 1);
        assert_eq!(purgatory.cancel_for_key(&1).len(), 1);
        assert_empty(&purgatory);
    });
}
