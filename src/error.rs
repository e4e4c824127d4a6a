//! What can be refused, and why.

use std::error::Error;
use std::fmt;

/// The operation was not parked; here it is again.
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
    /// A hook of the operation, or `Hash` or `Clone` of one of its keys, panicked while it was being parked. It is
    /// no longer watched by anyone; its state is whatever the panic left.
    Panicked(Op),
}

impl<Op> Rejected<Op> {
    /// The operation.
    pub fn into_operation(self) -> Op {
        match self {
            Self::NoKeys(op)
            | Self::Full(op)
            | Self::ShutDown(op)
            | Self::TooLong(op)
            | Self::Panicked(op) => op,
        }
    }

    fn variant(&self) -> &'static str {
        match self {
            Self::NoKeys(_) => "NoKeys",
            Self::Full(_) => "Full",
            Self::ShutDown(_) => "ShutDown",
            Self::TooLong(_) => "TooLong",
            Self::Panicked(_) => "Panicked",
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
            Self::Full(_) => "the purgatory is full",
            Self::ShutDown(_) => "the purgatory is shut down",
            Self::TooLong(_) => "the timeout is longer than the timer can hold",
            Self::Panicked(_) => "the operation panicked while it was being parked",
        })
    }
}

impl<Op> Error for Rejected<Op> {}

/// A purgatory cannot be built like this.
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
