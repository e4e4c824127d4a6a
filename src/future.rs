//! Futures over a purgatory. They need no runtime: any executor can poll them, or a thread runs one by [`block_on`].
//!
//! | | parks | resolves to |
//! |---|---|---|
//! | [`wait`](crate::Purgatory::wait) | a predicate of the user's | what it finds |
//! | [`listen`](crate::Purgatory::listen) | a listener; the condition stays with the waiter | checks, one by one; what the condition finds |
//! | [`take`](crate::Purgatory::take) | a predicate that takes | a guard of what it took, which goes back unless it is done |
//! | [`wait_then`](crate::Purgatory::wait_then) | a predicate of the user's | nothing: a callback gets what it finds |
//! | [`completion`](crate::Purgatory::completion) | an operation of the user's | its end |
//!
//! All of these are operations like any other. The ending of an operation resolves its future, and wakes the task that
//! polled last.

mod answer;
mod completing;
mod further;
mod listener;
mod operation;
mod recheck;
pub(crate) mod reply;
mod signal;
mod take;
mod then;
mod wait;
mod wait_error;

pub use crate::callbacks::promise::{Promise, block_on};
pub use answer::Answer;
pub use completing::Awaited;
pub use further::FurtherKeys;
pub use listener::Listener;
pub use operation::WaitOperation;
pub use take::{Attempt, Take, Taken};
pub use wait::{Wait, WaitFuture, Waits};
pub use wait_error::WaitError;
