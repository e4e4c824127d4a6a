//! The trait that every timer scheme of this crate implements.

use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use std::fmt;

pub(crate) mod sealed {
    /// Only the schemes of this crate implement this trait, so no other crate can implement [`Scheme`](super::Scheme).
    pub trait Sealed {}
}

/// A data structure that keeps timers by deadline.
///
/// A timer is in the scheme from [`start`](Self::start) until it fires or is stopped. The *present* is the current
/// tick, which the caller gives to the scheme as `now`. The caller drives the scheme in *passes*, each with one
/// present. A timer that is not stopped fires exactly once: in the first pass that begins after the timer was started,
/// and whose present has reached the timer's deadline.
///
/// To make a pass, the caller calls [`begin_pass`](Self::begin_pass), and then [`step`](Self::step) until `step`
/// returns [`Step::Idle`]. [`advance`](Self::advance) does both.
///
/// * A pass fires the timers that were in the scheme when the pass began, and whose deadline is not later than the
///   present of the pass.
/// * A timer that is started during a pass waits for the next pass, even if its deadline has passed. So every pass
///   ends.
/// * Between two steps the caller may start and stop timers, release the lock under which it calls the scheme, begin a
///   later pass, or leave the pass unfinished. The next pass then fires the timers that an unfinished pass has left.
///
/// The caller keeps these rules:
///
/// * It keeps the [`Records`] of its timers, and passes the same records to every call.
/// * It starts no timer whose id is already in the scheme.
/// * Every tick is below `u64::MAX`.
/// * The present never decreases from one pass to the next.
///
/// No method reads a clock, takes a lock or blocks, and no method panics unless the records panic.
///
/// # Sealed
/// Only this crate implements the trait, for two reasons:
///
/// * The `Timer` of `request-purgatory` runs a scheme under a lock. The guarantees of the `Timer` (each payload ends
///   once, at most one tick late, with bounded time under the lock) hold only if the scheme does everything that this
///   page says of it: which timers a pass fires, and that no method reads a clock, takes a lock, blocks or panics. The
///   compiler checks none of this.
/// * The methods follow the needs of the `Timer`. A later release may add a required method, which would break every
///   implementation outside this crate.
///
/// A later release can open a sealed trait, but not seal an open one.
pub trait Scheme: sealed::Sealed + fmt::Debug + Send + 'static {
    /// Whether the scheme has a horizon: a [latest](Self::latest) deadline that it accepts. Only the simple wheel has
    /// one.
    const HAS_HORIZON: bool = false;

    /// Makes an empty scheme whose present is tick `now`. `slots` is the number of slots per level; less than 2 counts
    /// as 2. Wheels with levels round it up to a power of two, at most 2^30. A scheme that has no slots ignores
    /// `slots`.
    fn new(slots: u32, now: Tick) -> Self
    where
        Self: Sized;

    /// The number of timers in the scheme.
    fn len(&self) -> usize;

    /// Whether there is no timer in the scheme.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The latest deadline that a [`start`](Self::start) with this `now` accepts. `now` is the present, or an earlier
    /// tick. Every scheme except the simple wheel returns [`Tick::MAX`].
    fn latest(&self, now: Tick) -> Tick {
        let _ = now;
        Tick::MAX
    }

    /// Starts timer `id` with this deadline, which may have passed. `now` is the present, or an earlier tick. The
    /// caller stores the returned position in the timer's record, which need not exist before this call returns.
    ///
    /// # Errors
    /// [`HorizonError`], if the deadline is later than [`latest`](Self::latest). The scheme is then unchanged. Only a
    /// simple wheel returns this error.
    fn start(
        &mut self,
        records: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, HorizonError>;

    /// Stops the timer whose record has `position`. Does nothing if `position` is [`Position::NONE`]. May move other
    /// timers, and set the positions in their records. The record of the stopped timer keeps the old position until the
    /// caller overwrites it.
    ///
    /// Do not pass the old position of a timer that was stopped or has fired: another timer may have this position now,
    /// and would be stopped.
    fn stop(&mut self, records: &mut impl Records, position: Position);

    /// A tick at or before the earliest deadline. A pass before this tick has nothing to do. `None` if the scheme is
    /// empty.
    ///
    /// A wheel that needs a pass at every tick returns the next tick, however far away the deadlines are.
    fn next_deadline(&mut self) -> Option<Tick>;

    /// Begins a pass whose present is `now`.
    fn begin_pass(&mut self, now: Tick);

    /// Does one unit of work of a pass: fires a timer, moves a timer, or skips an empty slot. `now` is the present of
    /// the pass. Takes bounded time.
    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step;

    /// The ids of the timers that the next steps will examine, as far as the scheme knows them without a search. The
    /// caller can prefetch the records of these timers, which may lie far apart in memory.
    fn upcoming(&self) -> impl Iterator<Item = u32> {
        std::iter::empty()
    }

    /// Does a whole pass whose present is `now`. Calls `expire` with the id and the deadline of each timer that fires;
    /// `expire` may start and stop timers. Returns the number of steps.
    fn advance<R: Records>(
        &mut self,
        records: &mut R,
        now: Tick,
        mut expire: impl FnMut(&mut Self, &mut R, u32, Tick),
    ) -> usize
    where
        Self: Sized,
    {
        self.begin_pass(now);
        let mut steps = 0;
        loop {
            match self.step(records, now) {
                Step::Fired(id, deadline) => expire(self, records, id, deadline),
                Step::Bookkeeping => {}
                Step::Idle => return steps,
            }
            steps += 1;
        }
    }
}
