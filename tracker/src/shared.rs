//! The state that all handles of one tracker, or of its requests, share: the values, and the timer that ends them.

use crate::builder::Settings;
use crate::error::{BuildError, RejectReason, Rejected};
use crate::token::FencingToken;
use crate::values::{Count, Entry, Expiring, Locked, Reading, Values};
use equivalent::Equivalent;
use hashbrown::hash_table;
use request_purgatory::Timer;
use request_purgatory::purgatory::{Key, KeyHasher, Stats};
use request_purgatory::threads::run_unnested;
use request_purgatory::time::Timestamp;
use request_purgatory::timer::RescheduleError;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// (Apart from the counts of its references, which each request writes.)
#[repr(align(128))]
pub(crate) struct Shared<K: Key, V: Send + 'static, S: KeyHasher> {
    pub(crate) values: Arc<Values<K, V, S>>,
    pub(crate) timer: Timer<Expiring>,
    max_timeout: Duration,
    /// Panics of wakers and destructors, beside those that the timer counts.
    panicked: AtomicU64,
}

/// Where a value has got its place, and what was there before.
pub(crate) struct Tracked<K, V> {
    pub(crate) token: FencingToken,
    pub(crate) place: Expiring,
    pub(crate) replaced: Option<Entry<K, V>>,
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Shared<K, V, S> {
    /// `on_expiry` runs the user's code for a value that has expired.
    pub(crate) fn new(
        settings: Settings,
        values: Values<K, V, S>,
        on_expiry: impl Fn(K, V, FencingToken) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, BuildError> {
        let values = Arc::new(values);
        let expired = values.clone();
        let timer = settings.timer.build(move |expiring| {
            // INVARIANT: an entry stays in the map while its callback is on the way.
            let Some(entry) = expired.take_ended(expiring) else {
                unreachable!("an entry whose timer has fired is taken out by its callback");
            };
            on_expiry(entry.key, entry.value, entry.token);
        })?;
        Ok(Arc::new(Self {
            values,
            timer,
            max_timeout: settings.max_timeout,
            panicked: AtomicU64::new(0),
        }))
    }

    /// When a timeout that counts from `since` has passed. `None`: never.
    #[inline]
    fn deadline(&self, since: Timestamp, timeout: Duration) -> Option<Timestamp> {
        let timeout = timeout.min(self.max_timeout);
        // A sum that is beyond all readings never comes. Nor does that with the longest timeout, but at the origin.
        let at = since.since_origin().checked_add(timeout);
        at.filter(|_| timeout != Duration::MAX)
            .map(Timestamp::from_origin)
    }

    /// Keeps a value, if no other is kept for the key or it may `replace` that.
    #[inline]
    pub(crate) fn track(
        &self,
        key: K,
        value: V,
        timeout: Duration,
        replace: bool,
    ) -> Result<Tracked<K, V>, Rejected<V>> {
        // The clock and `Hash` are the user's, and so is `Eq` below: all of it comes before anything is changed.
        self.track_at(Reading::soon(&self.timer), key, value, timeout, replace)
    }

    /// There is an expired value for the key by a reading that may be of the near future.
    #[cold]
    #[inline(never)]
    fn track_exactly(
        &self,
        key: K,
        value: V,
        timeout: Duration,
        replace: bool,
    ) -> Result<Tracked<K, V>, Rejected<V>> {
        self.track_at(Reading::exact(&self.timer), key, value, timeout, replace)
    }

    #[inline(always)]
    fn track_at(
        &self,
        reading: Reading,
        key: K,
        value: V,
        timeout: Duration,
        replace: bool,
    ) -> Result<Tracked<K, V>, Rejected<V>> {
        let (values, timer) = (&*self.values, &self.timer);
        let since = reading.at;
        let hash = values.hash_of(&key);
        let deadline = self.deadline(since, timeout);
        let counted = values.shard(hash);
        let mut locked = counted.lock();
        let shard = &mut *locked;
        let now = shard.present(reading);
        let number = shard.next_number();
        let is_it = |entry: &Entry<K, V>| entry.is_of(hash, &key);
        let found = shard.table.entry(hash, is_it, Entry::hash);
        if let hash_table::Entry::Occupied(found) = &found {
            let is_live = found.get().is_live(now);
            if !is_live && !reading.is_exact {
                drop(locked);
                return self.track_exactly(key, value, timeout, replace);
            }
            if is_live && !replace {
                counted.refused.add_one();
                drop(locked);
                return Err(Rejected::new(RejectReason::Duplicate, value));
            }
        }
        let place = Expiring { hash, number };
        let (id, wake) = match timer.start_under_lock(since, timeout, place) {
            Ok(started) => started,
            Err(rejected) => {
                drop(locked);
                return Err(Rejected::new(rejected.reason().into(), value));
            }
        };
        let token = values.token_of(number);
        let entry = Entry {
            key,
            value,
            token,
            deadline,
            timer: id,
            expiring: place,
            is_noted: false,
        };
        let mut replaced = None;
        match found {
            hash_table::Entry::Vacant(vacant) => {
                vacant.insert(entry);
            }
            hash_table::Entry::Occupied(mut found) => {
                let mut old = std::mem::replace(found.get_mut(), entry);
                if old.is_live(now) && timer.stop(old.timer).is_some() {
                    replaced = Some(old);
                } else {
                    // Its callback is still to run, and finds it here.
                    values.note_end(&mut old);
                    shard.aside.insert(old.expiring.number, old);
                }
            }
        }
        drop(locked);
        drop(wake);
        Ok(Tracked {
            token,
            place,
            replaced,
        })
    }

    /// Takes the value for `key`, with `only` this token if one is given. If it is not kept, says whether a response to
    /// it is late.
    #[inline]
    pub(crate) fn complete<Q>(
        &self,
        key: &Q,
        only: Option<FencingToken>,
    ) -> Result<Entry<K, V>, bool>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.complete_at(Reading::soon(&self.timer), key, only)
    }

    /// The value has expired by a reading that may be of the near future.
    #[cold]
    #[inline(never)]
    fn complete_exactly<Q>(&self, key: &Q, only: Option<FencingToken>) -> Result<Entry<K, V>, bool>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.complete_at(Reading::exact(&self.timer), key, only)
    }

