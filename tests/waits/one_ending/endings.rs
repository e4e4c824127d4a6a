//! G5: what ends a wait, one at a time, and what its caller is told, in every way to wait.

use crate::support::bell::Bell;
use crate::support::{Op, Tally};
use crate::{SECOND, assert_empty, built, now, owning, pass};
use futures::channel::oneshot;
use request_purgatory::future::{Awaited, WaitError, WaitOperation};
use request_purgatory::purgatory::Stats;
use request_purgatory::time::ManualClock;
use request_purgatory::{DelayedOperation, Purgatory, Waits};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

/// What is waited for, which never comes.
#[derive(Default)]
struct Condition {
    evaluations: Tally,
    is_fragile: AtomicBool,
}

impl Condition {
    fn evaluate(&self) -> Option<u8> {
        self.evaluations.add();
        assert!(!self.is_fragile.load(Ordering::SeqCst), "on purpose");
        None
    }
}

/// Resolves to the reason why the condition was not awaited any longer.
type End = Pin<Box<dyn Future<Output = WaitError>>>;

/// Begins to wait on these keys, for a second.
type Begins<T> = fn(&Purgatory<T>, &[u64], Arc<Condition>) -> End;

fn wait(waits: &Waits<u64>, keys: &[u64], condition: Arc<Condition>) -> End {
    let payload = Arc::new(());
    let predicate = owning(payload.clone(), move || condition.evaluate());
    let mut wait = waits.wait(keys.to_vec(), SECOND, predicate);
    Box::pin(async move {
        let end = (&mut wait).await.expect_err("nothing is found");
        assert_eq!(Arc::strong_count(&payload), 1, "it is dropped");
        assert!(wait.handle().is_none());
        end
    })
}

fn wait_then(waits: &Waits<u64>, keys: &[u64], condition: Arc<Condition>) -> End {
    let (tell, told) = oneshot::channel();
    let then = move |end: Result<u8, WaitError>| {
        let told = tell.send(end.expect_err("nothing is found"));
        told.expect("the test waits for it");
    };
    waits.wait_then(keys.to_vec(), SECOND, move || condition.evaluate(), then);
    Box::pin(async { told.await.expect("it is told") })
}

fn listen(waits: &Waits<u64>, keys: &[u64], _: Arc<Condition>) -> End {
    let mut listener = waits.listen(keys.to_vec(), SECOND);
    Box::pin(async move {
        let end = listener.checked().await;
        assert_eq!(listener.checked().await, end, "the end repeats");
        end.expect_err("no check comes")
    })
}

fn until(waits: &Waits<u64>, keys: &[u64], condition: Arc<Condition>) -> End {
    let listener = waits.listen(keys.to_vec(), SECOND);
    let until = listener.until(move || ready(condition.evaluate()));
    Box::pin(async { until.await.expect_err("nothing is found") })
}

fn until_best(waits: &Waits<u64>, keys: &[u64], condition: Arc<Condition>) -> End {
    let listener = waits.listen(keys.to_vec(), SECOND);
    let best = listener.until_best(move || ready(condition.evaluate().ok_or("half")));
    Box::pin(async {
        let (half, end) = best.await.expect_err("it is not enough");
        assert_eq!(half, "half");
        end
    })
}

/// The operation comes back, and its `on_complete` is the caller's affair.
fn completion(fetches: &Purgatory<Awaited<Op>>, keys: &[u64], condition: Arc<Condition>) -> End {
    let op = Op::new(SECOND)
        .when(move || condition.evaluate().is_some())
        .then(|_| panic!("the future tells of the completion"));
    let fetch = fetches.completion(op, keys.to_vec());
    let fetch = fetch.expect("there is room");
    Box::pin(async {
        match fetch.await {
            Ok((Op { .. }, completion)) => completion.into(),
            Err(error) => error,
        }
    })
}

/// What ends whatever waits on key 1.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Deadline,
    Force,
    Cancel,
    ShutDown,
    Panic,
}

/// What the waiter is told, and how that is counted.
type Told = (WaitError, fn(&Stats) -> u64);

impl Ending {
    const OF_ALL: [Self; 4] = [Self::Deadline, Self::Force, Self::Cancel, Self::ShutDown];

