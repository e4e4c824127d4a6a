//! Takes: what was taken is received once, or given back once.

use crate::support::bell::Bell;
use crate::support::keys::{Fragile, Hook, with_fuse};
use crate::support::{NEVER_IN_A_TEST, PATIENCE, Tally, eventually, lock, on_a_stack_of, within};
use crate::{assert_empty, by_hand, now};
use request_purgatory::future::{Taken, WaitError, WaitFuture, WaitOperation, block_on};
use request_purgatory::{CheckBound, Waits, threads::Reaper};
use std::any::Any;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

/// Jobs, as users keep them.
#[derive(Clone, Default)]
struct Jobs(Arc<Mutex<VecDeque<usize>>>);

impl Jobs {
    fn push(&self, job: usize) {
        lock(&self.0).push_back(job);
    }

    fn pop(&self) -> Option<usize> {
        lock(&self.0).pop_front()
    }

    fn len(&self) -> usize {
        lock(&self.0).len()
    }

    fn take(
        &self,
        waits: &Waits<u64>,
        timeout: Duration,
    ) -> WaitFuture<WaitOperation<u64>, Taken<usize>> {
        let (takes, returns) = (self.clone(), self.clone());
        waits.take(
            [1],
            timeout,
            move |_| takes.pop(),
            move |job| lock(&returns.0).push_front(job),
        )
    }
}

/// Waits for the value, and keeps it.
fn received<T>(take: WaitFuture<WaitOperation<u64>, Taken<T>>) -> Result<T, WaitError> {
    block_on(take).map(Taken::done)
}

#[test]
fn g23_what_was_taken_is_received_once() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    jobs.push(1);
    assert_eq!(
        received(jobs.take(&waits, NEVER_IN_A_TEST)),
        Ok(1),
        "at once"
    );
    let mut take = jobs.take(&waits, NEVER_IN_A_TEST);
    let bell = Bell::new();
    assert!(bell.poll(&mut take).is_pending());
    jobs.push(2);
    assert_eq!(waits.check_and_complete_with(&1, CheckBound::at_most(1)), 1);
    assert_eq!(bell.poll(&mut take).map_ok(Taken::done), Poll::Ready(Ok(2)));
    assert!(bell.poll(&mut take).is_pending(), "and only once");
    drop(take);
    assert_eq!(jobs.len(), 0, "what was received is not given back");
    assert_empty(&waits);
}

#[test]
fn g23_what_was_not_received_goes_to_the_next_waiter() {
    let (waits, clock) = by_hand();
    let jobs = Jobs::default();
    // At once, by a check, and at the deadline; polled before or not.
    for (kind, polled) in [(0, false), (1, false), (1, true), (2, false), (2, true)] {
        if kind == 0 {
            jobs.push(kind);
        }
        let mut first = jobs.take(&waits, Duration::from_secs(1));
        let mut second = jobs.take(&waits, NEVER_IN_A_TEST);
        let bell = Bell::new();
        assert!(bell.poll(&mut second).is_pending());
        if polled {
            assert!(Bell::new().poll(&mut first).is_pending());
        }
        match kind {
            0 => {}
            1 => {
                jobs.push(kind);
                assert_eq!(waits.check_and_complete_with(&1, CheckBound::at_most(1)), 1);
            }
            _ => {
                jobs.push(kind);
                clock.advance(Duration::from_secs(1));
                assert_eq!(waits.advance(), 1);
                eventually("the completion thread", || waits.stats().expired > 0);
            }
        }
        assert_eq!((jobs.len(), bell.rung()), (0, 0), "the first has it");
        drop(first);
        eventually("a wake-up", || bell.rung() == 1);
        assert_eq!(received(second), Ok(kind));
        assert_empty(&waits);
    }
}

