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

/// Whole batches read from a log.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    pub(crate) bytes: Bytes,
    /// When the newest of them was appended.
    pub(crate) newest: Option<Instant>,
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

    /// Reads whole batches from the one that holds `from`, none at or past `to`, up to `max_bytes` in all. With
    /// `at_least_one` the first batch comes even if it alone is longer, or a consumer could never get past it.
    pub(crate) fn read(&self, from: i64, to: i64, max_bytes: usize, at_least_one: bool) -> Batches {
        let first = self.index_of(from);
        let mut total = 0;
        let taken = self
            .batches
            .range(first.min(self.batches.len())..)
            .enumerate()
            .take_while(|(nth, batch)| {
                total += batch.bytes.len();
                batch.base_offset < to && (total <= max_bytes || (at_least_one && *nth == 0))
            })
            .map(|(_, batch)| batch);

        let mut batches = Batches::default();
        let mut bytes = BytesMut::new();
        for batch in taken {
            bytes.extend_from_slice(&batch.bytes);
            batches.newest = Some(batch.appended);
        }
        batches.bytes = bytes.freeze();
        batches
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
