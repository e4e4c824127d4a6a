//! Committing and fetching offsets, and the journal that keeps them.

use super::*;
use crate::groups::journal::read;
use std::sync::Barrier;
use std::{fs, thread};
use tempfile::{TempDir, tempdir};

/// Commits as [`commit_request`] says; returns the error of each partition.
fn commit_all(world: &World, by: (&str, &str, i32), at: &[(i32, i64)], length: usize) -> Vec<i16> {
    commit_errors(&world.ask(commit_request(by, at, length), 8).answer())
}

fn commit(world: &World, member: &str, generation: i32, partition: i32, offset: i64) -> i16 {
    let by = (GROUP, member, generation);
    commit_all(world, by, &[(partition, offset)], 0)[0]
}

fn committed_by(world: &World, group: &str) -> Vec<(i32, i64)> {
    offsets(world.ask(offsets_request(group), 7).answer())
}

fn committed(world: &World) -> Vec<(i32, i64)> {
    committed_by(world, GROUP)
}

#[test]
fn members_commit_in_their_generation_and_no_other_client_does() {
    let world = World::new();
    // Where nothing was committed there is no offset: a client begins as its settings say.
    let found = || {
        let answer = world.ask(offsets_of(GROUP, &[("t", &[2, 0])]), 7).answer();
        let partitions = answer.topics[0].partitions.iter();
        let found = partitions.map(|it| (it.partition_index, it.error_code, it.committed_offset));
        found.collect::<Vec<_>>()
    };
    assert_eq!(found(), [(2, 0, -1), (0, 0, -1)], "no group");
    assert_eq!(committed(&world), []);
    // A member of before a restart makes none.
    assert_eq!(commit(&world, "zombie", 1, 0, 99), 22, "ILLEGAL_GENERATION");
    assert_eq!(world.phase(), "Dead");
    let ids = world.stable(2);
    for (member, generation, at, error) in [
        (&*ids[0], 1, (0, 10), 0),
        (&ids[1], 1, (1, 20), 0),
        (&ids[0], 0, (0, 99), 22),    // ILLEGAL_GENERATION
        ("stranger", 1, (0, 99), 25), // UNKNOWN_MEMBER_ID
        ("", -1, (0, 99), 25),        // beside members
        (&ids[0], 1, (1_000, 99), 3), // UNKNOWN_TOPIC_OR_PARTITION
    ] {
        let answer = commit(&world, member, generation, at.0, at.1);
        assert_eq!(answer, error, "{member} {at:?}");
    }
    assert_eq!(found(), [(2, 0, -1), (0, 0, 10)]);
    // What was read until it joins again, may still be committed; then it has to wait for its assignment.
    let (_, mut newcomer) = world.join();
    assert_eq!(commit(&world, &ids[0], 1, 0, 11), 0);
    assert_eq!(commit(&world, "", -1, 0, 99), 25, "as members are there");
    let mut joins: Vec<_> = ids.iter().map(|id| world.rejoin(id)).collect();
    World::joined(&mut joins);
    let third = newcomer.answer().member_id.to_string();
    drop((joins, newcomer));
    let refused = [2, 1].map(|it| commit(&world, &ids[0], it, 0, 12));
    assert_eq!(refused, [27, 22]); // REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION
    assert_eq!(committed(&world), [(0, 11), (1, 20)]);
    assert_eq!(world.delete(), 68, "NON_EMPTY_GROUP");
    for id in ids.iter().chain([&third]) {
        assert_eq!(world.leave(id, None), 0);
    }
    // Without members, a client that assigns its partitions itself may commit.
    assert_eq!(commit(&world, "", -1, 7, 5), 0);
    assert_eq!(committed(&world), [(0, 11), (1, 20), (7, 5)]);
    let group = world.coordinator.group(GROUP).expect("it is there");
    // Of two that delete it at once, one is told GROUP_ID_NOT_FOUND.
    let held = world.coordinator.journal.lock();
    let mut deleted = thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| world.delete()));
        thread::sleep(Duration::from_millis(50));
        drop(held);
        both.map(|deletion| deletion.join().expect("no panic"))
    });
    deleted.sort_unstable();
    assert_eq!(deleted, [0, 69]);
    // One that has found it before begins anew, with the next one.
    let late = group.lock().check_commit(&Default::default());
    assert_eq!(late.unwrap_err().code(), 15, "COORDINATOR_NOT_AVAILABLE");
    let found = world.coordinator.groups.write().insert(GROUP.into(), group);
    assert!(found.is_none(), "it is gone");
    let late = world.ask(join_request(""), 3).answer().error_code;
    assert_eq!(late, 15, "a join as well");
    let late = world.ask(forget_request(GROUP, 0), 0).answer().error_code;
    assert_eq!(late, 69, "GROUP_ID_NOT_FOUND");
    let listed = world.ask(ListGroupsRequest::default(), 4).answer().groups;
    assert!(listed.is_empty());
    world.coordinator.groups.write().clear();
    assert_eq!(committed(&world), []);
    assert_eq!(world.memory_in_use(), 0);
    assert_eq!(commit(&world, "", -1, 0, 13), 0);
    assert_eq!(committed(&world), [(0, 13)]);
}

