//! What administrators ask: which groups there are, and who is in them.

use super::Coordinator;
use super::group::{Group, Phase, State};
use super::member::{Id, Member};
use crate::exchange::Answer;
use crate::messages::*;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) fn list(groups: Vec<Arc<Group>>, asked: ListGroupsRequest) -> Answer {
    // Half of what is told of each takes in memory, as read and as encoded: two names have up to 255 bytes.
    const LISTED: usize = 640;
    let size = LISTED * groups.len();
    Answer::unread(size, move || listed(&groups, &asked))
}

fn listed(groups: &[Arc<Group>], asked: &ListGroupsRequest) -> ListGroupsResponse {
    let wanted = |state: &str| {
        let mut filter = asked.states_filter.iter();
        asked.states_filter.is_empty() || filter.any(|wanted| wanted.eq_ignore_ascii_case(state))
    };
    let listed = groups.iter().filter_map(|group| {
        let state = group.lock();
        let name = name(state.phase);
        (state.phase != Phase::Dead && wanted(&name)).then(|| {
            ListedGroup::default()
                .with_group_id(GroupId(text(&state.id)))
                .with_protocol_type(text(state.protocol_type.as_deref().unwrap_or_default()))
                .with_group_state(name)
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
            None => DescribedGroup::default().with_group_state(name(Phase::Dead)),
        };
        described.with_group_id(id)
    };
    // An answer is as long as the groups in it, so each is in it once.
    let asked = asked.groups.into_iter().collect::<BTreeSet<_>>();
    DescribeGroupsResponse::default().with_groups(asked.into_iter().map(describe).collect())
}

fn described(state: &State) -> DescribedGroup {
    // While they do not agree, there is nothing to tell of it.
    let agreed = (state.phase == Phase::Stable).then_some(state.protocol.as_deref());
    let protocol = agreed.flatten().unwrap_or_default();
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
    DescribedGroup::default()
        .with_group_state(name(state.phase))
        .with_protocol_type(text(state.protocol_type.as_deref().unwrap_or_default()))
        .with_protocol_data(text(protocol))
        .with_members(state.members.iter().map(member).collect())
}

fn name(phase: Phase) -> StrBytes {
    StrBytes::from_string(format!("{phase:?}"))
}
