//! Rejections of values and requests, with their reasons; errors of the builders.

use parking_lot::Mutex;
use std::error::Error;
use std::fmt;

/// A value or an id that was rejected, with the reason. [`into_inner`](Self::into_inner) returns the value or id.
///
/// `?` converts a rejection into a `Box<dyn Error + Send + Sync>` if the value is `Send`.
pub struct Rejected<T> {
    reason: RejectReason,
    /// The mutex makes this type `Sync` if the value is `Send`. Only the owner takes the value out, so no thread ever
    /// locks the mutex.
    value: Mutex<T>,
}

/// Why a value or a request was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// The number of values has reached [`max_parked`](crate::Builder::max_parked). Expired values count until their
    /// callback has returned.
    Full,
    /// The tracker is shut down.
    ShutDown,
    /// A value is kept for this key already, or a request with this id is pending.
    Duplicate,
    /// The value with this token is not kept any more: it was replaced, completed or withdrawn, or it has expired.
    StaleToken,
    /// The system refused the reaper's thread, which is started for the first value with a finite timeout. A later call
    /// tries again. With [`threads_at_once`](crate::Builder::threads_at_once), `build` fails instead.
    Thread,
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full: the limit of values that are kept (`max_parked`) is reached",
            Self::ShutDown => "the tracker is shut down",
            Self::Duplicate => "a value is kept for this key already",
            Self::StaleToken => "the value with this token is not kept any more",
            Self::Thread => "the system refused a thread, without which the timeout cannot fire",
        })
    }
}

impl Error for RejectReason {}

/// Converts the reason for which the timer of a tracker has rejected a payload: `Full`, `ShutDown` or `Thread`. No
/// other reason occurs. `TooLong` does not, because the timer uses the hierarchical wheel, which accepts every timeout.
/// The remaining reasons are given only by a purgatory.
impl From<request_purgatory::RejectReason> for RejectReason {
    fn from(reason: request_purgatory::RejectReason) -> Self {
        use request_purgatory::RejectReason;
        match reason {
            RejectReason::Full => Self::Full,
            RejectReason::ShutDown => Self::ShutDown,
            RejectReason::Thread => Self::Thread,
            other => {
                unreachable!("a timer on the hierarchical wheel has no reason to say: {other}")
            }
        }
    }
}

impl<T> Rejected<T> {
    #[cold]
    pub(crate) fn new(reason: RejectReason, value: T) -> Self {
        Self {
            reason,
            value: Mutex::new(value),
        }
    }

    /// Why the value or id was rejected.
    pub fn reason(&self) -> RejectReason {
        self.reason
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Returns the reason and the value.
    pub fn into_parts(self) -> (RejectReason, T) {
        (self.reason, self.value.into_inner())
    }
}

impl<T> fmt::Debug for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Rejected");
        shown.field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<T> Error for Rejected<T> {}

/// Why a [`Tracker`](crate::Tracker) or a [`Requests`](crate::Requests) cannot be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// [`first_token`](crate::Builder::first_token) is more than 2^63.
    FirstToken,
    /// The underlying timer cannot be built.
    Timer(request_purgatory::purgatory::BuildError),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstToken => f.write_str("`first_token` must be at most 2^63"),
            Self::Timer(error) => error.fmt(f),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::FirstToken => None,
            Self::Timer(error) => error.source(),
        }
    }
}

impl From<request_purgatory::purgatory::BuildError> for BuildError {
    fn from(error: request_purgatory::purgatory::BuildError) -> Self {
        Self::Timer(error)
    }
}
