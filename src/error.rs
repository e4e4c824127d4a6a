//! What can be refused, and why.

use std::error::Error;
use std::fmt;

/// The operation (payload, request) was not taken; here it is again.
#[non_exhaustive]
pub enum Rejected<Op> {
    /// There was no key to watch.
    NoKeys(Op),
    /// [`Builder::max_parked`](crate::Builder::max_parked) operations are parked already.
    Full(Op),
    /// It is shut down.
    ShutDown(Op),
    /// The timeout is longer than the timer can hold: only a simple wheel ends somewhere.
    TooLong(Op),
    /// A hook of the operation, `Hash` or `Clone` of one of its keys, or the clock panicked while it was being parked.
    /// It is no longer watched by anyone; its state is whatever the panic left.
    Panicked(Op),
    /// There is an entry for this key already.
    Duplicate(Op),
}

impl<Op> Rejected<Op> {
    /// The operation.
    pub fn into_operation(self) -> Op {
        match self {
            Self::NoKeys(op)
            | Self::Full(op)
            | Self::ShutDown(op)
            | Self::TooLong(op)
            | Self::Panicked(op)
            | Self::Duplicate(op) => op,
        }
    }

    /// The same refusal of what `part` makes of the operation.
    pub(crate) fn map<T>(self, part: impl FnOnce(Op) -> T) -> Rejected<T> {
        match self {
            Self::NoKeys(op) => Rejected::NoKeys(part(op)),
            Self::Full(op) => Rejected::Full(part(op)),
            Self::ShutDown(op) => Rejected::ShutDown(part(op)),
            Self::TooLong(op) => Rejected::TooLong(part(op)),
            Self::Panicked(op) => Rejected::Panicked(part(op)),
            Self::Duplicate(op) => Rejected::Duplicate(part(op)),
        }
    }

    pub(crate) fn variant(&self) -> &'static str {
        match self {
            Self::NoKeys(_) => "NoKeys",
            Self::Full(_) => "Full",
            Self::ShutDown(_) => "ShutDown",
            Self::TooLong(_) => "TooLong",
            Self::Panicked(_) => "Panicked",
            Self::Duplicate(_) => "Duplicate",
        }
    }
}

impl<Op> fmt::Debug for Rejected<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(self.variant()).finish_non_exhaustive()
    }
}

impl<Op> fmt::Display for Rejected<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoKeys(_) => "an operation needs at least one key to watch",
            Self::Full(_) => "as many wait as may",
            Self::ShutDown(_) => "it is shut down",
            Self::TooLong(_) => "the timeout is longer than the timer can hold",
            Self::Panicked(_) => "the operation panicked while it was being parked",
            Self::Duplicate(_) => "there is an entry for this key already",
        })
    }
}

impl<Op> Error for Rejected<Op> {}

/// A timer did not get another timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetError {
    /// It has fired or was stopped: the id is stale.
    Gone,
    /// The timeout is longer than the timer can hold: only a simple wheel ends somewhere. The old deadline stands.
    TooLong,
}

impl fmt::Display for ResetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the timer has fired or was stopped",
            Self::TooLong => "the timeout is longer than the timer can hold",
        })
    }
}

impl Error for ResetError {}

/// A purgatory, timer or tracker cannot be built like this.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The tick is zero, or longer than `u64::MAX` nanoseconds (584 years).
    Tick,
    /// A level of the wheel needs from 2 to 65,536 slots.
    WheelSize,
    /// A thread could not be started.
    Thread(std::io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tick => f.write_str("the tick must be longer than zero and at most 584 years"),
            Self::WheelSize => f.write_str("a level of the wheel needs from 2 to 65,536 slots"),
            Self::Thread(error) => write!(f, "a thread could not be started: {error}"),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Thread(error) => Some(error),
            Self::Tick | Self::WheelSize => None,
        }
    }
}
