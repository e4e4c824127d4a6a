//! Rebalances, one step after the other.

use super::*;

const MS: Duration = Duration::from_millis(1);

fn named(instance: &str) -> JoinGroupRequest {
    join_request("")
        .with_group_instance_id(Some(text(instance)))
        .with_session_timeout_ms(2 * REBALANCE.as_millis() as i32)
}

#[test]
fn the_first_members_wait_for_more_and_share_what_the_leader_assigns() {
    let mut world = World::new();
    // A client id is cut between characters, where it goes into a member id: byte 128 is in the middle of one.
    world.client_id = format!("x{}", "\u{e4}".repeat(100));
    let (leader, mut first) = world.join();
    let kept = format!("x{}-", "\u{e4}".repeat(63));
    assert!(leader.starts_with(&kept), "{leader}");
    world.pass(INITIAL_DELAY - MS);
    let (second, mut late) = world.join();
    assert!(first.waits() && late.waits());
    world.pass(MS);
    let (joined, other) = (first.answer(), late.answer());
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!((&*joined.leader, &*other.leader), (&*leader, &*leader));
    assert_eq!((joined.members.len(), other.members.len()), (2, 0));
    let agreed = [joined.protocol_type, joined.protocol_name];
    assert_eq!(agreed, ["consumer", "range"].map(|it| Some(text(it))));
    assert_eq!(&joined.members[0].metadata[..], b"about range");
    // The others wait for the leader.
    let mut sync = world.sync(&second, 1, &[]);
    assert!(sync.waits());
    let synced = world.sync(&leader, 1, &[&leader, &second]).answer();
    assert_eq!(synced.assignment, share(&leader, 1));
    assert_eq!(sync.answer().assignment, share(&second, 1));
    assert_eq!(world.phase(), "Stable");
    // However often an administrator asks for a group, the answer has it once.
    let often = [GROUP, "missing", GROUP].map(group).to_vec();
    let request = DescribeGroupsRequest::default().with_groups(often);
    let groups = world.ask(request, 5).answer().groups;
    assert_eq!((groups.len(), groups[0].members.len()), (2, 2));
    assert_eq!(groups[0].members[1].member_metadata, "about range");
    let missing = (&*groups[1].group_id.0, &*groups[1].group_state);
    assert_eq!(missing, ("missing", "Dead"));
    // In the list are those in any of the states that it asks for.
    let states = ["Empty", "stable"].map(text).to_vec();
    let request = ListGroupsRequest::default().with_states_filter(states);
    let groups = world.ask(request, 4).answer().groups;
    assert_eq!((groups.len(), &*groups[0].protocol_type), (1, "consumer"));
    // In the versions in which one leaves alone.
    let leave = LeaveGroupRequest::default().with_group_id(group(GROUP));
    let leave = leave.with_member_id(text(&second));
    let left = [(); 2].map(|()| world.ask(leave.clone(), 2).answer().error_code);
    assert_eq!(left, [0, Code::UnknownMemberId.code()]);
    assert_eq!(world.members(), 1);
}

/// Among those that all know. They wait for more members no longer than they have time themselves.
#[test]
fn members_agree_on_the_protocol_that_most_like_best() {
    for (most, one) in [("a", "b"), ("b", "a")] {
        let world = World::with(|settings| settings.initial_delay = REBALANCE);
        let join = |id: &str, offered: [&str; 2]| {
            let hasty = join_request(id).with_rebalance_timeout_ms(700);
            world.ask(hasty.with_protocols(protocols(&offered)), 3)
        };
        let joins = [[one, most], [most, one], [most, one]].map(|offered| join("", offered));
        world.pass(700 * MS);
        let ids = joins.map(|mut join| {
            let joined = join.answer();
            assert_eq!(joined.protocol_name.as_deref(), Some(most));
            joined.member_id
        });
        // They choose anew each time, as when their programs are replaced one by one.
        for mut join in [1, 2, 0].map(|at| join(&ids[at], [one, most])) {
            assert_eq!(join.answer().protocol_name.as_deref(), Some(one));
        }
    }
}

