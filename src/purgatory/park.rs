//! Parking an operation.
//!
//! 0. The keys are collected, each once.
//! 1. The operation is rejected if too many parks are nested, a drain or a shutdown has begun, or there are no keys.
//!    Otherwise it is examined before it has a slot. If it can complete at once, it never parks.
//! 2. The operation gets a permit (its share of `max_parked` and `max_weight`), and the reaper is started if this is
//!    the first deadline. Under the lock of a timer shard the operation gets a slot and a timer. From this moment the
//!    parking thread holds the operation. If its deadline is earlier than the tick until which the reaper sleeps, the
//!    reaper is woken.
//! 3. The operation is added to the watch list of each of its keys. A thread that checks one of these keys from now on
//!    finds the operation held, and leaves a mark: a bit in the slot's state word that asks the parking thread for one
//!    more examination.
//! 4. The operation is examined again. This examination sees every event whose check came before step 3. The check of a
//!    later event leaves a mark.
//! 5. The parking thread releases the operation. If there is a mark, the release fails, and `settle` acts on the mark.
//!
//! If user code panics, the panic unwinds to the caller. Between step 2 and step 5, a drop guard then undoes the park.
//! Without a panic, the guard costs nothing.

use super::collect::Watch;
use super::handle::Handle;
use super::inner::{Inner, Parked};
use super::keys::Keys;
use super::reach::OperationReach;
use crate::callbacks::examining::{Examining, Trigger};
use crate::callbacks::trampoline::{NestedPark, Trampoline};
use crate::cell::address::Address;
use crate::cell::slab::Held;
use crate::engine::deliver::deliver;
use crate::engine::handler::EndedPayload;
use crate::engine::shard::Timing;
use crate::error::{RejectReason, Rejected};
use crate::hash::{KeyHasher, RandomState};
use crate::observe::{Observer, OperationSpan};
use crate::operation::{Cause, DelayedOperation};
use crate::stats::{Ending, Statistic};
use crate::sync::Arc;
use crate::time::Deadline;
use scopeguard::{ScopeGuard, guard};

/// The outcome of a call that parks an operation.
pub enum Admission<Op: DelayedOperation, S = RandomState> {
    /// The operation has ended, for one of these reasons:
    ///
    /// * It could complete at once.
    /// * During the call, a check found it satisfied, another call forced or cancelled it by its key, it expired, or
    ///   the purgatory was shut down.
    ///
    /// Its `on_complete` has run, or runs before the outermost call of the library on this thread returns. After an
    /// expiry, `on_complete` runs where [`Builder::dispatch`](crate::purgatory::Builder::dispatch) says.
    Ended,
    /// The operation is parked.
    Parked(Handle<Op, S>),
}

impl<Op: DelayedOperation, S> Admission<Op, S> {
    /// Whether the operation was parked. It may have ended since.
    pub fn is_parked(&self) -> bool {
        matches!(self, Self::Parked(_))
    }

    /// The handle of the operation, if it was parked. `None` if it has ended.
    pub fn into_handle(self) -> Option<Handle<Op, S>> {
        match self {
            Self::Ended => None,
            Self::Parked(handle) => Some(handle),
        }
    }
}

debug_fields!([Op: DelayedOperation, S] Admission<Op, S>, "Admission", |it| is_parked: it.is_parked());

impl<Op: DelayedOperation, S: KeyHasher> Handle<Op, S> {
    /// Parks `op` on one key, in the purgatory of this handle. Rejects `op` if that purgatory was shut down.
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

/// A value that is to be parked: an operation, or a value that becomes an operation if its first examination says no.
pub(crate) trait Arrival<Op: DelayedOperation>: Sized {
    /// What the caller gets if the first examination says yes. Nothing is parked in that case.
    type Answer;

    /// Makes the first examination. Returns `true` if it can be answered at once: then [`answer`](Self::answer) gets
    /// this value, and nothing is parked.
    fn look(&mut self, cause: Cause<'_, Op::Key>) -> bool;

    /// Turns the value into the answer for the caller. Called if the first examination says yes. A panic of user code
    /// in this method is caught and counted.
    fn answer<S: KeyHasher>(
        self,
        purgatory: &Arc<Inner<Op, S>>,
        trampoline: &Trampoline,
    ) -> Self::Answer;

    /// Turns the value into an operation. Called if the first examination says no, or if the value is rejected before
    /// it.
    fn into_operation(self) -> Op;
}

impl<Op: DelayedOperation> Arrival<Op> for Op {
    type Answer = ();

