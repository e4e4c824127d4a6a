//! Releases an operation on which other threads have left marks.

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
/// The outcome for an operation that could not be released at once, because another thread had left a mark.
pub(super) enum Settled<'a, P> {
    /// The operation was released.
    Parked,
    /// The operation is to be ended as the `Ending` says.
    End(Held<'a, P>, Ending, Option<UnderwayGuard>),
    /// The `try_complete` of the operation has panicked.
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
    /// [Examines](Self::examine) the operation because another thread has asked for that. Catches a panic of the
    /// operation.
    #[cold]
    #[inline(never)]
    fn examine_for_mark(&self, held: &mut Held<'_, Parked<Op>>) -> Result<bool, Panics> {
        Panics::caught(|| {
            self.examine(held, Trigger::Mark, |parked, reach| {
                parked.op.try_complete_for(Cause::other(reach))
            })
        })
    }

    /// Acts on the marks that kept this thread from releasing an operation: examines the operation again as often as
    /// marks ask for it, up to `MAX_EXAMINATIONS`, until the operation is released or has to end.
    #[cold]
    #[inline(never)]
    pub(super) fn settle<'a>(
        self: &Arc<Self>,
        mut held: Held<'a, Parked<Op>>,
        mut unreleased: Unreleased,
    ) -> Settled<'a, Parked<Op>> {
        let mut examinations = 1;
        loop {
            held = match unreleased {
                Unreleased::End { mark, unexamined } => {
                    match self.settle_ending(held, mark, unexamined) {
                        Ok(held) => held,
                        Err(settled) => return settled,
                    }
                }
                Unreleased::Examine => match self.examine_for_mark(&mut held) {
                    Ok(false) => held,
                    Ok(true) => {
                        self.drop_change(&held);
                        return Settled::End(held, Ending::Satisfied, None);
                    }
                    Err(panics) => return Settled::Panicked(held, panics),
                },
            };
            examinations += 1;
            let address = held.address();
            // If other threads keep asking for more examinations, the holder leaves the next one to the thread that
            // drives the timer, so that the holder's own thread can go on.
            match held.release(examinations < MAX_EXAMINATIONS) {
                Ok(unexamined) => {
                    if unexamined {
                        self.defer(CheckTarget::Operation(address), CheckBound::all());
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

    /// Acts on an ending mark. If another thread has asked for an examination as well (`unexamined`), makes that
    /// examination first. Returns `Ok` if the operation has another deadline now, and is to be released.
    fn settle_ending<'a>(
        self: &Arc<Self>,
        mut held: Held<'a, Parked<Op>>,
        mark: Mark,
        unexamined: bool,
    ) -> Result<Held<'a, Parked<Op>>, Settled<'a, Parked<Op>>> {
        // From here on a drain or a shutdown waits until the completion is handed over or has run (`Underway`).
        let waits = matches!(mark, Mark::Expire | Mark::ShutDown);
        let underway = waits.then(|| self.engine.underway.begin());
        if unexamined {
            match self.examine_for_mark(&mut held) {
                Ok(true) => {
                    self.drop_change(&held);
                    return Err(Settled::End(held, Ending::Satisfied, underway));
                }
                Ok(false) => {}
                Err(panics) => return Err(Settled::Panicked(held, panics)),
            }
        }
        match mark {
            Mark::Expire => {
                // This call handles the expiry that was marked. A mark that is set from here on is for a later expiry.
                held.forget_expiry();
                match self.due(&mut held, None) {
                    Ok(Due::Later) => return Ok(held),
                    Ok(Due::Over { .. }) => {}
                    Ok(Due::Satisfied) => {
                        return Err(Settled::End(held, Ending::Satisfied, underway));
                    }
                    Err(panics) => return Err(Settled::Panicked(held, panics)),
                }
            }
            Mark::Force => self.apply_change(&mut held),
            Mark::Examine | Mark::Cancel | Mark::ShutDown => {}
        }
        Err(Settled::End(held, mark.into(), underway))
    }

    /// Applies the change, if one was left, to a held operation that is being forced.
    #[cold]
    pub(super) fn apply_change(&self, held: &mut Held<'_, Parked<Op>>) {
        if let Some(change) = self.changes.take(held.address()) {
            let _examining = Examining::enter(held.examinee(), Trigger::Check);
            // A panic of the change is counted, and the operation still ends.
            let engine = &self.engine;
            let _ = engine.guarded(|| held.with(|parked| change(&mut parked.op)));
            let _ = engine.guarded(|| drop_user_value(change));
        }
    }

    /// Drops the change that was left for a held operation, because the operation ends without it.
    fn drop_change(&self, held: &Held<'_, Parked<Op>>) {
        let change = self.changes.take(held.address());
        let _ = self.engine.guarded(|| drop_user_value(change));
    }
}
