//! G31: closures and destructors of the user's may call everything, since none runs under a lock of the library. A call
//! from `Eq` or `Clone`, which do, is noticed in a debug build.

use crate::support::keys::by_number;
use crate::support::{PATIENCE, lock, quietly, within};
use crate::{Place, found, manual_requests, manual_tracker};
use request_purgatory_tracker::{Requests, Tracker};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);
const KEYS: u32 = 8;

/// Every method, on this key and on others of the same map.
fn call_all_of(tracker: &Tracker<u32, u32>, key: u32) {
    for key in [key, (key + 1) % KEYS, 100 + key] {
        let token = tracker.token(&key);
        let _ = (tracker.get(&key), tracker.contains(&key));
        let _ = (tracker.remaining(&key), tracker.keys());
        let _ = tracker.reschedule(&key, Duration::MAX);
        if let Some(token) = token {
            let _ = tracker.reschedule_if(&key, token, Duration::MAX);
            let _ = tracker.replace_if(&key, token, 7, Duration::MAX);
            let _ = tracker.complete_if(&key, token);
        }
        let _ = tracker.try_track(key, 8, TICK);
        let _ = tracker.track(key, 9, Duration::MAX);
        let _ = tracker.withdraw_where(|other, _| *other == key);
        let _ = tracker.track(key, 10, Duration::MAX);
        let _ = tracker.complete(&key);
        let _ = tracker.track(key, 11, Duration::MAX);
    }
    let _ = (tracker.stats(), tracker.len(), tracker.is_empty());
    let _ = (tracker.next_deadline(), tracker.advance());
    let _ = (tracker.downgrade().upgrade(), tracker.is_shut_down());
}

fn call_all_of_requests(calls: &Requests<u32, u32>, id: u32) {
    for id in [id, (id + 1) % KEYS, 100 + id] {
        let _ = calls.reschedule(&id, Duration::MAX);
        let _ = calls.respond(&id, 7);
        let request = calls.request(id, Duration::MAX);
        let _ = calls.fail_where(|other| *other == id, |_| 8);
        drop(request);
        let _ = calls.respond(&id, 7);
    }
    let _ = (calls.stats(), calls.late(), calls.unknown());
    let _ = (calls.next_deadline(), calls.advance());
}

#[test]
fn g31_what_picks_values_may_call_everything() {
    within(PATIENCE, || {
        let (tracker, _) = manual_tracker::<u32, u32>(|builder| builder, |_, _, _| ());
        for key in 0..KEYS {
            tracker.track(key, 1, Duration::MAX).expect("room");
        }
        let mut asked = 0;
        let withdrawn = tracker.withdraw_where(|key, value| {
            asked += 1;
            assert_eq!(*value, 1, "as it was when the call began");
            call_all_of(&tracker, *key);
            true
        });
        assert_eq!((asked, withdrawn), (KEYS, vec![]), "each has been replaced");
        // One that shuts the tracker down is legal too.
        tracker.track(1, 1, Duration::MAX).expect("room");
        let withdrawn = tracker.withdraw_where(|_, _| {
            tracker.shutdown();
            true
        });
        assert!(withdrawn.is_empty());
    });
}

#[test]
fn g31_what_fails_requests_may_call_everything() {
    within(PATIENCE, || {
        let (calls, _) = manual_requests::<u32, u32>(|builder| builder);
        let request = |id| calls.request(id, Duration::MAX).expect("room");
        let pending = (0..KEYS).map(request).collect::<Vec<_>>();
        let mut asked = (0, 0);
        let is_wanted = |id: &u32| {
            asked.0 += 1;
            call_all_of_requests(&calls, *id);
            true
        };
        let response = |id: &u32| {
            asked.1 += 1;
            call_all_of_requests(&calls, *id);
            9
        };
        assert_eq!(calls.fail_where(is_wanted, response), 0);
        assert_eq!(asked, (KEYS, KEYS));
        drop(pending);
    });
}

/// What would be a deadlock, now or on a bad day, is a panic in a debug build.
#[test]
#[cfg(debug_assertions)]
fn g31_a_call_from_a_comparison_is_noticed_in_a_debug_build() {
    use std::hash::{Hash, Hasher};

    #[derive(Clone)]
    struct Calls(u32, Place<Calls, ()>);

    impl PartialEq for Calls {
        fn eq(&self, other: &Self) -> bool {
            if let Some(tracker) = found(&self.1) {
                tracker.len(); // takes no lock
                tracker.contains(self);
            }
            self.0 == other.0
        }
    }

    impl Eq for Calls {}

    impl Hash for Calls {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    quietly();
    within(PATIENCE, || {
        let (tracker, _) = manual_tracker(|builder| builder, |_, _, _| ());
        let place = Place::default();
        let key = Calls(1, place.clone());
        tracker.track(key.clone(), (), TICK).expect("room");
        place.set(tracker.downgrade()).expect("set once");
        let called = catch_unwind(AssertUnwindSafe(|| tracker.contains(&key)));
        let message = called.expect_err("it is noticed");
        let message = message.downcast_ref::<&str>().expect("a text");
        assert!(message.contains("called from `Eq` or `Clone`"), "{message}");
        // The lock is free again.
        drop(tracker.keys());
    });
}

/// The key has been cloned when the clone of its value panics: what unwinds drops the copy of the key.
#[test]
fn g31_a_copied_key_is_dropped_under_no_lock_when_the_clone_of_its_value_panics() {
    /// Its destructor calls the tracker, and notes whether that went well.
    #[derive(Clone)]
    struct Calls(u32, Place<Calls, Panics>, Arc<Mutex<Vec<bool>>>);

    by_number!(Calls);

    impl Drop for Calls {
        fn drop(&mut self) {
            if let Some(tracker) = found(&self.1) {
                let call = AssertUnwindSafe(|| tracker.contains(self));
                lock(&self.2).push(catch_unwind(call).is_ok());
            }
        }
    }

    struct Panics;

    impl Clone for Panics {
        fn clone(&self) -> Self {
            resume_unwind(Box::new("intended"))
        }
    }

    quietly();
    within(PATIENCE, || {
        let (tracker, _) = manual_tracker(|builder| builder, |_, _, _| ());
        let (place, calls) = (Place::default(), Arc::default());
        let key = Calls(1, place.clone(), Arc::clone(&calls));
        assert!(tracker.track(key, Panics, Duration::MAX).is_ok());
        place.set(tracker.downgrade()).expect("set once");
        let withdraws = AssertUnwindSafe(|| tracker.withdraw_where(|_, _| true).len());
        assert!(catch_unwind(withdraws).is_err());
        assert_eq!(*lock(&calls), [true]);
        assert_eq!(tracker.len(), 1);
    });
}
