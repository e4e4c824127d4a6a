//! A value that is ending, step by step: what other threads find meanwhile.

use super::*;
use crate::cell::slab::Held;
use crate::cell::state::Mark;
use crate::error::RejectReason;
use crate::reaper::Reaper;
use crate::timer::inner::ValueStore;
use std::iter;

const KEY: u32 = 7;

fn tracker() -> Tracker<u32, u32> {
    let builder = Tracker::builder("model").reaper(Reaper::Manual);
    let tracker = builder.build(|_, _, _| ()).expect("no thread to refuse");
    let tracked = tracker.track(KEY, 1, Duration::MAX);
    assert!(tracked.is_ok_and(|(_, replaced)| replaced.is_none()));
    tracker
}

/// A thread takes hold of the value, to end it.
fn claim(tracker: &Tracker<u32, u32>) -> Held<'_, u64> {
    let entry = tracker.values().find(&KEY).expect("it is tracked");
    let engine = &tracker.shared.inner.engine;
    engine
        .claim_or_mark(entry.address, Mark::Expire)
        .expect("no other thread holds it")
}

/// That thread ends it; `meanwhile`, its entry is still in the map.
fn end(tracker: &Tracker<u32, u32>, held: Held<'_, u64>, meanwhile: impl FnOnce()) -> u32 {
    let inner = &tracker.shared.inner;
    let (hash, slot) = held.end();
    meanwhile();
    let (key, value, _) = inner.store.take_value(slot.address(), hash);
    assert_eq!(key, KEY);
    inner.engine.count_ended(Ending::Expired, 1);
    inner.engine.free_counted(iter::once((slot.detach(), 0)));
    value
}

#[test]
fn g05_a_value_that_has_ended_is_not_found() {
    let tracker = tracker();
    let held = claim(&tracker);
    let ended = end(&tracker, held, || {
        assert_eq!((tracker.get(&KEY), tracker.contains(&KEY)), (None, false));
        assert_eq!((tracker.token(&KEY), tracker.keys()), (None, vec![]));
        assert!(!tracker.reschedule(&KEY, Duration::ZERO));
        assert!(tracker.try_track(KEY, 2, Duration::MAX).is_ok());
        assert_eq!((tracker.get(&KEY), tracker.keys()), (Some(2), vec![KEY]));
    });
    assert_eq!(ended, 1);
    assert_eq!(tracker.shutdown(), [(KEY, 2)]);
}

/// The timer of a value has fired, and no thread has taken hold of the value yet: it cannot be replaced any more.
#[test]
fn g18_a_value_that_is_not_replaced_keeps_its_token() {
    let tracker = tracker();
    let entry = tracker.values().find(&KEY).expect("it is tracked");
    let engine = &tracker.shared.inner.engine;
    assert!(tracker.reschedule(&KEY, Duration::ZERO));
    let shard = engine.shard(entry.address.shard());
    let (now, mut fired) = (engine.now() + 1, Vec::new());
    shard.begin_pass(now);
    while fired.is_empty() {
        shard.fire(now, &mut fired);
    }
    assert!(!tracker.reschedule(&KEY, Duration::MAX), "nor renewed");
    let rejected = tracker.replace_if(KEY, entry.token, 2, Duration::MAX);
    let rejected = rejected.map(drop).expect_err("it has fired").into_parts();
    assert_eq!(rejected, (RejectReason::StaleToken, 2));
    assert_eq!(tracker.token(&KEY), Some(entry.token));
    let held = claim(&tracker);
    assert_eq!(end(&tracker, held, || ()), 1);
}

/// It has been picked, and is replaced before it is withdrawn. The caller was not asked about the other one.
#[test]
fn g05_a_value_that_replaces_a_picked_one_is_not_withdrawn() {
    for in_place in [false, true] {
        let tracker = tracker();
        let picked = tracker.values().ids_where(|_, value| *value == 1);
        let entry = *picked.first().expect("it is tracked");
        assert!(match in_place {
            true => tracker
                .replace_if(KEY, entry.token, 2, Duration::MAX)
                .is_ok(),
            false => tracker.track(KEY, 2, Duration::MAX).is_ok(),
        });
        assert_eq!(tracker.values().withdraw(entry), None);
        assert_eq!(tracker.shutdown(), [(KEY, 2)]);
    }
}

#[test]
fn g05_a_value_supersedes_one_that_is_ending() {
    let tracker = tracker();
    let held = claim(&tracker);
    let tracked = tracker.track(KEY, 2, Duration::MAX);
    assert!(tracked.is_ok_and(|(_, replaced)| replaced.is_none()));
    let is_found = || assert_eq!((tracker.get(&KEY), tracker.keys()), (Some(2), vec![KEY]));
    is_found();
    assert_eq!(end(&tracker, held, is_found), 1);
    is_found();
    assert_eq!(tracker.complete(&KEY), Some(2));
    assert!(tracker.keys().is_empty());
}
