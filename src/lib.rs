//! The place where delayed requests wait.
//!
//! A broker-style server gets requests that it cannot answer yet: a fetch that wants more bytes than there are, a
//! produce whose replicas lag behind. A [`Purgatory`] parks them. Each waits until *any* of the keys that it watches is
//! checked and finds it satisfied, or until its timeout fires, whichever comes first, and ends exactly once.
//!
//! ```
//! use request_purgatory::{Completion, DelayedOperation, ManualClock, Purgatory, Reaper};
//! use std::sync::{Arc, atomic::{AtomicU64, Ordering}, mpsc};
//! use std::time::Duration;
//!
//! struct DelayedFetch { end: Arc<AtomicU64>, offset: u64, reply: mpsc::Sender<Completion> }
//!
//! impl DelayedOperation for DelayedFetch {
//!     type Key = u32; // a partition
//!     fn timeout(&self) -> Duration { Duration::from_millis(500) }
//!     fn try_complete(&mut self) -> bool { self.end.load(Ordering::Acquire) >= self.offset }
//!     fn on_complete(self, completion: Completion) { let _ = self.reply.send(completion); }
//! }
//!
//! // A clock that is moved by hand, and no reaper thread: for tests. `Purgatory::new("fetch")` has both.
//! let clock = ManualClock::new();
//! let purgatory = Purgatory::builder("fetch").clock(clock.clone()).reaper(Reaper::Manual).build()?;
//! let (end, (reply, answers)) = (Arc::new(AtomicU64::new(0)), mpsc::channel());
//! let fetch = |offset| DelayedFetch { end: end.clone(), offset, reply: reply.clone() };
//! purgatory.try_complete_else_watch(fetch(10), [0, 1])?;
//! purgatory.try_complete_else_watch(fetch(20), [0])?;
//!
//! end.store(10, Ordering::Release);
//! assert_eq!(purgatory.check_and_complete(&0), 1);
//! assert_eq!(answers.recv()?, Completion::Satisfied);
//!
//! clock.advance(Duration::from_millis(500));
//! assert_eq!(purgatory.advance(), 1);
//! assert_eq!(answers.recv()?, Completion::Expired);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Contents
//!
//! * [`DelayedOperation`]: what you implement; [`Completion`]: how it ends.
//! * [`Purgatory`], [`Builder`], [`Handle`], [`Watch`], [`Rejected`]: parking, checking, cancelling, shutting down.
//! * [`Reaper`], [`Completions`]: on which threads the timer and the completions run.
//! * [`WatchOn`], [`ResolvedKey`], [`Arrival`]: the hot path: keys that are found without hashing, ranks, and a clock
//!   that was read already.
//! * [`Clock`], [`SystemClock`], [`ManualClock`]: where the time comes from.
//! * [`Waits`], [`Wait`], [`Awaited`], [`Completing`]: futures, without a runtime: of a value that a predicate finds, and
//!   of the end of an operation.
//! * [`Stats`], [`ParkedOperation`]: what happens, and what hangs.
//! * [`Timer`]: timeouts without keys, by any [`scheme`].
//! * [`Tracker`], [`Requests`]: one timer for each key; calls that wait for their responses.
//!
//! # What is locked, and on which thread your code runs
//!
//! No lock of the library is held while `try_complete`, `on_complete` or `timeout` runs, and no thread waits for
//! another that runs them: who finds an operation in the hands of another thread leaves a mark, and that thread looks
//! again. So every method may be called from every callback. What remains is *your* locks: a check runs other
//! operations' code on the checking thread, under whatever that thread holds. Check with no lock held that a callback
//! takes, or use [`Purgatory::check_later`].
//!
//! | code | runs on |
//! |---|---|
//! | `timeout`, the first two `try_complete` | the parking thread |
//! | `try_complete` | each thread that checks a key; the reaper at the deadline and for [`check_later`](Purgatory::check_later) |
//! | `on_complete` of a satisfied operation | the thread that found it so, before its call returns |
//! | `on_complete` of an expired operation | where [`Builder::completions`] says |
//! | `on_complete` at the shutdown | the thread that shuts down |
//! | `Hash`, `Eq`, `Clone` of a key | the calling thread, under the lock of one shard of the watcher map |
//!
//! # Consistency
//!
//! If an event happens before a check of a key, then every operation that watches the key, or is being parked on it
//! since before the event, has a whole `try_complete` that begins after the event; the check performs it, or the thread
//! that held the operation does. What `try_complete` changed in the operation is visible to the next one, on whatever
//! thread.
//!
//! # Memory
//!
//! An operation leaves all its keys and the timer when it ends, and its payload is dropped or handed out then; a key
//! without watchers is not in the map. The slots in which operations lie are reused but not given back before the
//! purgatory is dropped: they stay at the high-water mark of parked operations.
#![deny(unsafe_code)]

mod address;
mod alarm;
mod cell;
mod completions;
mod engine;
mod error;
mod future;
#[cfg(loom)]
#[doc(hidden)]
pub mod model;
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

/// The README's code is tested with the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
