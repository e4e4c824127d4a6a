#![doc = include_str!("guide/links.md")]
#![doc = ""]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg_attr(
    request_purgatory_loom,
    allow(
        missing_docs,
        missing_debug_implementations,
        clippy::new_without_default,
        reason = "the models see the inside"
    )
)]

// Where to begin to read: `docs/design.md` is the map, and the head of `src/purgatory.rs` says where each step of an
// operation is.

#[macro_use]
mod debug;

// The first module, so that on the page of `Purgatory` what it has in any case comes before what `Waits` adds.
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
pub use purgatory::{Bound, Handle, Purgatory, ResolvedKey, Watch};
#[doc(inline)]
pub use purgatory::{RejectReason, Rejected, WeakRef};
pub use request_purgatory_schemes as scheme;
#[doc(inline)]
pub use timer::Timer;
