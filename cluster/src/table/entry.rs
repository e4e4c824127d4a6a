//! What a node knows of one watched key.

use crate::position::Epoch;
use crate::sync::Mutex;

/// Which history a node believes in. `generation` also grows when the store went back without a new epoch, so within
/// one generation marks only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct History {
    /// How many resets this node has seen.
    pub generation: u64,
    /// `None` until the store was read for the first time.
    pub epoch: Option<Epoch>,
}

/// What is known of one key.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// The history that the rest belongs to.
    pub history: History,
    /// The mark: the highest version that is known to be committed.
    pub mark: u64,
    /// The version up to which the present session has heard, or had no chance to hear because it was committed before.
    pub heard: u64,
    /// The number of the latest read of this key that has returned. 0: none has.
    pub read: u64,
    /// The store has no event of this key after the mark and the first of these two versions, up to the second one.
    /// Known only of a store that gives all versions from one sequence.
    pub none_after: Option<(u64, u64)>,
    /// How often events of the store that may have been of this key were discarded before this node had seen them.
    pub gaps: u64,
    /// The highest version of the store, of any key, that was known when this key began to be watched in this history:
    /// what was discarded before is no concern of a wait for whatever comes.
    baseline: u64,
}

impl Known {
    /// Joins what one more read has found to what is known. Where the two do not meet, events in between were discarded
    /// and may have been of this key: returns the last of these.
    fn extend(&mut self, (after, to): (u64, u64)) -> Option<u64> {
        let (since, until) = self.none_after.unwrap_or((after, self.baseline));
        if after <= until.max(self.mark) {
            self.none_after = Some((since, until.max(to)));
            return None;
        }
        // Where a version was heard before the first read, what followed it may be gone.
        let is_first = self.none_after.is_none() && self.baseline == 0 && self.mark == 0;
        self.none_after = Some((after, to.max(after)));
        if is_first {
            return None;
        }
        self.gaps += 1;
        Some(after)
    }
}

/// How this node learned of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// It was committed on this node.
    Announced,
    /// The feed told.
    Heard,
    /// The read of this number found it.
    Read {
        /// The number.
        number: u64,
        /// Whether the feed had no chance to tell.
        excused: bool,
        /// As [`Known::none_after`].
        none_after: Option<(u64, u64)>,
    },
}

/// What raising a mark has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Raised {
    Nothing,
    /// The mark was lower.
    Mark,
    /// Events up to this one may have been discarded unseen: waits that have not seen it are to be examined.
    Gap(u64),
}

/// A watched key. One lock holds all that is known of it, so that a version is never seen beside the wrong history.
#[derive(Debug)]
pub struct Entry {
    known: Mutex<Known>,
}

impl Entry {
    pub(super) fn new(history: History, baseline: u64) -> Self {
        let known = Known {
            history,
            mark: 0,
            heard: 0,
            read: 0,
            none_after: None,
            gaps: 0,
            baseline,
        };
        Self {
            known: Mutex::new(known),
        }
    }

    /// What is known now.
    #[inline]
    pub fn known(&self) -> Known {
        *self.known.lock()
    }

    /// Raises the mark to `version`, of which this node learned in this way, in this generation. What is learned of
    /// another generation is not believed.
    #[inline]
    pub(super) fn raise(&self, version: u64, learned: Learned, generation: u64) -> Raised {
        let mut known = self.known.lock();
        if known.history.generation != generation {
            return Raised::Nothing;
        }
        let raised = known.mark < version;
        known.mark = known.mark.max(version);
        let mut gap = None;
        // In one step with the mark: a wait that sees the read's number sees what it read.
        match learned {
            Learned::Announced => {}
            Learned::Heard => known.heard = known.heard.max(version),
            Learned::Read {
                number,
                excused,
                none_after,
            } => {
                known.read = known.read.max(number);
                if excused {
                    known.heard = known.heard.max(version);
                }
                if let Some(found) = none_after {
                    gap = known.extend(found);
                }
            }
        }
        match (raised, gap) {
            (_, Some(gap)) => Raised::Gap(gap),
            (true, None) => Raised::Mark,
            (false, None) => Raised::Nothing,
        }
    }

    /// Versions up to `version` need not be heard.
    pub(crate) fn excuse(&self, version: u64) {
        let mut known = self.known.lock();
        known.heard = known.heard.max(version);
    }

    /// Begins another history, in which nothing is known yet. Returns whether this was not done already. (A thread that
    /// comes late with an earlier history finds the next one here.)
    pub(super) fn reset(&self, history: History) -> bool {
        let mut known = self.known.lock();
        let is_new = known.history.generation < history.generation;
        if is_new {
            *known = Known {
                history,
                mark: 0,
                heard: 0,
                // The number stays: a wait that asks for a later read still tells it from earlier ones.
                read: known.read,
                none_after: None,
                gaps: known.gaps,
                // Of the new history nothing was known when the key began to be watched.
                baseline: 0,
            };
        }
        is_new
    }

    /// Takes over the first epoch that the store told: no reset, nothing was known before. (That history may be over by
    /// now.)
    pub(crate) fn adopt(&self, history: History) {
        let mut known = self.known.lock();
        if known.history.generation == history.generation {
            known.history = history;
        }
    }
}
