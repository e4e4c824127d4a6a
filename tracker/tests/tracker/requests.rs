//! What `Requests` answer: responses, timeouts, late responses, forgotten requests.

use crate::delivered;
use crate::keys::OneShard;
use crate::refusal;
use crate::support::{Job, PATIENCE, Tally, eventually, lock, quietly, threads_named, within};
use request_purgatory::future::block_on;
use request_purgatory::purgatory::RandomState;
use request_purgatory::threads::{Dispatch, Reaper, ReaperThread};
use request_purgatory::{WaitError, time::ManualClock};
use request_purgatory_tracker::Responded::{Delivered, Late, Unknown};
use request_purgatory_tracker::{RejectReason, Rejected};
use request_purgatory_tracker::{Requests, ResponseFuture};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(1);

fn manual() -> (Requests<u32, String>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Requests::builder("manual").clock(clock.clone());
    let calls = builder.reaper(Reaper::Manual).build();
    (calls.expect("no threads to refuse"), clock)
}

#[test]
fn g05_each_request_is_answered_or_times_out() {
    let (calls, clock) = manual();
    let answered = calls.request(1, TICK).expect("room");
    let silent = calls.request(2, TICK).expect("room");
    assert_eq!((*answered.id(), calls.stats().parked), (1, 2));
    let respond = |id: u32| calls.respond(&id, id.to_string());
    assert_eq!(respond(1), Delivered);
    // It has its response.
    assert_eq!(respond(1), Unknown("1".into()));
    clock.advance(TICK);
    assert_eq!(calls.advance(), 1);
    assert_eq!(respond(2), Late("2".into()));
    assert_eq!(respond(2), Unknown("2".into()));
    // An id of no request.
    assert_eq!(respond(3), Unknown("3".into()));
    assert_eq!(block_on(answered), Ok("1".into()));
    assert_eq!(block_on(silent), Err(WaitError::Expired));
    assert_eq!((calls.late(), calls.unknown()), (1, 3));
    let stats = calls.stats();
    assert_eq!((stats.completed, stats.expired, stats.parked), (1, 1, 0));
}

#[test]
fn a_hasher_that_is_chosen_last_changes_no_other_choice() {
    let (clock, jobs) = (ManualClock::new(), Tally::new());
    let made = jobs.clone();
    let executor = Dispatch::Executor(Arc::new(move |job: Job| {
        made.add();
        job();
    }));
    let calls = Requests::<u32, u32>::builder("last").clock(clock.clone());
    let calls = calls
        .reaper(Reaper::Manual)
        .dispatch(executor)
        .max_parked(1);
    let calls = calls.tick(TICK * 2).max_timeout(TICK);
    let calls = calls.hasher(RandomState::default()).build();
    let calls = calls.expect("no threads to refuse");
    let silent = calls.request(1, TICK * 9).expect("room");
    assert_eq!(refusal(&calls.request(2, TICK)), Some(RejectReason::Full));
    for expired in [0, 1] {
        clock.advance(TICK);
        assert_eq!((calls.advance(), jobs.count()), (expired, expired as u64));
    }
    assert_eq!(block_on(silent), Err(WaitError::Expired));
}

/// The ids of the requests that ended last without a response are remembered, each as often as it ended so.
#[test]
fn as_many_ended_requests_are_remembered_as_are_asked_for() {
    let ids = |bound: usize| {
        let builder = Requests::<u32, u32>::builder("bound").reaper(Reaper::Manual);
        let calls = builder.remembered_ids(bound).build();
        calls.expect("no threads to refuse")
    };
    let end = |calls: &Requests<u32, u32>, id| drop(calls.request(id, TICK).expect("room"));
    for bound in [0, 1, 7, 100] {
        let calls = ids(bound);
        (0..200).for_each(|id| end(&calls, id));
        let late = (0..200).map(|id| calls.respond(&id, id) == Late(id));
        let expected = (0..200).map(|id| id >= 200 - bound);
        assert!(late.eq(expected), "{bound}");
    }
    let calls = ids(3);
    for _ in 0..2 {
        end(&calls, 1);
        end(&calls, 2);
    }
    // Of the first one, an end is forgotten.
    let late = [1, 2, 2, 2, 1].map(|id| calls.respond(&id, id) == Late(id));
    assert_eq!(late, [true, true, true, false, false]);
    // A response is one to the first of them, and the others stay as long as they would have.
    let calls = ids(2);
    [1, 1].into_iter().for_each(|id| end(&calls, id));
    assert_eq!(calls.respond(&1, 1), Late(1));
    end(&calls, 2);
    assert_eq!(calls.respond(&1, 1), Late(1));
    // What has had its response still counts, so the bound is one of time as well.
    let calls = ids(3);
    end(&calls, 3);
    end(&calls, 4);
    assert_eq!(calls.respond(&4, 4), Late(4));
    end(&calls, 5);
    end(&calls, 6);
    let late = [3, 5, 6].map(|id| calls.respond(&id, id) == Late(id));
    assert_eq!(late, [false, true, true]);
    let builder = Requests::<u32, u32>::builder("default").reaper(Reaper::Manual);
    let calls = builder.build().expect("no threads to refuse");
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
        let builder = Requests::<u32, u32>::builder("lost").reaper(Reaper::Manual);
        let builder = match chosen {
            Some(count) => builder.remembered_ids(count),
            None => builder,
        };
        let calls = builder.build().expect("no threads to refuse");
        let request = |id| calls.request(id, Duration::MAX).expect("room");
        let pending = (0..PENDING).map(request).collect::<Vec<_>>();
        assert_eq!(calls.fail_all_with(|id| *id), PENDING as usize);
        let late = (0..PENDING).filter(|id| calls.respond(id, 0) == Late(0));
        assert_eq!(late.count(), remembered as usize);
        drop(pending);
    }
}

