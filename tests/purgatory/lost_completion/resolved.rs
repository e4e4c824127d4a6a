//! Resolved keys (G1, G2, G6, G18): they are the same keys as the plain ones, and leave nothing behind.

use crate::support::keys::{Census, Counted};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, manual, within};
use request_purgatory::{
    CheckBound, Completion, DelayedOperation, Handle, Purgatory, ResolvedKey, Watch,
    threads::Dispatch,
};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

type Place = Purgatory<Op<Counted>>;

fn park<'a>(
    purgatory: &Place,
    probe: &Arc<Probe>,
    watches: impl IntoIterator<Item = Watch<'a, Counted>>,
) -> Handle<Op<Counted>> {
    purgatory
        .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), watches)
        .expect("there is room")
        .into_handle()
        .expect("it cannot complete yet")
}

/// All ways to check a key.
fn check(purgatory: &Place, key: &ResolvedKey<Op<Counted>>, way: u64) -> usize {
    match way {
        0 => purgatory.check_and_complete(key.key()),
        1 => purgatory.check_and_complete_with(key.key(), CheckBound::all().up_to(0)),
        2 => key.check_and_complete(),
        3 => key.check_and_complete_after_lock(),
        4 => key.clone().check_and_complete(),
        _ => key.check_and_complete_with(CheckBound::all().up_to(0)),
    }
}

/// One, two and many watchers, added and checked in all ways.
#[test]
fn g01_a_resolved_key_and_the_plain_one_are_the_same() {
    let census = Census::default();
    let (purgatory, _clock) = manual::<Counted>(|builder| builder);
    for (way, watchers) in
        (0..6).flat_map(|way| [1_usize, 2, 3, 40].map(|watchers| (way, watchers)))
    {
        // Resolved before, between and after the parks.
        for resolved_after in [0, 1, watchers] {
            let mut key = None;
            let mut probes = Vec::new();
            for number in 0..watchers {
                if number == resolved_after {
                    key = Some(purgatory.resolve(census.key(1)));
                }
                let probe = Probe::new();
                let watch = match &key {
                    Some(key) if number % 2 == 0 => key.watch(),
                    _ => Watch::from(census.key(1)),
                };
                park(&purgatory, &probe, [watch]);
                probes.push(probe);
            }
            let key = key.unwrap_or_else(|| purgatory.resolve(census.key(1)));
            assert_eq!(check(&purgatory, &key, way), 0);
            assert!(probes.iter().all(|probe| probe.examinations() == 3));
            probes.iter().step_by(3).for_each(|probe| probe.satisfy());
            assert_eq!(check(&purgatory, &key, way), watchers.div_ceil(3));
            assert_eq!(purgatory.stats().parked, watchers - watchers.div_ceil(3));
            assert_eq!(purgatory.snapshot().len(), purgatory.stats().parked);
            probes.iter().for_each(|probe| probe.satisfy());
            assert_eq!(
                check(&purgatory, &key, way),
                watchers - watchers.div_ceil(3)
            );
            let satisfied = Some(Completion::Satisfied);
            assert!(probes.iter().all(|probe| probe.ending() == satisfied));
            assert_eq!(
                (purgatory.stats().watched, purgatory.watched_keys()),
                (0, 0)
            );
            drop(key);
            assert_eq!(census.count(), 0);
        }
    }
}

/// A check is of an event that has happened. What a completion parks comes later.
#[test]
fn g22_a_check_examines_nothing_that_its_completion_parks() {
    let census = Census::default();
    for way in 0..6 {
        let (purgatory, _clock) = manual::<Counted>(|builder| builder);
        let key = purgatory.resolve(census.key(1));
        let (probe, later) = (Probe::new(), Probe::new());
        let mut examinations = 0;
        let (place, again, parked) = (purgatory.downgrade(), key.clone(), later.clone());
        let op = Op::new(NEVER_IN_A_TEST)
            .when(move || {
                examinations += 1;
                examinations == 3
            })
            .then(move |_| {
                if let Some(place) = place.upgrade() {
                    park(&place, &parked, [again.watch()]);
                }
            });
        let admitted = purgatory.try_complete_else_watch(op, [key.watch()]);
        assert!(admitted.is_ok_and(|admission| admission.is_parked()));
        park(&purgatory, &probe, [Watch::from(census.key(2))]);
        assert_eq!(check(&purgatory, &key, way), 1);
        assert_eq!(
            (later.examinations(), later.ending()),
            (2, None),
            "in way {way}"
        );
    }
}

