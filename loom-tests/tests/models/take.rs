//! Takes on the whole purgatory. A future or a guard that is dropped while its job is on the way, against the check that
//! takes, the deadline, a cancel, a shutdown and newcomers: in the end each job was done once, or lies where it lay, and
//! beside no take that waits for it.

use loom::sync::Mutex;
use loom::thread;
use loom_tests::{DriverWaker, Sleeper, assert_empty, bounded, manual};
use request_purgatory::{
    CheckBound, Waits, future::Taken, future::WaitError, future::WaitFuture, future::WaitOperation,
    time::Clock, time::ManualClock,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_millis(100);

/// A job, and the key of its queue.
type Job = (u64, u32);
type Take = WaitFuture<WaitOperation<u64>, Taken<Job>>;

#[derive(Default)]
struct Queues {
    jobs: BTreeMap<u64, Vec<u32>>,
    /// The last job that was taken was taken on arrival, and has not gone back.
    kept_on_arrival: bool,
}

#[derive(Clone)]
struct World {
    waits: Waits<u64>,
    clock: ManualClock,
    queues: Arc<Mutex<Queues>>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self {
            waits: manual(&clock),
            clock,
            queues: Arc::default(),
        }
    }

    /// Takes from the key that it is told, if it is told one.
    fn take(&self, keys: &'static [u64]) -> Take {
        let (takes, returns) = (self.queues.clone(), self.queues.clone());
        self.waits.take(
            keys.iter().copied(),
            TIMEOUT,
            move |cause| {
                let mut queues = takes.lock().unwrap();
                let mut pop = |key: u64| Some((key, queues.jobs.get_mut(&key)?.pop()?));
                let job = match cause.key() {
                    Some(key) => pop(*key),
                    None => keys.iter().find_map(|key| pop(*key)),
                }?;
                queues.kept_on_arrival = cause.is_parking();
                Some(job)
            },
            move |(key, job)| {
                let mut queues = returns.lock().unwrap();
                queues.kept_on_arrival = false;
                queues.jobs.entry(key).or_default().push(job);
            },
        )
    }

    /// The guard of a job of key 1, which no other operation has waited for.
    fn taken(&self) -> Taken<Job> {
        self.put((1, 6));
        let mut take = self.take(&[1]);
        match poll(&mut take, &Sleeper::default()) {
            Poll::Ready(Ok(guard)) => guard,
            other => panic!("{other:?}"),
        }
    }

    fn put(&self, (key, job): Job) {
        let mut queues = self.queues.lock().unwrap();
        queues.jobs.entry(key).or_default().push(job);
    }

    /// The check for one completion that makes a job of `key` known; and the examinations that were left to the reaper.
    fn check(&self, key: u64) {
        self.waits
            .check_and_complete_with(&key, CheckBound::at_most(1));
        self.drive();
    }

    /// What a reaper does that is woken for deferred checks: until none is left, also of those that these have left.
    fn drive(&self) {
        while self
            .waits
            .next_deadline()
            .is_some_and(|next| next <= self.clock.now())
        {
            self.waits.advance();
        }
    }

    /// One job of key 1, and its check.
    fn push(&self) -> thread::JoinHandle<()> {
        self.spawn(|world| {
            world.put((1, 7));
            world.check(1);
        })
    }

    fn spawn(&self, run: impl FnOnce(Self) + 'static) -> thread::JoinHandle<()> {
        let world = self.clone();
        thread::spawn(move || run(world))
    }

    fn left(&self, key: u64) -> usize {
        let queues = self.queues.lock().unwrap();
        queues.jobs.get(&key).map_or(0, Vec::len)
    }
}

/// Polls when it is woken, and only then. The job is done.
fn wait(take: &mut Take) -> Result<u32, WaitError> {
    let sleeper = Sleeper::default();
    loop {
        match poll(take, &sleeper) {
            Poll::Ready(taken) => return taken.map(|taken| taken.done().1),
            Poll::Pending => sleeper.sleep(),
        }
    }
}

fn poll(take: &mut Take, sleeper: &Sleeper) -> Poll<Result<Taken<Job>, WaitError>> {
    let waker = Waker::from(Arc::new(DriverWaker(sleeper.waker())));
    Pin::new(take).poll(&mut Context::from_waker(&waker))
}

/// The job that it has got by now, if any, which is done.
fn received(take: &mut Take) -> Option<Job> {
    match poll(take, &Sleeper::default()) {
        Poll::Ready(Ok(guard)) => Some(guard.done()),
        Poll::Pending => None,
        Poll::Ready(Err(error)) => panic!("{error}"),
    }
}

/// Catches: a job that is lost with the future, in any hands; one that lies there while the next waiter sleeps.
#[test]
fn g23_drop_races_the_check_that_takes() {
    bounded(|| {
        let world = World::new();
        let first = world.take(&[1]);
        let mut second = world.take(&[1]);
        let producer = world.push();
        drop(first);
        assert_eq!(wait(&mut second), Ok(7));
        producer.join().unwrap();
        assert_eq!(world.left(1), 0);
        assert_empty(&world.waits);
    });
}

/// The same where the future was polled once, and may have been told by then.
#[test]
fn g23_poll_and_drop_race_the_check_that_takes() {
    bounded(|| {
        let world = World::new();
        let mut first = world.take(&[1]);
        let producer = world.push();
        let polled = received(&mut first);
        drop(first);
        producer.join().unwrap();
        assert_eq!(world.left(1), usize::from(polled.is_none()));
        assert_empty(&world.waits);
    });
}

