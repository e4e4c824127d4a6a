//! Rebalances, one step after the other.

use super::world::*;
use crate::groups::member::text;
use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::{GroupId, JoinGroupRequest};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn named(instance: &str) -> JoinGroupRequest {
    join_request("")
        .with_group_instance_id(Some(text(instance)))
        .with_session_timeout_ms(2 * REBALANCE.as_millis() as i32)
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
    let (joined, other) = (first.answer(), late.answer());
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!((&*joined.leader, &*other.leader), (&*leader, &*leader));
    assert_eq!((joined.members.len(), other.members.len()), (2, 0));
    assert_eq!(joined.protocol_name.as_deref(), Some("range"));
    assert_eq!(&joined.members[0].metadata[..], b"about range");
    // The others wait for the leader.
    let mut sync = world.sync(&second, 1, &[]);
    assert!(sync.waits());
    world.check();
    let synced = world.sync(&leader, 1, &[&leader, &second]).answer();
    assert_eq!(synced.assignment, share(&leader, 1));
    assert_eq!(sync.answer().assignment, share(&second, 1));
    assert_eq!((world.phase(), world.heartbeat(&second, 1)), ("Stable", 0));
    world.check();
}

/// It does not go on with what it had in the generation before. (It ends that: what it has to say has changed.)
#[test]
fn a_member_to_which_the_leader_assigns_nothing_has_nothing() {
    let world = World::new();
    let ids = world.stable(2);
    let mut other = join_request(&ids[1]);
    other.protocols[0].metadata = share(&ids[1], 1);
    for mut join in [world.ask(other, 9), world.rejoin(&ids[0])] {
        assert_eq!(join.answer().generation_id, 2);
    }
    let synced = world.sync(&ids[0], 2, &[&ids[0]]).answer();
    assert_eq!(synced.assignment, share(&ids[0], 2));
    let synced = world.sync(&ids[1], 2, &[]).answer();
    assert_eq!((synced.error_code, synced.assignment.len()), (0, 0));
    world.check();
}

/// One that does not join again, although it lives, and one that does not ask for its share.
#[test]
fn a_rebalance_waits_no_longer_than_the_rebalance_timeout() {
    let world = World::new();
    let ids = world.stable(2);
    // The longest timeout that any of them asks for.
    let mut join = world.ask(join_request("").with_rebalance_timeout_ms(1_000), 3);
    let mut first = world.rejoin(&ids[0]);
    let alive = |id: &str, generation, expected| {
        let mut passed = Duration::ZERO;
        while passed + SESSION / 2 < REBALANCE {
            world.pass(SESSION / 2);
            passed += SESSION / 2;
            assert_eq!(world.heartbeat(id, generation), expected, "{passed:?}");
        }
        REBALANCE - passed
    };
    let left = alive(&ids[1], 1, Code::RebalanceInProgress.code());
    assert!(first.waits() && join.waits());
    world.pass(left);
    assert_eq!(first.answer().members.len(), 2);
    let joined = join.answer();
    let newcomer = joined.member_id.to_string();
    assert_eq!(joined.generation_id, 2);
    assert_eq!(world.heartbeat(&ids[1], 2), Code::UnknownMemberId.code());

    let mut sync = world.sync(&newcomer, 2, &[]);
    let left = alive(&ids[0], 2, 0);
    assert!(sync.waits());
    world.pass(left);
    assert_eq!(sync.answer().error_code, Code::RebalanceInProgress.code());
    assert_eq!(world.heartbeat(&ids[0], 2), Code::UnknownMemberId.code());
    let joined = world.rejoin(&newcomer).answer();
    assert_eq!((joined.generation_id, &*joined.leader), (3, &*newcomer));
    // What it asked for when it joined again.
    let mut join = world.ask(join_request("").with_rebalance_timeout_ms(1_000), 3);
    let left = alive(&newcomer, 3, Code::RebalanceInProgress.code());
    assert!(join.waits());
    world.pass(left);
    assert_eq!(join.answer().members.len(), 1);
    world.check();
}

