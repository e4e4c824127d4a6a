//! The trait of the purgatory and of the timer: what the engine calls for its payloads.

use super::reclaim::{ReclaimQueue, Unreclaimed};
use super::{Claim, Engine};
use crate::scheme::Scheme;
use crate::sync::Arc;
use crate::trampoline::drop_user_value;

/// Ends payloads when the engine says so, and runs the user's code for them. Implemented by the purgatory and by the
/// timer.
pub(crate) trait Handler: Send + Sync + Sized + 'static {
    /// The contents of a slot.
    type Payload: Send + 'static;
    /// How deadlines are kept.
    type Scheme: Scheme;
    /// A payload that has ended, on its way to the user's code.
    type Ended: Send + 'static;
    /// Data that an expired payload leaves behind outside the engine, to be reclaimed.
    type Stale: Send + 'static;

    fn engine(&self) -> &Engine<Self::Payload, Self::Scheme>;

    fn reclaim_queue(&self) -> &ReclaimQueue<Self::Stale>;

    /// Ends a payload whose deadline has passed.
    fn expire(
        self: &Arc<Self>,
        claim: Claim<'_, Self::Payload, Self::Scheme>,
    ) -> (Self::Ended, Unreclaimed<Self::Stale>);

    /// Reclaims the data that expired payloads left behind outside the engine.
    fn reclaim(&self, _batch: &[Unreclaimed<Self::Stale>]) {}

    /// Drops that data; the caller catches its panics.
    fn drop_stale(stale: Self::Stale) {
        drop_user_value(stale);
    }

    /// Ends a payload because of the shutdown. `None` if it is not for the user's code.
    fn on_shutdown(
        self: &Arc<Self>,
        claim: Claim<'_, Self::Payload, Self::Scheme>,
    ) -> Option<Self::Ended>;

    /// Whether the payload expired (and was not aborted by a panic).
    fn has_expired(ended: &Self::Ended) -> bool;

    /// The payload is counted among those whose completion is pending.
    fn on_hand_over(_ended: &mut Self::Ended) {}

    /// Runs the user's code for a payload that has ended.
    fn complete(&self, ended: Self::Ended);

    /// How many calls were deferred until the timer is driven.
    fn deferred(&self) -> usize {
        0
    }

    /// Runs one deferred call; `pause` is called between slices of a long one.
    fn run_deferred(self: &Arc<Self>, _pause: &mut dyn FnMut()) {}

    /// The last handle was dropped: drops the payloads that the shutdown left for its caller.
    fn discard(&self) {}

    /// The shutdown has ended every payload, or left that to the thread that holds it. Drops all deferred calls, and
    /// takes no more.
    fn on_closed(&self) {}
}
