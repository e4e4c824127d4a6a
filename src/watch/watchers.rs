//! The watchers of a key (the operations that wait for it), as a check visits them: one after another, with no lock
//! held.

use super::bound::CheckBound;
use super::list::{Walk, WatchList, occupied};
use crate::cell::address::Address;
use crate::sync::{COPIED, FEW};

/// The watchers that a check examines.
///
/// Not an [`Iterator`], because `next` is told whether the check has ended the operation of the previous watcher.
pub(crate) trait Watchers {
    /// Whether [`next`](Self::next) may run user code: methods of the key, or what `pause` runs between two slices.
    const RUNS_USER_CODE: bool;

    /// The next watcher, or `None` after the last one. `has_ended` says whether this check has ended the previous
    /// watcher. After a panic in this method, every later call returns `None`.
    fn next(&mut self, has_ended: bool) -> Option<Address>;

    /// Whether the previous watcher, which this check has ended, was certainly the last one. `false` if only a lookup
    /// can show that. Runs no user code.
    fn is_over(&mut self) -> bool;
}

/// The stack memory to which a check copies a short list.
#[derive(Default)]
pub(crate) struct Room {
    pub(super) one: Address,
    /// Initialised only when needed, because most checks find no watcher.
    pub(super) more: Option<Copies>,
}

/// The copy of a list with more than one watcher. The watchers come first, and vacant places follow.
pub(super) enum Copies {
    Few([Address; FEW]),
    Several([Address; COPIED]),
}

impl Copies {
    /// Copies `list`, if none of its watchers has a rank, and all fit. Returns `None` otherwise.
    #[inline(always)]
    pub(super) fn of(list: &WatchList) -> Option<Self> {
        if let WatchList::Few(few) = list {
            return Some(Self::Few(few.places()));
        }
        let mut places = [Address::NONE; COPIED];
        list.copy_few(&mut places)?;
        Some(Self::Several(places))
    }

    #[inline(always)]
    pub(super) fn watchers(&self) -> &[Address] {
        match self {
            Self::Few(places) => occupied(places),
            Self::Several(places) => occupied(places),
        }
    }
}

/// The watchers of a key, as a check first finds them.
pub(crate) enum Found<'r> {
    /// All watchers, copied. None has a rank.
    Few(&'r [Address]),
    /// Nothing was copied, and the check walks over the list, for one of these reasons:
    ///
    /// * The list has more watchers than room for them.
    /// * A watcher has a rank.
    /// * The key is resolved (it was looked up once, for a `ResolvedKey`), and its watchers are behind the lock of its
    ///   list.
    Long,
}

/// Watchers that the check has copied already.
pub(crate) struct Copied<'c>(std::slice::Iter<'c, Address>);

impl<'c> Copied<'c> {
    #[inline(always)]
    pub(crate) fn new(watchers: &'c [Address]) -> Self {
        Self(watchers.iter())
    }
}

impl Watchers for Copied<'_> {
    const RUNS_USER_CODE: bool = false;

    #[inline(always)]
    fn next(&mut self, _: bool) -> Option<Address> {
        self.0.next().copied()
    }

    #[inline(always)]
    fn is_over(&mut self) -> bool {
        self.0.len() == 0
    }
}

/// A walk over a long list. The walk copies the list slice by slice, so that a check examines watchers with no lock
/// held.
pub(crate) struct Walking {
    walk: Walk,
    slice: Vec<Address>,
    /// How many watchers of the slice the walk has returned.
    met: usize,
    has_more: bool,
}

impl Walking {
    pub(super) fn new(bound: CheckBound) -> Self {
        Self {
            walk: Walk::new(bound),
            slice: Vec::new(),
            met: 0,
            has_more: true,
        }
    }

    /// The next watcher, or `None` after the last one. `read` gets a function, takes the lock of the list, and calls
    /// the function with the list. If the list does not exist any more, `read` does not call the function. `pause` is
    /// called between slices (at most 64 watchers each, copied in one hold of the lock).
    #[inline]
    pub(super) fn next(
        &mut self,
        pause: impl FnMut(),
        read: impl Fn(&mut dyn FnMut(&WatchList)),
    ) -> Option<Address> {
        if self.met == self.slice.len() {
            self.copy_slice(pause, read)?;
        }
        let watcher = self.slice.get(self.met).copied();
        self.met += 1;
        watcher
    }

    /// Copies the next slice. `None` at the end of the list.
    #[inline(never)]
    fn copy_slice(
        &mut self,
        mut pause: impl FnMut(),
        read: impl Fn(&mut dyn FnMut(&WatchList)),
    ) -> Option<()> {
        let mut is_first = !self.walk.has_begun();
        self.slice.clear();
        self.met = 0;
        // The walk skips watchers that came after it began. If it skips all watchers of the next slice, `self.slice`
        // stays empty, and the loop copies the slice after that.
        while self.slice.is_empty() {
            // `has_more` is false until the slice is copied: if a method of the key panics in `read`, the walk is over,
            // and `read` is not called again.
            if !std::mem::take(&mut self.has_more) {
                return None;
            }
            if !is_first {
                pause();
            }
            is_first = false;
            let walk = &mut self.walk;
            let slice = &mut self.slice;
            // Allocate before `read` takes the lock.
            slice.reserve(walk.size());
            let mut has_more = false;
            read(&mut |list| has_more = walk.next_slice(list, slice));
            self.has_more = has_more;
        }
        Some(())
    }
}

/// A walk over the long list of a key. `read` looks the key up again for each slice, because no lock is held in
/// between.
pub(crate) struct ByLookUp<R, P> {
    pub(super) walking: Walking,
    pub(super) read: R,
    pub(super) pause: P,
}

impl<R: Fn(&mut dyn FnMut(&WatchList)), P: FnMut()> Watchers for ByLookUp<R, P> {
    const RUNS_USER_CODE: bool = true;

    #[inline]
    fn next(&mut self, _: bool) -> Option<Address> {
        self.walking.next(&mut self.pause, &self.read)
    }

    /// Always `false`: only the next lookup of the key can show whether a watcher is left.
    fn is_over(&mut self) -> bool {
        false
    }
}
