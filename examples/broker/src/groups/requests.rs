//! The requests of members, and of administrators: which groups there are, and who is in them.

use super::Coordinator;
use super::group::{Group, Phase, State};
use super::member::{Id, MAX_MEMBER_ID, MEMBER, Member, Terms, join_failed, sync_failed};
use crate::exchange::{
    Answer, Caller, MAX_ANSWER, NODE, Outcome, Reply, Waiter, answered_later, code, ensure,
};
use crate::messages::{find_coordinator_response::Coordinator as Coordinators, *};
use std::collections::BTreeSet;
use std::sync::Arc;

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
            RequestKind::SyncGroup(asked) => self.sync(&asked),
            RequestKind::Heartbeat(asked) => self.heartbeat(&asked).into(),
            RequestKind::LeaveGroup(asked) => self.leave(&asked, caller.version).into(),
            RequestKind::OffsetCommit(asked) => self.commit(&asked, is_partition).into(),
            RequestKind::OffsetFetch(asked) => self.committed_offsets(asked).into(),
            RequestKind::OffsetDelete(asked) => self.delete_offsets(asked).into(),
            RequestKind::FindCoordinator(asked) => find_coordinator(asked, caller).into(),
            RequestKind::ListGroups(asked) => self.list(asked).into(),
            RequestKind::DescribeGroups(asked) => self.describe(asked).into(),
            RequestKind::DeleteGroups(asked) => self.delete_groups(asked).into(),
            RequestKind::ConsumerGroupHeartbeat(asked) => refuse_kip_848(&asked, caller),
            _ => Reply::Disconnect("a request that is advertised and not handled".to_owned()),
        }
    }

    fn join(&self, request: &JoinGroupRequest, caller: &Caller) -> Reply {
        let join = || {
            let terms = Terms::of(request, caller, &self.shared.memory)?;
            let group = self.group_or_new(&request.group_id)?;
            let join = |state: &mut State, waiter| state.join(request, terms, waiter);
            Ok(waiting(group, join))
        };
        join().unwrap_or_else(|error| {
            // What is longer than any id is not said again.
            let id = Some(&*request.member_id).filter(|id| id.len() <= MAX_MEMBER_ID);
            join_failed(id.unwrap_or_default(), error).into()
        })
    }

    fn sync(&self, request: &SyncGroupRequest) -> Reply {
        match self.group(&request.group_id) {
            None => sync_failed(Code::UnknownMemberId).into(),
            Some(group) => waiting(group, |state, waiter| state.sync(request, waiter)),
        }
    }

    fn heartbeat(&self, asked: &HeartbeatRequest) -> HeartbeatResponse {
        let group = self.group(&asked.group_id).ok_or(Code::UnknownMemberId);
        let beat = group.and_then(|group| group.lock().heartbeat(asked));
        HeartbeatResponse::default().with_error_code(code(&beat))
    }

    fn leave(&self, asked: &LeaveGroupRequest, version: i16) -> LeaveGroupResponse {
        let group = self.group(&asked.group_id);
        let leave = |identity: &MemberIdentity| {
            let group = group.as_ref().ok_or(Code::UnknownMemberId)?;
            let instance = identity.group_instance_id.as_deref();
            group.change(|state| state.leave(&identity.member_id, instance))
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

    fn list(&self, asked: ListGroupsRequest) -> Answer {
        // Half of what is told of each takes in memory, as read and as encoded: two names have up to 255 bytes.
        const LISTED: usize = 640;
        let groups = self.all();
        Answer::unread(LISTED * groups.len(), move || {
            let filter = &asked.states_filter;
            let wanted = |state: &str| {
                filter.is_empty() || filter.iter().any(|it| it.eq_ignore_ascii_case(state))
            };
            let listed = groups.iter().filter_map(|group| {
                let state = group.lock();
                let (name, kind) = (name(state.phase), state.protocol_type.as_deref());
                (state.phase != Phase::Dead && wanted(&name)).then(|| {
                    ListedGroup::default()
                        .with_group_id(GroupId(text(&state.id)))
                        .with_protocol_type(text(kind.unwrap_or_default()))
                        .with_group_state(name)
                })
            });
            ListGroupsResponse::default().with_groups(listed.collect())
        })
    }

    /// Of groups that make the answer longer than any is, it has an error.
    fn describe(&self, asked: DescribeGroupsRequest) -> Answer {
        let mut room = MAX_ANSWER;
        // An answer is as long as the groups in it, so each is in it once.
        let asked = asked.groups.iter().collect::<BTreeSet<_>>();
        let wanted = asked.into_iter().map(|id| {
            let group = self.group(id);
            let size = group.as_ref().map_or(MEMBER, |group| size(&group.lock()));
            let size = (size <= room).then_some(size);
            room -= size.unwrap_or_default();
            // A copy, which does not keep the frame of the request.
            (GroupId(text(id)), group, size.ok_or(Code::PolicyViolation))
        });
        let wanted: Vec<_> = wanted.collect();
        Answer::unread(MAX_ANSWER - room, || {
            let groups = wanted.into_iter().map(|(id, group, room)| {
                let describe = |room| match group {
                    Some(group) => described_within(room, &group.lock()),
                    None => Ok(DescribedGroup::default().with_group_state(name(Phase::Dead))),
                };
                let failed = |error: Code| DescribedGroup::default().with_error_code(error.code());
                let described = room.and_then(describe).unwrap_or_else(failed);
                described.with_group_id(id)
            });
            DescribeGroupsResponse::default().with_groups(groups.collect())
        })
    }
}

/// There is one broker, so it coordinates everything. (That there are no transactions is for their first request to
/// hear: here the code for it would be taken for a coordinator that is not up yet.)
fn find_coordinator(asked: FindCoordinatorRequest, caller: &Caller) -> FindCoordinatorResponse {
    let host = StrBytes::from_string(caller.address.ip().to_string());
    let port = i32::from(caller.address.port());
    let answer = FindCoordinatorResponse::default();
    if caller.version < 4 {
        return answer.with_node_id(NODE).with_host(host).with_port(port);
    }
    // An answer is as long as the keys in it, so each is in it once.
    let keys = asked.coordinator_keys.into_iter().collect::<BTreeSet<_>>();
    let coordinators = keys.into_iter().map(|key| {
        let coordinator = Coordinators::default().with_key(key).with_node_id(NODE);
        coordinator.with_host(host.clone()).with_port(port)
    });
    answer.with_coordinators(coordinators.collect())
}

/// The answer to a request that `ask` hands to the group, where it may have to wait.
fn waiting(group: Arc<Group>, ask: impl FnOnce(&mut State, Waiter)) -> Reply {
    let (waiter, mut waiting) = answered_later();
    let client = Arc::clone(&waiter.client);
    group.change(|state| ask(state, waiter));
    let leave = move || group.change(|state| state.client_gone(&client));
    waiting.leave = Some(Box::new(leave));
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
        .with_error_code(Code::UnsupportedVersion.code())
        .with_error_message(Some(text(REASON)))
        .into()
}

/// While they do not agree, there is nothing to tell of it.
fn agreed(state: &State) -> Option<&str> {
    let is_stable = state.phase == Phase::Stable;
    is_stable.then_some(state.protocol.as_deref().unwrap_or_default())
}

/// Bytes that the description of a group takes.
fn size(state: &State) -> usize {
    let protocol = agreed(state).unwrap_or_default();
    let sizes = state.members.iter().map(|(id, member)| {
        let terms = &member.terms;
        let client = terms.client_id.len() + terms.client_host.len();
        member.size(id, protocol) + client + member.assignment.len()
    });
    let kind = state.protocol_type.as_deref().unwrap_or_default();
    MEMBER + kind.len() + protocol.len() + sizes.sum::<usize>()
}

/// The description of a group. If it takes more than was measured, there is no memory for it: the client asks again.
fn described_within(room: usize, state: &State) -> Outcome<DescribedGroup> {
    ensure(size(state) <= room, Code::CoordinatorLoadInProgress)?;
    let agreed = agreed(state);
    let protocol = agreed.unwrap_or_default();
    let member = |(id, member): (&Id, &Member)| {
        let assignment = agreed.map(|_| member.assignment.clone());
        DescribedGroupMember::default()
            .with_member_id(text(id))
            .with_group_instance_id(member.instance.as_deref().map(text))
            .with_client_id(text(&member.terms.client_id))
            .with_client_host(text(&member.terms.client_host))
            .with_member_metadata(member.terms.metadata(protocol))
            .with_member_assignment(assignment.unwrap_or_default())
    };
    Ok(DescribedGroup::default()
        .with_group_state(name(state.phase))
        .with_protocol_type(text(state.protocol_type.as_deref().unwrap_or_default()))
        .with_protocol_data(text(protocol))
        .with_members(state.members.iter().map(member).collect()))
}

fn name(phase: Phase) -> StrBytes {
    StrBytes::from_string(format!("{phase:?}"))
}
