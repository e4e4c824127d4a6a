//! A value that one side changes, and that a task of the other side waits for.

use crate::sync::Mutex;
use std::fmt;
use std::task::{Context, Poll, Waker};

/// A value, and the waker of the task that polled it last.
pub(crate) struct WakeCell<V>(Mutex<Contents<V>>);

struct Contents<V> {
    value: V,
    /// Of a task that found nothing to do yet.
    waker: Option<Waker>,
}

/// What a task finds when it reads the value.
pub(crate) enum Look<R> {
    Ready(R),
    /// Not yet.
    Wait,
    /// It will never be ready.
    Never,
}

impl<V> WakeCell<V> {
    pub(crate) fn new(value: V) -> Self {
        Self(Mutex::new(Contents { value, waker: None }))
    }

    /// Changes the value under the lock, so `change` must run no code of the user's. If it says so, wakes the task that
    /// waits, with no lock held.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut V) -> (R, bool)) -> R {
        let (result, waker) = {
            let mut contents = self.0.lock();
            let (result, wake) = change(&mut contents.value);
            (result, contents.waker.take_if(|_| wake))
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        result
    }

    /// Reads the value under the lock, so `read` must run no code of the user's. If the task of `cx` has to wait, the
    /// next change that wakes wakes it, and no other task.
    pub(crate) fn poll<R>(
        &self,
        cx: &Context<'_>,
        mut read: impl FnMut(&mut V) -> Look<R>,
    ) -> Poll<R> {
        // Cloning or dropping a waker may run code of the user's, which may come back here: no lock is held then. An
        // unchanged waker need not be cloned again.
        let mut clone = None;
        loop {
            let mut contents = self.0.lock();
            match read(&mut contents.value) {
                Look::Ready(result) => return Poll::Ready(result),
                Look::Never => return Poll::Pending,
                Look::Wait => {}
            }
            match &contents.waker {
                Some(known) if known.will_wake(cx.waker()) => return Poll::Pending,
                _ => {}
            }
            if let Some(clone) = clone.take() {
                let old = contents.waker.replace(clone);
                drop(contents);
                drop(old);
                return Poll::Pending;
            }
            drop(contents);
            clone = Some(cx.waker().clone());
        }
    }

    /// Sets the value, and forgets the task that waits. Returns the old value and the waker, because the destructors of
    /// both may be the user's.
    pub(crate) fn close(&self, value: V) -> (V, Option<Waker>) {
        let mut contents = self.0.lock();
        let value = std::mem::replace(&mut contents.value, value);
        (value, contents.waker.take())
    }
}

impl<V> fmt::Debug for WakeCell<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeCell").finish_non_exhaustive()
    }
}
