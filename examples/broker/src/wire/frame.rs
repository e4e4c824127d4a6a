//! Frames: each message on a connection is a 32-bit length and then that many bytes.

use bytes::{Buf, Bytes, BytesMut};

/// Longest request taken: a record batch of 16 MiB fits. (Kafka's `socket.request.max.bytes` is 100 MiB.)
pub const MAX_FRAME: usize = 20 * 1024 * 1024;

/// The length of the frame at the start of `buffer`, which has at least a prefix. What follows a length that no request
/// has cannot be made sense of.
pub fn length(buffer: &[u8]) -> Result<usize, String> {
    let prefix = buffer.first_chunk();
    let prefix = prefix.map_or(-1, |prefix| i32::from_be_bytes(*prefix));
    usize::try_from(prefix).map_err(|_| format!("frame length {prefix} outside 0..={MAX_FRAME}"))
}

/// Takes a frame of this length off the start of `buffer`, where it is as a whole, without its prefix.
pub fn take(buffer: &mut BytesMut, length: usize) -> Bytes {
    buffer.advance(size_of::<i32>());
    buffer.split_to(length).freeze()
}
