//! Deadlines as callers give them: after a timeout, at a point in time, or never.

use super::Timestamp;
use std::time::{Duration, Instant};

/// How long a call may wait: for a timeout, until a point in time, or without end. Every call that takes a timeout
/// takes `impl Into<Deadline>`:
///
/// | given | |
/// |---|---|
/// | [`Duration`] | a timeout, counted from each call |
/// | [`Timestamp`] | a point in time, on the clock in use; [`point`](crate::Purgatory::point) makes one |
/// | [`Instant`] | a point in time, on the system's monotonic clock |
/// | `None` | no end; `Some` is a timeout |
///
/// A request that waits in several rounds has one deadline for all rounds together. A timeout would start again in each
/// round, and so extend the wait. A point in time does not start again:
///
/// ```
/// use request_purgatory::{WaitError, Waits, future::block_on};
/// use std::collections::VecDeque;
/// use std::sync::{Arc, Mutex};
/// use std::time::{Duration, Instant};
///
/// let waits = Waits::<u32>::new("topics");
/// let queue = Arc::new(Mutex::new(VecDeque::from(["a", "b"])));
/// let (mut batch, deadline) = (Vec::new(), Instant::now() + Duration::from_millis(20));
/// // Stop after three messages, or 20 ms after the first round has begun.
/// while batch.len() < 3 {
///     let queue = queue.clone();
///     let message = waits.wait([7], deadline, move || queue.lock().unwrap().pop_front());
///     match block_on(message) {
///         Ok(message) => batch.push(message),
///         Err(WaitError::Expired) => break,
///         Err(error) => return Err(error),
///     }
/// }
/// assert_eq!(batch, ["a", "b"]);
/// assert!(Instant::now() >= deadline);
/// # Ok::<(), WaitError>(())
/// ```
///
/// # Why this shape
///
/// `Deadline` is an enum, so that code between a client and the library can tell the kinds of deadlines apart: such
/// code shortens a timeout, for example, and passes a point on. Each call first matches on the enum, so the code that
/// follows is compiled once for all kinds of deadlines. `None` is the usual way to write "no end"
/// ([`Never`](Self::Never)). [`Duration::MAX`] has no end either: it is a timeout that is longer than any clock runs.
/// It is needed only where a bare `Duration` is asked for, as by
/// [`DelayedOperation::timeout`](crate::DelayedOperation::timeout).
///
/// # Points
///
/// * If the point has passed already, the operation expires when the timer is next driven. A wait still evaluates its
///   predicate first.
/// * [`max_timeout`](crate::purgatory::Builder::max_timeout) bounds points as well: the deadline lies at most this long
///   after the call.
/// * The last possible reading of a clock, 584 years after its origin, never comes.
/// * An `Instant` is turned into a `Timestamp` when the call is made. With the default clock the two are the same
///   point. With a [clock of your own](crate::purgatory::Builder::clock), the time that is *left* until the `Instant`,
///   by the system's clock, is added to the present reading of your clock. A [`ManualClock`](super::ManualClock) that
///   stands still does not come nearer to an `Instant`. So keep an `Instant` for several waits only with real clocks.
///   If your tests move the clock by hand, keep a `Timestamp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Deadline {
    /// Without end.
    Never,
    /// After this timeout, counted from the call that gets the deadline. With [`Duration::MAX`], never.
    After(Duration),
    /// At this time, on the clock of the purgatory, the timer or the tracker.
    At(Timestamp),
    /// At this time, on the system's monotonic clock.
    AtInstant(Instant),
}

impl From<Duration> for Deadline {
    #[inline]
    fn from(timeout: Duration) -> Self {
        Self::After(timeout)
    }
}

impl From<Timestamp> for Deadline {
    #[inline]
    fn from(point: Timestamp) -> Self {
        Self::At(point)
    }
}

impl From<Instant> for Deadline {
    #[inline]
    fn from(point: Instant) -> Self {
        Self::AtInstant(point)
    }
}

/// `None` means that there is no end; `Some` is a timeout. No other `Option` is converted: if an `Option<Timestamp>`
/// were too, the compiler could not infer the type of a bare `None`. So for an optional point in time, write
/// `point.map_or(Deadline::Never, Into::into)`.
impl From<Option<Duration>> for Deadline {
    #[inline]
    fn from(timeout: Option<Duration>) -> Self {
        timeout.map_or(Self::Never, Self::After)
    }
}
