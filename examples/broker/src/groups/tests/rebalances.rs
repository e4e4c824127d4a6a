//! Rebalances, one step after the other.

use super::world::{
    GROUP, INITIAL_DELAY, REBALANCE, SESSION, World, join_request, protocols, share, sync_request,
};
use crate::wire::groups::GroupRequest;
use kafka_protocol::messages::GroupId;
use std::time::Duration;

const ILLEGAL_GENERATION: i16 = 22;
const INCONSISTENT_GROUP_PROTOCOL: i16 = 23;
const INVALID_GROUP_ID: i16 = 24;
const UNKNOWN_MEMBER_ID: i16 = 25;
const INVALID_SESSION_TIMEOUT: i16 = 26;
const REBALANCE_IN_PROGRESS: i16 = 27;
const NOT_COORDINATOR: i16 = 16;

const MS: Duration = Duration::from_millis(1);

#[test]
fn one_member_leads_and_gets_what_it_assigns() {
    let world = World::new();
    let (id, mut join) = world.join();
    world.pass(INITIAL_DELAY - MS);
    assert!(join.waits());
    world.pass(MS);
    let joined = join.joined();
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!((&*joined.leader, &*joined.member_id), (&*id, &*id));
    assert_eq!(joined.protocol_name.as_deref(), Some("range"));
    assert_eq!(joined.protocol_type.as_deref(), Some("consumer"));
    assert_eq!(joined.members.len(), 1);
    assert_eq!(&joined.members[0].metadata[..], b"about range");
    world.check();
    assert_eq!(world.heartbeat(&id, 1), 0);
    let synced = world.sync(&id, 1, &[&id]).synced();
    assert_eq!((synced.error_code, synced.assignment), (0, share(&id, 1)));
    assert_eq!(world.phase(), "Stable");
    assert_eq!(world.heartbeat(&id, 1), 0);
    world.check();
}

/// Each that comes prolongs the wait of the first, but not past the rebalance timeout.
#[test]
fn the_first_members_wait_for_more() {
    let world = World::new();
    let mut joins = vec![world.join().1];
    for _ in 0..4 {
        world.pass(INITIAL_DELAY - MS);
        assert!(joins.iter_mut().all(|join| join.waits()));
        joins.push(world.join().1);
        world.check();
    }
    world.pass(INITIAL_DELAY);
    let answers: Vec<_> = joins.iter_mut().map(|join| join.joined()).collect();
    assert!(answers.iter().all(|answer| answer.generation_id == 1));
    assert!(
        answers
            .iter()
            .all(|answer| answer.leader == answers[0].member_id)
    );
    assert_eq!(answers[0].members.len(), 5);
    assert!(answers[1..].iter().all(|answer| answer.members.is_empty()));
    world.check();

    let world = World::with(|settings| settings.max_members = 1_000);
    let mut first = world.join().1;
    let mut joins = Vec::new();
    let mut waited = Duration::ZERO;
    while first.waits() {
        joins.push(world.join().1);
        world.pass(INITIAL_DELAY / 2);
        waited += INITIAL_DELAY / 2;
        assert!(waited <= REBALANCE, "for ever");
    }
}

#[test]
fn a_newcomer_makes_all_join_again() {
    let world = World::new();
    let ids = world.stable(2);
    let (newcomer, mut joins) = world.join();
    assert_eq!(world.heartbeat(&ids[0], 1), REBALANCE_IN_PROGRESS);
    let mut first = world.rejoin(&ids[0]);
    assert!(first.waits() && joins.waits());
    world.check();
    // The last one ends it, at once.
    let mut second = world.rejoin(&ids[1]);
    let answers = [first.joined(), second.joined(), joins.joined()];
    assert!(answers.iter().all(|answer| answer.generation_id == 2));
    assert!(answers.iter().all(|answer| *answer.leader == *ids[0]));
    world.check();

    // The others wait for the leader.
    let names = [&*ids[0], &*ids[1], &*newcomer];
    let mut syncs = [&*newcomer, &*ids[1]].map(|id| world.sync(id, 2, &[]));
    assert!(syncs.iter_mut().all(|sync| sync.waits()));
    world.check();
    assert_eq!(
        world.sync(&ids[0], 2, &names).synced().assignment,
        share(&ids[0], 2)
    );
    assert_eq!(syncs[0].synced().assignment, share(&newcomer, 2));
    assert_eq!(syncs[1].synced().assignment, share(&ids[1], 2));
    assert_eq!(world.heartbeat(&newcomer, 1), ILLEGAL_GENERATION);
    world.check();
}

