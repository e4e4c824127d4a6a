//! From one generation to the next: who has joined, who leads, who gets what.

use super::answers;
use super::budget::Budget;
use super::group::{After, Context, Delayed, Joining, Phase, State};
use super::member::{Id, Waiter};
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::SyncGroupRequest;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use std::collections::BTreeMap;
use std::time::Duration;

impl State {
    /// Begins a rebalance: all members have to join again.
    pub(super) fn prepare_rebalance(&mut self, context: &Context<'_>, after: &mut After) {
        self.fail_syncs(context, ResponseError::RebalanceInProgress);
        let timeout = self.rebalance_timeout();
        let (wait, first) = match self.phase {
            Phase::Empty => {
                let delay = context.coordinator.settings.initial_delay.min(timeout);
                (delay, Some(context.now.saturating_add(timeout)))
            }
            _ => (timeout, None),
        };
        self.round += 1;
        self.unsynced.clear();
        self.phase = Phase::PreparingRebalance(Joining {
            deadline: context.now.saturating_add(wait),
            first,
        });
        context.coordinator.rebalances.increase();
        after.park = Some(Delayed::Join {
            round: self.round,
            timeout: wait,
        });
        // The sync phase of the generation before is over.
        after.check_syncs = true;
    }

    /// A rebalance if none is in progress; else the members that wait for it must be examined again.
    pub(super) fn rebalance(&mut self, context: &Context<'_>, after: &mut After) {
        match self.phase {
            Phase::PreparingRebalance(_) => after.check_joins = true,
            Phase::CompletingRebalance | Phase::Stable | Phase::Empty => {
                self.prepare_rebalance(context, after);
            }
            Phase::Dead => {}
        }
    }

    /// A member came while the group waits for its first ones.
    pub(super) fn prolong_first_join(&mut self, context: &Context<'_>) {
        if let Phase::PreparingRebalance(Joining {
            deadline,
            first: Some(latest),
        }) = &mut self.phase
        {
            let delay = context.coordinator.settings.initial_delay;
            *deadline = context.now.saturating_add(delay).min(*latest);
        }
    }

    /// Whether the join phase of `round` goes on.
    pub(super) fn is_joining(&self, round: u64) -> bool {
        self.round == round && matches!(self.phase, Phase::PreparingRebalance(_))
    }

    /// Whether the join phase need not wait any longer, whatever the time.
    pub(super) fn all_have_joined(&self) -> bool {
        let Phase::PreparingRebalance(joining) = self.phase else {
            return false;
        };
        if self.members.is_empty() && self.expected.is_empty() {
            return true;
        }
        joining.first.is_none()
            && self.expected.is_empty()
            && self.members.values().all(|member| member.join.is_some())
    }

    /// Ends the join phase of `round`, if it is time to: a new generation begins with the members that have joined.
    pub(super) fn end_join_phase(&mut self, context: &Context<'_>, round: u64) -> After {
        let mut after = After::default();
        let Phase::PreparingRebalance(joining) = self.phase else {
            return after;
        };
        if round != self.round {
            return after;
        }
        let left = joining.deadline.saturating_since(context.now);
        if !left.is_zero() && !self.all_have_joined() {
            // A member came since, and prolonged it; or the members that had joined are gone.
            after.park = Some(Delayed::Join {
                round,
                timeout: left,
            });
            return after;
        }
        self.remove_missing(context);
        let Some(leader) = self.elect_leader() else {
            if self.members.is_empty() {
                self.become_empty();
            } else {
                // Only static members, which may be restarting: they have their sessions to come back.
                let timeout = self.rebalance_timeout();
                self.phase = Phase::PreparingRebalance(Joining {
                    deadline: context.now.saturating_add(timeout),
                    first: None,
                });
                after.park = Some(Delayed::Join { round, timeout });
            }
            return after;
        };
        self.begin_generation(context, leader, &mut after);
        after
    }

    fn begin_generation(&mut self, context: &Context<'_>, leader: Id, after: &mut After) {
        self.next_generation();
        self.phase = Phase::CompletingRebalance;
        self.protocol = Some(self.choose_protocol());
        self.leader = Some(leader);
        self.unsynced = self.members.keys().cloned().collect();
        let timeout = self.rebalance_timeout();
        after.park = Some(Delayed::Sync {
            round: self.round,
            timeout,
        });
        self.assigned = None;
        let mut waiters = Vec::new();
        for (id, member) in &mut self.members {
            member.assignment = Bytes::new();
            if let Some(waiter) = member.join.take() {
                waiters.push((id.clone(), waiter));
            }
        }
        for (id, waiter) in waiters {
            self.touch(context, &id);
            waiter.answer(answers::joined(self, &id));
        }
    }

    fn become_empty(&mut self) {
        self.next_generation();
        self.phase = Phase::Empty;
        self.protocol = None;
        self.leader = None;
        self.assigned = None;
        self.unsynced.clear();
    }

    fn next_generation(&mut self) {
        self.round += 1;
        self.generation = self.generation.checked_add(1).unwrap_or(1);
    }

    /// Removes who has not joined in time. Static members stay until their sessions expire.
    fn remove_missing(&mut self, context: &Context<'_>) {
        let missing = |(id, member): (&Id, &super::member::Member)| {
            (member.join.is_none() && member.instance.is_none()).then(|| id.clone())
        };
        for id in self.members.iter().filter_map(missing).collect::<Vec<_>>() {
            self.remove_member(context, &id, ResponseError::UnknownMemberId);
        }
    }