#[test]
fn a_request_may_be_about_several_topics() {
    /// The topics of an answer, each with this of its partitions.
    macro_rules! told {
        ($answer:expr, $what:ident) => {{
            let topics = $answer.topics.iter().map(|topic| {
                let partitions = topic.partitions.iter().map(|it| it.$what);
                format!("{} {:?}", *topic.name, partitions.collect::<Vec<_>>())
            });
            topics.collect::<Vec<_>>()
        }};
    }
    let (world, u) = (World::new(), topic_name("tu"));
    let mut both = commit_request((GROUP, "", -1), &[(0, 7), (1, 8)], 0);
    let mut other = commit_request((GROUP, "", -1), &[(0, 9), (1, 6)], 0).topics;
    both.topics.push(other.remove(0).with_name(u.clone()));
    let done = world.coordinator.commit(&both, &|_, _| true);
    assert_eq!(told!(done, partition_index), ["t [0, 1]", "tu [0, 1]"]);
    let found = world.ask(offsets_request(GROUP), 7).answer();
    assert_eq!(told!(found, committed_offset), ["t [7, 8]", "tu [9, 6]"]);
    // By their names, in the order asked for.
    let named = offsets_of(GROUP, &[("tu", &[0, 2]), ("t", &[0, 1])]);
    let found = world.ask(named, 7).answer();
    assert_eq!(told!(found, committed_offset), ["tu [9, -1]", "t [7, 8]"]);
    let none = world.ask(offsets_of(GROUP, &[]), 7).answer();
    assert!(none.topics.is_empty());
    // (Of the first of these nothing was committed.)
    let mut forget = forget_request(GROUP, 2);
    let second = forget_request(GROUP, 1).topics.remove(0).partitions;
    forget.topics[0].partitions.extend(second);
    let mut other = forget_request(GROUP, 0).topics;
    forget.topics.push(other.remove(0).with_name(u));
    let forgotten = world.ask(forget, 0).answer();
    assert_eq!(told!(forgotten, partition_index), ["t [2, 1]", "tu [0]"]);
    assert_eq!(committed(&world), [(0, 7), (1, 6)]);
    // A topic goes, and not the other whose name begins like its own.
    let forgotten = world.coordinator.forget_topic("t", || Ok(()));
    assert_eq!((forgotten, committed(&world)), (Ok(()), vec![(1, 6)]));
}

#[test]
fn metadata_and_memory_are_bounded() {
    let world = World::with(|settings| settings.max_bytes = 10_000);
    let commit = |offsets: &_, metadata| commit_all(&world, (GROUP, "", -1), offsets, metadata);
    assert_eq!(commit(&[(0, 1)], 4_097), [12], "OFFSET_METADATA_TOO_LARGE");
    assert_eq!([0, 1].map(|index| commit(&[(index, 1)], 4_096)), [[0]; 2]);
    let zombie = commit_all(&world, (GROUP, "zombie", 1), &[(2, 1)], 4_097);
    assert_eq!(zombie, [25], "UNKNOWN_MEMBER_ID, so that it joins again");
    // What there is room for beside it is committed.
    let refused = commit(&[(2, 1), (1, 2)], 4_096);
    assert_eq!(refused, [28, 0], "INVALID_COMMIT_OFFSET_SIZE");
    assert_eq!(committed(&world), [(0, 1), (1, 2)]);
    // One that is short takes some too.
    let world = World::with(|settings| settings.max_bytes = 1_000);
    let commits = (0..10).map(|index| self::commit(&world, "", -1, index, 1));
    let errors: Vec<_> = commits.collect();
    assert_eq!((errors[0], errors[9]), (0, 28), "{errors:?}");
    // So does the name of its topic, and each protocol of a member, however short.
    let world = World::new();
    let mut long = commit_request((GROUP, "", -1), &[(0, 1)], 0);
    long.topics[0].name = topic_name(&"t".repeat(249));
    world.coordinator.commit(&long, &|_, _| true);
    assert!(world.memory_in_use() > 249);
    let world = World::with(|settings| settings.max_bytes = 2_000);
    let join = join_request("").with_protocols(protocols(&["a"; 64]));
    let refused = world.ask(join, 3).answer().error_code;
    assert_eq!(refused, 81, "GROUP_MAX_SIZE_REACHED");
}

