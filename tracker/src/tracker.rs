//! One value for each key, until a timeout: sessions and leases.

use crate::builder::{Builder, Built, sound};
use crate::error::{BuildError, Rejected};
use crate::handle::{Handle, WeakRef, handle};
use crate::shared::Shared;
use crate::token::FencingToken;
use crate::values::{Entry, Reading, Values};
use equivalent::Equivalent;
use request_purgatory::Deadline;
use request_purgatory::purgatory::{Key, KeyHasher, RandomState, Stats};
use request_purgatory::time::Timestamp;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

/// Keeps one value for each key until the value is completed, or its timeout passes. A value can be a session that
/// lives as long as heartbeats [reschedule](Self::reschedule) it, or a lease with a holder. For calls that wait for a
/// response, use [`Requests`](crate::Requests).
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
/// The deadline of a value is a point of the clock. The call that sets the deadline reads the clock and adds the
/// timeout, or gets the point from its caller. If the caller gives an `Instant`, and the clock is your own, the call
/// reads the clock once more for the conversion. From the deadline on, the value has expired for every call: it is not
/// found, cannot be rescheduled, replaced or completed, and another value can be tracked for its key. The thread that
/// drives the timer may be late, by seconds after a stall of the process, but the value has expired at its deadline all
/// the same.
///
/// The callback of an expired value runs once, after the thread that drives the timer has fired the value's timer. It
/// runs on the thread that [`dispatch`](Builder::dispatch) chooses. It runs even if the key has got another value in
/// the meantime: the callback gets the [token](FencingToken) of the expired value, and the other value has a [greater
/// token](Self::token). The callback may call every method.
///
/// No method except [`advance`](Self::advance) runs the callback. So you may track, reschedule or complete a value
/// under a lock that the callback takes.
///
/// A call reads the clock when it begins, and compares the deadline with this reading. The call may find a value
/// expired although the reading is before the deadline: another call may have read the clock later, or the value's
/// timer may have fired since. When one call has found a value expired, no call finds the value alive afterwards,
/// whatever its own reading of the clock is.
///
/// # What runs under a lock
///
/// `Eq` and `Clone` of keys, and `Clone` of values, run under the lock of one map shard. They must not call the
/// tracker: in a debug build such a call panics, in a release build it may hang. If `Eq`, `Clone`, `Hash` or the clock
/// panics, the panic is passed on to the caller, and the call has changed nothing. Your closures and destructors never
/// run under a lock.
///
/// A call drops the keys and clones that its caller does not get: the key of a value that it rejects, the key of a
/// value that it returns without the key, and clones that it has made but does not return. If the destructor of such a
/// key or clone panics, the panic is caught and counted in
/// [`Stats::panicked`](request_purgatory::purgatory::Stats::panicked), and the call goes on.
///
/// # Its end
///
/// Cloning is cheap, and all clones are the same tracker. The drop of the last clone [shuts the tracker
/// down](Self::shutdown). The values are dropped on the thread that drops the clone. This thread waits at most about 10
/// ms for each thread of the tracker.
pub struct Tracker<K: Key, V: Send + 'static, S: KeyHasher = RandomState> {
    shared: Arc<Shared<K, V, S>>,
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Tracker<K, V, S> {
    // More methods are in `src/handle.rs`, because `Tracker` and `Requests` share them: `len`, `stats`, `advance`,
    // `point` and others.

    /// Keeps `value` for `key` until `timeout` has passed. `timeout` is a duration or a [point in time](Deadline); with
    /// `None` the value never expires. Returns the token of `value`. Also returns the previous value of the key, if the
    /// key had a value that had not expired.
    ///
    /// A full tracker does not reject a value that replaces another one, because the number of values stays the same
    /// (see [`max_parked`](Builder::max_parked)). In the statistics the two values count as one.
    ///
    /// Reads the clock once, or twice if the key's previous value seems to have expired. Takes the lock of the key's
    /// map shard and, inside it, the lock of a timer shard.
    ///
    /// # Errors
    /// The value comes back in a [`Rejected`] if the tracker is full or shut down. The same happens if this is the
    /// tracker's first timeout, and the system refuses the thread that expires values. The key then keeps its previous
    /// value.
    pub fn track(
        &self,
        key: K,
        value: V,
        timeout: impl Into<Deadline>,
    ) -> Result<(FencingToken, Option<V>), Rejected<V>> {
        let tracked = self.shared.track(key, value, timeout.into(), true)?;
        Ok((tracked.token, tracked.replaced))
    }

    /// Keeps `value` for `key` as [`track`](Self::track) does, but only if no value is kept for the key.
    ///
    /// # Errors
    /// The errors of [`track`](Self::track); and [`RejectReason::Duplicate`](crate::RejectReason::Duplicate) if a value
    /// is kept for the key.
    pub fn try_track(
        &self,
        key: K,
        value: V,
        timeout: impl Into<Deadline>,
    ) -> Result<FencingToken, Rejected<V>> {
        Ok(self.shared.track(key, value, timeout.into(), false)?.token)
    }

    /// Replaces the value for `key` by `value`, with a new deadline, if the old value still has `token`. Returns the
    /// token of the new value, which is never `token`, and the old value.
    ///
    /// A full tracker does not reject the new value, because the number of values stays the same (see
    /// [`max_parked`](Builder::max_parked)). In the statistics the two values count as one.
    ///
    /// Reads the clock once. Takes the lock of the key's map shard and, inside it, the lock of a timer shard.
    ///
    /// # Errors
    /// `value` comes back in a [`Rejected`] if the key has no value with this token any more
    /// ([`StaleToken`](crate::RejectReason::StaleToken)), or the tracker is shut down. The same happens if this is the
    /// tracker's first timeout, and the system refuses the thread that expires values.
    pub fn replace_if<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        token: FencingToken,
        value: V,
        timeout: impl Into<Deadline>,
    ) -> Result<(FencingToken, V), Rejected<V>> {
        self.shared.replace(key, token, value, timeout.into())
    }

    /// Ends the value for `key`, without the callback, and returns it; for example because a session was closed. `None`
    /// if no value is kept for the key.
    ///
    /// Reads the clock once, or twice if the value seems to have expired. Takes the lock of the key's map shard and,
    /// inside it, tries to take the lock of a timer shard.
    pub fn complete<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<V> {
        let completed = self.shared.complete(key, None).ok()?;
        Some(self.value_of(completed))
    }

    /// [Completes](Self::complete) the value only if it still has `token`. So a holder that has lost its lease does not
    /// end the lease of the next holder. `None` if no value with this token is kept for the key.
    pub fn complete_if<Q>(&self, key: &Q, token: FencingToken) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let completed = self.shared.complete(key, Some(token)).ok()?;
        Some(self.value_of(completed))
    }

    /// The value of an entry that has ended. If the destructor of the key panics, the caller gets the value all the
    /// same.
    #[inline]
    fn value_of(&self, ended: Entry<K, V>) -> V {
        self.shared.values.panics.discard(ended.key);
        ended.value
    }

    /// Moves the deadline of the value for `key` to `timeout` from now, or to a [point in time](Deadline); with `None`
    /// the value never expires. Returns `false` if no value is kept for `key`, or if this would be the first deadline
    /// of the tracker and the system refuses a thread for it.
    ///
    /// Reads the clock when it begins, and the timeout counts from that reading. Of several concurrent calls, the last
    /// to get the lock sets the deadline, even if it was the first to read the clock. Takes the lock of the key's map
    /// shard and, inside it, the lock of a timer shard.
    #[must_use = "a value that has expired cannot be rescheduled: its owner has lost it"]
    pub fn reschedule<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        timeout: impl Into<Deadline>,
    ) -> bool {
        let rescheduled = self.shared.reschedule(key, None, timeout.into(), |_| ());
        rescheduled.is_ok()
    }

    /// [Reschedules](Self::reschedule) the value only if it still has `token`. So a holder that renews its lease too
    /// late does not extend the lease of the next holder. Returns `false` if no value with this token is kept for the
    /// key.
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
        let only = Some(token);
        let rescheduled = self.shared.reschedule(key, only, timeout.into(), |_| ());
        rescheduled.is_ok()
    }

    /// A clone of the value for `key`. `None` if no value is kept for `key`.
    ///
    /// Reads the clock once. The value is cloned under the lock of the key's map shard: `Clone` must be short (keep
    /// large values in an [`Arc`](std::sync::Arc)), and must not call the tracker.
    pub fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<V>
    where
        V: Clone,
    {
        self.shared.read(key, |entry, _| entry.value.clone())
    }

    /// The token of the value for `key`. `None` if no value is kept for `key`. Reads the clock once, and takes the lock
    /// of the key's map shard.
    ///
    /// To change a value that other threads change as well, first read its token, then [get](Self::get) the value, and
    /// [replace](Self::replace_if) the value with that token. The replacement fails if the value has changed in the
    /// meantime.
    pub fn token<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<FencingToken> {
        self.shared.read(key, |entry, _| entry.token)
    }

    /// Whether a value is kept for `key`. Reads the clock once, and takes the lock of the key's map shard.
    pub fn contains<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> bool {
        self.shared.read(key, |_, _| ()).is_some()
    }

    /// The time until the value for `key` expires. `None` if no value is kept for `key`, or if the value never expires;
    /// [`contains`](Self::contains) distinguishes these cases. Reads the clock once, and takes the lock of the key's
    /// map shard.
    pub fn remaining<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<Duration> {
        let remaining = |deadline: Timestamp, now| deadline.saturating_since(now);
        self.shared.read(key, |entry, now| {
            entry.deadline.map(|at| remaining(at, now))
        })?
    }

    /// The keys of all values, in no particular order. A value that is tracked or ends during the call may be included
    /// or not.
    ///
    /// Reads the clock once. Takes the lock of one map shard after another; the keys of a shard are cloned under its
    /// lock, so `Clone` must not call the tracker.
    pub fn keys(&self) -> Vec<K> {
        let mut keys = Vec::new();
        self.shared.each_live(|entry| keys.push(entry.key.clone()));
        keys
    }

    /// Ends every value that `is_wanted` picks by returning `true`, without the callback. Returns the values that this
    /// call has ended: the sessions of a banned client, for example, or the leases of a node that has died.
    ///
    /// * A value that is tracked during the call may be included or not.
    /// * If a picked value is [replaced](Self::replace_if) during the call, the new value stays, because `is_wanted`
    ///   has not seen it.
    /// * If a picked value has expired by the second reading, it is not returned, and its callback runs.
    ///
    /// `is_wanted` is called with clones, and with no lock held: it may call every method. All calls of `is_wanted`
    /// come before the end of the first value: if one of them panics, no value has ended.
    ///
    /// Reads the clock when it begins, and again when all calls of `is_wanted` have returned: the second reading decides
    /// which picked values have expired meanwhile. Takes the lock of one map shard after another, and clones the shard's
    /// keys and values under the lock (keep large values in an [`Arc`](std::sync::Arc)). Then takes the lock of the map
    /// shard of each picked key. Drops the clones when all calls of `is_wanted` have returned, with no lock held.
    pub fn withdraw_where(&self, mut is_wanted: impl FnMut(&K, &V) -> bool) -> Vec<(K, V)>
    where
        V: Clone,
    {
        let shared = &self.shared;
        let (mut keys, mut values, mut places) = (Vec::new(), Vec::new(), Vec::new());
        shared.each_live(|entry| {
            keys.push(entry.key.clone());
            values.push(entry.value.clone());
            places.push((entry.hash(), entry.token));
        });
        // Call the closure for all values before this method takes the first value out. If the closure panics, no value
        // has left the tracker.
        let copies = keys.iter().zip(&values);
        let asked = places.into_iter().zip(copies);
        let wanted = asked.filter(|(_, (key, value))| is_wanted(key, value));
        let wanted = wanted.map(|(place, _)| place).collect::<Vec<_>>();
        let panics = &shared.values.panics;
        panics.discard(keys);
        values.into_iter().for_each(|value| panics.discard(value));
        // Read the clock, which is user code, before the first value is taken out.
        let reading = Reading::exact(&shared.timer);
        let ended = wanted
            .into_iter()
            .filter_map(|(hash, token)| shared.withdraw_live(reading, hash, token));
        ended.map(|entry| (entry.key, entry.value)).collect()
    }

    /// Ends the tracker, which rejects every value from now on. The first call returns the values whose timers have not
    /// fired. The callbacks of these values never run, even if a value has expired. Joins the tracker's own threads,
    /// which first run the callbacks in their queues.
    ///
    /// A call inside a callback does not wait for the threads, because it would wait for its own callback. The threads
    /// end when the callbacks in their queues have run.
    pub fn shutdown(&self) -> Vec<(K, V)> {
        let remains = self.shared.close();
        self.shared.timer.shutdown();
        let remains = remains.into_iter();
        remains.map(|entry| (entry.key, entry.value)).collect()
    }
}

