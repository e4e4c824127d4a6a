//! Timers without keys.

pub(crate) mod inner;

use crate::cell::address::Address;
use crate::cell::state::Mark;
use crate::engine::Engine;
use crate::engine::permits::ONE;
use crate::engine::settings::{Builder, sound};
use crate::engine::shard::{Timing, Unchanged};
use crate::engine::shared_handle::{SharedHandle, shared_methods, shared_type};
use crate::error::{BuildError, RejectReason, Rejected, reasons};
use crate::scheme::{HierarchicalWheel, Scheme, Tick};
use crate::stats::{Ending, Statistic};
use crate::time::ticks::NEVER;
use crate::time::{Deadline, Timestamp};
use inner::Inner;
use std::time::Duration;

/// Passes each payload to a callback when the payload's timeout has passed. Any number of threads can use one timer.
///
/// A timer has the guarantees of a [`Purgatory`](crate::Purgatory). Any [`Duration`] is a timeout (a
/// [`SimpleWheel`](crate::scheme::SimpleWheel) alone has a longest one). No timer fires before its deadline. While the
/// callbacks keep up, no timer fires more than a tick after its deadline. A panic of the callback affects only the
/// payload that the callback was called with. The timer's thread sleeps while there is nothing to do. The type
/// parameter `W` is the scheme that keeps the deadlines: the [hierarchical wheel](HierarchicalWheel), or the [chosen
/// scheme](crate::purgatory::Builder::scheme).
///
/// ```
/// use request_purgatory::threads::Reaper;
/// use request_purgatory::time::ManualClock;
/// use request_purgatory::timer::Timer;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (expire, expired) = mpsc::channel();
/// let timer = Timer::builder("leases")
///     .clock(clock.clone())
///     .reaper(Reaper::Manual) // no thread; by default the timer has its own
///     .build(move |lease| expire.send(lease).unwrap())?;
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
/// Cloning is cheap, and all clones are the same timer. The drop of the last clone [shuts the timer
/// down](Self::shutdown). The thread that drops this clone also drops the payloads, and waits at most about 10 ms for
/// the end of each of the timer's threads.
///
/// * The callback may call every method.
/// * No method holds a lock of the library while your code runs, and only [`shutdown`](Self::shutdown) waits for your
///   code.
/// * No method except [`advance`](Self::advance) runs the callback, so you may start, stop or reschedule a timer under
///   a lock that the callback takes.
/// * The clock and the wake function of a [reactor](crate::threads::Reaper::Reactor) are your code as well. If they
///   take a lock under which you start timers, use [`start_under_lock`](Self::start_under_lock): a plain start would
///   wait for your lock without end.
/// * A start takes the lock of one timer shard (a part of the timer), and may wait for it briefly. A stop does not wait
///   for this lock.
///
/// # When a timer has expired
///
/// The deadline is a point of the clock. The start reads the clock, adds `timeout`, and rounds up to the tick. From the
/// deadline on, the timer cannot be rescheduled, even if it has not fired yet because the thread that drives the timer
/// is late (after a stall of the process, or with a [`Manual`](crate::threads::Reaper::Manual) reaper).
///
/// [`stop`](Self::stop) does not look at the clock: it withdraws every payload whose timer has not fired. So either the
/// callback or `stop` gets the payload, never both. If your code must not stop a timer past its deadline, it first
/// compares the [deadline](Self::deadline) with [`now`](Self::now).
pub struct Timer<T: Send + 'static, W: Scheme = HierarchicalWheel> {
    shared: SharedHandle<Inner<T, W>>,
}

/// Names a timer that was started. When the timer has fired or was stopped, its id is stale: a call with it does
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerId {
    address: Address,
    /// The number of the [`Timer`] that gave the id out.
    timer: u64,
}

reasons! {
    /// Why a reschedule failed. The timer keeps its deadline.
    pub enum RescheduleError {
        /// The timer has fired or was stopped, or its deadline has passed; or the timeout is longer than a
        /// [`SimpleWheel`](crate::scheme::SimpleWheel) holds.
        Unchanged = "the timer has fired, was stopped or is past its deadline, or the timeout is too long for its scheme",
        /// The system refused the reaper's thread, which is started for the first timer that has a deadline.
        Thread = "the system refused a thread, without which the timeout cannot fire",
    }
}

