//! Listening to checks, for conditions that only the waiter can evaluate. The loop: listen; evaluate; await a check;
//! evaluate again.

use super::operation::WaitOperation;
use super::recheck::{Listening, Recheck};
use super::reply::Awaiting;
use super::signal::{Signal, Wake};
use super::wait_error::WaitError;
use crate::callbacks::trampoline::UserValues;
use crate::hash::{Key, KeyHasher, RandomState};
use crate::purgatory::{Handle, Purgatory, Watch};
use crate::sync::Arc;
use crate::watch::bound::Rank;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::task::{Context, Poll};
use std::time::Duration;

impl<K: Key, S: KeyHasher> Purgatory<WaitOperation<K>, S> {
    /// Listens to checks of `keys`, for at most `timeout` from this call on (`None`: without end). For conditions that
    /// the waiter evaluates itself, because the evaluation awaits, or borrows from the task:
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
    /// [`until_best`](Listener::until_best) is for a condition that may have half of an answer.
    ///
    /// Call `listen` first, and then evaluate: no check after this call is missed, even while the condition is being
    /// evaluated. If the purgatory rejects the listener (because it is full, for instance), this call does not fail:
    /// [`checked`](Listener::checked) returns the reason. A condition that is true at once needs no permit of the
    /// purgatory.
    ///
    /// The thread that checks a key runs no code of the waiter except its waker. The library does not know the
    /// condition, which has these consequences:
    ///
    /// * Every check counts as an examination in vain, and a listener that expires does not count as a [missed
    ///   check](crate::purgatory::Stats::missed_checks).
    /// * A listener does not complete in a check, so a check [for at most n completions](crate::Bound::at_most) wakes
    ///   all listeners of the key. Workers that compete for something use [`take`](Self::take).
    /// * A listener that watches a key [at a rank](Watch::at_rank) is not woken by a check up to a lower rank.
    ///
    /// Runs `Hash`, `Eq` and `Clone` of keys, and the clock, on this thread; takes the same locks as
    /// [`try_complete_else_watch`](Self::try_complete_else_watch). Does not keep the purgatory alive.
    pub fn listen<'a>(
        &self,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, K>>>,
        timeout: impl Into<Option<Duration>>,
    ) -> Listener<K, S> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        let signal = Arc::new(Signal::new());
        let operation = WaitOperation::listener(timeout, signal.clone());
        let parked = self.try_complete_else_watch(operation, keys);
        Listener {
            listening: Awaiting::new(signal, parked),
            recheck: None,
            also: Vec::new(),
            known: UserValues(HashMap::new()),
        }
    }
}

/// Listens to checks of some keys, from [`listen`](Purgatory::listen) until the listener is dropped or its timeout
/// passes.
///
/// Dropping a listener, on any thread, cancels its operation: when `drop` returns, watches and timer are removed. If
/// another thread is examining the operation at that moment, `drop` does not wait for that thread, which then removes
/// them.
#[must_use = "a listener that is dropped does not listen"]
pub struct Listener<K: Key, S: KeyHasher = RandomState> {
    listening: Listening<K, S>,
    /// Declared after the operation, so that the operation ends first.
    recheck: Option<Recheck<K, S>>,
    /// The operations of the keys that [`also`](Self::also) has added.
    also: Vec<Listening<K, S>>,
    /// The added keys, each with the lowest rank at which it is watched.
    known: UserValues<HashMap<K, Option<Rank>>>,
}

