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

    /// The file with the offsets of consumer groups.
    pub(crate) fn offsets(&self) -> PathBuf {
        self.path.join(OFFSETS)
    }

    /// The topics that are there, with the folders of their partitions.
    pub(crate) fn topics(&self) -> io::Result<Vec<(String, Vec<Option<PathBuf>>)>> {
        let mut topics = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let no_topic = || io::Error::other(format!("{}: no topic", path.display()));
            let name = name.ok_or_else(no_topic)?;
            if name.starts_with(NEW) || name.starts_with(OLD) {
                fs::remove_dir_all(&path)?;
            } else if name != LOCK && !name.starts_with(OFFSETS) {
                let partitions = fs::read_dir(&path)?.count();
                topics.push((name.to_owned(), folders(&path, partitions)));
            }
        }
        Ok(topics)
    }

    /// Creates a topic without records: all of it, or after an error nothing. The folders of its partitions.
    pub(crate) fn create(&self, topic: &str, count: usize) -> io::Result<Vec<Option<PathBuf>>> {
        let unfinished = self.path.join(format!("{NEW}{topic}"));
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)?;
        }
        for folder in folders(&unfinished, count).iter().flatten() {
            fs::create_dir_all(folder)?;
        }
        let finished = self.path.join(topic);
        // Opened before: there may be too many open files already.
        let folder = File::open(&self.path)?;
        fs::rename(&unfinished, &finished)?;
        folder.sync_all()?;
        Ok(folders(&finished, count))
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

/// The folders of the partitions of a topic, each of which has one.
fn folders(topic: &Path, partitions: usize) -> Vec<Option<PathBuf>> {
    let folders = (0..partitions).map(|index| Some(topic.join(index.to_string())));
    folders.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    /// A creation that failed in the middle may have left folders of more partitions than the next one is to have.
    #[test]
    fn a_topic_has_no_partition_of_a_creation_that_failed() {
        let kept = tempdir().expect("a folder");
        let folder = Folder::open(kept.path()).expect("a folder");
        let unfinished = kept.path().join(format!("{NEW}t"));
        for left in folders(&unfinished, 5).iter().flatten() {
            fs::create_dir_all(left).expect("a part of a topic");
        }
        let created = folder.create("t", 2).expect("a topic");
        assert_eq!(folder.topics().expect("topics"), [("t".into(), created)]);
    }

    /// If it were said to be there still, no record could be appended, and it could not be deleted again.
    #[test]
    fn a_topic_that_cannot_be_removed_is_deleted() {
        let kept = tempdir().expect("a folder");
        let folder = Folder::open(kept.path()).expect("a folder");
        // A file is no folder that could be removed.
        fs::write(kept.path().join("t"), "").expect("a file in its place");
        folder.delete("t").expect("it is another folder's now");
        assert!(!kept.path().join("t").exists());
    }
}
