//! What clients cannot take more of than there is.

use super::world::{INITIAL_DELAY, SESSION, World, join_request, protocols, sync_request};
use crate::groups::answers::text;
use crate::wire::groups::GroupRequest;
use bytes::Bytes;
use kafka_protocol::messages::GroupId;

const GROUP_MAX_SIZE_REACHED: i16 = 81;
const POLICY_VIOLATION: i16 = 44;
const INCONSISTENT_GROUP_PROTOCOL: i16 = 23;
const UNKNOWN_SERVER_ERROR: i16 = -1;

fn elsewhere(group: &str) -> kafka_protocol::messages::JoinGroupRequest {
    join_request("").with_group_id(GroupId(text(group)))
}

#[test]
fn a_full_group_takes_nobody_in() {
    let world = World::with(|settings| settings.max_members = 3);
    let ids = world.stable(2);
    let third = world.member_id(join_request(""));
    let refused = |version| {
        world
            .join_with(join_request(""), version)
            .joined()
            .error_code
    };
    assert_eq!(
        (refused(9), refused(3)),
        (GROUP_MAX_SIZE_REACHED, GROUP_MAX_SIZE_REACHED)
    );
    // Who is in it, is.
    let mut joins = [&*third, &*ids[0], &*ids[1]].map(|id| world.rejoin(id));
    joins
        .iter_mut()
        .for_each(|join| assert_eq!(join.joined().generation_id, 2));
    world.leave(&third, None);
    world.member_id(join_request(""));
    world.check();
}

#[test]
fn all_groups_together_have_so_many_members() {
    let world = World::with(|settings| settings.max_sessions = 5);
    for number in 0..5 {
        world.member_id(elsewhere(&number.to_string()));
    }
    let refused = world.join_with(elsewhere("6"), 9).joined();
    assert_eq!(refused.error_code, GROUP_MAX_SIZE_REACHED);
    assert!(world.coordinator.group("6").is_none());
    world.check();
    world.pass(SESSION);
    assert_eq!(world.coordinator.members(), 0);
    assert!(
        world.coordinator.all().is_empty(),
        "groups that never had a member"
    );
    world.member_id(elsewhere("6"));
}

#[test]
fn an_unused_group_makes_room_for_another() {
    let world = World::with(|settings| settings.max_groups = 2);
    let ids = world.stable(1);
    world.member_id(elsewhere("second"));
    let refused = world.join_with(elsewhere("third"), 9).joined();
    assert_eq!(refused.error_code, POLICY_VIOLATION);
    assert_eq!(world.leave(&ids[0], None), 0);
    world.member_id(elsewhere("third"));
    assert_eq!(world.phase(), "none");
    world.check();
}

#[test]
fn metadata_and_assignments_take_no_more_memory_than_there_is() {
    let world = World::with(|settings| settings.max_bytes = 10_000);
    let heavy = |id: &str| {
        let mut offered = protocols(&["range"]);
        offered[0].metadata = Bytes::from(vec![0; 3_000]);
        join_request(id).with_protocols(offered)
    };
    let ids = [(); 3].map(|()| world.member_id(heavy("")));
    let mut joins = ids.each_ref().map(|id| world.join_with(heavy(id), 9));
    let refused = world.join_with(heavy(""), 9).joined();
    assert_eq!(refused.error_code, GROUP_MAX_SIZE_REACHED);
    world.pass(INITIAL_DELAY);
    joins
        .iter_mut()
        .for_each(|join| assert_eq!(join.joined().error_code, 0));
    // The leader's assignment is too long for what is left: it fails for all, and they try again.
    let mut follower = world.sync(&ids[1], 1, &[]);
    let mut request = sync_request(&ids[0], 1, &[&ids[1]]);
    request.assignments[0].assignment = Bytes::from(vec![0; 1_000]);
    let mut leader = world.later(GroupRequest::SyncGroup(request), 5);
    assert_eq!(leader.synced().error_code, UNKNOWN_SERVER_ERROR);
    assert_eq!(follower.synced().error_code, UNKNOWN_SERVER_ERROR);
    assert_eq!(world.phase(), "PreparingRebalance");
    world.check();
    for id in &ids {
        world.leave(id, None);
    }
    assert_eq!(world.coordinator.budget.left(), 10_000);

    let names: Vec<_> = (0..65).map(|number| number.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let request = join_request("").with_protocols(protocols(&names));
    let refused = world.join_with(request, 9).joined();
    assert_eq!(refused.error_code, INCONSISTENT_GROUP_PROTOCOL);
}

#[test]
fn a_long_client_id_makes_no_long_member_id() {
    let world = World::new();
    let request = GroupRequest::JoinGroup(join_request(""));
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 9092));
    let long = "ä".repeat(1_000);
    let caller = crate::groups::Caller {
        version: 9,
        client_id: &long.as_bytes()[1..],
        client: address,
        broker: address,
        node: kafka_protocol::messages::BrokerId(1),
        may_wait: true,
        is_partition: &|_, _| true,
    };
    let mut asked = super::world::later(world.coordinator.handle(request, &caller));
    assert!(asked.joined().member_id.len() < 200);
}
