//! Who comes into a group, comes back, and goes; and from one generation to the next, who leads, and who gets what.

use super::group::{Phase, State};
use super::member::{
    Charge, Id, MAX_ID, MEMBER, Member, Parked, Terms, charge, join_failed, sync_failed,
};
use crate::exchange::{Answer, MAX_ANSWER, Outcome, Waiter, ensure};
use crate::messages::*;
use bytes::Bytes;
use request_purgatory_tracker::RejectReason;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Weak;
use std::time::Duration;

impl State {
    pub(super) fn join(&mut self, request: &JoinGroupRequest, terms: Terms, waiter: Waiter) {
        let id = match &*request.member_id {
            "" => self.shared.fresh_id(&terms.client_id),
            given => Id::from(given),
        };
        match self.take_in(&id, request, terms) {
            Ok(true) => {
                self.rebalance();
                self.park(&id, Parked::Join, waiter);
            }
            Ok(false) => waiter.answer(match self.renew(&id) {
                Ok(()) => joined(self, &id),
                Err(error) => join_failed(&id, error).into(),
            }),
            Err(error @ Code::MemberIdRequired) => waiter.answer(join_failed(&id, error)),
            Err(error) => waiter.answer(join_failed(&request.member_id, error)),
        }
    }

    /// Puts the member into the group, under this id. Returns whether all have to join again: not if nothing has changed.
    fn take_in(&mut self, id: &Id, request: &JoinGroupRequest, terms: Terms) -> Outcome<bool> {
        self.check_exists()?;
        self.check_agreeable(&request.protocol_type, &terms)?;
        let is_new = request.member_id.is_empty();
        match request.group_instance_id.as_deref() {
            Some(instance) if is_new => match self.named(instance).cloned() {
                Some(before) => {
                    self.check_room(request, &terms)?;
                    Ok(self.replace(&before, id, terms))
                }
                None => self.add(id, request, terms),
            },
            // It has to come again with its id: or one that gets no answer and joins anew would leave a member behind.
            None if is_new && terms.version >= 4 => Err(Code::MemberIdRequired),
            None if !self.members.contains_key(id) && self.shared.has_given(id) => {
                self.add(id, request, terms)
            }
            instance => {
                self.check_identity(id, instance)?;
                self.check_room(request, &terms)?;
                self.take_back(id, terms)
            }
        }
    }

    /// Checks that the others can agree on something that a member offers.
    fn check_agreeable(&self, kind: &str, terms: &Terms) -> Outcome {
        let agreeable = match self.members.is_empty() {
            true => !kind.is_empty() && kind.len() <= MAX_ID,
            false => {
                let common = self.common_protocols();
                self.protocol_type.as_deref() == Some(kind)
                    && terms.names().any(|name| common.contains(name))
            }
        };
        ensure(agreeable, Code::InconsistentGroupProtocol)
    }

    /// Checks that one answer has room for what a member and the others say, and so that one of them can lead.
    fn check_room(&self, request: &JoinGroupRequest, terms: &Terms) -> Outcome {
        let (id, instance) = (&*request.member_id, request.group_instance_id.as_deref());
        let is_other = |(of, member): &(&Id, &Member)| {
            ***of != *id && (instance.is_none() || member.instance.as_deref() != instance)
        };
        let others = self.members.iter().filter(is_other);
        let sizes = others.map(|(_, member)| MEMBER + MAX_ID + member.terms.size);
        let has_room = sizes.sum::<usize>() + terms.size <= MAX_ANSWER - MEMBER - MAX_ID;
        ensure(has_room, Code::GroupMaxSizeReached)
    }

    fn add(&mut self, id: &Id, request: &JoinGroupRequest, terms: Terms) -> Outcome<bool> {
        let has_room = self.members.len() < self.shared.max_members;
        ensure(has_room, Code::GroupMaxSizeReached)?;
        self.check_room(request, &terms)?;
        let number = self.shared.next_number();
        let (group, timeout) = (Weak::clone(&self.group), terms.session_timeout);
        let tracked = self.shared.sessions.try_track(number, group, timeout);
        tracked.map_err(|rejected| match rejected.reason() {
            RejectReason::ShutDown => Code::NotCoordinator,
            // There are as many sessions as there may be.
            _ => Code::GroupMaxSizeReached,
        })?;
        if self.members.is_empty() {
            self.protocol_type = Some(Id::from(&*request.protocol_type));
        }
        let member = Member {
            number,
            instance: request.group_instance_id.as_deref().map(Id::from),
            terms,
            has_asked: false,
            assignment: Bytes::new(),
            parked: None,
        };
        self.members.insert(Id::clone(id), member);
        Ok(true)
    }