/// They know many protocols, of which all but one are unknown to the last of them.
#[test]
fn many_members_agree_soon() {
    let mut world = World::with(|settings| {
        settings.max_members = 1_000;
        settings.max_bytes = 64 << 20;
    });
    let names: Vec<_> = (0..64).map(|number| format!("{number:050}")).collect();
    let mut names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut join = |client_id: &str, names: &[&str]| {
        world.client_id = client_id.to_owned();
        world.ask(join_request("").with_protocols(protocols(names)), 3)
    };
    let mut joins = vec![join("z", &names[63..])];
    // One that says a name twice knows it, and the others need not.
    names[1] = names[0];
    joins.extend((0..200).map(|_| join("a", &names)));
    let begun = Instant::now();
    world.pass(INITIAL_DELAY);
    let took = begun.elapsed();
    for join in &mut joins {
        let joined = join.answer();
        assert_eq!(joined.protocol_name.as_deref(), Some(names[63]));
    }
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// There are more partitions, say. Any other member has only missed its answer.
#[test]
fn a_leader_that_joins_again_assigns_anew() {
    let world = World::with(|settings| settings.max_members = 2);
    // (Beside another group, of which it has no member.)
    drop(world.ask(join_request("").with_group_id(group("h")), 3));
    let ids = world.stable(2);
    assert_eq!(world.rejoin(&ids[1]).answer().generation_id, 1);
    assert_eq!(world.phase(), "Stable");
    let mut leader = world.rejoin(&ids[0]);
    assert!(leader.waits());
    // An administrator is told no shares: these would be those of the generation before.
    let told = world.described();
    let agreed = (&*told.protocol_type, &*told.protocol_data);
    assert_eq!(agreed, ("consumer", ""));
    let mut members = told.members.iter();
    assert!(members.all(|it| it.member_assignment.is_empty()));
    let beat = world.heartbeat(&ids[1], 1);
    assert_eq!(beat, Code::RebalanceInProgress.code());
    let mut other = world.rejoin(&ids[1]);
    let generations = [&mut leader, &mut other].map(|join| join.answer().generation_id);
    assert_eq!(generations, [2, 2]);
    // A member to which it assigns nothing does not go on with what it had in the generation before.
    let synced = world.sync(&ids[0], 2, &[&ids[0]]).answer();
    assert_eq!(synced.assignment, share(&ids[0], 2));
    let synced = world.sync(&ids[1], 2, &[]).answer();
    assert_eq!((synced.error_code, synced.assignment.len()), (0, 0));
    // It ends the generation once it has something else to say.
    let changed = |generation| {
        let mut changed = join_request(&ids[1]);
        changed.protocols[0].metadata = share(&ids[1], generation);
        world.ask(changed, 9)
    };
    // Before the leader has assigned, each gets its answer again. (And so early, too, it may end the generation.)
    for _ in 0..2 {
        for mut join in [changed(2), world.rejoin(&ids[0])] {
            assert_eq!(join.answer().generation_id, 3);
        }
    }
    let told = world.described();
    let told = [told.group_state, told.protocol_data];
    assert_eq!(told, ["CompletingRebalance", ""].map(text));
    let mut join = changed(3);
    assert!(join.waits());
    let joined = world.rejoin(&ids[0]).answer();
    let mut members = joined.members.iter();
    assert!(members.any(|it| it.metadata == share(&ids[1], 3)));
    assert_eq!((joined.generation_id, join.answer().generation_id), (4, 4));
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
        for beat in 1..6 {
            world.pass(REBALANCE / 6);
            assert_eq!(world.heartbeat(id, generation), expected, "{beat}");
        }
    };
    alive(&ids[1], 1, Code::RebalanceInProgress.code());
    assert!(first.waits() && join.waits());
    world.pass(REBALANCE / 6);
    assert_eq!(first.answer().members.len(), 2);
    let joined = join.answer();
    let newcomer = joined.member_id.to_string();
    assert_eq!(joined.generation_id, 2);
    assert_eq!(world.heartbeat(&ids[1], 2), Code::UnknownMemberId.code());

    let mut sync = world.sync(&newcomer, 2, &[]);
    alive(&ids[0], 2, 0);
    assert!(sync.waits());
    world.pass(REBALANCE / 6);
    assert_eq!(sync.answer().error_code, Code::RebalanceInProgress.code());
    assert_eq!(world.heartbeat(&ids[0], 2), Code::UnknownMemberId.code());
    let joined = world.rejoin(&newcomer).answer();
    assert_eq!((joined.generation_id, &*joined.leader), (3, &*newcomer));
    // What it asked for when it joined again.
    let mut join = world.ask(join_request("").with_rebalance_timeout_ms(1_000), 3);
    alive(&newcomer, 3, Code::RebalanceInProgress.code());
    assert!(join.waits());
    world.pass(REBALANCE / 6);
    assert_eq!(join.answer().members.len(), 1);
    // Of those that do not join again, all go together.
    let world = World::new();
    let short = |id: &str| join_request(id).with_rebalance_timeout_ms(1_000);
    let joins = [(); 4].map(|()| world.ask(short(""), 3));
    let ids = world.stabilised(joins.into(), 4);
    let mut leader = world.ask(short(&ids[0]), 9);
    assert!(leader.waits());
    world.pass(1_000 * MS);
    assert_eq!(leader.answer().members.len(), 1);
    // Half an hour is the longest, though the leader wants less.
    let (world, minutes) = (World::new(), 60_000);
    let patient = join_request("")
        .with_session_timeout_ms(30 * minutes)
        .with_rebalance_timeout_ms(31 * minutes);
    let _leader = world.ask(patient.clone().with_rebalance_timeout_ms(1_000), 3);
    let mut join = world.ask(patient, 3);
    world.pass(INITIAL_DELAY + 29 * minutes as u32 * MS);
    assert_eq!(world.heartbeat(&join.answer().member_id, 1), 0);
    world.pass(minutes as u32 * MS);
    assert_eq!(world.members(), 0);
}

