//! The types that a scheme and its caller exchange: ticks, positions, records and steps.

use std::error::Error;
use std::fmt;

/// A number of ticks since an origin that the caller of a scheme chose.
pub type Tick = u64;

/// The place where a scheme keeps a timer. Only the scheme that returned a position can interpret it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position(u32);

impl Position {
    /// The position of a timer that is not in the scheme: the timer was never started, was stopped, or has fired.
    pub const NONE: Self = Self(u32::MAX);

    /// The position with this number. `u32::MAX` is [`NONE`](Self::NONE).
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number of this position, for a caller that stores it as an integer.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The caller's table of timers.
///
/// A scheme knows a timer by a 32-bit id, and reads the timer's deadline from this table. The caller passes the same
/// table to every call of one scheme, under these rules:
///
/// * From the return of [`start`](crate::Scheme::start) until the timer fires or is stopped,
///   [`deadline`](Self::deadline) returns the deadline with which the timer was started.
/// * The caller stores the position that `start` returns, and every later position that the scheme sets by
///   [`set_position`](Self::set_position). The record of a new timer need not exist before `start` returns.
/// * During any call the scheme may set the position of any timer that it holds, because timers move.
///
/// No method of this trait should panic. After a panic, the scheme may lose timers or fire them again; memory stays
/// safe.
pub trait Records {
    /// The deadline of timer `id`, in ticks.
    fn deadline(&self, id: u32) -> Tick;
    /// Stores the position at which the scheme keeps timer `id` from now on.
    fn set_position(&mut self, id: u32, position: Position);
}

/// The simplest table: a vector of deadlines and positions, indexed by the ids. An id without an element causes a
/// panic.
impl Records for Vec<(Tick, Position)> {
    #[inline]
    fn deadline(&self, id: u32) -> Tick {
        self[id as usize].0
    }

    #[inline]
    fn set_position(&mut self, id: u32, position: Position) {
        self[id as usize].1 = position;
    }
}

/// The result of starting a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Started {
    /// The position of the timer, which the caller stores in its record.
    pub position: Position,
    /// The scheme's new [`next_deadline`](crate::Scheme::next_deadline), if this start made the next deadline earlier:
    /// then wake the thread that sleeps until the old one. `None` if this start did not make the next deadline earlier.
    pub earliest: Option<Tick>,
}

impl Started {
    /// The result of a start that put the timer at `position`. The start changed the scheme's next deadline from
    /// `before` to `after`, each of which is `None` for an empty scheme.
    pub(crate) fn at(position: Position, before: Option<Tick>, after: Option<Tick>) -> Self {
        let earlier = |&after: &Tick| before.is_none_or(|before| after < before);
        Self {
            position,
            earliest: after.filter(earlier),
        }
    }
}

/// The result of one [`step`](crate::Scheme::step) of a pass (a round in which due timers fire).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The timer with this id fired; its deadline was this tick. The timer has left the scheme, and its record has
    /// [`Position::NONE`].
    Fired(u32, Tick),
    /// No timer fired, but the pass made progress: the scheme moved a timer, or passed an empty slot.
    Bookkeeping,
    /// The pass is complete.
    Idle,
}

impl Step {
    /// Returns [`Fired`](Self::Fired) for timer `id`, which has left the scheme, and clears the position in its record.
    #[inline]
    pub(crate) fn fire(records: &mut impl Records, id: u32, deadline: Tick) -> Self {
        records.set_position(id, Position::NONE);
        Self::Fired(id, deadline)
    }

    /// Returns this step. If this step is [`Idle`](Self::Idle), calls `other` and returns its step.
    #[inline]
    pub(crate) fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Idle => other(),
            step => step,
        }
    }
}

/// The error of a start whose deadline is past the horizon: the latest deadline that the scheme can hold. Only a simple
/// wheel has a horizon, which is one revolution ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HorizonError {
    /// The latest deadline that the scheme could hold, in ticks.
    pub latest: Tick,
}

impl fmt::Display for HorizonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the deadline is past tick {}, the latest that this wheel can hold: give it more slots",
            self.latest
        )
    }
}

impl Error for HorizonError {}
