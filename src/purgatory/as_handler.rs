//! The purgatory as a handler: what the engine calls when an operation expires, is shut down or is completed.

use super::deferred::Deferred;
use super::inner::{Claim, Inner, Parked, StaleWatches, Wheel};
use crate::engine::Engine;
use crate::engine::dispatch::RunOn;
use crate::engine::handler::{Ended, Handler, ReclaimQueue, Unreclaimed};
use crate::hash::KeyHasher;
use crate::operation::{Cause, DelayedOperation};
use crate::stats::Ending;
use crate::sync::Arc;
use crate::trampoline::{Why, drop_user_value};
use crate::watch::sweep::Sweep;

impl<Op: DelayedOperation, S: KeyHasher> Handler for Inner<Op, S> {
    type Payload = Parked<Op>;
    type Scheme = Wheel;
    type Left = Op;
    type Stale = StaleWatches<Op::Key>;

    #[inline(always)]
    fn engine(&self) -> &Engine<Parked<Op>, Wheel> {
        &self.engine
    }

    fn reclaim_queue(&self) -> &ReclaimQueue<StaleWatches<Op::Key>> {
        &self.unreclaimed
    }

    /// The operation is examined once more. The answer decides nothing, but shows a check that was not made.
    fn expire(
        self: &Arc<Self>,
        mut claim: Claim<'_, Op>,
    ) -> (Ended<Op>, Unreclaimed<StaleWatches<Op::Key>>) {
        let answer = self.ask_for(&mut claim, Cause::DEADLINE, Why::Deadline);
        let missed_check = matches!(answer, Ok(true));
        if missed_check {
            self.engine.count_event(|events| &events.missed_checks, 1);
        }
        let ending = answer.map_or(Ending::Aborted, |_| Ending::Expired);
        self.end(claim, ending, missed_check)
    }

    /// Takes expired operations off the watch lists.
    fn reclaim(&self, batch: &[Unreclaimed<StaleWatches<Op::Key>>]) {
        if let [Unreclaimed { stale, .. }] = batch {
            return self.unwatch(stale);
        }
        let watches = batch.iter().map(|left| left.watches).sum();
        let mut sweep = Sweep::of(&self.watch, watches);
        for Unreclaimed { stale, .. } in batch {
            self.for_each_watch(stale, |target, turn| {
                sweep.add(target, turn, stale.watcher);
            });
        }
        sweep.sort();
        while !sweep.is_done() {
            // `Eq` of a key may panic.
            let _ = self.engine.guarded(|| sweep.step());
        }
    }

    fn drop_stale(stale: StaleWatches<Op::Key>) {
        stale.keys.drop_each();
    }

    fn on_shutdown(self: &Arc<Self>, claim: Claim<'_, Op>) -> Option<Ended<Op>> {
        Some(self.end_and_reclaim(claim, Ending::ShutDown))
    }

    /// The one place that calls `on_complete`.
    #[inline(always)]
    fn complete(&self, op: Op, ending: Ending) {
        match ending.completion() {
            Some(completion) => op.on_complete(completion),
            None => drop(op),
        }
    }

    fn deferred(&self) -> usize {
        self.deferred.len()
    }

    fn run_deferred(self: &Arc<Self>, pause: &mut dyn FnMut()) {
        // Only `Hash` or `Eq` of a key, or its destructor, can panic in here.
        let _ = self.engine.guarded(|| {
            let Some((check, bound)) = self.deferred.next() else {
                return;
            };
            match &check {
                Deferred::Key(key) => self.check_key_in_slices(key, bound, pause),
                Deferred::Operation(address) => {
                    self.check_one(*address, None, RunOn::Executor);
                    pause();
                }
            }
            // The destructor of a key may panic.
            drop_user_value(check);
        });
    }

    fn on_closed(&self) {
        self.weak.cut();
        for check in self.deferred.close() {
            // The destructor of a key may panic.
            let _ = self.engine.guarded(|| drop_user_value(check));
        }
    }
}
