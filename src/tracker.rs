//! One timer for each key: heartbeats, sessions, leases, and the calls that a client waits for.

mod entries;
mod fencing;
mod requests;

pub use fencing::FencingToken;
pub use requests::{Requests, Responded, ResponseFuture};

use crate::engine::Engine;
use crate::engine::settings::{Builder, sound};
use crate::engine::shared_handle::{SharedHandle, shared_methods, shared_type};
use crate::error::{BuildError, Rejected};
use crate::hash::{Key, KeyHasher, RandomState};
use crate::panics::Panics;
use crate::scheme::HierarchicalWheel;
use crate::stats::Ending;
use crate::timer;
use crate::trampoline::drop_user_value;
use entries::{Entries, Values};
use equivalent::Equivalent;
use std::hash::Hash;
use std::time::Duration;

/// Keeps one value for each key until it is completed, or its timeout passes.
///
/// It is a [`Timer`](crate::Timer) with a map by key, and has the guarantees of the [`Purgatory`](crate::Purgatory). It
/// keeps sessions that live as long as heartbeats [reschedule](Self::reschedule) them, leases, and calls that wait for
/// their response ([`Requests`] makes futures of these).
///
/// ```
/// use request_purgatory::Tracker;
/// use request_purgatory::threads::Reaper;
/// use request_purgatory::time::ManualClock;
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
/// assert_eq!(sessions.advance(), 1);
/// assert_eq!(silent.try_recv()?, "bob");
/// assert_eq!(sessions.complete("ann"), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Cloning is cheap, and clones are the same tracker. When the last one is dropped, it is [shut down](Self::shutdown):
/// the values are dropped on this thread, and the drop waits for each thread of the tracker for at most about 10 ms.
///
/// The callback may call every method. It gets the [token](FencingToken) of the value that has expired: where its key
/// has another value by now, that one has a [greater token](Self::token). No method holds a lock of the library
/// while the callback runs; `Hash`, `Eq` and `Clone` of keys, `Clone` of a value, and what
/// [`withdraw_where`](Self::withdraw_where) asks run under the lock of one map shard, and must not call the tracker.
/// Of the methods, only [`advance`](Self::advance) runs the callback, so you may track, reschedule or complete a
/// value under a lock that the callback takes.
pub struct Tracker<K: Key, V: Send + 'static, S: KeyHasher = RandomState> {
    shared: SharedHandle<Inner<K, V, S>>,
}

type Inner<K, V, S> =
    timer::inner::Inner<u64, HierarchicalWheel, Entries<K, V, S>, (K, V, FencingToken)>;

