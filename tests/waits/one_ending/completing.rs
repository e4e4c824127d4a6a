//! G5, `completion`: operations whose end is awaited. What ends them otherwise is in the table of
//! [all](super::endings).

use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, Op, Probe, lock};
use crate::{Slot, assert_empty, built, now, put};
use request_purgatory::future::{Awaited, WaitError};
use request_purgatory::time::{ManualClock, Timestamp};
use request_purgatory::{Completion, Purgatory, RejectReason};
use std::sync::Arc;
use std::time::Duration;

fn fetches() -> (Purgatory<Awaited<Op>>, ManualClock) {
    built(|builder| builder)
}

#[test]
fn g05_a_completion_gives_the_operation_back_and_calls_nothing() {
    let (fetches, _clock) = fetches();
    let probe = Probe::new();
    let refused = fetches.completion(probe.op(NEVER_IN_A_TEST), [0; 0]);
    let (reason, Op { .. }) = refused.expect_err("no key").into_parts();
    assert_eq!(reason, RejectReason::NoKeys);
    let fetch = || {
        let fetch = fetches.completion(probe.op(NEVER_IN_A_TEST), [1, 2]);
        fetch.expect("there is room")
    };

    let cancelled = [fetch(), fetch()];
    let by_handle = cancelled[0].handle().and_then(|handle| handle.cancel());
    let by_key = fetches.cancel_for_key(&1).pop();
    for (taken, fetch) in [by_handle, by_key].into_iter().zip(cancelled) {
        let Op { .. } = taken.expect("it is parked").into_operation();
        assert_eq!(now(fetch).err(), Some(WaitError::Cancelled));
    }

    let dropped = fetch();
    assert_eq!(fetches.stats().parked, 1);
    drop(dropped);
    assert_empty(&fetches);

    let (mut completed, bell) = (fetch(), Bell::new());
    assert!(bell.poll(&mut completed).is_pending());
    probe.satisfy();
    assert_eq!((fetches.check_and_complete(&2), bell.rung()), (1, 1));
    let (Op { .. }, completion) = now(completed).expect("it has ended");
    assert_eq!(completion, Completion::Satisfied);
    assert_eq!((probe.ending(), Arc::strong_count(&probe)), (None, 1));
    assert_empty(&fetches);
}

#[test]
fn an_operation_that_no_task_awaits_has_its_callback() {
    let (fetches, _clock) = fetches();
    let probe = Probe::new();
    let op = Awaited::new(probe.op(NEVER_IN_A_TEST));
    let watch = fetches.try_complete_else_watch(op, [1]);
    assert!(watch.expect("there is room").is_parked());
    probe.satisfy();
    assert_eq!(fetches.check_and_complete(&1), 1);
    assert_eq!(probe.ending(), Some(Completion::Satisfied));
}

/// A thread examines the operation when its future is dropped: `on_complete` is not called, whatever the answer is.
#[test]
fn an_operation_whose_future_is_dropped_in_an_examination_calls_nothing() {
    for says in [true, false] {
        let (fetches, _clock) = fetches();
        let (probe, future) = (Probe::new(), Slot::default());
        let (ending, dropped, mut examinations) = (probe.clone(), future.clone(), 0);
        let when = move || {
            examinations += 1;
            let is_checked = examinations == 3;
            if is_checked {
                drop(lock(&dropped).take());
            }
            is_checked && says
        };
        let op = Op::new(NEVER_IN_A_TEST).when(when);
        let fetch = fetches.completion(op.then(move |it| ending.end(it)), [1]);
        put(&future, fetch.expect("there is room"));
        fetches.check_and_complete(&1);
        assert_eq!(probe.ending(), None);
        assert_empty(&fetches);
    }
}

/// An operation is told the cause of its examination, and its deadline counts from its arrival, whether it is awaited
/// or not.
#[test]
fn g30_an_awaited_operation_arrives_when_it_says_and_asks_for_more_time() {
    let (fetches, clock) = fetches();
    let millis = Duration::from_millis;
    clock.advance(millis(300));
    let op = || {
        let op = Op::new(millis(1_000)).put_off_by(millis(500));
        op.arrived(Timestamp::from_origin(millis(100)))
    };
    let mut fetch = fetches.completion(op(), [1]).expect("there is room");
    let alone = fetches.try_complete_else_watch(Awaited::new(op()), [1]);
    let alone = alone.expect("there is room").into_handle();
    let alone = alone.expect("it cannot complete yet");
    let handle = fetch.handle().expect("it is parked");
    for (passes, left) in [(0, 800), (800, 500)] {
        clock.advance(millis(passes));
        assert_eq!(fetches.advance(), 0);
        let left = Some(millis(left));
        assert_eq!((handle.remaining(), alone.remaining()), (left, left));
    }
    clock.advance(millis(500));
    assert_eq!((fetches.advance(), fetches.stats().extended), (2, 2));
    let (_, completion) = now(&mut fetch).expect("it has ended");
    assert_eq!(completion, Completion::Expired);
    assert_empty(&fetches);
}
