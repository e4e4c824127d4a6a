//! The purgatory's implementation of [`Handler`]. The engine, which keeps the deadlines and knows neither keys nor user
//! code, calls these methods when an operation expires, is shut down or is completed.

use super::due::Due;
use super::inner::{Inner, Parked, Unreclaimed, Wheel};
#[cfg(debug_assertions)]
use super::stuck::NotedCall;
use crate::callbacks::trampoline::{Trampoline, drop_user_value};
use crate::cell::slab::Held;
use crate::engine::Engine;
use crate::engine::deliver::deliver;
use crate::engine::handler::{EndedPayload, Expired, Handler, ReclaimQueue};
use crate::hash::KeyHasher;
use crate::operation::{DelayedOperation, Internal};
use crate::scheme::Tick;
use crate::stats::{Ending, Statistic};
use crate::sync::Arc;

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

    /// Handles an operation that this thread holds because its timer has fired. At the deadline the operation is
    /// examined once more. A yes does not change the ending: the operation expires. But a missed check is counted,
    /// because the operation can complete, and no check has found that before.
    ///
    /// Returns `None` in two cases:
    ///
    /// * The operation stays parked, because its timer is filed at another time now.
    /// * This call has ended the operation in another way than by expiry, and has delivered its completion.
    fn expire(
        self: &Arc<Self>,
        mut held: Held<'_, Parked<Op>>,
        now: Tick,
    ) -> Option<Expired<Self>> {
        let (ending, missed_check, deadline) = match self.due(&mut held, Some(now)) {
            Ok(Due::Over {
                missed_check,
                deadline,
            }) => (Ending::Expired, missed_check, deadline),
            Ok(Due::Later) => {
                self.release_later(held);
                return None;
            }
            Ok(Due::Satisfied) => {
                self.deliver_in_pass(self.end_and_reclaim(held, Ending::Satisfied));
                return None;
            }
            Err(panics) => {
                self.engine.end_panic(panics);
                (Ending::Aborted, false, None)
            }
        };
        if missed_check {
            self.engine.count(Statistic::MissedCheck, 1);
            #[cfg(debug_assertions)]
            super::missed_check::report::<Op::Key>(&self.engine.name);
        }
        let ended = self.end_reported(held, ending, missed_check);
        let (Parked { op, keys, .. }, spent) = ended.take();
        let slot = spent.detach();
        let ended = EndedPayload::new(op, ending, slot.address());
        Some(Expired {
            ended,
            deadline,
            rest: Unreclaimed { slot, keys },
        })
    }

    /// Reclaims a batch of expired operations. First removes their watches from the watch lists. Then `free_counted`
    /// frees their slots, and counts the watches as removed. So a thread that reads this count later finds none of
    /// these watches in a list.
    fn reclaim(&self, batch: Vec<Unreclaimed<Op::Key>>) {
        self.unwatch_all(&batch);
        let mut all_keys = Vec::with_capacity(batch.len());
        self.engine.free_counted(batch.into_iter().map(|rest| {
            let watches = rest.keys.len();
            all_keys.push(rest.keys);
            (rest.slot, watches)
        }));
        // Drop the keys of the operations last. The destructor of a key is user code, which may call the library and
        // must then find the whole batch reclaimed.
        all_keys.into_iter().for_each(|keys| self.drop_keys(keys));
    }

    fn on_shutdown(self: &Arc<Self>, held: Held<'_, Parked<Op>>) -> Option<EndedPayload<Op>> {
        Some(self.end_and_reclaim(held, Ending::ShutDown))
    }

    #[inline(always)]
    fn hand_over(&self, op: &mut Op, ending: Ending) -> bool {
        op.hand_over(ending.completion(), Internal)
    }

    /// Completes an operation that has ended. The library calls `on_complete` only here. After a panic of its
    /// `try_complete`, an operation gets no completion, and is only dropped.
    fn complete(&self, op: Op, ending: Ending) {
        #[cfg(debug_assertions)]
        let _call = NotedCall::begin(self.names);
        match ending.completion() {
            Some(completion) => op.on_complete(completion),
            None => drop(op),
        }
    }

    fn deferred(&self) -> usize {
        self.deferred.len()
    }

    fn run_deferred(self: &Arc<Self>, pause: &mut dyn FnMut()) {
        // Catch panics of the key's `Hash`, `Eq` and destructor: the thread that makes this check drives the timer, and
        // must still expire operations after it.
        let _ = self.engine.guarded(|| {
            let Some((check, bound)) = self.deferred.next(|| self.engine.count_panic()) else {
                return;
            };
            self.check_waiting(&check, &bound, pause);
            // This may drop the last reference to the key, whose destructor is user code and may panic.
            drop_user_value(check);
        });
    }

    fn shrink(&self) {
        // To shrink a table, its keys are hashed again. If `Hash` of a key panics, the table stays as it is.
        let _ = self.engine.guarded(|| self.watch.shrink());
        let _ = self.engine.guarded(|| self.deferred.shrink());
    }

    fn on_idle(&self) {
        self.forget_changes();
        self.early.forget(|at| self.engine.is_parked(at));
    }

    fn on_closed(&self) {
        self.weak.cut();
        self.forget_changes();
        self.early.forget(|_| false);
        for check in self.deferred.close() {
            // Catch a panic of the key's destructor, so that the loop also drops the remaining checks.
            let _ = self.engine.guarded(|| drop_user_value(check));
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// Releases an operation whose timer has fired, but which stays parked, because the timer was set to another time.
    /// The release fails if another thread has left a mark (a request to the thread that holds the operation): then
    /// this call acts on the mark.
    #[cold]
    fn release_later(self: &Arc<Self>, held: Held<'_, Parked<Op>>) {
        let Err((held, unreleased)) = held.release(true) else {
            return;
        };
        if let Some(ended) = self.settle(held, unreleased, false) {
            self.deliver_in_pass(ended);
        }
    }

    /// Delivers an operation that has ended apart from the batch of expired operations that the thread that drives the
    /// timer collects. The completion runs where the builder's `dispatch` says.
    #[cold]
    fn deliver_in_pass(self: &Arc<Self>, ended: EndedPayload<Op>) {
        let trampoline = Trampoline::enter();
        deliver(self, &trampoline, ended);
        self.engine.leave(trampoline);
    }
}