fn journal(kept: &TempDir) -> PathBuf {
    kept.path().join("+offsets")
}

/// What a coordinator that is started now finds in a folder. The one before was about to write the journal anew.
fn start(kept: &TempDir) -> World {
    let unfinished = r#"["g","t",999,{"offset":1,"leader_epoch":-1,"metadata":"1"}]"#;
    let path = journal(kept).with_extension("new");
    fs::write(path, format!("{unfinished}\n")).expect("a file");
    World::with(|settings| settings.offsets = Some(journal(kept)))
}

#[test]
fn f9_groups_keep_what_they_committed_until_it_is_deleted() {
    let kept = tempdir().expect("a folder");
    let (world, both) = (start(&kept), vec![(0, 7), (1, 8)]);
    let commit = |world: &World, group| commit_all(world, (group, "", -1), &both, 9);
    let found = |world: &World| ["g", "h"].map(|group| committed_by(world, group));
    assert_eq!(["g", "h"].map(|group| commit(&world, group)), [[0; 2]; 2]);
    // There are as many groups as there may be, and none goes with which something would be lost.
    assert_eq!(commit(&world, "i"), [44; 2], "POLICY_VIOLATION");
    // Nor does the journal have what was refused.
    let zombie = commit_all(&world, ("g", "zombie", 1), &[(0, 99), (1, 99)], 0);
    assert_eq!(zombie, [25, 25], "UNKNOWN_MEMBER_ID");
    let taken = world.memory_in_use();
    let world = start(&kept);
    assert_eq!(world.memory_in_use(), taken);
    assert_eq!(found(&world), [both.clone(), both.clone()]);
    assert_eq!(world.delete(), 0);
    let world = start(&kept);
    assert!(world.coordinator.group("g").is_none(), "it was deleted");
    assert_eq!(found(&world), [vec![], both.clone()]);
    assert_eq!(commit(&world, "g"), [0, 0]);
    // Both forget a topic that is deleted, and no other.
    assert_eq!(world.coordinator.forget_topic("other", || Ok(())), Ok(()));
    assert_eq!(found(&world), [both.clone(), both.clone()]);
    assert_eq!(world.coordinator.forget_topic("t", || Ok(())), Ok(()));
    assert_eq!(found(&world), [vec![], vec![]]);
    assert_eq!(found(&start(&kept)), [vec![], vec![]]);
    let unused = world.coordinator.group("g").expect("it is empty");
    assert_eq!(commit(&world, "i"), [0, 0], "there is room again");
    // One that has found it before begins anew, with the next one.
    let late = unused.lock().check_commit(&Default::default());
    assert_eq!(late.unwrap_err().code(), 15, "COORDINATOR_NOT_AVAILABLE");
    assert_eq!(commit(&world, "g"), [0, 0]);
}

#[test]
fn an_offset_is_deleted_once_its_group_has_no_members() {
    let kept = tempdir().expect("a folder");
    let world = start(&kept);
    let delete = |group: &str, index| {
        let answer = world.ask(forget_request(group, index), 0).answer();
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let errors = partitions.map(|partition| partition.error_code);
        (answer.error_code, errors.collect::<Vec<_>>())
    };
    let ids = world.stable(1);
    let commit = || {
        // Who commits is alive.
        world.pass(SESSION * 2 / 3);
        commit_all(&world, (GROUP, &*ids[0], 1), &[(0, 7), (1, 8)], 0)
    };
    assert_eq!(commit(), [0, 0]);
    assert_eq!(world.coordinator.forget_topic("t", || Ok(())), Ok(()));
    assert_eq!(committed(&world), []);
    assert_eq!(commit(), [0, 0]);
    assert_eq!(delete(GROUP, 0), (0, vec![86]), "GROUP_SUBSCRIBED_TO_TOPIC");
    assert_eq!(committed(&world), [(0, 7), (1, 8)]);
    assert_eq!(world.leave(&ids[0], None), 0);
    assert_eq!(delete(GROUP, 0), (0, vec![0]));
    // The second time there is none, and nothing to be kept.
    let length = || fs::metadata(journal(&kept)).expect("the journal").len();
    let before = length();
    assert_eq!(delete(GROUP, 0), (0, vec![0]));
    assert_eq!(length(), before);
    assert_eq!(committed(&world), [(1, 8)]);
    assert_eq!(committed(&start(&kept)), [(1, 8)]);
    assert_eq!(delete("missing", 0), (69, vec![]), "GROUP_ID_NOT_FOUND");
}

