//! What members say takes memory once, and once more where it is on its way. For that clients wait, as for records.

use super::*;

const MIB: usize = 1 << 20;

/// A member that leads a group alone, and says this much.
fn lead(client: &mut Client, id: &str, length: usize) -> JoinGroupResponse {
    let mut join = join_request("").with_group_id(group(id));
    join.protocols.truncate(1);
    join.protocols[0].metadata = vec![7; length].into();
    let joined = client.request(3, &join);
    assert_eq!(joined.error_code, 0);
    joined
}

/// By how much memory grows while clients do not read the answers to this request. They wait for that, and for no more
/// than ten seconds.
fn grown_by_unread<R: kafka_protocol::protocol::Request>(
    broker: &Broker,
    version: i16,
    request: &R,
) -> usize {
    let before = broker.program.resident_memory();
    let clients = [(); 40].map(|()| {
        let mut client = broker.client();
        client.send(version, request);
        client
    });
    // Answers to what came later are there.
    std::thread::sleep(Duration::from_millis(300));
    broker.client().request(0, &ApiVersionsRequest::default());
    let grown = broker.program.resident_memory().saturating_sub(before);
    drop(clients);
    broker.wait_for_figure("connections", 1);
    grown as usize
}

#[test]
fn answers_of_groups_that_nobody_reads_wait_for_memory() {
    let broker = Broker::with(&["--group-delay-ms", "0"]);
    let mut client = broker.client();
    let joined = lead(&mut client, GROUP, 8 * MIB);
    let (id, generation) = (joined.member_id, joined.generation_id);
    let sync = SyncGroupRequest::default()
        .with_group_id(group(GROUP))
        .with_generation_id(generation)
        .with_member_id(id.clone());
    let assigned = SyncGroupRequestAssignment::default().with_member_id(id);
    let assigned = assigned.with_assignment(vec![1; 8 * MIB].into());
    let led = sync.clone().with_assignments(vec![assigned]);
    assert_eq!(client.request(3, &led).error_code, 0);
    let describe = DescribeGroupsRequest::default().with_groups(vec![group(GROUP)]);
    // There would be 320 MiB for the members, and 640 for administrators.
    let grown = grown_by_unread(&broker, 3, &sync);
    assert!(grown < 150 * MIB, "memory grew by {grown} for members");
    let grown = grown_by_unread(&broker, 4, &describe);
    assert!(
        grown < 150 * MIB,
        "memory grew by {grown} for administrators"
    );
    assert_eq!(client.request(4, &describe).groups[0].members.len(), 1);
}

/// A group that is named often, with more offsets than a request names.
#[test]
fn offsets_of_a_group_that_is_named_often_take_memory_once() {
    let (broker, mut client) = Broker::with_topic(1_000, &[]);
    let all: Vec<_> = (0..1_000).map(|index| (index, 7)).collect();
    let commit = commit_request((GROUP, "", -1), &all, 1);
    assert_eq!(commit_errors(&client.request(7, &commit)), [0; 1_000]);
    let one = OffsetFetchRequestGroup::default().with_group_id(group(GROUP));
    let asked = OffsetFetchRequest::default().with_groups(vec![one.with_topics(None); 2_000]);
    let before = broker.program.resident_memory();
    let found = client.request(8, &asked).groups;
    let grown = broker.program.resident_memory().saturating_sub(before);
    assert_eq!(
        (found.len(), found[0].topics[0].partitions.len()),
        (1, 1_000)
    );
    assert!(grown < 64 << 20, "memory grew by {grown}");
}
