//! The watches that a caller asks for.

use super::inner::Inner;
use super::keys::{Keys, distinct};
use super::resolved_key::ResolvedKey;
use crate::hash::{KeyHasher, RandomState};
use crate::operation::DelayedOperation;
use crate::watch::Target;
use crate::watch::bound::Rank;
use std::fmt;

/// A key to watch, plain or [resolved](crate::Purgatory::resolve), and perhaps a rank.
pub struct Watch<'a, Op: DelayedOperation, S: KeyHasher = RandomState> {
    key: OnKey<'a, Op, S>,
    rank: Option<Rank>,
}

enum OnKey<'a, Op: DelayedOperation, S: KeyHasher> {
    Plain(Op::Key),
    Resolved(&'a ResolvedKey<Op, S>),
}

impl<'a, Op: DelayedOperation, S: KeyHasher> Watch<'a, Op, S> {
    /// Watches a plain key.
    pub fn key(key: Op::Key) -> Self {
        let key = OnKey::Plain(key);
        Self { key, rank: None }
    }

    /// Watches a resolved key, which is found without hashing. (If another purgatory resolved it, it counts as a plain
    /// key.)
    pub fn resolved(key: &'a ResolvedKey<Op, S>) -> Self {
        let key = OnKey::Resolved(key);
        Self { key, rank: None }
    }

    /// Watches the key at `rank`: the offset, version or epoch that the operation waits for the key to reach.
    /// [`check_and_complete_up_to`](crate::Purgatory::check_and_complete_up_to) examines the operation only if its rank
    /// is at least this one. All other checks of the key examine it as well.
    pub fn at_rank(mut self, rank: u64) -> Self {
        self.rank = Some(rank);
        self
    }

    /// The key itself.
    pub(crate) fn name(&self) -> &Op::Key {
        match &self.key {
            OnKey::Plain(key) => key,
            OnKey::Resolved(resolved) => resolved.key(),
        }
    }

    /// Whether both mean the same key; if so, this one counts for both.
    fn covers(&mut self, other: &Self) -> bool {
        let same = self.name() == other.name();
        if same {
            // At the lower rank it is examined earlier, and without a rank always.
            self.rank = self.rank.min(other.rank);
        }
        same
    }
}

impl<'a, Op: DelayedOperation, S: KeyHasher> From<&'a ResolvedKey<Op, S>> for Watch<'a, Op, S> {
    fn from(key: &'a ResolvedKey<Op, S>) -> Self {
        Self::resolved(key)
    }
}

impl<Op: DelayedOperation, S: KeyHasher> fmt::Debug for Watch<'_, Op, S>
where
    Op::Key: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("key", self.name())
            .field("rank", &self.rank)
            .finish()
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Inner<Op, S> {
    /// The keys of `watches`, each once. `None` if there are none.
    #[inline(always)]
    pub(crate) fn collect_watches<'a>(
        &self,
        watches: impl IntoIterator<Item = Watch<'a, Op, S>>,
    ) -> Option<Keys<Op::Key>> {
        let target = |watch: Watch<'a, Op, S>| {
            let target = match watch.key {
                OnKey::Plain(key) => Target::Key(key),
                OnKey::Resolved(resolved) => match resolved.number_in(self) {
                    Some(number) => Target::Resolved(number),
                    None => Target::Key(resolved.key().clone()),
                },
            };
            (target, watch.rank)
        };
        let mut watches = watches.into_iter();
        let first = watches.next()?;
        let Some(second) = watches.next() else {
            let (target, rank) = target(first);
            return Some(Keys::of_watch(target, rank));
        };
        let all = [first, second].into_iter().chain(watches);
        let all = distinct(all, Watch::covers, Watch::name, &self.hasher);
        Some(Keys::of_watches(all.into_iter().map(target)))
    }
}