impl<K: Key, V: Send + 'static, S: KeyHasher> Tracker<K, V, S> {
    // `is_empty`, `stats`, `advance`, `next_deadline`, `is_shut_down`, `downgrade`: in `src/engine/shared_handle.rs`.
    shared_methods!("values kept");

    /// Keeps `value` for `key` until `timeout` has passed ([`Duration::MAX`]: without end). Returns its token, and the
    /// value that was kept for the key before and is replaced, unless that is expiring at this moment.
    ///
    /// Takes the lock of the key's map shard and, within it, that of a timer shard. Reads the clock once.
    ///
    /// # Errors
    /// The value comes back in a [`Rejected`]: the tracker is full or shut down, `Hash` or `Eq` of a key or the clock
    /// panicked, or the system refused a thread. A value that was kept before stays.
    pub fn track(
        &self,
        key: K,
        value: V,
        timeout: Duration,
    ) -> Result<(FencingToken, Option<V>), Rejected<V>> {
        let (entry, replaced) = self.values().track(key, value, timeout, true)?;
        Ok((entry.token, replaced))
    }

    /// Keeps `value` for `key` as [`track`](Self::track) does, but only if nothing is kept for it.
    ///
    /// # Errors
    /// As for [`track`](Self::track), and with [`RejectReason::Duplicate`](crate::purgatory::RejectReason::Duplicate).
    pub fn try_track(
        &self,
        key: K,
        value: V,
        timeout: Duration,
    ) -> Result<FencingToken, Rejected<V>> {
        let (entry, _) = self.values().track(key, value, timeout, false)?;
        Ok(entry.token)
    }

    /// Puts `value` in place of the one for `key`, to expire `timeout` from now, if that still has `token`. Returns the
    /// token of the new value, which is never `token`, and the old value.
    ///
    /// The new value takes the place of the old one under [`max_parked`](Builder::max_parked), so a full tracker does
    /// not reject it. In the statistics the two count as one.
    ///
    /// Takes the lock of the key's map shard and, within it, that of a timer shard. Reads the clock once.
    ///
    /// # Errors
    /// The value comes back in a [`Rejected`]: the value with this token is not kept any more
    /// ([`StaleToken`](crate::purgatory::RejectReason::StaleToken)), the tracker is shut down, `Hash` or `Eq` of a key or
    /// the clock panicked, or the system refused a thread.
    pub fn replace_if(
        &self,
        key: K,
        token: FencingToken,
        value: V,
        timeout: Duration,
    ) -> Result<(FencingToken, V), Rejected<V>> {
        self.values().replace(key, token, value, timeout)
    }

    /// Takes the value for `key`: the response has come, the session was closed. `None` if no value is kept for it, or
    /// it is expiring at this moment.
    ///
    /// Takes the lock of the key's map shard, and then that of a timer shard only if it is free.
    pub fn complete<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<V> {
        self.values().complete(key, None)
    }

    /// [Completes](Self::complete) only if the value still has `token`: a holder that has lost its lease does not end the
    /// next lease.
    pub fn complete_if<Q>(&self, key: &Q, token: FencingToken) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.values().complete(key, Some(token))
    }

    /// Lets the value for `key` expire `timeout` from now instead ([`Duration::MAX`]: never). `false` if no value is
    /// kept for it, or it is expiring at this moment; or if this would be the first deadline of the tracker, and the
    /// system refuses a thread.
    ///
    /// Reads the clock first; if that panics, so does this call. The timeout counts from that reading: of two calls at
    /// the same time, the one that takes effect last decides, even if it has read the clock before the other. Then
    /// takes the shared lock of the key's map shard and, within it, that of a timer shard.
    pub fn reschedule<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q, timeout: Duration) -> bool {
        self.values().reschedule(key, None, timeout)
    }

    /// [Reschedules](Self::reschedule) only if the value still has `token`: a renewal that comes late does not extend the
    /// next lease.
    pub fn reschedule_if<Q>(&self, key: &Q, token: FencingToken, timeout: Duration) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.values().reschedule(key, Some(token), timeout)
    }

    /// A clone of the value for `key`. `None` if no value is kept for it, or it is expiring at this moment.
    ///
    /// The value is cloned under the lock of the key's map shard: let `Clone` be short (keep large values in an
    /// [`Arc`](std::sync::Arc)), and let it not call the tracker.
    pub fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<V>
    where
        V: Clone,
    {
        self.values().get(key)
    }

    /// The token of the value for `key`. Takes the shared lock of the key's map shard.
    ///
    /// To change a value that others change as well, ask for the token first and then [get](Self::get) the value: a
    /// [replacement](Self::replace_if) with that token fails if the value was another one by then.
    pub fn token<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<FencingToken> {
        let entry = self.values().find(key)?;
        Some(entry.token)
    }

    /// Whether a value is kept for `key`. Takes the shared lock of the key's map shard.
    pub fn contains<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> bool {
        self.values().find(key).is_some()
    }

    /// The time until the value for `key` expires, zero if its deadline has passed. `None` if no value is kept for it,
    /// or it never expires.
    ///
    /// Takes the shared lock of the key's map shard, then that of a timer shard. Reads the clock; if that panics, so
    /// does this call.
    pub fn remaining<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<Duration> {
        let entry = self.values().find(key)?;
        self.shared.inner.engine.remaining(entry.address)
    }

    /// The keys of all values, in no order. A value that is tracked or ends meanwhile may be among them or not.
    ///
    /// Takes the shared lock of one map shard after the other; the keys of a shard are cloned under its lock, so
    /// `Clone` must not call the tracker.
    pub fn keys(&self) -> Vec<K> {
        self.values().keys()
    }

    /// Ends every value that `is_wanted` picks, without the callback, and returns those that this call has ended: the
    /// sessions of a client that is banned, the leases of a node that has died. A value that is tracked meanwhile may
    /// be among them or not, and one that is [replaced](Self::replace_if) meanwhile stays.
    ///
    /// Takes the shared lock of one map shard after the other, and asks `is_wanted` about each value of that shard under
    /// it, where the value cannot change: let it be short, and not call the tracker. Then takes the lock of each picked
    /// key's map shard, and that of a timer shard only if it is free. If `is_wanted` panics, no value has ended.
    pub fn withdraw_where(&self, is_wanted: impl FnMut(&K, &V) -> bool) -> Vec<(K, V)> {
        let ids = self.values().ids_where(is_wanted).into_iter();
        let withdraw = |id| self.values().withdraw(id);
        ids.filter_map(withdraw).collect()
    }

    /// Ends the tracker: it rejects every value from now on. The first call returns the values that were kept. Joins
    /// the tracker's own threads, after the callbacks in their queues have run.
    ///
    /// May be called from a callback: then it does not wait for the threads, which end as soon as the callbacks that
    /// they run have returned.
    pub fn shutdown(&self) -> Vec<(K, V)> {
        let remains = self.shared.inner.shut_down().into_iter();
        remains.map(|(key, value, _)| (key, value)).collect()
    }

    fn values(&self) -> Values<'_, K, V, S> {
        Values {
            entries: &self.shared.inner.store,
            timers: &self.shared.inner.engine,
        }
    }
}

