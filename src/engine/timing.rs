//! The arrival and the deadline of a payload.

use crate::observe::Since;
use crate::scheme::Tick;

/// The arrival and the deadline of a payload, in ticks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// When it arrived.
    pub(crate) start: Tick,
    pub(crate) deadline: Tick,
    /// A tick that has certainly passed: a wheel that lags behind may go on to it. (A reading that a caller supplies
    /// may be of the future, and lead past deadlines.)
    pub(crate) present: Tick,
    /// The reading of the clock behind it.
    pub(crate) since: Since,
}
