//! The state that all handles of a tracker, or of requests, share: the values, and the timer that ends them.

use crate::builder::Settings;
use crate::error::{BuildError, RejectReason, Rejected};
use crate::panics::contained;
use crate::token::FencingToken;
use crate::values::{Count, Entry, Expiring, Locked, Reading, Values};
use equivalent::Equivalent;
use hashbrown::hash_table;
use request_purgatory::purgatory::{Key, KeyHasher, Stats};
use request_purgatory::threads::run_unnested;
use request_purgatory::time::Timestamp;
use request_purgatory::timer::{PendingWake, RescheduleError};
use request_purgatory::{Deadline, Timer};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

/// The shared state, inside an `Arc`. Each request writes the reference counts of the `Arc`. The alignment avoids false
/// sharing: it keeps the fields off the cache line of these counts.
#[repr(align(128))]
pub(crate) struct Shared<K: Key, V: Send + 'static, S: KeyHasher> {
    pub(crate) values: Arc<Values<K, V, S>>,
    pub(crate) timer: Timer<Expiring>,
    max_timeout: Duration,
}

/// What [tracking](Shared::track) a value returns: the value's token and place, and the value that it has replaced.
pub(crate) struct Tracked<V> {
    pub(crate) token: FencingToken,
    pub(crate) place: Expiring,
    pub(crate) replaced: Option<V>,
}

