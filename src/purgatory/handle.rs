//! A handle to one operation.

use super::inner::Inner;
use super::recycled_weak::RecycledWeak;
use crate::cell::address::Address;
use crate::cell::state::Mark;
use crate::hash::{KeyHasher, RandomState};
use crate::operation::DelayedOperation;
use crate::sync::Arc;
use crate::time::{Deadline, Timestamp};
use std::marker::PhantomData;
use std::time::Duration;

/// Refers to one parked operation.
///
/// A handle keeps neither its operation parked nor the purgatory alive, and the drop of a handle does not cancel the
/// operation. Once the operation has ended, the methods do nothing and return `false` or `None`, even if another
/// operation uses the same memory.
///
/// A method waits for another thread only if that thread has a lock that the method's documentation names.
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

    /// Calls `use_it` with the purgatory, and returns the result. `None` once the purgatory has been shut down: by then
    /// every operation has ended, or the thread that holds it is about to end it.
    pub(super) fn with<R>(&self, use_it: impl FnOnce(&Arc<Inner<Op, S>>) -> R) -> Option<R> {
        self.weak.with(use_it)
    }

    /// Reports a missed check on stderr, in a debug build: the operation could complete, but no check of its keys had
    /// found that. The caller must hold no lock of a purgatory, because other threads would have to wait while stderr
    /// is written.
    pub(crate) fn report_missed_check(&self) {
        #[cfg(debug_assertions)]
        self.with(|inner| super::missed_check::report::<Op::Key>(&inner.engine.name));
    }

    /// Counts a missed check (the operation could complete, but no check of its keys had found that), and reports it to
    /// the user's metrics recorder and tracing subscriber, even if the operation has ended. Does nothing after the
    /// shutdown.
    pub(crate) fn count_missed_check(&self) {
        self.with(|inner| inner.count_missed_check());
    }

    /// Whether the operation is parked and has not ended. Takes no lock.
    pub fn is_parked(&self) -> bool {
        self.with(|inner| inner.engine.is_parked(self.address)) == Some(true)
    }

    /// The time until the deadline; zero if the deadline has passed. `None` if the operation has ended or never
    /// expires.
    ///
    /// Takes the lock of a timer shard and, in a purgatory with [listeners](crate::Listener), the lock of the times at
    /// which they are woken. Reads the clock; a panic of the clock is passed on.
    pub fn remaining(&self) -> Option<Duration> {
        self.with(|inner| inner.remaining(self.address))?
    }

    /// The deadline as a time of the purgatory's clock, rounded up to the tick. `None` if the operation has ended or
    /// never expires.
    ///
    /// Takes the lock of a timer shard and, in a purgatory with [listeners](crate::Listener), the lock of the times at
    /// which they are woken.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.with(|inner| inner.deadline(self.address))?
    }

    /// Examines the operation on this thread, as [`check_and_complete`](crate::Purgatory::check_and_complete) does.
    /// Returns whether this call completed the operation. If the deadline has passed but the operation has not expired
    /// yet, the call can still complete it: a late answer is better than none.
    ///
    /// If another thread is examining the operation, that thread examines it again, and this call returns `false`.
    /// Inside a `try_complete` this call returns `false` too, and the library makes the check before this thread's
    /// outermost call of the library returns.
    ///
    /// If the call completes the operation, it takes the locks of the map shards of the operation's keys, and the lock
    /// of the operation's timer shard only if that lock is free.
    pub fn check(&self) -> bool {
        self.with(|inner| inner.check_operation(self.address)) == Some(true)
    }

    /// Completes the operation as satisfied, whether it can complete or not: `on_complete` runs on this thread. Returns
    /// whether this call completed it.
    ///
    /// While an operation is being examined, only the examining thread can end it. Usually that is another thread. It
    /// is this thread if the operation's own `try_complete` makes this call. In both cases this call asks the examining
    /// thread to complete the operation, and returns `false` at once. Unless `try_complete` panics, that thread
    /// completes the operation when its examination is over:
    ///
    /// * as expired, if this is the examination at the deadline, and the operation asks for no more time;
    /// * otherwise as satisfied, whatever `try_complete` has answered.
    ///
    /// Whatever this call returns, the operation has ended or is about to end.
    ///
    /// Takes the locks of the map shards of the operation's keys, and the lock of the operation's timer shard only if
    /// that lock is free.
    pub fn force_complete(&self) -> bool {
        self.with(|inner| inner.force_one(self.address)) == Some(true)
    }

    /// Takes the operation back: the operation ends, its `on_complete` does not run, and the caller gets it.
    ///
    /// `None` if the operation has ended already, or if a thread is examining it (another thread, or this thread in the
    /// `try_complete` that makes this call). Unless `try_complete` panics, the examining thread then completes the
    /// operation when its examination is over:
    ///
    /// * as expired, if this is the examination at the deadline, and the operation asks for no more time;
    /// * as satisfied, if `try_complete` answers yes in an examination that is not the one at the deadline;
    /// * otherwise as [`Completion::Cancelled`](crate::Completion::Cancelled).
    ///
    /// Whatever this call returns, the operation has ended or is about to end.
    ///
    /// Takes the locks of the map shards of the operation's keys, and the lock of the operation's timer shard only if
    /// that lock is free.
    pub fn cancel(&self) -> Option<Op> {
        self.with(|inner| inner.take_back(self.address, Mark::Cancel))?
    }

    /// Takes the operation back as [`cancel`](Self::cancel) does, but counts it as expired. Called for the operation of
    /// a listener whose deadline has come.
    #[cold]
    pub(crate) fn expire(&self) -> Option<Op> {
        self.with(|inner| inner.take_back(self.address, Mark::Expire))?
    }

    /// Moves the deadline to `timeout` from now, or to a [point in time](Deadline). With `None` the operation never
    /// expires. The new deadline is at most [`max_timeout`](crate::purgatory::Builder::max_timeout) from now. Returns
    /// `true` if the deadline has been moved, and `false` if
    ///
    /// * the operation has ended;
    /// * its deadline has passed, even if the thread that drives the timer has not handled it yet;
    /// * its deadline is only some microseconds away, and deadlines are computed from the processor's counter, which is
    ///   ahead of the clock by that much (see [`clock`](crate::purgatory::Builder::clock));
    /// * the reaper's thread was not started before, and the system refuses it.
    ///
    /// Takes the lock of a timer shard and, in a purgatory with [listeners](crate::Listener), the lock of the times at
    /// which they are woken. Reads the clock; a panic of the clock is passed on.
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
