//! G16, G17, G18: counts are exact, the bound is exact, and stale handles are harmless.

use crate::support::{
    Job, Mint, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally, eventually, lock, manual, quietly,
    refusal, within,
};
use request_purgatory::{
    Completion, Handle, Purgatory, purgatory::RejectReason, threads::Dispatch, time::ManualClock,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Parked on one thread, ended on others in every way: at rest, the counts agree.
#[test]
fn g16_counts_are_exact_at_every_quiet_moment() {
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::builder("g16")
            .max_parked(1_000)
            .build()
            .expect("threads are to be had");
        for round in 0..20 {
            let handles = Arc::new(Mutex::new(Vec::<Handle<Op>>::new()));
            let refused = Arc::new(AtomicUsize::new(0));
            let rejected_before = purgatory.stats().rejected;
            let workers = (0..4).map(|seed| {
                let (purgatory, handles) = (purgatory.clone(), handles.clone());
                let refused = refused.clone();
                thread::spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed + 10 * round + 1);
                    for _ in 0..400 {
                        let keys = (0..=random.u64(..4)).map(|key| key * 3);
                        let op = Op::new(NEVER_IN_A_TEST);
                        match purgatory.try_complete_else_watch(op, keys) {
                            Ok(watch) => lock(&handles).extend(watch.into_handle()),
                            Err(ref rejected) if rejected.reason() == RejectReason::Full => {
                                refused.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(other) => panic!("{other:?}"),
                        }
                        if random.u64(..3) > 0 {
                            let mut handles = lock(&handles);
                            let len = handles.len().max(1);
                            let pick = random.usize(..len);
                            if pick < handles.len() {
                                let handle = handles.swap_remove(pick);
                                drop(handles);
                                if random.bool() {
                                    drop(handle.cancel());
                                } else {
                                    handle.force_complete();
                                }
                            }
                        }
                    }
                })
            });
            for worker in workers.collect::<Vec<_>>() {
                worker.join().expect("no call panics");
            }
            let parked = lock(&handles).len();
            let stats = purgatory.stats();
            assert_eq!(purgatory.stats().parked, parked);
            assert_eq!(purgatory.snapshot().len(), parked);
            let listed = purgatory.snapshot();
            let watched = listed.iter().map(|op| op.keys.len()).sum::<usize>();
            assert_eq!(purgatory.stats().watched, watched);
            let rejected = stats.rejected - rejected_before;
            assert_eq!(rejected, refused.load(Ordering::SeqCst) as u64);
            assert_eq!(stats.parked, parked);
            // The bound: exactly what is missing up to it fits.
            let fits = 1_000 - parked;
            for number in 0..=fits {
                let result = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [0]);
                assert_eq!(result.is_ok(), number < fits, "{number} of {fits}");
            }
            assert_eq!(purgatory.cancel_for_key(&0).len(), 1_000);
            assert_eq!((purgatory.stats().parked, purgatory.watched_keys()), (0, 0));
            assert_eq!(purgatory.next_deadline(), None, "and no timer");
        }
    });
}

#[test]
fn g17_full_means_full_and_each_ending_makes_room_for_one() {
    type End = fn(&Purgatory<Op>, &Handle<Op>, &Probe);
    let ends: [End; 6] = [
        |_, handle, _| assert!(handle.cancel().is_some()),
        |_, handle, _| assert!(handle.force_complete()),
        |purgatory, _, probe| {
            probe.satisfy();
            assert_eq!(purgatory.check_and_complete(&1), 1);
        },
        |purgatory, handle, _| {
            assert!(handle.reschedule(Duration::ZERO));
            assert_eq!(purgatory.advance(), 1);
        },
        |_, handle, probe| {
            probe.satisfy();
            assert!(handle.check());
        },
        |purgatory, _, _| assert_eq!(purgatory.cancel_for_key(&2).len(), 1),
    ];
    for max in [1, 2, 100] {
        let (purgatory, _clock) = manual::<u64>(|builder| builder.max_parked(max));
        for _ in 1..max {
            purgatory
                .try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1])
                .expect("there is room");
        }
        for end in ends {
            let probe = Probe::new();
            let handle = purgatory
                .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [1, 2])
                .expect("there is room for one")
                .into_handle()
                .expect("it cannot complete yet");
            let refused = Probe::new();
            let result = purgatory.try_complete_else_watch(refused.op(NEVER_IN_A_TEST), [1]);
            let Err(rejected) = result else {
                panic!("{result:?}");
            };
            // Refused is not touched: it can be tried again.
            let op = rejected.into_inner();
            assert_eq!((refused.examinations(), refused.ending()), (1, None));
            assert_eq!(purgatory.stats().parked, max);
            end(&purgatory, &handle, &probe);
            assert_eq!(purgatory.stats().parked, max - 1);
            let handle = purgatory
                .try_complete_else_watch(op, [1])
                .expect("one has ended")
                .into_handle()
                .expect("it cannot complete yet");
            let again = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1]);
            assert_eq!(
                refusal(&again),
                Some(RejectReason::Full),
                "only one has ended"
            );
            assert!(handle.cancel().is_some());
        }
    }
}

