//! Takes on random schedules: workers that take, give up at any moment and are cancelled, while jobs come and time
//! passes (G23); and workers of several queues, of which none overtakes another or sleeps beside a job (G25, G27).

use request_purgatory::future::{Taken, WaitFuture, WaitOperation};
use request_purgatory::threads::{Dispatch, Reaper};
use request_purgatory::{CheckBound, Purgatory, Waits, time::ManualClock};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::thread;
use shuttle_tests::operation::Hasher;
use shuttle_tests::{explore, lock};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const JOBS: u32 = 6;
const TAKES: usize = 4;
const KEYS: u64 = 2;

#[derive(Clone)]
struct Stage {
    waits: Waits<u64, Hasher>,
    clock: ManualClock,
    jobs: Arc<Mutex<VecDeque<u32>>>,
    received: Arc<Mutex<Vec<u32>>>,
}

fn waits(clock: &ManualClock) -> Waits<u64, Hasher> {
    Purgatory::<WaitOperation<u64>>::builder("shuttle")
        .clock(clock.clone())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::Inline)
        .hasher(Hasher::default())
        .build()
        .expect("the settings are sound")
}

impl Stage {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self {
            waits: waits(&clock),
            clock,
            jobs: Arc::default(),
            received: Arc::default(),
        }
    }

    fn take(&self) -> WaitFuture<WaitOperation<u64>, Taken<u32>, Hasher> {
        let (takes, returns) = (self.jobs.clone(), self.jobs.clone());
        let timeout = Duration::from_millis(thread_rng().gen_range(0..4));
        self.waits.take(
            0..KEYS,
            timeout,
            move |_| lock(&takes).pop_front(),
            move |job| lock(&returns).push_front(job),
        )
    }

    /// Takes, polls a few times, and drops the futures in any order, received or not.
    fn work(&self) {
        let mut takes = Vec::new();
        for _ in 0..TAKES {
            takes.push(self.take());
            for _ in 0..thread_rng().gen_range(0..4) {
                let at = thread_rng().gen_range(0..takes.len());
                let polled = Pin::new(&mut takes[at]).poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(Ok(job)) = polled {
                    lock(&self.received).push(job.done());
                }
                thread::yield_now();
            }
            if thread_rng().gen_bool(0.5) {
                drop(takes.swap_remove(thread_rng().gen_range(0..takes.len())));
            }
        }
    }

    fn push(&self) {
        for job in 0..JOBS {
            lock(&self.jobs).push_back(job);
            let key = thread_rng().gen_range(0..KEYS);
            match thread_rng().gen_range(0..4) {
                0 => self.waits.check_later(key),
                _ => drop(
                    self.waits
                        .check_and_complete_with(&key, CheckBound::at_most(1)),
                ),
            }
        }
    }

    fn meddle(&self) {
        for _ in 0..TAKES {
            match thread_rng().gen_range(0..4) {
                0 => drop(self.waits.cancel_for_key(&0)),
                1 => drop(self.waits.force_complete_for_key(&1)),
                _ => {
                    self.clock.advance(Duration::from_millis(1));
                    self.waits.advance();
                }
            }
        }
    }
}

#[test]
fn g23_what_was_taken_is_received_or_given_back() {
    explore(|| {
        let stage = Stage::new();
        let parts: [fn(&Stage); 4] = [Stage::work, Stage::push, Stage::work, Stage::meddle];
        let threads = parts.map(|part| {
            let stage = stage.clone();
            thread::spawn(move || part(&stage))
        });
        for thread in threads {
            thread.join().expect("no call panics");
        }
        stage.waits.advance();
        stage.waits.shutdown();
        let mut all = lock(&stage.received).clone();
        all.extend(lock(&stage.jobs).iter());
        all.sort_unstable();
        assert_eq!(
            all,
            Vec::from_iter(0..JOBS),
            "each is received or there, once"
        );
        let stats = stage.waits.stats();
        assert_eq!((stats.parked, stats.panicked), (0, 0), "{stats:?}");
    });
}

const QUEUES: u64 = 3;

/// A job, and the key of its queue.
type Job = (u64, u32);

/// A take: of which keys, and what it does.
struct Worker {
    keys: Vec<u64>,
    arrived: bool,
    waits: bool,
    /// The key of the job that it took on arrival, and that has not gone back.
    kept: Option<u64>,
}

#[derive(Default)]
struct Book {
    queues: [VecDeque<u32>; QUEUES as usize],
    workers: Vec<Worker>,
    done: Vec<u32>,
}

impl Book {
    fn pop(&mut self, keys: &[u64]) -> Option<Job> {
        let mut pop = |key: &u64| Some((*key, self.queues[*key as usize].pop_front()?));
        keys.iter().find_map(&mut pop)
    }

    /// The workers that wait for a job of `key`.
    fn waiting_for(&self, key: u64) -> Vec<usize> {
        let waits = |worker: &Worker| worker.arrived && worker.waits && worker.keys.contains(&key);
        let numbers = 0..self.workers.len();
        numbers
            .filter(|number| waits(&self.workers[*number]))
            .collect()
    }
}

