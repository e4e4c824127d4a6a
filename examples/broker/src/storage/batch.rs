//! Record batches, format version 2. A batch is stored and handed out as the bytes that came, with two header fields of
//! its own filled in. The records inside, which may be compressed, are only counted: each gets an offset, so there must
//! be as many as it says.

use crate::exchange::{Outcome, ensure};
use crate::messages::*;
use bytes::{Buf, Bytes, BytesMut};
use std::io::{self, BufRead, BufReader, Read};

/// The longest batch taken, in bytes.
pub const MAX_BATCH: usize = 16 * 1024 * 1024;

/// The header up to and with the record count.
pub(crate) const HEADER: usize = 61;
/// `batch_length` counts from behind itself.
const LENGTH_END: usize = 12;
/// The checksum covers everything from the attributes on.
const ATTRIBUTES: usize = 21;

const COMPRESSION_MASK: i16 = 0b111;
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;

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
        check_records(batch.records, batch.codec, &bytes[HEADER..])?;
        Ok(batch)
    }

    fn read(bytes: &Bytes) -> Outcome<Self> {
        ensure(bytes.len() <= MAX_BATCH, Code::MessageTooLarge)?;
        let mut header = bytes.get(..HEADER).ok_or(Code::CorruptMessage)?;
        let (_base_offset, length) = (header.get_i64(), length_of(header.get_i32()));
        let _leader_epoch = header.get_i32();
        let is_whole = (HEADER..=bytes.len()).contains(&length);
        ensure(is_whole, Code::CorruptMessage)?;
        let is_one = header.get_u8() == 2 && length == bytes.len();
        ensure(is_one, Code::InvalidRecord)?;
        let checksum = crc32c::crc32c(&bytes[ATTRIBUTES..]);
        ensure(header.get_u32() == checksum, Code::CorruptMessage)?;
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
        ensure(counted && is_plain, Code::InvalidRecord)?;
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
        let mut header = bytes.get(..LENGTH_END).ok_or(Code::CorruptMessage)?;
        let (offset, length) = (header.get_i64(), length_of(header.get_i32()));
        ensure(length <= bytes.len(), Code::CorruptMessage)?;
        Ok((offset, Self::read(&bytes.slice(..length))?))
    }

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

/// Most bytes that the records of a batch may unpack to.
const MAX_UNPACKED: u64 = 256 * 1024 * 1024;

/// What a batch of the Java client begins with that is packed with snappy. Its blocks follow, each behind its length.
const SNAPPY_BLOCKS: &[u8] = b"\x82SNAPPY\0";
const SNAPPY_HEADER: usize = 16;

/// A record needs a byte for each of its fields but its length.
const MIN_RECORD: u64 = 6;

/// Checks that `bytes`, packed with the codec of this number, hold as many records as `count` says.
fn check_records(count: i32, codec: i16, bytes: &[u8]) -> Outcome {
    let counted = match codec {
        0 => holds(count, bytes),
        1 => holds(count, flate2::read::GzDecoder::new(bytes)),
        2 => unpack_snappy(bytes).and_then(|bytes| holds(count, &bytes[..])),
        3 => holds(count, lz4_flex::frame::FrameDecoder::new(bytes)),
        4 => ruzstd::decoding::StreamingDecoder::new(bytes)
            .map_err(io::Error::other)
            .and_then(|bytes| holds(count, bytes)),
        _ => return Err(Code::UnsupportedCompressionType),
    };
    match counted {
        Ok(true) => Ok(()),
        Ok(false) => Err(Code::InvalidRecord),
        Err(_) => Err(Code::CorruptMessage),
    }
}

/// Whether there are exactly `count` records: each is its length, and then that many bytes.
fn holds(count: i32, records: impl Read) -> io::Result<bool> {
    let mut records = BufReader::new(records.take(MAX_UNPACKED));
    for _ in 0..count {
        if records.fill_buf()?.is_empty() {
            return Ok(false);
        }
        let length = read_length(&mut records)?;
        let skipped = io::copy(&mut (&mut records).take(length), &mut io::sink())?;
        if length < MIN_RECORD || skipped < length {
            return Ok(false);
        }
    }
    Ok(records.fill_buf()?.is_empty())
}

/// A zigzag varint; 0 if it is negative.
fn read_length(records: &mut impl Read) -> io::Result<u64> {
    let mut value = 0_u64;
    for shift in [0, 7, 14, 21, 28] {
        let mut byte = [0];
        records.read_exact(&mut byte)?;
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            break;
        }
    }
    Ok(if value & 1 == 1 { 0 } else { value >> 1 })
}

fn unpack_snappy(bytes: &[u8]) -> io::Result<Vec<u8>> {
    if !bytes.starts_with(SNAPPY_BLOCKS) {
        return unpack_block(bytes, MAX_UNPACKED);
    }
    let mut unpacked = Vec::new();
    let mut rest = bytes.get(SNAPPY_HEADER..).unwrap_or_default();
    while let Some((length, after)) = rest.split_first_chunk() {
        let split = after.split_at_checked(u32::from_be_bytes(*length) as usize);
        let (block, after) = split.ok_or(io::ErrorKind::UnexpectedEof)?;
        unpacked.extend(unpack_block(block, MAX_UNPACKED - unpacked.len() as u64)?);
        rest = after;
    }
    Ok(unpacked)
}

fn unpack_block(block: &[u8], most: u64) -> io::Result<Vec<u8>> {
    if snap::raw::decompress_len(block)? as u64 > most {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(snap::raw::Decoder::new().decompress_vec(block)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_unpacks_to_so_much_and_no_more() {
        // A block that says so, and one that only with the byte of the block before says so.
        let one = b"\x81\x80\x80\x80\x01";
        let two =
            b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\0\0\0\x03\x01\0a\0\0\0\x05\x80\x80\x80\x80\x01";
        for bytes in [&one[..], two] {
            let error = unpack_snappy(bytes).map_err(|error| error.kind());
            assert_eq!(error, Err(io::ErrorKind::FileTooLarge));
        }
        // A record of as many bytes as there may be with its length, and one of as many behind it.
        let fits = [b"\xf6\xff\xff\xff\x01", b"\x80\x80\x80\x80\x02"].map(|length| {
            let record = Read::chain(&length[..], io::repeat(0).take(MAX_UNPACKED));
            holds(1, record).ok()
        });
        assert_eq!(fits, [Some(true), Some(false)]);
    }
}
