//! What the library takes from its threading platform, in one place.
//!
//! This is the only module that knows about loom: a normal build gets std, parking_lot, crossbeam and dashmap
//! ([`native`]); a build with `--cfg loom` gets instrumented stand-ins of the same shape ([`model`]), so that the
//! models in `loom-tests` run the library's own code.

#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod native;

#[cfg(loom)]
pub(crate) use model::*;
#[cfg(not(loom))]
pub(crate) use native::*;

pub(crate) use std::sync::{Arc, Weak};

/// What becomes of a map entry after an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Keep,
    Remove,
}

impl Entry {
    #[inline(always)]
    pub(crate) fn remove_if(remove: bool) -> Self {
        if remove { Self::Remove } else { Self::Keep }
    }
}