    /// The leader stays it if it has joined; else the eldest who has.
    fn elect_leader(&self) -> Option<Id> {
        let joined = |id: &Id| {
            self.members
                .get(id)
                .is_some_and(|found| found.join.is_some())
        };
        if let Some(leader) = self.leader.as_ref().filter(|leader| joined(leader)) {
            return Some(leader.clone());
        }
        self.members
            .iter()
            .filter(|(_, member)| member.join.is_some())
            .min_by_key(|(_, member)| member.number)
            .map(|(id, _)| id.clone())
    }

    /// Each member votes for the protocol that it likes best among those that all support.
    ///
    /// INVARIANT: there is one: a member is not let in without it.
    pub(super) fn choose_protocol(&self) -> Id {
        let mut votes = BTreeMap::<&Id, usize>::new();
        for member in self.members.values() {
            let mut candidates = member
                .protocols
                .names()
                .filter(|name| self.all_support(name));
            if let Some(vote) = candidates.next() {
                *votes.entry(vote).or_default() += 1;
            }
        }
        let winner = votes.into_iter().max_by_key(|(_, votes)| *votes);
        winner.map_or_else(|| Id::from(""), |(name, _)| name.clone())
    }

    pub(super) fn all_support(&self, protocol: &str) -> bool {
        let mut members = self.members.values();
        members.all(|member| member.protocols.supports(protocol))
    }

    /// The longest that any member asks for.
    pub(super) fn rebalance_timeout(&self) -> Duration {
        let timeouts = self.members.values().map(|member| member.rebalance_timeout);
        timeouts.max().unwrap_or_default()
    }

    /// A member asks for its assignment; the leader brings those of all. Returns whether it has to wait.
    pub(super) fn sync(
        &mut self,
        context: &Context<'_>,
        request: &SyncGroupRequest,
        waiter: Waiter,
        after: &mut After,
    ) -> bool {
        if let Err(error) = self.check_sync(request) {
            waiter.answer(answers::sync_failed(error));
            return false;
        }
        let Some((id, member)) = self.members.get_key_value(&*request.member_id) else {
            waiter.answer(answers::sync_failed(ResponseError::UnknownMemberId));
            return false;
        };
        let id = id.clone();
        self.unsynced.remove(&id);
        after.check_syncs = true;
        if self.phase == Phase::Stable {
            waiter.answer(answers::synced(self, member.assignment.clone()));
            self.touch(context, &id);
            return false;
        }
        context.coordinator.sessions.suspend(context.group, &id);
        if let Some(member) = self.members.get_mut(&id) {
            // A second request of the same member takes the place of the first.
            member.fail_sync(ResponseError::RebalanceInProgress);
            member.sync = Some(waiter);
        }
        if self.leader.as_ref() == Some(&id) {
            let budget = &context.coordinator.budget;
            match self.assign(&request.assignments, budget) {
                Ok(()) => self.become_stable(context),
                Err(error) => {
                    self.fail_syncs(context, error);
                    self.prepare_rebalance(context, after);
                }
            }
            return false;
        }
        true
    }

    fn check_sync(&self, request: &SyncGroupRequest) -> Result<(), ResponseError> {
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
            Phase::CompletingRebalance | Phase::Stable => Ok(()),
            Phase::PreparingRebalance(_) => Err(ResponseError::RebalanceInProgress),
            Phase::Empty | Phase::Dead => Err(ResponseError::UnknownMemberId),
        }
    }

    /// Gives every member what the leader has assigned to it, which may be nothing.
    fn assign(
        &mut self,
        assignments: &[SyncGroupRequestAssignment],
        budget: &Budget,
    ) -> Result<(), ResponseError> {
        let mut bytes = 0;
        for assigned in assignments {
            if self.members.contains_key(&*assigned.member_id) {
                bytes += assigned.assignment.len();
            }
        }
        let charge = budget
            .charge(bytes)
            .ok_or(ResponseError::UnknownServerError)?;
        for assigned in assignments {
            if let Some(member) = self.members.get_mut(&*assigned.member_id) {
                member.assignment = Bytes::copy_from_slice(&assigned.assignment);
            }
        }
        self.assigned = Some(charge);
        Ok(())
    }

    fn become_stable(&mut self, context: &Context<'_>) {
        self.phase = Phase::Stable;
        let mut waiters = Vec::new();
        for (id, member) in &mut self.members {
            if let Some(waiter) = member.sync.take() {
                waiters.push((id.clone(), member.assignment.clone(), waiter));
            }
        }
        for (id, assignment, waiter) in waiters {
            self.touch(context, &id);
            waiter.answer(answers::synced(self, assignment));
        }
    }

    fn fail_syncs(&mut self, context: &Context<'_>, error: ResponseError) {
        let mut waited = Vec::new();
        for (id, member) in &mut self.members {
            if member.sync.is_some() {
                member.fail_sync(error);
                waited.push(id.clone());
            }
        }
        for id in waited {
            self.touch(context, &id);
        }
    }

    /// Whether the sync phase of `round` goes on: some member of the generation has not asked for its assignment.
    pub(super) fn is_syncing(&self, round: u64) -> bool {
        self.round == round
            && matches!(self.phase, Phase::CompletingRebalance | Phase::Stable)
            && !self.unsynced.is_empty()
    }

    /// The time is up for members that have not asked for their assignment: the group goes on without them.
    pub(super) fn end_sync_phase(&mut self, context: &Context<'_>, round: u64) -> After {
        let mut after = After::default();
        if self.is_syncing(round) {
            for id in std::mem::take(&mut self.unsynced) {
                self.remove_member(context, &id, ResponseError::UnknownMemberId);
            }
            self.prepare_rebalance(context, &mut after);
        }
        after
    }
}
