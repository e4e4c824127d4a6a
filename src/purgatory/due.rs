//! Handles an operation whose timer has fired.
//!
//! The thread that takes a timer out of the wheel claims the operation, and then holds it. If another thread holds the
//! operation already, the claim leaves a mark in the operation's state word, which that holder finds when it releases
//! the operation. In both cases the holder calls [`Inner::due`]. The timer has fired for one of these reasons:
//!
//! 1. A recheck is due: a wake-up of a listener before the deadline, without a check. The operation wakes the listener.
//!    The timer is filed at the next recheck or at the deadline, whichever comes first.
//! 2. The grace is over. A recheck has shown the listener that its condition is true. After that the operation stays
//!    parked for a short time, the grace, because a late check may still announce the event. Now the operation ends as
//!    satisfied.
//! 3. The deadline has come. The operation is examined once more. Then there are three cases:
//!    * The operation asks for more time. Its timer is filed at the new deadline.
//!    * The operation belongs to a listener that evaluates its condition at the deadline. The operation wakes the
//!      listener, and stays parked during that evaluation.
//!    * Otherwise the operation expires.

use super::early::Early;
use super::inner::{Inner, Parked};
use super::reach::OperationReach;
use crate::callbacks::examining::Trigger;
use crate::callbacks::panics::Panics;
use crate::cell::address::Address;
use crate::cell::slab::Held;
use crate::engine::shard::{Timing, Unchanged};
use crate::hash::KeyHasher;
use crate::observe::Observer;
use crate::operation::{Cause, DelayedOperation};
use crate::scheme::Tick;
use crate::stats::Statistic;
use crate::sync::Arc;
use crate::time::ticks::NEVER;
use crate::time::{Deadline, Timestamp};
use std::time::Duration;

