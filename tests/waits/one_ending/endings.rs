//! G5: what ends a wait, one at a time, and what its caller is told, in every way to wait.

use crate::support::Tally;
use crate::{ENDS, End, SECOND, assert_empty, built, by_hand, now, owning, waiting};
use futures::channel::oneshot;
use request_purgatory::Waits;
use request_purgatory::future::WaitError;
use request_purgatory::purgatory::Stats;
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
type Ending = Pin<Box<dyn Future<Output = WaitError>>>;

/// Begins to wait on these keys, for a second.
type Begins = fn(&Waits<u64>, &[u64], Arc<Condition>) -> Ending;

fn wait(waits: &Waits<u64>, keys: &[u64], condition: Arc<Condition>) -> Ending {
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

fn wait_then(waits: &Waits<u64>, keys: &[u64], condition: Arc<Condition>) -> Ending {
    let (tell, told) = oneshot::channel();
    let then = move |end: Result<u8, WaitError>| {
        let told = tell.send(end.expect_err("nothing is found"));
        told.expect("the test waits for it");
    };
    waits.wait_then(keys.to_vec(), SECOND, move || condition.evaluate(), then);
    Box::pin(async { told.await.expect("it is told") })
}

fn listen(waits: &Waits<u64>, keys: &[u64], _: Arc<Condition>) -> Ending {
    let mut listener = waits.listen(keys.to_vec(), SECOND);
    Box::pin(async move {
        let end = listener.checked().await;
        assert_eq!(listener.checked().await, end, "the end repeats");
        end.expect_err("no check comes")
    })
}

fn until(waits: &Waits<u64>, keys: &[u64], condition: Arc<Condition>) -> Ending {
    let listener = waits.listen(keys.to_vec(), SECOND);
    let until = listener.until(move || ready(condition.evaluate()));
    Box::pin(async { until.await.expect_err("nothing is found") })
}

fn until_best(waits: &Waits<u64>, keys: &[u64], condition: Arc<Condition>) -> Ending {
    let listener = waits.listen(keys.to_vec(), SECOND);
    let best = listener.until_best(move || ready(condition.evaluate().ok_or("half")));
    Box::pin(async {
        let (half, end) = best.await.expect_err("it is not enough");
        assert_eq!(half, "half");
        end
    })
}

/// What the statistics say of one operation, if its waiter is told this.
fn counted(error: WaitError) -> Stats {
    let mut stats = Stats::default();
    match error {
        WaitError::Expired => stats.expired = 1,
        WaitError::Forced => stats.completed = 1,
        WaitError::Cancelled => stats.cancelled = 1,
        WaitError::ShutDown => stats.shut_down = 1,
        _ => (stats.aborted, stats.panicked) = (1, 1),
    }
    stats
}

fn ends_by(name: &str, begins: Begins, ends: &[(WaitError, End)]) {
    for &(error, end) in ends {
        let row = format!("{name}, {error:?}");
        let (waits, clock) = by_hand();
        let condition = Arc::new(Condition::default());
        let (mut ending, bell) = waiting(begins(&waits, &[1, 2], condition.clone()));
        let is_fragile = error == WaitError::Panicked;
        condition.is_fragile.store(is_fragile, Ordering::SeqCst);
        end(&waits, &clock);
        assert_eq!(bell.rung(), 1, "{row}");
        assert_eq!(bell.poll(&mut ending), Poll::Ready(error), "{row}");
        assert_eq!(Arc::strong_count(&condition), 1, "{row}");
        assert_empty(&waits);
        assert_eq!(waits.stats(), counted(error), "{row}");
    }
}

#[test]
fn g05_every_ending_has_its_error_and_its_count() {
    ends_by("wait", wait, &ENDS);
    ends_by("wait_then", wait_then, &ENDS);
    ends_by("listen", listen, &ENDS);
    ends_by("until", until, &ENDS);
    ends_by("until_best", until_best, &ENDS);
}

/// At the deadline as well: the model of waits has that.
#[test]
fn g12_a_predicate_that_panics_ends_its_own_wait() {
    let check: End = |waits, _| assert_eq!(waits.check_and_complete(&1), 0);
    ends_by("wait", wait, &[(WaitError::Panicked, check)]);
    ends_by("wait_then", wait_then, &[(WaitError::Panicked, check)]);
}

/// How often the condition is evaluated without keys, in a full purgatory, in one that is drained, and after the
/// shutdown.
fn is_refused(name: &str, begins: Begins, evaluations: [u64; 4]) {
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
