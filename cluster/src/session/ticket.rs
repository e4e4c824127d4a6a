//! One read of the store, from its beginning to its result.

use crate::key::Key;
use crate::source::Reading;
use crate::sync::Arc;
use crate::table::Table;
use crate::table::entry::{Entry, Learned};

/// Why keys are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// They were watched before the session began, and are again.
    Inherited,
    /// They are watched since a moment ago.
    New,
    /// A client says that it has seen more.
    Verify,
    /// The watch may have begun late.
    Settled,
    /// It is time.
    Audit,
}

/// One read: what was known when it began. The result is compared with that, since a version may be heard while the
/// read is on its way, and a result that is older than what was heard meanwhile is only late.
#[derive(Debug)]
pub struct Ticket<K> {
    /// What to read.
    pub keys: Vec<K>,
    pub(super) why: Why,
    number: u64,
    pub(super) generation: u64,
    entries: Vec<Option<(Arc<Entry>, u64)>>,
}

/// A version that a read found, and that the feed had not told.
pub(super) struct Find {
    pub(super) entry: Arc<Entry>,
    pub(super) version: u64,
}

impl<K: Key> Ticket<K> {
    pub(super) fn new(table: &Table<K>, keys: Vec<K>, why: Why) -> Self {
        let number = table.begin_read();
        let entries = keys.iter().map(|key| {
            let entry = table.entry(key)?;
            let mark = entry.known().mark;
            Some((entry, mark))
        });
        Self {
            entries: entries.collect(),
            keys,
            why,
            number,
            generation: table.history().generation,
        }
    }

    /// Whether some version is lower than one that was known before the read began. Marks are versions that were
    /// committed, and a read shows all that was committed before it began; so the store lost something.
    pub(super) fn shows_loss(&self, reading: &Reading) -> bool {
        self.entries
            .iter()
            .zip(&reading.versions)
            .any(|(entry, version)| {
                let mark = entry.as_ref().map_or(0, |(_, mark)| *mark);
                version.is_some_and(|version| version < mark)
                    || reading.head.is_some_and(|head| head < mark)
            })
    }

    /// Raises marks, checks what waits, and returns what the feed had not told.
    pub(super) fn apply(self, table: &Table<K>, reading: &Reading) -> Vec<Find> {
        let mut finds = Vec::new();
        for ((key, entry), version) in self.keys.iter().zip(self.entries).zip(&reading.versions) {
            let (Some((entry, _)), Some(version)) = (entry, *version) else {
                continue;
            };
            let before = entry.known();
            // What a new session reads first was committed before it could hear; so was what it reads where the watch
            // may have begun late.
            let excused = matches!(self.why, Why::Inherited | Why::New | Why::Settled);
            let learned = Learned::Read {
                number: self.number,
                excused,
            };
            let raised = table.reached(key, &entry, version, learned);
            if raised && before.read != 0 {
                table.counters.healed.add(1);
            }
            // A wait that has seen more than the store has is told so by a read that raises nothing. Such waits stand
            // at rank 0.
            if !raised && matches!(self.why, Why::Inherited | Why::New | Why::Verify) {
                table.check(key, 0);
            }
            if self.why == Why::Audit && before.heard < version {
                finds.push(Find { entry, version });
            }
        }
        finds
    }
}
