//! One member of a group, and what it is told when something is wrong.

use crate::exchange::{Caller, Outcome, Waiter, ensure, milliseconds};
use crate::messages::*;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Shortest and longest session that a member may ask for, as Kafka's `group.min.session.timeout.ms` (6 s there, which
/// is long for trying things out) and `group.max.session.timeout.ms`.
const SESSION: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(30 * 60);

/// Shortest and longest rebalance timeout granted, whatever a member asks for. One that is over at once would make a
/// group of static members that are away begin rebalance after rebalance.
const REBALANCE: std::ops::RangeInclusive<Duration> = SESSION;

/// Longest group id and instance id, in bytes.
pub(super) const MAX_ID: usize = 255;

/// Most of a client id that goes into a member id, in bytes.
pub(super) const MAX_CLIENT_ID: usize = 128;

/// Longest member id, in bytes: behind the client id it has the process in 16 digits, and a number of up to 20.
pub(super) const MAX_MEMBER_ID: usize = MAX_CLIENT_ID + 38;

const MAX_PROTOCOLS: usize = 64;

/// What a protocol takes in memory beside its texts, roughly.
const PROTOCOL: usize = 96;

/// What a member takes in an answer beside its texts, half as read and half as encoded, roughly.
pub(super) const MEMBER: usize = 256;

/// Ids of groups and members. Copies of what a client sent: a slice of its request would keep the whole frame.
pub(crate) type Id = Arc<str>;

/// Bytes of the coordinator's memory that were taken. Dropping the last clone gives them back.
pub(super) type Charge = Arc<OwnedSemaphorePermit>;

/// Bytes that groups may still take.
pub(super) type Memory = Arc<Semaphore>;

/// Takes `bytes` of the memory for groups, if as many are left.
pub(super) fn charge(memory: &Memory, bytes: usize) -> Outcome<Charge> {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    let charge = Arc::clone(memory).try_acquire_many_owned(bytes);
    Ok(Arc::new(charge.map_err(|_| Code::GroupMaxSizeReached)?))
}

/// A member. It is in the group from its first join until it leaves, or its session expires.
pub(super) struct Member {
    /// Counts up in the order in which members came. Its session is tracked under it.
    pub(super) number: u64,
    /// The name of a static member.
    pub(super) instance: Option<Id>,
    pub(super) terms: Terms,
    /// Whether it has asked for its assignment in this generation.
    pub(super) has_asked: bool,
    pub(super) assignment: Bytes,
    /// Its request that is parked: it cannot send heartbeats then, and need not.
    pub(super) parked: Option<(Parked, Waiter)>,
}

/// What members wait in: in a join for the other members, in a sync for the leader.
pub(super) enum Parked {
    Join,
    Sync,
}

/// What a member says of itself, and asks for, each time that it joins.
pub(super) struct Terms {
    pub(super) version: i16,
    pub(super) client_id: Id,
    pub(super) client_host: Id,
    pub(super) session_timeout: Duration,
    pub(super) rebalance_timeout: Duration,
    /// Those that it knows, the best first, with what it has to say to the leader in each.
    pub(super) protocols: Vec<(Id, Bytes)>,
    /// Bytes that these and its member id take.
    pub(super) size: usize,
    /// The memory of them.
    pub(super) charge: Charge,
}

impl Member {
    /// Bytes that it takes in an answer with what it says in `protocol`.
    pub(super) fn size(&self, id: &str, protocol: &str) -> usize {
        let instance = self.instance.as_ref().map_or(0, |name| name.len());
        MEMBER + id.len() + instance + self.terms.metadata(protocol).len()
    }

    pub(super) fn fail(&mut self, id: &str, error: Code) {
        if let Some((parked, waiter)) = self.parked.take() {
            parked.refuse(waiter, id, error);
        }
    }
}

impl Parked {
    pub(super) fn refuse(self, waiter: Waiter, id: &str, error: Code) {
        match self {
            Self::Join => waiter.answer(join_failed(id, error)),
            Self::Sync => waiter.answer(sync_failed(error)),
        }
    }
}

impl Terms {
    /// What a request to join says, if that can be, whatever the group, and if there is memory for it.
    pub(super) fn of(asked: &JoinGroupRequest, caller: &Caller, memory: &Memory) -> Outcome<Self> {
        let is_short = asked.member_id.len() <= MAX_MEMBER_ID;
        ensure(is_short, Code::UnknownMemberId)?;
        let session_timeout = milliseconds(asked.session_timeout_ms);
        let rebalance_timeout = match caller.version {
            // There is one time for both.
            0 => session_timeout,
            _ => milliseconds(asked.rebalance_timeout_ms),
        };
        let is_session = SESSION.contains(&session_timeout);
        ensure(is_session, Code::InvalidSessionTimeout)?;
        let is_name = |name: &StrBytes| (1..=MAX_ID).contains(&name.len());
        let is_named = asked.group_instance_id.as_ref().is_none_or(is_name);
        ensure(is_named, Code::InvalidRequest)?;
        let client_id = &caller.client_id;
        let client_id = &client_id[..client_id.floor_char_boundary(MAX_CLIENT_ID)];
        let offered = &asked.protocols;
        let is_few = (1..=MAX_PROTOCOLS).contains(&offered.len());
        ensure(is_few, Code::InconsistentGroupProtocol)?;
        let bytes = |it: &JoinGroupRequestProtocol| PROTOCOL + it.name.len() + it.metadata.len();
        let size = MAX_MEMBER_ID + offered.iter().map(bytes).sum::<usize>();
        let charge = charge(memory, size)?;
        let copy = |it: &JoinGroupRequestProtocol| {
            (Id::from(&*it.name), Bytes::copy_from_slice(&it.metadata))
        };
        Ok(Self {
            version: caller.version,
            client_id: Id::from(client_id),
            client_host: Id::from(format!("/{}", caller.client.ip())),
            session_timeout,
            rebalance_timeout: rebalance_timeout.clamp(*REBALANCE.start(), *REBALANCE.end()),
            protocols: offered.iter().map(copy).collect(),
            size,
            charge,
        })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Id> {
        self.protocols.iter().map(|(name, _)| name)
    }

    /// What the member has to say in `protocol`.
    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        let mut protocols = self.protocols.iter();
        let found = protocols.find(|(name, _)| &**name == protocol);
        found.map_or_else(Bytes::new, |(_, metadata)| metadata.clone())
    }
}

pub(super) fn join_failed(member: &str, error: Code) -> JoinGroupResponse {
    JoinGroupResponse::default()
        .with_error_code(error.code())
        // Versions before 7 have no null here.
        .with_protocol_name(Some(StrBytes::default()))
        .with_member_id(text(member))
}

pub(super) fn sync_failed(error: Code) -> SyncGroupResponse {
    SyncGroupResponse::default().with_error_code(error.code())
}
