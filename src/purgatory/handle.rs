//! A handle to one operation.

use super::inner::Inner;
use super::recycled_weak::RecycledWeak;
use crate::cell::address::Address;
use crate::cell::state::Mark;
use crate::hash::{KeyHasher, RandomState};
use crate::observe::Observer;
use crate::operation::DelayedOperation;
use crate::stats::Statistic;
use crate::sync::Arc;
use crate::time::Timestamp;
use std::marker::PhantomData;
use std::time::Duration;

/// Refers to one parked operation.
///
/// A handle keeps neither its operation parked (dropping it cancels nothing) nor the purgatory alive. Once the
/// operation has ended, the methods do nothing and return `false` or `None`, also after its memory has another use.
///
/// No method waits for another thread, but for a lock where it says that it takes one.
pub struct Handle<Op: DelayedOperation, S = RandomState> {
    weak: RecycledWeak,
    pub(super) address: Address,
    purgatory: PhantomData<fn() -> Inner<Op, S>>,
}

impl<Op: DelayedOperation, S: KeyHasher> Handle<Op, S> {
    pub(crate) fn new(inner: &Inner<Op, S>, address: Address) -> Self {
        Self {
            weak: inner.weak,
            address,
            purgatory: PhantomData,
        }
    }

    /// `None` once the purgatory has been shut down: every operation has ended then, or is about to.
    pub(super) fn with<R>(&self, use_it: impl FnOnce(&Arc<Inner<Op, S>>) -> R) -> Option<R> {
        self.weak.with(use_it)
    }

    /// In a debug build, says on stderr that the operation's key was not checked in time. Holds no lock of a purgatory.
    pub(crate) fn report_missed_check(&self) {
        #[cfg(debug_assertions)]
        self.with(|inner| super::missed_check::report::<Op::Key>(&inner.engine.name));
    }

    /// Counts the operation among those whose key was not checked in time, though it has ended.
    pub(crate) fn count_missed_check(&self) {
        self.with(|inner| {
            inner.engine.count(Statistic::MissedCheck, 1);
            inner.engine.observe(Observer::missed_check);
        });
    }

    /// Whether the operation is parked and has not ended. Takes no lock.
    pub fn is_parked(&self) -> bool {
        self.with(|inner| inner.engine.is_parked(self.address)) == Some(true)
    }

    /// The time until the deadline, zero if it has passed. `None` if the operation has ended or never expires.
    ///
    /// Takes the lock of a timer shard and reads the clock; if that panics, so does this call.
    pub fn remaining(&self) -> Option<Duration> {
        self.with(|inner| inner.remaining(self.address))?
    }

    /// The deadline on the purgatory's clock, rounded up to the tick. `None` if the operation has ended or never
    /// expires.
    ///
    /// Takes the lock of a timer shard.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.with(|inner| inner.deadline(self.address))?
    }

    /// Examines the operation as [`check_and_complete`](crate::Purgatory::check_and_complete) does, on this thread.
    /// Returns whether this call completed it. Checks complete an operation past its deadline as well, as long as it has
    /// not expired: better an answer than none.
    ///
    /// If it completes the operation, it takes the locks of the map shards of its keys, and that of its timer shard
    /// only if that is free.
    pub fn check(&self) -> bool {
        self.with(|inner| inner.check_operation(self.address)) == Some(true)
    }

    /// Completes the operation as satisfied, whether it can complete or not: `on_complete` runs on this thread. Returns
    /// whether this call completed it.
    ///
    /// If the operation is being examined, by another thread or by the `try_complete` that makes this call, this
    /// returns `false` at once, and the thread that examines it completes it, unless that finds it satisfied or is
    /// expiring it. After either answer the operation has ended or is about to end.
    ///
    /// Takes the locks of the map shards of the operation's keys, and that of its timer shard only if that is free.
    pub fn force_complete(&self) -> bool {
        self.with(|inner| inner.force_one(self.address)) == Some(true)
    }

    /// Takes the operation back: it ends without a completion.
    ///
    /// `None` if it has ended already, or is being examined, by another thread or by the `try_complete` that makes this
    /// call. Then the thread that examines it ends it, with [`Completion::Cancelled`](crate::Completion::Cancelled) unless
    /// it finds it satisfied or is expiring it. After either answer the operation has ended or is about to end.
    ///
    /// Takes the locks of the map shards of the operation's keys, and that of its timer shard only if that is free.
    pub fn cancel(&self) -> Option<Op> {
        self.with(|inner| inner.take_back(self.address, Mark::Cancel))?
    }

    /// As [`cancel`](Self::cancel), for the operation of a listener whose deadline has come: it counts as expired.
    #[cold]
    pub(crate) fn expire(&self) -> Option<Op> {
        self.with(|inner| inner.take_back(self.address, Mark::Expire))?
    }

    /// Lets the operation expire `timeout` from now instead ([`Duration::MAX`]: never). The bound of
    /// [`max_timeout`](crate::purgatory::Builder::max_timeout) applies. Returns `false` if the operation has
    /// ended or its deadline has passed, though the thread that drives the timer may not have come to it yet; or if this
    /// would be the first deadline of the purgatory, and the system refuses a thread.
    ///
    /// Takes the lock of a timer shard and reads the clock; if that panics, so does this call.
    #[must_use = "an operation whose deadline has passed cannot be rescheduled, and expires"]
    pub fn reschedule(&self, timeout: Duration) -> bool {
        self.with(|inner| inner.reschedule(self.address, timeout)) == Some(true)
    }
}

impl<Op: DelayedOperation, S> Clone for Handle<Op, S> {
    fn clone(&self) -> Self {
        Self {
            weak: self.weak,
            address: self.address,
            purgatory: PhantomData,
        }
    }
}

debug_fields!(
    [Op: DelayedOperation, S] Handle<Op, S>, "Handle",
    |it| shard: it.address.shard(), slot: it.address.index(), generation: it.address.generation()
);
