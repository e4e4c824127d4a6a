//! Takes and their guards where they are awkward: inside callbacks, in chains, on keys of every kind, with limits (G14,
//! G25, G26, G27).

use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, PATIENCE, Tally, lock, on_a_stack_of, within};
use crate::{assert_empty, by_hand, now};
use request_purgatory::future::{Taken, WaitError, WaitFuture, WaitOperation};
use request_purgatory::threads::Reaper;
use request_purgatory::{CheckBound, Completion, DelayedOperation, ResolvedKey, Waits, Watch};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

/// The key of a queue, and a job.
type Job = (u64, usize);
type Take = WaitFuture<WaitOperation<u64>, Taken<Job>>;

/// Jobs by key.
#[derive(Clone, Default)]
struct Queues(Arc<Mutex<HashMap<u64, VecDeque<usize>>>>);

impl Queues {
    fn put(&self, key: u64, job: usize) {
        lock(&self.0).entry(key).or_default().push_back(job);
    }

    fn give_back(&self, (key, job): Job) {
        lock(&self.0).entry(key).or_default().push_front(job);
    }

    /// From the key that is named, or from the first that has one.
    fn pop(&self, named: Option<&u64>, keys: &[u64]) -> Option<Job> {
        let mut queues = lock(&self.0);
        let mut pop = |key: &u64| Some((*key, queues.get_mut(key)?.pop_front()?));
        match named {
            Some(key) => pop(key),
            None => keys.iter().find_map(pop),
        }
    }

    fn len(&self, key: u64) -> usize {
        lock(&self.0).get(&key).map_or(0, VecDeque::len)
    }

    fn take(&self, waits: &Waits<u64>, keys: &[u64], timeout: Duration) -> Take {
        let watches = keys.iter().copied().map(Watch::from).collect();
        self.take_on(waits, keys, watches, timeout)
    }

    fn take_on(
        &self,
        waits: &Waits<u64>,
        keys: &[u64],
        watches: Vec<Watch<'_, u64>>,
        timeout: Duration,
    ) -> Take {
        let (takes, returns, keys) = (self.clone(), self.clone(), keys.to_vec());
        waits.take(
            watches,
            timeout,
            move |cause| takes.pop(cause.key(), &keys),
            move |job| returns.give_back(job),
        )
    }
}

fn check(waits: &Waits<u64>, key: u64) -> usize {
    waits.check_and_complete_with(&key, CheckBound::at_most(1))
}

fn done(take: Take) -> usize {
    now(take).expect("a job").done().1
}

fn is_pending(take: &mut Take) -> bool {
    Bell::new().poll(take).is_pending()
}

/// Guards that own one another: by the closure that gives back, and by the value.
#[test]
fn g14_a_chain_of_guards_needs_no_stack() {
    const LINKS: usize = 20_000;
    struct Link(
        #[expect(dead_code, reason = "it is there to be dropped")] Option<Box<Taken<Link>>>,
    );
    let by_closure = |returned: &Arc<Tally>| {
        let (waits, _clock) = by_hand();
        let mut last = None;
        for _ in 0..LINKS {
            let (owned, returned) = (last.take(), returned.clone());
            let give_back = move |_| {
                let _ = &owned;
                returned.add();
            };
            let take = waits.take([1], None, |_| Some(0), give_back);
            last = Some(now(take).expect("it is there"));
        }
        last.expect("the last")
    };
    on_a_stack_of(128, move || {
        let returned = Tally::new();
        drop(by_closure(&returned));
        assert_eq!(returned.count(), LINKS as u64, "all have gone back");
    });
    on_a_stack_of(128, move || {
        let returned = Tally::new();
        assert_eq!(by_closure(&returned).done(), 0);
        assert_eq!(returned.count(), LINKS as u64 - 1);
    });
    on_a_stack_of(128, || {
        let (waits, _clock) = by_hand();
        let mut last = None;
        for _ in 0..LINKS {
            let mut owned = Some(Link(last.take()));
            let take = waits.take([1], None, move |_| owned.take(), drop);
            last = Some(Box::new(now(take).expect("it is there")));
        }
        drop(last);
    });
}

