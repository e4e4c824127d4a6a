//! A timer facility without keys.

mod builder;
mod core;

pub use builder::TimerBuilder;

use crate::address::Address;
use crate::engine::drive::{advance, rearm_for_caller, shut_down};
use crate::engine::home::Rescheduled;
use crate::engine::owner::{Face, WeakFace};
use crate::error::{Rejected, ResetError};
use crate::scheme::{HierarchicalWheel, Scheme};
use crate::stats::Stats;
use crate::time::Timestamp;
use crate::time::ticks::NEVER;
use core::Core;
use std::fmt;
use std::time::Duration;

/// A thread-safe timer facility: hands a payload to a callback, or to a channel, when its timeout has passed.
///
/// It stands on the engine of the [`Purgatory`](crate::Purgatory), with its guarantees: any [`Duration`] is a timeout,
/// nothing fires before its deadline or more than a tick after it (while the callbacks keep up), a panic of the
/// callback ends that payload only, and an idle timer sleeps. How deadlines are kept is the type parameter `W`: the
/// [hierarchical wheel](HierarchicalWheel), unless [another scheme](TimerBuilder::scheme) is chosen.
///
/// ```
/// use request_purgatory::{ManualClock, Reaper, Timer};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (timer, expired) = Timer::builder("leases")
///     .clock(clock.clone())
///     .reaper(Reaper::Manual) // no thread; by default the timer has its own
///     .build_with_channel()?;
/// let short = timer.start(Duration::from_millis(10), "short")?;
/// timer.start(Duration::from_secs(10), "long")?;
/// assert_eq!(timer.stop(short), Some("short"));
/// assert_eq!(timer.stop(short), None);
///
/// clock.advance(Duration::from_secs(10));
/// assert_eq!(timer.advance(), 1);
/// assert_eq!(expired.try_recv()?, "long");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Cloning is cheap, and clones are the same timer. When the last one is dropped, it is [shut down](Self::shutdown).
///
/// Every method may be called from the callback. None holds a lock while code of yours runs (but a home's while it uses
/// a [`Scheme`] of yours), and none but [`shutdown`](Self::shutdown) waits for that. None but
/// [`advance`](Self::advance) runs the callback, so a lock that it takes may be held while a timer is started, stopped
/// or reset. Starting takes one lock of a home, for which it may wait shortly; stopping never waits.
pub struct Timer<T: Send + 'static, W: Scheme = HierarchicalWheel> {
    face: Face<Core<T, W>>,
}

/// Names a timer that was started. Once that has fired or was stopped, the id is stale: it does nothing, to no timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerId {
    address: Address,
    /// Which [`Timer`] gave it out.
    facility: u64,
}

