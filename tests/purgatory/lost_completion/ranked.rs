//! Ranked watches (G1, G2, G6): a check up to a rank examines those up to it, in its order, and all without one.

use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, lock, manual, within};
use request_purgatory::{CheckBound, Completion, Handle, Purgatory, Watch};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const KEY: u64 = 1;

/// Which operations were examined, in order, but for the two examinations of the park.
type Looks = Arc<Mutex<Vec<u64>>>;

fn park(
    purgatory: &Purgatory<Op>,
    examinations: &Looks,
    number: u64,
    watches: impl IntoIterator<Item = Watch<'static, u64>>,
) -> Handle<Op> {
    let examinations = examinations.clone();
    let mut first = 2;
    let op = Op::new(NEVER_IN_A_TEST).when(move || {
        if first == 0 {
            lock(&examinations).push(number);
        } else {
            first -= 1;
        }
        false
    });
    purgatory
        .try_complete_else_watch(op, watches)
        .expect("there is room")
        .into_handle()
        .expect("it cannot complete yet")
}

fn at(rank: u64) -> [Watch<'static, u64>; 1] {
    [Watch::from(KEY).at_rank(rank)]
}

fn examined(examinations: &Looks) -> Vec<u64> {
    std::mem::take(&mut *lock(examinations))
}

/// Ways to check [`KEY`] up to a rank.
type Check = fn(&Purgatory<Op>, u64);

const CHECKS: [Check; 2] = [
    |purgatory, rank| {
        assert_eq!(
            purgatory.check_and_complete_with(&KEY, CheckBound::all().up_to(rank)),
            0
        )
    },
    |purgatory, rank| {
        assert_eq!(
            purgatory
                .resolve(KEY)
                .check_and_complete_with(CheckBound::all().up_to(rank)),
            0
        )
    },
];

#[test]
fn g01_a_check_up_to_a_rank_meets_those_up_to_it_in_order_and_all_without_one() {
    for check in CHECKS {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let examinations = Looks::default();
        // The number of each is its rank times ten, and a digit in the order of parking.
        let ranks = [5, 0, 9, 3, u64::MAX / 10, 3];
        for (place, rank) in ranks.into_iter().enumerate() {
            park(
                &purgatory,
                &examinations,
                rank * 10 + place as u64,
                at(rank),
            );
        }
        let unranked = park(&purgatory, &examinations, 7, [Watch::from(KEY)]);
        for (up_to, expected) in [
            (0, vec![1, 7]),
            (2, vec![1, 7]),
            (3, vec![1, 33, 35, 7]),
            (4, vec![1, 33, 35, 7]),
            (5, vec![1, 33, 35, 50, 7]),
            (9, vec![1, 33, 35, 50, 92, 7]),
        ] {
            check(&purgatory, up_to);
            assert_eq!(examined(&examinations), expected, "up to {up_to}");
        }
        purgatory.check_and_complete(&KEY);
        assert_eq!(examined(&examinations).len(), 7, "a full check meets all");
        purgatory.resolve(KEY).check_and_complete();
        assert_eq!(examined(&examinations).len(), 7);
        assert!(unranked.cancel().is_some());
        check(&purgatory, 3);
        assert_eq!(examined(&examinations), [1, 33, 35]);
        assert_eq!(purgatory.cancel_for_key(&KEY).len(), 6);
        assert_eq!(
            (purgatory.stats().watched, purgatory.watched_keys()),
            (0, 0)
        );
    }
}

#[test]
fn g01_the_first_and_the_last_rank_are_ranks_like_others() {
    for check in CHECKS {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let examinations = Looks::default();
        park(&purgatory, &examinations, 1, at(u64::MAX));
        check(&purgatory, u64::MAX - 1);
        assert!(examined(&examinations).is_empty());
        check(&purgatory, u64::MAX);
        assert_eq!(examined(&examinations), [1]);
        park(&purgatory, &examinations, 0, at(0));
        check(&purgatory, 0);
        assert_eq!(examined(&examinations), [0]);
        check(&purgatory, u64::MAX);
        assert_eq!(examined(&examinations), [0, 1]);
        assert_eq!(purgatory.force_complete_for_key(&KEY), 2);
        assert_eq!(
            (purgatory.stats().watched, purgatory.watched_keys()),
            (0, 0)
        );
    }
}

