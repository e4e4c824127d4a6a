//! Committed offsets in a file: a line of JSON for each change, the latest last.
//!
//! ```text
//! ["group","topic",partition,offset,leader epoch,"metadata"]    committed
//! ["group","topic",partition]                                   deleted
//! ["group"]                                                     all of the group deleted
//! ```

use super::member::Id;
use super::offsets::Committed;
use crate::console::warn;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file is written anew when it is this long, and this many times as long as it was then.
const LONG: u64 = 64 * 1024;
const TIMES: u64 = 4;

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Commit(Id, Id, i32, Committed),
    Delete(Id, Id, i32),
    DeleteGroup(Id),
}

/// The file, open for more; or none, and then nothing is kept.
#[derive(Debug, Default)]
pub(super) struct Journal {
    path: PathBuf,
    file: Option<File>,
    /// Bytes of whole lines. There may be a part of a line behind them, which a full disk has left.
    length: u64,
    is_torn: bool,
    /// When to write it anew.
    limit: u64,
}

/// What was noted before. What is no whole line is left out: a crash, or a disk that was full, has torn it.
pub(super) fn read(path: &Path) -> io::Result<Vec<Change>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let mut changes = Vec::new();
    for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        match Change::parse(line).filter(|_| line.ends_with(b"\n")) {
            Some(change) => changes.push(change),
            None => warn(&format!(
                "{}: line {number} is torn, its {} bytes are cut off",
                path.display(),
                line.len()
            )),
        }
    }
    Ok(changes)
}

impl Journal {
    /// Begins the file anew with the offsets there are.
    pub(super) fn begin(path: &Path, offsets: &[Change]) -> io::Result<Self> {
        let mut journal = Self {
            path: path.to_owned(),
            ..Self::default()
        };
        journal.rewrite(offsets)?;
        Ok(journal)
    }

    /// Replaces the file by one with these lines: after an error the old one is still there.
    pub(super) fn rewrite(&mut self, changes: &[Change]) -> io::Result<()> {
        let unfinished = self.path.with_extension("new");
        if unfinished.exists() {
            fs::remove_file(&unfinished)?;
        }
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&unfinished)?;
        file.write_all(lines(changes).as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, &self.path)?;
        self.length = file.metadata()?.len();
        self.limit = LONG.max(TIMES * self.length);
        self.is_torn = false;
        self.file = Some(file);
        Ok(())
    }

    /// Appends changes: after an error nothing of them.
    pub(super) fn append(&mut self, changes: &[Change]) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let lines = lines(changes);
        if self.is_torn {
            file.set_len(self.length)?;
            self.is_torn = false;
        }
        if let Err(error) = file.write_all(lines.as_bytes()) {
            // What follows must not be written behind a part of a line.
            self.is_torn = file.set_len(self.length).is_err();
            return Err(error);
        }
        self.length += lines.len() as u64;
        Ok(())
    }

    pub(super) fn is_long(&self) -> bool {
        self.file.is_some() && self.length > self.limit
    }

    /// Sees to it that what was noted outlives the machine.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_all)
    }
}

fn lines(changes: &[Change]) -> String {
    changes
        .iter()
        .map(|change| format!("{}\n", change.json()))
        .collect()
}

impl Change {
    fn json(&self) -> Value {
        match self {
            Self::Commit(group, topic, partition, committed) => {
                let metadata = committed.metadata.as_deref();
                let (offset, epoch) = (committed.offset, committed.leader_epoch);
                json!([**group, **topic, partition, offset, epoch, metadata])
            }
            Self::Delete(group, topic, partition) => json!([**group, **topic, partition]),
            Self::DeleteGroup(group) => json!([**group]),
        }
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(Id::from);
        let number = |value: &Value| i32::try_from(value.as_i64()?).ok();
        match serde_json::from_slice::<Vec<Value>>(line).ok()?.as_slice() {
            [group] => Some(Self::DeleteGroup(text(group)?)),
            [group, topic, partition] => {
                Some(Self::Delete(text(group)?, text(topic)?, number(partition)?))
            }
            [group, topic, partition, offset, epoch, metadata] => {
                let committed = Committed {
                    offset: offset.as_i64()?,
                    leader_epoch: number(epoch)?,
                    metadata: text(metadata),
                };
                let (group, topic) = (text(group)?, text(topic)?);
                Some(Self::Commit(group, topic, number(partition)?, committed))
            }
            _ => None,
        }
    }
}
