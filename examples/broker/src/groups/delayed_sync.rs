//! The sync phase of a rebalance, in which the members fetch what the leader assigns to them.

use super::Coordinator;
use super::group::Group;
use super::member::Id;
use kafka_protocol::ResponseError;
use request_purgatory::{Completion, DelayedOperation};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Waits until all members of a generation have asked for their assignments, or for the rebalance timeout: then the
/// group goes on without those that have not.
///
/// It is parked under the group's id, and every sync checks that key, as does whatever ends the generation.
#[derive(Debug)]
pub(crate) struct DelayedSync {
    pub(super) coordinator: Weak<Coordinator>,
    pub(super) group: Arc<Group>,
    /// The generation that is meant, as [`State::round`](super::group::State::round) counts them.
    pub(super) round: u64,
    pub(super) timeout: Duration,
}

impl DelayedOperation for DelayedSync {
    type Key = Id;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Takes the lock of the group. So no thread checks or parks while it has that lock.
    fn try_complete(&mut self) -> bool {
        !self.group.lock().is_syncing(self.round)
    }

    fn on_complete(self, completion: Completion) {
        match completion {
            Completion::Satisfied => {}
            Completion::Expired => self.end_phase(),
            _ => self.refuse(),
        }
    }
}

impl DelayedSync {
    pub(super) fn end_phase(self) {
        if let Some(coordinator) = self.coordinator.upgrade() {
            coordinator.change(&self.group, |state, context| {
                state.end_sync_phase(context, self.round)
            });
        }
    }

    /// The broker shuts down.
    pub(super) fn refuse(self) {
        let mut state = self.group.lock();
        if state.is_syncing(self.round) {
            state.refuse_waiters(ResponseError::NotCoordinator);
        }
    }
}
