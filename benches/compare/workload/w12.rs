//! W12: what an idle one costs: many are made and asked what needs no thread, one parks with the first deadline, all are
//! dropped.
//!
//! Beside the library's `Waits`, `Timer` and `Tracker` stand tokio-util's `DelayQueue`, which a task of the caller's
//! has to drive, and a wheel behind locks with a thread that ticks, as Netty's `HashedWheelTimer` has one.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use request_purgatory::{Timer, Waits};
use request_purgatory_tracker::Tracker;
use tokio::runtime::{Builder, Runtime};
use tokio_util::time::DelayQueue;

use super::{Case, Contender, Workload, contenders};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::process::{resident, threads};

const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct W12 {
    instances: usize,
}

/// Something that waits for deadlines, of which a program may have many that have none.
trait Idles {
    const NAME: &'static str;

    /// What many share.
    type Shared;

    fn share() -> Self::Shared;

    fn make(shared: &Self::Shared) -> Self;

    /// Gives it the first deadline.
    fn park(&mut self, shared: &Self::Shared);
}

struct OfWaits(Waits<u64>);

impl Idles for OfWaits {
    const NAME: &'static str = "waits";

    type Shared = ();

    fn share() {}

    fn make((): &()) -> Self {
        Self(Waits::new("compare"))
    }

    fn park(&mut self, (): &()) {
        let mut wait = pin!(self.0.wait([1], TIMEOUT, || None::<()>));
        let polled = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending));
    }
}

struct OfTimer(Timer<u64>);

impl Idles for OfTimer {
    const NAME: &'static str = "timer";

    type Shared = ();

    fn share() {}

    fn make((): &()) -> Self {
        Self(Timer::new("compare", |value| {
            black_box::<u64>(value);
        }))
    }

    fn park(&mut self, (): &()) {
        self.0.start(TIMEOUT, 1).expect("there is room");
    }
}

struct OfTracker(Tracker<u64, u64>);

impl Idles for OfTracker {
    const NAME: &'static str = "tracker";

    type Shared = ();

    fn share() {}

    fn make((): &()) -> Self {
        Self(Tracker::new("compare", |key, value, _| {
            black_box::<(u64, u64)>((key, value));
        }))
    }

    fn park(&mut self, (): &()) {
        self.0.track(1, 1, TIMEOUT).expect("there is room");
    }
}

struct OfDelayQueue(DelayQueue<u64>);

impl Idles for OfDelayQueue {
    const NAME: &'static str = "delay_queue";

    type Shared = Runtime;

    fn share() -> Runtime {
        let runtime = Builder::new_current_thread().enable_time().build();
        runtime.expect("a timer")
    }

    fn make(_: &Runtime) -> Self {
        Self(DelayQueue::new())
    }

    fn park(&mut self, runtime: &Runtime) {
        let _inside = runtime.enter();
        self.0.insert(1, TIMEOUT);
    }
}

/// Rounds that are left, and what was to wait.
type Bucket = Mutex<Vec<(u64, u64)>>;

/// Netty's settings: 512 buckets, a tick of 100 ms.
struct WheelThread {
    buckets: Arc<[Bucket]>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WheelThread {
    const BUCKETS: usize = 512;
    const TICK: Duration = Duration::from_millis(100);
}

impl Idles for WheelThread {
    const NAME: &'static str = "wheel_thread";

    type Shared = ();

    fn share() {}

    fn make((): &()) -> Self {
        Self {
            buckets: (0..Self::BUCKETS).map(|_| Mutex::default()).collect(),
            stop: Arc::default(),
            thread: None,
        }
    }

    /// As with Netty, the first timeout starts the thread.
    fn park(&mut self, (): &()) {
        let ticks = (TIMEOUT.as_millis() / Self::TICK.as_millis()) as u64;
        let bucket = ticks as usize % Self::BUCKETS;
        let mut bucket = self.buckets[bucket].lock().expect("no panic");
        bucket.push((ticks / Self::BUCKETS as u64, 1));
        let (buckets, stop) = (self.buckets.clone(), self.stop.clone());
        self.thread = Some(spawn(move || {
            for bucket in buckets.iter().cycle() {
                sleep(Self::TICK);
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let mut bucket = bucket.lock().expect("no panic");
                bucket.retain_mut(|(rounds, _)| {
                    std::mem::replace(rounds, rounds.wrapping_sub(1)) > 0
                });
            }
        }));
    }
}

impl Drop for WheelThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

impl W12 {
    fn round<I: Idles>(&self) -> Values {
        let shared = I::share();
        let mut all = Vec::with_capacity(self.instances);
        // Pages of the vector are there before.
        let (bytes, threads_before) = (resident(), threads());
        let begun = Instant::now();
        all.extend((0..self.instances).map(|_| I::make(&shared)));
        let make = begun.elapsed();
        let each = |total: f64| total / self.instances as f64;
        let bytes = match (bytes, resident()) {
            (Some(before), Some(now)) => each(now.saturating_sub(before) as f64),
            _ => f64::NAN,
        };
        let started = match (threads_before, threads()) {
            (Some(before), Some(now)) => now as f64 - before as f64,
            _ => f64::NAN,
        };
        let begun = Instant::now();
        let middle = self.instances / 2;
        all[middle].park(&shared);
        let first_park = begun.elapsed();
        let last = all.swap_remove(middle);
        let begun = Instant::now();
        drop(all);
        let dropped = begun.elapsed();
        drop(last);
        vec![
            bytes,
            started,
            each(make.as_nanos() as f64 / 1e3),
            first_park.as_nanos() as f64 / 1e3,
            each(dropped.as_nanos() as f64 / 1e3),
        ]
    }

    /// None of many that are idle has a thread.
    fn check<I: Idles>() {
        let values = Self { instances: 10 }.round::<I>();
        let threads = values[1];
        assert!(
            threads.is_nan() || threads <= 0.0,
            "{}: {threads} threads",
            I::NAME
        );
    }
}

impl Workload for W12 {
    const NAME: &'static str = "W12";

    const TITLE: &'static str =
        "many that are idle: made, one gets its first deadline, all are dropped";

    const METRICS: &'static [Metric] = &[
        Metric::less("memory of each", "bytes"),
        Metric::less("threads before a deadline", "count"),
        Metric::less("new", "µs"),
        Metric::less("first park", "µs"),
        Metric::less("drop", "µs"),
    ];

    /// What others have left in the allocator would hide the memory.
    const ALONE: bool = true;

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let instances = options.scale.pick(1_000, 1_000, 100);
        vec![Case {
            parameters: vec![("instances", instances)],
            workload: Self { instances },
        }]
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![check and round:
            OfWaits,
            OfTimer,
            OfTracker,
            OfDelayQueue,
            WheelThread,
        ]
    }
}
