//! The sessions of members: one timer each, which their heartbeats push back.
//!
//! The tracker is touched under the lock of the group, so that a member has a session exactly as long as it is one.
//! That is allowed: of a tracker's methods, only `advance` runs the callback, which takes that lock.

use super::Coordinator;
use super::member::Id;
use super::settings::Settings;
use kafka_protocol::ResponseError;
use request_purgatory::{Tracker, purgatory::BuildError, purgatory::RejectReason};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A group, and a member of it.
pub(super) type Key = (Id, Id);

/// The sessions of all members of all groups.
pub(super) type Sessions = Tracker<Key, Weak<Coordinator>>;

pub(super) fn new(settings: &Settings) -> Result<Sessions, BuildError> {
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
    builder.reaper(settings.reaper.clone()).build(expire)
}

impl Coordinator {
    /// Begins the session of a new member.
    ///
    /// # Errors
    /// GROUP_MAX_SIZE_REACHED if there are as many sessions as there may be; NOT_COORDINATOR if the broker shuts down.
    pub(super) fn begin_session(
        self: &Arc<Self>,
        key: Key,
        timeout: Duration,
    ) -> Result<(), ResponseError> {
        let coordinator = Arc::downgrade(self);
        match self.sessions.try_track(key, coordinator, timeout) {
            Ok(_) => Ok(()),
            Err(rejected) if rejected.reason() == RejectReason::ShutDown => {
                Err(ResponseError::NotCoordinator)
            }
            Err(_) => Err(ResponseError::GroupMaxSizeReached),
        }
    }
}
