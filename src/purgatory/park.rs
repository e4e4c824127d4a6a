//! Parking an operation.
//!
//! 1. It is asked once on the stack: what can complete at once never parks.
//! 2. It gets a slot and a timer, under one hold of a home's lock. From the first moment this thread holds it.
//! 3. Its keys are watched. Whoever checks one of them now finds it held and leaves a mark.
//! 4. It is asked again: an event before its key was watched is seen now; one after left a mark.
//! 5. It is let go, which fails while there is a mark.

use super::core::{Core, Tenant};
use super::end::{Examined, Outcome};
use super::handle::Handle;
use super::keys::{Keys, WatchOn};
use super::{Parked, Purgatory};
use crate::engine::UserPanic;
use crate::engine::deliver::{Outbox, Site, deliver};
use crate::error::Rejected;
use crate::observe::{Observer, Stay};
use crate::operation::{Completion, DelayedOperation, KeyHasher};
use crate::stats::Ending;
use crate::sync::Arc;
use crate::time::Timestamp;
use crate::turn::Turn;
use std::fmt;

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

/// Parks operations whose time of arrival is known; see [`Purgatory::at`].
#[derive(Debug)]
pub struct Arrival<'a, Op: DelayedOperation, S: KeyHasher = crate::RandomState> {
    pub(super) purgatory: &'a Purgatory<Op, S>,
    pub(super) arrival: Timestamp,
}

impl<Op: DelayedOperation, S: KeyHasher> Arrival<'_, Op, S> {
    /// As [`Purgatory::try_complete_else_watch`], without reading the clock.
    ///
    /// # Errors
    /// The same.
    #[inline]
    pub fn try_complete_else_watch(
        &self,
        op: Op,
        keys: impl IntoIterator<Item = Op::Key>,
    ) -> Result<Watch<Op, S>, Rejected<Op>> {
        let core = &self.purgatory.face.core;
        core.park(op, || Keys::collect(keys, &core.hasher), Some(self.arrival))
    }

    /// As [`Purgatory::try_complete_else_watch_on`], without reading the clock.
    ///
    /// # Errors
    /// The same.
    #[inline]
    pub fn try_complete_else_watch_on<'a>(
        &self,
        op: Op,
        watches: impl IntoIterator<Item = WatchOn<'a, Op, S>>,
    ) -> Result<Watch<Op, S>, Rejected<Op>> {
        let core = &self.purgatory.face.core;
        core.park(op, || core.keys_of(watches), Some(self.arrival))
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Core<Op, S> {
    /// Parks `op`, which came at `arrival` if that is known already. `keys` says what to watch.
    #[inline(always)]
    pub(crate) fn park(
        self: &Arc<Self>,
        op: Op,
        keys: impl FnOnce() -> Option<Keys<Op::Key>>,
        arrival: Option<Timestamp>,
    ) -> Result<Watch<Op, S>, Rejected<Op>> {
        let turn = Turn::enter();
        let mut ended = None;
        let stay = self.engine.observe(Observer::arrived);
        let watch = self.park_into(op, keys, arrival, &stay, &mut ended);
        deliver(self, &turn, ended, Site::Here);
        watch.inspect_err(|rejected| {
            self.engine.my_home().events.rejected.add(1);
            self.engine
                .observe(|observer| observer.rejected(&stay, rejected.variant()));
        })
    }

    #[inline(always)]
    fn park_into(
        self: &Arc<Self>,
        mut op: Op,
        keys: impl FnOnce() -> Option<Keys<Op::Key>>,
        arrival: Option<Timestamp>,
        stay: &Stay,
        outbox: &mut impl Outbox<Outcome<Op>>,
    ) -> Result<Watch<Op, S>, Rejected<Op>> {
        if self.engine.is_closed() {
            return Err(Rejected::ShutDown(op));
        }
        // The keys, the first look and the clock: all that may panic before anything is done.
        let asked = self.engine.guarded(|| {
            let keys = keys()?;
            if op.try_complete() {
                return Some((keys, None));
            }
            let span = match arrival {
                Some(reading) => self.engine.span_from(reading, op.timeout()),
                None => self.engine.span(op.timeout()),
            };
            Some((keys, Some(span)))
        });
        let (keys, span) = match asked {
            Ok(Some((keys, Some(span)))) => (keys, span),
            Ok(Some((_, None))) => {
                self.engine.my_home().events.completed_at_once.add(1);
                self.engine
                    .observe(|observer| observer.completed_at_once(stay));
                outbox.push(Outcome::Completed(op, Completion::Satisfied));
                return Ok(Watch::Completed);
            }
            Ok(None) => return Err(Rejected::NoKeys(op)),
            Err(UserPanic) => return Err(Rejected::Panicked(op)),
        };
        let watches = keys.len();
        let kept = self.engine.observe(|_| stay.since(span.since));
        let parked = Parked {
            op,
            keys,
            stay: kept,
        };
        match self.engine.admit(parked, watches, span) {
            Ok(tenant) => {
                // (While it is held: nobody can tell of its end before.)
                self.engine
                    .observe(|observer| observer.parked(stay, watches));
                self.register(tenant, outbox)
            }
            Err(rejected) => Err(rejected.map(|parked| parked.op)),
        }
    }

    /// Watches the keys of an operation that this thread holds, asks it again, and lets go of it.
    #[inline(always)]
    fn register(
        self: &Arc<Self>,
        mut tenant: Tenant<'_, Op>,
        outbox: &mut impl Outbox<Outcome<Op>>,
    ) -> Result<Watch<Op, S>, Rejected<Op>> {
        let address = tenant.address();
        let mut watched = 0;
        let answer = self.engine.guarded(|| {
            tenant.held.with(|parked| {
                parked.keys.for_each(0, |target, rank| {
                    let spare = self.watch.add(target, rank, address);
                    watched += 1;
                    drop(spare);
                });
                parked.op.try_complete()
            })
        });
        if answer.is_err() {
            let op = self.end_watching(tenant, Ending::Aborted, watched);
            return Err(Rejected::Panicked(op));
        }
        match self.settle(tenant, answer, outbox) {
            Examined::Aborted(op) => Err(Rejected::Panicked(op)),
            Examined::Parked => Ok(Watch::Parked(Handle::new(self, address))),
            Examined::Ended(_) => Ok(Watch::Completed),
        }
    }
}
