//! The requests this broker takes: one table, read by the version negotiation and by the decoder alike, so that nothing
//! can be advertised which is not handled.

use crate::messages::*;
use std::ops::RangeInclusive;

/// One kind of request, the versions of it that are handled here, and how the bytes of its body are laid out.
pub(crate) struct Api(
    pub(crate) ApiKey,
    pub(crate) RangeInclusive<i16>,
    pub(crate) &'static str,
);

/// Everything that is advertised to clients, with the fields in the order of Kafka's message schemas. How they are
/// written: see `Walk::fields`.
///
/// From version 13 on, Fetch names topics by id only; OffsetFetch and FindCoordinator ask for several at once from
/// versions 8 and 4 on. ConsumerGroupHeartbeat (KIP-848) is here to be refused in words.
#[rustfmt::skip]
pub(crate) static APIS: [Api; 21] = [
    Api(ApiKey::Produce, 3..=9, "s 6 [s [4 b]]"),
    Api(ApiKey::Fetch, 4..=12, "17 8+7 [s [4 4+9 8 4+12 8+5 4]] [s {4}]+7 s+11"),
    Api(ApiKey::ListOffsets, 1..=6, "4 1+2 [s [4 4+4 8]]"),
    Api(ApiKey::Metadata, 0..=9, "[s] 1+4 2+8"),
    Api(ApiKey::OffsetCommit, 2..=8, "s 4 s s+7 8-4 [s [12 4+6 s]]"),
    Api(ApiKey::OffsetFetch, 1..=7, "s [s {4}] 1+7"),
    Api(ApiKey::FindCoordinator, 0..=3, "s 1+1"),
    Api(ApiKey::JoinGroup, 2..=9, "s 4 4 s s+5 s [s b] s+8"),
    Api(ApiKey::Heartbeat, 0..=4, "s 4 s s+3"),
    Api(ApiKey::LeaveGroup, 0..=5, "s s-2 [s s s+5]+3"),
    Api(ApiKey::SyncGroup, 0..=5, "s 4 s s+3 s+5 s+5 [s b]"),
    Api(ApiKey::DescribeGroups, 0..=5, "{s} 1+3"),
    Api(ApiKey::ListGroups, 0..=4, "{s}+4"),
    Api(ApiKey::DeleteGroups, 0..=2, "{s}"),
    Api(ApiKey::OffsetDelete, 0..=0, "s [s {4}]"),
    Api(ApiKey::ApiVersions, 0..=3, "s+3 s+3"),
    Api(ApiKey::CreateTopics, 2..=6, "[s 6 [4 {4}] [s s]] 5"),
    Api(ApiKey::DeleteTopics, 1..=5, "{s} 4"),
    Api(ApiKey::DescribeConfigs, 1..=4, "[1 s {s}] 1 1+3"),
    Api(ApiKey::InitProducerId, 0..=4, "s 4 10+3"),
    Api(ApiKey::ConsumerGroupHeartbeat, 0..=1, "s s 4 s s 4 {s} s+1 s [16 {4}]"),
];

impl Api {
    pub(crate) fn by_key(key: i16) -> Option<&'static Api> {
        APIS.iter().find(|Api(known, ..)| *known as i16 == key)
    }
}
