//! The slots of a wheel with one level, and the *hand*: the tick whose slot the pass in progress examines.
//!
//! A timer lies in the slot `deadline % slots`. A pass (one round of expiry) turns the hand through the slots of the
//! ticks since the last pass, but through no slot twice: if the pass comes more than one revolution late, the hand
//! starts one revolution before the present. If all slots are empty, the hand jumps to the present. A timer whose
//! deadline has passed when it is started lies in no slot, but among the [overdue](super::overdue) timers.
//!
//! INVARIANT: the deadline of a timer in a slot is later than `Ring::current`: all timers that were in slots with a
//! deadline up to this tick have fired or were stopped. If the latest pass is not complete, the tick at which this pass
//! has begun may be later than `current`. A timer is put in a slot only if its deadline is later than both ticks. So no
//! pass fires a timer that was started after the pass had begun.
//!
//! INVARIANT: the hand misses no timer. If a timer in a slot has a deadline at or before the hand, the pass in progress
//! will still examine this timer: the timer lies in the unexamined part of the hand's slot, or in a slot that the hand
//! has yet to reach.

use super::intrusive_lists::{IntrusiveLists, Node};
use super::overdue::Overdue;
use crate::record::{Position, Records, Started, Tick};

/// The function that files a timer in a list: [`IntrusiveLists::push`] or [`IntrusiveLists::insert`].
pub(crate) type File = fn(&mut IntrusiveLists, u32, u32, Tick) -> Position;

/// The slots and the hand.
#[derive(Debug)]
pub(crate) struct Ring {
    slots: Tick,
    /// No timer in a slot has a deadline at or before this tick: all such timers have fired or were stopped.
    current: Tick,
    /// The tick whose slot the pass (round of expiry) in progress has reached. The pass moves the hand forward. When
    /// the pass is complete, the hand is equal to `current`.
    hand: Tick,
    /// One list for each slot.
    pub(crate) lists: IntrusiveLists,
    pub(crate) overdue: Overdue,
}

impl Ring {
    pub(crate) fn new(slots: u32, now: Tick) -> Self {
        let slots = slots.max(2);
        Self {
            slots: Tick::from(slots),
            current: now,
            hand: now,
            lists: IntrusiveLists::new(slots),
            overdue: Overdue::new(now),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lists.len() + self.overdue.len()
    }

    /// The latest deadline within one revolution, counted from `now` or from [`reached`](Self::reached), whichever is
    /// later.
    pub(crate) fn latest(&self, now: Tick) -> Tick {
        self.reached().max(now).saturating_add(self.slots - 1)
    }

    /// Starts timer `id`. If its deadline is at or before the tick that passes (rounds of expiry) have
    /// [reached](Self::reached), adds the timer to the overdue timers. Otherwise `file` files the timer in the slot of
    /// its deadline.
    pub(crate) fn start(&mut self, id: u32, deadline: Tick, now: Tick, file: File) -> Started {
        self.catch_up(now);
        let before = self.next_deadline();
        let position = if deadline <= self.reached() {
            self.overdue.push(id, deadline)
        } else {
            let slot = self.slot(deadline);
            file(&mut self.lists, slot, id, deadline)
        };
        Started::at(position, before, self.next_deadline())
    }

    /// Stops the timer at `position`. Returns the timer if it was in a slot. `None` if it was overdue, or there is no
    /// timer.
    pub(crate) fn stop(&mut self, records: &mut impl Records, position: Position) -> Option<Node> {
        if Overdue::owns(position) {
            self.overdue.remove(records, position);
            return None;
        }
        self.lists.unlink(position.number())
    }

    /// The slot of `tick`.
    pub(crate) fn slot(&self, tick: Tick) -> u32 {
        (tick % self.slots) as u32
    }

    /// The tick of the hand (whose slot a pass examines). `None` if a later pass has turned the hand past `now`: then a
    /// pass at `now` has no slot left to examine.
    pub(crate) fn hand(&self, now: Tick) -> Option<Tick> {
        (self.hand <= now).then_some(self.hand)
    }

    /// The tick at which the next pass is due. `None` if there are no timers. If a slot has a timer, a pass is due at
    /// every tick, so the next one is due at the tick after `current`. For overdue timers, a pass is due at
    /// [`Overdue::earliest`]. If there are timers of both kinds, returns the earlier of the two ticks.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        let next = (!self.lists.is_empty()).then(|| self.current.saturating_add(1));
        self.overdue.earliest_or(next)
    }

    /// Turns the hand to the next slot, and returns this slot. `None` if the hand has reached `now`, which ends the
    /// pass.
    pub(crate) fn turn(&mut self, now: Tick) -> Option<u32> {
        self.catch_up(now);
        if self.hand >= now {
            if self.hand >= self.overdue.present() {
                self.current = self.hand;
            }
            return None;
        }
        let revolution = now.saturating_sub(self.slots - 1);
        self.hand = revolution.max(self.hand + 1);
        Some(self.slot(self.hand))
    }

    /// Moves the hand to `now` if all slots are empty, so that no pass has to turn through them.
    fn catch_up(&mut self, now: Tick) {
        if self.lists.is_empty() {
            self.hand = self.hand.max(self.current).max(now);
            self.current = self.hand;
        }
    }

    /// The latest tick that a pass has reached. A timer that is started with a deadline up to this tick is overdue.
    fn reached(&self) -> Tick {
        self.current.max(self.overdue.present())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_turns_to_the_present_and_through_no_slot_twice() {
        for slots in [2_u32, 3, 8] {
            let size = Tick::from(slots);
            for ticks in [1, size - 1, size, size + 1, 2 * size, 1_000] {
                let mut ring = Ring::new(slots, 5);
                // This timer is due too late to fire in this test. It keeps one slot filled: if all slots were empty,
                // the hand (the tick whose slot a pass examines) would jump to the present and turn through no slot.
                ring.start(0, Tick::MAX - 1, 5, IntrusiveLists::push);
                let now = 5 + ticks;
                ring.overdue.begin_pass(now);
                let passed = std::iter::from_fn(|| ring.turn(now)).collect::<Vec<_>>();
                let last = now + 1 - ticks.min(size)..=now;
                assert_eq!(passed, last.map(|tick| ring.slot(tick)).collect::<Vec<_>>());
                assert_eq!(ring.next_deadline(), Some(now + 1), "the next tick");
            }
        }
    }
}
