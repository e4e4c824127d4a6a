//! Internals for the models in `loom-tests`: parts as they are, and thin wrappers of the slots, the watch lists and the
//! reaper's loop. The library's module `model`, under loom only: it stands here because no user's build has it.

use crate::callbacks::promise::{Promised, Untold};
use crate::engine::shard::{self, Timing};
use crate::engine::shutdown;
use crate::future::reply;
use crate::hash::RandomState;
use crate::operation::DelayedOperation;
use crate::purgatory::Purgatory;
use crate::scheme::HierarchicalWheel;
use crate::stats::{Counters, Counts, Ending, Statistic, Stats};
use crate::sync::{Arc, Ordering, fence, set_timer_shards};
use crate::threads::reaper::{Reaper, ReaperHandle, ReaperThread};
use crate::time::{Timestamp, ticks::NEVER};
use crate::watch::bound::{CheckBound, Order, Ticket};
use crate::watch::resolved::{self, ResolvedList};
use crate::watch::watchers::{Found, Room, Watchers as _};
use crate::watch::{Target, WatchMap};
use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

pub use crate::callbacks::promise::Promise;
pub use crate::cell::address::Address;
pub use crate::cell::slab::Held;
pub use crate::cell::state::{Claim, Mark, State, Unreleased};
pub use crate::sync::model::{Mutex, MutexGuard};
pub use crate::sync::numbers::Numbers;

/// A timer shard, without deadlines.
pub struct Shard<P>(shard::Shard<P, HierarchicalWheel>);

impl<P: Send> Shard<P> {
    pub fn new() -> Self {
        Self(shard::Shard::new(0, 2, None))
    }

    /// Puts `payload` in and holds it.
    pub fn insert(&self, payload: P) -> (Address, Held<'_, P>) {
        let never = Timing {
            start: 0,
            deadline: NEVER,
            present: 0,
            since: Timestamp::default(),
        };
        let shard = &self.0;
        let Ok((held, _)) = shard.admit(&mut shard.slab.lock(), payload, 0, never, u32::MAX) else {
            unreachable!("there is no limit")
        };
        (held.address(), held)
    }

    pub fn claim_or_mark(&self, at: Address, mark: Mark) -> Option<Held<'_, P>> {
        self.0.slab.claim_or_mark(at, mark)
    }

    pub fn is_parked(&self, at: Address) -> bool {
        self.0.slab.is_parked(at)
    }

    /// Ends it, and frees the slot as the purgatory does: under the lock, or remotely.
    pub fn end<'a>(&'a self, held: Held<'a, P>, freed_by: FreedBy) -> P {
        self.end_and_read(held, freed_by, |_| ())
    }

    /// [Ends](Self::end) it, and reads what is in its slot still when its address is stale already.
    pub fn end_and_read<'a>(
        &'a self,
        held: Held<'a, P>,
        freed_by: FreedBy,
        read: impl FnOnce(&P),
    ) -> P {
        let ended = held.end_in_place();
        ended.with(read);
        let (payload, spent) = ended.take();
        match freed_by {
            FreedBy::SameShard => self.0.free(spent, Ending::Satisfied, 0, || ()),
            FreedBy::OtherShard => self.0.free_from_other_shard(spent.detach()),
            FreedBy::Batch => self.0.free_counted(&mut vec![spent.detach()]),
        }
        payload
    }

    /// Whether a slot is there and occupied, for a thread that knows no more of it than its number.
    pub fn is_occupied(&self, slot: u32) -> bool {
        self.0.slab.occupant(slot).is_some()
    }

    /// Frees the memory of slots that no payload needs.
    pub fn shrink(&self) {
        self.0.shrink();
    }

    /// How many slots were ever needed.
    pub fn slots(&self) -> u32 {
        self.0.slab.used()
    }

    /// How many slots wait for the next thread that gets the lock.
    pub fn waiting(&self) -> u32 {
        self.0.slab.waiting()
    }

    /// Has the lock while `with_lock` runs, and does nothing with it.
    pub fn hold_lock(&self, with_lock: impl FnOnce()) {
        let guard = self.0.slab.lock();
        with_lock();
        drop(guard);
    }
}