/// Or the group would be rebalanced without end while they are away, as fast as that can be done.
#[test]
fn a_rebalance_lasts_half_a_second_also_of_members_that_want_none() {
    for timeout in [0, -1, i32::MIN] {
        let hasty = |join: JoinGroupRequest| join.with_rebalance_timeout_ms(timeout);
        let world = World::with(|settings| settings.reaper = Reaper::Manual);
        let joins = [named("a"), join_request("")].map(|join| world.ask(hasty(join), 3));
        let ids = world.stabilised(joins.into(), 2);
        assert_eq!(world.leave(&ids[1], None), 0);
        let group = world.coordinator.group(GROUP).expect("it is there");
        let before = group.lock().round;
        for _ in 0..50 {
            world.pass(100 * MS);
        }
        let rounds = group.lock().round - before;
        assert_eq!(rounds, 10, "in five seconds");
        // It may come back in each of them.
        world.pass(499 * MS);
        let again = hasty(named("a")).with_member_id(text(&ids[0]));
        assert_eq!(world.ask(again, 3).answer().error_code, 0);
    }
}

#[test]
fn a_silent_member_is_removed_when_its_session_expires() {
    let world = World::new();
    let ids = world.stable(4);
    world.pass(SESSION - MS);
    assert_eq!([0, 1].map(|at| world.heartbeat(&ids[at], 1)), [0, 0]);
    assert_eq!(world.rejoin(&ids[3]).answer().error_code, 0);
    world.pass(MS);
    let members = world.members();
    assert_eq!((&*world.phase(), members), ("PreparingRebalance", 3));
    assert_eq!(world.heartbeat(&ids[2], 1), Code::UnknownMemberId.code());
    // While it waits it need not send heartbeats; the other one dies, and that ends the wait.
    let longer = 2 * SESSION.as_millis() as i32;
    let mut join = world.ask(join_request(&ids[0]).with_session_timeout_ms(longer), 9);
    world.pass(SESSION - 2 * MS);
    assert!(join.waits());
    world.pass(MS);
    let joined = join.answer();
    assert_eq!((joined.generation_id, joined.members.len()), (2, 1));
    // Its session is as long as it said last.
    world.pass(2 * SESSION - MS);
    assert_eq!(world.members(), 1);
    world.pass(MS);
    let told = world.described();
    let told = [told.group_state, told.protocol_type];
    assert_eq!(told, ["Empty", "consumer"].map(text));
    // Those that come next may be of another kind.
    let other = join_request("").with_protocol_type(text("connect"));
    let mut joins = [other.clone(), other].map(|join| world.ask(join, 3));
    assert!(joins.iter_mut().all(Asked::waits));
}

