//! G17: the bounds of the number, of the weight and of the watchers of a key.

use super::weights::{Building, Heavy, heavy};
use crate::chains::scene::{endings, park};
use crate::support::{Job, Mint, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally};
use crate::support::{eventually, manual, refusal, within};
use request_purgatory::{Completion, Handle, Purgatory, Watch};
use request_purgatory::{purgatory::RejectReason, threads::Dispatch};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The table of bounds: how it is set, how many operations of weight 9 on key 1 reach it, and how more are refused.
const BOUNDS: [(&str, fn(Building) -> Building, usize, RejectReason); 5] = [
    ("one", |it| it.max_parked(1), 1, RejectReason::Full),
    ("two", |it| it.max_parked(2), 2, RejectReason::Full),
    ("many", |it| it.max_parked(100), 100, RejectReason::Full),
    ("weight", |it| it.max_weight(19), 2, RejectReason::Full),
    (
        "key",
        |it| it.max_watchers_per_key(2),
        2,
        RejectReason::KeyFull,
    ),
];

/// It frees what was taken, once: the weight that the operation had when it parked.
#[test]
fn g17_full_means_full_and_each_ending_makes_room_for_one() {
    for (bound, configure, max, reason) in BOUNDS {
        for (ending, completion, end) in endings::<Heavy>() {
            let case = format!("{bound}, {ending}");
            let (purgatory, _clock) = heavy(configure);
            let op = || Heavy::new(9, &Probe::new());
            for _ in 1..max {
                park(&purgatory, op(), [1]);
            }
            let taken = || (purgatory.stats().parked, purgatory.stats().weight);
            let before = taken();
            let (probe, refused) = (Probe::new(), Probe::new());
            let handle = park(&purgatory, Heavy::new(9, &probe), [1, 2]);
            let result = purgatory.try_complete_else_watch(Heavy::new(9, &refused), [1]);
            let (why, again) = result.expect_err(&case).into_parts();
            assert_eq!(why, reason, "{case}");
            // Refused is not touched: it can be tried again.
            assert_eq!((refused.examinations(), refused.ending()), (1, None));
            assert_eq!(purgatory.stats().parked, max, "{case}");
            assert!(end(&purgatory, &handle, &probe), "{case}");
            if completion == Completion::ShutDown {
                assert_eq!(taken(), (0, 0), "{case}");
                continue;
            }
            assert_eq!(taken(), before, "{case}");
            park(&purgatory, again, [1]);
            let result = purgatory.try_complete_else_watch(op(), [1]);
            assert_eq!(refusal(&result), Some(reason), "{case}: only one has ended");
        }
    }
}

/// By plain keys, resolved ones and at ranks; with a place freed by a check and an expiry.
#[test]
fn g17_the_watchers_of_a_key_are_bounded_exactly() {
    for max in [0, 1, 2, 3, 7, 300] {
        (0..6).for_each(|way| assert_that_watchers_are_bounded(max, way));
    }
}

fn assert_that_watchers_are_bounded(max: usize, way: u64) {
    const TICK: Duration = Duration::from_millis(1);
    let case = format!("{max} watchers, way {way}");
    let (purgatory, clock) = manual::<u64>(|builder| builder.max_watchers_per_key(max));
    let resolved = purgatory.resolve(2);
    let (key, parks) = (1 + way % 2, Cell::new(0_u64));
    let other = || 9 + parks.get();
    let park = |probe: &Arc<Probe>| {
        parks.set(parks.get() + 1);
        let is_odd = parks.get() % 2 == 1;
        // A key that is resolved is still named by itself as well.
        let watch = match key == 2 && is_odd {
            true => resolved.watch(),
            false => Watch::from(key),
        };
        // Without a rank, at one, or in turn.
        let watch = match way / 2 {
            0 => watch,
            2 if !is_odd => watch,
            _ => watch.at_rank(5),
        };
        // The other key comes first, and must be left again where the operation is refused.
        let watches = [Watch::from(other()), watch];
        purgatory.try_complete_else_watch(probe.op(TICK), watches)
    };
    let probes = (0..=max).map(|_| Probe::new()).collect::<Vec<_>>();
    for probe in &probes[..max] {
        assert!(park(probe).expect(&case).is_parked());
    }
    let last = &probes[max];
    assert_eq!(refusal(&park(last)), Some(RejectReason::KeyFull), "{case}");
    // Only on arrival, and no more when a key is full: what it would take then is lost with the refusal.
    assert_eq!((last.ending(), last.examinations()), (None, 1), "{case}");
    let stats = purgatory.stats();
    assert_eq!((stats.parked, stats.watched), (max, 2 * max), "{case}");
    let watchers = (purgatory.watchers(&key), purgatory.watchers(&other()));
    assert_eq!(watchers, (max, 0), "{case}");
    if max > 0 {
        // A place that is free is taken once.
        probes[0].satisfy();
        assert_eq!(purgatory.check_and_complete(&key), 1, "{case}");
        assert!(park(&Probe::new()).is_ok(), "{case}");
        assert!(park(&Probe::new()).is_err(), "{case}");
    }
    clock.advance(TICK);
    assert_eq!(purgatory.advance(), max, "{case}");
    let left = (purgatory.watchers(&key), purgatory.stats().watched);
    assert_eq!(left, (0, 0), "{case}");
    // A refused operation counts as cancelled.
    let (stats, refused) = (purgatory.stats(), if max == 0 { 1 } else { 2 });
    let counts = (stats.rejected, stats.cancelled, stats.aborted);
    assert_eq!(counts, (refused, refused, 0), "{case}");
}