#[test]
fn g05_completions_come_in_the_order_of_ranks() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let order = Arc::new(Mutex::new(Vec::new()));
    let probes = (0..200_u64).map(|number| {
        // Every rank below 200 once, in disorder; each tenth without a rank.
        let rank = number * 77 % 200;
        let (probe, ended) = (Probe::new(), order.clone());
        let (examining, ending) = (probe.clone(), probe.clone());
        let op = Op::new(NEVER_IN_A_TEST)
            .when(move || examining.examine(|| examining.is_ready()))
            .then(move |completion| {
                ending.end(completion);
                lock(&ended).push(rank);
            });
        let watch = Watch::from(KEY);
        let watch = match rank % 10 {
            0 => watch,
            _ => watch.at_rank(rank),
        };
        purgatory
            .try_complete_else_watch(op, [watch])
            .expect("there is room");
        probe
    });
    let probes = probes.collect::<Vec<_>>();
    probes.iter().for_each(|probe| probe.satisfy());
    assert_eq!(
        purgatory.check_and_complete_with(&KEY, CheckBound::all().up_to(99)),
        90 + 20
    );
    let order = lock(&order).clone();
    let ranks = (0..100).filter(|rank| rank % 10 > 0);
    assert_eq!(order[..90], ranks.collect::<Vec<u64>>());
    assert!(order[90..].iter().all(|rank| rank % 10 == 0));
    assert_eq!(purgatory.stats().parked, 90);
    assert_eq!(purgatory.force_complete_for_key(&KEY), 90);
    for probe in &probes {
        assert_eq!(probe.ending(), Some(Completion::Satisfied));
    }
    assert_eq!(
        (purgatory.stats().watched, purgatory.watched_keys()),
        (0, 0)
    );
}

/// Ranks as priorities: equal ones in the order of parking, and those without a rank last.
#[test]
fn g22_checks_for_one_complete_the_lowest_rank_first() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let order = Arc::new(Mutex::new(Vec::new()));
    let parked = [
        (0, None),
        (1, Some(9)),
        (2, Some(1)),
        (3, Some(5)),
        (4, Some(1)),
    ];
    let ready = Arc::new(Mutex::new(false));
    for (number, rank) in parked {
        let (is_ready, ended) = (ready.clone(), order.clone());
        let op = Op::new(NEVER_IN_A_TEST)
            .when(move || *lock(&is_ready))
            .then(move |_| lock(&ended).push(number));
        let watch = Watch::from(KEY);
        let watch = rank.map_or_else(|| Watch::from(KEY), |rank| watch.at_rank(rank));
        let admission = purgatory.try_complete_else_watch(op, [watch]);
        assert!(admission.is_ok_and(|admission| admission.is_parked()));
    }
    *lock(&ready) = true;
    for _ in parked {
        let completed = purgatory.check_and_complete_with(&KEY, CheckBound::at_most(1));
        assert_eq!(completed, 1);
    }
    assert_eq!(*lock(&order), [2, 4, 3, 1, 0]);
}

/// Cost in what is examined, not in what waits above.
#[test]
fn g01_those_above_are_not_examined() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let examinations = Looks::default();
    for number in 0..10_000 {
        park(&purgatory, &examinations, number, at(1_000 + number % 50));
    }
    let key = purgatory.resolve(KEY);
    for number in 0..10 {
        park(&purgatory, &examinations, number, at(number));
    }
    key.check_and_complete_with(CheckBound::all().up_to(999));
    assert_eq!(examined(&examinations), (0..10).collect::<Vec<_>>());
    purgatory.check_and_complete_with(&KEY, CheckBound::all().up_to(999));
    assert_eq!(examined(&examinations), (0..10).collect::<Vec<_>>());
    assert_eq!(purgatory.check_and_complete(&KEY), 0);
    assert_eq!(examined(&examinations).len(), 10_010);
}

#[test]
fn g01_a_check_below_takes_no_longer_with_many_above() {
    let time = |above: u64| {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        for number in 0..above {
            let op = Op::new(NEVER_IN_A_TEST);
            let parked = purgatory.try_complete_else_watch(op, at(10 + number));
            assert!(parked.is_ok());
        }
        let key = purgatory.resolve(KEY);
        let once = || {
            let start = Instant::now();
            for _ in 0..2_000 {
                key.check_and_complete_with(CheckBound::all().up_to(9));
            }
            start.elapsed()
        };
        (0..5).map(|_| once()).min().expect("it was measured")
    };
    let (few, many) = (time(10), time(100_000));
    // A visit of all would take a thousand times as long, and more.
    assert!(many < few * 50, "{many:?} with many, {few:?} with few");
}

