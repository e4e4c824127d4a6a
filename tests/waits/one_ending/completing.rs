//! Operations whose end is awaited.

use crate::support::bell::Bell;
use crate::support::{NEVER_IN_A_TEST, Op, Probe};
use crate::{assert_empty, now};
use request_purgatory::{
    Completion, DelayedOperation, Purgatory, future::Awaited, future::WaitError, purgatory::Cause,
    purgatory::RejectReason, purgatory::Rejected, threads::Dispatch, threads::Reaper,
    time::ManualClock, time::Timestamp,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn fetches(completions: Dispatch) -> (Purgatory<Awaited<Op>>, ManualClock) {
    let clock = ManualClock::new();
    let fetches = Purgatory::builder("fetches")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .dispatch(completions)
        .max_parked(2)
        .build()
        .expect("no threads to refuse");
    (fetches, clock)
}

#[test]
fn g05_a_completion_gives_the_operation_back_and_calls_nothing() {
    type End = fn(&Purgatory<Awaited<Op>>, &ManualClock, &Probe);
    let endings: [(Completion, End); 4] = [
        (Completion::Satisfied, |fetches, _, probe| {
            probe.satisfy();
            assert_eq!(fetches.check_and_complete(&2), 1);
        }),
        (Completion::Satisfied, |fetches, _, _| {
            assert_eq!(fetches.force_complete_for_key(&1), 1);
        }),
        (Completion::Expired, |fetches, clock, _| {
            clock.advance(Duration::from_secs(1));
            assert_eq!(fetches.advance(), 1);
        }),
        (Completion::ShutDown, |fetches, _, _| fetches.shutdown()),
    ];
    for (expected, end) in endings {
        let (fetches, clock) = fetches(Dispatch::Inline);
        let (probe, bell) = (Probe::new(), Bell::new());
        let op = probe.op(Duration::from_secs(1));
        let mut fetch = fetches.completion(op, [1, 2]).expect("there is room");
        assert!(bell.poll(&mut fetch).is_pending());
        end(&fetches, &clock, &probe);
        assert_eq!(bell.rung(), 1);
        let (op, completion) = now(fetch).expect("it has ended");
        assert_eq!(completion, expected);
        assert_eq!(probe.ending(), None, "on_complete is the caller's affair");
        drop(op);
        assert_eq!(Arc::strong_count(&probe), 1);
        assert_empty(&fetches);
    }
}

#[test]
fn an_operation_that_is_lost_says_why() {
    let (fetches, _clock) = fetches(Dispatch::Inline);
    let probe = Probe::new();

    let cancelled = fetches.completion(probe.op(NEVER_IN_A_TEST), [1]);
    let taken = fetches.cancel_for_key(&1).pop().expect("it is parked");
    let op = taken.into_operation();
    assert_eq!(
        now(cancelled.expect("there is room")).err(),
        Some(WaitError::Cancelled)
    );
    drop(op);

    let mut examinations = 0;
    let panics = fetches.completion(
        Op::new(NEVER_IN_A_TEST).when(move || {
            examinations += 1;
            assert!(examinations < 3, "on purpose");
            false
        }),
        [1],
    );
    fetches.check_and_complete(&1);
    assert_eq!(
        now(panics.expect("there is room")).err(),
        Some(WaitError::Panicked)
    );

    // Taken back by handle.
    let fetch = fetches.completion(probe.op(NEVER_IN_A_TEST), [1]);
    let fetch = fetch.expect("there is room");
    assert!(fetch.handle().and_then(|handle| handle.cancel()).is_some());
    assert_eq!(now(fetch).err(), Some(WaitError::Cancelled));

    // Dropped.
    let fetch = fetches.completion(probe.op(NEVER_IN_A_TEST), [1, 2]);
    assert_eq!(fetches.stats().parked, 1);
    drop(fetch);
    assert_eq!((probe.ending(), Arc::strong_count(&probe)), (None, 1));
    assert_empty(&fetches);
}

#[test]
fn a_refused_operation_comes_back() {
    let (fetches, _clock) = fetches(Dispatch::Inline);
    let refused = fetches.completion(Op::new(NEVER_IN_A_TEST), [0; 0]);
    assert!(matches!(
        refused.map_err(Rejected::into_parts),
        Err((RejectReason::NoKeys, Op { .. }))
    ));
    let parked = [1, 2].map(|key| {
        let parked = fetches.completion(Op::new(NEVER_IN_A_TEST), [key]);
        parked.expect("there is room")
    });
    let refused = fetches.completion(Op::new(NEVER_IN_A_TEST), [1]);
    assert!(matches!(
        refused.map_err(Rejected::into_parts),
        Err((RejectReason::Full, Op { .. }))
    ));
    drop(parked);
    fetches.shutdown();
    let refused = fetches.completion(Op::new(NEVER_IN_A_TEST), [1]);
    assert!(matches!(
        refused.map_err(Rejected::into_parts),
        Err((RejectReason::ShutDown, Op { .. }))
    ));
}

#[test]
fn an_operation_that_no_task_awaits_has_its_callback() {
    let (fetches, _clock) = fetches(Dispatch::Inline);
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
        let (fetches, _clock) = fetches(Dispatch::Inline);
        let (probe, future) = (Probe::new(), Arc::new(Mutex::new(None)));
        let (ending, dropped, mut examinations) = (probe.clone(), future.clone(), 0);
        let when = move || {
            examinations += 1;
            let is_checked = examinations == 3;
            if is_checked {
                drop(dropped.lock().expect("no holder panics").take());
            }
            is_checked && says
        };
        let op = Op::new(NEVER_IN_A_TEST).when(when);
        let fetch = fetches.completion(op.then(move |it| ending.end(it)), [1]);
        *future.lock().expect("no holder panics") = Some(fetch.expect("there is room"));
        fetches.check_and_complete(&1);
        assert_eq!(probe.ending(), None);
        assert_empty(&fetches);
    }
}

