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
        Self::from_request(bytes, &mut { MAX_UNPACKED })
    }

    /// The same, where all batches of its request together may unpack to `left` bytes more.
    pub(crate) fn from_request(bytes: &Bytes, left: &mut u64) -> Outcome<Self> {
        let batch = Self::read(bytes)?;
        check_records(batch.records, batch.codec, &bytes[HEADER..], left)?;
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

/// Whether these bytes may be a batch that is packed. It takes far more work than its length says.
pub(crate) fn is_packed(bytes: &[u8]) -> bool {
    let attributes = bytes.get(ATTRIBUTES..ATTRIBUTES + 2);
    attributes.is_some_and(|mut it| it.get_i16() & COMPRESSION_MASK != 0)
}

/// Most bytes that the records of a request may unpack to.
pub(crate) const MAX_UNPACKED: u64 = 256 * MIB;

/// And those of a batch, for each byte that it has, beside the first MiB.
const PER_BYTE: u64 = 100;

/// How far back a batch that is packed with zstd may refer: as far as one of its level 19 does.
const MAX_WINDOW: u64 = 8 * MIB;

const MIB: u64 = 1024 * 1024;

/// What a batch of the Java client begins with that is packed with snappy. Its blocks follow, each behind its length.
const SNAPPY_BLOCKS: &[u8] = b"\x82SNAPPY\0";
const SNAPPY_HEADER: usize = 16;

/// A record needs a byte for each of its fields but its length.
const MIN_RECORD: u64 = 6;

/// Checks that `bytes`, packed with the codec of this number, hold as many records as `count` says. They are refused as
/// if the rest were missing if they unpack to too much, of which there is `left`.
fn check_records(count: i32, codec: i16, bytes: &[u8], left: &mut u64) -> Outcome {
    let counted = match codec {
        0 => holds(count, bytes),
        1..=4 => {
            let most = (MIB + PER_BYTE * bytes.len() as u64).min(*left);
            // A decoder that fails has perhaps unpacked all of this. One that ends gives back what it has not unpacked.
            *left -= most;
            unpack(codec, bytes, most).and_then(|records| {
                let mut records = records.take(most);
                let counted = holds(count, &mut records);
                *left += records.limit();
                counted
            })
        }
        _ => return Err(Code::UnsupportedCompressionType),
    };
    match counted {
        Ok(true) => Ok(()),
        Ok(false) => Err(Code::InvalidRecord),
        Err(_) => Err(Code::CorruptMessage),
    }
}

fn unpack<'a>(codec: i16, bytes: &'a [u8], most: u64) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match codec {
        1 => Box::new(flate2::read::GzDecoder::new(bytes)),
        2 => Box::new(io::Cursor::new(unpack_snappy(bytes, most)?)),
        3 => Box::new(lz4_flex::frame::FrameDecoder::new(bytes)),
        _ => {
            if zstd_window(bytes).is_none_or(|window| window > MAX_WINDOW) {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let decoder = ruzstd::decoding::StreamingDecoder::new(bytes);
            Box::new(decoder.map_err(io::Error::other)?)
        }
    })
}

