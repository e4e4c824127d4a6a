//! Listening to checks of keys, for conditions that only the waiter can evaluate. The waiter listens first, and then
//! repeats two steps: it evaluates its condition, and awaits a check.

use super::answer::Answer;
use super::further::{FurtherKeys, OwnFurther};
use super::operation::{ForgetsLinger, Listening, WaitOperation};
use super::recheck::Recheck;
use super::reply::Awaiting;
use super::signal::{Signal, Wake};
use super::wait_error::WaitError;
use crate::callbacks::panics::Panics;
use crate::hash::{Key, KeyHasher, RandomState};
use crate::purgatory::{Handle, Purgatory, Watch};
use crate::sync::Arc;
use crate::time::Deadline;
use std::future::{Future, poll_fn};
use std::task::{Context, Poll};
use std::time::Duration;

impl<K: Key, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Listens to checks of `keys`, for at most `timeout` from this call on, or until a [point in time](Deadline)
    /// (`None`: without end). Use it if the waiter has to evaluate the condition itself, because the evaluation
    /// contains an `await`, or borrows from the task:
    ///
    /// ```
    /// use request_purgatory::Waits;
    /// # use request_purgatory::future::WaitError;
    /// # use std::time::Duration;
    /// # struct Log;
    /// # impl Log { async fn read(&self, _: u64) -> Option<String> { Some("record".into()) } }
    /// # async fn fetch(waits: &Waits<u32>, log: &Log) -> Result<String, WaitError> {
    /// let mut listener = waits.listen([7], Duration::from_secs(30));
    /// loop {
    ///     if let Some(record) = log.read(10).await {
    ///         listener.satisfied();
    ///         return Ok(record);
    ///     }
    ///     listener.checked().await?;
    /// }
    /// # }
    /// # request_purgatory::future::block_on(fetch(&Waits::new("doc"), &Log)).unwrap();
    /// ```
    ///
    /// [`until`](Listener::until) is this loop, with one more evaluation at the deadline.
    /// [`until_best`](Listener::until_best) is for a condition whose answer may be incomplete at the deadline.
    ///
    /// Call `listen` first, and then evaluate: no check after this call is missed, even while the condition is being
    /// evaluated. This call does not fail. If the purgatory rejects the listener (for example because it is full), the
    /// next [`checked`](Listener::checked) returns the reason. So a waiter whose condition is already true succeeds
    /// even if the purgatory is full.
    ///
    /// The thread that checks a key runs no code of the waiter except its waker. The library does not know the
    /// condition, which has these consequences:
    ///
    /// * Every check counts as an examination that completed nothing. A listener that expires counts no [missed
    ///   check](crate::purgatory::Stats::missed_checks), because the library cannot examine its condition. Only
    ///   [`until`](Listener::until) counts missed checks.
    /// * A check wakes a listener, but never completes it. A check [for at most n
    ///   completions](crate::CheckBound::at_most) goes on until it has made n completions, so it wakes all listeners of
    ///   the key. Workers that compete for a value use [`take`](Self::take) instead.
    /// * A listener may watch a key [at a rank](Watch::at_rank), such as an offset. A check up to a lower rank does not
    ///   wake it.
    ///
    /// On this thread, the call runs `Hash`, `Eq` and `Clone` of keys, and reads the clock. It takes the same locks as
    /// [`try_complete_else_watch`](Self::try_complete_else_watch). The listener does not keep the purgatory alive.
    pub fn listen<'a>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Deadline>,
    ) -> Listener<K, S> {
        let signal = Arc::new(Signal::new());
        let operation = WaitOperation::listener(timeout.into(), signal.clone());
        let parked = self.shared.inner.park(operation, keys);
        Listener {
            listening: Awaiting::new(signal, parked),
            recheck: None,
            further: OwnFurther::none(),
        }
    }
}

