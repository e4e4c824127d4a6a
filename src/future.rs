//! Futures over a purgatory. They need no runtime: any executor polls them, or a thread blocks on them.
//!
//! [`Waits`] parks predicates, and a [`WaitFuture`] resolves to the value that its predicate finds. [`Awaited`] parks
//! operations, and a [`CompletionFuture`] resolves to the operation and its ending. Both are operations like any other.

mod completing;
mod reply;
mod wait;

pub use completing::{Awaited, CompletionFuture};
pub use reply::CompletionError;
pub use wait::{WaitError, WaitFuture, WaitOperation, Waits};