/// What it is told, and when it arrived.
struct Asked {
    arrival: Timestamp,
    causes: Arc<Mutex<Vec<String>>>,
}

impl DelayedOperation for Asked {
    type Key = u64;

    fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn arrival(&self) -> Option<Timestamp> {
        Some(self.arrival)
    }

    fn try_complete(&mut self) -> bool {
        unreachable!("it is told the cause")
    }

    fn try_complete_for(&mut self, cause: Cause<'_, u64>) -> bool {
        let key = cause.key().map(u64::to_string);
        let cause = match key {
            Some(key) => key,
            None if cause.is_parking() => "parking".into(),
            None if cause.is_deadline() => "deadline".into(),
            None => "other".into(),
        };
        self.causes.lock().expect("no holder panics").push(cause);
        false
    }

    fn on_complete(self, _: Completion) {}
}

/// An operation that is awaited, and one that is not, is told all that it would be told by itself, and its deadline
/// counts from its arrival.
#[test]
fn g25_an_awaited_operation_is_told_its_causes_and_arrives_when_it_says() {
    let clock = ManualClock::new();
    clock.advance(Duration::from_millis(300));
    let fetches = Purgatory::<Awaited<Asked>>::builder("fetches")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .build()
        .expect("no threads to refuse");
    let causes = Arc::new(Mutex::new(Vec::new()));
    let asked = || Asked {
        arrival: Timestamp::from_origin(Duration::from_millis(100)),
        causes: causes.clone(),
    };
    let mut fetch = fetches.completion(asked(), [1, 2]).expect("there is room");
    let alone = fetches.try_complete_else_watch(Awaited::new(asked()), [2]);
    let alone = alone.expect("there is room").into_handle();
    let alone = alone.expect("it cannot complete yet");
    let handle = fetch.handle().expect("it is parked");
    let left = Some(Duration::from_millis(800));
    assert_eq!((handle.remaining(), alone.remaining()), (left, left));
    handle.check();
    assert_eq!(fetches.check_and_complete(&2), 0);
    clock.advance(Duration::from_millis(800));
    assert_eq!(fetches.advance(), 2);
    let told = std::mem::take(&mut *causes.lock().expect("no holder panics"));
    let expected = "parking parking parking parking other 2 2 deadline deadline";
    assert_eq!(told.join(" "), expected);
    let (_, completion) = now(&mut fetch).expect("it has ended");
    assert_eq!(completion, Completion::Expired);
    assert_empty(&fetches);
}
