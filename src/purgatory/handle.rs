//! A handle to one operation.

use super::core::Core;
use super::tether::Tether;
use crate::address::Address;
use crate::engine::deliver::Site;
use crate::engine::home::Rescheduled;
use crate::operation::{DelayedOperation, KeyHasher};
use crate::sync::Arc;
use crate::time::Timestamp;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// One parked operation, from outside.
///
/// A handle does not keep its operation parked (dropping it cancels nothing), nor the purgatory alive. Once the
/// operation has ended, whatever becomes of its place in memory, the handle only says so: `false`, or `None`.
///
/// Every method takes the lock of the purgatory's tether for an instant: it finds the purgatory there.
pub struct Handle<Op: DelayedOperation, S = crate::RandomState> {
    tether: Tether,
    address: Address,
    purgatory: PhantomData<fn() -> Core<Op, S>>,
}

impl<Op: DelayedOperation, S: KeyHasher> Handle<Op, S> {
    #[inline]
    pub(crate) fn new(core: &Core<Op, S>, address: Address) -> Self {
        Self {
            tether: core.tether,
            address,
            purgatory: PhantomData,
        }
    }

    fn core(&self) -> Option<Arc<Core<Op, S>>> {
        self.tether.core()
    }

    /// Whether the operation has not ended. Takes no other lock.
    pub fn is_parked(&self) -> bool {
        self.core()
            .is_some_and(|core| core.engine.is_parked(self.address))
    }

    /// The time until the deadline, zero if it has passed. `None` if the operation has ended or never expires.
    ///
    /// Takes a home's lock and reads the clock; if that panics, so does this call.
    pub fn remaining(&self) -> Option<Duration> {
        self.core()?.engine.remaining(self.address)
    }

    /// The deadline on the purgatory's clock, rounded up to the tick. `None` if the operation has ended or never
    /// expires.
    ///
    /// Takes a home's lock.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.core()?.engine.deadline(self.address)
    }

    /// Examines the operation as [`check_and_complete`](super::Purgatory::check_and_complete) does, on this thread.
    /// Returns whether this call completed it.
    ///
    /// If it does, it takes the locks of the operation's keys, and that of its home only if that is free.
    pub fn check(&self) -> bool {
        self.core()
            .is_some_and(|core| core.check_one(self.address, Site::Here))
    }

    /// Completes the operation as satisfied, whether it can complete or not: `on_complete` runs on this thread. Returns
    /// whether this call did it.
    ///
    /// If another thread is examining the operation, nobody waits: that thread completes it, and this returns
    /// `false`. After either answer the operation has ended or is just ending.
    ///
    /// Takes the locks of the operation's keys, and that of its home only if that is free.
    pub fn force_complete(&self) -> bool {
        self.core().is_some_and(|core| core.force_one(self.address))
    }

    /// Takes the operation back: it ends without a completion.
    ///
    /// `None` if it has ended already, or if another thread is examining it right now: nobody waits for that; the
    /// thread will end it with [`Completion::Cancelled`](crate::Completion::Cancelled), unless it finds it
    /// satisfied or is just expiring it. After either answer the operation has ended or is just ending.
    ///
    /// Takes the locks of the operation's keys, and that of its home only if that is free.
    pub fn cancel(&self) -> Option<Op> {
        self.core()?.cancel_one(self.address)
    }

    /// Lets the operation expire `timeout` from now instead ([`Duration::MAX`]: never). The bound of
    /// [`Builder::max_timeout`](crate::Builder::max_timeout) applies. Returns `false` if the operation has ended, or
    /// its deadline has passed and it is about to.
    ///
    /// Takes a home's lock and reads the clock; if that panics, so does this call.
    pub fn reschedule(&self, timeout: Duration) -> bool {
        self.core().is_some_and(|core| {
            let rescheduled = core.engine.reschedule(self.address, timeout);
            matches!(rescheduled, Rescheduled::Done(_))
        })
    }
}

impl<Op: DelayedOperation, S> Clone for Handle<Op, S> {
    fn clone(&self) -> Self {
        Self {
            tether: self.tether,
            address: self.address,
            purgatory: PhantomData,
        }
    }
}

impl<Op: DelayedOperation, S> fmt::Debug for Handle<Op, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("home", &self.address.home())
            .field("slot", &self.address.index())
            .field("generation", &self.address.generation())
            .finish_non_exhaustive()
    }
}