#[test]
fn in_version_0_a_rebalance_may_last_as_long_as_a_session() {
    let world = World::new();
    // What is not in the request.
    let request = join_request("").with_rebalance_timeout_ms(-1);
    let first = world
        .stabilised(vec![world.ask(request.clone(), 0)], 1)
        .remove(0);
    let mut second = world.ask(request.clone(), 0);
    world.pass(SESSION - MS);
    assert_eq!(world.heartbeat(&first, 1), Code::RebalanceInProgress.code());
    assert!(second.waits());
    let again = world.ask(request.with_member_id(text(&first)), 0).answer();
    assert_eq!((again.error_code, again.generation_id), (0, 2));
    assert_eq!((again.members.len(), second.answer().generation_id), (2, 2));
}

/// By the clock: the broker stood still, say, and no thread has come yet to expire it.
#[test]
fn a_member_whose_session_is_over_is_told_so_whatever_it_asks() {
    let world = World::with(|settings| settings.reaper = Reaper::Manual);
    let ids = world.stable(6);
    world.clock.advance(SESSION - MS);
    assert_eq!(world.heartbeat(&ids[5], 1), 0);
    world.clock.advance(MS);
    let commit = commit_request((GROUP, &ids[0], 1), &[(0, 7)], 0);
    let changed = join_request(&ids[4]).with_protocols(protocols(&["range"]));
    let errors = [
        world.heartbeat(&ids[0], 1),
        commit_errors(&world.ask(commit, 8).answer())[0],
        world.leave(&ids[1], None),
        world.sync(&ids[2], 1, &[]).answer().error_code,
        world.rejoin(&ids[3]).answer().error_code,
        // This begins a rebalance.
        world.ask(changed, 9).answer().error_code,
    ];
    assert_eq!(errors, [Code::UnknownMemberId.code(); 6]);
    // Another is alive, as it was told.
    let rebalances = Code::RebalanceInProgress.code();
    assert_eq!(world.heartbeat(&ids[5], 1), rebalances);
    world.expire();
    assert_eq!(world.members(), 1);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let world = World::with(|settings| {
        settings.max_members = 2;
        settings.max_bytes = 2_000;
    });
    // Groups are in memory. Who has been a member before a restart is told so, or it would not join again.
    let before = &World::new().stable(1)[0];
    let errors = [
        world.heartbeat(before, 1),
        world.sync(before, 1, &[]).answer().error_code,
        world.leave(before, None),
        world.rejoin(before).answer().error_code,
    ];
    assert_eq!(errors, [Code::UnknownMemberId.code(); 4]);
    let ids = world.stable(1);
    let join = || join_request("");
    let other = |id: &str| join().with_group_id(group(id));
    let of_kind = |kind: &str| other("i").with_protocol_type(text(kind));
    let session = |milliseconds| join().with_session_timeout_ms(milliseconds);
    let offers = |names: &[&str]| join().with_protocols(protocols(names));
    let (unknown, inconsistent) = (Code::UnknownMemberId, Code::InconsistentGroupProtocol);
    let says = |name: &str, length| {
        let mut join = offers(&["range", name]);
        join.protocols[1].metadata = vec![0; length].into();
        join
    };
    for (request, error) in [
        (other(""), Code::InvalidGroupId),
        (other(&"g".repeat(256)), Code::InvalidGroupId),
        (session(499), Code::InvalidSessionTimeout),
        (session(500), Code::MemberIdRequired),
        (session(30 * 60_000 + 1), Code::InvalidSessionTimeout),
        (offers(&[]), inconsistent),
        (offers(&["unknown"]), inconsistent),
        (offers(&["range"; 65]), inconsistent),
        (join().with_protocol_type(text("connect")), inconsistent),
        (says("x", 2_000), Code::GroupMaxSizeReached),
        (says(&"x".repeat(2_000), 0), Code::GroupMaxSizeReached),
        (named(""), Code::InvalidRequest),
        (named(&"x".repeat(256)), Code::InvalidRequest),
        (join_request("stranger"), unknown),
        (named(&"x".repeat(255)).with_member_id(text("x")), unknown),
        // Of two groups there may be, that without a member makes room for the next.
        (other("h"), Code::MemberIdRequired),
        (other("i"), Code::MemberIdRequired),
        (of_kind(""), inconsistent),
        (of_kind(&"k".repeat(256)), inconsistent),
    ] {
        let answer = world.ask(request.clone(), 9).answer();
        assert_eq!(answer.error_code, error.code(), "{request:?}");
    }
    let agreed = |kind: &str, name: &str| {
        let sync = sync_request(&ids[0], 1, &[]).with_protocol_type(Some(text(kind)));
        sync.with_protocol_name(Some(text(name)))
    };
    for (request, error) in [
        (sync_request("stranger", 1, &[]), unknown),
        (sync_request(&ids[0], 0, &[]), Code::IllegalGeneration),
        (agreed("consumer", "roundrobin"), inconsistent),
        (agreed("connect", "range"), inconsistent),
    ] {
        assert_eq!(world.ask(request, 5).answer().error_code, error.code());
    }
    let synced = world.ask(agreed("consumer", "range"), 5).answer();
    let told = [synced.protocol_type, synced.protocol_name];
    assert_eq!(told, ["consumer", "range"].map(|it| Some(text(it))));
    assert_eq!(world.leave("stranger", None), unknown.code());
    assert_eq!(world.leave("", Some("stranger")), unknown.code());
    // None of it did the group any harm.
    assert_eq!(world.phase(), "Stable");
    // One that has missed a generation hears of it, or it would not join again.
    let beats = [1, 0].map(|generation| world.heartbeat(&ids[0], generation));
    assert_eq!(beats, [0, Code::IllegalGeneration.code()]);
    // A leader that assigns more than there is memory for is told so, and the group goes on.
    assert_eq!(world.rejoin(&ids[0]).answer().generation_id, 2);
    let mut sync = sync_request(&ids[0], 2, &[&ids[0]]);
    sync.assignments[0].assignment = vec![0; 2_000].into();
    let refused = world.ask(sync, 5).answer().error_code;
    assert_eq!(refused, Code::UnknownServerError.code());
    assert_eq!(world.rejoin(&ids[0]).answer().generation_id, 3);
    // There are as many members as there may be, in the group or in all together.
    for world in [world, World::with(|settings| settings.max_sessions = 1)] {
        drop(world.ask(join(), 3));
        let next = world.ask(join(), 3).answer();
        assert_eq!(next.error_code, Code::GroupMaxSizeReached.code());
    }
}

