//! The weak reference of a handle to its purgatory: it does not keep the purgatory alive.
//!
//! Every park makes a handle, and most handles are dropped unused. A reference count that each handle takes would cost
//! two locked instructions for nothing. A reference count that each use of a handle takes would make all threads write
//! to one cache line. Instead:
//!
//! * A handle refers to an *anchor*: a place in memory that is never freed, with an `Arc` of the purgatory in it. The
//!   anchor keeps the purgatory alive until the purgatory is shut down.
//! * While a thread uses a handle, a hazard pointer of that thread keeps the purgatory from being dropped (the crate
//!   `arc-swap`).
//! * After the shutdown the anchor is recycled for the next purgatory. A generation tells the two purgatories apart: a
//!   handle whose generation differs from the anchor's is stale.
//!
//! The number of anchors is the highest number of purgatories that ever existed at the same time.

use crate::sync::Arc;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use std::any::Any;

/// The place in memory to which handles refer. It is never freed. It holds the `Arc` of one purgatory after another,
/// and is empty in between.
type Anchor = ArcSwapOption<Anchored>;

struct Anchored {
    generation: u64,
    /// The `Arc` of a purgatory, with its type erased.
    inner: Box<dyn Any + Send + Sync>,
}

/// The free list: anchors (places in memory to which handles refer) that contain no purgatory, each with the generation
/// that its next purgatory gets.
static FREE: Mutex<Vec<RecycledWeak>> = Mutex::new(Vec::new());

/// A weak reference to one purgatory. A copy changes no reference count.
#[derive(Clone, Copy)]
pub(crate) struct RecycledWeak {
    anchor: &'static Anchor,
    generation: u64,
}

impl RecycledWeak {
    /// Takes an anchor (the place in memory to which handles refer) off the free list, or makes one. The anchor has no
    /// purgatory until [`fill`](Self::fill).
    pub(crate) fn take() -> Self {
        let free = FREE.lock().pop();
        free.unwrap_or_else(|| Self {
            anchor: Box::leak(Box::new(Anchor::empty())),
            generation: 0,
        })
    }

    /// Puts `inner`, a purgatory, into the anchor, the place in memory to which handles refer. The anchor keeps the
    /// purgatory alive until [`cut`](Self::cut).
    pub(crate) fn fill<T: Send + Sync + 'static>(self, inner: Arc<T>) {
        self.anchor.store(Some(Arc::new(Anchored {
            generation: self.generation,
            inner: Box::new(inner),
        })));
    }

    /// Calls `use_it` with the purgatory, which stays alive at least until the call returns. `None` if the purgatory
    /// was shut down: [`cut`](Self::cut) has then taken it out of the anchor (the place in memory to which handles
    /// refer). The anchor may contain another purgatory by now. That purgatory has another generation than this
    /// reference, so the result is still `None`.
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

    /// Makes every copy of this reference stale: [`with`](Self::with) returns `None` from now on. Empties the anchor
    /// (the place in memory that holds the `Arc` of the purgatory), and puts it on the free list, for another
    /// purgatory. Called once, by the shutdown.
    pub(crate) fn cut(self) {
        // This empties the anchor (the place in memory to which handles refer), and drops the purgatory if the anchor
        // had the last reference to it. Only after that does the anchor go on the free list. In the other order,
        // another thread could take the anchor and put a new purgatory into it, and this store would drop the new
        // purgatory.
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

    /// One anchor (the place in memory to which handles refer) is enough for these 1,000 purgatories, because each ends
    /// before the next begins. The test allows 499, because other tests take anchors at the same time.
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

    /// `cut` empties the anchor (the place in memory to which handles refer) before it puts the anchor on the free
    /// list. In the other order, the next purgatory in the anchor would be dropped together with the old one.
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
