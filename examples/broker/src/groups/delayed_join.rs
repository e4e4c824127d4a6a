//! The join phase of a rebalance, which waits for all members.

use super::Coordinator;
use super::group::Group;
use super::member::Id;
use kafka_protocol::ResponseError;
use request_purgatory::{Completion, DelayedOperation};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Waits until all members of a group have joined, or for the rebalance timeout.
///
/// It is parked under the group's id, and whatever takes a member in or out checks that key. The answers to the members
/// lie with the members: this is the one operation that ends all their waits.
#[derive(Debug)]
pub(crate) struct DelayedJoin {
    pub(super) coordinator: Weak<Coordinator>,
    pub(super) group: Arc<Group>,
    /// The rebalance that is meant.
    pub(super) round: u64,
    pub(super) timeout: Duration,
}

impl DelayedOperation for DelayedJoin {
    type Key = Id;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Takes the lock of the group. So no thread checks or parks while it has that lock.
    fn try_complete(&mut self) -> bool {
        let state = self.group.lock();
        !state.is_joining(self.round) || state.all_have_joined()
    }

    /// Begins a generation with the members that have joined. Members that came meanwhile may have made this too early:
    /// then another one waits for the rest of the time.
    fn on_complete(self, completion: Completion) {
        match completion {
            Completion::Satisfied | Completion::Expired => self.end_phase(),
            _ => self.refuse(),
        }
    }
}

impl DelayedJoin {
    pub(super) fn end_phase(self) {
        if let Some(coordinator) = self.coordinator.upgrade() {
            coordinator.change(&self.group, |state, context| {
                state.end_join_phase(context, self.round)
            });
        }
    }

    /// The broker shuts down.
    pub(super) fn refuse(self) {
        let mut state = self.group.lock();
        if state.is_joining(self.round) {
            state.refuse_waiters(ResponseError::NotCoordinator);
        }
    }
}