/// Or they would be kept with their members, whatever they are.
#[test]
fn members_have_the_ids_that_they_are_given() {
    let world = World::new();
    let given = world.ask(join_request(""), 4).answer().member_id;
    let (client_id, rest) = given.rsplit_once('-').expect("a number at its end");
    let process = client_id.rsplit_once('-').expect("a process before it").1;
    let of = |client_id: &str, number: &str| format!("{client_id}-{process}-{number}");
    let unknown = Code::UnknownMemberId.code();
    for id in [
        of(&"x".repeat(129), rest),
        of(&"x".repeat(1_000_000), rest),
        of("a-client", &format!("0{rest}")),
        of("a-client", &format!("+{rest}")),
        of("a-client", "99"),
        of("a-client", ""),
        of("a-client", &"9".repeat(50)),
        format!("{process}-{rest}"),
        format!("{given}x"),
        process.to_owned(),
    ] {
        let answer = world.rejoin(&id).answer();
        assert_eq!(answer.error_code, unknown, "{id:.200}");
        // One that is longer than any is not said again.
        let is_said = *answer.member_id == *id;
        assert_eq!(is_said, id.len() < 1_000, "{id:.200}");
    }
    assert_eq!(world.members(), 0);
    // A client id may have the same sign in it, and may be empty.
    let before = world.memory_in_use();
    let mut joins = [&*given, &of("", rest), &of("a-b", rest)].map(|id| world.rejoin(id));
    assert!(joins.iter_mut().all(Asked::waits));
    assert_eq!(world.members(), 3);
    // Each takes as much memory as the longest, beside two protocols.
    assert!(world.memory_in_use() - before >= 3 * (166 + 2 * 96));
}

