//! Rejections, and their reasons; errors of builders and shutdowns.

use crate::sync::Exclusive;
use std::error::Error;
use std::fmt;

/// Defines an enum of reasons, each with its message.
macro_rules! reasons {
    ($(#[$about:meta])* pub enum $name:ident { $($(#[$doc:meta])* $reason:ident = $says:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* $reason,)*
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$reason => $says,)*
                })
            }
        }

        impl std::error::Error for $name {}
    };
}
pub(crate) use reasons;

/// A rejected operation, or the payload that a timer has rejected, with the reason. [`into_inner`](Self::into_inner)
/// returns the operation.
///
/// If the operation is `Send`, the `?` operator converts this error into `Box<dyn Error + Send + Sync>` and the like.
pub struct Rejected<Op> {
    reason: RejectReason,
    operation: Exclusive<Op>,
}

reasons! {
    /// Why an operation was rejected.
    pub enum RejectReason {
        /// The list of keys was empty.
        NoKeys = "no key was given, and an operation needs at least one to watch",
        /// The number of operations that are parked, or whose `on_complete` has not returned yet, has reached
        /// [`max_parked`](crate::purgatory::Builder::max_parked). Or the operation would raise the total weight above
        /// [`max_weight`](crate::purgatory::Builder::max_weight).
        Full = "full: the limit of parked operations (`max_parked`, `max_weight`) is reached",
        /// One of the keys has as many watchers as
        /// [`max_watchers_per_key`](crate::purgatory::Builder::max_watchers_per_key) allows.
        KeyFull = "a key is full: the limit of operations that watch it (`max_watchers_per_key`) is reached",
        /// The purgatory is being [drained](crate::Purgatory::drain).
        Draining = "the purgatory is being drained, and rejects every new operation",
        /// The purgatory or timer is shut down.
        ShutDown = "the purgatory or timer is shut down",
        /// The timeout is longer than the scheme of a [`Timer`](crate::Timer) can hold. Only a
        /// [`SimpleWheel`](crate::scheme::SimpleWheel) has such a bound; a purgatory has none.
        TooLong = "the timeout is longer than the timer's scheme can hold (a simple wheel: take another scheme)",
        /// More than eight parks are nested. A park is nested if it is made by user code that another call of the
        /// library runs on this thread, such as a `try_complete` or the destructor of a key. Park from `on_complete`
        /// instead, because completions never nest.
        Nested = "too many nested parks: more than eight, each inside the `try_complete` of another",
        /// The operation is the first with a finite timeout. Its park has to start the reaper, the thread that expires
        /// operations, and the system refused this thread. The next such park tries again. With the builder's
        /// `threads_at_once`, `build` fails instead.
        Thread = "the system refused a thread, without which the timeout cannot fire",
    }
}

impl<Op> Rejected<Op> {
    #[cold]
    pub(crate) fn new(reason: RejectReason, operation: Op) -> Self {
        Self {
            reason,
            operation: Exclusive::new(operation),
        }
    }

    /// The reason for the rejection.
    pub fn reason(&self) -> RejectReason {
        self.reason
    }

    /// Returns the operation.
    pub fn into_inner(self) -> Op {
        self.operation.into_inner()
    }

    /// Returns the reason and the operation.
    pub fn into_parts(self) -> (RejectReason, Op) {
        (self.reason, self.operation.into_inner())
    }

    /// Keeps the reason, and replaces the operation by the result of `part`.
    pub(crate) fn map<T>(self, part: impl FnOnce(Op) -> T) -> Rejected<T> {
        Rejected::new(self.reason, part(self.operation.into_inner()))
    }
}

debug_fields!([Op] Rejected<Op>, "Rejected", |it| reason: it.reason);

impl<Op> fmt::Display for Rejected<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<Op> Error for Rejected<Op> {}

/// Why a shutdown did not end within the time limit that its caller has set, or could not begin.
#[derive(Debug)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The time limit has passed. The shutdown goes on in the background.
    TimedOut {
        /// The number of operations that have not ended: the shutdown has not reached them yet, or another thread is
        /// examining them.
        parked: usize,
        /// The number of ended operations whose `on_complete` was handed over, for example to another thread, and has
        /// not returned.
        completions_pending: usize,
        /// The names of the library's own threads that have not ended.
        threads: Vec<String>,
    },
    /// The system refused to start the thread that shuts down. The shutdown has not begun.
    Thread(std::io::Error),
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut {
                parked,
                completions_pending,
                threads,
            } => write!(
                f,
                "the shutdown took longer than the limit of the call: {parked} operations parked, \
                 {completions_pending} completions pending, threads running: {}",
                match threads.as_slice() {
                    [] => "none".to_owned(),
                    threads => threads.join(", "),
                }
            ),
            Self::Thread(error) => write!(f, "the system refused to start a thread: {error}"),
        }
    }
}

impl Error for ShutdownError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Thread(error) => Some(error),
            Self::TimedOut { .. } => None,
        }
    }
}

/// Why a purgatory or timer cannot be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// [`tick`](crate::purgatory::Builder::tick) is zero, or longer than `u64::MAX` nanoseconds (584 years).
    Tick,
    /// [`wheel_size`](crate::purgatory::Builder::wheel_size) is less than 2 or more than 65,536.
    WheelSize,
    /// The system refused to start a thread.
    Thread(std::io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tick => f.write_str("`tick` must be longer than zero and at most 584 years"),
            Self::WheelSize => f.write_str("`wheel_size` must be from 2 to 65,536 slots"),
            Self::Thread(error) => write!(f, "the system refused to start a thread: {error}"),
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