#[test]
fn who_does_not_join_again_is_left_behind_after_the_rebalance_timeout() {
    let world = World::with(|_| {});
    let ids = world.stable(2);
    let (_, mut newcomer) = world.join();
    let mut first = world.rejoin(&ids[0]);
    let mut passed = Duration::ZERO;
    // The second one lives, but does not join.
    while passed + SESSION / 2 < REBALANCE {
        world.pass(SESSION / 2);
        passed += SESSION / 2;
        assert_eq!(world.heartbeat(&ids[1], 1), REBALANCE_IN_PROGRESS);
        assert!(first.waits() && newcomer.waits(), "after {passed:?}");
    }
    world.pass(REBALANCE - passed);
    assert_eq!(first.joined().members.len(), 2);
    assert_eq!(newcomer.joined().generation_id, 2);
    assert_eq!(world.heartbeat(&ids[1], 2), UNKNOWN_MEMBER_ID);
    assert_eq!(world.rejoin(&ids[1]).joined().error_code, UNKNOWN_MEMBER_ID);
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
    world.check();
}

#[test]
fn the_death_of_the_leader_before_it_assigned_makes_all_join_again() {
    let world = World::new();
    let mut joins = [world.join(), world.join()];
    world.pass(INITIAL_DELAY);
    let ids = joins.each_mut().map(|(id, join)| {
        join.joined();
        id.clone()
    });
    let mut sync = world.sync(&ids[1], 1, &[]);
    world.pass(SESSION - MS);
    assert!(sync.waits());
    world.pass(MS);
    assert_eq!(sync.synced().error_code, REBALANCE_IN_PROGRESS);
    let joined = world.rejoin(&ids[1]).joined();
    assert_eq!((joined.generation_id, &*joined.leader), (2, &*ids[1]));
    world.check();
}

/// It sends heartbeats, but no sync: after the rebalance timeout the others go on without it.
#[test]
fn who_does_not_sync_is_removed_after_the_rebalance_timeout() {
    let world = World::new();
    let mut joins = [world.join(), world.join()];
    world.pass(INITIAL_DELAY);
    let ids = joins.each_mut().map(|(id, join)| {
        join.joined();
        id.clone()
    });
    let mut sync = world.sync(&ids[1], 1, &[]);
    let mut passed = Duration::ZERO;
    while passed + SESSION / 2 < REBALANCE {
        world.pass(SESSION / 2);
        passed += SESSION / 2;
        assert_eq!(world.heartbeat(&ids[0], 1), 0);
        assert!(sync.waits());
    }
    world.pass(REBALANCE - passed);
    assert_eq!(sync.synced().error_code, REBALANCE_IN_PROGRESS);
    assert_eq!(world.heartbeat(&ids[0], 1), UNKNOWN_MEMBER_ID);
    assert_eq!(world.rejoin(&ids[1]).joined().generation_id, 2);
    world.check();
}

#[test]
fn leaving_rebalances_and_the_last_one_leaves_an_empty_group() {
    let world = World::new();
    let ids = world.stable(2);
    assert_eq!(world.leave(&ids[0], None), 0);
    assert_eq!(world.leave(&ids[0], None), UNKNOWN_MEMBER_ID);
    assert_eq!(world.heartbeat(&ids[1], 1), REBALANCE_IN_PROGRESS);
    let joined = world.rejoin(&ids[1]).joined();
    assert_eq!((joined.generation_id, &*joined.leader), (2, &*ids[1]));
    assert_eq!(world.leave(&ids[1], None), 0);
    assert_eq!(world.phase(), "Empty");
    assert_eq!(world.coordinator.members(), 0);
    world.check();
    // The generations go on.
    let (_, mut join) = world.join();
    world.pass(INITIAL_DELAY);
    assert_eq!(join.joined().generation_id, 4);
}