/// One member tells the others what all of them have said, and an administrator is told that, too.
#[test]
fn a_group_whose_members_say_too_much_for_an_answer_takes_no_more_of_them() {
    let world = World::with(|settings| settings.max_bytes = 256 << 20);
    let says = |id: &str, group: &str, mib: usize| {
        let mut join = join_request(id).with_protocols(protocols(&["range"]));
        join.protocols[0].metadata = vec![0; mib << 20].into();
        join.with_group_id(self::group(group))
    };
    let refused = Code::GroupMaxSizeReached.code();
    let mut joins = [9, 6].map(|mib| world.ask(says("", GROUP, mib), 3));
    let third = world.ask(says("", GROUP, 9), 3).answer();
    assert_eq!(third.error_code, refused);
    world.pass(INITIAL_DELAY);
    let ids = World::joined(&mut joins);
    // Neither may one that is there say more, nor one under its name: what it has said before goes.
    let more = world.ask(says(&ids[1], GROUP, 15), 3).answer();
    assert_eq!(more.error_code, refused);
    // One that is no member is told so, or it would not come anew.
    let stranger = world.ask(says("stranger", GROUP, 15), 3).answer();
    assert_eq!(stranger.error_code, Code::UnknownMemberId.code());
    let leader = world.ask(says(&ids[0], GROUP, 10), 3);
    let mut joins = [leader, world.ask(says(&ids[1], GROUP, 13), 3)];
    World::joined(&mut joins);
    let named = |mib| says("", "named", mib).with_group_instance_id(Some(text("a")));
    for mib in [14, 15] {
        assert!(world.ask(named(mib), 3).waits());
    }
    world.pass(INITIAL_DELAY);
    assert_eq!(world.ask(named(15), 3).answer().error_code, 0);
    assert_eq!(world.ask(named(25), 3).answer().error_code, refused);
    // Those are described for which there is room.
    for id in [GROUP, "named"] {
        let group = world.coordinator.group(id).expect("it is there");
        let mut state = group.lock();
        state.phase = Phase::Stable;
    }
    let all = [GROUP, "missing", "named"].map(group).to_vec();
    let request = DescribeGroupsRequest::default().with_groups(all);
    let found = world.ask(request, 5).answer().groups;
    let told = found.iter().map(|it| (it.error_code, it.members.len()));
    assert!(told.eq([(0, 2), (0, 0), (Code::PolicyViolation.code(), 0)]));
}

