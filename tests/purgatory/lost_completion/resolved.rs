//! Resolved keys (G1, G2, G6, G18): they leave nothing behind. (That they are the same keys as the plain ones is
//! compared in `tests/model`.)

use super::steps::{
    FIRST_CHECK, SATISFIED, assert_empty, elsewhere, on_threads, park, park_hook, park_probe,
    ranked, up_to, watches,
};
use crate::support::keys::{Census, Counted};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, manual, within};
use request_purgatory::{CheckBound, Completion, Purgatory, ResolvedKey, Watch, threads::Dispatch};
use std::sync::Arc;
use std::time::Duration;

/// A key that is watched stays when its resolutions go, and one that is resolved when its watchers go.
#[test]
fn g06_a_key_neither_resolved_nor_watched_is_forgotten() {
    const TIMEOUT: Duration = Duration::from_millis(1);
    let census = Census::default();
    let (purgatory, clock) = manual::<Counted>(|builder| builder);
    for rank in [None, Some(3)] {
        let parked = |watch: Watch<'_, _>| park_probe(&purgatory, [ranked(watch, rank)]).1;
        let plain = || Watch::from(census.key(1));

        // The resolution goes first.
        let key = purgatory.resolve(census.key(1));
        let copies = [(); 3].map(|()| key.clone());
        let (first, second) = (parked(key.watch()), parked(plain()));
        drop((key, copies));
        assert_eq!(watches(&purgatory), (2, 1));
        let third = parked(plain());
        assert!(first.cancel().is_some() && third.cancel().is_some());
        assert_eq!(purgatory.force_complete_for_key(&census.key(1)), 1);
        assert!(!second.is_parked());
        assert_eq!(census.count(), 0);

        // It is resolved again while the watchers of the first resolution are there.
        let key = purgatory.resolve(census.key(1));
        let first = parked(key.watch());
        drop(key);
        let key = purgatory.resolve(census.key(1));
        let second = parked(key.watch());
        assert_eq!(watches(&purgatory), (2, 1));
        assert!(first.cancel().is_some() && second.cancel().is_some());
        assert_eq!(watches(&purgatory), (0, 0));
        let third = parked(plain());
        assert_eq!(purgatory.cancel_for_key(key.key()).len(), 1);
        assert!(!third.is_parked());
        drop(key);
        assert_eq!(census.count(), 0);

        // Its watchers expire together, by whose resolutions alone it is watched.
        for number in 0..6 {
            let key = purgatory.resolve(census.key(number / 2));
            park(&purgatory, Op::new(TIMEOUT), [ranked(key.watch(), rank)]);
        }
        assert_eq!(purgatory.watched_keys(), 3);
        clock.advance(TIMEOUT);
        assert_eq!(purgatory.advance(), 6);
        assert_eq!((purgatory.stats().watched, census.count()), (0, 0));
    }
}

#[test]
fn g18_a_place_reused_for_another_key_takes_no_watcher_along() {
    let census = Census::default();
    let (purgatory, _clock) = manual::<Counted>(|builder| builder);
    let mut random = fastrand::Rng::with_seed(7);
    let mut kept = Vec::<(u64, ResolvedKey<Op<Counted>>, Vec<Arc<Probe>>)>::new();
    for number in 0..2_000 {
        let key = purgatory.resolve(census.key(number));
        assert_eq!(key.check_and_complete(), 0);
        let probes = (0..random.u64(..4)).map(|_| park_probe(&purgatory, [key.watch()]).0);
        let probes = probes.collect::<Vec<_>>();
        probes.iter().for_each(|probe| probe.satisfy());
        kept.push((number, key, probes));
        if random.u64(..10) < 9 {
            let place = random.usize(..kept.len());
            let (number, key, probes) = kept.swap_remove(place);
            let found = match random.u64(..3) {
                0 => key.check_and_complete(),
                1 => purgatory.check_and_complete(key.key()),
                _ => {
                    drop(key);
                    purgatory.check_and_complete(&census.key(number))
                }
            };
            assert_eq!(found, probes.len(), "key {number}");
            assert!(probes.iter().all(|probe| probe.ending() == SATISFIED));
        }
    }
    for (_, key, probes) in &kept {
        assert_eq!(key.check_and_complete(), probes.len());
    }
    kept.clear();
    assert_empty(&purgatory);
    assert_eq!(census.count(), 0);
}

/// Another is parked while the only one is examined: the check completes both, and hands neither over.
#[test]
fn g05_a_check_counts_those_that_come_while_it_examines() {
    let loses = Dispatch::Executor(Arc::new(std::mem::forget));
    let (purgatory, _clock) = manual::<Counted>(|builder| builder.dispatch(loses));
    let key = purgatory.resolve(Census::default().key(1));
    let watched = key.clone();
    park_hook(&purgatory, [key.watch()], move |all, nth| {
        if nth == FIRST_CHECK {
            let (second, _) = elsewhere(|| park_probe(all, [watched.watch()]));
            second.satisfy();
        }
        nth == FIRST_CHECK
    });
    assert_eq!(key.check_and_complete(), 2);
    assert_eq!(purgatory.stats().completions_pending, 0);
}