    /// A static member takes its own place again, under another member id. What its client before waits for is over. If it
    /// led, it is not told so: it would assign anew, and the assignment stands. The next rebalance elects a leader.
    fn replace(&mut self, before: &Id, id: &Id, terms: Terms) -> bool {
        if let Some(mut member) = self.members.remove(before) {
            member.fail(before, Code::FencedInstanceId);
            member.terms = terms;
            self.members.insert(Id::clone(id), member);
        }
        // If nothing changes for the others, they need not hear of it.
        let agree = self.protocol == self.choose_protocol();
        self.phase != Phase::Stable || !agree
    }

    /// A member joins again: because it was told to, because it wants a rebalance, or because it missed an answer.
    fn take_back(&mut self, id: &Id, terms: Terms) -> Outcome<bool> {
        let member = self.members.get_mut(id);
        let member = member.ok_or(Code::UnknownMemberId)?;
        let changed = member.terms.protocols != terms.protocols;
        let leads = self.leader.as_ref() == Some(id);
        let rebalances = match self.phase {
            // It has missed the answer to its join.
            Phase::CompletingRebalance => changed,
            // The leader joins again to assign anew.
            Phase::Stable => changed || leads,
            _ => true,
        };
        if rebalances {
            member.terms = terms;
        }
        Ok(rebalances)
    }

    /// A member says that it goes. The members stay as they are if the answer is an error.
    pub(super) fn leave(&mut self, member: &str, instance: Option<&str>) -> Outcome {
        let id = match (member, instance) {
            // An administrator removes a static member by its name.
            ("", Some(instance)) => self.named(instance).cloned().ok_or(Code::UnknownMemberId)?,
            _ => {
                self.check_identity(member, instance)?;
                Id::from(member)
            }
        };
        // One whose session is over has left already.
        self.renew(&id)?;
        self.remove_member(&id);
        self.rebalance();
        Ok(())
    }

    /// The time is up for the members that are meant. If there are any, the others join again.
    pub(super) fn expire(&mut self, is_meant: impl Fn(&Member) -> bool) {
        if self.remove_where(is_meant) > 0 {
            self.rebalance();
        }
    }

    /// All members have to join again, if they are not about to.
    pub(super) fn rebalance(&mut self) {
        if !matches!(self.phase, Phase::PreparingRebalance | Phase::Dead) {
            self.answer_each(|_, _| sync_failed(Code::RebalanceInProgress));
            self.await_joins(self.phase == Phase::Empty);
        }
    }

    fn await_joins(&mut self, awaits_more: bool) {
        let longest = match awaits_more {
            true => self.shared.initial_delay,
            false => Duration::MAX,
        };
        self.phase = Phase::PreparingRebalance;
        self.awaits_more = awaits_more;
        self.round += 1;
        self.begun = Some(self.rebalance_timeout().min(longest));
    }

    /// Whether the phase of `round` need not wait any longer, whatever the time.
    pub(super) fn is_over(&self, round: u64) -> bool {
        let mut members = self.members.values();
        match self.phase {
            _ if self.round != round => true,
            Phase::PreparingRebalance if self.awaits_more => self.members.is_empty(),
            Phase::PreparingRebalance => members.all(|member| member.parked.is_some()),
            _ => members.all(|member| member.has_asked),
        }
    }

    pub(super) fn end_phase(&mut self, round: u64) {
        match self.phase {
            _ if self.round != round => {}
            Phase::PreparingRebalance => self.end_join_phase(),
            // For their assignments.
            _ => self.expire(|member| !member.has_asked),
        }
    }

