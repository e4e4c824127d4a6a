//! Guards of what was taken: done, or given back once, whatever ends the worker (G26). And no newcomer overtakes one
//! that waits (G27).

use crate::chains::drops;
use crate::support::bell::Bell;
use crate::support::keys::{Fragile, Hook, with_fuse, with_fuse_after};
use crate::support::{NEVER_IN_A_TEST, PATIENCE, Tally, eventually, lock, within};
use crate::{assert_empty, by_hand, now};
use request_purgatory::future::{Taken, WaitError, WaitFuture, WaitOperation, block_on};
use request_purgatory::{CheckBound, Waits, purgatory::Cause, threads::Reaper};
use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

type Jobs = Arc<Mutex<VecDeque<usize>>>;
type Take = WaitFuture<WaitOperation<u64>, Taken<usize>>;

fn take(waits: &Waits<u64>, jobs: &Jobs) -> Take {
    take_if(waits, jobs, NEVER_IN_A_TEST, |_, _| true)
}

/// Takes the first job if it is wanted.
fn take_if(
    waits: &Waits<u64>,
    jobs: &Jobs,
    timeout: Duration,
    wants: impl Fn(usize, Cause<'_, u64>) -> bool + Send + 'static,
) -> Take {
    let (takes, returns) = (jobs.clone(), jobs.clone());
    waits.take(
        [1],
        timeout,
        move |cause| {
            let first = *lock(&takes).front()?;
            wants(first, cause).then(|| lock(&takes).pop_front())?
        },
        move |job| lock(&returns).push_front(job),
    )
}

fn push(waits: &Waits<u64>, jobs: &Jobs, job: usize) -> usize {
    lock(jobs).push_back(job);
    waits.check_and_complete_with(&1, CheckBound::at_most(1))
}

fn received(take: Take) -> Taken<usize> {
    now(take).expect("a job")
}

#[test]
fn g26_a_job_in_hand_is_done_or_given_back() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    let first = take(&waits, &jobs);
    push(&waits, &jobs, 7);
    let mut guard = received(first);
    let second = take(&waits, &jobs);
    assert_eq!((*guard, lock(&jobs).len(), waits.stats().parked), (7, 0, 1));
    *guard += 1;
    drop(guard);
    assert_eq!(received(second).done(), 8, "as its worker left it");
    assert_eq!(lock(&jobs).len(), 0);
    assert_empty(&waits);
}

/// On another thread; by a panic; after the shutdown; without the purgatory.
#[test]
fn g26_a_guard_may_be_dropped_anywhere() {
    fn check<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    check::<Taken<usize>>();
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    let taken = |job| {
        let take = take(&waits, &jobs);
        push(&waits, &jobs, job);
        received(take)
    };
    let (elsewhere, panics, late, alone) = (taken(1), taken(2), taken(3), taken(4));
    thread::spawn(move || drop(elsewhere))
        .join()
        .expect("it goes back");
    assert_eq!(lock(&jobs).pop_front(), Some(1));
    let worker = thread::spawn(move || {
        let _job = panics;
        resume_unwind(Box::new("the worker fails"));
    });
    assert!(worker.join().is_err());
    assert_eq!(lock(&jobs).pop_front(), Some(2));
    waits.shutdown();
    drop(late);
    assert_eq!(lock(&jobs).pop_front(), Some(3));
    drop(waits);
    drop(alone);
    assert_eq!(lock(&jobs).pop_front(), Some(4));
}

#[test]
fn g26_a_guard_that_is_leaked_loses_its_own_job_only() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    let (first, second) = (take(&waits, &jobs), take(&waits, &jobs));
    push(&waits, &jobs, 1);
    std::mem::forget(received(first));
    push(&waits, &jobs, 2);
    assert_eq!(received(second).done(), 2);
    assert_empty(&waits);
    let weak = waits.downgrade();
    drop(waits);
    assert!(weak.upgrade().is_none(), "it does not keep the purgatory");
}

