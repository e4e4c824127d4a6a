//! What the faces of one purgatory share.

use super::Parked;
use super::home::Home;
use super::tether::Tether;
use super::threads::Threads;
use crate::alarm::Alarm;
use crate::cell::slab::{Held, SlotRef};
use crate::completions::Completions;
use crate::error::BuildError;
use crate::operation::{DelayedOperation, KeyHasher};
use crate::sync::{Arc, AtomicBool, CachePadded, Ordering, Queue, thread_token};
use crate::time::ticks::{Tick, TickScale};
use crate::time::{Clock, Timestamp};
use crate::watch::{WatchMap, Watcher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

/// An id in the watch lists is the home's number in the low bits and the slot's index above.
pub(crate) const HOME_BITS: u32 = 4;
/// Slots that one home can name.
pub(crate) const SLOTS: u32 = 1 << (u32::BITS - HOME_BITS);

/// The choices of a [`Builder`](super::Builder).
pub(crate) struct Settings<S> {
    pub(crate) name: String,
    pub(crate) tick: Duration,
    pub(crate) wheel_size: u32,
    pub(crate) homes: usize,
    pub(crate) shards: usize,
    pub(crate) max_parked: Option<usize>,
    pub(crate) max_timeout: Duration,
    pub(crate) hasher: S,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) completions: Completions,
    pub(crate) threads: Threads,
}

pub(crate) struct Core<Op: DelayedOperation, S> {
    pub(crate) name: String,
    pub(crate) homes: Box<[CachePadded<Home<Op>>]>,
    /// One for each home, for the handles of operations parked there.
    pub(crate) tethers: Box<[Arc<Tether<Op, S>>]>,
    pub(crate) watch: WatchMap<Op::Key, S>,
    pub(crate) alarm: Alarm,
    /// Checks that are put off until the timer is driven.
    pub(crate) later: Queue<Later<Op::Key>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) scale: TickScale,
    pub(crate) max_timeout: Duration,
    pub(crate) limit: Option<Limit>,
    pub(crate) hasher: S,
    pub(crate) completions: Completions,
    pub(crate) threads: Threads,
    pub(crate) closed: AtomicBool,
}

/// Where an operation is: its home, and its slot there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) home: usize,
    pub(crate) at: SlotRef,
}

impl Address {
    #[inline(always)]
    pub(crate) fn watcher(self) -> Watcher {
        Watcher {
            id: self.at.index << HOME_BITS | self.home as u32,
            generation: self.at.generation,
        }
    }

    #[inline(always)]
    pub(crate) fn of(watcher: Watcher) -> Self {
        Self {
            home: (watcher.id & ((1 << HOME_BITS) - 1)) as usize,
            at: SlotRef {
                index: watcher.id >> HOME_BITS,
                generation: watcher.generation,
            },
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Core<Op, S> {
    pub(crate) fn new(settings: Settings<S>) -> Result<Arc<Self>, BuildError> {
        let scale = TickScale::new(settings.tick, settings.clock.now()).ok_or(BuildError::Tick)?;
        let homes = settings.homes.clamp(1, 1 << HOME_BITS).next_power_of_two();
        Ok(Arc::new_cyclic(|core| Self {
            name: settings.name,
            homes: (0..homes)
                .map(|number| CachePadded::new(Home::new(number, settings.wheel_size)))
                .collect(),
            tethers: (0..homes)
                .map(|_| Arc::new(Tether::new(core.clone())))
                .collect(),
            watch: WatchMap::new(settings.hasher.clone(), settings.shards),
            alarm: Alarm::new(),
            later: Queue::new(),
            clock: settings.clock,
            scale,
            max_timeout: settings.max_timeout,
            limit: settings.max_parked.map(Limit::new),
            hasher: settings.hasher,
            completions: settings.completions,
            threads: settings.threads,
            closed: AtomicBool::new(false),
        }))
    }

    #[inline(always)]
    pub(crate) fn home(&self, number: usize) -> &Home<Op> {
        &self.homes[number & (self.homes.len() - 1)]
    }

    /// The calling thread's home.
    #[inline(always)]
    pub(crate) fn my_home(&self) -> &Home<Op> {
        self.home(thread_token() as usize)
    }

    #[inline(always)]
    pub(crate) fn now(&self) -> Tick {
        self.scale.floor(self.clock.now())
    }

    /// The present, and the deadline of an operation that is to wait for `timeout` from now.
    #[inline(always)]
    pub(crate) fn span(&self, timeout: Duration) -> (Tick, Tick) {
        self.scale
            .span(self.clock.now(), timeout.min(self.max_timeout))
    }

    pub(crate) fn timestamp(&self, tick: Tick) -> Timestamp {
        self.scale.timestamp(tick)
    }

    /// Announces a deadline to the sleeper.
    #[inline(always)]
    pub(crate) fn announce(&self, deadline: Option<Tick>) {
        if deadline.is_some_and(|deadline| self.alarm.set(deadline)) {
            // A reactor's waker is the user's code.
            let _ = self.guarded(|| self.threads.wake());
        }
    }

    #[inline(always)]
    pub(crate) fn is_live(&self, watcher: Watcher) -> bool {
        let Address { home, at } = Address::of(watcher);
        self.home(home).is_parked(at)
    }

    pub(crate) fn is_closed(&self) -> bool {
        // ORDERING: Acquire pairs with the swap in `shut_down`. Only a shortcut: the homes' own flags decide.
        self.closed.load(Ordering::Acquire)
    }

    /// Runs user code; a panic is caught and counted.
    #[inline(always)]
    pub(crate) fn guarded<R>(&self, user_code: impl FnOnce() -> R) -> Result<R, UserPanic> {
        catch_unwind(AssertUnwindSafe(user_code)).map_err(|payload| {
            self.my_home().events.panics.add(1);
            // The payload is the user's too, and dropping it may panic.
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(payload)));
            if let Err(again) = dropped {
                std::mem::forget(again);
            }
            UserPanic
        })
    }
}

/// User code panicked. The panic hook has reported it, and it has been counted.
#[derive(Debug)]
pub(crate) struct UserPanic;

/// The bound on parked operations. Its one counter is written by every park, so it exists only if asked for.
#[derive(Debug)]
pub(crate) struct Limit {
    max: usize,
    taken: AtomicUsize,
}

impl Limit {
    fn new(max: usize) -> Self {
        Self {
            max,
            taken: AtomicUsize::new(0),
        }
    }

    /// Takes a place, if there is one.
    pub(crate) fn take(&self) -> bool {
        // ORDERING: Relaxed: a count guards no memory.
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < self.max).then_some(taken + 1)
            })
            .is_ok()
    }

    pub(crate) fn give_back(&self) {
        // ORDERING: Relaxed, as in `take`.
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A check that is put off.
pub(crate) enum Later<K> {
    /// Of all operations on a key.
    Key(K),
    /// Of one operation, whose holder was asked to look again too often.
    Operation(Address),
}

/// An operation in the hands of this thread, with its address.
pub(crate) struct Tenant<'a, Op: DelayedOperation> {
    pub(crate) home: &'a Home<Op>,
    pub(crate) held: Held<'a, Parked<Op>>,
}
