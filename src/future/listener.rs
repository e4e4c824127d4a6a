//! Listening to checks, for conditions that only the waiter can evaluate: listen, evaluate, await a check, evaluate
//! again.

use super::operation::WaitOperation;
use super::reply::Awaiting;
use super::signal::Signal;
use super::wait_error::WaitError;
use crate::error::Rejected;
use crate::hash::{Key, KeyHasher, RandomState};
use crate::purgatory::{Admission, Handle, Purgatory, Watch};
use crate::sync::Arc;
use std::fmt;
use std::future::{Future, poll_fn};
use std::task::{Context, Poll};
use std::time::Duration;

impl<K: Key, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Listens to checks of any of `keys`, for at most `timeout` from this call on (`None`: without end, a stream of
    /// wake-ups). A check up to a rank below that of a [watch](Watch::at_rank) does not wake it. For conditions that
    /// the waiter evaluates itself, because the evaluation awaits or borrows:
    ///
    /// ```
    /// use request_purgatory::Waits;
    /// # use request_purgatory::future::WaitError;
    /// # use std::time::Duration;
    /// # struct Log;
    /// # impl Log { async fn read(&self, _: u64) -> Option<String> { Some("record".into()) } }
    /// # async fn fetch(waits: &Waits<&'static str>, log: &Log) -> Result<String, WaitError> {
    /// let mut listener = waits.listen(["news"], Duration::from_secs(30));
    /// loop {
    ///     if let Some(record) = log.read(10).await {
    ///         listener.satisfied();
    ///         return Ok(record);
    ///     }
    ///     listener.checked().await?;
    /// }
    /// # }
    /// # futures::executor::block_on(fetch(&Waits::new("doc"), &Log)).unwrap();
    /// ```
    ///
    /// [`until`](Listener::until) is this loop, and evaluates once more at the deadline.
    ///
    /// The listener listens when this returns, and between wake-ups: a check after this call is not missed. Evaluate
    /// the condition after this call, not before it. If the purgatory refuses to park the listener,
    /// [`checked`](Listener::checked) says so; a condition that is true before that needs no place in the purgatory.
    ///
    /// The thread that checks a key runs nothing of the waiter but its waker. In the statistics every such check is an
    /// examination in vain, and a listener that expires shows no [missed check](crate::stats::Stats::missed_checks):
    /// the library does not know the condition. A check for at most some completions wakes every listener that it comes
    /// to, because none of them completes; workers that compete for something use [`take`](Self::take).
    ///
    /// Runs `Hash`, `Eq` and `Clone` of keys, and the clock, on this thread; locks as
    /// [`try_complete_else_watch`](Self::try_complete_else_watch) does. Does not keep the purgatory alive.
    pub fn listen<'a>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Option<Duration>>,
    ) -> Listener<K, S> {
        begin(timeout.into().unwrap_or(Duration::MAX), |operation| {
            self.try_complete_else_watch(operation, keys)
        })
    }
}

/// Parks a listener's operation.
fn begin<K: Key, S: KeyHasher>(
    timeout: Duration,
    park: impl FnOnce(
        WaitOperation<K>,
    ) -> Result<Admission<WaitOperation<K>, S>, Rejected<WaitOperation<K>>>,
) -> Listener<K, S> {
    let signal = Arc::new(Signal::new());
    let operation = WaitOperation::listener(timeout, signal.clone());
    let admission = park(operation).unwrap_or_else(|rejected| {
        // Before the operation is dropped: its destructor would say that the listener was cancelled.
        signal.end(WaitError::of(&rejected));
        Admission::Ended
    });
    Listener(Awaiting::new(signal, admission))
}

/// Listens to checks of some keys, from [`listen`](Purgatory::listen) until it is dropped, or its timeout has passed.
///
/// Dropping it cancels its operation: watches and timer are removed when `drop` returns, on any thread. (If another
/// thread is examining the operation at that moment, `drop` does not wait for it; that thread removes them.)
#[must_use = "a listener that is dropped does not listen"]
pub struct Listener<K: Key, S: KeyHasher = RandomState>(Awaiting<Signal, WaitOperation<K>, S>);

impl<K: Key, S: KeyHasher> Listener<K, S> {
    /// Waits until a key was checked since the last call (or since the listener was made). Any number of checks in
    /// between are one.
    ///
    /// Cancel-safe: a check that no call has reported yet is kept for the next one. After `Ok`, evaluate the condition:
    /// what happened before the check is visible then. Any executor may poll it; the thread that checks wakes the last
    /// task that polled, and holds no lock then. A waker that panics ends the listener, with [`WaitError::Panicked`].
    ///
    /// # Errors
    /// Once there are no more checks to wait for, every call returns the reason, at once: [`WaitError::Expired`] after
    /// the timeout, also where the purgatory refused to park it. A check that was made before that is reported first. One
    /// that was only [deferred](Purgatory::check_later) may come too late: evaluate the condition once more after
    /// `Expired`, as [`until`](Self::until) does.
    pub async fn checked(&mut self) -> Result<(), WaitError> {
        poll_fn(|cx| self.poll_checked(cx)).await
    }

