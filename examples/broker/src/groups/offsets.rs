//! How far a group has read: the offsets that its members commit.

use super::group::{Phase, State};
use super::member::Id;
use super::{Charge, Coordinator};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::OffsetCommitRequest;
use std::collections::BTreeMap;

/// What an entry takes in memory beside its texts, roughly.
const ENTRY: usize = 128;

/// The committed offsets of one group, by topic and partition.
#[derive(Debug, Default)]
pub(super) struct Offsets(BTreeMap<(Id, i32), (Committed, Charge)>);

/// What was committed for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Committed {
    pub(super) offset: i64,
    pub(super) leader_epoch: i32,
    pub(super) metadata: Option<Id>,
}

impl Committed {
    /// Bytes of memory that it takes.
    pub(super) fn size(&self) -> usize {
        ENTRY + self.metadata.as_ref().map_or(0, |text| text.len())
    }
}

impl Offsets {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn commit(
        &mut self,
        topic: Id,
        partition: i32,
        committed: Committed,
        charge: Charge,
    ) {
        self.0.insert((topic, partition), (committed, charge));
    }

    pub(super) fn get(&self, topic: &str, partition: i32) -> Option<&Committed> {
        let found = self.0.get(&(Id::from(topic), partition));
        found.map(|(committed, _)| committed)
    }

    /// Everything, by topic and partition.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Id, i32, &Committed)> {
        let all = self.0.iter();
        all.map(|((topic, partition), (committed, _))| (topic, *partition, committed))
    }

    pub(super) fn delete(&mut self, topic: &str, partition: i32) {
        self.0.remove(&(Id::from(topic), partition));
    }
}

impl State {
    /// Whether the sender of `request` may commit now. A member that does is alive.
    pub(super) fn check_commit(
        &mut self,
        coordinator: &Coordinator,
        request: &OffsetCommitRequest,
    ) -> Result<(), ResponseError> {
        let (member, generation) = (&*request.member_id, request.generation_id_or_member_epoch);
        let instance = request.group_instance_id.as_deref();
        if generation < 0 && member.is_empty() && instance.is_none() {
            // A client that assigns its partitions itself, or an administrator: not beside members.
            return match self.phase {
                Phase::Empty => Ok(()),
                Phase::Dead => Err(ResponseError::CoordinatorNotAvailable),
                _ => Err(ResponseError::UnknownMemberId),
            };
        }
        self.check_member(member, instance, generation)?;
        self.touch(coordinator, member);
        match self.phase {
            Phase::CompletingRebalance => Err(ResponseError::RebalanceInProgress),
            // What it has read until it joins, it may still commit.
            _ => Ok(()),
        }
    }
}
