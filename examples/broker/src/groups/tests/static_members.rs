//! Members with a name of their own, which survive a restart of their client.

use super::world::{INITIAL_DELAY, REBALANCE, SESSION, World, join_request, protocols, share};
use crate::groups::answers::text;
use kafka_protocol::messages::JoinGroupRequest;
use std::time::Duration;

const UNKNOWN_MEMBER_ID: i16 = 25;
const FENCED_INSTANCE_ID: i16 = 82;

fn named(instance: &str) -> JoinGroupRequest {
    join_request("").with_group_instance_id(Some(text(instance)))
}

/// A stable group of the static members "a", who leads, and "b"; their member ids.
fn stable(world: &World) -> [String; 2] {
    let mut joins = ["a", "b"].map(|name| world.join_with(named(name), 9));
    world.pass(INITIAL_DELAY);
    let ids = joins
        .each_mut()
        .map(|join| join.joined().member_id.to_string());
    let names = [&*ids[0], &*ids[1]];
    for id in names {
        assert_eq!(world.sync(id, 1, &names).synced().error_code, 0);
    }
    ids
}

#[test]
fn a_restart_disturbs_nobody() {
    let world = World::new();
    let ids = stable(&world);
    let again = world.join_with(named("b"), 9).joined();
    assert_eq!((again.error_code, again.generation_id), (0, 1));
    assert_eq!(*again.leader, *ids[0]);
    assert_ne!(*again.member_id, *ids[1]);
    assert_eq!(world.phase(), "Stable");
    // Its assignment is still its own, and the old client is told that it has been replaced.
    let synced = world.sync(&again.member_id, 1, &[]).synced();
    assert_eq!(synced.assignment, share(&ids[1], 1));
    assert_eq!(world.heartbeat(&again.member_id, 1), 0);
    assert_eq!(world.heartbeat(&ids[1], 1), UNKNOWN_MEMBER_ID);
    let fenced = join_request(&ids[1]).with_group_instance_id(Some(text("b")));
    assert_eq!(
        world.join_with(fenced, 9).joined().error_code,
        FENCED_INSTANCE_ID
    );
    world.check();
}

#[test]
fn a_leader_that_restarts_does_not_assign_anew() {
    let world = World::new();
    let ids = stable(&world);
    let again = world.join_with(named("a"), 9).joined();
    assert_eq!(again.leader, again.member_id);
    assert!(again.skip_assignment);
    assert_eq!(again.members.len(), 2);
    // Before version 9 it takes itself for a follower.
    let older = world.join_with(named("a"), 8).joined();
    assert_ne!(older.leader, older.member_id);
    assert!(!older.skip_assignment && older.members.is_empty());
    let synced = world.sync(&older.member_id, 1, &[]).synced();
    assert_eq!(synced.assignment, share(&ids[0], 1));
    assert_eq!(world.phase(), "Stable");
    world.check();
}

#[test]
fn a_restart_with_other_protocols_rebalances() {
    let world = World::new();
    let ids = stable(&world);
    let changed = named("b").with_protocols(protocols(&["roundrobin"]));
    let mut again = world.join_with(changed, 9);
    assert!(again.waits());
    let rejoin = join_request(&ids[0]).with_group_instance_id(Some(text("a")));
    let joined = world.join_with(rejoin, 9).joined();
    assert_eq!(joined.protocol_name.as_deref(), Some("roundrobin"));
    assert_eq!(again.joined().generation_id, 2);
    world.check();
}

#[test]
fn two_clients_of_one_name_the_later_one_has_it() {
    let world = World::new();
    let mut first = world.join_with(named("a"), 9);
    let mut second = world.join_with(named("a"), 9);
    assert_eq!(first.joined().error_code, FENCED_INSTANCE_ID);
    world.pass(INITIAL_DELAY);
    assert_eq!(second.joined().members.len(), 1);
    world.check();
}

/// A rebalance does not remove a static member that is restarting; its session does.
#[test]
fn a_name_stays_until_its_session_expires() {
    let world = World::new();
    let ids = stable(&world);
    let (_, mut newcomer) = world.join();
    let rejoin = join_request(&ids[0]).with_group_instance_id(Some(text("a")));
    let mut join = world.join_with(rejoin, 9);
    world.pass(SESSION - Duration::from_millis(1));
    assert!(join.waits() && newcomer.waits());
    world.pass(Duration::from_millis(1));
    assert_eq!(join.joined().members.len(), 2);
    newcomer.joined();
    world.check();
}

/// Its session outlasts the rebalance: it stays a member, but somebody who is there leads.
#[test]
fn a_leader_that_is_away_does_not_lead() {
    let world = World::new();
    let long = |instance| named(instance).with_session_timeout_ms(600_000);
    let mut joins = ["a", "b"].map(|name| world.join_with(long(name), 9));
    world.pass(INITIAL_DELAY);
    let ids = joins
        .each_mut()
        .map(|join| join.joined().member_id.to_string());
    let names = [&*ids[0], &*ids[1]];
    for id in names {
        world.sync(id, 1, &names).synced();
    }
    let changed = long("b").with_protocols(protocols(&["roundrobin"]));
    let mut again = world.join_with(changed, 9);
    world.pass(REBALANCE);
    let joined = again.joined();
    assert_eq!(
        (joined.generation_id, &joined.leader),
        (2, &joined.member_id)
    );
    assert_eq!(joined.members.len(), 2);
    world.check();
    // It gets its share, and may come for it; if it does not, the others go on without it.
    let leader = joined.member_id.to_string();
    world.sync(&leader, 2, &[&leader, &ids[0]]).synced();
    assert_eq!(world.heartbeat(&ids[0], 2), 0);
    world.pass(REBALANCE);
    assert_eq!(world.heartbeat(&ids[0], 2), UNKNOWN_MEMBER_ID);
    assert_eq!(world.phase(), "PreparingRebalance");
    world.check();
}

#[test]
fn an_administrator_removes_a_member_by_its_name() {
    let world = World::new();
    stable(&world);
    assert_eq!(world.leave("", Some("b")), 0);
    assert_eq!(world.leave("", Some("b")), UNKNOWN_MEMBER_ID);
    assert_eq!(world.phase(), "PreparingRebalance");
    world.check();
}
