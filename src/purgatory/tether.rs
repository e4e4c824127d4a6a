//! What ties a handle to its purgatory without keeping it alive.

use super::core::Core;
use crate::operation::DelayedOperation;
use crate::sync::{Arc, Weak};

/// One for each home: handles of operations parked there share it. Were it one for all, every park would count its
/// handle on the same cache line.
pub(crate) struct Tether<Op: DelayedOperation, S> {
    core: Weak<Core<Op, S>>,
}

impl<Op: DelayedOperation, S> Tether<Op, S> {
    pub(crate) fn new(core: Weak<Core<Op, S>>) -> Self {
        Self { core }
    }

    pub(crate) fn core(&self) -> Option<Arc<Core<Op, S>>> {
        self.core.upgrade()
    }
}