/// Of ended requests the hashes are kept, not the ids. Also by a hasher that is chosen after the bound.
#[test]
fn an_id_with_the_hash_of_an_ended_request_passes_for_it() {
    let builder = Requests::<u32, u32>::builder("equal").reaper(Reaper::Manual);
    let calls = builder.remembered_ids(2).hasher(OneShard).build();
    let calls = calls.expect("no threads to refuse");
    let pending = calls.request(7, TICK).expect("room");
    for id in 0..3 {
        drop(calls.request(id, TICK).expect("room"));
    }
    // Small ids have one hash, and two ends are remembered.
    let responded = [1 << 24, 9, 0, 2].map(|id| calls.respond(&id, id));
    assert_eq!(responded, [Unknown(1 << 24), Late(9), Late(0), Unknown(2)]);
    assert_eq!(calls.respond(&7, 7), Delivered);
    assert_eq!(block_on(pending), Ok(7));
}

#[test]
fn a_touched_request_waits_longer() {
    let (calls, clock) = manual();
    let request = calls.request(1, TICK).expect("room");
    assert!(calls.reschedule(&1, TICK * 5) && !calls.reschedule(&2, TICK));
    clock.advance(TICK * 4);
    assert_eq!(calls.advance(), 0);
    assert!(calls.next_deadline().is_some());
    clock.advance(TICK);
    assert_eq!(calls.advance(), 1);
    assert_eq!(block_on(request), Err(WaitError::Expired));
}

#[test]
fn an_id_in_use_is_refused() {
    let (calls, _) = manual();
    let first = calls.request(1, TICK).expect("room");
    let refused = calls.request(1, TICK);
    assert!(matches!(
        refused.map_err(Rejected::into_parts),
        Err((RejectReason::Duplicate, 1))
    ));
    // The refusal did nothing to the first.
    assert!(delivered(calls.respond(&1, "first".into())));
    assert_eq!(block_on(first), Ok("first".into()));
    // Answered, it frees its id before anyone has looked at the answer.
    let kept = calls.request(1, TICK).expect("free");
    assert!(delivered(calls.respond(&1, "kept".into())));
    let next = calls.request(1, TICK).expect("free again");
    drop(kept);
    assert_eq!(
        calls.stats().parked,
        1,
        "the drop of an answered one forgets nothing"
    );
    assert!(delivered(calls.respond(&1, "next".into())));
    assert_eq!(block_on(next), Ok("next".into()));
}

#[test]
fn a_dropped_request_is_forgotten() {
    let (calls, clock) = manual();
    let dropped = calls.request(1, TICK).expect("room");
    drop(dropped);
    assert_eq!((calls.stats().parked, calls.stats().cancelled), (0, 1));
    assert_eq!(
        calls.respond(&1, "for none".into()),
        Late("for none".into())
    );
    let again = calls.request(1, TICK * 9).expect("the id is free at once");
    // The timeout of the forgotten one was stopped.
    clock.advance(TICK);
    assert_eq!((calls.advance(), calls.stats().parked), (0, 1));
    drop(again);
    assert_eq!(calls.next_deadline(), None);
}