    /// A new generation begins with the members that have joined.
    fn end_join_phase(&mut self) {
        // Static members stay until their sessions expire.
        self.remove_where(|member| member.parked.is_none() && member.instance.is_none());
        match self.elect_leader() {
            // Only static members, which may be restarting: they have their sessions to come back.
            None if !self.members.is_empty() => self.await_joins(false),
            leader => self.begin_generation(leader),
        }
    }

    /// With the members that there are, of which one leads, or with none.
    fn begin_generation(&mut self, leader: Option<Id>) {
        (self.phase, self.begun) = match leader {
            Some(_) => (Phase::CompletingRebalance, Some(self.rebalance_timeout())),
            None => (Phase::Empty, None),
        };
        self.round += 1;
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.protocol = self.choose_protocol();
        self.leader = leader;
        self.assigned = None;
        for member in self.members.values_mut() {
            member.has_asked = false;
            member.assignment = Bytes::new();
        }
        self.answer_each(joined);
    }

    /// Answers the members that wait. Their sessions go on.
    fn answer_each<A: Into<Answer>>(&mut self, answer: impl Fn(&Self, &Id) -> A) {
        let waits = |(id, member): (&Id, &mut Member)| Some((Id::clone(id), member.parked.take()?));
        let waiting: Vec<_> = self.members.iter_mut().filter_map(waits).collect();
        for (id, (parked, waiter)) in waiting {
            match self.renew(&id) {
                Ok(()) => waiter.answer(answer(self, &id)),
                Err(error) => parked.refuse(waiter, &id, error),
            }
        }
    }

    /// The leader stays it if it has joined; else the eldest who has.
    fn elect_leader(&self) -> Option<Id> {
        let members = self.members.iter();
        let joined = members.filter(|(_, member)| member.parked.is_some());
        let leads = |id: &Id| self.leader.as_ref() == Some(id);
        let elected = joined.min_by_key(|(id, member)| (!leads(id), member.number));
        elected.map(|(id, _)| Id::clone(id))
    }

    /// Each member votes for the protocol that it likes best among those that all support.
    /// INVARIANT: if there are members, there is one: a member is not let in without it.
    pub(super) fn choose_protocol(&self) -> Option<Id> {
        let (common, mut votes) = (self.common_protocols(), BTreeMap::<&Id, usize>::new());
        for member in self.members.values() {
            let mut candidates = member.terms.names();
            if let Some(vote) = candidates.find(|name| common.contains(*name)) {
                *votes.entry(vote).or_default() += 1;
            }
        }
        let winner = votes.into_iter().max_by_key(|(_, votes)| *votes);
        winner.map(|(name, _)| Id::clone(name))
    }

    /// The protocols that all members know: those of the first that as many know as there are. Each member is looked at
    /// once, since there may be a thousand of them with 64 protocols each.
    fn common_protocols(&self) -> HashSet<&Id> {
        let of_first = self.members.values().take(1);
        let of_first = of_first.flat_map(|member| member.terms.names());
        let mut known: HashMap<_, _> = of_first.map(|name| (name, 0)).collect();
        for (before, member) in self.members.values().enumerate() {
            for name in member.terms.names() {
                // One may say a name twice.
                if let Some(count) = known.get_mut(name)
                    && *count == before
                {
                    *count += 1;
                }
            }
        }
        let common = known.into_iter();
        let common = common.filter(|(_, count)| *count == self.members.len());
        common.map(|(name, _)| name).collect()
    }

    /// The longest that any member asks for.
    fn rebalance_timeout(&self) -> Duration {
        let members = self.members.values();
        let timeouts = members.map(|member| member.terms.rebalance_timeout);
        timeouts.max().unwrap_or_default()
    }

    /// A member asks for its assignment; the leader brings those of all.
    pub(super) fn sync(&mut self, request: &SyncGroupRequest, waiter: Waiter) {
        if let Err(error) = self.check_sync(request) {
            return waiter.answer(sync_failed(error));
        }
        let id = Id::from(&*request.member_id);
        if let Some(member) = self.members.get_mut(&id) {
            member.has_asked = true;
        }
        self.park(&id, Parked::Sync, waiter);
        let assigned = match self.phase {
            Phase::Stable => Ok(()),
            _ if self.leader.as_ref() == Some(&id) => self.assign(&request.assignments),
            _ => return,
        };
        match assigned {
            Ok(()) => {
                self.phase = Phase::Stable;
                self.answer_each(synced);
            }
            Err(error) => {
                self.answer_each(|_, _| sync_failed(error));
                self.rebalance();
            }
        }
    }

