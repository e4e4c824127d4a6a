//! A value that one side sets once, and that the other side awaits or blocks for. Needs no runtime.
#![allow(unreachable_pub, reason = "the models see it")]

use crate::callbacks::trampoline::Trampoline;
use crate::sync::{Arc, Mutex};
use std::future::Future;
use std::mem;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// A value, and the waker of the task that polled it last.
pub(crate) struct WakeCell<V>(Mutex<Contents<V>>);

struct Contents<V> {
    value: V,
    /// The waker of a task that has polled and found the value not ready.
    waker: Option<Waker>,
}

/// What a task finds when it reads the value.
pub(crate) enum Readiness<R> {
    Ready(R),
    /// The value is not ready yet.
    NotYet,
    /// The value will never be ready.
    Never,
}

impl<V> WakeCell<V> {
    pub(crate) fn new(value: V) -> Self {
        Self(Mutex::new(Contents { value, waker: None }))
    }

    /// Calls `change` under the lock, so `change` must not run user code. If `change` returns `true`, wakes the waiting
    /// task, with no lock held.
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

    /// Calls `read` under the lock, so `read` must not run user code. If the value is not ready, the task of `cx`
    /// replaces the task that waited before.
    pub(crate) fn poll<R>(
        &self,
        cx: &Context<'_>,
        mut read: impl FnMut(&mut V) -> Readiness<R>,
    ) -> Poll<R> {
        // Hold no lock while a waker is cloned or dropped: a waker may be user code that calls this cell again. An
        // unchanged waker is not cloned again.
        let mut clone = None;
        loop {
            let mut contents = self.0.lock();
            match read(&mut contents.value) {
                Readiness::Ready(result) => return Poll::Ready(result),
                Readiness::Never => return Poll::Pending,
                Readiness::NotYet => {}
            }
            let known = contents.waker.as_ref();
            if known.is_some_and(|known| known.will_wake(cx.waker())) {
                return Poll::Pending;
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

    /// Sets the value and removes the waiting task. Returns the old value and the waker, because the destructors of
    /// both may be user code.
    pub(crate) fn close(&self, value: V) -> (V, Option<Waker>) {
        let mut contents = self.0.lock();
        let value = std::mem::replace(&mut contents.value, value);
        (value, contents.waker.take())
    }
}

debug_fields!([V] WakeCell<V>, "WakeCell", |it|);

/// The state that both sides share.
#[derive(Debug)]
pub struct Promise<T>(WakeCell<Promised<T>>);

#[derive(Debug)]
pub enum Promised<T> {
    /// There is no value yet.
    Open,
    Kept(T),
    /// The value was handed out, or is not wanted any more.
    Spent,
}

impl<T> Promise<T> {
    pub fn new() -> Self {
        Self(WakeCell::new(Promised::Open))
    }

    /// Sets the value and wakes the waiting task, with no lock held, because a waker may be user code. Only the first
    /// value counts; a later value is returned.
    pub fn keep(&self, value: T) -> Result<(), T> {
        self.0.change(|promised| match promised {
            Promised::Open => {
                *promised = Promised::Kept(value);
                (Ok(()), true)
            }
            Promised::Kept(_) | Promised::Spent => (Err(value), false),
        })
    }

    /// Returns the value if it is set; else `cx` is woken when the value comes. After the value was handed out, every
    /// poll is pending.
    pub fn poll(&self, cx: &Context<'_>) -> Poll<T> {
        self.0.poll(cx, |promised| match promised {
            Promised::Open => Readiness::NotYet,
            Promised::Kept(_) | Promised::Spent => match mem::replace(promised, Promised::Spent) {
                Promised::Kept(value) => Readiness::Ready(value),
                Promised::Open | Promised::Spent => Readiness::Never,
            },
        })
    }

    /// From now on [`keep`](Self::keep) returns every value to its caller and wakes no task. Returns the stored value
    /// and the waker, because the destructors of both may be user code.
    pub fn close(&self) -> (Promised<T>, Option<Waker>) {
        self.0.close(Promised::Spent)
    }
}

/// Wakes a thread that waits in [`block_on`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs `future` to its end on this thread, which sleeps while the future is pending. For programs without an async
/// runtime.
///
/// # Panics
/// If it is called from a callback of the library (a predicate, `try_complete`, `on_complete`, the closure that gives a
/// taken value back): the call that ends the future might have to run on the blocked thread. A panic of `future` is
/// passed on.
pub fn block_on<F: Future>(future: F) -> F::Output {
    assert!(
        !Trampoline::in_progress(),
        "a callback of the library must not block in `block_on`"
    );
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            // A wake-up before this line is kept by the thread's token; a spurious wake-up only polls once more.
            Poll::Pending => thread::park(),
        }
    }
}
