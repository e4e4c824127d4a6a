//! One read of the store, from its beginning to its result.

use super::doubt::Doubt;
use crate::key::Key;
use crate::rules::Rule;
use crate::source::Reading;
use crate::sync::Arc;
use crate::table::Table;
use crate::table::entry::{Entry, History, Learned};

/// Why a key is read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Want {
    /// The session that owes this read of a key that was watched before it began.
    pub(super) owed_by: Option<u64>,
    /// The watch began a moment ago, or later than it seemed: what the read finds, the feed had no chance to tell.
    excused: bool,
}

impl Want {
    pub(super) fn owed(session: u64) -> Self {
        Self {
            owed_by: Some(session),
            excused: true,
        }
    }

    pub(super) fn after_watch() -> Self {
        Self {
            owed_by: None,
            excused: true,
        }
    }

    /// One read for two reasons.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            owed_by: self.owed_by.max(other.owed_by),
            excused: self.excused || other.excused,
        }
    }
}

/// One read: what was known when it began. The result is compared with that, since a version may be heard while the
/// read is on its way, and a result that is older than what was heard meanwhile is only late.
#[derive(Debug)]
pub struct Ticket<K> {
    /// What to read.
    pub keys: Vec<K>,
    pub(super) wants: Vec<Want>,
    pub(super) is_audit: bool,
    /// The session that was live when the read began.
    pub(super) live_in: Option<u64>,
    number: u64,
    history: History,
    entries: Vec<Option<(Arc<Entry>, u64)>>,
}

/// A version that a read found, and that the feed had not told.
#[derive(Debug)]
pub(super) struct Find {
    pub(super) entry: Arc<Entry>,
    pub(super) version: u64,
}

/// What came of a read.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Marks are raised, and what waits was checked.
    Sound(Vec<Find>),
    /// It began in a history that is over.
    Stale,
    /// It shows that the history is over: all that waited in it has been told.
    Doubt(Doubt),
    /// It showed nothing.
    Failed,
}

/// A read that has returned.
#[derive(Debug)]
pub struct Applied<K> {
    pub(super) ticket: Ticket<K>,
    pub(super) outcome: Outcome,
}

impl<K: Key> Ticket<K> {
    pub(super) fn new(
        table: &Table<K>,
        batch: Vec<(K, Want)>,
        is_audit: bool,
        live_in: Option<u64>,
    ) -> Self {
        let number = table.begin_read();
        let history = table.history();
        let (keys, wants) = batch.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        let entries = keys.iter().map(|key| {
            let entry = table.entry(key)?;
            let known = entry.known();
            // A reset comes to one key after the other: a mark of the history before shows no loss in this one.
            let is_of_this = known.history.generation == history.generation;
            let mark = if is_of_this { known.mark } else { 0 };
            Some((entry, mark))
        });
        Self {
            entries: entries.collect(),
            keys,
            wants,
            is_audit,
            live_in,
            number,
            history,
        }
    }

    /// The read failed.
    pub fn fail(self) -> Applied<K> {
        Applied {
            ticket: self,
            outcome: Outcome::Failed,
        }
    }

    /// Raises marks and checks what waits, or ends what waits if the store lost something. Runs user code: no lock may
    /// be held.
    pub fn apply(self, table: &Table<K>, reading: &Reading) -> Applied<K> {
        let outcome = self.outcome(table, reading);
        Applied {
            ticket: self,
            outcome,
        }
    }

    fn outcome(&self, table: &Table<K>, reading: &Reading) -> Outcome {
        let history = table.history();
        let is_other = history.epoch.is_some_and(|epoch| epoch != reading.epoch);
        if history.generation != self.history.generation || is_other && history != self.history {
            // Another read has ended the history, or begun one, meanwhile: which of the two is later is not known.
            return Outcome::Stale;
        }
        if is_other && table.keeps(Rule::ResetOnEpoch) {
            let reset = table.reset(reading.epoch, history);
            return reset.map_or(Outcome::Stale, |_| Outcome::Doubt(Doubt::Epoch));
        }
        if self.shows_loss(reading) && table.keeps(Rule::ResetWhenBack) {
            // Of the other keys, some went back and have since been overtaken by new commits; it is not known which. So
            // all waits end.
            let reset = table.reset(reading.epoch, history);
            return reset.map_or(Outcome::Stale, |_| Outcome::Doubt(Doubt::WentBack));
        }
        if history.epoch.is_none() && !table.adopt(reading.epoch) {
            return Outcome::Stale;
        }
        Outcome::Sound(self.raise(table, reading))
    }

    /// Whether some version is lower than one that was known before the read began. Marks are versions that were
    /// committed, and a read shows all that was committed before it began; so the store lost something.
    fn shows_loss(&self, reading: &Reading) -> bool {
        let marks = self
            .entries
            .iter()
            .map(|it| it.as_ref().map_or(0, |it| it.1));
        marks.zip(&reading.versions).any(|(mark, version)| {
            version.is_some_and(|version| version < mark)
                || reading.head.is_some_and(|head| head < mark)
        })
    }

    /// Returns what the feed had not told.
    fn raise(&self, table: &Table<K>, reading: &Reading) -> Vec<Find> {
        if let Some(head) = reading.head {
            table.note_head(head, self.history.generation);
        }
        let mut finds = Vec::new();
        let read = self.keys.iter().zip(&self.entries).zip(&self.wants);
        for (((key, entry), want), version) in read.zip(&reading.versions) {
            let Some((entry, _)) = entry else {
                continue;
            };
            let before = entry.known();
            if before.history.epoch.is_none() {
                // Who adopts the first history tells one key after the other, and may not have come to this one.
                entry.adopt(History {
                    epoch: Some(reading.epoch),
                    ..self.history
                });
            }
            let none_after = version.or(reading.floor).zip(reading.head);
            let learned = Learned::Read {
                number: self.number,
                excused: want.excused,
                none_after: none_after.filter(|_| table.keeps(Rule::ResetWhenDiscarded)),
            };
            let found = version.unwrap_or(0);
            let raised = table.reached(key, entry, found, learned, self.history.generation);
            if raised && before.read != 0 {
                table.counters.healed.add(1);
            }
            // A wait that has seen more than the store has is told so by a read that raises nothing. Such waits stand
            // at rank 0.
            if !raised && !self.is_audit {
                table.check(key, 0);
            }
            if self.is_audit && before.heard < found {
                finds.push(Find {
                    entry: entry.clone(),
                    version: found,
                });
            }
        }
        finds
    }
}
