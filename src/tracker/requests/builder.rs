//! Building the pending requests of a client.

use super::{Caller, Late, Report, Requests, Unanswered};
use crate::RandomState;
use crate::completions::Completions;
use crate::engine::settings::{Settings, knobs};
use crate::error::BuildError;
use crate::operation::KeyHasher;
use crate::reaper::Reaper;
use crate::stats::Count;
use crate::sync::Arc;
use crate::time::Clock;
use crate::tracker::{TrackedKey, TrackerBuilder};
use std::fmt;
use std::time::Duration;

/// The knobs of [`Requests`], each with a sensible default.
pub struct RequestsBuilder<K, R, S = RandomState> {
    settings: Settings,
    hasher: S,
    on_late: Option<Report<K, R>>,
}

impl<K: TrackedKey, R: Send + 'static> RequestsBuilder<K, R> {
    pub(crate) fn new(name: String) -> Self {
        Self {
            settings: Settings::new(name),
            hasher: RandomState::default(),
            on_late: None,
        }
    }
}

impl<K: TrackedKey, R: Send + 'static, S: KeyHasher> RequestsBuilder<K, R, S> {
    knobs!();

    /// How ids are hashed. Default: a fast hasher with a random seed.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> RequestsBuilder<K, R, H> {
        RequestsBuilder {
            settings: self.settings,
            hasher,
            on_late: self.on_late,
        }
    }

    /// Gets each response that nobody waits for, on the thread that [responds](Requests::respond). Default: they are
    /// counted and dropped.
    pub fn on_late(mut self, report: impl Fn(&K, R) + Send + Sync + 'static) -> Self {
        self.on_late = Some(Box::new(report));
        self
    }

    /// Builds them and starts the threads.
    ///
    /// # Errors
    /// [`BuildError`] if the tick or the wheel's size make no sense, or the system refuses a thread.
    ///
    /// # Panics
    /// If the clock does.
    pub fn build(self) -> Result<Requests<K, R, S>, BuildError> {
        let tracker = TrackerBuilder::with(self.settings, self.hasher);
        Ok(Requests {
            tracker: tracker.build(|_, caller: Caller<R>| {
                caller.answer(Err(Unanswered::TimedOut));
            })?,
            late: Arc::new(Late {
                count: Count::default(),
                report: self.on_late,
            }),
        })
    }
}

impl<K, R, S> fmt::Debug for RequestsBuilder<K, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestsBuilder")
            .field(&self.settings)
            .finish()
    }
}
