//! The folder of `--data`: a folder for each topic, in it one for each partition, in it the segments of its log.
//!
//! No topic may have a plus in its name, so names with one are this module's: the lock, topics that are being created,
//! topics that are being deleted. What a crash leaves of the latter two is removed at the next start.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const LOCK: &str = "+lock";
const OFFSETS: &str = "+offsets";
const NEW: &str = "+new-";
const OLD: &str = "+old-";

/// What every file system of its own has at its root (ext4, say).
const LOST_AND_FOUND: &str = "lost+found";

/// Longest topic name, as in Kafka (names become names of folders there, too).
const MAX_NAME: usize = 249;

/// Whether a topic may have this name.
pub(crate) fn is_topic(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let is_name = (1..=MAX_NAME).contains(&name.len()) && name != "." && name != "..";
    is_name && name.bytes().all(legal)
}

/// A folder that this process alone uses.
pub(crate) struct Folder {
    path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

impl Folder {
    /// Takes possession of a folder, which is created if it is missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let lock = File::create(path.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => io::Error::other("another broker uses it"),
            fs::TryLockError::Error(error) => error,
        })?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    pub(crate) fn offsets(&self) -> PathBuf {
        self.path.join(OFFSETS)
    }

    pub(crate) fn partition(&self, topic: &str, partition: i32) -> PathBuf {
        self.path.join(topic).join(partition.to_string())
    }

    /// The topics that are there, with the numbers of their partitions. Whatever else is there is an error: a client
    /// could delete it if it were taken for a topic.
    pub(crate) fn topics(&self) -> io::Result<Vec<(String, i32)>> {
        let mut topics = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.unwrap_or_default();
            if name.starts_with(NEW) || name.starts_with(OLD) {
                fs::remove_dir_all(&path)?;
            } else if name != LOCK && !name.starts_with(OFFSETS) && name != LOST_AND_FOUND {
                let partitions = is_topic(name).then(|| count_partitions(&path)).flatten();
                let no_topic = || io::Error::other(format!("{}: no topic", path.display()));
                topics.push((name.to_owned(), partitions.ok_or_else(no_topic)?));
            }
        }
        Ok(topics)
    }

    /// Creates a topic without records: all of it, or after an error nothing.
    pub(crate) fn create(&self, topic: &str, partitions: i32) -> io::Result<()> {
        let new = format!("{NEW}{topic}");
        let unfinished = self.path.join(&new);
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)?;
        }
        for partition in 0..partitions {
            fs::create_dir_all(self.partition(&new, partition))?;
        }
        // Opened before: there may be too many open files already.
        let folder = File::open(&self.path)?;
        fs::rename(unfinished, self.path.join(topic))?;
        folder.sync_all()
    }

    /// Deletes a topic: after an error it is there as before. What cannot be removed of it goes at the next start.
    pub(crate) fn delete(&self, topic: &str) -> io::Result<()> {
        let old = self.path.join(format!("{OLD}{topic}"));
        if old.exists() {
            fs::remove_dir_all(&old)?;
        }
        fs::rename(self.path.join(topic), &old)?;
        if let Err(error) = fs::remove_dir_all(&old) {
            log!("cannot remove {}: {error}", old.display());
        }
        Ok(())
    }
}

/// How many partitions are in a folder, if there is nothing else.
fn count_partitions(topic: &Path) -> Option<i32> {
    let count = i32::try_from(fs::read_dir(topic).ok()?.count()).ok()?;
    let is_there = |partition: i32| topic.join(partition.to_string()).is_dir();
    (count > 0 && (0..count).all(is_there)).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    /// A creation that failed in the middle may have left folders of more partitions than the next one is to have. And if
    /// what cannot be removed were said to be there still, no record could be appended, and it could not be deleted again.
    #[test]
    fn a_creation_takes_over_nothing_and_what_cannot_be_removed_is_deleted() {
        let kept = tempdir().expect("a folder");
        let folder = Folder::open(kept.path()).expect("a folder");
        fs::create_dir_all(folder.partition("+new-t", 4)).expect("a part of a topic");
        folder.create("t", 2).expect("a topic");
        assert_eq!(folder.topics().expect("topics"), [("t".into(), 2)]);
        // A file is no folder that could be removed.
        let in_its_place = kept.path().join("u");
        fs::write(&in_its_place, "").expect("a file");
        folder.delete("u").expect("it is another folder's now");
        assert!(!in_its_place.exists());
    }
}
