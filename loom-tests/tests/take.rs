//! Takes on the whole purgatory: a future that is dropped while its value is on the way, against the check that takes,
//! the deadline, and a cancel. One job: in the end it was received once, or lies where it lay.
#![cfg(loom)]

use loom::sync::Mutex;
use loom::thread;
use loom_tests::{DriverWaker, Sleeper, bounded};
use request_purgatory::{
    Bound, Purgatory, Waits, future::TakeFuture, future::WaitError, future::WaitOperation,
    threads::Dispatch, threads::Reaper, time::ManualClock,
};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_millis(100);

struct World {
    waits: Waits<u64>,
    clock: ManualClock,
    jobs: Arc<Mutex<Vec<u32>>>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        let waits = Purgatory::<WaitOperation<u64>>::builder("model")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .dispatch(Dispatch::Inline)
            .build()
            .expect("the settings are sound");
        Self {
            waits,
            clock,
            jobs: Arc::new(Mutex::new(Vec::new())),
        }
    }

    fn take(&self, timeout: Duration) -> TakeFuture<u64, u32> {
        let (takes, returns) = (self.jobs.clone(), self.jobs.clone());
        self.waits.take(
            [1],
            timeout,
            move |_| takes.lock().unwrap().pop(),
            move |job| returns.lock().unwrap().push(job),
        )
    }

    /// One job, and the check for one completion that makes it known; and the examinations that were left to the
    /// reaper.
    fn push(&self) -> thread::JoinHandle<()> {
        let (waits, jobs) = (self.waits.clone(), self.jobs.clone());
        thread::spawn(move || {
            jobs.lock().unwrap().push(7);
            waits.check_and_complete_with(&1, Bound::at_most(1));
            waits.advance();
        })
    }

    fn time_passes(&self) -> thread::JoinHandle<()> {
        self.clock.advance(TIMEOUT);
        let waits = self.waits.clone();
        thread::spawn(move || _ = waits.advance())
    }

    fn left(&self) -> usize {
        self.jobs.lock().unwrap().len()
    }

    /// All threads have ended, and what was left to the reaper is done.
    fn assert_empty(&self) {
        let stats = self.waits.stats();
        assert_eq!(stats.panicked, 0);
        assert_eq!((stats.parked, stats.watched), (0, 0), "{stats:?}");
    }
}

/// Polls when it is woken, and only then.
fn wait(take: &mut TakeFuture<u64, u32>) -> Result<u32, WaitError> {
    let sleeper = Sleeper::default();
    loop {
        match poll(take, &sleeper) {
            Poll::Ready(taken) => return taken,
            Poll::Pending => sleeper.sleep(),
        }
    }
}

fn poll(take: &mut TakeFuture<u64, u32>, sleeper: &Sleeper) -> Poll<Result<u32, WaitError>> {
    let waker = Waker::from(Arc::new(DriverWaker(sleeper.waker())));
    Pin::new(take).poll(&mut Context::from_waker(&waker))
}

/// Catches: a value that is lost with the future, in any hands; one that lies there while the next waiter sleeps.
#[test]
fn g23_drop_races_the_check_that_takes() {
    bounded(|| {
        let world = World::new();
        let first = world.take(TIMEOUT);
        let mut second = world.take(TIMEOUT);
        let producer = world.push();
        drop(first);
        assert_eq!(wait(&mut second), Ok(7));
        producer.join().unwrap();
        assert_eq!(world.left(), 0);
        world.assert_empty();
    });
}

/// The same where the future was polled once, and may have been told by then.
#[test]
fn g23_poll_and_drop_race_the_check_that_takes() {
    bounded(|| {
        let world = World::new();
        let mut first = world.take(TIMEOUT);
        let producer = world.push();
        let polled = poll(&mut first, &Sleeper::default());
        drop(first);
        producer.join().unwrap();
        match polled {
            Poll::Ready(taken) => assert_eq!((taken, world.left()), (Ok(7), 0)),
            Poll::Pending => assert_eq!(world.left(), 1),
        }
        world.assert_empty();
    });
}

/// Catches: what was taken in the last examination, at the deadline, and dropped with the future.
#[test]
fn g23_drop_races_the_deadline_and_the_check() {
    bounded(|| {
        let world = World::new();
        let first = world.take(TIMEOUT);
        let reaper = world.time_passes();
        let producer = world.push();
        drop(first);
        reaper.join().unwrap();
        producer.join().unwrap();
        assert_eq!(world.left(), 1);
        world.assert_empty();
    });
}

/// Catches: a cancel by key that finds the operation in the hands of the thread that takes.
#[test]
fn g23_cancel_races_the_check_that_takes() {
    bounded(|| {
        let world = World::new();
        let mut take = world.take(TIMEOUT);
        let producer = world.push();
        let cancelled = world.waits.cancel_for_key(&1);
        drop(cancelled);
        let taken = wait(&mut take);
        producer.join().unwrap();
        match taken {
            Ok(7) => assert_eq!(world.left(), 0),
            Err(WaitError::Cancelled) => assert_eq!(world.left(), 1),
            other => panic!("{other:?}"),
        }
        world.assert_empty();
    });
}

/// Catches: a shutdown that meets the thread that takes, and loses what that has.
#[test]
fn g23_drop_and_shutdown_race_the_check_that_takes() {
    bounded(|| {
        let world = World::new();
        let take = world.take(TIMEOUT);
        let producer = world.push();
        let closer = {
            let waits = world.waits.clone();
            thread::spawn(move || waits.shutdown())
        };
        drop(take);
        closer.join().unwrap();
        producer.join().unwrap();
        assert_eq!(world.left(), 1);
        world.assert_empty();
    });
}
