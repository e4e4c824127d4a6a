//! The futures on the whole purgatory: a task that waits, polls with one waker or another, or gives up, against the
//! checker and the reaper's step. A lost wake-up shows as a task that sleeps for ever.

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use loom_tests::{Sleeper, assert_empty, bounded, manual};
use request_purgatory::{
    Waits, future::WaitError, future::WaitFuture, future::WaitOperation, time::ManualClock,
};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_millis(100);

/// A purgatory that the model drives itself, and what the predicate reads.
struct World {
    waits: Waits<u64>,
    clock: ManualClock,
    event: Arc<AtomicBool>,
    payload: Arc<()>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self {
            waits: manual(&clock),
            clock,
            event: Arc::new(AtomicBool::new(false)),
            payload: Arc::new(()),
        }
    }

    fn wait(&self) -> WaitFuture<WaitOperation<u64>, u32> {
        let (event, payload) = (self.event.clone(), self.payload.clone());
        self.waits.wait([1], TIMEOUT, move || {
            let _ = &payload;
            // Relaxed: only the library's own ordering makes it visible.
            event.load(Ordering::Relaxed).then_some(7)
        })
    }

    /// The event, and the check that makes it known; and the examinations that were left to the reaper.
    fn happens(&self) -> thread::JoinHandle<()> {
        let (waits, event) = (self.waits.clone(), self.event.clone());
        thread::spawn(move || {
            event.store(true, Ordering::Relaxed);
            waits.check_and_complete(&1);
            waits.advance();
        })
    }

    fn time_passes(&self) -> thread::JoinHandle<usize> {
        self.clock.advance(TIMEOUT);
        let waits = self.waits.clone();
        thread::spawn(move || waits.advance())
    }

    /// Nothing is left, and no panic was swallowed.
    fn assert_empty(&self) {
        assert_empty(&self.waits);
        assert_eq!(Arc::strong_count(&self.payload), 1, "the predicate is left");
    }
}

/// A task's waker.
#[derive(Default)]
struct Task(Sleeper);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.waker().wake();
    }
}

impl Task {
    fn poll<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
        let waker = Waker::from(self.clone());
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    }

    /// Polls when it is woken, and only then.
    fn run<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> F::Output {
        loop {
            match self.poll(future) {
                Poll::Ready(output) => return output,
                Poll::Pending => self.0.sleep(),
            }
        }
    }
}

/// Catches: a future that is told and not woken; a poll that keeps the old waker, or puts a waker down without reading
/// the value again.
#[test]
fn g01_check_races_polls_with_changing_wakers() {
    bounded(|| {
        let world = World::new();
        let mut wait = world.wait();
        let checker = world.happens();
        let (first, second) = (Arc::<Task>::default(), Arc::<Task>::default());
        let found = match first.poll(&mut wait) {
            Poll::Ready(found) => found,
            Poll::Pending => second.run(&mut wait),
        };
        assert_eq!(found, Ok(7));
        assert!(first.poll(&mut wait).is_pending(), "and only once");
        checker.join().unwrap();
        for task in [first, second] {
            assert_eq!(Arc::strong_count(&task), 1, "a waker is left");
        }
        world.assert_empty();
    });
}

/// Catches: a wait that is not examined, or not watched, before the call returns.
#[test]
fn g01_check_races_the_call_to_wait() {
    bounded(|| {
        let world = World::new();
        let checker = world.happens();
        let found = Arc::<Task>::default().run(&mut world.wait());
        assert_eq!(found, Ok(7));
        checker.join().unwrap();
        world.assert_empty();
    });
}

/// Catches: a dropped future that cancels nothing, or leaves its waker to the thread that asks the predicate.
#[test]
fn g06_drop_races_a_check_in_vain() {
    bounded(|| {
        let world = World::new();
        let mut wait = world.wait();
        let task = Arc::<Task>::default();
        assert!(task.poll(&mut wait).is_pending());
        let checker = {
            let waits = world.waits.clone();
            thread::spawn(move || waits.check_and_complete(&1))
        };
        drop(wait);
        assert_eq!(Arc::strong_count(&task), 1, "a waker is left");
        assert_eq!(checker.join().unwrap(), 0);
        assert_eq!(world.waits.stats().cancelled, 1);
        world.assert_empty();
    });
}

/// Catches: what is told to a future that was dropped, and is left.
#[test]
fn g06_drop_races_check() {
    bounded(|| {
        let world = World::new();
        let mut wait = world.wait();
        let task = Arc::<Task>::default();
        assert!(task.poll(&mut wait).is_pending());
        let checker = world.happens();
        drop(wait);
        assert!(
            Arc::strong_count(&task) <= 2,
            "at most being woken just now"
        );
        checker.join().unwrap();
        assert_eq!(Arc::strong_count(&task), 1, "a waker is left");
        world.assert_empty();
    });
}

/// Catches: an ending that is told twice or never; a value that the last examination found, and the timeout threw away.
#[test]
fn g05_timeout_races_check() {
    bounded(|| {
        let world = World::new();
        let mut wait = world.wait();
        let reaper = world.time_passes();
        let checker = world.happens();
        let outcome = Arc::<Task>::default().run(&mut wait);
        reaper.join().unwrap();
        checker.join().unwrap();
        let stats = world.waits.stats();
        assert_eq!(stats.completed + stats.expired, 1, "{stats:?}");
        let found = stats.completed + stats.missed_checks;
        match outcome {
            Ok(7) => assert_eq!(found, 1, "{stats:?}"),
            Err(WaitError::Expired) => assert_eq!(found, 0, "{stats:?}"),
            other => panic!("{other:?}"),
        }
        world.assert_empty();
    });
}

/// Catches: a cancel that meets the expiry or the check, and leaves something that no thread takes.
#[test]
fn g06_drop_races_timeout_and_check() {
    bounded(|| {
        let world = World::new();
        let mut wait = world.wait();
        let task = Arc::<Task>::default();
        assert!(task.poll(&mut wait).is_pending());
        let reaper = world.time_passes();
        let checker = world.happens();
        drop(wait);
        reaper.join().unwrap();
        checker.join().unwrap();
        assert_eq!(Arc::strong_count(&task), 1, "a waker is left");
        let stats = world.waits.stats();
        let ended = stats.completed + stats.expired + stats.cancelled;
        assert_eq!(ended, 1, "{stats:?}");
        world.assert_empty();
    });
}

/// Catches: a wait that the shutdown does not see, or sees and does not tell.
#[test]
fn g15_shutdown_races_the_call_to_wait() {
    bounded(|| {
        let world = World::new();
        let closer = {
            let waits = world.waits.clone();
            thread::spawn(move || waits.shutdown())
        };
        let outcome = Arc::<Task>::default().run(&mut world.wait());
        assert_eq!(outcome, Err(WaitError::ShutDown));
        closer.join().unwrap();
        world.assert_empty();
    });
}
