//! Futures over a purgatory. They need no runtime: any executor polls them, or a thread waits in them.
//!
//! [`wait`] parks a predicate of the user's and resolves to what it finds; [`completing`] parks an operation of the
//! user's and resolves to its end. Both are operations like any other. What ends one keeps a promise
//! ([`reply`]), which wakes whoever polled last.

mod completing;
mod reply;
mod wait;

pub use completing::{Awaited, CompletionFuture};
pub use reply::CompletionError;
pub use wait::{WaitError, WaitFuture, WaitOperation, Waits};
