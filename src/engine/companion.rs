//! Timers that an engine drives beside its own.

use crate::sync::Arc;
use crate::time::Timestamp;
use std::any::Any;
use std::sync::OnceLock;

/// What stands on an engine and needs its thread: it is driven whenever the engine's own payloads are.
pub(crate) trait Companion: Any + Send + Sync {
    /// Does what has come to be done by now.
    fn advance(&self);

    /// When [`advance`](Self::advance) has something to do next.
    fn next_deadline(&self) -> Option<Timestamp>;

    /// A coercion would do from Rust 1.86 on.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// At most one, made when it is first asked for.
#[derive(Default)]
pub(crate) struct CompanionCell(OnceLock<Arc<dyn Companion>>);

impl CompanionCell {
    pub(super) fn get(&self) -> Option<&dyn Companion> {
        self.0.get().map(|companion| &**companion)
    }

    /// The companion, which `make` makes for the first caller. (Every caller asks for the same type.)
    pub(crate) fn get_or_make<C: Companion>(&self, make: impl FnOnce() -> C) -> Option<Arc<C>> {
        let companion = self.0.get_or_init(|| Arc::new(make()));
        companion.clone().into_any().downcast().ok()
    }
}
