//! The log of one partition: batches, oldest first, in memory or in segment files.

use crate::storage::batch::Batch;
use crate::storage::segments::{Piece, Segments};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::io;
use std::path::Path;

/// Most bytes kept per partition. Beyond it the oldest batches go, as under Kafka's `retention.bytes`.
pub(crate) const RETENTION: u64 = 64 * 1024 * 1024;

/// An append-only sequence of batches. Offsets count records, positions count bytes.
#[derive(Default)]
pub(crate) struct Log {
    batches: VecDeque<Stored>,
    start_offset: i64,
    end_offset: i64,
    end_position: u64,
    /// Where the batches are, if not in memory.
    segments: Option<Segments>,
}

struct Stored {
    base_offset: i64,
    position: u64,
    base_timestamp: i64,
    max_timestamp: i64,
    place: Part,
}

/// Where a batch is.
#[derive(Clone)]
enum Part {
    Memory(Bytes),
    File(Piece),
}

impl Part {
    fn size(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::File(piece) => piece.length,
        }
    }
}

/// Whole batches found in a log, not yet read.
#[derive(Default)]
pub(crate) struct Batches {
    parts: Vec<Part>,
    /// Bytes that [`read`](Self::read) gives.
    pub(crate) size: usize,
}

impl Batches {
    /// Reads them. To be called without the partition's lock.
    pub(crate) fn read(self) -> io::Result<Bytes> {
        if let [Part::Memory(only)] = &self.parts[..] {
            return Ok(only.clone());
        }
        let mut bytes = BytesMut::with_capacity(self.size);
        for part in self.parts {
            match part {
                Part::Memory(part) => bytes.extend_from_slice(&part),
                Part::File(piece) => piece.read(&mut bytes)?,
            }
        }
        Ok(bytes.freeze())
    }

    fn push(&mut self, part: &Part) {
        self.size += part.size();
        if let (Some(Part::File(last)), Part::File(next)) = (self.parts.last_mut(), part)
            && last.extend(next)
        {
            return;
        }
        self.parts.push(part.clone());
    }
}

impl Log {
    /// The log that is kept in a folder, which has to be there. Tells `each` batch in it, with its offset. What a crash
    /// left of an unfinished append at the very end is cut off.
    pub(crate) fn open(folder: &Path, mut each: impl FnMut(&Batch, i64)) -> io::Result<Self> {
        let mut log = Self::default();
        let segments = Segments::open(folder, |start, found| match found {
            Some((batch, piece)) => {
                each(&batch, log.end_offset);
                log.note(&batch, Part::File(piece));
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
        let part = match &mut self.segments {
            None => Part::Memory(bytes),
            Some(segments) => Part::File(segments.append(base_offset, &bytes)?),
        };
        self.note(batch, part);
        Ok(base_offset)
    }

    fn note(&mut self, batch: &Batch, place: Part) {
        let size = place.size() as u64;
        self.batches.push_back(Stored {
            base_offset: self.end_offset,
            position: self.end_position,
            base_timestamp: batch.base_timestamp,
            max_timestamp: batch.max_timestamp,
            place,
        });
        self.end_offset += i64::from(batch.records);
        self.end_position += size;
    }

    /// The oldest offset still kept.
    pub(crate) fn start_offset(&self) -> i64 {
        self.start_offset
    }

    /// The offset that the next record will get.
    pub(crate) fn end_offset(&self) -> i64 {
        self.end_offset
    }

    /// Sees to it that everything appended outlives the machine. Nothing to do for a log in memory.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.segments.as_ref().map_or(Ok(()), Segments::sync)
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
            let size = found.size + batch.place.size();
            let fits = size <= max_bytes || (at_least_one && found.size == 0);
            if batch.base_offset >= to || !fits {
                break;
            }
            found.push(&batch.place);
        }
        found
    }

    /// The first batch with a record at or after `timestamp`, as (timestamp, offset) of its first record.
    ///
    /// Batches may be compressed, so this does not look inside: a consumer that starts here misses nothing, but
    /// may see a few records of the same batch that are older.
    pub(crate) fn find_timestamp(&self, timestamp: i64) -> Option<(i64, i64)> {
        let mut batches = self.batches.iter();
        let found = batches.find(|batch| batch.max_timestamp >= timestamp);
        found.map(|batch| (batch.base_timestamp.max(timestamp), batch.base_offset))
    }

    /// Lets go of the oldest while there is more than [`RETENTION`], but of none at or past `keep_from`: batches of a
    /// log in memory, else whole segments.
    pub(crate) fn retain(&mut self, keep_from: i64) -> io::Result<()> {
        while let (Some(oldest), Some(next)) = (self.batches.front(), self.second_oldest()) {
            let offset = self.batches[next].base_offset;
            if self.end_position - oldest.position <= RETENTION || offset > keep_from {
                break;
            }
            if let Some(segments) = &mut self.segments {
                segments.remove_oldest()?;
            }
            self.batches.drain(..next);
            self.start_offset = offset;
        }
        Ok(())
    }

    /// The first batch that would stay if as little as possible went.
    fn second_oldest(&self) -> Option<usize> {
        match &self.segments {
            None => (self.batches.len() > 1).then_some(1),
            Some(segments) => {
                let start = segments.second_start()?;
                let is_before = |batch: &Stored| batch.base_offset < start;
                let next = self.batches.partition_point(is_before);
                (next < self.batches.len()).then_some(next)
            }
        }
    }

    /// Where the batch that holds `offset` begins.
    fn position_of(&self, offset: i64) -> u64 {
        let batch = self.batches.get(self.index_of(offset));
        batch.map_or(self.end_position, |batch| batch.position)
    }

    /// Which batch holds `offset`; one past the last if none does yet.
    fn index_of(&self, offset: i64) -> usize {
        if offset >= self.end_offset {
            return self.batches.len();
        }
        let is_before = |batch: &Stored| batch.base_offset <= offset;
        self.batches.partition_point(is_before).saturating_sub(1)
    }
}
