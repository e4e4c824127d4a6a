//! The requests of members, and of the consumers behind them.

use super::answers::{self, text};
use super::group::{After, Group};
use super::journal::Change;
use super::member::{Id, Waiter};
use super::membership::Join;
use super::offsets::Committed;
use super::settings::MAX_CLIENT_ID;
use super::{Coordinator, describe};
use crate::wire::groups::{GroupRequest, GroupResponse};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::find_coordinator_response::Coordinator as Found;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestPartition;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopics;
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{
    BrokerId, FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatRequest, HeartbeatResponse,
    JoinGroupRequest, LeaveGroupRequest, LeaveGroupResponse, OffsetCommitRequest,
    OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse, SyncGroupRequest,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// What a client is told whose request would wait, if there is no memory for that: it tries again.
const NO_ROOM: ResponseError = ResponseError::CoordinatorNotAvailable;

/// Who asks, and what has to be known about the rest of the broker to answer.
pub(crate) struct Caller<'a> {
    pub(crate) version: i16,
    pub(crate) client_id: &'a [u8],
    pub(crate) client: SocketAddr,
    /// Where the client reached this broker, and so will reach its coordinator.
    pub(crate) broker: SocketAddr,
    pub(crate) node: BrokerId,
    /// Whether there is memory for the request to be parked.
    pub(crate) may_wait: bool,
    pub(crate) is_partition: &'a dyn Fn(&str, i32) -> bool,
}

/// How a request is answered.
pub(crate) enum GroupReply {
    Now(GroupResponse),
    /// When the group has come so far, which it may have already.
    Later(Waiting),
}

/// The receiving end of a request that waits. Dropping it says that the client has gone.
#[derive(Debug)]
pub(crate) struct Waiting {
    answer: oneshot::Receiver<GroupResponse>,
    /// `None` once it has been answered.
    seat: Option<Seat>,
}

/// The place of a request that waits.
#[derive(Debug)]
struct Seat {
    coordinator: Weak<Coordinator>,
    group: Arc<Group>,
    member: Id,
    ticket: u64,
}

impl Waiting {
    /// Waits for the answer. `None` if the request ended without one.
    pub(crate) async fn answer(&mut self) -> Option<GroupResponse> {
        let answer = (&mut self.answer).await.ok();
        self.seat = None;
        answer
    }

    /// The answer, if it is there.
    #[cfg(test)]
    pub(super) fn poll(&mut self) -> Result<GroupResponse, oneshot::error::TryRecvError> {
        self.answer.try_recv()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(seat) = &self.seat {
            seat.abandon();
        }
    }
}

impl Seat {
    /// The request waits no longer. If it has been answered, this does nothing.
    fn abandon(&self) {
        if let Some(coordinator) = self.coordinator.upgrade() {
            coordinator.change(&self.group, |state, context| {
                state.abandoned(context, &self.member, self.ticket);
                After::default()
            });
        }
    }
}

impl Coordinator {
    pub(crate) fn handle(
        self: &Arc<Self>,
        request: GroupRequest,
        caller: &Caller<'_>,
    ) -> GroupReply {
        let response = match request {
            GroupRequest::JoinGroup(asked) => return self.join(asked, caller),
            GroupRequest::SyncGroup(asked) => return self.sync(&asked, caller),
            GroupRequest::Heartbeat(asked) => GroupResponse::Heartbeat(self.heartbeat(&asked)),
            GroupRequest::LeaveGroup(asked) => {
                GroupResponse::LeaveGroup(self.leave(&asked, caller.version))
            }
            GroupRequest::OffsetCommit(asked) => {
                GroupResponse::OffsetCommit(self.commit(asked, caller))
            }
            GroupRequest::OffsetFetch(asked) => {
                GroupResponse::OffsetFetch(self.fetch(asked, caller.version))
            }
            GroupRequest::OffsetDelete(asked) => {
                GroupResponse::OffsetDelete(describe::delete_offsets(self, asked))
            }
            GroupRequest::FindCoordinator(asked) => {
                GroupResponse::FindCoordinator(find_coordinator(asked, caller))
            }
            GroupRequest::ListGroups(asked) => {
                GroupResponse::ListGroups(describe::list(&self.all(), &asked))
            }
            GroupRequest::DescribeGroups(asked) => {
                GroupResponse::DescribeGroups(describe::describe(self, asked))
            }
            GroupRequest::DeleteGroups(asked) => {
                GroupResponse::DeleteGroups(describe::delete(self, asked))
            }
        };
        GroupReply::Now(response)
    }

