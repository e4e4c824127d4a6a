//! A coordinator, its clock, and clients that ask it.

use crate::groups::group::Phase;
use crate::groups::requests::{Caller, GroupReply, Waiting};
use crate::groups::settings::{Settings, SharedClock};
use crate::groups::{Coordinator, answers::text};
use crate::wire::groups::{GroupRequest, GroupResponse};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    BrokerId, GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    SyncGroupRequest, SyncGroupResponse,
};
use request_purgatory::{threads::Reaper, time::ManualClock};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot::error::TryRecvError;

pub(super) const GROUP: &str = "g";
pub(super) const INITIAL_DELAY: Duration = Duration::from_millis(100);
pub(super) const SESSION: Duration = Duration::from_secs(10);
pub(super) const REBALANCE: Duration = Duration::from_secs(30);
/// Partitions 0 to 2 of this exist.
pub(super) const TOPIC: &str = "t";

pub(super) struct World {
    pub(super) coordinator: Arc<Coordinator>,
    pub(super) clock: ManualClock,
    pub(super) bytes: usize,
}

/// A request that was sent. Dropped, its client has gone.
pub(super) struct Asked(Result<Waiting, Option<GroupResponse>>);

impl Asked {
    /// The answer, if it is there.
    pub(super) fn poll(&mut self) -> Option<GroupResponse> {
        match &mut self.0 {
            Ok(waiting) => match waiting.poll() {
                Ok(response) => Some(response),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Closed) => panic!("a request ended without an answer"),
            },
            Err(response) => Some(response.take().expect("answered once")),
        }
    }

    pub(super) fn waits(&mut self) -> bool {
        self.poll().is_none()
    }

    pub(super) fn joined(&mut self) -> JoinGroupResponse {
        match self.poll() {
            Some(GroupResponse::JoinGroup(answer)) => answer,
            other => panic!("no answer to a join: {other:?}"),
        }
    }

    pub(super) fn synced(&mut self) -> SyncGroupResponse {
        match self.poll() {
            Some(GroupResponse::SyncGroup(answer)) => answer,
            other => panic!("no answer to a sync: {other:?}"),
        }
    }
}

/// A join with the usual timeouts, in version 9, with the protocols "range" and "roundrobin".
pub(super) fn join_request(member: &str) -> JoinGroupRequest {
    JoinGroupRequest::default()
        .with_group_id(GroupId(text(GROUP)))
        .with_session_timeout_ms(SESSION.as_millis() as i32)
        .with_rebalance_timeout_ms(REBALANCE.as_millis() as i32)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(protocols(&["range", "roundrobin"]))
}

pub(super) fn protocols(names: &[&str]) -> Vec<JoinGroupRequestProtocol> {
    let protocol = |name: &&str| {
        JoinGroupRequestProtocol::default()
            .with_name(text(name))
            .with_metadata(Bytes::from(format!("about {name}")))
    };
    names.iter().map(protocol).collect()
}

/// What the leader assigns to a member in these tests.
pub(super) fn share(member: &str, generation: i32) -> Bytes {
    Bytes::from(format!("{member} in {generation}"))
}

