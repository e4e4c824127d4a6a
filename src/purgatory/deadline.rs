//! Deadlines of operations: reading a deadline, moving it, and waking an operation before it.
//!
//! When a deadline moves, the operation keeps its slot, its watches, its permit (its share of `max_parked`), and its
//! place among the watchers of its keys.

use super::early::{Early, shared_moment};
use super::handle::Handle;
use super::inner::Inner;
use crate::cell::address::Address;
use crate::engine::shard::{Timing, Unchanged};
use crate::hash::KeyHasher;
use crate::operation::DelayedOperation;
use crate::scheme::Tick;
use crate::time::ticks::NEVER;
use crate::time::{Deadline, Timestamp};
use std::time::Duration;

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// When the operation at `at` arrived and when it expires, in ticks. `None` if the operation has ended. The
    /// operation's timer may be filed before the deadline, to wake a listener. Then an entry in `Inner::early` keeps
    /// the deadline.
    pub(super) fn times(&self, at: Address) -> Option<(Tick, Tick)> {
        let (arrived_at, filed) = self.engine.shard(at.shard()).times(at)?;
        Some((arrived_at, self.early.deadline(at).unwrap_or(filed)))
    }

    /// The deadline of the operation at `at`, rounded up to the tick. `None` if the operation has ended or never
    /// expires.
    pub(super) fn deadline(&self, at: Address) -> Option<Timestamp> {
        let (_, deadline) = self.times(at)?;
        (deadline != NEVER).then(|| self.engine.scale.timestamp(deadline))
    }

    /// The time until the deadline of the operation at `at`; zero if the deadline has passed. `None` if the operation
    /// has ended or never expires.
    pub(super) fn remaining(&self, at: Address) -> Option<Duration> {
        let deadline = self.deadline(at)?;
        Some(deadline.saturating_since(self.engine.clock.now()))
    }

    /// Moves the deadline of the operation at `at` to `deadline`. Returns `false` if the operation has ended, if its
    /// old deadline has passed, or if the system refuses the reaper's thread.
    pub(super) fn reschedule(&self, at: Address, deadline: Deadline) -> bool {
        self.reschedule_with(at, self.engine.timing(None, deadline))
    }

    /// Moves the deadline of an operation that this thread holds, because the operation has asked for that in its
    /// examination (`Cause::reschedule`). The new deadline is at most `max_timeout` after the operation's arrival.
    #[cold]
    #[inline(never)]
    pub(super) fn reschedule_itself(&self, at: Address, deadline: Deadline) {
        let timing = self.engine.timing(None, deadline);
        if let Some(timing) = self.engine.bounded_from_arrival(at, timing) {
            // This fails if the old deadline has passed. The operation loses nothing: in the examination at the old
            // deadline it can ask for more time.
            self.reschedule_with(at, timing);
        }
    }

    fn reschedule_with(&self, at: Address, timing: Timing) -> bool {
        let mut is_filed = false;
        if self.early.deadline(at).is_none() {
            is_filed = self.engine.reschedule_with(at, timing);
            // Look again for an entry in `Inner::early`, because another thread may have added one meanwhile, in
            // `wake_after`. That thread locks the early timers, and inside that lock the timer shard, to read the
            // deadline. The call above locks the shard too. If this thread was first there, the entry has the new
            // deadline. If the other thread was first, this look waits for the lock of the early timers, and finds the
            // entry.
            if self.early.deadline(at).is_none() {
                return is_filed;
            }
        }
        let (is_moved, earlier) =
            self.early
                .change(|entries| match entries.by_address.get_mut(&at) {
                    Some(early) => self.reschedule_early(at, early, timing, is_filed),
                    None => (is_filed, None),
                });
        self.engine.announce(earlier);
        is_moved
    }

    /// Moves the deadline of an operation that has an entry in `Inner::early`. `is_filed` says whether the caller filed
    /// the timer at the new deadline before it found the entry. Returns whether the deadline was moved, and the tick
    /// that the caller announces to the thread that drives the timer, if any.
    #[cold]
    fn reschedule_early(
        &self,
        at: Address,
        early: &mut Early,
        timing: Timing,
        is_filed: bool,
    ) -> (bool, Option<Tick>) {
        if early.lingers {
            // The deadline has come, so it cannot be moved any more. If the caller has filed the timer at the new
            // deadline, file it again at the time until which the operation lingers.
            let earlier = match is_filed {
                true => self.refile(at, *early, timing).unwrap_or_default(),
                false => None,
            };
            return (false, earlier);
        }
        let Some((_, filed)) = self.engine.shard(at.shard()).times(at) else {
            return (is_filed, None);
        };
        if early.deadline <= timing.start {
            return (is_filed, None);
        }
        let next = Early {
            deadline: timing.deadline,
            ..*early
        };
        let is_early = filed < early.deadline;
        let earlier = if is_early && filed <= next.filed() {
            // The timer is filed before the deadline, for a wake-up, and no later than the next time at which it has to
            // fire. So it stays where it is.
            None
        } else {
            match self.refile(at, next, timing) {
                Ok(earlier) => earlier,
                // The timer has fired, or is about to, before the deadline. The thread that handles the firing files
                // the timer at the tick of `next`, the entry that is stored below.
                Err(Unchanged) if is_early => None,
                Err(Unchanged) => return (is_filed, None),
            }
        };
        *early = next;
        (true, earlier)
    }

    /// Files the timer of an operation at the tick that `next`, its entry, asks for ([`Early::filed`]). Returns the
    /// tick that the caller announces to the thread that drives the timer, if any.
    ///
    /// # Errors
    /// The timer has fired, or the operation has ended.
    fn refile(&self, at: Address, next: Early, timing: Timing) -> Result<Option<Tick>, Unchanged> {
        let timing = Timing {
            deadline: next.filed(),
            ..timing
        };
        self.engine.reschedule_to(at, timing)
    }

    /// Wakes the operation `delay` from now, or up to one `part` earlier, so that one wake-up of the thread that drives
    /// the timer serves several operations. If the deadline comes first, the operation is not woken. With `last`, the
    /// wake-up replaces the deadline, and the operation may end then. Returns `false` if the operation has ended or is
    /// about to expire, or if the system refuses a thread.
    fn wake_after(&self, at: Address, delay: Duration, part: Duration, last: bool) -> bool {
        let engine = &self.engine;
        // The time of the wake-up is computed below. A timeout of zero stands for it here: it is finite too, so the
        // next call starts the reaper if it is not running yet.
        let timing = engine.timing(None, Duration::ZERO.into());
        let started = engine.start_reaper_to_reschedule(timing, || engine.is_parked(at));
        if started.is_err() {
            return false;
        }
        let due = timing.since.saturating_add(delay).since_origin();
        let tick = engine.scale.duration(1);
        let filed = self.early.change(|entries| {
            let times = engine.shard(at.shard()).times(at);
            let (_, filed) = times.ok_or(Unchanged)?;
            let known = entries.by_address.get(&at).copied();
            if known.is_some_and(|early| early.lingers) && !last {
                return Err(Unchanged);
            }
            let crowd = known.map_or_else(|| entries.next_crowd(), |early| early.crowd);
            let wake = Timestamp::from_origin(shared_moment(due, part, crowd, tick));
            let next = Early {
                deadline: match last {
                    true => NEVER,
                    false => known.map_or(filed, |early| early.deadline),
                },
                wake: engine.scale.ceil(wake),
                last,
                lingers: false,
                crowd,
            };
            let earlier = if known.is_none() && next.wake >= next.deadline {
                // The deadline comes before the wake-up, so the timer stays filed at the deadline. The entry is needed
                // if the deadline is moved behind the wake-up later.
                None
            } else {
                match self.refile(at, next, timing) {
                    Ok(earlier) => earlier,
                    // The operation had an entry already, and its timer has fired: the thread that handles the firing
                    // files the timer again, at the tick of `next`, the entry that is stored below.
                    Err(Unchanged) if known.is_some() => None,
                    Err(Unchanged) => return Err(Unchanged),
                }
            };
            entries.by_address.insert(at, next);
            Ok(earlier)
        });
        filed.map(|earlier| engine.announce(earlier)).is_ok()
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Handle<Op, S> {
    /// Makes the thread that drives the timer [wake](crate::operation::Cause::recheck) the operation once, `delay` from
    /// now or up to one `part` earlier. Operations that are due within one `part` share a wake-up of that thread. Does
    /// nothing if the operation has ended or is about to expire. Reads the clock.
    pub(crate) fn recheck(&self, delay: Duration, part: Duration) {
        self.with(|inner| inner.wake_after(self.address, delay, part, false));
    }

    /// Makes the thread that drives the timer [wake](crate::operation::Cause::recheck) the operation `delay` from now,
    /// and lets the operation end then. This time replaces the deadline. Returns `false` if the operation has ended or
    /// is about to expire, or if the system refuses the thread.
    pub(crate) fn recheck_last(&self, delay: Duration) -> bool {
        let set = self.with(|inner| inner.wake_after(self.address, delay, Duration::ZERO, true));
        set == Some(true)
    }

    /// Removes the early timer (the entry in `Inner::early`) of an operation that has ended or is about to end. Without
    /// this call, the entry would stay until the purgatory is idle.
    pub(crate) fn forget_rechecks(&self) {
        self.forget_early(|_| true);
    }

    /// Removes the early timer (the entry in `Inner::early`) of an operation that stays parked beyond its deadline,
    /// while its listener evaluates its condition once more. Any other early timer stays.
    pub(crate) fn forget_linger(&self) {
        self.forget_early(|early| early.lingers);
    }

    fn forget_early(&self, which: impl FnOnce(&Early) -> bool) {
        self.with(|inner| {
            if inner.early.count() > 0 {
                inner.early.change(|entries| {
                    if entries.by_address.get(&self.address).is_some_and(which) {
                        entries.by_address.remove(&self.address);
                    }
                });
            }
        });
    }
}
