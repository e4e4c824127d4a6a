//! G23, G25, G26 and G27 under storms: workers who are aborted, takes that arrive while jobs come, calls at random.

use super::Jobs;
use crate::built;
use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, PATIENCE, eventually, lock, within};
use fastrand::Rng;
use request_purgatory::future::{Take, Taken, WaitError, WaitOperation, block_on};
use request_purgatory::{CheckBound, ResolvedKey, Waits, Watch, purgatory::Cause};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

const JOBS: usize = 3_000;

/// Workers are aborted while they wait, with a job that they have not seen, and at work, while jobs come; short timeouts
/// and cancels besides. Each job is done once, and nothing is left in the end. Returns how often work was begun.
fn abort_storm() -> usize {
    const WORKERS: usize = 8;
    let runtime = &mut tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(3).enable_time().build();
    let runtime = runtime.expect("threads for tokio");
    let (waits, jobs) = (Waits::<u64>::new("storm"), Jobs::default());
    let begun = Arc::new(AtomicUsize::new(0));
    let done = (0..JOBS).map(|_| AtomicUsize::new(0));
    let done = Arc::new(done.collect::<Vec<_>>());
    let worker = |random: &mut Rng| {
        let (waits, jobs) = (waits.clone(), jobs.clone());
        let (done, begun) = (done.clone(), begun.clone());
        let timeout = match random.bool() {
            true => Duration::from_millis(1 + random.u64(..3)),
            false => NEVER_IN_A_TEST,
        };
        runtime.spawn(async move {
            loop {
                let job = match jobs.take_on(&waits, [1], timeout).await {
                    Ok(job) => job,
                    Err(WaitError::Expired | WaitError::Cancelled) => continue,
                    Err(error) => panic!("{error}"),
                };
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
    let mut random = Rng::with_seed(26);
    let mut workers = Vec::new();
    workers.resize_with(WORKERS, || worker(&mut random));
    for job in 0..JOBS {
        jobs.push(&waits, job);
        if random.u64(..3) == 0 {
            let at = random.usize(..WORKERS);
            workers[at].abort();
            workers[at] = worker(&mut random);
        }
        if random.u64(..4) == 0 {
            thread::sleep(Duration::from_micros(200));
        }
        match random.u64(..64) {
            0 => drop(waits.cancel_for_key(&1)),
            1 => thread::yield_now(),
            _ => {}
        }
    }
    let count = |times| {
        let done = done.iter().map(|done| done.load(Ordering::Relaxed));
        done.filter(|done| *done == times).count()
    };
    eventually("the last job", || count(0) == 0);
    // It drops the tasks, and returns when none runs.
    drop(runtime);
    assert_eq!((count(1), jobs.len()), (JOBS, 0));
    assert_eq!(waits.stats().panicked, 0);
    eventually("the end of all", || waits.is_empty());
    begun.load(Ordering::Relaxed)
}

#[test]
fn g23_g26_an_abort_storm_does_each_job_once() {
    let begun = within(PATIENCE * 2, abort_storm);
    assert!(begun > JOBS, "some were begun again: {begun}");
}

/// Takes arrive while jobs are pushed and checked. What a take keeps of what it took on arrival, no earlier one was
/// waiting for. In the end no job lies beside a take that waits.
#[test]
fn g27_a_storm_with_arrival_numbers() {
    const ROUNDS: usize = 2_000;
    within(PATIENCE, || {
        let (waits, jobs) = (Waits::<u64>::new("arrivals"), Jobs::default());
        // The takes that wait, by their number.
        let waiting = Arc::new(Mutex::new(BTreeSet::new()));
        let (first_waits, begin) = channel::<()>();
        let (checks, pushes) = (waits.clone(), jobs.clone());
        let producer = thread::spawn(move || {
            begin.recv().expect("the first take waits");
            for job in 0..ROUNDS {
                pushes.push(&checks, job);
                if job % 7 == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut takes = Vec::new();
        for number in 0..ROUNDS {
            let before = lock(&waiting).clone();
            let kept_on_arrival = Arc::new(AtomicBool::new(false));
            let (source, returns, kept) = (jobs.clone(), jobs.clone(), kept_on_arrival.clone());
            let (served, returned, unkept) = (waiting.clone(), waiting.clone(), kept.clone());
            let take = move |cause: Cause<'_, u64>| {
                let job = source.pop()?;
                lock(&served).remove(&number);
                kept.store(cause.is_parking(), Ordering::SeqCst);
                Some(job)
            };
            let give_back = move |job| {
                lock(&returned).insert(number);
                unkept.store(false, Ordering::SeqCst);
                returns.give_back(job);
            };
            lock(&waiting).insert(number);
            takes.push(waits.take([1], NEVER_IN_A_TEST, take, give_back));
            if number == 0 {
                first_waits.send(()).expect("the producer");
            }
            if kept_on_arrival.load(Ordering::SeqCst) {
                let left = &before & &lock(&waiting);
                assert!(left.is_empty(), "{number} overtook {left:?}");
            }
        }
        producer.join().expect("a producer");
        let received = |take| block_on::<Take<u64, usize>>(take).expect("a job for each");
        let got = takes.into_iter().map(|take| received(take).done());
        assert!(got.collect::<BTreeSet<_>>().into_iter().eq(0..ROUNDS));
        assert_eq!(jobs.len(), 0);
    });
}

const KEYS: usize = 4;

/// One of the two ways to name a key, at a rank or not.
fn watch<'a>(
    key: usize,
    resolved: &'a [ResolvedKey<WaitOperation<usize>>],
    random: &mut Rng,
) -> Watch<'a, usize> {
    let watch = match random.bool() {
        true => Watch::from(key),
        false => resolved[key].watch(),
    };
    match random.u64(..3) {
        0 => watch.at_rank(random.u64(..3)),
        _ => watch,
    }
}

/// Calls at random. After each, and once the timer was driven, no job lies beside a take that waits for it, and each
/// job was done once or is there.
#[test]
fn g25_g26_g27_random_calls_leave_no_job_beside_a_take() {
    for seed in 0..200 {
        let mut random = Rng::with_seed(seed);
        let (waits, clock): (Waits<usize>, _) = built(|builder| builder);
        // The jobs of each key. Each job is of the key that is the rest of its number.
        let queues = <[Jobs; KEYS]>::default();
        let resolved = (0..KEYS).map(|key| waits.resolve(key)).collect::<Vec<_>>();
        let (mut takes, mut guards) = (Vec::<(Vec<usize>, Take<usize, usize>)>::new(), Vec::new());
        let (mut put, mut finished) = (0, 0);
        for step in 0..200 {
            let key = random.usize(..KEYS);
            match random.u64(..10) {
                0..3 => {
                    let keys = (0..KEYS).filter(|_| random.bool());
                    let keys = keys.chain([key]).collect::<Vec<_>>();
                    let watches = keys.iter().map(|key| watch(*key, &resolved, &mut random));
                    let watches = watches.collect::<Vec<_>>();
                    let timeout = Duration::from_millis(random.u64(..20));
                    let (source, returns, own) = (queues.clone(), queues.clone(), keys.clone());
                    let take = move |cause: Cause<'_, usize>| match cause.key() {
                        Some(key) => source[*key].pop(),
                        None => own.iter().find_map(|key| source[*key].pop()),
                    };
                    let give_back = move |job: usize| returns[job % KEYS].give_back(job);
                    takes.push((keys, waits.take(watches, timeout, take, give_back)));
                }
                3..6 => {
                    put += 1;
                    queues[key].put(put * KEYS + key);
                    let resolved = &resolved[key];
                    let one = CheckBound::at_most(1);
                    let refused = CheckBound::all().until_refused();
                    match random.u64(..6) {
                        0 => waits.check_later(key),
                        1 => _ = waits.check_and_complete_all([&key, &((key + 1) % KEYS)]),
                        2 => _ = resolved.check_and_complete_with(one),
                        3 => _ = waits.check_and_complete_with(&key, refused),
                        _ => _ = waits.check_and_complete_with(&key, one),
                    }
                }
                6 if !guards.is_empty() => drop(guards.swap_remove(0)),
                7 => {
                    finished += guards.len();
                    guards.drain(..).for_each(|it: Taken<usize>| _ = it.done());
                }
                8 if !takes.is_empty() => {
                    let at = random.usize(..takes.len());
                    drop(takes.swap_remove(at));
                }
                _ => clock.advance(Duration::from_millis(3)),
            }
            waits.advance();
            takes.retain_mut(|(_, take)| match Bell::new().poll(take) {
                Poll::Pending => true,
                Poll::Ready(end) => {
                    assert!(matches!(end, Ok(_) | Err(WaitError::Expired)), "{end:?}");
                    guards.extend(end);
                    false
                }
            });
            for key in takes.iter().flat_map(|(keys, _)| keys) {
                assert_eq!(queues[*key].len(), 0, "{seed}, {step}: beside {key}");
            }
            let there = queues.iter().map(Jobs::len).sum::<usize>();
            assert_eq!(there + guards.len() + finished, put, "{seed}, {step}");
        }
    }
}
