//! A [`HierarchicalWheel`] behind a log of arrivals.
//!
//! A new timer is appended to the log, which consists of segments. Shortly before the earliest deadline of a segment, a
//! pass visits the segment, and moves its timers with near deadlines to the wheel. Most timers are stopped before this
//! visit. A stop leaves a hole in the log, and touches no bucket and no other timer.
//!
//! | | cost |
//! |---|---|
//! | start, stop | O(1); O(log segments) if the deadline is the earliest of its segment |
//! | tick | the cost of the wheel; each timer moves from the log to the wheel at most once |
//! | space | 8 bytes for each timer in the log, four times as much if three of four were stopped; and the wheel |
//!
//! Timers fire in the same order as in the wheel without a log, also in a late pass: the wheel advances only to the
//! tick before the first deadline in the log, until the timer with this deadline has moved to the wheel.
//!
//! INVARIANT: the deadline of a timer in the log is later than each of these ticks:
//!
//! * `current`, the tick that the wheel has reached. So the wheel can still take the timer.
//! * The tick of every pass (round of expiry) that began before the timer was started. So no such pass fires the timer.

use crate::hierarchical_wheel::HierarchicalWheel;
use crate::parts::arrivals::{Arrivals, Taken};
use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use crate::scheme::{Scheme, sealed::Sealed};

/// Scheme 7 of Varghese & Lauck (1987), a hierarchical timing wheel, behind a log of arrivals: most timers are stopped
/// before they reach the wheel.
#[derive(Debug)]
pub struct LoggedWheel {
    log: Arrivals,
    wheel: HierarchicalWheel,
    /// The latest time that this scheme knows: the greatest `now` that was passed to [`begin_pass`](Scheme::begin_pass)
    /// or [`start_slowly`](Self::start_slowly).
    seen: Tick,
}

impl LoggedWheel {
    /// Starts a timer that [`Arrivals::push`] has not taken. [`Arrivals::push_slowly`] appends the timer to the log if
    /// it can; otherwise the timer goes to the wheel.
    #[cold]
    #[inline(never)]
    fn start_slowly(
        &mut self,
        records: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, HorizonError> {
        self.seen = self.seen.max(now);
        let before = self.next_deadline();
        let Some((position, opened)) = self.log.push_slowly(id, deadline, self.seen) else {
            let now = self.before_log(now);
            let started = self.wheel.start(records, id, deadline, now)?;
            return Ok(Started::at(started.position, before, self.next_deadline()));
        };
        if opened {
            let now = self.before_log(now);
            let wheel = &mut self.wheel;
            self.log.thin_out(self.seen, |id, deadline| {
                if let Ok(started) = wheel.start(records, id, deadline, now) {
                    records.set_position(id, started.position);
                }
            });
        }
        Ok(Started::at(position, before, self.next_deadline()))
    }

    /// The tick to which the wheel may advance: `now`, or the tick before the first deadline in the log if that tick is
    /// earlier.
    fn before_log(&mut self, now: Tick) -> Tick {
        let first = self.log.first_deadline();
        first.map_or(now, |first| now.min(first - 1))
    }
}

impl Sealed for LoggedWheel {}

impl Scheme for LoggedWheel {
    fn new(slots: u32, now: Tick) -> Self {
        Self {
            log: Arrivals::new(),
            wheel: HierarchicalWheel::new(slots, now),
            seen: now,
        }
    }

    fn len(&self) -> usize {
        self.log.len() + self.wheel.len()
    }

    #[inline(always)]
    fn start(
        &mut self,
        records: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, HorizonError> {
        match self.log.push(id, deadline, self.seen.max(now)) {
            Some(position) => Ok(Started {
                position,
                earliest: None,
            }),
            None => self.start_slowly(records, id, deadline, now),
        }
    }

    #[inline(always)]
    fn stop(&mut self, records: &mut impl Records, position: Position) {
        if Arrivals::owns(position) {
            self.log.remove(position);
        } else {
            self.wheel.stop(records, position);
        }
    }

    fn next_deadline(&mut self) -> Option<Tick> {
        let log = self.log.next();
        log.into_iter().chain(self.wheel.next_deadline()).min()
    }

    fn begin_pass(&mut self, now: Tick) {
        self.seen = self.seen.max(now);
        self.wheel.begin_pass(now);
    }

    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step {
        // A visit moves the timers with near deadlines from a segment of the log to the wheel. During a visit, skip the
        // wheel, for two reasons:
        //
        // * The wheel must not reach the first deadline in the log before the timer with this deadline has moved.
        // * Up to the tick before this deadline, or up to `now` if `now` is earlier, the wheel has nothing to do: the
        //   steps before the visit have emptied these buckets.
        //
        // If a pass with a later `now` begins during the visit, the wheel goes on after the visit.
        let mut is_held_up = self.log.is_visited();
        if !is_held_up {
            let step = self.wheel.step_overdue(records, now);
            if step != Step::Idle {
                return step;
            }
            let before_log = self.before_log(now);
            let step = self.wheel.step_in_buckets(records, before_log);
            if step != Step::Idle {
                return step;
            }
            is_held_up = before_log < now;
        }
        match self.log.take(now) {
            Taken::Timer(id, deadline) => {
                self.wheel.file_late(records, id, deadline);
                Step::Bookkeeping
            }
            Taken::Nothing => Step::Bookkeeping,
            Taken::Idle if is_held_up => Step::Bookkeeping,
            Taken::Idle => Step::Idle,
        }
    }

    fn upcoming(&self) -> impl Iterator<Item = u32> {
        // The log comes first: while timers move from a segment of the log to the wheel, steps skip the wheel.
        self.log.upcoming().chain(self.wheel.upcoming())
    }
}
