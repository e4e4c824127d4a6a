//! The settings of pending requests.

use crate::dispatch::Dispatch;
use crate::engine::settings::{Settings, setters};
use crate::hash::{Key, KeyHasher, RandomState};
use crate::reaper::Reaper;
use crate::sync::Arc;
use crate::time::Clock;
use std::fmt;
use std::time::Duration;

/// Called with each late response.
pub(super) type Report<K, R> = Box<dyn Fn(&K, R) + Send + Sync>;

/// The settings of [`Requests`](super::Requests), each with a default.
pub struct RequestsBuilder<K, R, S = RandomState> {
    pub(super) settings: Settings,
    pub(super) hasher: S,
    pub(super) on_late: Option<Report<K, R>>,
}

impl<K: Key, R: Send + 'static> RequestsBuilder<K, R> {
    pub(crate) fn new(name: String) -> Self {
        Self {
            settings: Settings::new(name),
            hasher: RandomState::default(),
            on_late: None,
        }
    }
}

impl<K: Key, R: Send + 'static, S: KeyHasher> RequestsBuilder<K, R, S> {
    setters!();

    /// How ids are hashed. Default: a fast hasher with a random seed.
    pub fn hasher<H: KeyHasher>(self, hasher: H) -> RequestsBuilder<K, R, H> {
        RequestsBuilder {
            settings: self.settings,
            hasher,
            on_late: self.on_late,
        }
    }

    /// `report` is called with each response to a request that is not pending, on the thread that
    /// [responds](super::Requests::respond). Default: late responses are counted and dropped. A response that `report`
    /// gives to another late request nests in it.
    pub fn on_late(mut self, report: impl Fn(&K, R) + Send + Sync + 'static) -> Self {
        self.on_late = Some(Box::new(report));
        self
    }
}

impl<K, R, S> fmt::Debug for RequestsBuilder<K, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestsBuilder")
            .field(&self.settings)
            .finish()
    }
}