    #[inline(always)]
    fn look(&mut self, cause: Cause<'_, Op::Key>) -> bool {
        self.try_complete_for(cause)
    }

    #[inline(always)]
    fn answer<S: KeyHasher>(self, purgatory: &Arc<Inner<Op, S>>, trampoline: &Trampoline) {
        let ended = EndedPayload::new(self, Ending::Satisfied, Address::NONE);
        deliver(purgatory, trampoline, ended);
    }

    #[inline(always)]
    fn into_operation(self) -> Op {
        self
    }
}

/// The outcome for an [arrival](Arrival).
pub(crate) enum Arrived<A, Op: DelayedOperation, S> {
    /// The first examination said yes, and this is the answer.
    AtOnce(A),
    /// The first examination said no, so the value became an operation. The admission says whether the operation was
    /// parked or has ended since.
    Later(Admission<Op, S>),
}

/// What has become of an [arrival](Arrival) after the steps of a park.
enum Parking<A, Op> {
    /// No operation was parked, because the first examination said yes.
    AtOnce(A),
    /// The operation is parked at this address.
    Parked(Address),
    /// The operation got a slot, and ended during the park. Its completion has still to be delivered.
    Ended(EndedPayload<Op>),
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Parks `op` on `keys`.
    ///
    /// A panic of user code unwinds to the caller, because it is the caller's own code. If `op` has a slot by then,
    /// [`unpark`](Self::unpark) undoes the park.
    #[inline(always)]
    pub(crate) fn park<'a>(
        self: &Arc<Self>,
        op: Op,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, Op::Key>>>,
    ) -> Result<Admission<Op, S>, Rejected<Op>> {
        self.arrive(op, keys).map(
            #[inline(always)]
            |arrived| match arrived {
                Arrived::AtOnce(()) => Admission::Ended,
                Arrived::Later(admission) => admission,
            },
        )
    }

