//! G5, G6, G12, G19: what the [model](crate::requests_model) of requests does not see.

use crate::support::expiries::{Jobs, Runs};
use crate::support::{PATIENCE, eventually, quietly, threads_named, within};
use crate::{delivered, manual_requests, refusal};
use request_purgatory::WaitError;
use request_purgatory::future::block_on;
use request_purgatory::threads::{Reaper, ReaperThread};
use request_purgatory_tracker::Responded::{Delivered, Late, Unknown};
use request_purgatory_tracker::{RejectReason, Requests};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

/// Those that ended last without a response. A unit test of `Remembered` has several of one hash.
#[test]
fn as_many_ended_requests_are_remembered_as_are_asked_for() {
    let end = |calls: &Requests<u32, u32>, id| drop(calls.request(id, TICK).expect("room"));
    for bound in [0, 1, 7, 100] {
        let (calls, _) = manual_requests(|builder| builder.remembered_ids(bound));
        (0..200).for_each(|id| end(&calls, id));
        let late = (0..200).map(|id| calls.respond(&id, id) == Late(id));
        let expected = (0..200).map(|id| id >= 200 - bound);
        assert!(late.eq(expected), "{bound}");
    }
    let (calls, _) = manual_requests(|builder| builder);
    (0..=8_192).for_each(|id| end(&calls, id));
    let responded = [0, 1].map(|id| calls.respond(&id, id));
    assert_eq!(responded, [Unknown(0), Late(1)]);
}

/// A client with many calls in flight loses its connection: each response that comes all the same is late, by default
/// however many there are. A number that the user has chosen is kept to.
#[test]
fn all_requests_that_fail_together_are_remembered() {
    const PENDING: u32 = 10_000;
    for (chosen, remembered) in [(None, PENDING), (Some(100), 100)] {
        let (calls, _) = manual_requests(|builder| match chosen {
            Some(count) => builder.remembered_ids(count),
            None => builder,
        });
        let request = |id| calls.request(id, Duration::MAX).expect("room");
        let pending = (0..PENDING).map(request).collect::<Vec<_>>();
        assert_eq!(calls.fail_all_with(|id: &u32| *id), PENDING as usize);
        let late = (0..PENDING).filter(|id| calls.respond(id, 0) == Late(0));
        assert_eq!(late.count(), remembered as usize);
        drop(pending);
    }
}

/// Also a request that has expired, whose id was used again before the reaper came.
#[test]
fn g06_a_dropped_future_leaves_nothing_though_its_id_was_used_again() {
    let (calls, clock) = manual_requests::<u32, u32>(|builder| builder.max_parked(3));
    let mut expired = Vec::new();
    for _ in 0..2 {
        expired.push(calls.request(1, TICK).expect("room"));
        clock.advance(TICK);
    }
    let pending = calls.request(1, TICK * 9).expect("the id is free");
    assert_eq!(refusal(&calls.request(2, TICK)), Some(RejectReason::Full));
    drop(expired);
    assert_eq!((calls.len(), calls.stats().cancelled), (1, 2));
    let others = [2, 3].map(|id| calls.request(id, TICK * 9).expect("room"));
    // The request that has the id now is not touched, and the responses to the others are late.
    assert_eq!(calls.respond(&1, 3), Delivered);
    let late = [1, 2].map(|response| calls.respond(&1, response));
    assert_eq!(late, [Late(1), Late(2)]);
    assert_eq!(calls.respond(&1, 4), Unknown(4));
    drop(others);
    assert_eq!((calls.advance(), calls.len()), (0, 0));
    assert_eq!(block_on(pending), Ok(3));
    // The timer of the first of these has fired: the callback, which has not run yet, takes the request out.
    let jobs = Jobs::new(Runs::Later);
    let (calls, clock) = manual_requests::<u32, u32>(|builder| builder.dispatch(jobs.dispatch()));
    let fired = calls.request(1, TICK).expect("room");
    clock.advance(TICK);
    assert_eq!(calls.advance(), 1);
    let pending = calls.request(1, TICK).expect("the id is free");
    drop(fired);
    jobs.run_all();
    let stats = calls.stats();
    assert_eq!((stats.expired, stats.cancelled, stats.panicked), (1, 0, 0));
    drop(pending);
}

