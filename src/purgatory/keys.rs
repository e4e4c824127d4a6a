//! The keys that one operation watches.

use crate::trampoline::{drop_user_value, drop_user_values};
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

    /// Drops them one by one: see [`drop_user_values`].
    pub(crate) fn drop_each(self)
    where
        K: 'static,
    {
        match self {
            Self::Resolved(..) => {}
            Self::One(key, _) => drop_user_value(key),
            Self::Two(keys, _) => drop_user_values(keys.keys),
            Self::Three(keys, _) => drop_user_values(keys.keys),
            Self::Mixed(watches) => drop_user_values(*watches),
        }
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
        self.for_each(0, |target, _| {
            if found.is_none() && is_it(&target) {
                found = Some(target);
            }
        });
        found
    }

    /// Calls `each` for all of them but the first `skipped`. A closure that is marked `inline(always)` becomes part of the
    /// loop over plain keys.
    #[inline(always)]
    pub(crate) fn for_each<'k>(
        &'k self,
        skipped: usize,
        mut each: impl FnMut(Target<&'k K>, Order<'k>),
    ) {
        match self {
            Self::One(key, ticket) if skipped == 0 => {
                each(Target::Key(key), Order::Arrived(ticket))
            }
            Self::Resolved(number, ticket) if skipped == 0 => {
                each(Target::Resolved(*number), Order::Arrived(ticket));
            }
            Self::One(..) | Self::Resolved(..) => {}
            Self::Two(keys, _) => for_each_key(keys, skipped, &mut each),
            Self::Three(keys, _) => for_each_key(keys, skipped, &mut each),
            Self::Mixed(watches) => for_each_watch(watches, skipped, each),
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
fn for_each_key<'k, K, const N: usize>(
    keys: &'k PlainKeys<K, N>,
    skipped: usize,
    each: &mut impl FnMut(Target<&'k K>, Order<'k>),
) {
    let mut place = skipped;
    while place < N {
        each(
            Target::Key(&keys.keys[place]),
            Order::Arrived(&keys.tickets[place]),
        );
        place += 1;
    }
}

#[inline(never)]
fn for_each_watch<'k, K>(
    watches: &'k [Watched<K>],
    skipped: usize,
    mut each: impl FnMut(Target<&'k K>, Order<'k>),
) {
    for watched in watches.get(skipped..).unwrap_or_default() {
        let order = Order::new(watched.rank, &watched.ticket);
        each(watched.target.as_ref(), order);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_plain_key_is_kept_in_two_words() {
        assert_eq!(size_of::<Keys<u64>>(), 16);
    }
}
