//! Frames: each message on a connection is a 32-bit length and then that many bytes.

use crate::messages::*;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::protocol::Encodable;

/// Longest request taken: a record batch of 16 MiB fits. (Kafka's `socket.request.max.bytes` is 100 MiB.)
pub const MAX_FRAME: usize = 20 * 1024 * 1024;

/// How many bytes its length takes, which stands before the frame.
pub const PREFIX: usize = size_of::<i32>();

/// The length of the frame at the start of `buffer`, which has at least a prefix. What follows a negative one is lost.
pub fn length(buffer: &[u8]) -> Result<usize, String> {
    let prefix = buffer.first_chunk();
    let prefix = prefix.map_or(-1, |prefix| i32::from_be_bytes(*prefix));
    usize::try_from(prefix).map_err(|_| format!("frame length {prefix} outside 0..={MAX_FRAME}"))
}

/// Takes a frame of this length off the start of `buffer`, where it is as a whole, without its prefix.
pub fn take(buffer: &mut BytesMut, length: usize) -> Bytes {
    buffer.advance(PREFIX);
    buffer.split_to(length).freeze()
}

/// What is around the data of an answer: if it did not fit, the buffer would grow to twice its size.
pub(crate) const ENVELOPE: usize = 1024;

/// The frame of an answer, length prefix included. About `room` bytes are reserved for it.
pub(crate) fn encode(
    response: &ResponseKind,
    correlation_id: i32,
    version: i16,
    room: usize,
) -> anyhow::Result<BytesMut> {
    let mut frame = BytesMut::with_capacity(ENVELOPE + room);
    frame.put_i32(0);
    let header = ResponseHeader::default().with_correlation_id(correlation_id);
    header.encode(&mut frame, response.header_version(version))?;
    response.encode(&mut frame, version)?;
    let length = i32::try_from(frame.len() - PREFIX)?;
    frame[..PREFIX].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}