/// What can complete at once takes no place, and needs none.
#[test]
fn g17_a_full_purgatory_still_completes_at_once() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder.max_parked(0));
    let probe = Probe::new();
    let refused = purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [1]);
    assert_eq!(refusal(&refused), Some(RejectReason::Full));
    probe.satisfy();
    let admission = purgatory.try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [1]);
    assert!(!admission.expect("it needs no place").is_parked());
    assert_eq!(probe.ending(), Some(Completion::Satisfied));
    assert_eq!(purgatory.stats().rejected, 1);
}

/// An operation that is checked while it is parked, and panics in the examination that this asks for, leaves its room.
#[test]
fn g17_an_operation_that_panics_while_it_is_parked_leaves_its_room() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder.max_parked(1));
    for _ in 0..3 {
        let (weak, mut examinations) = (purgatory.downgrade(), 0);
        let op = Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            if examinations == 2 {
                let purgatory = weak.upgrade().expect("it is in use");
                thread::scope(|scope| _ = scope.spawn(|| purgatory.check_and_complete(&1)));
            }
            match examinations {
                3 => std::panic::panic_any("intended"),
                _ => false,
            }
        });
        let park = || purgatory.try_complete_else_watch(op, [1]);
        assert!(catch_unwind(AssertUnwindSafe(park)).is_err());
    }
    assert_eq!(purgatory.stats().aborted, 3);
    let parked = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1]);
    assert!(parked.is_ok());
}

