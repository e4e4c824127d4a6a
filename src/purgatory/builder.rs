//! How a purgatory is built.

use super::Purgatory;
use super::inner::Inner;
use crate::engine::settings::{Builder, Built};
use crate::engine::shared_handle::SharedHandle;
use crate::engine::{Engine, cores};
use crate::error::BuildError;
use crate::hash::{KeyHasher, RandomState};
use crate::operation::DelayedOperation;

/// The settings of a purgatory alone.
pub(crate) struct Own<S> {
    hasher: S,
    map_shards: usize,
    max_watchers: usize,
}

impl<Op: DelayedOperation, S: KeyHasher> Built for Purgatory<Op, S> {
    type Own = Own<S>;
}

impl<Op: DelayedOperation> Purgatory<Op> {
    /// A purgatory with a tick of 1 ms, a reaper thread and a completion thread of its own, both named after it.
    /// The threads start when they are first needed.
    pub fn new(name: impl Into<String>) -> Self {
        match Self::builder(name).build() {
            Ok(purgatory) => purgatory,
            Err(error) => unreachable!("the default settings are sound: {error}"),
        }
    }

    /// Begins to build a purgatory with other choices.
    pub fn builder(name: impl Into<String>) -> Builder<Self> {
        let own = Own {
            hasher: RandomState::default(),
            map_shards: (64 * cores()).clamp(1024, 4096),
            max_watchers: usize::MAX,
        };
        Builder::new(name, own)
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Builder<Purgatory<Op, S>> {
    /// The number of map shards, each with a lock of its own: the next power of two, from 2 to 65,536. With more of
    /// them, threads meet less often at a lock; each takes 128 bytes. Default: 64 for each processor, at least 1,024 and
    /// at most 4,096. Choose fewer if a process has hundreds of purgatories.
    pub fn map_shards(mut self, shards: usize) -> Self {
        self.own.map_shards = shards;
        self
    }

    /// The most operations that may watch one key at a time: beyond, a park on it is refused
    /// ([`RejectReason::KeyFull`](crate::purgatory::RejectReason::KeyFull)). So no client can make the checks of one
    /// key long. The bound is exact; a refused operation counts as
    /// [cancelled](crate::purgatory::Stats::cancelled). After a storm of expiries, completions wait until the watches of
    /// what has ended are removed, as with [`max_parked`](Self::max_parked). Default: none.
    pub fn max_watchers_per_key(mut self, count: usize) -> Self {
        self.own.max_watchers = count;
        self.settings.reclaim_first = true;
        self
    }

    /// How keys are hashed. Default: [`RandomState`], a fast hash with a random seed, because clients often choose
    /// keys.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Purgatory<Op, H>> {
        Builder {
            settings: self.settings,
            own: Own {
                hasher,
                map_shards: self.own.map_shards,
                max_watchers: self.own.max_watchers,
            },
        }
    }

    /// Builds the purgatory. With the feature `metrics`, it reports to the recorder that is
    /// installed now.
    ///
    /// # Errors
    /// [`BuildError`], if [`tick`](Self::tick) or [`wheel_size`](Self::wheel_size) is out of range, or the system
    /// refuses a thread that is to [start at once](Self::threads_at_once).
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(self) -> Result<Purgatory<Op, S>, BuildError> {
        let inner = Inner::new(
            Engine::new(self.settings)?.observed(),
            self.own.hasher,
            self.own.map_shards,
            self.own.max_watchers,
        );
        Ok(Purgatory {
            shared: SharedHandle::start(inner),
        })
    }
}
