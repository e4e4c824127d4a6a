//! W10: workers that compete: one push to a queue that all of them wait for.
//!
//! (Without workers: a value is taken that is there, and given back.)
//!
//! Every worker is a future that waits for a job, polled once. A job is pushed, and handed over: a worker is woken,
//! takes it, and waits again. One thread does all of it, so that what is measured is the work and no scheduler. Of the
//! others none has a timeout, nor a place from where a job goes back if its worker is gone; the library's `take` has
//! both.

mod uncontended;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender, unbounded};
use event_listener::Event;
use parking_lot::Mutex;
use request_purgatory::future::{Taken, WaitFuture, WaitOperation};
use request_purgatory::{CheckBound, Waits};
use tokio::sync::Notify;

use self::uncontended::{VALUES, at_once, measure, round_of_bb8};
use super::{Case, Contender, ROUNDS, Workload, contenders};
use crate::options::Options;
use crate::outcome::{Metric, Values};

pub(crate) struct W10 {
    workers: usize,
    pushes: usize,
}

/// All are boxed, for like with like.
pub(super) type Worker = Pin<Box<dyn Future<Output = u64>>>;

pub(super) trait JobQueue {
    const NAME: &'static str;

    fn new() -> Self;

    /// Resolves to a job.
    fn next(&self) -> impl Future<Output = u64> + 'static;

    fn worker(&self) -> Worker {
        Box::pin(self.next())
    }

    fn push(&self, job: u64);

    /// Takes a job that is there, and gives it back.
    #[inline(never)]
    fn lend(&self) {
        self.push(at_once(self.next()));
    }

    /// How often the library asked a worker on this thread whether it finds a job.
    fn looks() -> Option<u64> {
        None
    }
}

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// What all workers of a queue share is for ever: counting references would charge the candidates for the harness.
type Jobs = &'static Mutex<VecDeque<u64>>;

fn forever<T: Default>() -> &'static T {
    Box::leak(Box::default())
}

pub(super) struct Takes {
    waits: Waits<u64>,
    jobs: Jobs,
}

impl Takes {
    fn taken(&self) -> WaitFuture<WaitOperation<u64>, Taken<u64>> {
        let jobs = self.jobs;
        self.waits.take(
            [1],
            Duration::from_secs(3_600),
            move |_| {
                LOOKS.set(LOOKS.get() + 1);
                jobs.lock().pop_front()
            },
            move |job| jobs.lock().push_front(job),
        )
    }
}

impl JobQueue for Takes {
    const NAME: &'static str = "request_purgatory";

    fn new() -> Self {
        Self {
            waits: Waits::new("compare"),
            jobs: forever(),
        }
    }

    fn next(&self) -> impl Future<Output = u64> + 'static {
        let taken = self.taken();
        async { taken.await.expect("no end but a job").done() }
    }

    #[inline(never)]
    fn lend(&self) {
        drop(at_once(self.taken()).expect("a job is there"));
    }

    #[inline(never)]
    fn push(&self, job: u64) {
        self.jobs.lock().push_back(job);
        self.waits
            .check_and_complete_with(&1, CheckBound::at_most(1));
    }

    fn looks() -> Option<u64> {
        Some(LOOKS.get())
    }
}

pub(super) struct Channel(Sender<u64>, &'static Receiver<u64>);

impl JobQueue for Channel {
    const NAME: &'static str = "async_channel";

    fn new() -> Self {
        let (sender, receiver) = unbounded();
        Self(sender, Box::leak(Box::new(receiver)))
    }

    fn next(&self) -> impl Future<Output = u64> + 'static {
        let receiver = self.1;
        async move { receiver.recv().await.expect("it is open") }
    }

    #[inline(never)]
    fn push(&self, job: u64) {
        self.0.try_send(job).expect("it is unbounded");
    }
}

pub(super) struct Notified(&'static Notify, Jobs);

impl JobQueue for Notified {
    const NAME: &'static str = "tokio_notify";

    fn new() -> Self {
        Self(forever(), forever())
    }

    fn next(&self) -> impl Future<Output = u64> + 'static {
        let (notify, jobs) = (self.0, self.1);
        async move {
            loop {
                let notified = notify.notified();
                if let Some(job) = jobs.lock().pop_front() {
                    return job;
                }
                notified.await;
            }
        }
    }

    #[inline(never)]
    fn push(&self, job: u64) {
        self.1.lock().push_back(job);
        self.0.notify_one();
    }
}

pub(super) struct Listeners(&'static Event, Jobs);

impl JobQueue for Listeners {
    const NAME: &'static str = "event_listener";

    fn new() -> Self {
        Self(forever(), forever())
    }

    fn next(&self) -> impl Future<Output = u64> + 'static {
        let (event, jobs) = (self.0, self.1);
        async move {
            loop {
                // Who finds a job need not listen.
                if let Some(job) = jobs.lock().pop_front() {
                    return job;
                }
                event_listener::listener!(event => listener);
                if let Some(job) = jobs.lock().pop_front() {
                    return job;
                }
                listener.await;
            }
        }
    }

    #[inline(never)]
    fn push(&self, job: u64) {
        self.1.lock().push_back(job);
        self.0.notify_additional(1);
    }
}

