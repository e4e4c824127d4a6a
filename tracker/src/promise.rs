//! The two ends of a request share a [`Promise`]: the future polls it, and the [`Responder`] answers it.

use request_purgatory::WaitError;
use request_purgatory::future::Promise;
use std::sync::Arc;

/// The answer to a request: its response, or the reason why there is no response.
pub(crate) type Answer<R> = Result<R, WaitError>;

/// The end that answers the request. If it is dropped without an answer, the answer is [`WaitError::ShutDown`].
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