    fn join(self: &Arc<Self>, request: JoinGroupRequest, caller: &Caller<'_>) -> GroupReply {
        let client_id = shortened(caller.client_id);
        let join = Join {
            version: caller.version,
            fresh_id: self.fresh_id(&client_id),
            client_id: Id::from(client_id),
            client_host: Id::from(format!("/{}", caller.client.ip())),
            request,
        };
        let group = match self.group_to_join(&join, caller) {
            Ok(group) => group,
            Err(error) => {
                let member = &join.request.member_id;
                return GroupReply::Now(answers::join_failed(member, error));
            }
        };
        let (waiter, receiver) = self.waiter();
        let ticket = waiter.ticket;
        let mut waits = None;
        self.change(&group, |state, context| {
            let mut after = After::default();
            waits = state.join(context, &join, waiter, &mut after);
            after
        });
        if waits.is_none() {
            self.forget_if_unused(&group);
        }
        let seat = waits.map(|member| self.seat(group, member, ticket));
        GroupReply::Later(Waiting {
            answer: receiver,
            seat,
        })
    }

    fn group_to_join(&self, join: &Join, caller: &Caller<'_>) -> Result<Arc<Group>, ResponseError> {
        let group = &*join.request.group_id;
        if group.is_empty() {
            return Err(ResponseError::InvalidGroupId);
        }
        join.check()?;
        if !caller.may_wait {
            return Err(NO_ROOM);
        }
        match join.request.member_id.is_empty() {
            true => self.group_or_new(group),
            false => self.group(group).ok_or(ResponseError::UnknownMemberId),
        }
    }

    fn sync(self: &Arc<Self>, request: &SyncGroupRequest, caller: &Caller<'_>) -> GroupReply {
        let group = match self.group(&request.group_id) {
            Some(group) if caller.may_wait => group,
            Some(_) => return GroupReply::Now(answers::sync_failed(NO_ROOM)),
            None => return GroupReply::Now(answers::sync_failed(ResponseError::UnknownMemberId)),
        };
        let (waiter, receiver) = self.waiter();
        let ticket = waiter.ticket;
        let mut waits = false;
        self.change(&group, |state, context| {
            let mut after = After::default();
            waits = state.sync(context, request, waiter, &mut after);
            after
        });
        let seat = waits.then(|| self.seat(group, Id::from(&*request.member_id), ticket));
        GroupReply::Later(Waiting {
            answer: receiver,
            seat,
        })
    }

    fn waiter(&self) -> (Waiter, oneshot::Receiver<GroupResponse>) {
        let (sender, receiver) = oneshot::channel();
        let ticket = self.number();
        (Waiter { ticket, sender }, receiver)
    }

    fn seat(self: &Arc<Self>, group: Arc<Group>, member: Id, ticket: u64) -> Seat {
        Seat {
            coordinator: Arc::downgrade(self),
            group,
            member,
            ticket,
        }
    }

    /// How many groups, members or offsets `request` asks to be told of without naming them.
    pub(crate) fn unnamed(&self, request: &GroupRequest) -> usize {
        let offsets = |id: &str| {
            let group = self.group(id);
            group.map_or(0, |group| group.lock().offsets.len())
        };
        match request {
            GroupRequest::ListGroups(_) => self.groups.read().len(),
            GroupRequest::DescribeGroups(asked) => {
                let groups = asked.groups.iter().collect::<BTreeSet<_>>();
                let groups = groups.into_iter().filter_map(|id| self.group(id));
                groups.map(|group| group.lock().members.len()).sum()
            }
            GroupRequest::OffsetFetch(asked) => {
                let all = asked.groups.iter().filter(|asked| asked.topics.is_none());
                let one = asked.topics.is_none().then(|| offsets(&asked.group_id));
                one.unwrap_or(0) + all.map(|asked| offsets(&asked.group_id)).sum::<usize>()
            }
            _ => 0,
        }
    }