/// Each commit outlives a crash, that which makes the journal long as well.
#[test]
fn f9_a_long_journal_is_written_anew_and_has_the_last_commit() {
    let [kept, copy] = [(); 2].map(|()| tempdir().expect("a folder"));
    let world = start(&kept);
    assert_eq!(commit_all(&world, ("h", "", -1), &[(0, 7)], 0), [0]);
    for offset in 0..4_000 {
        assert_eq!(commit(&world, "", -1, offset as i32 % 10, offset), 0);
    }
    let length = || fs::metadata(journal(&kept)).expect("the journal").len();
    assert!(length() < 70_000, "{} bytes for 10 offsets", length());
    let before = committed(&world);
    let world = start(&kept);
    assert_eq!(committed(&world), before);
    assert_eq!(committed_by(&world, "h"), [(0, 7)]);
    for partition in 10..30 {
        let by = (GROUP, "", -1);
        let twice = [(); 2].map(|()| commit_all(&world, by, &[(partition, 7)], 4_000));
        assert_eq!(twice, [[0]; 2]);
        fs::copy(journal(&kept), journal(&copy)).expect("it is there");
        assert_eq!(committed(&start(&copy)).len(), partition as usize + 1);
    }
    assert!(length() > 100_000, "not each writes it anew: {}", length());
}

/// A topic is deleted when a commit has found it there: the commit ends first, and what it has kept is forgotten.
#[test]
fn what_is_committed_for_a_topic_that_is_deleted_meanwhile_is_forgotten() {
    let world = World::new();
    let (coordinator, journal) = (&world.coordinator, &world.coordinator.journal);
    let request = commit_request((GROUP, "", -1), &[(0, 7)], 0);
    thread::scope(|scope| {
        let is_partition = |_: &str, _| {
            let deletion = scope.spawn(|| coordinator.forget_topic("t", || Ok(())));
            while !deletion.is_finished() && !journal.is_locked() {
                thread::yield_now();
            }
            true
        };
        coordinator.commit(&request, &is_partition);
    });
    assert_eq!(coordinator.committed().len(), 0);
    // Another one of its name is there at once. What is committed for that one is kept.
    thread::scope(|scope| {
        let delete = || {
            scope.spawn(|| coordinator.commit(&request, &|_, _| true));
            thread::sleep(Duration::from_millis(50));
            Ok(())
        };
        coordinator.forget_topic("t", delete)
    })
    .expect("it was there");
    assert_eq!(coordinator.committed().len(), 1);
}

/// Clients commit for one partition after the other, all at once. What the broker says then, it says after a crash.
#[test]
fn f9_the_journal_has_commits_in_their_order() {
    const CLIENTS: i64 = 4;
    let mut worst = Duration::ZERO;
    for _ in 0..10 {
        let kept = tempdir().expect("a folder");
        let world = start(&kept);
        let begun = Barrier::new(CLIENTS as usize);
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (world, begun) = (&world, &begun);
                scope.spawn(move || {
                    // So few that the journal is not written anew, which would put it in order.
                    for partition in 0..250 {
                        begun.wait();
                        assert_eq!(commit(world, "", -1, partition, client), 0);
                    }
                });
            }
        });
        let crash = Instant::now();
        assert_eq!(committed(&start(&kept)), committed(&world));
        worst = worst.max(crash.elapsed());
    }
    print_row("commits that race, then a crash", 10_000, worst);
}

