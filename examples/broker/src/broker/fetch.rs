//! Fetch requests: what is asked of which partitions, whether enough of it is there, and the answer.

use crate::broker::delayed::Request;
use crate::broker::partition::Partition;
use crate::broker::topics::Topics;
use crate::exchange::{Answer, Outcome};
use crate::messages::*;
use crate::storage::log::{Log, Share};
use bytes::Bytes;
use std::io;
use std::sync::Arc;

/// Most bytes of records in one answer, whatever the client asks for.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Bytes around the records of each partition in an answer.
const AROUND: usize = 64;

pub(crate) struct Fetch {
    topics: Vec<(TopicName, Vec<PartitionFetch>)>,
    min_bytes: usize,
    max_bytes: usize,
}

struct PartitionFetch {
    index: i32,
    partition: Outcome<Arc<Partition>>,
    offset: i64,
    max_bytes: usize,
}

impl Fetch {
    /// Looks up what `request` asks for. Negative limits count as zero.
    pub(crate) fn new(request: FetchRequest, topics: &Topics) -> Self {
        let bytes = |limit: i32| usize::try_from(limit).unwrap_or(0);
        let max_bytes = bytes(request.max_bytes).min(MAX_BYTES);
        let topics = request.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|asked| PartitionFetch {
                index: asked.partition,
                partition: topics.partition(&topic.topic, asked.partition),
                offset: asked.fetch_offset,
                max_bytes: bytes(asked.partition_max_bytes),
            });
            let partitions = partitions.collect();
            (topic.topic, partitions)
        });
        Self {
            topics: topics.collect(),
            min_bytes: bytes(request.min_bytes),
            max_bytes,
        }
    }

    pub(crate) fn known_partitions(&self) -> Vec<Arc<Partition>> {
        let known = self.partitions().flat_map(|asked| &asked.partition);
        known.cloned().collect()
    }

    fn partitions(&self) -> impl Iterator<Item = &PartitionFetch> {
        self.topics.iter().flat_map(|(_, partitions)| partitions)
    }

    /// What an answer that is made now has of each partition, in turn.
    fn shares(&self) -> impl Iterator<Item = Outcome<Share>> {
        // Until something was found, limits give way to a first batch that is longer: see `Log::share`.
        let (mut bytes_left, mut nothing_yet) = (self.max_bytes, true);
        self.partitions().map(move |asked| {
            let limit = asked.max_bytes.min(bytes_left);
            let share = asked.look(|log, to| log.share(asked.offset, to, limit, nothing_yet))?;
            bytes_left = bytes_left.saturating_sub(share.size);
            nothing_yet &= share.size == 0;
            Ok(share)
        })
    }

    fn read(self) -> FetchResponse {
        let partition = |asked: PartitionFetch| {
            // What was found when it was counted, unless it is gone.
            let (offset, limit) = (asked.offset, asked.max_bytes);
            let found = asked.look(|log, to| {
                let told = PartitionData::default()
                    .with_high_watermark(to)
                    .with_last_stable_offset(to)
                    .with_log_start_offset(log.start_offset);
                (log.find(offset, to, limit, limit > 0), told)
            });
            let read = found.and_then(|(batches, told)| {
                let records = batches.read().map_err(|error| asked.unreadable(&error))?;
                Ok(told.with_records(Some(records)))
            });
            // Empty records, not null ones: librdkafka takes null for a MessageSet of invalid size.
            let failed = |error: Code| {
                PartitionData::default()
                    .with_error_code(error.code())
                    .with_high_watermark(-1)
                    .with_records(Some(Bytes::new()))
            };
            read.unwrap_or_else(failed)
                .with_partition_index(asked.index)
        };
        let responses = self.topics.into_iter().map(|(name, partitions)| {
            let partitions = partitions.into_iter().map(partition);
            FetchableTopicResponse::default()
                .with_topic(name)
                .with_partitions(partitions.collect())
        });
        FetchResponse::default().with_responses(responses.collect())
    }
}

impl Request for Fetch {
    /// Whether there is something to answer with: `min_bytes` over all partitions, an error, or as much as there can
    /// be. What is there is what an answer made now would have, so that the two cannot differ.
    fn is_satisfied(&self) -> bool {
        let (mut bytes, mut may_grow) = (0, false);
        for share in self.shares() {
            let Ok(share) = share else {
                return true;
            };
            bytes += share.size;
            may_grow |= share.may_grow;
        }
        bytes >= self.min_bytes || !may_grow
    }

    fn answer(mut self: Box<Self>) -> Answer {
        // What comes later is for the next fetch: there is no memory for it.
        let sizes = self.shares().map(|share| share.map_or(0, |it| it.size));
        let sizes: Vec<_> = sizes.collect();
        let asked = self.topics.iter_mut().flat_map(|(_, asked)| asked);
        let mut size = 0;
        for (asked, bytes) in asked.zip(sizes) {
            asked.max_bytes = bytes;
            size += AROUND + bytes;
        }
        Answer::unread(size, || self.read())
    }
}

impl PartitionFetch {
    fn look<T>(&self, look: impl FnOnce(&Log, i64) -> T) -> Outcome<T> {
        let partition = self.partition.as_ref().map_err(|error| *error)?;
        partition.look(self.offset, look)
    }

    fn unreadable(&self, error: &io::Error) -> Code {
        let offset = self.offset;
        // Gone since it was found: the oldest segments go when there are too many.
        if error.kind() == io::ErrorKind::NotFound {
            return Code::OffsetOutOfRange;
        }
        log!("partition {} from offset {offset}: {error}", self.index);
        Code::KafkaStorageError
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{batch, fetch_from, records};
    use crate::storage::batch::Batch;

    /// More may come while it waits for that.
    #[test]
    fn an_answer_has_what_there_is_memory_for() {
        let topics = Topics::in_memory();
        let partition = &topics.create("t", 1).expect("a topic").partitions[0];
        let batch = Batch::from_producer(&batch(&[b"value"]).into()).expect("a batch");
        let append = || {
            let appended = partition.append(&batch).expect("it is there");
            partition.replicated_up_to(appended.end_offset);
        };
        append();
        // From where something is, and from where there is nothing yet.
        for offset in [0, 2] {
            let fetch = Box::new(Fetch::new(fetch_from("t", &[(0, offset)], 0), &topics));
            let Answer { size, read } = fetch.answer();
            append();
            let ResponseKind::Fetch(answer) = read() else {
                panic!("another answer")
            };
            let read = records(&answer.responses[0].partitions[0]).len();
            assert_eq!(AROUND + read, size, "{offset}");
        }
    }
}