/// Operations that have expired, and whose completions wait for a slow thread or executor, are alive as well.
#[test]
fn g17_the_bound_counts_what_waits_for_its_completion() {
    const MAX: u64 = 50;
    within(PATIENCE, || {
        let slow = Arc::new(|job: Job| {
            thread::spawn(job);
        });
        for dispatch in [Dispatch::OwnThread, Dispatch::Executor(slow)] {
            let purgatory = Purgatory::<Op>::builder("g17-slow")
                .max_parked(MAX as usize)
                .dispatch(dispatch)
                .build()
                .expect("threads are to be had");
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

/// Many threads at the bound: never more than it, and never fewer than it for long.
#[test]
fn g17_the_bound_holds_among_many_threads() {
    const MAX: usize = 10;
    within(PATIENCE, || {
        let purgatory = Purgatory::<Op>::builder("g17")
            .max_parked(MAX)
            .build()
            .expect("threads are to be had");
        let parked = Arc::new(AtomicUsize::new(0));
        let workers = (0..6).map(|key| {
            let (purgatory, parked) = (purgatory.clone(), parked.clone());
            thread::spawn(move || {
                for _ in 0..3_000 {
                    let result = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [key]);
                    let Ok(watch) = result else { continue };
                    let now = parked.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= MAX, "{now} at once");
                    let handle = watch.into_handle().expect("it cannot complete yet");
                    parked.fetch_sub(1, Ordering::SeqCst);
                    assert!(handle.cancel().is_some());
                }
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.join().expect("the bound held");
        }
        let fit = (0..2 * MAX as u64)
            .filter(|key| {
                let op = Op::new(NEVER_IN_A_TEST);
                purgatory.try_complete_else_watch(op, [*key]).is_ok()
            })
            .count();
        assert_eq!(fit, MAX);
    });
}

/// The slot of an ended operation has many occupants after it; its handle touches none of them.
#[test]
fn g18_a_stale_handle_does_nothing() {
    let (purgatory, _clock) = manual::<u64>(|builder| builder);
    let park = |probe: &Arc<Probe>| {
        purgatory
            .try_complete_else_watch(probe.op(NEVER_IN_A_TEST), [1])
            .expect("there is room")
            .into_handle()
            .expect("it cannot complete yet")
    };
    let mut stale = Vec::new();
    for _ in 0..100 {
        let probe = Probe::new();
        let handle = park(&probe);
        for old in &stale {
            touch(old);
        }
        assert!(handle.is_parked());
        assert_eq!(probe.examinations(), 2, "the two of the park");
        assert_eq!(purgatory.stats().parked, 1);
        assert!(handle.cancel().is_some());
        assert!(handle.cancel().is_none());
        stale.push(handle);
    }
    purgatory.shutdown();
    stale.iter().for_each(touch);
    drop(purgatory);
    stale.iter().for_each(touch);
}

fn touch(stale: &Handle<Op>) {
    assert!(!stale.is_parked());
    assert!(!stale.check());
    assert!(!stale.force_complete());
    assert!(stale.cancel().is_none());
    assert!(!stale.reschedule(Duration::ZERO));
    assert_eq!((stale.remaining(), stale.deadline()), (None, None));
}

/// Late by more than a counter of nanoseconds holds, again and again.
#[test]
fn g16_the_sum_of_latenesses_stops_at_its_end() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    for _ in 0..3 {
        purgatory
            .try_complete_else_watch(Op::new(Duration::ZERO), [1])
            .expect("there is room");
        clock.advance(Duration::from_nanos(u64::MAX / 2 + 1));
        assert_eq!(purgatory.advance(), 1);
    }
    let stats = purgatory.stats();
    assert_eq!(stats.lateness_total, Duration::from_nanos(u64::MAX));
    assert_eq!(stats.lateness_max, Duration::from_nanos(u64::MAX / 2 + 1));
}

/// How late operations expired is known before their completions run: however long these take, it stays.
#[test]
fn g16_a_slow_completion_is_no_lateness() {
    let (purgatory, clock) = manual::<u64>(|builder| builder);
    for key in 0..3 {
        let slow = clock.clone();
        let op = Op::new(Duration::from_millis(1));
        let op = op.then(move |_| slow.advance(Duration::from_secs(1)));
        let parked = purgatory.try_complete_else_watch(op, [key]);
        parked.expect("there is room");
    }
    clock.advance(Duration::from_millis(3));
    assert_eq!(purgatory.advance(), 3);
    let stats = purgatory.stats();
    let late = Duration::from_millis(2);
    assert_eq!((stats.lateness_max, stats.lateness_total), (late, 3 * late));
}

/// In a storm, watches and slots are reclaimed after the completions: the endings are counted before.
#[test]
fn g16_a_completion_in_a_storm_finds_its_ending_counted() {
    within(PATIENCE, || {
        for completions in [Dispatch::Inline, Dispatch::OwnThread] {
            let clock = ManualClock::new();
            let purgatory = Purgatory::<Op>::builder("g16-storm")
                .clock(clock.clone())
                .dispatch(completions)
                .build()
                .expect("threads are to be had");
            let count = 5_000;
            let heard = Arc::new(AtomicUsize::new(0));
            let missing = Arc::new(AtomicUsize::new(0));
            for key in 0..count {
                let (heard, missing) = (heard.clone(), missing.clone());
                let weak = purgatory.downgrade();
                let op = Op::new(Duration::from_millis(1)).then(move |_| {
                    let heard = heard.fetch_add(1, Ordering::SeqCst) + 1;
                    if let Some(purgatory) = weak.upgrade() {
                        let counted = purgatory.stats().expired as usize;
                        missing.fetch_add(heard.saturating_sub(counted), Ordering::SeqCst);
                    }
                });
                purgatory
                    .try_complete_else_watch(op, [key, count + key % 3])
                    .expect("there is room");
            }
            clock.advance(Duration::from_millis(2));
            eventually("the last completion", || {
                heard.load(Ordering::SeqCst) as u64 == count
            });
            assert_eq!(missing.load(Ordering::SeqCst), 0);
            assert_eq!(purgatory.stats().parked, 0);
            eventually("the rest", || {
                (purgatory.stats().watched, purgatory.watched_keys()) == (0, 0)
            });
        }
    });
}

/// A check counts what it examines: not an operation that another thread examines, which it only marks, not one that
/// ends while the check is on its way to it, and not one that panics.
#[test]
fn g16_a_check_counts_what_it_examines() {
    quietly();
    within(PATIENCE, || {
        let (purgatory, _clock) = manual(|builder| builder);
        for several in [false, true] {
            let before = purgatory.stats().checks;
            let (op, stall) = Probe::new().stalled_op(Duration::MAX);
            let parked = purgatory.try_complete_else_watch(op, [1]);
            assert!(parked.expect("there is room").is_parked());
            let check = stall.check(&purgatory, 1);
            if several {
                let parked = purgatory.try_complete_else_watch(Op::new(Duration::MAX), [1]);
                assert!(parked.expect("there is room").is_parked());
            }
            // It marks the one, and examines the other if there is one.
            assert_eq!(purgatory.check_and_complete(&1), 0);
            assert_eq!(purgatory.stats().checks, before + u64::from(several));
            stall.end();
            assert_eq!(check.join().expect("no panic"), 0);
            assert_eq!(purgatory.stats().checks, before + 1 + u64::from(several));
            purgatory.cancel_for_key(&1).into_iter().for_each(drop);
        }
        // The first of them ends the others while it is examined.
        let before = purgatory.stats().checks;
        let others = Arc::new(Mutex::new(Vec::<Handle<Op>>::new()));
        let ending = others.clone();
        let op = Op::new(Duration::MAX).when(move || {
            std::mem::take(&mut *lock(&ending))
                .into_iter()
                .for_each(|other| _ = other.cancel());
            false
        });
        drop(purgatory.try_complete_else_watch(op, [1]));
        let park = || purgatory.try_complete_else_watch(Op::new(Duration::MAX), [1]);
        let parked = (0..3).filter_map(|_| park().expect("there is room").into_handle());
        let parked = parked.collect::<Vec<_>>();
        lock(&others).extend(parked);
        assert_eq!(purgatory.check_and_complete(&1), 0);
        assert_eq!(
            (purgatory.stats().checks, purgatory.stats().parked),
            (before + 1, 1)
        );
        let mut examinations = 0;
        let op = Op::new(Duration::MAX).when(move || {
            examinations += 1;
            assert!(examinations < 3, "intended");
            false
        });
        drop(purgatory.try_complete_else_watch(op, [2]));
        assert_eq!(purgatory.check_and_complete(&2), 0);
        let stats = purgatory.stats();
        assert_eq!((stats.checks, stats.aborted), (before + 1, 1));
    });
}

/// There are more threads than timer shards, so some count in the same place: those that run at the same time.
#[test]
fn g16_no_count_of_many_threads_is_lost() {
    const THREADS: usize = 40;
    const TIMES: usize = 100_000;
    // The fewest timer shards that there are.
    const SHARDS: usize = 8;
    within(PATIENCE, || {
        let (purgatory, _clock) = manual(|builder| builder);
        assert_eq!(purgatory.drain(Duration::ZERO), 0);
        let refused = |times| {
            for _ in 0..times {
                let admission = purgatory.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [1]);
                assert!(admission.is_err());
            }
        };
        // Threads get their numbers in order, when they first use the library.
        let begun = Barrier::new(2);
        let gates = [(); SHARDS].map(|()| Barrier::new(1 + THREADS / SHARDS));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (begun, gate) = (&begun, &gates[thread % SHARDS]);
                scope.spawn(move || {
                    refused(1);
                    begun.wait();
                    gate.wait();
                    refused(TIMES);
                    gate.wait();
                });
                begun.wait();
            }
            gates.iter().for_each(|gate| {
                gate.wait();
                gate.wait();
            });
        });
        assert_eq!(purgatory.stats().rejected, (THREADS * (TIMES + 1)) as u64);
    });
}