/// How much of what it has unpacked the decoder has to keep: the header of a frame says so.
fn zstd_window(frame: &[u8]) -> Option<u64> {
    const IS_ONE_SEGMENT: u8 = 1 << 5;
    let (descriptor, rest) = frame.get(4..)?.split_first()?;
    if descriptor & IS_ONE_SEGMENT == 0 {
        let window = rest.first()?;
        let base = 1 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    // All of it. Its length is behind the number of a dictionary.
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let length = rest.get(dictionary..)?.get(..1 << (descriptor >> 6))?;
    let digits = length.iter().rev();
    Some(digits.fold(0, |value, digit| value << 8 | u64::from(*digit)))
}

/// Whether there are exactly `count` records: each is its length, and then that many bytes.
fn holds(count: i32, records: impl Read) -> io::Result<bool> {
    let mut records = BufReader::new(records);
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

fn unpack_snappy(bytes: &[u8], most: u64) -> io::Result<Vec<u8>> {
    if !bytes.starts_with(SNAPPY_BLOCKS) {
        return unpack_block(bytes, most);
    }
    let mut unpacked = Vec::new();
    let mut rest = bytes.get(SNAPPY_HEADER..).unwrap_or_default();
    while let Some((length, after)) = rest.split_first_chunk() {
        let split = after.split_at_checked(u32::from_be_bytes(*length) as usize);
        let (block, after) = split.ok_or(io::ErrorKind::UnexpectedEof)?;
        unpacked.extend(unpack_block(block, most - unpacked.len() as u64)?);
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
    use crate::requests::{batch, patched};
    use ruzstd::encoding::{CompressionLevel::Fastest, compress_to_vec};
    use std::io::Write;

    /// A batch whose header says `count` records, and whose records are `bytes`, packed with the codec number `codec`.
    fn packed(codec: u8, count: i32, bytes: &[u8]) -> Bytes {
        let mut batch = [&batch(&[b""])[..HEADER], bytes].concat();
        let length = (batch.len() - LENGTH_END) as i32;
        batch[8..LENGTH_END].copy_from_slice(&length.to_be_bytes());
        batch[23..27].copy_from_slice(&(count - 1).to_be_bytes());
        batch[57..HEADER].copy_from_slice(&count.to_be_bytes());
        patched(&batch, 22, &[codec]).into()
    }

    /// A record of this many bytes and a few more, of zeros.
    fn record(length: usize) -> Vec<u8> {
        let varint = [0, 7, 14, 21, 28].map(|shift| ((2 * length) >> shift) as u8 | 0x80);
        let mut record = varint.to_vec();
        record[4] &= 0x7f;
        record.resize(5 + length, 0);
        record
    }

    fn gzip(records: &[u8]) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), Default::default());
        gzip.write_all(records).expect("pack");
        gzip.finish().expect("pack")
    }

    fn lz4(records: &[u8]) -> Vec<u8> {
        let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
        lz4.write_all(records).expect("pack");
        lz4.finish().expect("pack")
    }

    #[test]
    fn a_batch_unpacks_to_so_much_and_no_more() {
        // A block that says so, and one that only with the byte of the block before says so.
        let one = b"\x81\x80\x80\x80\x01";
        let two =
            b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\0\0\0\x03\x01\0a\0\0\0\x05\x80\x80\x80\x80\x01";
        for bytes in [&one[..], two] {
            let error = unpack_snappy(bytes, MAX_UNPACKED).map_err(|error| error.kind());
            assert_eq!(error, Err(io::ErrorKind::FileTooLarge));
        }
        let [short, long] = [1_000_000, 3_000_000].map(record);
        for (codec, pack) in [
            (1, gzip as fn(&[u8]) -> _),
            (3, lz4),
            (4, |it| compress_to_vec(it, Fastest)),
        ] {
            let taken =
                [&short, &long].map(|it| Batch::from_producer(&packed(codec, 1, &pack(it))).err());
            assert_eq!(taken, [None, Some(Code::InvalidRecord)], "codec {codec}");
        }
        // What is packed less tightly may be longer.
        let records = snap::raw::Encoder::new().compress_vec(&long).expect("pack");
        assert!(Batch::from_producer(&packed(2, 1, &records)).is_ok());
    }

    /// There may be thousands of short ones.
    #[test]
    fn the_batches_of_a_request_unpack_to_so_much_together() {
        let batch = packed(1, 1, &gzip(&record(1_000_000)));
        let damaged = packed(1, 2, &gzip(&record(1_000_000)));
        let mut left = 2_500_000;
        let mut take = |batch| Batch::from_request(batch, &mut left).err();
        assert_eq!(
            [(); 3].map(|()| take(&batch)),
            [None, None, Some(Code::InvalidRecord)]
        );
        assert_eq!(
            take(&packed(0, 1, &record(1_000_000))),
            None,
            "it is not packed"
        );
        // Those that are refused count as well.
        left = 2_500_000;
        let mut take = |batch| Batch::from_request(batch, &mut left).err();
        for _ in 0..3 {
            assert_eq!(take(&damaged), Some(Code::InvalidRecord));
        }
        assert_eq!(take(&batch), Some(Code::InvalidRecord));
    }

    /// Or the decoder would keep that much, for each batch that is being counted.
    #[test]
    fn a_window_of_zstd_is_refused_if_it_is_long() {
        // A record of six bytes, as its length is: one block of a byte that is repeated.
        let block = b"\x3b\0\0\x0c";
        let frame = |header: &[u8]| [b"\x28\xb5\x2f\xfd", header, block].concat();
        for (header, is_taken) in [
            (&[0, 13 << 3][..], true),
            (&[0, 13 << 3 | 1], false),
            (&[0, 14 << 3], false),
            (&[1 << 5, 7], true),
            (&[2 << 6 | 1 << 5, 0, 0, 0, 1], false),
            (&[1 << 5], false),
        ] {
            let refused = Batch::from_producer(&packed(4, 1, &frame(header))).err();
            let expected = (!is_taken).then_some(Code::CorruptMessage);
            assert_eq!(refused, expected, "{header:?}");
        }
    }
}