    #[inline(always)]
    fn complete_at<Q>(
        &self,
        reading: Reading,
        key: &Q,
        only: Option<FencingToken>,
    ) -> Result<Entry<K, V>, bool>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let values = &*self.values;
        let hash = values.hash_of(key);
        let Some(counted) = values.find_shard(hash) else {
            return Err(values.is_late(hash, None));
        };
        let mut shard = counted.lock();
        let now = shard.present(reading);
        let is_it = |entry: &Entry<K, V>| entry.is_of(hash, key);
        let Ok(mut found) = shard.table.find_entry(hash, is_it) else {
            return Err(values.is_late(hash, None));
        };
        let entry = found.get_mut();
        if only.is_some_and(|only| only != entry.token) {
            return Err(false);
        }
        if !entry.is_live(now) && !reading.is_exact {
            drop(shard);
            return self.complete_exactly(key, only);
        }
        // Where its timer has fired, or all are being ended, the entry stays for what that calls.
        if !entry.is_live(now) || self.timer.stop(entry.timer).is_none() {
            return Err(values.is_late(hash, Some(entry)));
        }
        let (entry, _) = found.remove();
        shard.shrink();
        counted.completed.add_one();
        drop(shard);
        Ok(entry)
    }

    /// Puts `value` in place of the one for `key` that has this token, with the timer of that. Returns the new token and
    /// the value before.
    pub(crate) fn replace<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        token: FencingToken,
        value: V,
        timeout: Duration,
    ) -> Result<(FencingToken, V), Rejected<V>> {
        let values = &*self.values;
        let reading = Reading::exact(&self.timer);
        let since = reading.at;
        let hash = values.hash_of(key);
        let counted = values.shard(hash);
        let mut shard = counted.lock();
        let found = shard.live(hash, key, reading);
        let replaced = match found.filter(|entry| entry.token == token) {
            None => Err(RescheduleError::Unchanged),
            Some(entry) => {
                let rescheduled = self
                    .timer
                    .reschedule_under_lock(entry.timer, since, timeout);
                rescheduled.map(|wake| (entry, wake))
            }
        };
        match replaced {
            Ok((entry, wake)) => {
                entry.deadline = self.deadline(since, timeout);
                entry.token = values.next_token();
                let token = entry.token;
                let old = std::mem::replace(&mut entry.value, value);
                drop(shard);
                drop(wake);
                Ok((token, old))
            }
            Err(error) => {
                counted.refused.add_one();
                drop(shard);
                let reason = match error {
                    RescheduleError::Thread => RejectReason::Thread,
                    _ if self.timer.is_shut_down() => RejectReason::ShutDown,
                    _ => RejectReason::StaleToken,
                };
                Err(Rejected::new(reason, value))
            }
        }
    }

    /// Gives the value for `key` another deadline. Returns whether it has it.
    pub(crate) fn reschedule<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        only: Option<FencingToken>,
        timeout: Duration,
    ) -> bool {
        let reading = Reading::exact(&self.timer);
        let since = reading.at;
        let hash = self.values.hash_of(key);
        let Some(counted) = self.values.find_shard(hash) else {
            return false;
        };
        let mut shard = counted.lock();
        let found = shard.live(hash, key, reading);
        let found = found.filter(|entry| only.is_none_or(|only| only == entry.token));
        let rescheduled = found.and_then(|entry| {
            let timer = &self.timer;
            let wake = timer.reschedule_under_lock(entry.timer, since, timeout);
            let wake = wake.ok()?;
            entry.deadline = self.deadline(since, timeout);
            Some(wake)
        });
        drop(shard);
        let is_rescheduled = rescheduled.is_some();
        drop(rescheduled);
        is_rescheduled
    }

    /// What `read` makes of the entry of `key`, if that has not expired, and of the reading of the clock: under the lock of
    /// the key's map shard.
    pub(crate) fn read<Q: Hash + Equivalent<K> + ?Sized, R>(
        &self,
        key: &Q,
        read: impl FnOnce(&Entry<K, V>, Timestamp) -> R,
    ) -> Option<R> {
        let reading = Reading::exact(&self.timer);
        let hash = self.values.hash_of(key);
        let mut shard = self.values.find_shard(hash)?.lock();
        let entry = shard.live(hash, key, reading)?;
        Some(read(entry, reading.at))
    }

    /// What `copy` makes of every value that is kept: under the lock of one map shard after the other.
    pub(crate) fn copies<R>(&self, mut copy: impl FnMut(&Entry<K, V>) -> R) -> Vec<R> {
        let reading = Reading::exact(&self.timer);
        let mut copies = Vec::new();
        for counted in self.values.shards() {
            let mut shard = counted.lock();
            let now = shard.present(reading);
            let live = shard.table.iter().filter(|entry| entry.is_live(now));
            copies.extend(live.map(&mut copy));
        }
        copies
    }

    /// Ends the value with this hash and this token, unless it has expired.
    pub(crate) fn withdraw_live(&self, hash: u64, token: FencingToken) -> Option<Entry<K, V>> {
        let reading = Reading::exact(&self.timer);
        let mut shard = self.values.find_shard(hash)?.lock();
        let now = shard.present(reading);
        let is_it = |entry: &Entry<K, V>| entry.token == token && entry.is_live(now);
        self.withdraw_from(shard, hash, is_it)
    }

    /// Ends the value in this place, whatever the clock says. `None` if it has ended, or its timer has fired.
    pub(crate) fn withdraw(&self, place: Expiring) -> Option<Entry<K, V>> {
        let shard = self.values.find_shard(place.hash)?.lock();
        let is_it = |entry: &Entry<K, V>| entry.expiring.number == place.number;
        self.withdraw_from(shard, place.hash, is_it)
    }

    fn withdraw_from(
        &self,
        mut shard: Locked<'_, K, V>,
        hash: u64,
        is_it: impl Fn(&Entry<K, V>) -> bool,
    ) -> Option<Entry<K, V>> {
        let found = shard.table.find_entry(hash, is_it).ok()?;
        self.timer.stop(found.get().timer)?;
        let (mut entry, _) = found.remove();
        shard.shrink();
        self.values.note_end(&mut entry);
        drop(shard);
        Some(entry)
    }

    /// Rejects every value from now on, and takes out those whose timers have not fired.
    pub(crate) fn close(&self) -> Vec<Entry<K, V>> {
        let remains = self.timer.close().into_iter();
        remains
            .filter_map(|remaining| self.values.take_ended(remaining))
            .collect()
    }

    /// The counts of the timer, to which every ending by hand is a stop.
    pub(crate) fn stats(&self) -> Stats {
        let shards = self.values.shards();
        let sum = |count: fn(&crate::values::Counted<K, V>) -> &Count| {
            shards.iter().map(|shard| count(shard).read()).sum::<u64>()
        };
        // Completions are read first: each is counted as a stop before.
        let completed = sum(|shard| &shard.completed);
        let mut stats = self.timer.stats();
        stats.completed = completed;
        stats.cancelled = stats.cancelled.saturating_sub(completed);
        stats.rejected += sum(|shard| &shard.refused);
        // ORDERING: Relaxed: counts are compared when no call is in progress, which something else tells.
        stats.panicked += self.panicked.load(Ordering::Relaxed);
        stats
    }

    /// Runs code of somebody else's, a waker or a destructor: its panic ends here, and is counted.
    pub(crate) fn contained(&self, user_code: impl FnOnce()) {
        if !contained(user_code) {
            // ORDERING: Relaxed, see `stats`.
            self.panicked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The last handle is gone.
impl<K: Key, V: Send + 'static, S: KeyHasher> Drop for Shared<K, V, S> {
    fn drop(&mut self) {
        let remains = self.close();
        // A value may own the last handle of another tracker.
        run_unnested(move || drop_all(remains));
    }
}

/// Drops them one by one: of two destructors that panic together the process would die.
pub(crate) fn drop_all<T>(all: Vec<T>) {
    for one in all {
        contained(|| drop(one));
    }
}

/// Whether `user_code` does not panic. A panic ends here; the panic hook has reported it.
fn contained(user_code: impl FnOnce()) -> bool {
    let Err(payload) = catch_unwind(AssertUnwindSafe(user_code)) else {
        return true;
    };
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // The destructor of the payload has panicked, and that of this payload might.
        std::mem::forget(again);
    }
    false
}
