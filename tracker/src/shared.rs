//! The state that all handles of a tracker, or of requests, share: the values, and the timer that ends them.

use crate::builder::Settings;
use crate::error::{BuildError, RejectReason, Rejected};
use crate::token::FencingToken;
use crate::values::{Count, Entry, Expiring, Locked, Reading, Values};
use equivalent::Equivalent;
use hashbrown::hash_table;
use request_purgatory::purgatory::{Key, KeyHasher, Stats};
use request_purgatory::threads::run_unnested;
use request_purgatory::time::Timestamp;
use request_purgatory::timer::RescheduleError;
use request_purgatory::{Deadline, Timer};
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The shared state, inside an `Arc`. Each request writes the reference counts of the `Arc`. The alignment avoids false
/// sharing: it keeps the fields off the cache line of these counts.
#[repr(align(128))]
pub(crate) struct Shared<K: Key, V: Send + 'static, S: KeyHasher> {
    pub(crate) values: Arc<Values<K, V, S>>,
    pub(crate) timer: Timer<Expiring>,
    max_timeout: Duration,
    /// The number of panics of wakers and destructors that the timer does not count, because it does not run them.
    panicked: AtomicU64,
}

/// What [tracking](Shared::track) a value returns: the value's token and place, and the value that it has replaced.
pub(crate) struct Tracked<K, V> {
    pub(crate) token: FencingToken,
    pub(crate) place: Expiring,
    pub(crate) replaced: Option<Entry<K, V>>,
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Shared<K, V, S> {
    /// Builds the timer, whose callback calls `on_expiry` with each value that has expired. `on_expiry` runs the user's
    /// code.
    pub(crate) fn new(
        settings: Settings,
        values: Values<K, V, S>,
        on_expiry: impl Fn(K, V, FencingToken) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, BuildError> {
        let values = Arc::new(values);
        let expired = values.clone();
        let timer = settings.timer.build(move |expiring| {
            // INVARIANT: an entry whose timer has fired stays in the map until this callback takes it out, so it is
            // found here.
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

    /// Converts a deadline that is an `Instant` to a point of the timer's clock. This may read the clock, which is user
    /// code. So call this method before you take a lock.
    #[inline]
    fn of_the_clock(&self, deadline: Deadline) -> Deadline {
        match deadline {
            Deadline::After(_) | Deadline::Never => deadline,
            _ => self.timer.point(deadline),
        }
    }

    /// The time at which a value expires if its deadline was set at `since`. `None` if the value never expires.
    #[inline]
    fn expiry(&self, since: Timestamp, deadline: Deadline) -> Option<Timestamp> {
        let after = |timeout: Duration| {
            // A sum that overflows would be later than all readings, so the value never expires. `Duration::MAX` also
            // means never, but the sum does not overflow if `since` is the origin of the clock.
            let at = since.since_origin().checked_add(timeout);
            at.filter(|_| timeout != Duration::MAX)
                .map(Timestamp::from_origin)
        };
        match deadline {
            Deadline::After(timeout) => after(timeout.min(self.max_timeout)),
            Deadline::At(point) => Some(after(self.max_timeout).map_or(point, |at| at.min(point))),
            _ => after(self.max_timeout),
        }
    }

    /// Keeps a value for a key. If the key has another value, `replace` decides: `true` replaces that value, `false`
    /// rejects the new value as a duplicate.
    #[inline]
    pub(crate) fn track(
        &self,
        key: K,
        value: V,
        deadline: Deadline,
        replace: bool,
    ) -> Result<Tracked<K, V>, Rejected<V>> {
        // The clock, `Hash` and (in `track_at`) `Eq` are user code. They run before anything is changed, so if one of
        // them panics, nothing has to be undone.
        let deadline = self.of_the_clock(deadline);
        self.track_at(Reading::soon(&self.timer), key, value, deadline, replace)
    }

    /// [Tracks](Self::track) with an exact reading of the clock. Called if the key's value seems to have expired: the
    /// first reading, which may be ahead of the clock, does not prove that.
    #[cold]
    #[inline(never)]
    fn track_exactly(
        &self,
        key: K,
        value: V,
        deadline: Deadline,
        replace: bool,
    ) -> Result<Tracked<K, V>, Rejected<V>> {
        self.track_at(Reading::exact(&self.timer), key, value, deadline, replace)
    }

    #[inline(always)]
    fn track_at(
        &self,
        reading: Reading,
        key: K,
        value: V,
        deadline: Deadline,
        replace: bool,
    ) -> Result<Tracked<K, V>, Rejected<V>> {
        let (values, timer) = (&*self.values, &self.timer);
        let since = reading.at;
        let hash = values.hash_of(&key);
        let expiry = self.expiry(since, deadline);
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
                return self.track_exactly(key, value, deadline, replace);
            }
            if is_live && !replace {
                counted.refused.add_one();
                drop(locked);
                return Err(Rejected::new(RejectReason::Duplicate, value));
            }
        }
        let place = Expiring { hash, number };
        let (id, wake) = match timer.start_under_lock(since, deadline, place) {
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
            deadline: expiry,
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
                    // The old entry waits for its callback, which will find the entry in `aside`.
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

    /// Takes out the entry of `key`. If `only` is given, the entry must have this token. If there is no such live
    /// entry, the error is `true` if a response for `key` is late, and otherwise `false`.
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

    /// [Completes](Self::complete) with an exact reading of the clock. Called if the value seems to have expired: the
    /// first reading, which may be ahead of the clock, does not prove that.
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
        // If the deadline has passed or the timer has fired, the entry stays in the map until the timer's callback
        // takes it out. If `close` has ended the timer, the entry stays until `close` takes it out.
        if !entry.is_live(now) || self.timer.stop(entry.timer).is_none() {
            return Err(values.is_late(hash, Some(entry)));
        }
        let (entry, _) = found.remove();
        shard.shrink();
        counted.completed.add_one();
        drop(shard);
        Ok(entry)
    }

    /// Replaces the value for `key` by `value`, if the old value has this token. The new value keeps the timer of the
    /// old value, with a new deadline. Returns the new token and the old value.
    pub(crate) fn replace<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        token: FencingToken,
        value: V,
        deadline: Deadline,
    ) -> Result<(FencingToken, V), Rejected<V>> {
        let values = &*self.values;
        let deadline = self.of_the_clock(deadline);
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
                    .reschedule_under_lock(entry.timer, since, deadline);
                rescheduled.map(|wake| (entry, wake))
            }
        };
        match replaced {
            Ok((entry, wake)) => {
                entry.deadline = self.expiry(since, deadline);
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

    /// Moves the deadline of the value for `key`; if `only` is given, the value must have this token. Returns `false`
    /// if the deadline was not moved.
    pub(crate) fn reschedule<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        only: Option<FencingToken>,
        deadline: Deadline,
    ) -> bool {
        let deadline = self.of_the_clock(deadline);
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
            let wake = timer.reschedule_under_lock(entry.timer, since, deadline);
            let wake = wake.ok()?;
            entry.deadline = self.expiry(since, deadline);
            Some(wake)
        });
        drop(shard);
        let is_rescheduled = rescheduled.is_some();
        drop(rescheduled);
        is_rescheduled
    }

    /// Calls `read` with the entry of `key` and the reading of the clock, under the lock of the key's map shard.
    /// Returns `None` if there is no entry, or the entry has expired.
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

    /// Calls `copy` with the entry of every value that has not expired, under the lock of one map shard after another.
    /// Returns the results.
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

    /// Ends the value with this hash and this token. `None` if there is no such value, or it has expired.
    pub(crate) fn withdraw_live(&self, hash: u64, token: FencingToken) -> Option<Entry<K, V>> {
        let reading = Reading::exact(&self.timer);
        let mut shard = self.values.find_shard(hash)?.lock();
        let now = shard.present(reading);
        let is_it = |entry: &Entry<K, V>| entry.token == token && entry.is_live(now);
        self.withdraw_from(shard, hash, is_it)
    }

    /// Ends the value that `place` names, even past its deadline. `None` if the value has ended, or its timer has
    /// fired.
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

    /// Rejects every value from now on, and takes out the values whose timers have not fired.
    pub(crate) fn close(&self) -> Vec<Entry<K, V>> {
        let remains = self.timer.close().into_iter();
        remains
            .filter_map(|remaining| self.values.take_ended(remaining))
            .collect()
    }

    /// The counts of the timer, with two corrections: the timer counts a completion as cancelled, and it misses some
    /// rejections and some panics.
    pub(crate) fn stats(&self) -> Stats {
        let shards = self.values.shards();
        let sum = |count: fn(&crate::values::Counted<K, V>) -> &Count| {
            shards.iter().map(|shard| count(shard).read()).sum::<u64>()
        };
        // Read the completions before the timer's counts. The timer counts a completed value as cancelled before the
        // tracker counts it as completed. So the cancellations include the completions, unless a weakly ordered
        // processor shows the two counts the other way round: then the subtraction saturates.
        let completed = sum(|shard| &shard.completed);
        let mut stats = self.timer.stats();
        stats.completed = completed;
        stats.cancelled = stats.cancelled.saturating_sub(completed);
        stats.rejected += sum(|shard| &shard.refused);
        // ORDERING: Relaxed. The counts need to be exact only if no call is in progress. Other synchronisation (a join,
        // a lock, a channel) then makes the `fetch_add` in `contained` of every earlier call happen before this load.
        stats.panicked += self.panicked.load(Ordering::Relaxed);
        stats
    }

    /// Runs user code (a waker or a destructor), and catches and counts its panic.
    pub(crate) fn contained(&self, user_code: impl FnOnce()) {
        if !contained(user_code) {
            // ORDERING: Relaxed: this is a statistic, and no thread reads other memory by it. `stats` says when it is
            // exact.
            self.panicked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// When the last handle is dropped, all values end.
impl<K: Key, V: Send + 'static, S: KeyHasher> Drop for Shared<K, V, S> {
    fn drop(&mut self) {
        let remains = self.close();
        // A value may own the last handle of another tracker. If this drop runs inside the destructor of a value,
        // `run_unnested` puts off the drop of the values until that destructor has returned. So a long chain of
        // trackers needs no deep stack.
        run_unnested(move || drop_all(remains));
    }
}

/// Drops values one by one, and catches the panic of each destructor. Without the catch, a second destructor that
/// panics while the first panic unwinds would abort the process.
pub(crate) fn drop_all<T>(all: Vec<T>) {
    for one in all {
        contained(|| drop(one));
    }
}

/// Runs `user_code` and catches its panic. Returns `false` if it panicked: the panic hook has already reported this.
fn contained(user_code: impl FnOnce()) -> bool {
    let Err(payload) = catch_unwind(AssertUnwindSafe(user_code)) else {
        return true;
    };
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // The destructor of the panic's payload has panicked too. Leak the payload of the second panic, because its
        // destructor might panic as well.
        std::mem::forget(again);
    }
    false
}
