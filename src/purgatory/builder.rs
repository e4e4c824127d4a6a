//! Building a purgatory.

use super::core::{Core, Settings};
use super::threads::Threads;
use super::{Owner, Purgatory};
use crate::RandomState;
use crate::completions::Completions;
use crate::error::BuildError;
use crate::operation::{DelayedOperation, KeyHasher};
use crate::reaper::{Driven, Reaper};
use crate::sync::{Arc, HOMES, Weak};
use crate::time::{Clock, SystemClock};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// The knobs of a purgatory, each with a sensible default.
pub struct Builder<Op, S = RandomState> {
    name: String,
    tick: Duration,
    wheel_size: usize,
    max_parked: Option<usize>,
    max_timeout: Duration,
    hasher: S,
    clock: Arc<dyn Clock>,
    completions: Option<Completions>,
    reaper: Reaper,
    operation: PhantomData<fn() -> Op>,
}

impl<Op: DelayedOperation> Builder<Op> {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            tick: Duration::from_millis(1),
            wheel_size: 64,
            max_parked: None,
            max_timeout: Duration::MAX,
            hasher: RandomState::default(),
            clock: Arc::new(SystemClock::new()),
            completions: None,
            reaper: Reaper::Own,
            operation: PhantomData,
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Builder<Op, S> {
    /// The grain of the timer: an operation expires at its deadline or up to one tick later. Default: 1 ms.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Slots per level of the timing wheel. Level `n` covers `tick * wheel_size^(n + 1)`; levels are added as
    /// timeouts ask for them. Powers of two are a little faster. Default: 64.
    pub fn wheel_size(mut self, slots: usize) -> Self {
        self.wheel_size = slots;
        self
    }

    /// Refuses operations while so many are parked. The bound is exact, and costs a counter that every thread
    /// writes. Default: none.
    pub fn max_parked(mut self, operations: usize) -> Self {
        self.max_parked = Some(operations);
        self
    }

    /// Shortens longer timeouts to this one: clients choose timeouts, operators bound them. Default: none.
    pub fn max_timeout(mut self, timeout: Duration) -> Self {
        self.max_timeout = timeout;
        self
    }

    /// How keys are hashed. Default: a fast hasher with a random seed, since keys are often chosen by clients.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Op, H> {
        Builder {
            name: self.name,
            tick: self.tick,
            wheel_size: self.wheel_size,
            max_parked: self.max_parked,
            max_timeout: self.max_timeout,
            hasher,
            clock: self.clock,
            completions: self.completions,
            reaper: self.reaper,
            operation: PhantomData,
        }
    }

    /// Where the time comes from. Default: [`SystemClock`].
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Where `on_complete` of expired operations runs. Default: [`Completions::OwnThread`], or with
    /// [`Reaper::Manual`] [`Completions::Inline`].
    pub fn completions(mut self, completions: Completions) -> Self {
        self.completions = Some(completions);
        self
    }

    /// Who drives the timer. Default: [`Reaper::Own`].
    pub fn reaper(mut self, reaper: Reaper) -> Self {
        self.reaper = reaper;
        self
    }

    /// Builds the purgatory and starts its threads.
    ///
    /// # Errors
    /// [`BuildError`] if the tick or the wheel's size make no sense, or the system refuses a thread.
    pub fn build(self) -> Result<Purgatory<Op, S>, BuildError> {
        let wheel_size = u32::try_from(self.wheel_size)
            .ok()
            .filter(|size| (2..=1 << 16).contains(size))
            .ok_or(BuildError::WheelSize)?;
        if self.tick.is_zero() {
            return Err(BuildError::Tick);
        }
        let (threads, completions) = Threads::start(&self.name, self.reaper, self.completions)
            .map_err(BuildError::Thread)?;
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let core = Core::new(Settings {
            name: self.name,
            tick: self.tick,
            wheel_size,
            homes: cores.clamp(*HOMES.start(), *HOMES.end()),
            shards: (cores * 16).next_power_of_two().clamp(64, 1024),
            max_parked: self.max_parked,
            max_timeout: self.max_timeout,
            hasher: self.hasher,
            clock: self.clock,
            completions,
            threads,
        })?;
        let driven: Weak<dyn Driven> = Arc::<Core<Op, S>>::downgrade(&core);
        core.threads.drive(driven, &*core.clock);
        Ok(Purgatory {
            owner: Arc::new(Owner { core: core.clone() }),
            core,
        })
    }
}

impl<Op, S> fmt::Debug for Builder<Op, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("tick", &self.tick)
            .field("wheel_size", &self.wheel_size)
            .field("max_parked", &self.max_parked)
            .field("max_timeout", &self.max_timeout)
            .field("completions", &self.completions)
            .field("reaper", &self.reaper)
            .finish_non_exhaustive()
    }
}
