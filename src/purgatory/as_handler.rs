//! The purgatory as a handler: what the engine calls when an operation expires, is shut down or is completed.

use super::inner::{Inner, Parked, Unreclaimed, Wheel};
#[cfg(debug_assertions)]
use super::stuck::NotedCall;
use crate::cell::slab::Held;
use crate::engine::Engine;
use crate::engine::deliver::RunOn;
use crate::engine::handler::{EndedPayload, Handler, ReclaimQueue};
use crate::examining::Trigger;
use crate::hash::KeyHasher;
use crate::operation::{Cause, DelayedOperation};
use crate::stats::{Ending, Statistic};
use crate::sync::Arc;
use crate::trampoline::drop_user_value;

impl<Op: DelayedOperation, S: KeyHasher> Handler for Inner<Op, S> {
    type Payload = Parked<Op>;
    type Scheme = Wheel;
    type Value = Op;
    type Unreclaimed = Unreclaimed<Op::Key>;

    fn engine(&self) -> &Engine<Parked<Op>, Wheel> {
        &self.engine
    }

    fn reclaim_queue(&self) -> &ReclaimQueue<Unreclaimed<Op::Key>> {
        &self.unreclaimed
    }

    /// The operation is examined once more. The answer decides nothing, but shows a check that was not made.
    fn expire(
        self: &Arc<Self>,
        mut held: Held<'_, Parked<Op>>,
    ) -> (EndedPayload<Op>, Unreclaimed<Op::Key>) {
        let answer = self.examine_without_key(&mut held, Cause::DEADLINE, Trigger::Deadline);
        let missed_check = matches!(answer, Ok(true));
        if missed_check {
            self.engine.count(Statistic::MissedCheck, 1);
            #[cfg(debug_assertions)]
            super::missed_check::report::<Op::Key>(&self.engine.name);
        }
        let ending = match answer {
            Ok(_) => Ending::Expired,
            Err(panics) => {
                self.engine.count_panic();
                panics.discard();
                Ending::Aborted
            }
        };
        let deadline = self.reported_deadline(&held, ending);
        let ended = held.end_in_place();
        ended.with(|parked| self.observe_end(parked, ending, missed_check, deadline));
        let (Parked { op, keys, .. }, spent) = ended.take();
        let slot = spent.detach();
        (EndedPayload::new(op, ending), Unreclaimed { slot, keys })
    }

    /// Watches first: `free_counted` counts them as gone.
    fn reclaim(&self, batch: Vec<Unreclaimed<Op::Key>>) {
        self.unwatch_all(&batch);
        let mut all_keys = Vec::with_capacity(batch.len());
        self.engine.free_counted(batch.into_iter().map(|rest| {
            let watches = rest.keys.len();
            all_keys.push(rest.keys);
            (rest.slot, watches)
        }));
        // The operations' own keys last: their destructors may call the library, and find the whole batch reclaimed.
        if std::mem::needs_drop::<Op::Key>() {
            let _ = self.engine.guarded(|| drop(all_keys));
        }
    }

    fn on_shutdown(self: &Arc<Self>, held: Held<'_, Parked<Op>>) -> Option<EndedPayload<Op>> {
        Some(self.end_and_reclaim(held, Ending::ShutDown))
    }

    /// Nothing else calls `on_complete`.
    fn complete(&self, op: Op, ending: Ending) {
        #[cfg(debug_assertions)]
        let _call = NotedCall::begin::<Op, Op::Key>(&self.engine.name);
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
            self.check_waiting(&check, &bound, RunOn::Dispatch, pause);
            // The destructor of a key may panic.
            drop_user_value(check);
        });
    }

    fn on_idle(&self) {
        self.watch.shrink();
        self.deferred.shrink();
        self.forget_changes();
    }

    fn on_closed(&self) {
        self.weak.cut();
        self.forget_changes();
        for check in self.deferred.close() {
            // The destructor of a key may panic.
            let _ = self.engine.guarded(|| drop_user_value(check));
        }
    }
}
