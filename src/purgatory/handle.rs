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
use crate::time::{Deadline, Timestamp};
use std::marker::PhantomData;
use std::time::Duration;

/// Refers to one parked operation.
///
/// A handle does not keep its operation parked, and its drop does not cancel the operation. A handle does not keep the
/// purgatory alive either. Once the operation has ended, the methods do nothing and return `false` or `None`, even if
/// another operation uses the same memory.
///
/// No method waits for another thread, except for the locks that its documentation names.
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

    /// Calls `use_it` with the purgatory. `None` once the purgatory has been shut down: every operation has ended by
    /// then, or is about to end.
    pub(super) fn with<R>(&self, use_it: impl FnOnce(&Arc<Inner<Op, S>>) -> R) -> Option<R> {
        self.weak.with(use_it)
    }

    /// In a debug build, reports on stderr that the operation's key was not checked in time. The caller must hold no
    /// lock of a purgatory.
    pub(crate) fn report_missed_check(&self) {
        #[cfg(debug_assertions)]
        self.with(|inner| super::missed_check::report::<Op::Key>(&inner.engine.name));
    }

    /// Counts a missed check for the operation, even if it has ended.
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

    /// The time until the deadline; zero if the deadline has passed. `None` if the operation has ended or never
    /// expires.
    ///
    /// Takes the lock of a timer shard. Reads the clock; a panic of the clock is passed on.
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
    /// Returns whether this call completed the operation. An operation past its deadline that has not expired yet can
    /// still be completed: a late answer is better than none. Inside a `try_complete`, the check is made later, and
    /// this call returns `false`.
    ///
    /// If the call completes the operation, it takes the locks of the map shards of the operation's keys, and the lock
    /// of its timer shard only if that lock is free.
    pub fn check(&self) -> bool {
        self.with(|inner| inner.check_operation(self.address)) == Some(true)
    }

    /// Completes the operation as satisfied, whether it can complete or not: `on_complete` runs on this thread. Returns
    /// whether this call completed it.
    ///
    /// If the operation is being examined, by another thread or by the `try_complete` that makes this call, the call
    /// returns `false` at once. The examining thread then completes the operation, unless that thread finds it
    /// satisfied or lets it expire. Whatever this call returns, the operation has ended or is about to end.
    ///
    /// Takes the locks of the map shards of the operation's keys, and the lock of its timer shard only if that lock is
    /// free.
    pub fn force_complete(&self) -> bool {
        self.with(|inner| inner.force_one(self.address)) == Some(true)
    }

    /// Takes the operation back: the operation ends without a completion.
    ///
    /// `None` if the operation has ended already, or is being examined, by another thread or by the `try_complete` that
    /// makes this call. The examining thread then ends the operation with
    /// [`Completion::Cancelled`](crate::Completion::Cancelled), unless that thread finds it satisfied or lets it
    /// expire. Whatever this call returns, the operation has ended or is about to end.
    ///
    /// Takes the locks of the map shards of the operation's keys, and the lock of its timer shard only if that lock is
    /// free.
    pub fn cancel(&self) -> Option<Op> {
        self.with(|inner| inner.take_back(self.address, Mark::Cancel))?
    }

    /// Takes back the operation of a listener whose deadline has come. Works as [`cancel`](Self::cancel), but the
    /// operation counts as expired.
    #[cold]
    pub(crate) fn expire(&self) -> Option<Op> {
        self.with(|inner| inner.take_back(self.address, Mark::Expire))?
    }

    /// Moves the deadline to `timeout` from now, or to a [point in time](Deadline) (`None`: the operation never
    /// expires). The bound of [`max_timeout`](crate::purgatory::Builder::max_timeout) applies. Returns `false` if
    ///
    /// * the operation has ended;
    /// * its deadline has passed, even if the thread that drives the timer has not handled it yet;
    /// * this would be the first deadline of the purgatory, and the system refuses the reaper's thread.
    ///
    /// Takes the lock of a timer shard. Reads the clock; a panic of the clock is passed on.
    #[must_use = "an operation whose deadline has passed cannot be rescheduled, and expires"]
    pub fn reschedule(&self, timeout: impl Into<Deadline>) -> bool {
        let deadline = timeout.into();
        self.with(|inner| inner.reschedule(self.address, deadline)) == Some(true)
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