/// One key panics when the job goes back. The job is offered to those that wait under the other.
#[test]
fn g26_a_key_that_panics_keeps_no_job_from_the_other_key() {
    let waits = Waits::<Fragile>::builder("g26-fragile").reaper(Reaper::Manual);
    let waits = waits.build().expect("no threads to refuse");
    let jobs = Jobs::default();
    let take = |keys: &[u32]| {
        let (takes, returns) = (jobs.clone(), jobs.clone());
        waits.take(
            keys.iter().map(|key| Fragile(*key)),
            NEVER_IN_A_TEST,
            move |_| lock(&takes).pop_front(),
            move |job| lock(&returns).push_front(job),
        )
    };
    for bad in [1, 2] {
        lock(&jobs).push_back(7);
        let guard = now(take(&[1, 2])).expect("a job");
        let next = take(&[3 - bad]);
        assert!(with_fuse(bad, Hook::Hash, || drop(guard)).is_ok());
        assert_eq!(now(next).expect("it is offered").done(), 7);
    }
    assert_eq!(waits.stats().panicked, 2);
}

/// In its destructor, tokio drops the tasks and what they have.
#[test]
fn g26_a_runtime_that_ends_gives_all_jobs_back() {
    const JOBS: usize = 50;
    within(PATIENCE, || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .expect("threads for tokio");
        let (waits, jobs) = (Waits::new("g26-runtime"), Jobs::default());
        let working = Arc::new(AtomicUsize::new(0));
        for _ in 0..JOBS {
            let (waits, jobs, working) = (waits.clone(), jobs.clone(), working.clone());
            runtime.spawn(async move {
                let _job = take(&waits, &jobs).await.expect("a job");
                working.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            });
        }
        (0..JOBS).for_each(|job| _ = push(&waits, &jobs, job));
        eventually("work", || working.load(Ordering::SeqCst) == JOBS);
        drop(runtime);
        let mut back = lock(&jobs).drain(..).collect::<Vec<_>>();
        back.sort_unstable();
        assert!(back.into_iter().eq(0..JOBS));
    });
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !thread::panicking() {
            resume_unwind(Box::new("on purpose"));
        }
    }
}

/// What a destructor on the way does: that of a key, of what `give_back` captured, or of the take itself.
#[test]
fn g26_a_destructor_that_panics_loses_no_job() {
    let waits = Waits::<Fragile>::builder("g26").reaper(Reaper::Manual);
    let waits = waits.build().expect("no threads to refuse");
    for at_once in [true, false] {
        let jobs: Jobs = Arc::new(Mutex::new(VecDeque::new()));
        let (takes, returns, bombs) = (jobs.clone(), jobs.clone(), [Bomb, Bomb]);
        let [in_take, in_give_back] = bombs;
        if at_once {
            lock(&jobs).push_back(1);
        }
        let take = waits.take(
            [Fragile(1)],
            NEVER_IN_A_TEST,
            move |_| {
                let _ = &in_take;
                lock(&takes).pop_front()
            },
            move |job| {
                let _ = &in_give_back;
                lock(&returns).push_front(job);
            },
        );
        if !at_once {
            lock(&jobs).push_back(1);
            let checked = catch_unwind(AssertUnwindSafe(|| waits.check_and_complete(&Fragile(1))));
            assert_eq!(checked.ok(), Some(1));
        }
        let job = now(take).expect("a job");
        let before = waits.stats().panicked;
        let done = with_fuse(1, Hook::Drop, || job.done());
        assert_eq!(
            done.ok(),
            Some(1),
            "neither the key nor the closure costs it"
        );
        assert_eq!(waits.stats().panicked, before + 2);
        assert_eq!(lock(&jobs).len(), 0);
    }
}

/// A second panic while the first one unwinds would end the process.
#[test]
fn g12_destructors_of_a_take_that_took_nothing_panic_one_by_one() {
    let (waits, _clock) = by_hand();
    let [in_take, in_give_back] = [drops::Bomb, drops::Bomb];
    let take = waits.take(
        [1],
        NEVER_IN_A_TEST,
        move |_| {
            let _ = &in_take;
            None::<u8>
        },
        move |_| _ = &in_give_back,
    );
    // The first goes to the caller.
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(take)));
    let stats = waits.stats();
    assert_eq!(
        (dropped.is_err(), stats.parked, stats.panicked),
        (true, 0, 1)
    );
}

