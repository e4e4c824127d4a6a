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
    /// The operation expires. `missed_check` says whether it could have completed. `deadline` is its deadline, if the
    /// timer may have been filed at another time.
    Over {
        missed_check: bool,
        deadline: Option<Tick>,
    },
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
        let mut deadline = None;
        if self.early.count() > 0 {
            // The clock may be user code, and may panic.
            let now = now.or_else(|| self.engine.guarded(|| self.engine.now()).ok());
            match self.begin_early(held.address(), now) {
                Ok((early, is_due)) => {
                    if is_due && self.examine_early(held, early.last)? {
                        return Ok(Due::Satisfied);
                    }
                    return Ok(self.file_after_waking(held, early));
                }
                Err(known) => deadline = known,
            }
        }
        self.at_deadline(held, deadline)
    }

    /// Examines an operation whose deadline has come.
    ///
    /// If the operation can complete, a check was missed: the event has happened, and no check was made. Or a bounded
    /// check has stopped before it reached this operation.
    ///
    /// `deadline` is the deadline, if the timer may have been filed at another time.
    fn at_deadline(
        self: &Arc<Self>,
        held: &mut Held<'_, Parked<Op>>,
        deadline: Option<Tick>,
    ) -> Result<Due, Panics> {
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
            .is_some_and(|time| self.linger(at, time, deadline))
        {
            return Ok(Due::Later);
        }
        let asked = reach.located.deadline().filter(|_| !missed_check);
        if asked.is_some_and(|deadline| self.extend(held, deadline)) {
            self.engine.count_extension(at);
            return Ok(Due::Later);
        }
        Ok(Due::Over {
            missed_check,
            deadline,
        })
    }

    /// Puts off a deadline that has come. The new deadline is `deadline`, but at least one tick from now and at most
    /// `max_timeout` after the operation's arrival. Returns `false` if that maximum has passed.
    #[cold]
    fn extend(&self, held: &mut Held<'_, Parked<Op>>, deadline: Deadline) -> bool {
        let at = held.address();
        // The clock may be the user's. If it panics, the operation expires.
        let timing = self.engine.guarded(|| self.engine.timing(None, deadline));
        let timing = timing.ok().map(|timing| Timing {
            deadline: timing.deadline.max(timing.start.saturating_add(1)),
            ..timing
        });
        let timing = timing.and_then(|timing| self.engine.bounded_from_arrival(at, timing));
        let Some(timing) = timing.filter(|timing| timing.deadline > timing.start) else {
            return false;
        };
        // Clear the expiry mark before the timer is filed: when the new timer fires, its mark must stay.
        held.forget_expiry();
        let filed = self.engine.shard(at.shard()).extend(at, timing);
        filed.map(|earlier| self.engine.announce(earlier)).is_ok()
    }

    /// Keeps a listener's operation parked for `time` from now. Unlike `extend`, clears no expiry mark: the mark of the
    /// deadline was cleared before the examination. If a mark is set now, the listener has ended its operation
    /// meanwhile.
    ///
    /// An entry among the early timers keeps the deadline meanwhile, so that the deadline cannot be moved any more. The
    /// listener removes the entry when it ends.
    #[cold]
    fn linger(&self, at: Address, time: Duration, deadline: Option<Tick>) -> bool {
        let engine = &self.engine;
        // The clock may be user code, and may panic.
        let Ok(timing) = engine.guarded(|| engine.timing(None, Duration::ZERO.into())) else {
            return false;
        };
        let timing = Timing {
            // Not bounded by `max_timeout`, which bounds the deadline only.
            deadline: engine.scale.ceil(timing.since.saturating_add(time)),
            ..timing
        };
        let shard = engine.shard(at.shard());
        let filed = self.early.change(|entries| {
            let (_, filed) = shard.times(at)?;
            let early = Early {
                deadline: deadline.unwrap_or(filed),
                wake: timing.deadline,
                last: false,
                lingers: true,
                crowd: 0,
            };
            entries.by_address.insert(at, early);
            shard.extend(at, timing).ok()
        });
        filed.map(|earlier| engine.announce(earlier)).is_some()
    }

    /// The times of an operation whose timer has fired before its deadline, and whether the operation is to be woken.
    /// If the deadline has come by `now`, removes the early timer, and returns the deadline as an `Err`. `Err(None)` if
    /// the operation has no early timer. If the time is not known, neither the deadline nor the wake-up has come: the
    /// timer is filed again, and fires in a pass that can read the clock.
    #[cold]
    fn begin_early(&self, at: Address, now: Option<Tick>) -> Result<(Early, bool), Option<Tick>> {
        self.early.change(|entries| {
            let early = entries.by_address.get_mut(&at).ok_or(None)?;
            let deadline = early.deadline;
            if now.is_some_and(|now| deadline <= now) {
                entries.by_address.remove(&at);
                return Err(Some(deadline));
            }
            // The wake-up is not due if the listener has meanwhile asked for a later recheck.
            let is_due = now.is_some_and(|now| early.wake <= now);
            if is_due {
                early.wake = NEVER;
            }
            Ok((*early, is_due))
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