/// A member id that was given out and not used holds up a rebalance for a session, and no longer.
#[test]
fn an_expected_member_is_waited_for_like_the_others() {
    let world = World::new();
    let ids = world.stable(1);
    let expected = world.member_id(join_request(""));
    let mut again = world.rejoin(&ids[0]);
    assert!(again.waits());
    world.pass(SESSION - MS);
    assert!(again.waits());
    world.pass(MS);
    assert_eq!(again.joined().generation_id, 2);
    assert_eq!(
        world.rejoin(&expected).joined().error_code,
        UNKNOWN_MEMBER_ID
    );
    world.check();
}

/// Before version 4 a client is a member at once. If it goes before it hears of that, its member goes with its session.
#[test]
fn a_client_that_goes_while_it_joins_is_not_waited_for_longer_than_a_session() {
    let world = World::new();
    let ids = world.stable(1);
    let join = world.join_with(join_request(""), 3);
    let mut again = world.rejoin(&ids[0]);
    // All are here.
    assert_eq!(again.joined().generation_id, 2);
    world.sync(&ids[0], 2, &[&ids[0]]).synced();
    drop(join);
    let ghost = world.join_with(join_request(""), 3);
    drop(ghost);
    assert_eq!(world.heartbeat(&ids[0], 2), REBALANCE_IN_PROGRESS);
    let mut again = world.rejoin(&ids[0]);
    assert!(again.waits(), "for the members that left");
    world.check();
    world.pass(SESSION - MS);
    assert!(again.waits());
    world.pass(MS);
    assert_eq!(again.joined().members.len(), 1);
    world.check();
}

#[test]
fn a_second_request_takes_the_place_of_the_first() {
    let world = World::new();
    let (id, mut first) = world.join();
    let mut second = world.rejoin(&id);
    assert_eq!(first.joined().error_code, REBALANCE_IN_PROGRESS);
    // The first connection ends only now: that is no matter of the second.
    drop(first);
    world.pass(INITIAL_DELAY);
    assert_eq!(second.joined().error_code, 0);
    world.check();
}

/// Joined again with nothing new, by a member that missed the answer: it is told again, and no other member is
/// disturbed.
#[test]
fn an_answer_that_was_missed_is_given_again() {
    let world = World::new();
    let ids = world.stable(2);
    let again = world.rejoin(&ids[1]).joined();
    assert_eq!((again.generation_id, &*again.leader), (1, &*ids[0]));
    assert_eq!(
        world.sync(&ids[1], 1, &[]).synced().assignment,
        share(&ids[1], 1)
    );
    assert_eq!(world.phase(), "Stable");
    // The leader means it: it wants to assign anew.
    assert!(world.rejoin(&ids[0]).waits());
    assert_eq!(world.phase(), "PreparingRebalance");
    world.check();
}

