//! Requests about offsets: of consumers, which commit and fetch them, and of administrators, which delete them.

use super::Coordinator;
use super::answers::{code, text};
use super::group::Phase;
use super::journal::{Change, Journal};
use super::member::Id;
use super::offsets::{Committed, Offsets};
use super::settings::MAX_OFFSET_METADATA;
use crate::console::warn;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestPartition;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponsePartition, OffsetFetchResponseTopic,
};
use kafka_protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetDeleteRequest, OffsetDeleteResponse, OffsetFetchRequest, OffsetFetchResponse,
};

impl Coordinator {
    pub(super) fn commit(
        &self,
        asked: &OffsetCommitRequest,
        is_partition: &dyn Fn(&str, i32) -> bool,
    ) -> OffsetCommitResponse {
        let mut changes = Vec::new();
        let mut charges = Vec::new();
        let mut check = |topic: &str, asked_for: &OffsetCommitRequestPartition| {
            let (index, metadata) = (asked_for.partition_index, &asked_for.committed_metadata);
            if !is_partition(topic, index) {
                return Err(ResponseError::UnknownTopicOrPartition);
            }
            if metadata
                .as_ref()
                .is_some_and(|text| text.len() > MAX_OFFSET_METADATA)
            {
                return Err(ResponseError::OffsetMetadataTooLarge);
            }
            let committed = Committed {
                offset: asked_for.committed_offset,
                leader_epoch: asked_for.committed_leader_epoch,
                metadata: metadata.as_deref().map(Id::from),
            };
            let charge = self.charge(committed.size());
            charges.push(charge.ok_or(ResponseError::InvalidCommitOffsetSize)?);
            let group = Id::from(&**asked.group_id);
            changes.push(Change::Commit(group, Id::from(topic), index, committed));
            Ok(())
        };
        let topics = asked.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                OffsetCommitResponsePartition::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(code(check(&topic.name, partition)))
            });
            OffsetCommitResponseTopic::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        let mut answer = OffsetCommitResponse::default().with_topics(topics.collect());
        if let Err(error) = self.commit_all(asked, changes, charges) {
            let topics = answer.topics.iter_mut();
            for partition in topics.flat_map(|topic| &mut topic.partitions) {
                partition.error_code = error.code();
            }
        }
        answer
    }

    /// Commits `changes`, if the group lets their sender.
    fn commit_all(
        &self,
        asked: &OffsetCommitRequest,
        changes: Vec<Change>,
        charges: Vec<super::Charge>,
    ) -> Result<(), ResponseError> {
        // No member joins a group of a negative generation: it is there to keep offsets.
        let group = match self.group(&asked.group_id) {
            Some(group) => group,
            None if asked.generation_id_or_member_epoch >= 0 => {
                return Err(ResponseError::IllegalGeneration);
            }
            None if changes.is_empty() => return Ok(()),
            None => self.group_or_new(&asked.group_id)?,
        };
        // Held until the changes are both in the journal and in memory: they have the same order in both.
        let mut journal = self.journal.lock();
        let mut state = group.lock();
        state.check_commit(self, asked)?;
        self.note(&mut journal, &changes)?;
        for (change, charge) in changes.into_iter().zip(charges) {
            if let Change::Commit(_, topic, index, committed) = change {
                state.offsets.commit(topic, index, committed, charge);
            }
        }
        drop(state);
        self.shorten(&mut journal)
    }

    /// Writes changes to the journal. After an error there is nothing of them.
    fn note(&self, journal: &mut Journal, changes: &[Change]) -> Result<(), ResponseError> {
        journal.append(changes).map_err(|error| {
            warn(&format!("cannot keep offsets: {error}"));
            ResponseError::KafkaStorageError
        })
    }

    /// Has the journal begin anew, if it has become long. To be called without the lock of any group.
    fn shorten(&self, journal: &mut Journal) -> Result<(), ResponseError> {
        if journal.is_long()
            && let Err(error) = journal.rewrite(&self.committed())
        {
            // What it has is whole, so it can go on.
            warn(&format!("cannot shorten the journal of offsets: {error}"));
        }
        Ok(())
    }

    /// What a group has committed: for the partitions asked for, or for all.
    pub(super) fn committed_offsets(&self, asked: OffsetFetchRequest) -> OffsetFetchResponse {
        let group = self.group(&asked.group_id);
        let state = group.as_ref().map(|group| group.lock());
        let nothing = Offsets::default();
        let offsets = state.as_ref().map_or(&nothing, |state| &state.offsets);
        let asked = asked.topics.unwrap_or_else(|| {
            let mut topics = Vec::<OffsetFetchRequestTopic>::new();
            for (topic, index, _) in offsets.all() {
                if topics.last().is_none_or(|last| **last.name != **topic) {
                    topics.push(OffsetFetchRequestTopic::default().with_name(text(topic).into()));
                }
                topics
                    .last_mut()
                    .expect("just added")
                    .partition_indexes
                    .push(index);
            }
            topics
        });
        let topics = asked.into_iter().map(|topic| {
            let partitions = topic.partition_indexes.iter().map(|index| {
                let found = offsets.get(&topic.name, *index);
                let metadata = found.and_then(|found| found.metadata.as_deref());
                OffsetFetchResponsePartition::default()
                    .with_partition_index(*index)
                    .with_committed_offset(found.map_or(-1, |found| found.offset))
                    .with_committed_leader_epoch(found.map_or(-1, |found| found.leader_epoch))
                    .with_metadata(Some(text(metadata.unwrap_or_default())))
            });
            let partitions = partitions.collect();
            OffsetFetchResponseTopic::default()
                .with_name(topic.name)
                .with_partitions(partitions)
        });
        OffsetFetchResponse::default().with_topics(topics.collect())
    }

    /// Forgets offsets of a group without members: members would only commit them again.
    pub(super) fn delete_offsets(&self, asked: OffsetDeleteRequest) -> OffsetDeleteResponse {
        let answer = OffsetDeleteResponse::default();
        let Some(group) = self.group(&asked.group_id) else {
            return answer.with_error_code(ResponseError::GroupIdNotFound.code());
        };
        let mut journal = self.journal.lock();
        let mut state = group.lock();
        let mut delete = |topic: &str, index| {
            if state.phase != Phase::Empty {
                return Err(ResponseError::GroupSubscribedToTopic);
            }
            let found = state.offsets.get(topic, index);
            found.ok_or(ResponseError::UnknownTopicOrPartition)?;
            let change = Change::Delete(Id::clone(&group.id), Id::from(topic), index);
            self.note(&mut journal, &[change])?;
            state.offsets.delete(topic, index);
            Ok(())
        };
        let topics = asked.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let index = partition.partition_index;
                OffsetDeleteResponsePartition::default()
                    .with_partition_index(index)
                    .with_error_code(code(delete(&topic.name, index)))
            });
            let partitions = partitions.collect();
            OffsetDeleteResponseTopic::default()
                .with_name(topic.name)
                .with_partitions(partitions)
        });
        answer.with_topics(topics.collect())
    }

    /// A topic was deleted: what was committed for it means nothing to another one of that name.
    pub(crate) fn forget_topic(&self, topic: &str) -> Result<(), ResponseError> {
        let mut journal = self.journal.lock();
        for group in self.all() {
            let mut state = group.lock();
            let found = state.offsets.all().filter(|(name, ..)| ***name == *topic);
            let indexes: Vec<_> = found.map(|(_, index, _)| index).collect();
            for index in indexes {
                let change = Change::Delete(Id::clone(&group.id), Id::from(topic), index);
                self.note(&mut journal, &[change])?;
                state.offsets.delete(topic, index);
            }
        }
        Ok(())
    }

    pub(super) fn delete_groups(&self, asked: DeleteGroupsRequest) -> DeleteGroupsResponse {
        let results = asked.groups_names.into_iter().map(|id| {
            DeletableGroupResult::default()
                .with_error_code(code(self.delete_group(&id)))
                .with_group_id(id)
        });
        DeleteGroupsResponse::default().with_results(results.collect())
    }

    fn delete_group(&self, id: &str) -> Result<(), ResponseError> {
        let group = self.group(id).ok_or(ResponseError::GroupIdNotFound)?;
        let mut journal = self.journal.lock();
        {
            let mut state = group.lock();
            match state.phase {
                Phase::Empty => {}
                Phase::Dead => return Err(ResponseError::GroupIdNotFound),
                _ => return Err(ResponseError::NonEmptyGroup),
            }
            self.note(&mut journal, &[Change::DeleteGroup(Id::from(id))])?;
            state.phase = Phase::Dead;
        }
        self.groups.write().remove(id);
        Ok(())
    }
}