/// The next purgatory may have the place of the one that is gone, by which handles find it.
#[test]
fn g18_a_key_resolved_by_a_gone_purgatory_counts_as_plain() {
    let census = Census::default();
    for _ in 0..50 {
        let (gone, _clock) = manual::<Counted>(|builder| builder);
        let strange = [2, 1].map(|key| gone.resolve(census.key(key)));
        drop(gone);
        let (purgatory, _clock) = manual::<Counted>(|builder| builder);
        let own = [8, 9].map(|key| purgatory.resolve(census.key(key)));
        park_probe(&purgatory, [strange[1].watch()]).0.satisfy();
        assert!(own.iter().all(|key| key.check_and_complete() == 0));
        assert_eq!(purgatory.check_and_complete(&census.key(1)), 1);
    }
}

/// It finds no operation then, and can still be cloned, dropped and named.
#[test]
fn g18_a_resolved_key_outlives_its_purgatory() {
    let census = Census::default();
    let (purgatory, _clock) = manual::<Counted>(|builder| builder);
    let key = purgatory.resolve(census.key(1));
    let (probe, _) = park_probe(&purgatory, [key.watch()]);
    purgatory.shutdown();
    assert_eq!(probe.ending(), Some(Completion::ShutDown));
    probe.satisfy();
    assert_eq!(purgatory.check_and_complete(key.key()), 0);
    let refused = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [key.watch()]);
    assert!(refused.is_err());
    let late = purgatory.resolve(census.key(2));
    let assert_idle = || {
        for key in [&key, &late] {
            assert_eq!(key.clone().check_and_complete(), 0);
            assert_eq!(key.check_and_complete_with(up_to(0)), 0);
            assert_eq!(key.check_and_complete_after_lock(), 0);
        }
    };
    assert_idle();
    drop(purgatory);
    assert_idle();
    drop((key, late));
    assert_eq!(census.count(), 0);
}

/// Operations that keep the keys for which they wait, resolved, and check them from inside.
#[test]
fn g06_operations_that_keep_resolved_keys_are_no_cycle() {
    within(PATIENCE, || {
        for shut_down in [false, true] {
            let purgatory = Purgatory::<Op>::new("g06-cycle");
            let load = Arc::new(());
            for number in 0..10 {
                let key = purgatory.resolve(number % 3);
                let kept = (key.clone(), load.clone());
                let op = Op::new(NEVER_IN_A_TEST).when(move || {
                    let (key, _load) = &kept;
                    key.check_and_complete() > 0
                });
                park(&purgatory, op, [key.watch()]);
            }
            assert_eq!(Arc::strong_count(&load), 11);
            let outside = purgatory.resolve(1);
            assert_eq!(outside.check_and_complete(), 0);
            if shut_down {
                purgatory.shutdown();
            }
            drop(purgatory);
            assert_eq!(Arc::strong_count(&load), 1, "all ended with it");
            assert_eq!(outside.check_and_complete(), 0);
        }
    });
}

#[test]
fn g06_resolutions_and_watchers_come_and_go_on_many_threads() {
    const THREADS: u64 = 4;
    within(PATIENCE, || {
        let census = Census::default();
        let (purgatory, _clock) = manual::<Counted>(|builder| builder);
        for round in 0..20 {
            on_threads(THREADS, |thread| {
                let mut random = fastrand::Rng::with_seed(1 + thread + THREADS * round);
                for _ in 0..2_000 {
                    let number = random.u64(..2);
                    let key = purgatory.resolve(census.key(number));
                    let watch = match random.u64(..3) {
                        0 => key.watch(),
                        1 => key.watch().at_rank(random.u64(..3)),
                        _ => Watch::from(census.key(number)),
                    };
                    let (probe, handle) = park_probe(&purgatory, [watch]);
                    let key = Some(key).filter(|_| random.bool());
                    probe.satisfy();
                    // The thread that examines it completes it, which may be another one.
                    match (random.u64(..3), &key) {
                        (0, _) => drop(handle.cancel()),
                        (_, Some(key)) => _ = key.check_and_complete(),
                        (_, None) => _ = purgatory.check_and_complete(&census.key(number)),
                    }
                }
            });
            purgatory.advance();
            assert_empty(&purgatory);
            assert_eq!(census.count(), 0);
        }
    });
}

/// An operation resolves the key while a check walks over its list, which moves: the walk goes on there.
#[test]
fn g01_a_check_goes_on_where_the_list_has_moved() {
    for bound in [CheckBound::all(), CheckBound::at_most(200)] {
        let (purgatory, _clock) = manual(|builder| builder);
        let mut resolved = Vec::new();
        park_hook(&purgatory, [7], move |all, nth| {
            if nth == FIRST_CHECK {
                resolved.push(all.resolve(7));
            }
            false
        });
        for _ in 0..100 {
            park_probe(&purgatory, [7]).0.satisfy();
        }
        assert_eq!(purgatory.check_and_complete_with(&7, bound), 100);
        // (The operation has its key, which has its purgatory.)
        purgatory.shutdown();
    }
}