/// Catches: what was taken in the last examination, at the deadline, and dropped with the future.
#[test]
fn g23_drop_races_the_deadline_and_the_check() {
    bounded(|| {
        let world = World::new();
        let first = world.take(&[1]);
        world.clock.advance(TIMEOUT);
        let reaper = world.spawn(|world| _ = world.waits.advance());
        let producer = world.push();
        drop(first);
        reaper.join().unwrap();
        producer.join().unwrap();
        assert_eq!(world.left(1), 1);
        assert_empty(&world.waits);
    });
}

/// Catches: a cancel by key that finds the operation in the hands of the thread that takes.
#[test]
fn g23_cancel_races_the_check_that_takes() {
    bounded(|| {
        let world = World::new();
        let mut take = world.take(&[1]);
        let producer = world.push();
        let cancelled = world.waits.cancel_for_key(&1);
        drop(cancelled);
        let taken = wait(&mut take);
        producer.join().unwrap();
        match taken {
            Ok(7) => assert_eq!(world.left(1), 0),
            Err(WaitError::Cancelled) => assert_eq!(world.left(1), 1),
            other => panic!("{other:?}"),
        }
        assert_empty(&world.waits);
    });
}

/// Catches: a shutdown that meets the thread that takes, and loses what that has.
#[test]
fn g23_drop_and_shutdown_race_the_check_that_takes() {
    bounded(|| {
        let world = World::new();
        let take = world.take(&[1]);
        let producer = world.push();
        let closer = world.spawn(|world| world.waits.shutdown());
        drop(take);
        closer.join().unwrap();
        producer.join().unwrap();
        assert_eq!(world.left(1), 1);
        assert_empty(&world.waits);
    });
}

/// Three takes in this order, of keys 2, 4 and 2, and 2. The first has a job of key 2 and is dropped, while a job that
/// came to key 4 is made known. Catches: the check of key 2, for the job that went back, spent on the second, which took
/// that of key 4: the third sleeps beside the job.
#[test]
fn g25_a_job_that_goes_back_races_a_check_of_another_key() {
    bounded(|| {
        let world = World::new();
        let first = world.take(&[2]);
        let mut of_both = world.take(&[4, 2]);
        let mut last = world.take(&[2]);
        world.put((2, 20));
        world.check(2);
        world.put((4, 40));
        let aborted = world.spawn(move |_| drop(first));
        world.check(4);
        aborted.join().unwrap();
        world.waits.advance();
        match (received(&mut of_both), received(&mut last)) {
            (Some((4, 40)), Some((2, 20))) => assert_eq!(world.left(4), 0),
            // Key 4 was checked in vain: the only take of it had got its job before.
            (Some((2, 20)), None) => assert_eq!(world.left(4), 1),
            others => panic!("{others:?}"),
        }
        assert_eq!(world.left(2), 0);
        drop(last);
        assert_empty(&world.waits);
    });
}

/// Catches: a job that is lost between the guard and the queue, or lies there while one of two takes sleeps.
#[test]
fn g26_a_guard_races_a_push_and_a_newcomer() {
    bounded(|| {
        let world = World::new();
        let guard = world.taken();
        let mut waiting = world.take(&[1]);
        let worker = world.spawn(move |world| {
            drop(guard);
            world.drive();
        });
        let producer = world.push();
        let mut newcomer = world.take(&[1]);
        // An examination that this thread has left to the reaper.
        world.drive();
        let mut jobs = [&mut waiting, &mut newcomer].map(|take| wait(take).expect("a job"));
        jobs.sort_unstable();
        assert_eq!((jobs, world.left(1)), ([6, 7], 0));
        worker.join().unwrap();
        producer.join().unwrap();
        assert_empty(&world.waits);
    });
}

/// Catches: a job that goes back to one that the shutdown ends, and stays in its hands.
#[test]
fn g26_a_guard_races_the_shutdown() {
    bounded(|| {
        let world = World::new();
        let guard = world.taken();
        let mut waiting = world.take(&[1]);
        let worker = world.spawn(move |_| drop(guard));
        world.waits.shutdown();
        worker.join().unwrap();
        match wait(&mut waiting) {
            Ok(6) => assert_eq!(world.left(1), 0),
            Err(WaitError::ShutDown) => assert_eq!(world.left(1), 1),
            other => panic!("{other:?}"),
        }
        assert_empty(&world.waits);
    });
}

/// Catches: a newcomer that keeps what it took on arrival while another waits; a job that goes back, and lies beside
/// both.
#[test]
fn g27_a_newcomer_races_the_check_of_a_job() {
    bounded(|| {
        let world = World::new();
        let mut waiting = world.take(&[1]);
        let producer = world.push();
        let mut newcomer = world.take(&[1]);
        producer.join().unwrap();
        world.waits.advance();
        assert!(!world.queues.lock().unwrap().kept_on_arrival);
        let jobs = [received(&mut waiting), received(&mut newcomer)];
        assert_eq!(jobs.iter().flatten().count(), 1, "{jobs:?}");
        assert_eq!(world.left(1), 0);
        drop([waiting, newcomer]);
        assert_empty(&world.waits);
    });
}

/// A job that no check has made known yet. Catches: one that goes back for the sake of a take that leaves just then, and
/// lies beside the newcomer.
#[test]
fn g27_a_newcomer_races_the_drop_of_the_one_that_waits() {
    bounded(|| {
        let world = World::new();
        let waiting = world.take(&[1]);
        world.put((1, 7));
        let leaver = world.spawn(move |_| drop(waiting));
        let mut newcomer = world.take(&[1]);
        assert_eq!(wait(&mut newcomer), Ok(7));
        leaver.join().unwrap();
        assert_eq!(world.left(1), 0);
        assert_empty(&world.waits);
    });
}
