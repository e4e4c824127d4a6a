//! Every request in every version that is advertised, with something in each of its arrays.

use crate::client::Client;
use crate::process::Broker;
use crate::requests::{
    batch, create_request, create_topic, fetch, list_offsets_request, produce_request, text,
    topic_name,
};
use bytes::Bytes;
use kafka_protocol::messages::create_topics_request::CreatableTopicConfig;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Request, StrBytes};

fn group() -> GroupId {
    GroupId(text("g"))
}

/// A client, and the versions that it was told of.
struct Negotiated {
    client: Client,
    apis: Vec<(i16, i16, i16)>,
}

impl Negotiated {
    /// Sends a request in each version, changed to what that has, and checks each answer.
    fn each<R: Request>(&mut self, request: impl Fn(i16) -> R, check: impl Fn(&R::Response, i16)) {
        let (_, first, last) = *self
            .apis
            .iter()
            .find(|api| api.0 == R::KEY)
            .expect("advertised");
        for version in first..=last {
            check(&self.client.request(version, &request(version)), version);
        }
        self.apis.retain(|api| api.0 != R::KEY);
    }
}

#[test]
fn every_request_is_answered_in_every_version() {
    let broker = Broker::with(&["--group-delay-ms", "0"]);
    let mut client = broker.client();
    create_topic(&mut client, "t", 2);
    // A version from the future is answered in version 0, whatever follows its correlation id.
    client.send_raw(&[
        0, 0, 0, 12, 0, 18, 0, 99, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff,
    ]);
    let answer = client.receive::<ApiVersionsRequest>(0, 1);
    assert_eq!(
        (answer.error_code, answer.api_keys.len()),
        (35, 21),
        "UNSUPPORTED_VERSION"
    );
    let apis = answer.api_keys.iter();
    let apis = apis
        .map(|api| (api.api_key, api.min_version, api.max_version))
        .collect();
    let mut all = Negotiated {
        client: broker.client(),
        apis,
    };
    let name = || text("test");

    all.each(
        |version| match version {
            3 => ApiVersionsRequest::default()
                .with_client_software_name(name())
                .with_client_software_version(name()),
            _ => ApiVersionsRequest::default(),
        },
        |answer, _| assert_eq!((answer.error_code, answer.api_keys.len()), (0, 21)),
    );
    all.each(
        |_| {
            let topic = MetadataRequestTopic::default().with_name(Some(topic_name("t")));
            MetadataRequest::default().with_topics(Some(vec![topic.clone(), topic]))
        },
        |answer, _| assert_eq!(answer.topics[1].partitions.len(), 2),
    );
    all.each(
        |version| {
            let mut request = create_request(&[("checked", 1), (&format!("new-{version}"), 2)]);
            let config = CreatableTopicConfig::default()
                .with_name(text("cleanup.policy"))
                .with_value(Some(text(if version == 2 { "compact" } else { "delete" })));
            request.topics[0].configs = vec![config.clone(), config];
            request
        },
        |answer, version| {
            // INVALID_CONFIG, none, TOPIC_ALREADY_EXISTS
            let expected = [40, 0, 36][usize::from(version > 2) + usize::from(version > 3)];
            let errors: Vec<_> = answer.topics.iter().map(|topic| topic.error_code).collect();
            assert_eq!(errors, [expected, 0], "v{version}");
        },
    );
    all.each(
        |version| {
            let names = [
                topic_name(&format!("new-{}", version + 1)),
                topic_name("never was"),
            ];
            DeleteTopicsRequest::default().with_topic_names(names.into())
        },
        |answer, _| {
            let errors: Vec<_> = answer.responses.iter().map(|it| it.error_code).collect();
            assert_eq!(errors, [0, 3], "UNKNOWN_TOPIC_OR_PARTITION");
        },
    );
    all.each(
        |_| {
            let resource = |kind, name| {
                DescribeConfigsResource::default()
                    .with_resource_type(kind)
                    .with_resource_name(text(name))
            };
            let keys = vec![text("num.partitions"), text("no.such")];
            let broker = resource(4, "1").with_configuration_keys(Some(keys));
            let topic = resource(2, "t").with_configuration_keys(None);
            let resources = vec![broker, topic, resource(2, "u"), resource(77, "t")];
            DescribeConfigsRequest::default().with_resources(resources)
        },
        |answer, _| {
            let found = answer
                .results
                .iter()
                .map(|found| (found.error_code, found.configs.len()));
            assert_eq!(found.collect::<Vec<_>>(), [(0, 1), (0, 7), (3, 0), (42, 0)]);
            assert_eq!(answer.results[0].configs[0].value.as_deref(), Some("1"));
        },
    );
    all.each(
        |_| InitProducerIdRequest::default().with_transactional_id(None),
        |answer, version| assert_eq!(answer.producer_id.0, i64::from(version), "a new id"),
    );
    let two = batch(&[b"value"]);
    let two = [(0, Some(&two[..])), (1, Some(&two[..]))];
    all.each(
        |_| produce_request(-1, 1_000, "t", &two),
        |answer, version| {
            let partition = &answer.responses[0].partition_responses[1];
            let offset = i64::from(version) - 3;
            assert_eq!((partition.error_code, partition.base_offset), (0, offset));
        },
    );
    all.each(
        |_| fetch("t", 2, 0),
        |answer, _| assert_eq!(answer.responses[0].partitions[1].high_watermark, 7),
    );
    all.each(
        |_| list_offsets_request("t", -1),
        |answer, _| assert_eq!(answer.topics[0].partitions[0].offset, 7),
    );
    groups(&mut all);
    assert_eq!(all.apis, [], "not tried");
    drop((all, client));
    assert_eq!(broker.log().len(), 2, "two refusals: {:#?}", broker.log());
    broker.assert_clean();
}

