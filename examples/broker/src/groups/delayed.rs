//! The two phases of a rebalance, which wait for the members.

use super::Coordinator;
use super::group::Group;
use super::member::Id;
use kafka_protocol::ResponseError;
use request_purgatory::{Completion, DelayedOperation};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Kafka's `DelayedJoin` and `DelayedSync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Waits until all members have joined, or for the rebalance timeout. Then those that have joined are a generation.
    Join,
    /// Waits until all members of a generation have asked for their assignments, or for the rebalance timeout: then the
    /// group goes on without those that have not.
    Sync,
}

/// It is parked under the group's id, in the purgatory of its kind, and whatever takes a member in or out, or ends the
/// phase, checks that key. The answers to the members lie with the members: this is the one operation that ends all
/// their waits.
#[derive(Debug)]
pub(crate) struct DelayedPhase {
    pub(super) coordinator: Weak<Coordinator>,
    pub(super) group: Arc<Group>,
    pub(super) kind: Kind,
    /// The rebalance that is meant, as [`State::round`](super::group::State::round) counts them.
    pub(super) round: u64,
    pub(super) timeout: Duration,
}

impl DelayedOperation for DelayedPhase {
    type Key = Id;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Takes the lock of the group. So no thread checks or parks while it has that lock.
    fn try_complete(&mut self) -> bool {
        let state = self.group.lock();
        match self.kind {
            Kind::Join => !state.is_joining(self.round) || state.all_have_joined(),
            Kind::Sync => !state.is_syncing(self.round),
        }
    }

    fn on_complete(self, completion: Completion) {
        match completion {
            Completion::Satisfied | Completion::Expired => self.end(),
            _ => self.refuse(),
        }
    }
}

impl DelayedPhase {
    /// Ends the phase, if it goes on still.
    pub(super) fn end(self) {
        if let Some(coordinator) = self.coordinator.upgrade() {
            coordinator.change(&self.group, |state| match self.kind {
                Kind::Join => state.end_join_phase(&coordinator, self.round),
                Kind::Sync => state.end_sync_phase(&coordinator, self.round),
            });
        }
    }

    /// The broker shuts down.
    pub(super) fn refuse(self) {
        let mut state = self.group.lock();
        if state.round == self.round {
            state.refuse_waiters(ResponseError::NotCoordinator);
        }
    }
}