/// One server of several is lost. Where the closure that picks panics, no request has ended.
#[test]
fn g12_a_closure_that_panics_fails_no_request() {
    quietly();
    let (calls, _) = manual_requests::<u32, u32>(|builder| builder);
    let request = |id| calls.request(id, TICK).expect("room");
    let pending = (0..10).map(request).collect::<Vec<_>>();
    let picks = || calls.fail_where(|id| *id < 8 || panic!("intended"), |_| 9);
    assert!(catch_unwind(AssertUnwindSafe(picks)).is_err());
    assert_eq!((calls.len(), calls.stats().panicked), (10, 0));
    assert_eq!(calls.fail_where(|id| id % 2 == 0, |_| 9), 5);
    drop(pending);
}

/// By threads that make requests, answer them and fail them all: each has one end.
#[test]
fn g05_failing_all_races_everything_else() {
    within(PATIENCE, || {
        const LOST: u64 = u64::MAX;
        let calls = Requests::<u64, u64>::new("fail-all");
        let callers = (0..2_u64).map(|caller| {
            let calls = calls.clone();
            thread::spawn(move || {
                let mut ends = [0_u64; 3];
                for id in (caller * 3_000..).take(3_000) {
                    let timeout = Duration::from_micros(id % 7 * 300);
                    let request = calls.request(id, timeout).expect("no such id is pending");
                    let answered = id % 3 == 0 && delivered(calls.respond(&id, id));
                    match block_on(request) {
                        Ok(LOST) => ends[2] += 1,
                        Ok(response) => {
                            assert!(answered && response == id);
                            ends[0] += 1;
                        }
                        Err(WaitError::Expired) => ends[1] += 1,
                        Err(other) => panic!("{other}"),
                    }
                }
                ends
            })
        });
        let callers = callers.collect::<Vec<_>>();
        let mut failed = 0;
        while callers.iter().any(|caller| !caller.is_finished()) {
            failed += calls.fail_all_with(|_| LOST) as u64;
        }
        let mut ends = [0; 3];
        for caller in callers {
            let of_caller = caller.join().expect("no panic");
            (0..3).for_each(|end| ends[end] += of_caller[end]);
        }
        let stats = calls.stats();
        assert_eq!(ends, [stats.completed, stats.expired, stats.cancelled]);
        assert_eq!((ends[2], ends.iter().sum::<u64>()), (failed, 6_000));
        assert_eq!((calls.stats().parked, calls.unknown()), (0, 0));
    });
}

#[test]
fn an_id_is_found_by_its_borrowed_form() {
    let (calls, _) = manual_requests::<String, u32>(|builder| builder);
    let request = calls.request("one".to_owned(), TICK).expect("room");
    assert!(calls.reschedule("one", Duration::MAX));
    assert_eq!(calls.respond("two", 2), Unknown(2));
    assert_eq!(calls.respond("one", 1), Delivered);
    assert_eq!(block_on(request), Ok(1));
    drop(calls.request("one".to_owned(), TICK).expect("room"));
    assert_eq!(calls.respond("one", 1), Late(1));
}

/// The recommendation for many connections: what it saves is counted here.
#[test]
fn g19_many_requests_share_two_threads() {
    within(PATIENCE, || {
        let own = (0..100).map(|_| Requests::<u32, u32>::new("g19-own"));
        let own = own.collect::<Vec<_>>();
        let request = |calls: &Requests<u32, u32>| calls.request(1, PATIENCE).expect("room");
        let pending = own.iter().map(request).collect::<Vec<_>>();
        // A thread takes its name once it runs.
        eventually("a thread for each", || {
            threads_named("g19-own").len() == 100
        });
        drop((pending, own));
        let reaper = ReaperThread::spawn("g19-calls").expect("threads");
        let all = (0..100).map(|_| {
            let calls = Requests::<u32, u32>::builder("g19-calls");
            let calls = calls.reaper(Reaper::Shared(reaper.clone())).build();
            calls.expect("no threads of their own")
        });
        let all = all.collect::<Vec<_>>();
        eventually("two threads for all", || {
            threads_named("g19-calls").len() == 2
        });
        let request = |calls: &Requests<u32, u32>| calls.request(1, TICK).expect("room");
        let pending = all.iter().map(request).collect::<Vec<_>>();
        for request in pending {
            assert_eq!(block_on(request), Err(WaitError::Expired));
        }
        drop((all, reaper));
        eventually("the end of its threads", || {
            threads_named("g19-calls").is_empty()
        });
    });
}
