//! The answer to a request lies in a [`Promise`] that two owners share: the [`Responder`] sets the answer, and the
//! future polls for it.

use request_purgatory::WaitError;
use request_purgatory::future::Promise;
use std::sync::Arc;

/// The answer to a request: its response, or the reason why there is no response.
pub(crate) type Answer<R> = Result<R, WaitError>;

/// Sets the answer to a request, in a [`Promise`] that the future shares. A responder that is dropped without an answer
/// sets [`WaitError::ShutDown`].
pub(crate) struct Responder<R>(Option<Arc<Promise<Answer<R>>>>);

impl<R> Responder<R> {
    pub(crate) fn of(promise: &Arc<Promise<Answer<R>>>) -> Self {
        Self(Some(promise.clone()))
    }

    /// Sets the answer, and wakes the task that polls the future. If the future was dropped, the answer is dropped
    /// here.
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
