//! Acts on the marks on a held operation. A mark is a bit in the operation's state word, by which another thread asks
//! the holder to examine the operation again, or to end it.

use super::deferred::CheckTarget;
use super::due::Due;
use super::inner::{Inner, Parked};
use crate::callbacks::examining::{Examining, Trigger};
use crate::callbacks::panics::Panics;
use crate::callbacks::trampoline::drop_user_value;
use crate::cell::slab::Held;
use crate::cell::state::{Mark, Unreleased};
use crate::engine::phase::UnderwayGuard;
use crate::hash::KeyHasher;
use crate::operation::{Cause, DelayedOperation};
use crate::stats::Ending;
use crate::sync::{Arc, MAX_EXAMINATIONS};
use crate::watch::bound::CheckBound;
/// The outcome for an operation that its holder could not release at once, because another thread had left a mark (a
/// request to examine the operation again, or to end it).
pub(super) enum Settled<'a, P> {
    /// The operation was released, and stays parked.
    Parked,
    /// The caller has to end the operation as the `Ending` says. The guard, if there is one, makes a drain or a
    /// shutdown wait. It is dropped when the completion has run or was handed over.
    End(Held<'a, P>, Ending, Option<UnderwayGuard>),
    /// The `try_complete` of the operation has panicked. The caller has to end the operation.
    Panicked(Held<'a, P>, Panics),
}

impl From<Mark> for Ending {
    fn from(mark: Mark) -> Self {
        match mark {
            Mark::Examine => unreachable!("an examination ends nothing by itself"),
            Mark::Force => Self::Forced,
            Mark::Cancel => Self::Cancelled,
            Mark::Expire => Self::Expired,
            Mark::ShutDown => Self::ShutDown,
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// [Examines](Self::examine) the operation because another thread has asked for that by a mark (a bit in the
    /// operation's state word). `Err` if the operation panics.
    #[cold]
    #[inline(never)]
    fn examine_for_mark(&self, held: &mut Held<'_, Parked<Op>>) -> Result<bool, Panics> {
        Panics::caught(|| {
            self.examine(held, Trigger::Mark, |parked, reach| {
                parked.op.try_complete_for(Cause::other(reach))
            })
        })
    }

    /// Called when the caller could not release the operation, because other threads have left marks (bits in its state
    /// word that ask for an examination or an ending). `unreleased` says what they ask for. Acts on the marks: examines
    /// the operation again whenever another thread has asked for it, up to `MAX_EXAMINATIONS` times in a row. Returns
    /// when the operation is released or has to end.
    #[cold]
    #[inline(never)]
    pub(super) fn settle<'a>(
        self: &Arc<Self>,
        mut held: Held<'a, Parked<Op>>,
        mut unreleased: Unreleased,
    ) -> Settled<'a, Parked<Op>> {
        let mut examinations = 1;
        loop {
            let Unreleased { examine, ending } = unreleased;
            // `Mark::Expire` is left by an expiry, `Mark::ShutDown` by a shutdown. Both rely on this thread to end the
            // operation. Until the guard `underway` is dropped, a drain or a shutdown waits for the completion.
            let waits = matches!(ending, Some(Mark::Expire | Mark::ShutDown));
            let underway = waits.then(|| self.engine.underway.begin());
            if examine {
                match self.examine_for_mark(&mut held) {
                    Ok(true) => {
                        self.drop_change(&held);
                        return Settled::End(held, Ending::Satisfied, underway);
                    }
                    Ok(false) => {}
                    Err(panics) => return Settled::Panicked(held, panics),
                }
            }
            match ending {
                None => {}
                Some(Mark::Expire) => {
                    // Clear the expiry mark, because this call handles the expiry. If the mark is set again from here
                    // on, it is for a later expiry, and must stay.
                    held.forget_expiry();
                    match self.due(&mut held, None) {
                        // The operation stays parked, because its timer is filed at another time now.
                        Ok(Due::Later) => {}
                        Ok(Due::Over { .. }) => {
                            return Settled::End(held, Ending::Expired, underway);
                        }
                        Ok(Due::Satisfied) => {
                            return Settled::End(held, Ending::Satisfied, underway);
                        }
                        Err(panics) => return Settled::Panicked(held, panics),
                    }
                }
                Some(mark) => {
                    if mark == Mark::Force {
                        self.apply_change(&mut held);
                    }
                    return Settled::End(held, mark.into(), underway);
                }
            }
            drop(underway);
            examinations += 1;
            let address = held.address();
            // If other threads keep asking for examinations, release the operation after `MAX_EXAMINATIONS`, and leave
            // the next examination to the thread that drives the timer. Otherwise this thread might never return to its
            // caller.
            match held.release(examinations < MAX_EXAMINATIONS) {
                Ok(unexamined) => {
                    if unexamined {
                        let target = CheckTarget::Operation(address);
                        // Catch a panic of the hasher, which is user code: the caller may have more operations to end.
                        let _ = self
                            .engine
                            .guarded(|| self.defer(target, CheckBound::all()));
                    }
                    return Settled::Parked;
                }
                Err((again, next)) => {
                    held = again;
                    unreleased = next;
                }
            }
        }
    }

    /// Applies the [`ForceChange`](super::inner::ForceChange) that a forcing call has left for this held operation: a
    /// closure that changes the operation before it ends. Does nothing if there is no such closure.
    #[cold]
    pub(super) fn apply_change(&self, held: &mut Held<'_, Parked<Op>>) {
        if let Some(change) = self.changes.take(held.address()) {
            let _examining = Examining::enter(held.examinee(), Trigger::Check);
            // If the change panics, the panic is counted, and the operation still ends.
            let engine = &self.engine;
            let _ = engine.guarded(|| held.with(|parked| change(&mut parked.op)));
            let _ = engine.guarded(|| drop_user_value(change));
        }
    }

    /// Drops the [`ForceChange`](super::inner::ForceChange) that a forcing call has left for this held operation, if
    /// there is one. Called if an examination has found the operation satisfied: it then ends unchanged.
    fn drop_change(&self, held: &Held<'_, Parked<Op>>) {
        let change = self.changes.take(held.address());
        let _ = self.engine.guarded(|| drop_user_value(change));
    }
}
