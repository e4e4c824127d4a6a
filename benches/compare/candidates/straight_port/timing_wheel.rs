//! `TimingWheel` and `TimerTaskList`.

use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use slab::Slab;

use super::operation::{Operation, TimerEntry};

/// Kafka's wheel size; with ticks of 1 ms the levels span 20 ms, 400 ms, 8 s, 160 s, ...
const WHEEL_SIZE: u64 = 20;

/// A bucket's deadline while it is in no queue.
const NOT_QUEUED: u64 = u64::MAX;

/// `TimerTaskList`: a doubly linked list under its own lock.
pub(crate) struct Bucket {
    list: Mutex<List>,
    expiration: AtomicU64,
    /// All tasks of the timer, in whatever bucket.
    tasks: Arc<AtomicUsize>,
}

#[derive(Default)]
struct List {
    nodes: Slab<Node>,
    head: Option<usize>,
    tail: Option<usize>,
}

struct Node {
    task: Task,
    previous: Option<usize>,
    next: Option<usize>,
}

/// An operation with its absolute deadline, in ticks.
#[derive(Clone)]
pub(crate) struct Task {
    pub(super) operation: Arc<Operation>,
    pub(super) expiration: u64,
}

impl List {
    fn push(&mut self, task: Task) -> usize {
        let index = self.nodes.insert(Node {
            task,
            previous: self.tail,
            next: None,
        });
        match self.tail.replace(index) {
            Some(last) => self.nodes[last].next = Some(index),
            None => self.head = Some(index),
        }
        index
    }

    fn remove(&mut self, index: usize) -> Task {
        let Node {
            task,
            previous,
            next,
        } = self.nodes.remove(index);
        match previous {
            Some(previous) => self.nodes[previous].next = next,
            None => self.head = next,
        }
        match next {
            Some(next) => self.nodes[next].previous = previous,
            None => self.tail = previous,
        }
        task
    }
}

impl Bucket {
    fn new(tasks: Arc<AtomicUsize>) -> Self {
        Self {
            list: Mutex::default(),
            expiration: AtomicU64::new(NOT_QUEUED),
            tasks,
        }
    }

    fn add(&self, task: Task) -> usize {
        self.tasks.fetch_add(1, Ordering::Relaxed);
        self.list.lock().push(task)
    }

    /// Nothing if a flush has taken the operation out already.
    pub(super) fn remove(&self, index: usize, operation: &Operation) {
        let mut list = self.list.lock();
        let is_it = |node: &Node| ptr::eq(Arc::as_ptr(&node.task.operation), operation);
        if list.nodes.get(index).is_some_and(is_it) {
            list.remove(index);
            self.tasks.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether that was news, so that the bucket must be queued.
    fn set_expiration(&self, expiration: u64) -> bool {
        self.expiration.swap(expiration, Ordering::AcqRel) != expiration
    }

    /// Empties the bucket into `reinsert`. The timer's write lock is held: no thread adds meanwhile.
    pub(super) fn flush(&self, mut reinsert: impl FnMut(Task)) {
        loop {
            let mut list = self.list.lock();
            let Some(head) = list.head else { break };
            let task = list.remove(head);
            drop(list);
            self.tasks.fetch_sub(1, Ordering::Relaxed);
            reinsert(task);
        }
        self.expiration.store(NOT_QUEUED, Ordering::Release);
    }
}

/// What became of an operation offered to the wheel.
pub(crate) enum Added {
    Linked,
    /// Linked, and its bucket must be queued for this deadline.
    Queue(Arc<Bucket>, u64),
    Cancelled,
    /// Its deadline has come.
    Due,
}

pub(crate) struct TimingWheel {
    tick: u64,
    interval: u64,
    current: u64,
    tasks: Arc<AtomicUsize>,
    buckets: Vec<Arc<Bucket>>,
    overflow: OnceLock<Box<Self>>,
}

impl TimingWheel {
    pub(super) fn new(tick: u64, current: u64, tasks: Arc<AtomicUsize>) -> Self {
        Self {
            tick,
            interval: tick * WHEEL_SIZE,
            current: current - current % tick,
            buckets: (0..WHEEL_SIZE)
                .map(|_| Arc::new(Bucket::new(Arc::clone(&tasks))))
                .collect(),
            tasks,
            overflow: OnceLock::new(),
        }
    }

    pub(super) fn add(&self, task: Task) -> Added {
        if task.expiration < self.current + self.tick {
            return Added::Due;
        }
        if task.expiration >= self.current + self.interval {
            let overflow = self.overflow.get_or_init(|| {
                Box::new(Self::new(
                    self.interval,
                    self.current,
                    Arc::clone(&self.tasks),
                ))
            });
            return overflow.add(task);
        }
        let slot = task.expiration / self.tick;
        let bucket = &self.buckets[(slot % WHEEL_SIZE) as usize];
        let operation = Arc::clone(&task.operation);
        let mut entry = operation.entry.lock();
        if matches!(*entry, TimerEntry::Cancelled) {
            return Added::Cancelled;
        }
        let index = bucket.add(task);
        *entry = TimerEntry::Linked {
            bucket: Arc::clone(bucket),
            index,
        };
        drop(entry);
        if bucket.set_expiration(slot * self.tick) {
            Added::Queue(Arc::clone(bucket), slot * self.tick)
        } else {
            Added::Linked
        }
    }

    pub(super) fn advance_clock(&mut self, now: u64) {
        if now >= self.current + self.tick {
            self.current = now - now % self.tick;
            if let Some(overflow) = self.overflow.get_mut() {
                overflow.advance_clock(self.current);
            }
        }
    }
}
