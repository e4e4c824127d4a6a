//! The place where delayed requests wait.
//!
//! A broker-style server often gets requests that it cannot answer yet: a fetch that wants more bytes than there
//! are, a produce whose replicas lag behind. A [`Purgatory`] parks them. Each waits for *any* of its keys to be
//! checked and found satisfied, or for its timeout, whichever comes first.
#![deny(unsafe_code)]

mod alarm;
mod cell;
mod completions;
mod error;
#[cfg(loom)]
#[doc(hidden)]
pub mod model;
mod operation;
mod purgatory;
mod reaper;
mod stats;
mod sync;
mod time;
mod timer;
mod turn;
mod watch;

pub use completions::{Completions, Executor, Job};
pub use error::{BuildError, Rejected};
pub use foldhash::fast::RandomState;
pub use operation::{Completion, DelayedOperation};
pub use purgatory::{Builder, Handle, ParkedOperation, Purgatory, Watch, WeakPurgatory};
pub use reaper::{Reaper, ReaperThread};
pub use stats::Stats;
pub use time::{Clock, ManualClock, SystemClock, Timestamp, Waker};
