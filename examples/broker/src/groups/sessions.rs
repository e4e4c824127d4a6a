//! The sessions of members: one timer each, which their heartbeats push back.

use super::Coordinator;
use super::member::Id;
use super::settings::Settings;
use kafka_protocol::ResponseError;
use request_purgatory::{RejectReason, Tracker, purgatory::BuildError};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A group, and a member of it.
type Key = (Id, Id);

/// The sessions of all members of all groups.
///
/// All methods are called under the lock of the group, so that a member has a session exactly as long as it is one.
/// That is allowed: of a tracker's methods, only `advance` runs the callback, which takes that lock.
#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) tracker: Tracker<Key, Weak<Coordinator>>,
}

impl Sessions {
    pub(super) fn new(settings: &Settings) -> Result<Self, BuildError> {
        let expire = |(group, member): Key, coordinator: Weak<Coordinator>, _| {
            // Without a coordinator there is no member left either.
            if let Some(coordinator) = coordinator.upgrade() {
                coordinator.session_expired(&group, &member);
            }
        };
        let mut builder = Tracker::builder("sessions").max_parked(settings.max_sessions);
        if let Some(clock) = &settings.clock {
            builder = builder.clock(clock.clone());
        }
        let tracker = builder.reaper(settings.reaper.clone()).build(expire)?;
        Ok(Self { tracker })
    }

    /// Begins the session of a new member.
    ///
    /// # Errors
    /// GROUP_MAX_SIZE_REACHED if there are as many sessions as there may be; NOT_COORDINATOR if the broker shuts down.
    pub(super) fn begin(
        &self,
        coordinator: &Arc<Coordinator>,
        key: Key,
        timeout: Duration,
    ) -> Result<(), ResponseError> {
        let begun = self
            .tracker
            .try_track(key, Arc::downgrade(coordinator), timeout);
        begun
            .map(|_| ())
            .map_err(|rejected| match rejected.reason() {
                RejectReason::ShutDown => ResponseError::NotCoordinator,
                _ => ResponseError::GroupMaxSizeReached,
            })
    }

    /// A heartbeat, or any other sign of life: the member has `timeout` from now. One whose session is just expiring
    /// is past help: the callback is on its way, and will remove it.
    pub(super) fn touch(&self, key: &Key, timeout: Duration) {
        self.tracker.touch(key, timeout);
    }

    pub(super) fn end(&self, key: &Key) {
        self.tracker.complete(key);
    }

    pub(super) fn len(&self) -> usize {
        self.tracker.len()
    }

    pub(super) fn shutdown(&self) {
        self.tracker.shutdown();
    }
}