/// The life of a group of one member.
fn groups(all: &mut Negotiated) {
    all.each(
        |_| FindCoordinatorRequest::default().with_key(text("g")),
        |answer, _| assert_eq!((answer.error_code, answer.node_id.0), (0, 1)),
    );
    let join = || {
        let protocol = JoinGroupRequestProtocol::default()
            .with_name(text("range"))
            .with_metadata(Bytes::from_static(b"metadata"));
        let other = protocol.clone().with_name(text("roundrobin"));
        JoinGroupRequest::default()
            .with_group_id(group())
            .with_session_timeout_ms(10_000)
            .with_rebalance_timeout_ms(10_000)
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![protocol, other])
    };
    let member = all
        .client
        .request(0, &join().with_rebalance_timeout_ms(-1))
        .member_id;
    let member = || member.clone();
    all.each(
        |version| match version {
            0 => join()
                .with_rebalance_timeout_ms(-1)
                .with_member_id(member()),
            _ => join().with_member_id(member()),
        },
        |answer, _| {
            assert_eq!((answer.error_code, &answer.leader), (0, &member()));
            assert_eq!(&answer.members[0].metadata[..], b"metadata");
        },
    );
    let generation = all
        .client
        .request(5, &join().with_member_id(member()))
        .generation_id;
    all.each(
        |_| {
            let assignment = SyncGroupRequestAssignment::default()
                .with_member_id(member())
                .with_assignment(Bytes::from_static(b"assignment"));
            SyncGroupRequest::default()
                .with_group_id(group())
                .with_generation_id(generation)
                .with_member_id(member())
                .with_assignments(vec![assignment.clone(), assignment])
        },
        |answer, _| assert_eq!(&answer.assignment[..], b"assignment"),
    );
    all.each(
        |_| {
            HeartbeatRequest::default()
                .with_group_id(group())
                .with_generation_id(generation)
                .with_member_id(member())
        },
        |answer, _| assert_eq!(answer.error_code, 0),
    );
    all.each(
        |version| {
            let partition = |index| {
                OffsetCommitRequestPartition::default()
                    .with_partition_index(index)
                    .with_committed_offset(42)
                    .with_committed_leader_epoch(if version >= 6 { 7 } else { -1 })
                    .with_committed_metadata(Some(text("so far")))
            };
            let topic = OffsetCommitRequestTopic::default()
                .with_name(topic_name("t"))
                .with_partitions(vec![partition(0), partition(1)]);
            OffsetCommitRequest::default()
                .with_group_id(group())
                .with_generation_id_or_member_epoch(generation)
                .with_member_id(member())
                .with_topics(vec![topic])
        },
        |answer, _| assert_eq!(answer.topics[0].partitions[1].error_code, 0),
    );
    all.each(
        |version| {
            let topic = OffsetFetchRequestTopic::default()
                .with_name(topic_name("t"))
                .with_partition_indexes(vec![1, 0]);
            // Version 1 cannot ask for all.
            let topics = if version % 2 == 1 {
                Some(vec![topic])
            } else {
                None
            };
            OffsetFetchRequest::default()
                .with_group_id(group())
                .with_topics(topics)
        },
        |answer, version| {
            let found = &answer.topics[0].partitions[1];
            assert_eq!(
                (found.committed_offset, found.metadata.as_deref()),
                (42, Some("so far"))
            );
            assert_eq!(
                found.committed_leader_epoch,
                if version >= 5 { 7 } else { -1 }
            );
        },
    );
    all.each(
        |version| match version {
            4 => ListGroupsRequest::default().with_states_filter(vec![text("Stable"), text("x")]),
            _ => ListGroupsRequest::default(),
        },
        |answer, _| assert_eq!(answer.groups[0].group_id, group()),
    );
    all.each(
        |_| DescribeGroupsRequest::default().with_groups(vec![group(), GroupId(text("other"))]),
        |answer, _| {
            let states = answer.groups.iter().map(|group| &*group.group_state);
            assert_eq!(states.collect::<Vec<_>>(), ["Stable", "Dead"]);
            assert_eq!(&*answer.groups[0].members[0].client_id, "test");
        },
    );
    all.each(
        |_| ConsumerGroupHeartbeatRequest::default().with_group_id(group()),
        |answer, _| assert_eq!(answer.error_code, 35, "UNSUPPORTED_VERSION"),
    );
    all.each(
        |version| {
            let request = LeaveGroupRequest::default().with_group_id(group());
            let identity = MemberIdentity::default().with_member_id(member());
            match version {
                ..3 => request.with_member_id(member()),
                _ => request.with_members(vec![identity.clone(), identity]),
            }
        },
        |answer, version| {
            let error = answer
                .members
                .first()
                .map_or(answer.error_code, |it| it.error_code);
            assert_eq!(
                error,
                if version == 0 { 0 } else { 25 },
                "UNKNOWN_MEMBER_ID"
            );
        },
    );
    all.each(
        |_| {
            let partition =
                |index| OffsetDeleteRequestPartition::default().with_partition_index(index);
            let topic = OffsetDeleteRequestTopic::default()
                .with_name(topic_name("t"))
                .with_partitions(vec![partition(0), partition(5)]);
            OffsetDeleteRequest::default()
                .with_group_id(group())
                .with_topics(vec![topic])
        },
        |answer, _| {
            let partitions = answer.topics[0].partitions.iter();
            let errors: Vec<_> = partitions.map(|it| it.error_code).collect();
            assert_eq!(errors, [0, 3], "UNKNOWN_TOPIC_OR_PARTITION");
        },
    );
    let unknown = StrBytes::from_static_str("unknown");
    all.each(
        |_| {
            DeleteGroupsRequest::default()
                .with_groups_names(vec![group(), GroupId(unknown.clone())])
        },
        |answer, version| {
            let errors: Vec<_> = answer.results.iter().map(|it| it.error_code).collect();
            let gone = 69; // GROUP_ID_NOT_FOUND
            assert_eq!(errors, [if version == 0 { 0 } else { gone }, gone]);
        },
    );
}
