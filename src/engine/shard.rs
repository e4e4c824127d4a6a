//! A timer shard: the slots and the timers of the payloads (operations or timer values) that some of the threads park.
//!
//! Each thread parks in the shard that its number selects, so threads rarely contend for a lock, whatever the keys and
//! timeouts are. The slots and the timer wheel of a shard are under one lock. A park takes a slot and starts its timer
//! in one hold of the lock. An ending stops the timer and frees the slot in one hold.

use crate::cell::address::Address;
use crate::cell::slab::{EndedSlot, Fields, FieldsView, Held, Slab, SlabGuard, Spent};
use crate::error::RejectReason;
use crate::scheme::{HorizonError, Position, Records, Scheme, Step, Tick};
use crate::stats::{Counters, Counts, Ending, Statistic};
use crate::sync::{CachePadded, PARKS_PER_EMPTYING, SLICE};
use crate::time::Timestamp;
use crate::time::ticks::NEVER;

/// The arrival and the deadline of a payload, in ticks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// The tick at which the payload arrived.
    pub(crate) start: Tick,
    pub(crate) deadline: Tick,
    /// A tick that has certainly passed. The wheel may advance to this tick. If the user has supplied the arrival, this
    /// tick is 0: the supplied time may lie in the future, and a wheel that advanced to it would skip deadlines. A
    /// scheme with a horizon (a latest deadline, counted from this tick) is an exception: there this tick is `start`,
    /// because the times that users supply to such a scheme do not lie in the future.
    pub(crate) present: Tick,
    /// The reading of the clock from which the ticks were computed.
    pub(crate) since: Timestamp,
}

/// The timer wheel of a shard, and other state under the lock of the shard's slots.
pub(crate) struct Schedule<W> {
    timer: W,
    wheel_size: u32,
    /// The latest tick at which a pass has begun. A pass is one round of expiry.
    begun: Tick,
    /// Why the shard rejects payloads: set by a drain or by the shutdown. `None` while the shard takes payloads.
    rejects: Option<RejectReason>,
    /// The number of parks until the next one that empties the remote free list (slots that were freed without the
    /// lock).
    parks_to_empty: u32,
}

impl<W: Scheme> Schedule<W> {
    /// Starts the timer of the slot at `index`, unless the timer never fires. Returns the timer's position in the
    /// wheel, and the shard's next deadline if this timer has made it earlier. `Err` if the scheme cannot hold a
    /// deadline so late.
    #[inline(always)]
    fn start(
        &mut self,
        records: &mut impl Records,
        index: u32,
        timing: Timing,
    ) -> Result<(Position, Option<Tick>), HorizonError> {
        if timing.deadline == NEVER {
            return Ok((Position::NONE, None));
        }
        let (timer, deadline) = (&mut self.timer, timing.deadline);
        let started = timer.start(records, index, deadline, timing.present)?;
        Ok((started.position, started.earliest))
    }
}

/// A shard's lock, held by this thread.
pub(crate) type Guard<'a, P, W> = SlabGuard<'a, P, Schedule<W>>;

pub(crate) struct Shard<P, W> {
    pub(crate) number: usize,
    pub(crate) slab: Slab<P, Schedule<W>>,
    /// Counts that are written under the slab's lock.
    pub(super) locked_counts: CachePadded<Counts>,
    pub(super) counters: Counters,
}

/// A reschedule has changed nothing, for one of these reasons:
///
/// * The payload has ended.
/// * Its deadline has passed.
/// * The scheme cannot hold the new deadline.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unchanged;

impl<P, G> Records for FieldsView<'_, P, G> {
    fn deadline(&self, id: u32) -> Tick {
        self.read(id).deadline
    }

    #[inline]
    fn set_position(&mut self, id: u32, position: Position) {
        self.update(id, |fields| fields.position = position.number());
    }
}

impl<P, W: Scheme> Shard<P, W> {
    pub(crate) fn new(number: usize, wheel_size: u32, rejects: Option<RejectReason>) -> Self {
        let schedule = Schedule {
            timer: W::new(wheel_size, 0),
            wheel_size,
            begun: 0,
            rejects,
            parks_to_empty: 1,
        };
        Self {
            number,
            slab: Slab::new(number, schedule),
            locked_counts: CachePadded::default(),
            counters: Counters::default(),
        }
    }