/// Which call frees the slot of an operation that has ended.
#[derive(Debug, Clone, Copy)]
pub enum FreedBy {
    /// That of a thread of the same timer shard.
    SameShard,
    /// That of a thread of another timer shard.
    OtherShard,
    /// That which clears away after a storm.
    Batch,
}

/// Waits until a shutdown that another thread makes is over, as a call with a bound does.
pub fn wait_until_over<Op: DelayedOperation>(purgatory: &Purgatory<Op>) {
    let handler = &purgatory.shared.inner;
    shutdown::wait(Duration::MAX, || shutdown::is_over(handler));
}

/// Sets the number of timer shards of the purgatories that this test builds from now on.
pub fn use_timer_shards(shards: usize) {
    set_timer_shards(shards);
}

/// The watcher map. It counts its keys, so that a model sees whether any is left behind.
pub struct Watchers {
    map: WatchMap<Key, RandomState>,
    /// Each watcher keeps its own, as a slot does. (The lock is not the model's.)
    tickets: std::sync::Mutex<HashMap<(By, u32), Ticket>>,
    census: Arc<()>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key(u64, Arc<()>);

/// A resolved key.
pub struct Resolution {
    key: Arc<Key>,
    number: resolved::ListNumber,
    list: Arc<ResolvedList<Key>>,
}

impl Resolution {
    /// As a check by this key does.
    pub fn on(&self, up_to: u64) -> Vec<u32> {
        let mut found = Vec::new();
        let seen = self.list.peek_published();
        if !seen.is_empty() {
            let mut watchers = self.list.visit(seen, CheckBound::all().up_to(up_to));
            while let Some(watcher) = watchers.next(false) {
                found.push(watcher.index());
            }
        }
        found
    }

    /// All that an operation keeps of it.
    pub fn number(&self) -> Number {
        Number(self.number)
    }
}

/// How a watcher names what it watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    Key(u64),
    Number(Number),
}

/// The number of a resolved key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Number(resolved::ListNumber);

impl Watchers {
    pub fn new() -> Self {
        Self {
            map: WatchMap::new(RandomState::default(), 1, usize::MAX),
            tickets: std::sync::Mutex::default(),
            census: Arc::new(()),
        }
    }

    fn key(&self, key: u64) -> Key {
        Key(key, self.census.clone())
    }

    pub fn add(&self, by: By, rank: Option<u64>, id: u32) {
        let ticket = Cell::default();
        self.on_target(by, |target| {
            assert!(self.map.add(target, Order::new(rank, &ticket), watcher(id)));
        });
        let mut tickets = self.tickets.lock().expect("no thread panics under it");
        tickets.insert((by, id), ticket.get());
    }

    /// Removes a watcher that was added with these arguments.
    pub fn remove(&self, by: By, rank: Option<u64>, id: u32) {
        let ticket = {
            let mut tickets = self.tickets.lock().expect("no thread panics under it");
            Cell::new(tickets.remove(&(by, id)).expect("it was added"))
        };
        self.on_target(by, |target| {
            self.map
                .remove(target, Order::new(rank, &ticket), watcher(id));
        });
    }

    fn on_target(&self, by: By, act: impl FnOnce(Target<&Key>)) {
        match by {
            By::Key(key) => act(Target::Key(&self.key(key))),
            By::Number(Number(number)) => act(Target::Resolved(number)),
        }
    }

    pub fn on(&self, key: u64, up_to: u64) -> Vec<u32> {
        let key = self.key(key);
        let mut room = Room::default();
        match self.map.find(&key, &mut room) {
            None => Vec::new(),
            Some(Found::Few(watchers)) => watchers.iter().map(|it| it.index()).collect(),
            Some(Found::Long) => {
                let mut found = Vec::new();
                let mut watchers = self.map.walk(&key, CheckBound::all().up_to(up_to), || ());
                while let Some(watcher) = watchers.next(false) {
                    found.push(watcher.index());
                }
                found
            }
        }
    }