#[test]
fn a_silent_member_is_removed_when_its_session_expires() {
    let world = World::new();
    let ids = world.stable(4);
    world.pass(SESSION - MS);
    assert_eq!([0, 1].map(|at| world.heartbeat(&ids[at], 1)), [0, 0]);
    assert_eq!(world.rejoin(&ids[3]).answer().error_code, 0);
    world.pass(MS);
    let members = world.coordinator.members();
    assert_eq!((world.phase(), members), ("PreparingRebalance", 3));
    assert_eq!(world.heartbeat(&ids[2], 1), Code::UnknownMemberId.code());
    world.check();
    // While it waits it need not send heartbeats; the other one dies, and that ends the wait.
    let longer = 2 * SESSION.as_millis() as i32;
    let longer = join_request(&ids[0]).with_session_timeout_ms(longer);
    let mut join = world.ask(longer, 9);
    world.pass(SESSION - 2 * MS);
    assert!(join.waits());
    world.pass(MS);
    let joined = join.answer();
    assert_eq!((joined.generation_id, joined.members.len()), (2, 1));
    // Its session is as long as it said last.
    world.pass(2 * SESSION - MS);
    assert_eq!(world.coordinator.members(), 1);
    world.pass(MS);
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
    let group = |id: &str| join().with_group_id(GroupId(text(id)));
    let session = |milliseconds| join().with_session_timeout_ms(milliseconds);
    let offers = |names: &[&str]| join().with_protocols(protocols(names));
    let (unknown, inconsistent) = (Code::UnknownMemberId, Code::InconsistentGroupProtocol);
    let long = "x".repeat(2_000);
    for (request, error) in [
        (group(""), Code::InvalidGroupId),
        (group(&"g".repeat(256)), Code::InvalidGroupId),
        (session(-1), Code::InvalidSessionTimeout),
        (session(499), Code::InvalidSessionTimeout),
        (session(i32::MAX), Code::InvalidSessionTimeout),
        (offers(&[]), inconsistent),
        (offers(&["unknown"]), inconsistent),
        (join().with_protocol_type(text("connect")), inconsistent),
        (offers(&["range", &long]), Code::GroupMaxSizeReached),
        (join_request("stranger"), unknown),
        (named("x").with_member_id(text("stranger")), unknown),
    ] {
        let answer = world.ask(request.clone(), 9).answer();
        assert_eq!(answer.error_code, error.code(), "{request:?}");
    }
    let stranger = sync_request("stranger", 1, &[]);
    let other = sync_request(&ids[0], 1, &[]).with_protocol_name(Some(text("roundrobin")));
    for (request, error) in [(stranger, unknown), (other, inconsistent)] {
        assert_eq!(world.ask(request, 5).answer().error_code, error.code());
    }
    for (member, instance) in [("stranger", None), ("", Some("stranger"))] {
        assert_eq!(world.leave(member, instance), Code::UnknownMemberId.code());
    }
    // None of it did the group any harm.
    assert_eq!((world.phase(), world.heartbeat(&ids[0], 1)), ("Stable", 0));
    world.check();
    drop(world.ask(join(), 3));
    let third = world.ask(join(), 3).answer();
    assert_eq!(third.error_code, Code::GroupMaxSizeReached.code());
}

#[test]
fn a_static_member_that_restarts_disturbs_no_other() {
    for (name, synced) in [("b", 2), ("a", 2), ("b", 1)] {
        let world = World::new();
        // "a" leads.
        let joins = ["a", "b"].map(|name| world.ask(named(name), 9));
        let ids = world.stabilised(joins.into(), synced);
        let before = &ids[usize::from(name == "b")];
        let again = world.ask(named(name), 9).answer();
        assert_eq!((again.error_code, again.generation_id), (0, 1));
        // One that led is not told that it does, or it would assign anew.
        assert_eq!(*again.leader, *ids[0]);
        assert!(again.member_id != **before && again.members.is_empty());
        // Its assignment is still its own, and the old client is told that it has been replaced.
        let synced = world.sync(&again.member_id, 1, &[]).answer();
        assert_eq!(synced.assignment, share(before, 1));
        assert_eq!(world.heartbeat(&again.member_id, 1), 0);
        assert_eq!(world.heartbeat(before, 1), Code::UnknownMemberId.code());
        let fenced = join_request(before).with_group_instance_id(Some(text(name)));
        let fenced = world.ask(fenced, 9).answer().error_code;
        assert_eq!(fenced, Code::FencedInstanceId.code());
        // Nor later, as one that has not asked for its assignment.
        world.pass(REBALANCE);
        assert_eq!(world.phase(), "Stable");
        world.check();
        // An administrator removes it by its name.
        assert_eq!(world.leave("", Some(name)), 0);
        assert_eq!(world.phase(), "PreparingRebalance");
        world.check();
    }
}

/// For its assignment it has as long as its predecessor had, and no longer.
#[test]
fn a_static_member_that_restarts_asks_for_its_assignment_in_time() {
    let world = World::new();
    let joins = ["a", "b"].map(|name| world.ask(named(name), 9));
    world.stabilised(joins.into(), 1);
    let again = world.ask(named("b"), 9).answer();
    assert_eq!((again.error_code, again.generation_id), (0, 1));
    world.pass(REBALANCE);
    assert_eq!(world.phase(), "PreparingRebalance");
    world.check();
}

/// Its first join is broken off, with no other member in the group.
#[test]
fn a_static_member_that_comes_back_alone_waits_for_nobody() {
    let world = World::new();
    drop(world.ask(named("a"), 9));
    world.pass(INITIAL_DELAY);
    assert_eq!(world.phase(), "PreparingRebalance");
    let again = world.ask(named("a"), 9).answer();
    assert_eq!((again.error_code, again.generation_id), (0, 1));
    world.check();
}

#[test]
fn the_shutdown_answers_everything_that_waits() {
    let world = World::new();
    let mut joins = [world.join().1, world.join().1];
    world.coordinator.shutdown();
    for join in &mut joins {
        assert_eq!(join.answer().error_code, Code::NotCoordinator.code());
    }
    let world = World::new();
    let mut joins = [world.join().1, world.join().1];
    world.pass(INITIAL_DELAY);
    let ids = World::members(&mut joins);
    let mut sync = world.sync(&ids[1], 1, &[]);
    world.coordinator.shutdown();
    assert_eq!(sync.answer().error_code, Code::NotCoordinator.code());
    let late = world.ask(join_request(""), 3).answer().error_code;
    assert_eq!(late, Code::NotCoordinator.code());
    let group = world.coordinator.group(GROUP).expect("it stays");
    assert_eq!(group.lock().members.len(), 2);
}
