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
    /// When the operation at `at` arrived, and the tick at which it expires. `None` if the operation has ended. The timer
    /// of a listener's operation may be set to an earlier tick than the deadline, to wake the listener. In this case
    /// the deadline is stored in the operation's entry in `Inner::early`, the table of such timers.
    pub(super) fn times(&self, at: Address) -> Option<(Timestamp, Tick)> {
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
        let engine = &self.engine;
        let timing = engine.timing(None, deadline);
        let started = engine.start_reaper_to_reschedule(timing, || engine.is_parked(at));
        started.is_ok() && self.reschedule_with(at, timing)
    }

    /// Moves the deadline of an operation that this thread holds. Called if the operation has asked for a new deadline
    /// in its examination (`Cause::reschedule`). The new deadline is at most `max_timeout` after the operation's
    /// arrival.
    #[cold]
    #[inline(never)]
    pub(super) fn reschedule_itself(&self, at: Address, deadline: Deadline) {
        let timing = self.engine.timing(None, deadline);
        if let Some(timing) = self.engine.bounded_from_arrival(at, timing) {
            // Ignore a refusal of the reaper's thread: `try_complete` has returned, so the operation cannot be told.
            // The deadline is moved all the same. A reaper that is started later finds it, and so does `advance`.
            let _ = self.engine.start_reaper_to_reschedule(timing, || true);
            // This fails if the old deadline has passed. The operation loses nothing: in the examination at the old
            // deadline it can ask for more time.
            self.reschedule_with(at, timing);
        }
    }

    /// Moves the deadline of the operation at `at` to the one in `timing`. Starts no reaper. Returns `false` if the
    /// operation has ended, or if its old deadline has passed.
    fn reschedule_with(&self, at: Address, timing: Timing) -> bool {
        let mut is_filed = false;
        if self.early.deadline(at).is_none() {
            let filed = self.engine.shard(at.shard()).reschedule(at, timing);
            is_filed = filed.map(|earlier| self.engine.announce(earlier)).is_ok();
            // Look again for an entry in `Inner::early`, because another thread may have added one meanwhile, in
            // `wake_after`. That thread takes the lock of the early timers, and inside it the lock of the timer shard,
            // to read the deadline. `reschedule` above takes the lock of the timer shard too. So there are two cases:
            //
            // * `reschedule` had the lock of the timer shard first. Then the other thread has read the new deadline,
            //   and its entry is right.
            // * The other thread had the lock of the timer shard first. Then it had the lock of the early timers
            //   already. The call of `deadline` below waits for the lock of the early timers, and finds the entry.
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

    /// Moves the deadline of an operation whose timer may fire before the deadline, to wake a listener: stores the new
    /// deadline in `early`, the operation's entry in `Inner::early`, and sets the timer to another tick if necessary.
    /// `is_filed` says whether the caller has already set the timer to the new deadline. The caller does so if it finds
    /// no entry at first, and another thread then adds one.
    ///
    /// Returns whether the deadline was moved (by this call or before it, by the caller), and the tick that the caller
    /// announces to the thread that drives the timer, if any.
    #[cold]
    fn reschedule_early(
        &self,
        at: Address,
        early: &mut Early,
        timing: Timing,
        is_filed: bool,
    ) -> (bool, Option<Tick>) {
        if early.lingers || early.last {
            // The operation has no deadline any more that could be moved: its deadline has come, and it stays parked
            // while its listener evaluates the condition once more, or its listener has ended, and it stays parked for
            // the grace. If the caller has set the timer to the new deadline, set the timer again to the end of this
            // time.
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
            // If `filed` is the tick for which `next` asks, the timer is right already. If `filed` is earlier, the
            // timer has fired to wake the operation. The thread that handles the firing reads the entry, which is
            // `next` from here on, and sets the timer.
            None
        } else {
            match self.refile(at, next, timing) {
                Ok(earlier) => earlier,
                // The timer, which was set before the deadline to wake a listener, has fired or is about to fire. The
                // thread that handles the firing reads the entry, which is `next` from here on, and sets the timer to
                // the next tick that the entry gives.
                Err(Unchanged) if is_early => None,
                Err(Unchanged) => return (is_filed, None),
            }
        };
        *early = next;
        (true, earlier)
    }

    /// Sets the timer of an operation to the tick that its entry `next` in `Inner::early` asks for ([`Early::filed`]).
    /// If the timer shard's next deadline is earlier now, returns this deadline. The caller then announces it to the
    /// thread that drives the timer, which may have to wake earlier.
    ///
    /// # Errors
    /// The timer has fired, or the operation has ended.
    fn refile(&self, at: Address, next: Early, timing: Timing) -> Result<Option<Tick>, Unchanged> {
        let timing = Timing {
            deadline: next.filed(),
            ..timing
        };
        self.engine.shard(at.shard()).reschedule(at, timing)
    }

    /// Makes the thread that drives the timer wake the operation `delay` from now, or earlier by less than `part`.
    /// Because of this tolerance, one wake-up of that thread serves several operations. If the deadline comes first,
    /// the operation is not woken. With `last`, the operation loses its deadline, and ends at the wake-up: its listener
    /// has already found the event, and only a late check is awaited. Returns `false` if the operation has ended or is
    /// about to expire, or if `last` is set and the system refuses the reaper's thread.
    fn wake_after(&self, at: Address, delay: Duration, part: Duration, last: bool) -> bool {
        let engine = &self.engine;
        // The wake-up needs the reaper. `start_reaper_to_reschedule` starts the reaper if `timing` has a finite
        // deadline. So any finite timeout will do here, and zero is only a placeholder: `refile` below sets the tick of
        // the wake-up.
        let timing = engine.timing(None, Duration::ZERO.into());
        let started = engine.start_reaper_to_reschedule(timing, || engine.is_parked(at));
        // If the system refuses the thread, file a recheck all the same. A reaper that is started later finds it, and
        // so does `advance`. But the last wake-up ends an operation whose listener has gone. If no thread came, the
        // operation would stay parked for ever.
        if last && started.is_err() {
            return false;
        }
        let due = timing.since.saturating_add(delay);
        let tick = engine.scale.duration(1);
        let filed = self.early.change(|entries| {
            let times = engine.shard(at.shard()).times(at);
            let (_, filed) = times.ok_or(Unchanged)?;
            let known = entries.by_address.get(&at).copied();
            if known.is_some_and(|early| early.lingers) && !last {
                return Err(Unchanged);
            }
            let crowd = known.map_or_else(|| entries.next_crowd(), |early| early.crowd);
            let wake = shared_moment(due, part, crowd, tick);
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
                // The deadline comes before the wake-up, so the timer stays filed at the deadline. Store the entry all
                // the same. If the deadline is later moved to a time after the wake-up, the entry tells when to wake
                // the operation.
                None
            } else {
                match self.refile(at, next, timing) {
                    Ok(earlier) => earlier,
                    // The operation had an entry in `Inner::early` before this call, and its timer has fired. The
                    // thread that handles the firing will file the timer again. It finds the new entry, `next`, which
                    // is stored below, and files the timer at the tick for which that entry asks.
                    Err(Unchanged) if known.is_some() => None,
                    Err(Unchanged) => return Err(Unchanged),
                }
            };
            entries.by_address.insert(at, next);
            Ok(earlier)
        });
        filed.map(|earlier| engine.announce(earlier)).is_ok()
    }

    /// Removes the entry of the operation at `at` in `Inner::early`, as [`Handle::forget_early`] does.
    pub(super) fn forget_early(&self, at: Address, lingers: bool) {
        if self.early.count() > 0 {
            self.early.change(|entries| {
                let early = entries.by_address.get(&at);
                if early.is_some_and(|early| early.lingers == lingers) {
                    entries.by_address.remove(&at);
                }
            });
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Handle<Op, S> {
    /// Makes the thread that drives the timer [wake](crate::operation::Cause::recheck) the operation once: `delay` from
    /// now, or earlier by less than `part`. Because of this tolerance, operations that are due at about the same time
    /// share a wake-up of that thread. If the system refuses the reaper's thread, the wake-up comes once a later call
    /// has started the thread, or in the next `advance`. Does nothing if the operation has ended or is about to expire.
    /// Reads the clock.
    pub(crate) fn recheck(&self, delay: Duration, part: Duration) {
        self.with(|inner| inner.wake_after(self.address, delay, part, false));
    }

    /// Makes the thread that drives the timer [wake](crate::operation::Cause::recheck) the operation for the last time,
    /// after `delay` from now. This wake-up replaces the deadline: it tells the operation to end. Returns `false` if
    /// the operation has ended or is about to expire, or if the system refuses the thread.
    pub(crate) fn recheck_last(&self, delay: Duration) -> bool {
        let set = self.with(|inner| inner.wake_after(self.address, delay, Duration::ZERO, true));
        set == Some(true)
    }

    /// Removes the entry of this operation in `Inner::early`, if its [`lingers`](Early::lingers) is as given. An
    /// operation has at most one entry:
    ///
    /// * `false`: the entry is for rechecks. It says that the timer may fire before the deadline, to wake a listener.
    ///   This method is called when the operation has ended or is about to end. Otherwise the entry would stay until
    ///   the purgatory is idle.
    /// * `true`: the entry says that the operation stays parked beyond its deadline, while its listener evaluates its
    ///   condition for the last time. The entry stores the deadline, which the report of the ending needs.
    pub(crate) fn forget_early(&self, lingers: bool) {
        self.with(|inner| inner.forget_early(self.address, lingers));
    }
}
