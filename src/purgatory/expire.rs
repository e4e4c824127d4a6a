//! What the engine asks of a purgatory: to end an operation because its time has come, and to perform the checks that
//! were put off.

use super::Parked;
use super::core::{Core, Later, Tenant, Wheel};
use super::end::Outcome;
use super::keys::Keys;
use crate::address::Address;
use crate::engine::Engine;
use crate::engine::deliver::{Outbox, Ready, Site};
use crate::engine::drive::Facility;
use crate::engine::pass::{Gone, Heap};
use crate::observe::End;
use crate::operation::{Completion, DelayedOperation, KeyHasher};
use crate::stats::Ending;
use crate::sync::Arc;
use crate::watch::list::Rank;
use crate::watch::sweep::Sweep;

/// What an expired operation leaves in the watch lists.
pub(crate) struct Trace<K> {
    watcher: Address,
    keys: Keys<K>,
}

impl<Op: DelayedOperation, S: KeyHasher> Facility for Core<Op, S> {
    type Payload = Parked<Op>;
    type Scheme = Wheel;
    type Ended = Outcome<Op>;
    type Trace = Trace<Op::Key>;

    #[inline(always)]
    fn engine(&self) -> &Engine<Parked<Op>, Wheel> {
        &self.engine
    }

    fn gone(&self) -> &Heap<Trace<Op::Key>> {
        &self.gone
    }

    /// The operation is asked once more. The answer decides nothing, but shows a check that nobody made.
    fn expire(
        self: &Arc<Self>,
        mut tenant: Tenant<'_, Op>,
        ready: &mut Ready<Outcome<Op>>,
    ) -> Gone<Trace<Op::Key>> {
        let could = self.look(&mut tenant);
        let missed_check = matches!(could, Ok(true));
        if missed_check {
            tenant.home.events.missed_checks.add(1);
        }
        let ending = could.map_or(Ending::Aborted, |_| Ending::Expired);
        let watcher = tenant.address();
        let end = End {
            ending,
            missed_check,
            deadline: self.deadline_to_tell(&tenant, ending),
        };
        let (Parked { op, keys, stay }, vacated) = self.engine.vacate(tenant);
        self.tell_end(stay, end, keys.len());
        ready.push(Outcome::of(op, ending));
        Gone {
            vacated,
            expired: ending == Ending::Expired,
            watches: keys.len(),
            trace: Trace { watcher, keys },
        }
    }

    /// Takes them off the watch lists.
    fn clear(&self, gone: &[Gone<Trace<Op::Key>>]) {
        if let [Gone { trace, .. }] = gone {
            return self.unwatch(&trace.keys, trace.watcher, usize::MAX);
        }
        let is_live = |other| self.is_live(other);
        let watches = gone.iter().map(|gone| gone.watches).sum();
        let mut sweep = Sweep::of(&self.watch, watches);
        for Gone { trace, .. } in gone {
            self.for_each_watch(&trace.keys, usize::MAX, |target, rank| {
                sweep.add(target, rank, trace.watcher, is_live);
            });
        }
        sweep.sort();
        while !sweep.is_done() {
            // (`Eq` of a key may panic.)
            let _ = self.engine.guarded(|| sweep.step(is_live));
        }
    }

    fn abandon(self: &Arc<Self>, tenant: Tenant<'_, Op>, ready: &mut Ready<Outcome<Op>>) {
        self.end_into(tenant, Ending::ShutDown, ready);
    }

    fn has_expired(ended: &Outcome<Op>) -> bool {
        matches!(ended, Outcome::Completed(_, Completion::Expired))
    }

    /// The one place that calls `on_complete`.
    #[inline(always)]
    fn complete(&self, ended: Outcome<Op>) {
        match ended {
            // A panic is counted, and ends this operation only.
            Outcome::Completed(op, completion) => {
                let _ = self.engine.guarded(|| op.on_complete(completion));
            }
            Outcome::Aborted(op) => self.discard(op),
        }
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
