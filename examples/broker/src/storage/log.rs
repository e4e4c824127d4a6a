//! The log of one partition: batches in memory, oldest first.

use crate::storage::batch::Batch;
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::time::Instant;

/// Most bytes kept per partition. Beyond it the oldest batches go, as under Kafka's `retention.bytes`.
const RETENTION: u64 = 64 * 1024 * 1024;

/// An append-only sequence of batches. Offsets count records, positions count bytes.
#[derive(Debug, Default)]
pub(crate) struct Log {
    batches: VecDeque<Stored>,
    start_offset: i64,
    end_offset: i64,
    end_position: u64,
}

#[derive(Debug)]
struct Stored {
    base_offset: i64,
    position: u64,
    base_timestamp: i64,
    max_timestamp: i64,
    appended: Instant,
    bytes: Bytes,
}

/// Whole batches found in a log, not yet put together.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    parts: Vec<Bytes>,
    size: usize,
}

impl Batches {
    /// Bytes that [`read`](Self::read) gives.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn read(mut self) -> Bytes {
        if self.parts.len() == 1 {
            return self.parts.swap_remove(0);
        }
        let mut bytes = BytesMut::with_capacity(self.size);
        for part in self.parts {
            bytes.extend_from_slice(&part);
        }
        bytes.freeze()
    }
}

impl Log {
    /// The oldest offset still kept.
    pub(crate) fn start_offset(&self) -> i64 {
        self.start_offset
    }

    /// The offset that the next record will get.
    pub(crate) fn end_offset(&self) -> i64 {
        self.end_offset
    }

    /// Appends a batch and returns its first offset.
    pub(crate) fn append(&mut self, batch: &Batch) -> i64 {
        let base_offset = self.end_offset;
        let bytes = batch.placed_at(base_offset);
        let position = self.end_position;
        self.end_offset += i64::from(batch.records);
        self.end_position += bytes.len() as u64;
        self.batches.push_back(Stored {
            base_offset,
            position,
            base_timestamp: batch.base_timestamp,
            max_timestamp: batch.max_timestamp,
            appended: Instant::now(),
            bytes,
        });
        base_offset
    }

    /// Bytes in the batches that hold the offsets `from..to`.
    pub(crate) fn bytes_between(&self, from: i64, to: i64) -> u64 {
        if from >= to {
            return 0;
        }
        self.position_of(to) - self.position_of(from)
    }

    /// Finds whole batches from the one that holds `from`, none at or past `to`, up to `max_bytes` in all. With
    /// `at_least_one` the first batch comes even if it alone is longer, or a consumer could never get past it.
    pub(crate) fn find(&self, from: i64, to: i64, max_bytes: usize, at_least_one: bool) -> Batches {
        let first = self.index_of(from).min(self.batches.len());
        let mut found = Batches::default();
        for batch in self.batches.range(first..) {
            let size = found.size + batch.bytes.len();
            let fits = size <= max_bytes || (at_least_one && found.parts.is_empty());
            if batch.base_offset >= to || !fits {
                break;
            }
            found.size = size;
            found.parts.push(batch.bytes.clone());
        }
        found
    }

    /// When the newest batch before the offset `to` was appended.
    pub(crate) fn appended_before(&self, to: i64) -> Option<Instant> {
        let last = self.batches.partition_point(|batch| batch.base_offset < to);
        let last = last.checked_sub(1)?;
        self.batches.get(last).map(|batch| batch.appended)
    }

    /// The first batch with a record at or after `timestamp`, as (timestamp, offset) of its first record.
    ///
    /// Batches may be compressed, so this does not look inside: a consumer that starts here misses nothing, but
    /// may see a few records of the same batch that are older.
    pub(crate) fn find_timestamp(&self, timestamp: i64) -> Option<(i64, i64)> {
        self.batches
            .iter()
            .find(|batch| batch.max_timestamp >= timestamp)
            .map(|batch| (batch.base_timestamp.max(timestamp), batch.base_offset))
    }

    /// Lets go of the oldest batches while there is more than [`RETENTION`], but of none at or past `keep_from`.
    pub(crate) fn retain(&mut self, keep_from: i64) {
        while let (Some(oldest), Some(next)) = (self.batches.front(), self.batches.get(1)) {
            let kept = self.end_position - oldest.position;
            if kept <= RETENTION || next.base_offset > keep_from {
                return;
            }
            self.start_offset = next.base_offset;
            self.batches.pop_front();
        }
    }

    /// Where the batch that holds `offset` begins.
    fn position_of(&self, offset: i64) -> u64 {
        self.batches
            .get(self.index_of(offset))
            .map_or(self.end_position, |batch| batch.position)
    }

    /// Which batch holds `offset`; one past the last if none does yet.
    fn index_of(&self, offset: i64) -> usize {
        if offset >= self.end_offset {
            return self.batches.len();
        }
        self.batches
            .partition_point(|batch| batch.base_offset <= offset)
            .saturating_sub(1)
    }
}
