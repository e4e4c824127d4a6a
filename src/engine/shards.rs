//! The timer shards of an engine, each made when a thread first comes to it.
//!
//! One lock orders four things: a shard is made, the threads are started, a drain begins, a shutdown begins. The last
//! two enter their phase before they take the lock. So what comes after them finds the phase, and they find what came
//! before.

use super::shard::Shard;
use crate::address::SHARD_BITS;
use crate::error::RejectReason;
use crate::scheme::Scheme;
use crate::sync::{MAX_TIMER_SHARDS, Mutex, OnceLock};

pub(crate) struct Shards<P, W> {
    /// By number. Those behind the last shard stay empty.
    places: [OnceLock<Box<Shard<P, W>>>; MAX_TIMER_SHARDS],
    /// The highest number of a shard, a power of two less one.
    last: usize,
    /// For the wheels of the shards.
    wheel_size: u32,
    /// Held while a shard is made, and while the threads are started.
    pub(super) order: Mutex<()>,
}

const _: () = assert!(MAX_TIMER_SHARDS <= 1 << SHARD_BITS, "an address names it");

impl<P, W: Scheme> Shards<P, W> {
    /// Room for at least `count` shards, or for as many as there may be.
    pub(crate) fn new(count: usize, wheel_size: u32) -> Self {
        Self {
            places: std::array::from_fn(|_| OnceLock::new()),
            last: count.next_power_of_two().min(MAX_TIMER_SHARDS) - 1,
            wheel_size,
            order: Mutex::new(()),
        }
    }

    /// The number of the shard for a thread or a neighbour, by the lower bits of `number`.
    #[inline(always)]
    pub(crate) fn wrap(&self, number: usize) -> usize {
        number & self.last
    }

    /// How many there may be.
    pub(crate) fn count(&self) -> usize {
        self.last + 1
    }

    /// The shard with this number, which is in range. Where the shard is made, `refuses` says in which phase.
    #[inline(always)]
    pub(crate) fn at(
        &self,
        number: usize,
        refuses: impl FnOnce() -> Option<RejectReason>,
    ) -> &Shard<P, W> {
        let number = number % MAX_TIMER_SHARDS;
        match self.places[number].get() {
            Some(shard) => shard,
            None => self.make(number, refuses),
        }
    }

    #[cold]
    #[inline(never)]
    fn make(&self, number: usize, refuses: impl FnOnce() -> Option<RejectReason>) -> &Shard<P, W> {
        let _alone = self.order.lock();
        let make = || Box::new(Shard::new(number, self.wheel_size, refuses()));
        self.places[number].get_or_init(make)
    }

    /// Those that threads have come to.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Shard<P, W>> + Clone {
        let places = self.places[..=self.last].iter();
        places.filter_map(OnceLock::get).map(|shard| &**shard)
    }

    /// The [shards](Self::iter) for a thread that has entered a phase. Shards that come later are made in that phase, and
    /// a thread that starts the threads later finds it.
    pub(crate) fn settled(&self) -> impl Iterator<Item = &Shard<P, W>> {
        drop(self.order.lock());
        self.iter()
    }
}