/// What goes back is for the waiters of every key that the take watched.
#[test]
fn g23_what_was_not_received_is_offered_on_each_key() {
    let (waits, _clock) = by_hand();
    let shelves = [Jobs::default(), Jobs::default()];
    let bell = Bell::new();
    let take = |keys: Vec<u64>, from: usize| {
        let (takes, returns) = (shelves[from].clone(), shelves.clone());
        let give_back = move |job| returns.iter().for_each(|shelf| shelf.push(job));
        let mut take = waits.take(keys, NEVER_IN_A_TEST, move |_| takes.pop(), give_back);
        assert!(bell.poll(&mut take).is_pending());
        take
    };
    let dropped = take(vec![1, 2, 3], 0);
    let mut others = [take(vec![2], 0), take(vec![3], 1)];
    shelves[0].push(7);
    assert_eq!(waits.check_and_complete(&1), 1);
    drop(dropped);
    for other in &mut others {
        assert_eq!(bell.poll(other).map_ok(Taken::done), Poll::Ready(Ok(7)));
    }
    assert_empty(&waits);
}

#[test]
fn g23_without_another_waiter_it_lies_where_it_lay() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    let take = jobs.take(&waits, NEVER_IN_A_TEST);
    jobs.push(1);
    jobs.push(2);
    assert_eq!(waits.check_and_complete(&1), 1);
    drop(take);
    assert_eq!(
        (jobs.pop(), jobs.pop(), jobs.pop()),
        (Some(1), Some(2), None)
    );
    // Also after the shutdown, and without the purgatory.
    jobs.push(3);
    let take = jobs.take(&waits, NEVER_IN_A_TEST);
    waits.shutdown();
    drop(waits);
    drop(take);
    assert_eq!(jobs.len(), 1);
}

/// The thread that has just taken the value finds the future gone: it gives the value back.
#[test]
fn g23_dropping_while_another_thread_takes() {
    within(PATIENCE, || {
        let waits = Waits::<u64>::new("busy");
        let jobs = Jobs::default();
        let ((entered, inside), (leave, left)) = (channel(), channel());
        let (takes, returns) = (jobs.clone(), jobs.clone());
        let (thread_of, told) = channel();
        let mut examinations = 0;
        let first = waits.take(
            [1, 2],
            NEVER_IN_A_TEST,
            move |_| {
                examinations += 1;
                (examinations > 2).then(|| {
                    let job = takes.pop()?;
                    entered.send(()).expect("the test waits for it");
                    left.recv().expect("the test lets it go");
                    Some(job)
                })?
            },
            move |job| {
                thread_of
                    .send(thread::current().id())
                    .expect("the test asks");
                returns.push(job);
            },
        );
        let second = jobs.take(&waits, NEVER_IN_A_TEST);
        jobs.push(7);
        let checker = thread::spawn({
            let waits = waits.clone();
            move || {
                waits.check_and_complete_with(&2, CheckBound::at_most(1));
                thread::current().id()
            }
        });
        inside.recv().expect("the predicate takes");
        drop(first);
        leave.send(()).expect("the predicate waits for it");
        assert_eq!(received(second), Ok(7));
        let checker = checker.join().expect("it does not panic");
        assert_eq!(told.recv(), Ok(checker));
        assert_eq!((waits.stats().parked, waits.watched_keys()), (0, 0));
    });
}

/// Each of those that are dropped hands it to the next: no stack is needed, however many they are.
#[test]
fn g14_a_value_goes_through_many_hands() {
    const HANDS: usize = 20_000;
    let test = || {
        let (waits, _clock) = by_hand();
        let jobs = Jobs::default();
        let takes = (0..HANDS).map(|_| jobs.take(&waits, NEVER_IN_A_TEST));
        let takes = takes.collect::<VecDeque<_>>();
        let last = jobs.take(&waits, NEVER_IN_A_TEST);
        jobs.push(1);
        assert_eq!(waits.check_and_complete_with(&1, CheckBound::at_most(1)), 1);
        drop(takes);
        assert_eq!(received(last), Ok(1));
        assert_empty(&waits);
    };
    on_a_stack_of(128, test);
}

