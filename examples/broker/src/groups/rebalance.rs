//! From one generation to the next: who has joined, who leads, who gets what.

use super::Coordinator;
use super::group::{Kind, Phase, State};
use super::member::{Id, Member, Waiter, sync_failed, text};
use crate::exchange::{Answer, Outcome};
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{JoinGroupResponse, SyncGroupRequest, SyncGroupResponse};
use std::collections::BTreeMap;
use std::time::Duration;

impl State {
    /// A rebalance if none is in progress; else the members that wait for it must be examined again.
    pub(super) fn rebalance(&mut self, coordinator: &Coordinator) {
        match self.phase {
            Phase::PreparingRebalance { .. } => self.after.check_joins = true,
            Phase::Dead => {}
            _ => self.prepare_rebalance(coordinator),
        }
    }

    /// Begins a rebalance: all members have to join again.
    fn prepare_rebalance(&mut self, coordinator: &Coordinator) {
        self.fail_syncs(coordinator, ResponseError::RebalanceInProgress);
        let first = self.phase == Phase::Empty;
        let longest = match first {
            true => coordinator.settings.initial_delay,
            false => Duration::MAX,
        };
        let wait = self.rebalance_timeout().min(longest);
        self.unsynced.clear();
        self.phase = Phase::PreparingRebalance { first };
        self.await_joins(wait);
        // The sync phase of the generation before is over.
        self.after.check_syncs = true;
    }

    fn await_joins(&mut self, wait: Duration) {
        self.round += 1;
        self.after.park = Some((Kind::Join, self.round, wait));
    }

    /// Whether the join phase of `round` goes on.
    pub(super) fn is_joining(&self, round: u64) -> bool {
        self.round == round && matches!(self.phase, Phase::PreparingRebalance { .. })
    }

    /// Whether the join phase need not wait any longer, whatever the time.
    pub(super) fn all_have_joined(&self) -> bool {
        let first = self.phase == Phase::PreparingRebalance { first: true };
        let mut members = self.members.values();
        self.members.is_empty() || !first && members.all(|member| member.join.is_some())
    }

    /// Ends the join phase of `round`: a new generation begins with the members that have joined.
    pub(super) fn end_join_phase(&mut self, coordinator: &Coordinator, round: u64) {
        if !self.is_joining(round) {
            return;
        }
        // Static members stay until their sessions expire.
        let missing = |(id, member): (&Id, &Member)| {
            (member.join.is_none() && member.instance.is_none()).then(|| Id::clone(id))
        };
        for id in self.members.iter().filter_map(missing).collect::<Vec<_>>() {
            self.remove_member(coordinator, &id);
        }
        match self.elect_leader() {
            Some(leader) => self.begin_generation(coordinator, leader),
            None if self.members.is_empty() => {
                self.next_generation(Phase::Empty);
                self.protocol = None;
                self.leader = None;
            }
            // Only static members, which may be restarting: they have their sessions to come back.
            None => {
                self.phase = Phase::PreparingRebalance { first: false };
                self.await_joins(self.rebalance_timeout());
            }
        }
    }

    fn begin_generation(&mut self, coordinator: &Coordinator, leader: Id) {
        self.next_generation(Phase::CompletingRebalance);
        self.protocol = Some(self.choose_protocol());
        self.leader = Some(leader);
        self.unsynced = self.members.keys().cloned().collect();
        self.after.park = Some((Kind::Sync, self.round, self.rebalance_timeout()));
        for member in self.members.values_mut() {
            member.assignment = Bytes::new();
        }
        self.answer_each(coordinator, |member| &mut member.join, joined);
    }

    /// Answers the members of which this waits. Their sessions go on.
    fn answer_each<A: Into<Answer>>(
        &mut self,
        coordinator: &Coordinator,
        waiting: impl Fn(&mut Member) -> &mut Option<Waiter>,
        answer: impl Fn(&Self, &Id) -> A,
    ) {
        let waits = |(id, member)| Some((Id::clone(id), waiting(member).take()?));
        let waiters: Vec<_> = self.members.iter_mut().filter_map(waits).collect();
        for (id, waiter) in waiters {
            self.touch(coordinator, &id);
            waiter.answer(answer(self, &id));
        }
    }

    fn next_generation(&mut self, phase: Phase) {
        self.phase = phase;
        self.round += 1;
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.assigned = None;
        self.unsynced.clear();
    }

    /// The leader stays it if it has joined; else the eldest who has.
    fn elect_leader(&self) -> Option<Id> {
        let members = self.members.iter();
        let joined = members.filter(|(_, member)| member.join.is_some());
        let leads = |id: &Id| self.leader.as_ref() == Some(id);
        let elected = joined.min_by_key(|(id, member)| (!leads(id), member.number));
        elected.map(|(id, _)| Id::clone(id))
    }

    /// Each member votes for the protocol that it likes best among those that all support.
    ///
    /// INVARIANT: there is one: a member is not let in without it.
    pub(super) fn choose_protocol(&self) -> Id {
        let mut votes = BTreeMap::<&Id, usize>::new();
        for member in self.members.values() {
            let mut candidates = member.protocols.names();
            if let Some(vote) = candidates.find(|name| self.all_support(name)) {
                *votes.entry(vote).or_default() += 1;
            }
        }
        let winner = votes.into_iter().max_by_key(|(_, votes)| *votes);
        winner.map_or_else(|| Id::from(""), |(name, _)| Id::clone(name))
    }

