//! The topics of the broker.

use crate::broker::partition::{Partition, TopicPartition};
use crate::broker::purgatories::Purgatories;
use kafka_protocol::ResponseError;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Partitions of a topic whose creator does not say how many.
pub(crate) const DEFAULT_PARTITIONS: i32 = 1;

/// Most partitions in all. Any client may create topics, so something has to bound them.
const MAX_PARTITIONS: usize = 10_000;

/// Longest topic name, as in Kafka (names become directory names there).
const MAX_NAME: usize = 249;

/// A topic: its name and its partitions. Never changes once created.
#[derive(Debug)]
pub(crate) struct Topic {
    name: Arc<str>,
    partitions: Vec<Arc<Partition>>,
}

impl Topic {
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn partitions(&self) -> &[Arc<Partition>] {
        &self.partitions
    }
}

/// All topics, by name.
pub(crate) struct Topics {
    by_name: RwLock<ByName>,
    /// Where requests wait for partitions.
    purgatories: Purgatories,
}

#[derive(Debug, Default)]
struct ByName {
    topics: BTreeMap<Arc<str>, Arc<Topic>>,
    partitions: usize,
}

impl Topics {
    pub(crate) fn new(purgatories: Purgatories) -> Self {
        Self {
            by_name: RwLock::default(),
            purgatories,
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Topic>> {
        self.by_name.read().topics.values().cloned().collect()
    }

    /// How many partitions there are in all.
    pub(crate) fn partitions(&self) -> usize {
        self.by_name.read().partitions
    }

    pub(crate) fn topic(&self, name: &str) -> Option<Arc<Topic>> {
        self.by_name.read().topics.get(name).cloned()
    }

    pub(crate) fn partition(
        &self,
        topic: &str,
        index: i32,
    ) -> Result<Arc<Partition>, ResponseError> {
        let topic = self.topic(topic);
        topic
            .zip(usize::try_from(index).ok())
            .and_then(|(topic, index)| topic.partitions.get(index).cloned())
            .ok_or(ResponseError::UnknownTopicOrPartition)
    }

    /// Creates a topic.
    pub(crate) fn create(&self, name: &str, partitions: i32) -> Result<Arc<Topic>, ResponseError> {
        let mut by_name = self.by_name.write();
        let count = by_name.check(name, partitions)?;
        let name = Arc::from(name);
        let partition = |index| {
            let key = TopicPartition {
                topic: Arc::clone(&name),
                partition: index,
            };
            Arc::new(Partition::new(key, &self.purgatories))
        };
        let topic = Arc::new(Topic {
            partitions: (0..partitions).map(partition).collect(),
            name: Arc::clone(&name),
        });
        by_name.partitions += count;
        by_name.topics.insert(name, Arc::clone(&topic));
        Ok(topic)
    }

    /// Whether [`create`](Self::create) would.
    pub(crate) fn check_create(&self, name: &str, partitions: i32) -> Result<(), ResponseError> {
        self.by_name.read().check(name, partitions).map(|_| ())
    }

    /// The topic of this name, created if it is missing.
    pub(crate) fn find_or_create(&self, name: &str) -> Result<Arc<Topic>, ResponseError> {
        if let Some(topic) = self.topic(name) {
            return Ok(topic);
        }
        match self.create(name, DEFAULT_PARTITIONS) {
            // Another client came first.
            Err(ResponseError::TopicAlreadyExists) => self
                .topic(name)
                .ok_or(ResponseError::UnknownTopicOrPartition),
            created => created,
        }
    }
}

impl ByName {
    fn check(&self, name: &str, partitions: i32) -> Result<usize, ResponseError> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if name.is_empty()
            || name.len() > MAX_NAME
            || name == "."
            || name == ".."
            || !name.bytes().all(legal)
        {
            return Err(ResponseError::InvalidTopicException);
        }
        if self.topics.contains_key(name) {
            return Err(ResponseError::TopicAlreadyExists);
        }
        match usize::try_from(partitions) {
            Ok(count @ 1..) if count <= MAX_PARTITIONS => {
                if self.partitions + count > MAX_PARTITIONS {
                    return Err(ResponseError::PolicyViolation);
                }
                Ok(count)
            }
            _ => Err(ResponseError::InvalidPartitions),
        }
    }
}
