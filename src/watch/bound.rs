//! How far a check goes through the watchers of a key (the operations that wait for it), and in which order.

use std::cell::Cell;

/// The value that a watcher waits for a key to reach: an offset, an epoch, a version.
pub(crate) type Rank = u64;

/// How far a check goes through the operations that watch its key: the argument of
/// [`check_and_complete_with`](crate::Purgatory::check_and_complete_with). Bounds combine by chaining:
/// `CheckBound::at_most(1).up_to(9)`.
///
/// Deferred checks of one key (made by the thread that drives the timer) may be merged into one check. The count of the
/// merged check is the sum of the counts, and its rank is the highest of the ranks. The merged check has the bound
/// [`until_refused`](Self::until_refused) only if all of these checks have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckBound {
    /// The highest rank that the check reaches, among watchers with a rank.
    pub(crate) up_to: Rank,
    /// The check stops after this many completions.
    pub(crate) at_most: usize,
    /// Whether the check stops at the first watcher that cannot complete.
    pub(crate) until_refused: bool,
}

impl CheckBound {
    /// No bound: the check examines every operation that watches the key.
    pub const fn all() -> Self {
        Self {
            up_to: Rank::MAX,
            at_most: usize::MAX,
            until_refused: false,
        }
    }

    /// Stops when `count` operations have completed *for this key*. Use this bound for an event that satisfies at most
    /// `count` operations, such as a job for competing workers. Operations without a rank are examined in the order in
    /// which they were parked.
    ///
    /// An operation counts if it answers yes when it is examined for [this key](crate::purgatory::Cause::key). Two
    /// kinds of operations do not count:
    ///
    /// * An operation that completes in an examination that names no key, for example because another thread has asked
    ///   for this examination. The operation may have taken an item of another of its keys, and then the item of this
    ///   key is still there.
    /// * An operation that another thread is examining: that thread examines the operation again, and the check goes on
    ///   to the next operation. So a check may examine more operations than necessary.
    ///
    /// So an operation that watches several keys must take only what belongs to [the key that it is examined
    /// for](crate::purgatory::Cause::key). An operation that is examined for this key, but takes an item of another key,
    /// counts too. Then the check may end although an item of this key is left.
    pub fn at_most(count: usize) -> Self {
        Self {
            at_most: count,
            ..Self::all()
        }
    }

    /// Examines operations that watch the key [at a rank](crate::Watch::at_rank) up to `rank`, in the order of ranks,
    /// and then all operations that watch the key without a rank. Operations at higher ranks are not visited, and cost
    /// nothing.
    pub fn up_to(self, rank: u64) -> Self {
        Self {
            up_to: rank,
            ..self
        }
    }

    /// Stops at the first operation that answers no. Use this bound if the caller does not know how many items an event
    /// brought. The check skips an operation that another thread is examining.
    ///
    /// The operations after the one that refuses are *not* examined. Use this bound only if an operation's refusal
    /// shows that the operations after it would refuse too.
    pub fn until_refused(self) -> Self {
        Self {
            until_refused: true,
            ..self
        }
    }

    /// The bound of one check that replaces two checks of the same key.
    pub(crate) fn merge(self, other: Self) -> Self {
        Self {
            up_to: self.up_to.max(other.up_to),
            at_most: self.at_most.saturating_add(other.at_most),
            until_refused: self.until_refused && other.until_refused,
        }
    }
}

/// What a watcher without a rank keeps, so that it is found when it leaves its list. A long list counts its arrivals,
/// and the ticket is the low 32 bits of this count when the watcher arrived. A short list does not count: there the
/// ticket is 0 for the first watcher and [`JOINED`] for each later one.
pub(crate) type Ticket = u32;

/// The [ticket](Ticket) of every watcher but the first in a short list. Such watchers are told apart by their
/// addresses.
pub(crate) const JOINED: Ticket = 1;

/// Where a watcher stands among the watchers of its key, in the order in which a check examines them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order<'t> {
    /// With a rank: in the order of ranks, lowest first.
    Ranked(Rank),
    /// Without a rank: in the order of arrival, behind all watchers with a rank. The cell has the watcher's ticket, by
    /// which the list finds the watcher again, to remove it. The caller puts 0 in the cell, the ticket of the first
    /// watcher of a list. If the watcher is not the first, the list overwrites the 0.
    Arrived(&'t Cell<Ticket>),
}

impl<'t> Order<'t> {
    #[inline]
    pub(crate) fn new(rank: Option<Rank>, ticket: &'t Cell<Ticket>) -> Self {
        rank.map_or(Self::Arrived(ticket), Self::Ranked)
    }

    #[inline]
    pub(crate) fn is_ranked(self) -> bool {
        matches!(self, Self::Ranked(_))
    }

    /// Whether the watcher was the first of its list. If no other watcher has come since, it is the only one.
    #[inline]
    pub(crate) fn came_first(self) -> bool {
        matches!(self, Self::Arrived(ticket) if ticket.get() == 0)
    }
}
