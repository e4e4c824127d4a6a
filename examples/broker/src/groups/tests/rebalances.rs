//! Rebalances, one step after the other.

use super::world::{
    GROUP, INITIAL_DELAY, REBALANCE, SESSION, World, join_request, protocols, share, sync_request,
};
use crate::groups::answers::text;
use kafka_protocol::messages::{GroupId, JoinGroupRequest, SyncGroupRequest};
use std::time::Duration;

const NOT_COORDINATOR: i16 = 16;
const INCONSISTENT_GROUP_PROTOCOL: i16 = 23;
const INVALID_GROUP_ID: i16 = 24;
const UNKNOWN_MEMBER_ID: i16 = 25;
const INVALID_SESSION_TIMEOUT: i16 = 26;
const REBALANCE_IN_PROGRESS: i16 = 27;
const GROUP_MAX_SIZE_REACHED: i16 = 81;
const FENCED_INSTANCE_ID: i16 = 82;

const MS: Duration = Duration::from_millis(1);

fn named(instance: &str) -> JoinGroupRequest {
    join_request("").with_group_instance_id(Some(text(instance)))
}

#[test]
fn the_first_members_wait_for_more_and_share_what_the_leader_assigns() {
    let world = World::new();
    let (leader, mut first) = world.join();
    world.pass(INITIAL_DELAY - MS);
    let (second, mut late) = world.join();
    assert!(first.waits() && late.waits());
    world.check();
    world.pass(MS);
    let (joined, other) = (first.joined(), late.joined());
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!((&*joined.leader, &*other.leader), (&*leader, &*leader));
    assert_eq!((joined.members.len(), other.members.len()), (2, 0));
    assert_eq!(joined.protocol_name.as_deref(), Some("range"));
    assert_eq!(&joined.members[0].metadata[..], b"about range");
    // The others wait for the leader.
    let mut sync = world.sync(&second, 1, &[]);
    assert!(sync.waits());
    world.check();
    let synced = world.sync(&leader, 1, &[&leader, &second]).synced();
    assert_eq!(synced.assignment, share(&leader, 1));
    assert_eq!(sync.synced().assignment, share(&second, 1));
    assert_eq!((world.phase(), world.heartbeat(&second, 1)), ("Stable", 0));
    world.check();
}

/// One that does not join again, although it lives, and one that does not ask for its share.
#[test]
fn a_rebalance_waits_no_longer_than_the_rebalance_timeout() {
    let world = World::new();
    let ids = world.stable(2);
    let (newcomer, mut join) = world.join();
    let mut first = world.rejoin(&ids[0]);
    let alive = |id: &str, generation, expected| {
        let mut passed = Duration::ZERO;
        while passed + SESSION / 2 < REBALANCE {
            world.pass(SESSION / 2);
            passed += SESSION / 2;
            assert_eq!(
                world.heartbeat(id, generation),
                expected,
                "after {passed:?}"
            );
        }
        REBALANCE - passed
    };
    let left = alive(&ids[1], 1, REBALANCE_IN_PROGRESS);
    assert!(first.waits() && join.waits());
    world.pass(left);
    assert_eq!(first.joined().members.len(), 2);
    assert_eq!(join.joined().generation_id, 2);
    assert_eq!(world.heartbeat(&ids[1], 2), UNKNOWN_MEMBER_ID);

    let mut sync = world.sync(&newcomer, 2, &[]);
    let left = alive(&ids[0], 2, 0);
    assert!(sync.waits());
    world.pass(left);
    assert_eq!(sync.synced().error_code, REBALANCE_IN_PROGRESS);
    assert_eq!(world.heartbeat(&ids[0], 2), UNKNOWN_MEMBER_ID);
    let joined = world.rejoin(&newcomer).joined();
    assert_eq!((joined.generation_id, &*joined.leader), (3, &*newcomer));
    world.check();
}

