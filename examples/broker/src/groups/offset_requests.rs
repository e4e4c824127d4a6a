//! Requests about offsets: of consumers, which commit and fetch them, and of administrators, which delete them.

use super::Coordinator;
use super::group::{Phase, State};
use super::journal::{At, Committed, Journal, Noted, Offsets};
use super::member::{self, Id};
use crate::exchange::{Answer, Outcome, code, ensure};
use crate::messages::*;

/// Longest metadata of a committed offset, as Kafka's `offset.metadata.max.bytes`.
const MAX_OFFSET_METADATA: usize = 4096;

/// What is told where nothing was committed.
const NOTHING: Committed = Committed {
    offset: -1,
    leader_epoch: -1,
    metadata: None,
    charge: None,
};

/// What was found in a group, topic by topic, in the types that have it in the version asked for.
macro_rules! told {
    ($found:expr, $topic:ident, $partition:ident) => {{
        let topics = $found.chunk_by(|((one, _), _), ((other, _), _)| one == other);
        let topics = topics.map(|of_topic| {
            let partitions = of_topic.iter().map(|((_, index), found)| {
                $partition::default()
                    .with_partition_index(*index)
                    .with_committed_offset(found.offset)
                    .with_committed_leader_epoch(found.leader_epoch)
                    .with_metadata(Some(text(found.metadata.as_deref().unwrap_or_default())))
            });
            $topic::default()
                .with_partitions(partitions.collect())
                .with_name(TopicName(text(&of_topic[0].0.0)))
        });
        topics.collect()
    }};
}

