//! One group: its members, and how far they have come in agreeing who reads what.
//!
//! The states are Kafka's:
//!
//! ```text
//!            first join                all have joined             the leader has assigned
//!   Empty ──────────────▶ Preparing ──────────────────▶ CompletionFuture ──────────────────────▶ Stable
//!     ▲                   Rebalance ◀──────────────────  Rebalance                            │
//!     │     nobody left  │    ▲     a member comes,                                          │
//!     └──────────────────┘    │     leaves or expires                                        │
//!                             └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! and `Dead` once the group has been deleted.

use super::budget::Charge;
use super::delayed_join::DelayedJoin;
use super::delayed_sync::DelayedSync;
use super::member::{Id, Member};
use super::offsets::Offsets;
use super::{Coordinator, answers};
use kafka_protocol::ResponseError;
use parking_lot::{Mutex, MutexGuard};
use request_purgatory::{ResolvedKey, Watch, time::Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A group. Its lock is never held across a check of a purgatory, nor while an operation is being parked: both run
/// `try_complete` of operations that take it. What is to be done once it has been released, is noted in an [`After`].
pub(crate) struct Group {
    pub(super) id: Id,
    state: Mutex<State>,
    joins: ResolvedKey<DelayedJoin>,
    syncs: ResolvedKey<DelayedSync>,
}

/// What the lock of a group guards.
#[derive(Debug)]
pub(super) struct State {
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
    /// The member ids of static members, by instance id.
    pub(super) instances: BTreeMap<Id, Id>,
    /// Clients that were given a member id, and have not yet come back with it.
    pub(super) expected: BTreeSet<Id>,
    /// Members of this generation that have not yet asked for their assignment.
    pub(super) unsynced: BTreeSet<Id>,
    /// The memory of their assignments.
    pub(super) assigned: Option<Charge>,
    pub(super) offsets: Offsets,
    /// Members so far.
    pub(super) numbered: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Empty,
    PreparingRebalance(Joining),
    CompletingRebalance,
    Stable,
    Dead,
}

/// The join phase of a rebalance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Joining {
    /// Who has not joined by then is left behind.
    pub(super) deadline: Timestamp,
    /// The group was empty: it waits for members that are not known yet. Each that comes prolongs this, up to this
    /// time.
    pub(super) first: Option<Timestamp>,
}

/// What a change of the state leads to, to be done when the lock has been released.
#[derive(Debug, Default)]
#[must_use = "the purgatories have to be told"]
pub(super) struct After {
    /// An operation to park.
    pub(super) park: Option<Delayed>,
    pub(super) check_joins: bool,
    pub(super) check_syncs: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delayed {
    Join { round: u64, timeout: Duration },
    Sync { round: u64, timeout: Duration },
}

/// What a change of the state may need beside it.
pub(super) struct Context<'a> {
    pub(super) coordinator: &'a Arc<Coordinator>,
    pub(super) group: &'a Arc<Group>,
    pub(super) now: Timestamp,
}

impl Group {
    pub(super) fn new(id: Id, coordinator: &Coordinator) -> Self {
        Self {
            joins: coordinator.joins.resolve(Arc::clone(&id)),
            syncs: coordinator.syncs.resolve(Arc::clone(&id)),
            state: Mutex::new(State::new()),
            id,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// What the join phase of the group waits on.
    pub(super) fn for_joins(&self) -> Watch<'_, DelayedJoin> {
        Watch::resolved(&self.joins)
    }

    /// What the sync phase of the group waits on.
    pub(super) fn for_syncs(&self) -> Watch<'_, DelayedSync> {
        Watch::resolved(&self.syncs)
    }

    /// To be called without the lock. The state has been changed under the lock that `try_complete` takes.
    pub(super) fn check_joins(&self) {
        self.joins.check_and_complete_after_lock();
    }

    /// The same for syncs.
    pub(super) fn check_syncs(&self) {
        self.syncs.check_and_complete_after_lock();
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl State {
    fn new() -> Self {
        Self {
            phase: Phase::Empty,
            round: 0,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            expected: BTreeSet::new(),
            unsynced: BTreeSet::new(),
            assigned: None,
            offsets: Offsets::default(),
            numbered: 0,
        }
    }

    /// Whether nothing would be lost with the group.
    pub(super) fn is_unused(&self) -> bool {
        matches!(self.phase, Phase::Empty | Phase::Dead)
            && self.expected.is_empty()
            && self.offsets.is_empty()
    }

    /// Checks that a member is who it says it is, in the generation that it says.
    pub(super) fn check_member(
        &self,
        member: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<(), ResponseError> {
        self.check_identity(member, instance)?;
        match generation == self.generation {
            true => Ok(()),
            false => Err(ResponseError::IllegalGeneration),
        }
    }

    /// Checks that a member is who it says it is.
    pub(super) fn check_identity(
        &self,
        member: &str,
        instance: Option<&str>,
    ) -> Result<(), ResponseError> {
        if self.phase == Phase::Dead {
            return Err(ResponseError::CoordinatorNotAvailable);
        }
        if let Some(instance) = instance {
            match self.instances.get(instance) {
                Some(current) if **current == *member => {}
                // Another client has taken over the name.
                Some(_) => return Err(ResponseError::FencedInstanceId),
                None => return Err(ResponseError::UnknownMemberId),
            }
        }
        match self.members.contains_key(member) {
            true => Ok(()),
            false => Err(ResponseError::UnknownMemberId),
        }
    }

    /// A sign of life of a member.
    pub(super) fn touch(&self, context: &Context<'_>, member: &str) {
        if let Some((id, found)) = self.members.get_key_value(member) {
            let sessions = &context.coordinator.sessions;
            match found.is_waiting() {
                true => sessions.suspend(context.group, id),
                false => drop(sessions.touch(context.group, id, found.session_timeout)),
            }
        }
    }

    pub(super) fn heartbeat(
        &mut self,
        context: &Context<'_>,
        member: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<(), ResponseError> {
        self.check_member(member, instance, generation)?;
        match self.phase {
            Phase::Empty | Phase::Dead => Err(ResponseError::UnknownMemberId),
            Phase::PreparingRebalance(_) => {
                self.touch(context, member);
                Err(ResponseError::RebalanceInProgress)
            }
            Phase::CompletingRebalance | Phase::Stable => {
                self.touch(context, member);
                Ok(())
            }
        }
    }

    /// The client that sent a request has gone. Its member stays for as long as a session lasts: it may come back.
    pub(super) fn abandoned(&mut self, context: &Context<'_>, member: &str, ticket: u64) {
        let Some(found) = self.members.get_mut(member) else {
            return;
        };
        let join = found.join.take_if(|waiter| waiter.ticket == ticket);
        let sync = found.sync.take_if(|waiter| waiter.ticket == ticket);
        if join.or(sync).is_some() {
            self.touch(context, member);
        }
    }

    /// Answers every request that waits with an error: nothing else would end it.
    pub(super) fn refuse_waiters(&mut self, error: ResponseError) {
        for (id, member) in &mut self.members {
            if let Some(waiter) = member.join.take() {
                waiter.answer(answers::join_failed(id, error));
            }
            member.fail_sync(error);
        }
    }
}
