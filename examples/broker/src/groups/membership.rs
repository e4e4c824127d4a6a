//! Who comes into a group, comes back, and goes.

use super::group::{Phase, State};
use super::member::{Id, Member, Protocols, join_failed};
use super::rebalance::joined;
use super::settings::{MAX_ID, MAX_REBALANCE, SESSION};
use crate::exchange::{Outcome, Waiter, ensure, milliseconds};
use crate::messages::*;
use bytes::Bytes;
use request_purgatory::purgatory::RejectReason;
use std::sync::Weak;
use std::time::Duration;

pub(super) struct Join {
    pub(super) request: JoinGroupRequest,
    pub(super) version: i16,
    pub(super) client_id: Id,
    pub(super) client_host: Id,
    /// The member id of a client that has none yet.
    pub(super) fresh_id: Id,
}

impl Join {
    fn instance(&self) -> Option<&str> {
        self.request.group_instance_id.as_deref()
    }

    fn session_timeout(&self) -> Duration {
        milliseconds(self.request.session_timeout_ms)
    }

    fn rebalance_timeout(&self) -> Duration {
        milliseconds(self.request.rebalance_timeout_ms).min(MAX_REBALANCE)
    }

    /// Checks what can be checked without a group.
    pub(super) fn check(&self) -> Outcome {
        let is_session = SESSION.contains(&self.session_timeout());
        ensure(is_session, ResponseError::InvalidSessionTimeout)?;
        let is_name = |name: &str| (1..=MAX_ID).contains(&name.len());
        let is_named = self.instance().is_none_or(is_name);
        ensure(is_named, ResponseError::InvalidRequest)
    }
}

impl State {
    /// Takes in a member, or refuses it.
    pub(super) fn join(&mut self, join: &Join, waiter: Waiter) {
        match self.take_in(join) {
            Ok((id, true)) => {
                if let Some(member) = self.members.get_mut(&id) {
                    // A second request of the same member takes the place of the first.
                    member.fail_join(&id, ResponseError::RebalanceInProgress);
                    member.join = Some(waiter);
                }
                self.touch(&id);
            }
            Ok((id, false)) => {
                self.touch(&id);
                waiter.answer(joined(self, &id));
            }
            Err(error) => {
                let given = match error {
                    ResponseError::MemberIdRequired => &join.fresh_id,
                    _ => join.request.member_id.as_str(),
                };
                waiter.answer(join_failed(given, error));
            }
        }
    }

    /// Puts the member into the group, and begins a rebalance if that needs one. Returns its id, and whether it has to
    /// wait: not if it is as it was, in the generation that there is.
    fn take_in(&mut self, join: &Join) -> Outcome<(Id, bool)> {
        self.check_exists()?;
        let protocols = self.agreeable_protocols(join)?;
        let member = &*join.request.member_id;
        match (join.instance(), member) {
            (Some(instance), "") => match self.named(instance).cloned() {
                Some(before) => Ok(self.replace(&before, join, protocols)),
                None => self.add(&join.fresh_id, join, protocols),
            },
            // It has to come again with its id: so that a client which joins, gets no answer and joins again does not
            // leave members behind that no client is.
            (None, "") if join.version >= 4 => Err(ResponseError::MemberIdRequired),
            (None, "") => self.add(&join.fresh_id, join, protocols),
            (None, _) if !self.members.contains_key(member) && self.shared.has_given(member) => {
                self.add(&Id::from(member), join, protocols)
            }
            (instance, _) => {
                self.check_identity(member, instance)?;
                self.take_back(join, protocols)
            }
        }
    }

    /// What the member offers, if the others can agree on some of it.
    fn agreeable_protocols(&self, join: &Join) -> Outcome<Protocols> {
        let protocols = Protocols::copy(&join.request.protocols, &self.shared)?;
        let kind = &*join.request.protocol_type;
        let agreeable = match self.members.is_empty() {
            true => !kind.is_empty() && kind.len() <= MAX_ID,
            false => {
                self.protocol_type.as_deref() == Some(kind)
                    && protocols.names().any(|name| self.all_support(name))
            }
        };
        ensure(agreeable, ResponseError::InconsistentGroupProtocol)?;
        Ok(protocols)
    }