/// An operation whose every examination makes a take that finds a job, and drops it. What goes back causes a check, and
/// that an examination. Each call returns all the same.
#[test]
fn g14_a_predicate_that_tries_to_take_does_not_keep_its_thread() {
    within(PATIENCE, || {
        let (waits, _clock) = by_hand();
        let (queues, examinations) = (Queues::default(), Arc::new(AtomicUsize::new(0)));
        let (inside, tries, count) = (waits.downgrade(), queues.clone(), examinations.clone());
        queues.put(1, 7);
        let prober = waits.wait([1], NEVER_IN_A_TEST, move || {
            count.fetch_add(1, Ordering::Relaxed);
            drop(tries.take(&inside.upgrade()?, &[1], Duration::ZERO));
            None::<()>
        });
        for _ in 0..10 {
            waits.check_and_complete(&1);
            waits.advance();
        }
        assert!(examinations.load(Ordering::Relaxed) <= 100);
        assert_eq!(queues.len(1), 1);
        drop(prober);
        waits.advance();
        assert_eq!(done(queues.take(&waits, &[1], NEVER_IN_A_TEST)), 7);
        assert_empty(&waits);
    });
}

/// The inner one is a newcomer, since the outer one watches the key.
#[test]
fn g27_a_take_inside_a_predicate_leaves_the_job_to_those_that_wait() {
    let (waits, _clock) = by_hand();
    let queues = Queues::default();
    let inner = Arc::new(Mutex::new(Vec::new()));
    let (inside, takes, returns, made) = (
        waits.downgrade(),
        queues.clone(),
        queues.clone(),
        inner.clone(),
    );
    let outer = waits.take(
        [1],
        NEVER_IN_A_TEST,
        move |cause| {
            if !cause.is_parking() {
                let inside = inside.upgrade()?;
                lock(&made).push(takes.take(&inside, &[1], NEVER_IN_A_TEST));
            }
            takes.pop(cause.key(), &[1])
        },
        move |job| returns.give_back(job),
    );
    queues.put(1, 7);
    assert_eq!(check(&waits, 1), 1);
    let first = now(outer).expect("a job");
    let mut inner = lock(&inner).pop().expect("it was made");
    assert!(is_pending(&mut inner));
    drop(first);
    assert_eq!(done(inner), 7);
    assert_empty(&waits);
}

/// Whether another one waits is asked after the newcomer has taken, not before.
#[test]
fn g27_a_take_that_comes_while_a_newcomer_looks_is_not_overtaken() {
    let (waits, _clock) = by_hand();
    let (queues, earlier) = (Queues::default(), Arc::new(Mutex::new(None)));
    let (inside, takes, returns) = (waits.downgrade(), queues.clone(), queues.clone());
    let made = earlier.clone();
    let mut newcomer = waits.take(
        [1],
        NEVER_IN_A_TEST,
        move |cause| {
            let inside = inside.upgrade()?;
            lock(&made).get_or_insert_with(|| {
                let waiting = takes.take(&inside, &[1], NEVER_IN_A_TEST);
                takes.put(1, 7);
                waiting
            });
            takes.pop(cause.key(), &[1])
        },
        move |job| returns.give_back(job),
    );
    let earlier = lock(&earlier).take().expect("it was made");
    assert_eq!((is_pending(&mut newcomer), done(earlier)), (true, 7));
    drop(newcomer);
    assert_empty(&waits);
}

/// In a predicate, in `give_back`, and in the `on_complete` of another purgatory.
#[test]
fn g26_a_guard_that_is_dropped_in_a_callback_goes_to_the_next() {
    let (waits, _clock) = by_hand();
    let (others, _) = by_hand();
    let queues = Queues::default();
    let guard = |job| {
        queues.put(1, job);
        Some(now(queues.take(&waits, &[1], NEVER_IN_A_TEST)).expect("a job"))
    };
    let (mut in_predicate, in_give_back) = (guard(1), guard(2));
    struct Answer(Option<Taken<Job>>);
    let in_destructor = Answer(guard(3));
    let next = [(); 3].map(|()| queues.take(&waits, &[1], NEVER_IN_A_TEST));
    let wait = others.wait([1], NEVER_IN_A_TEST, move || {
        in_predicate.take().is_none().then_some(())
    });
    let give_back = {
        let mut in_give_back = in_give_back;
        let take = others.take([2], None, |_| Some(()), move |()| drop(in_give_back.take()));
        now(take).expect("it is there")
    };
    drop(give_back);
    let mut answer = Some(in_destructor);
    let completed = others.wait([3], NEVER_IN_A_TEST, move || {
        (answer.as_ref()?.0.is_some()).then(|| answer.take())
    });
    drop(completed); // before its value was received
    waits.advance();
    let mut got = next.map(done);
    got.sort_unstable();
    assert_eq!(got, [1, 2, 3]);
    assert_eq!(now(wait), Ok(()));
    assert_empty(&waits);
}

