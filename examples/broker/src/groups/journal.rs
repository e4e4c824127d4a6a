//! Committed offsets in a file: a line of JSON for each change, the latest last.
//!
//! ```text
//! ["group","topic",partition,{"offset":7,"leader_epoch":-1,"metadata":""}]    committed
//! ["group","topic",partition,null]                                            deleted
//! ```

use super::member::{Charge, Id};
use crate::storage::segments::append_whole;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file is written anew when it is this long, and this many times as long as it was then.
const LONG: u64 = 64 * 1024;
const TIMES: u64 = 4;

/// What an entry takes in memory beside its texts, roughly.
const ENTRY: usize = 128;

pub(super) type Offsets = BTreeMap<At, Committed>;

pub(super) type At = (Id, i32);

/// What is committed at a place from then on, if anything.
pub(super) type Noted = (At, Option<Committed>);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Committed {
    pub(super) offset: i64,
    pub(super) leader_epoch: i32,
    pub(super) metadata: Option<Id>,
    /// The memory of it.
    #[serde(skip)]
    pub(super) charge: Option<Charge>,
}

impl Committed {
    /// Bytes of memory that it takes under the name of its topic, of which each has a copy.
    pub(super) fn size(&self, topic: &str) -> usize {
        ENTRY + topic.len() + self.metadata.as_ref().map_or(0, |text| text.len())
    }
}

/// A line: group, topic, partition, and what is committed there from then on.
pub(super) type Change = (Id, Id, i32, Option<Committed>);

/// The file, open for more; or none, and then nothing is kept.
#[derive(Default)]
pub(super) struct Journal {
    path: PathBuf,
    file: Option<File>,
    /// Bytes of whole lines. There may be a part of a line behind them, which a full disk has left.
    length: u64,
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
    let path = path.display();
    for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        let (parsed, length) = (serde_json::from_slice(line).ok(), line.len());
        match parsed.filter(|_| line.ends_with(b"\n")) {
            Some(change) => changes.push(change),
            None => log!("{path}: line {number} is torn, its {length} bytes are cut off"),
        }
    }
    Ok(changes)
}

impl Journal {
    /// Begins the file anew with the offsets there are.
    pub(super) fn begin(&mut self, path: &Path, offsets: &[Change]) -> io::Result<()> {
        self.path = path.to_owned();
        self.rewrite(offsets)
    }

    /// Replaces the file by one with these lines. After an error the old one is there, and may grow to twice its length.
    pub(super) fn rewrite(&mut self, changes: &[Change]) -> io::Result<()> {
        self.limit = self.limit.max(2 * self.length);
        let new = self.path.with_extension("new");
        let mut file = File::options().append(true).create(true).open(&new)?;
        file.set_len(0)?;
        file.write_all(lines(changes)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        self.length = file.metadata()?.len();
        self.limit = LONG.max(TIMES * self.length);
        self.file = Some(file);
        Ok(())
    }

    /// Appends changes: after an error nothing of them.
    pub(super) fn append(&mut self, changes: &[impl Serialize]) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        append_whole(file, &mut self.length, lines(changes)?.as_bytes())
    }

    pub(super) fn is_long(&self) -> bool {
        self.file.is_some() && self.length > self.limit
    }

    /// Sees to it that what was noted outlives the machine: the file, and in its folder that it bears this name.
    pub(super) fn sync(&self) -> io::Result<()> {
        let (Some(file), Some(folder)) = (&self.file, self.path.parent()) else {
            return Ok(());
        };
        file.sync_all()?;
        File::open(folder)?.sync_all()
    }
}

fn lines(changes: &[impl Serialize]) -> io::Result<String> {
    let lines = changes.iter().map(serde_json::to_string);
    lines.map(|line| Ok(line? + "\n")).collect()
}
