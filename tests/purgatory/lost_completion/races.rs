//! G1, G2: an event, its check and a watch meet a park, an examination or an ending on another thread.

use super::steps::{SATISFIED, assert_empty, on_threads, park, park_probe};
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, within};
use request_purgatory::Purgatory;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

/// An operation that `probe` watches. It dwells between what it saw and what it says: the moment in which an event is
/// lost, if any is.
fn dwelling_op(probe: &Arc<Probe>, examine: impl Fn(&Probe) -> bool + Send + 'static) -> Op {
    let (examining, ending) = (probe.clone(), probe.clone());
    let op = Op::new(NEVER_IN_A_TEST).when(move || examining.examine(|| examine(&examining)));
    op.then(move |completion| ending.end(completion))
}

#[test]
fn g01_an_event_during_the_park_is_not_lost() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g01-park");
        let together = Barrier::new(2);
        let (probes, events) = mpsc::channel::<(u64, Arc<Probe>)>();
        thread::scope(|scope| {
            let (purgatory, together) = (&purgatory, &together);
            scope.spawn(move || {
                for (key, probe) in events {
                    together.wait();
                    (0..key % 64 * 16).for_each(|_| std::hint::spin_loop());
                    probe.satisfy();
                    purgatory.check_and_complete(&key);
                    together.wait();
                }
            });
            // It is dropped before the scope waits for the checker.
            let probes = probes;
            for key in 0..2_000 {
                let probe = Probe::new();
                let op = dwelling_op(&probe, |probe| {
                    let ready = probe.is_ready();
                    thread::sleep(Duration::from_micros(20));
                    ready
                });
                probes.send((key, probe.clone())).expect("it checks");
                together.wait();
                let parked = purgatory.try_complete_else_watch(op, [key, key + 1_000_000]);
                assert!(parked.is_ok());
                together.wait();
                assert_eq!(probe.ending(), SATISFIED, "round {key}");
            }
        });
        assert_empty(&purgatory);
    });
}

/// Kafka's randomised form: the thread that brings an operation's last event checks a key, many threads do, and none is
/// lost.
#[test]
fn g01_many_threads_bring_events_to_many_operations() {
    const OPERATIONS: usize = 5_000;
    const THREADS: usize = 8;
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g01-many");
        let keys = |number: usize| [number as u64 / 4, 1_000_000 + number as u64 / 3];
        // Every operation needs an event of each thread.
        let events = (0..OPERATIONS).map(|_| AtomicUsize::new(0));
        let events = Arc::new(events.collect::<Vec<_>>());
        let probes = (0..OPERATIONS).map(|number| {
            let (probe, events) = (Probe::new(), events.clone());
            let op = dwelling_op(&probe, move |_| {
                let ready = events[number].load(Ordering::SeqCst) == THREADS;
                // (On a busy machine each of these costs a turn of all its programs.)
                if number % 8 == 0 {
                    thread::yield_now();
                }
                ready
            });
            park(&purgatory, op, keys(number));
            probe
        });
        let probes = probes.collect::<Vec<_>>();
        let completed = AtomicUsize::new(0);
        on_threads(THREADS as u64, |thread| {
            let mut random = fastrand::Rng::with_seed(thread + 1);
            let start = random.usize(..OPERATIONS);
            for step in 0..OPERATIONS {
                let number = (start + step * 7) % OPERATIONS;
                events[number].fetch_add(1, Ordering::SeqCst);
                let key = keys(number)[random.usize(..2)];
                completed.fetch_add(purgatory.check_and_complete(&key), Ordering::Relaxed);
            }
        });
        for (number, probe) in probes.iter().enumerate() {
            assert_eq!(probe.ending(), SATISFIED, "{number}");
        }
        let completed = completed.into_inner();
        assert_eq!(completed, OPERATIONS, "each by the call that counts it");
        assert_empty(&purgatory);
    });
}

/// The operations of two threads keep leaving a key, so that its list vanishes all the time, while another's join it.
#[test]
fn g02_a_watch_added_to_a_list_that_vanishes_is_found() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g02");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let op = Op::new(NEVER_IN_A_TEST);
                        park(&purgatory, op, [7]).cancel();
                    }
                });
            }
            for round in 0..20_000 {
                let (probe, _) = park_probe(&purgatory, [7]);
                probe.satisfy();
                purgatory.check_and_complete(&7);
                if probe.ending().is_none() {
                    stop.store(true, Ordering::Relaxed);
                    // Only this thread checks, so no other may have had it.
                    panic!("round {round}: its watch is lost");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_empty(&purgatory);
    });
}
