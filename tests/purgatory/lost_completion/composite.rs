//! G1, G2 by keys of several parts: every call by key finds the same lists by borrowed parts as by the key itself.

use crate::support::{NEVER_IN_A_TEST, Op, Probe, manual};
use proptest::prelude::*;
use request_purgatory::purgatory::{Equivalent, KeyHasher, RandomState};
use request_purgatory::{CheckBound, Purgatory, threads::Reaper};
use request_purgatory_tracker::Tracker;
use std::collections::HashSet;
use std::time::Duration;

type Key = (String, u32);

/// A key by borrowed parts, as users write it.
#[derive(Hash)]
struct Parts<'a, T: Copy>(&'a str, T);

impl Equivalent<Key> for Parts<'_, u32> {
    fn equivalent(&self, key: &Key) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

impl Equivalent<(String, (u32, bool))> for Parts<'_, (u32, bool)> {
    fn equivalent(&self, key: &(String, (u32, bool))) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

fn key(topic: &str, number: u32) -> Key {
    (topic.to_owned(), number)
}

#[test]
fn g01_every_call_by_key_takes_borrowed_parts() {
    let (purgatory, _clock) = manual::<Key>(|builder| builder);
    let park = |topic: &str, number| {
        let probe = Probe::new();
        let parked =
            purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [key(topic, number)]);
        assert!(parked.expect("room").is_parked());
        probe
    };
    let here = Parts("a", 1);
    let others = [park("a", 2), park("b", 1), park("", 1)];
    let first = park("a", 1);
    first.satisfy();
    assert_eq!(purgatory.check_and_complete(&Parts("c", 1)), 0);
    assert_eq!(purgatory.check_and_complete(&here), 1);
    for (number, act) in [
        (|purgatory: &Purgatory<Op<Key>>, key| {
            purgatory.check_and_complete_with(key, CheckBound::all().up_to(7))
        }) as fn(&Purgatory<Op<Key>>, &Parts<'_, u32>) -> usize,
        |purgatory, key| purgatory.check_and_complete_with(key, CheckBound::at_most(1)),
        |purgatory, key| purgatory.force_complete_for_key(key),
        |purgatory, key| purgatory.cancel_for_key(key).len(),
    ]
    .into_iter()
    .enumerate()
    {
        let probe = park("a", 1);
        probe.satisfy();
        assert_eq!(purgatory.watchers(&here), 1, "{number}");
        assert_eq!(act(&purgatory, &here), 1, "{number}");
        assert_eq!(purgatory.watchers(&here), 0, "{number}");
    }
    assert!(
        others
            .iter()
            .all(|probe| probe.examinations() == 2 && probe.ending().is_none())
    );
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
    assert!(tracker.contains(&here) && tracker.reschedule(&here, Duration::MAX));
    assert!(
        tracker.reschedule_if(&here, token, Duration::MAX)
            && !tracker.reschedule(&there, Duration::MAX)
    );
    assert_eq!(tracker.complete_if(&there, token), None);
    assert_eq!(tracker.complete(&here), Some(7));
}

proptest! {
    /// The two rules that the map relies on.
    #[test]
    fn g02_parts_hash_and_compare_as_the_key_does(
        one in ("[ab]{0,3}", 0..3_u32),
        other in ("[ab]{0,3}", 0..3_u32),
    ) {
        let parts = Parts(one.0.as_str(), one.1);
        prop_assert_eq!(parts.equivalent(&other), one == other);
        let hasher = RandomState::default();
        prop_assert_eq!(hash(&hasher, &parts), hash(&hasher, &one));
    }
}

/// Keys that were found to collide in one purgatory do not in another.
#[test]
fn every_hasher_has_a_seed_of_its_own() {
    let hashes = (0..100).map(|_| hash(&RandomState::default(), &1));
    assert_eq!(hashes.collect::<HashSet<_>>().len(), 100);
}

fn hash(hasher: &impl KeyHasher, value: &impl std::hash::Hash) -> u64 {
    hasher.hash_one(value)
}