    /// A member id that no other member has, has had, or will have.
    fn fresh_id(&self, client_id: &str) -> Id {
        Id::from(format!(
            "{client_id}-{:016x}-{}",
            self.process,
            self.number()
        ))
    }

    fn heartbeat(self: &Arc<Self>, asked: &HeartbeatRequest) -> HeartbeatResponse {
        let beat = |group: Arc<Group>| {
            let instance = asked.group_instance_id.as_deref();
            let context = self.context(&group);
            let mut state = group.lock();
            state.heartbeat(&context, &asked.member_id, instance, asked.generation_id)
        };
        let beaten = match self.group(&asked.group_id) {
            Some(group) => beat(group),
            None => Err(ResponseError::UnknownMemberId),
        };
        HeartbeatResponse::default().with_error_code(code(beaten))
    }

    fn leave(self: &Arc<Self>, asked: &LeaveGroupRequest, version: i16) -> LeaveGroupResponse {
        let group = self.group(&asked.group_id);
        let leave = |identity: &MemberIdentity| {
            let group = group.as_ref().ok_or(ResponseError::UnknownMemberId)?;
            let instance = identity.group_instance_id.as_deref();
            let mut left = Ok(());
            self.change(group, |state, context| {
                let mut after = After::default();
                left = state.leave(context, &identity.member_id, instance, &mut after);
                after
            });
            left
        };
        let answer = LeaveGroupResponse::default();
        if version < 3 {
            let identity = MemberIdentity::default().with_member_id(asked.member_id.clone());
            return answer.with_error_code(code(leave(&identity)));
        }
        let members = asked.members.iter().map(|identity| {
            MemberResponse::default()
                .with_member_id(identity.member_id.clone())
                .with_group_instance_id(identity.group_instance_id.clone())
                .with_error_code(code(leave(identity)))
        });
        answer.with_members(members.collect())
    }

    fn commit(
        self: &Arc<Self>,
        asked: OffsetCommitRequest,
        caller: &Caller<'_>,
    ) -> OffsetCommitResponse {
        let group = match self.group(&asked.group_id) {
            Some(group) => Ok(group),
            // No member joins such a group: it is there to keep offsets.
            None if asked.generation_id_or_member_epoch < 0 => self.group_or_new(&asked.group_id),
            None => Err(ResponseError::IllegalGeneration),
        };
        let answer = |commit: &mut dyn FnMut(
            &str,
            &OffsetCommitRequestPartition,
        ) -> Result<(), ResponseError>| {
            let topics = asked.topics.iter().map(|topic| {
                let partitions = topic.partitions.iter().map(|partition| {
                    OffsetCommitResponsePartition::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(code(commit(&topic.name, partition)))
                });
                OffsetCommitResponseTopic::default()
                    .with_name(topic.name.clone())
                    .with_partitions(partitions.collect())
            });
            OffsetCommitResponse::default().with_topics(topics.collect())
        };
        let group = match group {
            Ok(group) => group,
            Err(error) => return answer(&mut |_, _| Err(error)),
        };
        let mut changes = Vec::new();
        let mut committed = {
            let context = self.context(&group);
            let mut state = group.lock();
            match state.check_commit(&context, &asked) {
                Err(error) => answer(&mut |_, _| Err(error)),
                Ok(()) => answer(&mut |topic, partition: &OffsetCommitRequestPartition| {
                    let index = partition.partition_index;
                    if !(caller.is_partition)(topic, index) {
                        return Err(ResponseError::UnknownTopicOrPartition);
                    }
                    let committed = Committed::from(partition);
                    state
                        .offsets
                        .commit(topic, index, committed.clone(), &self.budget)?;
                    let (group, topic) = (group.id.to_string(), topic.to_owned());
                    changes.push(Change::Commit(group, topic, index, committed));
                    Ok(())
                }),
            }
        };
        if let Err(error) = self.note(&changes) {
            let topics = committed.topics.iter_mut();
            for partition in topics.flat_map(|topic| &mut topic.partitions) {
                partition.error_code = error.code();
            }
        }
        self.forget_if_unused(&group);
        committed
    }

