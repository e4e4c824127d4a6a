//! G5 and G30, `completion`: operations whose end is awaited. The model of all purgatories (`tests/model`) has their
//! other endings, and operations that no task awaits.

use crate::support::{NEVER_IN_A_TEST, Op, Probe, lock};
use crate::{SECOND, Slot, assert_empty, built, now, pass, put, waiting};
use request_purgatory::future::Awaited;
use request_purgatory::time::{Clock, ManualClock};
use request_purgatory::{Completion, Purgatory, RejectReason};

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
    let fetch = fetches.completion(probe.op(NEVER_IN_A_TEST), [1, 2]);
    let (fetch, bell) = waiting(fetch.expect("there is room"));
    probe.satisfy();
    assert_eq!((fetches.check_and_complete(&2), bell.rung()), (1, 1));
    let (Op { .. }, completion) = now(fetch).expect("it has ended");
    assert_eq!(completion, Completion::Satisfied);
    assert_eq!(probe.ending(), None);
    assert_empty(&fetches);
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
    let arrival = clock.now();
    clock.advance(SECOND / 2);
    let op = || Op::new(SECOND).put_off_by(SECOND / 4).arrived(arrival);
    let fetch = fetches.completion(op(), [1]).expect("there is room");
    let alone = fetches.try_complete_else_watch(Awaited::new(op()), [1]);
    assert!(alone.expect("there is room").is_parked());
    for (passes, parked) in [(SECOND / 2, 2), (SECOND / 4, 0)] {
        pass(&fetches, &clock, passes);
        assert_eq!((fetches.len(), fetches.stats().extended), (parked, 2));
    }
    let (_, completion) = now(fetch).expect("it has ended");
    assert_eq!(completion, Completion::Expired);
    assert_empty(&fetches);
}