    fn comes<T: DelayedOperation<Key = u64>>(
        self,
        purgatory: &Purgatory<T>,
        clock: &ManualClock,
        condition: &Condition,
    ) -> Told {
        match self {
            Self::Deadline => {
                pass(purgatory, clock, SECOND);
                (WaitError::Expired, |stats| stats.expired)
            }
            Self::Force => {
                assert_eq!(purgatory.force_complete_for_key(&1), 1);
                (WaitError::Forced, |stats| stats.completed)
            }
            Self::Cancel => {
                assert_eq!(purgatory.cancel_for_key(&1).len(), 1);
                (WaitError::Cancelled, |stats| stats.cancelled)
            }
            Self::ShutDown => {
                purgatory.shutdown();
                (WaitError::ShutDown, |stats| stats.shut_down)
            }
            Self::Panic => {
                condition.is_fragile.store(true, Ordering::SeqCst);
                assert_eq!(purgatory.check_and_complete(&1), 0);
                (WaitError::Panicked, |stats| stats.aborted)
            }
        }
    }
}

fn ends_by<T: DelayedOperation<Key = u64>>(name: &str, begins: Begins<T>, endings: &[Ending]) {
    for ending in endings {
        let (purgatory, clock) = built(|builder| builder);
        let (condition, bell) = (Arc::new(Condition::default()), Bell::new());
        let mut end = begins(&purgatory, &[1, 2], condition.clone());
        assert!(bell.poll(&mut end).is_pending(), "{name}, {ending:?}");
        let (error, count) = ending.comes(&purgatory, &clock, &condition);
        assert_eq!(bell.rung(), 1, "{name}, {ending:?}");
        let told = bell.poll(&mut end);
        assert_eq!(told, Poll::Ready(error), "{name}, {ending:?}");
        assert_eq!(Arc::strong_count(&condition), 1, "{name}, {ending:?}");
        assert_empty(&purgatory);
        let stats = purgatory.stats();
        let ended = stats.expired + stats.completed + stats.cancelled + stats.shut_down;
        let ended = ended + stats.aborted;
        assert_eq!((count(&stats), ended), (1, 1), "{name}, {ending:?}");
        assert_eq!(stats.panicked, stats.aborted, "{name}, {ending:?}");
    }
}

#[test]
fn g05_every_ending_has_its_error_and_its_count() {
    ends_by("wait", wait, &Ending::OF_ALL);
    ends_by("wait_then", wait_then, &Ending::OF_ALL);
    ends_by("listen", listen, &Ending::OF_ALL);
    ends_by("until", until, &Ending::OF_ALL);
    ends_by("until_best", until_best, &Ending::OF_ALL);
    ends_by("completion", completion, &Ending::OF_ALL);
}

/// At the deadline as well: the model of waits has that.
#[test]
fn g12_a_predicate_that_panics_ends_its_own_wait() {
    ends_by("wait", wait, &[Ending::Panic]);
    ends_by("wait_then", wait_then, &[Ending::Panic]);
    ends_by("completion", completion, &[Ending::Panic]);
}

/// How often the condition is evaluated without keys, in a full purgatory, in one that is drained, and after the
/// shutdown.
fn is_refused(name: &str, begins: Begins<WaitOperation<u64>>, evaluations: [u64; 4]) {
    let (purgatory, _clock) = built(|builder| builder.max_parked(1));
    let condition = Arc::new(Condition::default());
    let refused = |keys: &[u64]| {
        let before = condition.evaluations.count();
        let end = now(begins(&purgatory, keys, condition.clone()));
        (end, condition.evaluations.count() - before)
    };
    let [no_keys, full, draining, shut_down] = evaluations;
    assert_eq!(refused(&[]), (WaitError::NoKeys, no_keys), "{name}");
    let held = begins(&purgatory, &[1], condition.clone());
    assert_eq!(refused(&[1]), (WaitError::Full, full), "{name}");
    assert_eq!(purgatory.drain(Duration::ZERO), 1);
    assert_eq!(refused(&[1]), (WaitError::Draining, draining), "{name}");
    purgatory.shutdown();
    assert_eq!(now(held), WaitError::ShutDown, "{name}");
    assert_eq!(refused(&[1]), (WaitError::ShutDown, shut_down), "{name}");
    assert_eq!(purgatory.stats().rejected, 4, "{name}");
    assert_eq!(Arc::strong_count(&condition), 1, "{name}");
    assert_empty(&purgatory);
}

/// A predicate is asked where only room is missing; a condition, once in any case, by its own task.
#[test]
fn g17_a_refused_wait_resolves_at_once_and_says_why() {
    is_refused("wait", wait, [0, 1, 0, 0]);
    is_refused("wait_then", wait_then, [0, 1, 0, 0]);
    is_refused("listen", listen, [0; 4]);
    is_refused("until", until, [1; 4]);
    is_refused("until_best", until_best, [1; 4]);
}