/// Under no lock: it may call everything.
#[test]
fn g03_giving_back_may_call_the_purgatory() {
    within(PATIENCE, || {
        let (waits, _clock) = by_hand();
        let jobs = Jobs::default();
        let (takes, returns, again) = (jobs.clone(), jobs.clone(), waits.clone());
        let first = waits.take(
            [1],
            NEVER_IN_A_TEST,
            move |_| takes.pop(),
            move |job| {
                returns.push(job);
                returns.push(job + 1);
                again.check_and_complete(&1);
                drop(again.cancel_for_key(&2));
            },
        );
        let (second, third) = (
            jobs.take(&waits, NEVER_IN_A_TEST),
            jobs.take(&waits, NEVER_IN_A_TEST),
        );
        let cancelled = waits.wait([2], NEVER_IN_A_TEST, || None::<u8>);
        jobs.push(1);
        assert_eq!(waits.check_and_complete_with(&1, CheckBound::at_most(1)), 1);
        drop(first);
        assert_eq!((received(second), received(third)), (Ok(1), Ok(2)));
        assert_eq!(now(cancelled), Err(WaitError::Cancelled));
    });
}

#[test]
fn g12_giving_back_may_panic() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    let takes = jobs.clone();
    let first = waits.take(
        [1],
        NEVER_IN_A_TEST,
        move |_| takes.pop(),
        |_| panic!("on purpose"),
    );
    let second = jobs.take(&waits, NEVER_IN_A_TEST);
    jobs.push(1);
    assert_eq!(waits.check_and_complete_with(&1, CheckBound::at_most(1)), 1);
    jobs.push(2);
    drop(first);
    assert_eq!(waits.stats().panicked, 1);
    assert_eq!(received(second), Ok(2), "the key was checked");
}

#[test]
fn g23_takes_on_resolved_keys_and_at_ranks() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    let key = waits.resolve(9);
    let take = |rank| {
        let (takes, returns) = (jobs.clone(), jobs.clone());
        let watches = [key.watch().at_rank(rank)];
        let give_back = move |job| returns.push(job);
        waits.take(watches, NEVER_IN_A_TEST, move |_| takes.pop(), give_back)
    };
    let (near, far) = (take(1), take(2));
    jobs.push(5);
    assert_eq!(
        waits.check_and_complete_with(&9, CheckBound::at_most(1).up_to(1)),
        1
    );
    drop(near);
    assert_eq!(received(far), Ok(5));
}

/// A key whose `Hash` panics when the value is offered again: the panic is counted, and goes no further.
#[test]
fn g23_a_key_that_panics_when_a_value_goes_back_is_counted() {
    let waits = Waits::<Fragile>::builder("g23-fragile").reaper(Reaper::Manual);
    let waits = waits.build().expect("no threads to refuse");
    // Where no key was ever watched, none is hashed.
    let _watched = waits.wait([Fragile(2)], NEVER_IN_A_TEST, || None::<()>);
    let returned = Tally::new();
    let returns = returned.clone();
    let give_back = move |()| returns.add();
    let take = waits.take([Fragile(1)], NEVER_IN_A_TEST, |_| Some(()), give_back);
    assert!(with_fuse(1, Hook::Hash, || drop(take)).is_ok());
    assert_eq!((returned.count(), waits.stats().panicked), (1, 1));
}

#[test]
fn every_end_without_a_value_gives_nothing_back() {
    let (waits, clock) = by_hand();
    let jobs = Jobs::default();
    let expired = jobs.take(&waits, Duration::from_secs(1));
    clock.advance(Duration::from_secs(1));
    waits.advance();
    eventually("the end", || {
        expired.handle().is_none_or(|handle| !handle.is_parked())
    });
    assert_eq!(received(expired), Err(WaitError::Expired));
    let forced = jobs.take(&waits, NEVER_IN_A_TEST);
    waits.force_complete_for_key(&1);
    assert_eq!(received(forced), Err(WaitError::Forced));
    let cancelled = jobs.take(&waits, NEVER_IN_A_TEST);
    drop(waits.cancel_for_key(&1));
    assert_eq!(received(cancelled), Err(WaitError::Cancelled));
    assert_eq!((jobs.len(), waits.stats().panicked), (0, 0));
    fn check<T: Send + Unpin + std::fmt::Debug + 'static>() {}
    check::<WaitFuture<WaitOperation<u64>, Taken<usize>>>();
}

