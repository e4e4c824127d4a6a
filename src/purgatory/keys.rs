//! The keys that one operation watches.

use crate::watch::Target;
use crate::watch::bound::{Order, Rank, Ticket};
use crate::watch::resolved::ListNumber;
use std::cell::Cell;

/// The keys that one operation watches, each once. Each key has a [`Ticket`]: a number by which the operation is found
/// in the watch list of the key when it leaves the list.
///
/// This value lies in the slot of every parked operation, so it is small: 16 bytes for one key of up to 8 bytes. Two or
/// three keys cost one allocation, more keys cost two.
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
    /// All other cases: four or more keys, a key with a rank, several keys of which one is a `ResolvedKey`, or a key
    /// that the caller has given twice.
    Mixed(Box<Vec<Watched<K>>>),
}

/// In the variants `Two` and `Three`, fills the bytes in which the variants `One` and `Resolved` have their ticket. The
/// tag of the enum and the filler are then written by one 8-byte store. Without the filler, the tag would be written by
/// a narrower store, and an 8-byte load soon after it would stall: store forwarding does not work from a narrower store
/// to a wider load.
type Filler = u32;

/// Two or three plain keys (no `ResolvedKey`s) without ranks. Each has a ticket, by which the watch list of the key
/// finds the operation when it leaves. The tickets lie in an array of their own: beside its key, each ticket would be
/// padded to the alignment of the key.
pub(crate) struct PlainKeys<K, const N: usize> {
    keys: [K; N],
    tickets: [Cell<Ticket>; N],
}

/// One watched key. It is plain (the key itself), or resolved (the number of the watch list to which a `ResolvedKey`
/// leads). It may have a rank: a number that the operation waits for the key to reach, such as an offset.
pub(crate) struct Watched<K> {
    target: Target<K>,
    rank: Option<Rank>,
    ticket: Cell<Ticket>,
}

impl<K> Keys<K> {
    /// Makes a `Mixed` from keys of any kind: plain or resolved, with or without a rank. The caller gives each key
    /// once.
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

    /// The first key for which `is_it` returns `true`. `None` if there is no such key.
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

    /// Calls `each` for all keys. If the closure `each` is marked `inline(always)`, the compiler inlines it into the
    /// loop over plain keys.
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

    /// Calls `each` for one key after another, until a call returns `false`. Returns `true` if all calls have returned
    /// `true`, otherwise `false`.
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
    /// Allocates plain keys (no `ResolvedKey`s) without ranks. The caller gives each key once. Their tickets are 0
    /// until the operation is added to the watch lists, which set them.
    pub(crate) fn of(keys: [K; N]) -> Box<Self> {
        let tickets = [const { Cell::new(0) }; N];
        Box::new(Self { keys, tickets })
    }
}

#[inline(never)]
fn all_plain<'k, K, const N: usize>(
    keys: &'k PlainKeys<K, N>,
    // `each` is passed by value, so the variables that it captures stay in registers. If it were passed by reference,
    // the compiler would load these variables again after each atomic instruction of the loop.
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
