//! Fencing tokens.

use std::fmt;

/// Names one value that a [`Tracker`](crate::Tracker) keeps or has kept. The number of a token grows from one value to
/// the next.
///
/// [`track`](crate::Tracker::track) returns the token. With it, a holder acts only on its own value:
/// [`reschedule_if`](crate::Tracker::reschedule_if), [`complete_if`](crate::Tracker::complete_if) and
/// [`replace_if`](crate::Tracker::replace_if) do nothing once another value has replaced the holder's, even under the
/// same key and with an equal value. The number may be sent over the network; `From<u64>` makes a token of it again.
///
/// Of two values that one tracker has kept, under any keys, the later one has the greater number. So a resource that
/// refuses numbers lower than the highest it has seen is safe from a holder that does not know that its lease has
/// ended. A tracker forgets its numbers when the process ends. After a restart,
/// [`first_token`](crate::Builder::first_token) lets the next tracker begin above these numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for FencingToken {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
