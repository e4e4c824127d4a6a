//! What administrators ask: which groups there are, and who is in them.

use super::Coordinator;
use super::group::{Group, Phase, State};
use super::member::{Id, Member};
use crate::messages::*;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Phase {
    /// As Kafka calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance { .. } => "PreparingRebalance",
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
                .with_group_id(GroupId(text(&state.id)))
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
