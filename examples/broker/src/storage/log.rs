//! The log of one partition: batches, oldest first, in memory or in segment files.

use crate::storage::batch::{Batch, HEADER};
use crate::storage::segments::{Piece, Segments};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Most bytes kept per partition. Beyond it the oldest batches go, as under Kafka's `retention.bytes`.
pub(crate) const RETENTION: u64 = 64 * 1024 * 1024;

/// How many batches have their greatest timestamp noted together. There are up to a million short ones in a partition.
const BLOCK: usize = 1_024;

/// An append-only sequence of batches. Offsets count records, positions count bytes.
#[derive(Default)]
pub(crate) struct Log {
    batches: VecDeque<Stored>,
    /// The greatest timestamp of each [`BLOCK`] of batches: of the first one also over those that are gone.
    greatest: VecDeque<i64>,
    /// How many batches of the first block are gone.
    gone: usize,
    /// The oldest offset still kept, and the one that the next record will get.
    pub(crate) start_offset: i64,
    pub(crate) end_offset: i64,
    end_position: u64,
    /// Where the batches are, if not in memory.
    segments: Option<Segments>,
}

struct Stored {
    offsets: Range<i64>,
    positions: Range<u64>,
    base_timestamp: i64,
    max_timestamp: i64,
    /// None if they are in a segment.
    bytes: Option<Bytes>,
}

/// Whole batches found in a log, not yet read.
pub(crate) struct Batches {
    in_memory: Vec<Bytes>,
    in_files: Vec<Piece>,
    /// Bytes that [`read`](Self::read) gives.
    pub(crate) size: usize,
}

/// What a consumer is given of a partition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share {
    /// In bytes.
    pub(crate) size: usize,
    /// Whether a batch that is appended later could be added to it.
    pub(crate) may_grow: bool,
}

/// The numbers of batches, and their positions.
type Found = (Range<usize>, Range<u64>);

impl Batches {
    /// Reads them. To be called without the partition's lock.
    pub(crate) fn read(self) -> io::Result<Bytes> {
        if let [only] = &self.in_memory[..] {
            return Ok(only.clone());
        }
        let mut bytes = BytesMut::with_capacity(self.size);
        bytes.extend(self.in_memory);
        let mut pieces = self.in_files.iter();
        pieces.try_for_each(|piece| piece.read(&mut bytes))?;
        Ok(bytes.freeze())
    }
}

impl Log {
    /// The log that is kept in a folder, which has to be there. Tells `each` batch in it, with its offset. What a crash
    /// left of an unfinished append at the very end is cut off.
    pub(crate) fn open(folder: &Path, mut each: impl FnMut(&Batch, i64)) -> io::Result<Self> {
        let mut log = Self::default();
        let segments = Segments::open(folder, |start, found| match found {
            Some(batch) => {
                each(batch, log.end_offset);
                log.note(batch, None);
            }
            None => (log.start_offset, log.end_offset) = (start, start),
        })?;
        log.segments = Some(segments);
        Ok(log)
    }

    /// Appends a batch and returns its first offset. After an error the log is as before.
    pub(crate) fn append(&mut self, batch: &Batch) -> io::Result<i64> {
        let base_offset = self.end_offset;
        let bytes = batch.placed_at(base_offset);
        match &mut self.segments {
            None => self.note(batch, Some(bytes)),
            Some(segments) => {
                segments.append(base_offset, &bytes)?;
                self.note(batch, None);
            }
        }
        Ok(base_offset)
    }

    fn note(&mut self, batch: &Batch, bytes: Option<Bytes>) {
        let end_offset = self.end_offset + i64::from(batch.records);
        let end_position = self.end_position + batch.size() as u64;
        match self.greatest.back_mut() {
            Some(greatest) if !(self.gone + self.batches.len()).is_multiple_of(BLOCK) => {
                *greatest = batch.max_timestamp.max(*greatest);
            }
            _ => self.greatest.push_back(batch.max_timestamp),
        }
        self.batches.push_back(Stored {
            offsets: self.end_offset..end_offset,
            positions: self.end_position..end_position,
            base_timestamp: batch.base_timestamp,
            max_timestamp: batch.max_timestamp,
            bytes,
        });
        (self.end_offset, self.end_position) = (end_offset, end_position);
    }

