//! The trait of every timer scheme.

use crate::record::{HorizonError, Position, Records, Started, Step, Tick};
use std::fmt;

pub(crate) mod sealed {
    /// Implemented by the schemes of this crate.
    pub trait Sealed {}
}

/// A way to keep timers by deadline.
///
/// A timer fires exactly once: in the first advance whose present (`now`) has reached the timer's deadline. A timer is
/// in the scheme from [`start`](Self::start) until it fires or is stopped.
///
/// An advance is a *pass*: [`begin_pass`](Self::begin_pass), then [`step`](Self::step) until `step` returns
/// [`Step::Idle`]. A pass fires the timers that were in the scheme when the pass began and whose deadline its present
/// has reached. A timer that is started during a pass waits for the next pass, even if its deadline has passed, so
/// every pass ends. Between two steps the caller may start and stop timers, release a lock, begin a later pass, or
/// leave the pass unfinished.
///
/// The caller keeps the [`Records`] of its timers and passes the same records to every call. An id is at most once in a
/// scheme. Ticks are below `u64::MAX`, and the present never decreases from one pass to the next.
///
/// No method reads a clock, takes a lock or blocks, and no method panics unless the records panic.
///
/// # Sealed
/// Only this crate implements the trait. The `Timer` of `request-purgatory` runs a scheme under a lock, and its
/// guarantees (each payload ends once, at most one tick late, with bounded time under the lock) hold only if the scheme
/// keeps every rule above; the compiler checks none of them. Also, the methods follow the needs of that timer, and a
/// new required method would break every implementation outside. A later release can open a sealed trait, but not seal
/// an open one.
pub trait Scheme: sealed::Sealed + fmt::Debug + Send + 'static {
    /// An empty scheme at tick `now`. `slots` is the number of slots per level, at least 2 (less counts as 2); a scheme
    /// without slots ignores it.
    fn new(slots: u32, now: Tick) -> Self
    where
        Self: Sized;

    /// The number of timers in the scheme.
    fn len(&self) -> usize;

    /// Whether there is no timer in the scheme.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The latest deadline that [`start`](Self::start) accepts at `now`, the present or an earlier tick. It is
    /// [`Tick::MAX`] for every scheme but the simple wheel.
    fn latest(&self, now: Tick) -> Tick {
        let _ = now;
        Tick::MAX
    }

    /// Starts timer `id` with this deadline, which may have passed. `now` is the present, or an earlier tick. The
    /// caller stores the returned position in the record, which need not exist before.
    ///
    /// # Errors
    /// If the deadline is past [`latest`](Self::latest), which only a simple wheel limits. The scheme is unchanged.
    fn start(
        &mut self,
        records: &mut impl Records,
        id: u32,
        deadline: Tick,
        now: Tick,
    ) -> Result<Started, HorizonError>;

    /// Stops the timer whose record has `position`. Does nothing at [`Position::NONE`]. May set the positions of other
    /// timers. The position of the stopped timer stays in its record until the caller overwrites it.
    ///
    /// Do not pass a position that is in no record: this would stop another timer, if one has come to that position.
    fn stop(&mut self, records: &mut impl Records, position: Position);

    /// The tick before which an advance has nothing to do: at or before the earliest deadline. `None` if the scheme is
    /// empty.
    ///
    /// A wheel that is advanced tick by tick returns the next tick, whatever the deadlines are.
    fn next_deadline(&mut self) -> Option<Tick>;

    /// Begins a pass at `now`.
    fn begin_pass(&mut self, now: Tick);

    /// Does one unit of work of a pass at `now`: fires a timer, moves a timer, or passes an empty slot. Takes bounded
    /// time.
    fn step(&mut self, records: &mut impl Records, now: Tick) -> Step;

    /// The timers that the next steps will examine, as far as the scheme knows them without a search. The caller can
    /// prefetch their records, which may lie far apart in memory.
    fn upcoming(&self) -> impl Iterator<Item = u32> {
        std::iter::empty()
    }

    /// Does a whole pass at `now`: calls `expire` with the id and the deadline of each timer that fires. `expire` may
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
