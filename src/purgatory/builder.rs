//! The settings of a purgatory.

use crate::dispatch::Dispatch;
use crate::engine::cores;
use crate::engine::settings::{Settings, setters};
use crate::hash::{KeyHasher, RandomState};
use crate::operation::DelayedOperation;
use crate::reaper::Reaper;
use crate::sync::Arc;
use crate::time::Clock;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// The settings of a purgatory, each with a default.
pub struct PurgatoryBuilder<Op, S = RandomState> {
    pub(super) settings: Settings,
    pub(super) hasher: S,
    pub(super) map_shards: usize,
    pub(super) max_watchers: usize,
    operation: PhantomData<fn() -> Op>,
}

impl<Op: DelayedOperation> PurgatoryBuilder<Op> {
    pub(crate) fn new(name: String) -> Self {
        Self {
            settings: Settings::new(name),
            hasher: RandomState::default(),
            map_shards: (64 * cores()).clamp(1024, 4096),
            max_watchers: usize::MAX,
            operation: PhantomData,
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> PurgatoryBuilder<Op, S> {
    setters!();

    /// The number of map shards, each with a lock of its own: the next power of two, from 2 to 65,536. With more of
    /// them, threads meet less often at a lock; each takes 128 bytes. Default: 64 for each processor, at least 1,024 and
    /// at most 4,096. Choose fewer if a process has hundreds of purgatories.
    pub fn map_shards(mut self, shards: usize) -> Self {
        self.map_shards = shards;
        self
    }

    /// The most operations that may watch one key at a time: beyond, a park on it is refused
    /// ([`RejectReason::KeyFull`](crate::RejectReason::KeyFull)). So no client can make the checks of one key long. The
    /// bound is exact; a refused operation counts as
    /// [cancelled](crate::stats::Stats::cancelled). After a storm of expiries, completions wait until the watches of
    /// what has ended are removed, as with [`max_parked`](Self::max_parked). Default: none.
    pub fn max_watchers_per_key(mut self, count: usize) -> Self {
        self.max_watchers = count;
        self.settings.reclaim_first = true;
        self
    }

    /// How keys are hashed. Default: [`RandomState`], a fast hash with a random seed, because clients often choose
    /// keys.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> PurgatoryBuilder<Op, H> {
        PurgatoryBuilder {
            settings: self.settings,
            hasher,
            map_shards: self.map_shards,
            max_watchers: self.max_watchers,
            operation: PhantomData,
        }
    }
}

impl<Op, S> fmt::Debug for PurgatoryBuilder<Op, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PurgatoryBuilder")
            .field(&self.settings)
            .finish()
    }
}