/// Listens to checks of some keys, from [`listen`](Purgatory::listen) until the listener is dropped or its timeout
/// passes.
///
/// | the waiter | calls |
/// |---|---|
/// | evaluates a condition until it finds something | [`until`](Self::until) |
/// | takes what there is at the deadline | [`until_best`](Self::until_best) |
/// | writes the loop by hand | [`checked`](Self::checked), [`satisfied`](Self::satisfied) |
///
/// ```
/// use request_purgatory::{WaitError, Waits};
/// use std::time::Duration;
///
/// struct Storage; // yours
///
/// impl Storage {
///     async fn read(&self, offset: u64) -> Option<u64> {
///         Some(offset)
///     }
/// }
///
/// async fn fetch(waits: &Waits<u64>, storage: &Storage) -> Result<u64, WaitError> {
///     let listener = waits.listen([7], Duration::from_secs(5));
///     listener.until(|| storage.read(10)).await
/// }
///
/// use request_purgatory::future::block_on; // or any executor
/// assert_eq!(block_on(fetch(&Waits::new("reads"), &Storage)), Ok(10));
/// ```
///
/// Dropping the listener, on any thread, cancels its operation: when `drop` returns, watches and timer are removed.
/// Exception: `drop` does not wait for another thread that is examining the operation. That thread then removes watches
/// and timer, after `drop` has returned.
#[must_use = "a listener that is dropped does not listen"]
pub struct Listener<K: Key, S: KeyHasher = RandomState> {
    listening: Listening<K, S>,
    /// Declared after `listening`, and so dropped after it: the listener's operation must end before the destructor of
    /// [`Recheck`] runs. That destructor removes the operation's entry from the table of early timers
    /// (`src/purgatory/early.rs`), which says that the timer also fires for rechecks. Without the entry, a firing for a
    /// recheck would count as the deadline.
    recheck: Option<Recheck<K, S>>,
    /// The keys that [`also`](Self::also) or [`further_keys`](Self::further_keys) has added.
    further: OwnFurther<K, S>,
}

impl<K: Key, S: KeyHasher> Listener<K, S> {
    /// Waits until `condition` finds something. The condition is evaluated at once, again after checks, and once more
    /// when the timeout has passed.
    ///
    /// ```
    /// # use request_purgatory::{Waits, future::WaitError};
    /// # use std::time::Duration;
    /// # struct Log;
    /// # impl Log { async fn read(&self, _: u64) -> Option<String> { Some("record".into()) } }
    /// # async fn fetch(waits: &Waits<u32>, log: &Log) -> Result<String, WaitError> {
    /// waits.listen([7], Duration::from_secs(30)).until(|| log.read(10)).await
    /// # }
    /// # request_purgatory::future::block_on(fetch(&Waits::new("doc"), &Log)).unwrap();
    /// ```
    ///
    /// The condition returns an `Option`, or, if it can fail, a `Result<Option<T>, E>`: an error ends the wait, and the
    /// future resolves to the error (see [`Answer`]). The task that awaits this future evaluates the condition, at
    /// least once, even if the purgatory has rejected the listener. The condition needs neither `Send` nor `'static`;
    /// the future is `Send` if the condition and its futures are.
    ///
    /// Each evaluation calls the condition anew. All checks during one evaluation together cause one more evaluation. A
    /// condition that learns of keys while it reads adds them by [`further_keys`](Self::further_keys).
    ///
    /// If the evaluation at the deadline finds something, the event had happened, but no check had announced it. This
    /// counts as a [missed check](crate::purgatory::Stats::missed_checks), unless one of the keys has been checked
    /// since the deadline. To notice such a late check, the listener's operation stays parked until this evaluation is
    /// over, but for 1 s at most. It then ends as expired. An evaluation that takes longer than 1 s counts no missed
    /// check.
    ///
    /// **The timeout does not interrupt the condition.** An evaluation that is running at the deadline is awaited to
    /// its end. Then the evaluation at the deadline follows, and is awaited to its end too. For a hard bound, put a
    /// timeout of your runtime around the future. [`until_best`](Self::until_best) makes no evaluation at the deadline.
    ///
    /// # Errors
    /// If the listener ends before the condition finds something, the future resolves to the [`WaitError`] that says
    /// why: for example because the timeout has passed, or because the purgatory has rejected the listener.
    ///
    /// # Panics
    /// A panic of the condition goes to the task that polls the future.
    pub async fn until<A, C, F>(self, mut condition: C) -> Result<A::Found, WaitError>
    where
        A: Answer,
        C: FnMut() -> F,
        F: Future<Output = A>,
    {
        self.listening.shared().evaluate_at_deadline();
        // The operation may stay parked after its deadline, while the condition is evaluated for the last time. For
        // this time it has an entry in the table of early timers (`src/purgatory/early.rs`). The destructor of this
        // `ForgetsLinger` removes the entry, in whatever way `until` ends.
        let _linger = self.handle().cloned().map(ForgetsLinger);
        // Declared after `_linger`, and so dropped before it: the operation must end before its entry is removed.
        let mut listener = self;
        loop {
            if let Some(found) = condition().await.found() {
                listener.satisfied();
                return Ok(found);
            }
            match listener.checked().await {
                Ok(()) => {}
                Err(WaitError::Expired) => break,
                Err(error) => return Err(error),
            }
        }
        let found = condition().await.found();
        listener.end_at_deadline(found.is_some());
        found.ok_or(WaitError::Expired)
    }