#[test]
fn who_waits_for_memory_while_a_group_grows_asks_for_it_again() {
    let world = World::new();
    let ids = world.stable(1);
    let request = DescribeGroupsRequest::default().with_groups(vec![group(GROUP)]);
    let mut waiting = world.ask(request.clone(), 5);
    let mut other = world.join().1;
    let told = waiting.answer().groups.remove(0);
    let retry = Code::CoordinatorLoadInProgress.code();
    assert_eq!((told.error_code, told.members.len()), (retry, 0));
    // What a leader waits for is what there was: its members go on with that.
    let mut leader = world.rejoin(&ids[0]);
    let taken = world.memory_in_use();
    assert_eq!(other.answer().error_code, 0);
    assert_eq!(world.leave(&ids[0], None), 0);
    assert_eq!(world.memory_in_use(), taken);
    assert_eq!(leader.answer().members.len(), 2);
    assert!(world.memory_in_use() < taken);
}

#[test]
fn a_static_member_that_restarts_disturbs_no_other() {
    // "a" leads. The first `synced` have their assignments, and the one that restarts asks for its own, or does not.
    for (name, synced, asks) in [
        ("b", 2, true),
        ("a", 2, true),
        ("b", 1, true),
        ("b", 1, false),
    ] {
        let mut world = World::with(|settings| settings.max_members = 2);
        let joins = ["a", "b"].map(|name| world.ask(named(name), 9));
        let ids = world.stabilised(joins.into(), synced);
        let before = &ids[usize::from(name == "b")];
        world.client_id = "another".to_owned();
        let again = world.ask(named(name), 9).answer();
        assert_eq!((again.error_code, again.generation_id), (0, 1));
        // One that led is not told that it does, or it would assign anew.
        assert_eq!(*again.leader, *ids[0]);
        assert!(again.member_id != **before && again.members.is_empty());
        // Nothing that its client before has said of itself is still true.
        assert_eq!(*world.described().members[1].client_id, *"another");
        if !asks {
            // For that it has as long as its predecessor had, and no longer.
            world.pass(REBALANCE);
            assert_eq!(world.phase(), "PreparingRebalance");
            continue;
        }
        // Its assignment is still its own.
        let synced = world.sync(&again.member_id, 1, &[]).answer();
        assert_eq!(synced.assignment, share(before, 1));
        assert_eq!(world.heartbeat(&again.member_id, 1), 0);
        // The old client is told that another has its name, whatever it does.
        assert_eq!(world.heartbeat(before, 1), Code::UnknownMemberId.code());
        let instance = Some(text(name));
        let join = join_request(before).with_group_instance_id(instance.clone());
        let sync = sync_request(before, 1, &[]).with_group_instance_id(instance.clone());
        let heartbeat = heartbeat_request(before, 1).with_group_instance_id(instance.clone());
        let commit = commit_request((GROUP, before, 1), &[(0, 0)], 0);
        let commit = commit.with_group_instance_id(instance);
        let errors = [
            world.ask(join, 9).answer().error_code,
            world.ask(sync, 5).answer().error_code,
            world.ask(heartbeat, 4).answer().error_code,
            commit_errors(&world.ask(commit, 8).answer())[0],
            world.leave(before, Some(name)),
        ];
        assert_eq!(errors, [Code::FencedInstanceId.code(); 5]);
        // The new one is not removed later, as one that has not asked for its assignment.
        world.pass(REBALANCE);
        assert_eq!(world.phase(), "Stable");
        // An administrator removes it by its name.
        assert_eq!(world.leave("", Some(name)), 0);
        assert_eq!(world.phase(), "PreparingRebalance");
    }
    // With another protocol it makes all agree anew: it does not know any more what they have agreed on.
    let world = World::new();
    let ids = world.stabilised(["a", "b"].map(|name| world.ask(named(name), 9)).into(), 2);
    let again = named("b").with_session_timeout_ms(10_000);
    let mut again = world.ask(again.with_protocols(protocols(&["roundrobin"])), 9);
    assert!(again.waits());
    let leader = join_request(&ids[0]).with_group_instance_id(Some(text("a")));
    for joined in [world.ask(leader, 9).answer(), again.answer()] {
        assert_eq!(joined.protocol_name.as_deref(), Some("roundrobin"));
    }
    world.pass(SESSION);
    assert_eq!(world.phase(), "Empty");
}