/// A wake-up that a start or reschedule under your lock leaves to you. The drop of this value wakes the thread that
/// drives the timer, if the deadline that the call has set is the earliest. Until the drop, that thread may sleep past
/// this deadline. Then this timer fires late, and so do timers that other calls start with later deadlines. So drop
/// this value soon, and never [forget](std::mem::forget) it. The wake-up may run your code (the wake function of a
/// [reactor](crate::threads::Reaper::Reactor)), so drop this value after you have released your lock.
///
/// Made by [`start_under_lock`](Timer::start_under_lock) and [`reschedule_under_lock`](Timer::reschedule_under_lock).
#[must_use = "to be dropped when the lock is released: until then timers may fire late"]
pub struct PendingWake<'t, T: Send + 'static, W: Scheme = HierarchicalWheel> {
    engine: &'t Engine<T, W>,
    earlier: Option<Tick>,
}

impl<T: Send + 'static, W: Scheme> Drop for PendingWake<'_, T, W> {
    #[inline]
    fn drop(&mut self) {
        self.engine.announce(self.earlier);
    }
}

debug_fields!(
    [T: Send + 'static, W: Scheme] PendingWake<'_, T, W>, "PendingWake",
    |it| wakes: it.earlier.is_some()
);

impl<T: Send + 'static, W: Scheme> Timer<T, W> {
    // `src/engine/shared_handle.rs` has the methods that timers and purgatories share: `len`, `stats`, `advance`,
    // `point` and others.
    shared_methods!("timers that run");

    /// The address of a timer. `None` for an id of another `Timer`.
    #[inline]
    fn address_of(&self, id: TimerId) -> Option<Address> {
        (id.timer == self.shared.inner.number).then_some(id.address)
    }

    /// The present time by the timer's clock, which is read once.
    ///
    /// # Panics
    /// A panic of the clock is passed on.
    #[inline]
    pub fn now(&self) -> Timestamp {
        self.shared.inner.engine.clock.now()
    }

    /// The present time by the timer's clock, or a time shortly after it. Pass it to
    /// [`start_under_lock`](Self::start_under_lock), as the start of a timeout. A deadline that is later than this time
    /// has not passed (`docs/guarantees.md`, G10, has the rare exceptions). If a deadline is earlier than this time,
    /// only [`now`](Self::now) shows whether it has passed.
    ///
    /// If the timer computes its deadlines from the processor's counter, as [`clock`](Builder::clock) explains, this
    /// call reads the counter, which takes less than half the time of `now`. The result is some microseconds ahead of
    /// the clock, and at most one millisecond. Otherwise this call does the same as `now`.
    ///
    /// # Panics
    /// A panic of the clock is passed on.
    #[inline]
    pub fn soon(&self) -> Timestamp {
        self.shared.inner.engine.soon()
    }

    /// Starts a timer: `payload` is passed to the callback when `timeout` has passed. `timeout` is a duration or a
    /// [point in time](Deadline); with `None` the timer never fires. Reads the clock once, and a clock of your own once
    /// more to convert an `Instant`.
    ///
    /// # Errors
    /// The payload comes back in a [`Rejected`] if the timer is full or shut down, the system refused a thread, or the
    /// timeout is too long for the scheme (only a [`SimpleWheel`](crate::scheme::SimpleWheel) has a longest timeout).
    ///
    /// # Panics
    /// A panic of the clock is passed on. Then nothing was started, and the payload is dropped.
    #[inline]
    pub fn start(&self, timeout: impl Into<Deadline>, payload: T) -> Result<TimerId, Rejected<T>> {
        self.start_weighed(timeout, 1, payload)
    }

    /// [Starts](Self::start) a timer whose payload has the given weight. The setting
    /// [`max_weight`](Builder::max_weight) bounds the sum of all weights. A payload that another method starts weighs
    /// 1.
    ///
    /// ```
    /// use request_purgatory::{RejectReason, Timer};
    /// use std::time::Duration;
    ///
    /// let timer = Timer::builder("unsent")
    ///     .max_weight(10)
    ///     .build(|bytes: Vec<u8>| println!("{} bytes were not sent", bytes.len()))?;
    /// let start = |bytes: Vec<u8>| timer.start_weighed(Duration::from_secs(5), bytes.len(), bytes);
    /// let first = start(vec![0; 8])?;
    /// let second = start(vec![0; 3]).unwrap_err();
    /// assert_eq!((second.reason(), timer.stats().weight), (RejectReason::Full, 8));
    /// timer.stop(first);
    /// start(second.into_inner())?;
    /// assert_eq!(timer.stats().weight, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    ///
    /// # Panics
    /// A panic of the clock is passed on. Then nothing was started, and the payload is dropped.
    pub fn start_weighed(
        &self,
        timeout: impl Into<Deadline>,
        weight: usize,
        payload: T,
    ) -> Result<TimerId, Rejected<T>> {
        // Read the clock first. It is user code, and if it panics now, nothing has to be undone.
        let timing = self.shared.inner.engine.timing(None, timeout.into());
        let (id, wake) = self.admit(timing, payload, weight as u64)?;
        drop(wake);
        Ok(id)
    }

    /// [Starts](Self::start) a timer for a caller that holds a lock. The call runs no code of yours, with one
    /// exception: if the deadline is an `Instant`, it may read your clock. So convert an `Instant` to a
    /// [`point`](Self::point) before you take the lock.
    ///
    /// `timeout` counts from `since`, a reading of the timer's clock by [`now`](Self::now) or [`soon`](Self::soon).
    /// Drop the [`PendingWake`] when you have released the lock: its drop wakes the thread that drives the timer, if
    /// necessary.
    ///
    /// With this method you can add a record and start its timer in one hold of your lock. A callback that takes the
    /// same lock then finds the record of its payload:
    ///
    /// ```
    /// use request_purgatory::Timer;
    /// use std::collections::HashMap;
    /// use std::sync::{Arc, Mutex};
    /// use std::time::Duration;
    ///
    /// let sessions = Arc::new(Mutex::new(HashMap::new()));
    /// let expired = sessions.clone();
    /// let timer = Timer::new("sessions", move |number: u64| {
    ///     expired.lock().unwrap().remove(&number).expect("it is there");
    /// });
    ///
    /// let now = timer.now();
    /// let mut locked = sessions.lock().unwrap();
    /// let (id, wake) = timer.start_under_lock(now, Duration::from_secs(10), 1)?;
    /// locked.insert(1, id);
    /// drop(locked);
    /// drop(wake);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    #[inline]
    pub fn start_under_lock(
        &self,
        since: Timestamp,
        timeout: impl Into<Deadline>,
        payload: T,
    ) -> Result<(TimerId, PendingWake<'_, T, W>), Rejected<T>> {
        let timing = self.shared.inner.engine.timing(Some(since), timeout.into());
        self.admit(timing, payload, ONE)
    }

    #[inline(always)]
    fn admit(
        &self,
        timing: Timing,
        payload: T,
        weight: u64,
    ) -> Result<(TimerId, PendingWake<'_, T, W>), Rejected<T>> {
        let inner = &self.shared.inner;
        let engine = &inner.engine;
        let started = match engine.phase.is_closed() {
            false => engine.admit_released(payload, weight, timing),
            true => Err(Rejected::new(RejectReason::ShutDown, payload)),
        };
        match started {
            Ok((address, earlier)) => {
                let id = TimerId {
                    address,
                    timer: inner.number,
                };
                Ok((id, PendingWake { engine, earlier }))
            }
            Err(rejected) => {
                engine.count(Statistic::Rejected, 1);
                Err(rejected)
            }
        }
    }

    /// Stops a timer that has not fired, even past its deadline, and returns the payload. `None` if the timer has
    /// fired, is firing or was stopped before: then the payload has gone to the callback, or to the call that stopped
    /// the timer.
    ///
    /// Runs no code of yours. Waits for no lock, with two exceptions:
    ///
    /// * the locks of [`max_weight`](Builder::max_weight), for an instant, if that setting is used;
    /// * the lock under which timer shards are made and the reaper's thread is started, at most once in each thread.
    #[inline]
    pub fn stop(&self, id: TimerId) -> Option<T> {
        let address = self.address_of(id)?;
        let engine = &self.shared.inner.engine;
        let held = engine.claim_or_mark(address, Mark::Cancel)?;
        Some(engine.withdraw(held, Ending::Cancelled))
    }

    /// Moves the deadline of a running timer to `timeout` from now, or to a [point in time](Deadline) (`None`: never).
    /// Takes the lock of a timer shard.
    ///
    /// Returns `false`, and keeps the old deadline, in these cases:
    ///
    /// * the timer has fired or was stopped;
    /// * its deadline has passed, or comes within the microseconds by which [`soon`](Self::soon) is ahead of the clock;
    /// * the timeout is too long for the scheme (only a [`SimpleWheel`](crate::scheme::SimpleWheel) has a longest one);
    /// * no payload of this `Timer` has had a deadline before, and the system refuses the reaper's thread.
    ///
    /// # Panics
    /// A panic of the clock is passed on. The timer keeps its deadline.
    #[must_use = "a timer whose deadline has passed cannot be rescheduled, and fires"]
    pub fn reschedule(&self, id: TimerId, timeout: impl Into<Deadline>) -> bool {
        let timing = self.shared.inner.engine.timing(None, timeout.into());
        self.file_anew(id, timing).map(drop).is_ok()
    }

    /// [Reschedules](Self::reschedule) a timer for a caller that holds a lock of its own. The present is taken from
    /// `since`, a reading of the timer's clock by [`now`](Self::now) or [`soon`](Self::soon): `timeout` counts from
    /// `since`, and the call fails if the old deadline has passed at `since`. Convert an `Instant` to a
    /// [`point`](Self::point) before you take the lock. Drop the [`PendingWake`] when you have released the lock: its
    /// drop wakes the thread that drives the timer, if necessary.
    ///
    /// # Errors
    /// The timer keeps its deadline. The [`RescheduleError`] is the reason.
    #[inline]
    pub fn reschedule_under_lock(
        &self,
        id: TimerId,
        since: Timestamp,
        timeout: impl Into<Deadline>,
    ) -> Result<PendingWake<'_, T, W>, RescheduleError> {
        let timing = self.shared.inner.engine.timing(Some(since), timeout.into());
        self.file_anew(id, timing)
    }

    /// Moves the deadline of a timer to the one in `timing`. Starts the reaper if the deadline needs it. Reads no
    /// clock, and wakes no thread: the drop of the result does.
    #[inline]
    fn file_anew(
        &self,
        id: TimerId,
        timing: Timing,
    ) -> Result<PendingWake<'_, T, W>, RescheduleError> {
        let engine = &self.shared.inner.engine;
        let address = self.address_of(id).ok_or(RescheduleError::Unchanged)?;
        engine
            .start_reaper_to_reschedule(timing, || engine.is_parked(address))
            .map_err(|_| RescheduleError::Thread)?;
        match engine.shard(address.shard()).reschedule(address, timing) {
            Ok(earlier) => Ok(PendingWake { engine, earlier }),
            Err(Unchanged) => Err(RescheduleError::Unchanged),
        }
    }

    /// Whether the timer has neither fired nor been stopped. Does not look at the clock, and takes no lock.
    pub fn is_running(&self, id: TimerId) -> bool {
        let address = self.address_of(id);
        address.is_some_and(|address| self.shared.inner.engine.is_parked(address))
    }

    /// The time until the deadline; zero if the deadline has passed. `None` if the timer has fired or was stopped, or
    /// if it never fires; [`is_running`](Self::is_running) distinguishes these cases. Takes the lock of a timer shard.
    /// Reads the clock; a panic of the clock is passed on.
    pub fn remaining(&self, id: TimerId) -> Option<Duration> {
        let deadline = self.deadline(id)?;
        Some(deadline.saturating_since(self.now()))
    }

    /// The deadline on the timer's clock, rounded up to the tick. `None` if the timer has fired or was stopped, or if
    /// it never fires; [`is_running`](Self::is_running) distinguishes these cases. Takes the lock of a timer shard.
    pub fn deadline(&self, id: TimerId) -> Option<Timestamp> {
        let engine = &self.shared.inner.engine;
        let address = self.address_of(id)?;
        let (_, deadline) = engine.shard(address.shard()).times(address)?;
        (deadline != NEVER).then(|| engine.scale.timestamp(deadline))
    }

    /// Rejects every start from now on. The first call returns the payloads whose timers had not fired; a later call
    /// returns none. Does not wait: callbacks of timers that had fired may still run. A [`shutdown`](Self::shutdown)
    /// after this call waits for these callbacks.
    ///
    /// Use `close` if you must handle the payloads without waiting for running callbacks, or if a running callback
    /// returns only after you have handled them.
    pub fn close(&self) -> Vec<T> {
        self.shared.inner.close()
    }

    /// Ends the timer: every start is rejected from now on. The first call returns the payloads whose timers had not
    /// fired; a later call returns none. Joins the timer's own threads, which first run the callbacks in their queues.
    ///
    /// A call inside a callback does not join the threads. They end when the callbacks in their queues have run.
    pub fn shutdown(&self) -> Vec<T> {
        let remains = self.close();
        self.shared.inner.engine.stop_threads(None);
        remains
    }
}