/// There is no room for another file.
#[test]
fn f9_a_journal_that_cannot_be_written_anew_is_left_alone_until_it_is_twice_as_long() {
    let kept = tempdir().expect("a folder");
    let (path, mut journal) = (journal(&kept), Journal::default());
    // One that cannot be read is not taken for one that is not there.
    assert!(read(&path).expect("none yet").is_empty());
    read(kept.path()).expect_err("a folder has no lines");
    journal.begin(&path, &[]).expect("there is room");
    let grow = |journal: &mut Journal| {
        while !journal.is_long() {
            journal.append(&[("g", "t", 0, ())]).expect("there is room");
        }
        fs::metadata(&path).expect("the journal").len()
    };
    let mut length = grow(&mut journal);
    // A folder stands where the new file would.
    fs::create_dir(path.with_extension("new")).expect("a folder");
    for _ in 0..3 {
        journal.rewrite(&[]).expect_err("there is no room");
        let longer = grow(&mut journal);
        assert!(longer >= 2 * length, "{longer} bytes after {length}");
        length = longer;
    }
    fs::remove_dir(path.with_extension("new")).expect("it is empty");
    // Nor can one take its place that was written: what follows is for the one that is there.
    let aside = path.with_extension("aside");
    fs::rename(&path, &aside).expect("move it away");
    fs::create_dir(&path).expect("a folder");
    journal.rewrite(&[]).expect_err("there is a folder");
    fs::remove_dir(&path).expect("it is empty");
    fs::rename(&aside, &path).expect("move it back");
    assert!(grow(&mut journal) >= 2 * length);
    journal.rewrite(&[]).expect("there is room again");
    assert!(grow(&mut journal) < length, "it begins anew");
}