/// A key that is watched stays when its resolutions go, and one that is resolved when its watchers go.
#[test]
fn g06_a_key_is_forgotten_when_it_is_neither_resolved_nor_watched() {
    let census = Census::default();
    let (purgatory, _clock) = manual::<Counted>(|builder| builder);
    for rank in [None, Some(3)] {
        let on = |watch: Watch<'static, Counted>| rank.into_iter().fold(watch, Watch::at_rank);
        let on_resolved = |key: &ResolvedKey<_>| {
            let watch = key.watch();
            let watch = rank.into_iter().fold(watch, Watch::at_rank);
            park(&purgatory, &Probe::new(), [watch])
        };
        let on_plain = || park(&purgatory, &Probe::new(), [on(Watch::from(census.key(1)))]);

        // The resolution goes first.
        let key = purgatory.resolve(census.key(1));
        let copies = [(); 3].map(|()| key.clone());
        let (first, second) = (on_resolved(&key), on_plain());
        drop((key, copies));
        assert_eq!(
            (purgatory.stats().watched, purgatory.watched_keys()),
            (2, 1)
        );
        assert_eq!(purgatory.snapshot().len(), 2);
        let third = on_plain();
        assert!(first.cancel().is_some() && third.cancel().is_some());
        assert_eq!(purgatory.force_complete_for_key(&census.key(1)), 1);
        assert!(!second.is_parked());
        assert_eq!(census.count(), 0);

        // It is resolved again while the watchers of the first resolution are there.
        let key = purgatory.resolve(census.key(1));
        let first = on_resolved(&key);
        drop(key);
        let key = purgatory.resolve(census.key(1));
        let second = on_resolved(&key);
        assert_eq!(
            (purgatory.stats().watched, purgatory.watched_keys()),
            (2, 1)
        );
        assert!(first.cancel().is_some() && second.cancel().is_some());
        assert_eq!(
            (purgatory.stats().watched, purgatory.watched_keys()),
            (0, 0)
        );
        let third = on_plain();
        assert_eq!(purgatory.cancel_for_key(key.key()).len(), 1);
        assert!(!third.is_parked());
        drop(key);
        assert_eq!(census.count(), 0);
    }
}

/// Operations that expire together, and watch by resolutions alone that are gone: the last to leave take the keys along.
#[test]
fn g06_keys_that_were_resolved_are_forgotten_by_those_that_expire_together() {
    let census = Census::default();
    let (purgatory, clock) = manual::<Counted>(|builder| builder);
    for number in 0..6 {
        let key = purgatory.resolve(census.key(number / 2));
        let op = Op::new(Duration::from_millis(1));
        let parked = purgatory.try_complete_else_watch(op, [key.watch()]);
        assert!(parked.expect("there is room").is_parked());
    }
    assert_eq!(purgatory.watched_keys(), 3);
    clock.advance(Duration::from_millis(1));
    assert_eq!(purgatory.advance(), 6);
    assert_eq!((purgatory.stats().watched, census.count()), (0, 0));
}

/// Places go from key to key, and no watcher with them.
#[test]
fn g18_a_place_that_goes_to_another_key_takes_no_watcher_along() {
    let census = Census::default();
    let (purgatory, _clock) = manual::<Counted>(|builder| builder);
    let mut random = fastrand::Rng::with_seed(7);
    let mut kept = Vec::<(u64, ResolvedKey<_>, Vec<Arc<Probe>>)>::new();
    for number in 0..2_000 {
        let key = purgatory.resolve(census.key(number));
        assert_eq!(key.check_and_complete(), 0);
        let probes = (0..random.u64(..4)).map(|_| {
            let probe = Probe::new();
            park(&purgatory, &probe, [key.watch()]);
            probe.satisfy();
            probe
        });
        let probes = probes.collect::<Vec<_>>();
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
            assert!(probes.iter().all(|probe| probe.ending().is_some()));
        }
    }
    for (_, key, probes) in &kept {
        assert_eq!(key.check_and_complete(), probes.len());
    }
    kept.clear();
    assert_eq!(
        (purgatory.stats().watched, purgatory.watched_keys()),
        (0, 0)
    );
    assert_eq!(census.count(), 0);
}

