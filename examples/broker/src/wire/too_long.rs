//! A produce request that is longer than any that is taken. Its producer is told so with a Kafka error, since it would
//! send the request again and again if the connection were just closed.

use crate::wire::apis::Api;
use crate::wire::outline::Walk;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{ApiKey, ProduceResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

/// The start of a request has this many bytes: enough for the names up to its first batch.
pub(crate) const START: usize = 2 * 1024;

/// Longest request whose bytes are read to the end, and thrown away.
pub(crate) const LONGEST: usize = 1 << 30;

/// What a producer is answered.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) correlation_id: i32,
    pub(crate) version: i16,
    pub(crate) response: ProduceResponse,
}

/// The answer to a request that starts like this; `None` if it is no produce request, or one for several partitions, or
/// one that wants no answer.
pub(crate) fn refuse(start: &[u8]) -> Option<Refusal> {
    let &[k0, k1, v0, v1, c0, c1, c2, c3] = start.first_chunk()?;
    let (key, version) = (i16::from_be_bytes([k0, k1]), i16::from_be_bytes([v0, v1]));
    let api = Api::by_key(key).filter(|api| api.key == ApiKey::Produce)?;
    if !api.versions.contains(&version) {
        return None;
    }
    let mut walk = Walk {
        rest: &start[8..],
        version,
        flexible: false,
        elements_left: usize::MAX,
    };
    let (topic, index) = partition(&mut walk, api.key.request_header_version(version) >= 2)?;
    let partition = PartitionProduceResponse::default()
        .with_index(index)
        .with_error_code(ResponseError::MessageTooLarge.code())
        .with_base_offset(-1);
    let topic = TopicProduceResponse::default()
        .with_name(topic)
        .with_partition_responses(vec![partition]);
    Some(Refusal {
        correlation_id: i32::from_be_bytes([c0, c1, c2, c3]),
        version,
        response: ProduceResponse::default().with_responses(vec![topic]),
    })
}

/// The one partition that the request is for.
fn partition(walk: &mut Walk<'_>, flexible: bool) -> Option<(TopicName, i32)> {
    // The client id is an old-style string in every header, and clients send no tagged fields behind it.
    walk.text()?;
    walk.flexible = flexible;
    walk.take(usize::from(flexible))?;
    walk.text()?;
    let acks_and_timeout = walk.take(6)?;
    let topics = walk.elements()?;
    let topic = String::from_utf8_lossy(walk.text()?).into_owned();
    let partitions = walk.elements()?;
    let index = walk.take(4)?;
    if acks_and_timeout[..2] == [0, 0] || topics != 1 || partitions != 1 {
        return None;
    }
    let index = i32::from_be_bytes(index.try_into().ok()?);
    Some((TopicName(StrBytes::from_string(topic)), index))
}
