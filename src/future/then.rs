//! Waiting for a value that a callback gets, in place of a future.

use super::answer::Answer;
use super::operation::{Condition, Role, WaitOperation};
use super::wait_error::WaitError;
use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::run_unnested;
use crate::hash::{Key, KeyHasher};
use crate::operation::{Cause, Completion};
use crate::purgatory::{Handle, Purgatory, Watch};
use crate::time::Deadline;
use std::mem;

impl<K: Key, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Works as [`wait`](Self::wait), with a callback in place of a future: `then` is called once, with what the
    /// predicate has found or with the reason why it found nothing. Use it in a server that sends its answer by a
    /// channel or a connection, and has no task to await the answer.
    ///
    /// ```
    /// use request_purgatory::Waits;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::sync::{Arc, mpsc};
    /// use std::time::Duration;
    ///
    /// let waits = Waits::<u32>::new("acks");
    /// let (end, (client, answers)) = (Arc::new(AtomicU64::new(0)), mpsc::channel());
    /// let reached = end.clone();
    /// waits.wait_then(
    ///     [7],
    ///     Duration::from_secs(30),
    ///     move || Some(reached.load(Ordering::Acquire)).filter(|end| *end >= 10),
    ///     move |result| _ = client.send(result),
    /// );
    /// end.store(10, Ordering::Release);
    /// waits.check_and_complete(&7);
    /// assert_eq!(answers.recv(), Ok(Ok(10)));
    /// ```
    ///
    /// `then` runs after the predicate has been dropped, with no lock of the library held, and where
    /// [`on_complete`](crate::DelayedOperation::on_complete) would run:
    ///
    /// * on the thread whose check has found the value;
    /// * after the deadline: on the thread that the builder's [`dispatch`](crate::purgatory::Builder::dispatch)
    ///   chooses;
    /// * on this thread, before this call returns, if the predicate finds a value at once or the purgatory rejects the
    ///   wait. If this call is made inside a callback of the library, `then` runs when the outermost call returns.
    ///
    /// A panic of `then` is caught and [counted](crate::purgatory::Stats::panicked).
    ///
    /// Returns the handle of the parked operation, or `None` if the operation has ended or was rejected. Dropping the
    /// handle cancels nothing: the wait lasts until its timeout. [`Handle::cancel`] returns the operation, and the
    /// destructor of the operation calls `then` with [`WaitError::Cancelled`].
    pub fn wait_then<'a, A: Answer<Found: Send + 'static>>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Deadline>,
        predicate: impl FnMut() -> A + Send + 'static,
        then: impl FnOnce(Result<A::Found, WaitError>) + Send + 'static,
    ) -> Option<Handle<WaitOperation<K>, S>> {
        let condition = Then {
            predicate,
            found: None,
            callback: Callback {
                then: Some(then),
                lost: WaitError::Cancelled,
                answer: |then, lost| then(Err(lost)),
            },
        };
        let operation = WaitOperation::condition(timeout.into(), condition);
        match self.shared.inner.park(operation, keys) {
            Ok(admission) => admission.into_handle(),
            Err(rejected) => {
                let error = WaitError::of(&rejected);
                let operation = rejected.into_inner();
                let inner = self.shared.inner.clone();
                // Catch and count a panic of `then`. If this call is inside a callback, the closure runs later, in the
                // queue of the trampoline. Without `guarded`, the panic would then reach the outermost call of the
                // thread, which runs the queue.
                run_unnested(move || _ = inner.engine.guarded(|| operation.end(error)));
                None
            }
        }
    }
}

/// A predicate, the value that it has found, and the callback that gets the value.
struct Then<P, T, F: FnOnce(Result<T, WaitError>)> {
    predicate: P,
    found: Option<T>,
    callback: Callback<F>,
}

/// The user's callback. It is called exactly once: by `end` with the result, or else by the destructor with an error.
struct Callback<F> {
    then: Option<F>,
    /// The error with which the destructor calls the callback.
    lost: WaitError,
    answer: fn(F, WaitError),
}

impl<F> Drop for Callback<F> {
    fn drop(&mut self) {
        if let Some(then) = self.then.take() {
            // Contain a panic of the callback: other destructors may follow, or the thread may be unwinding already,
            // and a second panic would abort the process. The panic hook has reported the panic.
            Panics::contain(|| (self.answer)(then, self.lost));
        }
    }
}

impl<K, A, P, F> Condition<K> for Then<P, A::Found, F>
where
    A: Answer<Found: Send + 'static>,
    P: FnMut() -> A + Send + 'static,
    F: FnOnce(Result<A::Found, WaitError>) + Send + 'static,
{
    fn holds(&mut self, _: Cause<'_, K>) -> bool {
        let lost = mem::replace(&mut self.callback.lost, WaitError::Panicked);
        self.found = (self.predicate)().found();
        self.callback.lost = lost;
        self.found.is_some()
    }

    fn end(self: Box<Self>, lost: WaitError) {
        let Self {
            predicate,
            found,
            mut callback,
        } = *self;
        let mut panics = Panics::default();
        panics.catch(|| drop(predicate));
        if let Some(then) = callback.then.take() {
            panics.catch(|| then(found.ok_or(lost)));
        }
        panics.resume();
    }

    /// Returns the operation as it is: predicate, value and callback stay in it until the completion. Other waits move
    /// their result to a place that they share with their future, because the future may be dropped before the
    /// completion. Here there is no future.
    fn hand_over(self: Box<Self>, _: Option<Completion>) -> (Role<K>, bool) {
        (Role::Predicate(self), true)
    }
}
