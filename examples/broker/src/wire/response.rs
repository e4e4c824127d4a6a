//! From an answer to a frame.

use crate::wire::groups::GroupResponse;
use bytes::{BufMut, BytesMut};
use kafka_protocol::messages::{
    ApiVersionsResponse, CreateTopicsResponse, DeleteTopicsResponse, DescribeConfigsResponse,
    FetchResponse, InitProducerIdResponse, ListOffsetsResponse, MetadataResponse, ProduceResponse,
    ResponseHeader,
};
use kafka_protocol::protocol::{Encodable, HeaderVersion};

/// An answer, not yet in bytes: those depend on the version that the client asked in.
#[derive(Debug)]
pub(crate) enum Response {
    ApiVersions(ApiVersionsResponse),
    Metadata(MetadataResponse),
    Produce(ProduceResponse),
    Fetch(FetchResponse),
    ListOffsets(ListOffsetsResponse),
    Group(GroupResponse),
    CreateTopics(CreateTopicsResponse),
    DeleteTopics(DeleteTopicsResponse),
    DescribeConfigs(DescribeConfigsResponse),
    InitProducerId(InitProducerIdResponse),
}

impl Response {
    /// The whole frame, length prefix included.
    pub(crate) fn encode(&self, correlation_id: i32, version: i16) -> anyhow::Result<BytesMut> {
        match self {
            Self::ApiVersions(body) => frame(body, correlation_id, version),
            Self::Metadata(body) => frame(body, correlation_id, version),
            Self::Produce(body) => frame(body, correlation_id, version),
            Self::Fetch(body) => frame(body, correlation_id, version),
            Self::ListOffsets(body) => frame(body, correlation_id, version),
            Self::Group(answer) => answer.encode(correlation_id, version),
            Self::CreateTopics(body) => frame(body, correlation_id, version),
            Self::DeleteTopics(body) => frame(body, correlation_id, version),
            Self::DescribeConfigs(body) => frame(body, correlation_id, version),
            Self::InitProducerId(body) => frame(body, correlation_id, version),
        }
    }
}

pub(super) fn frame<R>(body: &R, correlation_id: i32, version: i16) -> anyhow::Result<BytesMut>
where
    R: Encodable + HeaderVersion,
{
    let header = ResponseHeader::default().with_correlation_id(correlation_id);
    let header_version = R::header_version(version);
    let length = header.compute_size(header_version)? + body.compute_size(version)?;
    let mut bytes = BytesMut::with_capacity(size_of::<i32>() + length);
    bytes.put_i32(i32::try_from(length)?);
    header.encode(&mut bytes, header_version)?;
    body.encode(&mut bytes, version)?;
    Ok(bytes)
}
