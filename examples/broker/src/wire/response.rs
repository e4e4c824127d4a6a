//! From an answer to a frame.

use bytes::{BufMut, BytesMut};
use kafka_protocol::messages::{ResponseHeader, ResponseKind};
use kafka_protocol::protocol::Encodable;

/// The whole frame, length prefix included. About `room` bytes are reserved for it.
pub(crate) fn encode(
    response: &ResponseKind,
    correlation_id: i32,
    version: i16,
    room: usize,
) -> anyhow::Result<BytesMut> {
    const PREFIX: usize = size_of::<i32>();
    // What is around the data: if it did not fit, the buffer would grow to twice its size.
    const ENVELOPE: usize = 1024;
    let mut frame = BytesMut::with_capacity(ENVELOPE + room);
    frame.put_i32(0);
    let header = ResponseHeader::default().with_correlation_id(correlation_id);
    header.encode(&mut frame, response.header_version(version))?;
    response.encode(&mut frame, version)?;
    let length = i32::try_from(frame.len() - PREFIX)?;
    frame[..PREFIX].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}
