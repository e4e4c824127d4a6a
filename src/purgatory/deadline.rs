//! Deadlines: asking for one, moving it, and what becomes of an operation whose timer has fired.
//!
//! The thread that takes a timer out of the wheel holds the operation, or leaves a mark for the thread that does. Either
//! way the holder asks [`Inner::due`] what the timer was filed for:
//!
//! 1. For a time before the deadline (a recheck of a listener): the operation is told, and the timer is filed at the
//!    deadline, or at the next such time.
//! 2. For the deadline: the operation is examined once more. If it asks for more time then, its timer is filed anew.
//!    Otherwise it expires.
//!
//! The slot, the watches and the permit of the operation stay as they are, and so does the order among the watchers of
//! its keys.

use super::early::{Early, shared_moment};
use super::handle::Handle;
use super::inner::{Inner, Parked};
use super::reach::Located;
use crate::address::Address;
use crate::cell::slab::Held;
use crate::engine::shard::{Timing, Unchanged};
use crate::examining::Trigger;
use crate::hash::KeyHasher;
use crate::operation::{Cause, DelayedOperation};
use crate::panics::Panics;
use crate::scheme::Tick;
use crate::sync::Arc;
use crate::time::Timestamp;
use crate::time::ticks::NEVER;
use std::time::Duration;

