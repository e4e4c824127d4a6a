//! Acts on the marks on a held operation. A mark is a bit in the operation's state word, by which another thread asks
//! the holder to examine the operation again, or to end it.

use super::deferred::CheckTarget;
use super::due::Due;
use super::inner::{Inner, Parked};
use crate::callbacks::examining::Trigger;
use crate::callbacks::panics::Panics;
use crate::cell::slab::Held;
use crate::cell::state::{Mark, Unreleased};
use crate::engine::handler::EndedPayload;
use crate::hash::KeyHasher;
use crate::operation::{Cause, DelayedOperation};
use crate::stats::Ending;
use crate::sync::{Arc, MAX_EXAMINATIONS};
use crate::watch::bound::CheckBound;

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

    /// Does what other threads have asked for by marks: examines the operation again, or prepares its ending. `Some` if
    /// the operation has to end, and `None` if it stays parked. `Err` if its `try_complete` panics.
    fn act_on_marks(
        self: &Arc<Self>,
        held: &mut Held<'_, Parked<Op>>,
        Unreleased { examine, ending }: Unreleased,
    ) -> Result<Option<Ending>, Panics> {
        if examine && self.examine_for_mark(held)? {
            self.drop_change(held);
            return Ok(Some(Ending::Satisfied));
        }
        match ending {
            None => Ok(None),
            Some(Mark::Expire) => {
                // Clear the expiry mark, because this call handles the expiry. If the mark is set again from here on,
                // it is for a later expiry, and must stay.
                held.forget_expiry();
                Ok(match self.due(held, None)? {
                    // The operation stays parked, because its timer is filed at another time now.
                    Due::Later => None,
                    Due::Over { .. } => Some(Ending::Expired),
                    Due::Satisfied => Some(Ending::Satisfied),
                })
            }
            Some(mark) => {
                if mark == Mark::Force {
                    self.apply_change(held);
                }
                Ok(Some(mark.into()))
            }
        }
    }

    /// Called when the caller could not release the operation, because other threads have left marks (bits in its state
    /// word that ask for an examination or an ending). `unreleased` says what they ask for. Acts on the marks: examines
    /// the operation again whenever another thread has asked for it, up to `MAX_EXAMINATIONS` times in a row. Then the
    /// operation is released (`None`), or this call has ended it, and the caller has to deliver it.
    ///
    /// If the operation panics, it ends as aborted. In its own park (`is_parking`) the panic unwinds to the caller,
    /// because the operation is the caller's own code. Otherwise the panic is counted.
    #[cold]
    #[inline(never)]
    pub(super) fn settle(
        self: &Arc<Self>,
        mut held: Held<'_, Parked<Op>>,
        mut unreleased: Unreleased,
        is_parking: bool,
    ) -> Option<EndedPayload<Op>> {
        let mut examinations = 1;
        loop {
            // `Mark::Expire` is left by an expiry, `Mark::ShutDown` by a shutdown. Both rely on this thread to end the
            // operation. Until the guard `underway` is dropped, a drain or a shutdown waits for the completion.
            let waits = matches!(unreleased.ending, Some(Mark::Expire | Mark::ShutDown));
            let underway = waits.then(|| self.engine.underway.begin());
            match self.act_on_marks(&mut held, unreleased) {
                Ok(None) => drop(underway),
                Ok(Some(ending)) => {
                    let at = held.address();
                    let ended = self.end_and_reclaim(held, ending);
                    // The listener removes this entry too, but may have looked for it before `linger` has added it.
                    self.forget_early(at, true);
                    return Some(EndedPayload { underway, ..ended });
                }
                Err(panics) if is_parking => {
                    self.unpark(held);
                    panics.go_on()
                }
                Err(panics) => {
                    self.engine.end_panic(panics);
                    return Some(self.end_and_reclaim(held, Ending::Aborted));
                }
            }
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
                    return None;
                }
                Err((again, next)) => {
                    held = again;
                    unreleased = next;
                }
            }
        }
    }
}
