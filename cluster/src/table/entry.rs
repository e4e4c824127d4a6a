//! What a node knows of one watched key.

use crate::source::Epoch;
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
    },
}

/// A watched key. One lock holds all that is known of it, so that a version is never seen beside the wrong history.
#[derive(Debug)]
pub struct Entry(Mutex<Known>);

impl Entry {
    pub(super) fn new(history: History) -> Self {
        Self(Mutex::new(Known {
            history,
            mark: 0,
            heard: 0,
            read: 0,
        }))
    }

    /// What is known now.
    #[inline]
    pub fn known(&self) -> Known {
        *self.0.lock()
    }

    /// Raises the mark to `version`, of which this node learned in this way. Returns whether the mark was lower.
    #[inline]
    pub(super) fn raise(&self, version: u64, learned: Learned) -> bool {
        let mut known = self.0.lock();
        let raised = known.mark < version;
        known.mark = known.mark.max(version);
        // In one step with the mark: a wait that sees the read's number sees what it read.
        match learned {
            Learned::Announced => {}
            Learned::Heard => known.heard = known.heard.max(version),
            Learned::Read { number, excused } => {
                known.read = known.read.max(number);
                if excused {
                    known.heard = known.heard.max(version);
                }
            }
        }
        raised
    }

    /// Versions up to `version` need not be heard.
    pub(crate) fn excuse(&self, version: u64) {
        let mut known = self.0.lock();
        known.heard = known.heard.max(version);
    }

    /// Begins another history, in which nothing is known yet. Returns whether this was not done already.
    pub(super) fn reset(&self, history: History) -> bool {
        let mut known = self.0.lock();
        let is_new = known.history.generation != history.generation;
        if is_new {
            *known = Known {
                history,
                mark: 0,
                heard: 0,
                // The number stays: a wait that asks for a later read still tells it from earlier ones.
                read: known.read,
            };
        }
        is_new
    }

    /// Takes over the first epoch that the store told: no reset, nothing was known before.
    pub(super) fn adopt(&self, history: History) {
        self.0.lock().history = history;
    }
}