    /// [Parks](Self::park) the operation of `arrival`. If the first examination says yes, parks nothing and returns the
    /// answer.
    #[inline(always)]
    pub(crate) fn arrive<'a, A: Arrival<Op>>(
        self: &Arc<Self>,
        arrival: A,
        keys: impl IntoIterator<Item = impl Into<Watch<'a, Op::Key>>>,
    ) -> Result<Arrived<A::Answer, Op, S>, Rejected<Op>> {
        let keys = self.collect(keys);
        let trampoline = Trampoline::enter();
        let span = self.engine.observe(Observer::arrived);
        let parked = match trampoline.is_outermost() {
            true => self.park_or_complete(arrival, keys, &trampoline, &span),
            false => match NestedPark::enter() {
                Some(_nested) => self.park_or_complete(arrival, keys, &trampoline, &span),
                None => Err(Self::refuse(RejectReason::Nested, arrival, keys)),
            },
        };
        match parked {
            Ok(Parking::AtOnce(answer)) => {
                self.engine.leave(trampoline);
                Ok(Arrived::AtOnce(answer))
            }
            Ok(Parking::Parked(address)) => {
                self.engine.leave(trampoline);
                let handle = Handle::new(self, address);
                Ok(Arrived::Later(Admission::Parked(handle)))
            }
            Ok(Parking::Ended(ended)) => {
                deliver(self, &trampoline, ended);
                self.engine.leave(trampoline);
                Ok(Arrived::Later(Admission::Ended))
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
    fn park_or_complete<A: Arrival<Op>>(
        self: &Arc<Self>,
        mut arrival: A,
        keys: Option<Keys<Op::Key>>,
        trampoline: &Trampoline,
        span: &OperationSpan,
    ) -> Result<Parking<A::Answer, Op>, Rejected<Op>> {
        if let Some(reason) = self.engine.phase.reject_reason() {
            return Err(Self::refuse(reason, arrival, keys));
        }
        let Some(keys) = keys else {
            return Err(Self::refuse(RejectReason::NoKeys, arrival, None));
        };
        // From here to `drop(inside)`, user code runs: the first examination, the other hooks of the operation, and the
        // clock. A check that this code makes is a nested check: it waits until the outermost call is about to return
        // (`src/purgatory/nested.rs`).
        let inside = self.enter_try_complete(Examining::UNPARKED, Trigger::Check);
        let reach = OperationReach::new(self, Address::NONE);
        if arrival.look(Cause::parking(&reach)) {
            reach.end();
            drop(inside);
            drop(keys);
            self.count_completed_at_once(span);
            return Ok(Parking::AtOnce(arrival.answer(self, trampoline)));
        }
        let op = arrival.into_operation();
        let mut timing = self.engine.timing(op.arrival(), op.deadline());
        let weight = op.weight() as u64;
        drop(inside);
        if let Some(deadline) = reach.deadline() {
            timing = self.rescheduled(timing, deadline);
        }
        let watches = keys.len();
        let parked = Parked {
            op,
            keys,
            span: self.engine.observe(|_| span.since(timing.since)),
        };
        match self.engine.admit(parked, weight, watches, timing) {
            Ok(held) => {
                // Report the park while this thread holds the operation. No other thread can end the operation before
                // the release, so the report of its end comes after this report.
                self.engine
                    .observe(|observer| observer.parked(span, watches));
                reach.park_at(held.address());
                self.register(held)
            }
            Err(rejected) => {
                reach.end();
                Err(rejected.map(|Parked { op, keys, span }| {
                    // The destructor of a key may panic: before `op` is returned, as in `refuse`.
                    drop((keys, span));
                    op
                }))
            }
        }
    }

    /// Rejects an arrival that has no slot. Drops the keys before it makes the result: if the destructor of a key
    /// panics, the unwinding drops the arrival. A result that was made already would leak, because the unwinding does
    /// not drop the result of a function that panics after it (rust-lang/rust#47949).
    #[cold]
    fn refuse<A: Arrival<Op>>(
        reason: RejectReason,
        arrival: A,
        keys: Option<Keys<Op::Key>>,
    ) -> Rejected<Op> {
        drop(keys);
        Rejected::new(reason, arrival.into_operation())
    }

    /// Replaces the deadline in `timing` by `deadline`, for which the operation has asked in its first examination. The
    /// new deadline is at most `max_timeout` after the operation's arrival.
    #[cold]
    #[inline(never)]
    fn rescheduled(&self, timing: Timing, deadline: Deadline) -> Timing {
        let own = self.engine.timing(None, deadline);
        Timing {
            deadline: self.engine.bounded(own, timing.since).deadline,
            ..timing
        }
    }

    #[inline(never)]
    fn count_completed_at_once(&self, span: &OperationSpan) {
        self.engine.count(Statistic::CompletedAtOnce, 1);
        self.engine
            .observe(|observer| observer.completed_at_once(span));
    }

    /// Takes steps 3 to 5 of a park: adds a held operation to the watch lists of its keys, examines it again, and
    /// releases it.
    #[inline(always)]
    fn register<A>(
        self: &Arc<Self>,
        held: Held<'_, Parked<Op>>,
    ) -> Result<Parking<A, Op>, Rejected<Op>> {
        let address = held.address();
        // If user code panics before the release, this guard undoes the park.
        let mut held = guard(held, |held| self.unpark(held));
        let watched = held.with(
            #[inline(always)]
            |parked| self.watch_keys(&parked.keys, address),
        );
        if !watched {
            return Err(self.reject_for_full_key(ScopeGuard::into_inner(held)));
        }
        let answer = self.examine(
            &mut held,
            Trigger::Check,
            #[inline(always)]
            |parked, reach| parked.op.try_complete_for(Cause::parking(reach)),
        );
        let held = ScopeGuard::into_inner(held);
        if answer {
            let ended = self.end_and_reclaim(held, Ending::Satisfied);
            return Ok(Parking::Ended(ended));
        }
        match held.release(true) {
            Ok(_) => Ok(Parking::Parked(address)),
            Err((held, unreleased)) => Ok(match self.settle(held, unreleased, true) {
                Some(ended) => Parking::Ended(ended),
                None => Parking::Parked(address),
            }),
        }
    }

    /// Adds the operation to the watch list of each key. Returns `false` if one of the lists is full: the operation is
    /// then in the lists of the earlier keys only, and the caller has to remove it from them.
    #[inline(always)]
    fn watch_keys(&self, keys: &Keys<Op::Key>, address: Address) -> bool {
        let watch = &self.watch;
        keys.all(
            #[inline(always)]
            move |target, order| watch.add(target, order, address),
        )
    }

    /// Rejects an operation because the watch list of one of its keys is full. Ignores the marks that other threads
    /// have left: the operation ends in any case, and the caller gets it back.
    #[cold]
    fn reject_for_full_key(&self, held: Held<'_, Parked<Op>>) -> Rejected<Op> {
        // This call removes the operation from the watch lists of all its keys. To remove it from a list to which it
        // was not added does nothing.
        let ended = self.end_and_reclaim(held, Ending::Cancelled);
        Rejected::new(RejectReason::KeyFull, self.return_to_caller(ended))
    }
}
