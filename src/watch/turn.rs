//! The order in which a check examines the watchers of a key.

use super::bound::Rank;
use std::cell::Cell;

/// The low bits of the number of a watcher without a rank, by which it is found when it leaves. Drawn when it is added.
/// The first few have no numbers yet: the first has 0, those that join it have [`JOINED`].
pub(crate) type Ticket = u32;

/// The ticket of a watcher that found a few before it.
pub(crate) const JOINED: Ticket = 1;

/// The place of a watcher in the order in which a check examines them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Turn<'t> {
    /// In the order of the ranks.
    Ranked(Rank),
    /// In the order of arrival, behind all with a rank.
    Arrived(&'t Cell<Ticket>),
}

impl<'t> Turn<'t> {
    #[inline]
    pub(crate) fn new(rank: Option<Rank>, ticket: &'t Cell<Ticket>) -> Self {
        rank.map_or(Self::Arrived(ticket), Self::Ranked)
    }

    #[inline]
    pub(crate) fn is_ranked(self) -> bool {
        matches!(self, Self::Ranked(_))
    }

    /// Whether the watcher came first. (Others may have come since, so this is a guess that it is alone.)
    #[inline]
    pub(crate) fn came_first(self) -> bool {
        matches!(self, Self::Arrived(ticket) if ticket.get() == 0)
    }
}