#[test]
fn the_protocol_is_one_that_all_support_and_most_prefer() {
    let world = World::new();
    let offers = [
        &["a", "b", "c"][..],
        &["c", "b"],
        &["b", "c"],
        &["c", "b", "x"],
    ];
    let mut joins = offers.map(|offer| {
        let request = |id: &str| join_request(id).with_protocols(protocols(offer));
        let id = world.member_id(request(""));
        world.join_with(request(&id), 9)
    });
    let refused = join_request("").with_protocols(protocols(&["a", "x"]));
    let refused = world.join_with(refused, 9).joined();
    assert_eq!(refused.error_code, INCONSISTENT_GROUP_PROTOCOL);
    world.pass(INITIAL_DELAY);
    // "b" of the first and the third, "c" of the second and the fourth: a tie, of which either may win, but one.
    let chosen = joins.each_mut().map(|join| join.joined().protocol_name);
    assert!(["b", "c"].contains(&chosen[0].as_deref().expect("a protocol")));
    assert!(chosen.iter().all(|protocol| *protocol == chosen[0]));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let world = World::new();
    let ids = world.stable(1);
    let refused = |request| world.join_with(request, 9).joined().error_code;
    let join = || join_request("");
    let group = |id: &str| GroupId(crate::groups::answers::text(id));
    assert_eq!(refused(join().with_group_id(group(""))), INVALID_GROUP_ID);
    assert_eq!(
        refused(join().with_group_id(group(&"g".repeat(256)))),
        INVALID_GROUP_ID
    );
    for session in [-1, 0, 499, 1_800_001, i32::MAX, i32::MIN] {
        let request = join().with_session_timeout_ms(session);
        assert_eq!(refused(request), INVALID_SESSION_TIMEOUT);
    }
    for names in [&[][..], &["unknown"]] {
        let request = join().with_protocols(protocols(names));
        assert_eq!(refused(request), INCONSISTENT_GROUP_PROTOCOL);
    }
    let other = crate::groups::answers::text("connect");
    assert_eq!(
        refused(join().with_protocol_type(other)),
        INCONSISTENT_GROUP_PROTOCOL
    );
    assert_eq!(refused(join_request("nobody")), UNKNOWN_MEMBER_ID);
    let elsewhere = join_request("nobody").with_group_id(group("nowhere"));
    assert_eq!(refused(elsewhere), UNKNOWN_MEMBER_ID);
    assert!(world.coordinator.group("nowhere").is_none());
    // Refused by a group that is not there: none is made.
    let request = join()
        .with_group_id(group("new"))
        .with_protocols(Vec::new());
    assert_eq!(refused(request), INCONSISTENT_GROUP_PROTOCOL);
    assert!(world.coordinator.group("new").is_none());

    assert_eq!(
        world.sync("nobody", 1, &[]).synced().error_code,
        UNKNOWN_MEMBER_ID
    );
    assert_eq!(
        world.sync(&ids[0], 2, &[]).synced().error_code,
        ILLEGAL_GENERATION
    );
    let mut request = sync_request(&ids[0], 1, &[]);
    request.protocol_name = Some(crate::groups::answers::text("roundrobin"));
    let mut sync = world.later(GroupRequest::SyncGroup(request), 5);
    assert_eq!(sync.synced().error_code, INCONSISTENT_GROUP_PROTOCOL);
    assert_eq!(world.heartbeat("nobody", 1), UNKNOWN_MEMBER_ID);
    assert_eq!(world.heartbeat(&ids[0], 0), ILLEGAL_GENERATION);
    assert_eq!(world.leave("nobody", None), UNKNOWN_MEMBER_ID);
    assert_eq!(world.leave("", None), UNKNOWN_MEMBER_ID);
    assert_eq!(world.leave("", Some("nobody")), UNKNOWN_MEMBER_ID);
    // None of it did the group any harm.
    assert_eq!((world.phase(), world.heartbeat(&ids[0], 1)), ("Stable", 0));
    assert_eq!(
        world
            .coordinator
            .group(GROUP)
            .map(|group| group.lock().members.len()),
        Some(1)
    );
    world.check();
}

#[test]
fn the_shutdown_answers_everything_that_waits() {
    // A join phase,
    let world = World::new();
    let mut joins = [world.join().1, world.join().1];
    world.coordinator.shutdown();
    joins
        .iter_mut()
        .for_each(|join| assert_eq!(join.joined().error_code, NOT_COORDINATOR));
    // a sync phase,
    let world = World::new();
    let mut joins = [world.join(), world.join()];
    world.pass(INITIAL_DELAY);
    let ids = joins.each_mut().map(|(id, join)| {
        join.joined();
        id.clone()
    });
    let mut sync = world.sync(&ids[1], 1, &[]);
    world.coordinator.shutdown();
    assert_eq!(sync.synced().error_code, NOT_COORDINATOR);
    // and what comes after.
    assert_eq!(
        world.join_with(join_request(""), 3).joined().error_code,
        NOT_COORDINATOR
    );
    let ids = &ids;
    let mut leader = world.sync(&ids[0], 1, &[&ids[0], &ids[1]]);
    assert_eq!(leader.synced().error_code, 0);
    let mut join = world.rejoin(&ids[0]);
    assert_eq!(join.joined().error_code, NOT_COORDINATOR);
}
