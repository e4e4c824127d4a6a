//! The requests of members.

use super::group::{Group, State};
use super::member::{Terms, join_failed, sync_failed};
use super::{Coordinator, describe};
use crate::exchange::{Caller, NODE, Reply, Waiter, answered_later, code, ensure};
use crate::messages::*;
use std::sync::Arc;

/// What a client is told whose request would wait, if there is no memory for that: it tries again.
const NO_ROOM: ResponseError = ResponseError::CoordinatorNotAvailable;

impl Coordinator {
    /// Does what a request of groups asks. `is_partition` knows the topics of the broker.
    pub(crate) fn handle(
        &self,
        request: RequestKind,
        caller: &Caller,
        is_partition: &dyn Fn(&str, i32) -> bool,
    ) -> Reply {
        match request {
            RequestKind::JoinGroup(asked) => self.join(&asked, caller),
            RequestKind::SyncGroup(asked) => self.sync(&asked, caller),
            RequestKind::Heartbeat(asked) => self.heartbeat(&asked).into(),
            RequestKind::LeaveGroup(asked) => self.leave(&asked, caller.version).into(),
            RequestKind::OffsetCommit(asked) => self.commit(&asked, is_partition).into(),
            RequestKind::OffsetFetch(asked) => self.committed_offsets(asked).into(),
            RequestKind::OffsetDelete(asked) => self.delete_offsets(asked).into(),
            // There is one broker, so it coordinates everything. (That there are no transactions is for their first
            // request to hear: here the code for it would be taken for a coordinator that is not up yet.)
            RequestKind::FindCoordinator(_) => FindCoordinatorResponse::default()
                .with_node_id(NODE)
                .with_host(StrBytes::from_string(caller.address.ip().to_string()))
                .with_port(i32::from(caller.address.port()))
                .into(),
            RequestKind::ListGroups(asked) => describe::list(self.all(), asked).into(),
            RequestKind::DescribeGroups(asked) => describe::describe(self, asked).into(),
            RequestKind::DeleteGroups(asked) => self.delete_groups(asked).into(),
            RequestKind::ConsumerGroupHeartbeat(asked) => refuse_kip_848(&asked, caller),
            _ => Reply::Disconnect("a request that is advertised and not handled".to_owned()),
        }
    }

    fn join(&self, request: &JoinGroupRequest, caller: &Caller) -> Reply {
        let join = || {
            let terms = Terms::of(request, caller, &self.shared)?;
            ensure(caller.may_wait, NO_ROOM)?;
            let (group, version) = (self.group_or_new(&request.group_id)?, caller.version);
            let join = |state: &mut State, waiter| state.join(request, version, terms, waiter);
            Ok(waiting(group, join))
        };
        join().unwrap_or_else(|error| join_failed(&request.member_id, error).into())
    }

    fn sync(&self, request: &SyncGroupRequest, caller: &Caller) -> Reply {
        match self.group(&request.group_id) {
            None => sync_failed(ResponseError::UnknownMemberId).into(),
            Some(_) if !caller.may_wait => sync_failed(NO_ROOM).into(),
            Some(group) => waiting(group, |state, waiter| state.sync(request, waiter)),
        }
    }

    fn heartbeat(&self, asked: &HeartbeatRequest) -> HeartbeatResponse {
        let group = self.group(&asked.group_id);
        let group = group.ok_or(ResponseError::UnknownMemberId);
        let beat = group.and_then(|group| group.lock().heartbeat(asked));
        HeartbeatResponse::default().with_error_code(code(&beat))
    }

    fn leave(&self, asked: &LeaveGroupRequest, version: i16) -> LeaveGroupResponse {
        let group = self.group(&asked.group_id);
        let leave = |identity: &MemberIdentity| {
            let group = group.as_ref().ok_or(ResponseError::UnknownMemberId)?;
            let instance = identity.group_instance_id.as_deref();
            let member = &identity.member_id;
            group.change(|state| state.leave(member, instance))
        };
        let answer = LeaveGroupResponse::default();
        if version < 3 {
            let identity = MemberIdentity::default().with_member_id(asked.member_id.clone());
            return answer.with_error_code(code(&leave(&identity)));
        }
        let members = asked.members.iter().map(|identity| {
            MemberResponse::default()
                .with_member_id(identity.member_id.clone())
                .with_group_instance_id(identity.group_instance_id.clone())
                .with_error_code(code(&leave(identity)))
        });
        answer.with_members(members.collect())
    }
}

/// The answer to a request that `ask` hands to the group, where it may have to wait.
fn waiting(group: Arc<Group>, ask: impl FnOnce(&mut State, Waiter)) -> Reply {
    let (waiter, mut waiting) = answered_later();
    group.change(|state| ask(state, waiter));
    waiting.leave = Some(Box::new(move || group.change(State::client_gone)));
    Reply::Later(waiting)
}

/// A group of the newer consumer protocol. Its clients are told, and so is the operator.
fn refuse_kip_848(asked: &ConsumerGroupHeartbeatRequest, caller: &Caller) -> Reply {
    const REASON: &str =
        "the consumer protocol of KIP-848 is not known here, use group.protocol=classic";
    if caller.refusals.lock().insert(REASON) {
        let (group, client) = (&**asked.group_id, caller.client);
        log!("{client}, for group {group:?}: refused, {REASON}");
    }
    ConsumerGroupHeartbeatResponse::default()
        .with_error_code(ResponseError::UnsupportedVersion.code())
        .with_error_message(Some(text(REASON)))
        .into()
}