    pub fn resolve(&self, key: u64) -> Resolution {
        let key = Arc::new(self.key(key));
        let (number, list) = self.map.resolve(&key);
        Resolution { key, number, list }
    }

    pub fn release(&self, resolution: Resolution) {
        self.map.release(&resolution.key, resolution.number);
    }

    /// The number of keys that are watched.
    pub fn keys(&self) -> usize {
        self.map.keys()
    }

    /// Keys kept anywhere, resolutions included.
    pub fn keys_kept(&self) -> usize {
        Arc::strong_count(&self.census) - 1
    }
}

fn watcher(id: u32) -> Address {
    Address::new(0, id, 0)
}

/// The counts of completions that are handed to other threads.
#[derive(Default)]
pub struct Completions(Counts, Counters);

impl Completions {
    pub fn hand_over(&self) {
        self.1.count(false, |it| it.of(Statistic::HandedOver), 1);
    }

    /// As [the job of an executor](crate::engine::deliver) does.
    pub fn deliver(&self) {
        // ORDERING: Release, see `Stats::of`.
        fence(Ordering::Release);
        self.1.count(false, |it| it.of(Statistic::Delivered), 1);
    }

    pub fn pending(&self) -> usize {
        Stats::of(std::iter::once((&self.0, &self.1))).completions_pending
    }
}

/// A reaper whose loop is run by a thread of the model.
pub struct ReaperLoop {
    reaper: Arc<ReaperHandle>,
}

impl ReaperLoop {
    /// The loop, and what a builder takes.
    pub fn new() -> (Self, Reaper) {
        let threads = ReaperThread::without_threads();
        let reaper = threads.handle.clone();
        (Self { reaper }, Reaper::Shared(threads))
    }

    /// The loop itself, until it is stopped.
    pub fn run(&self) {
        self.reaper.shared.run();
    }

    /// The loop, as long as there is anything to drive.
    pub fn run_until_idle(&self) {
        let shared = &self.reaper.shared;
        let is_idle = || shared.driven.lock().is_empty();
        while !is_idle() {
            let rest = shared.round();
            if !is_idle() {
                let parker = shared.parker.lock();
                parker.park_timeout(rest);
            }
        }
    }

    /// Ends the loop, from another thread.
    pub fn end(&self) -> LoopEnd {
        LoopEnd(self.reaper.clone())
    }
}

pub struct LoopEnd(Arc<ReaperHandle>);

impl LoopEnd {
    pub fn stop(&self) {
        self.0.close();
    }
}

/// A wait that has ended, with what is dropped before its task is told of the value.
struct Ended<T, B> {
    before: B,
    value: T,
    promise: Arc<Promise<T>>,
}

impl<T: Send, B: Send> Untold for Ended<T, B> {
    fn tell(self: Box<Self>) {
        let ended = *self;
        drop(ended.before);
        drop(ended.promise.keep(ended.value));
    }
}

/// A value that waits in a promise for its turn. The drop tells the task.
pub struct HandedOver(#[expect(dead_code, reason = "its drop matters")] reply::HandedOver);

impl HandedOver {
    /// `None` if the promise was closed before. Then the value is dropped.
    pub fn new<T: Send + 'static>(
        promise: &Arc<Promise<T>>,
        value: T,
        before: impl Send + 'static,
    ) -> Option<Self> {
        let ended = Ended {
            before,
            value,
            promise: promise.clone(),
        };
        let handed_over = reply::HandedOver::new(promise.clone(), Box::new(ended));
        handed_over.ok().map(Self)
    }
}

/// Closes the promise. `None` if there was no value yet, or none any more.
pub fn close_unreceived<T>(promise: &Promise<T>) -> Option<impl Sized> {
    match promise.close_promised() {
        (Promised::Open | Promised::Spent, _) => None,
        (unreceived, _) => Some(unreceived),
    }
}
