//! How a handle refers to its purgatory without keeping it alive.
//!
//! Every park makes a handle, and most are dropped unused. A counted reference in each would cost two locked
//! instructions for nothing, and counting each use would let all threads write to one line. So handles refer to an
//! *anchor* that is never freed, and that holds the purgatory until its shutdown. Each use protects what it finds there
//! from being dropped, in a slot of its own thread (`arc-swap`). After the shutdown the anchor is recycled for the next
//! purgatory, and its generation tells the two apart. The number of anchors is the highest number of purgatories that
//! ever existed at the same time.

use crate::sync::Arc;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use std::any::Any;

/// Stands for one purgatory after another.
type Anchor = ArcSwapOption<Anchored>;

struct Anchored {
    generation: u64,
    /// The `Arc` of a purgatory, whatever its type.
    inner: Box<dyn Any + Send + Sync>,
}

/// Anchors without a purgatory, and the generations of their next ones.
static FREE: Mutex<Vec<RecycledWeak>> = Mutex::new(Vec::new());

/// Refers to one purgatory. Copies cost nothing.
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

    /// Keeps `inner` until [`cut`](Self::cut).
    pub(crate) fn fill<T: Send + Sync + 'static>(self, inner: Arc<T>) {
        self.anchor.store(Some(Arc::new(Anchored {
            generation: self.generation,
            inner: Box::new(inner),
        })));
    }

    /// Calls `use_it` with the purgatory, which exists until that returns. `None` if the purgatory has been cut.
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

    /// Makes every copy stale, and gives the anchor to the next purgatory. Called once, by the shutdown.
    pub(crate) fn cut(self) {
        // Drops the purgatory, if nothing else refers to it.
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

    /// (Other tests take anchors meanwhile.)
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

    /// The next purgatory would go with this one.
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
