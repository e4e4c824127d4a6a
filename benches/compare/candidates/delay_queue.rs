//! tokio-util's `DelayQueue` behind a mutex, polled by a task on a runtime thread of its own.
//!
//! The queue's keys are plain slab indexes that it hands out again once an entry has left, so
//! stopping one that has fired would stop a stranger: `Entry::fired`, written and read under the
//! queue's lock, prevents that. `DelayQueue` needs a tokio runtime around `insert` and `remove`;
//! [`Timer::drive`] enters it once for the whole run, as a broker on tokio would have it anyway.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use super::timer_and_map::{Entry, Timer, TimerAndMap};
use crate::candidate::poll_once;

pub(crate) type DelayQueueAndMap = TimerAndMap<DelayQueueTimer>;

type Queue = Mutex<DelayQueue<Arc<Entry<Key>>>>;

pub(crate) struct DelayQueueTimer {
    queue: Arc<Queue>,
    runtime: Runtime,
}

fn poll_expired(queue: &Queue, context: &mut Context<'_>) -> Poll<Arc<Entry<Key>>> {
    match queue.lock().poll_expired(context) {
        Poll::Ready(Some(expired)) => {
            let entry = expired.into_inner();
            entry.fired.store(true, Ordering::Relaxed);
            Poll::Ready(entry)
        }
        // Empty, not finished: the queue keeps the waker and the next insert uses it.
        Poll::Ready(None) | Poll::Pending => Poll::Pending,
    }
}

impl Timer for DelayQueueTimer {
    const NAME: &'static str = "delay_queue";

    type Token = Key;

    fn new(expire: impl Fn(&Arc<Entry<Key>>) + Send + Sync + 'static) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("timer")
            .enable_time()
            .build()
            .expect("a runtime can start");
        let queue = Arc::new(Mutex::new(DelayQueue::new()));
        let polled = Arc::clone(&queue);
        runtime.spawn(async move {
            loop {
                let entry = poll_fn(|context| poll_expired(&polled, context)).await;
                expire(&entry);
            }
        });
        Self { queue, runtime }
    }

    fn start(&self, entry: &Arc<Entry<Key>>, deadline: Instant) -> Key {
        self.queue
            .lock()
            .insert_at(Arc::clone(entry), deadline.into())
    }

    fn stop(&self, entry: &Entry<Key>, token: Key) {
        let mut queue = self.queue.lock();
        if !entry.fired.load(Ordering::Relaxed) {
            queue.remove(&token);
        }
    }

    fn len(&self) -> usize {
        self.queue.lock().len()
    }

    fn drive<T>(&self, body: impl Future<Output = T>) -> T {
        let _entered = self.runtime.enter();
        poll_once(body)
    }
}
