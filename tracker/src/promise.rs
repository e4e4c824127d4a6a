//! The two ends of an answer: one end sets the answer, once, and the other polls for it. No user code runs under the
//! lock.

use crate::sync::Mutex;
use request_purgatory::WaitError;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The answer to a request: its response, or why there is none.
pub(crate) type Answer<R> = Result<R, WaitError>;

/// The state that both ends share.
pub(crate) struct Promise<R>(Mutex<Promised<R>>);

enum Promised<R> {
    /// There is no answer yet. Holds the waker of the task that polled last.
    Open(Option<Waker>),
    Kept(Answer<R>),
    /// The answer was handed out, or is not wanted any more.
    Spent,
}

/// What the polling end leaves behind when it is dropped. The destructors are user code.
pub(crate) type Unreceived<R> = (Option<Answer<R>>, Option<Waker>);

impl<R> Promise<R> {
    /// Makes both ends.
    pub(crate) fn pair() -> (Responder<R>, Arc<Self>) {
        let promise = Arc::new(Self(Mutex::new(Promised::Open(None))));
        (Responder(Some(promise.clone())), promise)
    }

    /// Sets the answer, and wakes the waiting task. Only the first answer counts; a later one is returned.
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

    /// The answer, once; until then, the task of `cx` replaces the task that waited before. After the answer, every
    /// poll is pending.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Answer<R>> {
        // Hold no lock while a waker is cloned: the clone may run user code that calls this promise again.
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

    /// From now on no answer is stored and no task is woken. Returns the stored answer and the waker.
    pub(crate) fn close(&self) -> Unreceived<R> {
        let promised = mem::replace(&mut *self.0.lock(), Promised::Spent);
        match promised {
            Promised::Open(waker) => (None, waker),
            Promised::Kept(answer) => (Some(answer), None),
            Promised::Spent => (None, None),
        }
    }
}

/// The answering end. Its drop answers that the requests were shut down.
pub(crate) struct Responder<R>(Option<Arc<Promise<R>>>);

impl<R> Responder<R> {
    /// Sets the answer and wakes the waiting task. An answer that no future can receive is dropped here.
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
