//! Fencing tokens.

use std::fmt;

/// Names one value that a [`Tracker`](crate::Tracker) keeps or has kept. Each new value of a tracker gets a token with
/// a greater number.
///
/// [`track`](crate::Tracker::track) returns the token of the value. A holder that passes this token acts only on its
/// own value: if the key has another value now, even an equal one, [`reschedule_if`](crate::Tracker::reschedule_if),
/// [`complete_if`](crate::Tracker::complete_if) and [`replace_if`](crate::Tracker::replace_if) do nothing. The number
/// may be sent over the network; `From<u64>` converts the number back to the token.
///
/// Of two values that one tracker has kept, under any keys, the later value has the greater number. So a resource can
/// refuse each number that is lower than the highest number it has seen. This protects the resource from a holder that
/// does not know that its lease has ended. A tracker forgets its numbers when the process ends. After a restart,
/// [`first_token`](crate::Builder::first_token) lets the next tracker begin with a greater number.
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
