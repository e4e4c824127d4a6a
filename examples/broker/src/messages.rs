//! The messages of Kafka's protocol that this broker knows, and what is in them, as `kafka-protocol` has them.

pub use kafka_protocol::ResponseError as Code;
// By name, since `fetch_response` has a `LeaderIdAndEpoch` and a `NodeEndpoint` as well.
pub use kafka_protocol::messages::produce_response::{
    PartitionProduceResponse, TopicProduceResponse,
};
pub use kafka_protocol::messages::*;
pub use kafka_protocol::messages::{
    api_versions_response::*, create_topics_request::*, create_topics_response::*,
    delete_groups_response::*, delete_topics_response::*, describe_configs_request::*,
    describe_configs_response::*, describe_groups_response::*, fetch_request::*, fetch_response::*,
    join_group_request::*, join_group_response::*, leave_group_request::*, leave_group_response::*,
    list_groups_response::*, list_offsets_request::*, list_offsets_response::*,
    metadata_request::*, metadata_response::*, offset_commit_request::*, offset_commit_response::*,
    offset_delete_request::*, offset_delete_response::*, offset_fetch_request::*,
    offset_fetch_response::*, produce_request::*, sync_group_request::*,
};
pub use kafka_protocol::protocol::StrBytes;

/// A copy: a slice of a request would keep the whole frame.
pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
