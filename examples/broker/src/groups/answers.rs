//! Answers to the requests that may wait.

use super::group::State;
use super::member::{Id, Member};
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{JoinGroupResponse, SyncGroupResponse};
use kafka_protocol::protocol::StrBytes;

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// The code on the wire.
pub(super) fn code(outcome: Result<(), ResponseError>) -> i16 {
    outcome.map_or_else(|error| error.code(), |()| 0)
}

pub(super) fn join_failed(member: &str, error: ResponseError) -> JoinGroupResponse {
    JoinGroupResponse::default()
        .with_error_code(error.code())
        .with_generation_id(-1)
        // Versions before 7 have no null here.
        .with_protocol_name(Some(StrBytes::default()))
        .with_member_id(text(member))
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

pub(super) fn sync_failed(error: ResponseError) -> SyncGroupResponse {
    SyncGroupResponse::default().with_error_code(error.code())
}

pub(super) fn synced(state: &State, assignment: Bytes) -> SyncGroupResponse {
    SyncGroupResponse::default()
        .with_protocol_type(state.protocol_type.as_deref().map(text))
        .with_protocol_name(state.protocol.as_deref().map(text))
        .with_assignment(assignment)
}