impl<K: Key, S: KeyHasher> Listener<K, S> {
    /// Listens to checks of one more key, which the waiter has learnt during its read. Call `also` *before* the read
    /// that needs the key: no check after the call is missed.
    ///
    /// A loop may add all of its keys in every round: a key that was added before, at this rank or a lower one, is not
    /// added again. Keys given to [`listen`](Purgatory::listen) do not count as added.
    ///
    /// Each added key is an operation of its own. That operation counts under
    /// [`max_parked`](crate::purgatory::Builder::max_parked) until the listener is dropped, even after the listener's
    /// timeout, and then counts as cancelled. If the purgatory rejects the operation, the listener ends, and
    /// [`checked`](Self::checked) returns the reason. If `Hash`, `Eq` or `Clone` of the key panics, the panic is passed
    /// on, or the listener ends with [`WaitError::Panicked`].
    ///
    /// The key is watched until the listener is dropped, but for at most
    /// [`max_timeout`](crate::purgatory::Builder::max_timeout). A listener whose [handle](Self::handle) has moved its
    /// deadline beyond that time expires when the added key does.
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
    ///     let mut listener = waits.listen([0], Duration::from_secs(30)); // 0: the list of partitions
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
        let watch = key.into();
        let rank = watch.rank;
        match self.known.0.get_mut(watch.name()) {
            Some(known) if *known <= rank => return,
            Some(known) => *known = rank,
            None => _ = self.known.0.insert(watch.name().clone(), rank),
        }
        // No handle: the purgatory has rejected the listener, which has ended.
        if let Some(handle) = self.listening.handle() {
            let signal = self.listening.shared().clone();
            let operation = WaitOperation::listener(Duration::MAX, signal.clone());
            let parked = handle.park_beside(operation, watch);
            self.also.push(Awaiting::new(signal, parked));
        }
    }

    /// Wakes the listener after every `interval` as well, without a check: a *recheck*. Rechecks are a safety net for
    /// changes that no check announces, because some code forgets the check, or because another process makes the
    /// change.
    ///
    /// The first interval begins now. Each later interval begins when [`checked`](Self::checked) reports a recheck,
    /// alone or together with a check. This call and that poll read the clock. An interval:
    ///
    /// * lasts 1 ms at least, rounded up to the purgatory's [tick](crate::purgatory::Builder::tick);
    /// * may be up to a tenth shorter than asked, so that many listeners share the wake-ups of one thread;
    /// * is replaced by a second call, which begins anew.
    ///
    /// If the condition is true after a recheck, and no key is checked within 100 ms, the event counts as a [missed
    /// check](crate::purgatory::Stats::missed_checks), and is logged (feature `tracing`, level `WARN`). A check within
    /// these 100 ms was only late. The waiter does not wait for the 100 ms, but its operation stays parked so long. If
    /// the number grows, some code changes the data and does not check the key.
    ///
    /// A listener without rechecks pays nothing for them; a listener with rechecks needs no second timer. Rechecks run
    /// on the thread that drives the purgatory (see [`Reaper`](crate::threads::Reaper)). None comes at the deadline or
    /// after it, and none comes to a listener that the purgatory rejected.
    pub fn recheck_every(mut self, interval: Duration) -> Self {
        self.recheck = self.recheck.or_else(|| Recheck::new(&self.listening));
        if let Some(recheck) = &mut self.recheck {
            recheck.begin(interval);
        }
        self
    }

    /// Waits for a check of one of the keys, or for a [recheck](Self::recheck_every). If a check came since the last
    /// call, or before the first call since [`listen`](Purgatory::listen), this returns at once. Several checks are
    /// reported as one.
    ///
    /// After `Ok`, evaluate the condition: the evaluation sees what happened before the check.
    ///
    /// * Cancel-safe: if the future is dropped before it reports a check, the next call reports the check.
    /// * Any executor may poll the future. The thread that checks wakes the task that polled last, with no lock held.
    /// * If the waker of that task panics, the listener ends with [`WaitError::Panicked`].
    ///
    /// Once the listener has ended, every call returns the reason at once: [`WaitError::Expired`] after the timeout, or
    /// why the purgatory rejected the listener. A check made before the end is reported first. A
    /// [deferred](Purgatory::check_later) check may be made after the end, so evaluate the condition once more after
    /// `Expired`, as [`until`](Self::until) does.
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
                recheck.begin_next();
            }
        }
        poll.map_ok(|_| ())
    }

    /// Ends the listener because its condition is true. The listener counts as completed; a dropped listener counts as
    /// cancelled.
    ///
    /// The operation of the listener is forced to complete, so a trace says `forced`. If it has expired already, it
    /// stays expired. If the last wake-up was a [recheck](Self::recheck_every), and no key was checked since, it stays
    /// parked for 100 ms more.
    pub fn satisfied(mut self) {
        match self.recheck {
            Some(recheck) if recheck.woke && !self.listening.shared().was_checked() => {
                recheck.find(self.listening, self.also);
            }
            _ => self.listening.end(Handle::force_complete),
        }
    }

    /// Waits until `condition` returns `Some`: evaluates it at once, again after checks, and once more when the timeout
    /// has passed.
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
    /// The condition is evaluated in the task that awaits this future, even if the purgatory has rejected the listener.
    /// The condition needs neither `Send` nor `'static`; the future is `Send` if the condition and its futures are. All
    /// checks during one evaluation cause one more evaluation, which starts the condition anew. If the evaluation at
    /// the deadline returns `Some`, that counts as a [missed check](crate::purgatory::Stats::missed_checks): the event
    /// had happened, and the key was not checked in time.
    ///
    /// **The timeout does not interrupt the condition.** An evaluation that is running at the deadline is awaited to
    /// its end, and the evaluation at the deadline takes its own time. For a hard bound, put a timeout of your runtime
    /// around the future. [`until_best`](Self::until_best) makes no evaluation at the deadline.
    ///
    /// # Errors
    /// The future resolves to a [`WaitError`], among others if the purgatory has rejected the listener.
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
                // An evaluation that was already running at the deadline counts no missed check.
                if expired {
                    if let Some(handle) = self.handle() {
                        handle.count_missed_check();
                        handle.report_missed_check();
                    }
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

    /// Waits until `condition` answers `Ok(enough)`. Its other answer, `Err(best)`, is the best so far: if the listener
    /// ends before there is enough, by its timeout for instance, the future resolves to the last `best` and the reason.
    /// The condition is *not* evaluated again at the end. So a fetch that has half of its bytes at the deadline answers
    /// with these bytes.
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
    /// The condition is evaluated in the task that awaits this future, at least once, even if the purgatory has
    /// rejected the listener. A deadline does not interrupt an evaluation, not even the first. The answer of that
    /// evaluation is then the last one, even if a key was checked meanwhile.
    ///
    /// # Errors
    /// The last `best` answer, and the [`WaitError`] that ended the listener.
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

    /// The handle of the parked operation, for instance to read or change its deadline. `None` if the purgatory
    /// rejected the listener.
    pub fn handle(&self) -> Option<&Handle<WaitOperation<K>, S>> {
        self.listening.handle()
    }
}

debug_fields!([K: Key, S: KeyHasher] Listener<K, S>, "Listener", |it| handle: it.handle());
