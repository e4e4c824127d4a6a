//! The settings of a purgatory.

use crate::dispatch::Dispatch;
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
pub struct Builder<Op, S = RandomState> {
    pub(super) settings: Settings,
    pub(super) hasher: S,
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
    setters!();

    /// How keys are hashed. Default: [`RandomState`], a fast hash with a random seed, because clients often choose
    /// keys.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> Builder<Op, H> {
        Builder {
            settings: self.settings,
            hasher,
            operation: PhantomData,
        }
    }
}

impl<Op, S> fmt::Debug for Builder<Op, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Builder").field(&self.settings).finish()
    }
}
