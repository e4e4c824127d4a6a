//! Committing and fetching offsets; listing, describing and deleting groups.

use super::world::{GROUP, INITIAL_DELAY, TOPIC, World};
use crate::groups::answers::text;
use crate::wire::groups::{GroupRequest, GroupResponse};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, GroupId, ListGroupsRequest, OffsetCommitRequest,
    OffsetFetchRequest, TopicName,
};

fn group() -> GroupId {
    GroupId(text(GROUP))
}

/// Commits `offset` for one partition; returns the error.
fn commit(world: &World, member: &str, generation: i32, partition: i32, offset: i64) -> i16 {
    commit_with(world, member, generation, partition, offset, "")
}

fn commit_with(
    world: &World,
    member: &str,
    generation: i32,
    partition: i32,
    offset: i64,
    metadata: &str,
) -> i16 {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(partition)
        .with_committed_offset(offset)
        .with_committed_metadata(Some(text(metadata)));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(TopicName(text(TOPIC)))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group())
        .with_generation_id_or_member_epoch(generation)
        .with_member_id(text(member))
        .with_topics(vec![topic]);
    match world.now(GroupRequest::OffsetCommit(request), 8) {
        GroupResponse::OffsetCommit(answer) => answer.topics[0].partitions[0].error_code,
        other => panic!("{other:?}"),
    }
}

/// All that the group has committed.
fn committed(world: &World) -> Vec<(i32, i64)> {
    let asked = OffsetFetchRequestGroup::default()
        .with_group_id(group())
        .with_topics(None);
    let request = OffsetFetchRequest::default().with_groups(vec![asked]);
    match world.now(GroupRequest::OffsetFetch(request), 8) {
        GroupResponse::OffsetFetch(mut answer) => {
            let topics = answer.groups.remove(0).topics.into_iter();
            topics
                .flat_map(|topic| topic.partitions)
                .map(|found| (found.partition_index, found.committed_offset))
                .collect()
        }
        other => panic!("{other:?}"),
    }
}

