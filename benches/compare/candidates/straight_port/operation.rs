//! `DelayedOperation`, `TimerTask` and `TimerTaskList`: a request with its lock and its place in the wheel, and the
//! lists that the wheel is made of.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;

use crate::request::{Ending, Request};

pub(crate) struct Operation {
    pub(super) timeout: Duration,
    /// Read without the lock, by lists that drop ended operations.
    completed: AtomicBool,
    /// The operation's lock, and the request until it ends.
    request: Mutex<Option<Request>>,
    /// Held across a bucket's lock, never the other way round.
    pub(super) entry: Mutex<TimerEntry>,
}

/// Where the operation is in the timer.
pub(crate) enum TimerEntry {
    Unlinked,
    Linked {
        bucket: Arc<Bucket>,
        index: usize,
    },
    /// Ended: a bucket being flushed must not add it again.
    Cancelled,
}

impl Operation {
    pub(super) fn new(request: Request) -> Self {
        Self {
            timeout: request.timeout(),
            completed: AtomicBool::new(false),
            request: Mutex::new(Some(request)),
            entry: Mutex::new(TimerEntry::Unlinked),
        }
    }

    pub(super) fn request_id(&self) -> u32 {
        let request = self.request.lock();
        request.as_ref().expect("not ended").id()
    }

    pub(super) fn is_completed(&self) -> bool {
        self.completed.load(Ordering::Acquire)
    }

    pub(super) fn safe_try_complete(&self) -> bool {
        if self.is_completed() {
            return false;
        }
        let mut request = self.request.lock();
        if !request.as_mut().is_some_and(Request::try_complete) {
            return false;
        }
        let satisfied = request.take();
        drop(request);
        self.end(satisfied, Ending::Satisfied)
    }

    /// Tries; if that fails, runs `watch` and tries again, all under the operation's lock: a check
    /// that finds the operation through `watch` waits for the second try.
    pub(super) fn safe_try_complete_or_else(&self, watch: impl FnOnce()) -> bool {
        let mut request = self.request.lock();
        let waiting = request
            .as_mut()
            .expect("no other thread knows the operation yet");
        if !waiting.try_complete() {
            watch();
            if !waiting.try_complete() {
                return false;
            }
        }
        let satisfied = request.take();
        drop(request);
        self.end(satisfied, Ending::Satisfied)
    }

    pub(super) fn force_complete(&self, ending: Ending) -> bool {
        let request = self.request.lock().take();
        self.end(request, ending)
    }

    fn end(&self, request: Option<Request>, ending: Ending) -> bool {
        let Some(request) = request else { return false };
        self.completed.store(true, Ordering::Release);
        self.cancel_timer();
        request.on_complete(ending);
        true
    }

    /// `TimerTask.cancel`.
    pub(super) fn cancel_timer(&self) {
        let mut entry = self.entry.lock();
        if let TimerEntry::Linked { bucket, index } =
            std::mem::replace(&mut *entry, TimerEntry::Cancelled)
        {
            bucket.remove(index, self);
        }
    }
}

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
    pub(super) fn new(tasks: Arc<AtomicUsize>) -> Self {
        Self {
            list: Mutex::default(),
            expiration: AtomicU64::new(NOT_QUEUED),
            tasks,
        }
    }

    pub(super) fn add(&self, task: Task) -> usize {
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
    pub(super) fn set_expiration(&self, expiration: u64) -> bool {
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
