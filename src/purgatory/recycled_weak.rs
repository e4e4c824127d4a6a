//! How a handle refers to its purgatory without keeping it alive.
//!
//! Every park makes a handle, and most are dropped unused. A counted reference in each would cost two locked
//! instructions for nothing, so handles refer to a place that is never freed: when its purgatory is gone, the place is
//! recycled for the next one, and its generation tells the two apart. The number of places is the highest number of
//! purgatories that ever existed at the same time.

use crate::sync::{Arc, Weak};
use parking_lot::Mutex;
use std::any::Any;

/// A place for one purgatory after another.
pub(crate) struct Place(Mutex<Occupant>);

struct Occupant {
    generation: u64,
    inner: Option<Weak<dyn Any + Send + Sync>>,
}

/// Places whose purgatories are gone.
static FREE: Mutex<Vec<&'static Place>> = Mutex::new(Vec::new());

/// Refers to one purgatory. Copies cost nothing.
#[derive(Clone, Copy)]
pub(crate) struct RecycledWeak {
    place: &'static Place,
    generation: u64,
}

impl RecycledWeak {
    /// Refers to `inner`, until [`cut`](Self::cut).
    pub(crate) fn new(inner: Weak<dyn Any + Send + Sync>) -> Self {
        let free = FREE.lock().pop();
        let place = free.unwrap_or_else(|| {
            Box::leak(Box::new(Place(Mutex::new(Occupant {
                generation: 0,
                inner: None,
            }))))
        });
        let mut occupant = place.0.lock();
        occupant.inner = Some(inner);
        Self {
            place,
            generation: occupant.generation,
        }
    }

    /// The purgatory, if it is there.
    pub(crate) fn upgrade<T: Send + Sync + 'static>(self) -> Option<Arc<T>> {
        let occupant = self.place.0.lock();
        let inner = occupant
            .inner
            .as_ref()
            .filter(|_| occupant.generation == self.generation)?;
        let inner = inner.upgrade()?;
        drop(occupant);
        inner.downcast().ok()
    }

    /// Makes every copy stale, and gives the place to the next purgatory. Called once, by the owner.
    pub(crate) fn cut(self) {
        let inner = {
            let mut occupant = self.place.0.lock();
            occupant.generation += 1;
            occupant.inner.take()
        };
        drop(inner);
        FREE.lock().push(self.place);
    }
}