/// Workers are aborted at any moment, thousands of them, while jobs come; short timeouts, cancels and shared keys
/// besides. Every job is processed exactly once.
#[test]
fn g23_an_abort_storm_loses_and_doubles_nothing() {
    const JOBS: usize = 20_000;
    const WORKERS: usize = 16;
    within(PATIENCE * 2, || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build()
            .expect("threads for tokio");
        let waits = Waits::<u64>::new("storm");
        let jobs = Jobs::default();
        let processed = Arc::new((0..JOBS).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
        let worker = |timeout: Duration| {
            let (waits, jobs, processed) = (waits.clone(), jobs.clone(), processed.clone());
            runtime.spawn(async move {
                loop {
                    match jobs.take(&waits, timeout).await {
                        // No await between receiving and processing, as aborts go.
                        Ok(job) => _ = processed[job.done()].fetch_add(1, Ordering::Relaxed),
                        Err(WaitError::Expired | WaitError::Cancelled) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        };
        let mut random = fastrand::Rng::with_seed(23);
        let timeout = |random: &mut fastrand::Rng| match random.u64(..2) {
            0 => Duration::from_millis(1 + random.u64(..3)),
            _ => NEVER_IN_A_TEST,
        };
        let mut workers = Vec::new();
        for _ in 0..WORKERS {
            workers.push(worker(timeout(&mut random)));
        }
        let mut aborted = 0;
        for job in 0..JOBS {
            jobs.push(job);
            waits.check_and_complete_with(&1, CheckBound::at_most(1));
            if random.u64(..4) == 0 {
                let at = random.usize(..WORKERS);
                workers[at].abort();
                aborted += 1;
                workers[at] = worker(timeout(&mut random));
            }
            match random.u64(..64) {
                0 => drop(waits.cancel_for_key(&1)),
                1 => thread::yield_now(),
                2 => thread::sleep(Duration::from_micros(200)),
                _ => {}
            }
        }
        let count = || {
            processed
                .iter()
                .map(|times| times.load(Ordering::Relaxed))
                .sum::<usize>()
        };
        eventually("the last job", || count() >= JOBS);
        workers.iter().for_each(|worker| worker.abort());
        thread::sleep(Duration::from_millis(20));
        let times = |wanted: fn(usize) -> bool| {
            processed
                .iter()
                .filter(|times| wanted(times.load(Ordering::Relaxed)))
                .count()
        };
        assert_eq!(
            (times(|times| times == 0), times(|times| times > 1)),
            (0, 0)
        );
        assert!(aborted > 4_000, "{aborted}");
        assert_eq!((jobs.len(), waits.stats().panicked), (0, 0));
        drop(runtime);
        eventually("the end of all", || waits.is_empty());
    });
}

/// Keys that are references, in the method of a type, in spawned tasks: `Send` must not be too special for that.
#[test]
fn all_of_them_can_be_awaited_in_spawned_methods() {
    struct Service {
        waits: Waits<&'static str>,
        jobs: Jobs,
    }
    impl Service {
        async fn take(&self) -> Result<usize, WaitError> {
            let (takes, returns) = (self.jobs.clone(), self.jobs.clone());
            let give_back = move |job| returns.push(job);
            self.waits
                .take(["key"], NEVER_IN_A_TEST, move |_| takes.pop(), give_back)
                .await
                .map(Taken::done)
        }

        async fn until(&self) -> Result<usize, WaitError> {
            let pop = || async { self.jobs.pop() };
            self.waits.listen(["key"], NEVER_IN_A_TEST).until(pop).await
        }

        async fn listen(&self) -> Result<(), WaitError> {
            self.waits.listen(["key"], NEVER_IN_A_TEST).checked().await
        }
    }
    let (waits, jobs) = (Waits::new("spawned"), Jobs::default());
    let service = Arc::new(Service { waits, jobs });
    let runtime = tokio::runtime::Runtime::new().expect("threads for tokio");
    let [first, second, third] = [0; 3].map(|_| service.clone());
    let take = runtime.spawn(async move { first.take().await });
    let until = runtime.spawn(async move { second.until().await });
    let listen = runtime.spawn(async move { third.listen().await });
    eventually("three who wait", || service.waits.stats().parked == 3);
    (1..3).for_each(|job| service.jobs.push(job));
    // (One that is counted may not be on its list yet.)
    eventually("they are told", || {
        service.waits.check_and_complete("key");
        listen.is_finished()
    });
    runtime.block_on(async {
        let found = [take, until].map(|task| async { task.await.expect("no panic") });
        let [take, until] = found;
        let mut found = [take.await, until.await];
        found.sort_unstable_by_key(|found| *found.as_ref().unwrap_or(&0));
        assert_eq!(found, [Ok(1), Ok(2)]);
        assert_eq!(listen.await.expect("no panic"), Ok(()));
    });
}

/// What a plain `wait` does in the same place: the reason for `take`.
#[test]
fn a_plain_wait_drops_what_it_found() {
    let (waits, _clock) = by_hand();
    let jobs = Jobs::default();
    for job in 0..100 {
        let takes = jobs.clone();
        let wait = waits.wait([1], NEVER_IN_A_TEST, move || takes.pop());
        jobs.push(job);
        assert_eq!(waits.check_and_complete(&1), 1);
        drop(wait);
    }
    assert_eq!(jobs.len(), 0, "100 of 100 are lost");
}

/// An operation drops a take or its guard in each of two examinations, the second of them by a nested check. Both values
/// are offered to the workers that wait.
#[test]
fn g23_values_that_go_back_in_nested_examinations_are_all_offered() {
    within(PATIENCE, || {
        [false, true].map(values_go_back_in_nested_examinations)
    });
}

fn values_go_back_in_nested_examinations(received: bool) {
    let waits = Waits::<u32>::builder("g23").reaper(Reaper::Manual).build();
    let waits = waits.expect("no threads to refuse");
    let jobs = Arc::new(Mutex::new(VecDeque::from([1, 2])));
    let take = || {
        let (taken, back) = (jobs.clone(), jobs.clone());
        waits.take(
            [7],
            NEVER_IN_A_TEST,
            move |_| lock(&taken).pop_front(),
            move |job| lock(&back).push_front(job),
        )
    };
    let hand = |take: WaitFuture<WaitOperation<u32>, Taken<i32>>| -> Box<dyn Any + Send> {
        match received {
            true => Box::new(now(take).expect("a job")),
            false => Box::new(take),
        }
    };
    let hands = Arc::new(Mutex::new(vec![hand(take()), hand(take())]));
    let mut workers = [take(), take()];
    let (weak, dropped, mut examinations) = (waits.downgrade(), hands.clone(), 0);
    // Key 1 has two watchers, so its check is not that of one operation.
    let _listener = waits.listen([1], NEVER_IN_A_TEST);
    let _wait = waits.wait([1], NEVER_IN_A_TEST, move || {
        examinations += 1;
        if examinations > 2 {
            let hand = lock(&dropped).pop();
            drop(hand);
            if let Some(waits) = weak.upgrade() {
                waits.check_and_complete(&1);
            }
        }
        None::<()>
    });
    waits.check_and_complete(&1);
    waits.advance();
    assert!(lock(&hands).is_empty() && lock(&jobs).is_empty());
    let mut cx = Context::from_waker(Waker::noop());
    for worker in &mut workers {
        assert!(Pin::new(worker).poll(&mut cx).is_ready());
    }
}

/// The value has gone back; that its key cannot be checked is counted.
#[test]
fn g12_a_key_that_panics_after_a_value_went_back_is_counted() {
    within(PATIENCE, || {
        let waits = Waits::<Fragile>::builder("g12")
            .reaper(Reaper::Manual)
            .build();
        let waits = waits.expect("no threads to refuse");
        // Where no key was ever watched, none is hashed.
        let _watched = waits.wait([Fragile(2)], NEVER_IN_A_TEST, || None::<()>);
        let back = Arc::new(AtomicUsize::new(0));
        let given = back.clone();
        let take = waits.take(
            [Fragile(1)],
            NEVER_IN_A_TEST,
            |_| Some(7),
            move |_| _ = given.fetch_add(1, Ordering::SeqCst),
        );
        assert!(with_fuse(1, Hook::Hash, || drop(take)).is_ok());
        assert_eq!(back.load(Ordering::SeqCst), 1);
        assert_eq!(waits.stats().panicked, 1);
    });
}
