//! Frames: each message on a connection is a 32-bit length and then that many bytes.

use bytes::{Buf, Bytes, BytesMut};

/// Longest request taken: a record batch of 16 MiB fits. (Kafka's `socket.request.max.bytes` is 100 MiB.)
pub const MAX_FRAME: usize = 20 * 1024 * 1024;

/// A length that no request has. What follows it on the connection cannot be made sense of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadLength(i32);

impl std::fmt::Display for BadLength {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "frame length {} outside 0..={MAX_FRAME}", self.0)
    }
}

/// The length of the frame at the start of `buffer`, which has at least a prefix.
pub fn length(buffer: &[u8]) -> Result<usize, BadLength> {
    let prefix = buffer
        .first_chunk()
        .map_or(-1, |prefix| i32::from_be_bytes(*prefix));
    usize::try_from(prefix).map_err(|_| BadLength(prefix))
}

/// Takes a frame of this length off the start of `buffer`, where it is as a whole, without its prefix.
pub fn take(buffer: &mut BytesMut, length: usize) -> Bytes {
    buffer.advance(size_of::<i32>());
    buffer.split_to(length).freeze()
}
