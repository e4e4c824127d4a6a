#![doc = include_str!("guide/links.md")]
#![doc = ""]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod address;
mod alarm;
mod cell;
mod completions;
mod engine;
mod error;
mod future;
#[cfg(any(doc, doctest))]
pub mod guide;
#[cfg(loom)]
#[doc(hidden)]
pub mod model;
mod observe;
mod operation;
mod promise;
mod purgatory;
mod reaper;
pub mod scheme;
mod stats;
mod sync;
mod time;
mod timer;
mod tracker;
mod turn;
mod watch;

pub use completions::{Completions, Executor, Job};
pub use error::{BuildError, Rejected, ResetError};
#[doc(no_inline)]
pub use foldhash::fast::RandomState;
pub use future::{Awaited, Completing, Lost, Wait, WaitError, Waiter, Waits};
pub use operation::{Completion, DelayedOperation, KeyHasher};
pub use purgatory::{
    Arrival, Builder, Handle, ParkedOperation, Purgatory, ResolvedKey, Watch, WatchOn,
    WeakPurgatory,
};
pub use reaper::{Reaper, ReaperThread};
pub use stats::Stats;
pub use time::{Clock, ManualClock, SystemClock, Timestamp, Waker};
pub use timer::{Timer, TimerBuilder, TimerId, WeakTimer};
pub use tracker::{
    Request, Requests, RequestsBuilder, TrackedKey, Tracker, TrackerBuilder, Unanswered,
    WeakTracker,
};
