//! What administrators ask: which groups there are, who is in them, and to delete them or what they committed.

use super::Coordinator;
use super::answers::text;
use super::group::{Group, Phase, State};
use super::journal::Change;
use super::member::{Id, Member};
use super::requests::code;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    GroupId, ListGroupsRequest, ListGroupsResponse, OffsetDeleteRequest, OffsetDeleteResponse,
};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Phase {
    /// As Kafka calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance(_) => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }
}

pub(super) fn list(groups: &[Arc<Group>], asked: &ListGroupsRequest) -> ListGroupsResponse {
    let wanted = |state: &str| {
        let mut filter = asked.states_filter.iter();
        asked.states_filter.is_empty() || filter.any(|wanted| wanted.eq_ignore_ascii_case(state))
    };
    let listed = groups.iter().filter_map(|group| {
        let state = group.lock();
        let name = state.phase.name();
        (state.phase != Phase::Dead && wanted(name)).then(|| {
            ListedGroup::default()
                .with_group_id(GroupId(text(&group.id)))
                .with_protocol_type(text(state.protocol_type.as_deref().unwrap_or_default()))
                .with_group_state(text(name))
        })
    });
    ListGroupsResponse::default().with_groups(listed.collect())
}

pub(super) fn describe(
    coordinator: &Coordinator,
    asked: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let describe = |id: GroupId| {
        let described = match coordinator.group(&id) {
            Some(group) => described(&group.lock()),
            None => DescribedGroup::default().with_group_state(text(Phase::Dead.name())),
        };
        described.with_group_id(id)
    };
    // An answer is as long as the groups in it, so each is in it once.
    let asked = asked.groups.into_iter().collect::<BTreeSet<_>>();
    DescribeGroupsResponse::default().with_groups(asked.into_iter().map(describe).collect())
}

fn described(state: &State) -> DescribedGroup {
    // While they do not agree, there is nothing to tell of it.
    let protocol = match state.phase {
        Phase::Stable => state.protocol.as_deref().unwrap_or_default(),
        _ => "",
    };
    let member = |(id, member): (&Id, &Member)| {
        let described = DescribedGroupMember::default()
            .with_member_id(text(id))
            .with_group_instance_id(member.instance.as_deref().map(text))
            .with_client_id(text(&member.client_id))
            .with_client_host(text(&member.client_host));
        match state.phase {
            Phase::Stable => described
                .with_member_metadata(member.protocols.metadata(protocol))
                .with_member_assignment(member.assignment.clone()),
            _ => described,
        }
    };
    DescribedGroup::default()
        .with_group_state(text(state.phase.name()))
        .with_protocol_type(text(state.protocol_type.as_deref().unwrap_or_default()))
        .with_protocol_data(text(protocol))
        .with_members(state.members.iter().map(member).collect())
}

pub(super) fn delete(
    coordinator: &Coordinator,
    asked: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    let results = asked.groups_names.into_iter().map(|id| {
        DeletableGroupResult::default()
            .with_error_code(code(delete_group(coordinator, &id)))
            .with_group_id(id)
    });
    DeleteGroupsResponse::default().with_results(results.collect())
}

fn delete_group(coordinator: &Coordinator, id: &str) -> Result<(), ResponseError> {
    if id.is_empty() {
        return Err(ResponseError::InvalidGroupId);
    }
    let group = coordinator
        .group(id)
        .ok_or(ResponseError::GroupIdNotFound)?;
    {
        let mut state = group.lock();
        match state.phase {
            Phase::Empty if state.expected.is_empty() => state.phase = Phase::Dead,
            Phase::Dead => return Err(ResponseError::GroupIdNotFound),
            _ => return Err(ResponseError::NonEmptyGroup),
        }
    }
    coordinator.forget(&group);
    coordinator.note(&[Change::DeleteGroup(id.to_owned())])
}

/// Forgets offsets of a group without members: members would only commit them again.
pub(super) fn delete_offsets(
    coordinator: &Coordinator,
    asked: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    let answer = OffsetDeleteResponse::default();
    let Some(group) = coordinator.group(&asked.group_id) else {
        return answer.with_error_code(ResponseError::GroupIdNotFound.code());
    };
    let mut changes = Vec::new();
    let mut state = group.lock();
    let subscribed = !matches!(state.phase, Phase::Empty | Phase::Dead);
    let topics = asked.topics.into_iter().map(|topic| {
        let mut delete = |index| match subscribed {
            true => Err(ResponseError::GroupSubscribedToTopic),
            false => {
                state.offsets.delete(&topic.name, index)?;
                let (group, topic) = (group.id.to_string(), topic.name.to_string());
                changes.push(Change::Delete(group, topic, index));
                Ok(())
            }
        };
        let partitions = topic.partitions.iter().map(|partition| {
            OffsetDeleteResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code(delete(partition.partition_index)))
        });
        let partitions = partitions.collect();
        OffsetDeleteResponseTopic::default()
            .with_name(topic.name)
            .with_partitions(partitions)
    });
    let topics = topics.collect();
    drop(state);
    match coordinator.note(&changes) {
        Ok(()) => answer.with_topics(topics),
        Err(error) => answer.with_error_code(error.code()),
    }
}
