//! Who comes into a group, comes back, and goes.

use super::group::{Phase, State};
use super::member::{Id, MAX_ID, Member, Parked, Terms, join_failed};
use super::rebalance::joined;
use crate::exchange::{Outcome, Waiter, ensure};
use crate::messages::*;
use bytes::Bytes;
use request_purgatory::purgatory::RejectReason;
use std::sync::Weak;

impl State {
    /// Takes in a member, or refuses it.
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
            Ok(false) => {
                self.touch(&id);
                waiter.answer(joined(self, &id));
            }
            Err(error @ ResponseError::MemberIdRequired) => waiter.answer(join_failed(&id, error)),
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
                Some(before) => Ok(self.replace(&before, id, terms)),
                None => self.add(id, request, terms),
            },
            // It has to come again with its id: or one that gets no answer and joins anew would leave a member behind.
            None if is_new && terms.version >= 4 => Err(ResponseError::MemberIdRequired),
            None if !self.members.contains_key(id) && self.shared.has_given(id) => {
                self.add(id, request, terms)
            }
            instance => {
                self.check_identity(id, instance)?;
                self.take_back(id, terms)
            }
        }
    }

    /// Checks that the others can agree on something that a member offers.
    fn check_agreeable(&self, kind: &str, terms: &Terms) -> Outcome {
        let agreeable = match self.members.is_empty() {
            true => !kind.is_empty() && kind.len() <= MAX_ID,
            false => {
                self.protocol_type.as_deref() == Some(kind)
                    && terms.names().any(|name| self.all_support(name))
            }
        };
        ensure(agreeable, ResponseError::InconsistentGroupProtocol)
    }

    fn add(&mut self, id: &Id, request: &JoinGroupRequest, terms: Terms) -> Outcome<bool> {
        let has_room = self.members.len() < self.shared.settings.max_members;
        ensure(has_room, ResponseError::GroupMaxSizeReached)?;
        let number = self.shared.next_number();
        let (group, timeout) = (Weak::clone(&self.group), terms.session_timeout);
        let tracked = self.shared.sessions.try_track(number, group, timeout);
        tracked.map_err(|rejected| match rejected.reason() {
            RejectReason::ShutDown => ResponseError::NotCoordinator,
            // There are as many sessions as there may be.
            _ => ResponseError::GroupMaxSizeReached,
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
            member.fail(before, ResponseError::FencedInstanceId);
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
        let member = member.ok_or(ResponseError::UnknownMemberId)?;
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
        if self.remove_where(|member| member.number == number) > 0 {
            self.rebalance();
        }
    }
}
