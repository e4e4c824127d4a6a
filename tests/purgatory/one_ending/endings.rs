//! G1, G2, G4, G5: every operation is examined after every event, by one thread at a time, and ends once.

use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, Probe, eventually, manual, within};
use request_purgatory::{Completion, Handle, Purgatory};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

/// An operation whose `try_complete` dwells between what it saw and what it says: the moment in which an event is lost,
/// if any is.
fn dwelling(probe: &Arc<Probe>) -> Op {
    let (examining, ending) = (probe.clone(), probe.clone());
    Op::new(NEVER_IN_A_TEST)
        .when(move || {
            examining.examine(|| {
                let ready = examining.is_ready();
                thread::sleep(Duration::from_micros(20));
                ready
            })
        })
        .then(move |completion| ending.end(completion))
}

/// The event comes, and the key is checked, while the operation is just being parked.
#[test]
fn g01_an_event_during_the_park_is_not_lost() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g01-park");
        let together = Arc::new(Barrier::new(2));
        let (probes, events) = std::sync::mpsc::channel::<(u64, Arc<Probe>)>();
        let checker = {
            let (purgatory, together) = (purgatory.clone(), together.clone());
            thread::spawn(move || {
                for (key, probe) in events {
                    together.wait();
                    (0..key % 64 * 16).for_each(|_| std::hint::spin_loop());
                    probe.satisfy();
                    purgatory.check_and_complete(&key);
                    together.wait();
                }
            })
        };
        for key in 0..2_000 {
            let probe = Probe::new();
            probes
                .send((key, probe.clone()))
                .expect("the checker lives");
            together.wait();
            purgatory
                .try_complete_else_watch(dwelling(&probe), [key, key + 1_000_000])
                .expect("there is room");
            together.wait();
            assert_eq!(probe.ending(), Some(Completion::Satisfied), "round {key}");
        }
        drop(probes);
        checker.join().expect("the checker did not panic");
        assert_eq!((purgatory.stats().parked, purgatory.watched_keys()), (0, 0));
    });
}

/// Two checkers meet at one operation; the second brings the event.
#[test]
fn g01_an_event_while_another_thread_examines_is_not_lost() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g01-check");
        for key in 0..2_000 {
            let probe = Probe::new();
            purgatory
                .try_complete_else_watch(dwelling(&probe), [key, key + 1_000_000])
                .expect("there is room");
            let early = {
                let purgatory = purgatory.clone();
                thread::spawn(move || purgatory.check_and_complete(&key))
            };
            probe.satisfy();
            purgatory.check_and_complete(&(key + 1_000_000));
            early.join().expect("a checker does not panic");
            assert_eq!(probe.ending(), Some(Completion::Satisfied), "round {key}");
        }
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
        // Every operation needs an event of each thread.
        let events = (0..OPERATIONS).map(|_| AtomicUsize::new(0));
        let events = Arc::new(events.collect::<Vec<_>>());
        let probes = (0..OPERATIONS).map(|number| {
            let probe = Probe::new();
            let (examining, ending, events) = (probe.clone(), probe.clone(), events.clone());
            let op = Op::new(NEVER_IN_A_TEST)
                .when(move || {
                    examining.examine(|| {
                        let all = events[number].load(Ordering::SeqCst) == THREADS;
                        // (On a busy machine each of these costs a turn of all its programs.)
                        if number % 8 == 0 {
                            thread::yield_now();
                        }
                        all
                    })
                })
                .then(move |completion| ending.end(completion));
            let keys = [number as u64 / 4, 1_000_000 + number as u64 / 3];
            purgatory
                .try_complete_else_watch(op, keys)
                .expect("there is room");
            probe
        });
        let probes = probes.collect::<Vec<_>>();
        let bringers = (0..THREADS).map(|seed| {
            let (purgatory, events) = (purgatory.clone(), events.clone());
            thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed as u64 + 1);
                let start = random.usize(..OPERATIONS);
                let completed = (0..OPERATIONS).map(|step| {
                    let number = (start + step * 7) % OPERATIONS;
                    events[number].fetch_add(1, Ordering::SeqCst);
                    if random.bool() {
                        purgatory.check_and_complete(&(number as u64 / 4))
                    } else {
                        purgatory.check_and_complete(&(1_000_000 + number as u64 / 3))
                    }
                });
                completed.sum::<usize>()
            })
        });
        let bringers = bringers.collect::<Vec<_>>();
        let completed = bringers
            .into_iter()
            .map(|bringer| bringer.join().expect("a checker does not panic"))
            .sum::<usize>();
        for (number, probe) in probes.iter().enumerate() {
            assert_eq!(probe.ending(), Some(Completion::Satisfied), "{number}");
        }
        assert_eq!(
            completed, OPERATIONS,
            "each counted by the call that completed it"
        );
        assert_eq!((purgatory.stats().parked, purgatory.watched_keys()), (0, 0));
    });
}

