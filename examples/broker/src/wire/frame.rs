//! Frames: each message on a connection is a 32-bit length and then that many bytes.

use bytes::{Buf, Bytes, BytesMut};

/// Longest request taken: a record batch of 16 MiB fits. (Kafka's `socket.request.max.bytes` is 100 MiB.)
pub const MAX_FRAME: usize = 20 * 1024 * 1024;

const PREFIX: usize = size_of::<i32>();

/// A length that no request has. What follows it on the connection cannot be made sense of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadLength(i32);

impl std::fmt::Display for BadLength {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "frame length {} outside 0..={MAX_FRAME}", self.0)
    }
}

/// How many bytes are missing to a whole frame at the start of `buffer`; `None` while its length is not there.
pub fn missing(buffer: &BytesMut) -> Result<Option<usize>, BadLength> {
    let length = length(buffer)?;
    Ok(length.map(|length| (PREFIX + length).saturating_sub(buffer.len())))
}

/// Takes the frame at the start of `buffer`, without its prefix, if it is there as a whole.
pub fn take(buffer: &mut BytesMut) -> Result<Option<Bytes>, BadLength> {
    if missing(buffer)? != Some(0) {
        return Ok(None);
    }
    let length = buffer.get_i32() as usize;
    Ok(Some(buffer.split_to(length).freeze()))
}

fn length(buffer: &BytesMut) -> Result<Option<usize>, BadLength> {
    let Some(prefix) = buffer.first_chunk() else {
        return Ok(None);
    };
    let length = i32::from_be_bytes(*prefix);
    match usize::try_from(length) {
        Ok(length) if length <= MAX_FRAME => Ok(Some(length)),
        _ => Err(BadLength(length)),
    }
}