/// A worker that takes the next job where it gives one back; and one that takes back what it gives.
#[test]
fn g26_a_take_inside_give_back() {
    let (waits, _clock) = by_hand();
    let queues = Queues::default();
    let made = Arc::new(Mutex::new(Vec::new()));
    let (inside, takes, returns, into) = (
        waits.downgrade(),
        queues.clone(),
        queues.clone(),
        made.clone(),
    );
    let take = |key: u64| {
        let (inside, takes) = (inside.clone(), takes.clone());
        let (returns, into) = (returns.clone(), into.clone());
        waits.take(
            [key],
            NEVER_IN_A_TEST,
            move |cause| takes.pop(cause.key(), &[key]),
            move |job| {
                returns.give_back(job);
                if let Some(inside) = inside.upgrade() {
                    let next = returns.take(&inside, &[key], NEVER_IN_A_TEST);
                    lock(&into).push(next);
                }
            },
        )
    };
    // Without another waiter, the new take has the job at once.
    queues.put(1, 1);
    drop(now(take(1)).expect("a job"));
    assert_eq!(done(lock(&made).pop().expect("it was made")), 1);
    // With another, that one has it; and on arrival the same.
    let waiting = queues.take(&waits, &[1], NEVER_IN_A_TEST);
    queues.put(1, 2);
    let newcomer = take(1);
    assert_eq!(done(waiting), 2);
    queues.put(1, 3);
    assert_eq!(check(&waits, 1), 1);
    let mut all = std::mem::take(&mut *lock(&made));
    all.push(newcomer);
    let got = all.iter_mut().map(|take| Bell::new().poll(take));
    let got = got.collect::<Vec<_>>();
    let jobs = got.iter().filter(|polled| polled.is_ready()).count();
    assert_eq!((jobs, queues.len(1)), (1, 0));
    drop((all, got));
    lock(&made).clear();
    assert_eq!((queues.len(1), waits.stats().parked), (1, 0));
}

/// The predicate drops its own future, or ends the purgatory, and then takes.
#[test]
fn g23_a_take_that_loses_its_future_while_it_takes() {
    for shuts_down in [false, true] {
        let (waits, _clock) = by_hand();
        let queues = Queues::default();
        let own = Arc::new(Mutex::new(None::<Take>));
        let (takes, returns) = (queues.clone(), queues.clone());
        let (mine, inside) = (own.clone(), waits.downgrade());
        let take = waits.take(
            [1],
            NEVER_IN_A_TEST,
            move |cause| {
                if !cause.is_parking() {
                    drop(lock(&mine).take());
                    inside
                        .upgrade()
                        .filter(|_| shuts_down)
                        .inspect(Waits::shutdown);
                }
                takes.pop(cause.key(), &[1])
            },
            move |job| returns.give_back(job),
        );
        *lock(&own) = Some(take);
        queues.put(1, 7);
        check(&waits, 1);
        waits.advance();
        assert_eq!((queues.len(1), waits.stats().parked), (1, 0));
    }
}

/// A take that has been taken back, and is examined, or ended, by hand.
#[test]
fn g26_an_operation_in_the_users_hands_loses_nothing() {
    let (waits, _clock) = by_hand();
    let queues = Queues::default();
    let take = queues.take(&waits, &[1], NEVER_IN_A_TEST);
    let mut operations = waits.cancel_for_key(&1);
    queues.put(1, 1);
    queues.put(1, 2);
    let operation = operations.first_mut().expect("it was parked");
    assert!(operation.try_complete());
    assert_eq!(queues.len(1), 1);
    assert!(!operation.try_complete(), "it has no way back for another");
    assert_eq!(queues.len(1), 2, "what it had went back");
    drop(operations);
    assert_eq!(now(take).err(), Some(WaitError::Cancelled));
    assert_eq!(lock(&queues.0)[&1], [1, 2]);
    // One whose future is gone is ended: the guard that it has is dropped in no call of the library.
    let take = queues.take(&waits, &[2], NEVER_IN_A_TEST);
    let mut operation = waits.cancel_for_key(&2).pop().expect("it was parked");
    queues.put(2, 3);
    assert!(operation.try_complete());
    drop(take);
    within(PATIENCE, || operation.on_complete(Completion::Satisfied));
    assert_eq!(queues.len(2), 1, "it went back");
}

