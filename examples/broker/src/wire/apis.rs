//! The requests this broker takes: one table for negotiation and decoder, so that all that is advertised is handled.

use crate::messages::*;
use std::ops::RangeInclusive;

/// One kind of request, the versions of it that are handled here, and how the bytes of its body are laid out.
pub(crate) type Api = (ApiKey, RangeInclusive<i16>, &'static str);

/// All that is advertised to clients, with the fields in the order of Kafka's schemas, written as `Walk::fields` says.
///
/// From version 13 on, Fetch names topics by id only; OffsetFetch and FindCoordinator ask for several at once from
/// versions 8 and 4 on. ConsumerGroupHeartbeat (KIP-848) is here to be refused in words.
#[rustfmt::skip]
pub(crate) static APIS: [Api; 21] = [
    (ApiKey::Produce, 3..=9, "s 6 [ s [ 4 b ] ]"),
    (ApiKey::Fetch, 4..=12, "17 7+ 8 [ s [ 4 9+ 4 8 12+ 4 5+ 8 4 ] ] 7+ [ s { 4 } ] 11+ s"),
    (ApiKey::ListOffsets, 1..=6, "4 2+ 1 [ s [ 4 4+ 4 8 ] ]"),
    (ApiKey::Metadata, 0..=9, "[ s ] 4+ 1 8+ 2"),
    (ApiKey::OffsetCommit, 2..=8, "s 4 s 7+ s 0-4 8 [ s [ 12 6+ 4 s ] ]"),
    (ApiKey::OffsetFetch, 1..=7, "s [ s { 4 } ] 7+ 1"),
    (ApiKey::FindCoordinator, 0..=3, "s 1+ 1"),
    (ApiKey::JoinGroup, 2..=9, "s 4 4 s 5+ s s [ s b ] 8+ s"),
    (ApiKey::Heartbeat, 0..=4, "s 4 s 3+ s"),
    (ApiKey::LeaveGroup, 0..=5, "s 0-2 s 3+ [ s s 5+ s ]"),
    (ApiKey::SyncGroup, 0..=5, "s 4 s 3+ s 5+ s 5+ s [ s b ]"),
    (ApiKey::DescribeGroups, 0..=5, "{ s } 3+ 1"),
    (ApiKey::ListGroups, 0..=4, "4+ { s }"),
    (ApiKey::DeleteGroups, 0..=2, "{ s }"),
    (ApiKey::OffsetDelete, 0..=0, "s [ s { 4 } ]"),
    (ApiKey::ApiVersions, 0..=3, "3+ s 3+ s"),
    (ApiKey::CreateTopics, 2..=6, "[ s 6 [ 4 { 4 } ] [ s s ] ] 5"),
    (ApiKey::DeleteTopics, 1..=5, "{ s } 4"),
    (ApiKey::DescribeConfigs, 1..=4, "[ 1 s { s } ] 1 3+ 1"),
    (ApiKey::InitProducerId, 0..=4, "s 4 3+ 10"),
    (ApiKey::ConsumerGroupHeartbeat, 0..=1, "s s 4 s s 4 { s } 1+ s s [ 16 { 4 } ]"),
];

pub(crate) fn by_key(key: i16) -> Option<&'static Api> {
    APIS.iter().find(|(known, ..)| *known as i16 == key)
}