handle!([K: Key, V: Send + 'static, S: KeyHasher] Tracker<K, V, S>, "Tracker", Shared<K, V, S>, "values kept");

/// The tracker's own settings are the hasher, and the number of the first token.
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

    /// Begins to build a tracker with other settings: clock, reaper, dispatch, bounds, hasher, first token. Each
    /// setting is a method of [`Builder`].
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        Builder::new(name, (RandomState::default(), 1))
    }
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Builder<Tracker<K, V, S>> {
    /// The hasher of keys. Default: [`RandomState`], a fast hash with a random seed. The seed is random because clients
    /// often choose the keys, and could otherwise choose many keys with equal hashes, which makes the map slow.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Tracker<K, V, H>> {
        Builder {
            settings: self.settings,
            own: (hasher, self.own.1),
        }
    }

    /// The number of the first [`FencingToken`], at most 2^63. Default: 1.
    ///
    /// A tracker forgets its tokens when the process ends. If tokens must grow across restarts, set a number that is
    /// greater than every number that earlier processes can have reached. Two ways to get such a number:
    ///
    /// * Count the restarts in stable storage, and put the count into the upper 32 bits.
    /// * Take the time in microseconds since 1970, if the clock is never set back and the tracker keeps fewer than a
    ///   million new values per second.
    pub fn first_token(mut self, number: u64) -> Self {
        self.own.1 = number;
        self
    }

    /// Builds the tracker. `on_expiry` is called with the key, the value and the token of each expired value, on the
    /// thread that [`dispatch`](Self::dispatch) chooses.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick), [`wheel_size`](Self::wheel_size) or [`first_token`](Self::first_token)
    /// is out of range, or the system refuses a thread that is to [start at once](Self::threads_at_once).
    ///
    /// # Panics
    /// A panic of the clock is passed on.
    pub fn build(
        self,
        on_expiry: impl Fn(K, V, FencingToken) + Send + Sync + 'static,
    ) -> Result<Tracker<K, V, S>, BuildError> {
        let (hasher, first_token) = self.own;
        if first_token > 1 << 63 {
            return Err(BuildError::FirstToken);
        }
        let values = Values::new(hasher, first_token, None);
        let on_expiry = move |_: &Values<K, V, S>, expired: Entry<K, V>| {
            on_expiry(expired.key, expired.value, expired.token);
        };
        Ok(Tracker {
            shared: Shared::new(self.settings, values, on_expiry)?,
        })
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::Tracker;
    use crate::error::RejectReason;
    use request_purgatory::threads::Reaper;
    use std::time::Duration;

    #[test]
    fn g28_calls_on_an_empty_tracker_make_no_shards() {
        let builder = Tracker::<u32, u32>::builder("g28").reaper(Reaper::Manual);
        let tracker = builder.build(|_, _, _| ());
        let tracker = tracker.expect("no threads to refuse");
        let replace = || {
            let replaced = tracker.replace_if(&1, 7.into(), 1, Duration::MAX);
            replaced.expect_err("nothing is kept").into_parts()
        };
        assert_eq!(replace(), (RejectReason::StaleToken, 1));
        assert!(!tracker.reschedule(&1, Duration::MAX) && !tracker.contains(&1));
        assert_eq!((tracker.complete(&1), tracker.keys().len()), (None, 0));
        assert!(tracker.withdraw_where(|_, _| true).is_empty());
        tracker.shutdown();
        assert_eq!(replace(), (RejectReason::ShutDown, 1));
        assert!(tracker.shared.values.shards().is_empty());
        assert_eq!(tracker.stats().rejected, 2);
    }
}
