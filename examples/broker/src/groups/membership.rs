//! Who comes into a group, comes back, and goes.

use super::answers;
use super::group::{After, Context, Phase, State};
use super::member::{Id, Member, Protocols, Waiter};
use super::settings::{MAX_ID, MAX_REBALANCE, SESSION};
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::JoinGroupRequest;
use std::time::Duration;

/// A JoinGroup request.
pub(super) struct Join {
    pub(super) request: JoinGroupRequest,
    pub(super) version: i16,
    pub(super) client_id: Id,
    pub(super) client_host: Id,
    /// The member id of a client that has none yet.
    pub(super) fresh_id: Id,
}

/// How an attempt to join ends, if not with a member that waits.
enum Refusal {
    Error(ResponseError),
    /// The member is as it was, in the generation that there is: it need not wait.
    Joined(Id, Leads),
}

/// What a member that need not wait is told about the leader.
enum Leads {
    AsItIs,
    /// It leads, and must not assign anew.
    WithoutAssigning,
    /// It leads without knowing: it does not know of [`WithoutAssigning`](Self::WithoutAssigning), and would assign
    /// anew.
    Unawares(Id),
}

impl From<ResponseError> for Refusal {
    fn from(error: ResponseError) -> Self {
        Self::Error(error)
    }
}

impl Join {
    fn instance(&self) -> Option<&str> {
        self.request.group_instance_id.as_deref()
    }

    fn session_timeout(&self) -> Duration {
        milliseconds(self.request.session_timeout_ms)
    }

    fn rebalance_timeout(&self) -> Duration {
        match self.version {
            // It had no field of its own then.
            0 => self.session_timeout(),
            _ => milliseconds(self.request.rebalance_timeout_ms),
        }
        .min(MAX_REBALANCE)
    }

    /// Checks what can be checked without a group.
    pub(super) fn check(&self) -> Result<(), ResponseError> {
        if !SESSION.contains(&self.session_timeout()) {
            return Err(ResponseError::InvalidSessionTimeout);
        }
        match self.instance() {
            Some(instance) if instance.is_empty() || instance.len() > MAX_ID => {
                Err(ResponseError::InvalidRequest)
            }
            _ => Ok(()),
        }
    }
}

/// A negative time is none.
fn milliseconds(count: i32) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}

impl State {
    /// Takes in a member, or refuses it. Returns the id of a member that waits now.
    pub(super) fn join(
        &mut self,
        context: &Context<'_>,
        join: &Join,
        waiter: Waiter,
        after: &mut After,
    ) -> Option<Id> {
        match self.take_in(context, join, after) {
            Ok(id) => {
                self.await_others(context, &id, waiter, after);
                Some(id)
            }
            Err(Refusal::Joined(id, leads)) => {
                self.touch(context, &id);
                waiter.answer(match leads {
                    Leads::AsItIs => answers::joined(self, &id),
                    Leads::WithoutAssigning => answers::joined_without_assigning(self, &id),
                    Leads::Unawares(before) => answers::joined_unawares(self, &id, &before),
                });
                None
            }
            Err(Refusal::Error(error)) => {
                let given = match error {
                    ResponseError::MemberIdRequired => &join.fresh_id,
                    _ => join.request.member_id.as_str(),
                };
                waiter.answer(answers::join_failed(given, error));
                None
            }
        }
    }

    /// Puts the member into the group, and begins a rebalance if that needs one.
    fn take_in(
        &mut self,
        context: &Context<'_>,
        join: &Join,
        after: &mut After,
    ) -> Result<Id, Refusal> {
        if self.phase == Phase::Dead {
            return Err(ResponseError::CoordinatorNotAvailable.into());
        }
        let protocols = self.agreeable_protocols(context, join)?;
        let member = &*join.request.member_id;
        if member.is_empty() {
            return match join.instance() {
                Some(instance) => self.take_in_static(context, join, instance, protocols, after),
                None => self.take_in_newcomer(context, join, protocols, after),
            };
        }
        if self.expected.contains(member) {
            let id = Id::from(member);
            self.expected.remove(&id);
            let sessions = &context.coordinator.sessions;
            if !sessions.touch(context.group, &id, join.session_timeout()) {
                after.check_joins = true;
                return Err(ResponseError::UnknownMemberId.into());
            }
            self.add(context, id.clone(), join, protocols, after);
            return Ok(id);
        }
        self.check_identity(member, join.instance())?;
        self.take_back(context, join, protocols, after)
    }