#[test]
fn a_silent_member_is_removed_when_its_session_expires() {
    let world = World::new();
    let ids = world.stable(3);
    world.pass(SESSION - MS);
    assert_eq!(world.heartbeat(&ids[0], 1), 0);
    assert_eq!(world.heartbeat(&ids[1], 1), 0);
    world.pass(MS);
    assert_eq!(world.phase(), "PreparingRebalance");
    assert_eq!(world.heartbeat(&ids[2], 1), UNKNOWN_MEMBER_ID);
    world.check();
    // While it waits it need not send heartbeats; the other one dies, and that ends the wait.
    let mut join = world.rejoin(&ids[0]);
    world.pass(SESSION - 2 * MS);
    assert!(join.waits());
    world.pass(MS);
    let joined = join.joined();
    assert_eq!((joined.generation_id, joined.members.len()), (2, 1));
    assert_eq!(world.leave(&ids[0], None), 0);
    assert_eq!((world.phase(), world.coordinator.members()), ("Empty", 0));
    world.check();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let world = World::with(|settings| {
        settings.max_members = 2;
        settings.max_bytes = 2_000;
    });
    let ids = world.stable(1);
    let join = || join_request("");
    let group = |id: &str| GroupId(text(id));
    let heavy = join().with_protocols(protocols(&["range", &"x".repeat(2_000)]));
    let refused = |request: JoinGroupRequest, error| {
        assert_eq!(world.ask(request, 9).joined().error_code, error);
    };
    refused(join().with_group_id(group("")), INVALID_GROUP_ID);
    refused(
        join().with_group_id(group(&"g".repeat(256))),
        INVALID_GROUP_ID,
    );
    for milliseconds in [-1, 499, i32::MAX] {
        refused(
            join().with_session_timeout_ms(milliseconds),
            INVALID_SESSION_TIMEOUT,
        );
    }
    for names in [&[][..], &["unknown"]] {
        refused(
            join().with_protocols(protocols(names)),
            INCONSISTENT_GROUP_PROTOCOL,
        );
    }
    refused(
        join().with_protocol_type(text("connect")),
        INCONSISTENT_GROUP_PROTOCOL,
    );
    refused(heavy, GROUP_MAX_SIZE_REACHED);
    refused(join_request("stranger"), UNKNOWN_MEMBER_ID);
    let named = join_request("stranger").with_group_instance_id(Some(text("x")));
    refused(named, UNKNOWN_MEMBER_ID);
    let synced = |request| {
        world
            .ask::<SyncGroupRequest>(request, 5)
            .synced()
            .error_code
    };
    assert_eq!(synced(sync_request("stranger", 1, &[])), UNKNOWN_MEMBER_ID);
    let other = sync_request(&ids[0], 1, &[]).with_protocol_name(Some(text("roundrobin")));
    assert_eq!(synced(other), INCONSISTENT_GROUP_PROTOCOL);
    assert_eq!(world.leave("stranger", None), UNKNOWN_MEMBER_ID);
    assert_eq!(world.leave("", Some("stranger")), UNKNOWN_MEMBER_ID);
    // None of it did the group any harm.
    assert_eq!((world.phase(), world.heartbeat(&ids[0], 1)), ("Stable", 0));
    world.check();
    drop(world.ask(join(), 3));
    let third = world.ask(join(), 3).joined();
    assert_eq!(third.error_code, GROUP_MAX_SIZE_REACHED);
}

/// Two members "a", who leads, and "b".
fn static_group(world: &World) -> Vec<String> {
    world.stabilised(["a", "b"].map(|name| world.ask(named(name), 9)).into())
}

#[test]
fn a_static_member_that_restarts_disturbs_nobody() {
    for name in ["b", "a"] {
        let world = World::new();
        let ids = static_group(&world);
        let before = &ids[usize::from(name == "b")];
        let again = world.ask(named(name), 9).joined();
        assert_eq!((again.error_code, again.generation_id), (0, 1));
        // One that led is not told that it does, or it would assign anew.
        assert_eq!(*again.leader, *ids[0]);
        assert!(again.member_id != **before && again.members.is_empty());
        // Its assignment is still its own, and the old client is told that it has been replaced.
        let synced = world.sync(&again.member_id, 1, &[]).synced();
        assert_eq!(synced.assignment, share(before, 1));
        assert_eq!(world.heartbeat(&again.member_id, 1), 0);
        assert_eq!(world.heartbeat(before, 1), UNKNOWN_MEMBER_ID);
        let fenced = join_request(before).with_group_instance_id(Some(text(name)));
        assert_eq!(world.ask(fenced, 9).joined().error_code, FENCED_INSTANCE_ID);
        assert_eq!(world.phase(), "Stable");
        world.check();
        // An administrator removes it by its name.
        assert_eq!(world.leave("", Some(name)), 0);
        assert_eq!(world.phase(), "PreparingRebalance");
        world.check();
    }
}

#[test]
fn the_shutdown_answers_everything_that_waits() {
    let world = World::new();
    let mut joins = [world.join().1, world.join().1];
    world.coordinator.shutdown();
    for join in &mut joins {
        assert_eq!(join.joined().error_code, NOT_COORDINATOR);
    }
    let world = World::new();
    let mut joins = [world.join().1, world.join().1];
    world.pass(INITIAL_DELAY);
    let ids = World::members(&mut joins);
    let mut sync = world.sync(&ids[1], 1, &[]);
    world.coordinator.shutdown();
    assert_eq!(sync.synced().error_code, NOT_COORDINATOR);
    assert_eq!(
        world.ask(join_request(""), 3).joined().error_code,
        NOT_COORDINATOR
    );
    assert_eq!(
        world
            .coordinator
            .group(GROUP)
            .map(|group| group.lock().members.len()),
        Some(2)
    );
}