/// The error ends this take only, and its check goes to the next one.
#[test]
fn a_take_that_fails_ends_alone() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    let fallible = |fails: bool| {
        let (takes, returns) = (jobs.clone(), jobs.clone());
        waits.take(
            [1],
            NEVER_IN_A_TEST,
            move |cause| {
                let is_there = !lock(&takes).is_empty();
                match is_there && fails && !cause.is_parking() {
                    true => Err("the table is locked"),
                    false => Ok(lock(&takes).pop_front()),
                }
            },
            move |job| lock(&returns).push_front(job),
        )
    };
    // By a check of the key, and by one that names none.
    for by_handle in [false, true] {
        let (failing, mut next) = (fallible(true), fallible(false));
        assert!(Bell::new().poll(&mut next).is_pending());
        if by_handle {
            lock(&jobs).push_back(1);
            let handle = failing.handle().expect("it waits").clone();
            assert!(handle.check(), "it ends the operation");
        } else {
            assert_eq!(push(&waits, &jobs, 1), 1, "it ends one operation");
        }
        assert_eq!(
            now(failing).expect("it ended").err(),
            Some("the table is locked")
        );
        waits.advance();
        assert_eq!(now(next).expect("it ended").map(Taken::done), Ok(1));
    }
    let bomb = Bomb;
    let give_back = move |_| _ = &bomb;
    let fails = |_: Cause<'_, u64>| Err::<Option<u8>, _>("at once");
    let at_once = waits.take([1], None, fails, give_back);
    assert_eq!(now(at_once).expect("it ended").err(), Some("at once"));
    assert_eq!(waits.stats().panicked, 1, "the destructor of its way back");
    assert_empty(&waits);
}

#[test]
fn a_take_that_panics_ends_alone() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    let bad = take_if(&waits, &jobs, NEVER_IN_A_TEST, |_, _| {
        resume_unwind(Box::new("on purpose"))
    });
    let good = take(&waits, &jobs);
    assert_eq!(push(&waits, &jobs, 1), 1);
    assert_eq!(now(bad).err(), Some(WaitError::Panicked));
    assert_eq!(received(good).done(), 1);
}

/// Workers are aborted at every point: while they wait, with a job that they have not seen, and at work. Each job is
/// done once.
#[test]
fn g26_an_abort_storm_at_work_does_each_job_once() {
    const JOBS: usize = 3_000;
    const WORKERS: usize = 8;
    within(PATIENCE * 2, || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(3)
            .enable_time()
            .build()
            .expect("threads for tokio");
        let (waits, jobs) = (Waits::new("g26-storm"), Jobs::default());
        let done = Arc::new((0..JOBS).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
        let begun = Arc::new(AtomicUsize::new(0));
        let worker = || {
            let (waits, jobs) = (waits.clone(), jobs.clone());
            let (done, begun) = (done.clone(), begun.clone());
            runtime.spawn(async move {
                loop {
                    let job = take(&waits, &jobs).await.expect("no end but a job");
                    match begun.fetch_add(1, Ordering::Relaxed) % 4 {
                        0 => tokio::time::sleep(Duration::from_micros(50)).await,
                        _ => tokio::task::yield_now().await,
                    }
                    // No await between the effect and `done`.
                    done[*job].fetch_add(1, Ordering::Relaxed);
                    job.done();
                }
            })
        };
        let mut random = fastrand::Rng::with_seed(26);
        let mut workers = (0..WORKERS).map(|_| worker()).collect::<Vec<_>>();
        for job in 0..JOBS {
            push(&waits, &jobs, job);
            if random.u64(..3) == 0 {
                let at = random.usize(..WORKERS);
                workers[at].abort();
                workers[at] = worker();
            }
            if random.u64(..4) == 0 {
                thread::sleep(Duration::from_micros(200));
            }
        }
        let count = |times: usize| {
            let done = done.iter().map(|done| done.load(Ordering::Relaxed));
            done.filter(|done| *done == times).count()
        };
        eventually("the last job", || count(0) == 0);
        workers.iter().for_each(|worker| worker.abort());
        drop(runtime);
        assert_eq!((count(1), lock(&jobs).len()), (JOBS, 0));
        assert!(
            begun.load(Ordering::Relaxed) > JOBS,
            "some were begun again"
        );
        eventually("the end of all", || waits.is_empty());
    });
}

