//! The end that answers a request. The other end is the future that polls; both share a [`Promise`].

use request_purgatory::WaitError;
use request_purgatory::future::Promise;
use std::sync::Arc;

/// The answer to a request: its response, or why there is none.
pub(crate) type Answer<R> = Result<R, WaitError>;

/// The end that answers. Its drop without an answer answers [`WaitError::ShutDown`].
pub(crate) struct Responder<R>(Option<Arc<Promise<Answer<R>>>>);

impl<R> Responder<R> {
    pub(crate) fn of(promise: &Arc<Promise<Answer<R>>>) -> Self {
        Self(Some(promise.clone()))
    }

    /// Sets the answer and wakes the task that waits. If the future was dropped, the answer is dropped here.
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