impl Coordinator {
    /// Commits offsets. Each succeeds or fails by itself.
    pub(super) fn commit(
        &self,
        asked: &OffsetCommitRequest,
        is_partition: &dyn Fn(&str, i32) -> bool,
    ) -> OffsetCommitResponse {
        // Held from the look for the topics until the changes are both in the journal and in memory: they have the same
        // order in both, and what is committed for a topic that is deleted meanwhile is forgotten afterwards.
        let mut journal = self.journal.lock();
        let mut commit = |topic: &str, offset: &OffsetCommitRequestPartition| {
            let (index, metadata) = (offset.partition_index, &offset.committed_metadata);
            ensure(is_partition(topic, index), Code::UnknownTopicOrPartition)?;
            // No member joins a group of a negative generation: it is there to keep offsets.
            let group = match asked.generation_id_or_member_epoch {
                0.. => self.group(&asked.group_id).ok_or(Code::IllegalGeneration)?,
                _ => self.group_or_new(&asked.group_id)?,
            };
            let mut state = group.lock();
            // Before what may be wrong with the offset: a client that is no member any more has to learn that, and join again.
            state.check_commit(asked)?;
            let length = metadata.as_ref().map_or(0, |text| text.len());
            ensure(length <= MAX_OFFSET_METADATA, Code::OffsetMetadataTooLarge)?;
            let mut committed = Committed {
                offset: offset.committed_offset,
                leader_epoch: offset.committed_leader_epoch,
                metadata: metadata.as_deref().map(Id::from),
                charge: None,
            };
            let charge = member::charge(&self.shared.memory, committed.size(topic));
            committed.charge = Some(charge.map_err(|_| Code::InvalidCommitOffsetSize)?);
            let at = (Id::from(topic), index);
            state.note(&mut journal, vec![(at, Some(committed))])
        };
        let topics = asked.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                OffsetCommitResponsePartition::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(code(&commit(&topic.name, partition)))
            });
            OffsetCommitResponseTopic::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        let topics = topics.collect();
        if journal.is_long()
            && let Err(error) = journal.rewrite(&self.committed())
        {
            // What it has is whole, so it can go on.
            log!("cannot shorten the journal of offsets: {error}");
        }
        OffsetCommitResponse::default().with_topics(topics)
    }

    /// What groups have committed: for the partitions asked for, or for all. From version 8 on they may be several.
    pub(super) fn committed_offsets(&self, mut asked: OffsetFetchRequest) -> Answer {
        let is_one = asked.groups.is_empty();
        if is_one {
            let renamed = |it: OffsetFetchRequestTopic| {
                let topic = OffsetFetchRequestTopics::default().with_name(it.name);
                topic.with_partition_indexes(it.partition_indexes)
            };
            let topics = asked.topics.map(|it| it.into_iter().map(renamed).collect());
            let group = OffsetFetchRequestGroup::default().with_group_id(asked.group_id);
            asked.groups.push(group.with_topics(topics));
        }
        let mut size = 0;
        let mut found = Vec::new();
        for group in asked.groups {
            let committed = self.committed_of(&group);
            let sizes = committed.iter().map(|((topic, _), it)| it.size(topic));
            size += sizes.sum::<usize>();
            found.push((group.group_id, committed));
        }
        Answer::unread(size, move || {
            let answer = OffsetFetchResponse::default();
            if is_one {
                let (_, found) = &found[0];
                let topics = told!(
                    found,
                    OffsetFetchResponseTopic,
                    OffsetFetchResponsePartition
                );
                return answer.with_topics(topics);
            }
            let groups = found.into_iter().map(|(id, found)| {
                let group = OffsetFetchResponseGroup::default().with_group_id(id);
                group.with_topics(told!(
                    found,
                    OffsetFetchResponseTopics,
                    OffsetFetchResponsePartitions
                ))
            });
            answer.with_groups(groups.collect())
        })
    }

    fn committed_of(&self, asked: &OffsetFetchRequestGroup) -> Vec<(At, Committed)> {
        let group = self.group(&asked.group_id);
        let state = group.as_ref().map(|group| group.lock());
        let none = Offsets::default();
        let offsets = state.as_ref().map_or(&none, |state| &state.offsets);
        let asked: Vec<_> = match &asked.topics {
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
        let find = |at: At| {
            let found = offsets.get(&at).cloned();
            (at, found.unwrap_or(NOTHING))
        };
        asked.into_iter().map(find).collect()
    }

    /// Forgets offsets of a group without members: members would only commit them again.
    pub(super) fn delete_offsets(&self, asked: OffsetDeleteRequest) -> OffsetDeleteResponse {
        let answer = OffsetDeleteResponse::default();
        let group = self.group(&asked.group_id);
        let mut journal = self.journal.lock();
        let state = group.as_ref().map(|group| group.lock());
        let Some(mut state) = state.filter(|state| state.phase != Phase::Dead) else {
            return answer.with_error_code(Code::GroupIdNotFound.code());
        };
        let mut delete = |topic: &str, index| {
            ensure(state.phase == Phase::Empty, Code::GroupSubscribedToTopic)?;
            state.forget(&mut journal, vec![(Id::from(topic), index)])
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

    /// `delete` deletes a topic; what was committed for it is then forgotten: it means nothing to another of that name. The
    /// commits for that one come later: the journal is locked. If it cannot be written, that is logged, and offsets stay.
    pub(crate) fn forget_topic<T>(
        &self,
        topic: &str,
        delete: impl FnOnce() -> Outcome<T>,
    ) -> Outcome<T> {
        let mut journal = self.journal.lock();
        let deleted = delete()?;
        for group in self.all() {
            let mut state = group.lock();
            let meant = state.offsets.keys().filter(|(name, _)| **name == *topic);
            let meant = meant.cloned().collect();
            // (Logged where it is noted.)
            let _ = state.forget(&mut journal, meant);
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
        let group = self.group(id).ok_or(Code::GroupIdNotFound)?;
        let mut journal = self.journal.lock();
        let mut state = group.lock();
        ensure(state.phase != Phase::Dead, Code::GroupIdNotFound)?;
        ensure(state.phase == Phase::Empty, Code::NonEmptyGroup)?;
        let all = state.offsets.keys().cloned().collect();
        state.forget(&mut journal, all)?;
        state.phase = Phase::Dead;
        drop(state);
        self.groups.write().remove(id);
        Ok(())
    }
}

impl State {
    /// Forgets what was committed, if anything was.
    fn forget(&mut self, journal: &mut Journal, meant: Vec<At>) -> Outcome {
        let known = meant.into_iter().filter(|at| self.offsets.contains_key(at));
        let changes = known.map(|at| (at, None)).collect();
        self.note(journal, changes)
    }

    /// Notes changes in the journal, and makes them. After an error there is nothing of them.
    pub(super) fn note(&mut self, journal: &mut Journal, changes: Vec<Noted>) -> Outcome {
        let lines = changes.iter();
        let lines = lines.map(|((topic, index), committed)| (&self.id, topic, index, committed));
        let lines: Vec<_> = lines.collect();
        journal.append(&lines).map_err(|error| {
            log!("cannot keep offsets: {error}");
            Code::KafkaStorageError
        })?;
        for (at, committed) in changes {
            match committed {
                Some(committed) => self.offsets.insert(at, committed),
                None => self.offsets.remove(&at),
            };
        }
        Ok(())
    }
}
