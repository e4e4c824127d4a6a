//! The records inside a batch. They are only counted: each gets an offset, so a batch must have as many as it says.

use crate::exchange::Outcome;
use crate::messages::*;
use std::io::{self, BufRead, BufReader, Read};

/// Most bytes that the records of a batch may unpack to.
const MAX_UNPACKED: u64 = 256 * 1024 * 1024;

/// What a batch of the Java client begins with that is packed with snappy. Its blocks follow, each behind its length.
const SNAPPY_BLOCKS: &[u8] = b"\x82SNAPPY\0";
const SNAPPY_HEADER: usize = 16;

/// A record needs a byte for each of its fields but its length.
const MIN_RECORD: u64 = 6;

/// Checks that `bytes`, packed with the codec of this number, hold as many records as `count` says.
pub(super) fn check(count: i32, codec: i16, bytes: &[u8]) -> Outcome {
    let counted = match codec {
        0 => holds(count, bytes),
        1 => holds(count, flate2::read::GzDecoder::new(bytes)),
        2 => unpack_snappy(bytes).and_then(|bytes| holds(count, &bytes[..])),
        3 => holds(count, lz4_flex::frame::FrameDecoder::new(bytes)),
        4 => ruzstd::decoding::StreamingDecoder::new(bytes)
            .map_err(io::Error::other)
            .and_then(|bytes| holds(count, bytes)),
        _ => return Err(ResponseError::UnsupportedCompressionType),
    };
    match counted {
        Ok(true) => Ok(()),
        Ok(false) => Err(ResponseError::InvalidRecord),
        Err(_) => Err(ResponseError::CorruptMessage),
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
    let is_negative = value & 1 == 1;
    Ok(if is_negative { 0 } else { value >> 1 })
}

fn unpack_snappy(bytes: &[u8]) -> io::Result<Vec<u8>> {
    if !bytes.starts_with(SNAPPY_BLOCKS) {
        return unpack_block(bytes, MAX_UNPACKED);
    }
    let mut unpacked = Vec::new();
    let mut rest = bytes.get(SNAPPY_HEADER..).unwrap_or_default();
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        let split = after.split_at_checked(length);
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
        // A record of as many bytes as there may be, behind its length.
        let record = (&b"\x80\x80\x80\x80\x02"[..]).chain(io::repeat(0).take(MAX_UNPACKED));
        assert_eq!(holds(1, record).ok(), Some(false));
    }
}