    /// Ends the listener after the evaluation at the deadline. If this evaluation has found the event (`has_found`),
    /// and no key has been checked since the deadline, counts a missed check: the event has happened, but no check has
    /// announced it.
    fn end_at_deadline(mut self, has_found: bool) {
        if has_found && self.listening.shared().is_unannounced() {
            if let Some(handle) = self.handle() {
                handle.count_missed_check();
                handle.report_missed_check();
            }
        }
        // Drop the rechecks before the operation ends, because this drop removes the operation's entry for rechecks. If
        // another thread is examining the operation, `Handle::expire` below leaves a mark, the same mark by which a
        // fired timer is reported. If that thread then finds an entry whose deadline has not come, it takes the mark
        // for a recheck, and leaves the operation parked. The deadline may not have come yet, because the expiry of an
        // added key may have ended the listener (see `also`).
        drop(self.recheck.take());
        // End the operation as expired. If another thread is examining the operation, that thread ends it afterwards.
        self.listening.end(Handle::expire);
    }

    /// Waits until `condition` returns `Ok(enough)`. With `Err(best)` the condition returns the best result so far, and
    /// the wait continues. If the listener ends first, for example by its timeout, the future resolves to the last
    /// `best` and the reason. So a fetch that has half of its bytes at the deadline returns these bytes. The condition
    /// is *not* evaluated again at the end.
    ///
    /// ```
    /// # use request_purgatory::{Waits, future::WaitError};
    /// # use std::time::Duration;
    /// # async fn fetch(waits: &Waits<u32>, log: &[u8]) -> Vec<u8> {
    /// let read = || async {
    ///     let bytes = log.to_vec();
    ///     if bytes.len() >= 100 { Ok(bytes) } else { Err(bytes) }
    /// };
    /// let listener = waits.listen([7], Duration::from_millis(5));
    /// match listener.until_best(read).await {
    ///     Ok(enough) => enough,
    ///     Err((some, WaitError::Expired)) => some,
    ///     Err((_, _)) => Vec::new(), // full, shut down, ...
    /// }
    /// # }
    /// # assert_eq!(futures::executor::block_on(fetch(&Waits::new("doc"), b"half")), b"half");
    /// ```
    ///
    /// The task that awaits this future evaluates the condition, at least once, even if the purgatory has rejected the
    /// listener. A deadline interrupts no evaluation, not even the first. The evaluation that is running at the
    /// deadline is the last one, even if a key is checked during this evaluation.
    ///
    /// # Errors
    /// The last `best` that the condition returned, and the [`WaitError`] that says why the listener ended.
    ///
    /// # Panics
    /// A panic of the condition goes to the task that polls the future.
    pub async fn until_best<T, B, C, F>(mut self, mut condition: C) -> Result<T, (B, WaitError)>
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
                    let checked = poll_fn(|cx| self.poll_wake(cx, true)).await;
                    checked.map_err(|error| (best, error))?;
                }
            }
        }
    }

    /// Waits for a check of one of the keys, or for a [recheck](Self::recheck_every). Returns at once if there was a
    /// check since the last call (for the first call: since [`listen`](Purgatory::listen)). Several checks are reported
    /// as one.
    ///
    /// After `Ok`, evaluate the condition: the evaluation sees what happened before the check. This method is
    /// cancel-safe: a check that was not reported because the future was dropped is reported by the next call.
    ///
    /// Any executor may poll the future. The checking thread wakes the task that polled last, with no lock held. If the
    /// task's waker panics, the listener ends with [`WaitError::Panicked`].
    ///
    /// # Errors
    /// Once the listener has ended, every call returns the reason at once: for example [`WaitError::Expired`] after the
    /// timeout, or [`WaitError::Full`] if the purgatory was full and rejected the listener. A check that was made
    /// before the end is reported first. A [deferred](Purgatory::check_later) check may be made after the end: evaluate
    /// the condition once more after `Expired`, as [`until`](Self::until) does.
    pub async fn checked(&mut self) -> Result<(), WaitError> {
        poll_fn(|cx| self.poll_wake(cx, false)).await
    }

    fn poll_wake(&mut self, cx: &Context<'_>, end_first: bool) -> Poll<Result<(), WaitError>> {
        let poll = self.listening.shared().poll(cx, end_first);
        if let Some(recheck) = &mut self.recheck {
            let wake = match poll {
                Poll::Ready(Ok(wake)) => wake,
                _ => Wake::default(),
            };
            recheck.woke = wake.ticked && !wake.checked;
            if wake.ticked {
                // This reads the clock, which may be user code. If it panics, the next poll reports the wake-up, and
                // begins the interval.
                let mut panics = Panics::default();
                if panics.catch(|| recheck.begin_next()).is_none() {
                    self.listening.shared().note_again(wake);
                }
                panics.resume();
            }
        }
        poll.map_ok(|_| ())
    }

    /// Ends the listener because its condition is true. In the statistics, the listener's operation counts as
    /// completed. If the listener is dropped instead, its operation counts as cancelled.
    ///
    /// This call forces the operation to complete, so a trace says `forced`. If the operation has already expired, it
    /// counts as expired.
    ///
    /// There is one exception: the last wake-up was a [recheck](Self::recheck_every) (a wake-up after an interval,
    /// without a check), and no key has been checked since then. Then the operation stays parked for 100 ms more, to
    /// see whether the check was missed or is only late. If no key is checked within this time, a missed check is
    /// counted.
    pub fn satisfied(mut self) {
        match self.recheck {
            Some(recheck) if recheck.woke && !self.listening.shared().was_checked() => {
                recheck.find(self.listening, self.further);
            }
            _ => self.listening.end(Handle::force_complete),
        }
    }

    /// Listens to checks of one more key, which the waiter learns of while it reads. Call this *before* the read that
    /// needs the key: no check after this call is missed.
    ///
    /// A key that was added before, at this [rank](Watch::at_rank) or a lower one, is not added again. So a loop may
    /// add all of its keys in every pass. The keys given to [`listen`](Purgatory::listen) do not count as added before.
    ///
    /// Each added key has an operation of its own, which counts under
    /// [`max_parked`](crate::purgatory::Builder::max_parked). This operation stays parked even after the listener's
    /// timeout, until the listener is dropped. The drop cancels the operation, and it counts as cancelled. If the
    /// purgatory rejects the operation, the listener ends, and [`checked`](Self::checked) returns the reason. If
    /// `Hash`, `Eq` or `Clone` of the key panics, this call panics too, and the listener may end.
    ///
    /// The key is watched until the listener is dropped, but for
    /// [`max_timeout`](crate::purgatory::Builder::max_timeout) at most. After this time the operation of the key
    /// expires, and ends the listener as expired. This can only happen if a call of the listener's
    /// [handle](Self::handle) has moved the listener's deadline beyond this time.
    ///
    /// ```
    /// use request_purgatory::{Waits, future::WaitError};
    /// use std::time::Duration;
    /// # struct Log;
    /// # impl Log {
    /// #     async fn partitions(&self) -> Vec<u32> { vec![1, 2] }
    /// #     async fn read(&self, _: u32) -> Option<String> { Some("record".into()) }
    /// # }
    /// async fn fetch(waits: &Waits<u32>, log: &Log) -> Result<String, WaitError> {
    ///     let mut listener = waits.listen([0], Duration::from_secs(30)); // key 0: the list of partitions
    ///     loop {
    ///         for partition in log.partitions().await {
    ///             listener.also(partition);
    ///             if let Some(record) = log.read(partition).await {
    ///                 listener.satisfied();
    ///                 return Ok(record);
    ///             }
    ///         }
    ///         listener.checked().await?;
    ///     }
    /// }
    /// # request_purgatory::future::block_on(fetch(&Waits::new("doc"), &Log)).unwrap();
    /// ```
    pub fn also<'a>(&mut self, key: impl Into<Watch<'a, K>>) {
        self.further.keys(&self.listening).also(key);
    }

    /// Returns a value that adds keys as [`also`](Self::also) does. [`until`](Self::until) and
    /// [`until_best`](Self::until_best) consume the listener, so their condition cannot call `also`. The condition can
    /// own the returned value instead.
    ///
    /// ```
    /// use request_purgatory::{Waits, future::WaitError};
    /// use std::time::Duration;
    /// # struct Log;
    /// # impl Log {
    /// #     async fn partitions(&self) -> Vec<u32> { vec![1, 2] }
    /// #     async fn read(&self, _: u32) -> Option<String> { Some("record".into()) }
    /// # }
    /// async fn fetch(waits: &Waits<u32>, log: &Log) -> Result<String, WaitError> {
    ///     let mut listener = waits.listen([0], Duration::from_secs(30)); // key 0: the list of partitions
    ///     let keys = listener.further_keys();
    ///     let read = || async {
    ///         for partition in log.partitions().await {
    ///             keys.also(partition);
    ///             if let Some(record) = log.read(partition).await {
    ///                 return Some(record);
    ///             }
    ///         }
    ///         None
    ///     };
    ///     listener.until(read).await
    /// }
    /// # request_purgatory::future::block_on(fetch(&Waits::new("doc"), &Log)).unwrap();
    /// ```
    pub fn further_keys(&mut self) -> FurtherKeys<K, S> {
        self.further.keys(&self.listening).clone()
    }

    /// Wakes the listener after every `interval`, in addition to the wake-ups by checks. Such a wake-up is a *recheck*.
    /// Rechecks are a safety net for changes that no check announces, because some code forgets the check, or because
    /// another process makes the changes.
    ///
    /// The first interval begins with this call. Each later interval begins when [`checked`](Self::checked) reports a
    /// recheck, alone or together with a check. This call reads the clock, and so does a poll that reports a recheck.
    /// An interval lasts at least 1 ms, and is rounded up to the purgatory's [tick](crate::purgatory::Builder::tick).
    /// It may be shorter by up to a tenth of its length, so that many listeners share the wake-ups of one thread. A
    /// second call replaces the interval and begins a new one.
    ///
    /// If the condition is true after a recheck, this counts as a [missed
    /// check](crate::purgatory::Stats::missed_checks), and is logged (feature `tracing`, level `WARN`). But if one of
    /// the keys is checked within the next 100 ms, the check was only late, and nothing is counted. The waiter does not
    /// wait for these 100 ms, but its operation stays parked for them. If the number of missed checks grows, some code
    /// changes the data without checking the key.
    ///
    /// Rechecks need no second timer, and a listener that does not use them pays nothing for them. The thread that
    /// drives the timer makes the rechecks (see [`Reaper`](crate::threads::Reaper)). If the system refuses that thread,
    /// the recheck comes once a later call has started the thread, or in the next
    /// [`advance`](crate::Purgatory::advance). A rejected listener gets no rechecks, and no listener gets a recheck
    /// after its deadline.
    pub fn recheck_every(mut self, interval: Duration) -> Self {
        self.recheck = self.recheck.or_else(|| Recheck::new(&self.listening));
        if let Some(recheck) = &mut self.recheck {
            recheck.begin(interval);
        }
        self
    }

    /// The handle of the parked operation, for example to read or change its deadline. `None` if the purgatory rejected
    /// the listener, or if the listener's operation ended while it was still being parked (for example because of a
    /// shutdown).
    pub fn handle(&self) -> Option<&Handle<WaitOperation<K>, S>> {
        self.listening.handle()
    }
}

debug_fields!([K: Key, S: KeyHasher] Listener<K, S>, "Listener", |it| handle: it.handle());
