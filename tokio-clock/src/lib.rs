//! Runs purgatories and timers of [`request_purgatory`] on tokio's clock, even where a test pauses the clock; with the
//! feature `tracker`, also the trackers and requests of `request-purgatory-tracker`.
//!
//! [`spawn`] builds a purgatory, and spawns the task that drives it. The purgatory then has no thread of the library.
//!
//! ```
//! use request_purgatory::Waits;
//! use request_purgatory::future::WaitError;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), request_purgatory::purgatory::BuildError> {
//! let rooms = request_purgatory_tokio::spawn(|clock, reaper| {
//!     let builder = Waits::<u32>::builder("rooms").clock(clock);
//!     builder.reaper(reaper).build()
//! })?;
//! // With tokio's clock paused, this hour takes no time.
//! let hour = Duration::from_secs(3_600);
//! assert_eq!(rooms.wait([7], hour, || None::<()>).await, Err(WaitError::Expired));
//! # Ok(())
//! # }
//! ```

use request_purgatory::purgatory::KeyHasher;
use request_purgatory::scheme::Scheme;
use request_purgatory::threads::Reaper;
use request_purgatory::time::{Clock, Timestamp, WakeFn};
use request_purgatory::{DelayedOperation, Purgatory, Timer};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Tokio's time, counted from the creation of this value.
///
/// The time is that of the runtime in which it is read, which a test may have paused. Outside of a runtime the time is
/// never paused, so a reaper thread would not see the pause; therefore [`spawn`] drives by a task.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    origin: Instant,
}

impl TokioClock {
    /// A clock that reads zero.
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// The instant at which this clock reads `at`. `None` if it is too far in the future for tokio.
    pub fn instant(&self, at: Timestamp) -> Option<Instant> {
        self.origin.checked_add(at.since_origin())
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_origin(self.origin.elapsed())
    }
}

/// Builds a purgatory (timer, tracker, requests) by `build`, and spawns the task that drives it on the current runtime.
/// `build` must give its builder the clock and the reaper that it is called with.
///
/// The task does not keep the purgatory alive. The task ends when the last clone is dropped, or after a shutdown. Until
/// then it sleeps from deadline to deadline. If the runtime ends before the purgatory, no operation expires any more.
///
/// Expiries and deferred checks run in that task, and so do their completions, unless the builder has another
/// [dispatch](request_purgatory::threads::Dispatch). So a slow callback delays every other deadline of this purgatory,
/// and blocks a worker of the runtime.
///
/// # Errors
/// The errors of `build`.
///
/// # Panics
/// If the call is not made in a runtime of tokio with the time driver.
pub fn spawn<T: Drive, E>(build: impl FnOnce(TokioClock, Reaper) -> Result<T, E>) -> Result<T, E> {
    // Without a time driver, this call panics, and the caller sees the panic. Otherwise the spawned task would panic,
    // and no caller would see that.
    drop(tokio::time::sleep(Duration::ZERO));
    let clock = TokioClock::new();
    let changed = Arc::new(Notify::new());
    let notified = changed.clone();
    let reaper = Reaper::Reactor(WakeFn::new(move || {
        // The notification is kept if the task is not waiting yet.
        notified.notify_one();
        true
    }));
    let driven = build(clock, reaper)?;
    drop(tokio::spawn(drive(driven.driver(), clock, changed)));
    Ok(driven)
}

async fn drive(
    make_due: impl Fn() -> Option<Option<Timestamp>>,
    clock: TokioClock,
    changed: Arc<Notify>,
) {
    while let Some(next) = make_due() {
        let changed = changed.notified();
        match next.and_then(|next| clock.instant(next)) {
            // Whether the deadline or the notification ended the wait does not matter: the next round handles what is
            // due.
            Some(deadline) => drop(timeout_at(deadline, changed).await),
            None => changed.await,
        }
    }
}

/// What [`spawn`] drives: every type of the library that has deadlines. A type of yours that wraps such a type forwards
/// the driver of the wrapped type.
pub trait Drive {
    /// A function that expires what is due, makes deferred checks, and returns the time of the next work, if there is
    /// any. The function does not keep the purgatory running: it returns `None` after a shutdown, or when the last
    /// clone was dropped.
    fn driver(&self) -> impl Fn() -> Option<Option<Timestamp>> + Send + 'static;
}

macro_rules! drive {
    ($([$($generics:tt)*] $type:ty;)*) => {$(
        impl<$($generics)*> Drive for $type {
            fn driver(&self) -> impl Fn() -> Option<Option<Timestamp>> + Send + 'static {
                let weak = self.downgrade();
                move || {
                    let driven = weak.upgrade().filter(|open| !open.is_shut_down())?;
                    driven.advance();
                    Some(driven.next_deadline())
                }
            }
        }
    )*};
}

drive! {
    [Op: DelayedOperation, S: KeyHasher] Purgatory<Op, S>;
    [T: Send + 'static, W: Scheme] Timer<T, W>;
}

#[cfg(feature = "tracker")]
mod of_trackers {
    use super::Drive;
    use request_purgatory::purgatory::{Key, KeyHasher};
    use request_purgatory::time::Timestamp;
    use request_purgatory_tracker::{Requests, Tracker};

    drive! {
        [K: Key, V: Send + 'static, S: KeyHasher] Tracker<K, V, S>;
        [K: Key, R: Send + 'static, S: KeyHasher] Requests<K, R, S>;
    }
}
