//! Segment files: the batches of a log as they go over the wire. As in Kafka, each is named after its first offset.

use crate::storage::batch::Batch;
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A segment that has this many bytes gets no more batches.
const SEGMENT: u64 = 16 * 1024 * 1024;

pub(crate) struct Segments {
    folder: PathBuf,
    segments: VecDeque<Segment>,
}

struct Segment {
    start: i64,
    length: u64,
    path: Arc<Path>,
}

pub(crate) struct Piece {
    path: Arc<Path>,
    at: u64,
    length: usize,
}

impl Segment {
    fn new(start: i64, path: &Path) -> Self {
        Self {
            start,
            length: 0,
            path: path.into(),
        }
    }
}

impl Piece {
    /// Appends the bytes to `bytes`. Opens the file each time, so that any number of partitions needs no open files.
    pub(crate) fn read(&self, bytes: &mut BytesMut) -> io::Result<()> {
        let start = bytes.len();
        bytes.resize(start + self.length, 0);
        File::open(&self.path)?.read_exact_at(&mut bytes[start..], self.at)
    }
}

impl Segments {
    /// Opens the segments in the folder `path`. Tells `each` the offset that the first begins with, and then each batch.
    ///
    /// What follows the last whole batch of the last segment is left out, and cut off by the next append: a crash came in
    /// between. Damage anywhere else is an error, since cutting there would lose what was kept.
    pub(crate) fn open(path: &Path, mut each: impl FnMut(i64, Option<&Batch>)) -> io::Result<Self> {
        let mut segments = Self {
            folder: path.to_owned(),
            segments: found_in(path)?,
        };
        let count = segments.segments.len();
        let mut next = segments.segments.front().map_or(0, |first| first.start);
        each(next, None);
        for (number, segment) in segments.segments.iter_mut().enumerate() {
            let path = segment.path.display();
            if segment.start != next {
                let what = format!("{path} should begin with offset {next}");
                return Err(io::Error::other(what));
            }
            let mut rest = Bytes::from(fs::read(&segment.path)?);
            while let Ok((offset, batch)) = Batch::from_storage(&rest)
                && offset == next
            {
                each(offset, Some(&batch));
                next += i64::from(batch.records);
                segment.length += batch.size() as u64;
                rest = rest.slice(batch.size()..);
            }
            if rest.is_empty() {
                continue;
            }
            let (length, lost) = (segment.length, rest.len());
            if number + 1 < count {
                let what = format!("{path}: damage at byte {length}, but later segments follow");
                return Err(io::Error::other(what));
            }
            log!("{path}: the last {lost} bytes are no whole batch, and are cut off");
        }
        Ok(segments)
    }

    /// Appends a batch that begins with offset `start`. What an error leaves of it is cut off by the next append.
    pub(crate) fn append(&mut self, start: i64, bytes: &[u8]) -> io::Result<()> {
        let last = self.segments.back();
        if last.is_none_or(|last| last.length >= SEGMENT) {
            self.sync()?;
            let path = self.folder.join(format!("{start:020}.log"));
            self.segments.push_back(Segment::new(start, &path));
        }
        // INVARIANT: one was just added if there was none.
        let last = self.segments.back_mut().ok_or(io::ErrorKind::NotFound)?;
        let mut file = File::options().append(true).create(true).open(&last.path)?;
        append_whole(&mut file, &mut last.length, bytes)
    }

    /// Where the bytes at these positions are, which are counted from the start of the oldest segment.
    pub(crate) fn pieces(&self, positions: Range<u64>) -> Vec<Piece> {
        let mut end = 0;
        let pieces = self.segments.iter().map(|segment| {
            let start = end;
            end += segment.length;
            let (from, to) = (positions.start.max(start), positions.end.min(end));
            Piece {
                path: Arc::clone(&segment.path),
                at: from - start,
                length: to.saturating_sub(from) as usize,
            }
        });
        pieces.filter(|piece| piece.length > 0).collect()
    }

    /// The offset that follows the oldest segment, if another does.
    pub(crate) fn second_start(&self) -> Option<i64> {
        self.segments.get(1).map(|second| second.start)
    }

    /// Removes the oldest segment. A read that has it open goes on; one that has not will find nothing.
    pub(crate) fn remove_oldest(&mut self) -> io::Result<()> {
        if let Some(oldest) = self.segments.front() {
            fs::remove_file(&oldest.path)?;
            self.segments.pop_front();
        }
        Ok(())
    }

    /// Has the system write the last segment and the folder to its disk; the earlier ones were when they became full.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self.segments.back() {
            Some(last) if last.length > 0 => {
                File::open(&last.path)?.sync_all()?;
                File::open(&self.folder)?.sync_all()
            }
            _ => Ok(()),
        }
    }
}

/// Appends to a file of this `length`, and first cuts off what an append that failed has left behind it.
pub(crate) fn append_whole(file: &mut File, length: &mut u64, bytes: &[u8]) -> io::Result<()> {
    // (To ask for the length takes a fraction of a cut.)
    if file.metadata()?.len() > *length {
        file.set_len(*length)?;
    }
    file.write_all(bytes)?;
    *length += bytes.len() as u64;
    Ok(())
}

/// The segments of a folder, in order, their lengths not yet known.
fn found_in(folder: &Path) -> io::Result<VecDeque<Segment>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let start = name.and_then(|name| name.strip_suffix(".log")?.parse().ok());
        let no_segment = || io::Error::other(format!("{} is no segment", path.display()));
        found.push(Segment::new(start.ok_or_else(no_segment)?, &path));
    }
    found.sort_by_key(|segment| segment.start);
    Ok(found.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None follows a full one that cannot be written to the disk; one that has nothing yet need not be there.
    #[test]
    fn a_segment_is_written_to_the_disk_before_the_next_begins() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut segments = Segments::open(folder.path(), |_, _| {}).expect("none yet");
        segments.append(0, b"whole").expect("there is room");
        segments.segments[0].length = SEGMENT;
        fs::remove_file(&*segments.segments[0].path).expect("it is there");
        for _ in 0..2 {
            assert!(segments.append(8, b"next").is_err());
        }
        segments.segments[0].length = 0;
        segments.sync().expect("nothing to write");
    }
}
