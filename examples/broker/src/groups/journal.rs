//! Committed offsets in a file: a line of JSON for each change, the latest last.
//!
//! ```text
//! ["group","topic",partition,offset,leader epoch,"metadata"]    committed
//! ["group","topic",partition]                                   deleted
//! ["group"]                                                     all of the group deleted
//! ```

use super::offsets::Committed;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file is written anew when it is this long, and this many times as long as it was then.
const LONG: u64 = 64 * 1024;
const TIMES: u64 = 4;

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Commit(String, String, i32, Committed),
    Delete(String, String, i32),
    DeleteGroup(String),
}

/// The file, open for more. Its lock is taken before that of a group, if both are.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    length: u64,
    /// When to write it anew.
    limit: u64,
}

impl Journal {
    /// What was noted before. A last line that a crash cut off is no line.
    pub(super) fn read(path: &Path) -> io::Result<Vec<Change>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut changes = Vec::new();
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            if line.ends_with(b"\n") {
                let change = Change::parse(&line).ok_or_else(|| {
                    let number = changes.len() + 1;
                    io::Error::other(format!("{}: line {number} is no offset", path.display()))
                })?;
                changes.push(change);
            }
            line.clear();
        }
        Ok(changes)
    }

    /// Begins the file anew with the offsets there are.
    pub(super) fn begin(path: PathBuf, offsets: &[Change]) -> io::Result<Self> {
        let open = Mutex::new(write(&path, offsets)?);
        Ok(Self { path, open })
    }

    /// Notes changes, which have been made before. If the file has become long, it begins anew with `all` offsets.
    pub(super) fn note(
        &self,
        changes: &[Change],
        all: impl FnOnce() -> Vec<Change>,
    ) -> io::Result<()> {
        let mut open = self.open.lock();
        let lines: String = changes.iter().map(Change::line).collect();
        open.file.write_all(lines.as_bytes())?;
        open.length += lines.len() as u64;
        if open.length > open.limit {
            *open = write(&self.path, &all())?;
        }
        Ok(())
    }

    /// Sees to it that what was noted outlives the machine.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.open.lock().file.sync_all()
    }
}

/// Replaces the file by one with these lines: after an error the old one is still there.
fn write(path: &Path, changes: &[Change]) -> io::Result<Open> {
    let unfinished = path.with_extension("new");
    let mut file = BufWriter::new(File::create(&unfinished)?);
    for change in changes {
        file.write_all(change.line().as_bytes())?;
    }
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    let length = file.metadata()?.len();
    let limit = LONG.max(TIMES * length);
    Ok(Open {
        file,
        length,
        limit,
    })
}

impl Change {
    fn line(&self) -> String {
        let line = match self {
            Self::Commit(group, topic, partition, committed) => json!([
                group,
                topic,
                partition,
                committed.offset,
                committed.leader_epoch,
                committed.metadata.as_deref()
            ]),
            Self::Delete(group, topic, partition) => json!([group, topic, partition]),
            Self::DeleteGroup(group) => json!([group]),
        };
        format!("{line}\n")
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
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
                    metadata: metadata.as_str().map(Into::into),
                };
                let (group, topic) = (text(group)?, text(topic)?);
                Some(Self::Commit(group, topic, number(partition)?, committed))
            }
            _ => None,
        }
    }
}
