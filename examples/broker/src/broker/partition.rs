//! One partition: its log, and how far of it consumers may see.

use crate::broker::delayed::{Delayed, Purgatories, TopicPartition};
use crate::exchange::{Outcome, ensure};
use crate::messages::*;
use crate::storage::batch::Batch;
use crate::storage::log::Log;
use crate::storage::producers::Producers;
use parking_lot::Mutex;
use request_purgatory::{CheckBound, ResolvedKey};
use std::io;
use std::path::Path;

/// A partition as its leader keeps it.
///
/// The lock is held for single steps only, never across a check of a purgatory: a check runs `try_complete` of
/// other requests, which take the locks of whatever partitions they wait for.
pub(crate) struct Partition {
    pub(crate) key: TopicPartition,
    state: Mutex<State>,
    /// The fetches that wait for this partition.
    pub(crate) fetches: ResolvedKey<Delayed>,
    /// The produces that wait for it, each at the offset that it needs.
    pub(crate) produces: ResolvedKey<Delayed>,
}

#[derive(Default)]
struct State {
    log: Log,
    producers: Producers,
    /// The offset up to which every replica has the log. Consumers see nothing past it.
    high_watermark: i64,
    /// Its topic was. Requests may still hold it.
    deleted: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Appended {
    pub(crate) base_offset: i64,
    pub(crate) end_offset: i64,
    pub(crate) log_start_offset: i64,
}

impl Partition {
    /// A partition whose log is in `folder`, or in memory. All that it finds there counts as replicated.
    pub(crate) fn open(
        key: TopicPartition,
        folder: Option<&Path>,
        purgatories: &Purgatories,
    ) -> io::Result<Self> {
        let mut state = State::default();
        if let Some(folder) = folder {
            state.log = Log::open(folder, |batch, offset| state.producers.note(batch, offset))?;
            state.high_watermark = state.log.end_offset;
        }
        Ok(Self {
            state: Mutex::new(state),
            fetches: purgatories.fetch.resolve(key.clone()),
            produces: purgatories.produce.resolve(key.clone()),
            key,
        })
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.state.lock().log.sync()
    }

    /// Whether every replica has the log up to `offset`: not yet (`None`), yes, or it never will.
    pub(crate) fn has_replicated(&self, offset: i64) -> Option<Outcome> {
        let state = self.state.lock();
        match state.check_exists() {
            Ok(()) if state.high_watermark < offset => None,
            checked => Some(checked),
        }
    }

    /// From now on it takes no batch. What waits for it is still to be [told](Self::check_up_to).
    pub(crate) fn delete(&self) {
        self.state.lock().deleted = true;
    }

    /// Appends a batch, unless it is a repeat: then this tells where the original is.
    pub(crate) fn append(&self, batch: &Batch) -> Outcome<Appended> {
        let mut state = self.state.lock();
        state.check_exists()?;
        let base_offset = match state.producers.find(batch)? {
            Some(original) => original,
            None => {
                let appended = state.log.append(batch);
                let base_offset = appended.map_err(|error| self.failed("append", &error))?;
                state.producers.note(batch, base_offset);
                // What cannot be removed is no reason to refuse what was appended.
                let keep_from = state.high_watermark;
                if let Err(error) = state.log.retain(keep_from) {
                    self.failed("remove the oldest", &error);
                }
                base_offset
            }
        };
        Ok(Appended {
            base_offset,
            end_offset: base_offset + i64::from(batch.records),
            log_start_offset: state.log.start_offset,
        })
    }

    fn failed(&self, what: &str, error: &io::Error) -> Code {
        let TopicPartition { topic, partition } = &self.key;
        log!("topic {topic}, partition {partition}: cannot {what}: {error}");
        Code::KafkaStorageError
    }

    /// The follower has the log up to `offset`: if that moves the high watermark, [checks](Self::check_up_to) who waits.
    pub(crate) fn replicated_up_to(&self, offset: i64) {
        {
            let mut state = self.state.lock();
            if offset <= state.high_watermark {
                return;
            }
            state.high_watermark = offset;
        }
        self.check_up_to(offset as u64);
    }

    /// Checks who waits for data, or for no more than `offset`. To be called with no lock held: this completes requests.
    pub(crate) fn check_up_to(&self, offset: u64) {
        // Produces that need more than that are not even looked at.
        let needed = CheckBound::all().up_to(offset);
        self.produces.check_and_complete_with(needed);
        // Fetches look at the high watermark under the lock under which it was moved.
        self.fetches.check_and_complete_after_lock();
    }

    /// Looks into the log for a consumer at `offset`, who sees it up to the high watermark. A consumer may ask for any
    /// record that is kept, and for the one that will come next.
    pub(crate) fn look<T>(&self, offset: i64, look: impl FnOnce(&Log, i64) -> T) -> Outcome<T> {
        let state = self.state.lock();
        state.check_exists()?;
        let kept = state.log.start_offset..=state.log.end_offset;
        ensure(kept.contains(&offset), Code::OffsetOutOfRange)?;
        Ok(look(&state.log, state.high_watermark))
    }

    /// The first record at or after `timestamp` that consumers may see, as (timestamp, offset). Negative times are names.
    pub(crate) fn find_timestamp(&self, timestamp: i64) -> Outcome<(i64, i64)> {
        const LATEST: i64 = -1;
        const EARLIEST: i64 = -2;
        const NONE: (i64, i64) = (-1, -1);
        let state = self.state.lock();
        match timestamp {
            LATEST => Ok((-1, state.high_watermark)),
            EARLIEST => Ok((-1, state.log.start_offset)),
            0.. => {
                let found = state.log.find_timestamp(timestamp);
                let found = found.filter(|(_, offset)| *offset < state.high_watermark);
                Ok(found.unwrap_or(NONE))
            }
            _ => Err(Code::InvalidRequest),
        }
    }
}

impl State {
    fn check_exists(&self) -> Outcome {
        ensure(!self.deleted, Code::UnknownTopicOrPartition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::topics::Topics;
    use crate::requests::batch_from;
    use std::time::Duration;

    /// A request may have looked it up before the topic went. Else it might append to the folder of the next of this name.
    #[test]
    fn a_deleted_topic_takes_no_batch_once_another_may_follow() {
        let batch = batch_from(0, 0, 0, &[b"value"]).into();
        let batch = Batch::from_producer(&batch).expect("a batch");
        let topics = Topics::in_memory();
        let partition = &topics.create("t", 1).expect("a topic").partitions[0];
        let append = || partition.append(&batch).map(|appended| appended.end_offset);
        assert_eq!([append(), append()], [Ok(1); 2], "a repeat as well");
        std::thread::scope(|scope| {
            let _takes_batches = partition.state.lock();
            scope.spawn(|| topics.delete("t"));
            let next = scope.spawn(|| while topics.create("t", 1).is_err() {});
            std::thread::sleep(Duration::from_millis(50));
            assert!(!next.is_finished());
        });
        assert_eq!(append(), Err(Code::UnknownTopicOrPartition));
    }
}
