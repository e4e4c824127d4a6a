//! How busy the machine is beside a test: what it measures in real time is held against that.

use super::{eventually, patience_times, sleeps, stat};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Fails if the median of what `measure` returns exceeds `limit` by more than a few of the longest delays of a thread
/// beside it, each time it is measured: a fault is there every time, and the load of other tests is not.
pub fn assert_median_within(limit: Duration, mut measure: impl FnMut() -> Vec<Duration>) {
    const ATTEMPTS: usize = 5;
    let mut exceeded = Vec::new();
    while exceeded.len() < ATTEMPTS {
        let noise = Noise::listen();
        let mut took = measure();
        let worst = noise.worst();
        took.sort_unstable();
        let median = took[took.len() / 2];
        if median < limit * patience_times() + 4 * worst {
            return;
        }
        exceeded.push((median, worst));
    }
    panic!("medians, and how late a thread beside them woke up: {exceeded:?}");
}

/// A thread that sleeps and wakes beside the test, and sees how late the system lets it.
struct Noise {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Noise {
    fn listen() -> Self {
        const NAP: Duration = Duration::from_millis(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                thread::sleep(NAP);
                worst = worst.max(start.elapsed().saturating_sub(NAP));
            }
            worst
        });
        Self { stop, thread }
    }

    fn worst(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

/// Waits until all these threads sleep, and none of them is about to wake another.
pub fn eventually_asleep(threads: &[u64]) {
    let asleep = |thread: &u64| stat(*thread).state == 'S';
    let slept = || threads.iter().map(|thread| sleeps(*thread)).sum::<u64>();
    eventually("all threads sleep", || {
        let before = slept();
        let are_asleep = threads.iter().all(asleep);
        thread::sleep(Duration::from_millis(20));
        are_asleep && threads.iter().all(asleep) && slept() == before
    });
}