/// A crash, or a disk that was full, has left a part of a line at the end, or in the middle.
#[test]
fn f9_a_torn_line_is_cut_off() {
    let kept = tempdir().expect("a folder");
    let (world, both) = (start(&kept), [(0, 7), (1, 8)]);
    assert_eq!(commit_all(&world, (GROUP, "", -1), &both, 0), [0, 0]);
    let whole = fs::read_to_string(journal(&kept)).expect("the journal");
    let (first, second) = whole.split_once('\n').expect("two lines");
    let mut worst = Duration::ZERO;
    for torn in [
        format!("{whole}[\"g\",\"t\",0"),
        format!("{whole}[\"g\",\"t\",0,null]"),
        format!("{whole}\n\u{0}\u{0}"),
        format!("{first}\n[\"g\",\"t\",0,{second}{second}"),
    ] {
        fs::write(journal(&kept), &torn).expect("tear it");
        let crash = Instant::now();
        let found = start(&kept);
        worst = worst.max(crash.elapsed());
        assert_eq!(committed(&found), both, "{torn:?}");
        assert_eq!(commit(&found, "", -1, 0, 7), 0);
        assert_eq!(committed(&start(&kept)), both, "{torn:?}");
    }
    print_row("torn line in the journal", 8, worst);
    // One for which there is no memory is left out, and what follows is there.
    let line = |partition: i32, length| {
        let metadata = " ".repeat(length) + "7";
        let committed = format!(r#"{{"offset":7,"leader_epoch":7,"metadata":"{metadata}"}}"#);
        format!("[\"g\",\"t\",{partition},{committed}]\n")
    };
    fs::write(journal(&kept), line(0, 2 << 20) + &line(1, 0)).expect("write it");
    assert_eq!(committed(&start(&kept)), [(1, 7)]);
}

/// A row of the table that `.ci/cluster-faults` prints: no commit was lost, and the journal was read within this time.
fn print_row(row: &str, commits: usize, worst: Duration) {
    println!("| F9 {row} | broker | {commits} | 0 | {worst:.1?} | {worst:.1?} |");
}

/// Clients that have forgotten the versions before ask like this only.
#[test]
fn several_groups_are_asked_for_at_once() {
    let world = World::new();
    assert_eq!(commit(&world, "", -1, 0, 7), 0);
    let both = [(0, 8), (2, 9)];
    assert_eq!(commit_all(&world, ("all", "", -1), &both, 0), [0, 0]);
    let all = OffsetFetchRequestGroup::default().with_group_id(group("all"));
    let mut twice = offsets_in_group(GROUP);
    let topics = twice.topics.iter_mut().flatten();
    topics.for_each(|topic| topic.partition_indexes.extend([0, 1, 0]));
    // Each is told once, and as it was named first.
    let often = [twice, offsets_in_group("missing"), all.with_topics(None)];
    let groups = often.into_iter().cycle().take(1_000).collect();
    let asked = OffsetFetchRequest::default().with_groups(groups);
    let answer = world.ask(asked, 8).answer();
    let told = answer.groups.iter().map(|group| {
        let found = group.topics.iter().flat_map(|topic| &topic.partitions);
        let found = found.map(|it| (it.partition_index, it.committed_offset));
        (&*group.group_id.0, group.error_code, Vec::from_iter(found))
    });
    let expected = [
        (GROUP, 0, vec![(1, -1), (0, 7)]),
        ("missing", 0, vec![(1, -1), (0, -1)]),
        ("all", 0, both.to_vec()),
    ];
    assert!(told.eq(expected), "{} groups", answer.groups.len());
    let keys = ["a", "b", "a"].map(text).to_vec();
    let asked = FindCoordinatorRequest::default().with_coordinator_keys(keys);
    let found = world.ask(asked, 4).answer().coordinators;
    let found = found.iter().map(|it| (&*it.key, it.node_id, it.port));
    assert!(found.eq([("a", BrokerId(1), 9092), ("b", BrokerId(1), 9092)]));
}

/// Of all groups together there may be more than any answer has room for.
#[test]
fn offsets_that_are_too_many_for_an_answer_are_refused() {
    let world = World::with(|settings| (settings.max_groups, settings.max_bytes) = (4, 64 << 20));
    for (group, count) in [("few", 100), ("many", 5_000), ("too many", 6_000)] {
        let all: Vec<_> = (0..count).map(|index| (index, 7)).collect();
        let mut request = commit_request((group, "", -1), &all, 0);
        for partition in &mut request.topics[0].partitions {
            partition.committed_metadata = Some(text(&format!("{:4096}", 7)));
        }
        let done = world.coordinator.commit(&request, &|_, _| true);
        assert!(commit_errors(&done).iter().all(|error| *error == 0));
    }
    let refused = Code::PolicyViolation.code();
    for (group, error, count) in [("many", 0, 5_000), ("too many", refused, 0)] {
        let found = world.ask(offsets_request(group), 7).answer();
        assert_eq!(found.error_code, error);
        assert_eq!(offsets(found).len(), count);
    }
    // In version 1 each partition has the error.
    let named: Vec<_> = (0..6_000).collect();
    let named = offsets_of("too many", &[("t", &named)]);
    let found = world.ask(named, 1).answer();
    let partitions = found.topics[0].partitions.iter();
    let told = partitions.map(|it| (it.error_code, it.committed_offset));
    assert!(told.eq([(refused, -1); 6_000]));
    // Of several groups those are told for which there is room, as far as that goes.
    let all = |id| OffsetFetchRequestGroup::default().with_group_id(group(id));
    let all = ["many", "missing", "too many", "few"].map(|id| all(id).with_topics(None));
    let asked = OffsetFetchRequest::default().with_groups(all.to_vec());
    let found = world.ask(asked, 8).answer().groups;
    let told = found.iter().map(|group| {
        let topics = group.topics.iter().map(|topic| topic.partitions.len());
        (group.error_code, topics.sum::<usize>())
    });
    assert!(told.eq([(0, 5_000), (0, 0), (refused, 0), (refused, 0)]));
}

/// There was memory for what it was when they asked.
#[test]
fn who_waits_for_memory_while_offsets_grow_in_number_asks_again() {
    let world = World::new();
    let retry = Code::CoordinatorLoadInProgress.code();
    assert_eq!(commit(&world, "", -1, 0, 7), 0);
    let mut waiting = world.ask(offsets_request(GROUP), 7);
    assert_eq!(commit(&world, "", -1, 0, 8), 0);
    assert_eq!(offsets(waiting.answer()), [(0, 8)]);
    let mut waiting = world.ask(offsets_request(GROUP), 7);
    assert_eq!(commit(&world, "", -1, 1, 9), 0);
    assert_eq!(waiting.answer().error_code, retry);
    assert_eq!(committed(&world), [(0, 8), (1, 9)]);
}

#[test]
fn topics_among_very_many_offsets_are_forgotten_soon() {
    let world = World::with(|settings| settings.max_bytes = 64 << 20);
    let all: Vec<_> = (0..50_000).map(|index| (index, 7)).collect();
    let request = commit_request((GROUP, "", -1), &all, 0);
    world.coordinator.commit(&request, &|_, _| true);
    let begun = Instant::now();
    for number in 0..1_000 {
        let topic = format!("t{number}");
        assert_eq!(world.coordinator.forget_topic(&topic, || Ok(())), Ok(()));
    }
    let took = begun.elapsed();
    assert_eq!(committed(&world).len(), 50_000);
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(world.coordinator.forget_topic("t", || Ok(())), Ok(()));
    assert_eq!(committed(&world), []);
}