#[test]
fn g18_a_key_that_another_purgatory_resolved_counts_as_plain() {
    let census = Census::default();
    let (purgatory, _clock) = manual::<Counted>(|builder| builder);
    let (stranger, _clock) = manual::<Counted>(|builder| builder);
    // So that the two have different places for the key.
    let first = stranger.resolve(census.key(2));
    let (own, strange) = (
        purgatory.resolve(census.key(1)),
        stranger.resolve(census.key(1)),
    );
    let probe = Probe::new();
    park(&purgatory, &probe, [strange.watch()]);
    park(
        &purgatory,
        &Probe::new(),
        [&own, &strange].map(ResolvedKey::watch),
    );
    park(
        &purgatory,
        &Probe::new(),
        [&strange, &own].map(ResolvedKey::watch),
    );
    assert_eq!(
        (purgatory.stats().watched, purgatory.watched_keys()),
        (3, 1)
    );
    assert_eq!((stranger.stats().watched, stranger.watched_keys()), (0, 0));
    probe.satisfy();
    assert_eq!(strange.check_and_complete(), 0);
    assert_eq!(own.check_and_complete(), 1);
    assert_eq!(purgatory.cancel_for_key(own.key()).len(), 2);
    drop((own, strange, first));
    assert_eq!(census.count(), 0);
}

/// Another is parked while the only one is examined: the check completes both, and hands neither over.
#[test]
fn g05_a_check_counts_those_that_come_while_it_examines() {
    let loses = Dispatch::Executor(Arc::new(std::mem::forget));
    let (purgatory, _clock) = manual::<Counted>(|builder| builder.dispatch(loses));
    let census = Census::default();
    let key = purgatory.resolve(census.key(1));
    let second = Probe::new();
    let (weak, late, watched, mut examinations) =
        (purgatory.downgrade(), second.clone(), key.clone(), 0);
    let first = Op::new(NEVER_IN_A_TEST).when(move || {
        examinations += 1;
        // The first two are those of the park.
        if examinations == 3 {
            let purgatory = weak.upgrade().expect("it is being checked");
            let park_late = || _ = park(&purgatory, &late, [watched.watch()]);
            thread::scope(|scope| _ = scope.spawn(park_late));
            late.satisfy();
        }
        examinations == 3
    });
    let parked = purgatory.try_complete_else_watch(first, [key.watch()]);
    assert!(parked.is_ok_and(|admission| admission.is_parked()));
    assert_eq!(key.check_and_complete(), 2);
    assert_eq!(second.ending(), Some(Completion::Satisfied));
    assert_eq!(purgatory.stats().completions_pending, 0);
}

/// This one may have the place of the other, by which handles find it.
#[test]
fn g18_a_key_that_a_purgatory_resolved_which_is_gone_counts_as_plain() {
    let census = Census::default();
    for _ in 0..50 {
        let (gone, _clock) = manual::<Counted>(|builder| builder);
        let strange = [2, 1].map(|key| gone.resolve(census.key(key)));
        drop(gone);
        let (purgatory, _clock) = manual::<Counted>(|builder| builder);
        let own = [8, 9].map(|key| purgatory.resolve(census.key(key)));
        let probe = Probe::new();
        park(&purgatory, &probe, [strange[1].watch()]);
        probe.satisfy();
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
    let probe = Probe::new();
    park(&purgatory, &probe, [key.watch()]);
    purgatory.shutdown();
    assert_eq!(probe.ending(), Some(Completion::ShutDown));
    probe.satisfy();
    assert!((0..6).all(|way| check(&purgatory, &key, way) == 0));
    let refused = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [key.watch()]);
    assert!(refused.is_err());
    let late = purgatory.resolve(census.key(2));
    drop(purgatory);
    for key in [&key, &late] {
        assert_eq!(key.clone().check_and_complete(), 0);
        assert_eq!(
            key.check_and_complete_with(CheckBound::all().up_to(u64::MAX)),
            0
        );
        assert_eq!(key.check_and_complete_after_lock(), 0);
    }
    drop((key, late));
    assert_eq!(census.count(), 0);
}