#[derive(Clone)]
struct Hall {
    waits: Waits<u64, Hasher>,
    book: Arc<Mutex<Book>>,
}

impl Hall {
    fn new() -> Self {
        Self {
            waits: waits(&ManualClock::new()),
            book: Arc::default(),
        }
    }

    fn take(&self) -> (usize, WaitFuture<WaitOperation<u64>, Taken<Job>, Hasher>) {
        let mut keys = Vec::from_iter(0..QUEUES);
        keys.rotate_left(thread_rng().gen_range(0..QUEUES as usize));
        keys.truncate(thread_rng().gen_range(1..=QUEUES as usize));
        let (number, before) = {
            let mut book = lock(&self.book);
            book.workers.push(Worker {
                keys: keys.clone(),
                arrived: false,
                waits: true,
                kept: None,
            });
            let before: [_; QUEUES as usize] =
                std::array::from_fn(|key| book.waiting_for(key as u64));
            (book.workers.len() - 1, before)
        };
        let (takes, returns) = (self.book.clone(), self.book.clone());
        let take = self.waits.take(
            keys.clone(),
            None,
            move |cause| {
                let mut book = lock(&takes);
                let (key, job) = match cause.key() {
                    Some(key) => book.pop(&[*key]),
                    None => book.pop(&keys),
                }?;
                let worker = &mut book.workers[number];
                worker.waits = false;
                worker.kept = cause.is_parking().then_some(key);
                Some((key, job))
            },
            move |(key, job)| {
                let mut book = lock(&returns);
                book.queues[key as usize].push_front(job);
                let worker = &mut book.workers[number];
                worker.waits = !worker.arrived;
                worker.kept = None;
            },
        );
        let mut book = lock(&self.book);
        book.workers[number].arrived = true;
        if let Some(key) = book.workers[number].kept {
            let still = book.waiting_for(key);
            let overtaken = before[key as usize]
                .iter()
                .find(|other| still.contains(other));
            assert_eq!(overtaken, None, "{number} overtook it on key {key}");
        }
        drop(book);
        (number, take)
    }

    /// Takes, polls, and drops futures and guards at any moment. Returns the futures that are left.
    fn work(&self) -> Vec<WaitFuture<WaitOperation<u64>, Taken<Job>, Hasher>> {
        let mut takes = Vec::new();
        for _ in 0..TAKES {
            takes.push(self.take());
            let at = thread_rng().gen_range(0..takes.len());
            let (number, mut take) = takes.swap_remove(at);
            match Pin::new(&mut take).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(job)) if thread_rng().gen_bool(0.5) => {
                    let (_, job) = job.done();
                    lock(&self.book).done.push(job);
                }
                Poll::Pending if thread_rng().gen_bool(0.7) => takes.push((number, take)),
                _ => lock(&self.book).workers[number].waits = false,
            }
        }
        takes.into_iter().map(|(_, take)| take).collect()
    }

    /// A check of one job each, now or deferred.
    fn push(&self, jobs: std::ops::Range<u32>) {
        for job in jobs {
            let key = thread_rng().gen_range(0..QUEUES);
            lock(&self.book).queues[key as usize].push_back(job);
            match thread_rng().gen_range(0..6) {
                0 => self.waits.check_later(key),
                _ => {
                    _ = self
                        .waits
                        .check_and_complete_with(&key, CheckBound::at_most(1))
                }
            }
        }
    }
}

#[test]
fn g25_g27_no_take_is_overtaken_or_sleeps_beside_a_job() {
    explore(|| {
        let hall = Hall::new();
        let producers = [0..JOBS / 2, JOBS / 2..JOBS].map(|jobs| {
            let hall = hall.clone();
            thread::spawn(move || hall.push(jobs))
        });
        let workers = [(); 2].map(|()| {
            let hall = hall.clone();
            thread::spawn(move || hall.work())
        });
        for producer in producers {
            producer.join().expect("no call panics");
        }
        let left = workers.map(|worker| worker.join().expect("no call panics"));
        while hall.waits.next_deadline().is_some() {
            hall.waits.advance();
        }
        for key in 0..QUEUES {
            let book = lock(&hall.book);
            let (waiting, jobs) = (book.waiting_for(key), &book.queues[key as usize]);
            assert!(
                waiting.is_empty() || jobs.is_empty(),
                "{waiting:?}, {jobs:?}"
            );
        }
        drop(left);
        let book = lock(&hall.book);
        let queued = book.queues.iter().flatten();
        let mut all = Vec::from_iter(book.done.iter().chain(queued).copied());
        all.sort_unstable();
        assert_eq!(all, Vec::from_iter(0..JOBS), "each is done or there, once");
        let stats = hall.waits.stats();
        assert_eq!((stats.parked, stats.panicked), (0, 0), "{stats:?}");
    });
}
