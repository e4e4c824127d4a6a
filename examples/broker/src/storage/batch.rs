//! Record batches, format version 2. A batch is stored and handed out as the bytes that came, with two header fields of
//! its own filled in; of the records inside, which may be compressed, the broker knows only how many there are.

use crate::storage::producers::Sequence;
use crate::storage::records;
use bytes::{Bytes, BytesMut};
use kafka_protocol::ResponseError;

/// Longest batch taken.
pub const MAX_BATCH: usize = 16 * 1024 * 1024;

/// The header up to and with the record count.
const HEADER: usize = 61;
/// `batch_length` counts from behind itself.
const LENGTH_END: usize = 12;
/// The checksum covers everything from the attributes on.
const ATTRIBUTES: usize = 21;

const COMPRESSION_MASK: i16 = 0b111;
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;

/// A batch whose header was found in order.
#[derive(Debug, Clone)]
pub struct Batch {
    pub records: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    /// Set by producers that want no duplicates.
    pub sequence: Option<Sequence>,
    bytes: Bytes,
}

impl Batch {
    /// Checks what a producer sent for one partition: exactly one batch, as Kafka demands since Produce v3, with the
    /// records that it says it has.
    pub fn from_producer(bytes: &Bytes) -> Result<Self, ResponseError> {
        let batch = Self::read(bytes)?;
        let codec = i16::from_be_bytes([bytes[21], bytes[22]]) & COMPRESSION_MASK;
        records::check(batch.records, codec, &bytes[HEADER..])?;
        Ok(batch)
    }

    /// Checks the header and the checksum.
    fn read(bytes: &Bytes) -> Result<Self, ResponseError> {
        if bytes.len() > MAX_BATCH {
            return Err(ResponseError::MessageTooLarge);
        }
        let header: &[u8; HEADER] = bytes.first_chunk().ok_or(ResponseError::CorruptMessage)?;
        let length = usize::try_from(read_i32(header, 8))
            .map_err(|_| ResponseError::CorruptMessage)?
            .saturating_add(LENGTH_END);
        if length > bytes.len() || length < HEADER {
            return Err(ResponseError::CorruptMessage);
        }
        if header[16] != 2 || length < bytes.len() {
            return Err(ResponseError::InvalidRecord);
        }
        if read_i32(header, 17) as u32 != crc32c::crc32c(&bytes[ATTRIBUTES..]) {
            return Err(ResponseError::CorruptMessage);
        }
        let attributes = i16::from_be_bytes([header[21], header[22]]);
        let last_offset_delta = read_i32(header, 23);
        let records = read_i32(header, 57);
        let counted = records >= 1 && records - 1 == last_offset_delta;
        if !counted || attributes & (CONTROL | TRANSACTIONAL) != 0 {
            return Err(ResponseError::InvalidRecord);
        }
        let sequence = Sequence {
            producer_id: read_i64(header, 43),
            producer_epoch: i16::from_be_bytes([header[51], header[52]]),
            base_sequence: read_i32(header, 53),
        };
        Ok(Self {
            sequence: (sequence.producer_id >= 0).then_some(sequence),
            records,
            base_timestamp: read_i64(header, 27),
            max_timestamp: read_i64(header, 35),
            bytes: bytes.clone(),
        })
    }

    /// The batch at the start of what was stored, and the offset of its first record.
    pub(crate) fn from_storage(bytes: &Bytes) -> Result<(i64, Self), ResponseError> {
        let header: &[u8; HEADER] = bytes.first_chunk().ok_or(ResponseError::CorruptMessage)?;
        let length = usize::try_from(read_i32(header, 8)).unwrap_or(usize::MAX);
        let length = length.saturating_add(LENGTH_END);
        if length > bytes.len() {
            return Err(ResponseError::CorruptMessage);
        }
        Ok((read_i64(header, 0), Self::read(&bytes.slice(..length))?))
    }

    /// Bytes in the batch.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes to store: those that came, at their place in the log. Neither field is under the checksum.
    ///
    /// Copies, so that the log does not keep whole request frames alive.
    pub fn placed_at(&self, base_offset: i64) -> Bytes {
        const NO_LEADER_EPOCH: i32 = -1;
        let mut bytes = BytesMut::from(&self.bytes[..]);
        bytes[..8].copy_from_slice(&base_offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&NO_LEADER_EPOCH.to_be_bytes());
        bytes.freeze()
    }
}

fn read_i32(header: &[u8; HEADER], at: usize) -> i32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&header[at..at + 4]);
    i32::from_be_bytes(bytes)
}

fn read_i64(header: &[u8; HEADER], at: usize) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&header[at..at + 8]);
    i64::from_be_bytes(bytes)
}