/// Two clients have one name: the one that came first is told so, whatever it waits for.
#[test]
fn a_static_member_that_is_replaced_while_it_waits_is_told() {
    let (world, fenced) = (World::new(), Code::FencedInstanceId.code());
    let [mut leader, mut first] = ["a", "b"].map(|name| world.ask(named(name), 9));
    let mut second = world.ask(named("b"), 9);
    assert_eq!(first.answer().error_code, fenced);
    world.pass(INITIAL_DELAY);
    // The leader knows them by their names.
    let names = ["a", "b"].map(|name| Some(text(name)));
    let members = leader.answer().members.into_iter();
    assert!(members.map(|it| it.group_instance_id).eq(names.clone()));
    // So does an administrator.
    let members = world.described().members.into_iter();
    assert!(members.map(|it| it.group_instance_id).eq(names));
    let id = second.answer().member_id.to_string();
    let mut sync = world.sync(&id, 1, &[]);
    assert!(sync.waits());
    let mut third = world.ask(named("b"), 9);
    assert_eq!(sync.answer().error_code, fenced);
    assert!(third.waits());
    // So is one that an administrator removes: it has to come anew.
    let removed = (world.leave("", Some("b")), third.answer().error_code);
    assert_eq!(removed, (0, Code::UnknownMemberId.code()));
    // One whose first join is broken off, with no other member in the group, waits for no other.
    let world = World::new();
    drop(world.ask(named("a"), 9));
    world.pass(INITIAL_DELAY);
    assert_eq!(world.phase(), "PreparingRebalance");
    let again = world.ask(named("a"), 9).answer();
    assert_eq!((again.error_code, again.generation_id), (0, 1));
    // Another that has joined meanwhile leads, also when the elder one comes back.
    let world = World::new();
    drop(world.ask(named("a"), 9));
    let mut leader = world.ask(named("b"), 9);
    world.pass(INITIAL_DELAY);
    let id = leader.answer().member_id;
    assert_eq!(world.described().members.len(), 2);
    let mut elder = world.ask(named("a"), 9);
    assert!(elder.waits());
    let again = named("b").with_member_id(id.clone());
    let leaders = [world.ask(again, 9).answer(), elder.answer()].map(|it| it.leader);
    assert_eq!(leaders, [id.clone(), id]);
}

#[test]
fn the_shutdown_answers_everything_that_waits() {
    let refused = Code::NotCoordinator.code();
    let world = World::new();
    let joins = [world.join().1, world.join().1];
    world.coordinator.shutdown();
    assert_eq!(joins.map(|mut join| join.answer().error_code), [refused; 2]);
    let world = World::new();
    let mut joins = [world.join().1, world.join().1];
    world.pass(INITIAL_DELAY);
    let ids = World::joined(&mut joins);
    let mut sync = world.sync(&ids[1], 1, &[]);
    world.coordinator.shutdown();
    let late = world.ask(join_request(""), 3).answer().error_code;
    // Nor does another rebalance begin.
    let changed = join_request(&ids[0]).with_protocols(protocols(&["range"]));
    let changed = world.ask(changed, 9).answer().error_code;
    assert_eq!([sync.answer().error_code, late, changed], [refused; 3]);
    // Their sessions are not over: another coordinator may know them.
    assert_eq!([0, 1].map(|at| world.heartbeat(&ids[at], 1)), [refused; 2]);
    let group = world.coordinator.group(GROUP).expect("it stays");
    assert_eq!(group.lock().members.len(), 2);
}
