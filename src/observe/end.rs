//! The report of an end.

use crate::stats::Ending;
use crate::time::Timestamp;

/// How an operation ended.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    not(all(feature = "metrics", feature = "tracing")),
    allow(dead_code, reason = "each listener asks for its part")
)]
pub(crate) struct End {
    pub(crate) ending: Ending,
    /// It expired, and could have completed.
    pub(crate) missed_check: bool,
    /// Its deadline, if the report needs it.
    pub(crate) deadline: Option<Timestamp>,
}
