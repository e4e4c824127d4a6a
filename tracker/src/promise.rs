//! The two ends of an answer: one sets it, once, the other polls for it. No code of the user's runs under its lock.

use crate::sync::Mutex;
use request_purgatory::WaitError;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// What a request is told.
pub(crate) type Answer<R> = Result<R, WaitError>;

/// Shared by the two ends.
pub(crate) struct Promise<R>(Mutex<Promised<R>>);

enum Promised<R> {
    /// There is no answer yet. With the task that has polled for it last.
    Open(Option<Waker>),
    Kept(Answer<R>),
    /// It was handed out, or is not wanted any more.
    Spent,
}

/// What the end that polls leaves behind when it is dropped. The destructors are the user's.
pub(crate) type Unreceived<R> = (Option<Answer<R>>, Option<Waker>);

impl<R> Promise<R> {
    /// Both ends.
    pub(crate) fn pair() -> (Responder<R>, Arc<Self>) {
        let promise = Arc::new(Self(Mutex::new(Promised::Open(None))));
        (Responder(Some(promise.clone())), promise)
    }

    /// Sets the answer, and wakes the task that waits. Only the first one counts; another is returned.
    fn keep(&self, answer: Answer<R>) -> Option<Answer<R>> {
        let mut promised = self.0.lock();
        let Promised::Open(waker) = &mut *promised else {
            return Some(answer);
        };
        let waker = waker.take();
        *promised = Promised::Kept(answer);
        drop(promised);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }

    /// The answer, once; else the task of `cx` takes the place of the one that waited before. After the answer, every poll
    /// is pending.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Answer<R>> {
        // Cloning a waker may run code of the user's, which may come back here.
        let mut clone = None;
        loop {
            let mut promised = self.0.lock();
            let waker = match &mut *promised {
                Promised::Open(waker) => waker,
                Promised::Spent => return Poll::Pending,
                Promised::Kept(_) => match mem::replace(&mut *promised, Promised::Spent) {
                    Promised::Kept(answer) => return Poll::Ready(answer),
                    Promised::Open(_) | Promised::Spent => unreachable!("it was kept just now"),
                },
            };
            if waker.as_ref().is_some_and(|it| it.will_wake(cx.waker())) {
                return Poll::Pending;
            }
            if let Some(clone) = clone.take() {
                let old = waker.replace(clone);
                drop(promised);
                drop(old);
                return Poll::Pending;
            }
            drop(promised);
            clone = Some(cx.waker().clone());
        }
    }

    /// No answer is kept and no task is woken from now on.
    pub(crate) fn close(&self) -> Unreceived<R> {
        let promised = mem::replace(&mut *self.0.lock(), Promised::Spent);
        match promised {
            Promised::Open(waker) => (None, waker),
            Promised::Kept(answer) => (Some(answer), None),
            Promised::Spent => (None, None),
        }
    }
}

/// The end that answers. Dropped, it answers that the requests were shut down.
pub(crate) struct Responder<R>(Option<Arc<Promise<R>>>);

impl<R> Responder<R> {
    /// Wakes the task that waits. An answer that no future receives any more is dropped here.
    pub(crate) fn answer(mut self, answer: Answer<R>) {
        if let Some(promise) = self.0.take() {
            drop(promise.keep(answer));
        }
    }
}

impl<R> Drop for Responder<R> {
    fn drop(&mut self) {
        if let Some(promise) = self.0.take() {
            drop(promise.keep(Err(WaitError::ShutDown)));
        }
    }
}
