//! One group: its members, and how far they have come in agreeing who reads what.
//!
//! The states are Kafka's:
//!
//! ```text
//!            first join              all have joined              the leader has assigned
//!   Empty ──────────────▶ Preparing ──────────────────▶ Completing ──────────────────────▶ Stable
//!     ▲                   Rebalance ◀────────────────── Rebalance                            │
//!     │      none left     │    ▲     a member comes,                                        │
//!     └────────────────────┘    │     leaves or expires                                      │
//!                               └────────────────────────────────────────────────────────────┘
//! ```
//!
//! and `Dead` once the group has been deleted.

use super::journal::Offsets;
use super::member::{Id, Member};
use super::{Charge, Coordinator};
use crate::exchange::Outcome;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::OffsetCommitRequest;
use parking_lot::{Mutex, MutexGuard};
use request_purgatory::{Completion, DelayedOperation, ResolvedKey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A group. Its lock is never held across a check of a purgatory, nor while an operation is being parked: both run
/// `try_complete` of operations that take it. What is to be done once it has been released, is noted in its [`After`].
pub(crate) struct Group {
    pub(super) id: Id,
    state: Mutex<State>,
    /// What its phases wait on.
    pub(super) joins: ResolvedKey<DelayedPhase>,
    pub(super) syncs: ResolvedKey<DelayedPhase>,
}

/// What the lock of a group guards.
#[derive(Default)]
pub(super) struct State {
    pub(super) id: Id,
    pub(super) phase: Phase,
    /// Counts rebalances and the generations that came of them: it tells whether a parked operation still means this
    /// one.
    pub(super) round: u64,
    /// How often the members have agreed, or the last of them has left. Clients name it in every request.
    pub(super) generation: i32,
    /// What kind of group it is ("consumer"); set by the first member.
    pub(super) protocol_type: Option<Id>,
    /// What the members have agreed on in this generation.
    pub(super) protocol: Option<Id>,
    pub(super) leader: Option<Id>,
    pub(super) members: BTreeMap<Id, Member>,
    /// Members of this generation that have not yet asked for their assignment.
    pub(super) unsynced: BTreeSet<Id>,
    /// The memory of their assignments.
    pub(super) assigned: Option<Charge>,
    pub(super) offsets: Offsets,
    /// Members so far.
    pub(super) numbered: u64,
    pub(super) after: After,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Empty,
    PreparingRebalance {
        /// The group was empty: it waits for members that are not known yet.
        first: bool,
    },
    CompletingRebalance,
    Stable,
    Dead,
}

/// What a change of the state leads to, to be done when the lock has been released.
#[derive(Debug, Default)]
pub(super) struct After {
    /// A phase to park: its kind, its round, how long it may last.
    pub(super) park: Option<(Kind, u64, Duration)>,
    pub(super) check_joins: bool,
    pub(super) check_syncs: bool,
}

impl Group {
    pub(super) fn new(id: Id, coordinator: &Coordinator) -> Self {
        let state = State {
            id: Id::clone(&id),
            ..State::default()
        };
        Self {
            joins: coordinator.joins.resolve(Id::clone(&id)),
            syncs: coordinator.syncs.resolve(Id::clone(&id)),
            state: Mutex::new(state),
            id,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Kafka's `DelayedJoin` and `DelayedSync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Waits until all members have joined, or for the rebalance timeout. Then those that have joined are a generation.
    Join,
    /// Waits until all members of a generation have asked for their assignments, or for the rebalance timeout: then the
    /// group goes on without those that have not.
    Sync,
}

/// It is parked under the group's id, in the purgatory of its kind, and whatever takes a member in or out, or ends the
/// phase, checks that key. The answers to the members lie with the members: this is the one operation that ends all
/// their waits.
pub(crate) struct DelayedPhase {
    pub(super) coordinator: Weak<Coordinator>,
    pub(super) group: Arc<Group>,
    pub(super) kind: Kind,
    /// The rebalance that is meant, as [`State::round`](State::round) counts them.
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

impl State {
    /// The member id of a static member.
    pub(super) fn named(&self, instance: &str) -> Option<&Id> {
        let mut members = self.members.iter();
        let found = members.find(|(_, member)| member.instance.as_deref() == Some(instance));
        found.map(|(id, _)| id)
    }

    /// Checks that a member is who it says it is, in the generation that it says.
    pub(super) fn check_member(
        &self,
        member: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Outcome {
        self.check_identity(member, instance)?;
        match generation == self.generation {
            true => Ok(()),
            false => Err(ResponseError::IllegalGeneration),
        }
    }

    /// Checks that a member is who it says it is.
    pub(super) fn check_identity(&self, member: &str, instance: Option<&str>) -> Outcome {
        if self.phase == Phase::Dead {
            return Err(ResponseError::CoordinatorNotAvailable);
        }
        match instance.map(|instance| self.named(instance)) {
            // Another client has taken over the name.
            Some(Some(current)) if **current != *member => Err(ResponseError::FencedInstanceId),
            Some(None) => Err(ResponseError::UnknownMemberId),
            _ if !self.members.contains_key(member) => Err(ResponseError::UnknownMemberId),
            _ => Ok(()),
        }
    }

    /// A sign of life of a member. While a request of it waits, its session is suspended.
    pub(super) fn touch(&self, coordinator: &Coordinator, member: &str) {
        if let Some((id, found)) = self.members.get_key_value(member) {
            let timeout = match found.is_waiting() {
                true => Duration::MAX,
                false => found.session_timeout,
            };
            coordinator.sessions.touch(&self.session(id), timeout);
        }
    }

    /// What the session of a member is tracked under.
    pub(super) fn session(&self, member: &Id) -> (Id, Id) {
        (Id::clone(&self.id), Id::clone(member))
    }

    pub(super) fn heartbeat(
        &mut self,
        coordinator: &Coordinator,
        member: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Outcome {
        self.check_member(member, instance, generation)?;
        self.touch(coordinator, member);
        match self.phase {
            Phase::PreparingRebalance { .. } => Err(ResponseError::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Whether the sender of `request` may commit now. A member that does is alive.
    pub(super) fn check_commit(
        &mut self,
        coordinator: &Coordinator,
        request: &OffsetCommitRequest,
    ) -> Outcome {
        let (member, generation) = (&*request.member_id, request.generation_id_or_member_epoch);
        let instance = request.group_instance_id.as_deref();
        if generation < 0 && member.is_empty() && instance.is_none() {
            // A client that assigns its partitions itself, or an administrator: not beside members.
            return match self.phase {
                Phase::Empty => Ok(()),
                Phase::Dead => Err(ResponseError::CoordinatorNotAvailable),
                _ => Err(ResponseError::UnknownMemberId),
            };
        }
        self.check_member(member, instance, generation)?;
        self.touch(coordinator, member);
        match self.phase {
            Phase::CompletingRebalance => Err(ResponseError::RebalanceInProgress),
            // What it has read until it joins, it may still commit.
            _ => Ok(()),
        }
    }

    /// Takes a member out, and ends its waits.
    pub(super) fn remove_member(&mut self, coordinator: &Coordinator, id: &Id) {
        coordinator.sessions.complete(&self.session(id));
        if let Some(mut member) = self.members.remove(id) {
            member.fail(id, ResponseError::UnknownMemberId);
        }
        self.unsynced.remove(id);
        if self.leader.as_ref() == Some(id) {
            self.leader = None;
        }
    }

    /// The client that sent a request has gone. Its member stays for as long as a session lasts: it may come back.
    pub(super) fn abandoned(&mut self, coordinator: &Coordinator, member: &str, ticket: u64) {
        let Some(found) = self.members.get_mut(member) else {
            return;
        };
        let join = found.join.take_if(|waiter| waiter.ticket == ticket);
        let sync = found.sync.take_if(|waiter| waiter.ticket == ticket);
        if join.or(sync).is_some() {
            self.touch(coordinator, member);
        }
    }

    /// Answers every request that waits with an error: nothing else would end it.
    pub(super) fn refuse_waiters(&mut self, error: ResponseError) {
        for (id, member) in &mut self.members {
            member.fail(id, error);
        }
    }
}
