//! The requests of consumer groups: how their bytes are laid out, how they are decoded, how answers are encoded.

use crate::wire::response::frame;
use crate::wire::shape::Field::{self, Blob, Fixed, Scalars, Since, Structs, Text, Texts, Until};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::describe_groups_response::DescribedGroupMember;
use kafka_protocol::messages::{
    ApiKey, DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest,
    DescribeGroupsResponse, FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatRequest,
    HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse,
    ListGroupsRequest, ListGroupsResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetDeleteRequest, OffsetDeleteResponse, OffsetFetchRequest, OffsetFetchResponse,
    SyncGroupRequest, SyncGroupResponse,
};
use kafka_protocol::protocol::Decodable;

/// Bytes of an answer for each member in it, beside what that member sent.
const MEMBER: usize = 512;

/// What a client asks of the coordinator of its group.
#[derive(Debug)]
pub enum GroupRequest {
    FindCoordinator(FindCoordinatorRequest),
    JoinGroup(JoinGroupRequest),
    SyncGroup(SyncGroupRequest),
    Heartbeat(HeartbeatRequest),
    LeaveGroup(LeaveGroupRequest),
    OffsetCommit(OffsetCommitRequest),
    OffsetFetch(OffsetFetchRequest),
    ListGroups(ListGroupsRequest),
    DescribeGroups(DescribeGroupsRequest),
    DeleteGroups(DeleteGroupsRequest),
    OffsetDelete(OffsetDeleteRequest),
}

/// What the coordinator answers.
#[derive(Debug)]
pub(crate) enum GroupResponse {
    FindCoordinator(FindCoordinatorResponse),
    JoinGroup(JoinGroupResponse),
    SyncGroup(SyncGroupResponse),
    Heartbeat(HeartbeatResponse),
    LeaveGroup(LeaveGroupResponse),
    OffsetCommit(OffsetCommitResponse),
    OffsetFetch(OffsetFetchResponse),
    ListGroups(ListGroupsResponse),
    DescribeGroups(DescribeGroupsResponse),
    DeleteGroups(DeleteGroupsResponse),
    OffsetDelete(OffsetDeleteResponse),
}

impl GroupRequest {
    /// `None` if `key` is no request of groups.
    pub(crate) fn decode(
        key: ApiKey,
        version: i16,
        bytes: &mut Bytes,
    ) -> Option<anyhow::Result<Self>> {
        fn request<R: Decodable>(
            bytes: &mut Bytes,
            version: i16,
            request: impl FnOnce(R) -> GroupRequest,
        ) -> Option<anyhow::Result<GroupRequest>> {
            Some(R::decode(bytes, version).map(request))
        }
        match key {
            ApiKey::FindCoordinator => request(bytes, version, Self::FindCoordinator),
            ApiKey::JoinGroup => request(bytes, version, Self::JoinGroup),
            ApiKey::SyncGroup => request(bytes, version, Self::SyncGroup),
            ApiKey::Heartbeat => request(bytes, version, Self::Heartbeat),
            ApiKey::LeaveGroup => request(bytes, version, Self::LeaveGroup),
            ApiKey::OffsetCommit => request(bytes, version, Self::OffsetCommit),
            ApiKey::OffsetFetch => request(bytes, version, Self::OffsetFetch),
            ApiKey::ListGroups => request(bytes, version, Self::ListGroups),
            ApiKey::DescribeGroups => request(bytes, version, Self::DescribeGroups),
            ApiKey::DeleteGroups => request(bytes, version, Self::DeleteGroups),
            ApiKey::OffsetDelete => request(bytes, version, Self::OffsetDelete),
            _ => None,
        }
    }
}