// Its own settings are the hasher and the number of the first token.
shared_type!([K: Key, V: Send + 'static, S: KeyHasher] Tracker, Tracker<K, V, S>, Inner<K, V, S>, (S, u64));

impl<K: Key, V: Send + 'static> Tracker<K, V> {
    /// A tracker with a tick of 1 ms, a reaper thread, and a completion thread on which `on_expiry` is called.
    /// The threads start when they are first needed.
    pub fn new(
        name: impl Into<String>,
        on_expiry: impl Fn(K, V, FencingToken) + Send + Sync + 'static,
    ) -> Self {
        sound(Self::builder(name).build(on_expiry))
    }

    /// Begins to build a tracker with other choices.
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

    /// The number of the first [`FencingToken`], from 1 to 2^63. Default: 1.
    ///
    /// A tracker forgets its tokens with the process. Where they must grow across restarts, give each start a number
    /// above all that the starts before can have reached: a count of the starts, from a store, in the upper 32 bits; or
    /// the time in microseconds since 1970, where the clock is never set back and there are fewer values than
    /// microseconds.
    pub fn first_token(mut self, number: u64) -> Self {
        self.own.1 = number;
        self
    }

    /// Builds the tracker. `on_expiry` gets each value whose timeout has passed, with its key and
    /// its token, on the thread that [`dispatch`](Self::dispatch) says.
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
        if !(1..=1 << 63).contains(&first_token) {
            return Err(BuildError::FirstToken);
        }
        let entries = Entries::new(hasher, first_token - 1);
        let on_end = move |(key, value, token), ending| {
            if ending == Ending::Expired {
                return on_expiry(key, value, token);
            }
            let mut panics = Panics::default();
            panics.catch(|| drop_user_value(value));
            panics.catch(|| drop_user_value(key));
            panics.resume();
        };
        let inner = Inner::new(Engine::new(self.settings)?, entries, on_end);
        Ok(Tracker {
            shared: SharedHandle::start(inner),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
