//! One value for each key, until a timeout: sessions and leases.

use crate::builder::{Builder, Built, sound};
use crate::error::{BuildError, Rejected};
use crate::handle::{Handle, WeakRef, handle};
use crate::shared::Shared;
use crate::token::FencingToken;
use crate::values::Values;
use equivalent::Equivalent;
use request_purgatory::Deadline;
use request_purgatory::purgatory::{Key, KeyHasher, RandomState, Stats};
use request_purgatory::time::Timestamp;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

/// Keeps one value for each key until it is completed, or its timeout passes. For sessions that live as long as
/// heartbeats [reschedule](Self::reschedule) them, and for leases with a holder; [`Requests`](crate::Requests) keep the
/// calls that wait for a response.
///
/// ```
/// use request_purgatory::threads::Reaper;
/// use request_purgatory::time::ManualClock;
/// use request_purgatory_tracker::Tracker;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (gone, silent) = mpsc::channel();
/// let sessions = Tracker::builder("sessions")
///     .clock(clock.clone())
///     .reaper(Reaper::Manual) // no thread; by default the tracker has its own
///     .build(move |member: String, _: u32, _| gone.send(member).unwrap())?;
/// sessions.track("ann".to_owned(), 1, Duration::from_secs(10))?;
/// sessions.track("bob".to_owned(), 2, Duration::from_secs(10))?;
///
/// clock.advance(Duration::from_secs(9));
/// assert!(sessions.reschedule("ann", Duration::from_secs(10)));
/// clock.advance(Duration::from_secs(9));
/// assert!(!sessions.contains("bob")); // his deadline has passed, whether the callback has run or not
/// assert_eq!(sessions.advance(), 1);
/// assert_eq!(silent.try_recv()?, "bob");
/// assert_eq!(sessions.complete("ann"), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # When a value has expired
///
/// The deadline of a value is a moment of the clock: a timeout after the reading of the call that set it, or the point
/// that this call was given. From that moment on the value has expired for every call: it is not found, cannot be
/// rescheduled, replaced or completed, and another value can be tracked for its key. Whether the thread that drives the
/// timer has come to it makes no
/// difference: after a stall of the process that thread may be seconds late.
///
/// The callback of a value that has expired runs once, when that thread comes to it, on the thread that
/// [`dispatch`](Builder::dispatch) says, also where the key has another value by then. It gets the
/// [token](FencingToken) of the value that has expired; the other one has a [greater token](Self::token). No call but
/// [`advance`](Self::advance) runs the callback, so you may track, reschedule or complete a value under a lock that the
/// callback takes. It may call every method.
///
/// A call reads the clock when it begins, and that reading decides. Of two calls at the same time, one that finds a
/// value expired makes it expired for the other as well.
///
/// # What runs under a lock
///
/// `Eq` and `Clone` of keys, and `Clone` of values, run under the lock of one map shard, and must not call the tracker:
/// a debug build panics there, a release build may hang. Their panics, and those of `Hash` and of the clock, go to the
/// caller, and nothing has changed. No closure of yours runs under a lock, nor does a destructor.
///
/// # Its end
///
/// Cloning is cheap, and clones are the same tracker. When the last one is dropped, it is [shut down](Self::shutdown):
/// the values are dropped on this thread, and the drop waits for each thread of the tracker for at most about 10 ms.
pub struct Tracker<K: Key, V: Send + 'static, S: KeyHasher = RandomState> {
    shared: Arc<Shared<K, V, S>>,
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Tracker<K, V, S> {
    // `len`, `is_empty`, `stats`, `advance`, `next_deadline`, `is_shut_down`, `downgrade`: in `src/handle.rs`.

    /// Keeps `value` for `key` until `timeout` has passed, or until a [point in time](Deadline) (`None`: without end).
    /// Returns its token, and the value that was kept for the key before and is replaced, unless that has expired.
    ///
    /// Reads the clock once. Takes the lock of the key's map shard and, within it, that of a timer shard.
    ///
    /// # Errors
    /// The value comes back in a [`Rejected`]: the tracker is full or shut down, or the system refused a thread. A value
    /// that was kept before stays.
    pub fn track(
        &self,
        key: K,
        value: V,
        timeout: impl Into<Deadline>,
    ) -> Result<(FencingToken, Option<V>), Rejected<V>> {
        let tracked = self.shared.track(key, value, timeout.into(), true)?;
        Ok((tracked.token, tracked.replaced.map(|old| old.value)))
    }

    /// Keeps `value` for `key` as [`track`](Self::track) does, but only if nothing is kept for it.
    ///
    /// # Errors
    /// As for [`track`](Self::track), and with [`RejectReason::Duplicate`](crate::RejectReason::Duplicate).
    pub fn try_track(
        &self,
        key: K,
        value: V,
        timeout: impl Into<Deadline>,
    ) -> Result<FencingToken, Rejected<V>> {
        Ok(self.shared.track(key, value, timeout.into(), false)?.token)
    }

    /// Puts `value` in place of the one for `key`, to expire at the new deadline, if that still has `token`. Returns the
    /// token of the new value, which is never `token`, and the old value.
    ///
    /// The new value takes the place of the old one under [`max_parked`](Builder::max_parked), so a full tracker does
    /// not reject it. In the statistics the two count as one.
    ///
    /// Reads the clock once. Takes the lock of the key's map shard and, within it, that of a timer shard.
    ///
    /// # Errors
    /// The value comes back in a [`Rejected`]: the value with this token is not kept any more
    /// ([`StaleToken`](crate::RejectReason::StaleToken)), the tracker is shut down, or the system refused a thread.
    pub fn replace_if<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        token: FencingToken,
        value: V,
        timeout: impl Into<Deadline>,
    ) -> Result<(FencingToken, V), Rejected<V>> {
        self.shared.replace(key, token, value, timeout.into())
    }

    /// Takes the value for `key`: the session was closed. `None` if no value is kept for it.
    ///
    /// Reads the clock once. Takes the lock of the key's map shard, and within it that of a timer shard only if it is
    /// free.
    pub fn complete<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<V> {
        let completed = self.shared.complete(key, None).ok()?;
        Some(completed.value)
    }

    /// [Completes](Self::complete) only if the value still has `token`: a holder that has lost its lease does not end the
    /// next lease.
    pub fn complete_if<Q>(&self, key: &Q, token: FencingToken) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let completed = self.shared.complete(key, Some(token)).ok()?;
        Some(completed.value)
    }

    /// Lets the value for `key` expire `timeout` from now instead, or at a [point in time](Deadline) (`None`: never).
    /// `false` if no value is kept for it; or if this would be the first deadline of the tracker, and the system refuses a thread.
    ///
    /// Reads the clock first. The timeout counts from that reading: of two calls at the same time, the one that takes
    /// effect last decides, even if it has read the clock before the other. Then takes the lock of the key's map shard
    /// and, within it, that of a timer shard.
    #[must_use = "a value that has expired cannot be rescheduled: its owner has lost it"]
    pub fn reschedule<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        timeout: impl Into<Deadline>,
    ) -> bool {
        self.shared.reschedule(key, None, timeout.into())
    }

    /// [Reschedules](Self::reschedule) only if the value still has `token`: a renewal that comes late does not extend the
    /// next lease.
    #[must_use = "a value that has expired cannot be rescheduled: its owner has lost it"]
    pub fn reschedule_if<Q>(
        &self,
        key: &Q,
        token: FencingToken,
        timeout: impl Into<Deadline>,
    ) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.shared.reschedule(key, Some(token), timeout.into())
    }

    /// A clone of the value for `key`. `None` if no value is kept for it.
    ///
    /// Reads the clock once. The value is cloned under the lock of the key's map shard: let `Clone` be short (keep large
    /// values in an [`Arc`](std::sync::Arc)), and let it not call the tracker.
    pub fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<V>
    where
        V: Clone,
    {
        self.shared.read(key, |entry, _| entry.value.clone())
    }

    /// The token of the value for `key`. Reads the clock once, and takes the lock of the key's map shard.
    ///
    /// To change a value that others change as well, ask for the token first and then [get](Self::get) the value: a
    /// [replacement](Self::replace_if) with that token fails if the value was another one by then.
    pub fn token<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<FencingToken> {
        self.shared.read(key, |entry, _| entry.token)
    }

    /// Whether a value is kept for `key`. Reads the clock once, and takes the lock of the key's map shard.
    pub fn contains<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> bool {
        self.shared.read(key, |_, _| ()).is_some()
    }

    /// The time until the value for `key` expires. `None` if no value is kept for it, or it never expires;
    /// [`contains`](Self::contains) tells which. Reads the clock once, and takes the lock of the key's map shard.
    pub fn remaining<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<Duration> {
        let remaining = |deadline: Timestamp, now| deadline.saturating_since(now);
        self.shared.read(key, |entry, now| {
            entry.deadline.map(|at| remaining(at, now))
        })?
    }

    /// The keys of all values, in no order. A value that is tracked or ends meanwhile may be among them or not.
    ///
    /// Reads the clock once. Takes the lock of one map shard after the other; the keys of a shard are cloned under its
    /// lock, so `Clone` must not call the tracker.
    pub fn keys(&self) -> Vec<K> {
        self.shared.copies(|entry| entry.key.clone())
    }

    /// Ends every value that `is_wanted` picks, without the callback, and returns those that this call has ended: the
    /// sessions of a client that is banned, the leases of a node that has died. A value that is tracked meanwhile may
    /// be among them or not. One that is picked and then [replaced](Self::replace_if) stays, since the closure was not
    /// asked about the new value; so does one that expires meanwhile, for its callback.
    ///
    /// `is_wanted` is asked about clones, with no lock held: it may call everything. If it panics, no value has ended.
    /// Reads the clock once. Takes the lock of one map shard after the other, under which its keys and values are
    /// cloned (keep large values in an [`Arc`](std::sync::Arc)); then that of each picked key's map shard.
    pub fn withdraw_where(&self, mut is_wanted: impl FnMut(&K, &V) -> bool) -> Vec<(K, V)>
    where
        V: Clone,
    {
        let copies = self.shared.copies(|entry| {
            let copy = (entry.key.clone(), entry.value.clone());
            (copy, entry.hash(), entry.token)
        });
        let wanted = copies
            .into_iter()
            .filter_map(|((key, value), hash, token)| {
                is_wanted(&key, &value).then_some((hash, token))
            });
        // All are asked about before the first one ends.
        let wanted = wanted.collect::<Vec<_>>();
        let withdrawn = wanted.into_iter().filter_map(|(hash, token)| {
            let ended = self.shared.withdraw_live(hash, token)?;
            Some((ended.key, ended.value))
        });
        withdrawn.collect()
    }

    /// Ends the tracker: it rejects every value from now on. The first call returns the values whose callback had not
    /// been called: also those whose deadline has passed, since it never will be. Joins the tracker's own threads, after
    /// the callbacks in their queues have run.
    ///
    /// May be called from a callback: then it does not wait for the threads, which end as soon as the callbacks that
    /// they run have returned.
    pub fn shutdown(&self) -> Vec<(K, V)> {
        let remains = self.shared.close();
        self.shared.timer.shutdown();
        let remains = remains.into_iter();
        remains.map(|entry| (entry.key, entry.value)).collect()
    }
}