impl GroupResponse {
    /// Bytes of memory that [`encode`](Self::encode) needs beside the answer itself, for answers of which that is much:
    /// those that tell of all members what the members sent.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::JoinGroup(body) => {
                let members = body.members.iter();
                members.map(|member| MEMBER + member.metadata.len()).sum()
            }
            Self::DescribeGroups(body) => {
                let members = body.groups.iter().flat_map(|group| &group.members);
                let bytes = |member: &DescribedGroupMember| {
                    MEMBER + member.member_metadata.len() + member.member_assignment.len()
                };
                members.map(bytes).sum()
            }
            _ => 0,
        }
    }

    /// The whole frame, length prefix included.
    pub(crate) fn encode(&self, correlation_id: i32, version: i16) -> anyhow::Result<BytesMut> {
        match self {
            Self::FindCoordinator(body) => frame(body, correlation_id, version),
            Self::JoinGroup(body) => frame(body, correlation_id, version),
            Self::SyncGroup(body) => frame(body, correlation_id, version),
            Self::Heartbeat(body) => frame(body, correlation_id, version),
            Self::LeaveGroup(body) => frame(body, correlation_id, version),
            Self::OffsetCommit(body) => frame(body, correlation_id, version),
            Self::OffsetFetch(body) => frame(body, correlation_id, version),
            Self::ListGroups(body) => frame(body, correlation_id, version),
            Self::DescribeGroups(body) => frame(body, correlation_id, version),
            Self::DeleteGroups(body) => frame(body, correlation_id, version),
            Self::OffsetDelete(body) => frame(body, correlation_id, version),
        }
    }
}

// Fields in the order of Kafka's message schemas.

pub(super) const FIND_COORDINATOR: &[Field] = &[
    Until(3, &Text),     // key
    Since(1, &Fixed(1)), // kind of key
    Since(4, &Texts),    // keys
];

pub(super) const JOIN_GROUP: &[Field] = &[
    Text,                // group
    Fixed(4),            // session timeout
    Since(1, &Fixed(4)), // rebalance timeout
    Text,                // member
    Since(5, &Text),     // instance
    Text,                // protocol type
    Structs(&[
        Text, // protocol
        Blob, // metadata
    ]),
    Since(8, &Text), // reason
];

pub(super) const SYNC_GROUP: &[Field] = &[
    Text,            // group
    Fixed(4),        // generation
    Text,            // member
    Since(3, &Text), // instance
    Since(5, &Text), // protocol type
    Since(5, &Text), // protocol
    Structs(&[
        Text, // member
        Blob, // assignment
    ]),
];

pub(super) const HEARTBEAT: &[Field] = &[
    Text,            // group
    Fixed(4),        // generation
    Text,            // member
    Since(3, &Text), // instance
];

pub(super) const LEAVE_GROUP: &[Field] = &[
    Text,            // group
    Until(2, &Text), // member
    Since(
        3,
        &Structs(&[
            Text,            // member
            Text,            // instance
            Since(5, &Text), // reason
        ]),
    ),
];

pub(super) const OFFSET_COMMIT: &[Field] = &[
    Text,                // group
    Fixed(4),            // generation
    Text,                // member
    Since(7, &Text),     // instance
    Until(4, &Fixed(8)), // retention
    Structs(&[
        Text, // topic
        Structs(&[
            Fixed(4 + 8),        // partition, offset
            Since(6, &Fixed(4)), // leader epoch
            Text,                // metadata
        ]),
    ]),
];

pub(super) const OFFSET_FETCH: &[Field] = &[
    Until(7, &Text),                         // group
    Until(7, &Structs(&[Text, Scalars(4)])), // topics, their partitions
    Since(
        8,
        &Structs(&[
            Text,                         // group
            Structs(&[Text, Scalars(4)]), // topics, their partitions
        ]),
    ),
    Since(7, &Fixed(1)), // only stable offsets
];

pub(super) const OFFSET_DELETE: &[Field] = &[
    Text,                         // group
    Structs(&[Text, Scalars(4)]), // topics, their partitions
];

pub(super) const LIST_GROUPS: &[Field] = &[
    Since(4, &Texts), // states
    Since(5, &Texts), // types
];

pub(super) const DESCRIBE_GROUPS: &[Field] = &[
    Texts,               // groups
    Since(3, &Fixed(1)), // include authorised operations
];

pub(super) const DELETE_GROUPS: &[Field] = &[
    Texts, // groups
];