/// Ends an operation when it is dropped.
struct Ends(Option<WaitOperation<u64>>, Arc<Tally>);

impl Drop for Ends {
    fn drop(&mut self) {
        let owned = self.0.take().into_iter();
        owned.for_each(|it| it.on_complete(Completion::Satisfied));
        self.1.add();
    }
}

/// Their futures are gone. The value of one ends the next, in no call of the library.
#[test]
fn g14_values_of_operations_that_are_ended_by_hand_are_gone_when_the_call_returns() {
    let (waits, _clock) = by_hand();
    let dropped = Tally::new();
    let ended = |owned| {
        let mut found = [Some(Ends(owned, dropped.clone())), None, None].into_iter();
        let wait = waits.wait([1], NEVER_IN_A_TEST, move || found.next_back()?);
        let mut operation = waits.cancel_for_key(&1).pop().expect("it was parked");
        assert!(operation.try_complete());
        drop(wait);
        operation
    };
    ended(Some(ended(None))).on_complete(Completion::Satisfied);
    assert_eq!(dropped.count(), 2);
}

/// A newcomer that is refused, since the key or the purgatory is full, leaves the job to those that wait.
#[test]
fn g27_a_newcomer_that_is_refused_keeps_nothing() {
    let builder = Waits::<u64>::builder("g27").reaper(Reaper::Manual);
    let waits = builder.max_watchers_per_key(1).build();
    let waits = waits.expect("no threads to refuse");
    let queues = Queues::default();
    let mut waiting = queues.take(&waits, &[2], NEVER_IN_A_TEST);
    // It is refused on its second key, and has the job of its first. None waits for that.
    queues.put(1, 1);
    let newcomer = queues.take(&waits, &[1, 2], NEVER_IN_A_TEST);
    assert_eq!(now(newcomer).err(), Some(WaitError::KeyFull));
    assert_eq!((queues.len(1), is_pending(&mut waiting)), (1, true));
    assert_eq!(done(queues.take(&waits, &[1], NEVER_IN_A_TEST)), 1);
    queues.put(2, 2);
    let newcomer = queues.take(&waits, &[1, 2], NEVER_IN_A_TEST);
    assert_eq!(now(newcomer).err(), Some(WaitError::KeyFull));
    assert_eq!(done(waiting), 2);
    assert_empty(&waits);
}

/// What comes between its two examinations is its own at once, since no other operation watches the key.
#[test]
fn g27_a_newcomer_alone_keeps_what_came_while_it_arrived() {
    let (waits, _clock) = by_hand();
    let (calls, returned) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (called, back) = (calls.clone(), returned.clone());
    let take = waits.take(
        [1, 1],
        NEVER_IN_A_TEST,
        move |_| (called.fetch_add(1, Ordering::Relaxed) > 0).then_some(7),
        move |_: i32| _ = back.fetch_add(1, Ordering::Relaxed),
    );
    assert_eq!(now(take).expect("it came").done(), 7);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert_eq!(returned.load(Ordering::Relaxed), 0);
}

/// Only a listener is there, which takes nothing: a take without a timeout gets the job, and so does one that tries.
#[test]
fn g27_a_listener_on_the_key_takes_no_job_from_a_newcomer() {
    for timeout in [Duration::ZERO, NEVER_IN_A_TEST] {
        let (waits, clock) = by_hand();
        let queues = Queues::default();
        let listener = waits.listen([1], NEVER_IN_A_TEST);
        queues.put(1, 1);
        assert_eq!(done(queues.take(&waits, &[1], timeout)), 1);
        drop(queues.take(&waits, &[1], timeout));
        let mut late = queues.take(&waits, &[1], timeout);
        queues.put(1, 2);
        clock.advance(Duration::from_millis(5));
        waits.advance();
        check(&waits, 1);
        assert!(!is_pending(&mut late));
        drop((late, listener));
        assert_eq!(waits.stats().parked, 0);
    }
}

