//! A handle's reference to its purgatory. It does not keep the purgatory alive.
//!
//! Every park makes a handle, and most handles are dropped unused. A reference count in each handle would cost two
//! locked instructions for nothing. A count at each use would make all threads write to one cache line. Instead:
//!
//! * Handles refer to an *anchor* that is never freed. The anchor holds the purgatory until the purgatory is shut down.
//! * During each use, a hazard pointer of the using thread keeps the purgatory from being dropped (`arc-swap`).
//! * After the shutdown the anchor is recycled for the next purgatory. A generation tells the two purgatories apart.
//!
//! The number of anchors is the highest number of purgatories that ever existed at the same time.

use crate::sync::Arc;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use std::any::Any;

/// An anchor, which serves one purgatory after another.
type Anchor = ArcSwapOption<Anchored>;

struct Anchored {
    generation: u64,
    /// The `Arc` of a purgatory, with its type erased.
    inner: Box<dyn Any + Send + Sync>,
}

/// Anchors without a purgatory, each with the generation that its next purgatory gets.
static FREE: Mutex<Vec<RecycledWeak>> = Mutex::new(Vec::new());

/// A reference to one purgatory. Copies cost nothing.
#[derive(Clone, Copy)]
pub(crate) struct RecycledWeak {
    anchor: &'static Anchor,
    generation: u64,
}

impl RecycledWeak {
    /// Takes an anchor that is empty until [`fill`](Self::fill).
    pub(crate) fn take() -> Self {
        let free = FREE.lock().pop();
        free.unwrap_or_else(|| Self {
            anchor: Box::leak(Box::new(Anchor::empty())),
            generation: 0,
        })
    }

    /// Holds `inner` in the anchor until [`cut`](Self::cut).
    pub(crate) fn fill<T: Send + Sync + 'static>(self, inner: Arc<T>) {
        self.anchor.store(Some(Arc::new(Anchored {
            generation: self.generation,
            inner: Box::new(inner),
        })));
    }

    /// Calls `use_it` with the purgatory, which exists at least until the call returns. `None` if the anchor has been
    /// [cut](Self::cut) off from the purgatory.
    #[inline]
    pub(crate) fn with<T: Send + Sync + 'static, R>(
        self,
        use_it: impl FnOnce(&Arc<T>) -> R,
    ) -> Option<R> {
        let anchored = self.anchor.load();
        let anchored = anchored.as_deref()?;
        (anchored.generation == self.generation)
            .then(|| anchored.inner.downcast_ref())
            .flatten()
            .map(use_it)
    }

    /// Makes every copy stale, and frees the anchor for the next purgatory. Called once, by the shutdown.
    pub(crate) fn cut(self) {
        // Drops the purgatory, unless something else refers to it.
        self.anchor.store(None);
        FREE.lock().push(Self {
            generation: self.generation + 1,
            ..self
        });
    }
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::mpsc::{Sender, channel};

    /// The bound is not exact, because other tests take anchors at the same time.
    #[test]
    fn g06_the_places_of_dropped_purgatories_are_used_again() {
        let anchors = (0..1_000).map(|number| {
            let weak = RecycledWeak::take();
            weak.fill(Arc::new(number));
            weak.cut();
            std::ptr::from_ref(weak.anchor).addr()
        });
        assert!(anchors.collect::<HashSet<_>>().len() < 500);
    }

    /// If the anchor were free before it is empty, the next purgatory in it would be dropped together with the old one.
    #[test]
    fn g18_no_purgatory_gets_a_place_that_is_not_yet_empty() {
        struct Last(Sender<RecycledWeak>);
        impl Drop for Last {
            fn drop(&mut self) {
                self.0.send(RecycledWeak::take()).expect("it is awaited");
            }
        }
        let (gets, next) = channel();
        let weak = RecycledWeak::take();
        weak.fill(Arc::new(Last(gets)));
        weak.cut();
        let next = next.recv().expect("it was emptied");
        assert!(!std::ptr::eq(weak.anchor, next.anchor));
        next.cut();
    }
}
