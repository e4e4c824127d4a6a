//! Requests about offsets: of consumers, which commit and fetch them, and of administrators, which delete them.

use super::group::{Phase, State};
use super::journal::{Change, Committed, Journal, Offsets};
use super::member::Id;
use super::settings::MAX_OFFSET_METADATA;
use super::{Charge, Coordinator};
use crate::exchange::{Answer, Outcome, code, ensure};
use crate::messages::*;

/// What is told where nothing was committed.
const NOTHING: Committed = Committed {
    offset: -1,
    leader_epoch: -1,
    metadata: None,
};

impl Coordinator {
    pub(super) fn commit(
        &self,
        asked: &OffsetCommitRequest,
        is_partition: &dyn Fn(&str, i32) -> bool,
    ) -> OffsetCommitResponse {
        let group = Id::from(&**asked.group_id);
        let (mut changes, mut charges) = (Vec::new(), Vec::new());
        // Held from the look for the topics until the changes are both in the journal and in memory: they have the same
        // order in both, and what is committed for a topic that is deleted meanwhile is forgotten afterwards.
        let journal = self.journal.lock();
        let mut check = |topic: &str, asked_for: &OffsetCommitRequestPartition| {
            let (index, metadata) = (asked_for.partition_index, &asked_for.committed_metadata);
            let is_there = is_partition(topic, index);
            ensure(is_there, ResponseError::UnknownTopicOrPartition)?;
            let length = metadata.as_ref().map_or(0, |text| text.len());
            let is_short = length <= MAX_OFFSET_METADATA;
            ensure(is_short, ResponseError::OffsetMetadataTooLarge)?;
            let committed = Committed {
                offset: asked_for.committed_offset,
                leader_epoch: asked_for.committed_leader_epoch,
                metadata: metadata.as_deref().map(Id::from),
            };
            let charge = self.shared.charge(committed.size(topic));
            charges.push(charge.map_err(|_| ResponseError::InvalidCommitOffsetSize)?);
            changes.push((Id::clone(&group), Id::from(topic), index, Some(committed)));
            Ok(())
        };
        let topics = asked.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                OffsetCommitResponsePartition::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(code(&check(&topic.name, partition)))
            });
            OffsetCommitResponseTopic::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        let mut answer = OffsetCommitResponse::default().with_topics(topics.collect());
        if let Err(error) = self.commit_all(journal, asked, changes, charges) {
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
        mut journal: parking_lot::MutexGuard<'_, Journal>,
        asked: &OffsetCommitRequest,
        changes: Vec<Change>,
        charges: Vec<Charge>,
    ) -> Outcome {
        // No member joins a group of a negative generation: it is there to keep offsets.
        let group = match self.group(&asked.group_id) {
            Some(group) => group,
            None if asked.generation_id_or_member_epoch >= 0 => {
                return Err(ResponseError::IllegalGeneration);
            }
            None if changes.is_empty() => return Ok(()),
            None => self.group_or_new(&asked.group_id)?,
        };
        let mut state = group.lock();
        state.check_commit(asked)?;
        note(&mut journal, &changes)?;
        for ((_, topic, index, committed), charge) in changes.into_iter().zip(charges) {
            if let Some(committed) = committed {
                state.offsets.insert((topic, index), (committed, charge));
            }
        }
        drop(state);
        if journal.is_long()
            && let Err(error) = journal.rewrite(&self.committed())
        {
            // What it has is whole, so it can go on.
            log!("cannot shorten the journal of offsets: {error}");
        }
        Ok(())
    }

    /// What a group has committed: for the partitions asked for, or for all.
    pub(super) fn committed_offsets(&self, asked: OffsetFetchRequest) -> Answer {
        let group = self.group(&asked.group_id);
        let state = group.as_ref().map(|group| group.lock());
        let none = Offsets::default();
        let offsets = state.as_ref().map_or(&none, |state| &state.offsets);
        let asked: Vec<_> = match asked.topics {
            None => offsets.keys().cloned().collect(),
            Some(topics) => {
                let partitions = topics.iter().flat_map(|topic| {
                    let name = Id::from(&**topic.name);
                    let indexes = topic.partition_indexes.iter();
                    indexes.map(move |index| (Id::clone(&name), *index))
                });
                partitions.collect()
            }
        };
        let found = asked.into_iter().map(|at| {
            let found = offsets.get(&at).map(|(committed, _)| committed.clone());
            (at, found.unwrap_or(NOTHING))
        });
        let found: Vec<_> = found.collect();
        let size = found.iter().map(|((topic, _), found)| found.size(topic));
        Answer::unread(size.sum(), move || {
            let topics = found.chunk_by(|((one, _), _), ((other, _), _)| one == other);
            let topics = topics.map(|topic| {
                let partitions = topic.iter().map(|((_, index), found)| {
                    OffsetFetchResponsePartition::default()
                        .with_partition_index(*index)
                        .with_committed_offset(found.offset)
                        .with_committed_leader_epoch(found.leader_epoch)
                        .with_metadata(Some(text(found.metadata.as_deref().unwrap_or_default())))
                });
                OffsetFetchResponseTopic::default()
                    .with_partitions(partitions.collect())
                    .with_name(TopicName(text(&topic[0].0.0)))
            });
            OffsetFetchResponse::default().with_topics(topics.collect())
        })
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
            let is_unused = state.phase == Phase::Empty;
            ensure(is_unused, ResponseError::GroupSubscribedToTopic)?;
            let at = (Id::from(topic), index);
            if !state.offsets.contains_key(&at) {
                return Ok(());
            }
            let change = (Id::clone(&state.id), Id::clone(&at.0), index, None);
            note(&mut journal, &[change])?;
            state.offsets.remove(&at);
            Ok(())
        };
        let topics = asked.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let index = partition.partition_index;
                OffsetDeleteResponsePartition::default()
                    .with_partition_index(index)
                    .with_error_code(code(&delete(&topic.name, index)))
            });
            OffsetDeleteResponseTopic::default()
                .with_partitions(partitions.collect())
                .with_name(topic.name)
        });
        answer.with_topics(topics.collect())
    }

    /// `delete` deletes a topic: then what was committed for it is forgotten, since it means nothing to another one of
    /// that name. What is committed for that one comes afterwards, so the journal is locked meanwhile. If it cannot be
    /// written, that is logged, and the offsets stay.
    pub(crate) fn forget_topic<T>(
        &self,
        topic: &str,
        delete: impl FnOnce() -> Outcome<T>,
    ) -> Outcome<T> {
        let mut journal = self.journal.lock();
        let deleted = delete()?;
        for group in self.all() {
            // (Logged where it is noted.)
            let _ = group.lock().forget(&mut journal, |name| *name == *topic);
        }
        Ok(deleted)
    }

    pub(super) fn delete_groups(&self, asked: DeleteGroupsRequest) -> DeleteGroupsResponse {
        let results = asked.groups_names.into_iter().map(|id| {
            DeletableGroupResult::default()
                .with_error_code(code(&self.delete_group(&id)))
                .with_group_id(id)
        });
        DeleteGroupsResponse::default().with_results(results.collect())
    }

    fn delete_group(&self, id: &str) -> Outcome {
        let group = self.group(id).ok_or(ResponseError::GroupIdNotFound)?;
        let mut journal = self.journal.lock();
        let mut state = group.lock();
        match state.phase {
            Phase::Empty => {}
            Phase::Dead => return Err(ResponseError::GroupIdNotFound),
            _ => return Err(ResponseError::NonEmptyGroup),
        }
        state.forget(&mut journal, |_| true)?;
        state.phase = Phase::Dead;
        drop(state);
        self.groups.write().remove(id);
        Ok(())
    }
}

impl State {
    /// Deletes what was committed for the topics that `is_meant` names.
    fn forget(&mut self, journal: &mut Journal, is_meant: impl Fn(&str) -> bool) -> Outcome {
        let meant = self.offsets.keys().filter(|(name, _)| is_meant(name));
        let delete =
            |(name, index): &(Id, i32)| (Id::clone(&self.id), Id::clone(name), *index, None);
        note(journal, &meant.map(delete).collect::<Vec<_>>())?;
        self.offsets.retain(|(name, _), _| !is_meant(name));
        Ok(())
    }
}

/// Writes changes to the journal. After an error there is nothing of them.
fn note(journal: &mut Journal, changes: &[Change]) -> Outcome {
    journal.append(changes).map_err(|error| {
        log!("cannot keep offsets: {error}");
        ResponseError::KafkaStorageError
    })
}