/// Also a request that has expired, whose id was used again before the reaper came.
#[test]
fn g06_a_dropped_future_leaves_nothing_though_its_id_was_used_again() {
    let clock = ManualClock::new();
    let builder = Requests::<u32, u32>::builder("g06").clock(clock.clone());
    let calls = builder.reaper(Reaper::Manual).max_parked(3).build();
    let calls = calls.expect("no threads to refuse");
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
    let jobs = Arc::<Mutex<Vec<Job>>>::default();
    let queue = jobs.clone();
    let builder = Requests::<u32, u32>::builder("g06").clock(clock.clone());
    let executor = Dispatch::Executor(Arc::new(move |job| lock(&queue).push(job)));
    let calls = builder.reaper(Reaper::Manual).dispatch(executor).build();
    let calls = calls.expect("no threads to refuse");
    let fired = calls.request(1, TICK).expect("room");
    clock.advance(TICK);
    assert_eq!(calls.advance(), 1);
    let pending = calls.request(1, TICK).expect("the id is free");
    drop(fired);
    let waiting = std::mem::take(&mut *lock(&jobs));
    waiting.into_iter().for_each(|job| job());
    let stats = calls.stats();
    assert_eq!((stats.expired, stats.cancelled, stats.panicked), (1, 0, 0));
    drop(pending);
}

/// An old request of the same id, timed out or answered but not yet looked at, does nothing to the new one.
#[test]
fn an_old_request_does_not_touch_a_new_one_with_its_id() {
    let (calls, clock) = manual();
    let old = calls.request(1, TICK).expect("room");
    clock.advance(TICK);
    assert_eq!(calls.advance(), 1);
    let new = calls.request(1, TICK * 5).expect("free");
    drop(old);
    assert_eq!(calls.stats().parked, 1);
    assert!(delivered(calls.respond(&1, "new".into())));
    assert_eq!(block_on(new), Ok("new".into()));
}

#[test]
fn a_thread_can_wait() {
    within(PATIENCE, || {
        let calls = Requests::<u32, u32>::new("wait");
        let answered = calls.request(1, Duration::from_secs(60)).expect("room");
        let silent = calls.request(2, Duration::from_millis(30)).expect("room");
        let waiters = [answered, silent].map(|request| thread::spawn(move || block_on(request)));
        thread::sleep(Duration::from_millis(10));
        assert!(delivered(calls.respond(&1, 7)));
        let answers = waiters.map(|waiter| waiter.join().expect("no panic"));
        assert_eq!(answers, [Ok(7), Err(WaitError::Expired)]);
    });
}

/// Any number of polls, then the answer once; a future that is polled on says nothing more.
#[test]
fn an_answer_is_handed_out_once() {
    let (calls, _) = manual();
    let mut request = pin!(calls.request(1, TICK).expect("room"));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        assert!(request.as_mut().poll(&mut cx).is_pending());
    }
    assert!(delivered(calls.respond(&1, "one".into())));
    assert_eq!(
        request.as_mut().poll(&mut cx),
        Poll::Ready(Ok("one".into()))
    );
    assert!(request.as_mut().poll(&mut cx).is_pending());
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        std::panic::panic_any("intended");
    }
}

/// It is somebody else's: the responder goes on, and the response is the request's.
#[test]
fn g12_a_waker_that_panics_costs_no_response() {
    quietly();
    let (calls, _) = manual();
    let mut request = calls.request(1, TICK).expect("room");
    let waker = Waker::from(Arc::new(Panics));
    let polled = Pin::new(&mut request).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    assert_eq!(calls.respond(&1, "one".into()), Delivered);
    assert_eq!(block_on(request), Ok("one".into()));
    let stats = calls.stats();
    assert_eq!((stats.completed, stats.panicked), (1, 1));
    assert_eq!(calls.respond(&1, "again".into()), Unknown("again".into()));
}

