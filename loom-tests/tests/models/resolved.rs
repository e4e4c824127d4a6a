//! Resolved keys and ranked watches: the one-word list, its way behind the lock and back, and the place that is given
//! to another key.

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use loom_tests::{Outcome, Probe, assert_empty, bounded, manual};
use request_purgatory::model::{By, Resolution, Watchers};
use request_purgatory::{
    CheckBound, Completion, DelayedOperation, Purgatory, ResolvedKey, Watch, threads::Reaper,
    time::ManualClock,
};
use std::sync::Arc;
use std::time::Duration;

const KEY: u64 = 7;
const OTHER: u64 = 8;

/// Parks on the resolved key 1 while another thread satisfies the operation and checks.
fn parker_races_checker(
    rank: Option<u64>,
    check: impl Fn(&Purgatory<Probe>, &ResolvedKey<Probe>) -> usize + Copy + Send + Sync + 'static,
) {
    bounded(move || {
        let purgatory = manual(&ManualClock::new());
        let key = Arc::new(purgatory.resolve(1));
        let outcome = Outcome::new();
        let checker = {
            let (purgatory, key, outcome) = (purgatory.clone(), key.clone(), outcome.clone());
            thread::spawn(move || {
                outcome.satisfy();
                check(&purgatory, &key)
            })
        };
        let watch = key.watch();
        let watch = rank.into_iter().fold(watch, Watch::at_rank);
        purgatory
            .try_complete_else_watch(Probe::new(&outcome), [watch])
            .expect("it may park");
        checker.join().unwrap();
        // A parker that was asked twice to examine again leaves that to the reaper.
        purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// Catches: a `peek_published` that is a load; one that is Acquire or Release only; a `swap` that is Release only.
#[test]
fn g01_parker_on_a_resolved_key_races_its_check() {
    parker_races_checker(None, |_, key| key.check_and_complete());
}

/// Catches: a check with a bound that only loads the list's word.
#[test]
fn g01_parker_on_a_resolved_key_races_a_bounded_check() {
    parker_races_checker(None, |_, key| {
        key.check_and_complete_with(CheckBound::at_most(1))
    });
}

/// Catches: a check by the plain key that only loads the list's word.
#[test]
fn g01_parker_on_a_resolved_key_races_a_check_of_the_plain_one() {
    parker_races_checker(None, |purgatory, _| purgatory.check_and_complete(&1));
}

/// Catches: a list that is gathered without the swap.
#[test]
fn g01_parker_at_a_rank_races_its_coming() {
    parker_races_checker(Some(5), |_, key| {
        key.check_and_complete_with(CheckBound::all().up_to(5))
    });
}

/// Catches: the same on the plain key.
#[test]
fn g01_parker_at_a_rank_races_its_coming_on_the_plain_key() {
    parker_races_checker(Some(5), |purgatory, _| {
        purgatory.check_and_complete_with(&1, CheckBound::all().up_to(5))
    });
}

/// Completes by what is under a lock of the user's.
struct UnderLock {
    event: Arc<Mutex<bool>>,
    unlocked: Arc<AtomicBool>,
    outcome: Arc<Outcome>,
}

impl DelayedOperation for UnderLock {
    type Key = u64;

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn try_complete(&mut self) -> bool {
        *self.event.lock().unwrap() || self.unlocked.load(Ordering::Relaxed)
    }

    fn on_complete(self, completion: Completion) {
        Probe::new(&self.outcome).on_complete(completion);
    }
}

/// Parks while another thread publishes the event, under the lock or not, and checks by a load.
fn parker_races_check_after_lock(under_lock: bool) {
    bounded(move || {
        let purgatory = Purgatory::<UnderLock>::builder("model")
            .clock(ManualClock::new())
            .reaper(Reaper::Manual)
            .build()
            .expect("the settings are sound");
        let key = Arc::new(purgatory.resolve(1));
        let (outcome, event) = (Outcome::new(), Arc::new(Mutex::new(false)));
        let unlocked = Arc::new(AtomicBool::new(false));
        let checker = {
            let (key, event, unlocked) = (key.clone(), event.clone(), unlocked.clone());
            thread::spawn(move || {
                if under_lock {
                    *event.lock().unwrap() = true;
                } else {
                    unlocked.store(true, Ordering::Release);
                }
                key.check_and_complete_after_lock()
            })
        };
        let op = UnderLock {
            event,
            unlocked,
            outcome: outcome.clone(),
        };
        purgatory
            .try_complete_else_watch(op, [key.watch()])
            .expect("it may park");
        checker.join().unwrap();
        purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0], "missed");
    });
}

/// Catches: a parker that examines before it watches.
#[test]
fn g01_parker_races_a_check_after_the_lock() {
    parker_races_check_after_lock(true);
}

/// Why `check_and_complete_after_lock` says what it asks of the caller: of two threads that each write one word and
/// then load the other's, both may miss the other's write.
#[test]
#[should_panic(expected = "missed")]
fn a_check_without_the_lock_may_miss_a_parker() {
    parker_races_check_after_lock(false);
}

/// The only watcher that the check finds is taken back by a second thread, and a third one parks. Catches: a check that
/// only loads the list's word to see who came after the one that it could not examine.
#[test]
fn g01_the_only_one_is_cancelled_while_another_parks() {
    bounded(|| {
        let purgatory = manual(&ManualClock::new());
        let key = Arc::new(purgatory.resolve(1));
        let park = |key: &ResolvedKey<Probe>, outcome: &Arc<Outcome>| {
            let op = Probe::new(outcome);
            let admission = purgatory.try_complete_else_watch(op, [key.watch()]);
            admission.expect("it may park").into_handle()
        };
        let first = park(&key, &Outcome::new()).expect("it parked");
        let canceller = thread::spawn(move || drop(first.cancel()));
        let outcome = Outcome::new();
        let checker = {
            let (key, outcome) = (key.clone(), outcome.clone());
            thread::spawn(move || {
                outcome.satisfy();
                key.check_and_complete();
            })
        };
        park(&key, &outcome);
        canceller.join().unwrap();
        checker.join().unwrap();
        purgatory.advance();
        assert_eq!(outcome.endings(), [1, 0, 0, 0]);
        assert_empty(&purgatory);
    });
}

/// A watcher leaves a list while another comes and a third thread checks after an event: either the checker finds the
/// adder, or the adder sees the event.
fn leaver_adder_checker(leaver_rank: Option<u64>, rank: Option<u64>) {
    bounded(move || {
        let watchers = Arc::new(Watchers::new());
        let resolution = Arc::new(watchers.resolve(KEY));
        let by = By::Number(resolution.number());
        let event = Arc::new(AtomicBool::new(false));
        watchers.add(by, leaver_rank, 0);
        let leaver = {
            let watchers = watchers.clone();
            thread::spawn(move || watchers.remove(by, leaver_rank, 0))
        };
        let adder = {
            let (watchers, event) = (watchers.clone(), event.clone());
            thread::spawn(move || {
                watchers.add(by, rank, 1);
                event.load(Ordering::Relaxed)
            })
        };
        event.store(true, Ordering::Relaxed);
        let found = resolution.on(u64::MAX).contains(&1);
        leaver.join().unwrap();
        let seen = adder.join().unwrap();
        assert!(seen || found, "the event is lost");
        assert_eq!(resolution.on(u64::MAX), [1]);
        watchers.remove(by, rank, 1);
        assert_eq!(resolution.on(u64::MAX), []);
        watchers.release(Arc::into_inner(resolution).unwrap());
        assert_eq!((watchers.keys(), watchers.keys_kept()), (0, 0));
    });
}

/// Catches: a list that goes back from the lock to the word by a store, not by a swap.
#[test]
fn g01_the_last_of_many_leaves_while_another_comes() {
    leaver_adder_checker(Some(3), None);
}

/// Catches: a list that is gathered without the swap.
#[test]
fn g01_the_only_one_leaves_while_another_comes() {
    leaver_adder_checker(None, None);
}

/// Catches: the same for one that comes with a rank.
#[test]
fn g01_the_only_one_leaves_while_another_comes_at_a_rank() {
    leaver_adder_checker(None, Some(3));
}

/// Catches: an add that overwrites another, or one that is only in the word while the list is behind the lock.
#[test]
fn g02_two_come_while_one_leaves() {
    bounded(|| {
        let watchers = Arc::new(Watchers::new());
        let resolution = watchers.resolve(KEY);
        let by = By::Number(resolution.number());
        watchers.add(by, None, 0);
        let adder = {
            let watchers = watchers.clone();
            thread::spawn(move || watchers.add(by, None, 1))
        };
        let leaver = {
            let watchers = watchers.clone();
            thread::spawn(move || watchers.remove(by, None, 0))
        };
        watchers.add(by, None, 2);
        adder.join().unwrap();
        leaver.join().unwrap();
        let mut found = resolution.on(u64::MAX);
        found.sort_unstable();
        assert_eq!(found, [1, 2]);
        watchers.remove(by, None, 1);
        assert_eq!(resolution.on(u64::MAX), [2]);
        watchers.remove(by, None, 2);
        watchers.release(resolution);
        assert_eq!((watchers.keys(), watchers.keys_kept()), (0, 0));
    });
}

/// The only watcher of a resolved key leaves while the only resolution of it is released, and `meanwhile` does what it
/// does on this thread. Returns what that returned.
fn last_of_both_leave<R>(
    watchers: &Arc<Watchers>,
    rank: Option<u64>,
    meanwhile: impl FnOnce(&Watchers) -> R,
) -> R {
    let resolution = watchers.resolve(KEY);
    let by = By::Number(resolution.number());
    watchers.add(by, rank, 0);
    let releaser = {
        let watchers = watchers.clone();
        thread::spawn(move || watchers.release(resolution))
    };
    let leaver = {
        let watchers = watchers.clone();
        thread::spawn(move || watchers.remove(by, rank, 0))
    };
    let result = meanwhile(watchers);
    releaser.join().unwrap();
    leaver.join().unwrap();
    result
}

fn assert_nothing_is_left(watchers: &Watchers) {
    assert_eq!((watchers.keys(), watchers.keys_kept()), (0, 0));
}

/// Catches: a release that leaves the word as it is; a removal that does not say that the list is orphaned; a place
/// that is retired and not used again.
#[test]
fn g06_the_last_watcher_and_the_last_resolution_leave_no_entry() {
    for rank in [None, Some(3)] {
        bounded(move || {
            let watchers = Arc::new(Watchers::new());
            last_of_both_leave(&watchers, rank, |_| ());
            assert_nothing_is_left(&watchers);
            let [one, other] = [KEY, OTHER].map(|key| {
                let resolution = watchers.resolve(key);
                let place = resolution.number();
                watchers.release(resolution);
                place
            });
            assert_eq!(one, other, "a place is not used again");
        });
    }
}

/// Catches: a release that reads who the only watcher is before it moves it, and gives up where that one has left.
#[test]
fn g02_a_place_that_both_have_left_takes_a_list_that_is_there() {
    bounded(|| {
        let watchers = Arc::new(Watchers::new());
        last_of_both_leave(&watchers, None, |_| ());
        let by = By::Key(OTHER);
        for watcher in [1, 2] {
            watchers.add(by, None, watcher);
        }
        let other = watchers.resolve(OTHER);
        assert_eq!(other.on(u64::MAX), [1, 2]);
        for watcher in [1, 2] {
            watchers.remove(by, None, watcher);
        }
        watchers.release(other);
        assert_nothing_is_left(&watchers);
    });
}

/// Catches: a place that is retired without reading its list again.
#[test]
fn g02_one_comes_by_the_plain_key_while_the_place_is_retired() {
    bounded(|| {
        let watchers = Arc::new(Watchers::new());
        last_of_both_leave(&watchers, None, |watchers| {
            watchers.add(By::Key(KEY), None, 1);
            assert!(watchers.on(KEY, u64::MAX).contains(&1));
        });
        assert_eq!(watchers.on(KEY, u64::MAX), [1]);
        watchers.remove(By::Key(KEY), None, 1);
        assert_nothing_is_left(&watchers);
    });
}

/// Catches: a place that is retired without reading again whether its key is resolved; one that is
/// released without its number.
#[test]
fn g02_the_key_is_resolved_again_while_the_place_is_retired() {
    bounded(|| {
        let watchers = Arc::new(Watchers::new());
        let again = last_of_both_leave(&watchers, None, |watchers| {
            let again = watchers.resolve(KEY);
            watchers.add(By::Number(again.number()), None, 1);
            again
        });
        let by = By::Number(again.number());
        assert_eq!(again.on(u64::MAX), [1]);
        assert_eq!(watchers.on(KEY, u64::MAX), [1]);
        watchers.remove(by, None, 1);
        assert_eq!(again.on(u64::MAX), []);
        watchers.release(again);
        assert_nothing_is_left(&watchers);
    });
}

/// Catches: a place that is given to another key while it has a watcher; one that is retired twice.
#[test]
fn g18_a_place_has_one_key_at_a_time() {
    bounded(|| {
        let watchers = Arc::new(Watchers::new());
        let other = last_of_both_leave(&watchers, None, |watchers| {
            watchers.add(By::Key(KEY), None, 1);
            watchers.remove(By::Key(KEY), None, 1);
            let other = watchers.resolve(OTHER);
            watchers.add(By::Number(other.number()), None, 2);
            other
        });
        assert_eq!(other.on(u64::MAX), [2]);
        assert_eq!(watchers.on(OTHER, u64::MAX), [2]);
        assert_eq!(watchers.on(KEY, u64::MAX), []);
        // If the place was retired once, it is given away once.
        let third = watchers.resolve(OTHER + 1);
        assert_ne!(third.number(), other.number());
        watchers.remove(By::Number(other.number()), None, 2);
        watchers.release(other);
        watchers.release(third);
        assert_nothing_is_left(&watchers);
    });
}

/// Catches: a resolution that copies the list, and loses a watcher that came or left meanwhile.
#[test]
fn g02_a_list_is_resolved_while_one_comes_and_one_leaves() {
    bounded(|| {
        let watchers = Arc::new(Watchers::new());
        watchers.add(By::Key(KEY), None, 0);
        let resolver = {
            let watchers = watchers.clone();
            thread::spawn(move || {
                let resolution: Resolution = watchers.resolve(KEY);
                let found = resolution.on(u64::MAX);
                watchers.release(resolution);
                found
            })
        };
        let leaver = {
            let watchers = watchers.clone();
            thread::spawn(move || watchers.remove(By::Key(KEY), None, 0))
        };
        watchers.add(By::Key(KEY), Some(1), 1);
        assert!(watchers.on(KEY, 1).contains(&1));
        resolver.join().unwrap();
        leaver.join().unwrap();
        assert_eq!(watchers.on(KEY, 1), [1]);
        assert_eq!(watchers.on(KEY, 0), []);
        watchers.remove(By::Key(KEY), Some(1), 1);
        assert_nothing_is_left(&watchers);
    });
}

/// Catches: a walk that begins again, or from a place, after a slice whose last watcher has left.
#[test]
fn g01_a_visit_up_to_a_rank_meets_every_watcher_that_stays() {
    bounded(|| {
        let watchers = Arc::new(Watchers::new());
        let resolution = watchers.resolve(KEY);
        let by = By::Number(resolution.number());
        for (id, rank) in [
            (0, Some(1)),
            (1, Some(1)),
            (2, Some(2)),
            (3, None),
            (4, Some(3)),
        ] {
            watchers.add(by, rank, id);
        }
        let others = {
            let watchers = watchers.clone();
            thread::spawn(move || {
                watchers.remove(by, Some(1), 0);
                watchers.add(by, Some(0), 5);
                watchers.add(by, None, 6);
            })
        };
        let found = resolution.on(2);
        let stayed = found.iter().filter(|id| (1..=3).contains(*id));
        assert_eq!(stayed.copied().collect::<Vec<_>>(), [1, 2, 3], "{found:?}");
        assert!(!found.contains(&4), "above");
        others.join().unwrap();
        for (id, rank) in [
            (1, Some(1)),
            (2, Some(2)),
            (3, None),
            (4, Some(3)),
            (5, Some(0)),
            (6, None),
        ] {
            watchers.remove(by, rank, id);
        }
        watchers.release(resolution);
        assert_nothing_is_left(&watchers);
    });
}
