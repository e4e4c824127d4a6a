//! The timer: which operation is due at which tick.
//!
//! Nothing here knows about operations, keys, locks or time. The [`Wheel`](wheel::Wheel) counts ticks and files 32-bit
//! timer ids; where it filed each one is kept in the caller's record of that timer, behind [`Records`].
//!
//! * [`radix`]: slot arithmetic, from a tick to the level and slot that hold it.
//! * [`blocks`]: the contents of the buckets.
//! * [`wheel`]: the algorithm.

pub(crate) mod blocks;
pub(crate) mod radix;
pub(crate) mod wheel;

use crate::time::ticks::Tick;

/// Where a timer is filed. Opaque to everyone but [`blocks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position(pub(crate) u32);

impl Position {
    /// Not in the wheel: not started, stopped, or already handed out as due.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// The caller's records of its timers.
pub(crate) trait Records {
    /// The tick at which timer `id` is due.
    fn deadline(&self, id: u32) -> Tick;
    /// Remembers where timer `id` is filed now.
    fn set_position(&mut self, id: u32, position: Position);
}