/// One thread's operations keep leaving a key, so that its list vanishes all the time, while another's join it.
#[test]
fn g02_a_watch_added_to_a_list_that_vanishes_is_found() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g02");
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let leavers = [0, 1].map(|_| {
            let (purgatory, stop) = (purgatory.clone(), stop.clone());
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    purgatory
                        .try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [7])
                        .expect("there is room")
                        .into_handle()
                        .map(|handle| handle.cancel());
                }
            })
        });
        for round in 0..20_000 {
            let probe = Probe::new();
            purgatory
                .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [7])
                .expect("there is room");
            probe.satisfy();
            purgatory.check_and_complete(&7);
            if probe.ending().is_none() {
                // Only this thread checks, so no other may have had it.
                panic!("round {round}: its watch is lost");
            }
        }
        stop.store(true, Ordering::Relaxed);
        for leaver in leavers {
            leaver.join().expect("it only parks and cancels");
        }
        assert_eq!(
            (purgatory.stats().watched, purgatory.watched_keys()),
            (0, 0)
        );
    });
}

/// All that can be done to operations is done to the same few at once.
struct Melee {
    purgatory: Purgatory<Op>,
    probes: Vec<Arc<Probe>>,
    handles: Vec<Handle<Op>>,
    returned: AtomicUsize,
}

fn melee(seed: u64, operations: usize) {
    let purgatory = Purgatory::<Op>::new("melee");
    let mut random = fastrand::Rng::with_seed(seed);
    let (probes, handles) = (0..operations)
        .map(|number| {
            let probe = Probe::new();
            let timeout = Duration::from_millis(random.u64(..40));
            let keys = [number as u64 % 10, 100 + number as u64 % 7];
            let watch = purgatory
                .try_complete_else_watch(probe.op(timeout), keys)
                .expect("there is room");
            (probe, watch.into_handle())
        })
        .unzip::<_, _, Vec<_>, Vec<_>>();
    let melee = Arc::new(Melee {
        purgatory,
        probes,
        handles: handles.into_iter().flatten().collect(),
        returned: AtomicUsize::new(0),
    });
    let fighters = (1..5).map(|thread| {
        let melee = melee.clone();
        thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed * 10 + thread);
            for _ in 0..operations {
                melee.strike(&mut random);
            }
        })
    });
    for fighter in fighters.collect::<Vec<_>>() {
        fighter.join().expect("no call panics");
    }
    let Melee {
        purgatory,
        probes,
        returned,
        ..
    } = &*melee;
    eventually("the end of all", || purgatory.is_empty());
    purgatory.shutdown();
    let ended = probes.iter().filter(|probe| probe.ending().is_some());
    let (ended, returned) = (ended.count(), returned.load(Ordering::SeqCst));
    assert_eq!(ended + returned, operations, "each ended once");
    let stats = purgatory.stats();
    let counted = stats.completed + stats.expired + stats.cancelled + stats.shut_down;
    assert_eq!((counted + stats.completed_at_once) as usize, operations);
    assert_eq!(
        (purgatory.stats().watched, purgatory.watched_keys()),
        (0, 0)
    );
}

impl Melee {
    fn strike(&self, random: &mut fastrand::Rng) {
        let handle = &self.handles[random.usize(..self.handles.len())];
        let key = random.u64(..10);
        match random.u64(..40) {
            0 => drop(handle.force_complete()),
            1..4 => {
                let returned = usize::from(handle.cancel().is_some());
                self.returned.fetch_add(returned, Ordering::SeqCst);
            }
            4 => {
                let returned = self.purgatory.cancel_for_key(&key).len();
                self.returned.fetch_add(returned, Ordering::SeqCst);
            }
            5..12 => drop(handle.reschedule(Duration::from_millis(random.u64(..30)))),
            12..20 => {
                let probe = &self.probes[random.usize(..self.probes.len())];
                probe.satisfy();
                self.purgatory.check_later(key);
            }
            20..30 => drop(handle.check()),
            _ => drop(self.purgatory.check_and_complete(&key)),
        }
    }
}

