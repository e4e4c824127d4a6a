//! Record batches, format version 2. A batch is stored and handed out as the bytes that came, with two header fields of
//! its own filled in; of the records inside, which may be compressed, the broker knows only how many there are.

use crate::exchange::{Outcome, ensure};
use crate::messages::*;
use crate::storage::records;
use bytes::{Buf, Bytes, BytesMut};

/// The longest batch taken, in bytes.
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

/// Which batch of which idempotent producer this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    pub producer_id: i64,
    pub producer_epoch: i16,
    /// Number of the first record, counted by the producer for this partition.
    pub base_sequence: i32,
}

/// A batch whose header was found in order.
#[derive(Debug, Clone)]
pub struct Batch {
    pub records: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    /// Set by producers that want no duplicates.
    pub sequence: Option<Sequence>,
    codec: i16,
    bytes: Bytes,
}

impl Batch {
    /// Checks what a producer sent for one partition: one batch, as Kafka demands since Produce v3, with all its records.
    pub fn from_producer(bytes: &Bytes) -> Outcome<Self> {
        let batch = Self::read(bytes)?;
        records::check(batch.records, batch.codec, &bytes[HEADER..])?;
        Ok(batch)
    }

    /// Checks the header and the checksum.
    fn read(bytes: &Bytes) -> Outcome<Self> {
        ensure(bytes.len() <= MAX_BATCH, ResponseError::MessageTooLarge)?;
        let mut header = bytes.get(..HEADER).ok_or(ResponseError::CorruptMessage)?;
        let (_base_offset, length, _leader_epoch) =
            (header.get_i64(), header.get_i32(), header.get_i32());
        let length = length_of(length);
        let is_whole = (HEADER..=bytes.len()).contains(&length);
        ensure(is_whole, ResponseError::CorruptMessage)?;
        let is_one = header.get_u8() == 2 && length == bytes.len();
        ensure(is_one, ResponseError::InvalidRecord)?;
        let checksum = crc32c::crc32c(&bytes[ATTRIBUTES..]);
        ensure(header.get_u32() == checksum, ResponseError::CorruptMessage)?;
        let (attributes, last_offset_delta) = (header.get_i16(), header.get_i32());
        let (base_timestamp, max_timestamp) = (header.get_i64(), header.get_i64());
        let sequence = Sequence {
            producer_id: header.get_i64(),
            producer_epoch: header.get_i16(),
            base_sequence: header.get_i32(),
        };
        let records = header.get_i32();
        let counted = records >= 1 && records - 1 == last_offset_delta;
        let is_plain = attributes & (CONTROL | TRANSACTIONAL) == 0;
        ensure(counted && is_plain, ResponseError::InvalidRecord)?;
        Ok(Self {
            records,
            base_timestamp,
            max_timestamp,
            codec: attributes & COMPRESSION_MASK,
            sequence: (sequence.producer_id >= 0).then_some(sequence),
            bytes: bytes.clone(),
        })
    }

    /// The batch at the start of what was stored, and the offset of its first record.
    pub(crate) fn from_storage(bytes: &Bytes) -> Outcome<(i64, Self)> {
        let header = bytes.get(..LENGTH_END);
        let mut header = header.ok_or(ResponseError::CorruptMessage)?;
        let (offset, length) = (header.get_i64(), length_of(header.get_i32()));
        ensure(length <= bytes.len(), ResponseError::CorruptMessage)?;
        Ok((offset, Self::read(&bytes.slice(..length))?))
    }

    /// In bytes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes to store: those that came, at their place in the log. Neither field is under the checksum.
    /// Copies, so that the log does not keep whole request frames alive.
    pub fn placed_at(&self, base_offset: i64) -> Bytes {
        const NO_LEADER_EPOCH: i32 = -1;
        let mut bytes = BytesMut::from(&self.bytes[..]);
        bytes[..8].copy_from_slice(&base_offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&NO_LEADER_EPOCH.to_be_bytes());
        bytes.freeze()
    }
}

/// Bytes of a batch whose header says this.
fn length_of(batch_length: i32) -> usize {
    usize::try_from(batch_length).map_or(usize::MAX, |length| length.saturating_add(LENGTH_END))
}
