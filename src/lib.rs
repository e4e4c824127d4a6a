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
//! 1. **Park.** [`try_complete_else_watch`](Purgatory::try_complete_else_watch) first examines the operation on the
//!    stack. If the operation cannot complete, it gets a slot and a timer, is added to the watch list of each of its
//!    keys, and is examined a second time. The second examination sees an event that came before the operation was in
//!    the lists (G1).
//! 2. **Change, then check.** The code that causes an event first changes the data, then releases its own locks, and
//!    then calls [`check_and_complete`](Purgatory::check_and_complete). Events are not stored: a check of a key that no
//!    operation watches does nothing, and costs a lookup.
//! 3. **Examine.** The check claims each operation that watches the key (takes exclusive access), and calls its
//!    [`try_complete`](DelayedOperation::try_complete) on the checking thread. If another thread, the holder, has
//!    claimed the operation, the check does not wait. It leaves a mark, a bit in the operation's state word, and the
//!    holder examines the operation once more before it releases the operation.
//! 4. **End.** A yes of `try_complete`, the deadline, a cancel, a force or a shutdown ends the operation. Whichever
//!    comes first ends it, and the others find it ended: there is one ending (G5). The operation leaves the watch lists
//!    of all its keys and the timer (G6). Then [`on_complete`](DelayedOperation::on_complete) runs, with no lock of the
//!    library held (G3). A cancel returns the operation instead of calling `on_complete`. When many operations expire
//!    at once, the order is different: their `on_complete` runs first, and they leave the watch lists afterwards.
//!
//! # Consistency
//!
//! Take a thread that calls `check_and_complete(key)`, and an operation that watches `key` already, or begins to watch
//! it later. What the thread did before the call *happens-before* an examination of the operation, unless the operation
//! ends first. This examination begins after the check has begun, and runs on one of these threads:
//!
//! * the checking thread;
//! * the holder: the thread that is examining or parking the operation;
//! * after 16 examinations in a row by one holder, the thread that drives the timer.
//!
//! These rules hold as well:
//!
//! * Examinations and `on_complete` of one operation are totally ordered, whichever threads they run on, and each
//!   happens-before the next (G4).
//! * When a check outside every callback returns, the completions that it caused have run, or are left to the thread
//!   that is examining the operation. When [`check_later`](Purgatory::check_later) returns, the check is queued, but
//!   may not have been made yet.
//! * Nothing orders the completions of different operations, except the order of the watchers of one key in one check.
//! * [`Stats`](purgatory::Stats) and [`watchers`](Purgatory::watchers) are exact when no call is in progress. They may
//!   not yet include the effects of a call that is in progress.
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

// Begin with `docs/design.md`, which gives an overview. The head of `src/purgatory.rs` names the file of each step of
// an operation.

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