impl<T: Send + 'static> Timer<T> {
    /// A timer with a tick of 1 ms, a reaper thread, and a completion thread on which `on_expiry` is called.
    ///
    /// # Panics
    /// If the system refuses a thread. [`TimerBuilder::build`] returns that as an error.
    pub fn new(name: impl Into<String>, on_expiry: impl Fn(T) + Send + Sync + 'static) -> Self {
        match Self::builder(name).build(on_expiry) {
            Ok(timer) => timer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins to build a timer with other choices.
    pub fn builder(name: impl Into<String>) -> TimerBuilder<T> {
        TimerBuilder::new(name.into())
    }
}

impl<T: Send + 'static, W: Scheme> Timer<T, W> {
    /// Hands `payload` out once `timeout` has passed; never with [`Duration::MAX`]. Reads the clock once.
    ///
    /// # Errors
    /// The payload comes back in a [`Rejected`]: the timer is full or shut down, the timeout is beyond the span of a
    /// simple wheel, or the clock panicked.
    pub fn start(&self, timeout: Duration, payload: T) -> Result<TimerId, Rejected<T>> {
        self.face.core.start(timeout, payload)
    }

    /// Takes back a payload that has not expired. `None` if it has, or was stopped, or is just expiring.
    pub fn stop(&self, id: TimerId) -> Option<T> {
        self.face.core.stop(id)
    }

    /// Lets a running timer expire `timeout` from now instead ([`Duration::MAX`]: never). Takes a home's lock and reads
    /// the clock; if that panics, so does this call.
    ///
    /// # Errors
    /// If it has fired or was stopped, or the timeout is beyond the span of a simple wheel.
    pub fn reset(&self, id: TimerId, timeout: Duration) -> Result<(), ResetError> {
        let address = self.face.core.address_of(id).ok_or(ResetError::Gone)?;
        match self.face.core.engine.reschedule(address, timeout) {
            Rescheduled::Done(_) => Ok(()),
            Rescheduled::Gone => Err(ResetError::Gone),
            Rescheduled::TooLong => Err(ResetError::TooLong),
        }
    }

    /// Whether the timer has neither fired nor been stopped. Takes no lock.
    pub fn is_running(&self, id: TimerId) -> bool {
        let address = self.face.core.address_of(id);
        address.is_some_and(|address| self.face.core.engine.is_parked(address))
    }

    /// The time until the deadline, zero if it has passed. `None` if the timer has fired or was stopped, or never
    /// fires. Takes a home's lock and reads the clock; if that panics, so does this call.
    pub fn remaining(&self, id: TimerId) -> Option<Duration> {
        let address = self.face.core.address_of(id)?;
        self.face.core.engine.remaining(address)
    }

    /// The deadline on the timer's clock, rounded up to the tick. `None` if the timer has fired or was stopped, or
    /// never fires. Takes a home's lock.
    pub fn deadline(&self, id: TimerId) -> Option<Timestamp> {
        let address = self.face.core.address_of(id)?;
        self.face.core.engine.deadline(address)
    }

    /// Timers that run now. Exact when no call is in progress. Takes no lock.
    pub fn len(&self) -> usize {
        self.stats().parked
    }

    /// Whether no timer runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What happened so far: of a timer, `parked` are running and `cancelled` were stopped. Takes no lock.
    pub fn stats(&self) -> Stats {
        self.face.core.engine.stats()
    }

    /// Expires what is due, for timers without a reaper (with one, it is harmless). Returns how many this call
    /// expired. What callbacks make due meanwhile is left for the next call.
    ///
    /// Takes every home's lock in turn, for a slice of timers at a time, and reads the clock; if that panics, so does
    /// this call.
    pub fn advance(&self) -> usize {
        let expired = advance(&self.face.core);
        rearm_for_caller(&*self.face.core);
        expired
    }

    /// When [`advance`](Self::advance) has something to do next, on the timer's clock: at or before the first
    /// deadline. `None`: not before something is started.
    ///
    /// Takes every home's lock in turn, and may wake the reaper.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let next = rearm_for_caller(&*self.face.core);
        (next != NEVER).then(|| self.face.core.engine.timestamp(next))
    }

    /// Ends the timer: starts are refused from now on. Returns the payloads that had not expired, if this is the
    /// first call. The timer's own threads are joined, after the callbacks that wait for them have run.
    ///
    /// May be called from a callback: then it does not wait for the threads, which end as soon as the callbacks that
    /// they run have returned.
    pub fn shutdown(&self) -> Vec<T> {
        match shut_down(&self.face.core) {
            true => self.face.core.take_remains(),
            false => Vec::new(),
        }
    }

    /// Whether the timer has been shut down.
    pub fn is_shut_down(&self) -> bool {
        self.face.core.engine.is_closed()
    }

    /// The name given to it.
    pub fn name(&self) -> &str {
        &self.face.core.engine.name
    }

    /// A face that does not keep the timer alive: for callbacks that start timers.
    pub fn downgrade(&self) -> WeakTimer<T, W> {
        WeakTimer {
            face: self.face.downgrade(),
        }
    }
}

impl<T: Send + 'static, W: Scheme> Clone for Timer<T, W> {
    fn clone(&self) -> Self {
        Self {
            face: self.face.clone(),
        }
    }
}

impl<T: Send + 'static, W: Scheme> fmt::Debug for Timer<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer")
            .field("name", &self.name())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A [`Timer`] that may be gone.
pub struct WeakTimer<T: Send + 'static, W: Scheme = HierarchicalWheel> {
    face: WeakFace<Core<T, W>>,
}

impl<T: Send + 'static, W: Scheme> WeakTimer<T, W> {
    /// The timer, if some strong face of it is left.
    pub fn upgrade(&self) -> Option<Timer<T, W>> {
        let face = self.face.upgrade()?;
        Some(Timer { face })
    }
}

impl<T: Send + 'static, W: Scheme> Clone for WeakTimer<T, W> {
    fn clone(&self) -> Self {
        Self {
            face: self.face.clone(),
        }
    }
}

impl<T: Send + 'static, W: Scheme> fmt::Debug for WeakTimer<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakTimer")
            .field("alive", &self.face.is_alive())
            .finish()
    }
}
