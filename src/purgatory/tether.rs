//! What ties a handle to its purgatory without keeping it alive.
//!
//! Every park makes a handle, and most are dropped unused. A counted reference in each would cost two locked
//! instructions for nothing, so handles refer to a tether that is never freed: when its purgatory is gone, it is kept
//! for the next one, and its generation tells the two apart. There are as many tethers as there ever were purgatories
//! at the same time.

use super::core::Core;
use crate::operation::{DelayedOperation, KeyHasher};
use crate::sync::{Arc, Weak};
use parking_lot::Mutex;
use std::any::Any;

/// One purgatory after another.
pub(crate) struct Anchor(Mutex<Tied>);

struct Tied {
    generation: u64,
    core: Option<Weak<dyn Any + Send + Sync>>,
}

/// Anchors whose purgatories are gone.
static FREE: Mutex<Vec<&'static Anchor>> = Mutex::new(Vec::new());

/// Refers to one purgatory. Copies cost nothing.
#[derive(Clone, Copy)]
pub(crate) struct Tether {
    anchor: &'static Anchor,
    generation: u64,
}

impl Tether {
    /// A tether to `core`, until [`cut`](Self::cut).
    pub(crate) fn new(core: Weak<dyn Any + Send + Sync>) -> Self {
        let free = FREE.lock().pop();
        let anchor = free.unwrap_or_else(|| {
            Box::leak(Box::new(Anchor(Mutex::new(Tied {
                generation: 0,
                core: None,
            }))))
        });
        let mut tied = anchor.0.lock();
        tied.core = Some(core);
        Self {
            anchor,
            generation: tied.generation,
        }
    }

    /// The purgatory, if it is there.
    pub(crate) fn core<Op: DelayedOperation, S: KeyHasher>(self) -> Option<Arc<Core<Op, S>>> {
        let tied = self.anchor.0.lock();
        let core = tied
            .core
            .as_ref()
            .filter(|_| tied.generation == self.generation)?;
        let core = core.upgrade()?;
        drop(tied);
        core.downcast().ok()
    }

    /// Unties it from every copy, and gives the anchor to the next purgatory. Called once, by the owner.
    pub(crate) fn cut(self) {
        let core = {
            let mut tied = self.anchor.0.lock();
            tied.generation += 1;
            tied.core.take()
        };
        drop(core);
        FREE.lock().push(self.anchor);
    }
}
