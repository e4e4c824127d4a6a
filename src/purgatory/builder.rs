//! Building a purgatory.

use super::Purgatory;
use super::core::Core;
use crate::RandomState;
use crate::completions::Completions;
use crate::engine::Engine;
use crate::engine::owner::Face;
use crate::engine::settings::{Settings, knobs};
use crate::error::BuildError;
use crate::operation::{DelayedOperation, KeyHasher};
use crate::reaper::Reaper;
use crate::sync::Arc;
use crate::time::Clock;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// The knobs of a purgatory, each with a sensible default.
pub struct Builder<Op, S = RandomState> {
    settings: Settings,
    hasher: S,
    operation: PhantomData<fn() -> Op>,
}

impl<Op: DelayedOperation> Builder<Op> {
    pub(crate) fn new(name: String) -> Self {
        Self {
            settings: Settings::new(name),
            hasher: RandomState::default(),
            operation: PhantomData,
        }
    }
}

impl<Op: DelayedOperation, S: KeyHasher> Builder<Op, S> {
    knobs!();

    /// How keys are hashed. Default: a fast hasher with a random seed, since keys are often chosen by clients.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Op, H> {
        Builder {
            settings: self.settings,
            hasher,
            operation: PhantomData,
        }
    }

    /// Builds the purgatory and starts its threads. With the feature `metrics`, it tells the recorder that is installed
    /// now.
    ///
    /// # Errors
    /// [`BuildError`] if the tick or the wheel's size make no sense, or the system refuses a thread.
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(self) -> Result<Purgatory<Op, S>, BuildError> {
        let core = Core::new(Engine::new(self.settings)?.observed(), self.hasher);
        Ok(Purgatory {
            face: Face::start(core),
        })
    }
}

impl<Op, S> fmt::Debug for Builder<Op, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Builder").field(&self.settings).finish()
    }
}