/// Between the push of a job and its check, a new take finds the job.
#[test]
fn g27_no_newcomer_overtakes_one_that_waits() {
    for timeout in [NEVER_IN_A_TEST, Duration::ZERO] {
        let (waits, _clock) = by_hand();
        let jobs = Jobs::default();
        // Whatever this thread has done before: an examination that checks another key, say.
        let (other, weak) = (waits.listen([9], None), waits.downgrade());
        let relay = waits.wait([8], NEVER_IN_A_TEST, move || {
            let waits = weak.upgrade().expect("it is being examined");
            waits.check_and_complete(&9);
            None::<()>
        });
        drop((other, relay));
        let first = take(&waits, &jobs);
        lock(&jobs).push_back(1);
        let mut newcomer = take_if(&waits, &jobs, timeout, |_, _| true);
        assert_eq!(received(first).done(), 1, "it has waited longer");
        assert!(Bell::new().poll(&mut newcomer).is_pending());
        assert_eq!(waits.check_and_complete_with(&1, CheckBound::at_most(1)), 0);
        assert_eq!(push(&waits, &jobs, 2), 1);
        assert_eq!(received(newcomer).done(), 2);
        let at_once = {
            lock(&jobs).push_back(3);
            take(&waits, &jobs)
        };
        assert!(at_once.handle().is_none(), "nothing waits: it never parked");
        assert_eq!(received(at_once).done(), 3);
        assert_empty(&waits);
    }
}

/// Two jobs lie there that no check has announced. A newcomer has both offered, in the order of arrival; and a job that
/// is done causes no check.
#[test]
fn g27_a_newcomer_has_all_jobs_offered_that_lie_there() {
    let (waits, _clock) = by_hand();
    let (jobs, asked) = (Jobs::default(), Tally::new());
    let take = || {
        let (takes, returns, asked) = (jobs.clone(), jobs.clone(), asked.clone());
        waits.take(
            [1],
            NEVER_IN_A_TEST,
            move |cause| {
                if !cause.is_parking() {
                    asked.add();
                }
                lock(&takes).pop_front()
            },
            move |job| lock(&returns).push_front(job),
        )
    };
    let [first, second, ..] = [(); 4].map(|()| take());
    lock(&jobs).extend([1, 2]);
    let _newcomer = take();
    let served = asked.count();
    assert_eq!([first, second].map(|take| received(take).done()), [1, 2]);
    assert_eq!(asked.count(), served);
}

/// Those that wait do not want the job: it is the newcomer's, and its second look is not lost.
#[test]
fn g27_what_the_others_refuse_is_the_newcomers() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    let picky = || take_if(&waits, &jobs, NEVER_IN_A_TEST, |job, _| job % 2 == 0);
    let others = [picky(), picky()];
    assert_eq!(push(&waits, &jobs, 1), 0, "none of them wants it");
    assert_eq!(received(take(&waits, &jobs)).done(), 1);
    // Two jobs, of which those that wait get the first: the newcomer gets the other before any check of it.
    lock(&jobs).extend([2, 3]);
    assert_eq!(received(take(&waits, &jobs)).done(), 3);
    let [first, second] = others;
    assert_eq!(received(first).done(), 2);
    drop(second);
    assert_empty(&waits);
}

/// Also where the one that waits does so on another of its keys, and where the newcomer is refused a place.
#[test]
fn g27_on_several_keys_and_without_a_place() {
    let waits = Waits::<u64>::builder("g27")
        .reaper(Reaper::Manual)
        .max_parked(1);
    let waits = waits.build().expect("no threads to refuse");
    let jobs = Jobs::default();
    let take = |keys: &[u64]| {
        let (takes, returns) = (jobs.clone(), jobs.clone());
        waits.take(
            keys.to_vec(),
            None,
            move |_| lock(&takes).pop_front(),
            move |job| lock(&returns).push_front(job),
        )
    };
    let first = take(&[2, 3]);
    lock(&jobs).push_back(1);
    let newcomer = take(&[1, 2]);
    assert_eq!(now(newcomer).err(), Some(WaitError::Full));
    assert_eq!(received(first).done(), 1, "it is told of what went back");
}