pub(super) fn sync_request(member: &str, generation: i32, members: &[&str]) -> SyncGroupRequest {
    let assignments = members.iter().map(|member| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(share(member, generation))
    });
    SyncGroupRequest::default()
        .with_group_id(GroupId(text(GROUP)))
        .with_generation_id(generation)
        .with_member_id(text(member))
        .with_assignments(assignments.collect())
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let clock = ManualClock::new();
        let mut settings = Settings {
            initial_delay: INITIAL_DELAY,
            max_groups: 100,
            max_members: 100,
            max_sessions: 1_000,
            max_bytes: 1 << 20,
            clock: SharedClock::new(clock.clone()),
            reaper: Reaper::Manual,
        };
        change(&mut settings);
        let bytes = settings.max_bytes;
        let coordinator = Coordinator::open(settings, None).expect("no threads are needed");
        Self {
            coordinator,
            clock,
            bytes,
        }
    }

    pub(super) fn ask(&self, request: GroupRequest, version: i16) -> GroupReply {
        ask(&self.coordinator, request, version)
    }

    pub(super) fn now(&self, request: GroupRequest, version: i16) -> GroupResponse {
        match self.ask(request, version) {
            GroupReply::Now(response) => response,
            GroupReply::Later(_) => panic!("it waits"),
        }
    }

    pub(super) fn later(&self, request: GroupRequest, version: i16) -> Asked {
        later(self.ask(request, version))
    }

    pub(super) fn join_with(&self, request: JoinGroupRequest, version: i16) -> Asked {
        self.later(GroupRequest::JoinGroup(request), version)
    }

    /// A client joins for the first time: it gets a member id, and joins with that.
    pub(super) fn join(&self) -> (String, Asked) {
        let id = self.member_id(join_request(""));
        let asked = self.rejoin(&id);
        (id, asked)
    }

    pub(super) fn member_id(&self, request: JoinGroupRequest) -> String {
        let given = self.join_with(request, 9).joined();
        assert_eq!(given.error_code, 79, "MEMBER_ID_REQUIRED");
        given.member_id.to_string()
    }

    pub(super) fn rejoin(&self, member: &str) -> Asked {
        self.join_with(join_request(member), 9)
    }

    pub(super) fn sync(&self, member: &str, generation: i32, members: &[&str]) -> Asked {
        let request = sync_request(member, generation, members);
        self.later(GroupRequest::SyncGroup(request), 3)
    }

    pub(super) fn heartbeat(&self, member: &str, generation: i32) -> i16 {
        let request = HeartbeatRequest::default()
            .with_group_id(GroupId(text(GROUP)))
            .with_generation_id(generation)
            .with_member_id(text(member));
        match self.now(GroupRequest::Heartbeat(request), 4) {
            GroupResponse::Heartbeat(answer) => answer.error_code,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn leave(&self, member: &str, instance: Option<&str>) -> i16 {
        let identity = MemberIdentity::default()
            .with_member_id(text(member))
            .with_group_instance_id(instance.map(text));
        let request = LeaveGroupRequest::default()
            .with_group_id(GroupId(text(GROUP)))
            .with_members(vec![identity]);
        match self.now(GroupRequest::LeaveGroup(request), 5) {
            GroupResponse::LeaveGroup(answer) => answer.members[0].error_code,
            other => panic!("{other:?}"),
        }
    }

    /// Moves the clock, millisecond by millisecond where something is due.
    pub(super) fn pass(&self, time: Duration) {
        use request_purgatory::time::Clock;
        let coordinator = &self.coordinator;
        let end = self.clock.now().saturating_add(time);
        loop {
            let due = [
                coordinator.joins.next_deadline(),
                coordinator.syncs.next_deadline(),
                coordinator.sessions.next_deadline(),
            ];
            let next = due.into_iter().flatten().min().filter(|next| *next <= end);
            let now = self.clock.now();
            self.clock
                .advance(next.unwrap_or(end).saturating_since(now));
            coordinator.joins.advance();
            coordinator.syncs.advance();
            coordinator.sessions.advance();
            if next.is_none() {
                return;
            }
        }
    }

    /// A stable group of this many members, the leader first, in generation 1.
    pub(super) fn stable(&self, members: usize) -> Vec<String> {
        let mut joins: Vec<_> = (0..members).map(|_| self.join()).collect();
        self.pass(INITIAL_DELAY);
        for (_, join) in &mut joins {
            assert_eq!(join.joined().error_code, 0);
        }
        let ids: Vec<_> = joins.into_iter().map(|(id, _)| id).collect();
        let names: Vec<_> = ids.iter().map(String::as_str).collect();
        for id in &names {
            assert_eq!(self.sync(id, 1, &names).synced().error_code, 0);
        }
        assert_eq!(self.phase(), "Stable");
        ids
    }

    pub(super) fn phase(&self) -> &'static str {
        let group = self.coordinator.group(GROUP);
        group.map_or("none", |group| group.lock().phase.name())
    }

    /// What always holds when no request is in progress.
    pub(super) fn check(&self) {
        let coordinator = &self.coordinator;
        let (mut sessions, mut joins, mut syncs) = (0, 0, 0);
        for group in coordinator.all() {
            let state = group.lock();
            for id in state.members.keys().chain(&state.expected) {
                assert!(
                    coordinator.sessions.contains(&group, id),
                    "{id} has no session"
                );
            }
            sessions += state.members.len() + state.expected.len();
            let preparing = matches!(state.phase, Phase::PreparingRebalance(_));
            joins += usize::from(preparing);
            syncs += usize::from(state.is_syncing(state.round));
            for member in state.members.values() {
                assert!(
                    member.join.is_none() || preparing,
                    "a join waits for nothing"
                );
                assert!(
                    member.sync.is_none() || state.phase == Phase::CompletingRebalance,
                    "a sync waits for nothing"
                );
            }
            for (instance, id) in &state.instances {
                let named = state.members[id].instance.as_ref();
                assert_eq!(named, Some(instance));
            }
            assert!(
                state
                    .unsynced
                    .iter()
                    .all(|id| state.members.contains_key(id))
            );
            let empty = state.members.is_empty();
            match state.phase {
                Phase::Empty | Phase::Dead => assert!(empty),
                Phase::PreparingRebalance(_) => assert!(!empty || !state.expected.is_empty()),
                Phase::CompletingRebalance | Phase::Stable => assert!(!empty),
            }
        }
        assert_eq!(coordinator.members(), sessions, "sessions without a member");
        assert_eq!(coordinator.joins.len(), joins, "join phases parked");
        assert_eq!(coordinator.syncs.len(), syncs, "sync phases parked");
    }
}

pub(super) fn ask(
    coordinator: &Arc<Coordinator>,
    request: GroupRequest,
    version: i16,
) -> GroupReply {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9092));
    let caller = Caller {
        version,
        client_id: b"client",
        client: address,
        broker: address,
        node: BrokerId(1),
        may_wait: true,
        is_partition: &|topic, index| topic == TOPIC && (0..3).contains(&index),
    };
    coordinator.handle(request, &caller)
}

pub(super) fn later(reply: GroupReply) -> Asked {
    Asked(match reply {
        GroupReply::Later(waiting) => Ok(waiting),
        GroupReply::Now(response) => Err(Some(response)),
    })
}
