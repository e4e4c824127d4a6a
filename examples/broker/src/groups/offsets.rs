//! How far a group has read: the offsets that its members commit.

use super::answers::text;
use super::budget::{Budget, Charge};
use super::group::{Context, Phase, State};
use super::member::Id;
use super::settings::MAX_OFFSET_METADATA;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::OffsetCommitRequest;
use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestPartition;
use kafka_protocol::messages::offset_fetch_response::OffsetFetchResponsePartitions;
use std::collections::BTreeMap;

/// What an entry takes in memory beside its texts, roughly.
const ENTRY: usize = 128;

/// The committed offsets of one group, by topic and partition.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    by_topic: BTreeMap<Id, BTreeMap<i32, (Committed, Charge)>>,
}

/// What was committed for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Committed {
    pub(super) offset: i64,
    pub(super) leader_epoch: i32,
    pub(super) metadata: Option<Id>,
}

impl From<&OffsetCommitRequestPartition> for Committed {
    fn from(asked: &OffsetCommitRequestPartition) -> Self {
        Self {
            offset: asked.committed_offset,
            leader_epoch: asked.committed_leader_epoch,
            metadata: asked.committed_metadata.as_deref().map(Id::from),
        }
    }
}

impl Offsets {
    pub(super) fn is_empty(&self) -> bool {
        self.by_topic.is_empty()
    }

    /// Partitions that something was committed for.
    pub(super) fn len(&self) -> usize {
        self.by_topic.values().map(BTreeMap::len).sum()
    }

    /// # Errors
    /// OFFSET_METADATA_TOO_LARGE, or INVALID_COMMIT_OFFSET_SIZE if no memory is left for any more of them.
    pub(super) fn commit(
        &mut self,
        topic: &str,
        partition: i32,
        committed: Committed,
        budget: &Budget,
    ) -> Result<(), ResponseError> {
        let length = committed.metadata.as_ref().map_or(0, |text| text.len());
        if length > MAX_OFFSET_METADATA {
            return Err(ResponseError::OffsetMetadataTooLarge);
        }
        let charge = budget
            .charge(ENTRY + length)
            .ok_or(ResponseError::InvalidCommitOffsetSize)?;
        if !self.by_topic.contains_key(topic) {
            self.by_topic.insert(Id::from(topic), BTreeMap::new());
        }
        if let Some(partitions) = self.by_topic.get_mut(topic) {
            partitions.insert(partition, (committed, charge));
        }
        Ok(())
    }

    /// Forgets a topic; returns the partitions that something was committed for.
    pub(super) fn delete_topic(&mut self, topic: &str) -> Vec<i32> {
        let deleted = self.by_topic.remove(topic).unwrap_or_default();
        deleted.into_keys().collect()
    }

    /// Everything, by topic and partition.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Id, i32, &Committed)> {
        self.by_topic.iter().flat_map(|(topic, partitions)| {
            let committed = partitions.iter();
            committed.map(move |(partition, (committed, _))| (topic, *partition, committed))
        })
    }

    /// # Errors
    /// UNKNOWN_TOPIC_OR_PARTITION if nothing was committed for it.
    pub(super) fn delete(&mut self, topic: &str, partition: i32) -> Result<(), ResponseError> {
        let partitions = self.by_topic.get_mut(topic);
        let partitions = partitions.ok_or(ResponseError::UnknownTopicOrPartition)?;
        let deleted = partitions.remove(&partition);
        if partitions.is_empty() {
            self.by_topic.remove(topic);
        }
        match deleted {
            Some(_) => Ok(()),
            None => Err(ResponseError::UnknownTopicOrPartition),
        }
    }

    /// What was committed for a partition; offset -1 if nothing was.
    pub(super) fn get(&self, topic: &str, partition: i32) -> OffsetFetchResponsePartitions {
        let partitions = self.by_topic.get(topic);
        let committed = partitions.and_then(|partitions| partitions.get(&partition));
        let answer = OffsetFetchResponsePartitions::default()
            .with_partition_index(partition)
            .with_committed_leader_epoch(-1);
        match committed {
            None => answer
                .with_committed_offset(-1)
                .with_metadata(Some(text(""))),
            Some((committed, _)) => answer
                .with_committed_offset(committed.offset)
                .with_committed_leader_epoch(committed.leader_epoch)
                .with_metadata(Some(text(
                    committed.metadata.as_deref().unwrap_or_default(),
                ))),
        }
    }

    /// Every topic and partition that something was committed for.
    pub(super) fn partitions(&self) -> impl Iterator<Item = (&Id, Vec<i32>)> {
        self.by_topic
            .iter()
            .map(|(topic, partitions)| (topic, partitions.keys().copied().collect()))
    }
}

impl State {
    /// Whether the sender of `request` may commit now. A member that does is alive.
    pub(super) fn check_commit(
        &mut self,
        context: &Context<'_>,
        request: &OffsetCommitRequest,
    ) -> Result<(), ResponseError> {
        let (member, generation) = (&*request.member_id, request.generation_id_or_member_epoch);
        let instance = request.group_instance_id.as_deref();
        if self.phase == Phase::Dead {
            return Err(ResponseError::CoordinatorNotAvailable);
        }
        if generation < 0 && member.is_empty() && instance.is_none() {
            // A client that assigns its partitions itself, or an administrator: not beside members.
            return match self.phase {
                Phase::Empty => Ok(()),
                _ => Err(ResponseError::UnknownMemberId),
            };
        }
        self.check_member(member, instance, generation)?;
        match self.phase {
            // What it has read until it joins, it may still commit.
            Phase::Stable | Phase::PreparingRebalance(_) => {
                self.touch(context, member);
                Ok(())
            }
            Phase::CompletingRebalance => {
                self.touch(context, member);
                Err(ResponseError::RebalanceInProgress)
            }
            Phase::Empty | Phase::Dead => Err(ResponseError::UnknownMemberId),
        }
    }
}