    /// What the member offers, if the others can agree on some of it.
    fn agreeable_protocols(
        &self,
        context: &Context<'_>,
        join: &Join,
    ) -> Result<Protocols, ResponseError> {
        let request = &join.request;
        let protocols = Protocols::copy(&request.protocols, &context.coordinator.budget)?;
        let kind = &*request.protocol_type;
        let agreeable = match self.members.is_empty() {
            true => !kind.is_empty() && kind.len() <= MAX_ID,
            false => {
                self.protocol_type.as_deref() == Some(kind)
                    && protocols.names().any(|name| self.all_support(name))
            }
        };
        match agreeable {
            true => Ok(protocols),
            false => Err(ResponseError::InconsistentGroupProtocol),
        }
    }

    fn check_room(&self, context: &Context<'_>) -> Result<(), ResponseError> {
        let taken = self.members.len() + self.expected.len();
        match taken < context.coordinator.settings.max_members {
            true => Ok(()),
            false => Err(ResponseError::GroupMaxSizeReached),
        }
    }

    /// A client without a member id. From version 4 on it is given one and has to come again with it: so that a client
    /// which joins, gets no answer and joins again does not leave members behind that no client is.
    fn take_in_newcomer(
        &mut self,
        context: &Context<'_>,
        join: &Join,
        protocols: Protocols,
        after: &mut After,
    ) -> Result<Id, Refusal> {
        self.check_room(context)?;
        self.begin_session(context, join)?;
        let id = join.fresh_id.clone();
        if join.version >= 4 {
            self.expected.insert(id);
            return Err(ResponseError::MemberIdRequired.into());
        }
        self.add(context, id.clone(), join, protocols, after);
        Ok(id)
    }

    /// A static member that starts: perhaps it has been here before, and takes its own place again.
    fn take_in_static(
        &mut self,
        context: &Context<'_>,
        join: &Join,
        instance: &str,
        protocols: Protocols,
        after: &mut After,
    ) -> Result<Id, Refusal> {
        let Some(before) = self.instances.get(instance).cloned() else {
            self.check_room(context)?;
            self.begin_session(context, join)?;
            let id = join.fresh_id.clone();
            self.instances.insert(Id::from(instance), id.clone());
            self.add(context, id.clone(), join, protocols, after);
            return Ok(id);
        };
        self.begin_session(context, join)?;
        let id = join.fresh_id.clone();
        let leads = self.leader.as_ref() == Some(&before);
        self.replace(context, &before, &id);
        if leads {
            self.leader = Some(id.clone());
        }
        self.update(&id, join, protocols);
        let agree = self.protocol.as_ref() == Some(&self.choose_protocol());
        if self.phase != Phase::Stable || !agree {
            self.rebalance(context, after);
            return Ok(id);
        }
        // Nothing changes for the others, so they need not hear of it.
        let leads = match (leads, join.version) {
            (false, _) => Leads::AsItIs,
            (true, 9..) => Leads::WithoutAssigning,
            (true, _) => Leads::Unawares(before),
        };
        Err(Refusal::Joined(id, leads))
    }

    /// The new client takes the place of the old one under another member id. What the old one waits for is over.
    fn replace(&mut self, context: &Context<'_>, before: &Id, id: &Id) {
        let Some(mut member) = self.members.remove(before) else {
            return;
        };
        member.fail_join(before, ResponseError::FencedInstanceId);
        member.fail_sync(ResponseError::FencedInstanceId);
        context.coordinator.sessions.end(context.group, before);
        if let Some(instance) = &member.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        if self.unsynced.remove(before) {
            self.unsynced.insert(id.clone());
        }
        self.members.insert(id.clone(), member);
    }

