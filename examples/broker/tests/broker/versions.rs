//! Every request in every version that is advertised, with something in its arrays: each is answered, and leaves no byte
//! of it unread. (What the answers say, the stock clients check.)

use super::*;
use broker::wire::request::Envelope;
use bytes::Bytes;
use kafka_protocol::protocol::Request;

/// A client, and the versions that it was told of and has not tried.
struct Negotiated(Client, Vec<ApiVersion>);

impl Negotiated {
    fn each<R: Request>(&mut self, request: impl Fn(i16) -> R) {
        let Self(client, apis) = self;
        let at = apis.iter().position(|api| api.api_key == R::KEY);
        let api = apis.swap_remove(at.expect("advertised"));
        // What is older than that, `a_sarama_of_2019_is_understood` tries.
        for version in api.min_version.max(R::VERSIONS.min)..=api.max_version {
            let request = request(version);
            // The walk goes to the end: what it passes over may claim any number of elements.
            let whole = Bytes::from(frame(version, 1, &request));
            let cut = Envelope::open(&whole.slice(4..whole.len() - 1));
            assert!(cut.is_err(), "{} in version {version}", R::KEY);
            client.request(version, &request);
        }
    }
}

#[test]
fn every_request_is_answered_in_every_version() {
    let (mut broker, mut client) = Broker::with_topic(2, &["--group-delay-ms", "0"]);
    // A version from the future is answered in version 0, whatever follows its correlation id.
    client.send_raw(&[0, 0, 0, 10, 0, 18, 0, 99, 0, 0, 0, 1, 0xff, 0xff]);
    let answer = client.receive::<ApiVersionsRequest>(0, 1);
    // UNSUPPORTED_VERSION
    assert_eq!((answer.error_code, answer.api_keys.len()), (35, 21));
    let mut all = Negotiated(client, answer.api_keys);

    all.each(|_| ApiVersionsRequest::default());
    all.each(|_| metadata_request(&["t"]));
    all.each(|version| {
        let mut request = create_request(&[(&format!("new-{version}"), 2)]);
        let config = CreatableTopicConfig::default().with_name(text("retention.ms"));
        request.topics[0].configs = vec![config.with_value(Some(text("-1")))];
        request
    });
    all.each(|version| delete_topics_request(&[&format!("new-{version}")]));
    all.each(|_| {
        let keys = Some(vec![text("num.partitions")]);
        let resource = DescribeConfigsResource::default().with_configuration_keys(keys);
        DescribeConfigsRequest::default().with_resources(vec![resource])
    });
    all.each(|_| InitProducerIdRequest::default().with_transactional_id(None));
    // From version 9 on a length is a varint, and that of this one takes four bytes.
    let long = batch(&[&vec![0; 3 << 20]]);
    let both = [0, 1].map(|index| (index, Some(&long[..])));
    all.each(|_| produce_request(-1, 1_000, "t", &both));
    all.each(|_| {
        let mut request = fetch("t", 2, 0);
        // As a newer client may have. (Version 12 alone has room for it.)
        let first = &mut request.topics[0].partitions[0];
        let tagged = &mut first.unknown_tagged_fields;
        tagged.insert(300, Bytes::from_static(b"tag"));
        request
    });
    all.each(|_| list_offsets_request("t", -1));
    all.each(|version| match version {
        ..4 => FindCoordinatorRequest::default().with_key(text("g")),
        _ => FindCoordinatorRequest::default().with_coordinator_keys(vec![text("g")]),
    });
    all.each(|_| join_request("").with_rebalance_timeout_ms(500));
    all.each(|_| {
        let assignment = SyncGroupRequestAssignment::default();
        let assignment = assignment.with_assignment(Bytes::from_static(b"assignment"));
        SyncGroupRequest::default().with_assignments(vec![assignment])
    });
    all.each(|_| HeartbeatRequest::default().with_group_id(group(GROUP)));
    all.each(|_| commit_request((GROUP, "", -1), &[(0, 7)], 0));
    all.each(|version| match version {
        ..8 => offsets_of(GROUP, &[("t", &[1, 0])]),
        _ => OffsetFetchRequest::default().with_groups(vec![offsets_in_group(GROUP)]),
    });
    all.each(|version| {
        let states = vec![text("Stable"); usize::from(version >= 4)];
        ListGroupsRequest::default().with_states_filter(states)
    });
    all.each(|_| DescribeGroupsRequest::default().with_groups(vec![group(GROUP)]));
    all.each(|_| ConsumerGroupHeartbeatRequest::default());
    all.each(|version| {
        let members = vec![Default::default(); usize::from(version >= 3)];
        LeaveGroupRequest::default().with_members(members)
    });
    all.each(|_| forget_request(GROUP, 0));
    all.each(|_| DeleteGroupsRequest::default().with_groups_names(vec![group(GROUP)]));
    assert_eq!(all.1, [], "not tried");
    let transactional =
        InitProducerIdRequest::default().with_transactional_id(Some(text("id").into()));
    for _ in 0..2 {
        all.0.request(0, &transactional);
        all.0.request(0, &ConsumerGroupHeartbeatRequest::default());
    }
    // What it logs last, behind what it has to say of these.
    all.0.send_raw(&[0xff; 100]);
    drop(all);
    broker.wait_for_log("frame length");
    let (log, causes) = (broker.log(), ["KIP-848", "no transactions", "frame length"]);
    assert_eq!(log.len(), causes.len(), "each cause once: {log:#?}");
    let mut lines = log.iter().zip(causes);
    assert!(lines.all(|(line, cause)| line.contains(cause)), "{log:#?}");
    broker.may_miss = true;
}

/// Its commit, byte for byte: kafka-protocol does not write that version.
#[test]
fn a_sarama_of_2019_is_understood() {
    let (_broker, mut client) = Broker::with_topic(1, &[]);
    // Of a client that assigns its partitions itself: generation -1, and no member.
    let head = b"\0\x08\0\x01\0\0\0\x01\0\x06sarama\0\x01g\xff\xff\xff\xff\0\0";
    // Partition 0 at offset 7, with the time of the broker and metadata; partition 9, which is not there, with null.
    let offsets = b"\0\0\0\x01\0\x01t\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\x07\xff\xff\xff\xff\xff\xff\xff\xff\0\x02me\
        \0\0\0\x09\0\0\0\0\0\0\0\x07\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff";
    client.send_raw(&framed(&[&head[..], offsets].concat()));
    let committed = b"\0\0\0\x01\0\0\0\x01\0\x01t\0\0\0\x02\0\0\0\0\0\0\0\0\0\x09\0\x03";
    assert_eq!(client.receive_frame().expect("an answer"), committed[..]);
    let kept = client.request(5, &offsets_of(GROUP, &[("t", &[0])]));
    let kept = &kept.topics[0].partitions[0];
    let found = (kept.committed_offset, kept.metadata.as_deref());
    assert_eq!(found, (7, Some("me")));
}