    fn fetch(&self, asked: OffsetFetchRequest, version: i16) -> OffsetFetchResponse {
        if version >= 8 {
            let groups = asked
                .groups
                .into_iter()
                .map(|asked| self.fetch_group(asked));
            return OffsetFetchResponse::default().with_groups(groups.collect());
        }
        let topics = asked.topics.map(|topics| {
            let topic =
                |topic: kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic| {
                    OffsetFetchRequestTopics::default()
                        .with_name(topic.name)
                        .with_partition_indexes(topic.partition_indexes)
                };
            topics.into_iter().map(topic).collect()
        });
        let asked = OffsetFetchRequestGroup::default()
            .with_group_id(asked.group_id)
            .with_topics(topics);
        let found = self.fetch_group(asked);
        let partition = |found: kafka_protocol::messages::offset_fetch_response::OffsetFetchResponsePartitions| {
            OffsetFetchResponsePartition::default()
                .with_partition_index(found.partition_index)
                .with_committed_offset(found.committed_offset)
                .with_committed_leader_epoch(found.committed_leader_epoch)
                .with_metadata(found.metadata)
        };
        let topics = found.topics.into_iter().map(|topic| {
            OffsetFetchResponseTopic::default()
                .with_name(topic.name)
                .with_partitions(topic.partitions.into_iter().map(partition).collect())
        });
        OffsetFetchResponse::default()
            .with_error_code(found.error_code)
            .with_topics(topics.collect())
    }

    /// What a group has committed: for the partitions asked for, or for all.
    fn fetch_group(&self, asked: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup {
        let group = self.group(&asked.group_id);
        let state = group.as_ref().map(|group| group.lock());
        let nothing = super::offsets::Offsets::default();
        let offsets = state.as_ref().map_or(&nothing, |state| &state.offsets);
        let topics = match asked.topics {
            Some(topics) => topics,
            None => offsets
                .partitions()
                .map(|(topic, partitions)| {
                    OffsetFetchRequestTopics::default()
                        .with_name(text(topic).into())
                        .with_partition_indexes(partitions)
                })
                .collect(),
        };
        let topics = topics.into_iter().map(|topic| {
            let partitions = topic.partition_indexes.iter();
            OffsetFetchResponseTopics::default()
                .with_partitions(
                    partitions
                        .map(|index| offsets.get(&topic.name, *index))
                        .collect(),
                )
                .with_name(topic.name)
        });
        let topics = topics.collect();
        OffsetFetchResponseGroup::default()
            .with_group_id(asked.group_id)
            .with_topics(topics)
    }
}

/// There is one broker, so it coordinates every group; but no transactions.
fn find_coordinator(asked: FindCoordinatorRequest, caller: &Caller<'_>) -> FindCoordinatorResponse {
    const GROUP: i8 = 0;
    const TRANSACTION: i8 = 1;
    let answer = FindCoordinatorResponse::default();
    let error = match asked.key_type {
        GROUP => None,
        // As InitProducerId says it.
        TRANSACTION => Some(ResponseError::TransactionalIdAuthorizationFailed),
        _ => Some(ResponseError::InvalidRequest),
    };
    let (node, host, port) = match error {
        None => {
            let address = caller.broker;
            (
                caller.node,
                text(&address.ip().to_string()),
                i32::from(address.port()),
            )
        }
        Some(_) => (BrokerId(-1), text(""), -1),
    };
    let error_code = error.map_or(0, |error| error.code());
    if caller.version < 4 {
        return answer
            .with_error_code(error_code)
            .with_node_id(node)
            .with_host(host)
            .with_port(port);
    }
    let found = asked.coordinator_keys.into_iter().map(|key| {
        Found::default()
            .with_key(key)
            .with_error_code(error_code)
            .with_node_id(node)
            .with_host(host.clone())
            .with_port(port)
    });
    answer.with_coordinators(found.collect())
}

/// The code on the wire.
pub(super) fn code(outcome: Result<(), ResponseError>) -> i16 {
    outcome.map_or_else(|error| error.code(), |()| 0)
}

/// As much of a client id as goes into a member id.
fn shortened(client_id: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(client_id).into_owned();
    let end = text.floor_char_boundary(MAX_CLIENT_ID);
    text.truncate(end);
    text
}
