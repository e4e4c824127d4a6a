//! Requests about offsets: of consumers, which commit and fetch them, and of administrators, which delete them.

use super::Coordinator;
use super::group::{Group, Phase, State};
use super::journal::{At, Committed, Journal, Noted};
use super::member::{self, Id};
use crate::exchange::{Answer, MAX_ANSWER, Outcome, code, ensure};
use crate::messages::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Longest metadata of a committed offset, as Kafka's `offset.metadata.max.bytes`.
const MAX_OFFSET_METADATA: usize = 4096;

/// What is told where nothing was committed.
static NOTHING: Committed = Committed {
    offset: -1,
    leader_epoch: -1,
    metadata: None,
    charge: None,
};

/// What was found in a group, or why nothing is told, topic by topic, in the types of the version asked for.
macro_rules! told {
    ($found:expr, $error:expr, $topic:ident, $partition:ident) => {{
        let topics = $found.chunk_by(|((one, _), _), ((other, _), _)| one == other);
        let topics = topics.map(|of_topic| {
            let partitions = of_topic.iter().map(|((_, index), found)| {
                $partition::default()
                    .with_partition_index(*index)
                    .with_committed_offset(found.offset)
                    .with_committed_leader_epoch(found.leader_epoch)
                    .with_metadata(Some(text(found.metadata.as_deref().unwrap_or_default())))
                    .with_error_code($error)
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

    /// What groups have committed: for the partitions asked for, or for all. From version 8 on they may be several, each
    /// once. An answer is read when there is memory for it: of groups that make it longer than any is, it has an error.
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
        let (mut seen, mut room) = (BTreeSet::new(), MAX_ANSWER);
        let groups = asked.groups.iter();
        let groups = groups.filter(|group| seen.insert(&group.group_id));
        let wanted = groups.map(|asked| {
            let wanted = Wanted::of(asked, self.group(&asked.group_id), room);
            // Behind one that is too long there are none: they need not be measured.
            room -= wanted.size.unwrap_or(room);
            wanted
        });
        let wanted: Vec<_> = wanted.collect();
        let sizes = wanted.iter().map(Wanted::told);
        Answer::unread(sizes.sum(), move || {
            let answer = OffsetFetchResponse::default();
            let mut groups = wanted.into_iter().map(|wanted| {
                let (found, error) = wanted.read();
                (wanted.id, found, error)
            });
            if is_one && let Some((_, found, error)) = groups.next() {
                let topics = told!(
                    found,
                    error,
                    OffsetFetchResponseTopic,
                    OffsetFetchResponsePartition
                );
                return answer.with_topics(topics).with_error_code(error);
            }
            let groups = groups.map(|(id, found, error)| {
                let topics = told!(
                    found,
                    error,
                    OffsetFetchResponseTopics,
                    OffsetFetchResponsePartitions
                );
                OffsetFetchResponseGroup::default()
                    .with_group_id(id)
                    .with_topics(topics)
                    .with_error_code(error)
            });
            answer.with_groups(groups.collect())
        })
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
        let topic = Id::from(topic);
        let partitions = (Id::clone(&topic), i32::MIN)..=(topic, i32::MAX);
        for group in self.all() {
            let mut state = group.lock();
            // Those of other topics may be very many.
            let meant = state.offsets.range(partitions.clone());
            let meant = meant.map(|(at, _)| At::clone(at)).collect();
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

/// What is asked of a group. It keeps nothing of the frame in which it came.
struct Wanted {
    id: GroupId,
    group: Option<Arc<Group>>,
    /// The places that are named, each once; or all at which something was committed.
    at: Option<Vec<At>>,
    /// How long the answer may be.
    size: Outcome<usize>,
}

impl Wanted {
    /// Measures what it will tell, for which there is this much room.
    fn of(asked: &OffsetFetchRequestGroup, group: Option<Arc<Group>>, room: usize) -> Self {
        let mut seen = BTreeSet::new();
        let named = asked.topics.as_ref().map(|topics| {
            let partitions = topics.iter().flat_map(|topic| {
                let name = Id::from(&**topic.name);
                let indexes = topic.partition_indexes.iter();
                indexes.map(move |index| (Id::clone(&name), *index))
            });
            partitions.filter(|at| seen.insert(At::clone(at))).collect()
        });
        let mut wanted = Self {
            id: GroupId(text(&asked.group_id)),
            group,
            at: named,
            size: Ok(room),
        };
        let state = wanted.group.as_ref().map(|group| group.lock());
        let size = size_within(room, wanted.found(state.as_deref()));
        drop(state);
        wanted.size = size.ok_or(Code::PolicyViolation);
        wanted
    }

    fn found<'a>(&'a self, state: Option<&'a State>) -> impl Iterator<Item = Found<'a>> {
        let offsets = state.map(|state| &state.offsets);
        let all = offsets.filter(|_| self.at.is_none()).into_iter().flatten();
        let find = move |at| offsets.and_then(|offsets| offsets.get(at));
        let named = self.at.iter().flatten();
        all.chain(named.map(move |at| (at, find(at).unwrap_or(&NOTHING))))
    }

    /// How long the answer is at most, also if it is an error.
    fn told(&self) -> usize {
        let named = self.at.as_ref().map_or(0, Vec::len);
        self.size.unwrap_or(named * NOTHING.size(""))
    }

    /// What it tells, and its error.
    fn read(&self) -> (Vec<(At, Committed)>, i16) {
        let read = self.read_within();
        let error = code(&read);
        let nothing = |_| {
            let named = self.at.iter().flatten();
            named.map(|at| (At::clone(at), NOTHING.clone())).collect()
        };
        (read.unwrap_or_else(nothing), error)
    }

    fn read_within(&self) -> Outcome<Vec<(At, Committed)>> {
        let room = self.size?;
        let state = self.group.as_ref().map(|group| group.lock());
        let found = || self.found(state.as_deref());
        // There may be more than was measured, and no memory for that: the client asks again.
        size_within(room, found()).ok_or(Code::CoordinatorLoadInProgress)?;
        Ok(found()
            .map(|(at, it)| (At::clone(at), it.clone()))
            .collect())
    }
}

type Found<'a> = (&'a At, &'a Committed);

/// How long the answer is that tells this, if that is no more than there is room for.
fn size_within<'a>(room: usize, mut found: impl Iterator<Item = Found<'a>>) -> Option<usize> {
    found.try_fold(0, |size, ((topic, _), committed)| {
        let size = size + committed.size(topic);
        (size <= room).then_some(size)
    })
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
