//! Waiting for a value that a callback gets, in place of a future.

use super::answer::Answer;
use super::operation::{WaitOperation, contain_and_count};
use super::reply::Recipient;
use super::wait_error::WaitError;
use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::run_unnested;
use crate::hash::{Key, KeyHasher};
use crate::operation::Cause;
use crate::purgatory::{Handle, Purgatory, RecycledWeak, Watch};
use crate::time::Deadline;
use std::cell::Cell;
use std::marker::PhantomData;

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
    /// A panic of `then` is caught, and [counted](crate::purgatory::Stats::panicked) until the shutdown.
    ///
    /// Returns the handle of the parked operation, or `None` if the operation has ended or was rejected. Dropping the
    /// handle cancels nothing: the wait lasts until its timeout. [`Handle::cancel`] returns the operation, and the
    /// destructor of the operation calls `then` with [`WaitError::Cancelled`]: on the thread that drops the operation,
    /// or, inside a callback of the library, when the outermost call returns.
    pub fn wait_then<'a, A: Answer<Found: Send + 'static>>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Deadline>,
        mut predicate: impl FnMut() -> A + Send + 'static,
        then: impl FnOnce(Result<A::Found, WaitError>) + Send + 'static,
    ) -> Option<Handle<WaitOperation<K>, S>> {
        let callback = Callback {
            waits: self.shared.inner.weak,
            then: Cell::new(Some(then)),
            of: PhantomData::<fn(A::Found, K, S)>,
        };
        let predicate = move |_: Cause<'_, K>| predicate().found();
        let operation = WaitOperation::predicate(timeout.into(), predicate, callback);
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

/// The user's callback. It is called exactly once: with the result, or with an error if the operation is dropped.
struct Callback<T, F, K, S> {
    waits: RecycledWeak,
    then: Cell<Option<F>>,
    of: PhantomData<fn(T, K, S)>,
}

/// Has no [promise](Recipient::outcome), so predicate, value and callback stay in the operation until its completion.
/// There is no future that could be dropped before.
impl<T, F, K, S> Recipient for Callback<T, F, K, S>
where
    T: 'static,
    F: FnOnce(Result<T, WaitError>) + 'static,
    K: Key,
    S: KeyHasher,
{
    type Found = T;

    fn receive(&self, result: Result<T, WaitError>) {
        if let Some(then) = self.then.take() {
            then(result);
        }
    }

    /// Inside a callback of the library, `then` waits for the end of the outermost call. So a chain of callbacks, each of
    /// which drops the next operation, needs no deep stack.
    fn lose(&self, lost: WaitError) {
        let Some(then) = self.then.take() else {
            return;
        };
        let waits = self.waits;
        let call = move || contain_and_count::<K, S>(waits, || then(Err(lost)));
        // A call that `then` has queued may panic as well.
        Panics::contain(|| run_unnested(call));
    }
}