/// The probes count hooks that overlap, and hooks after the end.
#[test]
fn g04_hooks_of_one_operation_never_overlap_nor_run_after_the_end() {
    within(PATIENCE, || (1..30).for_each(|seed| melee(seed, 400)));
}

/// As many endings as operations, whichever thread wins; a returned operation has had no completion.
#[test]
fn g05_an_operation_ends_once_whatever_calls_meet() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::new("g05");
        let mut returned = 0;
        let mut expected = Vec::new();
        for key in 0..2_000_u64 {
            let probe = Probe::new();
            let watch = purgatory
                .try_complete_else_watch(probe.op(Duration::from_millis(key % 3)), [key])
                .expect("there is room");
            expected.push(probe.clone());
            let handle = watch.into_handle();
            let canceller = thread::spawn({
                let handle = handle.clone();
                move || handle.and_then(|handle| handle.cancel()).is_some()
            });
            probe.satisfy();
            if key % 2 == 0 {
                purgatory.check_and_complete(&key);
            } else if let Some(handle) = handle {
                handle.force_complete();
            }
            let cancelled = canceller.join().expect("a cancel does not panic");
            returned += usize::from(cancelled);
            assert!(!cancelled || probe.ending().is_none());
        }
        eventually("the end of all", || purgatory.is_empty());
        purgatory.shutdown();
        let ended = expected.iter().filter(|probe| probe.ending().is_some());
        assert_eq!(ended.count() + returned, 2_000);
    });
}

/// Many are ended before any is told of it, and each is examined then: by examinations that call the purgatory.
#[test]
fn g05_examinations_that_act_in_the_middle_of_a_storm_end_no_operation_twice() {
    type Act = fn(&Purgatory<Op>, u64) -> usize;
    let acts: [Act; 5] = [
        |purgatory, _| {
            purgatory.advance();
            0
        },
        |purgatory, key| {
            if key > 700 {
                purgatory.shutdown();
            }
            0
        },
        |purgatory, key| {
            let around = [key - 1, key + 1].map(|key| purgatory.cancel_for_key(&key).len());
            around.iter().sum()
        },
        |purgatory, key| {
            purgatory.force_complete_for_key(&((key + 400) % 1_000));
            0
        },
        |_, _| panic!("intended"),
    ];
    crate::support::quietly();
    within(PATIENCE, move || {
        for act in acts {
            let (purgatory, clock) = manual::<u64>(|builder| builder);
            let late = Arc::new(AtomicUsize::new(0));
            let returned = Arc::new(AtomicUsize::new(0));
            let probes = [(); 1_000].map(|()| Probe::new());
            for (key, probe) in (0..).zip(&probes) {
                let (late, returned) = (late.clone(), returned.clone());
                let (examining, ending) = (probe.clone(), probe.clone());
                let weak = purgatory.downgrade();
                let op = Op::new(Duration::from_millis(1)).when(move || {
                    examining.examine(|| false);
                    if late.load(Ordering::SeqCst) == 1 && key % 97 == 3 {
                        let purgatory = weak.upgrade().expect("the test has it");
                        returned.fetch_add(act(&purgatory, key), Ordering::SeqCst);
                    }
                    false
                });
                let op = op.then(move |completion| ending.end(completion));
                purgatory
                    .try_complete_else_watch(op, [key, 1_000 + key % 3])
                    .expect("there is room");
            }
            late.store(1, Ordering::SeqCst);
            clock.advance(Duration::from_millis(2));
            purgatory.advance();
            let heard = probes.iter().filter(|probe| probe.ending().is_some());
            let ended = heard.count() + returned.load(Ordering::SeqCst);
            let aborted = purgatory.stats().aborted as usize;
            assert_eq!(ended + aborted, probes.len());
            assert_eq!(
                (purgatory.stats().parked, purgatory.stats().watched),
                (0, 0)
            );
            assert_eq!(purgatory.watched_keys(), 0);
        }
    });
}
