//! Taking a value that only one waiter may have, so that the value is not lost if that waiter is dropped.

use super::operation::WaitOperation;
use super::wait::WaitFuture;
use super::wait_error::WaitError;
use crate::hash::{Key, KeyHasher, RandomState};
use crate::operation::Cause;
use crate::panics::Panics;
use crate::purgatory::{Handle, Purgatory, Watch};
use crate::trampoline::UserValues;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

impl<K: Key, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Waits until `take` takes a value, for at most `timeout` from this call on (`None`: without end). As
    /// [`wait`](Self::wait), for values that only one waiter may have: a job from a queue, a connection from a pool.
    ///
    /// **A value that was taken is received or given back, never lost and never both.** It is received when a poll of
    /// the future returns it. If the future is dropped before (its task was aborted, or another branch of a `select`
    /// was first), the value goes to `give_back`; then the keys are checked again, each for one completion, so that
    /// another waiter gets it.
    ///
    /// ```
    /// use request_purgatory::{Bound, Waits};
    /// use std::collections::VecDeque;
    /// use std::sync::{Arc, Mutex};
    /// use std::time::Duration;
    ///
    /// let queue = Arc::new(Mutex::new(VecDeque::new()));
    /// let waits = Waits::<&'static str>::new("jobs");
    /// let worker = || {
    ///     let (takes, returns) = (queue.clone(), queue.clone());
    ///     waits.take(
    ///         ["jobs"],
    ///         Duration::from_secs(30),
    ///         move |_| takes.lock().unwrap().pop_front(),
    ///         move |job| returns.lock().unwrap().push_front(job),
    ///     )
    /// };
    /// let (first, second) = (worker(), worker());
    /// queue.lock().unwrap().push_back("job");
    /// waits.check_and_complete_with("jobs", Bound::at_most(1)); // the first worker has it
    /// drop(first); // without a poll
    /// # use futures::executor::block_on; // any executor
    /// assert_eq!(block_on(second), Ok("job"));
    /// ```
    ///
    /// `take` is told the [cause](Cause) of each call. Where it watches **several keys** and a key is named, it must take
    /// only what belongs to that key: a check of a key for one completion is meant for an item of that key.
    ///
    /// `take` runs where the predicate of [`wait`](Self::wait) does, and has its duties; after it has taken a value it
    /// is not called again. `give_back` runs at most once: on the thread that drops the future, or, if another thread
    /// was just taking the value or on its way to the future with it, on that one. No lock of the library is held then,
    /// and checks and completions that it causes do not nest. Drop no future while you hold a lock that `take` or
    /// `give_back` of any waiter takes. After a shutdown values are still given back, and no key is checked. (A `take`
    /// that panics after it has taken something loses that by itself.)
    ///
    /// If `give_back` panics, the panic is caught and [counted](crate::stats::Stats::panicked), and the keys are
    /// checked.
    ///
    /// # Errors
    /// The future resolves to a [`WaitError`], also if the purgatory refuses to park the operation. No value was taken
    /// then.
    pub fn take<'a, T: Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Option<Duration>>,
        take: impl FnMut(Cause<'_, K>) -> Option<T> + Send + 'static,
        give_back: impl FnOnce(T) + Send + 'static,
    ) -> TakeFuture<K, T, S> {
        let watches = keys.into_iter().map(Into::into).collect::<Vec<_>>();
        let keys = watches.iter().map(|watch| watch.name().clone()).collect();
        let way_back = self.way_back(keys, give_back);
        TakeFuture(self.wait_for(watches, timeout, guarded(take, way_back)))
    }

    /// Gives a value back, and checks the keys. Catches all panics of the user's code.
    fn way_back<T>(
        &self,
        keys: Vec<K>,
        give_back: impl FnOnce(T) + Send + 'static,
    ) -> impl FnOnce(T) + Send + 'static
    where
        T: 'static,
    {
        let (waits, keys) = (self.downgrade(), UserValues(keys));
        move |value| {
            let given = Panics::contain(|| give_back(value));
            if let Some(waits) = waits.upgrade() {
                if given.is_none() {
                    waits.count_panic();
                }
                for key in &keys.0 {
                    // `Hash` and `Eq` of a key may panic.
                    let checked = Panics::contain(|| waits.offer(key, 1));
                    if checked.is_none() {
                        waits.count_panic();
                    }
                }
            }
        }
    }
}

/// A predicate that finds what `take` takes, together with the call that gives it back.
fn guarded<K, T: 'static>(
    mut take: impl FnMut(Cause<'_, K>) -> Option<T>,
    way_back: impl FnOnce(T) + Send + 'static,
) -> impl FnMut(Cause<'_, K>) -> Option<Taken<T>> {
    let mut way_back: Option<WayBack<T>> = Some(Box::new(way_back));
    move |cause| {
        // Nothing is taken that has no way back. (A predicate that has found something is not asked again.)
        way_back.as_ref()?;
        let value = take(cause)?;
        way_back
            .take()
            .map(|way_back| Taken(Some((value, way_back))))
    }
}

type WayBack<T> = Box<dyn FnOnce(T) + Send>;

/// A value on its way to the future. However it is dropped on the way, it goes back.
struct Taken<T>(Option<(T, WayBack<T>)>);

impl<T> Taken<T> {
    /// From here on it is the caller's.
    fn receive(mut self) -> Option<T> {
        self.0.take().map(|(value, _)| value)
    }
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        if let Some((value, way_back)) = self.0.take() {
            way_back(value);
        }
    }
}

/// A take in [`Waits`](super::Waits): a [`Future`] of the value taken, or of the reason why none was. See
/// [`take`](Purgatory::take).
///
/// Any executor may poll it, also several one after the other: the last task that polled is woken. After it has
/// resolved, every poll is pending. Dropping it cancels the wait, and gives back a value that was taken and not
/// received.
#[must_use = "a take that is dropped is cancelled"]
pub struct TakeFuture<K: Key, T: 'static, S: KeyHasher = RandomState>(WaitFuture<K, Taken<T>, S>);

impl<K: Key, T: 'static, S: KeyHasher> TakeFuture<K, T, S> {
    /// The handle of the parked operation, for instance to read or change its deadline. `None` if the wait ended before
    /// it was parked, or the future has resolved.
    pub fn handle(&self) -> Option<&Handle<WaitOperation<K>, S>> {
        self.0.handle()
    }
}

impl<K: Key, T: 'static, S: KeyHasher> Future for TakeFuture<K, T, S> {
    type Output = Result<T, WaitError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.get_mut().0).poll(cx) {
            Poll::Ready(Ok(taken)) => match taken.receive() {
                Some(value) => Poll::Ready(Ok(value)),
                None => Poll::Pending,
            },
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Nothing in it is ever pinned.
impl<K: Key, T: 'static, S: KeyHasher> Unpin for TakeFuture<K, T, S> {}

impl<K: Key, T: 'static, S: KeyHasher> fmt::Debug for TakeFuture<K, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakeFuture")
            .field("handle", &self.handle())
            .finish_non_exhaustive()
    }
}
