//! Parking an operation.
//!
//! 0. Its keys are collected, each once.
//! 1. It is examined once on the stack: an operation that can complete at once never parks. (Before that, it is rejected
//!    if a key has panicked, it is nested too deep, a drain or a shutdown has begun, or there are no keys.)
//! 2. It gets a permit, and the reaper is started if this is the first deadline. Under the lock of a timer shard it
//!    gets a slot and a timer. This thread is its holder from the first moment. An earlier deadline is announced.
//! 3. Its keys are watched. A thread that checks one of them now finds it held and leaves a mark.
//! 4. It is examined again: an event before its key was watched is seen now; one after left a mark.
//! 5. It is released, which fails while there is a mark (`release_or_end` acts on it).

use super::collect::Watch;
use super::end::Examined;
use super::handle::Handle;
use super::inner::{Inner, Parked};
use super::keys::Keys;
use crate::cell::slab::Held;
use crate::engine::UserPanic;
use crate::engine::deliver::{RunOn, deliver};
use crate::engine::handler::EndedPayload;
use crate::error::{RejectReason, Rejected};
use crate::examining::{Examining, Trigger};
use crate::hash::{KeyHasher, RandomState};
use crate::observe::{Observer, OperationSpan};
use crate::operation::{Cause, DelayedOperation};
use crate::stats::{Ending, Statistic};
use crate::sync::Arc;
use crate::trampoline::{NestedPark, Trampoline, drop_user_value};

/// The answer of a park.
pub enum Admission<Op: DelayedOperation, S = RandomState> {
    /// The operation has ended: it could complete at once, or ended while it was being parked (a check found it
    /// satisfied, it was forced or cancelled by key, it expired, or the purgatory was shut down). Its
    /// `on_complete` has run, or runs before the outermost call of the library on this thread returns, or, if the
    /// operation expired, where [`Builder::dispatch`](crate::purgatory::Builder::dispatch) says.
    Ended,
    /// The operation is parked.
    Parked(Handle<Op, S>),
}

impl<Op: DelayedOperation, S> Admission<Op, S> {
    /// Whether the operation was parked (it may have ended since).
    pub fn is_parked(&self) -> bool {
        matches!(self, Self::Parked(_))
    }

    /// The handle of a parked operation.
    pub fn into_handle(self) -> Option<Handle<Op, S>> {
        match self {
            Self::Ended => None,
            Self::Parked(handle) => Some(handle),
        }
    }
}

debug_fields!([Op: DelayedOperation, S] Admission<Op, S>, "Admission", |it| is_parked: it.is_parked());

