//! [`Handler`], the trait through which the engine calls a purgatory or a timer; and the values that both sides pass to
//! each other: payloads that have ended, and their slots and watches.

use super::Engine;
use super::phase::UnderwayGuard;
use crate::cell::address::Address;
use crate::cell::slab::Held;
use crate::scheme::{Scheme, Tick};
use crate::stats::Ending;
use crate::sync::{Arc, Mutex};

/// [`ReclaimQueue::take`] takes one batch, and one more for each `LONG` batches that are in the queue.
const LONG: usize = 256;

/// A payload that has ended, and for which the user's code has not run yet.
pub(crate) struct EndedPayload<V> {
    /// The part of the payload that the user's code gets.
    pub(crate) value: V,
    pub(crate) ending: Ending,
    /// The address at which the payload was parked. `Permits::free` needs it to free the permit of the payload (its
    /// place under `max_parked` and `max_weight`). [`Address::NONE`] if the payload has no permit, because it was never
    /// parked.
    pub(crate) permit: Address,
    /// A guard: while it exists, a drain or a shutdown waits. `None` in most cases. Set if the payload was ended by its
    /// holder because of a mark: a pass (round of expiry) or the shutdown found that another thread held the payload,
    /// and left the mark as a request to that thread. Dropped when the completion is handed over or has run.
    pub(crate) underway: Option<UnderwayGuard>,
}

impl<V> EndedPayload<V> {
    pub(crate) fn new(value: V, ending: Ending, parked_at: Address) -> Self {
        Self {
            value,
            ending,
            permit: parked_at,
            underway: None,
        }
    }
}

/// A payload whose timer has fired, and which has then ended: as expired, or as aborted because its `try_complete`
/// panicked.
pub(crate) struct Expired<H: Handler> {
    pub(crate) ended: EndedPayload<H::Value>,
    /// The payload's deadline, if its timer may have been set to another tick than the deadline (for example an earlier
    /// one, at which a listener rechecks its condition). `None` if the timer was set to the deadline.
    pub(crate) deadline: Option<Tick>,
    /// What has to be reclaimed: the slot, and in a purgatory the watches.
    pub(crate) rest: H::Unreclaimed,
}

/// What the engine asks of a purgatory or a timer: to end its payloads, and to run the user's code for them.
/// Implemented by the purgatory (`src/purgatory/as_handler.rs`) and by the timer (`src/timer/inner.rs`).
pub(crate) trait Handler: Send + Sync + Sized + 'static {
    /// The contents of a slot.
    type Payload: Send + 'static;
    /// The timer scheme that keeps the deadlines.
    type Scheme: Scheme;
    /// The part of an ended payload that the user's code gets.
    type Value: Send + 'static;
    /// What has to be reclaimed of an expired payload: its slot, and in a purgatory its watches.
    type Unreclaimed: Send + 'static;

    fn engine(&self) -> &Engine<Self::Payload, Self::Scheme>;

    fn reclaim_queue(&self) -> &ReclaimQueue<Self::Unreclaimed>;

    /// Ends a payload whose timer has fired in a pass at tick `now`: as expired, or as aborted if its `try_complete`
    /// panics. Returns `None` in two cases:
    ///
    /// * The payload stays parked, because its timer is filed at another tick now.
    /// * This call has ended the payload in another way than by expiry, for example as satisfied, and has delivered it.
    fn expire(self: &Arc<Self>, held: Held<'_, Self::Payload>, now: Tick) -> Option<Expired<Self>>;

    /// Frees the slots of expired payloads, whose endings have been counted, and removes their watches.
    fn reclaim(&self, batch: Vec<Self::Unreclaimed>);

    /// Ends a payload because of the shutdown. `None` if the handler keeps the payload for the caller of the shutdown:
    /// then no callback runs for the payload.
    fn on_shutdown(
        self: &Arc<Self>,
        held: Held<'_, Self::Payload>,
    ) -> Option<EndedPayload<Self::Value>>;

    /// If a future awaits `value`, which has ended as `ending` says, moves the result to the state that `value` and the
    /// future share. Called if other user code may run before the call of [`complete`](Self::complete): if that code
    /// drops the future, the future drops the result as well.
    ///
    /// Returns `false` if the future was dropped before this call. The caller then completes `value` on this thread: in
    /// the queue of another thread, the user's destructors in `value` would wait behind other completions. A second
    /// call for the same `value` does nothing. Runs no user code.
    #[inline(always)]
    fn hand_over(&self, _value: &mut Self::Value, _ending: Ending) -> bool {
        true
    }

    /// Runs the user's code for a payload that has ended. A panic is passed on, and the caller catches it.
    fn complete(&self, value: Self::Value, ending: Ending);

    /// The number of deferred checks: checks that wait until the timer is driven.
    fn deferred(&self) -> usize {
        0
    }

    /// Makes one deferred check (a check that was left to the thread that drives the timer). Calls `pause` again and
    /// again during a long check, so that due timers can fire meanwhile.
    fn run_deferred(self: &Arc<Self>, _pause: &mut dyn FnMut()) {}

    /// Releases memory of the handler that is not needed. The engine itself shrinks the timer shards. Any thread may
    /// call this, at any time.
    fn shrink(&self) {}

    /// Called when the thread that drives the timer finds no deadline. Removes data that the handler still keeps for
    /// payloads that have ended: for example, closures that were to change an operation, which has ended without them.
    fn on_idle(&self) {}

    /// Drops the payloads that the shutdown has kept for its caller. Called when the last clone of the timer was
    /// dropped: no caller is left to whom the payloads could be returned.
    fn on_dropped(&self) {}

    /// Drops all deferred checks, and accepts no more. Called by the shutdown. By then every payload has ended, or has
    /// a mark: a bit that asks the thread that holds the payload to end it.
    fn on_closed(&self) {}
}

/// The reclaim queue: batches of slots and watches of expired payloads, which no thread uses any more.
///
/// Reclaiming takes longer than expiring. So if many payloads expire at once, their slots and watches are queued here,
/// and a part of the queue is reclaimed after each pass.
pub(crate) struct ReclaimQueue<T>(Mutex<Vec<Vec<T>>>);

impl<T> ReclaimQueue<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(crate) fn add(&self, batch: Vec<T>) {
        self.0.lock().push(batch);
    }

    /// Takes the batches to reclaim next: the latest ones, because their order does not matter. Takes more batches from
    /// a longer queue, so that the queue stops growing even if each pass adds more than one batch.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut queue = self.0.lock();
        let part = 1 + queue.len() / LONG;
        let rest = queue.len().saturating_sub(part);
        let mut part = queue.split_off(rest);
        if queue.is_empty() {
            // The queue may have been long: release its memory.
            *queue = Vec::new();
        }
        drop(queue);
        let mut all = part.pop().unwrap_or_default();
        all.extend(part.into_iter().flatten());
        all
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;

    #[test]
    fn g28_an_empty_reclaim_queue_keeps_no_memory() {
        let queue = ReclaimQueue::new();
        (0..1_000).for_each(|number| queue.add(vec![number]));
        let mut taken = 0;
        while !queue.is_empty() {
            taken += queue.take().len();
        }
        assert_eq!((taken, queue.0.lock().capacity()), (1_000, 0));
    }
}
