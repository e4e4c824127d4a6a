//! What the engine asks of a purgatory: to end an operation because its time has come, and to perform the checks that
//! were put off.

use super::Parked;
use super::core::{Core, Later, Tenant, Wheel};
use super::keys::Keys;
use crate::address::Address;
use crate::engine::Engine;
use crate::engine::deliver::{Ready, Site};
use crate::engine::drive::{Facility, Gone};
use crate::operation::{Completion, DelayedOperation, KeyHasher};
use crate::stats::Ending;
use crate::sync::Arc;
use crate::watch::list::Rank;

/// What an expired operation leaves in the watch lists.
pub(crate) struct Trace<K> {
    watcher: Address,
    keys: Keys<K>,
}

/// From so many on, traces are sorted before they are cleared.
const STORM: usize = 1024;

/// Sorts by shard, of which there are so many: counts each shard's, then puts each where its shard begins.
fn by_shard<T: Copy + Default>(
    all: impl Iterator<Item = T> + Clone,
    shard: impl Fn(&T) -> usize,
    shards: usize,
) -> Vec<T> {
    let of = all
        .clone()
        .map(|one| shard(&one) as u32)
        .collect::<Vec<_>>();
    let mut starts = vec![0_usize; shards + 1];
    for &shard in &of {
        starts[shard as usize + 1] += 1;
    }
    for shard in 0..shards {
        starts[shard + 1] += starts[shard];
    }
    let mut sorted = vec![T::default(); of.len()];
    for (one, &shard) in all.zip(&of) {
        let next = &mut starts[shard as usize];
        sorted[*next] = one;
        *next += 1;
    }
    sorted
}

impl<Op: DelayedOperation, S: KeyHasher> Facility for Core<Op, S> {
    type Payload = Parked<Op>;
    type Scheme = Wheel;
    type Ended = (Op, Completion);
    type Trace = Trace<Op::Key>;

    #[inline(always)]
    fn engine(&self) -> &Engine<Parked<Op>, Wheel> {
        &self.engine
    }

    /// The operation is asked once more. The answer decides nothing, but shows a check that nobody made.
    fn expire<'a>(
        self: &Arc<Self>,
        mut tenant: Tenant<'a, Op>,
        ready: &mut Ready<(Op, Completion)>,
    ) -> Gone<'a, Self> {
        let could = self.look(&mut tenant);
        if let Ok(true) = could {
            tenant.home.events.missed_checks.add(1);
        }
        let ending = could.map_or(Ending::Aborted, |_| Ending::Expired);
        let watcher = tenant.address();
        let (Parked { op, keys }, vacated) = self.engine.vacate(tenant);
        match ending {
            Ending::Expired => ready.push((op, Completion::Expired)),
            _ => self.discard(op),
        }
        Gone {
            vacated,
            ending,
            watches: keys.len(),
            trace: Trace { watcher, keys },
        }
    }

    /// Takes them off the watch lists; if they are many, shard by shard of the map.
    fn clear<'a>(&self, count: usize, at: impl Fn(usize) -> &'a Trace<Op::Key>) {
        if count < STORM {
            for trace in (0..count).map(at) {
                self.unwatch(&trace.keys, trace.watcher, usize::MAX);
            }
            return;
        }
        let watches = (0..count).flat_map(|gone| {
            (0..at(gone).keys.len()).map(move |place| (gone as u32, place as u32))
        });
        let shard = |&(gone, place): &(u32, u32)| {
            let (target, _) = at(gone as usize).keys.get(place as usize);
            // If `Hash` of a key panics, it will again when the watch is removed.
            let shard = self.engine.guarded(|| self.watch.shard_of(target));
            shard.unwrap_or_default()
        };
        for (gone, place) in by_shard(watches, shard, self.watch.shards()) {
            let Trace { watcher, keys } = at(gone as usize);
            self.unwatch_at(keys, *watcher, &mut (place as usize..place as usize + 1));
        }
    }

    fn abandon(self: &Arc<Self>, tenant: Tenant<'_, Op>, ready: &mut Ready<(Op, Completion)>) {
        self.end_into(tenant, Ending::ShutDown, ready);
    }

    fn has_expired(&(_, completion): &(Op, Completion)) -> bool {
        completion == Completion::Expired
    }

    /// The one place that calls `on_complete`.
    #[inline(always)]
    fn complete(&self, (op, completion): (Op, Completion)) {
        // A panic is counted, and ends this operation only.
        let _ = self.engine.guarded(|| op.on_complete(completion));
    }

    fn is_behind(&self) -> bool {
        !self.later.is_empty()
    }

    fn catch_up(self: &Arc<Self>) {
        for _ in 0..self.later.len() {
            // Only `Hash` or `Eq` of a key, or its destructor, can panic in here.
            let _ = self.engine.guarded(|| match self.later.pop() {
                Some(Later::Key(key)) => drop(self.check_key(&key, Rank::MAX, Site::Elsewhere)),
                Some(Later::Operation(address)) => drop(self.check_one(address, Site::Elsewhere)),
                None => {}
            });
        }
    }

    fn give_up(&self) {
        while let Some(check) = self.later.pop() {
            // The destructor of a key may panic.
            let _ = self.engine.guarded(|| drop(check));
        }
    }
}
