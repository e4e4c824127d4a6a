//! Ranked watches (G1, G2, G6): a check up to a rank examines those up to it, in its order, and all without one.

use super::steps::{
    FIRST_CHECK, assert_empty, hooked_op, park, park_hook, park_probe, ranked, taken, up_to,
    watches,
};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, lock, manual, within};
use request_purgatory::{CheckBound, Handle, Purgatory, Watch};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const KEY: u64 = 1;

/// Which operations were examined, in order, but for the two examinations of the park.
type Looks = Arc<Mutex<Vec<u64>>>;

fn park_at(purgatory: &Purgatory<Op>, looks: &Looks, number: u64, rank: Option<u64>) -> Handle<Op> {
    let looks = looks.clone();
    park_hook(purgatory, [ranked(KEY.into(), rank)], move |_, nth| {
        if nth >= FIRST_CHECK {
            lock(&looks).push(number);
        }
        false
    })
}

fn at(rank: u64) -> [Watch<'static, u64>; 1] {
    [Watch::from(KEY).at_rank(rank)]
}

/// Ways to check [`KEY`] up to a rank.
type Check = fn(&Purgatory<Op>, CheckBound) -> usize;

const CHECKS: [(&str, Check); 2] = [
    ("plain", |all, bound| {
        all.check_and_complete_with(&KEY, bound)
    }),
    ("resolved", |all, bound| {
        all.resolve(KEY).check_and_complete_with(bound)
    }),
];

/// And all without a rank. One more operation is parked each time, in no order, at the first and the last rank as well:
/// until they fill several chunks, and no walk copies all at a time.
#[test]
fn g01_a_check_up_to_a_rank_meets_those_below_in_order() {
    const LAST: u64 = u64::MAX;
    // The fourth of eight has none.
    const RANKS: [u64; 8] = [LAST, 5, 0, 0, 9, 3, LAST - 1, 3];
    for (name, check) in CHECKS {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        // The second half is parked while the key stays resolved.
        let mut kept = None;
        let (looks, mut in_order, mut unranked) = (Looks::default(), Vec::new(), Vec::new());
        for (number, rank) in (0..160).zip(RANKS.into_iter().cycle()) {
            let rank = Some(rank).filter(|_| number % 8 != 3);
            let handle = park_at(&purgatory, &looks, number, rank);
            unranked.extend(Some(handle).filter(|_| rank.is_none()));
            in_order.push((rank.is_none(), rank, number));
            in_order.sort_unstable();
            for bound in [0, 2, 3, 4, 5, 9, LAST - 2, LAST - 1, LAST] {
                assert_eq!(check(&purgatory, up_to(bound)), 0);
                let met = in_order.iter().filter(|(_, rank, _)| *rank <= Some(bound));
                let expected = met.map(|(.., number)| *number).collect::<Vec<_>>();
                assert_eq!(taken(&looks), expected, "{name}, up to {bound}");
            }
            purgatory.check_and_complete(&KEY);
            purgatory.resolve(KEY).check_and_complete();
            assert_eq!(taken(&looks).len(), 2 * in_order.len(), "all, each time");
            if number == 80 {
                kept = Some(purgatory.resolve(KEY));
            }
        }
        assert!(unranked.iter().all(|handle| handle.cancel().is_some()));
        assert_eq!(check(&purgatory, up_to(0)), 0);
        assert!(taken(&looks).into_iter().eq((2..160).step_by(8)));
        assert_eq!(purgatory.cancel_for_key(&KEY).len(), 140);
        drop(kept);
        assert_empty(&purgatory);
    }
}

/// Ranks as priorities, of all at once and of one at a time: equal ones in the order of parking, and those without a
/// rank last. (There is more than one chunk of them.)
#[test]
fn g05_g22_completions_come_in_the_order_of_ranks() {
    // Up to which rank a check meets operations; how many checks there are, and how many they complete.
    let rows = [
        (up_to(49), 49, 1, 110),
        (CheckBound::all(), 99, 1, 200),
        (CheckBound::at_most(7), 99, 10, 70),
        (CheckBound::at_most(1), 99, 200, 200),
    ];
    for (bound, highest, checks, count) in rows {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut expected = Vec::new();
        for number in 0..200_u64 {
            // Every rank below 100 twice, in disorder; each tenth operation has none.
            let rank = Some(number * 77 % 100).filter(|_| number % 10 > 0);
            let ended = order.clone();
            let op = hooked_op(&purgatory, NEVER_IN_A_TEST, |_, nth| nth >= FIRST_CHECK);
            let op = op.then(move |_| lock(&ended).push(number));
            park(&purgatory, op, [ranked(KEY.into(), rank)]);
            expected.push((rank.is_none(), rank, number));
        }
        expected.retain(|(_, rank, _)| *rank <= Some(highest));
        expected.sort_unstable();
        let completed = (0..checks).map(|_| purgatory.check_and_complete_with(&KEY, bound));
        assert_eq!(completed.sum::<usize>(), count, "{bound:?}");
        let expected = expected.iter().map(|(.., number)| number).take(count);
        assert!(lock(&order).iter().eq(expected), "{bound:?}");
        assert_eq!(purgatory.force_complete_for_key(&KEY), 200 - count);
        assert_eq!(lock(&order).len(), 200);
        assert_empty(&purgatory);
    }
}