handle!([K: Key, V: Send + 'static, S: KeyHasher] Tracker<K, V, S>, "Tracker", Shared<K, V, S>, "values kept");

/// The hasher, and the number of the first token.
impl<K: Key, V: Send + 'static, S: KeyHasher> Built for Tracker<K, V, S> {
    type Own = (S, u64);
}

impl<K: Key, V: Send + 'static> Tracker<K, V> {
    /// A tracker with a tick of 1 ms, a reaper thread, and a completion thread on which `on_expiry` is called.
    /// The threads start when they are first needed.
    pub fn new(
        name: impl Into<String>,
        on_expiry: impl Fn(K, V, FencingToken) + Send + Sync + 'static,
    ) -> Self {
        sound(Self::builder(name).build(on_expiry))
    }

    /// Begins to build a tracker with other choices: clock, reaper, dispatch, bounds, hasher, first token.
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        Builder::new(name, (RandomState::default(), 1))
    }
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Builder<Tracker<K, V, S>> {
    /// How keys are hashed. Default: [`RandomState`], a fast hash with a random seed, because clients often choose
    /// keys.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Tracker<K, V, H>> {
        Builder {
            settings: self.settings,
            own: (hasher, self.own.1),
        }
    }

    /// The number of the first [`FencingToken`], at most 2^63. Default: 1.
    ///
    /// A tracker forgets its tokens with the process. Where they must grow across restarts, give each start a number
    /// above all that the starts before can have reached: a count of the starts, from a store, in the upper 32 bits; or
    /// the time in microseconds since 1970, where the clock is never set back and there are fewer values than
    /// microseconds.
    pub fn first_token(mut self, number: u64) -> Self {
        self.own.1 = number;
        self
    }

    /// Builds the tracker. `on_expiry` gets each value that has expired, with its key and its token, on the thread that
    /// [`dispatch`](Self::dispatch) says.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick), [`wheel_size`](Self::wheel_size) or [`first_token`](Self::first_token)
    /// is out of range, or the system refuses a thread that is to [start at once](Self::threads_at_once).
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(
        self,
        on_expiry: impl Fn(K, V, FencingToken) + Send + Sync + 'static,
    ) -> Result<Tracker<K, V, S>, BuildError> {
        let (hasher, first_token) = self.own;
        if first_token > 1 << 63 {
            return Err(BuildError::FirstToken);
        }
        let values = Values::new(hasher, first_token, None);
        Ok(Tracker {
            shared: Shared::new(self.settings, values, on_expiry)?,
        })
    }
}
