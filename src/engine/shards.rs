//! The timer shards of an engine. Each shard is made when a thread first needs it.
//!
//! One lock, `Shards::order`, orders four steps: making a shard, starting the engine's own reaper, beginning a drain,
//! and beginning a shutdown. A drain and a shutdown enter their phase before they release this lock. So a step that
//! takes the lock later sees the phase. A step that took the lock earlier has made its shard or started the reaper
//! before the drain or the shutdown looks for them. Another lock, that of the completion thread's queue, orders the
//! start and the end of the completion thread.

use super::shard::Shard;
use crate::cell::address::SHARD_BITS;
use crate::error::RejectReason;
use crate::scheme::Scheme;
use crate::sync::{MAX_TIMER_SHARDS, Mutex, OnceLock};

pub(crate) struct Shards<P, W> {
    /// The shards by number. An entry is empty until its shard is made. Entries after `last` stay empty.
    made: [OnceLock<Box<Shard<P, W>>>; MAX_TIMER_SHARDS],
    /// The highest number of a shard: a power of two, minus one. So `number & last` is always the number of a shard.
    last: usize,
    /// The number of slots in each level of a shard's timer wheel.
    wheel_size: u32,
    /// Held while a shard is made, and while the engine's own reaper is started.
    pub(super) order: Mutex<()>,
}

const _: () = assert!(MAX_TIMER_SHARDS <= 1 << SHARD_BITS, "an address names it");

impl<P, W: Scheme> Shards<P, W> {
    /// Makes room for at least `count` shards, up to the maximum [`MAX_TIMER_SHARDS`]. Makes no shard yet.
    pub(crate) fn new(count: usize, wheel_size: u32) -> Self {
        Self {
            made: std::array::from_fn(|_| OnceLock::new()),
            last: count.next_power_of_two().min(MAX_TIMER_SHARDS) - 1,
            wheel_size,
            order: Mutex::new(()),
        }
    }

    /// The number of the shard that `number` selects: the low bits of `number`. The caller passes the number of a
    /// thread, or to reach a neighbour, the number of a shard plus 1 or 2. This sum may be higher than the number of
    /// the last shard.
    #[inline(always)]
    pub(crate) fn wrap(&self, number: usize) -> usize {
        number & self.last
    }

    /// The number of shards that can exist, made or not.
    pub(crate) fn count(&self) -> usize {
        self.last + 1
    }

    /// The shard with this number, which is in range. If no thread has made the shard yet, makes it. For this it calls
    /// `rejects`, which returns the reason why the new shard rejects payloads, for example a shutdown; `None` if the
    /// shard takes them.
    #[inline(always)]
    pub(crate) fn at(
        &self,
        number: usize,
        rejects: impl FnOnce() -> Option<RejectReason>,
    ) -> &Shard<P, W> {
        let number = number % MAX_TIMER_SHARDS;
        match self.made[number].get() {
            Some(shard) => shard,
            None => self.make(number, rejects),
        }
    }

    #[cold]
    #[inline(never)]
    fn make(&self, number: usize, rejects: impl FnOnce() -> Option<RejectReason>) -> &Shard<P, W> {
        let _alone = self.order.lock();
        let make = || Box::new(Shard::new(number, self.wheel_size, rejects()));
        self.made[number].get_or_init(make)
    }

    /// The shards that have been made.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Shard<P, W>> + Clone {
        let made = self.made[..=self.last].iter();
        made.filter_map(OnceLock::get).map(|shard| &**shard)
    }

    /// Closes the engine if no shard has a payload: enters the closed phase by `enter`, and closes all shards. Returns
    /// whether this call closed the engine. All shards are locked together, so each park comes wholly before or wholly
    /// after this call.
    pub(super) fn close_if_empty(&self, enter: impl FnOnce() -> bool) -> bool {
        // No shard is made while this lock is held.
        let _alone = self.order.lock();
        // This cannot deadlock: no other code waits for the lock of a shard while it has the lock of another shard.
        let locked = self.iter().map(|shard| (shard, shard.slab.lock()));
        let mut locked = locked.collect::<Vec<_>>();
        let has_payload = |shard: &Shard<P, W>| shard.slab.occupants().next().is_some();
        if locked.iter().any(|(shard, _)| has_payload(shard)) || !enter() {
            return false;
        }
        for (_, guard) in &mut locked {
            Shard::reject(guard, RejectReason::ShutDown);
        }
        true
    }

    /// The [shards](Self::iter) that a drain or a shutdown has to close. The caller has entered the phase of the drain
    /// or shutdown. This call first takes the lock `order` for an instant, so every thread that takes this lock later
    /// sees the phase. If such a thread makes a shard, the shard rejects payloads from the beginning. After a shutdown,
    /// such a thread does not start the reaper.
    pub(crate) fn settled(&self) -> impl Iterator<Item = &Shard<P, W>> {
        drop(self.order.lock());
        self.iter()
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::super::Engine;
    use super::super::settings::Settings;
    use super::super::tests::{parked, timing};
    use super::Shard;
    use crate::scheme::HierarchicalWheel;
    use crate::threads::reaper::Reaper;

    /// An engine whose timer no thread drives.
    fn by_hand(name: &str) -> Engine<(), HierarchicalWheel> {
        let mut settings = Settings::new(name.into());
        settings.reaper = Reaper::Manual;
        Engine::new(settings).expect("no threads to refuse")
    }

    /// A second drain that begins during a first one returns from `begin_drain` only when every shard rejects payloads.
    #[test]
    fn g15_a_second_drain_reaches_every_shard_itself() {
        let engine = by_hand("g15-drains");
        // Make all shards, including the last one.
        let last = (0..engine.shards.count())
            .map(|number| engine.shard(number))
            .last();
        let last = last.expect("there are some");
        std::thread::scope(|scope| {
            let locked = last.slab.lock();
            let drains = [(); 2].map(|()| scope.spawn(|| engine.begin_drain()));
            std::thread::sleep(std::time::Duration::from_millis(50));
            let begun = drains.iter().any(|drain| drain.is_finished());
            drop(locked);
            assert!(!begun, "while a shard still takes payloads");
        });
    }

    /// A batch of slots that are freed together may contain slots of several shards. Each slot returns to its own
    /// shard.
    #[test]
    fn g06_the_slots_of_each_shard_come_back_to_it() {
        let engine = by_hand("g06-shards");
        let shards = [0, 1].map(|number| engine.shard(number));
        let all = [0, 1, 0, 0, 1, 1].map(|number| {
            let held = parked(shards[number], 1, timing(1_000, 0)).remove(0);
            (held.end().1.detach(), 0)
        });
        engine.free_counted(all.into_iter());
        assert_eq!(shards.map(|shard| shard.begin_pass(0)), [0, 0]);
        assert_eq!(shards.map(Shard::next_deadline), [None, None]);
    }

    /// If the shard of a thread is locked, the thread puts its operation into the next shard. After the last shard, the
    /// next one is the first. A shard with a higher number would be wrong, because a pass (one round of expiry) would
    /// not visit it.
    #[test]
    fn g07_the_neighbour_of_the_last_shard_is_one_of_them() {
        let engine = by_hand("g07-neighbours");
        let last = engine.shard(engine.shards.count() - 1);
        let locked = last.slab.lock();
        let (near, guard) = engine.lock_near(last);
        assert_eq!(near.number, 0);
        drop((guard, locked));
    }
}