/// The connection is lost: what is pending ends with a response that says so, and the next connection's requests are
/// taken. A waker that panics, or asks again at once, disturbs no other.
#[test]
fn requests_of_a_lost_connection_fail_together() {
    quietly();
    struct Again(
        Requests<u32, String>,
        Mutex<Option<ResponseFuture<u32, String>>>,
    );
    impl Wake for Again {
        fn wake(self: Arc<Self>) {
            assert!(
                self.0.is_empty(),
                "one is pending, and another has been told"
            );
            *lock(&self.1) = self.0.request(2, Duration::MAX).ok();
        }
    }
    let (calls, clock) = manual();
    let lost = |id: &u32| format!("{id} lost");
    assert_eq!(calls.fail_all_with(lost), 0);
    let request = |id| calls.request(id, TICK).expect("room");
    let mut pending = (0..100).map(request).collect::<Vec<_>>();
    let again = Arc::new(Again(calls.clone(), Mutex::new(None)));
    for (id, waker) in [
        (2, Waker::from(again.clone())),
        (3, Arc::new(Panics).into()),
    ] {
        let mut cx = Context::from_waker(&waker);
        assert!(Pin::new(&mut pending[id]).poll(&mut cx).is_pending());
    }
    assert!(delivered(calls.respond(&99, "in time".into())));
    assert_eq!(calls.fail_all_with(lost), 99);
    assert_eq!((calls.stats().parked, calls.stats().panicked), (1, 1));
    for (id, request) in pending.into_iter().enumerate() {
        let expected = match id {
            99 => "in time".to_owned(),
            _ => format!("{id} lost"),
        };
        assert_eq!(block_on(request), Ok(expected));
    }
    // The response to one of them is late; the one that was made again is not.
    assert_eq!(calls.respond(&7, "7".into()), Late("7".into()));
    assert!(delivered(calls.respond(&2, "second".into())));
    let second = lock(&again.1).take().expect("made by the waker");
    assert_eq!(block_on(second), Ok("second".into()));
    clock.advance(TICK);
    assert_eq!(calls.advance(), 0);
    let stats = calls.stats();
    assert_eq!(
        (stats.completed, stats.cancelled, stats.expired),
        (2, 99, 0)
    );
}

/// Another thread may answer a request that has been picked: it is none of those that this call has ended.
#[test]
fn g05_a_request_that_is_answered_after_it_was_picked_counts_as_answered() {
    within(PATIENCE, || {
        let (calls, _) = manual();
        let request = |id| calls.request(id, TICK).expect("room");
        let mut pending = (0..100).map(request).collect::<Vec<_>>();
        let (mut first, mut asked) = (None, 0);
        let is_wanted = |id: &u32| {
            let first = *first.get_or_insert(*id);
            asked += 1;
            if asked == 100 {
                // The first is in another map shard than the last, whose lock this thread has.
                let respond = || delivered(calls.respond(&first, "in time".into()));
                thread::scope(|scope| assert!(scope.spawn(respond).join().expect("no panic")));
            }
            true
        };
        assert_eq!(calls.fail_where(is_wanted, |_| "lost".into()), 99);
        let first = first.expect("the first");
        let answered = pending.remove(first as usize);
        assert_eq!(block_on(answered).as_deref(), Ok("in time"));
        for request in pending {
            assert_eq!(block_on(request).as_deref(), Ok("lost"));
        }
        let stats = calls.stats();
        assert_eq!((stats.completed, stats.cancelled, stats.parked), (1, 99, 0));
    });
}

/// One server of several is lost. Where a closure of the caller's panics, no request has ended.
#[test]
fn g12_a_closure_that_panics_fails_no_request() {
    quietly();
    let (calls, _) = manual();
    let request = |id| calls.request(id, TICK).expect("room");
    let pending = (0..10).map(request).collect::<Vec<_>>();
    let picks = || calls.fail_where(|id| *id < 8 || panic!("intended"), u32::to_string);
    assert!(catch_unwind(AssertUnwindSafe(picks)).is_err());
    let mut made = 0;
    let response = |id: &u32| {
        made += 1;
        match made {
            3 => panic!("intended"),
            _ => id.to_string(),
        }
    };
    let fails = AssertUnwindSafe(|| calls.fail_where(|id| id % 2 == 0, response));
    assert!(catch_unwind(fails).is_err());
    assert_eq!((calls.stats().parked, calls.stats().panicked), (10, 0));
    assert_eq!(calls.fail_where(|id| id % 2 == 0, u32::to_string), 5);
    calls.shutdown();
    for (id, request) in (0..).zip(pending) {
        let expected = match id % 2 {
            0 => Ok(id.to_string()),
            _ => Err(WaitError::ShutDown),
        };
        assert_eq!(block_on(request), expected);
        assert_eq!(calls.respond(&id, String::new()), Late(String::new()));
    }
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
    let calls = Requests::<String, u32>::builder("borrowed")
        .reaper(Reaper::Manual)
        .build()
        .expect("no threads to refuse");
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
            calls.reaper(Reaper::Shared(reaper.clone())).build()
        });
        let all = all
            .collect::<Result<Vec<_>, _>>()
            .expect("no threads of their own");
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
