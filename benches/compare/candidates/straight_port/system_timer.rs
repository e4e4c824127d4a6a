//! `SystemTimer`: the wheel behind its lock, the queue of buckets by deadline, and the executor
//! that ends expired operations.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use super::operation::{Operation, TimerEntry};
use super::timing_wheel::{Added, Bucket, Task, TimingWheel};

pub(crate) struct SystemTimer {
    origin: Instant,
    wheel: RwLock<TimingWheel>,
    queue: BucketQueue,
    tasks: Arc<AtomicUsize>,
    /// `None` once dropping, which ends the executor's thread.
    expired: Option<Sender<Arc<Operation>>>,
    executor: Option<JoinHandle<()>>,
}

/// Java's `DelayQueue`, of buckets.
#[derive(Default)]
struct BucketQueue {
    heap: Mutex<BinaryHeap<Reverse<Queued>>>,
    earlier: Condvar,
}

struct Queued {
    expiration: u64,
    bucket: Arc<Bucket>,
}

impl BucketQueue {
    fn offer(&self, bucket: Arc<Bucket>, expiration: u64) {
        let mut heap = self.heap.lock();
        let first = heap
            .peek()
            .is_none_or(|Reverse(head)| expiration < head.expiration);
        heap.push(Reverse(Queued { expiration, bucket }));
        if first {
            self.earlier.notify_one();
        }
    }

    /// The first bucket whose deadline comes before `until`, waiting for it.
    fn poll(&self, origin: Instant, until: Instant) -> Option<Queued> {
        let mut heap = self.heap.lock();
        loop {
            let head = heap.peek().map(|Reverse(head)| head.expiration);
            let due = head.map_or(until, |ticks| origin + Duration::from_millis(ticks));
            if head.is_some() && due <= Instant::now() {
                return heap.pop().map(|Reverse(queued)| queued);
            }
            if until <= Instant::now() {
                return None;
            }
            self.earlier.wait_until(&mut heap, due.min(until));
        }
    }
}

impl SystemTimer {
    pub(super) fn new(origin: Instant, expire: impl Fn(&Operation) + Send + 'static) -> Self {
        let tasks = Arc::new(AtomicUsize::new(0));
        let (expired, submitted) = channel::<Arc<Operation>>();
        let executor = thread::spawn(move || submitted.iter().for_each(|task| expire(&task)));
        Self {
            origin,
            wheel: RwLock::new(TimingWheel::new(1, 0, Arc::clone(&tasks))),
            queue: BucketQueue::default(),
            tasks,
            expired: Some(expired),
            executor: Some(executor),
        }
    }

    pub(super) fn add(&self, operation: &Arc<Operation>) {
        let deadline = Instant::now() + operation.timeout - self.origin;
        // One tick more than has fully passed by the deadline: never early.
        let expiration = deadline.as_millis() as u64 + 1;
        let task = Task {
            operation: Arc::clone(operation),
            expiration,
        };
        self.add_to(&self.wheel.read(), task);
    }

    fn add_to(&self, wheel: &TimingWheel, task: Task) {
        let operation = Arc::clone(&task.operation);
        match wheel.add(task) {
            Added::Linked | Added::Cancelled => {}
            Added::Queue(bucket, expiration) => self.queue.offer(bucket, expiration),
            Added::Due => self.submit(operation),
        }
    }

    fn submit(&self, operation: Arc<Operation>) {
        if matches!(*operation.entry.lock(), TimerEntry::Cancelled) {
            return;
        }
        let expired = self.expired.as_ref().expect("there until dropped");
        expired
            .send(operation)
            .expect("the executor lives as long as its sender");
    }

    pub(super) fn advance_clock(&self, wait: Duration) {
        let now = Instant::now();
        let Some(mut queued) = self.queue.poll(self.origin, now + wait) else {
            return;
        };
        let mut wheel = self.wheel.write();
        loop {
            wheel.advance_clock(queued.expiration);
            queued.bucket.flush(|task| self.add_to(&wheel, task));
            match self.queue.poll(self.origin, now) {
                Some(next) => queued = next,
                None => break,
            }
        }
    }

    /// Operations in any bucket.
    pub(super) fn len(&self) -> usize {
        self.tasks.load(Ordering::Relaxed)
    }
}

impl Drop for SystemTimer {
    fn drop(&mut self) {
        self.expired = None;
        if let Some(executor) = self.executor.take() {
            executor.join().expect("the executor ends without a panic");
        }
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.expiration.cmp(&other.expiration)
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.expiration == other.expiration
    }
}

impl Eq for Queued {}
