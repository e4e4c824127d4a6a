//! W10t: W10 on several threads: all of them push to one queue, and each has a part of the workers.
//!
//! A job may go to a worker of any thread, which polls it when it has pushed its own next job. If a worker of the
//! library finds a job as soon as it waits, the job goes back, and those that have waited longer are asked in their
//! order. As in W10, only the library's workers have a timeout.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::w10::{Channel, JobQueue, Listeners, Notified, Takes, Worker, pushes};
use super::{Case, Contender, Workload, contenders, on_threads, whole};
use crate::options::Options;
use crate::outcome::{Metric, Values};

/// Workers of each thread.
const WORKERS: usize = 100;

/// After that a job that no worker has taken is lost.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct W10t {
    threads: usize,
    /// By each thread.
    pushes: usize,
}

/// What a thread did.
struct Done {
    span: (Instant, Instant),
    looks: Option<u64>,
    /// Of the numbers of the jobs that its workers took.
    sum: u64,
}

/// The workers of one thread.
struct Workers<'a, Q> {
    queue: &'a Q,
    workers: Vec<(Worker, Waker)>,
    woken: Arc<Mutex<Vec<usize>>>,
    /// Jobs that they have taken, and the sum of their numbers.
    taken: usize,
    sum: u64,
}

struct Number {
    at: usize,
    woken: Arc<Mutex<Vec<usize>>>,
}

impl Wake for Number {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.lock().push(self.at);
    }
}

impl<'a, Q: JobQueue> Workers<'a, Q> {
    fn new(queue: &'a Q) -> Self {
        let woken = Arc::default();
        let worker = |at| {
            let woken = Arc::clone(&woken);
            (queue.worker(), Waker::from(Arc::new(Number { at, woken })))
        };
        let mut all = Self {
            queue,
            workers: (0..WORKERS).map(worker).collect(),
            woken,
            taken: 0,
            sum: 0,
        };
        (0..WORKERS).for_each(|at| all.poll(at));
        all
    }

    /// Until it waits: whenever it has taken a job, it waits for another, which may be there.
    fn poll(&mut self, at: usize) {
        let (worker, waker) = &mut self.workers[at];
        let mut context = Context::from_waker(waker);
        while let Poll::Ready(job) = worker.as_mut().poll(&mut context) {
            self.taken += 1;
            self.sum += job;
            *worker = self.queue.worker();
        }
    }

    fn poll_woken(&mut self) {
        let woken = std::mem::take(&mut *self.woken.lock());
        woken.into_iter().for_each(|at| self.poll(at));
    }
}

impl W10t {
    /// Millions of jobs that are pushed and taken in a second, and looks for each.
    fn round<Q: JobQueue + Sync>(&self) -> Values {
        let queue = Q::new();
        let together = Barrier::new(self.threads);
        let taken = AtomicUsize::new(0);
        let run = || self.run_one(&queue, &together, &taken);
        let done: Vec<Done> = on_threads((0..self.threads).map(|_| run));
        let sum: u64 = done.iter().map(|done| done.sum).sum();
        let pushed = self.threads as u64 * (0..self.pushes as u64).sum::<u64>();
        let found = (taken.into_inner(), sum);
        assert_eq!(found, (self.jobs(), pushed), "{}: each job once", Q::NAME);
        let spans: Vec<_> = done.iter().map(|done| done.span).collect();
        let looks: Option<u64> = done.iter().map(|done| done.looks).sum();
        vec![
            self.jobs() as f64 / whole(&spans).as_secs_f64() / 1e6,
            looks.map_or(f64::NAN, |looks| looks as f64 / self.jobs() as f64),
        ]
    }

    fn jobs(&self) -> usize {
        self.threads * self.pushes
    }

    fn run_one<Q: JobQueue>(&self, queue: &Q, together: &Barrier, taken: &AtomicUsize) -> Done {
        let mut workers = Workers::new(queue);
        let before = Q::looks();
        together.wait();
        let started = Instant::now();
        for job in 0..self.pushes as u64 {
            queue.push(job);
            workers.poll_woken();
        }
        // Those that others have pushed since.
        loop {
            let mine = std::mem::take(&mut workers.taken);
            if taken.fetch_add(mine, Ordering::Relaxed) + mine >= self.jobs() {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "{}: a job is lost", Q::NAME);
            thread::yield_now();
            workers.poll_woken();
        }
        let ended = Instant::now();
        let looks = Q::looks().zip(before).map(|(now, before)| now - before);
        // A worker that goes while others wait could hand its turn on to them.
        together.wait();
        Done {
            span: (started, ended),
            looks,
            sum: workers.sum,
        }
    }

    fn check<Q: JobQueue + Sync>() {
        let small = Self {
            threads: 2,
            pushes: 100,
        };
        small.round::<Q>();
    }
}

impl Workload for W10t {
    const NAME: &'static str = "W10t";

    const TITLE: &'static str = "several threads push to one queue, whose workers compete";

    const METRICS: &'static [Metric] = &[
        Metric::more("rate", "M jobs/s"),
        Metric::note("looks per job", "count"),
    ];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let pushes = pushes(options);
        let case = |threads| Case {
            parameters: vec![("threads", threads)],
            workload: Self { threads, pushes },
        };
        options.threads().into_iter().map(case).collect()
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![check and round:
            Takes,
            Channel,
            Notified,
            Listeners,
        ]
    }
}
