//! The requests this broker takes: one table, read by the version negotiation and by the decoder alike, so
//! that nothing can be advertised which is not handled.

use crate::wire::groups;
use crate::wire::shape::Field::{self, Blob, Fixed, Scalars, Since, Structs, Text, Texts};
use kafka_protocol::messages::ApiKey;
use std::ops::RangeInclusive;

/// One request type: the versions handled here, and how its bytes are laid out.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) key: ApiKey,
    pub(crate) versions: RangeInclusive<i16>,
    /// From this version on: compact lengths, tagged fields.
    pub(crate) first_flexible: i16,
    pub(crate) body: &'static [Field],
}

/// Everything that is advertised to clients.
pub(crate) static APIS: [Api; 20] = [
    Api {
        key: ApiKey::Produce,
        versions: 3..=9,
        first_flexible: 9,
        body: PRODUCE,
    },
    Api {
        // From 13 on topics are named by id only.
        key: ApiKey::Fetch,
        versions: 4..=12,
        first_flexible: 12,
        body: FETCH,
    },
    Api {
        key: ApiKey::ListOffsets,
        versions: 1..=6,
        first_flexible: 6,
        body: LIST_OFFSETS,
    },
    Api {
        key: ApiKey::Metadata,
        versions: 0..=9,
        first_flexible: 9,
        body: METADATA,
    },
    Api {
        key: ApiKey::OffsetCommit,
        versions: 2..=8,
        first_flexible: 8,
        body: groups::OFFSET_COMMIT,
    },
    Api {
        key: ApiKey::OffsetFetch,
        versions: 1..=8,
        first_flexible: 6,
        body: groups::OFFSET_FETCH,
    },
    Api {
        key: ApiKey::FindCoordinator,
        versions: 0..=4,
        first_flexible: 3,
        body: groups::FIND_COORDINATOR,
    },
    Api {
        key: ApiKey::JoinGroup,
        versions: 0..=9,
        first_flexible: 6,
        body: groups::JOIN_GROUP,
    },
    Api {
        key: ApiKey::Heartbeat,
        versions: 0..=4,
        first_flexible: 4,
        body: groups::HEARTBEAT,
    },
    Api {
        key: ApiKey::LeaveGroup,
        versions: 0..=5,
        first_flexible: 4,
        body: groups::LEAVE_GROUP,
    },
    Api {
        key: ApiKey::SyncGroup,
        versions: 0..=5,
        first_flexible: 4,
        body: groups::SYNC_GROUP,
    },
    Api {
        key: ApiKey::DescribeGroups,
        versions: 0..=5,
        first_flexible: 5,
        body: groups::DESCRIBE_GROUPS,
    },
    Api {
        key: ApiKey::ListGroups,
        versions: 0..=4,
        first_flexible: 3,
        body: groups::LIST_GROUPS,
    },
    Api {
        key: ApiKey::DeleteGroups,
        versions: 0..=2,
        first_flexible: 2,
        body: groups::DELETE_GROUPS,
    },
    Api {
        key: ApiKey::OffsetDelete,
        versions: 0..=0,
        first_flexible: i16::MAX,
        body: groups::OFFSET_DELETE,
    },
    Api {
        key: ApiKey::ApiVersions,
        versions: 0..=3,
        first_flexible: 3,
        body: API_VERSIONS,
    },
    Api {
        key: ApiKey::CreateTopics,
        versions: 2..=6,
        first_flexible: 5,
        body: CREATE_TOPICS,
    },
    Api {
        key: ApiKey::DeleteTopics,
        versions: 1..=5,
        first_flexible: 4,
        body: DELETE_TOPICS,
    },
    Api {
        key: ApiKey::DescribeConfigs,
        versions: 1..=4,
        first_flexible: 4,
        body: DESCRIBE_CONFIGS,
    },
    Api {
        key: ApiKey::InitProducerId,
        versions: 0..=4,
        first_flexible: 2,
        body: INIT_PRODUCER_ID,
    },
];

impl Api {
    pub(crate) fn by_key(key: i16) -> Option<&'static Api> {
        APIS.iter().find(|api| api.key as i16 == key)
    }
}

// Fields in the order of Kafka's message schemas; neighbours of fixed size are added up.

const PRODUCE: &[Field] = &[
    Text,         // transactional id
    Fixed(2 + 4), // acks, timeout
    Structs(&[
        Text, // topic
        Structs(&[
            Fixed(4), // partition
            Blob,     // records
        ]),
    ]),
];

const FETCH: &[Field] = &[
    Fixed(4 + 4 + 4 + 4 + 1), // replica, max wait, min bytes, max bytes, isolation
    Since(7, &Fixed(4 + 4)),  // session id and epoch
    Structs(&[
        Text, // topic
        Structs(&[
            Fixed(4),             // partition
            Since(9, &Fixed(4)),  // leader epoch
            Fixed(8),             // offset
            Since(12, &Fixed(4)), // last fetched epoch
            Since(5, &Fixed(8)),  // log start offset
            Fixed(4),             // max bytes
        ]),
    ]),
    Since(7, &Structs(&[Text, Scalars(4)])), // forgotten topics
    Since(11, &Text),                        // rack
];

const LIST_OFFSETS: &[Field] = &[
    Fixed(4),            // replica
    Since(2, &Fixed(1)), // isolation
    Structs(&[
        Text, // topic
        Structs(&[
            Fixed(4),            // partition
            Since(4, &Fixed(4)), // leader epoch
            Fixed(8),            // timestamp
        ]),
    ]),
];

const METADATA: &[Field] = &[
    Structs(&[Text]),        // topics
    Since(4, &Fixed(1)),     // create missing topics
    Since(8, &Fixed(1 + 1)), // include authorised operations
];

const API_VERSIONS: &[Field] = &[
    Since(3, &Text), // client name
    Since(3, &Text), // client version
];

const CREATE_TOPICS: &[Field] = &[
    Structs(&[
        Text,                             // name
        Fixed(4 + 2),                     // partitions, replication factor
        Structs(&[Fixed(4), Scalars(4)]), // assignments
        Structs(&[Text, Text]),           // configs
    ]),
    Fixed(4 + 1), // timeout, validate only
];

const DELETE_TOPICS: &[Field] = &[
    Texts,    // names
    Fixed(4), // timeout
];

const DESCRIBE_CONFIGS: &[Field] = &[
    Structs(&[
        Fixed(1), // kind of resource
        Text,     // name
        Texts,    // configs
    ]),
    Fixed(1),            // include synonyms
    Since(3, &Fixed(1)), // include documentation
];

const INIT_PRODUCER_ID: &[Field] = &[
    Text,                    // transactional id
    Fixed(4),                // transaction timeout
    Since(3, &Fixed(8 + 2)), // producer id and epoch
];
