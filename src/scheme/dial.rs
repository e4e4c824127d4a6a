//! What the wheels of a single level have in common: slots in a circle, and a hand that goes round.
//!
//! A timer waits in the slot that its deadline names modulo the number of slots. A pass turns the hand through the
//! slots of the ticks since the last one, but through none of them twice: where more than a revolution has passed, the
//! hand starts one revolution before the present. With no timer in the slots it jumps to the present at once.
//!
//! INVARIANT: a timer in a slot is due later than `current`, and when it is filed, later than `seen`.
//!
//! INVARIANT: a timer that is due at the hand lies in the rest of the hand's slot, or in one that the hand comes to
//! before it is at `seen`.

use super::Tick;
use super::bag::Bag;
use super::links::Links;

/// The slots of a wheel and its hand.
#[derive(Debug)]
pub(crate) struct Dial {
    slots: Tick,
    /// All timers in the slots that were due up to here have fired.
    current: Tick,
    /// The pass in progress has come to the slot of this tick. Between passes, `current`.
    hand: Tick,
    /// The present of the last pass: a deadline up to here is due already.
    seen: Tick,
    /// A list for each slot.
    pub(crate) links: Links,
    /// The timers that were due when they were started.
    pub(crate) overdue: Bag,
}

impl Dial {
    pub(crate) fn new(slots: u32, now: Tick) -> Self {
        let slots = slots.max(2);
        Self {
            slots: Tick::from(slots),
            current: now,
            hand: now,
            seen: now,
            links: Links::new(slots),
            overdue: Bag::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.links.len() + self.overdue.len()
    }

    /// The latest deadline within one revolution of `now`.
    #[cfg(any(test, feature = "reference-schemes"))]
    pub(crate) fn latest(&self, now: Tick) -> Tick {
        let present = now.max(self.current).max(self.seen);
        present.saturating_add(self.slots - 1)
    }

    /// The slot of `tick`.
    pub(crate) fn slot(&self, tick: Tick) -> u32 {
        (tick % self.slots) as u32
    }

    /// Whether a timer that is started with this deadline is due already.
    pub(crate) fn is_due(&self, deadline: Tick) -> bool {
        deadline <= self.current.max(self.seen)
    }

    /// The tick at which the hand stands, unless it has gone past `now`, as it may in another pass.
    pub(crate) fn hand(&self, now: Tick) -> Option<Tick> {
        (self.hand <= now).then_some(self.hand)
    }

    /// Sets a dial whose slots are all empty to `now`.
    pub(crate) fn wind(&mut self, now: Tick) {
        if self.links.is_empty() {
            self.hand = self.hand.max(self.current).max(now);
            self.current = self.hand;
        }
    }

    /// The next tick, if there is any timer.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        let next = (!self.links.is_empty()).then(|| self.current.saturating_add(1));
        self.overdue.earliest().into_iter().chain(next).min()
    }

    pub(crate) fn begin_pass(&mut self, now: Tick) {
        self.seen = self.seen.max(now);
        self.overdue.begin_pass();
    }

    /// Turns the hand to the next slot, and returns that. `None` if the hand has come to `now`.
    pub(crate) fn turn(&mut self, now: Tick) -> Option<u32> {
        self.wind(now);
        self.seen = self.seen.max(now);
        if self.hand >= now {
            if self.hand >= self.seen {
                self.current = self.hand;
            }
            return None;
        }
        let revolution = now.saturating_sub(self.slots - 1);
        self.hand = revolution.max(self.hand + 1);
        Some(self.slot(self.hand))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_pass_turns_to_the_present_and_through_no_slot_twice() {
        for slots in [2_u32, 3, 8] {
            let size = Tick::from(slots);
            for ticks in [1, size - 1, size, size + 1, 2 * size, 1_000] {
                let mut dial = Dial::new(slots, 5);
                // Never due here, so that the hand has slots to go through.
                dial.links.push(0, 0, Tick::MAX - 1);
                let now = 5 + ticks;
                dial.begin_pass(now);
                let passed = std::iter::from_fn(|| dial.turn(now)).collect::<Vec<_>>();
                let last = now + 1 - ticks.min(size)..=now;
                assert_eq!(passed, last.map(|tick| dial.slot(tick)).collect::<Vec<_>>());
                assert_eq!(dial.next_deadline(), Some(now + 1), "the next tick");
            }
        }
    }
}
