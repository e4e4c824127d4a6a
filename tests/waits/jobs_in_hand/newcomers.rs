//! G27: no newcomer overtakes a take that waits, and none loses what it leaves to the others.

use super::{Jobs, done, in_hand, waits_and_jobs};
use crate::support::keys::{Fragile, Hook, with_fuse_after};
use crate::support::{NEVER_IN_A_TEST, Tally, lock};
use crate::{Slot, assert_empty, built, by_hand, is_pending, now, pass, put};
use futures::FutureExt;
use request_purgatory::future::{Taken, WaitError, WaitOperation};
use request_purgatory::purgatory::{Builder, Cause};
use request_purgatory::{CheckBound, Take, Waits};
use std::time::Duration;

/// Between the push of a job and its check, a new take finds the job.
#[test]
fn g27_no_newcomer_overtakes_one_that_waits() {
    for timeout in [NEVER_IN_A_TEST, Duration::ZERO] {
        let (waits, jobs) = waits_and_jobs();
        // Whatever this thread has done before: an examination that checks another key, say.
        let (other, weak) = (waits.listen([9], None), waits.downgrade());
        let relay = waits.wait([8], NEVER_IN_A_TEST, move || {
            let waits = weak.upgrade().expect("it is being examined");
            waits.check_and_complete(&9);
            None::<()>
        });
        drop((other, relay));
        let first = jobs.take(&waits);
        jobs.put(1);
        let mut newcomer = jobs.take_on(&waits, [1], timeout);
        assert_eq!(done(first), Ok(1), "it has waited longer");
        assert!(is_pending(&mut newcomer));
        assert_eq!(waits.check_and_complete_with(&1, CheckBound::at_most(1)), 0);
        assert_eq!(jobs.push(&waits, 2), 1);
        assert_eq!(done(newcomer), Ok(2));
        jobs.put(3);
        let at_once = jobs.take(&waits);
        assert!(at_once.handle().is_none(), "nothing waits: it never parked");
        assert_eq!(done(at_once), Ok(3));
        assert_empty(&waits);
    }
}

/// Two jobs lie there that no check has announced. A newcomer has both offered, in the order of arrival; and a job that
/// is done causes no check.
#[test]
fn g27_a_newcomer_has_all_jobs_offered_that_lie_there() {
    let ((waits, jobs), asked) = (waits_and_jobs(), Tally::new());
    let take = || {
        let asked = asked.clone();
        let take = move |jobs: &Jobs, cause: Cause<'_, u64>| {
            if !cause.is_parking() {
                asked.add();
            }
            jobs.pop()
        };
        jobs.take_by(&waits, [1], take, Jobs::give_back)
    };
    let [first, second, ..] = [(); 4].map(|()| take());
    jobs.put(1);
    jobs.put(2);
    let _newcomer = take();
    let served = asked.count();
    assert_eq!([first, second].map(done), [Ok(1), Ok(2)]);
    assert_eq!(asked.count(), served);
}

/// Those that wait do not want the job: it is the newcomer's, and its second look is not lost.
#[test]
fn g27_what_the_others_refuse_is_the_newcomers() {
    let (waits, jobs) = waits_and_jobs();
    let take_even = |jobs: &Jobs, _: Cause<'_, u64>| {
        let is_even = lock(&jobs.0).front()? % 2 == 0;
        is_even.then(|| jobs.pop())?
    };
    let [first, second] = [(); 2].map(|()| jobs.take_by(&waits, [1], take_even, Jobs::give_back));
    assert_eq!(jobs.push(&waits, 1), 0, "none of them wants it");
    assert_eq!(done(jobs.take(&waits)), Ok(1));
    // Two jobs, of which those that wait get the first: the newcomer gets the other before any check of it.
    jobs.put(2);
    jobs.put(3);
    assert_eq!(done(jobs.take(&waits)), Ok(3));
    assert_eq!(done(first), Ok(2));
    drop(second);
    assert_empty(&waits);
}

/// Since the key or the purgatory is full. The job is of those that wait, also on another one of their keys, and lies
/// where it lay if none waits for it.
#[test]
fn g27_a_newcomer_that_is_refused_keeps_nothing() {
    type Bound = fn(Builder<Waits<u64>>) -> Builder<Waits<u64>>;
    let bounds: [(WaitError, Bound); 2] = [
        (WaitError::Full, |builder| builder.max_parked(1)),
        (WaitError::KeyFull, |builder| {
            builder.max_watchers_per_key(1)
        }),
    ];
    for (error, bound) in bounds {
        let (waits, _clock) = built(bound);
        // The jobs of key 1, and those of key 2, for which one waits.
        let [ones, twos] = [Jobs::default(), Jobs::default()];
        let newcomer = |jobs: &Jobs| done(jobs.take_on(&waits, [1, 2], NEVER_IN_A_TEST));
        let mut waiting = twos.take_on(&waits, [2, 3], NEVER_IN_A_TEST);
        ones.put(1);
        assert_eq!(newcomer(&ones), Err(error));
        assert_eq!((ones.len(), is_pending(&mut waiting)), (1, true));
        assert_eq!(done(ones.take(&waits)), Ok(1), "{error:?}");
        twos.put(2);
        assert_eq!(newcomer(&twos), Err(error));
        assert_eq!(done(waiting), Ok(2), "{error:?}");
        assert_empty(&waits);
    }
}

