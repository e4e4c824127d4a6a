//! `DelayedOperation` and `TimerTask`: a request with its lock and its place in the wheel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::timing_wheel::Bucket;
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
