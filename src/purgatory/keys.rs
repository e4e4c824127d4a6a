//! The keys that one operation watches.

use crate::watch::Target;
use crate::watch::bound::{Order, Rank, Ticket};
use crate::watch::resolved::ListNumber;
use std::cell::Cell;

/// The keys that one operation watches, each once. For each key there is a [`Ticket`], by which the operation is found
/// in the list of the key.
///
/// Every slot contains this value, so it is small: 16 bytes for one key of up to 8 bytes. Two or three keys cost one
/// allocation, more keys cost two.
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
    /// All other cases: four or more keys, a key with a rank, or a resolved key among several.
    Mixed(Box<Vec<Watched<K>>>),
}

/// Fills the space in which other variants have a ticket, so that tag and filler are written by one 8-byte store. An
/// 8-byte load after a narrower store would be slow, because the processor could not forward the store to the load.
type Filler = u32;

/// A few keys without ranks. The tickets stand together to take fewer bytes.
pub(crate) struct PlainKeys<K, const N: usize> {
    keys: [K; N],
    tickets: [Cell<Ticket>; N],
}

/// One watched key, plain or resolved, with or without a rank.
pub(crate) struct Watched<K> {
    target: Target<K>,
    rank: Option<Rank>,
    ticket: Cell<Ticket>,
}

impl<K> Keys<K> {
    /// Keys of any kind, each once.
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

    /// The first target for which `is_it` holds.
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

    /// Calls `each` for all keys. A closure that is marked `inline(always)` becomes part of the loop over plain keys.
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

    /// Calls `each` for one key after another, until `each` returns `false`. Returns `true` if that did not happen.
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
    /// Plain keys without ranks, each once.
    pub(crate) fn of(keys: [K; N]) -> Box<Self> {
        let tickets = [const { Cell::new(0) }; N];
        Box::new(Self { keys, tickets })
    }
}

#[inline(never)]
fn all_plain<'k, K, const N: usize>(
    keys: &'k PlainKeys<K, N>,
    // By value, so that captured variables stay in registers although the loop has atomic instructions.
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