    /// As [`checked`](Self::checked), for futures and streams that are written by hand.
    ///
    /// # Errors
    /// As there.
    pub fn poll_checked(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WaitError>> {
        self.0.shared().poll(cx)
    }

    /// Ends the listener because its condition is true: it counts as completed, where a dropped one counts as
    /// cancelled.
    ///
    /// Its operation is forced to complete, and a trace says so. If it has expired by now, this changes nothing.
    pub fn satisfied(mut self) {
        self.0.end(Handle::force_complete);
    }

    /// Waits until `condition` finds something: evaluates it at once, again after checks, and once more when the timeout
    /// has passed.
    ///
    /// ```
    /// # use request_purgatory::{Waits, future::WaitError};
    /// # use std::time::Duration;
    /// # struct Log;
    /// # impl Log { async fn read(&self, _: u64) -> Option<String> { Some("record".into()) } }
    /// # async fn fetch(waits: &Waits<&'static str>, log: &Log) -> Result<String, WaitError> {
    /// waits.listen(["news"], Duration::from_secs(30)).until(|| log.read(10)).await
    /// # }
    /// # futures::executor::block_on(fetch(&Waits::new("doc"), &Log)).unwrap();
    /// ```
    ///
    /// The condition is evaluated in the task that awaits this future (also if the purgatory has refused to park the
    /// listener), and needs neither `Send` nor `'static`; the future is `Send` if the condition and its futures are.
    /// Every evaluation begins anew; checks that come during one are merged, and cause one more. What the last
    /// evaluation finds counts as a [missed check](crate::stats::Stats::missed_checks): the event had happened, and the
    /// key was not checked in time.
    ///
    /// **The timeout does not interrupt the condition**: one that is running at the deadline is awaited to its end, and
    /// the evaluation at the deadline takes its own time. Put a timeout of your runtime around the future for a hard
    /// bound, or use [`until_best`](Self::until_best).
    ///
    /// # Errors
    /// The future resolves to a [`WaitError`], also where the purgatory refused the listener.
    ///
    /// # Panics
    /// A panic of the condition goes to the task that polls the future.
    pub async fn until<T, C, F>(mut self, mut condition: C) -> Result<T, WaitError>
    where
        C: FnMut() -> F,
        F: Future<Output = Option<T>>,
    {
        let mut expired = false;
        loop {
            if let Some(found) = condition().await {
                if expired {
                    self.handle().inspect(|handle| handle.count_missed_check());
                }
                self.satisfied();
                return Ok(found);
            }
            if expired {
                return Err(WaitError::Expired);
            }
            match self.checked().await {
                Ok(()) => {}
                Err(WaitError::Expired) => expired = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until `condition` answers `Ok(enough)`; its `Err` is the best answer so far. If the listener ends first,
    /// by its timeout for instance, the last answer comes back with the reason, and the condition is *not* evaluated
    /// again: a fetch that has half of its bytes at the deadline answers with these.
    ///
    /// ```
    /// # use request_purgatory::{Waits, future::WaitError};
    /// # use std::time::Duration;
    /// # async fn fetch(waits: &Waits<&'static str>, log: &[u8]) -> Vec<u8> {
    /// let read = || async {
    ///     let bytes = log.to_vec();
    ///     if bytes.len() >= 100 { Ok(bytes) } else { Err(bytes) }
    /// };
    /// let listener = waits.listen(["log"], Duration::from_millis(5));
    /// match listener.until_best(read).await {
    ///     Ok(enough) => enough,
    ///     Err((some, WaitError::Expired)) => some,
    ///     Err((_, _)) => Vec::new(), // full, shut down, ...
    /// }
    /// # }
    /// # assert_eq!(futures::executor::block_on(fetch(&Waits::new("doc"), b"half")), b"half");
    /// ```
    ///
    /// The condition is evaluated at least once, in the task that awaits this future. A deadline that comes during an
    /// evaluation, the first as well, lets it go on to its end; its answer is the last one.
    ///
    /// # Errors
    /// The best answer, and the [`WaitError`] that ended the listener.
    ///
    /// # Panics
    /// A panic of the condition goes to the task that polls the future.
    pub async fn until_best<T, B, C, F>(self, mut condition: C) -> Result<T, (B, WaitError)>
    where
        C: FnMut() -> F,
        F: Future<Output = Result<T, B>>,
    {
        loop {
            match condition().await {
                Ok(enough) => {
                    self.satisfied();
                    return Ok(enough);
                }
                Err(best) => {
                    let checked = poll_fn(|cx| self.0.shared().poll_end_first(cx)).await;
                    if let Err(error) = checked {
                        return Err((best, error));
                    }
                }
            }
        }
    }

    /// The handle of the parked operation, for instance to read or change its deadline. `None` if the purgatory refused
    /// to park it.
    pub fn handle(&self) -> Option<&Handle<WaitOperation<K>, S>> {
        self.0.handle()
    }
}

impl<K: Key, S: KeyHasher> fmt::Debug for Listener<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("handle", &self.handle())
            .finish_non_exhaustive()
    }
}