/// An operation that keeps the key it waits for, resolved.
struct Keeper {
    key: Mutex<ResolvedKey<Keeper>>,
    #[expect(dead_code, reason = "it is there to be counted")]
    load: Arc<()>,
}

impl DelayedOperation for Keeper {
    type Key = u64;

    fn timeout(&self) -> Duration {
        NEVER_IN_A_TEST
    }

    fn try_complete(&mut self) -> bool {
        // It may check from here as well.
        self.key
            .get_mut()
            .expect("no test panics")
            .check_and_complete();
        false
    }

    fn on_complete(self, _: Completion) {}
}

#[test]
fn g06_operations_that_keep_resolved_keys_are_no_cycle() {
    within(PATIENCE, || {
        for shut_down in [false, true] {
            let purgatory = Purgatory::<Keeper>::new("g06-cycle");
            let load = Arc::new(());
            for number in 0..10 {
                let key = purgatory.resolve(number % 3);
                let keeper = Keeper {
                    key: Mutex::new(key.clone()),
                    load: load.clone(),
                };
                purgatory
                    .try_complete_else_watch(keeper, [key.watch()])
                    .expect("there is room");
            }
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

/// The last of everything leaves from many threads at once.
#[test]
fn g06_resolutions_and_watchers_come_and_go_on_many_threads() {
    const THREADS: u64 = 4;
    within(PATIENCE, || {
        let census = Arc::new(Census::default());
        let (purgatory, _clock) = manual::<Counted>(|builder| builder);
        for round in 0..20 {
            let workers = (0..THREADS).map(|thread| {
                let (purgatory, census) = (purgatory.clone(), census.clone());
                thread::spawn(move || {
                    let mut random = fastrand::Rng::with_seed(1 + thread + THREADS * round);
                    for _ in 0..2_000 {
                        let number = random.u64(..2);
                        let key = purgatory.resolve(census.key(number));
                        let probe = Probe::new();
                        let watch = match random.u64(..3) {
                            0 => key.watch(),
                            1 => key.watch().at_rank(random.u64(..3)),
                            _ => Watch::from(census.key(number)),
                        };
                        let handle = park(&purgatory, &probe, [watch]);
                        let key = Some(key).filter(|_| random.bool());
                        probe.satisfy();
                        // The thread that examines it completes it, which may be another one.
                        match (random.u64(..3), &key) {
                            (0, _) => drop(handle.cancel()),
                            (_, Some(key)) => {
                                key.check_and_complete();
                            }
                            (_, None) => {
                                purgatory.check_and_complete(&census.key(number));
                            }
                        }
                    }
                })
            });
            for worker in workers.collect::<Vec<_>>() {
                worker.join().expect("no call panics");
            }
            purgatory.advance();
            assert_eq!(
                (purgatory.stats().parked, purgatory.stats().watched),
                (0, 0)
            );
            assert_eq!((purgatory.watched_keys(), census.count()), (0, 0));
        }
    });
}

/// An operation resolves the key while a check walks over its list, which moves: the walk goes on there.
#[test]
fn g01_a_check_goes_on_where_the_list_has_moved() {
    for bound in [CheckBound::all(), CheckBound::at_most(200)] {
        let purgatory = manual(|builder| builder).0;
        let (resolver, mut examinations) = (purgatory.clone(), 0);
        let mut resolved = Vec::new();
        let first = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            if examinations == 3 {
                resolved.push(resolver.resolve(7));
            }
            false
        });
        let probes = [(); 100].map(|()| Probe::new());
        let others = probes.iter().map(|probe| probe.op(NEVER_IN_A_TEST));
        for op in std::iter::once(first).chain(others) {
            assert!(purgatory.try_complete_else_watch(op, [7]).is_ok());
        }
        probes.iter().for_each(|probe| probe.satisfy());
        assert_eq!(purgatory.check_and_complete_with(&7, bound), 100);
        // (The operation has its key, which has its purgatory.)
        purgatory.shutdown();
    }
}
