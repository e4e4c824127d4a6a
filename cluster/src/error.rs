//! What can go wrong, and why.

use crate::position::Position;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Any error of a store's client.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What an engine answers a call with that it did not carry out, or not to the end. A [`Source`](crate::Source) of one's
/// own makes it of a text or of any other error: `"the disk is full".into()`.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// The store cannot be reached, or refused. An event may have been committed nevertheless, unless the store says
    /// otherwise.
    Store(BoxError),
    /// The store did not answer for this long. An event may have been committed nevertheless.
    TimedOut(Duration),
    /// The store has lost a part of what it held of this key: its counter and its log disagree, or it no longer keeps
    /// what was asked for. Go on from this position: what the store kept is before it. Nothing was committed.
    Reset(Position),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::TimedOut(time) => write!(f, "the store did not answer for {time:?}"),
            Self::Reset(position) => write!(
                f,
                "the store lost a part of what it held of this key: go on from {position}"
            ),
        }
    }
}

impl Error for EngineError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => Some(error.as_ref()),
            Self::TimedOut(_) | Self::Reset(_) => None,
        }
    }
}

impl From<BoxError> for EngineError {
    fn from(error: BoxError) -> Self {
        match error.downcast::<Self>() {
            Ok(error) => *error,
            Err(error) => Self::Store(error),
        }
    }
}

impl From<&str> for EngineError {
    fn from(why: &str) -> Self {
        Self::Store(why.into())
    }
}

impl From<String> for EngineError {
    fn from(why: String) -> Self {
        Self::Store(why.into())
    }
}

/// A key that the store cannot hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The name that the engine gives the key is longer than the engine's limit, both in bytes.
    TooLong {
        /// The length of the name.
        length: usize,
        /// The longest that the engine takes.
        limit: usize,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { length, limit } => write!(
                f,
                "the key needs a name of {length} bytes in the store, which takes at most {limit}"
            ),
        }
    }
}

impl Error for KeyError {}

/// Why there is no session, or why one ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum FeedError {
    /// The connection could not be made.
    Connect(BoxError),
    /// The connection is cut, or the engine refused a command.
    Cut(BoxError),
    /// The engine refuses what this node needs of it, and will until an operator changes that: a permission, a limit.
    Refused(String),
    /// This node, or its connection, was too slow: changes were dropped.
    Lagged,
    /// The engine did not answer for this long.
    Silent(Duration),
    /// The engine sent what its protocol does not allow.
    Protocol(String),
}

impl fmt::Display for FeedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "the engine cannot be reached: {error}"),
            Self::Cut(error) => write!(f, "the connection to the engine was lost: {error}"),
            Self::Refused(what) => f.write_str(what),
            Self::Lagged => f.write_str("this node read too slowly, and changes were dropped"),
            Self::Silent(time) => write!(
                f,
                "the engine was silent for {time:?}, which is more than `Config::ping` allows"
            ),
            Self::Protocol(what) => write!(f, "the engine sent something unexpected: {what}"),
        }
    }
}

impl FeedError {
    #[cfg(feature = "nats")]
    pub(crate) fn cut(error: impl Into<BoxError>) -> Self {
        Self::Cut(error.into())
    }

    /// One word for it, for a metric.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Cut(_) => "cut",
            Self::Refused(_) => "refused",
            Self::Lagged => "lagged",
            Self::Silent(_) => "silent",
            Self::Protocol(_) => "protocol",
        }
    }
}

impl Error for FeedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Connect(error) | Self::Cut(error) => Some(error.as_ref()),
            Self::Refused(_) | Self::Lagged | Self::Silent(_) | Self::Protocol(_) => None,
        }
    }
}

/// Why a cluster was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartError {
    /// The calling thread is not in a tokio runtime, and the cluster needs one for its tasks.
    NoRuntime,
    /// This setting must be longer than zero, or at least one.
    Zero(&'static str),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRuntime => f.write_str("a cluster must be started from within a tokio runtime"),
            Self::Zero(setting) => write!(f, "`Config::{setting}` must be more than zero"),
        }
    }
}

impl Error for StartError {}

/// Why there is no interest in a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InterestError {
    /// This node watches [`Config::max_keys`](crate::Config::max_keys) keys already.
    TooManyKeys,
    /// The store cannot hold the key.
    Key(KeyError),
    /// The cluster was shut down.
    ShutDown,
}

impl fmt::Display for InterestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyKeys => f.write_str(
                "this node watches as many keys as it may (`Config::max_keys` is reached)",
            ),
            Self::Key(error) => error.fmt(f),
            Self::ShutDown => f.write_str("the cluster was shut down"),
        }
    }
}

impl Error for InterestError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Key(error) => Some(error),
            Self::TooManyKeys | Self::ShutDown => None,
        }
    }
}

/// Why a wait ended without a version.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// The timeout passed first. Also what a wait gets while the store cannot be read.
    Expired,
    /// The store lost what the waiting client had seen (it was flushed, or an older copy took over), or has discarded
    /// events that the client has not seen. The client goes on from this position: everything before it is lost, or was
    /// seen. (HTTP: 410 Gone.)
    Reset(Position),
    /// The cluster, or the purgatory that the wait is parked in, was shut down, or that purgatory is being drained. (HTTP:
    /// 503.)
    ShutDown,
    /// The purgatory has no room for the wait (`max_parked` or `max_watchers_per_key` is reached), or more than eight
    /// waits are nested, or the system refused the thread that its timeout needs. The wait never began. (HTTP: 503.)
    Full,
    /// The interest in the key was refused. The wait never began. (HTTP: 503 for too many keys, 414 for a key that is
    /// too long.)
    Interest(InterestError),
    /// The wait was cancelled or forced to end through the purgatory that it is parked in.
    Cancelled,
    /// `Hash`, `Eq` or `Clone` of the key panicked.
    Panicked,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the timeout passed before the key reached a later version",
            Self::Reset(position) => {
                return write!(
                    f,
                    "the store lost what was seen before, or what came after it: go on from {position}"
                );
            }
            Self::ShutDown => "the cluster or the purgatory of the wait was shut down, or that purgatory is drained",
            Self::Full => "no room for the wait (`max_parked`, `max_watchers_per_key`, nested waits), or no thread",
            Self::Interest(error) => return error.fmt(f),
            Self::Cancelled => "the wait was cancelled",
            Self::Panicked => "hashing, comparing or cloning the key panicked",
        })
    }
}

impl Error for WaitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Interest(error) => Some(error),
            _ => None,
        }
    }
}
