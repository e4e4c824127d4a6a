//! Handles an operation whose timer has fired.
//!
//! The thread that takes a timer out of the wheel claims the operation. If another thread holds the operation, that
//! holder gets a mark instead. In both cases the holder calls [`Inner::due`]. The timer was filed at one of these:
//!
//! 1. A time before the deadline: a recheck of a listener. The operation wakes the listener, and the timer is filed at
//!    the next recheck or at the deadline, whichever comes first.
//! 2. The end of the grace (the time for a late check) after a recheck that has found the event. The operation is
//!    satisfied.
//! 3. The deadline. The operation is examined once more. If it asks for more time, its timer is filed at the new
//!    deadline. If it belongs to a listener that evaluates its condition at the deadline, the operation wakes the
//!    listener, and stays parked during that evaluation. In all other cases the operation expires.

use super::early::Early;
use super::inner::{Inner, Parked};
use super::reach::{AtDeadline, Located};
use crate::callbacks::examining::Trigger;
use crate::callbacks::panics::Panics;
use crate::cell::address::Address;
use crate::cell::slab::Held;
use crate::engine::shard::{Timing, Unchanged};
use crate::hash::KeyHasher;
use crate::operation::{Cause, DelayedOperation};
use crate::scheme::Tick;
use crate::sync::Arc;
use crate::time::ticks::NEVER;
use crate::time::{Deadline, Timestamp};
use std::cell::Cell;
use std::time::Duration;

/// The outcome for an operation whose timer has fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// The operation expires; the flag says whether it could have completed.
    Over { missed_check: bool },
    /// The operation is satisfied.
    Satisfied,
    /// The operation has another deadline, and is to be released.
    Later,
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Handles a held operation whose timer has fired. `now` is the present tick, if the caller knows it.
    pub(super) fn due(
        self: &Arc<Self>,
        held: &mut Held<'_, Parked<Op>>,
        now: Option<Tick>,
    ) -> Result<Due, Panics> {
        if self.early.count() > 0 {
            // The clock may be user code, and may panic.
            let now = now.or_else(|| self.engine.guarded(|| self.engine.now()).ok());
            if let Some((early, is_due)) = self.begin_early(held.address(), now) {
                if is_due && self.examine_early(held, early.last)? {
                    return Ok(Due::Satisfied);
                }
                return Ok(self.file_after_waking(held, early));
            }
        }
        self.at_deadline(held)
    }

    /// Examines an operation whose deadline has come.
    ///
    /// If the operation can complete, a check was missed: the event has happened, and no check was made. Or a bounded
    /// check has stopped before it reached this operation.
    fn at_deadline(self: &Arc<Self>, held: &mut Held<'_, Parked<Op>>) -> Result<Due, Panics> {
        let at = held.address();
        let reach = AtDeadline {
            located: Located::new(self, at),
            lingers: Cell::new(None),
        };
        let missed_check = Panics::caught(|| {
            let _inside = self.enter_try_complete(held.examinee(), Trigger::Deadline);
            held.with(|parked| parked.op.try_complete_for(Cause::deadline(&reach)))
        })?;
        if reach
            .lingers
            .get()
            .is_some_and(|time| self.linger(at, time))
        {
            return Ok(Due::Later);
        }
        let asked = reach.located.deadline().filter(|_| !missed_check);
        if asked.is_some_and(|deadline| self.extend(held, deadline)) {
            self.engine.count_extension(at);
            return Ok(Due::Later);
        }
        Ok(Due::Over { missed_check })
    }

    /// Puts off a deadline that has come. The new deadline is `deadline`, but at least one tick from now and at most
    /// `max_timeout` after the operation's arrival. Returns `false` if that maximum has passed.
    #[cold]
    fn extend(&self, held: &mut Held<'_, Parked<Op>>, deadline: Deadline) -> bool {
        let at = held.address();
        // The clock may be the user's. If it panics, the operation expires.
        let timing = self.engine.guarded(|| self.engine.timing(None, deadline));
        let timing = timing.ok().map(|timing| Timing {
            deadline: timing.deadline.max(timing.start + 1),
            ..timing
        });
        let timing = timing.and_then(|timing| self.engine.bounded_from_arrival(at, timing));
        let Some(timing) = timing.filter(|timing| timing.deadline > timing.start) else {
            return false;
        };
        // Clear the expiry mark before the timer is filed: when the new timer fires, its mark must stay.
        held.forget_expiry();
        self.file_anew(at, timing)
    }

    /// Keeps a listener's operation parked for `time` from now. Unlike `extend`, clears no expiry mark: the mark of the
    /// deadline was cleared before the examination. If a mark is set now, the listener has ended its operation
    /// meanwhile.
    #[cold]
    fn linger(&self, at: Address, time: Duration) -> bool {
        // The clock may be user code, and may panic.
        let timing = self
            .engine
            .guarded(|| self.engine.timing(None, time.into()));
        timing.is_ok_and(|timing| self.file_anew(at, timing))
    }

    /// Files the timer of a held operation after it has fired. Returns `false` if the scheme cannot take the deadline.
    fn file_anew(&self, at: Address, timing: Timing) -> bool {
        let filed = self.engine.shard(at.shard()).extend(at, timing);
        filed.map(|earlier| self.engine.announce(earlier)).is_ok()
    }

    /// The times of an operation whose timer has fired before its deadline, and whether the operation is to be woken.
    /// `None` if the operation has no early timer. If the deadline has come by `now`, removes the early timer, and
    /// returns `None`.
    #[cold]
    fn begin_early(&self, at: Address, now: Option<Tick>) -> Option<(Early, bool)> {
        self.early.change(|entries| {
            let early = entries.by_address.get_mut(&at)?;
            if now.is_none_or(|now| early.deadline <= now) {
                entries.by_address.remove(&at);
                return None;
            }
            // The wake-up is not due if the listener has meanwhile asked for a later recheck.
            let is_due = now.is_some_and(|now| early.wake <= now);
            if is_due {
                early.wake = NEVER;
            }
            Some((*early, is_due))
        })
    }

    #[cold]
    fn examine_early(&self, held: &mut Held<'_, Parked<Op>>, last: bool) -> Result<bool, Panics> {
        Panics::caught(|| {
            self.examine(held, Trigger::Deadline, |parked, _| {
                parked.op.try_complete_for(Cause::recheck(last))
            })
        })
    }

    /// After an early wake-up of an operation, files its timer at the next time.
    #[cold]
    fn file_after_waking(&self, held: &mut Held<'_, Parked<Op>>, early: Early) -> Due {
        let at = held.address();
        // Clear the mark before the timer is filed, for the same reason as in `extend`.
        held.forget_expiry();
        let filed = self.early.change(|entries| {
            // If the entry is gone, the listener was dropped, and a mark decides how the operation ends.
            let next = entries.by_address.get(&at).unwrap_or(&early).filed();
            let timing = Timing {
                start: 0,
                deadline: next,
                present: 0,
                since: Timestamp::default(),
            };
            self.engine.shard(at.shard()).extend(at, timing)
        });
        match filed {
            Ok(earlier) => {
                self.engine.announce(earlier);
                Due::Later
            }
            // INVARIANT: the wheel of a purgatory takes every deadline.
            Err(Unchanged) => unreachable!("an operation that is held has not ended"),
        }
    }
}