    /// Gives `payload` a slot and starts its timer. The caller then holds the payload. `guard` is this shard's lock.
    /// `watches` is only added to a count. The shard gets at most `limit` slots. If the payload has made the shard's
    /// next deadline earlier, also returns that deadline, which the caller announces to the reaper. A rejected payload
    /// is returned in the error.
    #[inline(always)]
    pub(crate) fn admit<'a>(
        &'a self,
        guard: &mut Guard<'a, P, W>,
        payload: P,
        watches: usize,
        timing: Timing,
        limit: u32,
    ) -> Result<(Held<'a, P>, Option<Tick>), (RejectReason, P)> {
        let (schedule, _) = guard.split();
        if let Some(reason) = schedule.rejects {
            return Err((reason, payload));
        }
        // Empty the remote free list (slots that were freed without the lock) only once in several parks. Each look
        // takes the list's cache line from the processor of a thread that pushes slots there, and that processor has to
        // fetch the line back.
        schedule.parks_to_empty -= 1;
        if schedule.parks_to_empty == 0 || guard.is_full(limit) {
            self.empty_remote_for_park(guard);
        }
        let Some(vacant) = guard.take_vacant(limit) else {
            return Err((RejectReason::Full, payload));
        };
        let (schedule, mut records) = guard.split();
        match schedule.start(&mut records, vacant.index(), timing) {
            Ok((position, earliest)) => {
                let fields = Fields {
                    deadline: timing.deadline,
                    arrived_at: timing.since.nanos(),
                    position: position.number(),
                };
                let held = guard.fill(vacant, payload, fields);
                let counts = &self.locked_counts;
                counts.of(Statistic::Admitted).add_exclusively(1);
                counts.of(Statistic::Watched).add_exclusively(watches);
                Ok((held, earliest))
            }
            Err(HorizonError { .. }) => {
                guard.put_back(vacant);
                Err((RejectReason::TooLong, payload))
            }
        }
    }

    /// [Empties](Self::empty_remote) the remote free list (slots that were freed without the lock) during a park, and
    /// restarts the count of parks after which a park empties the list again.
    #[inline(never)]
    fn empty_remote_for_park(&self, guard: &mut Guard<'_, P, W>) {
        guard.split().0.parks_to_empty = PARKS_PER_EMPTYING;
        self.empty_remote(guard);
    }

    /// Frees the slot of a payload that has ended, stops its timer, and counts the ending. The caller has already
    /// removed the payload's `watches` from the watch lists; this call counts them as removed.
    ///
    /// Never waits. If another thread has the lock, this call counts the ending by `count`, and leaves the slot on the
    /// remote free list for the next holder of the lock.
    #[inline(always)]
    pub(crate) fn free<'a>(
        &'a self,
        spent: Spent<'a, P>,
        ending: Ending,
        watches: usize,
        count: impl FnOnce(),
    ) {
        let Some(mut guard) = self.slab.try_lock() else {
            return self.free_later(spent.detach(), count);
        };
        let counts = &self.locked_counts;
        counts.ended(ending).add_exclusively(1);
        counts.of(Statistic::Unwatched).add_exclusively(watches);
        let position = Position::new(guard.position_of(&spent));
        let (schedule, mut fields) = guard.split();
        schedule.timer.stop(&mut fields, position);
        guard.put_back_spent(spent);
        self.empty_remote(&mut guard);
    }

    /// [Frees](Self::free) a slot while another thread has the lock: counts the ending, and pushes the slot to the
    /// remote free list.
    #[cold]
    #[inline(never)]
    fn free_later(&self, ended: EndedSlot, count: impl FnOnce()) {
        count();
        self.slab.push_remote(ended);
        self.try_empty_remote();
    }

    /// Frees a slot whose ending has been counted, for a thread that parks in another shard.
    ///
    /// Pushes the slot to the remote free list, and tries the lock only if the list has a slice (64) of slots or more.
    /// If this thread took the lock for every slot, the cache lines under the lock would move each time between its
    /// processor and the processor of a thread that parks in this shard. A shorter list is freed by a thread that parks
    /// in this shard, or that drives the timer.
    pub(crate) fn free_from_other_shard(&self, ended: EndedSlot) {
        if self.slab.push_remote(ended) >= SLICE {
            self.try_empty_remote();
        }
    }

    /// Frees a slice of slots whose endings have been counted, in one hold of the lock. If another thread has the lock,
    /// pushes the slots to the remote free list instead. Leaves `slice` empty.
    pub(crate) fn free_counted(&self, slice: &mut Vec<EndedSlot>) {
        self.slab.prefetch(slice);
        let slots = slice.drain(..);
        match self.slab.try_lock() {
            Some(mut guard) => {
                slots.for_each(|ended| Self::free_locked(&mut guard, ended));
                self.empty_remote(&mut guard);
            }
            None => {
                slots.for_each(|ended| _ = self.slab.push_remote(ended));
                self.try_empty_remote();
            }
        }
    }

    /// Frees a slice (64) of the slots on the remote free list, if the lock is free. Called after a push to the list,
    /// so that the pushed slot need not wait: the thread that had the lock during the push may have looked at the list
    /// before the push, and may have released the lock since. If the lock is still taken, the slot waits for a later
    /// holder that empties the list: a thread that frees a slot, every [`PARKS_PER_EMPTYING`]th park, or the thread
    /// that drives the timer.
    fn try_empty_remote(&self) {
        if let Some(mut guard) = self.slab.try_lock() {
            self.empty_remote(&mut guard);
        }
    }

    /// Frees a slice of the remote free list, under a lock that the caller already has. Returns whether more slots may
    /// be left on the list for the next holder of the lock.
    #[inline(always)]
    fn empty_remote(&self, guard: &mut Guard<'_, P, W>) -> bool {
        for _ in 0..SLICE {
            match guard.next_remote() {
                Some(ended) => Self::free_locked(guard, ended),
                None => return false,
            }
        }
        true
    }

    #[inline(always)]
    fn free_locked(guard: &mut Guard<'_, P, W>, ended: EndedSlot) {
        let (schedule, mut fields) = guard.split();
        let position = Position::new(fields.read(ended.address().index()).position);
        schedule.timer.stop(&mut fields, position);
        guard.put_back_ended(ended);
    }

    /// Begins a pass at tick `now`. In this pass, [`fire`](Self::fire) fires the due timers that are in the wheel at
    /// this moment. A timer that is started later waits for the next pass, however near its deadline is, so that the
    /// pass ends. Returns how many timers the shard has.
    pub(crate) fn begin_pass(&self, now: Tick) -> usize {
        let mut guard = self.slab.lock();
        let (schedule, _) = guard.split();
        schedule.begun = schedule.begun.max(now);
        schedule.timer.begin_pass(now);
        schedule.timer.len()
    }

    /// Releases memory that no payload needs, in three steps. Frees the slots of the remote free list (slots that were
    /// freed without the lock), a slice of at most 64 in each hold of the lock. Frees the spare block of slots, which
    /// is empty and kept for the next parks. If the wheel has no timers but may have had many, replaces it by a fresh
    /// wheel.
    pub(crate) fn shrink(&self) {
        while self.empty_remote(&mut self.slab.lock()) {}
        let mut guard = self.slab.lock();
        guard.free_spare();
        let (schedule, _) = guard.split();
        if !schedule.timer.is_empty() || !guard.has_grown() {
            return;
        }
        let (schedule, _) = guard.split();
        // Begin the fresh wheel at the tick at which the last pass (round of expiry) began. That pass may still be in
        // progress, and must not fire a timer that is started from now on. A wheel that begins at this tick leaves a
        // timer with a deadline up to this tick to the next pass. In a wheel that began at tick 0, the pass in progress
        // would fire the timer.
        //
        // No slot keeps a position in the old wheel: the old wheel has no timers, and a timer that has fired has the
        // position `NONE`.
        let fresh = W::new(schedule.wheel_size, schedule.begun);
        let before = std::mem::replace(&mut schedule.timer, fresh);
        // Free the old wheel after the lock is released, because freeing much memory takes long.
        drop(guard);
        drop(before);
    }

    /// Takes timers that are due at tick `now` out of the wheel, and adds their payloads' addresses and deadlines to
    /// `fired`. Takes at most a slice of timers, so that no thread waits long for the lock. Returns whether more timers
    /// may be due.
    pub(crate) fn fire(&self, now: Tick, fired: &mut Vec<(Address, Tick)>) -> bool {
        let mut guard = self.slab.lock();
        self.empty_remote(&mut guard);
        let (schedule, mut fields) = guard.split();
        fields.prefetch(schedule.timer.upcoming().take(SLICE));
        for _ in 0..SLICE {
            match schedule.timer.step(&mut fields, now) {
                Step::Fired(index, deadline) => {
                    // INVARIANT: a slot is freed under this lock, and its timer is stopped before the lock is released.
                    // So a timer in the wheel never belongs to an earlier occupant of the slot. It belongs to the
                    // present occupant, or to a payload that has ended, and whose slot has yet to be freed. In the
                    // second case the slot has no occupant.
                    if let Some(at) = self.slab.occupant(index) {
                        fired.push((at, deadline));
                    }
                }
                Step::Bookkeeping => {}
                Step::Idle => return false,
            }
        }
        true
    }

    /// The [`next_deadline`](Scheme::next_deadline) of the shard's scheme, which is at or before the earliest deadline
    /// of the shard. `None` if the scheme has no timers.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        loop {
            let mut guard = self.slab.lock();
            // First empty the remote free list: the slots of payloads that were ended by threads without this lock. The
            // timers of these slots are still in the wheel. Emptying the list stops them, so that the result is not the
            // deadline of a payload that has ended.
            if !self.empty_remote(&mut guard) {
                return guard.split().0.timer.next_deadline();
            }
        }
    }

    /// Moves the deadline of the payload at `at`. Returns the deadline that the caller announces to the reaper, if any.
    /// `Err` if the deadline was not moved, for example because the timer has fired.
    pub(crate) fn reschedule(
        &self,
        at: Address,
        timing: Timing,
    ) -> Result<Option<Tick>, Unchanged> {
        self.file_anew(at, timing, false)
    }

    /// [Reschedules](Self::reschedule) a payload even if its timer has fired. Only the thread that holds the payload
    /// after its timer has fired calls this.
    pub(crate) fn extend(&self, at: Address, timing: Timing) -> Result<Option<Tick>, Unchanged> {
        self.file_anew(at, timing, true)
    }

    fn file_anew(
        &self,
        at: Address,
        timing: Timing,
        fired_too: bool,
    ) -> Result<Option<Tick>, Unchanged> {
        let mut guard = self.slab.lock();
        let (schedule, mut fields) = guard.split();
        if self.slab.occupant(at.index()) != Some(at) {
            return Err(Unchanged);
        }
        let before = fields.read(at.index());
        let has_fired = before.position == Position::NONE.number();
        // A payload past its deadline counts as expired, even if no thread has fired its timer yet. So its deadline
        // cannot be moved any more. But as long as no thread has fired the timer, a check can still complete the
        // payload, and a stop can still return it, because neither looks at the deadline.
        let is_past = has_fired || before.deadline <= timing.start;
        if before.deadline != NEVER && is_past && !fired_too {
            return Err(Unchanged);
        }
        // Check the horizon (the latest deadline that the scheme accepts) before the old timer is stopped. If the new
        // start failed after the stop, the old timer would have to be started again. A timer that is started during a
        // pass waits for the next pass, so it would fire late.
        if timing.deadline != NEVER && timing.deadline > schedule.timer.latest(timing.present) {
            return Err(Unchanged);
        }
        schedule
            .timer
            .stop(&mut fields, Position::new(before.position));
        // INVARIANT: a scheme accepts every deadline up to `latest`, and the deadline was compared with `latest` above.
        let Ok((position, earlier)) = schedule.start(&mut fields, at.index(), timing) else {
            unreachable!("a deadline up to `latest` was rejected");
        };
        fields.update(at.index(), |fields| {
            fields.deadline = timing.deadline;
            fields.position = position.number();
        });
        Ok(earlier)
    }

    /// Notes the deadline of a payload whose timer has fired, and was filed at another tick. Does not file the timer.
    pub(crate) fn note_deadline(&self, at: Address, deadline: Tick) {
        let mut guard = self.slab.lock();
        let (_, mut fields) = guard.split();
        if self.slab.occupant(at.index()) == Some(at) {
            fields.update(at.index(), |fields| fields.deadline = deadline);
        }
    }

    /// When the payload at `at` arrived, and the tick of its deadline. `None` if the payload has ended.
    pub(crate) fn times(&self, at: Address) -> Option<(Timestamp, Tick)> {
        let mut guard = self.slab.lock();
        let (_, fields) = guard.split();
        (self.slab.occupant(at.index()) == Some(at)).then(|| {
            let fields = fields.read(at.index());
            (Timestamp::from_nanos(fields.arrived_at), fields.deadline)
        })
    }

    /// From now on the shard rejects payloads for this reason.
    pub(crate) fn close_with(&self, reason: RejectReason) {
        Self::reject(&mut self.slab.lock(), reason);
    }

    /// [Closes](Self::close_with) the shard whose lock is `guard`.
    pub(super) fn reject(guard: &mut Guard<'_, P, W>, reason: RejectReason) {
        let rejects = &mut guard.split().0.rejects;
        // A drain may reach the shard after the shutdown has closed it. Then keep the shutdown's reason.
        if *rejects != Some(RejectReason::ShutDown) {
            *rejects = Some(reason);
        }
    }
}
