//! The topics of the broker.

use crate::broker::delayed::{Purgatories, TopicPartition};
use crate::broker::partition::Partition;
use crate::exchange::{Outcome, ensure};
use crate::messages::*;
use crate::storage::folder::{Folder, is_topic};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Most partitions in all. Any client may create topics, so something has to bound them.
const MAX_PARTITIONS: usize = 10_000;

/// A topic: its name and its partitions. Never changes once created.
pub(crate) struct Topic {
    pub(crate) name: Arc<str>,
    pub(crate) partitions: Vec<Arc<Partition>>,
}

pub(crate) struct Topics {
    by_name: RwLock<ByName>,
    purgatories: Purgatories,
    /// Where topics are kept, if not in memory.
    folder: Option<Folder>,
    /// Of a topic whose creator does not say how many.
    pub(crate) default_partitions: i32,
}

type ByName = BTreeMap<Arc<str>, Arc<Topic>>;

impl Topics {
    /// The topics that are kept in `folder`; without one there are none yet, and they are kept in memory.
    pub(crate) fn open(
        purgatories: Purgatories,
        folder: Option<Folder>,
        default_partitions: i32,
    ) -> io::Result<Self> {
        let kept = folder.as_ref().map_or(Ok(Vec::new()), Folder::topics)?;
        let topics = Self {
            by_name: RwLock::default(),
            purgatories,
            folder,
            default_partitions,
        };
        for (name, partitions) in kept {
            topics.add(&mut topics.by_name.write(), &name, partitions)?;
        }
        Ok(topics)
    }

    /// Adds a topic, with what is in its folder if it has one.
    fn add(&self, all: &mut ByName, name: &str, partitions: i32) -> io::Result<Arc<Topic>> {
        let name = Arc::<str>::from(name);
        let open = |partition| {
            let folder = self.folder.as_ref();
            let folder = folder.map(|folder| folder.partition(&name, partition));
            let topic = Arc::clone(&name);
            let key = TopicPartition { topic, partition };
            Partition::open(key, folder.as_deref(), &self.purgatories).map(Arc::new)
        };
        let partitions = (0..partitions).map(open).collect::<io::Result<_>>()?;
        let topic = Arc::new(Topic { name, partitions });
        all.insert(Arc::clone(&topic.name), Arc::clone(&topic));
        Ok(topic)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        let topics = self.all();
        let partitions = topics.iter().flat_map(|topic| &topic.partitions);
        // All of them, whatever comes of one.
        let synced = partitions.map(|partition| partition.sync());
        synced.fold(Ok(()), io::Result::and)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Topic>> {
        self.by_name.read().values().cloned().collect()
    }

    pub(crate) fn topic(&self, name: &str) -> Outcome<Arc<Topic>> {
        let found = self.by_name.read().get(name).cloned();
        found.ok_or(Code::UnknownTopicOrPartition)
    }

    pub(crate) fn partition(&self, topic: &str, index: i32) -> Outcome<Arc<Partition>> {
        let (topic, index) = (self.topic(topic)?, usize::try_from(index).ok());
        let found = index.and_then(|index| topic.partitions.get(index).cloned());
        found.ok_or(Code::UnknownTopicOrPartition)
    }

    pub(crate) fn create(&self, name: &str, partitions: i32) -> Outcome<Arc<Topic>> {
        let mut by_name = self.by_name.write();
        check(&by_name, name, partitions)?;
        if let Some(folder) = &self.folder {
            logged("create", name, folder.create(name, partitions))?;
        }
        let created = logged("create", name, self.add(&mut by_name, name, partitions));
        if let (Err(_), Some(folder)) = (&created, &self.folder) {
            // Or it could never be created again.
            let _ = logged("delete", name, folder.delete(name));
        }
        created
    }

    /// Takes a topic away. What waits for its partitions is still to be [told](Partition::check_up_to).
    pub(crate) fn delete(&self, name: &str) -> Outcome<Arc<Topic>> {
        let mut by_name = self.by_name.write();
        let topic = by_name.get(name).cloned();
        let topic = topic.ok_or(Code::UnknownTopicOrPartition)?;
        if let Some(folder) = &self.folder {
            logged("delete", name, folder.delete(name))?;
        }
        by_name.remove(name);
        // Before there can be another of this name: what a produce still appends to this one must not go there.
        topic.partitions.iter().for_each(|it| it.delete());
        Ok(topic)
    }

    pub(crate) fn check_create(&self, name: &str, partitions: i32) -> Outcome {
        check(&self.by_name.read(), name, partitions)
    }

    pub(crate) fn find_or_create(&self, name: &str) -> Outcome<Arc<Topic>> {
        self.topic(name)
            .or_else(|_| match self.create(name, self.default_partitions) {
                // Another client came first.
                Err(Code::TopicAlreadyExists) => self.topic(name),
                created => created,
            })
    }
}

/// What was done with the folder of a topic. Why it failed is in the log, and no business of the client.
fn logged<T>(what: &str, topic: &str, done: io::Result<T>) -> Outcome<T> {
    done.map_err(|error| {
        log!("cannot {what} topic {topic}: {error}");
        Code::KafkaStorageError
    })
}

fn check(by_name: &ByName, name: &str, partitions: i32) -> Outcome {
    ensure(is_topic(name), Code::InvalidTopicException)?;
    ensure(!by_name.contains_key(name), Code::TopicAlreadyExists)?;
    let count = usize::try_from(partitions).unwrap_or(0);
    let is_count = (1..=MAX_PARTITIONS).contains(&count);
    ensure(is_count, Code::InvalidPartitions)?;
    let all = by_name.values().map(|topic| topic.partitions.len());
    let has_room = all.sum::<usize>() + count <= MAX_PARTITIONS;
    ensure(has_room, Code::PolicyViolation)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Topics {
        /// None yet, with one partition each.
        pub(crate) fn in_memory() -> Self {
            let purgatories = Purgatories::new().expect("threads are to be had");
            Self::open(purgatories, None, 1).expect("no folder")
        }
    }

    /// All find it missing, and one of them creates it.
    #[test]
    fn clients_that_want_a_new_topic_at_once_all_get_it() {
        let topics = Topics::in_memory();
        std::thread::scope(|scope| {
            // Does not keep them from looking, only from creating.
            let held = topics.by_name.upgradable_read();
            let clients = [(); 3].map(|()| scope.spawn(|| topics.find_or_create("t").is_ok()));
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(held);
            assert_eq!(clients.map(|client| client.join().ok()), [Some(true); 3]);
        });
    }
}
