//! `TimingWheel`.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use super::operation::{Bucket, Task, TimerEntry};

/// Kafka's wheel size; with ticks of 1 ms the levels span 20 ms, 400 ms, 8 s, 160 s, ...
const WHEEL_SIZE: u64 = 20;

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
