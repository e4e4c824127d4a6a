//! Futures of operations that wait in a purgatory. The futures need no runtime: any executor can poll them, and
//! [`block_on`] runs one on the calling thread, which sleeps while the future is pending.
//!
//! | | parks | resolves to |
//! |---|---|---|
//! | [`wait`](crate::Purgatory::wait) | a predicate of the user's | what it finds |
//! | [`listen`](crate::Purgatory::listen) | a listener; the waiter evaluates the condition itself | one of two futures: `Listener::checked` at the next check of a key, `Listener::until` with what the condition finds |
//! | [`take`](crate::Purgatory::take) | a predicate that takes a value | a guard, which gives the value back unless the work is done |
//! | [`wait_then`](crate::Purgatory::wait_then) | a predicate of the user's | nothing: a callback gets what it finds |
//! | [`completion`](crate::Purgatory::completion) | an operation of the user's | the operation, and how it ended |
//!
//! Each of these calls parks an ordinary operation, unless the first examination already finds the result. When the
//! operation ends, its future resolves, and the task that polled the future last is woken.

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
