//! Parking an operation.
//!
//! 1. It is asked once on the stack: what can complete at once never parks.
//! 2. It gets a slot and a timer, under one hold of a home's lock. From the first moment this thread holds it.
//! 3. Its keys are watched. Whoever checks one of them now finds it held and leaves a mark.
//! 4. It is asked again: an event before its key was watched is seen now; one after left a mark.
//! 5. It is let go, which fails while there is a mark.

use super::Parked;
use super::core::{Address, Core, SLOTS, Tenant, UserPanic};
use super::end::Examined;
use super::handle::Handle;
use super::home::Admission;
use super::keys::Keys;
use super::ready::{Ready, Site};
use crate::error::Rejected;
use crate::operation::{Completion, DelayedOperation, KeyHasher};
use crate::stats::Ending;
use crate::sync::Arc;
use crate::time::ticks::Tick;
use crate::turn::Turn;
use std::fmt;
use std::time::Duration;

/// What became of an operation that was to park.
pub enum Watch<Op: DelayedOperation, S = crate::RandomState> {
    /// It did not stay: it could complete at once, or ended while it was being registered (a check found it
    /// satisfied, it was forced or cancelled by key, its timeout fired, the purgatory was shut down). Its
    /// `on_complete` has run, or runs before the outermost call of the library on this thread returns, or, if it
    /// expired, where [`Builder::completions`](crate::Builder::completions) says.
    Completed,
    /// It is parked.
    Parked(Handle<Op, S>),
}

impl<Op: DelayedOperation, S> Watch<Op, S> {
    /// Whether the operation has ended.
    pub fn is_completed(&self) -> bool {
        matches!(self, Self::Completed)
    }

    /// Whether the operation was parked (it may have ended since).
    pub fn is_parked(&self) -> bool {
        matches!(self, Self::Parked(_))
    }

    /// The handle of a parked operation.
    pub fn into_handle(self) -> Option<Handle<Op, S>> {
        match self {
            Self::Completed => None,
            Self::Parked(handle) => Some(handle),
        }
    }
}

impl<Op: DelayedOperation, S> fmt::Debug for Watch<Op, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed => f.write_str("Completed"),
            Self::Parked(handle) => f.debug_tuple("Parked").field(handle).finish(),
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Core<Op, S> {
    #[inline(always)]
    pub(crate) fn park(
        self: &Arc<Self>,
        op: Op,
        keys: impl IntoIterator<Item = Op::Key>,
    ) -> Result<Watch<Op, S>, Rejected<Op>> {
        let turn = Turn::enter();
        let mut ready = Ready::new();
        let watch = self.park_into(op, keys, &mut ready);
        self.deliver(&turn, ready, Site::Here);
        watch.inspect_err(|_| self.my_home().events.rejected.add(1))
    }

    #[inline(always)]
    fn park_into(
        self: &Arc<Self>,
        mut op: Op,
        keys: impl IntoIterator<Item = Op::Key>,
        ready: &mut Ready<Op>,
    ) -> Result<Watch<Op, S>, Rejected<Op>> {
        if self.is_closed() {
            return Err(Rejected::ShutDown(op));
        }
        // The keys, the first look and the clock: all that may panic before anything is done.
        let asked = self.guarded(|| {
            let keys = Keys::collect(keys, &self.hasher)?;
            let span = match op.try_complete() {
                true => None,
                false => Some(self.span(op.timeout())),
            };
            Some((keys, span))
        });
        let (keys, span) = match asked {
            Ok(Some((keys, Some(span)))) => (keys, span),
            Ok(Some((_, None))) => {
                self.my_home().events.completed_at_once.add(1);
                ready.push(op, Completion::Satisfied);
                return Ok(Watch::Completed);
            }
            Ok(None) => return Err(Rejected::NoKeys(op)),
            Err(UserPanic) => return Err(Rejected::Panicked(op)),
        };
        if self.limit.as_ref().is_some_and(|limit| !limit.take()) {
            return Err(Rejected::Full(op));
        }
        let tenant = match self.admit(Parked { op, keys }, span) {
            Ok(tenant) => tenant,
            Err(rejected) => {
                if let Some(limit) = &self.limit {
                    limit.give_back();
                }
                return Err(rejected);
            }
        };
        self.register(tenant, ready)
    }

    /// Finds a home: the thread's own, or one of its neighbours if that is locked.
    #[inline(always)]
    fn admit(
        &self,
        parked: Parked<Op>,
        (now, deadline): (Tick, Tick),
    ) -> Result<Tenant<'_, Op>, Rejected<Op>> {
        let mine = self.my_home();
        let neighbours = (1..self.homes.len().min(3)).map(|step| self.home(mine.number + step));
        let (home, guard) = std::iter::once(mine)
            .chain(neighbours)
            .find_map(|home| Some((home, home.try_lock()?)))
            .unwrap_or_else(|| (mine, mine.lock()));
        match home.park(guard, parked, now, deadline, SLOTS) {
            Admission::Admitted(held, earlier) => {
                self.announce(earlier);
                Ok(Tenant { home, held })
            }
            Admission::Full(parked) => Err(Rejected::Full(parked.op)),
            Admission::Closed(parked) => Err(Rejected::ShutDown(parked.op)),
        }
    }

    /// Watches the keys of an operation that this thread holds, asks it again, and lets go of it.
    #[inline(always)]
    fn register(
        self: &Arc<Self>,
        mut tenant: Tenant<'_, Op>,
        ready: &mut Ready<Op>,
    ) -> Result<Watch<Op, S>, Rejected<Op>> {
        let home = tenant.home.number;
        let at = tenant.held.at();
        let watcher = Address { home, at }.watcher();
        let mut watched = 0;
        let answer = self.guarded(|| {
            tenant.held.with(|parked| {
                for key in parked.keys.as_slice() {
                    self.watch.add(key, watcher);
                    watched += 1;
                }
                parked.op.try_complete()
            })
        });
        if answer.is_err() {
            let op = self.end_watching(tenant, Ending::Aborted, watched);
            return Err(Rejected::Panicked(op));
        }
        match self.settle(tenant, answer, ready) {
            Examined::Aborted(op) => Err(Rejected::Panicked(op)),
            Examined::Parked => Ok(Watch::Parked(Handle::new(self, Address { home, at }))),
            Examined::Ended(_) => Ok(Watch::Completed),
        }
    }

    /// Gives one operation another deadline, `timeout` from now.
    pub(crate) fn reschedule(&self, address: Address, timeout: Duration) -> bool {
        let (now, deadline) = self.span(timeout);
        let home = self.home(address.home);
        match home.reschedule(address.at, now, deadline) {
            Some(earlier) => {
                self.announce(earlier);
                true
            }
            None => false,
        }
    }
}
