//! The sessions of members: one timer each, which their heartbeats push back.

use super::Coordinator;
use super::group::Group;
use super::member::Id;
use super::settings::Settings;
use kafka_protocol::ResponseError;
use request_purgatory::{RejectReason, Tracker, purgatory::BuildError};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Who has a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Of {
    group: Id,
    member: Id,
}

/// What has to be told when a session expires.
struct Session {
    coordinator: Weak<Coordinator>,
    group: Weak<Group>,
}

/// The sessions of all members of all groups, and of clients that were only given a member id so far.
///
/// All methods are called under the lock of the group, so that a member has a session exactly as long as it is one.
/// That is allowed: of a tracker's methods, only `advance` runs the callback, which takes that lock.
#[derive(Debug)]
pub(super) struct Sessions {
    tracker: Tracker<Of, Session>,
}

impl Sessions {
    pub(super) fn new(settings: &Settings) -> Result<Self, BuildError> {
        let expire = |of: Of, session: Session, _| {
            // Without a coordinator, or without the group, there is no member left either.
            if let (Some(coordinator), Some(group)) =
                (session.coordinator.upgrade(), session.group.upgrade())
            {
                coordinator.session_expired(&group, &of.member);
            }
        };
        let tracker = Tracker::builder("sessions")
            .max_parked(settings.max_sessions)
            .clock(settings.clock.clone())
            .reaper(settings.reaper.clone())
            .build(expire)?;
        Ok(Self { tracker })
    }

    /// Begins the session of a new member.
    ///
    /// # Errors
    /// GROUP_MAX_SIZE_REACHED if there are as many sessions as there may be; NOT_COORDINATOR if the broker shuts down.
    pub(super) fn begin(
        &self,
        coordinator: &Arc<Coordinator>,
        group: &Arc<Group>,
        member: &Id,
        timeout: Duration,
    ) -> Result<(), ResponseError> {
        let session = Session {
            coordinator: Arc::downgrade(coordinator),
            group: Arc::downgrade(group),
        };
        match self.tracker.try_track(of(group, member), session, timeout) {
            Ok(_) => Ok(()),
            Err(ref rejected) if rejected.reason() == RejectReason::ShutDown => {
                Err(ResponseError::NotCoordinator)
            }
            Err(_) => Err(ResponseError::GroupMaxSizeReached),
        }
    }

    /// A heartbeat, or any other sign of life: the member has `timeout` from now. One whose session is just expiring
    /// is past help: the callback is on its way, and will remove it.
    pub(super) fn touch(&self, group: &Group, member: &Id, timeout: Duration) -> bool {
        self.tracker.touch(&of(group, member), timeout)
    }

    /// While a request of the member waits, it cannot send heartbeats, and need not.
    pub(super) fn suspend(&self, group: &Group, member: &Id) {
        self.touch(group, member, Duration::MAX);
    }

    pub(super) fn end(&self, group: &Group, member: &Id) {
        self.tracker.complete(&of(group, member));
    }

    pub(super) fn len(&self) -> usize {
        self.tracker.len()
    }

    pub(super) fn shutdown(&self) {
        self.tracker.shutdown();
    }

    #[cfg(test)]
    pub(super) fn next_deadline(&self) -> Option<request_purgatory::time::Timestamp> {
        self.tracker.next_deadline()
    }

    #[cfg(test)]
    pub(super) fn advance(&self) -> usize {
        self.tracker.advance()
    }

    #[cfg(test)]
    pub(super) fn contains(&self, group: &Group, member: &Id) -> bool {
        self.tracker.contains(&of(group, member))
    }
}

fn of(group: &Group, member: &Id) -> Of {
    Of {
        group: Arc::clone(&group.id),
        member: Arc::clone(member),
    }
}
