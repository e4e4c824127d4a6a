//! Timers without keys.

pub(crate) mod inner;

use crate::address::Address;
use crate::engine::Engine;
use crate::engine::settings::{Builder, sound};
use crate::engine::shared_handle::{SharedHandle, shared_methods, shared_type};
use crate::error::{BuildError, Rejected};
use crate::scheme::{HierarchicalWheel, Scheme};
use crate::stats::Ending;
use crate::time::Timestamp;
use crate::trampoline::drop_user_value;
use inner::Inner;
use std::time::Duration;

/// Passes each payload to a callback when its timeout has passed. For use by any number of threads.
///
/// It stands on the engine of the [`Purgatory`](crate::Purgatory), with its guarantees: any [`Duration`] is a timeout,
/// nothing fires before its deadline or more than a tick after it (while the callbacks keep up), a panic of the
/// callback ends that payload only, and an idle timer sleeps. How deadlines are kept is the type parameter `W`: the
/// [hierarchical wheel](HierarchicalWheel), unless [another scheme](crate::purgatory::Builder::scheme) is chosen.
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
/// Cloning is cheap, and clones are the same timer. When the last one is dropped, it is [shut down](Self::shutdown): the
/// payloads are dropped on this thread, and the drop waits for each thread of the timer for at most about 10 ms.
///
/// The callback may call every method. No method holds a lock of the library while your code runs, and only
/// [`shutdown`](Self::shutdown) waits for your code. Of the methods, only [`advance`](Self::advance) runs the callback,
/// so you may start, stop or reschedule a timer under a lock that the callback takes. Starting takes the lock of one
/// timer shard, for which it may wait shortly; stopping never waits.
pub struct Timer<T: Send + 'static, W: Scheme = HierarchicalWheel> {
    shared: SharedHandle<Inner<T, W>>,
}

/// Names a timer that was started. After the timer has fired or was stopped, the id is stale: calls with it do nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerId {
    address: Address,
    /// Which [`Timer`] gave it out.
    timer: u64,
}

impl<T: Send + 'static, W: Scheme> Timer<T, W> {
    // `is_empty`, `stats`, `advance`, `next_deadline`, `is_shut_down`, `downgrade`: in `src/engine/shared_handle.rs`.
    shared_methods!("timers that run");

    /// `None` for an id of another timer.
    fn address_of(&self, id: TimerId) -> Option<Address> {
        (id.timer == self.shared.inner.number).then_some(id.address)
    }

    /// Passes `payload` to the callback once `timeout` has passed; never with [`Duration::MAX`]. Reads the clock once.
    ///
    /// # Errors
    /// The payload comes back in a [`Rejected`]: the timer is full or shut down, the timeout is longer than a simple
    /// wheel holds, the clock panicked, or the system refused a thread.
    pub fn start(&self, timeout: Duration, payload: T) -> Result<TimerId, Rejected<T>> {
        let inner = &self.shared.inner;
        let address = inner.start(timeout, payload)?;
        Ok(TimerId {
            address,
            timer: inner.number,
        })
    }

    /// Withdraws a payload that has not expired. `None` if the timer has fired or was stopped, or is firing.
    pub fn stop(&self, id: TimerId) -> Option<T> {
        let address = self.address_of(id)?;
        self.shared.inner.withdraw(address, Ending::Cancelled)
    }

    /// Lets a running timer expire `timeout` from now instead ([`Duration::MAX`]: never). Takes the lock of a timer
    /// shard and reads the clock; if that panics, so does this call.
    ///
    /// Returns `false`, and the old deadline stands, if it has fired or was stopped; if the timeout is longer than a
    /// simple wheel holds; or if this would be the first deadline of the timer, and the system refuses a thread.
    pub fn reschedule(&self, id: TimerId, timeout: Duration) -> bool {
        let engine = &self.shared.inner.engine;
        let address = self.address_of(id);
        address.is_some_and(|address| engine.reschedule(address, timeout))
    }

    /// The time until the deadline, zero if it has passed. `None` if the timer has fired or was stopped, or never
    /// fires. Takes the lock of a timer shard and reads the clock; if that panics, so does this call.
    pub fn remaining(&self, id: TimerId) -> Option<Duration> {
        let address = self.address_of(id)?;
        self.shared.inner.engine.remaining(address)
    }

    /// The deadline on the timer's clock, rounded up to the tick. `None` if the timer has fired or was stopped, or
    /// never fires. Takes the lock of a timer shard.
    pub fn deadline(&self, id: TimerId) -> Option<Timestamp> {
        self.shared.inner.engine.deadline(self.address_of(id)?)
    }

    /// Ends the timer: it rejects every start from now on. The first call returns the payloads that had not expired.
    /// Joins the timer's own threads, after the callbacks in their queues have run.
    ///
    /// May be called from a callback: then it does not wait for the threads, which end as soon as the callbacks that
    /// they run have returned.
    pub fn shutdown(&self) -> Vec<T> {
        self.shared.inner.shut_down()
    }
}

shared_type!([T: Send + 'static, W: Scheme] Timer, Timer<T, W>, Inner<T, W>, ());

impl<T: Send + 'static> Timer<T> {
    /// A timer with a tick of 1 ms, a reaper thread, and a completion thread on which `on_expiry` is called.
    /// The threads start when they are first needed.
    pub fn new(name: impl Into<String>, on_expiry: impl Fn(T) + Send + Sync + 'static) -> Self {
        sound(Self::builder(name).build(on_expiry))
    }

    /// Begins to build a timer with other choices.
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        Builder::new(name, ())
    }
}

impl<T: Send + 'static, W: Scheme> Builder<Timer<T, W>> {
    /// How deadlines are kept; see [`scheme`](crate::scheme) for what each is good for. Default:
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

    /// Builds the timer. `on_expiry` is called with each payload whose timeout has passed, on
    /// the thread that [`dispatch`](Self::dispatch) says.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick) or [`wheel_size`](Self::wheel_size) is out of range, or the system
    /// refuses a thread that is to [start at once](Self::threads_at_once).
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(
        self,
        on_expiry: impl Fn(T) + Send + Sync + 'static,
    ) -> Result<Timer<T, W>, BuildError> {
        let on_end = move |payload, ending| match ending {
            Ending::Expired => on_expiry(payload),
            _ => drop_user_value(payload),
        };
        let inner = Inner::new(Engine::new(self.settings)?, (), on_end);
        Ok(Timer {
            shared: SharedHandle::start(inner),
        })
    }
}