shared_type!([T: Send + 'static, W: Scheme] Timer, Timer<T, W>, Inner<T, W>, ());

impl<T: Send + 'static> Timer<T> {
    /// A timer with a tick of 1 ms, a reaper thread, and a completion thread on which `on_expiry` is called. The
    /// threads start when they are first needed.
    pub fn new(name: impl Into<String>, on_expiry: impl Fn(T) + Send + Sync + 'static) -> Self {
        sound(Self::builder(name).build(on_expiry))
    }

    /// Begins to build a timer with other settings: tick, clock, threads, limits, scheme. Each setting is a method of
    /// [`Builder`].
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        Builder::new(name, ())
    }
}

impl<T: Send + 'static, W: Scheme> Builder<Timer<T, W>> {
    /// The scheme that keeps the deadlines; [`scheme`](crate::scheme) explains which scheme to choose. Default:
    /// [`HierarchicalWheel`](crate::scheme::HierarchicalWheel).
    ///
    /// ```
    /// use request_purgatory::{Timer, scheme::HashedWheel};
    ///
    /// // Timeouts of up to 4 s fit one revolution: 4,096 slots of 1 ms.
    /// let timer = Timer::builder("connections")
    ///     .scheme::<HashedWheel>()
    ///     .wheel_size(4096)
    ///     .build(|connection: u64| println!("connection {connection} is idle"))?;
    /// # Ok::<(), request_purgatory::purgatory::BuildError>(())
    /// ```
    pub fn scheme<V: Scheme>(self) -> Builder<Timer<T, V>> {
        Builder {
            settings: self.settings,
            own: (),
        }
    }

    /// Builds the timer. `on_expiry` is called with each payload whose timeout has passed, on the thread that
    /// [`dispatch`](Self::dispatch) chooses.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick) or [`wheel_size`](Self::wheel_size) is out of range, or the system
    /// refuses a thread that is to [start at once](Self::threads_at_once).
    ///
    /// # Panics
    /// A panic of the clock is passed on.
    pub fn build(
        self,
        on_expiry: impl Fn(T) + Send + Sync + 'static,
    ) -> Result<Timer<T, W>, BuildError> {
        let inner = Inner::new(Engine::new(self.settings)?, on_expiry);
        Ok(Timer {
            shared: SharedHandle::start(inner),
        })
    }
}
