#![doc = include_str!("guide/picture.md")]
#![doc = include_str!("guide/life.md")]
#![doc = include_str!("guide/links.md")]
#![doc = ""]
#![doc = include_str!("../README.md")]
//!
//! # The protocol
//!
//! An operation goes through these steps. A number such as G1 names the [guarantee](guide::guarantees) on which the
//! step rests.
//!
//! 1. **Park.** [`try_complete_else_watch`](Purgatory::try_complete_else_watch) examines the operation on the stack
//!    first. If it cannot complete, it gets a slot and a timer, is added to the watch list of each of its keys, and is
//!    examined a second time: an event that came before the watch was added is seen by this examination (G1).
//! 2. **Change, then check.** The code that causes an event first changes the data, then releases its own locks, and
//!    then calls [`check_and_complete`](Purgatory::check_and_complete). Events are not stored: a check of a key that no
//!    operation watches does nothing, and costs a lookup.
//! 3. **Examine.** The check claims each operation that watches the key, and calls its
//!    [`try_complete`](DelayedOperation::try_complete) on the checking thread. If another thread holds the operation,
//!    the check leaves a mark instead of waiting, and the holder examines the operation once more before the release.
//! 4. **End.** A yes, the deadline, a cancel or a shutdown ends the operation, whichever claims it first. There is only
//!    one ending (G5). The operation leaves the watch lists of all its keys and the timer (G6). Then
//!    [`on_complete`](DelayedOperation::on_complete) runs, with no lock of the library held (G3).
//!
//! # Consistency
//!
//! What a thread did before it called `check_and_complete(key)` *happens-before* an examination of each operation that
//! watches `key` when the check begins, or begins to watch it later, unless the operation ends first. That examination
//! is complete: it begins after the check did. It runs on the checking thread, on the thread that holds the operation
//! (examines or parks it), or, after 16 examinations in a row by one thread, on the thread that drives the timer.
//!
//! * Examinations and `on_complete` of one operation are totally ordered, whichever threads they run on, and each
//!   happens-before the next (G4).
//! * When a check outside every callback returns, the completions that it caused have run, or are left to the thread
//!   that is examining the operation. A [`check_later`](Purgatory::check_later) only promises that the check follows.
//! * Nothing orders the completions of different operations, except the order of the watchers of one key in one check.
//! * [`Stats`](purgatory::Stats) and [`watchers`](Purgatory::watchers) are exact when no call is in progress. During a
//!   call they may lag behind it.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg_attr(
    request_purgatory_loom,
    allow(
        missing_docs,
        missing_debug_implementations,
        clippy::new_without_default,
        reason = "internal types that are public only for the loom models"
    )
)]

// Where to start reading: `docs/design.md` is the map, and the head of `src/purgatory.rs` names the file of each step
// of an operation.

#[macro_use]
mod debug;

// Declared first, so that the page of `Purgatory` shows its general methods before the methods that `Waits` adds.
pub mod purgatory;

mod callbacks;
mod cell;
mod engine;
mod error;
pub mod future;
#[cfg(any(doc, doctest))]
pub mod guide;
mod hash;
#[cfg(request_purgatory_loom)]
#[doc(hidden)]
#[path = "../loom-tests/inside/model.rs"]
pub mod model;
mod observe;
mod operation;
mod stats;
mod sync;
pub mod threads;
pub mod time;
pub mod timer;
mod watch;

#[doc(inline)]
pub use future::{Awaited, Listener, Take, Taken, Wait, WaitError, WaitFuture, Waits};
#[doc(inline)]
pub use operation::{Completion, DelayedOperation};
#[doc(inline)]
pub use purgatory::{CheckBound, Handle, Purgatory, ResolvedKey, Watch};
#[doc(inline)]
pub use purgatory::{RejectReason, Rejected, WeakRef};
#[doc(inline)]
pub use request_purgatory_schemes as scheme;
#[doc(inline)]
pub use time::Deadline;
#[doc(inline)]
pub use timer::Timer;