/// What becomes of an operation whose timer has fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// The operation expires. `missed_check` says whether it could have completed. `deadline` is the operation's
    /// deadline, if an entry in `Inner::early` has stored it, because the timer could fire before the deadline as well,
    /// to wake a listener. `None` if there was no such entry: the timer was filed at the deadline.
    Over {
        missed_check: bool,
        deadline: Option<Tick>,
    },
    /// The operation is satisfied.
    Satisfied,
    /// The operation stays parked, because its timer is filed at another time now. The caller must release the
    /// operation.
    Later,
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Decides what becomes of an operation that this thread holds, and whose timer has fired. `now` is the present
    /// tick, or `None` if the caller has not read the clock. `Err` if the `try_complete` of the operation has panicked.
    pub(super) fn due(
        self: &Arc<Self>,
        held: &mut Held<'_, Parked<Op>>,
        now: Option<Tick>,
    ) -> Result<Due, Panics> {
        let mut deadline = None;
        if self.early.count() > 0 {
            // The clock may be user code. If it panics, `now` stays unknown.
            let now = now.or_else(|| self.engine.guarded(|| self.engine.now()).ok());
            match self.begin_early(held.address(), now) {
                Ok((early, is_due)) => {
                    if is_due {
                        self.examine_early(held, early.last)?;
                        if early.last {
                            return Ok(Due::Satisfied);
                        }
                    }
                    return Ok(self.file_after_waking(held, early));
                }
                Err(known) => deadline = known,
            }
        }
        self.at_deadline(held, deadline)
    }

    /// Examines an operation whose deadline has come. `Err` if its `try_complete` panics.
    ///
    /// If the operation can complete, a check was missed: the event has happened, and no check was made, or a bounded
    /// check has stopped before it reached this operation.
    ///
    /// `deadline` is the deadline that the operation's entry in `Inner::early` has stored, because the timer could fire
    /// before the deadline as well, to wake a listener. `None` if there was no entry: the timer was filed at the
    /// deadline.
    fn at_deadline(
        self: &Arc<Self>,
        held: &mut Held<'_, Parked<Op>>,
        deadline: Option<Tick>,
    ) -> Result<Due, Panics> {
        let at = held.address();
        let reach = OperationReach::new(self, at);
        let missed_check = Panics::caught(|| {
            let _inside = self.enter_try_complete(held.examinee(), Trigger::Deadline);
            held.with(|parked| parked.op.try_complete_for(Cause::deadline(&reach)))
        })?;
        let time = reach.lingers();
        if time.is_some_and(|time| self.linger(at, time, deadline)) {
            return Ok(Due::Later);
        }
        let asked = reach.deadline().filter(|_| !missed_check);
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
    /// `max_timeout` after the operation's arrival. Returns `false` if that maximum has passed or the clock panics:
    /// then the operation expires.
    #[cold]
    fn extend(&self, held: &mut Held<'_, Parked<Op>>, deadline: Deadline) -> bool {
        let at = held.address();
        // The clock may be user code. If it panics, the operation expires.
        let timing = self.engine.guarded(|| self.engine.timing(None, deadline));
        let timing = timing.ok().map(|timing| Timing {
            deadline: timing.deadline.max(self.engine.scale.next(timing.start)),
            ..timing
        });
        let timing = timing.and_then(|timing| self.engine.bounded_from_arrival(at, timing));
        let Some(timing) = timing.filter(|timing| timing.deadline > timing.start) else {
            return false;
        };
        // Another thread may have set `Mark::Expire`, to report that the timer has fired at the old deadline. Clear
        // this mark before the timer is filed anew, not after: the timer may fire at the new deadline at once, and
        // another thread then sets the mark for that. If this thread cleared the new mark, the operation would not
        // expire.
        held.forget_expiry();
        let filed = self.engine.shard(at.shard()).extend(at, timing);
        filed.map(|earlier| self.engine.announce(earlier)).is_ok()
    }

    /// Keeps a listener's operation parked for `time` from now, although its deadline has come, so that checks still
    /// reach the listener during its last evaluation. Returns `false` if the clock panics: then the operation expires.
    ///
    /// Meanwhile the timer is filed at the end of `time`, and an entry in `Inner::early` keeps the deadline that has
    /// come: `deadline`, or the tick at which the timer was filed before if `deadline` is `None`. While the entry
    /// exists, no call can move the deadline. The listener removes the entry when it ends.
    ///
    /// Unlike `extend`, this method does not clear `Mark::Expire`, a bit that asks the holder to expire the operation.
    /// A mark that another thread had left when the timer fired was cleared before the examination. A mark that is set
    /// now comes from the listener, which asks for the end of its operation. This request must not be lost.
    #[cold]
    fn linger(&self, at: Address, time: Duration, deadline: Option<Tick>) -> bool {
        let engine = &self.engine;
        // The clock may be user code. If it panics, the operation expires.
        let Ok(timing) = engine.guarded(|| engine.timing(None, Duration::ZERO.into())) else {
            return false;
        };
        let timing = Timing {
            // The timer is filed at the tick until which the operation stays parked for its listener. This is no
            // deadline of the user's, so `max_timeout` does not limit it.
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

    /// Decides why the timer of the operation at `at` has fired. `now` is the present tick, or `None` if the clock has
    /// panicked.
    ///
    /// * `Err(None)`: the operation has no entry among the early timers (`Inner::early`), so the timer was filed at the
    ///   deadline.
    /// * `Err(Some(deadline))`: the deadline has come. The entry was removed.
    /// * `Ok((early, is_due))`: the deadline has not come. `early` is the entry, and `is_due` says whether the
    ///   operation is to be woken.
    ///
    /// If `now` is `None`, neither the deadline nor the wake-up counts as reached. The caller then files the timer
    /// again at the same tick, so it fires once more as soon as the thread that drives the timer can read the clock.
    #[cold]
    fn begin_early(&self, at: Address, now: Option<Tick>) -> Result<(Early, bool), Option<Tick>> {
        self.early.change(|entries| {
            let early = entries.by_address.get_mut(&at).ok_or(None)?;
            let deadline = early.deadline;
            if now.is_some_and(|now| deadline <= now) {
                entries.by_address.remove(&at);
                // Without the entry, the slot tells the deadline.
                self.engine.shard(at.shard()).note_deadline(at, deadline);
                return Err(Some(deadline));
            }
            // The listener may have put off its recheck after the timer had fired. In this case the wake-up is not due
            // yet.
            let is_due = now.is_some_and(|now| early.wake <= now);
            if is_due {
                early.wake = NEVER;
            }
            Ok((*early, is_due))
        })
    }

    /// Tells a listener's operation that its timer has fired before the deadline. With `last`, the grace is over: the
    /// operation answers whether a check was missed, and this call counts it. `Err` if the waker of the listener's task
    /// has panicked.
    #[cold]
    fn examine_early(&self, held: &mut Held<'_, Parked<Op>>, last: bool) -> Result<(), Panics> {
        let missed_check = Panics::caught(|| {
            self.examine(held, Trigger::Deadline, |parked, _| {
                parked.op.try_complete_for(Cause::recheck(last))
            })
        })?;
        if missed_check {
            self.count_missed_check();
        }
        Ok(())
    }

    /// Counts a missed check of an operation that has not ended by its deadline, and reports it to the user's metrics
    /// recorder and tracing subscriber.
    pub(super) fn count_missed_check(&self) {
        self.engine.count(Statistic::MissedCheck, 1);
        self.engine.observe(Observer::missed_check);
    }

    /// Called when the timer of an operation has fired before the deadline. Sets the timer again: to the next recheck
    /// (a wake-up of the listener) or to the deadline, whichever comes first. `early` is the entry that `begin_early`
    /// has read.
    #[cold]
    fn file_after_waking(&self, held: &mut Held<'_, Parked<Op>>, early: Early) -> Due {
        let at = held.address();
        let filed = self.early.change(|entries| {
            let entry = entries.by_address.get(&at);
            // Clear `Mark::Expire`, which another thread may have set when the timer fired. This must come first,
            // before the timer is set again: when the timer then fires once more, another thread may set the mark
            // again. If that mark were cleared, the second firing would be lost.
            //
            // If the entry is gone, the operation is about to end, usually because another thread is ending the
            // listener. Then the time of the timer does not matter any more, and `Mark::Expire` must stay: it may be
            // the listener's request to end the operation. A listener that leaves this mark removes the entry first. So
            // if the entry is there, the mark is not from the listener, and may be cleared.
            if entry.is_some() {
                held.forget_expiry();
            }
            let next = entry.unwrap_or(&early).filed();
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
            // INVARIANT: `extend` fails only if the operation has ended, or the scheme cannot hold the deadline. This
            // thread holds the operation, so the operation has not ended; and the wheel of a purgatory holds every
            // deadline.
            Err(Unchanged) => unreachable!("an operation that is held has not ended"),
        }
    }
}