fn delete(world: &World) -> i16 {
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group()]);
    match world.now(GroupRequest::DeleteGroups(request), 2) {
        GroupResponse::DeleteGroups(answer) => answer.results[0].error_code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_commit_in_their_generation_and_nobody_else_does() {
    let world = World::new();
    let ids = world.stable(2);
    assert_eq!(commit(&world, &ids[0], 1, 0, 10), 0);
    assert_eq!(commit(&world, &ids[1], 1, 1, 20), 0);
    assert_eq!(commit(&world, &ids[1], 1, 1, 21), 0);
    assert_eq!(commit(&world, &ids[0], 0, 0, 99), 22, "ILLEGAL_GENERATION");
    assert_eq!(commit(&world, "nobody", 1, 0, 99), 25, "UNKNOWN_MEMBER_ID");
    assert_eq!(commit(&world, "", -1, 0, 99), 25, "beside members");
    assert_eq!(
        commit(&world, &ids[0], 1, 3, 99),
        3,
        "UNKNOWN_TOPIC_OR_PARTITION"
    );
    assert_eq!(committed(&world), [(0, 10), (1, 21)]);
    // What was read until it joins again, may still be committed; then it has to wait for its assignment.
    let (_, mut newcomer) = world.join();
    assert_eq!(commit(&world, &ids[0], 1, 0, 11), 0);
    let mut joins: Vec<_> = ids.iter().map(|id| world.rejoin(id)).collect();
    joins.iter_mut().for_each(|join| drop(join.joined()));
    newcomer.joined();
    assert_eq!(
        commit(&world, &ids[0], 2, 0, 12),
        27,
        "REBALANCE_IN_PROGRESS"
    );
    assert_eq!(
        commit(&world, &ids[0], 1, 0, 12),
        22,
        "the generation before"
    );
    assert_eq!(committed(&world), [(0, 11), (1, 21)]);
    world.check();
}

#[test]
fn a_consumer_without_a_group_commits_to_one_that_nobody_is_in() {
    let world = World::new();
    assert_eq!(committed(&world), []);
    assert!(
        world.coordinator.group(GROUP).is_none(),
        "asking makes none"
    );
    assert_eq!(commit(&world, "", 5, 0, 1), 22, "ILLEGAL_GENERATION");
    assert_eq!(
        commit(&world, "", -1, 7, 1),
        3,
        "UNKNOWN_TOPIC_OR_PARTITION"
    );
    assert!(
        world.coordinator.group(GROUP).is_none(),
        "failing makes none"
    );
    assert_eq!(commit(&world, "", -1, 0, 5), 0);
    assert_eq!(
        commit(&world, "somebody", -1, 0, 6),
        25,
        "UNKNOWN_MEMBER_ID"
    );
    assert_eq!(committed(&world), [(0, 5)]);
    world.check();
}

#[test]
fn metadata_and_memory_are_bounded() {
    let world = World::with(|settings| settings.max_bytes = 10_000);
    assert_eq!(commit_with(&world, "", -1, 0, 1, &"x".repeat(4_097)), 12);
    assert_eq!(commit_with(&world, "", -1, 0, 1, &"x".repeat(4_096)), 0);
    assert_eq!(commit_with(&world, "", -1, 1, 1, &"x".repeat(4_096)), 0);
    assert_eq!(
        commit_with(&world, "", -1, 2, 1, &"x".repeat(4_096)),
        28,
        "no room"
    );
    assert_eq!(committed(&world), [(0, 1), (1, 1)]);
    assert_eq!(delete(&world), 0);
    assert_eq!(world.coordinator.budget.left(), 10_000);
}

#[test]
fn a_group_is_deleted_when_nobody_is_in_it() {
    let world = World::new();
    assert_eq!(delete(&world), 69, "GROUP_ID_NOT_FOUND");
    let ids = world.stable(1);
    assert_eq!(commit(&world, &ids[0], 1, 0, 5), 0);
    assert_eq!(delete(&world), 68, "NON_EMPTY_GROUP");
    assert_eq!(world.leave(&ids[0], None), 0);
    assert_eq!(committed(&world), [(0, 5)]);
    assert_eq!(delete(&world), 0);
    assert_eq!(committed(&world), []);
    assert_eq!(delete(&world), 69, "GROUP_ID_NOT_FOUND");
    assert_eq!(world.coordinator.budget.left(), world.bytes);
    world.check();
}

#[test]
fn groups_are_listed_and_described() {
    let world = World::new();
    let list = |states: &[&str]| {
        let states = states.iter().map(|state| text(state)).collect();
        let request = ListGroupsRequest::default().with_states_filter(states);
        match world.now(GroupRequest::ListGroups(request), 4) {
            GroupResponse::ListGroups(answer) => answer
                .groups
                .iter()
                .map(|group| {
                    let (id, state) = (&*group.group_id, &*group.group_state);
                    format!("{} {} {state}", &**id, &*group.protocol_type)
                })
                .collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        }
    };
    let describe = || {
        // Asked twice, answered once.
        let request = DescribeGroupsRequest::default().with_groups(vec![group(), group()]);
        match world.now(GroupRequest::DescribeGroups(request), 5) {
            GroupResponse::DescribeGroups(mut answer) => {
                assert_eq!(answer.groups.len(), 1);
                answer.groups.remove(0)
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(list(&[]).is_empty());
    assert_eq!(&*describe().group_state, "Dead");
    let ids = world.stable(2);
    assert_eq!(list(&[]), ["g consumer Stable"]);
    assert_eq!(list(&["stable", "Empty"]), ["g consumer Stable"]);
    assert!(list(&["Empty"]).is_empty());
    let described = describe();
    assert_eq!(
        (described.error_code, &*described.group_state),
        (0, "Stable")
    );
    assert_eq!(&*described.protocol_data, "range");
    let mut members: Vec<_> = described
        .members
        .iter()
        .map(|member| &*member.member_id)
        .collect();
    members.sort_unstable();
    let mut expected: Vec<_> = ids.iter().map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!(members, expected);
    assert_eq!(&*described.members[0].client_id, "client");
    assert_eq!(&*described.members[0].client_host, "/127.0.0.1");
    assert_eq!(&described.members[0].member_metadata[..], b"about range");
    let (_, _newcomer) = world.join();
    assert_eq!(list(&[]), ["g consumer PreparingRebalance"]);
    assert_eq!(&*describe().protocol_data, "");
    world.pass(INITIAL_DELAY);
}