/// Also if the job, which is of key 2, comes while the newcomer arrives.
#[test]
fn g27_on_several_keys_a_job_that_comes_meanwhile_is_of_the_one_that_waits() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    let take = |keys: &[u64], mut comes: Option<usize>| {
        let (takes, returns) = (jobs.clone(), jobs.clone());
        waits.take(
            keys.to_vec(),
            None,
            move |cause| {
                let found = match cause.key() {
                    Some(1 | 3) => None,
                    _ => lock(&takes).pop_front(),
                };
                lock(&takes).extend(comes.take());
                found
            },
            move |job| lock(&returns).push_front(job),
        )
    };
    let first = take(&[2, 3], None);
    let mut newcomer = take(&[1, 2], Some(1));
    assert!(Bell::new().poll(&mut newcomer).is_pending());
    assert_eq!(received(first).done(), 1, "it has waited longer");
}

/// A key that panics when its watchers are counted, or wherever else on the way.
#[test]
fn g27_a_key_that_panics_on_the_way_loses_no_job() {
    let waits = Waits::<Fragile>::builder("g27").reaper(Reaper::Manual);
    let waits = waits.build().expect("no threads to refuse");
    let hooks = [Hook::Hash, Hook::Eq, Hook::Clone, Hook::Drop];
    for (hook, countdown) in hooks
        .into_iter()
        .flat_map(|hook| (0..12).map(move |at| (hook, at)))
    {
        let jobs: Jobs = Arc::new(Mutex::new(VecDeque::new()));
        let take = || {
            let (takes, returns) = (jobs.clone(), jobs.clone());
            waits.take(
                [Fragile(1)],
                NEVER_IN_A_TEST,
                move |_| lock(&takes).pop_front(),
                move |job| lock(&returns).push_front(job),
            )
        };
        let waiting = take();
        lock(&jobs).push_back(1);
        // The panic goes no further, or to its caller.
        let newcomer = with_fuse_after(countdown, 1, hook, take).ok();
        let takes = [Some(waiting), newcomer].into_iter().flatten();
        let held = takes.map(|mut take| match Bell::new().poll(&mut take) {
            Poll::Ready(Ok(job)) => Some(job.done()),
            _ => None,
        });
        let held = held.flatten().count();
        assert_eq!(held + lock(&jobs).len(), 1, "once, at {hook:?} {countdown}");
    }
}

/// Takes arrive while jobs are pushed and checked. What a take keeps of what it took on arrival, no earlier one was
/// waiting for. In the end no job lies beside a take that waits.
#[test]
fn g27_a_storm_with_arrival_numbers() {
    const ROUNDS: usize = 2_000;
    within(PATIENCE, || {
        let (waits, jobs) = (Waits::<u64>::new("g27-storm"), Jobs::default());
        // The takes that wait, by their number.
        let waiting = Arc::new(Mutex::new(BTreeSet::new()));
        let (first_waits, begin) = channel::<()>();
        let producer = thread::spawn({
            let (waits, jobs) = (waits.clone(), jobs.clone());
            move || {
                begin.recv().expect("the first take waits");
                for job in 0..ROUNDS {
                    push(&waits, &jobs, job);
                    if job % 7 == 0 {
                        thread::yield_now();
                    }
                }
            }
        });
        let mut takes = Vec::new();
        for number in 0..ROUNDS {
            let before = lock(&waiting).clone();
            let kept_on_arrival = Arc::new(AtomicUsize::new(0));
            let (takes_from, returns, kept) = (jobs.clone(), jobs.clone(), kept_on_arrival.clone());
            let (served, returned, unkept) = (waiting.clone(), waiting.clone(), kept.clone());
            lock(&waiting).insert(number);
            takes.push(waits.take(
                [1],
                NEVER_IN_A_TEST,
                move |cause| {
                    let job = lock(&takes_from).pop_front()?;
                    lock(&served).remove(&number);
                    kept.store(usize::from(cause.is_parking()), Ordering::SeqCst);
                    Some(job)
                },
                move |job| {
                    lock(&returned).insert(number);
                    unkept.store(0, Ordering::SeqCst);
                    lock(&returns).push_front(job);
                },
            ));
            if number == 0 {
                first_waits.send(()).expect("the producer");
            }
            if kept_on_arrival.load(Ordering::SeqCst) == 1 {
                let left = &before & &lock(&waiting);
                assert!(left.is_empty(), "{number} overtook {left:?}");
            }
        }
        producer.join().expect("a producer");
        let mut got = Vec::new();
        for take in takes {
            got.push(block_on(take).expect("a job for each").done());
        }
        got.sort_unstable();
        assert!(got.into_iter().eq(0..ROUNDS));
        assert!(lock(&jobs).is_empty());
    });
}