/// The job, which is of key 2, comes while the newcomer arrives.
#[test]
fn g27_on_several_keys_a_job_that_comes_meanwhile_is_of_the_one_that_waits() {
    let (waits, jobs) = waits_and_jobs();
    let take = |keys: [u64; 2], mut comes: Option<usize>| {
        let take = move |jobs: &Jobs, cause: Cause<'_, u64>| {
            let is_elsewhere = matches!(cause.key(), Some(1 | 3));
            let found = (!is_elsewhere).then(|| jobs.pop());
            comes.take().into_iter().for_each(|job| jobs.put(job));
            found?
        };
        jobs.take_by(&waits, keys, take, Jobs::give_back)
    };
    let first = take([2, 3], None);
    let mut newcomer = take([1, 2], Some(1));
    assert!(is_pending(&mut newcomer));
    assert_eq!(done(first), Ok(1), "it has waited longer");
}

/// The inner one is a newcomer, since the outer one watches the key.
#[test]
fn g27_a_take_inside_a_predicate_leaves_the_job_to_those_that_wait() {
    let ((waits, jobs), inner) = (waits_and_jobs(), Slot::<Take<u64, usize>>::default());
    let (inside, made) = (waits.downgrade(), inner.clone());
    let take = move |jobs: &Jobs, cause: Cause<'_, u64>| {
        if !cause.is_parking() {
            put(&made, jobs.take(&inside.upgrade()?));
        }
        jobs.pop()
    };
    let outer = jobs.take_by(&waits, [1], take, Jobs::give_back);
    assert_eq!(jobs.push(&waits, 7), 1);
    let first = in_hand(outer);
    let mut inner = lock(&inner).take().expect("it was made");
    assert!(is_pending(&mut inner));
    drop(first);
    assert_eq!(done(inner), Ok(7));
    assert_empty(&waits);
}

/// Whether another one waits is asked after the newcomer has taken, not before.
#[test]
fn g27_a_take_that_comes_while_a_newcomer_looks_is_not_overtaken() {
    let ((waits, jobs), earlier) = (waits_and_jobs(), Slot::default());
    let (inside, made) = (waits.downgrade(), earlier.clone());
    let take = move |jobs: &Jobs, _: Cause<'_, u64>| {
        let inside = inside.upgrade()?;
        lock(&made).get_or_insert_with(|| {
            let waiting = jobs.take(&inside);
            jobs.put(7);
            waiting
        });
        jobs.pop()
    };
    let mut newcomer = jobs.take_by(&waits, [1], take, Jobs::give_back);
    let earlier = lock(&earlier).take().expect("it was made");
    assert_eq!((is_pending(&mut newcomer), done(earlier)), (true, Ok(7)));
    drop(newcomer);
    assert_empty(&waits);
}

/// What comes between its two examinations is its own at once, since no other operation watches the key.
#[test]
fn g27_a_newcomer_alone_keeps_what_came_while_it_arrived() {
    let (waits, _clock) = by_hand();
    let [called, returned] = [Tally::new(), Tally::new()];
    let (calls, returns) = (called.clone(), returned.clone());
    let take = move |_: Cause<'_, u64>| {
        calls.add();
        (calls.count() > 1).then_some(7)
    };
    let take = waits.take([1, 1], NEVER_IN_A_TEST, take, move |_| returns.add());
    assert_eq!(now(take).map(Taken::done), Ok(7));
    assert_eq!((called.count(), returned.count()), (2, 0));
}

/// Only a listener is there, which takes nothing: a take without a timeout gets the job, and so does one that tries.
#[test]
fn g27_a_listener_on_the_key_takes_no_job_from_a_newcomer() {
    for timeout in [Duration::ZERO, NEVER_IN_A_TEST] {
        let (waits, clock) = by_hand();
        let jobs = Jobs::default();
        let listener = waits.listen([1], NEVER_IN_A_TEST);
        jobs.put(1);
        assert_eq!(done(jobs.take_on(&waits, [1], timeout)), Ok(1));
        drop(jobs.take_on(&waits, [1], timeout));
        let mut late = jobs.take_on(&waits, [1], timeout);
        jobs.put(2);
        pass(&waits, &clock, Duration::from_millis(5));
        waits.check_and_complete_with(&1, CheckBound::at_most(1));
        assert!(!is_pending(&mut late));
        drop((late, listener));
        assert_eq!(waits.stats().parked, 0);
    }
}

/// A key that panics when its watchers are counted, or wherever else on the way. The panic goes no further, or to its
/// caller.
#[test]
fn g27_a_key_that_panics_on_the_way_loses_no_job() {
    let (waits, _clock) = built::<WaitOperation<Fragile>>(|builder| builder);
    for hook in [Hook::Hash, Hook::Eq, Hook::Clone, Hook::Drop] {
        for countdown in 0..12 {
            let jobs = Jobs::default();
            let take = || jobs.take_on(&waits, [Fragile(1)], NEVER_IN_A_TEST);
            let waiting = take();
            jobs.put(1);
            let newcomer = with_fuse_after(countdown, 1, hook, take).ok();
            let takes = [Some(waiting), newcomer].into_iter().flatten();
            let held = takes.filter_map(|take| take.now_or_never()?.map(Taken::done).ok());
            let held = held.count();
            assert_eq!(held + jobs.len(), 1, "once, at {hook:?} {countdown}");
        }
    }
}
