//! The life of a facility: it ends with its last strong face.

use super::drive::{Facility, shut_down, start};
use crate::sync::{Arc, Weak};

/// Exists as long as some [`Face`] does.
struct Owner<F: Facility> {
    core: Arc<F>,
}

impl<F: Facility> Drop for Owner<F> {
    fn drop(&mut self) {
        shut_down(&self.core);
        // Where the shutdown came from a callback, nobody has waited for the threads yet.
        self.core.engine().stop_threads();
    }
}

/// What a public face of a facility holds. (The reaper holds the core weakly, callbacks on their way hold it strongly:
/// neither keeps the facility running.)
pub(crate) struct Face<F: Facility> {
    pub(crate) core: Arc<F>,
    owner: Arc<Owner<F>>,
}

impl<F: Facility> Face<F> {
    /// Sets a facility going.
    pub(crate) fn start(core: Arc<F>) -> Self {
        start(&core);
        Self {
            owner: Arc::new(Owner { core: core.clone() }),
            core,
        }
    }

    pub(crate) fn downgrade(&self) -> WeakFace<F> {
        WeakFace(Arc::downgrade(&self.owner))
    }
}

impl<F: Facility> Clone for Face<F> {
    fn clone(&self) -> Self {
        Self {
            core: self.core.clone(),
            owner: self.owner.clone(),
        }
    }
}

/// A face that may be gone.
pub(crate) struct WeakFace<F: Facility>(Weak<Owner<F>>);

impl<F: Facility> WeakFace<F> {
    pub(crate) fn upgrade(&self) -> Option<Face<F>> {
        let owner = self.0.upgrade()?;
        Some(Face {
            core: owner.core.clone(),
            owner,
        })
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl<F: Facility> Clone for WeakFace<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