    /// A member joins again: because it was told to, because it wants a rebalance, or because it missed an answer.
    fn take_back(
        &mut self,
        context: &Context<'_>,
        join: &Join,
        protocols: Protocols,
        after: &mut After,
    ) -> Result<Id, Refusal> {
        let member = &*join.request.member_id;
        let Some((id, found)) = self.members.get_key_value(member) else {
            return Err(ResponseError::UnknownMemberId.into());
        };
        let id = id.clone();
        let changed = !found.protocols.is_same(&protocols);
        let leads = self.leader.as_ref() == Some(&id);
        let rebalances = match self.phase {
            Phase::PreparingRebalance(_) => true,
            // It has missed the answer to its join.
            Phase::CompletingRebalance => changed,
            // The leader joins again to assign anew.
            Phase::Stable => changed || leads,
            Phase::Empty | Phase::Dead => return Err(ResponseError::UnknownMemberId.into()),
        };
        if !rebalances {
            return Err(Refusal::Joined(id, Leads::AsItIs));
        }
        self.update(&id, join, protocols);
        self.rebalance(context, after);
        Ok(id)
    }

    fn begin_session(&self, context: &Context<'_>, join: &Join) -> Result<(), ResponseError> {
        let (coordinator, group) = (context.coordinator, context.group);
        let timeout = join.session_timeout();
        coordinator
            .sessions
            .begin(coordinator, group, &join.fresh_id, timeout)
    }

    fn add(
        &mut self,
        context: &Context<'_>,
        id: Id,
        join: &Join,
        protocols: Protocols,
        after: &mut After,
    ) {
        if self.members.is_empty() {
            self.protocol_type = Some(Id::from(&*join.request.protocol_type));
        }
        self.numbered += 1;
        let member = Member {
            number: self.numbered,
            instance: join.instance().map(Id::from),
            client_id: join.client_id.clone(),
            client_host: join.client_host.clone(),
            session_timeout: join.session_timeout(),
            rebalance_timeout: join.rebalance_timeout(),
            protocols,
            assignment: Bytes::new(),
            join: None,
            sync: None,
        };
        self.members.insert(id, member);
        self.prolong_first_join(context);
        self.rebalance(context, after);
    }

    fn update(&mut self, id: &Id, join: &Join, protocols: Protocols) {
        if let Some(member) = self.members.get_mut(id) {
            member.protocols = protocols;
            member.session_timeout = join.session_timeout();
            member.rebalance_timeout = join.rebalance_timeout();
            member.client_id = join.client_id.clone();
            member.client_host = join.client_host.clone();
        }
    }

    fn await_others(&mut self, context: &Context<'_>, id: &Id, waiter: Waiter, after: &mut After) {
        context.coordinator.sessions.suspend(context.group, id);
        if let Some(member) = self.members.get_mut(id) {
            // A second request of the same member takes the place of the first.
            member.fail_join(id, ResponseError::RebalanceInProgress);
            member.join = Some(waiter);
        }
        after.check_joins = true;
    }

    /// A member says that it goes. The members stay as they are if the answer is an error.
    pub(super) fn leave(
        &mut self,
        context: &Context<'_>,
        member: &str,
        instance: Option<&str>,
        after: &mut After,
    ) -> Result<(), ResponseError> {
        let id = match (member, instance) {
            // An administrator removes a static member by its name.
            ("", Some(instance)) => {
                let id = self.instances.get(instance).cloned();
                id.ok_or(ResponseError::UnknownMemberId)?
            }
            _ if self.expected.contains(member) && instance.is_none() => Id::from(member),
            _ => {
                self.check_identity(member, instance)?;
                Id::from(member)
            }
        };
        self.part(context, &id, after);
        Ok(())
    }

    /// The session of a member has expired: nothing was heard of it.
    pub(super) fn session_expired(&mut self, context: &Context<'_>, id: &Id) -> After {
        let mut after = After::default();
        self.part(context, id, &mut after);
        after
    }

    fn part(&mut self, context: &Context<'_>, id: &Id, after: &mut After) {
        if self.expected.remove(id) {
            context.coordinator.sessions.end(context.group, id);
            after.check_joins = true;
        } else if self.members.contains_key(id) {
            self.remove_member(context, id, ResponseError::UnknownMemberId);
            self.rebalance(context, after);
        }
    }

    /// Takes a member out, and ends its waits with `error`.
    pub(super) fn remove_member(&mut self, context: &Context<'_>, id: &Id, error: ResponseError) {
        context.coordinator.sessions.end(context.group, id);
        let Some(mut member) = self.members.remove(id) else {
            return;
        };
        member.fail_join(id, error);
        member.fail_sync(error);
        self.unsynced.remove(id);
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        if self.leader.as_ref() == Some(id) {
            self.leader = None;
        }
    }
}