/// Operations that have expired, and whose completions wait for a slow thread or executor, are alive as well.
#[test]
fn g17_the_bound_counts_what_waits_for_its_completion() {
    const MAX: u64 = 50;
    within(PATIENCE, || {
        let slow = Arc::new(|job: Job| drop(thread::spawn(job)));
        for dispatch in [Dispatch::OwnThread, Dispatch::Executor(slow)] {
            let builder = Purgatory::<Op>::builder("g17-slow").dispatch(dispatch);
            let purgatory = builder.max_parked(MAX as usize).build();
            let purgatory = purgatory.expect("threads are to be had");
            let (mint, ended) = (Mint::default(), Tally::new());
            let (mut most, mut admitted) = (0, 0);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(500) {
                let (token, ended) = (mint.token(0), ended.clone());
                let op = Op::new(Duration::from_millis(1)).then(move |_| {
                    thread::sleep(Duration::from_millis(1));
                    drop(token);
                    ended.add();
                });
                let parked = purgatory.try_complete_else_watch(op, [admitted]);
                admitted += u64::from(parked.is_ok());
                drop(parked);
                most = most.max(mint.living());
            }
            assert!((MAX / 2..=MAX).contains(&most), "{most} alive at once");
            eventually("the end of all", || ended.count() == admitted);
            assert!(admitted > MAX, "the places never came back");
            eventually("all places", || {
                let parked = (0..=MAX).filter(|key| {
                    let op = Op::new(NEVER_IN_A_TEST);
                    purgatory.try_complete_else_watch(op, [*key]).is_ok()
                });
                let parked = parked.count() as u64;
                (0..MAX).for_each(|key| drop(purgatory.cancel_for_key(&key)));
                parked == MAX
            });
        }
    });
}

/// Threads park and end operations, perhaps of all weights, and meet at the bound.
#[test]
fn g17_a_bound_holds_among_many_threads() {
    let weights = &[0, 7, 14, 21, 5, 12, 19, 3, 10, 17];
    // Whether some are forced: the place at the key is free before the completion of such a one has run.
    let bounds: [(fn(Building) -> Building, usize, &[usize], bool); 4] = [
        (|it| it.max_parked(5), 5, &[1], true),
        (|it| it.max_watchers_per_key(5), 5, &[1], false),
        (|it| it.max_weight(50), 50, weights, true),
        (|it| it.max_weight(50).max_parked(8), 50, weights, true),
    ];
    for (configure, max, weights, some_are_forced) in bounds {
        within(PATIENCE, move || {
            let (purgatory, _clock) = heavy(configure);
            let (parked, refused) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
            let park = |weight| {
                let sum = parked.clone();
                let op = Heavy::new(weight, &Probe::new()).then(move || {
                    sum.fetch_sub(weight, Ordering::SeqCst);
                });
                purgatory.try_complete_else_watch(op, [7, 8])
            };
            let end = |(number, (weight, handle)): (usize, (usize, Handle<Heavy>))| {
                if some_are_forced && number % 2 == 0 {
                    assert!(handle.force_complete());
                } else {
                    parked.fetch_sub(weight, Ordering::SeqCst);
                    assert!(handle.cancel().is_some());
                }
            };
            let work = |thread: usize| {
                let mut held = Vec::new();
                for round in 0..6_000 {
                    let weight = weights[(round + thread) % weights.len()];
                    match park(weight) {
                        Ok(admission) => {
                            let sum = parked.fetch_add(weight, Ordering::SeqCst) + weight;
                            assert!(sum <= max, "{sum}");
                            held.push((weight, admission.into_handle().expect("it waits")));
                        }
                        Err(full) => {
                            let full = full.reason();
                            assert!(matches!(full, RejectReason::Full | RejectReason::KeyFull));
                            refused.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    assert!(purgatory.stats().weight <= max as u64);
                    if round % 3 == 2 {
                        thread::yield_now();
                        held.drain(..).enumerate().for_each(end);
                    }
                }
            };
            thread::scope(|scope| {
                let work = &work;
                (0..6).for_each(|thread| _ = scope.spawn(move || work(thread)));
            });
            let stats = purgatory.stats();
            assert_eq!((stats.parked, stats.watched, stats.weight), (0, 0, 0));
            assert_eq!(parked.load(Ordering::SeqCst), 0);
            let refused = refused.load(Ordering::SeqCst) as u64;
            assert!(refused > 0 && stats.rejected == refused, "{stats:?}");
            assert_eq!(stats.completed > 0, some_are_forced);
            let fit = (0..10).filter(|_| park(max / 5).is_ok()).count();
            assert_eq!(fit, 5);
        });
    }
}