thread_local! {
    /// Workers that were woken, by number.
    static WOKEN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

struct Number(usize);

impl Wake for Number {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        WOKEN.with_borrow_mut(|woken| woken.push(self.0));
    }
}

/// Of each thread in a round.
pub(super) fn pushes(options: &Options) -> usize {
    (options.lives() / options.rounds_of(ROUNDS)).min(100_000)
}

impl W10 {
    fn round<Q: JobQueue>(&self) -> Values {
        match self.workers {
            0 => Self::uncontended(Self::lend::<Q>(self.pushes)),
            _ => self.contended::<Q>(),
        }
    }

    /// Nanoseconds to take a job and give it back.
    fn lend<Q: JobQueue>(times: usize) -> f64 {
        let queue = Q::new();
        // A worker has waited before: what is made for the first one is there.
        let mut first = queue.worker();
        let mut context = Context::from_waker(Waker::noop());
        assert!(
            first.as_mut().poll(&mut context).is_pending(),
            "{}",
            Q::NAME
        );
        (0..VALUES).for_each(|value| queue.push(value));
        queue.push(at_once(first));
        let each = measure(times, || queue.lend());
        let mut values = Vec::from_iter((0..VALUES).map(|_| at_once(queue.next())));
        values.sort_unstable();
        assert!(
            values.into_iter().eq(0..VALUES),
            "{}: all are back",
            Q::NAME
        );
        each
    }

    fn uncontended(take_and_give_back: f64) -> Values {
        let mut values = vec![f64::NAN; Self::METRICS.len()];
        values[UNCONTENDED] = take_and_give_back;
        values
    }

    /// Only without workers.
    fn round_of_bb8(&self) -> Values {
        Self::uncontended(match self.workers {
            0 => round_of_bb8(self.pushes),
            _ => f64::NAN,
        })
    }

    fn contended<Q: JobQueue>(&self) -> Values {
        let queue = Q::new();
        let wakers = Vec::from_iter((0..self.workers).map(|at| Waker::from(Arc::new(Number(at)))));
        let poll = |worker: &mut Worker, at: usize| {
            worker.as_mut().poll(&mut Context::from_waker(&wakers[at]))
        };
        let begin = |at| {
            let mut worker = queue.worker();
            assert!(poll(&mut worker, at).is_pending(), "{}", Q::NAME);
            worker
        };
        let mut workers = Vec::from_iter((0..self.workers).map(begin));
        let (mut pushing, mut handing_over) = (Duration::ZERO, Duration::ZERO);
        let (mut looks, mut wakes) = (0, 0);
        let warm_up = self.pushes / 10;
        for job in 0..(warm_up + self.pushes) as u64 {
            let before = Q::looks();
            let begun = Instant::now();
            queue.push(job);
            let pushed = Instant::now();
            let after = Q::looks();
            let woken = WOKEN.take();
            let mut received = None;
            for &at in &woken {
                if let Poll::Ready(job) = poll(&mut workers[at], at) {
                    received = Some(job);
                    workers[at] = begin(at);
                }
            }
            let over = pushed.elapsed();
            assert_eq!(received, Some(job), "{}: a worker has it", Q::NAME);
            if job >= warm_up as u64 {
                pushing += pushed - begun;
                handing_over += over;
                looks += before
                    .zip(after)
                    .map_or(0, |(before, after)| after - before);
                wakes += woken.len();
            }
        }
        let each = |sum: f64| sum / self.pushes as f64;
        vec![
            each(pushing.as_nanos() as f64),
            each((pushing + handing_over).as_nanos() as f64),
            each(wakes as f64),
            Q::looks().map_or(f64::NAN, |_| each(looks as f64)),
            f64::NAN,
        ]
    }

    /// What was taken is back; a job goes to one worker, and to none twice. (A channel may wake more of them: they find
    /// nothing.)
    fn check<Q: JobQueue>() {
        Self::lend::<Q>(100);
        let small = Self {
            workers: 10,
            pushes: 100,
        };
        let values = small.contended::<Q>();
        assert!(values[2] >= 1.0, "{}: each push wakes a worker", Q::NAME);
    }
}

/// The last metric, and the only one of the case without workers.
const UNCONTENDED: usize = 4;

impl Workload for W10 {
    const NAME: &'static str = "W10";

    const TITLE: &'static str = "one push to workers that compete for it";

    const METRICS: &'static [Metric] = &[
        Metric::less("push", "ns"),
        Metric::less("push, take, wait again", "ns"),
        Metric::note("wake-ups per push", "count"),
        Metric::note("examinations per push", "count"),
        Metric::less("take and give back", "ns"),
    ];

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let all = options
            .scale
            .pick(&[0, 10, 10_000][..], &[0, 10, 10_000], &[0, 100]);
        let pushes = pushes(options);
        let case = |&workers: &usize| Case {
            parameters: vec![("workers", workers)],
            workload: Self { workers, pushes },
        };
        all.iter().map(case).collect()
    }

    fn contenders() -> Vec<Contender<Self>> {
        let mut all = contenders![check and round: Takes, Channel, Notified, Listeners];
        let check_bb8 = || _ = round_of_bb8(100);
        all.push(Contender::other("bb8", check_bb8, Self::round_of_bb8));
        all
    }
}
