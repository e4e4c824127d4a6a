//! The keys that one operation watches.

use crate::watch::Target;
use crate::watch::bound::{Order, Rank, Ticket};
use crate::watch::resolved::ListNumber;
use std::cell::Cell;

/// What one operation watches, each key once, with the ticket that the watcher draws at its list.
///
/// It lies in every slot, so it is small: 16 bytes for one key of up to 8. Two or three keys cost one allocation, more
/// of them two.
#[expect(
    clippy::box_collection,
    reason = "a vector in place would make every slot larger"
)]
#[expect(dead_code, reason = "a filler is not read")]
pub(crate) enum Keys<K> {
    One(K, Cell<Ticket>),
    Two(Box<PlainKeys<K, 2>>, Filler),
    Three(Box<PlainKeys<K, 3>>, Filler),
    Resolved(ListNumber, Cell<Ticket>),
    /// More keys, or of different kinds.
    Mixed(Box<Vec<Watched<K>>>),
}

/// Beside the tag, where other kinds have a ticket. Tag and filler are written as one word and read as one: of a word
/// whose half alone was just written, a load waits until that has reached the cache.
type Filler = u32;

/// A few keys without ranks. (The tickets stand together, so that they take fewer bytes.)
pub(crate) struct PlainKeys<K, const N: usize> {
    keys: [K; N],
    tickets: [Cell<Ticket>; N],
}

/// One key of any kind.
pub(crate) struct Watched<K> {
    target: Target<K>,
    rank: Option<Rank>,
    ticket: Cell<Ticket>,
}

impl<K> Keys<K> {
    /// Different keys of any kind.
    pub(crate) fn mixed(watches: impl IntoIterator<Item = (Target<K>, Option<Rank>)>) -> Self {
        let watches = watches.into_iter().map(|(target, rank)| Watched {
            target,
            rank,
            ticket: Cell::default(),
        });
        Self::Mixed(Box::new(watches.collect()))
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(..) | Self::Resolved(..) => 1,
            Self::Two(..) => 2,
            Self::Three(..) => 3,
            Self::Mixed(watches) => watches.len(),
        }
    }

    /// The first that `is_it`.
    pub(crate) fn find<'k>(
        &'k self,
        mut is_it: impl FnMut(&Target<&'k K>) -> bool,
    ) -> Option<Target<&'k K>> {
        let mut found = None;
        self.all(|target, _| {
            if is_it(&target) {
                found = Some(target);
            }
            found.is_none()
        });
        found
    }

    /// Calls `each` for all of them. A closure that is marked `inline(always)` becomes part of the loop over plain keys.
    #[inline(always)]
    pub(crate) fn for_each<'k>(&'k self, mut each: impl FnMut(Target<&'k K>, Order<'k>)) {
        self.all(
            #[inline(always)]
            move |target, order| {
                each(target, order);
                true
            },
        );
    }

    /// Calls `each` for all of them, as long as it says yes. Returns whether it always did.
    #[inline(always)]
    pub(crate) fn all<'k>(
        &'k self,
        mut each: impl FnMut(Target<&'k K>, Order<'k>) -> bool,
    ) -> bool {
        match self {
            Self::One(key, ticket) => each(Target::Key(key), Order::Arrived(ticket)),
            Self::Resolved(number, ticket) => {
                each(Target::Resolved(*number), Order::Arrived(ticket))
            }
            Self::Two(keys, _) => all_plain(keys, each),
            Self::Three(keys, _) => all_plain(keys, each),
            Self::Mixed(watches) => all_mixed(watches, each),
        }
    }
}

impl<K, const N: usize> PlainKeys<K, N> {
    /// Different keys.
    pub(crate) fn of(keys: [K; N]) -> Box<Self> {
        let tickets = [const { Cell::new(0) }; N];
        Box::new(Self { keys, tickets })
    }
}

#[inline(never)]
fn all_plain<'k, K, const N: usize>(
    keys: &'k PlainKeys<K, N>,
    // By value: what it has captured stays in registers, although the loop has atomic instructions.
    mut each: impl FnMut(Target<&'k K>, Order<'k>) -> bool,
) -> bool {
    for place in 0..N {
        let order = Order::Arrived(&keys.tickets[place]);
        if !each(Target::Key(&keys.keys[place]), order) {
            return false;
        }
    }
    true
}

#[inline(never)]
fn all_mixed<'k, K>(
    watches: &'k [Watched<K>],
    mut each: impl FnMut(Target<&'k K>, Order<'k>) -> bool,
) -> bool {
    watches.iter().all(|watched| {
        let order = Order::new(watched.rank, &watched.ticket);
        each(watched.target.as_ref(), order)
    })
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_plain_key_is_kept_in_two_words() {
        assert_eq!(size_of::<Keys<u64>>(), 16);
    }
}