    fn add(&mut self, id: &Id, join: &Join, protocols: Protocols) -> Outcome<(Id, bool)> {
        let has_room = self.members.len() < self.shared.settings.max_members;
        ensure(has_room, ResponseError::GroupMaxSizeReached)?;
        let number = self.shared.next_number();
        let (group, timeout) = (Weak::clone(&self.group), join.session_timeout());
        let tracked = self.shared.sessions.try_track(number, group, timeout);
        tracked.map_err(|rejected| match rejected.reason() {
            RejectReason::ShutDown => ResponseError::NotCoordinator,
            // There are as many sessions as there may be.
            _ => ResponseError::GroupMaxSizeReached,
        })?;
        if self.members.is_empty() {
            self.protocol_type = Some(Id::from(&*join.request.protocol_type));
        }
        let member = Member {
            number,
            instance: join.instance().map(Id::from),
            client_id: Id::clone(&join.client_id),
            client_host: Id::clone(&join.client_host),
            session_timeout: join.session_timeout(),
            rebalance_timeout: join.rebalance_timeout(),
            protocols,
            assignment: Bytes::new(),
            join: None,
            sync: None,
        };
        self.members.insert(Id::clone(id), member);
        self.rebalance();
        Ok((Id::clone(id), true))
    }

    /// A static member that was here before takes its own place again, under another member id. What its client before
    /// waits for is over.
    ///
    /// One that led is not told so: it would assign anew, and the assignment stands. The next rebalance elects a leader.
    fn replace(&mut self, before: &Id, join: &Join, protocols: Protocols) -> (Id, bool) {
        let id = &join.fresh_id;
        if let Some(mut member) = self.members.remove(before) {
            member.fail(before, ResponseError::FencedInstanceId);
            self.members.insert(Id::clone(id), member);
        }
        if self.unsynced.remove(before) {
            self.unsynced.insert(Id::clone(id));
        }
        self.update(id, join, protocols);
        let agree = self.protocol.as_ref() == Some(&self.choose_protocol());
        if self.phase == Phase::Stable && agree {
            // Nothing changes for the others, so they need not hear of it.
            return (Id::clone(id), false);
        }
        self.rebalance();
        (Id::clone(id), true)
    }

    /// A member joins again: because it was told to, because it wants a rebalance, or because it missed an answer.
    fn take_back(&mut self, join: &Join, protocols: Protocols) -> Outcome<(Id, bool)> {
        let found = self.members.get_key_value(&*join.request.member_id);
        let (id, found) = found.ok_or(ResponseError::UnknownMemberId)?;
        let id = Id::clone(id);
        let changed = found.protocols.by_preference != protocols.by_preference;
        let leads = self.leader.as_ref() == Some(&id);
        let rebalances = match self.phase {
            // It has missed the answer to its join.
            Phase::CompletingRebalance => changed,
            // The leader joins again to assign anew.
            Phase::Stable => changed || leads,
            _ => true,
        };
        if !rebalances {
            return Ok((id, false));
        }
        self.update(&id, join, protocols);
        self.rebalance();
        Ok((id, true))
    }

    fn update(&mut self, id: &Id, join: &Join, protocols: Protocols) {
        if let Some(member) = self.members.get_mut(id) {
            member.protocols = protocols;
            member.session_timeout = join.session_timeout();
            member.rebalance_timeout = join.rebalance_timeout();
            member.client_id = Id::clone(&join.client_id);
            member.client_host = Id::clone(&join.client_host);
        }
    }

    /// A member says that it goes. The members stay as they are if the answer is an error.
    pub(super) fn leave(&mut self, member: &str, instance: Option<&str>) -> Outcome {
        let id = match (member, instance) {
            // An administrator removes a static member by its name.
            ("", Some(instance)) => {
                let id = self.named(instance).cloned();
                id.ok_or(ResponseError::UnknownMemberId)?
            }
            _ => {
                self.check_identity(member, instance)?;
                Id::from(member)
            }
        };
        self.remove_member(&id);
        self.rebalance();
        Ok(())
    }

    /// Nothing was heard of a member.
    pub(super) fn session_expired(&mut self, number: u64) {
        let mut members = self.members.iter();
        let found = members.find(|(_, member)| member.number == number);
        if let Some(id) = found.map(|(id, _)| Id::clone(id)) {
            self.remove_member(&id);
            self.rebalance();
        }
    }
}
