//! The timer shards of an engine, each made when a thread first comes to it.
//!
//! One lock orders four things: a shard is made, the threads are started, a drain begins, a shutdown begins. The last two
//! enter their phase before they take the lock, so what comes after them finds the phase, and they find what came before.

use super::shard::{Refusal, Shard};
use crate::address::SHARD_BITS;
use crate::scheme::Scheme;
use crate::sync::{Arc, MAX_TIMER_SHARDS, Mutex, OnceLock};
use std::io;

pub(crate) struct Shards<P, W> {
    /// By all numbers that an address can name; a shard has several if there are fewer shards.
    places: [OnceLock<Arc<Shard<P, W>>>; MAX_TIMER_SHARDS],
    /// How many shards there may be, a power of two, less one.
    mask: usize,
    /// For the wheels of the shards.
    slots: u32,
    opening: Mutex<()>,
}

const _: () = assert!(MAX_TIMER_SHARDS <= 1 << SHARD_BITS, "an address names it");

impl<P, W: Scheme> Shards<P, W> {
    /// Room for at least `count` shards, or for as many as there may be.
    pub(crate) fn new(count: usize, slots: u32) -> Self {
        Self {
            places: std::array::from_fn(|_| OnceLock::new()),
            mask: count.next_power_of_two().min(MAX_TIMER_SHARDS) - 1,
            slots,
            opening: Mutex::new(()),
        }
    }

    /// The highest number of a shard.
    #[inline(always)]
    pub(crate) fn last(&self) -> usize {
        self.mask
    }

    /// The shard that `number` names, of which the higher bits do not count. Where it is made, `refuses` says in which
    /// phase.
    #[inline(always)]
    pub(crate) fn at(
        &self,
        number: usize,
        refuses: impl FnOnce() -> Option<Refusal>,
    ) -> &Shard<P, W> {
        let number = number % MAX_TIMER_SHARDS;
        match self.places[number].get() {
            Some(shard) => shard,
            None => self.make(number, refuses),
        }
    }

    #[cold]
    #[inline(never)]
    fn make(&self, number: usize, refuses: impl FnOnce() -> Option<Refusal>) -> &Shard<P, W> {
        let _opening = self.opening.lock();
        let own = self.places[number & self.mask].get_or_init(|| {
            let shard = Shard::new(number & self.mask, self.slots, refuses());
            Arc::new(shard)
        });
        self.places[number].get_or_init(|| own.clone())
    }

    /// Those that threads have come to.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Shard<P, W>> + Clone {
        let own = self.places[..=self.mask].iter();
        own.filter_map(OnceLock::get).map(|shard| &**shard)
    }

    /// The same for a thread that has entered a phase: shards that come later are made in that phase, and what
    /// [`open`](Self::open) runs finds it.
    pub(crate) fn settled(&self) -> impl Iterator<Item = &Shard<P, W>> {
        drop(self.opening.lock());
        self.iter()
    }

    /// If `start` says that the threads are there now, all shards take deadlines. One thread at a time is in `start`.
    #[cold]
    pub(crate) fn open(&self, start: impl FnOnce() -> io::Result<bool>) -> io::Result<()> {
        let _opening = self.opening.lock();
        if start()? {
            self.iter().for_each(Shard::open);
        }
        Ok(())
    }
}
