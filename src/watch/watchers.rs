//! The watchers of a key, as a check meets them: one after another, with no lock held.

use super::bound::CheckBound;
use super::list::{Walk, WatchList};
use crate::cell::address::Address;
use crate::sync::COPIED;

/// The watchers that a check examines.
///
/// Not an [`Iterator`], because the next watcher may depend on whether the previous one was ended.
pub(crate) trait Watchers {
    /// The next watcher; `has_ended` says whether this check has ended the previous one. After a call that has
    /// panicked, there are no more watchers.
    fn next(&mut self, has_ended: bool) -> Option<Address>;

    /// Whether no more watchers can come, given that this check has ended the previous one. Runs no user code.
    fn is_over(&mut self) -> bool;
}

/// Room for the watchers of a short list. Filled only when needed, because most checks find no watcher.
#[derive(Default)]
pub(crate) struct Room {
    pub(super) one: Address,
    pub(super) few: Option<[Address; COPIED]>,
}

/// The watchers of a key, as a check first finds them.
pub(crate) enum Found<'r> {
    /// All watchers, copied. None has a rank.
    Few(&'r [Address]),
    /// There are more watchers than room for them, or some have a rank, or the list of a resolved key is behind its
    /// lock.
    Long,
}

/// A copy of the watchers.
pub(crate) struct Copied<'c>(std::slice::Iter<'c, Address>);

impl<'c> Copied<'c> {
    #[inline(always)]
    pub(crate) fn new(watchers: &'c [Address]) -> Self {
        Self(watchers.iter())
    }
}

impl Watchers for Copied<'_> {
    #[inline(always)]
    fn next(&mut self, _: bool) -> Option<Address> {
        self.0.next().copied()
    }

    #[inline(always)]
    fn is_over(&mut self) -> bool {
        self.0.len() == 0
    }
}

/// A walk over a long list, which is copied by slices.
pub(crate) struct Walking {
    walk: Walk,
    slice: Vec<Address>,
    /// How many watchers of the slice have been met.
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

    /// The next watcher. `read` shows the list, if it still exists; `pause` is called between slices.
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
        // If all watchers of a slice came after the walk began, the slice stays empty. Then copy the next slice.
        while self.slice.is_empty() {
            // Cleared until the slice is copied: if a key makes `read` panic, `read` is not called again.
            if !std::mem::take(&mut self.has_more) {
                return None;
            }
            if !is_first {
                pause();
            }
            is_first = false;
            let walk = &mut self.walk;
            let slice = &mut self.slice;
            // Allocate outside the lock.
            slice.reserve(walk.size());
            let mut has_more = false;
            read(&mut |list| has_more = walk.next_slice(list, slice));
            self.has_more = has_more;
        }
        Some(())
    }
}

/// A walk over the long list of a key, which looks the key up for each slice.
pub(crate) struct ByLookUp<R, P> {
    pub(super) walking: Walking,
    pub(super) read: R,
    pub(super) pause: P,
}

impl<R: Fn(&mut dyn FnMut(&WatchList)), P: FnMut()> Watchers for ByLookUp<R, P> {
    #[inline]
    fn next(&mut self, _: bool) -> Option<Address> {
        self.walking.next(&mut self.pause, &self.read)
    }

    /// Never certain here: only the next lookup of the list can tell.
    fn is_over(&mut self) -> bool {
        false
    }
}