impl<Op: DelayedOperation, S: KeyHasher> Handle<Op, S> {
    /// Parks another operation in the same purgatory.
    pub(crate) fn park_beside(
        &self,
        op: Op,
        watch: Watch<'_, Op::Key>,
    ) -> Result<Admission<Op, S>, Rejected<Op>> {
        match self.with(Arc::clone) {
            Some(inner) => inner.park(op, [watch]),
            None => Err(Rejected::new(RejectReason::ShutDown, op)),
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Parks `op` on `keys`.
    #[inline(always)]
    pub(crate) fn park<'a>(
        self: &Arc<Self>,
        op: Op,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, Op::Key>>>,
    ) -> Result<Admission<Op, S>, Rejected<Op>> {
        // It runs the caller's iterator, and compares keys. Where that panics, the operation goes back.
        let keys = self.engine.guarded(|| self.collect(keys));
        let trampoline = Trampoline::enter();
        let span = self.engine.observe(Observer::arrived);
        let parked = match keys {
            Err(UserPanic) => Err(Rejected::new(RejectReason::Panicked, op)),
            Ok(keys) if trampoline.is_outermost() => self.park_or_complete(op, keys, &span),
            Ok(keys) => match NestedPark::enter() {
                Some(_nested) => self.park_or_complete(op, keys, &span),
                None => Err(self.reject(RejectReason::Nested, op, keys)),
            },
        };
        match parked {
            Ok(Examined::Parked(address)) => {
                self.engine.leave(trampoline);
                Ok(Admission::Parked(Handle::new(self, address)))
            }
            Ok(Examined::Ended(ended)) => {
                deliver(self, &trampoline, ended, RunOn::Caller);
                self.engine.leave(trampoline);
                Ok(Admission::Ended)
            }
            Err(rejected) => {
                self.engine.count(Statistic::Rejected, 1);
                self.engine
                    .observe(|observer| observer.rejected(&span, rejected.reason()));
                self.engine.leave(trampoline);
                Err(rejected)
            }
        }
    }

    #[inline(always)]
    fn park_or_complete(
        self: &Arc<Self>,
        mut op: Op,
        keys: Option<Keys<Op::Key>>,
        span: &OperationSpan,
    ) -> Result<Examined<Op>, Rejected<Op>> {
        if let Some(reason) = self.engine.phase.reject_reason() {
            return Err(self.reject(reason, op, keys));
        }
        let Some(keys) = keys else {
            return Err(Rejected::new(RejectReason::NoKeys, op));
        };
        // The first examination, and the clock: user code that may panic before anything is done. A check that any of it
        // makes is a nested one.
        let examined = self.engine.guarded(|| {
            let _inside = self.enter_try_complete(Examining::UNPARKED, Trigger::Check);
            if op.try_complete_for(Cause::PARKING) {
                return None;
            }
            Some(self.engine.timing(op.arrival(), op.timeout()))
        });
        let timing = match examined {
            Ok(Some(timing)) => timing,
            Ok(None) => {
                self.engine.count(Statistic::CompletedAtOnce, 1);
                self.engine
                    .observe(|observer| observer.completed_at_once(span));
                self.drop_keys(keys);
                return Ok(Examined::Ended(EndedPayload {
                    has_permit: false,
                    ..EndedPayload::new(op, Ending::Satisfied)
                }));
            }
            Err(UserPanic) => return Err(self.reject(RejectReason::Panicked, op, Some(keys))),
        };
        let watches = keys.len();
        let parked = Parked {
            op,
            keys,
            span: self.engine.observe(|_| span.since(timing.since)),
        };
        match self.engine.admit(parked, watches, timing) {
            Ok(held) => {
                // While it is held: no thread can report its end before.
                self.engine
                    .observe(|observer| observer.parked(span, watches));
                self.register(held)
            }
            Err(rejected) => Err(rejected.map(|Parked { op, keys, .. }| {
                self.drop_keys(keys);
                op
            })),
        }
    }

    #[cold]
    fn reject(&self, reason: RejectReason, op: Op, keys: Option<Keys<Op::Key>>) -> Rejected<Op> {
        keys.into_iter().for_each(|keys| self.drop_keys(keys));
        Rejected::new(reason, op)
    }

    /// Watches the keys of an operation that this thread holds, examines it again, and releases it.
    #[inline(always)]
    fn register(
        self: &Arc<Self>,
        mut held: Held<'_, Parked<Op>>,
    ) -> Result<Examined<Op>, Rejected<Op>> {
        let address = held.address();
        let mut full = false;
        let examinee = held.examinee();
        let answer = self.engine.guarded(|| {
            held.with(|parked| {
                parked.keys.for_each(
                    0,
                    #[inline(always)]
                    |target, order| {
                        // What comes after a full list is not watched.
                        if full {
                            return;
                        }
                        let (added, spare) = self.watch.add(target, order, address);
                        full = !added;
                        drop_user_value(spare);
                    },
                );
                let _inside = self.enter_try_complete(examinee, Trigger::Check);
                !full && parked.op.try_complete_for(Cause::PARKING)
            })
        });
        if full || answer.is_err() {
            let (ending, reason) = match full {
                true => (Ending::Cancelled, RejectReason::KeyFull),
                false => (Ending::Aborted, RejectReason::Panicked),
            };
            // Marks that other threads have left for it are void: it was never parked. What was not added to a list is not
            // found there.
            let ended = self.end_and_reclaim(held, ending);
            return Err(Rejected::new(reason, self.return_to_caller(ended)));
        }
        match self.release_or_end(held, answer) {
            // It panicked when it was examined once more, for a check that came meanwhile.
            Examined::Ended(ended) if ended.ending == Ending::Aborted => {
                let op = self.return_to_caller(ended);
                Err(Rejected::new(RejectReason::Panicked, op))
            }
            examined => Ok(examined),
        }
    }
}
