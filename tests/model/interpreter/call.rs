//! The calls.

use crate::support::hashing::Hashing;
use crate::support::spans::{Choices, Span};
use request_purgatory::{CheckBound, time::Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// Two purgatories, and what is done with them.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) setup: Setup,
    pub(crate) calls: Vec<Call>,
}

/// What both are built with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    pub(crate) choices: Choices,
    /// Completions of expired operations go through an executor.
    pub(crate) executor: bool,
    pub(crate) map_shards: Option<usize>,
    pub(crate) max_watchers: Option<usize>,
    pub(crate) hashing: Hashing,
}

/// Keys with one hash, with hashes that differ in the low bits, in the high bits, in all bits.
pub(crate) const HASHINGS: [Hashing; 4] =
    [Hashing::All, Hashing::Low, Hashing::High, Hashing::None];

/// So deep do calls and operations stand in one another: the end of an operation that the script parks may park another
/// one, whose end makes calls as well.
pub(crate) const DEEP: u32 = 4;

/// Names an operation, whatever became of it: that of this number, counted round and round from the first one, or, if
/// it is odd, from the last few. [`ITSELF`] is the one that makes the call.
pub(crate) type Pick = u16;

/// The last few operations, of which more are parked.
pub(crate) const RECENT: usize = 8;

/// (Outside every operation: the last one.)
pub(crate) const ITSELF: Pick = u16::MAX;

#[derive(Debug, Clone)]
pub(crate) enum Call {
    Do(Act),
    /// The clock moves, and no thread drives a timer.
    Pass(Span),
}

/// What a caller does, and also an operation when the library calls it, with this purgatory.
#[derive(Debug, Clone)]
pub(crate) struct Act {
    pub(crate) side: usize,
    pub(crate) deed: Deed,
}

#[derive(Debug, Clone)]
pub(crate) enum Deed {
    Park(Arc<Arriving>),
    /// One more resolution of the key.
    Resolve(u8),
    /// One less.
    Release(u8),
    /// From now on the operation answers so.
    Answer(Pick, Answer),
    /// And so do the last [few](RECENT).
    AnswerRecent(Answer),
    Check(u8, By, Reach),
    CheckLater(u8),
    CheckHandle(Pick),
    /// As one event.
    CheckAll(Vec<u8>),
    /// Those whose bits are set.
    CheckWhere(u64),
    CancelKey(u8),
    CancelHandle(Pick),
    ForceKey(u8),
    /// With a change, in which this is done.
    ForceWith(u8, Arc<[Act]>),
    ForceHandle(Pick),
    Reschedule(Pick, Span),
    /// The handle, and the future of an awaited operation, which cancels that.
    DropHandle(Pick),
    /// The timer is driven.
    Advance,
    /// No more parks, and the timer is driven.
    Drain,
    Shutdown,
}

/// An operation that is to park.
#[derive(Debug, Clone)]
pub(crate) struct Arriving {
    pub(crate) on: Vec<On>,
    pub(crate) timeout: Span,
    /// What it answers when it is asked on arrival.
    pub(crate) first: Answer,
    /// What it answers from then on.
    pub(crate) then: Answer,
    pub(crate) reading: Reading,
    /// Its end is awaited: by a future, not by `on_complete`. (That takes no reading.)
    pub(crate) awaited: bool,
    /// Its `on_complete` panics.
    pub(crate) fragile: bool,
    /// What it does each time it is asked.
    pub(crate) asked: Vec<Act>,
    /// What it does in `on_complete`; in its destructor, if it panicked.
    pub(crate) ended: Vec<Act>,
}

/// What `try_complete` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    No,
    Yes,
    Panic,
}

/// One key to watch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct On {
    pub(crate) key: u8,
    pub(crate) rank: Option<u64>,
    pub(crate) way: Way,
}

/// How a key is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    Resolved,
    /// Resolved by the other purgatory.
    Foreign,
}

/// How a key is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Key,
    Resolved,
    /// (Only without a bound.)
    ResolvedAfterLock,
}

/// The bound of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) at_most: Option<usize>,
    pub(crate) up_to: Option<u64>,
    pub(crate) until_refused: bool,
}

/// What is said about the time of an arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reading {
    Unsaid,
    Ago(Span),
    Ahead(Span),
}

impl Call {
    /// With the first purgatory.
    pub(crate) fn first(deed: Deed) -> Self {
        Self::Do(Act { side: 0, deed })
    }
}

impl On {
    pub(crate) fn plain(key: u8) -> Self {
        let (rank, way) = (None, Way::Plain);
        Self { key, rank, way }
    }
}

impl Arriving {
    /// One that cannot complete.
    pub(crate) fn plain(on: Vec<On>, timeout: Span) -> Self {
        Self {
            on,
            timeout,
            first: Answer::No,
            then: Answer::No,
            reading: Reading::Unsaid,
            awaited: false,
            fragile: false,
            asked: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// When it arrived, if it says so.
    pub(crate) fn arrival(&self, now: Duration, tick: Duration) -> Option<Timestamp> {
        let arrival = match self.reading {
            Reading::Ago(span) => now.saturating_sub(span.of(tick)),
            Reading::Ahead(span) => now.saturating_add(span.of(tick)),
            Reading::Unsaid => return None,
        };
        (!self.awaited).then_some(Timestamp::from_origin(arrival))
    }
}

impl Reach {
    pub(crate) const ALL: Self = Self {
        at_most: None,
        up_to: None,
        until_refused: false,
    };

    pub(crate) fn bound(self) -> CheckBound {
        let all = self.at_most.map_or(CheckBound::all(), CheckBound::at_most);
        // In both orders.
        match (self.up_to, self.until_refused) {
            (None, false) => all,
            (None, true) => all.until_refused(),
            (Some(rank), false) => all.up_to(rank),
            (Some(rank), true) if rank % 2 == 0 => all.up_to(rank).until_refused(),
            (Some(rank), true) => all.until_refused().up_to(rank),
        }
    }

    /// As far as both.
    pub(crate) fn merged(self, other: Self) -> Self {
        Self {
            at_most: self.at_most.zip(other.at_most).map(|(a, b)| a + b),
            up_to: self.up_to.zip(other.up_to).map(|(a, b)| a.max(b)),
            until_refused: self.until_refused && other.until_refused,
        }
    }
}