impl<K: Key, V: Send + 'static, S: KeyHasher> Shared<K, V, S> {
    /// Builds the timer, whose callback calls `on_expiry` with the entry of each value that has expired. `on_expiry`
    /// runs the user's code.
    pub(crate) fn new(
        settings: Settings,
        values: Values<K, V, S>,
        on_expiry: impl Fn(&Values<K, V, S>, Entry<K, V>) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, BuildError> {
        let values = Arc::new(values);
        let expired = values.clone();
        let timer = settings.timer.build(move |expiring| {
            // INVARIANT: an entry whose timer has fired stays in the map until this callback takes it out, so it is
            // found here.
            let Some(entry) = expired.take_ended(expiring) else {
                unreachable!("an entry whose timer has fired is taken out by its callback");
            };
            on_expiry(&expired, entry);
        })?;
        Ok(Arc::new(Self {
            values,
            timer,
            max_timeout: settings.max_timeout,
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
        let last = since.saturating_add(self.max_timeout);
        let at = match deadline {
            Deadline::After(timeout) => last.min(since.saturating_add(timeout)),
            Deadline::At(point) => last.min(point),
            _ => last,
        };
        match self.timer.point(at) {
            Deadline::At(at) => Some(at),
            _ => None,
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
    ) -> Result<Tracked<V>, Rejected<V>> {
        let (values, timer) = (&*self.values, &self.timer);
        // The clock, `Hash` and (under the lock) `Eq` are user code. They run before anything is changed, so if one of
        // them panics, nothing has to be undone.
        let deadline = self.of_the_clock(deadline);
        let mut reading = Reading::soon(timer);
        let hash = values.hash_of(&key);
        let counted = values.shard(hash);
        loop {
            let since = reading.at;
            let mut locked = counted.lock();
            let shard = &mut *locked;
            let now = shard.present(reading);
            let number = shard.next_number();
            let is_it = |entry: &Entry<K, V>| entry.is_of(hash, &key);
            let mut found = shard.table.entry(hash, is_it, Entry::hash);
            if let hash_table::Entry::Occupied(found) = &mut found {
                let old = found.get_mut();
                let is_live = old.is_live(now);
                if !is_live && !reading.is_exact {
                    drop(locked);
                    reading = Reading::again(timer);
                    continue;
                }
                let refused = if is_live && !replace {
                    Some(RejectReason::Duplicate)
                } else if is_live {
                    // The new value takes over the timer, so there is room for it even if the tracker is full.
                    match self.move_deadline(old, since, deadline) {
                        Ok(wake) => {
                            old.token = values.next_token();
                            let tracked = Tracked {
                                token: old.token,
                                place: old.expiring,
                                replaced: Some(std::mem::replace(&mut old.value, value)),
                            };
                            drop(locked);
                            drop(wake);
                            values.panics.discard(key);
                            return Ok(tracked);
                        }
                        Err(RescheduleError::Thread) => Some(RejectReason::Thread),
                        // The timer has ended. Either the old value has expired, and the new value gets a timer of its
                        // own, or the tracker is shut down, and the start below fails.
                        Err(_) => None,
                    }
                } else {
                    None
                };
                if let Some(reason) = refused {
                    counted.refused.add_one();
                    drop(locked);
                    values.panics.discard(key);
                    return Err(Rejected::new(reason, value));
                }
            }
            let place = Expiring { hash, number };
            let (id, wake) = match timer.start_under_lock(since, deadline, place) {
                Ok(started) => started,
                Err(rejected) => {
                    drop(locked);
                    values.panics.discard(key);
                    return Err(Rejected::new(rejected.reason().into(), value));
                }
            };
            let token = values.token_of(number);
            let entry = Entry {
                key,
                value,
                token,
                deadline: self.expiry(since, deadline),
                timer: id,
                expiring: place,
                is_noted: false,
            };
            match found {
                hash_table::Entry::Vacant(vacant) => {
                    vacant.insert(entry);
                }
                hash_table::Entry::Occupied(mut found) => {
                    // The old entry has expired, and the callback of its timer has not run yet. Keep the old entry for
                    // it in `aside`, because the table has only one entry for each key.
                    let mut old = std::mem::replace(found.get_mut(), entry);
                    values.note_end(&mut old);
                    shard.aside.insert(old.expiring.number, old);
                }
            }
            drop(locked);
            drop(wake);
            return Ok(Tracked {
                token,
                place,
                replaced: None,
            });
        }
    }

    /// Moves the timer of an entry, and the deadline with it. The caller has the lock of the entry's map shard, and drops
    /// the [`PendingWake`] when it has released the lock.
    #[inline]
    fn move_deadline(
        &self,
        entry: &mut Entry<K, V>,
        since: Timestamp,
        deadline: Deadline,
    ) -> Result<PendingWake<'_, Expiring>, RescheduleError> {
        let moved = self
            .timer
            .reschedule_under_lock(entry.timer, since, deadline);
        match &moved {
            Ok(_) => entry.deadline = self.expiry(since, deadline),
            // The system has refused a thread, so the timer has not moved. It has not ended either: the value keeps its
            // old deadline, and a later call may succeed.
            Err(RescheduleError::Thread) => {}
            // The timer has ended.
            Err(_) => entry.set_expired(),
        }
        moved
    }

    /// Takes the live entry of `key` out of the map. If `only` is given, the entry must have this token. If there is no
    /// such entry, returns one of these errors:
    ///
    /// * `Err(true)`: `key` is the id of a request that has ended without a response and is remembered, so the response
    ///   that came now is late.
    /// * `Err(false)`: every other case.
    #[inline]
    pub(crate) fn complete<Q>(
        &self,
        key: &Q,
        only: Option<FencingToken>,
    ) -> Result<Entry<K, V>, bool>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let values = &*self.values;
        let mut reading = Reading::soon(&self.timer);
        let hash = values.hash_of(key);
        let Some(counted) = values.find_shard(hash) else {
            return Err(values.is_late(hash, None));
        };
        loop {
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
            let is_live = entry.is_live(now);
            if !is_live && !reading.is_exact {
                drop(shard);
                reading = Reading::again(&self.timer);
                continue;
            }
            // If the deadline has passed or the timer has fired, the entry stays in the map until the timer's callback
            // takes it out. If `close` has ended the timer, the entry stays until `close` takes it out.
            if !is_live || !self.stop(entry) {
                return Err(values.is_late(hash, Some(entry)));
            }
            let (entry, _) = found.remove();
            shard.shrink();
            counted.completed.add_one();
            drop(shard);
            return Ok(entry);
        }
    }

    /// Stops the timer of an entry. Returns `false` if the timer has ended: then the value has expired for every call
    /// from now on.
    #[inline]
    fn stop(&self, entry: &mut Entry<K, V>) -> bool {
        let is_stopped = self.timer.stop(entry.timer).is_some();
        if !is_stopped {
            entry.set_expired();
        }
        is_stopped
    }

    /// Replaces the value for `key` by `value`, if the old value has this token. The new value keeps the timer of the
    /// old value, with a new deadline. Returns the new token and the old value.
    pub(crate) fn replace<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        token: FencingToken,
        mut value: V,
        deadline: Deadline,
    ) -> Result<(FencingToken, V), Rejected<V>> {
        let replaced = self.reschedule(key, Some(token), deadline, |entry| {
            entry.token = self.values.next_token();
            std::mem::swap(&mut entry.value, &mut value);
            entry.token
        });
        let reason = match replaced {
            Ok(token) => return Ok((token, value)),
            Err(RescheduleError::Thread) => RejectReason::Thread,
            Err(_) if self.timer.is_shut_down() => RejectReason::ShutDown,
            Err(_) => RejectReason::StaleToken,
        };
        self.values.count_refused();
        Err(Rejected::new(reason, value))
    }

    /// Moves the deadline of the value for `key`; if `only` is given, the value must have this token. Then calls `then`
    /// with the entry, under the lock of the key's map shard, and returns the result. Fails if the deadline was not
    /// moved.
    pub(crate) fn reschedule<Q: Hash + Equivalent<K> + ?Sized, R>(
        &self,
        key: &Q,
        only: Option<FencingToken>,
        deadline: Deadline,
        then: impl FnOnce(&mut Entry<K, V>) -> R,
    ) -> Result<R, RescheduleError> {
        let deadline = self.of_the_clock(deadline);
        let reading = Reading::exact(&self.timer);
        let hash = self.values.hash_of(key);
        // If there are no shards yet, no value has been tracked.
        let counted = self.values.find_shard(hash);
        let mut shard = counted.ok_or(RescheduleError::Unchanged)?.lock();
        let found = shard.live(hash, key, reading);
        let found = found.filter(|entry| only.is_none_or(|only| only == entry.token));
        let entry = found.ok_or(RescheduleError::Unchanged)?;
        let wake = self.move_deadline(entry, reading.at, deadline)?;
        let result = then(entry);
        drop(shard);
        drop(wake);
        Ok(result)
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
    ///
    /// `copy` must move each clone at once into a collection that the caller of this method owns. If a later clone
    /// panics, the unwinding then drops the earlier clones only after the lock is released.
    pub(crate) fn each_live(&self, mut copy: impl FnMut(&Entry<K, V>)) {
        let reading = Reading::exact(&self.timer);
        for counted in self.values.shards() {
            let mut shard = counted.lock();
            let now = shard.present(reading);
            let live = shard.table.iter().filter(|entry| entry.is_live(now));
            live.for_each(&mut copy);
        }
    }

    /// Ends the value that has this token, and whose key has this hash. `None` if there is no such value, or it has
    /// expired at `reading`, an exact reading of the clock. Runs no user code.
    pub(crate) fn withdraw_live(
        &self,
        reading: Reading,
        hash: u64,
        token: FencingToken,
    ) -> Option<Entry<K, V>> {
        let mut shard = self.values.find_shard(hash)?.lock();
        let now = shard.present(reading);
        let is_it = |entry: &Entry<K, V>| entry.token == token && entry.is_live(now);
        self.withdraw_from(shard, hash, is_it)
    }

    /// Ends the value that `place` names, even past its deadline. `None` if the value has ended, or its timer has
    /// fired.
    pub(crate) fn withdraw(&self, place: Expiring) -> Option<Entry<K, V>> {
        let mut shard = self.values.find_shard(place.hash)?.lock();
        // If the value has expired, its key may have a new value by now. Then the entry of the expired value is in
        // `aside`.
        if let Some(aside) = shard.aside.get(&place.number) {
            self.timer.stop(aside.timer)?;
            // The end of this request was noted (so that a response counts as late) when its entry was moved to
            // `aside`, where expired entries wait whose key has another entry.
            return shard.aside.remove(&place.number);
        }
        let is_it = |entry: &Entry<K, V>| entry.expiring.number == place.number;
        self.withdraw_from(shard, place.hash, is_it)
    }

    fn withdraw_from(
        &self,
        mut shard: Locked<'_, K, V>,
        hash: u64,
        is_it: impl Fn(&Entry<K, V>) -> bool,
    ) -> Option<Entry<K, V>> {
        let mut found = shard.table.find_entry(hash, is_it).ok()?;
        if !self.stop(found.get_mut()) {
            return None;
        }
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
        // To complete a value, a call stops its timer, which the timer counts as a cancellation. After that, the call
        // counts the completion. So read the completions first: the timer's cancellations, read later, then include all
        // of them. A weakly ordered processor may show this thread the two counts in the other order: then the
        // subtraction saturates.
        let completed = sum(|shard| &shard.completed);
        let mut stats = self.timer.stats();
        stats.completed = completed;
        stats.cancelled = stats.cancelled.saturating_sub(completed);
        stats.rejected += sum(|shard| &shard.refused) + self.values.refused();
        stats.panicked += self.values.panics.count();
        stats
    }
}

/// When the last handle is dropped, all values end.
impl<K: Key, V: Send + 'static, S: KeyHasher> Drop for Shared<K, V, S> {
    fn drop(&mut self) {
        let remains = self.close();
        // A value may own the last handle of another tracker. If this drop runs inside the destructor of a value,
        // `run_unnested` puts off the drop of the values until that destructor has returned. So a long chain of
        // trackers needs no deep stack.
        let drop_all = move || {
            for entry in remains {
                let _ = contained(|| drop(entry.key));
                let _ = contained(|| drop(entry.value));
            }
        };
        // A destructor may call `run_unnested` too. Such an inner call waits until `drop_all` has returned, and the
        // outer call passes on the first panic of the inner ones. Catch that panic, because a shutdown passes on no
        // panic.
        let _ = contained(|| run_unnested(drop_all));
    }
}