/// A key given many times is watched once: where it is looked at earliest.
#[test]
fn g16_a_key_given_at_several_ranks_counts_once() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let (key, other) = (purgatory.resolve(KEY), purgatory.resolve(2));
    let (stranger, _clock) = manual::<u64>(|builder| builder);
    let strange = stranger.resolve(KEY);
    let resolved = [&key, &strange];
    for mask in 1_u32..1 << 9 {
        let mut lowest = Some(u64::MAX);
        let mut watches = Vec::new();
        // One way plainly and two resolved, each without a rank and at two.
        for bit in (0..9).filter(|bit| mask >> bit & 1 == 1) {
            let (way, rank) = (bit / 3, [None, Some(4), Some(2)][bit % 3]);
            let watch = match way {
                0 => Watch::from(KEY),
                _ => resolved[way - 1].watch(),
            };
            let watch = rank.into_iter().fold(watch, Watch::at_rank);
            lowest = lowest.min(rank);
            watches.push(watch);
            // Enough keys that duplicates are found by hashing.
            if mask % 3 == 0 {
                watches.extend((10..30).map(|key| Watch::from(key).at_rank(key)));
            }
        }
        watches.push(other.watch());
        let more = if mask % 3 == 0 { 20 } else { 0 };
        let probe = Probe::new();
        let handle = purgatory
            .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), watches)
            .expect("there is room")
            .into_handle()
            .expect("it cannot complete yet");
        assert_eq!(purgatory.stats().watched, 2 + more);
        assert_eq!(purgatory.watched_keys(), 2 + more);
        assert_eq!(purgatory.snapshot()[0].keys.len(), 2 + more);
        let examinations = |up_to| {
            let before = probe.examinations();
            purgatory.check_and_complete_with(&KEY, CheckBound::all().up_to(up_to));
            key.check_and_complete_with(CheckBound::all().up_to(up_to));
            probe.examinations() - before
        };
        match lowest {
            None => assert_eq!(examinations(0), 2, "{mask:b}"),
            Some(rank) => assert_eq!(
                (examinations(rank - 1), examinations(rank)),
                (0, 2),
                "{mask:b}"
            ),
        }
        assert!(handle.cancel().is_some());
        assert_eq!(
            (purgatory.stats().watched, purgatory.watched_keys()),
            (0, 0)
        );
    }
    assert_eq!((stranger.stats().watched, stranger.watched_keys()), (0, 0));
}

/// Operations that come while a check runs, at higher and higher ranks or at the highest that is checked, do not hold
/// it up for ever.
#[test]
fn g01_a_check_ends_though_each_examination_parks_another() {
    const ENOUGH: u64 = 10_000;

    fn park_next(purgatory: &Purgatory<Op>, (rank, step): (u64, u64), left: u64) {
        let weak = purgatory.downgrade();
        let mut examinations = 0;
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            if examinations == 3 && left > 0 {
                let purgatory = weak.upgrade().expect("a thread checks it");
                park_next(&purgatory, (rank + step, step), left - 1);
            }
            false
        });
        purgatory
            .try_complete_else_watch(op, at(rank))
            .expect("there is room");
    }

    for check in CHECKS {
        for (step, up_to) in [(1, u64::MAX), (0, u64::MAX), (0, 10)] {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            // One that is not met does not move the end of the visit.
            purgatory
                .try_complete_else_watch(Op::new(NEVER_IN_A_TEST), at(1_000_000))
                .expect("there is room");
            park_next(&purgatory, (10, step), ENOUGH);
            for parked in 3..6 {
                check(&purgatory, up_to);
                assert_eq!(
                    purgatory.stats().parked,
                    parked,
                    "step {step} up to {up_to}"
                );
            }
        }
    }
}

/// As many as a walk copies at a time park directly behind the operation that it has come to, each time: it passes by
/// them, and meets what was there before.
#[test]
fn g01_a_check_ends_though_many_park_where_it_goes_on() {
    const SLICE: u64 = 64;

    for check in CHECKS {
        within(PATIENCE, move || {
            let (purgatory, _clock) = manual::<u64>(|builder| builder);
            let examinations = Looks::default();
            (1..SLICE).for_each(|number| _ = park(&purgatory, &examinations, number, at(1)));
            let (weak, mut looks) = (purgatory.downgrade(), 0);
            let last_of_the_slice = Op::new(NEVER_IN_A_TEST).when(move || {
                looks += 1;
                if looks == 3 {
                    let purgatory = weak.upgrade().expect("a thread checks it");
                    let newcomers = Looks::default();
                    for _ in 0..2 * SLICE {
                        park(&purgatory, &newcomers, 0, at(3));
                    }
                }
                false
            });
            let parked = purgatory.try_complete_else_watch(last_of_the_slice, at(2));
            assert!(parked.is_ok());
            park(&purgatory, &examinations, SLICE, at(4));
            check(&purgatory, 9);
            let expected = (1..=SLICE).collect::<Vec<_>>();
            assert_eq!(examined(&examinations), expected);
            assert_eq!(purgatory.stats().checks, SLICE + 1);
        });
    }
}

/// More than a slice lies between, so that the list is looked at again when the newcomer is there.
#[test]
fn g01_a_watcher_that_comes_during_a_visit_is_left_for_the_next_one() {
    for check in CHECKS {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let newcomer = Probe::new();
        let (weak, probe) = (purgatory.downgrade(), newcomer.clone());
        let mut examinations = 0;
        let first = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            if examinations == 3 {
                let purgatory = weak.upgrade().expect("a thread checks it");
                purgatory
                    .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), at(6))
                    .expect("there is room");
            }
            false
        });
        let others = (0..200).map(|_| (Op::new(NEVER_IN_A_TEST), 5));
        let last = (Op::new(NEVER_IN_A_TEST), 1_000);
        for (op, rank) in [(first, 0)].into_iter().chain(others).chain([last]) {
            purgatory
                .try_complete_else_watch(op, at(rank))
                .expect("there is room");
        }
        check(&purgatory, u64::MAX);
        assert_eq!(newcomer.examinations(), 2, "by its own park");
        check(&purgatory, u64::MAX);
        assert_eq!(newcomer.examinations(), 3);
    }
}