    fn check_sync(&self, request: &SyncGroupRequest) -> Outcome {
        let instance = request.group_instance_id.as_deref();
        self.check_member(&request.member_id, instance, request.generation_id)?;
        let agrees = |asked: Option<&str>, agreed: &Option<Id>| {
            asked.is_none_or(|asked| agreed.as_deref() == Some(asked))
        };
        let agree = agrees(request.protocol_type.as_deref(), &self.protocol_type)
            && agrees(request.protocol_name.as_deref(), &self.protocol);
        ensure(agree, Code::InconsistentGroupProtocol)?;
        let may_go_on = self.phase != Phase::PreparingRebalance;
        ensure(may_go_on, Code::RebalanceInProgress)
    }

    /// Gives every member what the leader has assigned to it, which may be nothing.
    fn assign(&mut self, assignments: &[SyncGroupRequestAssignment]) -> Outcome {
        let bytes = assignments.iter().map(|assigned| assigned.assignment.len());
        let charge = charge(&self.shared.memory, bytes.sum());
        self.assigned = Some(charge.map_err(|_| Code::UnknownServerError)?);
        for assigned in assignments {
            if let Some(member) = self.members.get_mut(&*assigned.member_id) {
                member.assignment = Bytes::copy_from_slice(&assigned.assignment);
            }
        }
        Ok(())
    }
}

/// What a member is told of the generation; the leader gets a list of its members.
pub(super) fn joined(state: &State, member: &Id) -> Answer {
    let protocol = state.protocol.as_deref().unwrap_or_default();
    let leads = state.leader.as_ref() == Some(member);
    let members = || state.members.iter().filter(|_| leads);
    // What it lists keeps its memory, also if its member has gone meanwhile.
    let listed = members().map(|(id, member)| {
        let (instance, metadata) = (member.instance.clone(), member.terms.metadata(protocol));
        let charge = Charge::clone(&member.terms.charge);
        (Id::clone(id), instance, metadata, charge)
    });
    let listed: Vec<_> = listed.collect();
    let sizes = members().map(|(id, member)| member.size(id, protocol));
    let names = [&state.protocol_type, &state.protocol, &state.leader];
    let names = names.map(|name| name.clone().unwrap_or_default());
    let texts = names.iter().chain([member]).map(|text| text.len());
    let size = sizes.chain(texts).sum();
    let ([kind, protocol, leader], member) = (names, Id::clone(member));
    let (generation, is_agreed) = (state.generation, state.protocol_type.is_some());
    Answer::unread(size, move || {
        let members = listed.iter().map(|(id, instance, metadata, _)| {
            JoinGroupResponseMember::default()
                .with_member_id(text(id))
                .with_group_instance_id(instance.as_deref().map(text))
                .with_metadata(metadata.clone())
        });
        JoinGroupResponse::default()
            .with_generation_id(generation)
            .with_protocol_type(is_agreed.then(|| text(&kind)))
            .with_protocol_name(Some(text(&protocol)))
            .with_leader(text(&leader))
            .with_member_id(text(&member))
            .with_members(members.collect())
    })
}

/// What a member is told of its part.
pub(super) fn synced(state: &State, member: &Id) -> Answer {
    let member = state.members.get(member);
    let assignment = member.map_or_else(Bytes::new, |member| member.assignment.clone());
    let names = [&state.protocol_type, &state.protocol].map(Option::<Id>::clone);
    let texts = names.iter().flatten().map(|text| text.len());
    let size = texts.sum::<usize>() + assignment.len();
    // It has its memory until it is read.
    let charge = state.assigned.clone();
    Answer::unread(size, move || {
        let [kind, protocol] = names.map(|name| name.as_deref().map(text));
        drop(charge);
        SyncGroupResponse::default()
            .with_protocol_type(kind)
            .with_protocol_name(protocol)
            .with_assignment(assignment)
    })
}
