//! The trait of every timer scheme.

use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use std::fmt;

pub(crate) mod sealed {
    /// Implemented by the schemes of this crate.
    pub trait Sealed {}
}

/// A data structure that keeps timers by deadline.
///
/// A timer is in the scheme from [`start`](Self::start) until it fires or is stopped. A timer that is not stopped fires
/// exactly once: in the first advance whose present (`now`) has reached the timer's deadline.
///
/// An advance is a *pass*: the caller calls [`begin_pass`](Self::begin_pass), then [`step`](Self::step) until `step`
/// returns [`Step::Idle`]. A pass fires the timers that were in the scheme when the pass began, and whose deadline is
/// not later than the present of the pass. A timer that is started during a pass waits for the next pass, even if its
/// deadline has passed, so every pass ends. Between two steps the caller may start and stop timers, release a lock,
/// begin a later pass, or leave the pass unfinished.
///
/// The caller keeps the [`Records`] of its timers, and passes the same records to every call. A scheme contains no id
/// twice. Ticks are below `u64::MAX`, and the present never decreases from one pass to the next.
///
/// No method reads a clock, takes a lock or blocks, and no method panics unless the records panic.
///
/// # Sealed
/// Only this crate implements the trait. The `Timer` of `request-purgatory` runs a scheme under a lock. Its guarantees
/// (each payload ends once, at most one tick late, with bounded time under the lock) hold only if the scheme keeps
/// every rule above, and the compiler checks none of these rules. Also, the methods follow the needs of that timer: a
/// later release may add a required method, which would break every implementation outside this crate. A later release
/// can open a sealed trait, but not seal an open one.
pub trait Scheme: sealed::Sealed + fmt::Debug + Send + 'static {
    /// Makes an empty scheme whose present is `now`. `slots` is the number of slots per level; less than 2 counts as 2.
    /// A scheme without slots ignores it.
    fn new(slots: u32, now: Tick) -> Self
    where
        Self: Sized;

    /// The number of timers in the scheme.
    fn len(&self) -> usize;

    /// Whether there is no timer in the scheme.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The latest deadline that [`start`](Self::start) accepts at `now`, which is the present or an earlier tick. This
    /// is [`Tick::MAX`] for every scheme except the simple wheel.
    fn latest(&self, now: Tick) -> Tick {
        let _ = now;
        Tick::MAX
    }

    /// Starts timer `id` with this deadline, which may have passed. `now` is the present, or an earlier tick. The
    /// caller stores the returned position in the timer's record. The record may be made after this call.
    ///
    /// # Errors
    /// [`HorizonError`], if the deadline is past [`latest`](Self::latest). Then the scheme is unchanged. Only a simple
    /// wheel returns this error.
    fn start(
        &mut self,
        records: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, HorizonError>;

    /// Stops the timer whose record has `position`. Does nothing at [`Position::NONE`]. May set the positions of other
    /// timers. The record of the stopped timer keeps the old position until the caller overwrites it.
    ///
    /// Do not pass the old position of a timer that was stopped or has fired: another timer may have this position now,
    /// and would be stopped.
    fn stop(&mut self, records: &mut impl Records, position: Position);

    /// A tick at or before the earliest deadline: an advance before this tick has nothing to do. `None` if the scheme
    /// is empty.
    ///
    /// A wheel that needs an advance at every tick returns the next tick, however far away the deadlines are.
    fn next_deadline(&mut self) -> Option<Tick>;

    /// Begins a pass at `now`.
    fn begin_pass(&mut self, now: Tick);

    /// Does one unit of work of a pass at `now`: fires a timer, moves a timer, or passes an empty slot. Takes bounded
    /// time.
    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step;

    /// The ids of the timers that the next steps will examine, as far as the scheme knows them without a search. The
    /// caller can prefetch the records of these timers, which may lie far apart in memory.
    fn upcoming(&self) -> impl Iterator<Item = u32> {
        std::iter::empty()
    }

    /// Does a whole pass at `now`. Calls `expire` with the id and the deadline of each timer that fires; `expire` may
    /// start and stop timers. Returns the number of steps.
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
