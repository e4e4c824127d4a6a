//! G1, G2 by keys of several parts: every call by key finds the same lists by borrowed parts as by the key itself.

use super::steps::park_probe;
use crate::support::{Op, manual};
use request_purgatory::purgatory::{Equivalent, RandomState};
use request_purgatory::{CheckBound, Purgatory, threads::Reaper};
use request_purgatory_tracker::Tracker;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::time::Duration;

type Key = (String, u32);

/// A key by borrowed parts, as users write it.
#[derive(Hash)]
struct Parts<'a, T>(&'a str, T);

impl<T: PartialEq> Equivalent<(String, T)> for Parts<'_, T> {
    fn equivalent(&self, key: &(String, T)) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

#[test]
fn g01_every_call_by_key_takes_borrowed_parts() {
    type Call = fn(&Purgatory<Op<Key>>, &Parts<'_, u32>) -> usize;
    const CALLS: [(&str, Call); 5] = [
        ("check", |all, key| all.check_and_complete(key)),
        ("check up to a rank", |all, key| {
            all.check_and_complete_with(key, CheckBound::all().up_to(7))
        }),
        ("check for one", |all, key| {
            all.check_and_complete_with(key, CheckBound::at_most(1))
        }),
        ("force", |all, key| all.force_complete_for_key(key)),
        ("cancel", |all, key| all.cancel_for_key(key).len()),
    ];
    let (purgatory, _clock) = manual::<Key>(|builder| builder);
    let park = |topic: &str, number| park_probe(&purgatory, [(topic.to_owned(), number)]).0;
    let here = Parts("a", 1);
    let others = [park("a", 2), park("b", 1), park("", 1)];
    for (name, call) in CALLS {
        park("a", 1).satisfy();
        assert_eq!(purgatory.check_and_complete(&Parts("c", 1)), 0);
        assert_eq!(purgatory.watchers(&here), 1, "{name}");
        assert_eq!(call(&purgatory, &here), 1, "{name}");
        assert_eq!(purgatory.watchers(&here), 0, "{name}");
    }
    for probe in others {
        assert_eq!((probe.examinations(), probe.ending()), (2, None));
    }
    assert_eq!(purgatory.watched_keys(), 3);
}

#[test]
fn g01_a_tracker_takes_borrowed_parts() {
    let tracker = Tracker::<(String, (u32, bool)), u8>::builder("parts").reaper(Reaper::Manual);
    let tracker = tracker.build(|_, _, _| {}).expect("no threads to refuse");
    let tracked = tracker.track(("a".to_owned(), (1, true)), 7, Duration::MAX);
    let token = tracked.expect("room").0;
    let (here, there) = (Parts("a", (1, true)), Parts("a", (1, false)));
    assert_eq!((tracker.get(&here), tracker.get(&there)), (Some(7), None));
    assert_eq!(tracker.token(&here), Some(token));
    assert!(tracker.contains(&here));
    assert!(tracker.reschedule(&here, Duration::MAX));
    assert!(tracker.reschedule_if(&here, token, Duration::MAX));
    assert!(!tracker.reschedule(&there, Duration::MAX));
    assert_eq!(tracker.complete_if(&there, token), None);
    assert_eq!(tracker.complete(&here), Some(7));
}

/// Keys that were found to collide in one purgatory do not in another.
#[test]
fn every_hasher_has_a_seed_of_its_own() {
    let hashes = (0..100).map(|_| RandomState::default().hash_one(1));
    assert_eq!(hashes.collect::<HashSet<_>>().len(), 100);
}