    pub(super) fn all_support(&self, protocol: &str) -> bool {
        let mut members = self.members.values();
        members.all(|member| member.protocols.supports(protocol))
    }

    /// The longest that any member asks for.
    fn rebalance_timeout(&self) -> Duration {
        let timeouts = self.members.values().map(|member| member.rebalance_timeout);
        timeouts.max().unwrap_or_default()
    }

    /// A member asks for its assignment; the leader brings those of all. Returns whether it has to wait.
    pub(super) fn sync(
        &mut self,
        coordinator: &Coordinator,
        request: &SyncGroupRequest,
        waiter: Waiter,
    ) -> bool {
        if let Err(error) = self.check_sync(request) {
            waiter.answer(sync_failed(error));
            return false;
        }
        let id = Id::from(&*request.member_id);
        self.unsynced.remove(&id);
        self.after.check_syncs = true;
        if self.phase == Phase::Stable {
            waiter.answer(synced(self, &id));
            self.touch(coordinator, &id);
            return false;
        }
        if let Some(member) = self.members.get_mut(&id) {
            // A second request of the same member takes the place of the first.
            member.fail_sync(ResponseError::RebalanceInProgress);
            member.sync = Some(waiter);
        }
        self.touch(coordinator, &id);
        if self.leader.as_ref() != Some(&id) {
            return true;
        }
        match self.assign(coordinator, &request.assignments) {
            Ok(()) => self.become_stable(coordinator),
            Err(error) => {
                self.fail_syncs(coordinator, error);
                self.prepare_rebalance(coordinator);
            }
        }
        false
    }

    fn check_sync(&self, request: &SyncGroupRequest) -> Outcome {
        let instance = request.group_instance_id.as_deref();
        self.check_member(&request.member_id, instance, request.generation_id)?;
        let differs = |asked: Option<&str>, agreed: &Option<Id>| {
            asked.is_some_and(|asked| agreed.as_deref() != Some(asked))
        };
        if differs(request.protocol_type.as_deref(), &self.protocol_type)
            || differs(request.protocol_name.as_deref(), &self.protocol)
        {
            return Err(ResponseError::InconsistentGroupProtocol);
        }
        match self.phase {
            Phase::PreparingRebalance { .. } => Err(ResponseError::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Gives every member what the leader has assigned to it, which may be nothing.
    fn assign(
        &mut self,
        coordinator: &Coordinator,
        assignments: &[SyncGroupRequestAssignment],
    ) -> Outcome {
        let bytes = assignments.iter().map(|assigned| assigned.assignment.len());
        let charge = coordinator.charge(bytes.sum());
        self.assigned = Some(charge.map_err(|_| ResponseError::UnknownServerError)?);
        for assigned in assignments {
            if let Some(member) = self.members.get_mut(&*assigned.member_id) {
                member.assignment = Bytes::copy_from_slice(&assigned.assignment);
            }
        }
        Ok(())
    }

    fn become_stable(&mut self, coordinator: &Coordinator) {
        self.phase = Phase::Stable;
        self.answer_each(coordinator, |member| &mut member.sync, synced);
    }

    fn fail_syncs(&mut self, coordinator: &Coordinator, error: ResponseError) {
        let failed = |_: &Self, _: &Id| sync_failed(error);
        self.answer_each(coordinator, |member| &mut member.sync, failed);
    }

    /// Whether the sync phase of `round` goes on: some member of the generation has not asked for its assignment.
    pub(super) fn is_syncing(&self, round: u64) -> bool {
        self.round == round
            && matches!(self.phase, Phase::CompletingRebalance | Phase::Stable)
            && !self.unsynced.is_empty()
    }

    /// The time is up for members that have not asked for their assignment: the group goes on without them.
    pub(super) fn end_sync_phase(&mut self, coordinator: &Coordinator, round: u64) {
        if self.is_syncing(round) {
            for id in std::mem::take(&mut self.unsynced) {
                self.remove_member(coordinator, &id);
            }
            self.prepare_rebalance(coordinator);
        }
    }
}

/// What a member is told of the generation; the leader gets a list of its members.
pub(super) fn joined(state: &State, member: &Id) -> JoinGroupResponse {
    let protocol = state.protocol.as_deref().unwrap_or_default();
    let listed = |(id, member): (&Id, &Member)| {
        JoinGroupResponseMember::default()
            .with_member_id(text(id))
            .with_group_instance_id(member.instance.as_deref().map(text))
            .with_metadata(member.protocols.metadata(protocol))
    };
    let members = match state.leader.as_ref() == Some(member) {
        true => state.members.iter().map(listed).collect(),
        false => Vec::new(),
    };
    JoinGroupResponse::default()
        .with_generation_id(state.generation)
        .with_protocol_type(state.protocol_type.as_deref().map(text))
        .with_protocol_name(Some(text(protocol)))
        .with_leader(text(state.leader.as_deref().unwrap_or_default()))
        .with_member_id(text(member))
        .with_members(members)
}

/// What a member is told of its part.
pub(super) fn synced(state: &State, member: &Id) -> SyncGroupResponse {
    let assignment = state.members.get(member).map(|member| &member.assignment);
    SyncGroupResponse::default()
        .with_protocol_type(state.protocol_type.as_deref().map(text))
        .with_protocol_name(state.protocol.as_deref().map(text))
        .with_assignment(assignment.cloned().unwrap_or_default())
}
