//! How far a check goes.

/// The value that a watcher waits for a key to reach: an offset, an epoch, a version.
pub(crate) type Rank = u64;

/// What a check examines at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Of the watchers with a rank, those up to this one.
    pub(crate) up_to: Rank,
    /// It stops after this many completions.
    pub(crate) at_most: usize,
}

impl Bound {
    /// All watchers.
    pub(crate) const NONE: Self = Self {
        up_to: Rank::MAX,
        at_most: usize::MAX,
    };

    pub(crate) fn up_to(up_to: Rank) -> Self {
        Self {
            up_to,
            ..Self::NONE
        }
    }

    pub(crate) fn at_most(self, at_most: usize) -> Self {
        Self { at_most, ..self }
    }

    /// The bound of one check in place of two.
    pub(crate) fn merge(self, other: Self) -> Self {
        Self {
            up_to: self.up_to.max(other.up_to),
            at_most: self.at_most.saturating_add(other.at_most),
        }
    }
}