/// Cost in what is examined, not in what waits above.
#[test]
fn g01_a_check_below_takes_no_longer_with_many_above() {
    let time = |above: u64| {
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        for number in 0..above {
            park(&purgatory, Op::new(NEVER_IN_A_TEST), at(10 + number));
        }
        let key = purgatory.resolve(KEY);
        let once = || {
            let start = Instant::now();
            for _ in 0..2_000 {
                key.check_and_complete_with(up_to(9));
            }
            start.elapsed()
        };
        (0..5).map(|_| once()).min().expect("it was measured")
    };
    let (few, many) = (time(10), time(100_000));
    // A visit of all would take a thousand times as long, and more.
    assert!(many < few * 50, "{many:?} with many, {few:?} with few");
}

/// A key given many times is watched once: where it is looked at earliest. If another purgatory has resolved it, it
/// counts as plain.
#[test]
fn g16_g18_a_key_given_in_several_ways_and_ranks_counts_once() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let (stranger, _clock) = manual::<u64>(|builder| builder);
    let [other, key] = [2, KEY].map(|key| purgatory.resolve(key));
    // So that the two have different places for the key.
    let [strange, _] = [KEY, 2].map(|key| stranger.resolve(key));
    for mask in 1_u32..1 << 9 {
        // Enough keys in between that duplicates are found by hashing, or none.
        let more = if mask % 3 == 0 { 20 } else { 0 };
        let (mut lowest, mut given) = (Some(u64::MAX), Vec::new());
        // Plainly, resolved, and resolved by another purgatory: each without a rank and at two.
        for bit in (0..9).filter(|bit| mask >> bit & 1 == 1) {
            let rank = [None, Some(4), Some(2)][bit % 3];
            let watch = match bit / 3 {
                0 => Watch::from(KEY),
                1 => key.watch(),
                _ => strange.watch(),
            };
            given.push(ranked(watch, rank));
            given.extend((10..10 + more).map(|key| Watch::from(key).at_rank(key)));
            lowest = lowest.min(rank);
        }
        given.push(other.watch());
        let (probe, handle) = park_probe(&purgatory, given);
        let keys = 2 + more as usize;
        assert_eq!(watches(&purgatory), (keys, keys));
        assert_eq!(purgatory.snapshot()[0].keys.len(), keys);
        let examinations = |rank| {
            let before = probe.examinations();
            purgatory.check_and_complete_with(&KEY, up_to(rank));
            key.check_and_complete_with(up_to(rank));
            probe.examinations() - before
        };
        let below = lowest.map_or(0, |rank| examinations(rank - 1));
        let there = examinations(lowest.unwrap_or(0));
        assert_eq!((below, there), (0, 2), "{mask:b}");
        strange.check_and_complete();
        assert_eq!(probe.examinations(), 4, "by a stranger's key");
        assert!(handle.cancel().is_some());
        assert_empty(&purgatory);
    }
    assert_empty(&stranger);
}

/// Parks an operation whose number is that of the watchers before it. In its first check it parks `count` others, `step`
/// ranks behind it: the first of them is like itself, the others park none.
fn park_growing(all: &Purgatory<Op>, looks: &Looks, rank: u64, step: u64, count: u64) {
    const ENOUGH: u64 = 10_000;
    let (looks, number) = (looks.clone(), all.watchers(&KEY) as u64);
    park_hook(all, at(rank), move |all, nth| {
        if nth >= FIRST_CHECK {
            lock(&looks).push(number);
        }
        if nth == FIRST_CHECK && number < ENOUGH {
            for nth in 0..count {
                let count = if nth == 0 { count } else { 0 };
                park_growing(all, &looks, rank + step, step, count);
            }
        }
        false
    });
}

/// Those that come while a check runs, at higher and higher ranks or at the highest that is checked, do not hold it up
/// for ever: they are left for the next check, which meets them. So it is where as many as a walk copies at a time park
/// behind the last of such a slice, and where the list is looked at again when they are there.
#[test]
fn g01_a_check_meets_once_each_that_was_there_before() {
    /// How many wait at which ranks; the rank of the one behind which others come, how far behind, and how many; and up
    /// to which rank the check goes.
    type Row = (&'static str, &'static [(u64, u64)], (u64, u64, u64), u64);
    const ROWS: [Row; 5] = [
        ("at higher and higher ranks", &[], (10, 1, 1), u64::MAX),
        ("at the same rank", &[], (10, 0, 1), u64::MAX),
        ("at the bound", &[], (10, 0, 1), 10),
        ("behind a slice", &[(63, 1), (1, 4)], (2, 1, 128), 9),
        ("behind several slices", &[(200, 5)], (0, 6, 1), u64::MAX),
    ];
    for (name, check) in CHECKS {
        for (case, others, (rank, step, count), bound) in ROWS {
            within(PATIENCE, move || {
                let (purgatory, _clock) = manual::<u64>(|builder| builder);
                let looks = Looks::default();
                // The first, if it is not met, does not move the end of the visit.
                park(&purgatory, Op::new(NEVER_IN_A_TEST), at(1_000_000));
                for (many, rank) in others {
                    (0..*many).for_each(|_| park_growing(&purgatory, &looks, *rank, 0, 0));
                }
                park_growing(&purgatory, &looks, rank, step, count);
                for _ in 0..3 {
                    let there = purgatory.watchers(&KEY) as u64;
                    assert_eq!(check(&purgatory, up_to(bound)), 0);
                    let mut looks = taken(&looks);
                    looks.sort_unstable();
                    assert!(looks.into_iter().eq(1..there), "{name}, {case}");
                }
            });
        }
    }
}