/// What becomes of an operation whose timer has fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// It expires. Says whether it could have completed.
    Over { missed_check: bool },
    /// It is satisfied.
    Satisfied,
    /// It has another deadline, and is to be released.
    Later,
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// The timer of an operation that this thread holds has fired, at `now` if that is known.
    pub(super) fn due(
        self: &Arc<Self>,
        held: &mut Held<'_, Parked<Op>>,
        now: Option<Tick>,
    ) -> Result<Due, Panics> {
        if self.early.count() > 0 {
            // The clock may be the user's.
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

    /// The deadline of an operation has come: asks it once more.
    fn at_deadline(self: &Arc<Self>, held: &mut Held<'_, Parked<Op>>) -> Result<Due, Panics> {
        let at = held.address();
        let reach = Located::new(self, at);
        let mut panics = Panics::default();
        let answer = panics.catch(|| {
            let _inside = self.enter_try_complete(held.examinee(), Trigger::Deadline);
            held.with(|parked| parked.op.try_complete_for(Cause::deadline(&reach)))
        });
        let Some(missed_check) = answer else {
            return Err(panics);
        };
        let asked = reach.timeout().filter(|_| !missed_check);
        if asked.is_some_and(|timeout| self.extend(held, timeout)) {
            self.engine.count_extension(at);
            return Ok(Due::Later);
        }
        Ok(Due::Over { missed_check })
    }

    /// Puts the deadline of an operation off that has come: until `timeout` from now, for one tick at least, and at most
    /// until `max_timeout` from its arrival. `false` if that has passed.
    #[cold]
    fn extend(&self, held: &mut Held<'_, Parked<Op>>, timeout: Duration) -> bool {
        let at = held.address();
        // The clock may be the user's. If it panics, the operation expires.
        let timing = self.engine.guarded(|| self.engine.timing(None, timeout));
        let timing = timing.ok().map(|timing| Timing {
            deadline: timing.deadline.max(timing.start + 1),
            ..timing
        });
        let timing = timing.and_then(|timing| self.engine.bounded_from_arrival(at, timing));
        let Some(timing) = timing.filter(|timing| timing.deadline > timing.start) else {
            return false;
        };
        // Before the timer is filed: one that fires after that leaves its mark again.
        held.forget_expiry();
        let filed = self.engine.shard(at.shard()).extend(at, timing);
        filed.map(|earlier| self.engine.announce(earlier)).is_ok()
    }

    /// What the timer of an operation was filed for, if its deadline has not come by `now`; and whether the operation is to
    /// be woken.
    #[cold]
    fn begin_early(&self, at: Address, now: Option<Tick>) -> Option<(Early, bool)> {
        self.early.change(|entries| {
            let early = entries.by_address.get_mut(&at)?;
            if now.is_none_or(|now| early.deadline <= now) {
                entries.by_address.remove(&at);
                return None;
            }
            // Or the listener has asked for another recheck since.
            let is_due = now.is_some_and(|now| early.wake <= now);
            if is_due {
                early.wake = NEVER;
            }
            Some((*early, is_due))
        })
    }

    #[cold]
    fn examine_early(&self, held: &mut Held<'_, Parked<Op>>, last: bool) -> Result<bool, Panics> {
        let mut panics = Panics::default();
        let answer = panics.catch(|| {
            self.examine(held, Trigger::Deadline, |parked, _| {
                parked.op.try_complete_for(Cause::recheck(last))
            })
        });
        answer.ok_or(panics)
    }

    /// Files the timer of an operation that was woken early for what comes next.
    #[cold]
    fn file_after_waking(&self, held: &mut Held<'_, Parked<Op>>, early: Early) -> Due {
        let at = held.address();
        // Before the timer is filed, as in `extend`.
        held.forget_expiry();
        let filed = self.early.change(|entries| {
            // The entry is gone if the listener is: then a mark says how the operation ends.
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

    /// When the operation at `at` arrived, and when it expires, in ticks: `None` if it has ended.
    pub(super) fn times(&self, at: Address) -> Option<(Tick, Tick)> {
        let (arrived_at, filed) = self.engine.shard(at.shard()).times(at)?;
        Some((arrived_at, self.early.deadline(at).unwrap_or(filed)))
    }

    /// The deadline of the operation, rounded up to the tick. `None` if it has ended or never expires.
    pub(super) fn deadline(&self, at: Address) -> Option<Timestamp> {
        let (_, deadline) = self.times(at)?;
        (deadline != NEVER).then(|| self.engine.scale.timestamp(deadline))
    }

    /// The time until the deadline, zero if that has passed.
    pub(super) fn remaining(&self, at: Address) -> Option<Duration> {
        let deadline = self.deadline(at)?;
        Some(deadline.saturating_since(self.engine.clock.now()))
    }

    /// Lets the operation expire `timeout` from now instead. Returns whether it will.
    pub(super) fn reschedule(&self, at: Address, timeout: Duration) -> bool {
        self.reschedule_with(at, self.engine.timing(None, timeout))
    }

    /// An examination has asked for another deadline of its operation, which this thread holds.
    #[cold]
    #[inline(never)]
    pub(super) fn reschedule_itself(&self, at: Address, timeout: Duration) {
        let timing = self.engine.timing(None, timeout);
        if let Some(timing) = self.engine.bounded_from_arrival(at, timing) {
            // Refused if the deadline has come: then the examination that follows can ask for more time.
            self.reschedule_with(at, timing);
        }
    }

    fn reschedule_with(&self, at: Address, timing: Timing) -> bool {
        if self.early.deadline(at).is_none() {
            return self.engine.reschedule_with(at, timing);
        }
        let rescheduled = self.early.change(|entries| {
            let early = entries.by_address.get_mut(&at)?;
            let (_, filed) = self.engine.shard(at.shard()).times(at)?;
            if early.deadline <= timing.start {
                return None;
            }
            let next = Early {
                deadline: timing.deadline,
                ..*early
            };
            // Where the timer has fired for an earlier time, the thread that is at work on that files it anew.
            let is_early = filed < early.deadline && filed <= next.filed();
            let filed = match is_early {
                true => Some(None),
                false => self.refile(at, next, timing),
            };
            filed.inspect(|_| *early = next)
        });
        let rescheduled = rescheduled.map(|earlier| self.engine.announce(earlier));
        rescheduled.is_some()
    }

    /// Files the timer of an operation that has not fired for what comes next. Returns a deadline to announce.
    fn refile(&self, at: Address, next: Early, timing: Timing) -> Option<Option<Tick>> {
        let timing = Timing {
            deadline: next.filed(),
            ..timing
        };
        self.engine.reschedule_to(at, timing).ok()
    }

    /// Wakes the operation `delay` from now, or up to a `part` earlier, together with others, unless its deadline comes
    /// before. With `last`, it has no other deadline from now on, and may end then. `false` if it has ended or is about to
    /// expire, or if the system refuses a thread.
    fn wake_after(&self, at: Address, delay: Duration, part: Duration, last: bool) -> bool {
        let engine = &self.engine;
        // With the timeout, the reaper is needed.
        let timing = engine.timing(None, Duration::ZERO);
        let started = engine.start_reaper_to_reschedule(timing, || engine.is_parked(at));
        if started.is_err() {
            return false;
        }
        let due = timing.since.saturating_add(delay).since_origin();
        let tick = engine.scale.duration(1);
        let filed = self.early.change(|entries| {
            let (_, filed) = engine.shard(at.shard()).times(at)?;
            let known = entries.by_address.get(&at).copied();
            let crowd = known.map_or_else(|| entries.next_crowd(), |early| early.crowd);
            let wake = Timestamp::from_origin(shared_moment(due, part, crowd, tick));
            let next = Early {
                deadline: match last {
                    true => NEVER,
                    false => known.map_or(filed, |early| early.deadline),
                },
                wake: engine.scale.ceil(wake),
                last,
                crowd,
            };
            if known.is_none() && next.wake >= next.deadline {
                return Some(None);
            }
            // Where the timer has fired for an earlier time, the thread that is at work on that files it anew.
            let filed = self.refile(at, next, timing);
            let filed = filed.or(known.map(|_| None))?;
            entries.by_address.insert(at, next);
            Some(filed)
        });
        let filed = filed.map(|earlier| engine.announce(earlier));
        filed.is_some()
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Handle<Op, S> {
    /// [Wakes](Cause::recheck) the operation once, `delay` from now or up to a `part` earlier, together with others.
    /// Reads the clock.
    pub(crate) fn recheck(&self, delay: Duration, part: Duration) {
        self.with(|inner| inner.wake_after(self.address, delay, part, false));
    }

    /// [Wakes](Cause::recheck) the operation `delay` from now, and lets it end then. It has no other deadline from now on.
    /// `false` if it has ended or is about to expire.
    pub(crate) fn recheck_last(&self, delay: Duration) -> bool {
        let set = self.with(|inner| inner.wake_after(self.address, delay, Duration::ZERO, true));
        set == Some(true)
    }

    /// The operation has ended, or is about to.
    pub(crate) fn forget_rechecks(&self) {
        self.with(|inner| {
            if inner.early.count() > 0 {
                inner
                    .early
                    .change(|entries| entries.by_address.remove(&self.address));
            }
        });
    }
}
