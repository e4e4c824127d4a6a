//! The floor: the parts that no design can do without, summed by running them.
//!
//! One life of W1 with `k` keys is exactly this, on one thread and without any contention:
//!
//! | part | park | check |
//! |---|---|---|
//! | `Instant::now` and the bucket index of the deadline | 1 | |
//! | lock and unlock of the one timer shard | 1 | 1 |
//! | slab slot taken from or given to the free list, request and keys moved in or out | 1 | 1 |
//! | timer linked into or unlinked from its bucket, a vector of slot numbers (swap-remove) | 1 | 1 |
//! | `DashMap` with foldhash: insert or append under each key, remove from each key | k | k |
//! | `DashMap` look-up of the checked key | | 1 |
//! | the request's flag read | 2 | 1 for each watcher of the key |
//! | read-modify-write of the slot's state word | 1 (leaves checking) | 3 (enters checking, ends, next generation) |
//!
//! What it leaves out is what makes a purgatory: nothing ever fires, `try_complete` runs under the
//! lock of the shard, a failed try costs no state change (with three keys two of the three watchers of a
//! checked key fail), a key holds at most three watchers, two threads would only serialise, and
//! nothing is counted. It is correct for W1 and for nothing more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dashmap::DashMap;
use parking_lot::Mutex;

use crate::candidate::Candidate;
use crate::request::{Ending, Request};

/// As many keys as a request of W1 has, and as many watchers as a key has.
const MAX: usize = 3;

/// The level that a timeout of 30 s reaches in a wheel of 64 slots: buckets of 4,096 ticks.
const BUCKETS: usize = 64;
const BUCKET_SPAN_BITS: u32 = 12;

pub(crate) struct Floor {
    origin: Instant,
    shard: Mutex<TimerShard>,
    watchers: DashMap<u64, Few<u32>, foldhash::fast::RandomState>,
}

struct TimerShard {
    slots: Vec<Slot>,
    free: Vec<u32>,
    buckets: [Vec<u32>; BUCKETS],
}

#[derive(Default)]
struct Slot {
    state: AtomicU64,
    bucket: u32,
    position: u32,
    parked: Option<(Request, Few<u64>)>,
}

/// An inline list of up to [`MAX`] values.
#[derive(Default, Clone, Copy)]
struct Few<T> {
    values: [T; MAX],
    len: u8,
}

impl<T: Copy + PartialEq> Few<T> {
    fn as_slice(&self) -> &[T] {
        &self.values[..usize::from(self.len)]
    }

    fn push(&mut self, value: T) {
        self.values[usize::from(self.len)] = value;
        self.len += 1;
    }

    fn remove(&mut self, value: T) {
        if let Some(found) = self.as_slice().iter().position(|&other| other == value) {
            self.len -= 1;
            self.values[found] = self.values[usize::from(self.len)];
        }
    }
}

impl Slot {
    /// The read-modify-write by which any design must claim, release or end a shared record.
    fn change_state(&self) {
        let state = self.state.load(Ordering::Relaxed);
        let changed =
            self.state
                .compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
        assert!(changed.is_ok(), "the shard's lock is held");
    }
}

impl TimerShard {
    fn park(&mut self, request: Request, keys: Few<u64>, bucket: usize) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[id as usize];
        slot.parked = Some((request, keys));
        slot.bucket = bucket as u32;
        slot.position = self.buckets[bucket].len() as u32;
        self.buckets[bucket].push(id);
        slot.change_state();
        id
    }

    fn try_complete(&mut self, id: u32) -> Option<(Request, Few<u64>)> {
        let slot = &mut self.slots[id as usize];
        if !slot.parked.as_mut()?.0.try_complete() {
            return None;
        }
        slot.change_state();
        slot.change_state();
        let parked = slot.parked.take();
        slot.change_state();
        let (bucket, position) = (slot.bucket as usize, slot.position as usize);
        self.buckets[bucket].swap_remove(position);
        if let Some(&moved) = self.buckets[bucket].get(position) {
            self.slots[moved as usize].position = position as u32;
        }
        self.free.push(id);
        parked
    }
}

impl Candidate for Floor {
    const NAME: &'static str = "floor";

    const EXPIRES: bool = false;

    fn new() -> Self {
        Self {
            origin: Instant::now(),
            shard: Mutex::new(TimerShard {
                slots: Vec::new(),
                free: Vec::new(),
                buckets: [const { Vec::new() }; BUCKETS],
            }),
            watchers: DashMap::default(),
        }
    }

    #[inline(never)]
    fn park(&self, mut request: Request, keys: &[u64]) -> bool {
        if request.try_complete() {
            request.on_complete(Ending::Satisfied);
            return true;
        }
        let timeout = request.timeout();
        let deadline = Instant::now() + timeout - self.origin;
        let bucket = (deadline.as_millis() as usize >> BUCKET_SPAN_BITS) % BUCKETS;
        let mut parked_keys = Few::default();
        keys.iter().for_each(|&key| parked_keys.push(key));
        // The second look that a park owes happens before the request moves away: on one thread
        // nothing can come between, and the read costs the same.
        let completed = std::hint::black_box(&mut request).try_complete();
        assert!(!completed, "W1 marks nothing while it parks");
        let id = self.shard.lock().park(request, parked_keys, bucket);
        for &key in keys {
            self.watchers.entry(key).or_default().push(id);
        }
        false
    }

    #[inline(never)]
    fn check(&self, key: u64) -> usize {
        let Some(watchers) = self.watchers.get(&key).map(|watchers| *watchers) else {
            return 0;
        };
        let mut shard = self.shard.lock();
        let Some((id, (request, keys))) = watchers
            .as_slice()
            .iter()
            .find_map(|&id| Some((id, shard.try_complete(id)?)))
        else {
            return 0;
        };
        drop(shard);
        for key in keys.as_slice() {
            self.watchers.remove_if_mut(key, |_, watchers| {
                watchers.remove(id);
                watchers.len == 0
            });
        }
        request.on_complete(Ending::Satisfied);
        1
    }

    fn parked(&self) -> usize {
        let shard = self.shard.lock();
        shard.slots.len() - shard.free.len()
    }

    fn watched(&self) -> usize {
        self.watchers
            .iter()
            .map(|watchers| watchers.as_slice().len())
            .sum()
    }
}