/// A guard of 1,000 keys goes back on all of them.
#[test]
fn g26_a_guard_of_many_keys() {
    let (waits, _clock) = by_hand();
    let queues = Queues::default();
    let keys = (0..1_000).collect::<Vec<_>>();
    queues.put(999, 1);
    let guard = now(queues.take(&waits, &keys, NEVER_IN_A_TEST)).expect("a job");
    let next = queues.take(&waits, &[999], NEVER_IN_A_TEST);
    drop(guard);
    assert_eq!(done(next), 1);
    assert_empty(&waits);
}

/// One of the two ways to name a key, at a rank or not.
fn watch<'a>(
    key: u64,
    resolved: &'a [ResolvedKey<WaitOperation<u64>>],
    random: &mut fastrand::Rng,
) -> Watch<'a, u64> {
    let watch = match random.u64(..2) {
        0 => Watch::from(key),
        _ => resolved[key as usize].watch(),
    };
    match random.u64(..3) {
        0 => watch.at_rank(random.u64(..3)),
        _ => watch,
    }
}

/// Calls at random. After each, and once the timer was driven, no job lies beside a take that waits for it, and each job
/// was done once or is there.
#[test]
fn g25_g26_g27_random_calls_leave_no_job_beside_a_take() {
    const KEYS: u64 = 4;
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (waits, clock) = by_hand();
        let queues = Queues::default();
        let resolved = (0..KEYS).map(|key| waits.resolve(key)).collect::<Vec<_>>();
        let (mut takes, mut guards) = (Vec::<(Vec<u64>, Take)>::new(), Vec::new());
        let (mut put, mut finished) = (0, 0);
        for step in 0..200 {
            let key = random.u64(..KEYS);
            match random.u64(..10) {
                0..3 => {
                    let keys = (0..KEYS).filter(|_| random.bool());
                    let keys = keys.chain([key]).collect::<Vec<_>>();
                    let watches = keys.iter().map(|key| watch(*key, &resolved, &mut random));
                    let watches = watches.collect();
                    let timeout = Duration::from_millis(random.u64(..20));
                    takes.push((
                        keys.clone(),
                        queues.take_on(&waits, &keys, watches, timeout),
                    ));
                }
                3..6 => {
                    put += 1;
                    queues.put(key, put);
                    match random.u64(..6) {
                        0 => waits.check_later(key),
                        1 => _ = waits.check_and_complete_all([&key, &((key + 1) % KEYS)]),
                        2 => {
                            _ = resolved[key as usize]
                                .check_and_complete_with(CheckBound::at_most(1))
                        }
                        3 => {
                            _ = waits
                                .check_and_complete_with(&key, CheckBound::all().until_refused())
                        }
                        _ => _ = check(&waits, key),
                    }
                }
                6 if !guards.is_empty() => drop(guards.swap_remove(0)),
                7 => {
                    finished += guards.len();
                    guards
                        .drain(..)
                        .for_each(|guard: Taken<Job>| _ = guard.done());
                }
                8 if !takes.is_empty() => {
                    let at = random.usize(..takes.len());
                    drop(takes.swap_remove(at));
                }
                _ => clock.advance(Duration::from_millis(3)),
            }
            waits.advance();
            takes.retain_mut(|(_, take)| match Bell::new().poll(take) {
                Poll::Ready(Ok(guard)) => {
                    guards.push(guard);
                    false
                }
                Poll::Ready(Err(error)) => {
                    assert_eq!(error, WaitError::Expired);
                    false
                }
                Poll::Pending => true,
            });
            for (keys, _) in &takes {
                let beside = keys.iter().find(|key| queues.len(**key) > 0);
                assert_eq!(beside, None, "{seed}, {step}: {:?}", queues.0);
            }
            let there = (0..KEYS).map(|key| queues.len(key)).sum::<usize>();
            assert_eq!(there + guards.len() + finished, put, "{seed}, {step}");
        }
    }
}
