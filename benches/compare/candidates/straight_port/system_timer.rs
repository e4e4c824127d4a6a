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

use super::operation::{Bucket, Operation, Task, TimerEntry};
use super::timing_wheel::{Added, TimingWheel};

pub(crate) struct SystemTimer {
    origin: Instant,
    buckets: Buckets,
    /// `None` once dropping, which ends the executor's thread.
    expired: Option<Sender<Arc<Operation>>>,
    executor: Option<JoinHandle<()>>,
}

/// The wheel, and its buckets by deadline, in ticks.
pub(crate) struct Buckets {
    wheel: RwLock<TimingWheel>,
    queue: Mutex<BinaryHeap<Reverse<Queued>>>,
    earlier: Condvar,
    tasks: Arc<AtomicUsize>,
}

pub(crate) struct Queued {
    expiration: u64,
    bucket: Arc<Bucket>,
}

impl Buckets {
    /// Returns the operation if it is due.
    pub(super) fn add(&self, task: Task) -> Option<Arc<Operation>> {
        self.add_to(&self.wheel.read(), task)
    }

    fn add_to(&self, wheel: &TimingWheel, task: Task) -> Option<Arc<Operation>> {
        let operation = Arc::clone(&task.operation);
        match wheel.add(task) {
            Added::Linked | Added::Cancelled => None,
            Added::Queue(bucket, expiration) => {
                self.offer(bucket, expiration);
                None
            }
            Added::Due => {
                let cancelled = matches!(*operation.entry.lock(), TimerEntry::Cancelled);
                (!cancelled).then_some(operation)
            }
        }
    }

    fn offer(&self, bucket: Arc<Bucket>, expiration: u64) {
        let mut queue = self.queue.lock();
        let first = queue
            .peek()
            .is_none_or(|Reverse(head)| expiration < head.expiration);
        queue.push(Reverse(Queued { expiration, bucket }));
        if first {
            self.earlier.notify_one();
        }
    }

    /// The first bucket whose deadline has come at tick `now`.
    pub(super) fn poll(&self, now: u64) -> Option<Queued> {
        pop_due(&mut self.queue.lock(), now)
    }

    /// The same, but waiting for it until `until`.
    fn wait(&self, origin: Instant, until: Instant) -> Option<Queued> {
        let mut queue = self.queue.lock();
        loop {
            let now = Instant::now();
            if let Some(due) = pop_due(&mut queue, ticks(now - origin)) {
                return Some(due);
            }
            if until <= now {
                return None;
            }
            let next = queue.peek().map_or(until, |Reverse(head)| {
                origin + Duration::from_millis(head.expiration)
            });
            self.earlier.wait_until(&mut queue, next.min(until));
        }
    }

    /// Moves on to `first` and to all buckets after it that are due at tick `now`.
    pub(super) fn flush(&self, first: Queued, now: u64, mut submit: impl FnMut(Arc<Operation>)) {
        let mut wheel = self.wheel.write();
        let mut next = Some(first);
        while let Some(queued) = next {
            wheel.advance_clock(queued.expiration);
            queued.bucket.flush(|task| {
                if let Some(due) = self.add_to(&wheel, task) {
                    submit(due);
                }
            });
            next = self.poll(now);
        }
    }

    /// Operations in any bucket.
    pub(super) fn len(&self) -> usize {
        self.tasks.load(Ordering::Relaxed)
    }
}

impl Default for Buckets {
    fn default() -> Self {
        let tasks = Arc::new(AtomicUsize::new(0));
        Self {
            wheel: RwLock::new(TimingWheel::new(1, 0, Arc::clone(&tasks))),
            queue: Mutex::default(),
            earlier: Condvar::new(),
            tasks,
        }
    }
}

fn pop_due(queue: &mut BinaryHeap<Reverse<Queued>>, now: u64) -> Option<Queued> {
    let due = queue
        .peek()
        .is_some_and(|Reverse(head)| head.expiration <= now);
    due.then(|| queue.pop().expect("it was there").0)
}

/// Whole ticks in `span`: what has certainly passed.
fn ticks(span: Duration) -> u64 {
    span.as_millis() as u64
}

impl SystemTimer {
    pub(super) fn new(origin: Instant, expire: impl Fn(&Operation) + Send + 'static) -> Self {
        let (expired, submitted) = channel::<Arc<Operation>>();
        let executor = thread::Builder::new()
            .name("completions".to_owned())
            .spawn(move || submitted.iter().for_each(|task| expire(&task)))
            .expect("a thread can start");
        Self {
            origin,
            buckets: Buckets::default(),
            expired: Some(expired),
            executor: Some(executor),
        }
    }

    pub(super) fn add(&self, operation: &Arc<Operation>) {
        let deadline = Instant::now() + operation.timeout - self.origin;
        let due = self.buckets.add(Task {
            operation: Arc::clone(operation),
            // One tick more than has fully passed by the deadline: never early.
            expiration: ticks(deadline) + 1,
        });
        if let Some(operation) = due {
            self.submit(operation);
        }
    }

    fn submit(&self, operation: Arc<Operation>) {
        let expired = self.expired.as_ref().expect("there until dropped");
        expired
            .send(operation)
            .expect("the executor lives as long as its sender");
    }

    pub(super) fn advance_clock(&self, wait: Duration) {
        let now = Instant::now();
        if let Some(first) = self.buckets.wait(self.origin, now + wait) {
            // Kafka goes on with what was due when it began to wait, but for the first.
            let now = ticks(now - self.origin);
            self.buckets
                .flush(first, now, |operation| self.submit(operation));
        }
    }

    /// Operations in any bucket.
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
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
