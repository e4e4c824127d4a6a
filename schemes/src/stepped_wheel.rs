//! Scheme 7 of Varghese & Lauck (1987), advanced tick by tick.
//!
//! Levels, slots and cascades work as in a [`HierarchicalWheel`](crate::HierarchicalWheel), but the buckets are not
//! queued. While the wheel holds a timer, `next_deadline` asks for a pass at every tick. In each bucket that a pass
//! reaches, the pass fires the timers whose deadline has come, and moves the other timers to a lower level.
//!
//! The wheel counts the timers of each level, and skips a level without timers. So a pass that comes many ticks late
//! visits at most one revolution of a level, and then goes from slot to slot of the next higher level.
//!
//! A pass first fires the overdue timers (timers that were started after their deadline), in no particular order, and
//! then the other timers by deadline. In a late pass, the timers of one bucket of a higher level fire in no particular
//! order.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1) |
//! | tick | O(1), and O(1) per fired timer and per cascade, with at most one cascade per level and timer; a pass after many ticks: at most O(slots × levels) more |
//! | space | the slots of the levels in use, and the timers |
//!
//! *Used by* Linux until 4.7, and NetBSD's callouts. The wheel of tokio has the same levels, and for each level a
//! bitmap of the slots in use. *Choose it* if the program runs at every tick anyway: then a wake-up at every tick costs
//! nothing more.
//!
//! INVARIANT: `current`, the tick that the wheel has reached, is never past the start of a bucket that is not empty. To
//! drain a bucket, a pass moves `current` to the start of the bucket's window, where `current` stays until the bucket
//! is empty. A timer that is started meanwhile has a later deadline. Even if this deadline lies in the same window, the
//! timer is filed on a lower level. So the pass does not meet it.

use crate::parts::geometry::Location;
use crate::parts::levels::Levels;
use crate::parts::overdue::Overdue;
use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use crate::scheme::{Scheme, sealed::Sealed};

/// Scheme 7 of Varghese & Lauck (1987): a hierarchical timing wheel that is advanced tick by tick.
///
/// The number of slots per level is rounded up to a power of two.
#[derive(Debug)]
pub struct SteppedWheel {
    levels: Levels,
    /// The tick that the wheel has reached: all buckets whose first tick is this tick or an earlier one are empty,
    /// except the bucket from which a pass is taking the timers.
    current: Tick,
    /// The bucket that starts at `current`, while a pass drains it. `None` when the pass has found this bucket empty.
    draining: Option<u32>,
    /// The number of timers in each level. The array has room for the largest number of levels: with two slots per
    /// level, there is one level for each bit of a tick.
    timers: [usize; Tick::BITS as usize],
    overdue: Overdue,
    /// The number of timers in the buckets.
    len: usize,
}

impl SteppedWheel {
    /// Moves `current` to `now` if all buckets are empty. The next timer then gets a lower level, and cascades less
    /// often, because `current` is nearer to its deadline.
    fn catch_up(&mut self, now: Tick) {
        if self.len == 0 {
            self.current = self.current.max(now);
            self.draining = None;
        }
    }

    /// The next bucket that `current` will reach, in the lowest level that has a timer. `None` if no level has a timer.
    fn next_bucket(&self) -> Option<Location> {
        let level = self.timers.iter().position(|&timers| timers > 0)?;
        // INVARIANT: every timer of this level lies in a later slot than the slot that contains `current`, and in the
        // same revolution of the level. So the slot after the slot of `current` exists, and belongs to this revolution.
        let geometry = self.levels.geometry();
        let start = geometry.next_slot(self.current, level as u32);
        Some(geometry.locate(self.current, start))
    }

    /// Files timer `id` in the bucket for `deadline`, which is later than `current`.
    fn file(&mut self, id: u32, deadline: Tick) -> Position {
        let location = self.levels.geometry().locate(self.current, deadline);
        self.timers[location.level as usize] += 1;
        self.len += 1;
        self.levels.push(location.bucket, id, deadline).0
    }

    /// Lowers the counts after a timer has left bucket `number`.
    fn removed(&mut self, number: u32) {
        self.timers[self.levels.level(number)] -= 1;
        self.len -= 1;
    }

    /// Takes a timer out of bucket `number`, which a pass is draining. Fires the timer, or moves it to a lower level.
    /// `None` if the bucket is empty.
    fn drain(&mut self, records: &mut impl Records, number: u32, now: Tick) -> Option<Step> {
        let id = self.levels.pop(number)?.id;
        self.removed(number);
        let deadline = records.deadline(id);
        if deadline <= now {
            return Some(Step::fire(records, id, deadline));
        }
        let position = self.file(id, deadline);
        records.set_position(id, position);
        Some(Step::Bookkeeping)
    }
}

impl Sealed for SteppedWheel {}

impl Scheme for SteppedWheel {
    fn new(slots: u32, now: Tick) -> Self {
        Self {
            levels: Levels::new(slots),
            current: now,
            draining: None,
            timers: [0; Tick::BITS as usize],
            overdue: Overdue::new(now),
            len: 0,
        }
    }

    fn len(&self) -> usize {
        self.len + self.overdue.len()
    }

    fn start(
        &mut self,
        _: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, HorizonError> {
        self.catch_up(now);
        let before = self.next_deadline();
        let position = if deadline <= self.current.max(self.overdue.present()) {
            self.overdue.push(id, deadline)
        } else {
            self.file(id, deadline)
        };
        Ok(Started::at(position, before, self.next_deadline()))
    }

    fn stop(&mut self, records: &mut impl Records, position: Position) {
        match self.levels.remove(records, position) {
            Some(number) => self.removed(number),
            None => self.overdue.remove(records, position),
        }
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        let open = self
            .draining
            .is_some_and(|number| !self.levels.bucket(number).is_empty());
        let tick = self.current.saturating_add(Tick::from(!open));
        self.overdue.earliest_or((self.len > 0).then_some(tick))
    }

    fn begin_pass(&mut self, now: Tick) {
        self.overdue.begin_pass(now);
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        let step = self.overdue.step(records, now);
        // If `current` is past `now`, a later pass has already advanced further than this pass may.
        if step != Step::Idle || self.current > now {
            return step;
        }
        if let Some(number) = self.draining {
            if let Some(step) = self.drain(records, number, now) {
                return step;
            }
            self.draining = None;
        }
        match self.next_bucket().filter(|next| next.start <= now) {
            Some(next) => {
                self.current = next.start;
                self.draining = Some(next.bucket);
                Step::Bookkeeping
            }
            None => {
                self.current = now;
                Step::Idle
            }
        }
    }
}