    /// Sees to it that everything appended outlives the machine. Nothing to do for a log in memory.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.segments.as_ref().map_or(Ok(()), Segments::sync)
    }

    /// How much [`find`](Self::find) finds.
    pub(crate) fn share(&self, from: i64, to: i64, limit: usize, at_least_one: bool) -> Share {
        let (found, positions) = self.select(from, to, limit, at_least_one);
        let size = (positions.end - positions.start) as usize;
        let next = self.batches.get(found.end);
        // A batch that was left out now is left out later; and the next one may need more room than there is.
        let has_left_out = next.is_some_and(|batch| batch.offsets.start < to);
        let has_room = limit.saturating_sub(size) >= HEADER || at_least_one && size == 0;
        Share {
            size,
            may_grow: has_room && !has_left_out,
        }
    }

    /// Finds whole batches from the one that holds `from`, none at or past `to`, up to `limit` bytes in all. With
    /// `at_least_one` the first batch comes even if it alone is longer, or a consumer could never get past it.
    pub(crate) fn find(&self, from: i64, to: i64, limit: usize, at_least_one: bool) -> Batches {
        let (found, positions) = self.select(from, to, limit, at_least_one);
        let before = self.position_of(self.start_offset);
        let in_segments = positions.start - before..positions.end - before;
        let pieces = |it: &Segments| it.pieces(in_segments);
        let found = self.batches.range(found);
        Batches {
            in_memory: found.filter_map(|batch| batch.bytes.clone()).collect(),
            in_files: self.segments.as_ref().map_or(Vec::new(), pieces),
            size: (positions.end - positions.start) as usize,
        }
    }

    /// Which batches are found, and where their bytes are.
    fn select(&self, from: i64, to: i64, limit: usize, at_least_one: bool) -> Found {
        let start = self.position_of(from);
        let is_found = |batch: &Stored| {
            let fits = batch.positions.end.saturating_sub(start) <= limit as u64;
            let is_first = at_least_one && batch.positions.start == start;
            batch.offsets.start < to && (fits || is_first)
        };
        let first = self.index_of(from);
        // (All before the first would fit.)
        let behind = self.batches.partition_point(is_found).max(first);
        let last = self.batches.range(first..behind).next_back();
        let end = last.map_or(start, |last| last.positions.end);
        (first..behind, start..end)
    }

    /// The first batch with a record at or after `timestamp`: time and offset of its first record. It may be compressed, so
    /// this does not look inside: a consumer that starts here misses nothing, but may see a few older records of it.
    pub(crate) fn find_timestamp(&self, timestamp: i64) -> Option<(i64, i64)> {
        let mut blocks = self.greatest.iter().enumerate();
        let found = blocks.find_map(|(number, greatest)| {
            if *greatest < timestamp {
                return None;
            }
            let bound = |block: usize| (block * BLOCK).saturating_sub(self.gone);
            let behind = bound(number + 1).min(self.batches.len());
            let mut block = self.batches.range(bound(number)..behind);
            // Not there if it is gone.
            block.find(|it| it.max_timestamp >= timestamp)
        });
        found.map(|batch| (batch.base_timestamp.max(timestamp), batch.offsets.start))
    }

    /// Lets go of the oldest batches, or segments, while there is more than [`RETENTION`], but none from `keep_from` on.
    pub(crate) fn retain(&mut self, keep_from: i64) -> io::Result<()> {
        loop {
            let next = match &self.segments {
                Some(segments) => segments.second_start(),
                None => self.batches.get(1).map(|batch| batch.offsets.start),
            };
            let Some((oldest, offset)) = self.batches.front().zip(next) else {
                return Ok(());
            };
            if self.end_position - oldest.positions.start <= RETENTION || offset > keep_from {
                return Ok(());
            }
            if let Some(segments) = &mut self.segments {
                segments.remove_oldest()?;
            }
            let oldest = self.index_of(offset);
            self.batches.drain(..oldest);
            self.gone += oldest;
            self.greatest.drain(..self.gone / BLOCK);
            self.gone %= BLOCK;
            self.start_offset = offset;
        }
    }

    /// Where the batch that holds `offset` begins.
    fn position_of(&self, offset: i64) -> u64 {
        let batch = self.batches.get(self.index_of(offset));
        batch.map_or(self.end_position, |batch| batch.positions.start)
    }

    /// Which batch holds `offset`; one past the last if none does yet.
    fn index_of(&self, offset: i64) -> usize {
        self.batches.partition_point(|it| it.offsets.end <= offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{batch, patched};
    use std::time::{Duration, Instant};

    /// A batch of one record, with this as its only timestamp.
    fn batch_at(timestamp: i64, length: usize) -> Batch {
        let times = [timestamp.to_be_bytes(); 2].concat();
        let bytes = patched(&batch(&[&vec![0; length]]), 27, &times).into();
        Batch::from_producer(&bytes).expect("a batch")
    }

    #[test]
    fn a_time_is_found_where_the_batches_themselves_have_it_first() {
        let mut log = Log::default();
        // They share their bytes. Together they are three times what is kept.
        let mut batch = batch_at(0, 60_000);
        let bytes = batch.placed_at(0);
        for number in 0..3_000_i64 {
            // All times below 997 in some order, again and again, and now and then one far ahead.
            let time = if number % 700 == 50 {
                5_000 - number
            } else {
                number * 31 % 997
            };
            (batch.base_timestamp, batch.max_timestamp) = (time, time);
            log.note(&batch, Some(bytes.clone()));
            log.retain(i64::MAX).expect("it is in memory");
            for asked in [0, number % 1_000, 996, 997, 3_000, 5_000, i64::MAX] {
                let mut all = log.batches.iter();
                let first = all.find(|it| it.max_timestamp >= asked);
                let first = first.map(|it| (it.base_timestamp.max(asked), it.offsets.start));
                assert_eq!(log.find_timestamp(asked), first, "{asked} after {number}");
            }
        }
        assert!(log.start_offset > BLOCK as i64);
    }

    /// A request asks for one thousands of times, with the partition locked for each.
    #[test]
    fn a_time_is_found_soon_among_many_short_batches() {
        let (mut log, batch) = (Log::default(), batch_at(7, 0));
        (0..300_000).for_each(|_| log.note(&batch, None));
        let begun = Instant::now();
        for _ in 0..2_000 {
            assert_eq!(log.find_timestamp(8), None);
            assert_eq!(log.find_timestamp(7), Some((7, 0)));
        }
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}
